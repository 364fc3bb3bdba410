//! One quantum: 32 pages from a group's subtree, and the next step.
//!
//! After a round over the subtree with less than a quantum freed, the priority becomes more urgent;
//! after a round with a quantum or more, one step gentler. A group giving nothing even at the last
//! priority backs off. It also backs off while the releases requested by shrinkers would be enough,
//! and is woken when half of these bytes have come: a release takes time, and asking for more
//! meanwhile would take far too much.

use std::sync::Arc;

use umemcg_base::{PAGE_SIZE_U64, assert_no_locks_held};
use umemcg_group::{EventKind, Group, StatItem};

use super::job_progress::{
    BACKOFF_FIRST, BACKOFF_IN_VAIN, BACKOFF_MAX, BackoffBaseline, JobProgress, QUANTUM_PAGES,
};
use super::queue::Job;
use crate::group_reclaim::{GroupReclaim, leaving_bytes};
use crate::reclaimer::Reclaimer;
use crate::rounds::{FirstRounds, shrink_in_rounds};
use crate::scan_control::{DEF_PRIORITY, Pass, Progress, Reason};

/// The fate of a job after a quantum.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Next {
    /// Below its high mark, or not at its low one.
    Done,
    /// More to do.
    Again,
    /// Nothing can be freed just now.
    BackOff,
}

/// Runs one quantum of a job.
pub(super) fn run_quantum(reclaimer: &Reclaimer, job: &Job) -> Next {
    assert_no_locks_held("background reclaim");
    let Some(group) = job.group.upgrade().filter(|group| !group.is_dead()) else { return Next::Done };
    let background = GroupReclaim::of(&group).background();
    let mut work = job.progress.lock();
    let usage = group.usage_bytes();
    work.is_active |= usage >= background.start();
    if !work.is_active || usage < background.stop() {
        work.start_again();
        return Next::Done;
    }
    let ended = (job.state.lock().ended_bytes, leaving_bytes(&group) > 0);
    let is_enough = |coming| usage.saturating_sub(coming) < background.stop();
    let Some(is_believed) = work.counts_releasing_bytes(ended, is_enough) else { return Next::BackOff };
    if work.freed_in_round == 0 && usage > background.high_limit() {
        group.event(EventKind::High);
    }
    group.stat_add(StatItem::KswapdRun, 1);
    if std::mem::take(&mut work.is_exhausted) {
        work.priority = DEF_PRIORITY;
        return Next::BackOff;
    }
    let mut protection = reclaimer.protection_from(&group, work.overrides_low);
    let pass = Pass::new(work.priority, QUANTUM_PAGES, Reason::Kswapd);
    review_backoff(reclaimer, &group, &mut work);
    let has_backed_off_in_vain = work.backoff > BACKOFF_IN_VAIN;
    let mut first_rounds = FirstRounds::of_worker(has_backed_off_in_vain);
    first_rounds.is_last_chance = work.priority == 0 && work.freed_in_round == 0;
    let enough = |now: &Progress| now.pages() + now.releasing_bytes / PAGE_SIZE_U64 >= QUANTUM_PAGES;
    let (progress, is_round_over) =
        shrink_in_rounds(reclaimer, &group, &pass, &mut protection, &mut first_rounds, &enough);
    work.low_was_in_the_way |= protection.low_was_in_the_way();
    let releasing = if is_believed { progress.releasing_bytes } else { 0 };
    work.note_freed(progress.pages(), releasing);
    if progress.scanned > 0 && progress.dirty == progress.scanned {
        // Only dirty pages were found, so the flusher has to write them. The worker does not wait
        // for it.
        if let Some(owner) = reclaimer.page_owner() {
            owner.start_writeback(&group);
        }
        // After a back-off in vain, on to the last priority: short lists have no share here.
        if is_round_over && work.freed_in_round == 0 && !has_backed_off_in_vain {
            let (nr_written, nr_freed) = backoff_baseline(reclaimer, &group);
            work.backed_off_at = Some(BackoffBaseline::next(work.backed_off_at, nr_written, nr_freed));
            return Next::BackOff;
        }
    }
    if is_round_over {
        // Back off for leaving bytes before taking pages protected by `low`.
        let is_in_vain = work.priority == 0 && work.freed_in_round == 0;
        if is_in_vain && work.backoff < BACKOFF_MAX && leaving_bytes(&group) > 0 {
            return Next::BackOff;
        }
        work.end_round();
    }
    Next::Again
}

/// Decides whether the last back-off was useful. A worker does not wait for dirty pages but
/// backs off; after long fruitless back-offs it reclaims from all groups. Other threads may
/// have freed the written pages meanwhile.
fn review_backoff(reclaimer: &Reclaimer, group: &Arc<Group>, work: &mut JobProgress) {
    if let Some(baseline) = work.backed_off_at {
        let (nr_written, nr_freed) = backoff_baseline(reclaimer, group);
        if baseline.was_useful(nr_written, nr_freed) {
            work.backoff = BACKOFF_FIRST;
        }
    }
}

/// Returns the count of finished write-backs, and the group's age.
fn backoff_baseline(reclaimer: &Reclaimer, group: &Arc<Group>) -> (u64, u64) {
    let nr_written = reclaimer.page_owner().map_or(0, |owner| owner.writeback_progress());
    (nr_written, GroupReclaim::of(group).age())
}

/// Returns the length of the next back-off.
pub(super) fn backoff_of(job: &Job) -> std::time::Duration {
    let mut work = job.progress.lock();
    let backoff = work.backoff;
    work.backoff = (backoff * 2).min(BACKOFF_MAX);
    backoff
}
