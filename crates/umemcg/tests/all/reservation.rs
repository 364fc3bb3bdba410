//! Guarantees and reservations: what is lent comes back, whichever group has borrowed it.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

use crate::common::MemStore;
use umemcg::files::{File, Readahead};
use umemcg::{Engine, EventKind, Group, Refusal, StatItem};

const MIB: u64 = 1 << 20;

fn child(engine: &Engine, parent: &Arc<Group>, name: &str) -> Arc<Group> {
    engine.create_group(parent, name.as_ref()).unwrap()
}

fn read(file: &Arc<File>, group: &Arc<Group>, bytes: u64) {
    let readahead = Readahead::new();
    let mut offset = 0;
    while offset < bytes {
        offset += file.read(group, offset, 1 << 20, &readahead).unwrap().len() as u64;
    }
}

fn is_nothing_held(engine: &Engine, groups: &[&Arc<Group>]) -> bool {
    groups.iter().all(|group| {
        group.drain_stocks();
        group.stat_total(StatItem::Reserved) == 0 && group.guaranteed_bytes() == 0
    }) && engine.root().stat_total(StatItem::Reserved) == 0
}

#[test]
fn a_reservation_is_counted_grows_shrinks_and_gives_itself_back() {
    let engine = crate::common::engine(64 * MIB);
    let group = crate::common::group(&engine, "group", 16 * MIB);
    let held = engine.reserve(&group, 5 * MIB + 123).unwrap();
    let counted = || group.stat_local(StatItem::Reserved) as u64;
    assert_eq!((held.bytes(), counted()), (5 * MIB + 123, 5 * MIB + 123));
    held.merge(engine.reserve(&group, MIB).unwrap());
    held.shrink(2 * MIB + 100);
    assert_eq!((held.bytes(), counted()), (4 * MIB + 23, 4 * MIB + 23));
    assert!(group.usage_bytes() >= held.bytes());
    let refused = engine.reserve(&group, 13 * MIB).unwrap_err();
    let Refusal::NotNow { wanted, reclaimable, .. } = refused else { panic!("{refused:?}") };
    assert_eq!((wanted, reclaimable), (13 * MIB, 0));
    assert_eq!((held.bytes(), counted()), (4 * MIB + 23, 4 * MIB + 23));
    drop(held);
    assert!(is_nothing_held(&engine, &[&group]));
    assert_eq!(group.usage_bytes(), 0);
}

#[test]
fn a_reservation_of_a_removed_group_is_its_parents() {
    let engine = crate::common::engine(64 * MIB);
    let parent = child(&engine, engine.root(), "parent");
    let group = child(&engine, &parent, "group");
    let held = engine.reserve(&group, 3 * MIB).unwrap();
    let share = engine.guarantee(&group, 8 * MIB).unwrap();
    engine.remove_group(&group).unwrap();
    held.merge(engine.reserve(&group, 2 * MIB).unwrap());
    assert_eq!(parent.stat_local(StatItem::Reserved) as u64, 5 * MIB);
    assert_eq!(parent.guaranteed_bytes(), 8 * MIB);
    held.shrink(4 * MIB);
    assert_eq!((held.bytes(), parent.stat_local(StatItem::Reserved) as u64), (MIB, MIB));
    drop((held, share));
    assert!(is_nothing_held(&engine, &[&parent]));
}

#[test]
fn the_idle_part_of_a_guarantee_is_lent_and_comes_back() {
    let engine = crate::common::engine(96 * MIB);
    let owner = child(&engine, engine.root(), "owner");
    let borrowers = child(&engine, engine.root(), "borrowers");
    let clean = child(&engine, &borrowers, "clean");
    let share = engine.guarantee(&owner, 64 * MIB).unwrap();
    // All of the pool is another group's…
    let store = MemStore::with(&vec![7; 90 << 20]);
    let file = engine.open_file(store, 90 * MIB).unwrap();
    read(&file, &clean, 90 * MIB);
    assert!(borrowers.usage_bytes() > 80 * MIB, "{}", borrowers.usage_bytes());
    // … until it is wanted.
    let start = Instant::now();
    let held = share.reserve(64 * MIB).unwrap();
    let pages = 64 * MIB / 4096;
    println!(
        "64 MiB of clean pages taken back in {:?}, {:?} a page",
        start.elapsed(),
        start.elapsed() / pages as u32
    );
    assert!(owner.usage_bytes() >= 64 * MIB && borrowers.usage_bytes() <= 32 * MIB);
    drop(held);
    // Lent out again.
    read(&file, &clean, 90 * MIB);
    assert!(borrowers.usage_bytes() > 80 * MIB, "{}", borrowers.usage_bytes());
    drop(share);
    assert!(is_nothing_held(&engine, &[&owner, &borrowers]));
}

#[test]
fn dirty_data_is_written_first_and_none_of_it_is_lost() {
    let engine = crate::common::engine(48 * MIB);
    let [owner, borrower] = ["owner", "borrower"].map(|name| child(&engine, engine.root(), name));
    let share = engine.guarantee(&owner, 40 * MIB).unwrap();
    let store = MemStore::new();
    let file = engine.open_file(Arc::clone(&store) as _, 0).unwrap();
    let data = crate::common::pattern(3, 0, 40 << 20);
    for (number, chunk) in data.chunks(1 << 20).enumerate() {
        file.write(&borrower, number as u64 * MIB, chunk).unwrap();
    }
    let dirty = engine.root().stat_total(StatItem::FileDirty);
    let start = Instant::now();
    let held = share.reserve(40 * MIB).unwrap();
    println!("40 MiB taken back in {:?}, {dirty} bytes of them dirty at first", start.elapsed());
    assert!(borrower.usage_bytes() <= 8 * MIB);
    drop(held);
    assert!(engine.sync_all(Duration::from_secs(60)).is_empty());
    assert!(store.live() == data, "what was written is what is in the store");
}

#[test]
fn a_reservation_outlasts_a_store_that_hangs_for_a_while() {
    let engine = crate::common::engine(48 * MIB);
    let [owner, borrower] = ["owner", "borrower"].map(|name| child(&engine, engine.root(), name));
    let share = engine.guarantee(&owner, 40 * MIB).unwrap();
    let store = MemStore::new();
    let file = engine.open_file(Arc::clone(&store) as _, 0).unwrap();
    store.hang();
    for at in 0..16 {
        file.write(&borrower, at * MIB, &vec![1; 1 << 20]).unwrap();
    }
    std::thread::scope(|threads| {
        let taking_back = threads.spawn(|| share.reserve(40 * MIB).unwrap());
        // Until all that is clean has gone, and it waits for what is not.
        let give_up = Instant::now() + Duration::from_secs(60);
        while owner.usage_bytes() < 24 * MIB {
            assert!(Instant::now() < give_up, "{} of 24 MiB were taken back", owner.usage_bytes());
            std::thread::yield_now();
        }
        store.release();
        drop(taking_back.join().unwrap());
    });
    assert_eq!(engine.root().event_count(umemcg::EventKind::Oom), 0, "no charge was refused");
    assert!(engine.sync_all(Duration::from_secs(60)).is_empty());
}

/// A pool of 48 MiB, 16 of them dirty, whose store hangs until told otherwise.
fn with_dirty_data() -> (Arc<Engine>, Arc<MemStore>, Arc<File>) {
    let engine = crate::common::engine(48 * MIB);
    let borrower = child(&engine, engine.root(), "borrower");
    let store = MemStore::new();
    let file = engine.open_file(Arc::clone(&store) as _, 0).unwrap();
    store.hang();
    (0..16).for_each(|at| file.write(&borrower, at * MIB, &vec![1; 1 << 20]).map(drop).unwrap());
    (engine, store, file)
}

/// Reserves; once it has been refused and waits, the store goes on.
fn reserve_until_written(engine: &Arc<Engine>, group: &Arc<Group>, bytes: u64, store: &MemStore) {
    let refusals = engine.root().event_count(EventKind::Max);
    std::thread::scope(|threads| {
        let reserving = threads.spawn(|| engine.reserve(group, bytes).map(drop));
        let give_up = Instant::now() + Duration::from_secs(60);
        while engine.root().event_count(EventKind::Max) == refusals && Instant::now() < give_up {
            std::thread::yield_now();
        }
        store.release();
        reserving.join().unwrap().unwrap();
    });
    assert!(engine.sync_all(Duration::from_secs(60)).is_empty());
}

#[test]
fn a_share_is_had_whatever_guarantees_refuse_to_others() {
    let (engine, store, _file) = with_dirty_data();
    let [owner, other] = ["owner", "other"].map(|name| child(&engine, engine.root(), name));
    let _share = engine.guarantee(&owner, 40 * MIB).unwrap();
    let mut waits = pin!(engine.reserve_async(&other, 44 * MIB));
    assert!(waits.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    reserve_until_written(&engine, &owner, 40 * MIB, &store);
}

#[test]
fn clean_data_is_had_whichever_waiter_came_first() {
    let (engine, store, _file) = with_dirty_data();
    let [first, second] = ["first", "second"].map(|name| child(&engine, engine.root(), name));
    let mut context = Context::from_waker(Waker::noop());
    let mut waits = pin!(engine.reserve_async(&first, 44 * MIB));
    // It takes all but what is dirty; then it is not asked to go on.
    (0..16).for_each(|_| assert!(waits.as_mut().poll(&mut context).is_pending()));
    let mut reserving = pin!(engine.reserve_async(&second, 8 * MIB));
    // What it found is taken and given back before it waits.
    (0..8).for_each(|_| assert!(reserving.as_mut().poll(&mut context).is_pending()));
    assert_eq!(second.stat_total(StatItem::Reserved), 0);
    store.release();
    assert!(engine.sync_all(Duration::from_secs(60)).is_empty());
    let give_up = Instant::now() + Duration::from_secs(60);
    while reserving.as_mut().poll(&mut context).is_pending() {
        assert!(Instant::now() < give_up, "it waits while 16 MiB are clean");
        std::thread::yield_now();
    }
}

#[test]
fn a_used_guarantee_stays_under_pressure_at_every_depth() {
    let engine = crate::common::engine(64 * MIB);
    let department = child(&engine, engine.root(), "department");
    let [owner, colleague] = ["owner", "colleague"].map(|name| child(&engine, &department, name));
    let stranger = child(&engine, engine.root(), "stranger");
    let share = engine.guarantee(&owner, 16 * MIB).unwrap();
    assert_eq!(department.guaranteed_bytes(), 16 * MIB, "what is promised below is promised above");
    let zeros = |bytes: u64| engine.open_file(MemStore::with(&vec![0; bytes as usize]), bytes).unwrap();
    let files = [zeros(14 * MIB), zeros(20 * MIB), zeros(100 * MIB)];
    read(&files[0], &owner, 14 * MIB);
    read(&files[1], &colleague, 20 * MIB);
    read(&files[2], &stranger, 100 * MIB);
    assert!(owner.usage_bytes() >= 14 * MIB, "{}", owner.usage_bytes());
    drop(share);
    read(&files[2], &stranger, 100 * MIB);
    assert!(owner.usage_bytes() < 14 * MIB, "{}", owner.usage_bytes());
}

#[test]
fn guarantees_hold_while_all_groups_borrow_and_take_back() {
    const NR_OWNERS: u64 = 3;
    let engine = crate::common::engine(64 * MIB);
    let borrower = child(&engine, engine.root(), "borrower");
    let file = engine.open_file(MemStore::with(&vec![1; 80 << 20]), 80 * MIB).unwrap();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|threads| {
        let borrowing = threads.spawn(|| {
            while !is_over.load(Relaxed) {
                read(&file, &borrower, 80 * MIB);
            }
        });
        let owners: Vec<_> = (0..NR_OWNERS)
            .map(|number| {
                let engine = Arc::clone(&engine);
                threads.spawn(move || {
                    let owner = child(&engine, engine.root(), &format!("owner{number}"));
                    let share = engine.guarantee(&owner, 16 * MIB).unwrap();
                    for round in 0..8 {
                        let held = share.reserve((1 + round % 16) * MIB).unwrap();
                        assert!(owner.usage_bytes() >= held.bytes());
                    }
                    drop(share);
                    assert_eq!((owner.stat_total(StatItem::Reserved), owner.guaranteed_bytes()), (0, 0));
                })
            })
            .collect();
        let ended: Vec<_> = owners.into_iter().map(|owner| owner.join()).collect();
        is_over.store(true, Relaxed);
        borrowing.join().unwrap();
        ended.into_iter().for_each(|owner| owner.unwrap());
    });
    assert!(is_nothing_held(&engine, &[&borrower]));
}
