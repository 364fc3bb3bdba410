//! [`Budget`]: the memory budget of a tenant, and the part shared by its queries.
//!
//! Queries cannot use memory guaranteed to other groups: their accounts do not grow into it. So
//! shares are computed from the rest.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use umemcg::{Engine, Group};

use crate::cache_group::CacheGroup;
use crate::shares::{Shares, percent_of};

/// Maximum age of the sums of guarantees. Computing them visits every group beside the tenant.
const GUARANTEES_READ_EVERY: Duration = Duration::from_millis(100);

/// The limit of a tenant's group, divided between its caches and its queries.
#[derive(Debug)]
pub(crate) struct Budget {
    pub(crate) engine: Arc<Engine>,
    /// The tenant's group.
    pub(crate) group: Arc<Group>,
    pub(crate) caches: Arc<CacheGroup>,
    pub(crate) shares: Shares,
    /// Bytes left to the caches by queries, as far as the caches use them.
    pub(crate) cache_guarantee_bytes: u64,
    /// The part of the limit left to the caches by spillable consumers.
    pub(crate) cache_percent: u64,
    /// Bytes held by all queries of the tenant.
    pub(crate) reserved_bytes: AtomicU64,
    pub(crate) guaranteed_to_others: GuaranteedToOthers,
}

impl Budget {
    /// Returns the most bytes the tenant's queries may hold: the lowest of its own limit and each
    /// ancestor's limit less the guarantees of other groups.
    pub(crate) fn limit_bytes(&self) -> u64 {
        self.guaranteed_to_others.limit_bytes().min(self.group.max_bytes())
    }

    /// Returns the most bytes queries may hold, for a request of a consumer. When refused, the
    /// consumer gives up its memory (`can_give`) or its query fails (`!can_give`).
    pub(crate) fn room_bytes(&self, can_give: bool) -> u64 {
        let limit_bytes = self.limit_bytes();
        let left_bytes = match can_give {
            true => self.cache_guarantee_bytes.max(percent_of(limit_bytes, self.cache_percent)),
            // The caches keep less then.
            false => self.cache_guarantee_bytes,
        };
        limit_bytes.saturating_sub(self.caches.group().usage_bytes().min(left_bytes))
    }

    /// Returns whether caches must make room for `bytes` more: the queries would stay within their
    /// room, and the caches hold more than their guarantee.
    pub(crate) fn caches_owe(&self, bytes: u64) -> bool {
        let cached_bytes = self.caches.group().usage_bytes();
        let wanted_bytes = self.reserved_bytes.load(Relaxed).saturating_add(bytes);
        cached_bytes > self.cache_guarantee_bytes && wanted_bytes <= self.room_bytes(false)
    }
}

/// For each ancestor of a tenant's group, the guarantees of its descendants off the path to the
/// tenant.
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
    /// Its child on the path to the tenant's group, or that group itself.
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

    /// Returns the lowest limit left to the tenant by a level above it.
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
