//! Locks with a place in the order of [`Rank`]. Product code uses no others: only this crate uses
//! locks of the standard library and of `parking_lot`.
//!
//! | type | rank | for |
//! |---|---|---|
//! | [`RankedMutex`], [`RankedRwLock`] | any | locks under which others are taken |
//! | [`LeafMutex`], [`LeafRwLock`] | [`Rank::Leaf`] | locks under which a thread takes no other and waits for nothing |
//! | [`Condvar`] | of the wait | waits under a leaf, which is unlocked meanwhile |

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::time::Duration;

use crate::held::{Place, Waiting};
use crate::rank::Rank;
use crate::sync::{Instant, leaf, ranked};
use leaf::WaitTimeoutResult;

/// A mutex with a place in the lock order.
///
/// It wraps the standard library's mutex, which waits by spinning for a moment and then sleeping. A
/// mutex that yields in between (`parking_lot`) loses a whole time slice, three milliseconds, for a
/// lock held for one microsecond; a sleeping thread is woken by the unlock and runs first. Poison
/// is ignored: a panic under a lock either ends the process or is part of a test.
pub struct RankedMutex<T> {
    place: Place,
    inner: ranked::Mutex<T>,
}

impl<T> RankedMutex<T> {
    /// Creates a new unlocked mutex of the given rank.
    pub const fn new(rank: Rank, value: T) -> Self {
        Self { place: Place::new(rank), inner: ranked::Mutex::new(value) }
    }

    /// Waits for the lock. Debug builds panic when a lock of the same or a higher rank is held.
    #[inline]
    #[cfg_attr(schedule, track_caller)]
    pub fn lock(&self) -> RankedMutexGuard<'_, T> {
        let held = Waiting::lock(self.place, false);
        RankedMutexGuard { inner: Some(self.inner.lock()), of: self, held }
    }

    /// Like [`lock`](Self::lock), but one lock of the same rank may be held already. The caller
    /// states the order among them (for LRU lists: parent before child).
    #[inline]
    #[cfg_attr(schedule, track_caller)]
    pub fn lock_second(&self) -> RankedMutexGuard<'_, T> {
        let held = Waiting::lock(self.place, true);
        RankedMutexGuard { inner: Some(self.inner.lock()), of: self, held }
    }

    /// Takes the lock if no other thread holds it. Allowed out of order, because it cannot wait.
    #[inline]
    #[cfg_attr(schedule, track_caller)]
    pub fn try_lock(&self) -> Option<RankedMutexGuard<'_, T>> {
        let inner = self.inner.try_lock()?;
        Some(RankedMutexGuard { inner: Some(inner), of: self, held: Waiting::tried(self.place) })
    }

    /// Returns the value, when no other thread can hold the lock.
    pub fn get_mut(&mut self) -> &mut T {
        self.inner.get_mut()
    }
}

impl<T: fmt::Debug> fmt::Debug for RankedMutex<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

/// Holds a [`RankedMutex`]; unlocks when dropped.
#[must_use]
pub struct RankedMutexGuard<'a, T> {
    /// Empty only within [`unlocked`](Self::unlocked).
    inner: Option<ranked::MutexGuard<'a, T>>,
    of: &'a RankedMutex<T>,
    held: Waiting,
}

impl<T> RankedMutexGuard<'_, T> {
    /// Runs `act` without the lock, and takes it again.
    pub fn unlocked<R>(&mut self, act: impl FnOnce() -> R) -> R {
        self.inner = None;
        self.held.set_aside();
        let result = act();
        self.held.again();
        self.inner = Some(self.of.inner.lock());
        result
    }
}

impl<T> Deref for RankedMutexGuard<'_, T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        match &self.inner {
            Some(inner) => inner,
            None => unreachable!("a guard is looked through while it is unlocked"),
        }
    }
}

impl<T> DerefMut for RankedMutexGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        match &mut self.inner {
            Some(inner) => inner,
            None => unreachable!("a guard is looked through while it is unlocked"),
        }
    }
}

impl<T: fmt::Debug> fmt::Debug for RankedMutexGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

/// A mutex under which the thread takes no other lock and waits for nothing. One word, and loom's
/// in its models.
#[derive(Debug)]
pub struct LeafMutex<T> {
    place: Place,
    inner: leaf::Mutex<T>,
}

impl<T> LeafMutex<T> {
    crate::const_fn! {
        /// Creates a new unlocked mutex.
        pub const fn new(value: T) -> Self {
            Self::with_rank(Rank::Leaf, value)
        }

        /// Creates a mutex of another rank: taken under a leaf ([`Rank::Innermost`]), or held while
        /// some leaves are taken.
        pub const fn with_rank(rank: Rank, value: T) -> Self {
            Self { place: Place::new(rank), inner: leaf::Mutex::new(value) }
        }
    }

    /// Waits for the lock.
    #[inline]
    #[cfg_attr(schedule, track_caller)]
    pub fn lock(&self) -> LeafMutexGuard<'_, T> {
        let held = Waiting::lock(self.place, false);
        LeafMutexGuard { inner: self.inner.lock(), held }
    }

    /// Like [`RankedMutex::lock_second`].
    #[inline]
    #[cfg_attr(schedule, track_caller)]
    pub fn lock_second(&self) -> LeafMutexGuard<'_, T> {
        let held = Waiting::lock(self.place, true);
        LeafMutexGuard { inner: self.inner.lock(), held }
    }
}

impl<T: Default> Default for LeafMutex<T> {
    fn default() -> Self {
        Self::new(T::default())
    }
}

/// Holds a [`LeafMutex`]; unlocks when dropped.
#[must_use]
#[derive(Debug)]
pub struct LeafMutexGuard<'a, T> {
    inner: leaf::MutexGuard<'a, T>,
    held: Waiting,
}

impl<T> Deref for LeafMutexGuard<'_, T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        &self.inner
    }
}

impl<T> DerefMut for LeafMutexGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.inner
    }
}

/// A condition variable: threads wait under a leaf for actions of other threads. The wait has a
/// rank of its own, after all locks the thread may hold meanwhile.
#[derive(Debug)]
pub struct Condvar {
    place: Place,
    inner: leaf::Condvar,
}

impl Default for Condvar {
    /// Creates one for waits with nothing held ([`Rank::Peer`]).
    fn default() -> Self {
        Self::new(Rank::Peer)
    }
}

impl Condvar {
    /// Creates a condition variable for waits of this rank.
    pub fn new(rank: Rank) -> Self {
        Self { place: Place::new(rank), inner: leaf::Condvar::new() }
    }

    /// Creates a condition variable for threads that may hold others of the same rank; the caller
    /// states the order among them.
    pub fn among(rank: Rank) -> Self {
        Self { place: Place::among(rank), inner: leaf::Condvar::new() }
    }

    /// Waits for a notification.
    #[cfg_attr(schedule, track_caller)]
    pub fn wait<T>(&self, guard: &mut LeafMutexGuard<'_, T>) {
        self.begin(guard);
        self.inner.wait(&mut guard.inner);
        guard.held.again();
    }

    /// Waits for a notification or the deadline.
    #[cfg_attr(schedule, track_caller)]
    pub fn wait_until<T>(&self, guard: &mut LeafMutexGuard<'_, T>, deadline: Instant) -> WaitTimeoutResult {
        self.begin(guard);
        let result = self.inner.wait_until(&mut guard.inner, deadline);
        guard.held.again();
        result
    }

    /// Waits for a notification, `timeout` at most.
    #[cfg_attr(schedule, track_caller)]
    pub fn wait_for<T>(&self, guard: &mut LeafMutexGuard<'_, T>, timeout: Duration) -> WaitTimeoutResult {
        self.begin(guard);
        let result = self.inner.wait_for(&mut guard.inner, timeout);
        guard.held.again();
        result
    }

    /// Records that the leaf is unlocked from here on; anything else held by the thread must rank
    /// before the wait.
    #[inline]
    fn begin<T>(&self, guard: &LeafMutexGuard<'_, T>) {
        guard.held.set_aside();
        self.place.assert_may_wait("a wait for a condition");
    }

    /// Wakes one waiting thread.
    pub fn notify_one(&self) {
        self.inner.notify_one();
    }

    /// Wakes all waiting threads.
    pub fn notify_all(&self) {
        self.inner.notify_all();
    }
}

/// A reader-writer lock with a place in the lock order. Readers of one lock may nest with nothing
/// of their own rank.
pub struct RankedRwLock<T> {
    place: Place,
    inner: ranked::RwLock<T>,
}

impl<T> RankedRwLock<T> {
    /// Creates a new unlocked lock of the given rank.
    pub const fn new(rank: Rank, value: T) -> Self {
        Self { place: Place::new(rank), inner: ranked::RwLock::new(value) }
    }

    /// Waits for shared access.
    #[inline]
    #[cfg_attr(schedule, track_caller)]
    pub fn read(&self) -> RankedReadGuard<'_, T> {
        let held = Waiting::lock(self.place, false);
        RankedReadGuard { inner: self.inner.read(), _held: held }
    }

    /// Takes shared access if that needs no waiting.
    #[inline]
    #[cfg_attr(schedule, track_caller)]
    pub fn try_read(&self) -> Option<RankedReadGuard<'_, T>> {
        let inner = self.inner.try_read()?;
        Some(RankedReadGuard { inner, _held: Waiting::tried(self.place) })
    }

    /// Waits for exclusive access.
    #[inline]
    #[cfg_attr(schedule, track_caller)]
    pub fn write(&self) -> RankedWriteGuard<'_, T> {
        let held = Waiting::lock(self.place, false);
        RankedWriteGuard { inner: self.inner.write(), _held: held }
    }
}

impl<T: fmt::Debug> fmt::Debug for RankedRwLock<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

/// A reader-writer lock under which the thread takes no other lock and waits for nothing.
#[derive(Debug)]
pub struct LeafRwLock<T>(RankedRwLock<T>);

impl<T> LeafRwLock<T> {
    /// Creates a new unlocked lock.
    pub const fn new(value: T) -> Self {
        Self(RankedRwLock::new(Rank::Leaf, value))
    }

    /// Waits for shared access.
    #[inline]
    #[cfg_attr(schedule, track_caller)]
    pub fn read(&self) -> RankedReadGuard<'_, T> {
        self.0.read()
    }

    /// Waits for exclusive access.
    #[inline]
    #[cfg_attr(schedule, track_caller)]
    pub fn write(&self) -> RankedWriteGuard<'_, T> {
        self.0.write()
    }
}

impl<T: Default> Default for LeafRwLock<T> {
    fn default() -> Self {
        Self::new(T::default())
    }
}

/// Shared access to a [`RankedRwLock`] or a [`LeafRwLock`].
#[must_use]
#[derive(Debug)]
pub struct RankedReadGuard<'a, T> {
    inner: ranked::RwLockReadGuard<'a, T>,
    _held: Waiting,
}

impl<T> Deref for RankedReadGuard<'_, T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        &self.inner
    }
}

/// Exclusive access to a [`RankedRwLock`] or a [`LeafRwLock`].
#[must_use]
#[derive(Debug)]
pub struct RankedWriteGuard<'a, T> {
    inner: ranked::RwLockWriteGuard<'a, T>,
    _held: Waiting,
}

impl<T> Deref for RankedWriteGuard<'_, T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        &self.inner
    }
}

impl<T> DerefMut for RankedWriteGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.inner
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::held::assert_no_locks_held;

    #[test]
    fn rising_ranks_are_allowed() {
        let outer = RankedMutex::new(Rank::FileGrowth, ());
        let inner = RankedMutex::new(Rank::Lruvec, ());
        let leaf = LeafMutex::new(());
        let _a = outer.lock();
        let _b = inner.lock();
        let _c = leaf.lock();
    }

    #[test]
    #[cfg(debug_assertions)]
    #[should_panic(expected = "lock rank")]
    fn falling_ranks_panic() {
        let outer = RankedMutex::new(Rank::FileGrowth, ());
        let inner = RankedMutex::new(Rank::Lruvec, ());
        let _b = inner.lock();
        let _a = outer.lock();
    }

    #[test]
    #[cfg(debug_assertions)]
    #[should_panic(expected = "lock rank Leaf taken while Leaf is held")]
    fn two_leaves_at_once_panic() {
        let (one, other) = (LeafMutex::new(()), LeafRwLock::new(()));
        let _a = one.lock();
        let _b = other.read();
    }

    #[test]
    #[cfg(debug_assertions)]
    #[should_panic(expected = "a wait for a condition")]
    fn a_wait_with_a_later_lock_held_panics() {
        let (outer, leaf) = (RankedMutex::new(Rank::FileIndex, ()), LeafMutex::new(()));
        let _a = outer.lock();
        Condvar::new(Rank::Writeback).wait_for(&mut leaf.lock(), Duration::ZERO);
    }

    #[test]
    fn a_wait_unlocks_its_leaf_and_takes_it_again() {
        let (outer, leaf) = (RankedMutex::new(Rank::FileGrowth, ()), LeafMutex::new(()));
        let _a = outer.lock();
        let mut guard = leaf.lock();
        assert!(Condvar::new(Rank::Writeback).wait_for(&mut guard, Duration::ZERO).timed_out());
        drop(guard);
        let _b = leaf.lock();
    }

    #[test]
    fn a_try_lock_may_come_from_the_wrong_end() {
        let outer = RankedMutex::new(Rank::FileGrowth, ());
        let inner = RankedMutex::new(Rank::Lruvec, ());
        let _b = inner.lock();
        assert!(outer.try_lock().is_some());
    }

    #[test]
    #[cfg(debug_assertions)]
    #[should_panic(expected = "reclaim entered")]
    fn entry_points_refuse_held_locks() {
        let lock = RankedMutex::new(Rank::Page, ());
        let _held = lock.lock();
        assert_no_locks_held("reclaim");
    }

    #[test]
    #[cfg(not(debug_assertions))]
    fn ranks_take_no_room_in_a_release_build() {
        use std::mem::size_of;
        assert_eq!(size_of::<LeafMutex<u64>>(), size_of::<parking_lot::Mutex<u64>>());
        assert_eq!(size_of::<RankedMutex<u64>>(), size_of::<std::sync::Mutex<u64>>());
    }
}
