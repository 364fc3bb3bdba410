//! The rate limiter of one store. Requests begin as they come, until the store throttles.
//!
//! 1. A throttling store gets a limit: a fraction of the rate at which it accepted requests before.
//!    The limit is cut again while the store goes on throttling, at most once each half second. A
//!    few refusals among many responses do not cut it. Nor do the refusals of a single key while
//!    the store accepts others: the requests for this key pause by themselves.
//! 2. After a cut the limit is a function of time: it climbs back to the rate before, stays about
//!    there, and then rises ever faster, like the window of TCP CUBIC. A limit too high to matter
//!    is lifted.
//! 3. Under a limit, requests begin one by one. Lanes take turns: each has one request in the queue
//!    of the store. The tenants of a lane take turns in the same way: each has one request in the
//!    queue of the lane. Requests of a tenant begin in the order of their arrival.
//! 4. A waiting request is a future. It holds no thread, and leaves the queue when dropped.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use tokio::sync::Semaphore;
use umemcg_base::LeafMutex;

use crate::recent_keys::RecentKeys;

/// The limit after a cut, as a fraction of the rate accepted by the store.
const CUT: f64 = 0.7;
/// Time until a limit is back at the rate before its cut.
const RECOVERY_SECONDS: f64 = 2.0;
/// Time from the last cut until a limit is lifted: by then it is 200 times as high.
const LIFTED_AFTER: Duration = Duration::from_secs(20);
/// Lowest fraction of refusals among the responses for a cut.
const REFUSED_MIN: f64 = 0.1;
/// Lowest limit, in requests per second. A store accepting fewer refuses some.
const RATE_MIN: f64 = 5.0;
/// The window for measuring rates, and the shortest time between two cuts.
const WINDOW: Duration = Duration::from_millis(500);
/// Longest wait of a request. Then it begins out of turn: the store decides.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// How long a request refused or not answered by the store is retried. A wait for its turn takes
/// nothing off the store's minute.
pub(crate) const RETRY_TIMEOUT: Duration = PATIENCE.saturating_add(Duration::from_secs(60));

/// A queue of requests, which takes turns with other lanes. The tenants within a lane take turns,
/// too.
#[derive(Debug)]
pub(crate) struct Lane {
    line: Semaphore,
    /// The queues of tenants with waiting requests.
    tenants: LeafMutex<HashMap<usize, Weak<Semaphore>>>,
}

impl Default for Lane {
    fn default() -> Self {
        Self { line: Semaphore::new(1), tenants: LeafMutex::default() }
    }
}

impl Lane {
    /// Returns the queue of a tenant.
    fn of_tenant(&self, tenant: usize) -> Arc<Semaphore> {
        let mut tenants = self.tenants.lock();
        if let Some(line) = tenants.get(&tenant).and_then(Weak::upgrade) {
            return line;
        }
        tenants.retain(|_, line| line.strong_count() > 0);
        let line = Arc::new(Semaphore::new(1));
        tenants.insert(tenant, Arc::downgrade(&line));
        line
    }
}

/// See the module text.
#[derive(Debug)]
pub(crate) struct Pace {
    schedule: LeafMutex<Schedule>,
    line: Semaphore,
}

impl Default for Pace {
    fn default() -> Self {
        Self { schedule: LeafMutex::new(Schedule::new(Instant::now())), line: Semaphore::new(1) }
    }
}

impl Pace {
    /// Waits until a request of a tenant may begin. Returns the time waited.
    pub(crate) async fn turn(&self, lane: &Lane, tenant: usize) -> Duration {
        let came = Instant::now();
        if self.schedule.lock().begin_unlimited(came) {
            return Duration::ZERO;
        }
        let _ = tokio::time::timeout(PATIENCE, self.wait(lane, tenant)).await;
        came.elapsed()
    }

    async fn wait(&self, lane: &Lane, tenant: usize) {
        let of_tenant = lane.of_tenant(tenant);
        // The semaphores are never closed.
        let _first_of_tenant = of_tenant.acquire().await;
        let _first_of_lane = lane.line.acquire().await;
        let _first = self.line.acquire().await;
        let begins = self.schedule.lock().begin(Instant::now());
        tokio::time::sleep_until(begins.into()).await;
    }

    /// Records the response to a request sent at `sent` for a key, given by its hash, and whether
    /// the store throttled it.
    pub(crate) fn answered(&self, key: u64, sent: Instant, is_throttled: bool) {
        let mut schedule = self.schedule.lock();
        match is_throttled {
            true => schedule.refused(key, sent, Instant::now()),
            false => schedule.took(key, Instant::now()),
        }
    }
}

/// Computes when requests begin; the caller passes the time.
#[derive(Debug)]
struct Schedule {
    limit: Option<Limit>,
    /// Requests begun, and requests accepted by the store.
    begun: Meter,
    taken: Meter,
    /// Requests refused by the store.
    refused: Meter,
    /// The keys of requests accepted and refused last.
    taken_keys: RecentKeys,
    refused_keys: RecentKeys,
    /// When the next request may begin.
    next: Instant,
}

impl Schedule {
    fn new(now: Instant) -> Self {
        Self {
            limit: None,
            begun: Meter::new(now),
            taken: Meter::new(now),
            refused: Meter::new(now),
            taken_keys: RecentKeys::default(),
            refused_keys: RecentKeys::default(),
            next: now,
        }
    }

    /// Begins a request if there is no limit.
    fn begin_unlimited(&mut self, now: Instant) -> bool {
        self.limit = self.limit.filter(|limit| now.saturating_duration_since(limit.cut) < LIFTED_AFTER);
        if self.limit.is_none() {
            self.begun.note(now);
        }
        self.limit.is_none()
    }

    /// Returns when a request begins.
    fn begin(&mut self, now: Instant) -> Instant {
        if self.begin_unlimited(now) {
            return now;
        }
        let begins = self.next.max(now);
        let rate = self.limit.map_or(f64::INFINITY, |limit| limit.rate(begins));
        self.next = begins + Duration::from_secs_f64(1.0 / rate);
        self.begun.note(now);
        begins
    }

    fn took(&mut self, key: u64, now: Instant) {
        self.taken.note(now);
        self.taken_keys.note(key, now);
    }

    fn refused(&mut self, key: u64, sent: Instant, now: Instant) {
        let is_of_store = self.refused_keys.has_other(key, now)
            || self.taken_keys.has(key, now)
            || !self.taken_keys.has_other(key, now);
        self.refused_keys.note(key, now);
        if !is_of_store {
            return;
        }
        let is_old = |limit: Limit| sent < limit.cut || now < limit.cut + WINDOW;
        let is_of_last_cut = self.limit.is_some_and(is_old);
        self.refused.note(now);
        let (refused, taken) = (self.refused.rate(now), self.taken.rate(now));
        if is_of_last_cut || refused < REFUSED_MIN * (refused + taken) {
            return;
        }
        let begun = self.begun.rate(now);
        let rate = self.limit.map_or(begun, |limit| limit.rate(now).min(begun));
        // A store accepts nothing while down, and is up again soon: halve the limit at most.
        let cut = (CUT * taken).clamp(rate / 2.0, rate).max(RATE_MIN);
        self.limit = Some(Limit { before: cut / CUT, cut: now });
        self.next = now;
    }
}

/// See the module text.
#[derive(Debug, Clone, Copy)]
struct Limit {
    /// The rate before the cut, to which it climbs back, in requests per second.
    before: f64,
    /// The time of the cut.
    cut: Instant,
}

impl Limit {
    /// Returns the limit in requests per second.
    fn rate(&self, now: Instant) -> f64 {
        let seconds = now.saturating_duration_since(self.cut).min(LIFTED_AFTER).as_secs_f64();
        let steepness = (1.0 - CUT) / RECOVERY_SECONDS.powi(3);
        self.before * (1.0 + steepness * (seconds - RECOVERY_SECONDS).powi(3))
    }
}

/// Counts events of the current window and the one before.
#[derive(Debug)]
struct Meter {
    since: Instant,
    nr: u32,
    nr_before: u32,
}

impl Meter {
    fn new(now: Instant) -> Self {
        Self { since: now, nr: 0, nr_before: 0 }
    }

    fn turn(&mut self, now: Instant) {
        let passed = now.saturating_duration_since(self.since);
        if passed >= 2 * WINDOW {
            *self = Self::new(now);
        } else if passed >= WINDOW {
            *self = Self { since: self.since + WINDOW, nr: 0, nr_before: self.nr };
        }
    }

    fn note(&mut self, now: Instant) {
        self.turn(now);
        self.nr = self.nr.saturating_add(1);
    }

    /// Returns the rate over the last full window and the current one so far, in events per second.
    fn rate(&mut self, now: Instant) -> f64 {
        self.turn(now);
        let seconds = WINDOW + now.saturating_duration_since(self.since);
        f64::from(self.nr.saturating_add(self.nr_before)) / seconds.as_secs_f64()
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::sync::atomic::{AtomicU32, Ordering};

    use futures_util::future::{join_all, select};

    use super::*;

    const MS: Duration = Duration::from_millis(1);
    const KEY: u64 = 7;

    /// Sends requests for `seconds` to a store accepting `store` requests each tenth of a second,
    /// as fast as the limit allows, but at most `most` a millisecond. Returns the numbers of
    /// accepted and refused requests.
    fn ask(
        schedule: &mut Schedule,
        now: &mut Instant,
        seconds: u32,
        (store, most): (u32, u32),
    ) -> (u32, u32) {
        let (mut nr_taken, mut nr_refused, mut nr_here, mut waiting) = (0, 0, 0, None);
        for ms in 0..seconds * 1000 {
            *now += MS;
            if ms % 100 == 0 {
                nr_here = 0;
            }
            for _ in 0..most {
                if *waiting.get_or_insert_with(|| schedule.begin(*now)) > *now {
                    break;
                }
                (waiting, nr_here) = (None, nr_here + 1);
                if nr_here > store {
                    nr_refused += 1;
                    schedule.refused(KEY, *now, *now);
                } else {
                    nr_taken += 1;
                    schedule.took(KEY, *now);
                }
            }
        }
        (nr_taken, nr_refused)
    }

    #[test]
    fn a_store_that_takes_all_has_no_limit() {
        let mut now = Instant::now();
        let mut schedule = Schedule::new(now);
        assert_eq!(ask(&mut schedule, &mut now, 5, (u32::MAX, 3)), (15_000, 0));
        assert!(schedule.limit.is_none());
    }

    #[test]
    fn a_limit_finds_the_rate_that_a_store_takes() {
        let mut now = Instant::now();
        let mut schedule = Schedule::new(now);
        // 100 a second accepted, 1,000 offered.
        ask(&mut schedule, &mut now, 10, (10, 1));
        let (nr_taken, nr_refused) = ask(&mut schedule, &mut now, 60, (10, 1));
        assert!(nr_taken > 60 * 80, "{nr_taken} taken, {nr_refused} refused");
        assert!(nr_refused < nr_taken / 10, "{nr_taken} taken, {nr_refused} refused");
    }

    #[test]
    fn a_limit_is_lifted_when_the_store_takes_all_again() {
        let mut now = Instant::now();
        let mut schedule = Schedule::new(now);
        ask(&mut schedule, &mut now, 10, (10, 1));
        assert!(schedule.limit.is_some());
        let (nr_taken, nr_refused) = ask(&mut schedule, &mut now, 10, (u32::MAX, 1));
        assert!(nr_refused == 0 && nr_taken > 2_000, "it rises: {nr_taken}");
        ask(&mut schedule, &mut now, 11, (u32::MAX, 1));
        assert!(schedule.limit.is_none());
    }

    #[test]
    fn a_store_that_was_down_is_soon_asked_as_before() {
        let mut now = Instant::now();
        let mut schedule = Schedule::new(now);
        ask(&mut schedule, &mut now, 5, (u32::MAX, 1));
        ask(&mut schedule, &mut now, 2, (0, 1));
        let (nr_taken, _) = ask(&mut schedule, &mut now, 15, (u32::MAX, 1));
        assert!(nr_taken > 5_000, "{nr_taken} of 15,000");
    }

    #[test]
    fn a_few_refusals_among_many_answers_set_no_limit() {
        let mut now = Instant::now();
        let mut schedule = Schedule::new(now);
        for ms in 0..10_000 {
            now += MS;
            assert!(schedule.begin_unlimited(now), "after {ms} ms");
            // One response of twenty.
            match ms % 20 {
                10 => schedule.refused(ms, now, now),
                _ => schedule.took(ms, now),
            }
        }
    }

    #[test]
    fn a_key_that_is_always_refused_slows_no_other() {
        let mut now = Instant::now();
        let mut schedule = Schedule::new(now);
        schedule.took(KEY, now);
        // As many refusals as responses, seconds apart.
        for second in 1..100 {
            now += 1000 * MS;
            schedule.refused(KEY + 1, now, now);
            assert!(schedule.limit.is_none(), "after {second} s");
            if second % 5 == 0 {
                schedule.took(KEY, now);
            }
        }
    }

    #[test]
    fn a_second_refused_key_is_reason_for_a_limit() {
        let now = Instant::now();
        let mut schedule = Schedule::new(now);
        schedule.took(KEY, now);
        schedule.refused(KEY + 1, now, now);
        assert!(schedule.limit.is_none());
        schedule.refused(KEY + 2, now, now);
        assert!(schedule.limit.is_some());
    }

    #[test]
    fn a_key_that_is_refused_now_and_then_is_too() {
        let now = Instant::now();
        let mut schedule = Schedule::new(now);
        schedule.took(KEY + 1, now);
        schedule.took(KEY, now);
        schedule.refused(KEY, now, now);
        assert!(schedule.limit.is_some());
    }

    #[test]
    fn refusals_of_requests_from_before_a_cut_are_of_it() {
        let mut now = Instant::now();
        let mut schedule = Schedule::new(now);
        let sent = now;
        for _ in 0..500 {
            assert!(schedule.begin_unlimited(now));
        }
        now += 10 * MS;
        schedule.refused(KEY, sent, now);
        let rate = |schedule: &Schedule| schedule.limit.unwrap().rate(now);
        let cut = rate(&schedule);
        now += 3 * WINDOW;
        schedule.refused(KEY, sent, now);
        assert_eq!(schedule.limit.unwrap().rate(now - 3 * WINDOW), cut);
        let mut least = Schedule::new(now);
        least.refused(KEY, now, now);
        assert_eq!(least.limit.unwrap().rate(now), RATE_MIN);
    }

    #[test]
    fn lanes_take_turns_and_none_begins_twice() {
        let pace = Pace::default();
        let lanes = [Lane::default(), Lane::default()];
        pace.answered(KEY, Instant::now(), true);
        // The first lane has many waiting requests, the second one: it is not behind them all.
        let order = LeafMutex::new(Vec::new());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let ask = async |lane: usize| {
                let _ = pace.turn(&lanes[lane], 1).await;
                order.lock().push(lane);
            };
            let requests = [0, 0, 0, 0, 0, 0, 1].map(ask);
            join_all(requests).await;
        });
        let order = order.lock().clone();
        assert_eq!(order.len(), 7);
        assert!(order[..3].contains(&1), "{order:?}");
    }

    #[test]
    fn a_tenant_with_many_requests_delays_another_by_a_turn() {
        let (pace, lane, nr_begun) = (Pace::default(), Lane::default(), AtomicU32::new(0));
        pace.answered(KEY, Instant::now(), true);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let ask = async |tenant| {
                let _ = pace.turn(&lane, tenant).await;
                nr_begun.fetch_add(1, Ordering::Relaxed);
            };
            let (crowd, other) = (join_all((0..1000).map(|_| ask(1))), ask(2));
            let _ = select(pin!(crowd), pin!(other)).await;
        });
        assert!(nr_begun.load(Ordering::Relaxed) <= 3, "{nr_begun:?}");
    }
}
