//! One group's background reclaim, as the workers hand it on.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Weak};
use std::time::Duration;

use umemcg_base::sync::Mutex;
use umemcg_group::Group;

use crate::kswapd::queue::Queue;
use crate::reclaim::DEF_PRIORITY;

/// First rest of a group from which nothing can be had.
pub(super) const REST_FIRST: Duration = Duration::from_millis(20);
/// Rests up to this one are for pages that are dirty; who still finds nothing else then takes from others (see [`crate::rounds`]).
pub(super) const REST_IN_VAIN: Duration = Duration::from_millis(160);
/// Rests for dirty pages in which something is written but nothing is freed, before they are in vain as well: two seconds.
pub(super) const DIRTY_RESTS_MAX: u32 = 100;
/// Longest.
pub(super) const REST_MAX: Duration = Duration::from_secs(2);

/// Where a job is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// Nowhere: its group is below its marks.
    Idle,
    /// In a queue.
    Queued,
    /// With a worker.
    Running,
    /// In a queue of those that rest.
    Resting,
}

/// How far a group's reclaim is.
#[derive(Debug)]
pub(super) struct State {
    pub(super) place: Place,
    /// Tells the entries of one rest from those of an earlier one.
    pub(super) rest_serial: u64,
    /// Who serves the group instead of the pool.
    pub(super) own_queue: Option<Arc<Queue>>,
}

/// What stood when a worker went to rest because all that it saw was dirty.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Rested {
    /// Write-backs that had finished.
    pub(super) nr_written: u64,
    /// Pages that had been taken on behalf of the group, by anybody.
    pub(super) nr_freed: u64,
    /// Rests since the last page was.
    pub(super) nr_rests: u32,
}

impl Rested {
    /// The rest before this moment, with what stands now: whether it was worth it. It was if pages were freed, no matter by whom; or, for
    /// a while, if something was written.
    pub(super) fn was_worth_it(&self, nr_written: u64, nr_freed: u64) -> bool {
        nr_freed != self.nr_freed || (nr_written != self.nr_written && self.nr_rests < DIRTY_RESTS_MAX)
    }

    /// The next rest, which begins when so much stands.
    pub(super) fn next(before: Option<Self>, nr_written: u64, nr_freed: u64) -> Self {
        let nr_rests =
            before.filter(|before| before.nr_freed == nr_freed).map_or(0, |before| before.nr_rests);
        Self { nr_written, nr_freed, nr_rests: nr_rests + 1 }
    }
}

/// What only the worker that runs the job touches.
#[derive(Debug)]
pub(super) struct Progressing {
    pub(super) priority: u32,
    /// Node of the next quantum.
    pub(super) next_node: usize,
    /// Nodes that still give something; when none is left the group rests.
    pub(super) candidates: Vec<bool>,
    /// Pages freed since the walk over the subtree last came to its end.
    pub(super) freed_in_round: u64,
    pub(super) rest: Duration,
    /// What stood when it last rested for dirty pages.
    pub(super) rested_at: Option<Rested>,
    /// Bytes promised since the group last rested, or began.
    pub(super) promised_bytes: u64,
    /// It rests for promises to be kept: what had been let go of before they were made, and how often it has rested since.
    pub(super) awaits: Option<(u64, u32)>,
    /// A round at the last priority brought nothing and `low` was in the way: only `min` counts, until the high mark is reached.
    pub(super) overrides_low: bool,
    /// `low` was in the way since the priorities were last begun with.
    pub(super) low_was_in_the_way: bool,
    /// Reclaim has started and not come to the high mark yet.
    pub(super) is_active: bool,
}

/// One group's background reclaim.
#[derive(Debug)]
pub(crate) struct Job {
    pub(super) group: Weak<Group>,
    /// Innermost but for the queues.
    pub(super) state: Mutex<State>,
    pub(super) progressing: Mutex<Progressing>,
    /// A hint: it rests. (A)
    pub(super) is_resting: AtomicBool,
}

impl Job {
    pub(super) fn new(group: &Arc<Group>, nr_nodes: usize) -> Self {
        Self {
            group: Arc::downgrade(group),
            state: Mutex::new(State { place: Place::Idle, rest_serial: 0, own_queue: None }),
            progressing: Mutex::new(Progressing {
                priority: DEF_PRIORITY,
                next_node: 0,
                candidates: vec![true; nr_nodes],
                freed_in_round: 0,
                rest: REST_FIRST,
                rested_at: None,
                promised_bytes: 0,
                awaits: None,
                overrides_low: false,
                low_was_in_the_way: false,
                is_active: false,
            }),
            is_resting: AtomicBool::new(false),
        }
    }

    pub(super) fn is_resting(&self) -> bool {
        self.is_resting.load(Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rest_is_worth_it_as_long_as_anybody_frees_anything() {
        let mut rested = Rested::next(None, 5, 40);
        for nr_freed in 41..1041 {
            assert!(rested.was_worth_it(5, nr_freed));
            rested = Rested::next(Some(rested), 5, nr_freed);
            assert_eq!(rested.nr_rests, 1);
        }
        assert!(!rested.was_worth_it(5, 1040), "nothing was written and nothing was freed");
    }

    #[test]
    fn what_is_only_written_is_waited_for_as_often_as_the_bound_says() {
        let mut rested = Rested::next(None, 0, 7);
        for nr_written in 1..u64::from(DIRTY_RESTS_MAX) {
            assert!(rested.was_worth_it(nr_written, 7), "{nr_written}");
            rested = Rested::next(Some(rested), nr_written, 7);
        }
        assert!(!rested.was_worth_it(u64::MAX, 7));
        assert!(rested.was_worth_it(0, 8), "but for whoever has freed something");
    }
}
