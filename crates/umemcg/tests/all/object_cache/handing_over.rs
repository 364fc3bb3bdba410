//! Values handed to a worker: found at once, charged while they wait, bounded, and gone without a
//! trace.

use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

use umemcg::objects::RemovalCause;
use umemcg::{Engine, Group, ObjectCache};

use crate::object_cache::{Log, check_nothing_is_left, engine, group, limit};

const LONG: Duration = Duration::from_secs(60);
const MIB: u64 = 1 << 20;

/// A cache whose value is its weight, and whose group is full of small objects; the listener hangs
/// until the sender is dropped.
struct Ground {
    engine: Arc<Engine>,
    tenant: Arc<Group>,
    cache: ObjectCache<u64, u64>,
    log: Log,
    go_on: std::sync::mpsc::Sender<()>,
}

impl Ground {
    fn new(limit_bytes: u64) -> Self {
        let engine = engine(256);
        let tenant = group(&engine, engine.root(), "tenant");
        let (go_on, may_go_on) = channel::<()>();
        let (log, may_go_on) = (Log::default(), parking_lot::Mutex::new(may_go_on));
        let write = log.listener();
        let listener = move |key, value, why| {
            if why == RemovalCause::Evicted {
                _ = may_go_on.lock().recv_timeout(LONG);
            }
            write(key, value, why);
        };
        let cache =
            ObjectCache::builder(&engine, "heavy").weigher(|_, &value| value).listener(listener).build();
        limit(&engine, &tenant, limit_bytes);
        for key in 0.. {
            if tenant.usage_bytes() + 8192 > limit_bytes {
                break;
            }
            cache.insert(&tenant, key, 4096).unwrap();
        }
        Self { engine, tenant, cache, log, go_on }
    }
}

#[test]
fn a_large_value_is_found_at_once_and_charged_while_it_waits() {
    let Ground { engine, tenant, cache, log, go_on } = Ground::new(8 * MIB);
    let before = tenant.usage_bytes();
    cache.insert(&tenant, 1 << 20, 16).unwrap();
    cache.insert_soon(&tenant, 1 << 20, 3 * MIB).unwrap();
    assert!(tenant.usage_bytes() >= before + 3 * MIB - (64 << 10), "charged, above the limit");
    let waiting = cache.get_for(&tenant, &(1 << 20));
    assert_eq!(waiting, Some(3 * MIB), "in place of the old value");
    drop(go_on);
    cache.wait_for_workers();
    tenant.drain_stocks();
    assert!(tenant.usage_bytes() <= 8 * MIB, "{}", tenant.usage_bytes());
    assert_eq!(cache.get(&(1 << 20)), Some(3 * MIB));
    let gone = log.take();
    assert!(gone.contains(&(1 << 20, 16, RemovalCause::Replaced)), "the listener is told of the old value");
    assert!(gone.iter().filter(|(_, _, why)| *why == RemovalCause::Evicted).count() >= 700);
    drop(cache);
    check_nothing_is_left(&engine, &[&tenant]);
}

#[test]
fn what_waits_is_bounded_and_the_rest_declined() {
    let Ground { engine, tenant, cache, log: _, go_on } = Ground::new(8 * MIB);
    let before = tenant.usage_bytes();
    let nr_taken = (0..100).filter(|key| cache.insert_soon(&tenant, MIB + key, 256 << 10).is_ok()).count();
    assert!((1..=4).contains(&nr_taken), "an eighth of 8 MiB holds three of a quarter: {nr_taken}");
    assert!(tenant.usage_bytes() <= before + MIB + 8192);
    assert!(cache.stats_of(&tenant).declined >= 96);
    assert_eq!(cache.get(&(MIB + 99)), None, "what is declined has no value");
    assert!(cache.insert_soon(&tenant, 7 * MIB, 16 * MIB).is_err(), "more than the limit");
    drop(go_on);
    cache.wait_for_workers();
    let found = (0..100).filter(|key| cache.get(&(MIB + key)).is_some()).count();
    assert_eq!(found, nr_taken);
    drop(cache);
    check_nothing_is_left(&engine, &[&tenant]);
}

#[test]
fn a_value_that_waits_can_be_removed_and_replaced() {
    let Ground { engine, tenant, cache, log: _, go_on } = Ground::new(8 * MIB);
    // Half of what may wait: what is removed holds its place until the worker has seen it.
    cache.insert_soon(&tenant, MIB, MIB / 2).unwrap();
    assert_eq!(cache.remove(&MIB), Some(MIB / 2));
    assert_eq!(cache.get(&MIB), None);
    cache.insert_soon(&tenant, 2 * MIB, 1000).unwrap();
    cache.insert(engine.root(), 2 * MIB, 16).unwrap();
    assert_eq!(cache.get(&(2 * MIB)), Some(16));
    drop(go_on);
    cache.wait_for_workers();
    assert_eq!((cache.get(&MIB), cache.get(&(2 * MIB))), (None, Some(16)));
    drop(cache);
    check_nothing_is_left(&engine, &[&tenant]);
}

#[test]
fn a_cache_is_dropped_with_values_that_wait() {
    let Ground { engine, tenant, cache, log: _, go_on } = Ground::new(8 * MIB);
    cache.insert_soon(&tenant, MIB, MIB).unwrap();
    engine.remove_group(&tenant).unwrap();
    drop(go_on);
    drop(cache);
    check_nothing_is_left(&engine, &[]);
}

#[test]
fn a_value_for_which_no_room_can_be_made_leaves_nothing() {
    let Ground { engine, tenant, cache, log: _, go_on } = Ground::new(8 * MIB);
    drop(go_on);
    let ballast = tenant.charge_forced(8 * MIB);
    cache.insert_soon(&tenant, MIB, MIB).unwrap();
    cache.wait_for_workers();
    assert_eq!(cache.get(&MIB), None);
    assert_eq!(cache.stats_of(&tenant).declined, 1);
    drop((cache, ballast));
    check_nothing_is_left(&engine, &[&tenant]);
}
