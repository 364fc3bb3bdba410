//! A flight: a value on its way into the cache, for one key and one group, and that group's waiting
//! tasks and threads.
//!
//! ```text
//!            finish                        stored, declined, or cancelled
//!   Loading ────────▶ Loaded ─────────────────────────────────────────────▶ out of the table
//!    │   ▲              readable by every look-up of the key
//!    │   │ the first waiter that looks
//!    ▼   │
//!   Vacant ── no waiter is left ──▶ out of the table
//!
//!   Over: not in the table any more, and without a value; waiters look the key up again
//! ```
//!
//! A flight is in the shard of its key. The shard's lock covers the change to `Vacant`, and from
//! there the removal from the table. The flight's own lock, a leaf, covers all other changes.

use std::sync::Arc;
use std::task::{Poll, Waker};

use umemcg_base::{LeafMutex, contained};
use umemcg_group::{Group, StatItem};
use umemcg_reclaim::AccountedCharge;

/// Bytes of a waiter: its place in the list of wakers; the list doubles when it grows.
const WAITER_BYTES: u64 = 2 * size_of::<(u64, Option<Waker>)>() as u64;

/// See the module text.
#[derive(Debug)]
pub(super) struct Flight<V> {
    /// The loading group, charged for the flight. (C)
    group: Arc<Group>,
    state: LeafMutex<State<V>>,
    _charge: AccountedCharge,
}

#[derive(Debug)]
struct State<V> {
    progress: Progress<V>,
    /// By rising number.
    waiters: Vec<(u64, Option<Waker>)>,
    nr_joined: u64,
}

#[derive(Debug)]
enum Progress<V> {
    Loading,
    /// The loader gave up; the first waiter to poll takes its place.
    Vacant,
    Loaded(V),
    Over,
}

/// A waiter's membership of a flight.
#[derive(Debug)]
pub(super) struct Ticket {
    number: u64,
    _charge: AccountedCharge,
}

/// The task of a caller joining a flight.
#[derive(Debug)]
pub(super) enum Joined {
    /// The loader gave up: load in its place.
    TakenOver,
    Waiting(Ticket),
}

/// The outcome of a wait.
#[derive(Debug)]
pub(super) enum Outcome<V> {
    Value(V),
    /// Load in the loader's place.
    TakenOver,
    /// Look the key up again.
    LookAgain,
}

impl<V: Clone> Flight<V> {
    /// Creates a flight with the caller as its loader, and charges `bytes` for it.
    pub(super) fn new(group: &Arc<Group>, bytes: u64) -> Arc<Self> {
        Self::with_progress(group, bytes, Progress::Loading)
    }

    /// Creates a flight with a value.
    pub(super) fn loaded(group: &Arc<Group>, bytes: u64, value: V) -> Arc<Self> {
        Self::with_progress(group, bytes, Progress::Loaded(value))
    }

    fn with_progress(group: &Arc<Group>, bytes: u64, progress: Progress<V>) -> Arc<Self> {
        Arc::new(Self {
            group: Arc::clone(group),
            state: LeafMutex::new(State { progress, waiters: Vec::new(), nr_joined: 0 }),
            _charge: AccountedCharge::forced(group, bytes, StatItem::SlabUnreclaimable),
        })
    }

    /// Returns the loading group.
    pub(super) fn group(&self) -> &Arc<Group> {
        &self.group
    }

    /// Returns the value, if loaded.
    pub(super) fn value(&self) -> Option<V> {
        match &self.state.lock().progress {
            Progress::Loaded(value) => Some(value.clone()),
            _ => None,
        }
    }

    /// Joins a flight in the table without a value yet.
    pub(super) fn join(&self) -> Joined {
        let mut state = self.state.lock();
        if matches!(state.progress, Progress::Vacant) {
            state.progress = Progress::Loading;
            return Joined::TakenOver;
        }
        let number = state.nr_joined;
        state.nr_joined += 1;
        state.waiters.push((number, None));
        drop(state);
        let _charge = AccountedCharge::forced(&self.group, WAITER_BYTES, StatItem::SlabUnreclaimable);
        Joined::Waiting(Ticket { number, _charge })
    }

    /// Polls the state of the flight; `waker` is woken when it changes.
    pub(super) fn poll(&self, ticket: &Ticket, waker: &Waker) -> Poll<Outcome<V>> {
        // Wakers are cloned and dropped with no lock held: the last one of a task drops the task.
        let fresh = waker.clone();
        let mut state = self.state.lock();
        let outcome = match &state.progress {
            Progress::Loaded(value) => Outcome::Value(value.clone()),
            Progress::Over => Outcome::LookAgain,
            Progress::Vacant => {
                state.progress = Progress::Loading;
                Outcome::TakenOver
            }
            Progress::Loading => {
                let before = state.waiter(ticket).and_then(|place| place.replace(fresh));
                drop(state);
                drop(before);
                return Poll::Pending;
            }
        };
        drop(state);
        Poll::Ready(outcome)
    }

    /// Ends a waiter's membership. Returns whether the flight is vacant without other waiters: it
    /// must then leave the table.
    pub(super) fn leave(&self, ticket: Ticket) -> bool {
        let mut state = self.state.lock();
        let at = state.waiters.binary_search_by_key(&ticket.number, |(number, _)| *number);
        let gone = at.ok().map(|at| state.waiters.remove(at));
        let is_deserted = state.is_deserted();
        drop(state);
        drop(gone);
        is_deserted
    }

    /// Returns whether the flight is vacant and has no waiter.
    pub(super) fn is_deserted(&self) -> bool {
        self.state.lock().is_deserted()
    }

    /// Hands the value to all waiters.
    pub(super) fn finish(&self, value: V) {
        let wakers = self.state.lock().change_to(Progress::Loaded(value));
        wakers.wake();
    }

    /// The loader gives up. With `stays`, a waiter may take its place, if there is one. Returns the
    /// wakers to call and whether the flight has to leave the table. The shard is locked.
    pub(super) fn abandon(&self, stays: bool) -> (Wakers<V>, bool) {
        let mut state = self.state.lock();
        let stays = stays && !state.waiters.is_empty();
        (state.change_to(if stays { Progress::Vacant } else { Progress::Over }), !stays)
    }
}

impl<V> State<V> {
    fn change_to(&mut self, progress: Progress<V>) -> Wakers<V> {
        let before = std::mem::replace(&mut self.progress, progress);
        let wakers = self.waiters.iter_mut().filter_map(|(_, waker)| waker.take()).collect();
        Wakers { wakers, _before: before }
    }

    fn is_deserted(&self) -> bool {
        matches!(self.progress, Progress::Vacant) && self.waiters.is_empty()
    }

    fn waiter(&mut self, ticket: &Ticket) -> Option<&mut Option<Waker>> {
        let at = self.waiters.binary_search_by_key(&ticket.number, |(number, _)| *number).ok()?;
        Some(&mut self.waiters[at].1)
    }
}

impl<V> Drop for Flight<V> {
    /// The destructor of the value may panic, on the thread of any holder of the flight.
    fn drop(&mut self) {
        let progress = std::mem::replace(&mut self.state.lock().progress, Progress::Over);
        if let Err(panic) = contained(|| drop(progress)) {
            tracing::error!(%panic, "the end of a value of a cache panicked");
        }
    }
}

/// The tasks and threads affected by a change, to be woken with no lock held.
#[must_use]
pub(super) struct Wakers<V> {
    wakers: Vec<Waker>,
    /// Dropped with no lock held, too.
    _before: Progress<V>,
}

impl<V> Wakers<V> {
    pub(super) fn wake(self) {
        for waker in self.wakers {
            if let Err(panic) = contained(|| waker.wake()) {
                tracing::error!(%panic, "the waker of a task that waits for a load panicked");
            }
        }
    }
}
