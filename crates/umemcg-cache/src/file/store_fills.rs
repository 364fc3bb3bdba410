//! The fills of a file that its store has begun, and the operations that have to wait for them.
//!
//! A fill that its thread waits for holds the file's `content` shared. One that no thread waits for
//! cannot; it is listed here instead. An operation that must be alone closes the list, so that
//! nothing is added, waits until the list is empty, and takes `content` exclusively. A fill that
//! finds the list closed is told to come back: no thread waits with it.

use std::collections::BTreeMap;
use std::ops::Range;

use umemcg_base::{Condvar, Idle, LeafMutex, Rank, Wait, assert_may_wait, contained};

/// Continues something that waits; must not wait itself.
pub(super) type Wake = Box<dyn FnOnce() + Send>;

/// Names a fill of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct FillNumber(u64);

struct Listed {
    pages: Range<u64>,
    /// Those that wait for one of its pages.
    waiting: Vec<Wake>,
}

#[derive(Default)]
struct List {
    begun: BTreeMap<FillNumber, Listed>,
    next_number: u64,
    /// Operations that are alone, or wait to be.
    nr_closing: usize,
    /// Those that wait until there is no such operation.
    at_gate: Vec<Wake>,
}

/// See the module text.
pub(super) struct StoreFills {
    list: LeafMutex<List>,
    emptied: Condvar,
}

impl StoreFills {
    pub(super) fn new() -> Self {
        Self { list: LeafMutex::default(), emptied: Condvar::new(Rank::StoreFills) }
    }

    /// Lists a fill of `pages`, before it puts them into the index. `None` when the list is closed.
    pub(super) fn enter(&self, pages: Range<u64>) -> Option<FillNumber> {
        let mut list = self.list.lock();
        if list.nr_closing > 0 {
            return None;
        }
        let number = FillNumber(list.next_number);
        list.next_number += 1;
        list.begun.insert(number, Listed { pages, waiting: Vec::new() });
        Some(number)
    }

    /// Takes a fill off the list, after its pages have been unlocked, and continues what waits for
    /// it.
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

    /// Calls `wake` when the list is open.
    pub(super) fn when_open(&self, wake: Wake) {
        {
            let mut list = self.list.lock();
            if list.nr_closing > 0 {
                return list.at_gate.push(wake);
            }
        }
        wake_all(vec![wake]);
    }

    /// Closes the list and waits until it is empty.
    pub(super) fn close(&self) -> Closed<'_> {
        assert_may_wait(Rank::StoreFills, "a wait for what the store has begun");
        let is_empty = {
            let mut list = self.list.lock();
            list.nr_closing += 1;
            list.begun.is_empty()
        };
        if !is_empty {
            let _idle = Idle::begin(Wait::Sure);
            let mut list = self.list.lock();
            while !list.begun.is_empty() {
                self.emptied.wait(&mut list);
            }
        }
        Closed(self)
    }
}

/// The list is closed until this is dropped.
#[must_use]
pub(super) struct Closed<'f>(&'f StoreFills);

impl Drop for Closed<'_> {
    fn drop(&mut self) {
        let mut list = self.0.list.lock();
        list.nr_closing -= 1;
        let woken = if list.nr_closing == 0 { std::mem::take(&mut list.at_gate) } else { Vec::new() };
        drop(list);
        wake_all(woken);
    }
}

/// Continues those that waited. They are code of embedders, and this thread is about something
/// else.
fn wake_all(wakes: Vec<Wake>) {
    for wake in wakes {
        if let Err(panic) = contained(wake) {
            tracing::error!(%panic, "a callback of a read panicked");
        }
    }
}
