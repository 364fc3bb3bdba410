//! Pins: what readers hold stays charged, and is left alone by reclaim.

use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use umemcg::objects::Pinned;
use umemcg::{DropCaches, ObjectCache, StatItem};
use umemcg_base::clock::ManualClock;

use crate::object_cache::{VALUE_BYTES, builder, check_nothing_is_left, engine, group, limit};

const MIB: u64 = 1 << 20;

#[test]
fn readers_cannot_hold_more_than_their_group_may_have() {
    let engine = engine(256);
    let tenant = group(&engine, engine.root(), "tenant");
    limit(&engine, &tenant, 4 * MIB);
    let cache: ObjectCache<u64, Arc<[u8]>> = ObjectCache::builder(&engine, "values")
        .weigher(|_, value: &Arc<[u8]>| value.len() as u64 + 16)
        .build();
    let mut held = Vec::new();
    for key in 0..100 {
        let value: Arc<[u8]> = vec![key as u8; MIB as usize].into();
        if cache.insert(&tenant, key, value).is_ok() {
            held.push(cache.get_pinned(&key).expect("just inserted"));
        }
        assert!(tenant.usage_bytes() <= 4 * MIB);
    }
    assert_eq!(held.len(), 3, "100 MiB are not held at a limit of 4");
    assert!(cache.stats_of(&tenant).declined >= 97);
    drop(held);
    assert!(cache.insert(&tenant, 200, vec![0; MIB as usize].into()).is_ok(), "now they can go");
    drop(cache);
    check_nothing_is_left(&engine, &[&tenant]);
}

#[test]
fn a_value_is_pinned_without_a_trace_in_the_figures() {
    let engine = engine(16);
    let tenant = group(&engine, engine.root(), "tenant");
    let cache = builder(&engine).build();
    cache.insert(&tenant, 1, 10).unwrap();
    let before = cache.stats();
    let handle = cache.peek_pinned(&1).unwrap();
    assert!(cache.peek_pinned(&2).is_none());
    assert_eq!((cache.stats().hits, cache.stats().misses), (before.hits, before.misses));
    cache.remove(&1);
    assert_eq!((*handle, cache.stats_of(&tenant).pinned_bytes), (10, before.bytes));
    drop(handle);
    assert_eq!(cache.stats_of(&tenant).pinned_bytes, 0);
}

#[test]
fn a_removed_value_stays_charged_until_the_last_handle_goes() {
    let engine = engine(16);
    let tenant = group(&engine, engine.root(), "tenant");
    let cache = builder(&engine).build();
    cache.insert(&tenant, 1, 10).unwrap();
    let bytes = cache.stats_of(&tenant).bytes;
    let (one, other) = (cache.get_pinned(&1).unwrap(), cache.get_pinned(&1).unwrap());
    let third = one.clone();
    assert_eq!((*one, *other, one.has_left()), (10, 10, false));
    cache.insert(&tenant, 1, 11).unwrap();
    assert_eq!((*one, one.has_left(), cache.get(&1)), (10, true, Some(11)));
    let stats = cache.stats_of(&tenant);
    assert_eq!((stats.objects, stats.bytes, stats.pinned_bytes), (1, bytes, bytes));
    let usage = || {
        tenant.drain_stocks();
        tenant.usage_bytes()
    };
    let before = usage();
    drop((one, other));
    assert_eq!(usage(), before);
    drop(third);
    assert!(usage() <= before - bytes);
    assert_eq!(cache.stats_of(&tenant).pinned_bytes, 0);
    drop(cache);
    check_nothing_is_left(&engine, &[&tenant]);
}

#[test]
fn reclaim_passes_over_what_is_held_and_takes_the_rest() {
    let engine = engine(16);
    let tenant = group(&engine, engine.root(), "tenant");
    let cache = builder(&engine).build();
    let mut held = Vec::new();
    for key in 0..200 {
        cache.insert(&tenant, key, key).unwrap();
        if key % 4 == 0 {
            held.push(cache.get_pinned(&key).unwrap());
        }
    }
    engine.drop_caches(DropCaches::Objects);
    // A fiftieth may stay on probation.
    assert!((50..=51).contains(&cache.len()), "{} objects stay", cache.len());
    assert!((0..200).step_by(4).all(|key| cache.get(&key).is_some()));
    assert_eq!(cache.stats_of(&tenant).pinned_bytes, 0, "none of them has left");
    held.clear();
    engine.drop_caches(DropCaches::Objects);
    assert!(cache.is_empty());
    drop(cache);
    check_nothing_is_left(&engine, &[&tenant]);
}

#[test]
fn handles_outlive_expiry_their_group_and_their_cache() {
    let engine = engine(16);
    let parent = group(&engine, engine.root(), "parent");
    let tenant = group(&engine, &parent, "tenant");
    let clock = Arc::new(ManualClock::new());
    let cache = builder(&engine).clock(Arc::clone(&clock) as _).time_to_live(Duration::from_secs(1)).build();
    cache.insert(&tenant, 1, 1).unwrap();
    cache.insert(&tenant, 2, 2).unwrap();
    let (one, two) = (cache.get_pinned(&1).unwrap(), cache.get_pinned(&2).unwrap());
    clock.advance(Duration::from_secs(2));
    assert!(cache.get_pinned(&1).is_none());
    assert!(one.has_left() && !two.has_left());
    engine.remove_group(&tenant).unwrap();
    drop(tenant);
    assert!(cache.stats_of(&parent).pinned_bytes >= VALUE_BYTES);
    drop(cache);
    assert!(two.has_left());
    assert!(parent.stat_total(StatItem::SlabUnreclaimable) as u64 >= 2 * VALUE_BYTES);
    assert_eq!((*one, *two), (1, 2));
    drop((one, two));
    check_nothing_is_left(&engine, &[&parent]);
}

#[test]
fn objects_that_background_reclaim_evicts_are_counted() {
    let engine = engine(64);
    let tenant = group(&engine, engine.root(), "tenant");
    limit(&engine, &tenant, 4 * MIB);
    let reclaimer = engine.reclaimer();
    reclaimer.set_high_wmark_distance(&tenant, 2 * MIB).unwrap();
    reclaimer.set_low_wmark_distance(&tenant, MIB).unwrap();
    let cache = builder(&engine).build();
    let deadline = std::time::Instant::now() + Duration::from_secs(60);
    let mut key = 0;
    while cache.stats_of(&tenant).evicted_by_workers == 0 {
        assert!(std::time::Instant::now() < deadline, "no worker evicts: {:?}", cache.stats_of(&tenant));
        cache.insert(&tenant, key, key).unwrap();
        key += 1;
        std::thread::yield_now();
    }
    let stats = cache.stats_of(&tenant);
    assert!(stats.evicted_by_workers <= stats.evicted, "{stats:?}");
}

#[derive(Debug, Clone)]
enum Step {
    Insert(u64),
    Pin(u64),
    Clone(usize),
    Unpin(usize),
    Remove(u64),
    Reclaim,
    Clear,
}

fn step() -> impl Strategy<Value = Step> {
    let (key, at) = (0..8u64, any::<usize>());
    prop_oneof![
        4 => key.clone().prop_map(Step::Insert),
        4 => key.clone().prop_map(Step::Pin),
        1 => at.prop_map(Step::Clone),
        4 => at.prop_map(Step::Unpin),
        2 => key.prop_map(Step::Remove),
        2 => Just(Step::Reclaim),
        1 => Just(Step::Clear),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn pinned_bytes_are_those_of_values_that_left(steps in prop::collection::vec(step(), 1..120)) {
        let engine = engine(16);
        let tenant = group(&engine, engine.root(), "tenant");
        let cache = builder(&engine).shards(2).build();
        // Each insert has its own number; the model knows which numbers are in the cache.
        let (mut there, mut next) = (std::collections::BTreeMap::new(), 0);
        let mut held: Vec<Pinned<u64>> = Vec::new();
        for step in steps {
            match step {
                Step::Insert(key) => {
                    next += 1;
                    cache.insert(&tenant, key, next).unwrap();
                    there.insert(key, next);
                }
                Step::Pin(key) => {
                    let pinned = cache.get_pinned(&key);
                    prop_assert_eq!(pinned.as_deref(), there.get(&key));
                    held.extend(pinned);
                }
                Step::Clone(at) if !held.is_empty() => held.push(held[at % held.len()].clone()),
                Step::Unpin(at) if !held.is_empty() => drop(held.swap_remove(at % held.len())),
                Step::Clone(_) | Step::Unpin(_) => {}
                Step::Remove(key) => prop_assert_eq!(cache.remove(&key), there.remove(&key)),
                Step::Reclaim => {
                    engine.drop_caches(DropCaches::Objects);
                    there.retain(|_, number| held.iter().any(|pinned| **pinned == *number));
                }
                Step::Clear => {
                    cache.clear();
                    there.clear();
                }
            }
            let left: std::collections::BTreeSet<u64> =
                held.iter().map(|pinned| **pinned).filter(|number| !there.values().any(|it| it == number)).collect();
            let each = cache.stats_of(&tenant).bytes.checked_div(there.len() as u64).unwrap_or(0);
            let pinned_bytes = cache.stats_of(&tenant).pinned_bytes;
            prop_assert_eq!(pinned_bytes > 0, !left.is_empty());
            if each > 0 {
                prop_assert_eq!(pinned_bytes, each * left.len() as u64);
            }
            prop_assert!(held.iter().all(|pinned| pinned.has_left() == left.contains(pinned)));
            prop_assert_eq!(cache.len(), there.len());
        }
        drop((cache, held));
        check_nothing_is_left(&engine, &[&tenant]);
    }
}
