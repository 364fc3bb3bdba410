//! Threads and futures waiting for memory, in the order of their arrival.
//!
//! A waiter belongs to the group of its request, and waits for the refusing level: that group or an
//! ancestor. Three rules decide its turn when memory is given back:
//!
//! - Of the waiters of one group, the first tries, and the others wait behind it. Groups do not
//!   wait for each other: the first waiter of every group tries.
//! - A trying waiter may keep a part while it waits for the rest, so that others cannot starve a
//!   large request forever. But its part must not be in a level awaited by an earlier waiter: then
//!   it takes all or nothing. So a waiter only ever waits for parts of earlier ones, and waits
//!   cannot form a cycle.
//! - For this rule, a waiter lacking memory is earlier than all waiters refused because of
//!   guarantees to others: reclaim cannot help the latter.
//!
//! The table has a lock, held for a few loads. A thread giving memory back takes it only while
//! there are waiters.

use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, OnceLock};
use std::task::Waker;
use std::time::Duration;

use umemcg_base::{LeafMutex, WakeSignal, contained};
use umemcg_group::{Attention, Group};

/// Longest sleep of a waiter before it checks again: freed pages and objects do not notify it.
pub(crate) const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// The place of a waiter in the order of arrival.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Ticket(u64);

/// Why a level refuses a waiter; which of two waiters is earlier (see the module).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Lacks {
    /// The level is full.
    Memory,
    /// The room is guaranteed to others.
    Commitments,
}

#[derive(Debug)]
struct Waiter {
    /// The group of its request.
    group: Arc<Group>,
    /// The level that refused.
    level: Arc<Group>,
    lacks: Lacks,
    waker: Waker,
}

#[derive(Debug, Default)]
struct Queue {
    next: u64,
    waiters: BTreeMap<Ticket, Waiter>,
}

impl Queue {
    /// Returns the first waiter of each group.
    fn firsts(&self) -> impl Iterator<Item = (Ticket, &Waiter)> {
        let mut groups = HashSet::new();
        let waiters = self.waiters.iter().map(|(&ticket, waiter)| (ticket, waiter));
        waiters.filter(move |(_, waiter)| groups.insert(waiter.group.id()))
    }

    fn turn(&self, ticket: Ticket) -> Turn {
        let mine = &self.waiters[&ticket];
        let mut turn = Turn::Keeps;
        for (at, other) in self.firsts() {
            if other.group.id() == mine.group.id() {
                if at != ticket {
                    return Turn::Waits;
                }
            } else if (other.lacks, at) < (mine.lacks, ticket) && mine.group.is_descendant_of(&other.level) {
                turn = Turn::Tries;
            }
        }
        turn
    }
}

/// The permitted action of a waiter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Turn {
    /// It waits behind another waiter of its group.
    Waits,
    /// It may take all or nothing.
    Tries,
    /// It may keep a part.
    Keeps,
}

/// The waiters of one engine.
#[derive(Debug, Default)]
pub(crate) struct Waits {
    /// Raised for each waiter.
    attention: Attention,
    queue: LeafMutex<Queue>,
    /// (C) once set.
    timer: OnceLock<Arc<WakeSignal>>,
}

impl Waits {
    /// Returns whether there are waiters, after something was given back.
    #[inline]
    pub(crate) fn is_any(&self) -> bool {
        self.attention.is_raised()
    }

    /// Returns whether this group has a waiter already; a newcomer waits behind it.
    pub(crate) fn is_any_of(&self, group: &Group) -> bool {
        self.is_any() && self.queue.lock().waiters.values().any(|waiter| waiter.group.id() == group.id())
    }

    /// Sets the signal raised for a new waiter; its receiver then calls
    /// [`wake_all`](Self::wake_all) every [`LOOK_AGAIN`].
    pub(crate) fn on_waiter(&self, timer: Arc<WakeSignal>) {
        let _ = self.timer.set(timer);
    }

    /// Adds a waiter at the end. It must try once more before it sleeps: from here on, it is woken
    /// when something is given back.
    pub(crate) fn join(
        &self,
        group: &Arc<Group>,
        (level, lacks): (&Arc<Group>, Lacks),
        waker: &Waker,
    ) -> Ticket {
        let ticket = {
            let mut queue = self.queue.lock();
            let ticket = Ticket(queue.next);
            queue.next += 1;
            let (group, level) = (Arc::clone(group), Arc::clone(level));
            queue.waiters.insert(ticket, Waiter { group, level, lacks, waker: waker.clone() });
            ticket
        };
        self.attention.raise();
        if let Some(timer) = self.timer.get() {
            timer.raise();
        }
        ticket
    }

    /// Records the level of a waiter's last refusal, and its waker. Returns its turn.
    pub(crate) fn update(
        &self,
        ticket: Ticket,
        refused: Option<(&Arc<Group>, Lacks)>,
        waker: &Waker,
    ) -> Turn {
        // Dropped after the lock is free: the last handle of a group, and an embedder's waker.
        let (_level, _waker);
        let mut queue = self.queue.lock();
        let Some(mine) = queue.waiters.get_mut(&ticket) else { return Turn::Waits };
        _level = refused.map(|(level, lacks)| {
            mine.lacks = lacks;
            std::mem::replace(&mut mine.level, Arc::clone(level))
        });
        _waker = (!mine.waker.will_wake(waker)).then(|| std::mem::replace(&mut mine.waker, waker.clone()));
        let turn = queue.turn(ticket);
        drop(queue);
        turn
    }

    /// Removes a waiter, satisfied or given up, and wakes the waiters behind it.
    pub(crate) fn leave(&self, ticket: Ticket) {
        let gone = self.queue.lock().waiters.remove(&ticket);
        self.attention.lower();
        if let Some(gone) = gone {
            self.wake(|waiter| {
                waiter.group.id() == gone.group.id() || waiter.group.is_descendant_of(&gone.level)
            });
        }
    }

    /// Wakes the waiters that may have room after memory of `group` was given back.
    #[cold]
    pub(crate) fn note_given_back(&self, group: &Group) {
        self.wake(|waiter| group.is_descendant_of(&waiter.level));
    }

    /// Wakes the first waiter of each group: a limit has changed, or time has passed.
    pub(crate) fn wake_all(&self) {
        if self.is_any() {
            self.wake(|_| true);
        }
    }

    /// Wakes the first waiter of each group, if selected by `is_meant`.
    fn wake(&self, is_meant: impl Fn(&Waiter) -> bool) {
        let wakers: Vec<Waker> = {
            let queue = self.queue.lock();
            let meant = queue.firsts().filter(|(_, waiter)| is_meant(waiter));
            meant.map(|(_, waiter)| waiter.waker.clone()).collect()
        };
        for waker in wakers {
            if let Err(panicked) = contained(|| waker.wake()) {
                tracing::error!(%panicked, "the waker of a wait for memory panicked");
            }
        }
    }
}

#[cfg(all(test, not(schedule)))]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
    use std::task::Wake;
    use umemcg_group::GroupTree;

    #[derive(Default)]
    struct Calls(AtomicU32);

    impl Wake for Calls {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Relaxed);
        }
    }

    struct Panics;

    impl Wake for Panics {
        fn wake(self: Arc<Self>) {
            panic!("a waker of a test");
        }
    }

    #[test]
    fn the_first_of_a_group_tries_and_the_first_of_a_level_keeps() {
        let tree = GroupTree::new(1 << 30);
        let [a, b] = ["a", "b"].map(|name| tree.create(tree.root(), name.as_ref()).unwrap());
        let waits = Waits::default();
        let calls: Vec<Arc<Calls>> = (0..4).map(|_| Arc::default()).collect();
        let wakers: Vec<Waker> = calls.iter().map(|calls| Waker::from(Arc::clone(calls))).collect();
        let tickets = [
            waits.join(&a, (tree.root(), Lacks::Memory), &wakers[0]),
            waits.join(&a, (&a, Lacks::Memory), &wakers[1]),
            waits.join(&b, (tree.root(), Lacks::Memory), &wakers[2]),
            waits.join(&b, (&b, Lacks::Memory), &wakers[3]),
        ];
        let turn = |at: usize| waits.update(tickets[at], None, &wakers[at]);
        assert_eq!([0, 1, 2, 3].map(turn), [Turn::Keeps, Turn::Waits, Turn::Tries, Turn::Waits]);
        let refused_by_b = waits.update(tickets[2], Some((&b, Lacks::Memory)), &wakers[2]);
        assert_eq!(refused_by_b, Turn::Tries, "what it kept would be in the root, too");
        let woken = || calls.iter().map(|calls| calls.0.swap(0, Relaxed)).collect::<Vec<_>>();
        waits.note_given_back(&a);
        assert_eq!(woken(), [1, 0, 0, 0], "b's limit is not touched");
        waits.note_given_back(&b);
        assert_eq!(woken(), [1, 0, 1, 0]);
        waits.leave(tickets[0]);
        assert_eq!(woken(), [0, 1, 1, 0], "b's may keep a part now");
        assert_eq!(turn(1), Turn::Keeps);
        waits.wake_all();
        assert_eq!(woken(), [0, 1, 1, 0]);
        tickets[1..].iter().for_each(|&ticket| waits.leave(ticket));
        assert!(!waits.is_any() && !waits.is_any_of(&a));
    }

    #[test]
    fn none_keeps_a_part_where_an_earlier_one_waits() {
        let tree = GroupTree::new(1 << 30);
        let [above, beside] =
            ["above", "beside"].map(|name| tree.create(tree.root(), name.as_ref()).unwrap());
        let below = tree.create(&above, "below".as_ref()).unwrap();
        let waits = Waits::default();
        let join = |group, level| waits.join(group, (level, Lacks::Memory), Waker::noop());
        let first = join(&beside, &beside);
        // It only waits for its turn.
        let behind = join(&beside, tree.root());
        let [lower, upper] = [join(&below, &above), join(&above, tree.root())];
        let turns = || [first, behind, lower, upper].map(|ticket| waits.update(ticket, None, Waker::noop()));
        assert_eq!(turns(), [Turn::Keeps, Turn::Waits, Turn::Keeps, Turn::Tries]);
        let short_of = |ticket, lacks| waits.update(ticket, Some((tree.root(), lacks)), Waker::noop());
        short_of(first, Lacks::Memory);
        assert_eq!(turns(), [Turn::Keeps, Turn::Waits, Turn::Tries, Turn::Tries]);
        // Guarantees refuse it; the others lack memory.
        short_of(first, Lacks::Commitments);
        assert_eq!(turns(), [Turn::Tries, Turn::Waits, Turn::Keeps, Turn::Tries]);
        short_of(upper, Lacks::Commitments);
        assert_eq!(turns(), [Turn::Keeps, Turn::Waits, Turn::Keeps, Turn::Tries]);
    }

    #[test]
    fn a_waker_that_panics_keeps_no_other_from_being_woken() {
        let tree = GroupTree::new(1 << 30);
        let a = tree.create(tree.root(), "a".as_ref()).unwrap();
        let (waits, calls) = (Waits::default(), Arc::new(Calls::default()));
        waits.join(tree.root(), (tree.root(), Lacks::Memory), &Waker::from(Arc::new(Panics)));
        waits.join(&a, (tree.root(), Lacks::Memory), &Waker::from(Arc::clone(&calls)));
        waits.note_given_back(&a);
        assert_eq!(calls.0.load(Relaxed), 1);
    }
}
