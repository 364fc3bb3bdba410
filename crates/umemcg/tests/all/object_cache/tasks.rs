//! Single flight of tasks: one load for each key and group, whatever is dropped, fails or panics,
//! and no thread that sleeps.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use proptest::prelude::*;
use tokio::runtime::{Builder, Runtime};
use umemcg::objects::{LoadGuard, LoadWait, Lookup};

use crate::object_cache::{Cache, VALUE_BYTES, builder, check_nothing_is_left, engine, group};

const LONG: Duration = Duration::from_secs(60);

/// Both schedulers that embedders have.
fn runtimes() -> [Runtime; 2] {
    let current = Builder::new_current_thread().enable_time().build().unwrap();
    [current, Builder::new_multi_thread().worker_threads(2).enable_time().build().unwrap()]
}

/// Fails, and does not hang, when a future does not end.
async fn within<F: Future>(what: &str, future: F) -> F::Output {
    tokio::time::timeout(LONG, future).await.unwrap_or_else(|_| panic!("{what} did not end"))
}

fn poll<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    Pin::new(future).poll(&mut Context::from_waker(Waker::noop()))
}

fn load(lookup: Lookup<u64, u64>) -> LoadGuard<u64, u64> {
    let Lookup::Load(guard) = lookup else { panic!("a load was expected, not {lookup:?}") };
    guard
}

fn wait(lookup: Lookup<u64, u64>) -> LoadWait<u64, u64> {
    let Lookup::Wait(wait) = lookup else { panic!("a wait was expected, not {lookup:?}") };
    wait
}

#[test]
fn of_many_tasks_that_ask_for_a_cold_key_one_loads_it() {
    for runtime in runtimes() {
        let engine = engine(16);
        let tenant = group(&engine, engine.root(), "tenant");
        let (cache, nr_loads) = (Arc::new(builder(&engine).build()), Arc::new(AtomicU64::new(0)));
        runtime.block_on(async {
            let tasks: Vec<_> = (0..100)
                .map(|_| {
                    let (cache, tenant) = (Arc::clone(&cache), Arc::clone(&tenant));
                    let nr_loads = Arc::clone(&nr_loads);
                    tokio::spawn(async move {
                        let load = async {
                            nr_loads.fetch_add(1, SeqCst);
                            tokio::time::sleep(Duration::from_millis(5)).await;
                            7
                        };
                        cache.get_or_insert_async(&tenant, 1, load).await
                    })
                })
                .collect();
            for task in tasks {
                assert_eq!(within("a request", task).await.unwrap(), 7);
            }
        });
        assert_eq!(nr_loads.load(SeqCst), 1);
        assert_eq!(cache.get(&1), Some(7));
        drop((runtime, cache));
        check_nothing_is_left(&engine, &[&tenant]);
    }
}

#[test]
fn a_load_that_is_dropped_is_the_next_waiters() {
    for runtime in runtimes() {
        let engine = engine(16);
        let tenant = group(&engine, engine.root(), "tenant");
        let cache = Arc::new(builder(&engine).build());
        runtime.block_on(async {
            let guard = load(cache.lookup(&tenant, 1));
            let waiters: Vec<_> = (0..5)
                .map(|nr| {
                    let (cache, tenant) = (Arc::clone(&cache), Arc::clone(&tenant));
                    tokio::spawn(
                        async move { cache.get_or_insert_async(&tenant, 1, async move { nr }).await },
                    )
                })
                .collect();
            tokio::task::yield_now().await;
            drop(guard);
            let mut values = Vec::new();
            for waiter in waiters {
                values.push(within("a waiter", waiter).await.unwrap());
            }
            assert!(values.iter().all(|&value| value == values[0]), "one of them loaded: {values:?}");
        });
        drop((runtime, cache));
        check_nothing_is_left(&engine, &[&tenant]);
    }
}

#[test]
fn loads_that_fail_or_panic_are_tried_by_those_that_wait() {
    for runtime in runtimes() {
        let engine = engine(16);
        let tenant = group(&engine, engine.root(), "tenant");
        let cache = Arc::new(builder(&engine).build());
        let spawn = |result: Result<u64, &'static str>| {
            let (cache, tenant) = (Arc::clone(&cache), Arc::clone(&tenant));
            tokio::spawn(async move {
                let load = async {
                    tokio::task::yield_now().await;
                    match result {
                        Err("panic") => panic!("a load panics, as it should"),
                        other => other,
                    }
                };
                cache.get_or_try_insert_async(&tenant, 1, load).await
            })
        };
        runtime.block_on(async {
            let guard = load(cache.lookup(&tenant, 1));
            let tasks = [spawn(Err("panic")), spawn(Err("no")), spawn(Ok(3)), spawn(Ok(3))];
            tokio::task::yield_now().await;
            drop(guard);
            let mut nr_values = 0;
            for task in tasks {
                match within("a task", task).await {
                    Err(panicked) => assert!(panicked.is_panic()),
                    Ok(Err(error)) => assert_eq!(error, "no"),
                    Ok(Ok(value)) => {
                        assert_eq!(value, 3);
                        nr_values += 1;
                    }
                }
            }
            assert!(nr_values >= 2, "those whose own load succeeds have a value");
        });
        assert_eq!(cache.get(&1), Some(3));
        drop((runtime, cache));
        check_nothing_is_left(&engine, &[&tenant]);
    }
}

#[test]
fn a_tenant_does_not_wait_for_the_load_of_another() {
    let engine = engine(16);
    let (slow, quick) = (group(&engine, engine.root(), "slow"), group(&engine, engine.root(), "quick"));
    let cache = builder(&engine).build();
    let guard = load(cache.lookup(&slow, 1));
    let mut waiting = wait(cache.lookup(&slow, 1));
    assert_eq!(load(cache.lookup(&quick, 1)).insert(10), 10);
    assert_eq!(cache.get_for(&quick, &1), Some(10));
    // The value that was there first stays; the other is its loader's and that of those that wait.
    assert_eq!(guard.insert_soon(20), 20);
    assert!(matches!(poll(&mut waiting), Poll::Ready(Ok(20))));
    assert_eq!(cache.get(&1), Some(10));
    assert_eq!((cache.stats_of(&slow).misses, cache.stats_of(&quick).misses), (2, 1));
    drop((cache, waiting));
    check_nothing_is_left(&engine, &[&slow, &quick]);
}

#[test]
fn threads_and_tasks_wait_for_each_other() {
    let engine = engine(16);
    let cache = builder(&engine).build();
    let guard = load(cache.lookup(engine.root(), 1));
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| cache.get_or_insert_with(engine.root(), 1, || 5));
        guard.insert_soon(4);
        assert_eq!(thread.join().unwrap(), 4);
    });
    let guard = load(cache.lookup(engine.root(), 2));
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| cache.get_or_insert_with(engine.root(), 2, || 5));
        drop(guard);
        assert_eq!(thread.join().unwrap(), 5);
    });
}

#[test]
fn what_waits_is_charged_and_leaves_nothing_when_dropped() {
    let engine = engine(16);
    let tenant = group(&engine, engine.root(), "tenant");
    let cache = builder(&engine).build();
    let charged = || tenant.stat_local(umemcg::StatItem::SlabUnreclaimable);
    drop(load(cache.lookup(&tenant, 0)));
    let bare = charged();
    let guard = load(cache.lookup(&tenant, 1));
    let with_load = charged();
    assert!(with_load > bare, "a load is charged");
    let waits: Vec<_> = (0..1000).map(|_| wait(cache.lookup(&tenant, 1))).collect();
    assert!(charged() >= with_load + 16 * 1000, "so is each that waits");
    drop(waits);
    assert_eq!(charged(), with_load);
    // Abandoned to a waiter that never looks, and goes.
    let waiting = wait(cache.lookup(&tenant, 1));
    drop(guard);
    drop(waiting);
    assert_eq!(charged(), bare);
    assert_eq!(load(cache.lookup(&tenant, 1)).insert(1), 1);
    drop(cache);
    check_nothing_is_left(&engine, &[&tenant]);
}

#[test]
fn a_guard_may_outlive_its_cache() {
    let engine = engine(16);
    let tenant = group(&engine, engine.root(), "tenant");
    let cache = builder(&engine).build();
    let (guard, other) = (load(cache.lookup(&tenant, 1)), load(cache.lookup(&tenant, 2)));
    let mut waiting = wait(cache.lookup(&tenant, 1));
    drop(cache);
    assert_eq!(guard.insert(1), 1);
    drop(other);
    assert!(matches!(poll(&mut waiting), Poll::Ready(Ok(1))));
    drop(waiting);
    check_nothing_is_left(&engine, &[&tenant]);
}

/// What the owners of guards and waits do; numbers choose among those there are.
#[derive(Debug, Clone)]
enum Step {
    Look(bool, u64),
    Poll(usize),
    DropWait(usize),
    DropGuard(usize),
    Insert(usize),
    InsertSoon(usize),
    Remove(u64),
    Overwrite(u64),
    Clear,
}

fn step() -> impl Strategy<Value = Step> {
    let (key, at) = (0..3u64, any::<usize>());
    prop_oneof![
        8 => (any::<bool>(), key.clone()).prop_map(|(by_a, key)| Step::Look(by_a, key)),
        6 => at.prop_map(Step::Poll),
        2 => at.prop_map(Step::DropWait),
        2 => at.prop_map(Step::DropGuard),
        1 => at.prop_map(Step::Insert),
        1 => at.prop_map(Step::InsertSoon),
        2 => key.clone().prop_map(Step::Remove),
        1 => key.prop_map(Step::Overwrite),
        1 => Just(Step::Clear),
    ]
}

/// Guards and waits that are held, each with its key.
#[derive(Default)]
struct Held {
    guards: Vec<(u64, LoadGuard<u64, u64>)>,
    waits: Vec<(u64, LoadWait<u64, u64>)>,
}

fn take_one<T>(of: &mut Vec<T>, at: usize) -> Option<T> {
    if of.is_empty() { None } else { Some(of.swap_remove(at % of.len())) }
}

impl Held {
    fn take_in(&mut self, key: u64, found: Lookup<u64, u64>) {
        match found {
            Lookup::Value(value) => assert_eq!(value % 3, key),
            Lookup::Load(guard) => self.guards.push((key, guard)),
            Lookup::Wait(wait) => self.waits.push((key, wait)),
        }
    }

    fn poll(&mut self, at: usize) {
        let Some((key, mut wait)) = take_one(&mut self.waits, at) else { return };
        match poll(&mut wait) {
            Poll::Pending => self.waits.push((key, wait)),
            Poll::Ready(Ok(value)) => assert_eq!(value % 3, key),
            Poll::Ready(Err(guard)) => self.guards.push((key, guard)),
        }
    }

    fn act(&mut self, cache: &Cache, group: &Arc<umemcg::Group>, step: Step) {
        match step {
            Step::Look(_, key) => self.take_in(key, cache.lookup(group, key)),
            Step::Poll(at) => self.poll(at),
            Step::DropWait(at) => drop(take_one(&mut self.waits, at)),
            Step::DropGuard(at) => drop(take_one(&mut self.guards, at)),
            Step::Insert(at) => {
                if let Some((key, guard)) = take_one(&mut self.guards, at) {
                    assert_eq!(guard.insert(key + 3), key + 3);
                }
            }
            Step::InsertSoon(at) => {
                if let Some((key, guard)) = take_one(&mut self.guards, at) {
                    assert_eq!(guard.insert_soon(key + 6), key + 6);
                }
            }
            Step::Remove(key) => _ = cache.remove(&key),
            Step::Overwrite(key) => cache.insert(group, key, key + 9).unwrap(),
            Step::Clear => cache.clear(),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn no_wait_is_forgotten_whatever_is_dropped(steps in prop::collection::vec(step(), 1..120)) {
        let engine = engine(16);
        let (a, b) = (group(&engine, engine.root(), "a"), group(&engine, engine.root(), "b"));
        let cache = builder(&engine).shards(1).build();
        let mut held = Held::default();
        for step in steps {
            let group = if matches!(step, Step::Look(true, _)) { &a } else { &b };
            held.act(&cache, group, step);
        }
        // Every guard ends; then every wait has its value, or the load, in a few rounds.
        for _ in 0..200 {
            held.guards.clear();
            for _ in 0..held.waits.len() {
                held.poll(0);
            }
        }
        prop_assert_eq!(held.waits.len() + held.guards.len(), 0);
        drop((cache, held));
        check_nothing_is_left(&engine, &[&a, &b]);
    }
}

#[test]
fn a_load_of_a_full_group_blocks_no_thread_of_the_runtime() {
    for runtime in runtimes() {
        let engine = engine(64);
        let (full, other) = (group(&engine, engine.root(), "full"), group(&engine, engine.root(), "other"));
        crate::object_cache::limit(&engine, &full, 64 * VALUE_BYTES);
        // The listener of one group hangs until it may go on.
        let (go_on, may_go_on) = std::sync::mpsc::channel::<()>();
        let may_go_on = parking_lot::Mutex::new(may_go_on);
        let listener = move |key: u64, _, _| {
            if key < 1000 {
                _ = may_go_on.lock().recv_timeout(LONG);
            }
        };
        let cache = Arc::new(builder(&engine).listener(listener).build());
        let mut filled = 0;
        while full.usage_bytes() + 2 * VALUE_BYTES < 64 * VALUE_BYTES {
            cache.insert(&full, filled, 3).unwrap();
            filled += 1;
        }
        runtime.block_on(async {
            for key in 500..508 {
                let value =
                    within("a load of the full group", cache.get_or_insert_async(&full, key, async { 6 }));
                assert_eq!(value.await, 6);
                assert_eq!(cache.get_for(&full, &key), Some(6), "readable at once");
            }
            for key in 5000..5050 {
                let load = cache.get_or_insert_async(&other, key, async { 7 });
                assert_eq!(within("a load of the other group", load).await, 7);
            }
        });
        assert_eq!(cache.stats_of(&other).objects, 50);
        drop(go_on);
        cache.wait_for_workers();
        full.drain_stocks();
        assert!(full.usage_bytes() <= 64 * VALUE_BYTES, "{}", full.usage_bytes());
        let stats = cache.stats_of(&full);
        assert!(stats.evicted > 0 && (500..508).all(|key| cache.get(&key) == Some(6)), "{stats:?}");
        drop((runtime, cache));
        check_nothing_is_left(&engine, &[&full, &other]);
    }
}
