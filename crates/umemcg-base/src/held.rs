//! A record, for each thread, of its locks and other awaitable resources, checked against the order
//! of [`Rank`] in debug builds. Release builds compile it to nothing: no data, no instruction.
//!
//! Models of loom run all their threads on one thread of the operating system, and are not checked.

use crate::rank::Rank;

#[cfg(all(debug_assertions, not(loom)))]
mod order {
    use super::Rank;
    use std::cell::{Cell, RefCell};

    thread_local! { static HELD: RefCell<Vec<Rank>> = const { RefCell::new(Vec::new()) }; }
    thread_local! { static NR_STEPS: Cell<u64> = const { Cell::new(0) }; }

    pub(super) fn note_step() {
        let _ = NR_STEPS.try_with(|nr| nr.set(nr.get() + 1));
    }

    pub(super) fn nr_steps() -> u64 {
        NR_STEPS.get()
    }

    /// Runs `act` on this thread's record. An ending thread may have lost its record before its
    /// last locks; these are not checked.
    fn with_held(act: impl FnOnce(&mut Vec<Rank>)) {
        let _ = HELD.try_with(|held| act(&mut held.borrow_mut()));
    }

    /// The rank of a lock or of a wait.
    #[derive(Debug, Clone, Copy)]
    pub(crate) struct Place {
        rank: Rank,
        /// A thread waiting here may hold others of this rank.
        among: bool,
    }

    impl Place {
        pub(crate) const fn new(rank: Rank) -> Self {
            Self { rank, among: false }
        }

        pub(crate) const fn among(rank: Rank) -> Self {
            Self { rank, among: true }
        }

        /// Checks and records a wait for a lock, just before it begins. With `second`, the thread
        /// may hold one of the same rank.
        pub(crate) fn take(self, second: bool) {
            note_step();
            with_held(|held| {
                if let Some(&top) = held.iter().max() {
                    let (rank, rises) = (self.rank, top < self.rank || (second && top == self.rank));
                    assert!(rises, "lock rank {rank:?} taken while {top:?} is held");
                }
                held.push(self.rank);
            });
        }

        /// Records a lock taken without waiting; it may come out of order.
        pub(crate) fn took(self) {
            note_step();
            with_held(|held| held.push(self.rank));
        }

        pub(crate) fn gave(self) {
            with_held(|held| {
                if let Some(at) = held.iter().rposition(|&rank| rank == self.rank) {
                    held.remove(at);
                }
            });
        }

        /// Checks that the thread may wait, just before the wait.
        pub(crate) fn assert_may_wait(self, what: &str) {
            with_held(|held| {
                let may = held.iter().all(|&held| held < self.rank || (self.among && held == self.rank));
                assert!(may, "{what} entered while holding {held:?}");
            });
        }
    }
}

#[cfg(not(all(debug_assertions, not(loom))))]
mod order {
    use super::Rank;

    #[inline]
    pub(super) fn note_step() {}

    #[inline]
    pub(super) fn nr_steps() -> u64 {
        0
    }

    /// Nothing.
    #[derive(Debug, Clone, Copy)]
    pub(crate) struct Place;

    impl Place {
        #[inline]
        pub(crate) const fn new(_: Rank) -> Self {
            Self
        }
        #[inline]
        pub(crate) const fn among(_: Rank) -> Self {
            Self
        }
        #[inline]
        pub(crate) fn take(self, _: bool) {}
        #[inline]
        pub(crate) fn took(self) {}
        #[inline]
        pub(crate) fn gave(self) {}
        #[inline]
        pub(crate) fn assert_may_wait(self, _: &str) {}
    }
}

pub(crate) use order::Place;

/// Counts one step of this thread's work, for tests of the number of steps of an operation. In
/// debug builds only.
#[inline]
pub fn note_step() {
    order::note_step();
}

/// Returns the number of locks taken by this thread plus its [steps](note_step); 0 in release
/// builds.
#[inline]
pub fn nr_steps() -> u64 {
    order::nr_steps()
}

/// Panics in debug builds when this thread holds anything ranked with or after [`Rank::Memory`].
/// Functions that may charge or reclaim call it first.
#[inline]
pub fn assert_no_locks_held(what: &str) {
    assert_may_wait(Rank::Memory, what);
}

/// Panics in debug builds when this thread, about to wait for `rank`, holds anything ranked with or
/// after it.
#[inline]
pub fn assert_may_wait(rank: Rank, what: &str) {
    Place::new(rank).assert_may_wait(what);
}

/// Like [`assert_may_wait`], but the thread may hold others of the same rank; the caller states the
/// order among them.
#[inline]
pub fn assert_may_wait_among(rank: Rank, what: &str) {
    Place::among(rank).assert_may_wait(what);
}

/// A resource awaited by other threads, other than a lock of [`locks`](crate::locks), such as a
/// locked page. It is recorded for its thread until it is dropped.
#[derive(Debug)]
#[must_use]
pub struct Waiting(Place);

impl Waiting {
    /// Records that other threads may wait for this thread's resource from now on. Taking it needs
    /// no wait, so anything may be held.
    #[inline]
    pub fn on(rank: Rank) -> Self {
        let place = Place::new(rank);
        place.took();
        Self(place)
    }

    /// Checks and records a wait for a lock, just before it; recorded until dropped.
    #[inline]
    pub(crate) fn lock(place: Place, second: bool) -> Self {
        place.take(second);
        Self(place)
    }

    /// Records a lock taken without a wait.
    #[inline]
    pub(crate) fn tried(place: Place) -> Self {
        place.took();
        Self(place)
    }

    /// Records that the thread gives up the lock temporarily.
    #[inline]
    pub(crate) fn set_aside(&self) {
        self.0.gave();
    }

    /// Checks and records that the thread takes the lock again.
    #[inline]
    pub(crate) fn again(&self) {
        self.0.take(true);
    }
}

impl Drop for Waiting {
    #[inline]
    fn drop(&mut self) {
        self.0.gave();
    }
}
