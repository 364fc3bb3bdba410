//! Tenants with guarantees: each has its own whatever the other does.

use std::sync::Arc;

use datafusion_execution::memory_pool::{MemoryConsumer, MemoryPool, MemoryReservation};
use umemcg_datafusion::Tenant;

use crate::caches::fill_metadata;
use crate::{MIB, engine_of};

/// Growth step of consumers.
const STEP: usize = 256 << 10;

fn consumer(pool: &Arc<dyn MemoryPool>) -> MemoryReservation {
    MemoryConsumer::new("sorter").with_can_spill(true).register(pool)
}

fn fill(reservation: &MemoryReservation) -> u64 {
    while reservation.try_grow(STEP).is_ok() {}
    reservation.size() as u64
}

#[test]
fn guarantees_of_three_to_one_are_held() {
    let engine = engine_of(128);
    let groups =
        ["large", "small"].map(|name| engine.create_group(engine.root(), name.as_ref()).expect("a group"));
    let _guarantees = [
        engine.guarantee(&groups[0], 93 * MIB).expect("room for three parts"),
        engine.guarantee(&groups[1], 31 * MIB).expect("room for one part"),
    ];
    let [large, small] = groups.map(|group| Tenant::builder(&engine, &group).build().expect("a tenant"));
    // The small one caches in all idle memory.
    fill_metadata(&small, 2000, 64 << 10);
    assert!(small.group().usage_bytes() > 100 * MIB);
    let pools: [Arc<dyn MemoryPool>; 2] =
        [large.start_query().expect("a query"), small.start_query().expect("a query")];
    let [sorter, other] = pools.each_ref().map(consumer);
    // In one go, without waiting for anything: caches are taken back as fast as they are asked for.
    assert!(fill(&sorter) >= 93 * MIB * 95 / 100, "{}", sorter.size());
    let kept = small.group().usage_bytes();
    assert!(kept >= 31 * MIB, "the small one keeps its own, it has {kept}");
    assert!(fill(&other) >= 31 * MIB * 95 / 100, "{}", other.size());
    assert!(sorter.size() as u64 >= 93 * MIB * 95 / 100);
    assert!(engine.root().usage_bytes() <= 128 * MIB);
}

#[test]
fn a_query_cannot_sit_on_the_guarantee_of_another_tenant() {
    let engine = engine_of(128);
    let groups =
        ["large", "small"].map(|name| engine.create_group(engine.root(), name.as_ref()).expect("a group"));
    let _guarantees = [
        engine.guarantee(&groups[0], 93 * MIB).expect("room for three parts"),
        engine.guarantee(&groups[1], 31 * MIB).expect("room for one part"),
    ];
    let [large, small] = groups.map(|group| Tenant::builder(&engine, &group).build().expect("a tenant"));
    let pools: [Arc<dyn MemoryPool>; 2] =
        [small.start_query().expect("a query"), large.start_query().expect("a query")];
    let [early, late] = pools.each_ref().map(consumer);
    fill(&early);
    assert!(fill(&late) >= 93 * MIB * 95 / 100, "{} beside {}", late.size(), early.size());
}

/// Many tenants without a guarantee: each alone fits beside the guarantee, all together would not.
#[test]
fn tenants_without_a_guarantee_leave_that_of_another() {
    let engine = engine_of(128);
    let tenant = |name: &str| {
        let group = engine.create_group(engine.root(), name.as_ref()).expect("a group");
        Tenant::builder(&engine, &group).build().expect("a tenant")
    };
    let large = tenant("large");
    let _guarantee = engine.guarantee(large.group(), 64 * MIB).expect("room");
    let others: Vec<_> = (0..4).map(|number| tenant(&format!("other-{number}"))).collect();
    let pools: Vec<Arc<dyn MemoryPool>> =
        others.iter().map(|other| -> Arc<dyn MemoryPool> { other.start_query().expect("a query") }).collect();
    let joins: Vec<_> = pools.iter().map(|pool| MemoryConsumer::new("join").register(pool)).collect();
    while joins.iter().any(|join| join.try_grow(STEP).is_ok()) {}
    // The rest is cached.
    others.iter().for_each(|other| fill_metadata(other, 500, 64 << 10));
    let held: usize = joins.iter().map(MemoryReservation::size).sum();
    assert!(held as u64 >= 60 * MIB, "they may use what is not guaranteed, they have {held}");
    let pool: Arc<dyn MemoryPool> = large.start_query().expect("a query");
    let join = MemoryConsumer::new("join").register(&pool);
    // At once, without a refusal before it is reached.
    (0..63).for_each(|_| join.try_grow(MIB as usize).expect("within its guarantee"));
    assert!(engine.root().usage_bytes() <= 128 * MIB);
}
