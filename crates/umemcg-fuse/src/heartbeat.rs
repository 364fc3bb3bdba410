//! Heartbeats of the receiving threads, so that a watchdog notices a stuck one.
//!
//! A thread takes a *turn* with each received request: it answers the request, queues it, or begins
//! to run it. A turn needs no sleep, so it is over in microseconds. Sleeps are outside the turns:
//! the wait for the next request, however long, and a running request's wait for its store. So an
//! idle mount and one with a slow store are healthy. A thread still in the same turn after seconds
//! will not serve this mount any more.
//!
//! A heartbeat counts the beginnings and the ends of turns. No clock is read: a [`ReaderWatch`]
//! compares the count with that of its last look. An odd, unchanged count is a turn that has lasted
//! since.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use umemcg_base::LeafMutex;

/// The heartbeats of a session's threads.
#[derive(Debug, Default)]
pub(crate) struct Heartbeats {
    threads: LeafMutex<Vec<Arc<TurnCount>>>,
}

/// The turns of one thread.
#[derive(Debug)]
struct TurnCount {
    tid: u32,
    /// Turns begun and turns ended; odd during a turn.
    nr: AtomicU64,
}

impl Heartbeats {
    /// Returns the heartbeat of the calling thread, which is watched until it is dropped.
    pub fn join(self: &Arc<Self>) -> Heartbeat {
        let tid = rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned();
        let count = Arc::new(TurnCount { tid, nr: AtomicU64::new(0) });
        self.threads.lock().push(Arc::clone(&count));
        Heartbeat { all: Arc::clone(self), count }
    }

    /// Returns a watch without an earlier look.
    pub fn watch(self: &Arc<Self>) -> ReaderWatch {
        ReaderWatch { all: Arc::clone(self), seen: HashMap::new() }
    }
}

/// The heartbeat of a thread.
#[derive(Debug)]
pub(crate) struct Heartbeat {
    all: Arc<Heartbeats>,
    count: Arc<TurnCount>,
}

impl Heartbeat {
    /// Begins a turn, which ends when the result is dropped.
    pub fn turn(&self) -> Turn<'_> {
        self.count.nr.fetch_add(1, Ordering::Relaxed);
        Turn(&self.count.nr)
    }
}

impl Drop for Heartbeat {
    fn drop(&mut self) {
        self.all.threads.lock().retain(|count| !Arc::ptr_eq(count, &self.count));
    }
}

/// A turn of a thread.
#[derive(Debug)]
pub(crate) struct Turn<'a>(&'a AtomicU64);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// Finds the stuck threads of a session.
#[derive(Debug)]
pub struct ReaderWatch {
    all: Arc<Heartbeats>,
    /// The counts of the last look, by thread.
    seen: HashMap<u32, u64>,
}

impl ReaderWatch {
    /// Returns the ids of the threads still in the turn of the last look.
    pub fn look(&mut self) -> Vec<u32> {
        let now: HashMap<u32, u64> = {
            let threads = self.all.threads.lock();
            threads.iter().map(|count| (count.tid, count.nr.load(Ordering::Relaxed))).collect()
        };
        let is_stuck = |tid: &u32, nr: &u64| nr % 2 == 1 && self.seen.get(tid) == Some(nr);
        let mut stuck: Vec<u32> =
            now.iter().filter(|(tid, nr)| is_stuck(tid, nr)).map(|(tid, _)| *tid).collect();
        stuck.sort_unstable();
        self.seen = now;
        stuck
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_turn_that_lasts_is_stuck() {
        let all = Arc::new(Heartbeats::default());
        let (heartbeat, mut watch) = (all.join(), all.watch());
        for _ in 0..3 {
            assert!(watch.look().is_empty(), "a thread that waits for requests is well");
        }
        for _ in 0..3 {
            let turn = heartbeat.turn();
            assert!(watch.look().is_empty(), "each look sees another turn");
            drop(turn);
        }
        let turn = heartbeat.turn();
        assert!(watch.look().is_empty(), "it has begun just now");
        assert_eq!(watch.look(), [heartbeat.count.tid]);
        assert_eq!(watch.look(), [heartbeat.count.tid]);
        drop(turn);
        assert!(watch.look().is_empty(), "it goes on");
        drop(heartbeat);
        assert!(all.threads.lock().is_empty());
    }
}
