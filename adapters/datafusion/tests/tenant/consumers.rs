//! The pool, with consumers made by hand: shares, the kept part, caches giving way, ends.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use datafusion_execution::memory_pool::{
    FairSpillPool, GreedyMemoryPool, MemoryConsumer, MemoryLimit, MemoryPool, MemoryReservation,
};
use umemcg_datafusion::{SpillPolicy, Tenant};

use crate::{MIB, tenant_of, tenant_with, usage_of};

/// Growth step of consumers, about the size of a batch.
pub(crate) const STEP: usize = 256 << 10;

pub(crate) fn pool_of(tenant: &Arc<Tenant>) -> Arc<dyn MemoryPool> {
    tenant.start_query().expect("a query")
}

pub(crate) fn spillable(pool: &Arc<dyn MemoryPool>) -> MemoryReservation {
    MemoryConsumer::new("sorter").with_can_spill(true).register(pool)
}

pub(crate) fn unspillable(pool: &Arc<dyn MemoryPool>) -> MemoryReservation {
    MemoryConsumer::new("join").register(pool)
}

/// Grows until refused; returns the bytes held.
pub(crate) fn fill(reservation: &MemoryReservation) -> u64 {
    while reservation.try_grow(STEP).is_ok() {}
    reservation.size() as u64
}

/// Fills the tenant's caches with entries of 64 KiB until there are `mib` MiB; returns the bytes
/// charged.
fn fill_caches(tenant: &Tenant, mib: u64) -> u64 {
    crate::caches::fill_metadata(tenant, mib * MIB / (64 << 10), 64 << 10);
    tenant.cache_group().usage_bytes()
}

#[test]
fn a_lone_consumer_gets_nearly_the_whole_budget() {
    let tenant = tenant_of(32);
    assert!(fill_caches(&tenant, 40) > 28 * MIB, "the caches use what is idle");
    let pool = pool_of(&tenant);
    let sorter = spillable(&pool);
    let held = fill(&sorter);
    assert!(held >= 32 * MIB * 95 / 100, "{held}");
    assert!(tenant.group().usage_bytes() <= 32 * MIB);
}

#[test]
fn consumers_that_can_spill_get_equal_shares() {
    let tenant = tenant_of(32);
    let pools = [pool_of(&tenant), pool_of(&tenant)];
    let sorters: Vec<_> = pools.iter().flat_map(|pool| [spillable(pool), spillable(pool)]).collect();
    let held: Vec<u64> = sorters.iter().map(fill).collect();
    // Of two queries, a fifth is kept.
    assert!(held.iter().all(|&held| (6 * MIB..=32 * MIB / 5).contains(&held)), "{held:?}");
}

#[test]
fn a_join_gets_what_is_kept_from_sorters() {
    let tenant = tenant_of(32);
    let pool = pool_of(&tenant);
    let (sorter, join) = (spillable(&pool), unspillable(&pool));
    let sorted = fill(&sorter);
    let joined = fill(&join);
    assert!(joined >= 32 * MIB / 5 - STEP as u64, "{joined}");
    assert!(sorted + joined >= 31 * MIB, "{sorted} and {joined}");
    // Bytes of the join beyond its part are no longer shared: the sorter spills earlier.
    drop(sorter);
    fill(&join);
    assert!(spillable(&pool).try_grow(MIB as usize).is_err());
}

/// Two sorters fill a pool of 32 MiB; then a join builds its table of 6 MiB.
#[test]
fn a_join_succeeds_at_32_mib_where_greedy_and_fair_fail() {
    let joins = |pool: Arc<dyn MemoryPool>| {
        let sorters = [spillable(&pool), spillable(&pool)];
        let join = unspillable(&pool);
        while sorters.iter().any(|sorter| sorter.try_grow(STEP).is_ok()) {}
        join.try_grow(6 * MIB as usize).is_ok()
    };
    assert!(!joins(Arc::new(GreedyMemoryPool::new(32 * MIB as usize))));
    assert!(!joins(Arc::new(FairSpillPool::new(32 * MIB as usize))));
    let tenant = tenant_of(32);
    fill_caches(&tenant, 40);
    assert!(joins(pool_of(&tenant)));
}

#[test]
fn a_late_query_starts_with_the_kept_part() {
    let tenant = tenant_of(32);
    let first = pool_of(&tenant);
    let early = spillable(&first);
    fill(&early);
    let second = pool_of(&tenant);
    let late = spillable(&second);
    let started = fill(&late);
    assert!(started >= MIB / 2, "{started}");
    // The first one is beyond its new share, so it spills when it next wants memory.
    assert!(early.try_grow(STEP).is_err());
    early.free();
    assert!(fill(&late) > 12 * MIB);
    assert!(fill(&early) > 12 * MIB, "both have their shares");
}

#[test]
fn caches_keep_what_is_guaranteed_to_them() {
    let tenant = tenant_with(32, |builder| builder.cache_guarantee_bytes(8 * MIB));
    fill_caches(&tenant, 24);
    let pool = pool_of(&tenant);
    let sorter = spillable(&pool);
    let sorted = fill(&sorter);
    let cached = tenant.cache_group().usage_bytes();
    assert!(cached >= 7 * MIB, "the caches have {cached}");
    assert!(sorted >= 24 * MIB * 95 / 100, "{sorted}");
    // A query about to fail gets no more of them, either.
    let join = unspillable(&pool);
    fill(&join);
    assert!(tenant.cache_group().usage_bytes() >= 7 * MIB);
}

#[test]
fn queries_spill_first_if_the_policy_says_so() {
    let policy = SpillPolicy::QueriesFirst { cache_percent: 50 };
    let tenant = tenant_with(32, |builder| builder.policy(policy));
    fill_caches(&tenant, 30);
    let pool = pool_of(&tenant);
    let sorter = spillable(&pool);
    let sorted = fill(&sorter);
    assert!((14 * MIB..=16 * MIB).contains(&sorted), "{sorted}");
    assert!(tenant.cache_group().usage_bytes() >= 14 * MIB);
    // An unspillable consumer would fail: now the caches give way.
    let join = unspillable(&pool);
    assert!(fill(&join) >= 14 * MIB);
    assert!(tenant.cache_group().usage_bytes() < 4 * MIB);
}

#[test]
fn a_forced_growth_is_counted_and_given_back() {
    let tenant = tenant_of(32);
    let before = usage_of(tenant.group());
    let pool = pool_of(&tenant);
    let join = unspillable(&pool);
    join.grow(40 * MIB as usize);
    assert_eq!(pool.reserved() as u64, 40 * MIB);
    assert!(tenant.group().usage_bytes() >= 40 * MIB);
    assert!(join.try_grow(1 << 20).is_err());
    drop((join, pool));
    assert_eq!(usage_of(tenant.group()), before);
}

#[test]
fn parts_of_a_reservation_are_one_consumer() {
    let tenant = tenant_of(32);
    let pool = pool_of(&tenant);
    let sorter = spillable(&pool);
    let held = fill(&sorter);
    let part = sorter.split(STEP * 3);
    assert!(part.try_grow(STEP).is_err(), "its share is used up");
    drop(sorter);
    assert_eq!(pool.reserved(), part.size());
    assert!(fill(&part) >= held - STEP as u64);
}

#[test]
fn the_last_handle_of_a_query_removes_its_group() {
    let tenant = tenant_of(32);
    let before = usage_of(tenant.group());
    let pool = pool_of(&tenant);
    let sorter = spillable(&pool);
    sorter.try_grow(STEP).expect("room");
    drop(pool);
    assert_eq!(tenant.group().nr_children(), 2, "the reservation holds its query");
    drop(sorter);
    assert_eq!(tenant.group().nr_children(), 1);
    assert_eq!(usage_of(tenant.group()), before);
}

#[test]
fn the_pool_tells_its_limit_and_why_it_refuses() {
    let tenant = tenant_of(32);
    let pool = pool_of(&tenant);
    let MemoryLimit::Finite(limit) = pool.memory_limit() else { panic!("a limit") };
    assert_eq!(limit as u64, 32 * MIB);
    let (sorter, other) = (spillable(&pool), spillable(&pool));
    let refused = sorter.try_grow(20 << 20).expect_err("more than half").to_string();
    assert!(refused.contains("sorter") && refused.contains("fair share"), "{refused}");
    let refused = unspillable(&pool).try_grow(64 << 20).expect_err("more than all").to_string();
    assert!(refused.contains("join") && refused.contains("/tenant"), "{refused}");
    drop(other);
    assert_eq!(pool.reserved(), 0);
}

#[test]
fn a_lower_limit_holds_for_running_queries() {
    let tenant = tenant_of(32);
    let pool = pool_of(&tenant);
    let sorter = spillable(&pool);
    fill(&sorter);
    tenant.engine().set_max(tenant.group(), 16 * MIB);
    assert!(sorter.try_grow(1).is_err());
    sorter.free();
    let held = fill(&sorter);
    assert!((14 * MIB..=16 * MIB).contains(&held), "{held}");
}

#[test]
fn threads_that_spill_and_grow_keep_the_budget() {
    let tenant = tenant_of(32);
    let before = usage_of(tenant.group());
    let most = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (tenant, most) = (&tenant, &most);
            scope.spawn(move || {
                for round in 0..50 {
                    let pool = pool_of(tenant);
                    let (sorter, join) = (spillable(&pool), unspillable(&pool));
                    for step in 1..60_usize {
                        if sorter.try_grow(STEP / (1 + (step + thread) % 3)).is_err() {
                            sorter.free();
                        }
                        if (step + round) % 4 == 0 && join.try_grow(STEP).is_err() {
                            join.free();
                        }
                        most.fetch_max(tenant.group().usage_bytes(), Relaxed);
                    }
                }
            });
        }
    });
    assert!(most.into_inner() <= 32 * MIB);
    assert_eq!(tenant.group().nr_children(), 1);
    assert_eq!(usage_of(tenant.group()), before);
    // The counts behind the shares are back at zero.
    let sorter = spillable(&pool_of(&tenant));
    assert!(fill(&sorter) >= 32 * MIB * 95 / 100);
}
