//! Groups: which pays, which gives, and what is left when one is removed.

use umemcg::objects::{DeclineReason, RemovalCause};
use umemcg::{DropCaches, EventKind, StatItem};

use crate::object_cache::{Log, VALUE_BYTES, builder, check_nothing_is_left, engine, group, limit};

const MIB: u64 = 1 << 20;

#[test]
fn objects_are_charged_to_their_inserter_within_its_limit() {
    let engine = engine(64);
    let tenant = group(&engine, engine.root(), "tenant");
    limit(&engine, &tenant, 2 * MIB);
    let cache = builder(&engine).build();
    for key in 0..2000 {
        cache.insert(&tenant, key, key).unwrap();
        assert!(tenant.usage_bytes() <= 2 * MIB);
    }
    let stats = cache.stats_of(&tenant);
    assert_eq!(stats.objects, cache.len() as u64);
    assert_eq!(stats.inserted - stats.evicted, stats.objects);
    assert_eq!(tenant.stat_local(StatItem::SlabReclaimable) as u64, stats.bytes);
    assert!(stats.bytes >= stats.objects * VALUE_BYTES);
    assert!(stats.bytes > MIB * 3 / 2, "the limit is made use of: {stats:?}");
    assert_eq!(tenant.event_count(EventKind::Oom), 0);
    drop(cache);
    check_nothing_is_left(&engine, &[&tenant]);
}

#[test]
fn a_tenant_that_scans_evicts_nothing_of_another() {
    let engine = engine(64);
    let (quiet, loud) = (group(&engine, engine.root(), "quiet"), group(&engine, engine.root(), "loud"));
    limit(&engine, &quiet, 4 * MIB);
    limit(&engine, &loud, 4 * MIB);
    let cache = builder(&engine).build();
    for key in 0..800 {
        cache.insert(&quiet, key, key).unwrap();
    }
    for key in 10_000..30_000 {
        cache.insert(&loud, key, key).unwrap();
    }
    assert!((0..800).all(|key| cache.get(&key) == Some(key)));
    assert_eq!(cache.stats_of(&quiet).evicted, 0);
    assert!(cache.stats_of(&loud).evicted > 15_000);
}

#[test]
fn look_ups_count_for_the_group_that_they_name() {
    let engine = engine(16);
    let (a, b) = (group(&engine, engine.root(), "a"), group(&engine, engine.root(), "b"));
    let cache = builder(&engine).build();
    cache.insert(&a, 1, 1).unwrap();
    for _ in 0..5 {
        cache.get(&1);
    }
    cache.get_or_insert_with(&b, 2, || 2);
    cache.get_or_insert_with(&b, 1, || unreachable!("it is there"));
    cache.get(&3);
    assert_eq!(
        (cache.get_for(&b, &1), cache.get_for(&a, &1), cache.get_for(&a, &4)),
        (Some(1), Some(1), None)
    );
    let (a, b, all) = (cache.stats_of(&a), cache.stats_of(&b), cache.stats());
    assert_eq!((a.hits, a.misses), (6, 1), "five that name no group, and its own");
    assert_eq!((b.hits, b.misses), (2, 1));
    assert_eq!((all.hits, all.misses), (8, 3));
}

#[test]
fn a_group_that_asks_and_then_inserts_has_its_true_hit_ratio() {
    let engine = engine(16);
    let tenant = group(&engine, engine.root(), "tenant");
    let cache = builder(&engine).build();
    for round in 0..4 {
        for key in 0..10 {
            let found = cache.get_for(&tenant, &key);
            assert_eq!(found.is_some(), round > 0);
            if found.is_none() {
                cache.insert(&tenant, key, key).unwrap();
            }
        }
    }
    assert_eq!(cache.stats_of(&tenant).hit_ratio(), 0.75);
}

#[test]
fn figures_of_all_groups_are_read_in_one_pass() {
    const TENANTS: u64 = 1000;
    let engine = engine(64);
    let tenants: Vec<_> =
        (0..TENANTS).map(|nr| group(&engine, engine.root(), &format!("tenant-{nr}"))).collect();
    let cache = builder(&engine).build();
    for (nr, tenant) in (0..).zip(&tenants) {
        cache.insert(tenant, nr, nr).unwrap();
        for _ in 0..=nr % 3 {
            assert_eq!(cache.get(&nr), Some(nr));
        }
    }
    engine.remove_group(&tenants[0]).unwrap();
    let mut seen = std::collections::BTreeMap::new();
    cache.for_each_group(|group, stats| {
        assert_eq!(*stats, cache.stats_of(group), "no lock is held");
        assert!(seen.insert(group.id(), *stats).is_none());
    });
    assert_eq!(seen.len(), tenants.len(), "the first tenant's are the root's now");
    for (nr, tenant) in (0..).zip(&tenants).skip(1) {
        let stats = seen[&tenant.id()];
        assert_eq!((stats.objects, stats.hits), (1, 1 + nr % 3));
    }
    assert_eq!(seen[&engine.root().id()].objects, 1);
    assert_eq!(seen.values().map(|stats| stats.objects).sum::<u64>(), TENANTS);
}

#[test]
fn a_group_without_objects_leaves_its_figures_to_its_parent() {
    let engine = engine(16);
    let parent = group(&engine, engine.root(), "parent");
    let tenant = group(&engine, &parent, "tenant");
    let cache = builder(&engine).build();
    assert_eq!(cache.get_for(&tenant, &1), None);
    engine.remove_group(&tenant).unwrap();
    assert_eq!(cache.stats_of(&parent).misses, 1);
    drop((cache, tenant));
    check_nothing_is_left(&engine, &[&parent]);
}

#[test]
fn a_declined_insert_leaves_no_outdated_value() {
    let engine = engine(16);
    let tenant = group(&engine, engine.root(), "tenant");
    let log = Log::default();
    let cache = builder(&engine).listener(log.listener()).build();
    cache.insert(&tenant, 1, 10).unwrap();
    cache.insert(&tenant, 2, 20).unwrap();
    // Memory that no shrinker can free.
    let ballast = engine.charge(&tenant, MIB).unwrap();
    limit(&engine, &tenant, MIB + 4096);
    let declined = cache.insert(&tenant, 1, 11).unwrap_err();
    assert_eq!((declined.key, declined.value), (1, 11));
    assert!(matches!(declined.reason, DeclineReason::Refused(_)), "{declined}");
    assert_eq!(cache.get(&1), None);
    assert_eq!(cache.get_or_insert_with(&tenant, 3, || 30), 30);
    assert_eq!(cache.get(&3), None);
    assert_eq!(cache.stats_of(&tenant).declined, 2);
    assert_eq!(tenant.event_count(EventKind::Oom), 0);
    let mut gone = log.take();
    gone.sort();
    assert_eq!(gone.iter().map(|(key, value, _)| (*key, *value)).collect::<Vec<_>>(), [(1, 10), (2, 20)]);
    drop(ballast);
    assert!(cache.insert(&tenant, 1, 12).is_ok());
    drop(cache);
    check_nothing_is_left(&engine, &[&tenant]);
}

#[test]
fn a_declined_replacement_outdates_what_reclaim_did_not_take() {
    let engine = engine(16);
    let (rich, poor) = (group(&engine, engine.root(), "rich"), group(&engine, engine.root(), "poor"));
    limit(&engine, &poor, 4096);
    let log = Log::default();
    let cache = builder(&engine).listener(log.listener()).build();
    cache.insert(&rich, 1, 10).unwrap();
    assert!(cache.insert(&poor, 1, 11).is_err());
    assert_eq!(cache.get(&1), None);
    assert_eq!(log.take(), [(1, 10, RemovalCause::Outdated)]);
}

#[test]
fn an_object_too_heavy_for_any_cache_is_declined() {
    let engine = engine(16);
    let cache: umemcg::ObjectCache<u64, u64> =
        umemcg::ObjectCache::builder(&engine, "heavy").weigher(|_, &value| value).build();
    for bytes in [5 << 30, u64::MAX] {
        let declined = cache.insert(engine.root(), 1, bytes).unwrap_err();
        assert!(matches!(declined.reason, DeclineReason::TooLarge { .. }), "{declined}");
    }
    // More than the pool.
    let declined = cache.insert(engine.root(), 1, 1 << 30).unwrap_err();
    assert!(matches!(declined.reason, DeclineReason::Refused(_)), "{declined}");
    assert!(cache.is_empty());
}

#[test]
fn reclaim_takes_no_more_objects_than_it_asks_bytes_for() {
    const OBJECT: u64 = 32 << 10;
    let engine = engine(64);
    let tenant = group(&engine, engine.root(), "tenant");
    let cache: umemcg::ObjectCache<u64, u64> =
        umemcg::ObjectCache::builder(&engine, "values").weigher(|_, _| OBJECT - 128).build();
    for used in [false, true] {
        for key in 0..100 {
            cache.insert(&tenant, key, key).unwrap();
            if used {
                cache.get(&key);
            }
        }
        // 32 pages are four objects.
        let progress = engine.reclaimer().reclaim(&tenant, 32, umemcg::internal::Reason::Direct);
        assert!((32..=40).contains(&progress.pages()), "{progress:?}");
        assert!((95..=96).contains(&cache.len()), "{} of 100 are left", cache.len());
        cache.clear();
    }
}

#[test]
fn values_that_are_replaced_use_up_no_bound() {
    let engine = engine(16);
    let cache = builder(&engine).bytes_max(16 * VALUE_BYTES).build();
    for round in 0..100 {
        for key in 0..4 {
            cache.insert(engine.root(), key, round).unwrap();
        }
        assert_eq!(cache.len(), 4, "round {round}");
    }
}

#[test]
fn several_caches_compete_under_one_limit() {
    let engine = engine(64);
    let tenant = group(&engine, engine.root(), "tenant");
    limit(&engine, &tenant, 4 * MIB);
    let (first, second) = (builder(&engine).build(), builder(&engine).build());
    for key in 0..2000 {
        first.insert(&tenant, key, key).unwrap();
    }
    let full = first.stats().bytes;
    for key in 0..2000 {
        second.insert(&tenant, key, key).unwrap();
    }
    let (first, second) = (first.stats().bytes, second.stats().bytes);
    assert!(first < full / 2, "the first gave way: {first} of {full}");
    assert!(second > full / 4, "to the second: {second} of {full}");
    assert!(tenant.usage_bytes() <= 4 * MIB);
}

#[test]
fn a_cache_keeps_its_bound_at_the_cost_of_its_largest_group() {
    let engine = engine(64);
    let (a, b) = (group(&engine, engine.root(), "a"), group(&engine, engine.root(), "b"));
    let cache = builder(&engine).bytes_max(MIB).build();
    for key in 0..1000 {
        cache.insert(&a, key, key).unwrap();
        assert!(cache.stats().bytes <= MIB);
    }
    for key in 1000..1020 {
        cache.insert(&b, key, key).unwrap();
    }
    assert!(cache.stats().bytes <= MIB);
    assert_eq!(cache.stats_of(&b).evicted, 0, "b is below its share");
    assert!((1000..1020).all(|key| cache.get(&key).is_some()));
}

#[test]
fn objects_and_figures_of_a_removed_group_are_its_parents() {
    let engine = engine(64);
    let parent = group(&engine, engine.root(), "parent");
    let child = group(&engine, &parent, "child");
    let empty = group(&engine, &parent, "empty");
    let cache = builder(&engine).build();
    for key in 0..100 {
        cache.insert(&child, key, key).unwrap();
    }
    cache.insert(&empty, 1000, 1).unwrap();
    cache.remove(&1000);
    assert!(cache.get(&7).is_some());
    let before = cache.stats_of(&child);
    assert_eq!((before.objects, before.hits), (100, 1));

    engine.remove_group(&child).unwrap();
    engine.remove_group(&empty).unwrap();
    drop((child, empty));
    // Counted where the object is now.
    assert!(cache.get(&7).is_some());
    let after = cache.stats_of(&parent);
    assert_eq!((after.objects, after.bytes, after.hits), (100, before.bytes, 2));
    assert_eq!((after.inserted, after.removed), (101, 1));
    assert_eq!(parent.stat_local(StatItem::SlabReclaimable) as u64, before.bytes);

    limit(&engine, &parent, 128 << 10);
    let squeezed = cache.stats_of(&parent);
    assert!(squeezed.evicted > 50 && squeezed.objects < 50, "{squeezed:?}");
    assert_eq!(squeezed.objects, cache.len() as u64);
    drop(cache);
    check_nothing_is_left(&engine, &[&parent]);
}

#[test]
fn dropping_caches_takes_every_object_and_tells_of_each_once() {
    let engine = engine(64);
    let tenant = group(&engine, engine.root(), "tenant");
    let log = Log::default();
    let cache = builder(&engine).listener(log.listener()).build();
    for key in 0..1000 {
        cache.insert(&tenant, key, key).unwrap();
        cache.get(&key);
        cache.get(&key);
    }
    engine.drop_caches(DropCaches::Objects);
    assert!(cache.is_empty());
    let mut gone = log.take();
    gone.sort();
    assert_eq!(gone, (0..1000).map(|key| (key, key, RemovalCause::Evicted)).collect::<Vec<_>>());
    drop(cache);
    assert!(log.take().is_empty());
    check_nothing_is_left(&engine, &[&tenant]);
}

#[test]
fn a_tenant_with_emptied_and_pruned_lists_begins_again() {
    let engine = engine(64);
    let tenant = group(&engine, engine.root(), "tenant");
    limit(&engine, &tenant, MIB);
    let cache = builder(&engine).build();
    for round in 0..3 {
        for key in 0..1000 {
            cache.insert(&tenant, round * 1000 + key, key).unwrap();
        }
        assert!(cache.stats_of(&tenant).objects > 100, "round {round}");
        engine.drop_caches(DropCaches::Objects);
        // The second pass finds the lists empty.
        engine.drop_caches(DropCaches::Objects);
        assert!(cache.is_empty(), "round {round}: every list is found");
    }
    drop(cache);
    check_nothing_is_left(&engine, &[&tenant]);
}

#[test]
fn a_tenant_forced_over_its_limit_is_below_at_the_next_insert() {
    let engine = engine(64);
    let tenant = group(&engine, engine.root(), "tenant");
    limit(&engine, &tenant, MIB);
    let cache = builder(&engine).build();
    for key in 0..100_000 {
        cache.insert(&tenant, key, key).unwrap();
    }
    tenant.drain_stocks();
    let forced = tenant.charge_forced(MIB - tenant.usage_bytes() + 1000);
    assert!(tenant.usage_bytes() > MIB);
    for key in 0..100 {
        cache.insert(&tenant, 100_000 + key, key).unwrap();
        // What is left over of this charge is used, too.
        tenant.drain_stocks();
        assert!(tenant.usage_bytes() <= MIB, "{} after {key}", tenant.usage_bytes());
    }
    drop((cache, forced));
    check_nothing_is_left(&engine, &[&tenant]);
}

#[test]
fn a_cache_stands_in_the_table_of_objects_under_its_name() {
    let engine = engine(16);
    let tenant = group(&engine, engine.root(), "tenant");
    let cache: umemcg::ObjectCache<u64, u64> = umemcg::ObjectCache::builder(&engine, "my thumbnails").build();
    cache.insert(&tenant, 1, 1).unwrap();
    let table = engine.slab_usage(&tenant);
    let line = table.iter().find(|line| line.name == "my-thumbnails").expect("a line for the cache");
    assert_eq!((line.usage.objects, line.usage.bytes), (1, cache.stats().bytes));
}

#[test]
fn ghosts_are_charged_and_bounded_by_the_objects_that_are_there() {
    let engine = engine(64);
    let tenant = group(&engine, engine.root(), "tenant");
    limit(&engine, &tenant, 4 * MIB);
    let cache = builder(&engine).build();
    cache.insert(&tenant, 0, 0).unwrap();
    let before = tenant.stat_local(StatItem::SlabUnreclaimable);
    for key in 1..20_000 {
        cache.insert(&tenant, key, key).unwrap();
    }
    let stats = cache.stats_of(&tenant);
    let ghost_bytes = (tenant.stat_local(StatItem::SlabUnreclaimable) - before) as u64;
    assert!(stats.ghosts > 0 && stats.ghosts <= stats.objects * 2, "{stats:?}");
    // A first bucket of 64 bytes came with the first object.
    assert!(ghost_bytes + 64 >= stats.ghosts * 4, "{ghost_bytes} bytes for {} ghosts", stats.ghosts);
    // One that comes back soon is known.
    let lately = (0..20_000).rev().find(|key| cache.get(key).is_none()).unwrap();
    cache.insert(&tenant, lately, 0).unwrap();
    assert_eq!(cache.stats_of(&tenant).ghost_hits, stats.ghost_hits + 1);
    cache.clear();
    drop(cache);
    check_nothing_is_left(&engine, &[&tenant]);
}
