//! [`Budget`]: what a tenant may hold, and which part of it its queries share.
//!
//! What is guaranteed to other groups is not the queries': their accounts do not grow into it. So
//! shares are of the rest.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use umemcg::{Engine, Group};

use crate::cache_group::CacheGroup;
use crate::shares::{Shares, percent_of};

/// How old the sums of guarantees may be that are read here. Adding them up looks at every group
/// beside the tenant.
const GUARANTEES_READ_EVERY: Duration = Duration::from_millis(100);

/// The limit of a tenant's group, divided between its caches and its queries.
#[derive(Debug)]
pub(crate) struct Budget {
    pub(crate) engine: Arc<Engine>,
    /// The tenant's.
    pub(crate) group: Arc<Group>,
    pub(crate) caches: Arc<CacheGroup>,
    pub(crate) shares: Shares,
    /// What queries leave to the caches, as far as the caches use it.
    pub(crate) cache_guarantee_bytes: u64,
    /// The part of the limit that consumers that can spill leave to the caches.
    pub(crate) cache_percent: u64,
    /// What all queries of the tenant hold.
    pub(crate) reserved_bytes: AtomicU64,
    pub(crate) guaranteed_to_others: GuaranteedToOthers,
}

impl Budget {
    /// Returns the bytes that the tenant's queries may hold: its own limit, and those above less
    /// what is guaranteed to others.
    pub(crate) fn limit_bytes(&self) -> u64 {
        self.guaranteed_to_others.limit_bytes().min(self.group.max_bytes())
    }

    /// Returns the bytes that queries may hold when a consumer asks that loses what it has
    /// (`can_give`), or its query (`!can_give`), if it is refused.
    pub(crate) fn room_bytes(&self, can_give: bool) -> u64 {
        let limit_bytes = self.limit_bytes();
        let left_bytes = match can_give {
            true => self.cache_guarantee_bytes.max(percent_of(limit_bytes, self.cache_percent)),
            // So the caches keep less.
            false => self.cache_guarantee_bytes,
        };
        limit_bytes.saturating_sub(self.caches.group().usage_bytes().min(left_bytes))
    }

    /// Returns whether `bytes` more are within what queries may hold without the caches' guarantee,
    /// and something else is cached: a cache has to give way to them.
    pub(crate) fn caches_owe(&self, bytes: u64) -> bool {
        let cached_bytes = self.caches.group().usage_bytes();
        let wanted_bytes = self.reserved_bytes.load(Relaxed).saturating_add(bytes);
        cached_bytes > self.cache_guarantee_bytes && wanted_bytes <= self.room_bytes(false)
    }
}

/// For each group above a tenant's, what is guaranteed to groups below it that are beside the way
/// to the tenant.
#[derive(Debug)]
pub(crate) struct GuaranteedToOthers {
    levels: Vec<Level>,
    started_at: Instant,
    /// When the sums are read again, in nanoseconds after the start.
    read_again_at: AtomicU64,
}

#[derive(Debug)]
struct Level {
    above: Arc<Group>,
    /// The group below it that is the tenant's or leads there.
    below: Arc<Group>,
    bytes: AtomicU64,
}

impl GuaranteedToOthers {
    pub(crate) fn new(tenant: &Arc<Group>) -> Self {
        let way = std::iter::successors(Some(tenant), |group| group.parent());
        let levels = way.filter_map(|below| {
            let above = Arc::clone(below.parent()?);
            Some(Level { above, below: Arc::clone(below), bytes: AtomicU64::new(0) })
        });
        let levels = levels.collect();
        Self { levels, started_at: Instant::now(), read_again_at: AtomicU64::new(0) }
    }

    /// Returns the least that a level above the tenant leaves to it.
    fn limit_bytes(&self) -> u64 {
        let now = self.started_at.elapsed();
        if now.as_nanos() as u64 >= self.read_again_at.load(Relaxed) {
            self.read_again_at.store((now + GUARANTEES_READ_EVERY).as_nanos() as u64, Relaxed);
            self.levels.iter().for_each(Level::read);
        }
        let left = |level: &Level| level.above.max_bytes().saturating_sub(level.bytes.load(Relaxed));
        self.levels.iter().map(left).min().unwrap_or(u64::MAX)
    }
}

impl Level {
    fn read(&self) {
        let others = self.above.children().into_iter().filter(|group| !Arc::ptr_eq(group, &self.below));
        self.bytes.store(others.map(|group| group.guaranteed_bytes()).sum(), Relaxed);
    }
}
