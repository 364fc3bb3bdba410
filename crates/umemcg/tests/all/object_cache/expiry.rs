//! Objects that grow too old, by a clock that the test moves.

use std::sync::Arc;
use std::time::Duration;

use umemcg::objects::RemovalCause::{Evicted, Expired};
use umemcg_base::clock::ManualClock;

use crate::object_cache::{Cache, Log, builder, engine, limit};

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn an_object_is_never_served_after_its_time_to_live() {
    let (engine, clock, log) = (engine(16), Arc::new(ManualClock::new()), Log::default());
    let cache = builder(&engine)
        .clock(Arc::<ManualClock>::clone(&clock))
        .time_to_live(10 * SECOND)
        .listener(log.listener())
        .build();
    cache.insert(engine.root(), 1, 10).unwrap();
    for _ in 0..9 {
        clock.advance(SECOND);
        assert_eq!(cache.get(&1), Some(10), "use does not prolong it, but it is young");
    }
    clock.advance(SECOND);
    assert_eq!(cache.get(&1), None);
    assert_eq!(log.take(), [(1, 10, Expired)]);
    assert_eq!((cache.stats().expired, cache.stats().misses, cache.len()), (1, 1, 0));
    // A new value lives anew.
    cache.insert(engine.root(), 1, 11).unwrap();
    clock.advance(9 * SECOND);
    assert_eq!(cache.get_or_insert_with(engine.root(), 1, || 12), 11);
    clock.advance(SECOND);
    assert_eq!(cache.get_or_insert_with(engine.root(), 1, || 12), 12);
}

#[test]
fn an_object_lives_while_it_is_used_within_its_time_to_idle() {
    let (engine, clock, log) = (engine(16), Arc::new(ManualClock::new()), Log::default());
    let cache = builder(&engine)
        .clock(Arc::<ManualClock>::clone(&clock))
        .time_to_idle(10 * SECOND)
        .listener(log.listener())
        .build();
    cache.insert(engine.root(), 1, 10).unwrap();
    cache.insert(engine.root(), 2, 20).unwrap();
    for _ in 0..5 {
        clock.advance(9 * SECOND);
        assert_eq!(cache.get(&1), Some(10));
    }
    assert_eq!(cache.get(&2), None);
    assert_eq!(log.take(), [(2, 20, Expired)]);
}

#[test]
fn a_sweep_takes_what_is_too_old_and_nothing_else() {
    let (engine, clock, log) = (engine(16), Arc::new(ManualClock::new()), Log::default());
    let cache = builder(&engine)
        .clock(Arc::<ManualClock>::clone(&clock))
        .time_to_live(10 * SECOND)
        .listener(log.listener())
        .build();
    (0..100).for_each(|key| cache.insert(engine.root(), key, 0).unwrap());
    clock.advance(6 * SECOND);
    (100..150).for_each(|key| cache.insert(engine.root(), key, 1).unwrap());
    clock.advance(6 * SECOND);
    cache.sweep_expired();
    assert_eq!(cache.len(), 50);
    let gone = log.take();
    assert_eq!(gone.len(), 100);
    assert!(gone.iter().all(|&(key, value, why)| key < 100 && value == 0 && why == Expired));
    assert_eq!(engine.reclaimer().nr_list_slots(), 50);
}

#[test]
fn reclaim_takes_what_is_too_old_even_if_it_was_used() {
    let (engine, clock, log) = (engine(64), Arc::new(ManualClock::new()), Log::default());
    let tenant = crate::object_cache::group(&engine, engine.root(), "tenant");
    limit(&engine, &tenant, 1 << 20);
    let cache: Cache = builder(&engine)
        .clock(Arc::<ManualClock>::clone(&clock))
        .time_to_live(SECOND)
        .listener(log.listener())
        .build();
    for key in 0..200 {
        cache.insert(&tenant, key, key).unwrap();
        (0..3).for_each(|_| assert!(cache.get(&key).is_some()));
    }
    clock.advance(2 * SECOND);
    for key in 1000..1400 {
        cache.insert(&tenant, key, key).unwrap();
    }
    let gone = log.take();
    let (old, young): (Vec<_>, Vec<_>) = gone.into_iter().partition(|(key, ..)| *key < 1000);
    assert!(!old.is_empty() && old.iter().all(|(.., why)| *why == Expired));
    assert!(young.iter().all(|(.., why)| *why == Evicted));
}
