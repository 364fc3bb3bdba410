//! Ranks of everything that a thread can wait for, as code. A thread takes locks, and waits, in rising rank only; a debug
//! build panics at the first one out of order, and at the first charge or reclaim that starts with a lock held that ranks
//! after it.
//!
//! [`RANKS`] says what each is; the table of `LOCKING.md` is generated from it.

use std::fmt;
use std::ops::{Deref, DerefMut};

use crate::sync::ranked::{Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Ranks from the outermost to the innermost. Two locks of one rank are never held together, except where the acquisition
/// says so ([`RankedMutex::lock_second`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Rank {
    /// The kernel's answer to a notification: it may wait for requests that we serve.
    KernelNotice = 1,
    /// Writes that make a file longer; held over charging and reclaim.
    FileGrowth = 2,
    /// Room below a dirty limit: a paced writer.
    DirtyRoom = 3,
    /// Room among the pages in flight beyond limits; held by the request that has them.
    Overrun = 4,
    /// Charging and reclaim.
    Memory = 5,
    /// Some write-back to finish, for at most 100 ms in a reclaim.
    Writeback = 6,
    /// The kernel to let go of names, for at most 20 ms.
    KernelRelease = 7,
    /// Creation and removal of groups.
    Lifecycle = 8,
    /// One write-back of a file at a time.
    FileFlush = 9,
    /// A file's content: shared by fills, writes and write-back, exclusive for truncation and moves.
    FileContent = 10,
    /// A locked page; held by the thread that fills or writes it.
    Page = 11,
    /// A call of a backing store.
    StoreIo = 12,
    /// Shards of the inode table, descriptor cache; shards of an object cache.
    ObjectOwner = 13,
    /// Changes of a file's index, its marks, dirty counts.
    FileIndex = 14,
    /// A store's lists of dirty files, one for each group.
    DirtyFiles = 15,
    /// The children of a group.
    GroupChildren = 16,
    /// Which lists of objects a group has.
    ObjectLists = 17,
    /// The lists of one (group, node): of pages, and one for each kind of object.
    Lruvec = 18,
    /// Free frames of a node.
    FreeFrames = 19,
}

/// What a rank is of.
#[derive(Debug, Clone, Copy)]
pub struct RankInfo {
    /// Which.
    pub rank: Rank,
    /// A lock of this module; else a wait, or something that is waited for.
    pub is_lock: bool,
    /// What the lock guards, or what is waited for.
    pub what: &'static str,
    /// The files that have it.
    pub place: &'static str,
}

/// All ranks in order.
pub const RANKS: &[RankInfo] = &[
    RankInfo {
        rank: Rank::KernelNotice,
        is_lock: false,
        what: "the kernel's answer to a notification: it may wait for requests that we serve",
        place: "`umemcg-fuse/src/notifier.rs`",
    },
    RankInfo {
        rank: Rank::FileGrowth,
        is_lock: true,
        what: "writes that make a file longer; held over charging and reclaim",
        place: "`umemcg-cache/src/file.rs`",
    },
    RankInfo {
        rank: Rank::DirtyRoom,
        is_lock: false,
        what: "room below a dirty limit: a paced writer",
        place: "`umemcg-cache/src/dirty/pause.rs`",
    },
    RankInfo {
        rank: Rank::Overrun,
        is_lock: false,
        what: "room among the pages in flight beyond limits; held by the request that has them",
        place: "`umemcg-cache/src/overrun.rs`",
    },
    RankInfo {
        rank: Rank::Memory,
        is_lock: false,
        what: "charging and reclaim",
        place: "`umemcg-reclaim/src/charge.rs`, `reclaim.rs`",
    },
    RankInfo {
        rank: Rank::Writeback,
        is_lock: false,
        what: "some write-back to finish, for at most 100 ms in a reclaim",
        place: "`umemcg-cache/src/cache.rs`",
    },
    RankInfo {
        rank: Rank::KernelRelease,
        is_lock: false,
        what: "the kernel to let go of names, for at most 20 ms",
        place: "`umemcg-reclaim/src/reclaim.rs`",
    },
    RankInfo {
        rank: Rank::Lifecycle,
        is_lock: true,
        what: "creation and removal of groups",
        place: "`umemcg-group/src/tree.rs`",
    },
    RankInfo {
        rank: Rank::FileFlush,
        is_lock: true,
        what: "one write-back of a file at a time",
        place: "`umemcg-cache/src/file.rs`",
    },
    RankInfo {
        rank: Rank::FileContent,
        is_lock: true,
        what: "a file's content: shared by fills, writes and write-back, exclusive for truncation and moves",
        place: "`umemcg-cache/src/file.rs`",
    },
    RankInfo {
        rank: Rank::Page,
        is_lock: false,
        what: "a locked page; held by the thread that fills or writes it",
        place: "`umemcg-cache/src/page_lock.rs`",
    },
    RankInfo {
        rank: Rank::StoreIo,
        is_lock: false,
        what: "a call of a backing store",
        place: "`umemcg-cache/src/store.rs`",
    },
    RankInfo {
        rank: Rank::ObjectOwner,
        is_lock: true,
        what: "shards of the inode table, descriptor cache; shards of an object cache",
        place: "`umemcg-vfs`, `umemcg/src/object_cache/shard.rs`",
    },
    RankInfo {
        rank: Rank::FileIndex,
        is_lock: true,
        what: "changes of a file's index, its marks, dirty counts",
        place: "`umemcg-cache/src/index.rs`",
    },
    RankInfo {
        rank: Rank::DirtyFiles,
        is_lock: true,
        what: "a store's lists of dirty files, one for each group",
        place: "`umemcg-cache/src/domain.rs`",
    },
    RankInfo {
        rank: Rank::GroupChildren,
        is_lock: true,
        what: "the children of a group",
        place: "`umemcg-group`",
    },
    RankInfo {
        rank: Rank::ObjectLists,
        is_lock: true,
        what: "which lists of objects a group has",
        place: "`umemcg-reclaim/src/object_lists.rs`",
    },
    RankInfo {
        rank: Rank::Lruvec,
        is_lock: true,
        what: "the lists of one (group, node): of pages, and one for each kind of object",
        place: "`umemcg-reclaim/src/lruvec.rs`, `object_lists.rs`",
    },
    RankInfo {
        rank: Rank::FreeFrames,
        is_lock: true,
        what: "free frames of a node",
        place: "`umemcg-arena`",
    },
];

#[cfg(debug_assertions)]
mod held {
    use super::Rank;
    use std::cell::RefCell;
    thread_local! { static HELD: RefCell<Vec<Rank>> = const { RefCell::new(Vec::new()) }; }

    pub(super) fn push(rank: Rank, same_allowed: bool) {
        HELD.with(|held| {
            let mut held = held.borrow_mut();
            if let Some(&top) = held.iter().max() {
                assert!(
                    top < rank || (same_allowed && top == rank),
                    "lock rank {rank:?} taken while {top:?} is held"
                );
            }
            held.push(rank);
        });
    }
    /// A try-lock may be taken out of order: it cannot wait.
    pub(super) fn push_tried(rank: Rank) {
        HELD.with(|held| held.borrow_mut().push(rank));
    }
    pub(super) fn pop(rank: Rank) {
        // A guard that outlives its thread's locals has nothing left to check.
        let _ = HELD.try_with(|held| {
            let mut held = held.borrow_mut();
            if let Some(at) = held.iter().rposition(|&r| r == rank) {
                held.remove(at);
            }
        });
    }
    pub(super) fn assert_not_above(rank: Rank, what: &str) {
        HELD.with(|held| {
            let held = held.borrow();
            assert!(held.iter().all(|&held| held <= rank), "{what} entered while holding {held:?}");
        });
    }
    pub(super) fn assert_below(rank: Rank, what: &str) {
        HELD.with(|held| {
            let held = held.borrow();
            assert!(held.iter().all(|&held| held < rank), "{what} entered while holding {held:?}");
        });
    }
}

/// Panics in debug builds when this thread holds anything that ranks with or after [`Rank::Memory`]. Whatever may charge or
/// reclaim calls it first.
#[inline]
pub fn assert_no_locks_held(what: &str) {
    assert_may_wait(Rank::Memory, what);
}

/// Panics in debug builds when this thread holds anything that ranks with or after `rank`, for which it is about to wait.
#[inline]
pub fn assert_may_wait(rank: Rank, what: &str) {
    #[cfg(debug_assertions)]
    held::assert_below(rank, what);
    #[cfg(not(debug_assertions))]
    let _ = (rank, what);
}

/// Like [`assert_may_wait`], for a thread that may hold others of the same rank; the caller states the order among them.
#[inline]
pub fn assert_may_wait_among(rank: Rank, what: &str) {
    #[cfg(debug_assertions)]
    held::assert_not_above(rank, what);
    #[cfg(not(debug_assertions))]
    let _ = (rank, what);
}

/// Something that other threads wait for and that is no lock of this module: locked pages. The thread that makes it wait has it
/// on record here until it is dropped.
#[derive(Debug)]
#[must_use]
pub struct Waiting {
    #[cfg_attr(not(debug_assertions), allow(dead_code))]
    rank: Rank,
}

impl Waiting {
    /// From now on others may wait for what this thread has. Taking it needs no wait, so anything may be held.
    #[inline]
    pub fn on(rank: Rank) -> Self {
        #[cfg(debug_assertions)]
        held::push_tried(rank);
        Self { rank }
    }
}

impl Drop for Waiting {
    #[inline]
    fn drop(&mut self) {
        #[cfg(debug_assertions)]
        held::pop(self.rank);
    }
}

/// A mutex with a place in the lock order.
///
/// The standard library's, because of how it waits: it spins for a moment and then sleeps. One that offers its processor in between
/// (`parking_lot`) loses a whole time slice, three milliseconds, to whoever runs there, for a lock that is held for one
/// microsecond; who sleeps is woken by the unlock and goes first. Poison is ignored: what panics under a lock ends the
/// process or is a test.
pub struct RankedMutex<T> {
    #[cfg_attr(not(debug_assertions), allow(dead_code))]
    rank: Rank,
    inner: Mutex<T>,
}

impl<T> RankedMutex<T> {
    /// A new unlocked mutex of the given rank.
    pub const fn new(rank: Rank, value: T) -> Self {
        Self { rank, inner: Mutex::new(value) }
    }

    /// Waits for the lock. Debug builds panic when a lock of the same or a higher rank is held.
    #[inline]
    #[cfg_attr(schedule, track_caller)]
    pub fn lock(&self) -> RankedMutexGuard<'_, T> {
        #[cfg(debug_assertions)]
        held::push(self.rank, false);
        RankedMutexGuard { inner: Some(self.wait()), of: self }
    }

    /// Like [`lock`](Self::lock), but one lock of the same rank may be held already. The caller states the order
    /// among them (for LRU lists: parent before child).
    #[inline]
    #[cfg_attr(schedule, track_caller)]
    pub fn lock_second(&self) -> RankedMutexGuard<'_, T> {
        #[cfg(debug_assertions)]
        held::push(self.rank, true);
        RankedMutexGuard { inner: Some(self.wait()), of: self }
    }

    /// Takes the lock if nobody holds it. Allowed out of order, because it cannot wait.
    #[inline]
    #[cfg_attr(schedule, track_caller)]
    pub fn try_lock(&self) -> Option<RankedMutexGuard<'_, T>> {
        let inner = self.inner.try_lock()?;
        #[cfg(debug_assertions)]
        held::push_tried(self.rank);
        Some(RankedMutexGuard { inner: Some(inner), of: self })
    }

    /// The value, when nobody else can hold the lock.
    pub fn get_mut(&mut self) -> &mut T {
        self.inner.get_mut()
    }

    #[inline]
    #[cfg_attr(schedule, track_caller)]
    fn wait(&self) -> MutexGuard<'_, T> {
        self.inner.lock()
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
    inner: Option<MutexGuard<'a, T>>,
    of: &'a RankedMutex<T>,
}

impl<T> RankedMutexGuard<'_, T> {
    /// Runs `act` without the lock, and takes it again.
    pub fn unlocked<R>(&mut self, act: impl FnOnce() -> R) -> R {
        self.inner = None;
        #[cfg(debug_assertions)]
        held::pop(self.of.rank);
        let result = act();
        #[cfg(debug_assertions)]
        held::push(self.of.rank, true);
        self.inner = Some(self.of.wait());
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

impl<T> Drop for RankedMutexGuard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        #[cfg(debug_assertions)]
        if self.inner.is_some() {
            held::pop(self.of.rank);
        }
    }
}

impl<T: fmt::Debug> fmt::Debug for RankedMutexGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

/// A reader-writer lock with a place in the lock order. Readers of one lock may nest with nothing of their own rank.
pub struct RankedRwLock<T> {
    #[cfg_attr(not(debug_assertions), allow(dead_code))]
    rank: Rank,
    inner: RwLock<T>,
}

impl<T> RankedRwLock<T> {
    /// A new unlocked lock of the given rank.
    pub const fn new(rank: Rank, value: T) -> Self {
        Self { rank, inner: RwLock::new(value) }
    }

    /// Waits for shared access.
    #[inline]
    #[cfg_attr(schedule, track_caller)]
    pub fn read(&self) -> RankedReadGuard<'_, T> {
        #[cfg(debug_assertions)]
        held::push(self.rank, false);
        RankedReadGuard { inner: self.inner.read(), rank: self.rank }
    }

    /// Takes shared access if that needs no waiting.
    #[inline]
    #[cfg_attr(schedule, track_caller)]
    pub fn try_read(&self) -> Option<RankedReadGuard<'_, T>> {
        let inner = self.inner.try_read()?;
        #[cfg(debug_assertions)]
        held::push_tried(self.rank);
        Some(RankedReadGuard { inner, rank: self.rank })
    }

    /// Waits for exclusive access.
    #[inline]
    #[cfg_attr(schedule, track_caller)]
    pub fn write(&self) -> RankedWriteGuard<'_, T> {
        #[cfg(debug_assertions)]
        held::push(self.rank, false);
        RankedWriteGuard { inner: self.inner.write(), rank: self.rank }
    }
}

impl<T: fmt::Debug> fmt::Debug for RankedRwLock<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

/// Shared access to a [`RankedRwLock`].
#[must_use]
#[derive(Debug)]
pub struct RankedReadGuard<'a, T> {
    inner: RwLockReadGuard<'a, T>,
    #[cfg_attr(not(debug_assertions), allow(dead_code))]
    rank: Rank,
}

impl<T> Deref for RankedReadGuard<'_, T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        &self.inner
    }
}

impl<T> Drop for RankedReadGuard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        #[cfg(debug_assertions)]
        held::pop(self.rank);
    }
}

/// Exclusive access to a [`RankedRwLock`].
#[must_use]
#[derive(Debug)]
pub struct RankedWriteGuard<'a, T> {
    inner: RwLockWriteGuard<'a, T>,
    #[cfg_attr(not(debug_assertions), allow(dead_code))]
    rank: Rank,
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

impl<T> Drop for RankedWriteGuard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        #[cfg(debug_assertions)]
        held::pop(self.rank);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rising_ranks_are_allowed() {
        let outer = RankedMutex::new(Rank::Lifecycle, ());
        let inner = RankedMutex::new(Rank::Lruvec, ());
        let _a = outer.lock();
        let _b = inner.lock();
    }

    #[test]
    #[cfg(debug_assertions)]
    #[should_panic(expected = "lock rank")]
    fn falling_ranks_panic() {
        let outer = RankedMutex::new(Rank::Lifecycle, ());
        let inner = RankedMutex::new(Rank::Lruvec, ());
        let _b = inner.lock();
        let _a = outer.lock();
    }

    #[test]
    fn a_try_lock_may_come_from_the_wrong_end() {
        let outer = RankedMutex::new(Rank::Lifecycle, ());
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
}
