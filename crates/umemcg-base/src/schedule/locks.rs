//! Locks and condition variables of a schedule, with the interface of `parking_lot`'s. A thread
//! outside the schedule takes the inner lock directly.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::panic::Location;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use super::scheduler::{On, me, pause, state, wait};
use super::time::Instant;

fn took(place: usize, at: &'static Location<'static>) {
    if let Some(me) = me() {
        state().threads[me].locks.push((place, at));
    }
}

fn gave(place: usize) {
    let me = me();
    let mut state = state();
    if let Some(me) = me
        && let Some(at) = state.threads[me].locks.iter().rposition(|(lock, _)| *lock == place)
    {
        state.threads[me].locks.remove(at);
    }
    state.wake(On::Place(place));
}

/// See the module.
#[derive(Default)]
pub struct Mutex<T: ?Sized> {
    inner: parking_lot::Mutex<T>,
}

impl<T> Mutex<T> {
    /// Creates an unlocked mutex.
    pub const fn new(value: T) -> Self {
        Self { inner: parking_lot::Mutex::new(value) }
    }

    /// Returns the value.
    pub fn into_inner(self) -> T {
        self.inner.into_inner()
    }
}

impl<T: ?Sized> Mutex<T> {
    fn place(&self) -> usize {
        std::ptr::from_ref(&self.inner).cast::<u8>() as usize
    }

    /// Waits for the lock.
    #[track_caller]
    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.lock_at(Location::caller())
    }

    fn lock_at(&self, at: &'static Location<'static>) -> MutexGuard<'_, T> {
        if me().is_none() {
            return MutexGuard { inner: Some(self.inner.lock()), of: self, at };
        }
        pause();
        loop {
            if let Some(inner) = self.inner.try_lock() {
                took(self.place(), at);
                return MutexGuard { inner: Some(inner), of: self, at };
            }
            wait(On::Place(self.place()), "a lock", at, None);
        }
    }

    /// Takes the lock if it is free.
    #[track_caller]
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        pause();
        let (inner, at) = (self.inner.try_lock()?, Location::caller());
        took(self.place(), at);
        Some(MutexGuard { inner: Some(inner), of: self, at })
    }

    /// Returns the value, when no other thread can hold the lock.
    pub fn get_mut(&mut self) -> &mut T {
        self.inner.get_mut()
    }

    /// Returns whether a thread holds the lock.
    pub fn is_locked(&self) -> bool {
        self.inner.is_locked()
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for Mutex<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

/// Holds a [`Mutex`].
#[must_use]
pub struct MutexGuard<'a, T: ?Sized> {
    /// Empty only while a condition variable has it.
    inner: Option<parking_lot::MutexGuard<'a, T>>,
    of: &'a Mutex<T>,
    at: &'static Location<'static>,
}

impl<T: ?Sized> MutexGuard<'_, T> {
    fn unlock(&mut self) {
        if self.inner.take().is_some() {
            gave(self.of.place());
        }
    }
}

impl<T: ?Sized> Drop for MutexGuard<'_, T> {
    fn drop(&mut self) {
        self.unlock();
    }
}

impl<T: ?Sized> Deref for MutexGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        self.inner.as_ref().expect("the guard holds its lock")
    }
}

impl<T: ?Sized> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.inner.as_mut().expect("the guard holds its lock")
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for MutexGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

/// A reader-writer lock. A reader waits behind a waiting writer, as with the lock of ordinary
/// builds.
#[derive(Default)]
pub struct RwLock<T: ?Sized> {
    nr_writers_waiting: AtomicUsize,
    inner: parking_lot::RwLock<T>,
}

impl<T> RwLock<T> {
    /// Creates an unlocked lock.
    pub const fn new(value: T) -> Self {
        Self { nr_writers_waiting: AtomicUsize::new(0), inner: parking_lot::RwLock::new(value) }
    }
}

impl<T: ?Sized> RwLock<T> {
    fn place(&self) -> usize {
        std::ptr::from_ref(&self.inner).cast::<u8>() as usize
    }

    /// Waits for shared access.
    #[track_caller]
    pub fn read(&self) -> RwLockReadGuard<'_, T> {
        if me().is_none() {
            return RwLockReadGuard { inner: Some(self.inner.read()), place: self.place() };
        }
        let at = Location::caller();
        pause();
        loop {
            if self.nr_writers_waiting.load(Relaxed) == 0
                && let Some(inner) = self.inner.try_read()
            {
                took(self.place(), at);
                return RwLockReadGuard { inner: Some(inner), place: self.place() };
            }
            wait(On::Place(self.place()), "shared access", at, None);
        }
    }

    /// Takes shared access if that needs no waiting.
    #[track_caller]
    pub fn try_read(&self) -> Option<RwLockReadGuard<'_, T>> {
        pause();
        if self.nr_writers_waiting.load(Relaxed) > 0 {
            return None;
        }
        let inner = self.inner.try_read()?;
        took(self.place(), Location::caller());
        Some(RwLockReadGuard { inner: Some(inner), place: self.place() })
    }

    /// Waits for exclusive access.
    #[track_caller]
    pub fn write(&self) -> RwLockWriteGuard<'_, T> {
        if me().is_none() {
            return RwLockWriteGuard { inner: Some(self.inner.write()), place: self.place() };
        }
        let at = Location::caller();
        pause();
        loop {
            if let Some(inner) = self.inner.try_write() {
                took(self.place(), at);
                return RwLockWriteGuard { inner: Some(inner), place: self.place() };
            }
            self.nr_writers_waiting.fetch_add(1, Relaxed);
            wait(On::Place(self.place()), "exclusive access", at, None);
            self.nr_writers_waiting.fetch_sub(1, Relaxed);
        }
    }

    /// Takes exclusive access if that needs no waiting.
    #[track_caller]
    pub fn try_write(&self) -> Option<RwLockWriteGuard<'_, T>> {
        pause();
        let inner = self.inner.try_write()?;
        took(self.place(), Location::caller());
        Some(RwLockWriteGuard { inner: Some(inner), place: self.place() })
    }

    /// Returns the value, when no other thread can have access.
    pub fn get_mut(&mut self) -> &mut T {
        self.inner.get_mut()
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for RwLock<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

macro_rules! guard {
    ($name:ident, $of:ident) => {
        /// Access to a [`RwLock`].
        #[must_use]
        #[derive(Debug)]
        pub struct $name<'a, T: ?Sized> {
            inner: Option<parking_lot::$of<'a, T>>,
            place: usize,
        }

        impl<T: ?Sized> Drop for $name<'_, T> {
            fn drop(&mut self) {
                self.inner = None;
                gave(self.place);
            }
        }

        impl<T: ?Sized> Deref for $name<'_, T> {
            type Target = T;
            fn deref(&self) -> &T {
                self.inner.as_ref().expect("the guard holds its lock")
            }
        }
    };
}
guard!(RwLockReadGuard, RwLockReadGuard);
guard!(RwLockWriteGuard, RwLockWriteGuard);

impl<T: ?Sized> DerefMut for RwLockWriteGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.inner.as_mut().expect("the guard holds its lock")
    }
}

/// The outcome of a wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WaitTimeoutResult(bool);

impl WaitTimeoutResult {
    /// Returns whether the wait ended by its deadline.
    #[must_use]
    pub fn timed_out(&self) -> bool {
        self.0
    }
}

/// A condition variable without spurious wakeups.
#[derive(Debug, Default)]
pub struct Condvar {
    /// Gives each one an address of its own.
    _place: u8,
}

impl Condvar {
    /// Creates a new condition variable.
    pub const fn new() -> Self {
        Self { _place: 0 }
    }

    fn on(&self) -> On {
        On::Place(std::ptr::from_ref(self) as usize)
    }

    fn wait_at<T: ?Sized>(
        &self,
        guard: &mut MutexGuard<'_, T>,
        deadline: Option<Instant>,
        at: &'static Location<'static>,
    ) -> bool {
        guard.unlock();
        let woken = wait(self.on(), "a condition", at, deadline.map(|deadline| deadline.0));
        let mut again = guard.of.lock_at(guard.at);
        guard.inner = again.inner.take();
        woken
    }

    /// Waits for a notification.
    #[track_caller]
    pub fn wait<T: ?Sized>(&self, guard: &mut MutexGuard<'_, T>) {
        self.wait_at(guard, None, Location::caller());
    }

    /// Waits for a notification or the deadline.
    #[track_caller]
    pub fn wait_until<T: ?Sized>(
        &self,
        guard: &mut MutexGuard<'_, T>,
        deadline: Instant,
    ) -> WaitTimeoutResult {
        WaitTimeoutResult(!self.wait_at(guard, Some(deadline), Location::caller()))
    }

    /// Waits for a notification, `timeout` at most.
    #[track_caller]
    pub fn wait_for<T: ?Sized>(
        &self,
        guard: &mut MutexGuard<'_, T>,
        timeout: std::time::Duration,
    ) -> WaitTimeoutResult {
        let deadline = Instant::now() + timeout;
        WaitTimeoutResult(!self.wait_at(guard, Some(deadline), Location::caller()))
    }

    /// Wakes one waiting thread.
    pub fn notify_one(&self) {
        state().wake_one(self.on());
    }

    /// Wakes all waiting threads.
    pub fn notify_all(&self) {
        state().wake(self.on());
    }
}
