//! Leaving bytes: still charged, while another party has been asked to free them. The other party
//! always reports the end, freed or not, so leaving bytes are counted exactly, for the charged
//! group and its ancestors.
//!
//! Usage falls only when they are freed. If a reclaim counted them as used until then, it would
//! take pages under a group's protection, and would fail when it finds nothing else: see
//! [`protection`](crate::protection) and [`reclaim`](super::reclaim).

use std::sync::{Arc, Weak};
use std::time::Duration;

use umemcg_base::sync::Instant;
use umemcg_group::Group;

use super::Reclaimer;
use crate::group_reclaim::GroupReclaim;
use crate::leaving_bytes::LeavingBytes;

/// Longest wait without a freed byte before a reclaim with nothing else to free goes on without the
/// leaving bytes.
pub(super) const LEAVING_WAIT: Duration = Duration::from_secs(2);
/// Longest wait in all, as a multiple of [`LEAVING_WAIT`]: bytes freed one by one would prolong the
/// wait forever.
const LEAVING_WAITS_MAX: u32 = 4;

/// Bytes of a group that are leaving, until this is dropped.
#[derive(Debug)]
pub struct Leaving {
    /// Weak: the other party may be done when the engine is gone.
    reclaimer: Weak<Reclaimer>,
    /// A group removed meanwhile stays counted: its ancestors are the same.
    group: Arc<Group>,
    bytes: u64,
}

impl Leaving {
    /// Counts bytes of a group as leaving.
    pub fn new(reclaimer: &Arc<Reclaimer>, group: &Arc<Group>, bytes: u64) -> Self {
        for level in group.ancestors() {
            GroupReclaim::of(level).leaving_bytes().begin(bytes);
        }
        Self { reclaimer: Arc::downgrade(reclaimer), group: Arc::clone(group), bytes }
    }

    /// Reports `freed_bytes` as freed, and `kept_bytes` promised to reclaim as staying. No lock may
    /// be held.
    pub fn end(self, freed_bytes: u64, kept_bytes: u64) {
        let (reclaimer, group) = (self.reclaimer.upgrade(), Arc::clone(&self.group));
        self.at_each_level(|leaving| leaving.note_freed(freed_bytes));
        drop(self); // before those that wait for it are woken
        let Some(reclaimer) = reclaimer else { return };
        reclaimer.note_release_ended(&group, freed_bytes, kept_bytes);
    }

    fn at_each_level(&self, note: impl Fn(&LeavingBytes)) {
        let parts = self.group.ancestors().filter_map(GroupReclaim::if_present);
        parts.for_each(|part| note(part.leaving_bytes()));
    }
}

impl Drop for Leaving {
    fn drop(&mut self) {
        self.at_each_level(|leaving| leaving.end(self.bytes));
    }
}

/// The next step of a reclaim waiting for leaving bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WaitFollowUp {
    Wait,
    /// It has waited long enough, if not in vain.
    End,
    /// It has waited in vain.
    GiveUp,
}

/// A reclaim's wait for leaving bytes.
#[derive(Debug)]
pub(super) struct LeavingWait {
    freed_bytes: u64,
    in_vain_at: Instant,
    end: Instant,
}

impl LeavingWait {
    /// Begins a wait ending at `until` at the latest.
    pub(super) fn begin(now: Instant, until: Option<Instant>) -> Self {
        let end = now + LEAVING_WAIT * LEAVING_WAITS_MAX;
        let end = until.map_or(end, |until| until.min(end));
        Self { freed_bytes: 0, in_vain_at: now + LEAVING_WAIT, end }
    }

    /// Decides the next step, with `freed_bytes` freed since the wait began.
    pub(super) fn follow_up(&mut self, now: Instant, freed_bytes: u64) -> WaitFollowUp {
        if freed_bytes > self.freed_bytes {
            (self.freed_bytes, self.in_vain_at) = (freed_bytes, now + LEAVING_WAIT);
        }
        match now {
            _ if now >= self.in_vain_at => WaitFollowUp::GiveUp,
            // Another wait would find the same.
            _ if now >= self.end && now + LEAVING_WAIT / 2 >= self.in_vain_at => WaitFollowUp::GiveUp,
            _ if now >= self.end => WaitFollowUp::End,
            _ => WaitFollowUp::Wait,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::current_request::{CurrentRequest, HoldsUp};
    use crate::group_reclaim::leaving_bytes;
    use crate::rounds::FirstRounds;
    use crate::scan_control::Reason;
    use umemcg_arena::Arena;
    use umemcg_group::GroupTree;

    fn reclaimer() -> (Arc<GroupTree>, Arc<Reclaimer>) {
        let tree = GroupTree::new(1 << 20);
        let arena = Arena::new(1 << 20).unwrap();
        let reclaimer = Reclaimer::new(arena, Arc::clone(&tree)).unwrap();
        (tree, Arc::new(reclaimer))
    }

    #[test]
    fn a_wait_for_single_bytes_ends() {
        let begin = Instant::now();
        let mut wait = LeavingWait::begin(begin, None);
        let mut after = |waits: u32, freed: u64| wait.follow_up(begin + LEAVING_WAIT * waits / 2, freed);
        for waits in 0..2 * LEAVING_WAITS_MAX {
            assert_eq!(after(waits, waits.into()), WaitFollowUp::Wait);
        }
        assert_eq!(after(2 * LEAVING_WAITS_MAX, 100), WaitFollowUp::End);
        let mut in_vain = LeavingWait::begin(begin, None);
        assert_eq!(in_vain.follow_up(begin + LEAVING_WAIT, 0), WaitFollowUp::GiveUp);
        let mut shorter = LeavingWait::begin(begin, Some(begin + LEAVING_WAIT / 2));
        assert_eq!(shorter.follow_up(begin + LEAVING_WAIT / 4, 0), WaitFollowUp::Wait);
        assert_eq!(shorter.follow_up(begin + LEAVING_WAIT / 2, 0), WaitFollowUp::GiveUp);
    }

    #[test]
    fn a_reclaim_that_has_waited_already_does_not_wait() {
        let (tree, reclaimer) = reclaimer();
        let group = tree.create(tree.root(), "g".as_ref()).unwrap();
        let leaving = Leaving::new(&reclaimer, &group, 1 << 20);
        let reclaim = |rounds| reclaimer.reclaim_in(&group, 1, Reason::Direct, rounds, &|| false).pages();
        let hangs = || GroupReclaim::of(&group).leaving_bytes().hangs();
        assert_eq!((reclaim(FirstRounds::with_leaving_until(Instant::now())), hangs()), (0, false));
        assert_eq!((reclaim(FirstRounds::default()), hangs()), (0, true), "it has waited in vain");
        leaving.end(0, 0);
    }

    /// A request with this answer.
    struct Says(bool);

    impl HoldsUp for Says {
        fn holds_up_release(&self) -> bool {
            self.0
        }
    }

    #[test]
    fn a_request_does_not_wait_for_what_waits_for_it() {
        let (tree, reclaimer) = reclaimer();
        let group = tree.create(tree.root(), "g".as_ref()).unwrap();
        let leaving = Leaving::new(&reclaimer, &group, 1 << 20);
        let hangs_after_reclaim = || {
            reclaimer.reclaim(&group, 1, Reason::Direct);
            GroupReclaim::of(&group).leaving_bytes().hangs()
        };
        let [holds_up, does_not]: [Arc<dyn HoldsUp>; 2] = [true, false].map(|says| Arc::new(Says(says)) as _);
        let current = CurrentRequest::begin(Arc::downgrade(&holds_up));
        assert!(!hangs_after_reclaim(), "it has not waited in vain");
        assert!(CurrentRequest::holds_up_release());
        let other = CurrentRequest::begin(Arc::downgrade(&does_not));
        assert!(!CurrentRequest::holds_up_release());
        drop(other);
        assert!(CurrentRequest::holds_up_release());
        drop(current);
        assert!(!CurrentRequest::holds_up_release());
        assert!(hangs_after_reclaim(), "other threads wait");
        leaving.end(0, 0);
    }

    #[test]
    fn what_is_leaving_counts_above_also_when_its_group_goes() {
        let (tree, reclaimer) = reclaimer();
        let parent = tree.create(tree.root(), "p".as_ref()).unwrap();
        let group = tree.create(&parent, "g".as_ref()).unwrap();
        let [one, other] = [10, 20].map(|bytes| Leaving::new(&reclaimer, &group, bytes));
        assert_eq!([tree.root(), &parent, &group].map(|group| leaving_bytes(group)), [30; 3]);
        tree.remove(&group, |dying, parent| reclaimer.splice_to_parent(dying, parent)).unwrap();
        drop(group);
        one.end(10, 0);
        assert_eq!((leaving_bytes(&parent), reclaimer.released_bytes()), (20, 10));
        other.end(0, 20);
        assert_eq!((leaving_bytes(&parent), reclaimer.released_bytes()), (0, 10));
    }
}
