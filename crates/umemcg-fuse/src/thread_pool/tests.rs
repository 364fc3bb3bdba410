//! Tests of the pool, without threads of its own.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use tracing::Level;

use super::*;
use crate::testing::levels_of;

#[derive(Debug, PartialEq, Eq)]
struct Job(u32);

impl Waiting for Job {
    fn is_finished(&self) -> bool {
        false
    }
}

/// An abandoned request that releases something under a lock.
struct Killed(Arc<LeafMutex<usize>>);

impl Waiting for Killed {
    fn is_finished(&self) -> bool {
        true
    }
}

impl Drop for Killed {
    fn drop(&mut self) {
        *self.0.lock() += 1;
    }
}

fn pool<J: Waiting>(running_max: usize) -> Pool<J> {
    let limits = PoolLimits {
        readers_min: 1,
        readers_max: 2,
        running_max,
        all_max: 2 * running_max,
        computing_max: 100,
        spare_life: Duration::ZERO,
    };
    let pool = Pool::new(limits, false);
    pool.open(|| Ok(())).unwrap();
    pool
}

/// Starts a request or lets it wait.
fn ask(pool: &Pool<Job>, group: u64, store: u64, job: u32) -> Start {
    let keys = Keys::single(group, store);
    let start = pool.start(keys, || Ok(()));
    if start == Start::Wait {
        assert!(pool.enqueue(keys, Job(job), || Ok(()), || Ok(())).is_none());
    }
    start
}

fn started(start: Start) -> Option<Started> {
    if let Start::Run(started) = start { Some(started) } else { None }
}

fn picked(next: Next<Job>) -> Option<(Keys, Job)> {
    if let Next::Run(started, job) = next { Some((started.keys, job)) } else { None }
}

#[test]
fn what_was_killed_while_it_waited_goes_with_no_lock_held() {
    let (pool, nr_gone) = (pool::<Killed>(4), Arc::<LeafMutex<usize>>::default());
    let keys = Keys::single(1, 1);
    while started(pool.start(keys, || Ok(()))).is_some() {}
    while *nr_gone.lock() == 0 {
        assert!(pool.enqueue(keys, Killed(Arc::clone(&nr_gone)), || Ok(()), || Ok(())).is_none());
    }
    assert_eq!(*nr_gone.lock(), 64);
    assert_eq!(pool.pool_counts().nr_waiting, 1);
}

/// The program's log limits the rate of warnings, and not of errors.
#[test]
fn a_thread_that_the_system_refuses_is_a_warning() {
    let pool = pool(16);
    assert!(matches!(ask(&pool, 1, 1, 0), Start::Run(_)));
    let levels = levels_of(|| {
        let start = pool.start(Keys::single(2, 2), || Err(std::io::ErrorKind::WouldBlock.into()));
        assert_eq!(start, Start::Wait);
    });
    assert_eq!(levels, [Level::WARN]);
}

#[test]
fn a_reader_always_remains() {
    let pool = pool(16);
    for n in 0..8 {
        assert!(matches!(ask(&pool, n, n, 0), Start::Run(_)));
        assert!(pool.pool_counts().nr_readers >= 1);
    }
    assert_eq!(pool.pool_counts().nr_threads, 9);
}

#[test]
fn without_more_threads_the_last_reader_stays_at_the_device() {
    let pool = pool(16);
    let refuse = || Err(std::io::ErrorKind::WouldBlock.into());
    let keys = |n| Keys::single(n, n);
    let Start::Run(first) = pool.start(keys(1), refuse) else { panic!("it may start") };
    assert_eq!(pool.start(keys(2), refuse), Start::Wait);
    assert_eq!(pool.enqueue(keys(2), Job(2), refuse, refuse), None);
    assert_eq!(picked(pool.finish(&first, refuse)), Some((keys(2), Job(2))));
}

#[test]
fn what_may_run_since_it_was_told_to_wait_is_run() {
    let pool = pool(4);
    let keys = Keys::single(1, 1);
    let mut running = Vec::new();
    while let Start::Run(started) = pool.start(keys, || Ok(())) {
        running.push(started);
    }
    let nr_running = pool.pool_counts().nr_running;
    for _ in 0..nr_running {
        assert_eq!(pool.finish(&running.pop().unwrap(), || Ok(())), Next::Read);
    }
    let next = pool.enqueue(keys, Job(1), || Ok(()), || Ok(()));
    assert_eq!(next.map(|(started, job)| (started.keys, job)), Some((keys, Job(1))));
}

#[test]
fn what_else_may_run_does_not_wait_for_what_was_picked() {
    let pool = pool(4);
    let keys = |n| Keys::single(n, n);
    // So many first requests run that further ones wait.
    let running: Vec<Started> = (0..8).filter_map(|n| started(ask(&pool, n, n, 0))).collect();
    assert_eq!(running.len(), 8);
    (8..10).for_each(|n| assert_eq!(ask(&pool, n, n, n as u32), Start::Wait));
    let started = std::cell::Cell::new(0);
    let spawn = || {
        started.set(started.get() + 1);
        Ok(())
    };
    assert_eq!(picked(pool.finish(&running[0], spawn)), Some((keys(8), Job(8))));
    assert_eq!(started.get(), 0, "nothing else may run");
    {
        let mut state = pool.state.lock();
        state.queue.finished(&running[1]);
        state.queue.finished(&running[2]);
        state.queue.push(keys(11), Job(11));
    }
    assert_eq!(picked(pool.finish(&running[3], spawn)), Some((keys(11), Job(11))));
    assert_eq!(started.get(), 1);
    assert_eq!(picked(pool.join(spawn)), Some((keys(9), Job(9))));
}

#[test]
fn ready_requests_are_received_before_queued_ones_run() {
    let pool = Pool { may_receive_ready: true, ..pool(4) };
    let alone = started(ask(&pool, 2, 2, 0)).unwrap();
    assert_eq!(pool.finish(&alone, || Ok(())), Next::Read, "nothing waits");
    let first = started(ask(&pool, 1, 1, 1)).unwrap();
    assert_eq!(ask(&pool, 1, 1, 2), Start::Wait);
    let nr_readers = pool.pool_counts().nr_readers;
    assert_eq!(pool.finish(&first, || Ok(())), Next::ReceiveReady);
    assert_eq!(pool.pool_counts().nr_readers, nr_readers + 1);
    // A request from the device may hang: the waiting one is for another thread.
    let nr_threads = pool.pool_counts().nr_threads;
    pool.hand_over(|| Ok(()));
    assert_eq!(pool.pool_counts().nr_threads, nr_threads + 1);
    let next = pool.received_ready(|| Ok(()), || Ok(()));
    assert_eq!(picked(next), Some((Keys::single(1, 1), Job(2))));
    assert_eq!(pool.pool_counts().nr_readers, nr_readers);
}

#[test]
fn the_end_releases_all_threads() {
    let pool = pool(4);
    let first = started(ask(&pool, 1, 1, 0));
    for job in 1..4 {
        ask(&pool, 1, 1, job);
    }
    let waiting = pool.end();
    assert!(!waiting.is_empty());
    assert_eq!(pool.finish(&first.unwrap(), || Ok(())), Next::Exit);
}

#[test]
fn what_hangs_without_saying_so_gives_its_processor_up() {
    let pool = Pool::new(PoolLimits { computing_max: 1, ..pool::<Job>(64).limits }, false);
    pool.open(|| Ok(())).unwrap();
    let keys = Keys::single(1, 1);
    let wide = Keys::single(2, 2);
    let _hanging = started(pool.start(wide, || Ok(()))).unwrap();
    let running = started(pool.start(keys, || Ok(()))).unwrap();
    let _waiting = pool.waits(running.run, Wait::Sure, || Ok(()));
    let called = std::cell::Cell::new(0);
    let spawn = || {
        called.set(called.get() + 1);
        Ok(())
    };
    assert_eq!(pool.start(wide, || Ok(())), Start::Wait);
    assert!(pool.enqueue(wide, Job(7), || Ok(()), spawn).is_none());
    assert_eq!(called.get(), 1, "a thread that looks again");
    // That thread: nothing else happens any more.
    assert_eq!(picked(pool.join(|| Ok(()))), Some((wide, Job(7))));
}

#[test]
fn a_request_that_goes_on_starts_whatever_runs() {
    let pool = pool(4);
    let keys = |n| Keys::single(n, n);
    assert!(pool.park(keys(1), false));
    // As many as may run, all waiting for something held by the parked request.
    (0..8).for_each(|n| assert!(matches!(ask(&pool, n, n, 0), Start::Run(_))));
    assert_eq!(ask(&pool, 8, 8, 8), Start::Wait);
    assert!(pool.resume(keys(1), Job(1), || Ok(())).is_empty());
    assert_eq!(picked(pool.join(|| Ok(()))), Some((keys(1).to_go_on(), Job(1))));
    assert_eq!(pool.pool_counts().nr_parked, 0);
}

#[test]
fn a_request_that_goes_on_parks_again_beyond_the_bound() {
    let pool = pool::<Job>(4);
    let keys = Keys::single(1, 1);
    let nr_max = (0..).take_while(|_| pool.park(keys, false)).count();
    assert!(pool.resume(keys, Job(1), || Ok(())).is_empty());
    assert!(!pool.park(keys, false), "it has its place until it runs");
    assert_eq!(picked(pool.join(|| Ok(()))), Some((keys.to_go_on(), Job(1))));
    assert!(pool.park(keys, false) && !pool.park(keys, false));
    assert!(pool.park(keys, true));
    assert_eq!(pool.pool_counts().nr_parked, nr_max + 1);
}

#[test]
fn a_spare_thread_whose_time_is_over_takes_what_has_come() {
    let limits = PoolLimits { spare_life: Duration::from_millis(20), ..pool::<Job>(4).limits };
    let pool = Pool::new(limits, false);
    pool.open(|| Ok(())).unwrap();
    let (keys, has_come) = (Keys::single(1, 1), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let spare = scope.spawn(|| {
            loop {
                pool.state.lock().nr_threads += 1;
                let next = pool.join(|| Ok(()));
                if next != Next::Exit || has_come.load(Relaxed) {
                    return next;
                }
            }
        });
        let mut state = pool.state.lock();
        while state.nr_spare == 0 {
            drop(state);
            std::thread::yield_now();
            state = pool.state.lock();
        }
        // Its time is over while it cannot look.
        std::thread::sleep(2 * limits.spare_life);
        has_come.store(true, Relaxed);
        state.queue.push(keys, Job(1));
        pool.attend(&mut state, || panic!("the spare thread is counted upon"));
        drop(state);
        assert_eq!(picked(spare.join().unwrap()), Some((keys, Job(1))));
    });
}

#[test]
fn many_that_go_on_have_one_thread_started_at_a_time() {
    let (pool, nr_started) = (pool(4), std::cell::Cell::new(0));
    let spawn = || {
        nr_started.set(nr_started.get() + 1);
        Ok(())
    };
    let keys = |n| Keys::single(n, 1);
    for n in 0..20 {
        assert!(pool.park(keys(n), false));
        assert!(pool.resume(keys(n), Job(n as u32), spawn).is_empty());
    }
    assert_eq!(nr_started.get(), 1);
    assert_eq!(picked(pool.join(spawn)), Some((keys(0).to_go_on(), Job(0))));
    assert_eq!(nr_started.get(), 2, "the one that comes sees to the next");
}

#[test]
fn parked_requests_count_as_their_groups_waiting_ones() {
    let pool = pool::<Job>(4);
    let keys = |group| Keys::single(group, 1);
    let nr_of = |group| (0..).take_while(|_| pool.park(keys(group), false)).count();
    let first = nr_of(1);
    let second = nr_of(2);
    assert!(first > 10_000 && second >= first / 2, "a half of what others leave: {first}, {second}");
    (0..8).for_each(|n| assert!(started(ask(&pool, n, n, 0)).is_some()));
    let further = pool.start(Keys::single(1, 9), || Ok(()));
    assert_eq!(further, Start::Refuse);
    (0..first).for_each(|_| pool.unpark(keys(1)));
    assert_eq!(pool.pool_counts().nr_parked, second);
}

#[test]
fn the_end_drops_what_goes_on_and_waits_for_what_is_parked() {
    let pool = pool(4);
    let keys = Keys::single(1, 1);
    assert!(pool.park(keys, false) && pool.park(keys, false));
    (0..2).for_each(|_| assert!(pool.end().is_empty()));
    assert_eq!(pool.resume(keys, Job(1), || Ok(())), [Job(1)]);
    assert!(!pool.wait_ended(Some(Duration::ZERO)));
    pool.unpark(keys);
    assert!(pool.wait_ended(Some(Duration::ZERO)));
}
