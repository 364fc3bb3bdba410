//! One cached object: key, value, who pays, its place in the lists, and its mark of use.
//!
//! An entry moves when its shard grows; its place in the lists, a number, is what tells it from every other.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering::Relaxed};

use umemcg_group::OwnerId;
use umemcg_reclaim::ListSlot;

use super::payer::Payer;

/// Objects are on this node: an allocator does not say where its memory lies.
pub(super) const NODE: usize = 0;

/// Which list an entry waits on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Queue {
    /// New, and not known to be of use.
    Probation = 0,
    /// Used after it came, or asked for again soon after it went.
    Main = 1,
}

/// Uses that an entry can have to its credit. More would only make reclaim pass it more often.
pub(super) const USES_MAX: u8 = 3;
const USES: u8 = 3;
const IN_MAIN: u8 = 4;

/// How often an entry was used since reclaim last looked, and its queue. Uses are counted under the shared lock of the table, and
/// may lose each other; the queue changes under the exclusive lock only.
#[derive(Debug)]
pub(super) struct Mark(AtomicU8);

impl Mark {
    pub(super) fn new(queue: Queue) -> Self {
        Self(AtomicU8::new(if queue == Queue::Main { IN_MAIN } else { 0 }))
    }

    /// Counts a use. Writes nothing when there is enough of them, so that hits on what is hot leave its line alone.
    #[inline]
    pub(super) fn note_use(&self) {
        let mark = self.0.load(Relaxed);
        if mark & USES < USES_MAX {
            self.0.store(mark + 1, Relaxed);
        }
    }

    pub(super) fn uses(&self) -> u8 {
        self.0.load(Relaxed) & USES
    }

    /// Takes a use away, under the shared lock. False when there was none.
    pub(super) fn spend_use(&self) -> bool {
        let mark = self.0.load(Relaxed);
        if mark & USES == 0 {
            return false;
        }
        self.0.store(mark - 1, Relaxed);
        true
    }

    pub(super) fn queue(&self) -> Queue {
        if self.0.load(Relaxed) & IN_MAIN == 0 { Queue::Probation } else { Queue::Main }
    }

    /// Puts it in the main queue with no uses.
    pub(super) fn promote(&mut self) {
        *self.0.get_mut() = IN_MAIN;
    }
}

/// An object in the cache. Fields are constant unless they say otherwise. What a hit touches comes first, because half of all
/// entries lie across two cache lines.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Entry<K, V> {
    pub(super) key: K,
    pub(super) value: V,
    /// Whose figures it stands in.
    pub(super) payer: Arc<Payer>,
    /// (A)
    pub(super) mark: Mark,
    /// Its place in the lists. Owned by whoever takes the entry out of the table.
    pub(super) slot: ListSlot,
    /// Who it is charged to.
    pub(super) owner: OwnerId,
    /// How much is charged.
    pub(super) bytes: u32,
    /// When it came, in ticks of [`super::expiry`].
    pub(super) born: u32,
    /// When it was used last. (A)
    pub(super) used: AtomicU32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uses_are_counted_up_to_a_bound_and_spent_one_by_one() {
        let mark = Mark::new(Queue::Main);
        (0..10).for_each(|_| mark.note_use());
        assert_eq!((mark.uses(), mark.queue()), (USES_MAX, Queue::Main));
        assert_eq!((0..10).filter(|_| mark.spend_use()).count(), usize::from(USES_MAX));
        assert_eq!((mark.uses(), mark.queue()), (0, Queue::Main));
    }

    #[test]
    fn promotion_forgets_uses() {
        let mut mark = Mark::new(Queue::Probation);
        mark.note_use();
        assert_eq!(mark.queue(), Queue::Probation);
        mark.promote();
        assert_eq!((mark.uses(), mark.queue()), (0, Queue::Main));
    }

    #[test]
    fn an_entry_of_two_words_fits_in_a_cache_line() {
        assert!(size_of::<Option<Entry<u64, Arc<[u8; 4096]>>>>() <= 48);
    }
}
