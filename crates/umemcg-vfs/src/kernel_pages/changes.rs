//! Changes of a file's data from outside, after each of which the kernel drops all that it has.
//!
//! One drop is under way at a time. It also tells the kernel that it does not know the file's
//! length, so an open that follows a change waits for it: the kernel ignores an answer with
//! attributes that such a message overtakes.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{KernelPages, Then};
use crate::page_windows::PAGES_END;

impl KernelPages {
    /// Notes that what the kernel keeps is out of date.
    pub(crate) fn note_changed(&self) {
        self.nr_changes.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the number of the change of which the kernel has not dropped all yet, if there is
    /// one.
    pub(crate) fn change(&self) -> Option<u64> {
        let nr = self.nr_changes.load(Ordering::Relaxed);
        (nr > self.nr_answered.load(Ordering::Relaxed)).then_some(nr)
    }

    /// Returns whether the kernel has dropped all, or is to, since `nr_answered` of its drops.
    pub(crate) fn drops_all_since(&self, nr_answered: u64) -> bool {
        self.change().is_some() || self.nr_answered() != nr_answered
    }

    /// Returns the number of the last change after which the kernel has dropped all.
    pub(crate) fn nr_answered(&self) -> u64 {
        self.nr_answered.load(Ordering::Relaxed)
    }

    /// Notes that the kernel keeps nothing from before a change.
    fn answered(&self, change: u64) {
        let current: Vec<Then> = {
            let mut state = self.state.lock();
            self.nr_answered.fetch_max(change, Ordering::Relaxed);
            let nr = state.when_current.partition_point(|&(awaited, _)| awaited <= change);
            state.when_current.drain(..nr).map(|(_, then)| then).collect()
        };
        current.into_iter().for_each(|then| then());
    }

    /// Calls `then` when the kernel has dropped all from before the latest change. That takes two
    /// drops at most: one for an earlier change that is under way, and the next. Never waits.
    pub(crate) fn when_current(self: &Arc<Self>, then: Then) {
        let is_current = {
            let mut state = self.state.lock();
            match self.change() {
                Some(change) => {
                    let at = state.when_current.partition_point(|&(awaited, _)| awaited <= change);
                    state.when_current.insert(at, (change, then));
                    None
                }
                None => Some(then),
            }
        };
        match is_current {
            Some(then) => then(),
            None => self.drop_if_changed(),
        }
    }

    /// Has the kernel drop all that it has, if that is out of date. Never waits.
    pub(crate) fn drop_if_changed(self: &Arc<Self>) {
        let Some(change) = self.change() else { return };
        if self.is_dropping_all.swap(true, Ordering::Relaxed) {
            return;
        }
        let pages = Arc::downgrade(self);
        self.drop_range(0..PAGES_END, move || {
            let Some(pages) = pages.upgrade() else { return };
            pages.answered(change);
            pages.is_dropping_all.store(false, Ordering::Relaxed);
            // There may have been another.
            pages.drop_if_changed();
        });
    }
}
