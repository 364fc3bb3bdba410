//! The mechanisms from before each change, for the benchmarks that compare. They take the same path otherwise.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering::Relaxed};
use std::time::{Duration, Instant};

use umemcg_group::{Group, OwnerId};

use crate::reclaim::{Pass, Progress, Reclaimer, SWAP_CLUSTER_MAX};
use crate::rounds::Round;
use crate::shield::Shield;

static EVERY_SHRINKER: AtomicBool = AtomicBool::new(false);
static EVERY_GROUP: AtomicBool = AtomicBool::new(false);
static PAGES_ONLY: AtomicBool = AtomicBool::new(false);
static ONE_LIST: AtomicBool = AtomicBool::new(false);

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

pub(crate) fn asks_every_shrinker() -> bool {
    EVERY_SHRINKER.load(Relaxed)
}

pub(crate) fn visits_every_group() -> bool {
    EVERY_GROUP.load(Relaxed)
}

pub(crate) fn is_pages_only() -> bool {
    PAGES_ONLY.load(Relaxed)
}

/// How soft limits are honoured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum SoftLimits {
    /// As they are: two rounds, and only who is in excess is looked at in the first (the mail's patches 1 to 8).
    TwoRounds,
    /// Two rounds, of which the first looks at every group there is, and is always made (patches 1 to 3).
    NoSkipping,
    /// Before everybody's round, the group with the largest excess at priority 0 (before the mail; `kernel-semantics` §3.1).
    LargestFirst,
}

static SOFT_LIMITS: AtomicU8 = AtomicU8::new(SoftLimits::TwoRounds as u8);

/// Says how soft limits are honoured from now on.
pub fn honour_soft_limits(how: SoftLimits) {
    SOFT_LIMITS.store(how as u8, Relaxed);
}

pub(crate) fn skips_no_subtree() -> bool {
    SOFT_LIMITS.load(Relaxed) == SoftLimits::NoSkipping as u8
}

pub(crate) fn takes_largest_excess_first() -> bool {
    SOFT_LIMITS.load(Relaxed) == SoftLimits::LargestFirst as u8
}

/// Rounds over a victim's subtree before its progress is judged, and at most.
const JUDGED_AFTER_LOOPS: u32 = 2;
#[doc(alias = "MEM_CGROUP_MAX_RECLAIM_LOOPS")]
const LOOPS_MAX: u32 = 100;
/// Victims that gave nothing, before it is left at that.
#[doc(alias = "MEM_CGROUP_MAX_SOFT_LIMIT_RECLAIM_LOOPS")]
const VICTIMS_MAX: usize = 2;

impl Reclaimer {
    /// What the kernel did before the mail: of all groups the one with the largest excess, at priority 0, in steps of 32 pages until it
    /// has no excess or has given a quarter of it. Only when the whole pool is under pressure.
    #[doc(alias = "mem_cgroup_soft_limit_reclaim")]
    pub(crate) fn shrink_largest_excess(
        &self,
        root: &Arc<Group>,
        pass: &Pass,
        shield: &mut Shield<'_>,
    ) -> Progress {
        let mut progress = Progress::default();
        if !root.is_root() {
            return progress;
        }
        let mut victims = in_excess(root);
        victims.sort_by_key(|group| std::cmp::Reverse(group.excess_bytes()));
        for victim in victims.iter().take(VICTIMS_MAX) {
            progress.add(self.shrink_victim(root, victim, pass, shield));
            if progress.pages() > 0 {
                break;
            }
        }
        progress
    }

    fn shrink_victim(
        &self,
        root: &Arc<Group>,
        victim: &Arc<Group>,
        pass: &Pass,
        shield: &mut Shield<'_>,
    ) -> Progress {
        let mut progress = Progress::default();
        let excess = victim.excess_bytes() / umemcg_base::PAGE_SIZE_U64;
        for nr_loops in 1..=LOOPS_MAX {
            let mut at = None;
            while let Some(group) = Group::next_in_subtree(victim, at.as_ref()) {
                let step = Pass { priority: 0, goal: SWAP_CLUSTER_MAX, round: Round::Everybody, ..*pass };
                progress.add(self.shrink_group(root, &group, &step, shield));
                if victim.excess_bytes() == 0 {
                    return progress;
                }
                at = Some(group);
            }
            let enough = progress.pages() == 0 || progress.pages() >= excess / 4;
            if nr_loops >= JUDGED_AFTER_LOOPS && enough {
                break;
            }
        }
        progress
    }
}

/// The groups below `root` that count as in excess: what the kernel kept a tree of.
fn in_excess(root: &Arc<Group>) -> Vec<Arc<Group>> {
    let (mut found, mut above) = (Vec::new(), vec![Arc::clone(root)]);
    while let Some(group) = above.pop() {
        let mut child = group.next_child_in_excess(0);
        while let Some(at) = child {
            if at.excess_bytes() > 0 {
                found.push(Arc::clone(&at));
            }
            child = group.next_child_in_excess(at.id());
            above.push(at);
        }
    }
    found
}

/// Processor time that the calling thread has spent in reclaim, and of that in asking shrinkers.
#[derive(Debug, Clone, Copy, Default)]
pub struct Spent {
    /// In reclaim altogether.
    pub reclaim: Duration,
    /// Asking.
    pub asking: Duration,
}

/// One visit of so many is timed: reading the clock costs as much as a visit that finds nothing.
const ONE_IN: u32 = 16;
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
        let start = processor_time();
        let result = act();
        let time = processor_time() - start;
        if let Some(mut spent) = SPENT.get() {
            spent.reclaim += time;
            SPENT.set(Some(spent));
        }
        result
    }

    pub(crate) fn in_asking<R>(act: impl FnOnce() -> R) -> R {
        let visit = VISITS.get();
        VISITS.set(visit.wrapping_add(1));
        Self::timed(act, visit.is_multiple_of(ONE_IN), |spent, time| {
            // What two looks at the clock cost is no part of it.
            let start = Instant::now();
            let clock = Instant::now() - start;
            // A visit in which the processor was somewhere else says nothing.
            if time < ASKING_MAX {
                spent.asking += time.saturating_sub(clock) * ONE_IN;
            }
        })
    }

    fn timed<R>(act: impl FnOnce() -> R, is_chosen: bool, note: impl FnOnce(&mut Self, Duration)) -> R {
        if !is_chosen || SPENT.get().is_none() {
            return act();
        }
        let start = Instant::now();
        let result = act();
        let time = start.elapsed();
        if let Some(mut spent) = SPENT.get() {
            note(&mut spent, time);
            SPENT.set(Some(spent));
        }
        result
    }
}
