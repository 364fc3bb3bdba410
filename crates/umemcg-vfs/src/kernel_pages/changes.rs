//! Outside changes of a file's data. The kernel drops all its pages of the file after each.
//!
//! One drop is under way at a time. The message also invalidates the file's length in the kernel,
//! so an open after a change waits for the drop: the kernel ignores attributes in an answer
//! overtaken by such a message.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{KernelPages, Then};
use crate::page_windows::PAGES_END;

impl KernelPages {
    /// Notes an outside change: the kernel's pages are out of date.
    pub(crate) fn note_changed(&self) {
        self.nr_changes.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the number of the latest change, if the kernel has not dropped all older pages yet.
    pub(crate) fn change(&self) -> Option<u64> {
        let nr = self.nr_changes.load(Ordering::Relaxed);
        (nr > self.nr_answered.load(Ordering::Relaxed)).then_some(nr)
    }

    /// Returns whether the kernel has dropped all pages since change `nr_answered`, or is about to.
    pub(crate) fn drops_all_since(&self, nr_answered: u64) -> bool {
        self.change().is_some() || self.nr_answered() != nr_answered
    }

    /// Returns the number of the last change followed by a complete drop.
    pub(crate) fn nr_answered(&self) -> u64 {
        self.nr_answered.load(Ordering::Relaxed)
    }

    /// Notes that the kernel has no page from before a change.
    fn answered(&self, change: u64) {
        let current: Vec<Then> = {
            let mut state = self.state.lock();
            self.nr_answered.fetch_max(change, Ordering::Relaxed);
            let nr = state.when_current.partition_point(|&(awaited, _)| awaited <= change);
            state.when_current.drain(..nr).map(|(_, then)| then).collect()
        };
        current.into_iter().for_each(|then| then());
    }

    /// Calls `then` when the kernel has dropped all pages from before the latest change. This takes
    /// two drops at most: one under way for an earlier change, and the next. Never waits.
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

    /// Has the kernel drop all pages of the file, if they are out of date. Never waits.
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
            // Another change may have come meanwhile.
            pages.drop_if_changed();
        });
    }
}
