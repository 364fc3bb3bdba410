//! Names that a thread has just looked up in vain. If the same thread creates the file next, both
//! calls belong to one open, and the store is not asked again.

use std::time::{Duration, Instant};

use umemcg_base::LeafMutex;

use crate::attr::NodeId;

/// Most threads whose last name is remembered.
const NR_SLOTS: usize = 16;

/// An absent name.
#[derive(Debug)]
struct Absent {
    thread: u32,
    parent: NodeId,
    name: Box<str>,
    /// When the store was asked.
    at: Instant,
}

/// The last such name of some threads.
#[derive(Debug, Default)]
pub(super) struct AbsentNames {
    slots: LeafMutex<[Option<Absent>; NR_SLOTS]>,
}

impl AbsentNames {
    /// Notes an absent name; thread 0 stands for no thread.
    pub(super) fn note(&self, thread: u32, (parent, name): (NodeId, &str), at: Instant) {
        if thread != 0 {
            let absent = Absent { thread, parent, name: name.into(), at };
            self.slots.lock()[thread as usize % NR_SLOTS] = Some(absent);
        }
    }

    /// Returns when the store was asked for a name, if this thread found it absent no longer ago
    /// than `within`. Counts once.
    pub(super) fn take(
        &self,
        thread: u32,
        (parent, name): (NodeId, &str),
        within: Duration,
    ) -> Option<Instant> {
        let taken = self.slots.lock()[thread as usize % NR_SLOTS].take()?;
        let is_it = taken.thread == thread && taken.parent == parent && *taken.name == *name;
        (is_it && taken.at.elapsed() < within).then_some(taken.at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_counts_once_and_for_its_thread() {
        let (names, place) = (AbsentNames::default(), (NodeId(5), "a"));
        let take = |thread, place| names.take(thread, place, Duration::from_secs(600)).is_some();
        names.note(0, place, Instant::now());
        assert!(!take(0, place));
        names.note(1, place, Instant::now());
        assert!(!take(2, place) && take(1, place) && !take(1, place));
        names.note(1, place, Instant::now());
        assert!(!take(1, (NodeId(5), "b")) && !take(1, place), "the thread goes on with another");
        names.note(1, place, Instant::now());
        assert_eq!(names.take(1, place, Duration::ZERO), None);
    }
}
