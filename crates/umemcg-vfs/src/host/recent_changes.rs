//! Recent changes of a volume's inodes by other programs, for answers based on an earlier look at
//! the host.
//!
//! ```text
//!   request:   moment ──► look at the host ──► enter the inode ──► is it unchanged since? ──► answer
//! watching:  event ──► note ──► find the inode ──► tell the kernel
//! ```
//!
//! A request under way may answer with the state before a change. If the inode was entered before
//! the watching thread looked for it, the kernel is notified, and ignores an answer overtaken by
//! the message. Otherwise the request finds the note. The lock of the inode's shard orders the two,
//! so all accesses are relaxed.

use std::sync::atomic::{AtomicU64, Ordering};

/// The number of places for notes. Inodes share them by inode number.
const NR_PLACES: usize = 512;

/// See the module text.
#[derive(Debug)]
pub(crate) struct RecentChanges {
    /// (A) The last change.
    last: AtomicU64,
    /// (A) The last change of all inodes.
    of_all: AtomicU64,
    /// (A) The last change of each place's inodes.
    of_place: Box<[AtomicU64]>,
}

impl RecentChanges {
    pub(crate) fn new() -> Self {
        let of_place = (0..NR_PLACES).map(|_| AtomicU64::new(0)).collect();
        Self { last: AtomicU64::new(0), of_all: AtomicU64::new(0), of_place }
    }

    fn place(&self, ino: u64) -> &AtomicU64 {
        &self.of_place[ino as usize % NR_PLACES]
    }

    /// Returns the present moment.
    pub(crate) fn moment(&self) -> u64 {
        self.last.load(Ordering::Relaxed)
    }

    /// Notes a change of an inode. An answer about the inode that must not be kept is noted, too.
    pub(crate) fn note(&self, ino: u64) {
        let change = self.last.fetch_add(1, Ordering::Relaxed) + 1;
        self.place(ino).fetch_max(change, Ordering::Relaxed);
    }

    /// Notes that all inodes may have changed.
    pub(crate) fn note_all(&self) {
        let change = self.last.fetch_add(1, Ordering::Relaxed) + 1;
        self.of_all.fetch_max(change, Ordering::Relaxed);
    }

    /// Returns whether no change of an inode has been noted since a moment.
    pub(crate) fn is_unchanged(&self, ino: u64, since: u64) -> bool {
        self.of_all.load(Ordering::Relaxed).max(self.place(ino).load(Ordering::Relaxed)) <= since
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_counts_for_moments_before_it() {
        let changes = RecentChanges::new();
        let before = changes.moment();
        changes.note(5);
        let after = changes.moment();
        assert!(!changes.is_unchanged(5, before) && changes.is_unchanged(5, after));
        assert!(changes.is_unchanged(6, before));
        changes.note_all();
        assert!(!changes.is_unchanged(6, after) && changes.is_unchanged(6, changes.moment()));
    }
}
