//! The changes seen by an open file, for polls.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use umemcg::{EventKind, Group};
use umemcg_base::LeafMutex;

use crate::waiters::Waker;

/// The poll state of an open file.
#[derive(Debug)]
pub(crate) struct Watch {
    /// Count of changes when the file was last read; [`NEVER`] before.
    pub(crate) seen: AtomicU64,
    pub(crate) waker: LeafMutex<Option<Arc<Waker>>>,
}

/// Shows whether a process lives in the group.
pub(crate) const POPULATED_FILE: &str = "cgroup.events";

/// A file not read yet counts as changed, as in the kernel.
const NEVER: u64 = u64::MAX;

impl Default for Watch {
    fn default() -> Self {
        Self { seen: AtomicU64::new(NEVER), waker: LeafMutex::default() }
    }
}

/// Returns how often the content of a file has changed; `None` for a file without events.
pub(crate) fn nr_changes(name: &str, group: &Group) -> Option<u64> {
    let sum = |count: &dyn Fn(EventKind) -> u64| EventKind::ALL.iter().map(|&kind| count(kind)).sum();
    match name {
        "memory.events" => Some(sum(&|kind| group.event_count(kind))),
        "memory.events.local" => Some(sum(&|kind| group.event_count_local(kind))),
        _ => None,
    }
}

impl Watch {
    /// Records the state of the group shown by the file.
    pub(crate) fn note_populated(&self, is_populated: bool) {
        self.seen.store(is_populated.into(), Ordering::Relaxed);
    }

    /// Records the count of changes before a read.
    pub(crate) fn note_read(&self, name: &str, group: &Group) {
        if let Some(changes) = nr_changes(name, group) {
            self.seen.store(changes, Ordering::Relaxed);
        }
    }
}

/// The result of a poll of an open file. A file is always readable and writable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PollResult {
    /// Nothing.
    None,
    /// Its content has changed since it was read through this open file, or its group was removed.
    Changed,
    /// Its trigger has fired since it was last polled.
    Triggered,
}
