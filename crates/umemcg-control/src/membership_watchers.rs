//! Pollers of `cgroup.events`: whether processes live in a group or below it.
//!
//! No layer reports the end of a process, so one thread checks ten times a second, as long as a
//! file is polled; groups without pollers cost nothing. A file has changed when the last check
//! found a value different from the last read through it. A read counts as a check, so no later
//! change is missed, except a change undone between two checks.
//!
//! A check looks at groups below before those above, and keeps the results: it visits each group of
//! the polled subtrees once, however many of them are polled.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Weak};
use std::time::Duration;

use umemcg::Group;
use umemcg_base::clock::spawn_detached;
use umemcg_base::{Condvar, LeafMutex};

use crate::group_control::GroupControl;
use crate::membership::Membership;
use crate::populated::is_any_populated;
use crate::waiters::Waiters;

/// Time from one check to the next.
const TICK: Duration = Duration::from_millis(100);

/// The polled groups of a tree, and the thread that checks them.
#[derive(Debug, Default)]
pub(crate) struct Watchers(Arc<WatchThread>);

/// The state shared by the thread and its callers.
#[derive(Debug, Default)]
struct WatchThread {
    state: LeafMutex<WatchedGroups>,
    ended: Condvar,
}

/// Polled groups by their ids: a group has a greater id than those above it.
type Polled = BTreeMap<u64, (Weak<Group>, Arc<Waiters>)>;

/// The polled groups, and the state of the thread.
#[derive(Debug, Default)]
struct WatchedGroups {
    groups: Polled,
    has_thread: bool,
    has_ended: bool,
}

impl Watchers {
    /// Checks a group from now on, as long as one of its wakers lives. Does not sleep.
    pub(crate) fn add(&self, membership: &Arc<dyn Membership>, group: &Arc<Group>, waiters: &Arc<Waiters>) {
        let mut state = self.0.state.lock();
        state.add(group, waiters);
        if !state.has_thread {
            let (shared, membership) = (Arc::clone(&self.0), Arc::downgrade(membership));
            // Without a thread, the next poll tries again.
            state.has_thread = spawn_detached("umemcg-members", move || shared.watch(&membership)).is_ok();
        }
    }
}

impl WatchedGroups {
    /// Adds a group, unless it is present: the thread may have taken it out for a check when
    /// another poll adds it.
    fn add(&mut self, group: &Arc<Group>, waiters: &Arc<Waiters>) {
        self.groups.entry(group.id()).or_insert_with(|| (Arc::downgrade(group), Arc::clone(waiters)));
    }

    /// Puts back the checked groups, together with groups added meanwhile.
    fn put_back(&mut self, checked: Polled) {
        self.groups.extend(checked);
    }
}

impl Drop for Watchers {
    fn drop(&mut self) {
        self.0.state.lock().has_ended = true;
        self.0.ended.notify_one();
    }
}

impl WatchThread {
    /// Runs the thread, as long as a group is polled.
    fn watch(&self, membership: &Weak<dyn Membership>) {
        let mut state = self.state.lock();
        loop {
            let groups = std::mem::take(&mut state.groups);
            drop(state);
            let Some(membership) = membership.upgrade() else { return };
            let checked = check(groups, &|group| membership.is_populated(group));
            drop(membership);
            state = self.state.lock();
            state.put_back(checked);
            if state.groups.is_empty() || state.has_ended {
                state.has_thread = false;
                return;
            }
            self.ended.wait_for(&mut state, TICK);
        }
    }
}

/// Checks all groups; returns those with pollers still to be woken. `lives_in` returns whether a
/// process lives in a group itself.
fn check(groups: Polled, lives_in: &dyn Fn(&Arc<Group>) -> bool) -> Polled {
    let mut known = HashMap::new();
    let groups_below_first = groups.into_iter().rev();
    groups_below_first.filter(|(_, (group, waiters))| look(group, waiters, lives_in, &mut known)).collect()
}

/// Checks a group, and adds the result to `known`; returns `false` when its pollers need not be
/// woken any more. Its removal is the last change.
fn look(
    group: &Weak<Group>,
    waiters: &Waiters,
    lives_in: &dyn Fn(&Arc<Group>) -> bool,
    known: &mut HashMap<u64, bool>,
) -> bool {
    let Some(group) = group.upgrade().filter(|group| !group.is_dead()) else {
        waiters.wake_all();
        return false;
    };
    let Some(part) = GroupControl::if_present(&group) else { return false };
    let is_populated = is_any_populated(&group, lives_in, known);
    known.insert(group.id(), is_populated);
    part.populated.note(is_populated);
    waiters.is_waited_for()
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use umemcg::{Engine, EngineConfig};

    use super::*;
    use crate::group_control::{DIRECTORY_MODE, Owner};
    use crate::waiters::Waker;

    #[test]
    fn a_group_that_is_polled_while_it_is_looked_at_is_there_once() {
        let engine = Engine::new(EngineConfig::new(8 << 20)).unwrap();
        let (group, waiters) = (engine.root(), Arc::<Waiters>::default());
        let mut watched = WatchedGroups::default();
        watched.add(group, &waiters);
        for _ in 0..3 {
            let looked_at = std::mem::take(&mut watched.groups);
            watched.add(group, &waiters);
            watched.put_back(looked_at);
        }
        assert_eq!(watched.groups.len(), 1);
    }

    #[test]
    fn a_check_visits_each_of_a_hundred_nested_groups_once() {
        let engine = Engine::new(EngineConfig::new(64 << 20)).unwrap();
        let (waker, owner) = (Arc::new(Waker::new(|| ())), Owner { uid: 0, gid: 0, mode: DIRECTORY_MODE });
        let (mut watched, mut lowest) = (WatchedGroups::default(), Arc::clone(engine.root()));
        for _ in 0..100 {
            lowest = engine.create_group(&lowest, "g".as_ref()).unwrap();
            let waiters = &GroupControl::of(&lowest, owner).populated.waiters;
            waiters.add(&waker);
            watched.add(&lowest, waiters);
        }
        let highest = engine.root().child("g".as_ref()).unwrap();
        for is_lived_in in [true, false] {
            let nr_visits = Cell::new(0);
            let lives_in = |group: &Arc<Group>| {
                nr_visits.set(nr_visits.get() + 1);
                is_lived_in && Arc::ptr_eq(group, &lowest)
            };
            watched.groups = check(std::mem::take(&mut watched.groups), &lives_in);
            assert_eq!((watched.groups.len(), nr_visits.get()), (100, 100));
            assert_eq!(GroupControl::of(&highest, owner).populated.last(), u64::from(is_lived_in));
        }
    }
}
