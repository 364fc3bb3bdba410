//! Waits for memory: with a deadline and as futures, in order, cancelled, and beside guarantees.

use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread, ThreadId};
use std::time::{Duration, Instant};

use umemcg::shrinker::{Count, Scan, Scanned, ShrinkTarget, Shrinker, Usage};
use umemcg::{Account, Charge, Engine, EventKind, Group, Refusal, StatItem};

const MIB: u64 = 1 << 20;
/// Longer than anything here takes.
const BOUND: Duration = Duration::from_secs(30);

fn soon() -> Instant {
    Instant::now() + BOUND
}

fn child(engine: &Engine, parent: &Arc<Group>, name: &str) -> Arc<Group> {
    engine.create_group(parent, name.as_ref()).unwrap()
}

fn assert_nothing_held(engine: &Engine) {
    assert_eq!(engine.root().stat_total(StatItem::Reserved), 0);
}

/// Waits until `is_so`; panics after the bound.
fn until(what: &str, is_so: impl Fn() -> bool) {
    let give_up = soon();
    while !is_so() {
        assert!(Instant::now() < give_up, "waited {BOUND:?} in vain until {what}");
        thread::yield_now();
    }
}

struct Unparks {
    thread: Thread,
    is_woken: AtomicBool,
    nr_wakes: AtomicU32,
}

impl Wake for Unparks {
    fn wake(self: Arc<Self>) {
        self.nr_wakes.fetch_add(1, Relaxed);
        self.is_woken.store(true, Relaxed);
        self.thread.unpark();
    }
}

fn unparks() -> Arc<Unparks> {
    let thread = thread::current();
    Arc::new(Unparks { thread, is_woken: AtomicBool::new(false), nr_wakes: AtomicU32::new(0) })
}

/// Runs a future, polling it only when it is woken.
fn block_on<R>(future: impl Future<Output = R>) -> R {
    let mut future = pin!(future);
    let wakes = unparks();
    let waker = Waker::from(Arc::clone(&wakes));
    let give_up = soon();
    loop {
        if let Poll::Ready(result) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return result;
        }
        while !wakes.is_woken.swap(false, Relaxed) {
            assert!(Instant::now() < give_up, "a future was not woken for {BOUND:?}");
            thread::park_timeout(Duration::from_millis(100));
        }
    }
}

fn poll_once<R>(future: std::pin::Pin<&mut impl Future<Output = R>>) -> Poll<R> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

#[test]
fn a_wait_ends_when_accounts_give_back() {
    let engine = crate::common::engine(64 * MIB);
    let group = crate::common::group(&engine, "group", 8 * MIB);
    let account = engine.account(&group);
    account.try_grow(7 * MIB).unwrap();
    thread::scope(|threads| {
        let blocking = threads.spawn(|| engine.reserve_until(&group, 3 * MIB, soon()).unwrap());
        let asynchronous = threads.spawn(|| block_on(engine.reserve_async(&group, 3 * MIB)).unwrap());
        until("both wait", || group.usage_bytes() > 7 * MIB);
        account.shrink(3 * MIB);
        account.shrink(3 * MIB);
        let (first, second) = (blocking.join().unwrap(), asynchronous.join().unwrap());
        assert_eq!((first.bytes(), second.bytes()), (3 * MIB, 3 * MIB));
    });
    drop(account);
    assert_nothing_held(&engine);
    // The refusals of a wait are one.
    assert!(group.event_count(EventKind::Max) <= 2 && group.event_count(EventKind::Oom) == 0);
}

#[test]
fn a_wait_ends_when_other_charges_are_dropped() {
    let engine = crate::common::engine(64 * MIB);
    let group = crate::common::group(&engine, "group", 8 * MIB);
    let charge = engine.charge(&group, 6 * MIB).unwrap();
    thread::scope(|threads| {
        let waiting = threads.spawn(|| block_on(engine.reserve_async(&group, 4 * MIB)).unwrap().bytes());
        until("it waits", || group.event_count(EventKind::Max) > 0);
        drop(charge);
        assert_eq!(waiting.join().unwrap(), 4 * MIB);
    });
    assert_nothing_held(&engine);
}

#[test]
fn a_wait_ends_when_a_limit_rises() {
    let engine = crate::common::engine(64 * MIB);
    let group = crate::common::group(&engine, "group", 4 * MIB);
    let held = engine.reserve(&group, 3 * MIB).unwrap();
    thread::scope(|threads| {
        let waiting = threads.spawn(|| block_on(engine.reserve_async(&group, 3 * MIB)).unwrap().bytes());
        until("it waits", || group.event_count(EventKind::Max) > 0);
        engine.set_max(&group, 8 * MIB);
        assert_eq!(waiting.join().unwrap(), 3 * MIB);
    });
    drop(held);
    assert_nothing_held(&engine);
}

#[test]
fn a_wait_ends_when_its_group_and_limit_are_removed() {
    let engine = crate::common::engine(64 * MIB);
    let group = crate::common::group(&engine, "group", 4 * MIB);
    let held = engine.reserve(&group, 3 * MIB).unwrap();
    thread::scope(|threads| {
        let waiting = threads.spawn(|| block_on(engine.reserve_async(&group, 3 * MIB)).unwrap());
        until("it waits", || group.event_count(EventKind::Max) > 0);
        engine.remove_group(&group).unwrap();
        let late = waiting.join().unwrap();
        assert_eq!(engine.root().stat_local(StatItem::Reserved) as u64, held.bytes() + late.bytes());
    });
    drop(held);
    assert_nothing_held(&engine);
}

#[test]
fn a_deadline_ends_a_wait_with_all_the_numbers() {
    let engine = crate::common::engine(64 * MIB);
    let group = crate::common::group(&engine, "group", 8 * MIB);
    let held = engine.reserve(&group, 5 * MIB).unwrap();
    let deadline = Instant::now() + Duration::from_millis(50);
    let refused = engine.reserve_until(&group, 5 * MIB, deadline).unwrap_err();
    let Refusal::NotNow { group: at, wanted, .. } = &refused else { panic!("{refused:?}") };
    assert!(Arc::ptr_eq(at, &group));
    assert_eq!((*wanted, held.bytes()), (5 * MIB, 5 * MIB));
    // One that is behind another waiter is told no less.
    thread::scope(|threads| {
        let first = threads.spawn(|| engine.reserve_until(&group, 6 * MIB, soon()).unwrap().bytes());
        until("it waits", || group.event_count(EventKind::Max) > 1);
        let behind = engine.reserve_until(&group, 7 * MIB, Instant::now()).unwrap_err();
        assert!(matches!(behind, Refusal::NotNow { wanted, .. } if wanted == 7 * MIB), "{behind}");
        drop(held);
        assert_eq!(first.join().unwrap(), 6 * MIB);
    });
    let never = engine.reserve_until(&group, 9 * MIB, soon()).unwrap_err();
    assert!(matches!(never, Refusal::Never { limit, .. } if limit == 8 * MIB), "{never}");
    assert_nothing_held(&engine);
}

#[test]
fn waiters_of_a_group_are_served_in_their_order() {
    let engine = crate::common::engine(64 * MIB);
    let group = crate::common::group(&engine, "group", 8 * MIB);
    let held = engine.reserve(&group, 8 * MIB - 4096).unwrap();
    let mut large = pin!(engine.reserve_async(&group, 7 * MIB));
    let mut small = pin!(engine.reserve_async(&group, MIB / 2));
    assert!(poll_once(large.as_mut()).is_pending() && poll_once(small.as_mut()).is_pending());
    held.shrink(MIB);
    assert!(poll_once(small.as_mut()).is_pending(), "there is room, and another one came before");
    assert!(poll_once(large.as_mut()).is_pending());
    drop(held);
    let large = block_on(large).unwrap();
    let small = block_on(small).unwrap();
    assert_eq!((large.bytes(), small.bytes()), (7 * MIB, MIB / 2));
    drop((large, small));
    assert_nothing_held(&engine);
}

#[test]
fn a_large_waiter_is_not_starved_by_small_accounts() {
    const NR_SMALL: usize = 3;
    let engine = crate::common::engine(64 * MIB);
    let group = crate::common::group(&engine, "group", 16 * MIB);
    let is_over = AtomicBool::new(false);
    thread::scope(|threads| {
        for _ in 0..NR_SMALL {
            threads.spawn(|| {
                let account = engine.account(&group);
                let give_up = soon();
                while !is_over.load(Relaxed) && Instant::now() < give_up {
                    while account.bytes() < 8 * MIB && account.try_grow(64 << 10).is_ok() {}
                    account.shrink(account.bytes() / 2);
                }
            });
        }
        until("the group is full", || group.event_count(EventKind::Max) > 0);
        let large = engine.reserve_until(&group, 12 * MIB, soon());
        is_over.store(true, Relaxed);
        assert_eq!(large.unwrap().bytes(), 12 * MIB);
    });
    assert_nothing_held(&engine);
}

#[test]
fn one_tenants_wait_does_not_hold_up_another() {
    let engine = crate::common::engine(32 * MIB);
    let [a, b] = ["a", "b"].map(|name| child(&engine, engine.root(), name));
    let held = engine.reserve(&a, 16 * MIB).unwrap();
    // Wants more than the pool has left, and waits for it with what it got.
    let mut large = pin!(engine.reserve_async(&a, 28 * MIB));
    for _ in 0..100 {
        assert!(poll_once(large.as_mut()).is_pending());
    }
    // Both tenants' memory is the pool's; what a gives back, b may have.
    held.shrink(8 * MIB);
    let other = block_on(engine.reserve_async(&b, 4 * MIB)).unwrap();
    assert_eq!(other.bytes(), 4 * MIB);
    drop((held, other));
    assert_eq!(block_on(large).unwrap().bytes(), 28 * MIB);
    assert_nothing_held(&engine);
}

#[test]
fn nested_groups_do_not_wait_for_each_others_parts() {
    let engine = crate::common::engine(64 * MIB);
    let outer = crate::common::group(&engine, "outer", 10 * MIB);
    let inner = child(&engine, &outer, "inner");
    let account = engine.account(&child(&engine, engine.root(), "other"));
    while account.try_grow(MIB).is_ok() || account.try_grow(4096).is_ok() {}
    let mut first = pin!(engine.reserve_async(&inner, 6 * MIB + MIB / 4));
    let mut second = pin!(engine.reserve_async(&outer, 8 * MIB));
    assert!(poll_once(first.as_mut()).is_pending() && poll_once(second.as_mut()).is_pending());
    account.shrink(6 * MIB);
    // The root refuses the rest of the first one; the second one does not fit beside it.
    assert!(poll_once(first.as_mut()).is_pending() && poll_once(second.as_mut()).is_pending());
    account.shrink(3 * MIB + MIB / 4);
    assert!(poll_once(second.as_mut()).is_pending());
    let Poll::Ready(first) = poll_once(first.as_mut()) else { panic!("each waits for the other's part") };
    drop(first);
    assert_eq!(block_on(second).unwrap().bytes(), 8 * MIB);
    drop(account);
    assert_nothing_held(&engine);
}

#[test]
fn a_cancelled_wait_gives_back_its_part_and_its_place() {
    let engine = crate::common::engine(64 * MIB);
    let group = crate::common::group(&engine, "group", 8 * MIB);
    let held = engine.reserve(&group, 5 * MIB).unwrap();
    let mut first = Box::pin(engine.reserve_async(&group, 6 * MIB));
    assert!(poll_once(first.as_mut()).is_pending());
    assert!(group.usage_bytes() > 6 * MIB, "the first in line keeps what it gets");
    thread::scope(|threads| {
        let second = threads.spawn(|| block_on(engine.reserve_async(&group, 2 * MIB)).unwrap().bytes());
        drop(first);
        assert_eq!(second.join().unwrap(), 2 * MIB);
    });
    drop(engine.reserve_async(&group, 1));
    drop(held);
    assert_nothing_held(&engine);
}

#[test]
fn accounts_leave_room_for_what_is_guaranteed_to_others() {
    let engine = crate::common::engine(64 * MIB);
    let [owner, other] = ["owner", "other"].map(|name| child(&engine, engine.root(), name));
    let account = engine.account(&other);
    account.try_grow(30 * MIB).unwrap();
    let share = engine.guarantee(&owner, 24 * MIB).unwrap();
    let refused = account.try_grow(11 * MIB).unwrap_err();
    let Refusal::Overcommitted { group, wanted, available } = &refused else { panic!("{refused:?}") };
    assert!(group.is_root() && refused.may_pass());
    assert_eq!((*wanted, *available), (11 * MIB, 10 * MIB));
    assert_eq!((account.bytes(), account.peak()), (30 * MIB, 30 * MIB));
    account.try_grow(9 * MIB).unwrap();
    let own = share.reserve(24 * MIB).unwrap();
    drop(own);
    thread::scope(|threads| {
        let waiting = threads.spawn(|| engine.reserve_until(&other, 20 * MIB, soon()).unwrap().bytes());
        until("it waits", || other.stat_total(StatItem::Reserved) as u64 > 39 * MIB);
        drop(share);
        assert_eq!(waiting.join().unwrap(), 20 * MIB);
    });
    drop(account);
    assert_nothing_held(&engine);
}

/// Memory that reclaim frees, while another account grows.
#[derive(Debug)]
struct Disturbs {
    freed: Mutex<Option<Charge>>,
    other: Arc<Account>,
}

impl Shrinker for Disturbs {
    fn name(&self) -> String {
        "disturbs".into()
    }
    fn count(&self, _: &ShrinkTarget<'_>) -> Count {
        if self.freed.lock().unwrap().is_some() { Count::Objects(1024) } else { Count::Empty }
    }
    fn scan(&self, _: &ShrinkTarget<'_>, scanned: u64) -> Scan {
        let Some(freed) = self.freed.lock().unwrap().take() else { return Scan::Stop };
        self.other.grow(4 * MIB);
        Scan::Done(Scanned { scanned, freed_bytes: freed.bytes(), ..Scanned::default() })
    }
    fn usage(&self, _: &ShrinkTarget<'_>) -> Usage {
        Usage::default()
    }
}

/// Gives back when it is woken by a thread.
struct GivesWay {
    thread: ThreadId,
    other: Arc<Account>,
}

impl Wake for GivesWay {
    fn wake(self: Arc<Self>) {
        if thread::current().id() == self.thread {
            self.other.clear();
        }
    }
}

#[test]
fn an_account_that_meets_another_tries_once_more() {
    let engine = crate::common::engine(16 * MIB);
    let owner = child(&engine, engine.root(), "owner");
    let group = crate::common::group(&engine, "group", 8 * MIB);
    let _share = engine.guarantee(&owner, 8 * MIB).unwrap();
    let other = Arc::new(engine.account(engine.root()));
    let freed = Mutex::new(Some(engine.charge(&group, 5 * MIB).unwrap()));
    let mut waiting = pin!(engine.reserve_async(&group, 4 * MIB));
    let waker = Waker::from(Arc::new(GivesWay { thread: thread::current().id(), other: Arc::clone(&other) }));
    (0..2).for_each(|_| assert!(waiting.as_mut().poll(&mut Context::from_waker(&waker)).is_pending()));
    let id = engine.reserve_shrinker();
    let number = id.get();
    let _registered = engine.register_shrinker(id, Arc::new(Disturbs { freed, other: Arc::clone(&other) }));
    engine.note_objects(&group, number);
    // Beside the guarantee and what the waiter has, there is room for this one or the other. Both
    // see both, and the other one gives way.
    let account = engine.account(&group);
    account.try_grow(4 * MIB).unwrap();
    assert_eq!((account.bytes(), other.bytes()), (4 * MIB, 0));
    assert_eq!(group.event_count(EventKind::Max), 2, "one for each refusal");
}

#[test]
fn guarantees_and_growing_accounts_never_overcommit_together() {
    const POOL: u64 = 64 * MIB;
    let engine = crate::common::engine(POOL);
    let [owner, other] = ["owner", "other"].map(|name| child(&engine, engine.root(), name));
    for round in 0..300u64 {
        let account = engine.account(&other);
        let start = std::sync::Barrier::new(2);
        let share = thread::scope(|threads| {
            threads.spawn(|| {
                start.wait();
                while account.try_grow(3 * MIB).is_ok() {}
            });
            start.wait();
            (0..round % 50).for_each(|_| std::hint::spin_loop());
            engine.guarantee(&owner, 40 * MIB)
        });
        match share {
            Ok(share) => {
                assert!(account.bytes() <= POOL - 40 * MIB, "{} held beside 40 MiB", account.bytes());
                assert_eq!(share.reserve(40 * MIB - 4 * MIB).unwrap().bytes(), 36 * MIB);
            }
            Err(refused) => assert!(matches!(refused, Refusal::Overcommitted { .. }), "{refused}"),
        }
    }
    assert_nothing_held(&engine);
}

#[test]
fn many_waiters_of_many_groups_all_get_their_memory() {
    const NR_GROUPS: usize = 4;
    const NR_ROUNDS: u64 = 40;
    let engine = crate::common::engine(32 * MIB);
    let parent = crate::common::group(&engine, "parent", 12 * MIB);
    let groups: Vec<_> = (0..NR_GROUPS).map(|number| child(&engine, &parent, &format!("{number}"))).collect();
    engine.set_max(&groups[0], 4 * MIB);
    thread::scope(|threads| {
        for group in groups.iter().chain(&groups) {
            let engine = &engine;
            threads.spawn(move || {
                for round in 0..NR_ROUNDS {
                    let bytes = (1 + round * 7 % 4) * MIB - 4096;
                    let held: Result<Account, Refusal> = if round % 2 == 0 {
                        block_on(engine.reserve_async(group, bytes))
                    } else {
                        engine.reserve_until(group, bytes, soon())
                    };
                    assert_eq!(held.unwrap().bytes(), bytes);
                }
            });
        }
    });
    assert_nothing_held(&engine);
    groups.iter().for_each(|group| group.drain_stocks());
    assert!(groups.iter().all(|group| group.usage_bytes() == 0));
}
