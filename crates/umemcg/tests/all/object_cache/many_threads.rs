//! Everything at once: hits, inserts, removals, reclaim, limits that change, groups and caches that
//! come and go.

use std::ffi::OsStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use umemcg::{DropCaches, Group, ObjectCache};

use crate::object_cache::{VALUE_BYTES, builder, check_nothing_is_left, engine, group, limit};

/// Deterministic per thread, whatever the schedule.
fn scramble(n: u64) -> u64 {
    let n = (n ^ (n >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    n ^ (n >> 27)
}

#[test]
fn no_value_is_ever_another_keys_and_all_is_given_back() {
    const THREADS: u64 = 4;
    const STEPS: u64 = 15_000;
    let engine = engine(64);
    let parent = group(&engine, engine.root(), "parent");
    limit(&engine, &parent, 6 << 20);
    let stay: Vec<Arc<Group>> = (0..3).map(|n| group(&engine, &parent, &format!("stay{n}"))).collect();
    let (inserted, departed) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let told = Arc::clone(&departed);
    let cache: ObjectCache<u64, Arc<u64>> = ObjectCache::builder(&engine, "values")
        .weigher(|_, _| VALUE_BYTES)
        .listener(move |key, value: Arc<u64>, _| {
            assert_eq!(*value % 5000, key);
            told.fetch_add(1, Relaxed);
        })
        .build();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..THREADS)
            .map(|thread| {
                let (engine, cache, stay, parent, inserted) = (&engine, &cache, &stay, &parent, &inserted);
                scope.spawn(move || {
                    let mut passing: Option<Arc<Group>> = None;
                    for step in 0..STEPS {
                        let dice = scramble(thread << 40 | step);
                        let key = scramble(dice) % 5000;
                        let payer = passing.as_ref().unwrap_or(&stay[(dice >> 8) as usize % stay.len()]);
                        match dice % 16 {
                            0 => _ = cache.remove(&key),
                            1 | 2 => {
                                let value = Arc::new(key + 5000 * (dice >> 32 & 0xff));
                                if cache.insert(payer, key, value).is_ok() {
                                    inserted.fetch_add(1, Relaxed);
                                }
                            }
                            3..6 => {
                                let value = cache.get_or_insert_with(payer, key, || Arc::new(key));
                                assert_eq!(*value % 5000, key);
                            }
                            6 if step % 64 == 0 => match passing.take() {
                                Some(group) => engine.remove_group(&group).unwrap(),
                                // Refused when others have just taken all there is.
                                None => {
                                    let name = format!("{thread}-{step}");
                                    passing = engine.create_group(parent, OsStr::new(&name)).ok();
                                }
                            },
                            7 if step % 256 == 0 => {
                                limit(engine, parent, (2 << 20) + (dice >> 16) % (6 << 20))
                            }
                            8 if step % 1024 == 0 => engine.drop_caches(DropCaches::Objects),
                            _ => {
                                if let Some(value) = cache.get(&key) {
                                    assert_eq!(*value % 5000, key);
                                }
                            }
                        }
                    }
                    passing.into_iter().for_each(|group| engine.remove_group(&group).unwrap());
                })
            })
            .collect();
        // Another cache of the same groups comes and goes meanwhile.
        scope.spawn(|| {
            while !stop.load(Relaxed) {
                let passing = builder(&engine).build();
                (0..100).for_each(|key| _ = passing.insert(&stay[0], key, key));
            }
        });
        let results: Vec<_> = workers.into_iter().map(|worker| worker.join()).collect();
        stop.store(true, Relaxed);
        results.into_iter().for_each(|result| result.unwrap());
    });
    let stats = cache.stats();
    assert_eq!(stats.objects, cache.len() as u64);
    assert_eq!(stats.departed(), departed.load(Relaxed));
    assert!(stats.inserted >= inserted.load(Relaxed) && stats.evicted > 0, "{stats:?}");
    assert_eq!(engine.reclaimer().nr_list_slots(), cache.len());
    drop(cache);
    assert_eq!(departed.load(Relaxed), stats.inserted);
    let groups: Vec<&Arc<Group>> = stay.iter().collect();
    check_nothing_is_left(&engine, &groups);
    parent.drain_stocks();
    assert_eq!(engine.reclaimer().nr_shrinkers(), 1, "only that of the page cache is left");
}
