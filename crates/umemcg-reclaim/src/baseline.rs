//! The mechanisms from before each change, for the benchmarks that compare. They take the same path otherwise.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use umemcg_group::{Group, OwnerId};

mod soft_limit;
mod tally;
mod way;

pub use soft_limit::{SoftLimits, honour_soft_limits};
pub(crate) use soft_limit::{is_as_mailed, skips_no_subtree, takes_largest_excess_first};
pub(crate) use tally::note_visit;
pub use tally::{Tally, take_tally};
pub use way::{Way, charge_to_frame, take_ways};

static EVERY_SHRINKER: AtomicBool = AtomicBool::new(false);
static EVERY_GROUP: AtomicBool = AtomicBool::new(false);
static PAGES_ONLY: AtomicBool = AtomicBool::new(false);
static ONE_LIST: AtomicBool = AtomicBool::new(false);
static WITHOUT_CONTROLLER: AtomicBool = AtomicBool::new(false);

/// Without the map: every shrinker is asked for every group.
pub fn ask_every_shrinker(on: bool) {
    EVERY_SHRINKER.store(on, Relaxed);
    EVERY_GROUP.store(on, Relaxed);
}

/// Walks visit groups that have nothing, too; but only shrinkers whose bit is set are asked.
pub fn visit_every_group(on: bool) {
    EVERY_GROUP.store(on, Relaxed);
}

/// Reclaim takes pages only, and leaves objects alone.
pub fn pages_only(on: bool) {
    PAGES_ONLY.store(on, Relaxed);
}

/// One list of each kind for everybody: objects stand on the root's, whoever pays for them, and reclaim of any group takes the oldest
/// from there. To be set before there are objects.
pub fn one_global_list(on: bool) {
    ONE_LIST.store(on, Relaxed);
}

/// The owner on whose list an object of `owner` goes, and whose objects reclaim for it takes.
pub(crate) fn list_owner(owner: OwnerId) -> OwnerId {
    if !ONE_LIST.load(Relaxed) {
        return owner;
    }
    let group = owner.resolve();
    group.ancestors().last().map_or(owner, Group::owner)
}

/// Dirty pages are counted for no group, only in their file and store. To be changed while nothing is dirty.
pub fn without_controller(on: bool) {
    WITHOUT_CONTROLLER.store(on, Relaxed);
}

/// Whether dirty pages are counted for no group.
pub fn is_without_controller() -> bool {
    WITHOUT_CONTROLLER.load(Relaxed)
}

pub(crate) fn asks_every_shrinker() -> bool {
    EVERY_SHRINKER.load(Relaxed)
}

pub(crate) fn visits_every_group() -> bool {
    EVERY_GROUP.load(Relaxed)
}

pub(crate) fn is_pages_only() -> bool {
    PAGES_ONLY.load(Relaxed)
}

/// Processor time that the calling thread has spent in reclaim, and of that in asking shrinkers.
#[derive(Debug, Clone, Copy, Default)]
pub struct Spent {
    /// In reclaim altogether.
    pub reclaim: Duration,
    /// Nanoseconds of that, asking. What looking at the clock costs is taken off each visit, so that a little of which may be less than
    /// nothing; the sum is not.
    pub asking_ns: i64,
    /// What asking again and again took, to be told how long once takes; no part of the above.
    repeated: Duration,
}

/// One visit of so many is timed. A prime, so that visits that differ in turns are all met.
const ONE_IN: u32 = 61;
/// It asks so many times in a row: one that finds nothing costs less than reading the clock.
const IN_A_ROW: u32 = 16;
/// No visit takes longer by itself.
const ASKING_MAX: Duration = Duration::from_millis(1);

fn processor_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

thread_local! {
    static SPENT: Cell<Option<Spent>> = const { Cell::new(None) };
    static VISITS: Cell<u32> = const { Cell::new(0) };
}

impl Spent {
    /// Begins to take the times of this thread.
    pub fn start() {
        SPENT.set(Some(Self::default()));
    }

    /// Ends it.
    pub fn take() -> Self {
        SPENT.take().unwrap_or_default()
    }

    pub(crate) fn in_reclaim<R>(act: impl FnOnce() -> R) -> R {
        if SPENT.get().is_none() {
            return act();
        }
        // What looking at the clock costs is no part of it.
        let look = processor_time();
        let start = processor_time();
        let result = act();
        let time = (processor_time() - start).saturating_sub(start - look);
        if let Some(mut spent) = SPENT.get() {
            spent.reclaim += time.saturating_sub(std::mem::take(&mut spent.repeated));
            SPENT.set(Some(spent));
        }
        result
    }

    pub(crate) fn in_asking<R>(mut act: impl FnMut() -> R) -> R {
        let visit = VISITS.get();
        VISITS.set(visit.wrapping_add(1));
        if !visit.is_multiple_of(ONE_IN) || SPENT.get().is_none() {
            return act();
        }
        let look = Instant::now();
        let start = Instant::now();
        (1..IN_A_ROW).for_each(|_| drop(act()));
        let result = act();
        let (time, clock) = (start.elapsed(), start - look);
        // A visit in which the processor was somewhere else says nothing.
        if let Some(mut spent) = SPENT.get().filter(|_| time.max(clock) < ASKING_MAX) {
            let time_ns = time.as_nanos() as i64 - clock.as_nanos() as i64;
            spent.asking_ns += time_ns * i64::from(ONE_IN) / i64::from(IN_A_ROW);
            spent.repeated += time / IN_A_ROW * (IN_A_ROW - 1);
            SPENT.set(Some(spent));
        }
        result
    }
}
