//! Changes read by the watch but not processed yet, by inode.
//!
//! Reading an event takes a fraction of a microsecond, looking at its inode some microseconds. So
//! events are read as soon as there are any, before the kernel's queue overflows, and the changes
//! of one inode are processed together. A change that waits too long counts as lost: then all
//! caches are invalidated at once.

use std::collections::{HashMap, HashSet, hash_map};
use std::time::{Duration, Instant};

use umemcg_arena::fanotify::FsChange;
use umemcg_arena::handle::FileHandle;

/// The most bytes of a backlog.
const BYTES_MAX: usize = 32 << 20;
/// The bytes of an inode with its handle: twice its place in a table, since a table has free
/// places, and stays until all its entries have been taken.
const INODE_BYTES: usize = 320;
/// The overhead of a name, in bytes.
const NAME_BYTES: usize = 96;
/// The longest time a change waits here.
const AGE_MAX: Duration = Duration::from_secs(5);

/// The changes of one inode.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct InodeChanges {
    /// Its data or its attributes have changed.
    pub(super) is_changed: bool,
    /// It was closed after an open for writing.
    pub(super) is_written: bool,
    /// Changed names in it.
    pub(super) names: HashSet<Box<[u8]>>,
}

/// The next changes to process.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Changes {
    /// Anything may have changed.
    All,
    Of(FileHandle, InodeChanges),
}

/// See the module text.
#[derive(Debug, Default)]
pub(super) struct ChangeBacklog {
    /// Processed first, in any order.
    oldest: hash_map::IntoIter<FileHandle, InodeChanges>,
    newer: HashMap<FileHandle, InodeChanges>,
    /// The moments of the first change in each.
    oldest_since: Option<Instant>,
    newer_since: Option<Instant>,
    nr_bytes: usize,
    is_lost: bool,
}

impl ChangeBacklog {
    /// Adds a change. Beyond the bound, all changes count as lost.
    pub(super) fn add(&mut self, change: FsChange, now: Instant) {
        if self.nr_bytes >= BYTES_MAX {
            return self.lose_all();
        }
        self.newer_since.get_or_insert(now);
        match change {
            FsChange::Name { directory, name } => {
                let nr_bytes = NAME_BYTES + name.len();
                if self.inode(directory).names.insert(name) {
                    self.nr_bytes += nr_bytes;
                }
            }
            FsChange::Inode(handle) => self.inode(handle).is_changed = true,
            FsChange::Written(handle) => self.inode(handle).is_written = true,
            // Lost events, and unknown kinds of change.
            _ => self.lose_all(),
        }
    }

    fn inode(&mut self, handle: FileHandle) -> &mut InodeChanges {
        self.newer.entry(handle).or_insert_with(|| {
            self.nr_bytes += INODE_BYTES;
            InodeChanges::default()
        })
    }

    /// Drops all changes: anything counts as changed.
    fn lose_all(&mut self) {
        *self = Self { is_lost: true, ..Self::default() };
    }

    pub(super) fn is_empty(&self) -> bool {
        self.nr_bytes == 0 && !self.is_lost
    }

    /// Takes the changes of one inode.
    pub(super) fn pop(&mut self, now: Instant) -> Option<Changes> {
        if self.oldest.len() == 0 {
            self.oldest = std::mem::take(&mut self.newer).into_iter();
            self.oldest_since = self.newer_since.take();
        }
        if self.oldest_since.is_some_and(|since| now.saturating_duration_since(since) > AGE_MAX) {
            self.lose_all();
        }
        if std::mem::take(&mut self.is_lost) {
            return Some(Changes::All);
        }
        let (handle, changes) = self.oldest.next()?;
        let of_names = changes.names.iter().map(|name| NAME_BYTES + name.len());
        self.nr_bytes -= INODE_BYTES + of_names.sum::<usize>();
        Some(Changes::Of(handle, changes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn handle(nr: usize) -> FileHandle {
        FileHandle { kind: 1, bytes: nr.to_ne_bytes().into() }
    }

    fn name(nr: usize) -> Box<[u8]> {
        nr.to_ne_bytes().into()
    }

    #[test]
    fn changes_of_an_inode_come_together_and_the_oldest_first() {
        let (mut backlog, now) = (ChangeBacklog::default(), Instant::now());
        backlog.add(FsChange::Inode(handle(1)), now);
        backlog.add(FsChange::Written(handle(1)), now);
        let both = InodeChanges { is_changed: true, is_written: true, ..InodeChanges::default() };
        assert_eq!(backlog.pop(now), Some(Changes::Of(handle(1), both)));
        for nr in [3, 4] {
            backlog.add(FsChange::Inode(handle(nr)), now);
        }
        assert!(backlog.pop(now).is_some());
        for nr in [5, 6, 5] {
            backlog.add(FsChange::Name { directory: handle(2), name: name(nr) }, now);
        }
        assert!(matches!(backlog.pop(now), Some(Changes::Of(found, _)) if found != handle(2)));
        let names = InodeChanges { names: [5, 6].map(name).into(), ..InodeChanges::default() };
        assert_eq!(backlog.pop(now), Some(Changes::Of(handle(2), names)));
        assert!(backlog.is_empty() && backlog.pop(now).is_none());
    }

    #[test]
    fn what_is_lost_or_beyond_the_bound_may_be_anything() {
        let (mut backlog, now) = (ChangeBacklog::default(), Instant::now());
        backlog.add(FsChange::Inode(handle(1)), now);
        backlog.add(FsChange::Lost, now);
        assert!(!backlog.is_empty());
        backlog.add(FsChange::Inode(handle(2)), now);
        assert_eq!(backlog.pop(now), Some(Changes::All));
        assert!(matches!(backlog.pop(now), Some(Changes::Of(found, _)) if found == handle(2)));
        let mut nr = 0;
        while !backlog.is_lost {
            assert!(backlog.nr_bytes < BYTES_MAX + INODE_BYTES + NAME_BYTES + size_of::<usize>());
            backlog.add(FsChange::Name { directory: handle(nr % 7), name: name(nr) }, now);
            nr += 1;
        }
        assert_eq!((backlog.pop(now), backlog.pop(now)), (Some(Changes::All), None));
    }

    #[test]
    fn what_has_waited_for_too_long_may_be_anything() {
        let (mut backlog, now) = (ChangeBacklog::default(), Instant::now());
        backlog.add(FsChange::Inode(handle(1)), now);
        backlog.add(FsChange::Inode(handle(2)), now);
        assert!(matches!(backlog.pop(now + AGE_MAX), Some(Changes::Of(..))));
        backlog.add(FsChange::Inode(handle(3)), now + AGE_MAX);
        let late = now + AGE_MAX + Duration::from_nanos(1);
        assert_eq!((backlog.pop(late), backlog.pop(late)), (Some(Changes::All), None));
        backlog.add(FsChange::Inode(handle(4)), late);
        assert!(matches!(backlog.pop(late + AGE_MAX), Some(Changes::Of(..))));
    }
}
