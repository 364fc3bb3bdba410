//! Events logged with `tracing`: refused growth, failed charges, long reclaim. Each is logged at
//! most [ten times a second](RateLimit::PER_SECOND), with the number of events left out, and costs
//! one branch while no subscriber listens.

use std::fmt;
use std::time::Duration;

use tracing::Level;
use umemcg_base::RateLimit;
use umemcg_base::clock::{Clock, SystemClock};
use umemcg_group::{Group, Refused};

use crate::scan_control::{Progress, Reason};

/// Shortest duration of a reclaim to log.
const LONG_RECLAIM: Duration = Duration::from_millis(100);

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Noteworthy {
    clock: SystemClock,
    refusals: RateLimit,
    failed_charges: RateLimit,
    long_reclaims: RateLimit,
}

impl Noteworthy {
    /// Logs that an account of `group` was refused `bytes`.
    pub(crate) fn refused_growth(&self, group: &Group, bytes: u64, why: &dyn fmt::Display) {
        if tracing::enabled!(Level::DEBUG)
            && let Some(left_out) = self.refusals.ask(self.clock.now())
        {
            let group = group.path();
            tracing::debug!(group = %group.display(), bytes, left_out, "an account was refused memory: {why}");
        }
    }

    /// Logs a failed charge: reclaim found nothing more to free.
    pub(crate) fn failed_charge(&self, group: &Group, refused: &Refused) {
        if tracing::enabled!(Level::INFO)
            && let Some(left_out) = self.failed_charges.ask(self.clock.now())
        {
            let (group, full) = (group.path(), refused.group.path());
            tracing::info!(
                group = %group.display(),
                full = %full.display(),
                bytes = refused.wanted_bytes,
                max_bytes = refused.group.max_bytes(),
                left_out,
                "a charge failed: nothing more can be reclaimed"
            );
        }
    }

    /// Runs a reclaim of `root`, and logs it if it takes long.
    #[inline]
    pub(crate) fn timed(&self, root: &Group, reason: Reason, reclaim: impl FnOnce() -> Progress) -> Progress {
        if !tracing::enabled!(Level::INFO) {
            return reclaim();
        }
        let start = self.clock.now();
        let progress = reclaim();
        let (now, pages) = (self.clock.now(), progress.pages());
        let took = now - start;
        if took >= LONG_RECLAIM
            && let Some(left_out) = self.long_reclaims.ask(now)
        {
            let (group, took_ms) = (root.path(), took.as_millis() as u64);
            tracing::info!(group = %group.display(), ?reason, took_ms, pages, left_out, "a reclaim took long");
        }
        progress
    }
}
