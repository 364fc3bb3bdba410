//! Slots of object lists: the links and the token of an object. All lists of a reclaimer share the
//! slots, so a list can be spliced to another in O(1). Their memory is returned when no slot is
//! taken.
//!
//! A place is three words: links, token, and owner with state. Links and state change under the
//! lock of the list of the owner's current group; the token changes at any time, and readers may
//! see an earlier one. All accesses are relaxed: the locks order them.

use std::io;
use std::sync::atomic::Ordering::Relaxed;

use umemcg_arena::ZeroTable;
use umemcg_base::LeafMutex;

/// A place in an object list. Taken with [`ListLru::reserve`](crate::ListLru::reserve), given back
/// with [`ListLru::release`](crate::ListLru::release).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ListSlot(u32);

/// Bytes of a place, to be charged with the object.
pub const LIST_SLOT_BYTES: u64 = 24;
const WORDS: usize = 3;
const NONE: u32 = u32::MAX;
/// In the state word, above the owner.
const LINKED: u64 = 1 << 63;

impl ListSlot {
    /// No place has this number.
    pub const NOWHERE: u32 = NONE;

    /// Returns the place as a number, for callers without room for a type.
    pub fn into_raw(self) -> u32 {
        self.0
    }

    /// Returns the place of a number; the reverse of [`into_raw`](Self::into_raw).
    pub fn from_raw(raw: u32) -> Self {
        Self(raw)
    }
}

#[derive(Debug, Default)]
struct Free {
    slots: Vec<u32>,
    /// Places below have been taken at some time.
    high: u32,
}

/// The places of all object lists of a reclaimer.
#[derive(Debug)]
pub(crate) struct ListSlots {
    words: ZeroTable,
    nr_max: u32,
    /// Innermost.
    free: LeafMutex<Free>,
}

/// No place is left: there are about as many places as objects of 64 bytes in a full pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("no room for another object in any list")]
pub struct ListsFull;

impl ListSlots {
    /// Creates a table with room for as many objects of 64 bytes as the pool can hold.
    pub(crate) fn new(pool_bytes: u64) -> io::Result<Self> {
        let nr_max = u32::try_from(pool_bytes / 64 + 4096).unwrap_or(NONE - 1);
        Ok(Self { words: ZeroTable::new(nr_max as usize * WORDS)?, nr_max, free: LeafMutex::default() })
    }

    pub(crate) fn take(&self, token: u64) -> Result<ListSlot, ListsFull> {
        let mut free = self.free.lock();
        let slot = match free.slots.pop() {
            Some(slot) => slot,
            None if free.high == self.nr_max => return Err(ListsFull),
            None => {
                free.high += 1;
                free.high - 1
            }
        };
        drop(free);
        let at = slot as usize * WORDS;
        self.words.get(at + 1).store(token, Relaxed);
        self.words.get(at + 2).store(0, Relaxed);
        Ok(ListSlot(slot))
    }

    pub(crate) fn give_back(&self, slot: ListSlot) {
        debug_assert!(!self.is_linked(slot), "a place is taken off its list before it is given back");
        let mut free = self.free.lock();
        free.slots.push(slot.0);
        if free.slots.len() == free.high as usize {
            // The last place was given back: free all of the memory.
            self.words.discard(0..free.high as usize * WORDS);
            *free = Free::default();
        }
    }

    /// Returns the number of taken places.
    pub(crate) fn nr_taken(&self) -> usize {
        let free = self.free.lock();
        free.high as usize - free.slots.len()
    }

    pub(crate) fn token(&self, slot: ListSlot) -> u64 {
        self.words.get(slot.0 as usize * WORDS + 1).load(Relaxed)
    }

    pub(crate) fn set_token(&self, slot: ListSlot, token: u64) {
        self.words.get(slot.0 as usize * WORDS + 1).store(token, Relaxed);
    }

    /// Prefetches the next slot. Returns the token in this one, and the number of the next one.
    #[inline]
    pub(crate) fn look_ahead(&self, slot: u32) -> Option<(u64, u32)> {
        let words = self.words.words();
        let at = slot as usize * WORDS;
        let next = (words.get(at)?.load(Relaxed) >> 32) as u32;
        if let Some(next) = words.get(next as usize * WORDS) {
            umemcg_arena::prefetch(std::ptr::from_ref(next).addr());
        }
        Some((words.get(at + 1)?.load(Relaxed), next))
    }

    pub(crate) fn is_linked(&self, slot: ListSlot) -> bool {
        self.words.get(slot.0 as usize * WORDS + 2).load(Relaxed) & LINKED != 0
    }

    /// Returns the owner under which the place was linked last.
    pub(crate) fn owner(&self, slot: ListSlot) -> u32 {
        self.words.get(slot.0 as usize * WORDS + 2).load(Relaxed) as u32
    }

    fn set_linked(&self, slot: ListSlot, owner: Option<u32>) {
        let word = self.words.get(slot.0 as usize * WORDS + 2);
        match owner {
            Some(owner) => word.store(LINKED | u64::from(owner), Relaxed),
            None => word.store(word.load(Relaxed) & !LINKED, Relaxed),
        }
    }

    fn links(&self, slot: u32) -> (u32, u32) {
        let word = self.words.get(slot as usize * WORDS).load(Relaxed);
        (word as u32, (word >> 32) as u32)
    }

    fn set_links(&self, slot: u32, prev: u32, next: u32) {
        self.words.get(slot as usize * WORDS).store(u64::from(prev) | u64::from(next) << 32, Relaxed);
    }
}

/// A list of places. The head is the old end.
#[derive(Debug)]
pub(crate) struct Chain {
    head: u32,
    tail: u32,
    len: u64,
}

impl Chain {
    pub(crate) const fn new() -> Self {
        Self { head: NONE, tail: NONE, len: 0 }
    }

    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// Returns the oldest.
    pub(crate) fn first(&self) -> Option<ListSlot> {
        (self.head != NONE).then_some(ListSlot(self.head))
    }

    /// Returns the next younger.
    pub(crate) fn after(&self, slots: &ListSlots, slot: ListSlot) -> Option<ListSlot> {
        let (_, next) = slots.links(slot.0);
        (next != NONE).then_some(ListSlot(next))
    }

    pub(crate) fn push_tail(&mut self, slots: &ListSlots, slot: ListSlot, owner: u32) {
        self.link_tail(slots, slot);
        slots.set_linked(slot, Some(owner));
    }

    fn link_tail(&mut self, slots: &ListSlots, slot: ListSlot) {
        slots.set_links(slot.0, self.tail, NONE);
        if self.tail == NONE {
            self.head = slot.0;
        } else {
            let (prev, _) = slots.links(self.tail);
            slots.set_links(self.tail, prev, slot.0);
        }
        self.tail = slot.0;
        self.len += 1;
    }

    pub(crate) fn unlink(&mut self, slots: &ListSlots, slot: ListSlot) {
        self.cut_out(slots, slot);
        slots.set_linked(slot, None);
    }

    fn cut_out(&mut self, slots: &ListSlots, slot: ListSlot) {
        let (prev, next) = slots.links(slot.0);
        if prev == NONE {
            self.head = next;
        } else {
            let (before, _) = slots.links(prev);
            slots.set_links(prev, before, next);
        }
        if next == NONE {
            self.tail = prev;
        } else {
            let (_, after) = slots.links(next);
            slots.set_links(next, prev, after);
        }
        self.len -= 1;
    }

    /// Moves a place to the young end. It stays marked as linked throughout: other threads check
    /// the mark without the lock.
    pub(crate) fn rotate(&mut self, slots: &ListSlots, slot: ListSlot) {
        self.cut_out(slots, slot);
        self.link_tail(slots, slot);
    }

    /// Appends all of `other` to the tail, in O(1).
    pub(crate) fn splice_tail(&mut self, slots: &ListSlots, other: &mut Chain) {
        if other.len == 0 {
            return;
        }
        if self.tail == NONE {
            self.head = other.head;
        } else {
            let (prev, _) = slots.links(self.tail);
            slots.set_links(self.tail, prev, other.head);
            let (_, next) = slots.links(other.head);
            slots.set_links(other.head, self.tail, next);
        }
        self.tail = other.tail;
        self.len += other.len;
        *other = Chain::new();
    }
}
