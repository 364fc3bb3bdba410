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
use crate::node::NodeId;
use crate::open_file::OpenFile;
use crate::permission::Credentials;
use crate::poll_watch::{POPULATED_FILE, PollResult, is_event_file, nr_changes};
use crate::populated::is_populated;
use crate::request::Access;
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

    /// Follows an event file without reading it. From now on `waker` is called when there may be a
    /// change, and [`take_change`](Self::take_change) returns whether there is one. Returns `None`
    /// for a file without events. May sleep.
    pub fn follow(&self, node: NodeId, waker: Waker) -> Option<OpenFile> {
        let file = self.open(node, Access { read: true, write: false }, Credentials::ROOT).ok()?;
        let group = file.group().ok().filter(|_| is_event_file(file.id.name.as_ref()))?;
        // The waker is attached before the state is read, so a later change wakes it.
        self.poll(&file, Some(waker));
        if file.id.name == POPULATED_FILE {
            let is_populated = is_populated(self.state.membership(), &group);
            self.state.control(&group).populated.note(is_populated);
            file.watch.note_populated(is_populated);
        } else {
            file.watch.note_read(file.id.name, &group);
        }
        Some(file)
    }

    /// Returns whether the content of a followed file has changed since the last call, or since
    /// [`follow`](Self::follow). Does not sleep.
    pub fn take_change(&self, file: &OpenFile) -> bool {
        let Ok(group) = file.group() else { return false };
        let part = self.state.control(&group);
        let now = if file.id.name == POPULATED_FILE {
            Some(part.populated.last())
        } else {
            // Arm before the look: a later event then wakes the waker.
            part.event_waiters.arm(&group);
            nr_changes(file.id.name, &group)
        };
        now.is_some_and(|now| file.watch.seen.swap(now, Ordering::Relaxed) != now)
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
