//! The owner of a file's dirty data, for write-back: the file is on this group's list of dirty
//! files.
//!
//! A clean file belongs to no group. The first dirty page makes its group the owner. While the file
//! is dirty, the pages written by each round of write-back vote: the majority of a round (Boyer and
//! Moore: one candidate and one count) is noted in a history of sixteen slots over two seconds of
//! the store's time. A round fills slots in proportion to its time, five at most; rounds far
//! shorter than usual do not count. When more than half of the slots belong to groups other than
//! the owner, the file moves to the last winner. So a file follows its writer to another group, but
//! stays when other groups write only a little of it (`kernel-semantics` §6.3).
//!
//! A file with dirty pages of more than its own group is *shared* until it is clean: it is written
//! for another group only when that group has no file of its own left to write.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use umemcg_base::LeafMutex;
use umemcg_group::Group;
use umemcg_reclaim::owner_from;

/// Time covered by the history.
#[doc(alias = "WB_FRN_TIME_PERIOD")]
const HISTORY: Duration = Duration::from_secs(2);
const NR_SLOTS: u32 = u16::BITS;
/// Most slots marked by one round.
const ROUND_SLOTS_MAX: u32 = 5;
/// A round shorter than this part of the usual time does not count.
const ROUND_SHARE_MIN: u32 = 8;

/// A majority vote: one candidate and one count find the winner in one pass. Without a majority the
/// winner is arbitrary.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
#[doc(alias = "wbc_account_cgroup_owner")]
pub(crate) struct Vote {
    candidate: u32,
    lead: u64,
    /// All pages that voted.
    nr: u64,
}

impl Vote {
    pub(crate) fn cast(&mut self, group: u32, nr: u64) {
        self.nr += nr;
        if self.lead == 0 {
            (self.candidate, self.lead) = (group, nr);
        } else if self.candidate == group {
            self.lead += nr;
        } else if self.lead >= nr {
            self.lead -= nr;
        } else {
            (self.candidate, self.lead) = (group, nr - self.lead);
        }
    }

    /// Returns the winner, if there were votes.
    fn winner(self) -> Option<u32> {
        (self.nr > 0).then_some(self.candidate)
    }
}

/// The last rounds, and whether another group won them.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct History {
    /// Newest slots lowest; 1 for another group.
    slots: u16,
    /// Time of a round, smoothed.
    usual: Duration,
}

impl History {
    /// Notes a round that took `time` of the store's time. Returns whether the file should change
    /// its owner.
    #[doc(alias = "wbc_detach_inode")]
    fn note(&mut self, time: Duration, is_foreign: bool) -> bool {
        self.usual = if self.usual.is_zero() { time } else { (self.usual * 7 + time) / 8 };
        if time * ROUND_SHARE_MIN < self.usual {
            return false;
        }
        let slot = HISTORY / NR_SLOTS;
        let nr = (time.as_nanos().div_ceil(slot.as_nanos()) as u32).clamp(1, ROUND_SLOTS_MAX);
        self.slots <<= nr;
        if is_foreign {
            self.slots |= (1 << nr) - 1;
        }
        self.slots.count_ones() > NR_SLOTS / 2
    }
}

/// The group that owns the file, and the votes on its owner.
#[derive(Debug, Default)]
struct Ownership {
    /// None while the file is clean.
    group: Option<Arc<Group>>,
    vote: Vote,
    history: History,
}

/// See the module text.
#[derive(Debug, Default)]
pub(crate) struct DirtyOwner {
    /// The owner handle of the owning group, from one of its pages. Compared only, never followed.
    /// (A)
    handle: AtomicU32,
    /// (A)
    is_shared: AtomicBool,
    ownership: LeafMutex<Ownership>,
}

impl DirtyOwner {
    /// Makes the group of `handle` the owner of the clean file, because a page of the group became
    /// dirty. Returns the owner.
    pub(crate) fn acquire(&self, handle: u32) -> Arc<Group> {
        let group = owner_from(handle).resolve();
        let ownership = Ownership { group: Some(Arc::clone(&group)), ..Ownership::default() };
        let old = std::mem::replace(&mut *self.ownership.lock(), ownership);
        self.handle.store(handle, Ordering::Relaxed);
        self.is_shared.store(false, Ordering::Relaxed);
        drop(old);
        group
    }

    /// Releases the clean file. Returns its owner until now.
    pub(crate) fn release(&self) -> Option<Arc<Group>> {
        let old = std::mem::take(&mut *self.ownership.lock());
        self.is_shared.store(false, Ordering::Relaxed);
        old.group
    }

    /// Restores the owner, because the file was not clean after all.
    pub(crate) fn restore(&self, group: Arc<Group>) -> Arc<Group> {
        self.ownership.lock().group = Some(Arc::clone(&group));
        // Another group may have written meanwhile.
        self.is_shared.store(true, Ordering::Relaxed);
        group
    }

    /// Notes that a page of `handle` became dirty in a file already dirty.
    #[inline]
    pub(crate) fn note_dirtied(&self, handle: u32) {
        if handle != self.handle.load(Ordering::Relaxed) {
            self.is_shared.store(true, Ordering::Relaxed);
        }
    }

    /// Returns whether other groups than its own may have dirty pages in it.
    pub(crate) fn is_shared(&self) -> bool {
        self.is_shared.load(Ordering::Relaxed)
    }

    /// Votes for `handle`, whose pages are being written.
    pub(crate) fn vote(&self, handle: u32, pages: u64) {
        self.ownership.lock().vote.cast(handle, pages);
    }

    /// Returns the number of votes since the last round, in pages.
    pub(crate) fn voters(&self) -> u64 {
        self.ownership.lock().vote.nr
    }

    /// Ends a round of write-back; `time` is the store's time for the written pages of the file.
    /// Returns the owner from now on; none if the file is clean.
    pub(crate) fn end_round(&self, time: Duration) -> Option<Arc<Group>> {
        let mut ownership = self.ownership.lock();
        let winner = std::mem::take(&mut ownership.vote).winner();
        let group = ownership.group.clone()?;
        let Some(handle) = winner else { return Some(group) };
        let is_foreign = owner_from(handle).with_group(|won| {
            // A group removed meanwhile counts as its parent.
            let mut own = &group;
            while own.is_dead()
                && let Some(parent) = own.parent()
            {
                own = parent;
            }
            !Arc::ptr_eq(won, own)
        });
        if !ownership.history.note(time, is_foreign) || !is_foreign {
            return Some(group);
        }
        let won = owner_from(handle).resolve();
        ownership.history = History::default();
        let old = ownership.group.replace(Arc::clone(&won));
        drop(ownership);
        drop((old, group));
        self.handle.store(handle, Ordering::Relaxed);
        // A part of the data belongs to the previous group.
        self.is_shared.store(true, Ordering::Relaxed);
        Some(won)
    }

    /// Returns the owner of the file, `None` while it is clean.
    pub fn group(&self) -> Option<Arc<Group>> {
        self.ownership.lock().group.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MS: fn(u64) -> Duration = Duration::from_millis;

    #[test]
    fn a_file_changes_hands_after_more_than_half_of_the_history() {
        let mut history = History::default();
        // Slots of 125 ms: rounds of 250 ms are two slots each.
        let verdicts: Vec<bool> = (0..6).map(|_| history.note(MS(250), true)).collect();
        assert_eq!(verdicts, [false, false, false, false, true, true]);
    }

    #[test]
    fn one_long_round_is_not_enough_and_tiny_ones_do_not_count() {
        let mut history = History::default();
        assert!(!history.note(MS(60_000), true));
        assert_eq!(history.slots.count_ones(), ROUND_SLOTS_MAX);
        for _ in 0..10 {
            assert!(!history.note(MS(1), true), "far shorter than usual");
        }
    }

    #[test]
    fn rounds_of_its_own_group_keep_a_file() {
        let mut history = History::default();
        for _ in 0..100 {
            assert!(!history.note(MS(100), true));
            assert!(!history.note(MS(100), false));
        }
    }

    proptest! {
        #[test]
        fn a_majority_always_wins(mut casts in proptest::collection::vec((0u32..5, 1u64..100), 1..40)) {
            let rest: u64 = casts.iter().filter(|&&(group, _)| group != 3).map(|&(_, nr)| nr).sum();
            casts.insert(casts.len() / 2, (3, rest + 1));
            let mut vote = Vote::default();
            for (group, nr) in casts {
                vote.cast(group, nr);
            }
            prop_assert_eq!(vote.winner(), Some(3));
        }
    }
}
