//! Pollers of `cgroup.events`: whether processes live in a group or below it.
//!
//! No layer reports the end of a process, so one thread checks ten times a second, as long as a
//! file is polled; groups without pollers cost nothing. A file has changed when the last check
//! found a value different from the last read through it. A read counts as a check, so no later
//! change is missed, except a change undone between two checks.

use std::sync::{Arc, Weak};
use std::time::Duration;

use umemcg::Group;
use umemcg_base::clock::spawn_detached;
use umemcg_base::{Condvar, LeafMutex};

use crate::group_control::GroupControl;
use crate::membership::Membership;
use crate::populated::is_populated;
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

/// The polled groups, and the state of the thread.
#[derive(Debug, Default)]
struct WatchedGroups {
    groups: Vec<(Weak<Group>, Arc<Waiters>)>,
    has_thread: bool,
    has_ended: bool,
}

impl Watchers {
    /// Checks a group from now on, as long as one of its wakers lives. Does not sleep.
    pub(crate) fn add(&self, membership: &Arc<dyn Membership>, group: &Arc<Group>, waiters: &Arc<Waiters>) {
        let mut state = self.0.state.lock();
        state.add(Arc::downgrade(group), Arc::clone(waiters));
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
    fn add(&mut self, group: Weak<Group>, waiters: Arc<Waiters>) {
        if !self.groups.iter().any(|(known, _)| known.ptr_eq(&group)) {
            self.groups.push((group, waiters));
        }
    }

    /// Puts back the checked groups, together with groups added meanwhile.
    fn put_back(&mut self, groups: Vec<(Weak<Group>, Arc<Waiters>)>) {
        let added = std::mem::replace(&mut self.groups, groups);
        added.into_iter().for_each(|(group, waiters)| self.add(group, waiters));
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
            let mut groups = std::mem::take(&mut state.groups);
            drop(state);
            let Some(known) = membership.upgrade() else { return };
            groups.retain(|(group, waiters)| look(&*known, group, waiters));
            drop(known);
            state = self.state.lock();
            state.put_back(groups);
            if state.groups.is_empty() || state.has_ended {
                state.has_thread = false;
                return;
            }
            self.ended.wait_for(&mut state, TICK);
        }
    }
}

/// Checks a group; returns `false` when its pollers need not be woken any more. Its removal is the
/// last change.
fn look(membership: &dyn Membership, group: &Weak<Group>, waiters: &Waiters) -> bool {
    let Some(group) = group.upgrade().filter(|group| !group.is_dead()) else {
        waiters.wake_all();
        return false;
    };
    let Some(part) = GroupControl::if_present(&group) else { return false };
    part.populated.note(is_populated(membership, &group));
    waiters.is_waited_for()
}

#[cfg(test)]
mod tests {
    use super::*;
    use umemcg::{Engine, EngineConfig};

    #[test]
    fn a_group_that_is_polled_while_it_is_looked_at_is_there_once() {
        let engine = Engine::new(EngineConfig::new(8 << 20)).unwrap();
        let (group, waiters) = (Arc::downgrade(engine.root()), Arc::<Waiters>::default());
        let mut watched = WatchedGroups::default();
        watched.add(group.clone(), Arc::clone(&waiters));
        for _ in 0..3 {
            let looked_at = std::mem::take(&mut watched.groups);
            watched.add(group.clone(), Arc::clone(&waiters));
            watched.put_back(looked_at);
        }
        assert_eq!(watched.groups.len(), 1);
    }
}
