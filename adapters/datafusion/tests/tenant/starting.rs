//! Consumers holding nothing: refused, they could not spill, so their queries would fail.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;

use crate::caches::fill_metadata;
use crate::consumers::{STEP, fill, pool_of, spillable, unspillable};
use crate::{MIB, tenant_of, tenant_with, usage_of};

#[test]
fn a_late_consumer_starts_beside_full_ones() {
    let tenant = tenant_of(32);
    let pool = pool_of(&tenant);
    let join = unspillable(&pool);
    join.try_grow(10 * MIB as usize).expect("room");
    let sorters = [spillable(&pool), spillable(&pool)];
    sorters.iter().for_each(|sorter| assert!(fill(sorter) > 9 * MIB));
    // They hold more than a third each, and have not been asked for anything yet.
    let late = spillable(&pool);
    late.try_grow(MIB as usize).expect("a consumer that holds nothing starts");
    assert!(usage_of(tenant.group()) <= 32 * MIB);
}

#[test]
fn one_that_has_spilled_starts_again_beside_a_join() {
    let tenant = tenant_of(32);
    let pool = pool_of(&tenant);
    let (sorter, other, join) = (spillable(&pool), spillable(&pool), unspillable(&pool));
    fill(&other);
    for _ in 0..3 {
        fill(&sorter);
        sorter.free();
        // Whatever is free goes to the join and the other sorter.
        while join.try_grow(STEP).is_ok() || other.try_grow(STEP).is_ok() {}
        sorter.try_grow(MIB as usize).expect("it starts again");
        assert!(usage_of(tenant.group()) <= 32 * MIB);
    }
    assert!(join.size() as u64 >= 32 * MIB / 5, "the join has what is kept for it: {}", join.size());
}

#[test]
fn small_first_growths_of_many_are_all_granted() {
    let tenant = tenant_of(32);
    let pool = pool_of(&tenant);
    let join = unspillable(&pool);
    let sorters: Vec<_> = (0..8).map(|_| spillable(&pool)).collect();
    fill(&join);
    // An eighth of the entry each.
    let part = 32 * MIB as usize / 25 / 8 - 4096;
    for sorter in &sorters {
        sorter.try_grow(part / 2).expect("half of its part of the entry");
        sorter.try_grow(part / 2).expect("the other half");
    }
}

/// Rounds of a rarely lost race.
const ROUNDS: usize = 300;

/// Threads cache all the time while a query grows to nearly the limit of its tenant.
#[test]
fn caches_at_work_give_way_to_a_query() {
    let tenant = tenant_with(32, |builder| builder.cache_guarantee_bytes(MIB));
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while !is_over.load(Relaxed) {
                    fill_metadata(&tenant, 50, 1 << 20);
                }
            });
        }
        for _ in 0..ROUNDS {
            let pool = pool_of(&tenant);
            let join = unspillable(&pool);
            let refused = (0..28 * MIB as usize / STEP).find_map(|_| join.try_grow(STEP).err());
            if let Some(refused) = refused {
                is_over.store(true, Relaxed);
                panic!("{refused}");
            }
        }
        is_over.store(true, Relaxed);
    });
}
