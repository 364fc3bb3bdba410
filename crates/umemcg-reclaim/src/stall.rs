//! Guards for requests stalled for lack of memory and for requests in progress. While they live,
//! they count at their group and at every group above. Cache hits use none of this.

use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::Arc;

use umemcg_group::{ExtensionSlot, Group};

use crate::psi::Pressure;
use crate::stall_counts::StallCounts;

thread_local! {
    /// The group for which this thread is counted as working; 0 none.
    static WORKING_FOR: Cell<u64> = const { Cell::new(0) };
    /// This thread is counted as stalled.
    static IS_STALLED: Cell<bool> = const { Cell::new(false) };
}

fn meter(group: &Group) -> &StallCounts {
    group.extension(ExtensionSlot::Stalls, StallCounts::default)
}

fn change(group: &Group, stalled: i32, working: i32) {
    group.ancestors().for_each(|at| meter(at).change(stalled, working));
}

/// Returns the time lost for lack of memory by a group and its descendants: the content of
/// `memory.pressure`.
pub fn pressure(group: &Group) -> Pressure {
    meter(group).read()
}

/// A request stalled without a thread, because its answer is delayed. Ends when dropped.
#[derive(Debug)]
#[must_use = "the stall ends immediately"]
pub struct Stalled(Arc<Group>);

impl Stalled {
    /// Begins a wait of a request of `group`.
    #[doc(alias = "psi_memstall_enter")]
    pub fn begin(group: &Arc<Group>) -> Self {
        change(group, 1, 0);
        Self(Arc::clone(group))
    }
}

impl Drop for Stalled {
    fn drop(&mut self) {
        change(&self.0, -1, 0);
    }
}

/// This thread works on a request of a group, and its group is not fully stalled as long as it
/// does. Ends when dropped.
#[derive(Debug)]
#[must_use = "the work ends immediately"]
pub struct Working<'g> {
    group: &'g Arc<Group>,
    /// The serial of the group for which the thread was counted before.
    before: u64,
    _this_thread: PhantomData<*const ()>,
}

impl<'g> Working<'g> {
    /// Begins this thread's work for `group`.
    pub fn begin(group: &'g Arc<Group>) -> Self {
        change(group, 0, 1);
        Self { group, before: WORKING_FOR.replace(group.id()), _this_thread: PhantomData }
    }
}

impl Drop for Working<'_> {
    fn drop(&mut self) {
        WORKING_FOR.set(self.before);
        change(self.group, 0, -1);
    }
}

/// This thread is stalled, and does not count as working meanwhile. Ends when dropped; stalls
/// within stalls are one.
#[derive(Debug)]
#[must_use = "the stall ends immediately"]
pub struct StalledHere<'g> {
    /// None within another stall.
    group: Option<&'g Arc<Group>>,
    was_working: bool,
    _this_thread: PhantomData<*const ()>,
}

impl<'g> StalledHere<'g> {
    /// Begins this thread's wait for memory of `group`.
    #[doc(alias = "psi_memstall_enter")]
    pub fn begin(group: &'g Arc<Group>) -> Self {
        let group = (!IS_STALLED.replace(true)).then_some(group);
        let was_working = group.is_some_and(|group| WORKING_FOR.get() == group.id());
        if let Some(group) = group {
            change(group, 1, -i32::from(was_working));
        }
        Self { group, was_working, _this_thread: PhantomData }
    }
}

impl Drop for StalledHere<'_> {
    #[doc(alias = "psi_memstall_leave")]
    fn drop(&mut self) {
        if let Some(group) = self.group {
            IS_STALLED.set(false);
            change(group, -1, i32::from(self.was_working));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stall_counts::CLOCK;
    use std::time::Duration;
    use umemcg_base::clock::Clock;
    use umemcg_group::GroupTree;

    /// Waits until the clock has moved on for all groups.
    fn tick() {
        let start = CLOCK.now();
        while CLOCK.now() < start + Duration::from_millis(1) {
            std::hint::spin_loop();
        }
    }

    fn lost(group: &Group) -> (Duration, Duration) {
        let pressure = pressure(group);
        (pressure.some.total, pressure.full.total)
    }

    #[test]
    fn a_stall_counts_for_the_group_and_all_above_only() {
        let tree = GroupTree::new(1 << 30);
        let a = tree.create(tree.root(), "a".as_ref()).unwrap();
        let (b, c) = (tree.create(&a, "b".as_ref()).unwrap(), tree.create(&a, "c".as_ref()).unwrap());
        {
            let _stalled = StalledHere::begin(&b);
            let _within = StalledHere::begin(&b);
            tick();
        }
        let (some, full) = lost(&b);
        assert!(some >= Duration::from_millis(1) && some == full);
        assert!([&a, tree.root()].iter().all(|above| lost(above).0 >= Duration::from_millis(1)));
        assert_eq!(lost(&c), (Duration::ZERO, Duration::ZERO));
        tick();
        assert_eq!(lost(&b), (some, full), "it has ended");
    }

    #[test]
    fn a_working_request_keeps_anothers_stall_from_being_full() {
        let tree = GroupTree::new(1 << 30);
        let group = tree.create(tree.root(), "g".as_ref()).unwrap();
        let held_back = Stalled::begin(&group);
        let before = lost(&group).1;
        let work = Working::begin(&group);
        let full = lost(&group).1;
        tick();
        assert_eq!(lost(&group).1, full);
        assert!(full >= before);
        drop(held_back);
        {
            let _stalled = StalledHere::begin(&group);
            tick();
        }
        assert!(lost(&group).1 >= full + Duration::from_millis(1));
        drop(work);
        let end = lost(&group);
        tick();
        assert_eq!(lost(&group), end);
    }
}
