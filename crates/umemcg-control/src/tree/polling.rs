//! Polls of open files: detection of changes, and the wake-up of waiting pollers.
//!
//! A file counts as changed when its content has changed since the last read through that open
//! file. For the event files, the measure is a sum of rising counts, taken before the text is made.
//! A poller leaves a waker with the group. The group's wake signal calls all wakers at the first
//! event after a look, and a woken poller looks again. So the order is: leave the waker, take the
//! signal, look.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use umemcg::Group;

use super::ControlTree;
use crate::open_file::OpenFile;
use crate::poll_watch::{POPULATED_FILE, PollResult, nr_changes};
use crate::waiters::Waker;

impl ControlTree {
    /// Returns the result of polling an open file. `waker` is called when there may be a change;
    /// the first waker stays for as long as the file is open. Does not sleep.
    #[doc(alias = "kernfs_generic_poll")]
    #[doc(alias = "psi_trigger_poll")]
    pub fn poll(&self, file: &OpenFile, waker: Option<Waker>) -> PollResult {
        let Ok(group) = file.group() else { return PollResult::Changed };
        let is_pressure = file.id.name == "memory.pressure";
        let trigger = file.trigger.lock().clone();
        if file.id.name == POPULATED_FILE {
            return self.poll_populated(file, &group, waker);
        }
        if !is_pressure && nr_changes(file.id.name, &group).is_none() {
            return PollResult::None;
        }
        if let Some(waker) = waker {
            let waiters = &self.state.control(&group).event_waiters;
            let waker = Arc::clone(file.watch.waker.lock().get_or_insert_with(|| Arc::new(waker)));
            waiters.waiters.add(&waker);
            if let Some(trigger) = &trigger {
                trigger.wait(&waker);
            }
            waiters.arm(&group);
        }
        let has_news = match &trigger {
            Some(trigger) if trigger.take() => return PollResult::Triggered,
            Some(_) => false,
            // Nothing to wait for.
            None if is_pressure => true,
            None => nr_changes(file.id.name, &group) != Some(file.watch.seen.load(Ordering::Relaxed)),
        };
        if has_news || group.is_dead() { PollResult::Changed } else { PollResult::None }
    }

    fn poll_populated(&self, file: &OpenFile, group: &Arc<Group>, waker: Option<Waker>) -> PollResult {
        let populated = &self.state.control(group).populated;
        if let Some(waker) = waker {
            let waker = Arc::clone(file.watch.waker.lock().get_or_insert_with(|| Arc::new(waker)));
            populated.waiters.add(&waker);
            self.state.watch_populated(group);
        }
        if populated.last() != file.watch.seen.load(Ordering::Relaxed) || group.is_dead() {
            PollResult::Changed
        } else {
            PollResult::None
        }
    }
}
