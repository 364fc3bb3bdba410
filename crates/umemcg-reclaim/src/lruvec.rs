//! The page lists of one group: inactive and active, one lock, links kept in the frame records.
//!
//! A page on a list carries [`Flag::ON_LRU`]; [`Flag::ACTIVE`] distinguishes the two lists. Both
//! flags change only under the lock of the list of the page's current group. When a group is
//! removed its lists are spliced to the parent's tail in O(1) (parent locked before child) and
//! marked dead; a thread finding a dead list resolves the owner again.

use umemcg_arena::{Arena, FrameFlags as Flag, FrameId, FrameRecord};
use umemcg_base::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use umemcg_base::{Rank, RankedMutex, RankedMutexGuard};

/// The kind of a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LruKind {
    /// Pages used once; reclaim takes from its tail.
    Inactive,
    /// Pages used more than once.
    Active,
}

/// Returns the neighbours of a frame, read under the list lock.
fn links(record: &FrameRecord) -> (FrameId, FrameId) {
    let load = |link: &AtomicU32| FrameId::from_raw(link.load(Ordering::Relaxed));
    (load(&record.lru_prev), load(&record.lru_next))
}

/// A doubly linked list through the frame records. Head is the youngest end.
#[derive(Debug)]
pub(crate) struct List {
    head: FrameId,
    tail: FrameId,
    len: u64,
}

impl List {
    const fn new() -> Self {
        Self { head: FrameId::NONE, tail: FrameId::NONE, len: 0 }
    }

    fn push_head(&mut self, arena: &Arena, frame: FrameId) {
        let record = arena.record(frame);
        record.lru_prev.store(FrameId::NONE.raw(), Ordering::Relaxed);
        record.lru_next.store(self.head.raw(), Ordering::Relaxed);
        if self.head.is_none() {
            self.tail = frame;
        } else {
            arena.record(self.head).lru_prev.store(frame.raw(), Ordering::Relaxed);
        }
        self.head = frame;
        self.len += 1;
    }

    fn push_tail(&mut self, arena: &Arena, frame: FrameId) {
        let record = arena.record(frame);
        record.lru_next.store(FrameId::NONE.raw(), Ordering::Relaxed);
        record.lru_prev.store(self.tail.raw(), Ordering::Relaxed);
        if self.tail.is_none() {
            self.head = frame;
        } else {
            arena.record(self.tail).lru_next.store(frame.raw(), Ordering::Relaxed);
        }
        self.tail = frame;
        self.len += 1;
    }

    fn unlink(&mut self, arena: &Arena, frame: FrameId) {
        let record = arena.record(frame);
        let (prev, next) = links(record);
        if prev.is_none() {
            debug_assert_eq!(self.head, frame, "a frame without a predecessor is the head");
            self.head = next;
        } else {
            arena.record(prev).lru_next.store(next.raw(), Ordering::Relaxed);
        }
        if next.is_none() {
            debug_assert_eq!(self.tail, frame, "a frame without a successor is the tail");
            self.tail = prev;
        } else {
            arena.record(next).lru_prev.store(prev.raw(), Ordering::Relaxed);
        }
        self.len -= 1;
    }

    /// Appends all of `other` to the tail, in O(1).
    pub(crate) fn splice_tail(&mut self, arena: &Arena, other: &mut List) {
        if other.len == 0 {
            return;
        }
        if self.tail.is_none() {
            self.head = other.head;
        } else {
            arena.record(self.tail).lru_next.store(other.head.raw(), Ordering::Relaxed);
            arena.record(other.head).lru_prev.store(self.tail.raw(), Ordering::Relaxed);
        }
        self.tail = other.tail;
        self.len += other.len;
        *other = List::new();
    }
}

/// The lists under the lock.
#[derive(Debug)]
pub struct Lists {
    pub(crate) inactive: List,
    pub(crate) active: List,
    /// Set when the group was removed; the lists are empty for good.
    pub(crate) dead: bool,
    /// Isolations ever begun.
    pub(crate) nr_isolations: u64,
}

impl Lists {
    fn list(&mut self, kind: LruKind) -> &mut List {
        match kind {
            LruKind::Inactive => &mut self.inactive,
            LruKind::Active => &mut self.active,
        }
    }

    /// Returns the number of pages on a list.
    pub fn len(&self, kind: LruKind) -> u64 {
        match kind {
            LruKind::Inactive => self.inactive.len,
            LruKind::Active => self.active.len,
        }
    }

    /// Returns whether both lists are empty.
    pub fn is_empty(&self) -> bool {
        self.inactive.len + self.active.len == 0
    }

    /// Returns the oldest page.
    pub fn tail(&self, kind: LruKind) -> Option<FrameId> {
        let tail = match kind {
            LruKind::Inactive => self.inactive.tail,
            LruKind::Active => self.active.tail,
        };
        (!tail.is_none()).then_some(tail)
    }

    /// Puts a page at the young end of a list, and sets its flags to match. The page must be on no
    /// list.
    pub fn add(&mut self, arena: &Arena, frame: FrameId, kind: LruKind) {
        self.add_with(arena, frame, kind, Flag::NONE);
    }

    /// Like `add`, and sets `more` in the same step.
    pub(crate) fn add_with(&mut self, arena: &Arena, frame: FrameId, kind: LruKind, more: Flag) {
        let record = arena.record(frame);
        debug_assert!(!record.test(Flag::ON_LRU), "a page is on one list at most");
        match kind {
            LruKind::Active => record.set(Flag::ON_LRU | Flag::ACTIVE | more),
            LruKind::Inactive => {
                if record.test(Flag::ACTIVE) {
                    record.clear(Flag::ACTIVE);
                }
                record.set(Flag::ON_LRU | more);
            }
        }
        self.list(kind).push_head(arena, frame);
    }

    /// Moves a page from one of the lists to the young end of a list.
    ///
    /// It stays marked as listed throughout. A freeing thread checks the mark without the lock:
    /// without the mark it would free the page, and the page would be on a list again a moment
    /// later.
    pub fn move_to_head(&mut self, arena: &Arena, frame: FrameId, kind: LruKind) {
        let record = arena.record(frame);
        debug_assert!(record.test(Flag::ON_LRU), "a page that moves is on a list");
        let from = if record.test(Flag::ACTIVE) { LruKind::Active } else { LruKind::Inactive };
        self.list(from).unlink(arena, frame);
        match kind {
            LruKind::Active => record.set(Flag::ACTIVE),
            LruKind::Inactive => record.clear(Flag::ACTIVE),
        }
        self.list(kind).push_head(arena, frame);
    }

    /// Moves a page of the inactive list to its old end: the next page to evict. Returns `false` if
    /// the page is not on the inactive list.
    pub fn rotate(&mut self, arena: &Arena, frame: FrameId) -> bool {
        let record = arena.record(frame);
        if !record.test(Flag::ON_LRU) || record.test(Flag::ACTIVE) {
            return false;
        }
        self.inactive.unlink(arena, frame);
        self.inactive.push_tail(arena, frame);
        true
    }

    /// Takes a page off its list and returns the list's kind; `None` if the page is on no list.
    pub fn remove(&mut self, arena: &Arena, frame: FrameId) -> Option<LruKind> {
        let record = arena.record(frame);
        if !record.test(Flag::ON_LRU) {
            return None;
        }
        let kind = if record.test(Flag::ACTIVE) { LruKind::Active } else { LruKind::Inactive };
        self.list(kind).unlink(arena, frame);
        record.clear(Flag::ON_LRU);
        Some(kind)
    }
}

/// The page lists of one group.
#[derive(Debug)]
pub struct Lruvec {
    pub(crate) lists: RankedMutex<Lists>,
    /// Pages scanned since one was last freed. (A)
    fruitless: AtomicU64,
    /// Isolations ever ended.
    nr_isolations_ended: AtomicU64,
}

/// Number of fruitless scans before lists count as unreclaimable.
const FRUITLESS_ROUNDS: u64 = 6;

impl Lruvec {
    pub(crate) fn new() -> Self {
        Self {
            lists: RankedMutex::new(
                Rank::Lruvec,
                Lists { inactive: List::new(), active: List::new(), dead: false, nr_isolations: 0 },
            ),
            fruitless: AtomicU64::new(0),
            nr_isolations_ended: AtomicU64::new(0),
        }
    }

    /// Returns whether scanning these `reclaimable` pages again is futile.
    #[doc(alias = "all_unreclaimable")]
    pub(crate) fn is_unreclaimable(&self, reclaimable: u64) -> bool {
        self.fruitless.load(Ordering::Relaxed) >= reclaimable.saturating_mul(FRUITLESS_ROUNDS)
    }

    /// Notes that pages were scanned and none was freed.
    pub(crate) fn note_fruitless(&self, scanned: u64) {
        self.fruitless.fetch_add(scanned, Ordering::Relaxed);
    }

    /// Notes a freed page: scanning makes sense again. Returns `true` if the lists counted as
    /// nearly unreclaimable.
    pub(crate) fn note_freed(&self) -> bool {
        let was_fruitless = self.fruitless.load(Ordering::Relaxed) != 0;
        if was_fruitless {
            self.fruitless.store(0, Ordering::Relaxed);
        }
        was_fruitless
    }

    /// Notes that isolated pages have been freed or put back.
    pub(crate) fn end_isolation(&self) {
        // Release: pairs with the Acquire in `has_isolated`. Freed pages are free by then.
        self.nr_isolations_ended.fetch_add(1, Ordering::Release);
    }

    /// Returns whether a thread has isolated pages of the lists.
    pub(crate) fn has_isolated(&self) -> bool {
        let lists = self.lock();
        // Acquire: pairs with the Release in `end_isolation`.
        self.nr_isolations_ended.load(Ordering::Acquire) != lists.nr_isolations
    }

    /// Locks the lists, dead or not.
    pub fn lock(&self) -> RankedMutexGuard<'_, Lists> {
        self.lists.lock()
    }
}
