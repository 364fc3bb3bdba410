//! One group's background reclaim, as the workers hand it on.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use umemcg_group::Group;

use crate::kswapd::queue::Queue;
use crate::reclaim::DEF_PRIORITY;

/// First rest of a group from which nothing can be had.
pub(super) const REST_FIRST: Duration = Duration::from_millis(20);
/// Rests up to this one are for pages that are dirty; who still finds nothing else then takes from others (see [`crate::rounds`]).
pub(super) const REST_IN_VAIN: Duration = Duration::from_millis(160);
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
