//! A page frame's number and its record: its references, its contents, its list.
//!
//! The lifecycle of a frame, in terms of its pin word:
//!
//! 1. *Frozen.* Free, or owned by the allocating thread: no thread can pin it. A word of zero is
//!    frozen with no pins, so untouched records need no initialisation.
//! 2. [`unfreeze_to`](FrameRecord::unfreeze_to) publishes the identity (file, index) and the
//!    contents.
//! 3. *Live.* A reader pins, *then* checks that the frame is still the page it wants, then copies,
//!    then unpins.
//! 4. [`freeze`](FrameRecord::freeze) succeeds only without pins; then the identity may change.
//!
//! All four are read-modify-writes of one word, so acquire and release suffice and no fence is
//! needed: a reader's pin is either before the freeze in that word's order, and then the freeze
//! fails, or after the next unfreeze, and then the reader sees the new identity.
//! `tests/loom_models/pin_freeze.rs` checks it.
//!
//! A reader copying only a few bytes need not write the record at all. It calls
//! [`read_begin`](FrameRecord::read_begin), checks the identity, copies, and then calls
//! [`validate`](FrameRecord::validate); this fails if the frame was frozen in between.
//! `tests/loom_models/optimistic_read.rs` checks this protocol.
//!
//! Nothing here matters for memory safety: a protocol error shows a reader the bytes of another
//! page. That is a bug, but every frame stays mapped and every access to it is a relaxed copy.

use std::fmt;
use std::ops::{BitOr, BitOrAssign};

use umemcg_base::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

/// Number of a page frame of one arena.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct FrameId(u32);

impl FrameId {
    /// No frame: the end of a list, an empty slot.
    pub const NONE: Self = Self(u32::MAX);

    /// Returns the frame of a number returned by [`raw`](Self::raw). A number out of range panics
    /// when used.
    #[inline]
    pub const fn from_raw(raw: u32) -> Self {
        Self(raw)
    }

    /// Returns the number, for keeping in an atomic.
    #[inline]
    pub const fn raw(self) -> u32 {
        self.0
    }

    /// Returns whether this is [`NONE`](Self::NONE).
    #[inline]
    pub const fn is_none(self) -> bool {
        self.0 == u32::MAX
    }

    /// Returns the number as an index into a table with one entry per frame.
    #[inline]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// A set of marks of a page.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
#[repr(transparent)]
pub struct FrameFlags(u32);

macro_rules! frame_flags {
    ($($(#[$doc:meta])* $name:ident = $bit:expr;)*) => {
        impl FrameFlags {
            $($(#[$doc])* pub const $name: Self = Self(1 << $bit);)*
            const NAMES: &'static [(&'static str, u32)] = &[$((stringify!($name), 1 << $bit)),*];
        }
    };
}

frame_flags! {
    /// One thread fills, writes back, truncates or evicts the page; others wait. Set with
    /// [`test_and_set`](FrameRecord::test_and_set).
    LOCKED = 0;
    /// The contents are those of the file at this index. Set after the fill, tested before a copy.
    UPTODATE = 1;
    /// The contents are newer than the store.
    DIRTY = 2;
    /// The contents are on their way to the store; they may be read, and changed only by making the
    /// page dirty again.
    WRITEBACK = 3;
    /// The store has the contents but has not yet reported them as durable. Not evictable.
    UNSTABLE = 4;
    /// Used since the list walker last came by: the second chance.
    REFERENCED = 5;
    /// On the active list rather than the inactive one.
    ACTIVE = 6;
    /// On one of the LRU lists. Changes only under that list's lock.
    ON_LRU = 7;
    /// Came back soon after its eviction: part of the working set.
    WORKINGSET = 8;
    /// The next window of read-ahead starts when a reader reaches this page.
    READAHEAD = 9;
    /// The last fill or write-back failed.
    ERROR = 10;
    /// To be evicted as soon as its write-back ends.
    RECLAIM = 11;
    /// A thread sleeps until the page is unlocked or its write-back ends; the unlocking or
    /// finishing thread must wake the sleepers.
    WAITERS = 13;
    /// Must not be evicted (no store has the contents).
    UNEVICTABLE = 14;
    /// Mark for the page cache's own purposes.
    PRIVATE = 15;
    /// Counted in the list gauges of its group; stays until the frame is freed.
    IN_GAUGES = 16;
    /// Used once since the fill; the next use sets [`REFERENCED`](Self::REFERENCED).
    ACCESSED = 17;
}

impl FrameFlags {
    /// No marks.
    pub const NONE: Self = Self(0);

    /// Returns the bits.
    #[inline]
    pub const fn bits(self) -> u32 {
        self.0
    }

    /// Returns the set of bits returned by [`bits`](Self::bits).
    #[inline]
    pub const fn from_bits(bits: u32) -> Self {
        Self(bits)
    }

    /// Returns both sets; `|` for constants.
    #[inline]
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Returns whether any mark is in both sets.
    #[inline]
    pub const fn intersects(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    /// Returns whether every mark of `other` is in this set.
    #[inline]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

impl BitOr for FrameFlags {
    type Output = Self;
    #[inline]
    fn bitor(self, other: Self) -> Self {
        self.union(other)
    }
}

impl BitOrAssign for FrameFlags {
    #[inline]
    fn bitor_assign(&mut self, other: Self) {
        self.0 |= other.0;
    }
}

impl fmt::Debug for FrameFlags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut first = true;
        for &(name, bit) in Self::NAMES {
            if self.0 & bit != 0 {
                f.write_str(if first { "" } else { "|" })?;
                f.write_str(name)?;
                first = false;
            }
        }
        if first { f.write_str("NONE") } else { Ok(()) }
    }
}

/// The bit of the pin word for a pinnable frame. The other bits count pins.
const LIVE: u32 = 1 << 31;

/// The record of one frame: 64 bytes on its own cache line, so that hits on two frames write no
/// common line.
///
/// Guards: `(A)` atomic by itself, `(F)` changed only by the thread that froze the frame, `(L)`
/// guarded by the lock of the frame's list.
#[derive(Debug)]
#[repr(align(64))]
pub struct FrameRecord {
    /// (A) [`LIVE`] and the number of pins.
    pins: AtomicU32,
    /// (A) [`FrameFlags`].
    flags: AtomicU32,
    /// (A) The owner handle charged for the frame.
    pub owner: AtomicU32,
    /// (F) The file of the page. Readers check it after pinning.
    pub file: AtomicU32,
    /// (F) The page's number in its file. Readers check it after pinning.
    pub index: AtomicU64,
    /// (L) The neighbour towards the head of the list.
    pub lru_prev: AtomicU32,
    /// (L) The neighbour towards the tail of the list.
    pub lru_next: AtomicU32,
    /// (F) The number of freezes, modulo 2^32.
    generation: AtomicU32,
    /// Reserved; keeps the record at 64 bytes.
    #[cfg(not(loom))]
    _reserved: [AtomicU32; 7],
}

/// The generation of a frame at the start of a read; see [`FrameRecord::read_begin`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadStamp(u32);

#[cfg(not(loom))]
const _: () = assert!(size_of::<FrameRecord>() == 64 && align_of::<FrameRecord>() == 64);

impl Default for FrameRecord {
    fn default() -> Self {
        Self::new()
    }
}

impl FrameRecord {
    /// Creates a frozen record without pins, flags or identity, for models; the arena's own records
    /// start this way.
    pub fn new() -> Self {
        Self {
            pins: AtomicU32::new(0),
            flags: AtomicU32::new(0),
            owner: AtomicU32::new(0),
            file: AtomicU32::new(0),
            index: AtomicU64::new(0),
            lru_prev: AtomicU32::new(0),
            lru_next: AtomicU32::new(0),
            generation: AtomicU32::new(0),
            #[cfg(not(loom))]
            _reserved: Default::default(),
        }
    }

    /// Takes a pin unless the frame is frozen. With the pin, the caller checks `file` and `index`:
    /// they identify the present page, and do not change until the pin is given back.
    #[inline]
    #[must_use]
    pub fn try_pin(&self) -> bool {
        // One unconditional add, because a load first would cost a second transfer of a contended
        // line. A pin on a frozen frame is undone; in between it can only make a freeze fail.
        // Acquire pairs with `unfreeze_to`: the identity and the contents are seen.
        if self.pins.fetch_add(1, Ordering::Acquire) & LIVE != 0 {
            return true;
        }
        // Relaxed: nothing was read under this pin.
        self.pins.fetch_sub(1, Ordering::Relaxed);
        false
    }

    /// Gives a pin back; returns the number of pins left.
    #[inline]
    pub fn unpin(&self) -> u32 {
        // Release pairs with `freeze`: all reads under the pin happened before the frame changed.
        let before = self.pins.fetch_sub(1, Ordering::Release);
        debug_assert!(before & LIVE != 0 && before & !LIVE != 0, "unpinned without a pin");
        (before & !LIVE).wrapping_sub(1)
    }

    /// Starts a read without a pin and so without a write: `None` if the frame is frozen. The
    /// caller then checks the identity, tests the marks and copies the contents, and uses the
    /// results only if [`validate`](Self::validate) succeeds afterwards.
    #[inline]
    #[must_use]
    pub fn read_begin(&self) -> Option<ReadStamp> {
        // Acquire pairs with the store in `freeze_from`, and is the first of the two loads: a
        // thread that sees a new generation sees the frame frozen, or its next life.
        let generation = self.generation.load(Ordering::Acquire);
        // Acquire pairs with `unfreeze_to`: the identity and the contents are seen.
        (self.pins.load(Ordering::Acquire) & LIVE != 0).then_some(ReadStamp(generation))
    }

    /// Returns whether the frame has not been frozen since, so that all reads in between are
    /// consistent.
    #[inline]
    #[must_use]
    pub fn validate(&self, read_begin: ReadStamp) -> bool {
        // Pairs with the fence in `freeze_from`: a thread that has read anything that was written
        // after it sees its generation.
        fence(Ordering::Acquire);
        self.generation.load(Ordering::Relaxed) == read_begin.0
    }

    /// Freezes a frame with exactly `pins` pins, all owned by the caller; they are consumed. Fails
    /// when there are other pins, and, rarely, when another thread has just tried to pin.
    #[inline]
    #[must_use]
    pub fn freeze_from(&self, pins: u32) -> bool {
        // Acquire pairs with every `unpin` (each continues the release sequence of those before
        // it).
        if self.pins.compare_exchange(LIVE | pins, 0, Ordering::Acquire, Ordering::Relaxed).is_err() {
            return false;
        }
        let generation = self.generation.load(Ordering::Relaxed).wrapping_add(1);
        // Release pairs with `read_begin`.
        self.generation.store(generation, Ordering::Release);
        // Pairs with the fence in `validate`: no change of a frozen frame is seen before its
        // generation.
        fence(Ordering::Release);
        true
    }

    /// Freezes a frame without pins.
    #[inline]
    #[must_use]
    pub fn freeze(&self) -> bool {
        self.freeze_from(0)
    }

    /// Publishes a frozen frame with `pins` pins, owned by the caller.
    ///
    /// # Panics
    /// In debug builds when the frame is not frozen.
    #[inline]
    pub fn unfreeze_to(&self, pins: u32) {
        debug_assert!(pins < LIVE);
        // An addition, not a store: a failed `try_pin` may be between its two steps.
        // Release pairs with `try_pin`.
        let before = self.pins.fetch_add(LIVE + pins, Ordering::Release);
        debug_assert!(before & LIVE == 0, "unfroze a frame that was not frozen");
    }

    /// Returns whether the frame is frozen. Stable only for the thread that froze it.
    #[inline]
    pub fn is_frozen(&self) -> bool {
        self.pins.load(Ordering::Relaxed) & LIVE == 0
    }

    /// Returns the present number of pins, failed attempts included. A hint.
    #[inline]
    pub fn nr_pins(&self) -> u32 {
        self.pins.load(Ordering::Relaxed) & !LIVE
    }

    /// Returns all present marks.
    #[inline]
    pub fn flags(&self) -> FrameFlags {
        // Acquire pairs with the release of `set`, `clear` and `change`.
        FrameFlags(self.flags.load(Ordering::Acquire))
    }

    /// Returns whether any of the marks is set. The caller sees all writes from before it was set.
    #[inline]
    pub fn test(&self, flags: FrameFlags) -> bool {
        self.flags().intersects(flags)
    }

    /// Sets marks.
    #[inline]
    pub fn set(&self, flags: FrameFlags) {
        // Release pairs with `test`.
        self.flags.fetch_or(flags.0, Ordering::Release);
    }

    /// Clears marks.
    #[inline]
    pub fn clear(&self, flags: FrameFlags) {
        // Release pairs with `test` and `test_and_set`.
        self.flags.fetch_and(!flags.0, Ordering::Release);
    }

    /// Sets marks and says whether any of them was set before.
    #[inline]
    pub fn test_and_set(&self, flags: FrameFlags) -> bool {
        // Acquire pairs with `clear` (taking a lock bit), Release with `test`.
        self.flags.fetch_or(flags.0, Ordering::AcqRel) & flags.0 != 0
    }

    /// Sets marks again if they are all set, so that the clearing thread also sees the writes
    /// before this call. Returns `false`, and changes nothing, if one is not set.
    #[inline]
    pub fn set_again(&self, flags: FrameFlags) -> bool {
        let mut now = self.flags.load(Ordering::Relaxed);
        // An exchange even without a change: a thread clearing a mark has to come after it, or it
        // fails.
        while now & flags.0 == flags.0 {
            // Release pairs with the Acquire of `change` and `test_and_clear`; Acquire pairs with
            // `set`.
            match self.flags.compare_exchange_weak(now, now, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(other) => now = other,
            }
        }
        false
    }

    /// Clears marks and says whether any of them was set before.
    #[inline]
    pub fn test_and_clear(&self, flags: FrameFlags) -> bool {
        // Acquire pairs with `set`, Release with `test`.
        self.flags.fetch_and(!flags.0, Ordering::AcqRel) & flags.0 != 0
    }

    /// Clears some marks and sets others in one step; returns the previous marks. A page changes
    /// from dirty to write-back without a moment of being neither.
    #[inline]
    pub fn change(&self, clear: FrameFlags, set: FrameFlags) -> FrameFlags {
        let mut now = self.flags.load(Ordering::Relaxed);
        loop {
            // AcqRel: as in `test_and_set` and `test_and_clear`.
            match self.flags.compare_exchange_weak(
                now,
                now & !clear.0 | set.0,
                Ordering::AcqRel,
                Ordering::Relaxed,
            ) {
                Ok(before) => return FrameFlags(before),
                Err(other) => now = other,
            }
        }
    }

    /// Sets hint marks ([`REFERENCED`](FrameFlags::REFERENCED)); writes nothing when they are
    /// already set, and orders nothing.
    #[inline]
    pub fn mark(&self, flags: FrameFlags) {
        if self.flags.load(Ordering::Relaxed) & flags.0 != flags.0 {
            self.flags.fetch_or(flags.0, Ordering::Relaxed);
        }
    }

    /// Sets the marks of the caller's frozen frame: these and no others. A thread that pins it
    /// after [`unfreeze_to`](Self::unfreeze_to) sees them. A late hint from a previous life of the
    /// frame may be lost, or stay.
    #[inline]
    pub fn start_with(&self, flags: FrameFlags) {
        debug_assert!(self.is_frozen());
        self.flags.store(flags.0, Ordering::Relaxed);
    }
}
