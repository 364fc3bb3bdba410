//! `get_or_insert_with`: one loader for each key.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::mpsc::channel;

use crate::object_cache::{builder, check_nothing_is_left, engine, group};

#[test]
fn of_many_threads_that_ask_for_a_key_one_loads_it() {
    const THREADS: u64 = 8;
    const KEYS: u64 = 200;
    let engine = engine(64);
    let cache = builder(&engine).build();
    let loads: Vec<AtomicU64> = (0..KEYS).map(|_| AtomicU64::new(0)).collect();
    let start = Barrier::new(THREADS as usize);
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                start.wait();
                for key in 0..KEYS {
                    let value = cache.get_or_insert_with(engine.root(), key, || {
                        std::thread::yield_now();
                        loads[key as usize].fetch_add(1, SeqCst);
                        key * 3
                    });
                    assert_eq!(value, key * 3);
                }
            });
        }
    });
    assert!(loads.iter().all(|nr| nr.load(SeqCst) == 1));
    assert_eq!(cache.len(), KEYS as usize);
}

#[test]
fn a_waiting_caller_takes_over_when_a_loader_panics() {
    let engine = engine(16);
    let cache = builder(&engine).build();
    let (loading, is_loading) = channel();
    let (go_on, may_go_on) = channel::<()>();
    std::thread::scope(|scope| {
        let cache = &cache;
        let engine = &engine;
        let first = scope.spawn(move || {
            catch_unwind(AssertUnwindSafe(|| {
                cache.get_or_insert_with(engine.root(), 1, || {
                    loading.send(()).unwrap();
                    may_go_on.recv().unwrap();
                    panic!("the loader fails")
                })
            }))
        });
        is_loading.recv().unwrap();
        let second = scope.spawn(|| cache.get_or_insert_with(engine.root(), 1, || 2));
        go_on.send(()).unwrap();
        assert!(first.join().unwrap().is_err());
        assert_eq!(second.join().unwrap(), 2);
    });
    assert_eq!(cache.get(&1), Some(2));
}

#[test]
fn a_loaders_error_is_its_callers_and_the_key_stays_loadable() {
    let engine = engine(16);
    let cache = builder(&engine).build();
    assert_eq!(cache.get_or_try_insert_with(engine.root(), 1, || Err("no")), Err("no"));
    assert_eq!(cache.get_or_try_insert_with(engine.root(), 1, || Ok::<_, ()>(5)), Ok(5));
    assert_eq!(cache.get(&1), Some(5));
}

#[test]
fn a_value_is_not_kept_if_its_key_was_removed_meanwhile() {
    let engine = engine(16);
    let tenant = group(&engine, engine.root(), "tenant");
    let cache = builder(&engine).build();
    let value = cache.get_or_insert_with(&tenant, 1, || {
        assert_eq!(cache.remove(&1), None);
        10
    });
    assert_eq!((value, cache.get(&1)), (10, None));
    // Nor one for which another thread has inserted a newer value.
    let value = cache.get_or_insert_with(&tenant, 1, || {
        cache.insert(&tenant, 1, 12).unwrap();
        11
    });
    assert_eq!((value, cache.get(&1)), (11, Some(12)));
    let value = cache.get_or_insert_with(&tenant, 2, || {
        cache.clear();
        20
    });
    assert_eq!((value, cache.get(&2)), (20, None));
    drop(cache);
    check_nothing_is_left(&engine, &[&tenant]);
}

#[test]
fn a_loader_may_use_the_cache_for_other_keys() {
    let engine = engine(16);
    let cache = builder(&engine).shards(1).build();
    let sum = cache.get_or_insert_with(engine.root(), 3, || {
        let one = cache.get_or_insert_with(engine.root(), 1, || 1);
        one + cache.get_or_insert_with(engine.root(), 2, || 2)
    });
    assert_eq!((sum, cache.len()), (3, 3));
}
