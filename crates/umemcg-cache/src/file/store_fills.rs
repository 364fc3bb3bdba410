//! The fills of a file begun by its store, and the exclusive operations waiting for them.
//!
//! A fill with a waiting thread holds the file's `content` shared. A fill without one cannot; it is
//! listed here instead. An exclusive operation closes the list, so that nothing is added, waits
//! until the list is empty, and takes `content` exclusively. A fill refused by the closed list
//! comes back later: no thread waits with it.
//!
//! Exclusive operations of several threads may follow each other without end. So an operation that
//! ends gives the reads waiting then a *turn*: the next operation lets them onto the list before it
//! is alone, unless they take too long.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use umemcg_base::sync::Instant;
use umemcg_base::{Condvar, Idle, LeafMutex, Rank, Wait, assert_may_wait, contained};

use crate::read_pace::ReadPace;

/// Longest wait of the next operation for reads with a turn: the thread to continue them may be
/// busy, or be the thread of that operation.
const TURN_MAX: Duration = Duration::from_millis(100);

/// Callback that continues a waiter; must not wait itself.
pub(super) type Wake = Box<dyn FnOnce() + Send>;

/// Names a fill of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct FillNumber(u64);

/// Callback that continues a read after an exclusive operation has ended.
type WakeInTurn = Box<dyn FnOnce(Option<Turn>) + Send>;

struct Listed {
    pages: Range<u64>,
    /// Reads waiting for one of its pages.
    waiting: Vec<Wake>,
}

#[derive(Default)]
struct List {
    begun: BTreeMap<FillNumber, Listed>,
    next_number: u64,
    /// Exclusive operations, under way or waiting.
    nr_closing: usize,
    /// One of them is under way.
    is_alone: bool,
    /// Reads waiting until the next one ends.
    at_gate: Vec<WakeInTurn>,
    /// Turns neither used nor given up since an operation ended.
    nr_turns: usize,
    /// Distinguishes these turns from earlier turns cut short.
    turn_number: u64,
    turns_end: Option<Instant>,
}

impl List {
    fn is_turn(&self, turn: &Turn) -> bool {
        turn.number == self.turn_number && self.nr_turns > 0
    }
}

/// See the module text.
pub(super) struct StoreFills {
    list: LeafMutex<List>,
    /// Wakes waiting operations to check again.
    emptied: Condvar,
    /// How fast the store fills.
    pub(super) pace: Arc<ReadPace>,
}

/// A turn of a read: it may begin a fill although an operation waits to be alone. The operation
/// waits until the turn is dropped, so the read waits for nothing while it has a turn.
pub(super) struct Turn {
    fills: Arc<StoreFills>,
    number: u64,
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut list = self.fills.list.lock();
        if !list.is_turn(self) {
            return;
        }
        list.nr_turns -= 1;
        let is_last = list.nr_turns == 0;
        drop(list);
        if is_last {
            self.fills.emptied.notify_all();
        }
    }
}

impl StoreFills {
    pub(super) fn new(pace: Arc<ReadPace>) -> Self {
        Self { list: LeafMutex::default(), emptied: Condvar::new(Rank::StoreFills), pace }
    }

    /// Lists a fill of `pages`, before it puts them into the index. `None` when the list is closed
    /// and it is not the reader's turn.
    pub(super) fn enter(&self, pages: Range<u64>, turn: Option<Turn>) -> Option<FillNumber> {
        let mut list = self.list.lock();
        // The turn is dropped when the fill is listed, and after the lock.
        if list.nr_closing > 0 && (list.is_alone || !turn.as_ref().is_some_and(|turn| list.is_turn(turn))) {
            return None;
        }
        let number = FillNumber(list.next_number);
        list.next_number += 1;
        list.begun.insert(number, Listed { pages, waiting: Vec::new() });
        Some(number)
    }

    /// Takes a fill off the list, after its pages have been unlocked, and continues its waiters.
    pub(super) fn leave(&self, number: FillNumber) {
        let mut list = self.list.lock();
        let listed = list.begun.remove(&number);
        let is_awaited = list.nr_closing > 0 && list.begun.is_empty();
        drop(list);
        if is_awaited {
            self.emptied.notify_all();
        }
        wake_all(listed.map_or(Vec::new(), |listed| listed.waiting));
    }

    /// Returns a fill that may have locked this page.
    pub(super) fn of_page(&self, page: u64) -> Option<FillNumber> {
        let list = self.list.lock();
        list.begun.iter().find(|(_, listed)| listed.pages.contains(&page)).map(|(&number, _)| number)
    }

    /// Calls `wake` when a fill has ended.
    pub(super) fn when_ended(&self, number: FillNumber, wake: Wake) {
        if let Some(listed) = self.list.lock().begun.get_mut(&number) {
            return listed.waiting.push(wake);
        }
        wake_all(vec![wake]);
    }

    /// Calls `wake` when the list is open, or in its turn.
    pub(super) fn when_open(&self, wake: WakeInTurn) {
        {
            let mut list = self.list.lock();
            if list.nr_closing > 0 {
                return list.at_gate.push(wake);
            }
        }
        wake_all(vec![Box::new(move || wake(None))]);
    }

    /// Closes the list, and waits until it is empty and all turns are used or over. One operation
    /// is alone at a time.
    pub(super) fn close(self: &Arc<Self>) -> Closed<'_> {
        assert_may_wait(Rank::StoreFills, "a wait for what the store has begun");
        let mut idle = None;
        let mut list = self.list.lock();
        list.nr_closing += 1;
        loop {
            let is_free = list.begun.is_empty() && !list.is_alone;
            if is_free && list.nr_turns == 0 {
                list.is_alone = true;
                return Closed(self);
            }
            if idle.is_none() {
                drop(list);
                idle = Some(Idle::begin(Wait::Sure));
                list = self.list.lock();
                continue;
            }
            match list.turns_end {
                Some(end) if is_free => {
                    if self.emptied.wait_until(&mut list, end).timed_out() {
                        list.nr_turns = 0;
                    }
                }
                _ => self.emptied.wait(&mut list),
            }
        }
    }
}

/// The list is closed until this is dropped.
#[must_use]
pub(super) struct Closed<'f>(&'f Arc<StoreFills>);

impl Drop for Closed<'_> {
    fn drop(&mut self) {
        let mut list = self.0.list.lock();
        list.nr_closing -= 1;
        list.is_alone = false;
        let woken = std::mem::take(&mut list.at_gate);
        list.nr_turns = woken.len();
        list.turn_number += 1;
        list.turns_end = Some(Instant::now() + TURN_MAX);
        let number = list.turn_number;
        let is_awaited = list.nr_closing > 0;
        drop(list);
        if is_awaited {
            self.0.emptied.notify_all();
        }
        let in_turn = |wake: WakeInTurn| -> Wake {
            let turn = Turn { fills: Arc::clone(self.0), number };
            Box::new(move || wake(Some(turn)))
        };
        wake_all(woken.into_iter().map(in_turn).collect());
    }
}

/// Continues waiters. They call code of embedders, and a panic there must not reach this thread,
/// which has other work.
fn wake_all(wakes: Vec<Wake>) {
    for wake in wakes {
        if let Err(panic) = contained(wake) {
            tracing::error!(%panic, "a callback of a read panicked");
        }
    }
}
