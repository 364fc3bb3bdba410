//! Accounts: exact under threads, limits that change, groups that go, and refusals.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Barrier};
use std::thread;

use umemcg::{Account, Engine, EventKind, Group, ObjectCache, Refusal, StatItem};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

fn child(engine: &Engine, parent: &Arc<Group>, name: &str) -> Arc<Group> {
    engine.create_group(parent, name.as_ref()).unwrap()
}

fn reserved(group: &Group) -> u64 {
    group.stat_total(StatItem::Reserved) as u64
}

/// Panics unless exactly `bytes` are held in a group that has no children.
fn assert_holds(group: &Group, bytes: u64) {
    group.drain_stocks();
    assert_eq!((group.usage_bytes(), reserved(group)), (bytes, bytes));
}

fn objects(engine: &Arc<Engine>) -> ObjectCache<u64, Arc<Vec<u8>>> {
    ObjectCache::builder(engine, "objects").weigher(|_, value: &Arc<Vec<u8>>| value.len() as u64).build()
}

/// Puts `bytes` of objects of 4 KiB in a cache.
fn fill(cache: &ObjectCache<u64, Arc<Vec<u8>>>, group: &Arc<Group>, bytes: u64) {
    for key in 0..bytes / 4096 {
        cache.insert(group, key, Arc::new(vec![0; 4096])).unwrap();
    }
}

#[test]
fn an_account_counts_grows_shrinks_splits_and_gives_back() {
    let engine = crate::common::engine(64 * MIB);
    let group = crate::common::group(&engine, "group", 16 * MIB);
    let account = engine.account(&group);
    account.try_grow(5 * MIB + 123).unwrap();
    account.shrink(MIB);
    account.try_grow(0).unwrap();
    account.shrink(0);
    assert_eq!((account.bytes(), account.peak()), (4 * MIB + 123, 5 * MIB + 123));
    assert_holds(&group, 4 * MIB + 123);
    let part = account.split(3 * MIB);
    assert_eq!((account.bytes(), part.bytes(), part.peak()), (MIB + 123, 3 * MIB, 3 * MIB));
    assert_holds(&group, 4 * MIB + 123);
    drop(account);
    assert_holds(&group, 3 * MIB);
    drop(part);
    assert_holds(&group, 0);
}

#[test]
fn giving_back_too_much_panics_and_changes_nothing() {
    let engine = crate::common::engine(64 * MIB);
    let group = crate::common::group(&engine, "group", 16 * MIB);
    let account = engine.account(&group);
    account.try_grow(MIB).unwrap();
    for excess in
        [|account: &Account| account.shrink(MIB + 1), |account: &Account| drop(account.split(u64::MAX))]
    {
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| excess(&account)));
        assert!(panicked.is_err());
        assert_holds(&group, MIB);
    }
    assert_eq!(account.bytes(), MIB);
}

#[test]
fn a_forced_growth_goes_beyond_limits_and_is_counted() {
    let engine = crate::common::engine(64 * MIB);
    let group = crate::common::group(&engine, "group", MIB);
    let account = engine.account(&group);
    account.grow(3 * MIB);
    assert_holds(&group, 3 * MIB);
    assert!(account.try_grow(1).is_err());
    account.shrink(2 * MIB + 1);
    account.try_grow(1).unwrap();
    assert_holds(&group, MIB);
}

#[test]
fn a_refusal_says_never_or_not_now_with_its_numbers() {
    let engine = crate::common::engine(64 * MIB);
    let parent = crate::common::group(&engine, "parent", 16 * MIB);
    let group = child(&engine, &parent, "group");
    let account = engine.account(&group);
    account.try_grow(10 * MIB).unwrap();
    let never = account.try_grow(16 * MIB + 1).unwrap_err();
    let Refusal::Never { group: at, wanted, limit } = &never else { panic!("{never:?}") };
    assert!(Arc::ptr_eq(at, &parent));
    assert_eq!((*wanted, *limit, never.may_pass()), (16 * MIB + 1, 16 * MIB, false));
    assert_eq!(
        never.to_string(),
        "16777217 bytes never fit in group /parent, whose limit is 16777216 bytes: ask for less, or raise the limit"
    );
    let later = account.try_grow(8 * MIB).unwrap_err();
    let Refusal::NotNow { group: at, wanted, free, reclaimable } = &later else { panic!("{later:?}") };
    assert!(Arc::ptr_eq(at, &parent) && later.may_pass());
    // All but the state of the group below it.
    assert_eq!((*wanted, *reclaimable), (8 * MIB, 0));
    assert!((6 * MIB - 4 * KIB..6 * MIB).contains(free), "{free}");
    assert!(matches!(account.try_grow(u64::MAX), Err(Refusal::Never { .. })));
    account.try_grow(5 * MIB).unwrap();
}

#[test]
fn refusals_count_one_max_each_and_never_an_oom() {
    let engine = crate::common::engine(64 * MIB);
    let parent = crate::common::group(&engine, "parent", 16 * MIB);
    let group = child(&engine, &parent, "group");
    let account = engine.account(&group);
    account.try_grow(15 * MIB).unwrap();
    assert_eq!(parent.event_count(EventKind::Max), 0);
    for _ in 0..1000 {
        account.try_grow(2 * MIB).unwrap_err();
    }
    let counts = || [EventKind::Max, EventKind::Oom].map(|kind| engine.root().event_count(kind));
    assert_eq!(counts(), [1000, 0]);
    assert_eq!(parent.event_count_local(EventKind::Max), 1000);
    for _ in 0..1000 {
        account.try_grow(17 * MIB).unwrap_err();
    }
    assert_eq!(counts(), [1000, 0], "what can never fit was no use of the group");
    assert_holds(&group, 15 * MIB);
}

#[test]
fn a_growth_takes_from_its_own_caches_what_is_missing() {
    let engine = crate::common::engine(64 * MIB);
    let [group, other] = ["group", "other"].map(|name| crate::common::group(&engine, name, 8 * MIB));
    let cache = objects(&engine);
    fill(&cache, &group, 6 * MIB);
    for key in 1 << 20..(1 << 20) + 512 {
        cache.insert(&other, key, Arc::new(vec![0; 4096])).unwrap();
    }
    let (before, others) = (cache.stats_of(&group).bytes, cache.stats_of(&other).bytes);
    let account = engine.account(&group);
    account.try_grow(4 * MIB).unwrap();
    let left = cache.stats_of(&group).bytes;
    // What was missing, and no more than a batch of it.
    assert!(left < before && left >= 8 * MIB - 4 * MIB - 2 * MIB, "{left} of {before} bytes left");
    assert_eq!(cache.stats_of(&other).bytes, others, "another tenant's stay");
    // All of it, if need be.
    account.try_grow(4 * MIB - 64 * KIB).unwrap();
    assert_eq!(engine.root().event_count(EventKind::Oom), 0);
    drop(account);
    assert!(reserved(&group) == 0);
}

#[test]
fn guaranteed_caches_below_stay_when_an_account_grows() {
    let engine = crate::common::engine(64 * MIB);
    let tenant = crate::common::group(&engine, "tenant", 16 * MIB);
    let [caches, queries] = ["caches", "queries"].map(|name| child(&engine, &tenant, name));
    engine.set_min(&caches, 4 * MIB);
    let cache = objects(&engine);
    fill(&cache, &caches, 12 * MIB);
    let account = engine.account(&queries);
    while account.try_grow(256 * KIB).is_ok() {}
    let (kept, held) = (caches.usage_bytes(), account.bytes());
    assert!(kept >= 4 * MIB - 256 * KIB && held >= 11 * MIB, "{kept} kept, {held} held");
}

#[test]
fn an_account_of_a_removed_group_is_its_parents() {
    let engine = crate::common::engine(64 * MIB);
    let parent = crate::common::group(&engine, "parent", 16 * MIB);
    let group = child(&engine, &parent, "group");
    let account = engine.account(&group);
    account.try_grow(3 * MIB).unwrap();
    engine.set_max(&group, 4 * MIB);
    engine.remove_group(&group).unwrap();
    // The limit went with the group; the parent's holds.
    account.try_grow(9 * MIB).unwrap();
    account.try_grow(4 * MIB).unwrap_err();
    assert_eq!((account.bytes(), parent.stat_local(StatItem::Reserved) as u64), (12 * MIB, 12 * MIB));
    account.shrink(11 * MIB);
    let part = account.split(MIB / 2);
    account.grow(20 * MIB);
    assert_eq!(reserved(&parent), 21 * MIB);
    drop((account, part, group));
    assert_holds(&parent, 0);
}

#[test]
fn threads_share_an_account_while_limits_change() {
    const NR_THREADS: u64 = 4;
    let engine = crate::common::engine(64 * MIB);
    let group = crate::common::group(&engine, "group", 4 * MIB);
    let account = engine.account(&group);
    let is_over = AtomicBool::new(false);
    let total = AtomicU64::new(0);
    let start = Barrier::new(NR_THREADS as usize + 1);
    thread::scope(|threads| {
        let workers: Vec<_> = (0..NR_THREADS)
            .map(|number| {
                let (account, total, start) = (&account, &total, &start);
                threads.spawn(move || {
                    start.wait();
                    let mut held = 0;
                    for round in 0..20_000u64 {
                        let bytes = 1 + (round * 7919 + number * 104_729) % 40_000;
                        if account.try_grow(bytes).is_ok() {
                            held += bytes;
                        }
                        if held > 300_000 {
                            account.shrink(held - 1000);
                            held = 1000;
                        }
                    }
                    total.fetch_add(held, Relaxed);
                })
            })
            .collect();
        let limits = threads.spawn(|| {
            start.wait();
            while !is_over.load(Relaxed) {
                for limit in [MIB, 8 * MIB, 2 * MIB] {
                    engine.set_max(&group, limit);
                }
            }
        });
        let ended: Vec<_> = workers.into_iter().map(|worker| worker.join()).collect();
        is_over.store(true, Relaxed);
        limits.join().unwrap();
        ended.into_iter().for_each(|worker| worker.unwrap());
    });
    assert_eq!(account.bytes(), total.load(Relaxed));
    assert_holds(&group, account.bytes());
    assert!(account.peak() >= account.bytes());
    drop(account);
    assert_holds(&group, 0);
}

#[test]
fn accounts_stay_exact_while_their_groups_go() {
    let engine = crate::common::engine(64 * MIB);
    let parent = crate::common::group(&engine, "parent", 32 * MIB);
    let empty = parent.usage_bytes();
    thread::scope(|threads| {
        for number in 0..3u64 {
            let (engine, parent) = (&engine, &parent);
            threads.spawn(move || {
                for round in 0..150 {
                    let group = child(engine, parent, &format!("{number}.{round}"));
                    let account = engine.account(&group);
                    thread::scope(|users| {
                        users.spawn(|| {
                            for step in 0..400 {
                                account.try_grow(1 + step * 37).unwrap();
                                account.shrink(step * 37);
                            }
                        });
                        users.spawn(|| engine.remove_group(&group).unwrap());
                    });
                    assert_eq!(account.bytes(), 400);
                    account.split(100).shrink(50);
                    assert_eq!(account.bytes(), 300);
                }
            });
        }
    });
    parent.drain_stocks();
    assert_eq!((parent.usage_bytes(), reserved(&parent)), (empty, 0));
}
