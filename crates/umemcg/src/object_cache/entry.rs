//! One cached object: key, value, payer, its place in the lists, and its mark of use.
//!
//! An entry moves when its shard grows; its slot in the lists, a number, identifies it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use umemcg_reclaim::ListSlot;

use super::payer::Payer;
use super::queue::Queue;

/// Most uses counted for an entry. With more, reclaim would only have to pass it more often.
pub(super) const USES_MAX: u32 = 3;
const USES: u32 = 3;
const IN_MAIN: u32 = 4;
const BYTES_SHIFT: u32 = 3;
const HAS_PIN: u32 = 1 << 31;
/// The unit of charges: the charge of an entry is a multiple of it.
pub(super) const BYTES_UNIT: u64 = 16;

/// The number of uses of an entry since reclaim last visited it, its queue, and its charge. Uses
/// are counted under the shared lock of the table, and concurrent ones may be lost; the queue
/// changes under the exclusive lock only, the bytes never.
#[derive(Debug)]
pub(super) struct Mark(AtomicU32);

impl Mark {
    /// Creates an entry; `bytes` is a multiple of [`BYTES_UNIT`] below 4 GiB.
    pub(super) fn new(queue: Queue, bytes: u64) -> Self {
        debug_assert!(bytes.is_multiple_of(BYTES_UNIT) && u32::try_from(bytes).is_ok());
        let in_main = if queue == Queue::Main { IN_MAIN } else { 0 };
        Self(AtomicU32::new(in_main | ((bytes / BYTES_UNIT) as u32) << BYTES_SHIFT))
    }

    /// Returns the charged bytes.
    #[inline]
    pub(super) fn bytes(&self) -> u64 {
        u64::from((self.0.load(Relaxed) & !HAS_PIN) >> BYTES_SHIFT) * BYTES_UNIT
    }

    /// Counts a use. Writes nothing when the count is at its maximum, so that hits on a hot object
    /// do not write its cache line.
    #[inline]
    pub(super) fn note_use(&self) {
        let mark = self.0.load(Relaxed);
        if mark & USES < USES_MAX {
            self.0.store(mark + 1, Relaxed);
        }
    }

    pub(super) fn uses(&self) -> u32 {
        self.0.load(Relaxed) & USES
    }

    /// Removes a use, under the shared lock. Returns `false` if there was none.
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

    /// Returns whether it has a pin.
    #[inline]
    pub(super) fn has_pin(&self) -> bool {
        self.0.load(Relaxed) & HAS_PIN != 0
    }

    /// Records a pin; the entry keeps it until it leaves.
    pub(super) fn note_pin(&mut self) {
        *self.0.get_mut() |= HAS_PIN;
    }

    /// Moves the entry to the main queue, with no uses.
    pub(super) fn promote(&mut self) {
        let mark = self.0.get_mut();
        *mark = (*mark & !USES) | IN_MAIN;
    }
}

/// An object in the cache. Fields are constant unless they say otherwise. Aligned so that an entry
/// of two words lies in one cache line: a hit on a large cache waits for lines.
#[derive(Debug)]
#[repr(C, align(32))]
pub(super) struct Entry<K, V> {
    pub(super) key: K,
    pub(super) value: V,
    /// The group charged for it; it counts in this group's statistics.
    pub(super) payer: Arc<Payer>,
    /// (A)
    pub(super) mark: Mark,
    /// Its place in the lists. The thread removing the entry from the table owns it.
    pub(super) slot: ListSlot,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uses_are_counted_up_to_a_bound_and_spent_one_by_one() {
        let mark = Mark::new(Queue::Main, 4240);
        (0..10).for_each(|_| mark.note_use());
        assert_eq!((mark.uses(), mark.queue(), mark.bytes()), (USES_MAX, Queue::Main, 4240));
        assert_eq!((0..10).filter(|_| mark.spend_use()).count(), USES_MAX as usize);
        assert_eq!((mark.uses(), mark.queue(), mark.bytes()), (0, Queue::Main, 4240));
    }

    #[test]
    fn a_pin_changes_no_bytes() {
        let mut mark = Mark::new(Queue::Probation, u64::from(u32::MAX - 15));
        mark.note_pin();
        mark.note_use();
        mark.promote();
        assert_eq!((mark.has_pin(), mark.uses(), mark.bytes()), (true, 0, u64::from(u32::MAX - 15)));
    }

    #[test]
    fn promotion_forgets_uses() {
        let mut mark = Mark::new(Queue::Probation, u64::from(u32::MAX - 15));
        mark.note_use();
        assert_eq!(mark.queue(), Queue::Probation);
        mark.promote();
        assert_eq!((mark.uses(), mark.queue(), mark.bytes()), (0, Queue::Main, u64::from(u32::MAX - 15)));
    }

    #[test]
    fn an_entry_of_two_words_takes_half_a_cache_line() {
        assert_eq!(size_of::<Option<Entry<u64, Arc<[u8; 4096]>>>>(), 32);
    }
}
