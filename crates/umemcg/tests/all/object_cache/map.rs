//! Without pressure a cache is a map.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use umemcg::ObjectCache;
use umemcg::objects::RemovalCause;
use umemcg_base::clock::ManualClock;

use crate::object_cache::{Log, builder, check_nothing_is_left, engine, group};

#[derive(Debug, Clone)]
enum Step {
    Get(u64),
    Insert(u64, u64, bool),
    Remove(u64),
    GetOrInsert(u64, u64),
    Peek(u64),
    /// What has this remainder stays.
    Retain(u64),
    ClearOf(bool),
    ForEach,
    Clear,
}

fn step() -> impl Strategy<Value = Step> {
    let key = 0..40u64;
    prop_oneof![
        4 => key.clone().prop_map(Step::Get),
        4 => (key.clone(), any::<u64>(), any::<bool>()).prop_map(|(k, v, b)| Step::Insert(k, v, b)),
        2 => key.clone().prop_map(Step::Remove),
        2 => (key, any::<u64>()).prop_map(|(k, v)| Step::GetOrInsert(k, v)),
        2 => (0..40u64).prop_map(Step::Peek),
        1 => (0..3u64).prop_map(Step::Retain),
        1 => any::<bool>().prop_map(Step::ClearOf),
        1 => Just(Step::ForEach),
        1 => Just(Step::Clear),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn a_cache_without_pressure_is_a_map_and_tells_of_removals(
        steps in prop::collection::vec(step(), 1..300)
    ) {
        let engine = engine(16);
        let (a, b) = (group(&engine, engine.root(), "a"), group(&engine, engine.root(), "b"));
        let log = Log::default();
        let cache = builder(&engine).listener(log.listener()).shards(2).build();
        let mut model = HashMap::new();
        for step in steps {
            let mut told = Vec::new();
            match step {
                Step::Get(key) => prop_assert_eq!(cache.get(&key), model.get(&key).map(|(value, _)| *value)),
                Step::Insert(key, value, by_a) => {
                    cache.insert(if by_a { &a } else { &b }, key, value).unwrap();
                    let old = model.insert(key, (value, by_a));
                    told.extend(old.map(|(old, _)| (key, old, RemovalCause::Replaced)));
                }
                Step::Peek(key) => {
                    let before = cache.stats();
                    prop_assert_eq!(cache.peek(&key), model.get(&key).map(|(value, _)| *value));
                    prop_assert_eq!(cache.contains_key(&key), model.contains_key(&key));
                    prop_assert_eq!(cache.stats(), before);
                }
                Step::Retain(rest) => {
                    cache.retain(|key, _| key % 3 == rest);
                    let goes = model.extract_if(|key, _| key % 3 != rest);
                    told.extend(goes.map(|(key, (value, _))| (key, value, RemovalCause::Removed)));
                }
                Step::ClearOf(of_a) => {
                    cache.clear_of(if of_a { &a } else { &b });
                    let goes = model.extract_if(|_, (_, by_a)| *by_a == of_a);
                    told.extend(goes.map(|(key, (value, _))| (key, value, RemovalCause::Removed)));
                }
                Step::ForEach => {
                    let mut seen = HashMap::new();
                    cache.for_each(|key, value| {
                        assert!(cache.contains_key(key), "no lock is held");
                        assert!(seen.insert(*key, *value).is_none());
                    });
                    let there = model.iter().map(|(key, (value, _))| (*key, *value));
                    prop_assert_eq!(seen, there.collect::<HashMap<_, _>>());
                }
                Step::Remove(key) => {
                    let old = model.remove(&key).map(|(value, _)| value);
                    prop_assert_eq!(cache.remove(&key), old);
                    told.extend(old.map(|old| (key, old, RemovalCause::Removed)));
                }
                Step::GetOrInsert(key, value) => {
                    let got = cache.get_or_insert_with(&a, key, || value);
                    prop_assert_eq!(got, model.entry(key).or_insert((value, true)).0);
                }
                Step::Clear => {
                    cache.clear();
                    told.extend(model.drain().map(|(key, (value, _))| (key, value, RemovalCause::Removed)));
                }
            }
            let mut heard = log.take();
            heard.sort_by_key(|(key, ..)| *key);
            told.sort_by_key(|(key, ..)| *key);
            prop_assert_eq!(heard, told);
            prop_assert_eq!(cache.len(), model.len());
            prop_assert_eq!(cache.stats().objects, model.len() as u64);
            let of_a = model.values().filter(|(_, by_a)| *by_a).count() as u64;
            prop_assert_eq!(cache.stats_of(&a).objects, of_a);
            prop_assert_eq!(engine.reclaimer().nr_list_slots(), model.len());
        }
        drop(cache);
        prop_assert_eq!(log.take().len(), model.len());
        check_nothing_is_left(&engine, &[&a, &b]);
    }
}

#[test]
fn keys_are_found_by_what_they_borrow() {
    let engine = engine(16);
    let cache: ObjectCache<String, u32> = ObjectCache::builder(&engine, "by name").build();
    cache.insert(engine.root(), "one".into(), 1).unwrap();
    assert_eq!(cache.get("one"), Some(1));
    assert_eq!(cache.remove("one"), Some(1));
    assert!(cache.is_empty());
}

#[test]
fn the_bytes_of_an_object_are_those_of_its_parts() {
    let engine = engine(16);
    let cache: ObjectCache<u64, u64> =
        ObjectCache::builder(&engine, "weighed").weigher(|_, &value| value).build();
    cache.insert(engine.root(), 0, 0).unwrap();
    let bare = cache.stats().bytes;
    cache.insert(engine.root(), 0, 5000).unwrap();
    assert_eq!(cache.stats().bytes, bare + umemcg::objects::allocated_bytes(5000));
    assert!(bare >= size_of::<(u64, u64)>() as u64 + umemcg::internal::LIST_SLOT_BYTES);
}

#[test]
fn a_bound_that_is_lowered_evicts_and_one_that_is_raised_admits() {
    let engine = engine(64);
    let cache = builder(&engine).build();
    let fill = || (0..5000).for_each(|key| cache.insert(engine.root(), key, key).unwrap());
    fill();
    assert_eq!(cache.len(), 5000);
    for bytes_max in [1 << 20, 0, 2 << 20] {
        cache.set_bytes_max(bytes_max);
        assert!(cache.stats().bytes <= bytes_max);
        fill();
        assert!(cache.stats().bytes <= bytes_max && cache.stats().bytes * 8 >= bytes_max * 7);
    }
    cache.set_bytes_max(u64::MAX);
    fill();
    assert_eq!(cache.len(), 5000);
}

#[test]
fn a_time_to_live_can_be_changed_where_ages_are_kept() {
    let engine = engine(16);
    assert_eq!(builder(&engine).build().set_time_to_live(None), Err(umemcg::objects::AgesNotKept));
    let clock = Arc::new(ManualClock::new());
    let hour = Duration::from_secs(3600);
    let cache = builder(&engine).clock(Arc::clone(&clock) as _).time_to_live(hour).build();
    cache.insert(engine.root(), 1, 1).unwrap();
    clock.advance(hour / 2);
    assert!(cache.contains_key(&1));
    cache.set_time_to_live(Some(hour / 4)).unwrap();
    assert!(!cache.contains_key(&1) && cache.peek(&1).is_none());
    cache.set_time_to_live(None).unwrap();
    clock.advance(hour * 2);
    assert_eq!(cache.get(&1), Some(1));
}
