//! Removals of groups, for threads waiting for the end of all removals below a group.
//!
//! A child being removed is no child any more, but its parent cannot be removed until the child has
//! handed over all its memory. Handing over takes as long as the callbacks of shrinkers.

use umemcg_base::sync::Instant;
use umemcg_base::{Condvar, LeafMutex};
use umemcg_group::Group;

/// The removals of one engine.
#[derive(Debug, Default)]
pub(crate) struct Removals {
    nr_ended: LeafMutex<u64>,
    has_ended: Condvar,
}

impl Removals {
    /// Records the removal of a group.
    pub(crate) fn note_ended(&self) {
        *self.nr_ended.lock() += 1;
        self.has_ended.notify_all();
    }

    /// Waits until no child of a group is being removed, or until the deadline.
    pub(crate) fn wait_for_children(&self, group: &Group, deadline: Instant) {
        loop {
            let seen = *self.nr_ended.lock();
            if !group.has_leaving_children() {
                return;
            }
            let mut nr_ended = self.nr_ended.lock();
            while *nr_ended == seen {
                if self.has_ended.wait_until(&mut nr_ended, deadline).timed_out() {
                    return;
                }
            }
        }
    }
}
