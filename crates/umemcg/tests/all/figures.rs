//! Groups that are found, made and owned; their figures, names and units.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use umemcg::internal::GROUP_STATE_BYTES;
use umemcg::shrinker::{Count, Scan, Scanned, ShrinkTarget, Shrinker, Usage};
use umemcg::{
    Account, Charge, CreateError, EventKind, Group, Limits, RemoveError, StatItem, StatUnit, UNLIMITED,
};

const MIB: u64 = 1 << 20;
/// Longer than anything here takes.
const BOUND: Duration = Duration::from_secs(60);

#[test]
fn groups_are_found_by_path_or_made_with_limits() {
    let engine = crate::common::engine(64 * MIB);
    let limits = Limits::new().max(8 * MIB).high(7 * MIB).low(2 * MIB).min(MIB).soft(3 * MIB);
    let tenants = engine.get_or_create(engine.root(), "tenants", &Limits::new()).unwrap();
    let a = engine.get_or_create(&tenants, "a", &limits).unwrap();
    assert_eq!((a.max_bytes(), a.soft_limit_bytes()), (8 * MIB, 3 * MIB));
    assert_eq!((a.protection().min, a.protection().low), (MIB, 2 * MIB));
    assert_eq!(engine.high_bytes(&a), 7 * MIB);
    let again = engine.get_or_create(&tenants, "a", &Limits::new().max(MIB)).unwrap();
    assert!(Arc::ptr_eq(&a, &again) && again.max_bytes() == 8 * MIB);
    assert!(Arc::ptr_eq(&engine.group_at("/tenants/a").unwrap(), &a));
    assert!(Arc::ptr_eq(&engine.group_at("/").unwrap(), engine.root()));
    assert!(engine.group_at("/tenants/b").is_none() && engine.group_at("/a").is_none());
    assert!(matches!(engine.get_or_create(&tenants, "..", &limits), Err(CreateError::BadName)));
}

#[test]
fn threads_that_want_one_group_get_one_group() {
    let engine = crate::common::engine(64 * MIB);
    for round in 0..200 {
        let name = format!("{round}");
        let make = || engine.get_or_create(engine.root(), &name, &Limits::new().max(MIB)).unwrap();
        let groups = thread::scope(|threads| {
            let threads: Vec<_> = (0..3).map(|_| threads.spawn(make)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
        });
        assert!(groups.iter().all(|group| Arc::ptr_eq(group, &groups[0])));
        engine.remove_group(&groups[0]).unwrap();
    }
}

/// Frees some memory each time; at first another account takes it.
#[derive(Debug)]
struct IsTaken {
    freed: Mutex<Vec<Charge>>,
    account: Account,
}

impl Shrinker for IsTaken {
    fn name(&self) -> String {
        "is-taken".into()
    }
    fn count(&self, _: &ShrinkTarget<'_>) -> Count {
        let nr = self.freed.lock().unwrap().len() as u64;
        if nr > 0 { Count::Objects(nr * 1024) } else { Count::Empty }
    }
    fn scan(&self, _: &ShrinkTarget<'_>, scanned: u64) -> Scan {
        let mut freed = self.freed.lock().unwrap();
        let Some(bytes) = freed.pop().map(|charge| charge.bytes()) else { return Scan::Stop };
        if freed.len() > 1 {
            self.account.grow(bytes);
        }
        Scan::Done(Scanned { scanned, freed_bytes: bytes, ..Scanned::default() })
    }
    fn usage(&self, _: &ShrinkTarget<'_>) -> Usage {
        Usage::default()
    }
}

#[test]
fn a_group_is_made_as_long_as_memory_comes_free() {
    let engine = crate::common::engine(64 * MIB);
    let parent = crate::common::group(&engine, "parent", 8 * MIB);
    let charges = (0..8).map(|_| engine.charge(&parent, MIB).unwrap()).collect();
    let shrinker = Arc::new(IsTaken { freed: Mutex::new(charges), account: engine.account(&parent) });
    let id = engine.reserve_shrinker();
    let number = id.get();
    let _registered = engine.register_shrinker(id, Arc::clone(&shrinker) as _);
    engine.note_objects(&parent, number);
    engine.create_group(&parent, "child".as_ref()).unwrap();
    assert_eq!(shrinker.account.bytes(), 6 * MIB);
}

/// Holds up the removal of groups named "child".
#[derive(Debug)]
struct HoldsUp {
    is_entered: Sender<()>,
    may_go_on: Mutex<Receiver<()>>,
}

impl Shrinker for HoldsUp {
    fn name(&self) -> String {
        "holds-up".into()
    }
    fn count(&self, _: &ShrinkTarget<'_>) -> Count {
        Count::Empty
    }
    fn scan(&self, _: &ShrinkTarget<'_>, _: u64) -> Scan {
        Scan::Stop
    }
    fn usage(&self, _: &ShrinkTarget<'_>) -> Usage {
        Usage::default()
    }
    fn reparent(&self, dying: &Arc<Group>, _: &Arc<Group>) {
        if *dying.name() == *"child" {
            self.is_entered.send(()).unwrap();
            self.may_go_on.lock().unwrap().recv_timeout(BOUND).unwrap();
        }
    }
}

#[test]
fn an_owned_group_goes_after_the_removals_below_it() {
    let engine = crate::common::engine(64 * MIB);
    let ((entered, is_entered), (go_on, may_go_on)) = (channel(), channel());
    let shrinker = HoldsUp { is_entered: entered, may_go_on: Mutex::new(may_go_on) };
    let _registered = engine.register_shrinker(engine.reserve_shrinker(), Arc::new(shrinker));
    let session = engine.owned_group(engine.root(), "session", &Limits::new()).unwrap();
    let [child, other] = ["child", "other"].map(|name| engine.create_group(&session, name.as_ref()).unwrap());
    thread::scope(|threads| {
        threads.spawn(|| engine.remove_group(&child).unwrap());
        is_entered.recv_timeout(BOUND).unwrap();
        threads.spawn(move || drop(session));
        // Until it is at the session itself.
        let give_up = Instant::now() + BOUND;
        while !other.is_dead() && Instant::now() < give_up {
            thread::yield_now();
        }
        go_on.send(()).unwrap();
    });
    assert!(engine.group_at("/session").is_none());
}

#[test]
fn an_owned_group_goes_with_all_below_it() {
    let engine = crate::common::engine(64 * MIB);
    let session = engine.owned_group(engine.root(), "session", &Limits::new().max(8 * MIB)).unwrap();
    let query = engine.owned_group(&session, "query", &Limits::new()).unwrap();
    let part = engine.create_group(&query, "part".as_ref()).unwrap();
    let account = engine.account(&part);
    account.try_grow(MIB).unwrap();
    drop(session);
    assert!(engine.root().children().is_empty() && part.is_dead());
    assert!(matches!(query.remove(), Err(RemoveError::Gone)));
    assert_eq!(engine.root().stat_local(StatItem::Reserved) as u64, MIB);
    drop(account);
    let kept = engine.owned_group(engine.root(), "kept", &Limits::new()).unwrap().keep();
    assert!(!kept.is_dead());
    let removed = engine.owned_group(engine.root(), "removed", &Limits::new()).unwrap();
    removed.remove().unwrap();
    assert!(engine.group_at("/removed").is_none());
}

#[test]
fn a_group_carries_a_value_of_the_embedders() {
    let engine = crate::common::engine(64 * MIB);
    let group = crate::common::group(&engine, "group", MIB);
    assert!(group.user_data::<String>().is_none());
    assert!(group.set_user_data(Some(Arc::new(String::from("a tenant")))).is_none());
    assert_eq!(*group.user_data::<String>().unwrap(), "a tenant");
    assert!(group.user_data::<u64>().is_none(), "of another type");
    let value = Arc::new(7u64);
    let before = group.set_user_data(Some(Arc::<u64>::clone(&value))).unwrap();
    assert!(before.downcast::<String>().is_ok());
    assert_eq!(*group.user_data::<u64>().unwrap(), 7);
    engine.remove_group(&group).unwrap();
    drop(group);
    assert_eq!(Arc::strong_count(&value), 1, "it goes with its group");
}

#[test]
fn exact_usage_and_what_is_available_leave_stocks_out() {
    let engine = crate::common::engine(64 * MIB);
    let parent = crate::common::group(&engine, "parent", 16 * MIB);
    let group = engine.get_or_create(&parent, "group", &Limits::new().max(32 * MIB)).unwrap();
    let account = engine.account(&group);
    for _ in 0..10 {
        account.try_grow(5000).unwrap();
    }
    thread::scope(|threads| {
        let held = threads.spawn(|| {
            for _ in 0..10 {
                account.try_grow(3000).unwrap();
            }
            // Read while both threads have stock.
            assert!(group.usage_bytes() > 80_000);
            assert_eq!(group.usage_exact(), 80_000);
            assert_eq!(parent.usage_exact(), 80_000 + GROUP_STATE_BYTES);
            assert_eq!(group.available_bytes(), 16 * MIB - 80_000 - GROUP_STATE_BYTES);
        });
        // Its stock comes back when it has ended, which the scope alone does not wait for.
        held.join().unwrap();
    });
    assert_eq!((group.effective_max_bytes(), group.max_bytes()), (16 * MIB, 32 * MIB));
    assert_eq!(engine.root().effective_max_bytes(), 64 * MIB);
    let available = group.available_bytes();
    account.try_grow(available).unwrap();
    assert_eq!((group.available_bytes(), parent.usage_exact()), (0, 16 * MIB));
    account.try_grow(1).unwrap_err();
}

#[test]
fn every_statistic_and_event_has_a_name_and_a_unit() {
    let names: HashSet<_> = StatItem::ALL.iter().map(|item| item.name()).collect();
    assert_eq!(names.len(), StatItem::ALL.len());
    let events: HashSet<_> = EventKind::ALL.iter().map(|kind| kind.name()).collect();
    assert_eq!(events.len(), EventKind::ALL.len());
    for name in names.iter().chain(&events) {
        assert!(
            name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_') && !name.is_empty(),
            "{name}"
        );
    }
    assert!(StatItem::CHARGED.iter().all(|item| item.unit() == StatUnit::Bytes));
    let of = |item: StatItem| (item.name(), item.unit());
    assert_eq!(of(StatItem::SlabReclaimable), ("slab_reclaimable", StatUnit::Bytes));
    assert_eq!(of(StatItem::PgScanDirect), ("pgscan_direct", StatUnit::Pages));
    assert_eq!(of(StatItem::AllocStall), ("allocstall", StatUnit::Events));
}

#[test]
fn a_snapshot_sees_every_group_once_with_its_figures() {
    const NR_TENANTS: u64 = 2000;
    let engine = crate::common::engine(256 * MIB);
    let tenants = engine.get_or_create(engine.root(), "tenants", &Limits::new()).unwrap();
    let accounts: Vec<_> = (0..NR_TENANTS)
        .map(|number| {
            let limits = Limits::new().max(MIB + number * 4096);
            let group = engine.get_or_create(&tenants, format!("{number}"), &limits).unwrap();
            let account = engine.account(&group);
            account.try_grow(1 + number).unwrap();
            account.try_grow(group.max_bytes()).unwrap_err();
            account
        })
        .collect();
    let mut seen = HashMap::new();
    engine.snapshot(|figures| {
        let of = (
            figures.usage_bytes,
            figures.max_bytes,
            figures.stat_total(StatItem::Reserved),
            figures.event_count_local(EventKind::Max),
        );
        assert!(seen.insert(figures.path.to_owned(), of).is_none(), "{}", figures.path.display());
    });
    assert_eq!(seen.len() as u64, NR_TENANTS + 2);
    for (number, account) in (0..NR_TENANTS).zip(&accounts) {
        let max = MIB + number * 4096;
        let expected = (1 + number, max, 1 + number, 1);
        assert_eq!(seen[&account.group().path()], expected);
    }
    let all: u64 = accounts.iter().map(|account| account.bytes()).sum();
    let of_tenants = &seen[std::path::Path::new("/tenants")];
    assert_eq!((of_tenants.0, of_tenants.2), (all + NR_TENANTS * GROUP_STATE_BYTES, all));
    assert_eq!((of_tenants.1, tenants.max_bytes()), (UNLIMITED, UNLIMITED));
}

#[test]
fn a_snapshot_ends_while_groups_come_and_go() {
    let engine = crate::common::engine(64 * MIB);
    let is_over = AtomicBool::new(false);
    thread::scope(|threads| {
        for number in 0..2 {
            let (engine, is_over) = (&engine, &is_over);
            threads.spawn(move || {
                while !is_over.load(Relaxed) {
                    let name = format!("{number}");
                    let group = engine.owned_group(engine.root(), &name, &Limits::new()).unwrap();
                    let below = engine.owned_group(&group, "below", &Limits::new()).unwrap();
                    engine.account(&below).try_grow(100).unwrap();
                }
            });
        }
        for _ in 0..300 {
            let mut nr_seen = 0;
            // Nothing is locked meanwhile.
            engine.snapshot(|figures| {
                nr_seen += 1;
                let name = format!("seen-{nr_seen}");
                if nr_seen == 1 {
                    drop(engine.owned_group(figures.group, name, &Limits::new()).unwrap());
                }
            });
            // Each group made meanwhile may be seen.
            assert!((1..1000).contains(&nr_seen), "{nr_seen}");
        }
        is_over.store(true, Relaxed);
    });
}
