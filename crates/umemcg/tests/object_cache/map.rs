//! Without pressure a cache is a map.

use std::collections::HashMap;

use proptest::prelude::*;
use umemcg::{ObjectCache, RemovalCause};

use crate::{Log, builder, check_nothing_is_left, engine, group};

#[derive(Debug, Clone)]
enum Step {
    Get(u64),
    Insert(u64, u64, bool),
    Remove(u64),
    GetOrInsert(u64, u64),
    Clear,
}

fn step() -> impl Strategy<Value = Step> {
    let key = 0..40u64;
    prop_oneof![
        4 => key.clone().prop_map(Step::Get),
        4 => (key.clone(), any::<u64>(), any::<bool>()).prop_map(|(k, v, b)| Step::Insert(k, v, b)),
        2 => key.clone().prop_map(Step::Remove),
        2 => (key, any::<u64>()).prop_map(|(k, v)| Step::GetOrInsert(k, v)),
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
                Step::Get(key) => prop_assert_eq!(cache.get(&key), model.get(&key).copied()),
                Step::Insert(key, value, by_a) => {
                    cache.insert(if by_a { &a } else { &b }, key, value).unwrap();
                    told.extend(model.insert(key, value).map(|old| (key, old, RemovalCause::Replaced)));
                }
                Step::Remove(key) => {
                    let old = model.remove(&key);
                    prop_assert_eq!(cache.remove(&key), old);
                    told.extend(old.map(|old| (key, old, RemovalCause::Removed)));
                }
                Step::GetOrInsert(key, value) => {
                    let got = cache.get_or_insert_with(&a, key, || value);
                    prop_assert_eq!(got, *model.entry(key).or_insert(value));
                }
                Step::Clear => {
                    cache.clear();
                    told.extend(model.drain().map(|(key, value)| (key, value, RemovalCause::Removed)));
                }
            }
            let mut heard = log.take();
            heard.sort_by_key(|(key, ..)| *key);
            told.sort_by_key(|(key, ..)| *key);
            prop_assert_eq!(heard, told);
            prop_assert_eq!(cache.len(), model.len());
            prop_assert_eq!(cache.stats().objects, model.len() as u64);
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
    assert_eq!(cache.stats().bytes, bare + umemcg::allocated_bytes(5000));
    assert!(bare >= size_of::<(u64, u64)>() as u64 + umemcg::LIST_SLOT_BYTES);
}
