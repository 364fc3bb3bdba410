//! Open files that somebody polls: which of them have news, and how whoever waits is told.
//!
//! A file has news when what it shows has changed since it was last read through that open file. For the event files that is a
//! sum of counts that only rise, taken before the text is made. Who wants to be told leaves a waker with the group; the group's
//! bell calls all wakers at the first event after somebody has looked, and whoever is woken looks again. So the order is: leave the waker,
//! take the ring, look.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use umemcg::{EventKind, Group};
use umemcg_base::Bell;
use umemcg_base::sync::Mutex;

use crate::open_file::OpenFile;
use crate::row::Row;
use crate::tree::ControlTree;

/// Tells somebody to look again. Called by whoever counts an event: must be brief and must not sleep.
pub struct Waker(Box<dyn Fn() + Send + Sync>);

impl Waker {
    /// A waker that calls `wake`.
    pub fn new(wake: impl Fn() + Send + Sync + 'static) -> Self {
        Self(Box::new(wake))
    }

    pub(crate) fn wake(&self) {
        (self.0)();
    }
}

impl fmt::Debug for Waker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Waker")
    }
}

/// Who waits for news of a group. Gone with the open file that waits.
#[derive(Debug, Default)]
pub(crate) struct Waiters(Mutex<Vec<Weak<Waker>>>);

impl Waiters {
    /// Adds a waker that is not there yet.
    pub(crate) fn add(&self, waker: &Arc<Waker>) {
        let mut wakers = self.0.lock();
        wakers.retain(|known| known.strong_count() > 0 && !std::ptr::eq(known.as_ptr(), Arc::as_ptr(waker)));
        wakers.push(Arc::downgrade(waker));
    }

    /// Whether a file that waits is still open.
    pub(crate) fn is_waited_for(&self) -> bool {
        self.0.lock().iter().any(|waker| waker.strong_count() > 0)
    }

    pub(crate) fn wake_all(&self) {
        let wakers: Vec<_> = self.0.lock().iter().filter_map(Weak::upgrade).collect();
        wakers.iter().for_each(|waker| waker.wake());
    }
}

/// Who waits for a group's events.
#[derive(Debug, Default)]
pub(crate) struct EventWaiters {
    waiters: Arc<Waiters>,
    bell: OnceLock<Arc<Bell>>,
}

impl EventWaiters {
    /// From here on the next event wakes whoever has left a waker.
    fn arm(&self, group: &Group) {
        let bell = self.bell.get_or_init(|| {
            let waiters = Arc::clone(&self.waiters);
            let bell = Arc::new(Bell::with_hook(move || waiters.wake_all()));
            group.listen_for_events(Arc::clone(&bell));
            bell
        });
        bell.take();
    }
}

/// What an open file that can be polled keeps.
#[derive(Debug)]
pub(crate) struct Watch {
    /// Count of changes when the file was last read; [`NEVER`] before.
    seen: AtomicU64,
    waker: Mutex<Option<Arc<Waker>>>,
}

/// A file that was not read yet has news, as in the kernel.
const NEVER: u64 = u64::MAX;

impl Default for Watch {
    fn default() -> Self {
        Self { seen: AtomicU64::new(NEVER), waker: Mutex::default() }
    }
}

/// How often what a file shows has changed; none for a file that has no news to tell.
fn nr_changes(row: &Row, group: &Group) -> Option<u64> {
    let sum = |count: &dyn Fn(EventKind) -> u64| EventKind::ALL.iter().map(|&kind| count(kind)).sum();
    match row.name {
        "memory.events" => Some(sum(&|kind| group.event_count(kind))),
        "memory.events.local" => Some(sum(&|kind| group.event_count_local(kind))),
        _ => None,
    }
}

impl Watch {
    /// The file shows whether its group is populated.
    pub(crate) fn note_populated(&self, is_populated: bool) {
        self.seen.store(is_populated.into(), Ordering::Relaxed);
    }

    /// The file is about to be read.
    pub(crate) fn note_read(&self, row: &Row, group: &Group) {
        if let Some(changes) = nr_changes(row, group) {
            self.seen.store(changes, Ordering::Relaxed);
        }
    }
}

/// What a poll of an open file finds, beside that it can be read and written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum News {
    /// Nothing.
    None,
    /// What it shows has changed since it was read through this open file, or the file is of no use any more.
    Changed,
    /// Its trigger has fired since it was last polled.
    Triggered,
}

impl ControlTree {
    /// What a poll of an open file finds. With `waker`, that is called when there may be news; the first one stays for as long as the file
    /// is open. Does not sleep.
    #[doc(alias = "kernfs_generic_poll")]
    #[doc(alias = "psi_trigger_poll")]
    pub fn poll(&self, file: &OpenFile, waker: Option<Waker>) -> News {
        let Ok(group) = file.group() else { return News::Changed };
        let is_pressure = file.row.name == "memory.pressure";
        let trigger = file.trigger.lock().clone();
        if file.row.name == "cgroup.events" {
            return self.poll_populated(file, &group, waker);
        }
        if !is_pressure && nr_changes(file.row, &group).is_none() {
            return News::None;
        }
        if let Some(waker) = waker {
            let waiters = &self.part(&group).event_waiters;
            let waker = Arc::clone(file.watch.waker.lock().get_or_insert_with(|| Arc::new(waker)));
            waiters.waiters.add(&waker);
            if let Some(trigger) = &trigger {
                trigger.wait(&waker);
            }
            waiters.arm(&group);
        }
        let has_news = match &trigger {
            Some(trigger) if trigger.take() => return News::Triggered,
            Some(_) => false,
            // Nothing to wait for.
            None if is_pressure => true,
            None => nr_changes(file.row, &group) != Some(file.watch.seen.load(Ordering::Relaxed)),
        };
        if has_news || group.is_dead() { News::Changed } else { News::None }
    }

    fn poll_populated(&self, file: &OpenFile, group: &Arc<Group>, waker: Option<Waker>) -> News {
        let populated = &self.part(group).populated;
        if let Some(waker) = waker {
            let waker = Arc::clone(file.watch.waker.lock().get_or_insert_with(|| Arc::new(waker)));
            populated.waiters.add(&waker);
            self.watch_populated(group);
        }
        if populated.last() != file.watch.seen.load(Ordering::Relaxed) || group.is_dead() {
            News::Changed
        } else {
            News::None
        }
    }
}
