//! `memory.high`: above it background reclaim works on the group, and a charging process is slowed
//! at the end of its request (`kernel-semantics` §1.4).

use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use umemcg_base::sync::Instant;
use umemcg_base::{PAGE_SIZE_U64, assert_no_locks_held};
use umemcg_group::{EventKind, Group, UNLIMITED};

use super::Reclaimer;
use super::leaving::LEAVING_WAIT;
use crate::group_reclaim::GroupReclaim;
use crate::kswapd::listen_for_pressure;
use crate::rounds::FirstRounds;
use crate::scan_control::{MAX_RECLAIM_RETRIES, Reason, SWAP_CLUSTER_MAX};
use crate::stall::StalledHere;

/// Longest delay of one request.
pub const HIGH_DELAY_MAX: Duration = Duration::from_secs(2);
/// Shorter ones are not worth a sleep.
pub const HIGH_DELAY_MIN: Duration = Duration::from_millis(10);
/// Pages for which the formula gives its delay; the kernel's batch.
const BATCH_PAGES: u64 = 64;

/// Returns the delay of a request after charging `pages`, at the usage `usage` and the limit
/// `high`.
#[doc(alias = "calculate_high_delay")]
pub fn high_delay(usage: u64, high: u64, pages: u64) -> Duration {
    if usage <= high {
        return Duration::ZERO;
    }
    let high = u128::from(high.max(1));
    // In 2^-20 of the limit; capped where the delay is at its longest anyway.
    let overage = ((u128::from(usage) - high.min(u128::from(usage))) << 20).div_euclid(high).min(1 << 24);
    let milliseconds = (overage * overage * 1000) >> 34;
    let scaled = milliseconds * u128::from(pages.max(1)) / u128::from(BATCH_PAGES);
    let delay = Duration::from_millis(u64::try_from(scaled).unwrap_or(u64::MAX)).min(HIGH_DELAY_MAX);
    if delay <= HIGH_DELAY_MIN { Duration::ZERO } else { delay }
}

thread_local! {
    /// Bytes ever charged on this thread by charges allowed to reclaim.
    static CHARGED_BYTES: Cell<u64> = const { Cell::new(0) };
}

/// Notes a successful charge of a caller that may reclaim.
#[inline]
pub(crate) fn note_charged(bytes: u64) {
    CHARGED_BYTES.with(|charged| charged.set(charged.get().wrapping_add(bytes)));
}

/// A count of the charges of this thread during a request, for the delay at the end of the request.
#[derive(Debug)]
pub struct ChargeMeter {
    start: u64,
    /// The index of its thread's count.
    thread: usize,
}

impl ChargeMeter {
    /// Starts from nothing.
    pub fn start() -> Self {
        CHARGED_BYTES
            .with(|charged| Self { start: charged.get(), thread: std::ptr::from_ref(charged).addr() })
    }

    /// Returns whether the calling thread started it.
    pub fn is_here(&self) -> bool {
        CHARGED_BYTES.with(|charged| std::ptr::from_ref(charged).addr() == self.thread)
    }

    /// Returns the bytes charged since by the thread that started it; 0 on other threads. Includes
    /// bytes given back.
    pub fn bytes(&self) -> u64 {
        if !self.is_here() {
            return 0;
        }
        CHARGED_BYTES.with(|charged| charged.get().wrapping_sub(self.start))
    }
}

impl Reclaimer {
    /// Returns `memory.high` of a group in bytes; [`UNLIMITED`] for none.
    pub fn high(&self, group: &Arc<Group>) -> u64 {
        GroupReclaim::if_present(group).map_or(UNLIMITED, |part| part.background().high_limit())
    }

    /// Sets `memory.high`. Takes effect with the next charge; reclaims nothing by itself.
    pub fn set_high(&self, group: &Arc<Group>, bytes: u64) {
        GroupReclaim::of(group).background().set_high_limit(bytes);
        if bytes != UNLIMITED {
            listen_for_pressure(self.kswapd_queue(), group);
        }
        self.limit_changed(group);
    }

    /// Returns whether a group or an ancestor is over its `memory.high`. Costs a few loads for each
    /// level.
    #[inline]
    pub fn is_over_high(&self, group: &Arc<Group>) -> bool {
        self.would_be_over_high(group, 0)
    }

    /// Returns whether a group or an ancestor would be over its `memory.high` with `bytes` more.
    #[inline]
    pub(super) fn would_be_over_high(&self, group: &Arc<Group>, bytes: u64) -> bool {
        std::iter::successors(Some(group), |at| at.parent()).any(|at| {
            // Without a limit, no counter written by charges is read.
            let high = GroupReclaim::if_present(at).map_or(UNLIMITED, |part| part.background().high_limit());
            high != UNLIMITED && at.usage_bytes().saturating_add(bytes) > high
        })
    }

    /// Ends a request that charged `bytes` and is answered at once, because other groups wait for a
    /// resource held until then: the group's next delayable request pays for them. Does not sleep.
    pub fn defer_over_high(&self, group: &Arc<Group>, bytes: u64) {
        if bytes > 0 && self.is_over_high(group) {
            GroupReclaim::of(group).defer(bytes);
        }
    }

    /// Ends a request that charged `bytes`, and pays for bytes deferred by earlier requests of its
    /// group: reclaims from each level over its `memory.high` as long as reclaim frees pages, and
    /// returns the delay for the answer. May sleep for reclaim, and once for leaving bytes; no lock
    /// may be held.
    #[doc(alias = "mem_cgroup_handle_over_high")]
    pub fn handle_over_high(&self, group: &Arc<Group>, bytes: u64, cancelled: &dyn Fn() -> bool) -> Duration {
        let deferred = GroupReclaim::if_present(group).map_or(0, GroupReclaim::take_deferred);
        if bytes.saturating_add(deferred) == 0 || !self.is_over_high(group) {
            return Duration::ZERO;
        }
        assert_no_locks_held("the end of a request");
        let _stalled = StalledHere::begin(group);
        // Deferred bytes have been there for a while: they make the delay longer, and reclaim no
        // harder.
        let own_pages = bytes.div_ceil(PAGE_SIZE_U64);
        let pages = bytes.saturating_add(deferred).div_ceil(PAGE_SIZE_U64);
        let mut delay = Duration::ZERO;
        // For all rounds together: each could wait as long.
        let rounds = FirstRounds::with_leaving_until(Instant::now() + LEAVING_WAIT);
        for at in std::iter::successors(Some(group), |at| at.parent()) {
            let high = self.high(at);
            if at.usage_bytes() <= high {
                continue;
            }
            at.event(EventKind::High);
            let mut retries = MAX_RECLAIM_RETRIES;
            while retries > 0 && at.usage_bytes() > high && !cancelled() {
                let goal = SWAP_CLUSTER_MAX.max(own_pages);
                if self.reclaim_in(at, goal, Reason::Direct, rounds, cancelled).pages() == 0 {
                    break;
                }
                retries -= 1;
            }
            delay = delay.max(high_delay(at.usage_bytes(), high, pages));
        }
        delay
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_own_table() {
        let mib = |n: u64| n << 20;
        for (usage, ms) in [(100, 0), (101, 0), (105, 159), (110, 639), (118, 2000), (150, 2000)] {
            let delay = high_delay(mib(usage), mib(100), 64).as_millis();
            assert!(delay.abs_diff(ms) <= 1, "{usage}: {delay} for {ms}");
        }
    }

    #[test]
    fn a_meter_counts_what_its_own_thread_charges() {
        let meter = ChargeMeter::start();
        note_charged(4096);
        std::thread::spawn(|| note_charged(1 << 20)).join().unwrap();
        let inner = ChargeMeter::start();
        note_charged(100);
        assert_eq!((meter.bytes(), inner.bytes()), (4196, 100));
        assert_eq!(
            std::thread::spawn(move || meter.bytes()).join().unwrap(),
            0,
            "another thread's count is another"
        );
    }

    #[test]
    fn no_high_no_delay_and_a_high_of_zero_is_the_longest() {
        assert_eq!(high_delay(1 << 40, UNLIMITED, 64), Duration::ZERO);
        assert_eq!(high_delay(1 << 20, 0, 64), HIGH_DELAY_MAX);
        assert_eq!(high_delay(u64::MAX, 1, u64::MAX), HIGH_DELAY_MAX);
    }
}
