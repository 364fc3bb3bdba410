//! The paced writers of one store: their virtual clocks, and notes of the other tenants' pages that
//! they have made dirty.
//!
//! A dirty page counts for the group to which it is charged, the *payer*, whichever group writes to
//! it. If only the limits of the writer's group slowed a writer, one tenant could keep another at
//! its dirty limit for ever. If all writers of a payer's pages shared one clock, the payer's own
//! writers would queue behind any number of others. So each group has a clock for its own writers,
//! and each pair of a paying and a writing tenant has one more:
//!
//! 1. a write notes the pages of other tenants that it has made dirty;
//! 2. the next pause of the writing group takes the notes, and waits for each payer as well as for
//!    its own limits (`file::write_pause`).
//!
//! Groups of one tenant need no notes: the tenant's limits slow all of them, and a tenant that lets
//! its groups share a file decides itself how they divide their dirty room.
//!
//! No group is charged for notes and clocks; both are bounded
//! (`docs/semantics/what-no-group-pays-for.md`).

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

use umemcg_base::LeafMutex;
use umemcg_group::{Group, GroupPath};

use crate::dirty::lists::living;
use crate::dirty::throttle::PacingClock;

/// Most bytes in a note, and so the most bytes of one wait. The note of a group without pauses
/// stops growing here.
const NOTE_BYTES_MAX: u64 = 4 << 20;
/// Most notes of a writing group. Pages of further payers are not noted.
const NOTES_MAX: usize = 64;
/// Most clocks of pairs of tenants on a store. Without one a writer is not paced, only held.
const CLOCKS_MAX: usize = 4096;

/// Bytes of a group's pages made dirty by the writers of another tenant.
#[derive(Debug)]
pub(crate) struct ForeignBytes {
    pub(crate) payer: Arc<Group>,
    pub(crate) bytes: u64,
}

/// Returns whether a group's writers of a payer's pages wait for the payer: neither is the payer
/// the root, nor are both of one tenant.
pub(crate) fn is_foreign(writer: &Group, payer: &Group) -> bool {
    // Almost all writes end the test at its first condition.
    !writer.is_descendant_of(payer) && GroupPath::of(writer).tenant() != GroupPath::of(payer).tenant()
}

/// See the module text.
#[derive(Debug, Default)]
pub(crate) struct PacedWriters {
    /// The clocks of the groups' own writers, by the id of the group. A leaf lock.
    own: LeafMutex<HashMap<u64, PacingClock>>,
    /// The clocks of pairs of tenants, by the paying and the writing tenant. A leaf lock.
    tenants: LeafMutex<HashMap<(u64, u64), PacingClock>>,
    /// The notes not yet taken by a pause, by the id of the writing group. A leaf lock.
    foreign: LeafMutex<HashMap<u64, Vec<ForeignBytes>>>,
}

/// Forgets clocks that stand still before the map grows, or when it has `max` of them.
fn forget_idle<K: Eq + Hash>(clocks: &mut HashMap<K, PacingClock>, now: Duration, max: usize) {
    if clocks.len() >= clocks.capacity().min(max) {
        clocks.retain(|_, clock| !clock.is_idle(now));
    }
}

impl PacedWriters {
    /// Reserves time on the clock of a group's own writers; returns when it is over.
    pub(crate) fn reserve(&self, group: &Group, now: Duration, bytes: u64, rate: f64) -> Duration {
        let mut clocks = self.own.lock();
        forget_idle(&mut clocks, now, usize::MAX);
        clocks.entry(group.id()).or_default().reserve(now, bytes, rate)
    }

    /// Lets a writer of `bytes` of a payer's pages go on when the clock of `tenants`, the paying
    /// and the writing one, allows it, and reserves the time for them. Otherwise returns the wait
    /// before the writer asks again.
    pub(crate) fn pass(&self, tenants: (u64, u64), now: Duration, bytes: u64, rate: f64) -> Option<Duration> {
        let mut clocks = self.tenants.lock();
        forget_idle(&mut clocks, now, CLOCKS_MAX);
        if clocks.len() >= CLOCKS_MAX && !clocks.contains_key(&tenants) {
            return None;
        }
        clocks.entry(tenants).or_default().pass(now, bytes, rate)
    }

    /// Forgets the clock of a group's own writers: they are below its thresholds and need not wait.
    pub(crate) fn forget_clock(&self, group: &Group) {
        let mut clocks = self.own.lock();
        if !clocks.is_empty() {
            clocks.remove(&group.id());
        }
    }

    /// Notes that a write made pages of `payer` dirty.
    pub(crate) fn note_foreign(&self, writer: &Arc<Group>, payer: Arc<Group>, bytes: u64) {
        // Dropped without the lock.
        let mut gone = Vec::new();
        let mut foreign = self.foreign.lock();
        // The thread that removes the group marks it first and takes this lock afterwards, in
        // `forget`: an entry made here has a living group.
        let notes = foreign.entry(living(writer).id()).or_default();
        if let Some(note) = notes.iter_mut().find(|note| Arc::ptr_eq(&note.payer, &payer)) {
            note.bytes = (note.bytes + bytes).min(NOTE_BYTES_MAX);
            return;
        }
        gone.extend(notes.extract_if(.., |note| note.payer.is_dead()));
        if notes.len() < NOTES_MAX {
            notes.push(ForeignBytes { payer, bytes: bytes.min(NOTE_BYTES_MAX) });
        }
    }

    /// Takes the notes of a writing group.
    pub(crate) fn take_foreign(&self, writer: &Arc<Group>) -> Vec<ForeignBytes> {
        self.foreign.lock().remove(&living(writer).id()).unwrap_or_default()
    }

    /// Forgets a group that is being removed. Clocks of tenants go when they stand still.
    pub(crate) fn forget(&self, dying: &Group) {
        self.own.lock().remove(&dying.id());
        let _notes = self.foreign.lock().remove(&dying.id());
    }
}

#[cfg(test)]
mod tests {
    use umemcg_group::GroupTree;

    use super::*;

    #[test]
    fn notes_are_bounded_and_leave_out_removed_payers() {
        let tree = GroupTree::new(1 << 30);
        let make = |name: &str| tree.create(tree.root(), name.as_ref()).unwrap();
        let paced = PacedWriters::default();
        let (writer, gone) = (make("writer"), make("gone"));
        (0..100).for_each(|_| paced.note_foreign(&writer, Arc::clone(&gone), NOTE_BYTES_MAX / 2));
        assert_eq!(paced.take_foreign(&writer)[0].bytes, NOTE_BYTES_MAX);
        paced.note_foreign(&writer, Arc::clone(&gone), 4096);
        tree.remove(&gone, |_, _| ()).unwrap();
        (0..NOTES_MAX + 5).for_each(|i| paced.note_foreign(&writer, make(&i.to_string()), 4096));
        let notes = paced.take_foreign(&writer);
        assert_eq!(notes.iter().filter(|note| !note.payer.is_dead()).count(), NOTES_MAX);
        assert_eq!(notes.len(), NOTES_MAX);
    }

    #[test]
    fn clocks_of_tenants_are_bounded() {
        let paced = PacedWriters::default();
        let pass = |payer: u64, now| paced.pass((payer, 0), now, 1 << 20, 1024.0).is_none();
        let max = CLOCKS_MAX as u64;
        assert!((0..max).all(|payer| pass(payer, Duration::ZERO)));
        assert!(!pass(0, Duration::ZERO), "it has a clock");
        assert!(pass(max, Duration::ZERO) && pass(max, Duration::ZERO), "no clock is left");
        let later = Duration::from_secs(7200);
        assert!(pass(max, later) && !pass(max, later), "the others stand still");
        assert_eq!(paced.tenants.lock().len(), 1);
    }

    #[test]
    fn a_writer_waits_for_payers_of_other_tenants_only() {
        let tree = GroupTree::new(1 << 30);
        let make = |parent, name: &str| tree.create(parent, name.as_ref()).unwrap();
        let (a, b) = (make(tree.root(), "a"), make(tree.root(), "b"));
        let (x, y) = (make(&a, "x"), make(&a, "y"));
        for (writer, payer) in [(&x, &b), (&a, &b), (&b, &y), (tree.root(), &x)] {
            assert!(is_foreign(writer, payer), "{writer:?} {payer:?}");
        }
        for (writer, payer) in [(&x, &x), (&x, &y), (&x, &a), (&a, &x), (&b, tree.root())] {
            assert!(!is_foreign(writer, payer), "{writer:?} {payer:?}");
        }
    }
}
