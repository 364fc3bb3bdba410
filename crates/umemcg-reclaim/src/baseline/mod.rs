//! The mechanisms from before each change, for comparing benchmarks. This module replaces
//! `mechanism`, function for function; everything else is the shipped code.

use std::cell::Cell;
use std::sync::Arc;
use std::time::{Duration, Instant};

use umemcg_group::Group;

use crate::scan_control::{Progress, Round, SWAP_CLUSTER_MAX};

mod charge_latency;
pub(crate) mod rounds;
mod settings;
mod visit_counts;

pub use charge_latency::{ChargeLatency, charge_to_frame, take_charge_latencies};
pub use settings::{
    SoftLimits, ask_every_shrinker, counts_dirty_for_groups, honour_soft_limits, one_global_list, pages_only,
    visit_every_group, without_controller,
};
pub(crate) use settings::{list_owner, skips_no_subtree};
pub(crate) use visit_counts::note_visit;
pub use visit_counts::{VisitCounts, take_visit_counts};

pub(crate) fn visits_every_group(round: Round) -> bool {
    settings::is_every_group_visited() || (round == Round::InExcess && skips_no_subtree())
}

pub(crate) fn takes_pages_only() -> bool {
    settings::is_pages_only() || settings::is_of_largest_excess()
}

pub(crate) fn waits_for_dirty() -> bool {
    !settings::is_as_mailed()
}

/// Decides whether the second round follows: only if the first has scanned no page.
pub(crate) fn follows_first_round(first: &Progress) -> Option<bool> {
    settings::is_as_mailed().then_some(first.scanned == 0)
}

/// Returns the round with whole shares: a list gives its share of the priority in a first round,
/// too.
pub(crate) fn round_of_share(round: Round) -> Round {
    if settings::is_as_mailed() { Round::AllGroups } else { round }
}

pub(crate) fn active_share(share: u64) -> u64 {
    if settings::is_of_largest_excess() { share.min(SWAP_CLUSTER_MAX) } else { share }
}

/// Processor time spent by the calling thread in reclaim, and the part of it spent asking
/// shrinkers.
#[derive(Debug, Clone, Copy, Default)]
pub struct Spent {
    /// In reclaim altogether.
    pub reclaim: Duration,
    /// Nanoseconds of `reclaim` spent asking. The cost of reading the clock is subtracted from each
    /// visit, so a single visit may be negative; the sum is not.
    pub asking_ns: i64,
    /// The time of the repeated questions made for measuring; no part of the above.
    repeated: Duration,
}

/// One visit of this many is timed. A prime, so periodically differing visits are all timed.
const ONE_IN: u32 = 61;
/// A timed visit asks this many times in a row: a visit finding nothing costs less than reading the
/// clock.
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
    /// Starts recording this thread's times.
    pub fn start() {
        SPENT.set(Some(Self::default()));
    }

    /// Stops recording; returns the times.
    pub fn take() -> Self {
        SPENT.take().unwrap_or_default()
    }
}

pub(crate) fn in_reclaim<R>(act: impl FnOnce() -> R) -> R {
    if SPENT.get().is_none() {
        return act();
    }
    // The cost of reading the clock is subtracted.
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

pub(crate) fn in_asking(group: &Arc<Group>, mut ask: impl FnMut(&Arc<Group>)) {
    let listed = list_owner(group.owner()).resolve();
    let mut act = || ask(&listed);
    let visit = VISITS.get();
    VISITS.set(visit.wrapping_add(1));
    if !visit.is_multiple_of(ONE_IN) || SPENT.get().is_none() {
        return act();
    }
    let look = Instant::now();
    let start = Instant::now();
    (0..IN_A_ROW).for_each(|_| act());
    let (time, clock) = (start.elapsed(), start - look);
    // A visit of a preempted thread is not counted.
    if let Some(mut spent) = SPENT.get().filter(|_| time.max(clock) < ASKING_MAX) {
        let time_ns = time.as_nanos() as i64 - clock.as_nanos() as i64;
        spent.asking_ns += time_ns * i64::from(ONE_IN) / i64::from(IN_A_ROW);
        spent.repeated += time / IN_A_ROW * (IN_A_ROW - 1);
        SPENT.set(Some(spent));
    }
}
