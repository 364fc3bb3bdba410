//! The threads of all flushers: one for each store with dirty data, up to a bound.
//!
//! A thread belongs to one store while it writes, so a hanging store keeps its own thread and no
//! other. Beyond the bound, or when the operating system refuses a thread, stores wait for their
//! turn: a thread whose store has had a round continues with the next waiting store. Background
//! write-back of the others is blocked only if as many stores hang as there are threads (a sync
//! writes by itself).

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use umemcg_base::clock::{Clock, SystemClock};
use umemcg_base::{LeafMutex, RateLimit, clock, contained};

/// Most threads.
pub(crate) const NR_FLUSHERS_MAX: usize = 128;
/// The interval at which a thread looks for a waiting store while no thread is to be had.
pub(crate) const LOOK_INTERVAL: Duration = Duration::from_millis(250);

/// The outcome of a store's turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Turn {
    /// It has nothing to write, or has been stopped.
    Done,
    /// It has more to write at its next turn.
    Again,
}

/// A store's write-back, as its thread runs it.
pub(crate) trait StoreFlusher: Send + Sync + fmt::Debug {
    /// Writes due files, until the store has had none dirty for a while, or has had a round while
    /// another store waits for the thread.
    fn flush_in_turn(&self, is_awaited: &dyn Fn() -> bool) -> Turn;
    /// Notes that a turn has panicked; another one follows.
    fn after_panic(&self);
}

/// See the module text.
#[derive(Debug, Default)]
pub(crate) struct Flushers {
    queue: LeafMutex<FlusherQueue>,
    clock: SystemClock,
    /// Of the warnings about refused threads.
    refusals: RateLimit,
}

/// The running threads, and the stores waiting for one.
#[derive(Debug, Default)]
struct FlusherQueue {
    nr_threads: usize,
    /// Stores with dirty data and no thread, the longest waiting first.
    waiting: VecDeque<Arc<dyn StoreFlusher>>,
}

impl Flushers {
    /// Gives a store a thread, now or in its turn.
    pub(crate) fn start(self: &Arc<Self>, store: Arc<dyn StoreFlusher>) {
        self.queue.lock().waiting.push_back(store);
        self.start_thread();
    }

    /// Starts a thread for the longest waiting store, unless none waits or all threads are taken.
    /// If the operating system refuses it, the store keeps waiting for another store's thread, or
    /// for the next call.
    pub(crate) fn start_thread(self: &Arc<Self>) {
        let store = {
            let mut queue = self.queue.lock();
            if queue.nr_threads >= NR_FLUSHERS_MAX {
                return;
            }
            let Some(store) = queue.waiting.pop_front() else { return };
            queue.nr_threads += 1;
            store
        };
        let (flushers, first) = (Arc::clone(self), Arc::clone(&store));
        // Not joined: it may be stuck in a hanging store.
        if let Err(error) = clock::spawn_detached("umemcg-flush", move || flushers.serve(first)) {
            let nr_threads = {
                let mut queue = self.queue.lock();
                queue.nr_threads -= 1;
                queue.waiting.push_front(store);
                queue.nr_threads
            };
            if let Some(nr_left_out) = self.refusals.ask(self.clock.now()) {
                tracing::warn!(%error, nr_threads, nr_left_out, "no further thread for write-back");
            }
        }
    }

    /// Runs a thread to its end.
    fn serve(&self, mut store: Arc<dyn StoreFlusher>) {
        loop {
            // The store keeps its thread even if a turn panics.
            let turn = contained(|| store.flush_in_turn(&|| self.is_awaited())).unwrap_or_else(|panic| {
                tracing::error!(%panic, "write-back of a store panicked; it is tried again");
                store.after_panic();
                Turn::Again
            });
            let mut queue = self.queue.lock();
            if turn == Turn::Again {
                queue.waiting.push_back(store);
            }
            match queue.waiting.pop_front() {
                Some(next) => store = next,
                None => {
                    queue.nr_threads -= 1;
                    return;
                }
            }
        }
    }

    /// Returns whether a store waits for a thread.
    fn is_awaited(&self) -> bool {
        !self.queue.lock().waiting.is_empty()
    }

    /// Returns whether every thread is taken, or the operating system refuses more.
    pub(crate) fn is_full(&self) -> bool {
        let queue = self.queue.lock();
        queue.nr_threads >= NR_FLUSHERS_MAX || !queue.waiting.is_empty()
    }

    /// Stops all turns.
    pub(crate) fn stop(&self) {
        let waiting = std::mem::take(&mut self.queue.lock().waiting);
        drop(waiting);
    }
}
