//! The table of a thread's stock slots, and its division among nodes.
//!
//! The table is direct-mapped by node. Its capacity is divided equally: the more slots are claimed,
//! the less each may hold. A clock hand frees slots of nodes no longer used. The first charge only
//! claims a slot, and the second miss fills it, so a single charge leaves no bytes in stock.
//!
//! A slot is one word:
//!
//! ```text
//! bits 63..32   counter node; 0 for an empty slot
//! bit  31       RECENT: used since the clock hand last came by; a charge that finds it unset
//!               takes the longer way, which sets it
//! bits 30..0    bytes in stock
//! ```
//!
//! Nothing here orders memory: a thread changing a table is inside the lock of its stock set. Other
//! threads may only peek.

use std::array;
use std::cell::Cell;

use umemcg_base::sync::atomic::{AtomicU64, Ordering};

/// Most bytes in one slot.
pub const SLOT_BYTES_MAX: u64 = 256 << 10;

/// Most bytes in a thread's stock, all slots of both tables together.
pub const STOCK_BYTES_MAX: u64 = 1 << 20;

/// The part of [`STOCK_BYTES_MAX`] for the levels above: they need few slots, and a miss there is
/// served from the next level.
pub const SHARED_BYTES_MAX: u64 = STOCK_BYTES_MAX / 4;

/// The part for a thread's own charges: room for a page each of as many groups as possible.
pub const DIRECT_BYTES_MAX: u64 = STOCK_BYTES_MAX - SHARED_BYTES_MAX;

/// The number of claimed slots is rounded to this fraction of the next power of two, so small
/// changes of the number seldom change the capacity of a slot.
const STEPS_PER_OCTAVE: u32 = 8;

/// The clock hand moves once in this many misses: slow enough for a slot used once in a round of a
/// thousand groups to count as recent.
const MISSES_PER_TURN: u32 = 16;

const RECENT_SHIFT: u32 = 31;
const RECENT: u64 = 1 << RECENT_SHIFT;
const BYTES: u64 = RECENT - 1;
const NODE_SHIFT: u32 = 32;

/// Bytes in stock for one node. Threads not inside only peek at it.
#[derive(Debug, Default)]
pub struct StockSlot(AtomicU64);

/// The content of a slot, or bytes taken out of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stocked {
    /// The node; 0 when the slot is empty.
    pub node: u32,
    /// The bytes.
    pub bytes: u64,
}

#[inline]
fn node_of(word: u64) -> u32 {
    (word >> NODE_SHIFT) as u32
}

/// Returns whether a slot belongs to `node` and is recent.
#[inline]
fn is_recent_of(word: u64, node: u32) -> bool {
    word >> RECENT_SHIFT == u64::from(node) << 1 | 1
}

impl StockSlot {
    // The biased lock orders all of this; relaxed is enough.
    #[inline]
    fn word(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    #[inline]
    fn set_word(&self, word: u64) {
        self.0.store(word, Ordering::Relaxed);
    }

    /// Returns the content; for other threads, that of a moment ago.
    #[inline]
    pub(crate) fn peek(&self) -> Stocked {
        let word = self.word();
        Stocked { node: node_of(word), bytes: word & BYTES }
    }

    /// Takes `bytes` out if the slot belongs to `node`, holds that much and is recent.
    #[doc(alias = "consume_stock")]
    #[inline]
    fn take(&self, node: u32, bytes: u64) -> bool {
        let word = self.word();
        let is_enough = is_recent_of(word, node) && word & BYTES >= bytes;
        if is_enough {
            // Keep only the subtraction between this load and the store: the next operation depends
            // on the store.
            self.set_word(word - bytes);
        }
        is_enough
    }

    /// Puts `bytes` in if the slot belongs to `node`, is recent and stays within `cap`.
    #[doc(alias = "refill_stock")]
    #[inline]
    fn put(&self, node: u32, bytes: u64, cap: u64) -> bool {
        let word = self.word();
        let fits = is_recent_of(word, node) && bytes <= cap.saturating_sub(word & BYTES);
        if fits {
            self.set_word(word + bytes);
        }
        fits
    }

    /// Like [`take`](Self::take), but for a slot that need not be recent; marks it as recent.
    fn retake(&self, node: u32, bytes: u64) -> bool {
        let found = self.peek();
        let is_enough = found.node == node && found.bytes >= bytes;
        if is_enough {
            self.set_word((self.word() - bytes) | RECENT);
        }
        is_enough
    }

    /// Puts in as much of `bytes` as fits. If not all fits, reduces the slot to half of `cap`, so
    /// the next bytes fit. Returns the surplus, which may be more than `bytes`. Marks the slot as
    /// recent.
    fn put_or_spill(&self, node: u32, bytes: u64, cap: u64) -> u64 {
        let found = self.peek();
        if found.node != node {
            return bytes;
        }
        let all = found.bytes.saturating_add(bytes);
        let keep = if all <= cap { all } else { all.min(cap / 2) };
        self.set_word((u64::from(node) << NODE_SHIFT) | RECENT | keep);
        all - keep
    }

    /// Gives the slot to `node` if it is empty or not recent. Returns its former content; `None` if
    /// the slot is in use (it no longer counts as recent then).
    fn claim(&self, node: u32) -> Option<Stocked> {
        let word = self.word();
        if word & RECENT != 0 {
            self.set_word(word & !RECENT);
            return None;
        }
        let before = self.peek();
        self.set_word((u64::from(node) << NODE_SHIFT) | RECENT);
        Some(before)
    }

    /// Clears the recent mark. Returns `true` if it was not set.
    fn age(&self) -> bool {
        let word = self.word();
        self.set_word(word & !RECENT);
        word & RECENT == 0
    }

    /// Takes the bytes above `cap`; the slot stays claimed.
    #[doc(alias = "drain_stock")]
    pub(crate) fn trim(&self, cap: u64) -> Stocked {
        let Stocked { node, bytes } = self.peek();
        let over = bytes.saturating_sub(cap);
        self.set_word(self.word() - over);
        Stocked { node, bytes: over }
    }

    /// Takes everything, and leaves the slot empty.
    pub(crate) fn clear(&self) -> Stocked {
        let before = self.peek();
        self.set_word(0);
        before
    }
}

/// The slots of one thread for one purpose. `W` is the number of words for `N` bits.
#[derive(Debug)]
pub struct StockTable<const N: usize, const W: usize> {
    slots: [StockSlot; N],
    /// Slots with possible content.
    claimed: [AtomicU64; W],
}

impl<const N: usize, const W: usize> StockTable<N, W> {
    pub(crate) fn new() -> Self {
        const { assert!(N.is_power_of_two() && W == N.div_ceil(64)) };
        Self {
            slots: array::from_fn(|_| StockSlot::default()),
            claimed: array::from_fn(|_| AtomicU64::new(0)),
        }
    }

    /// Returns the slot of `node`.
    #[inline]
    pub(crate) fn slot(&self, node: u32) -> &StockSlot {
        &self.slots[node as usize & (N - 1)]
    }

    /// Returns the slots with possible content.
    pub(crate) fn claimed(&self) -> impl Iterator<Item = &StockSlot> {
        (0..W).flat_map(move |word| {
            let mut bits = self.claimed[word].load(Ordering::Relaxed);
            std::iter::from_fn(move || {
                let bit = bits.trailing_zeros();
                bits &= bits.checked_sub(1)?;
                Some(&self.slots[word * 64 + bit as usize])
            })
        })
    }

    fn is_claimed(&self, at: usize) -> bool {
        self.claimed[at / 64].load(Ordering::Relaxed) & (1 << (at % 64)) != 0
    }

    fn set_claimed(&self, at: usize, claimed: bool) {
        let word = &self.claimed[at / 64];
        let bits = word.load(Ordering::Relaxed);
        let bit = 1 << (at % 64);
        word.store(if claimed { bits | bit } else { bits & !bit }, Ordering::Relaxed);
    }

    /// Returns the first claimed slot at or after `from`, wrapping around.
    fn next_claimed(&self, from: usize) -> Option<usize> {
        let first = from / 64;
        for step in 0..=W {
            let word = (first + step) % W;
            let mut bits = self.claimed[word].load(Ordering::Relaxed);
            if step == 0 {
                bits &= !0 << (from % 64);
            }
            if bits != 0 {
                return Some(word * 64 + bits.trailing_zeros() as usize);
            }
        }
        None
    }
}

/// The division of a thread's table among slots. No other thread sees it.
#[derive(Debug)]
pub struct SlotShares {
    nr_claimed: Cell<u32>,
    /// (C) Most bytes in all slots together.
    bytes_max: u64,
    /// Most bytes in a slot now: `nr_claimed × cap ≤ bytes_max`.
    cap: Cell<u64>,
    /// The same with one more slot claimed.
    next_cap: Cell<u64>,
    hand: Cell<u32>,
    nr_misses: Cell<u32>,
}

/// A callback to uncharge bytes leaving the stock.
pub type GiveBack<'f> = &'f dyn Fn(Stocked);

impl SlotShares {
    pub(crate) const fn new(bytes_max: u64) -> Self {
        assert!(bytes_max >= SLOT_BYTES_MAX);
        Self {
            bytes_max,
            nr_claimed: Cell::new(0),
            cap: Cell::new(SLOT_BYTES_MAX),
            next_cap: Cell::new(SLOT_BYTES_MAX),
            hand: Cell::new(0),
            nr_misses: Cell::new(0),
        }
    }

    fn cap_for(&self, nr_claimed: u32) -> u64 {
        let step = (nr_claimed.next_power_of_two() / STEPS_PER_OCTAVE).max(1);
        let nr_counted = nr_claimed.max(1).next_multiple_of(step);
        (self.bytes_max / u64::from(nr_counted)).min(SLOT_BYTES_MAX)
    }

    /// Sets the number of claimed slots. Returns the previous capacity of a slot in bytes.
    fn set_nr_claimed(&self, nr_claimed: u32) -> u64 {
        self.nr_claimed.set(nr_claimed);
        self.next_cap.set(self.cap_for(nr_claimed + 1));
        self.cap.replace(self.cap_for(nr_claimed))
    }
}

/// One of a thread's tables together with its shares, while the thread is inside.
#[derive(Debug, Clone, Copy)]
pub struct OwnStockTable<'a, const N: usize, const W: usize> {
    table: &'a StockTable<N, W>,
    shares: &'a SlotShares,
}

impl<'a, const N: usize, const W: usize> OwnStockTable<'a, N, W> {
    #[inline]
    pub(crate) fn new(table: &'a StockTable<N, W>, shares: &'a SlotShares) -> Self {
        Self { table, shares }
    }

    /// Takes `bytes` of `node` out of stock, if the slot holds enough and is recent.
    #[inline]
    pub fn take(self, node: u32, bytes: u64) -> bool {
        self.table.slot(node).take(node, bytes)
    }

    /// Puts `bytes` of `node` in stock, if they fit and the slot is recent.
    #[inline]
    pub fn put(self, node: u32, bytes: u64) -> bool {
        self.table.slot(node).put(node, bytes, self.shares.cap.get())
    }

    /// Puts in as much as fits and returns the surplus, possibly more than `bytes` to make room for
    /// the next ones. Marks the slot as recent.
    #[inline]
    pub fn put_or_spill(self, node: u32, bytes: u64) -> u64 {
        self.table.slot(node).put_or_spill(node, bytes, self.shares.cap.get())
    }

    /// Like [`take`](Self::take), but for a slot that need not be recent; marks it as recent.
    #[inline]
    pub fn retake(self, node: u32, bytes: u64) -> bool {
        self.table.slot(node).retake(node, bytes)
    }

    /// Returns the space left in the stock of `node`, in bytes; `None` if it has no slot.
    pub fn space(self, node: u32) -> Option<u64> {
        let found = self.table.slot(node).peek();
        (found.node == node).then(|| self.shares.cap.get() - found.bytes)
    }

    /// Claims the slot for `node` if the slot is free or unused and a charge of `bytes` would fit.
    /// Bytes leaving the stock go to `give_back`. `is_dead` is called for `node` after the claim.
    #[inline]
    pub fn claim(self, node: u32, bytes: u64, is_dead: impl FnOnce() -> bool, give_back: GiveBack<'_>) {
        let at = node as usize & (N - 1);
        let is_new = !self.table.is_claimed(at);
        let cap = if is_new { self.shares.next_cap.get() } else { self.shares.cap.get() };
        if bytes <= cap {
            self.claim_at(at, node, is_new, is_dead, give_back);
        }
    }

    #[inline(never)]
    fn claim_at(
        self,
        at: usize,
        node: u32,
        is_new: bool,
        is_dead: impl FnOnce() -> bool,
        give_back: GiveBack<'_>,
    ) {
        let Self { table, shares } = self;
        if is_new {
            table.set_claimed(at, true);
            let before = shares.set_nr_claimed(shares.nr_claimed.get() + 1);
            let cap = shares.cap.get();
            if cap < before {
                table.claimed().for_each(|slot| give_back(slot.trim(cap)));
            }
        }
        if let Some(before) = table.slots[at].claim(node) {
            give_back(before);
            // An earlier remover has set the mark; a later one finds the slot.
            if is_dead() {
                table.slots[at].clear();
            }
        }
    }

    /// Counts a miss, and now and then moves the clock hand: a slot unused since its last visit is
    /// freed.
    #[inline]
    pub fn note_miss(self, give_back: GiveBack<'_>) {
        let nr_misses = self.shares.nr_misses.get().wrapping_add(1);
        self.shares.nr_misses.set(nr_misses);
        if nr_misses.is_multiple_of(MISSES_PER_TURN) {
            self.turn(give_back);
        }
    }

    #[inline(never)]
    fn turn(self, give_back: GiveBack<'_>) {
        let Self { table, shares } = self;
        let Some(at) = table.next_claimed(shares.hand.get() as usize % N) else {
            return;
        };
        shares.hand.set(at as u32 + 1);
        if table.slots[at].age() {
            give_back(table.slots[at].clear());
            table.set_claimed(at, false);
            shares.set_nr_claimed(shares.nr_claimed.get() - 1);
        }
    }

    pub(crate) fn clear(self, give_back: GiveBack<'_>) {
        let Self { table, shares } = self;
        table.claimed().for_each(|slot| give_back(slot.clear()));
        table.claimed.iter().for_each(|word| word.store(0, Ordering::Relaxed));
        shares.set_nr_claimed(0);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const N: usize = 64;

    /// A table, its shares, and the bytes given back.
    struct Bench {
        table: StockTable<N, 1>,
        shares: SlotShares,
        left: Cell<u64>,
    }

    impl Bench {
        fn new() -> Self {
            Bench { table: StockTable::new(), shares: SlotShares::new(DIRECT_BYTES_MAX), left: Cell::new(0) }
        }

        fn own(&self) -> OwnStockTable<'_, N, 1> {
            OwnStockTable::new(&self.table, &self.shares)
        }

        fn claim(&self, node: u32, bytes: u64) {
            self.own().claim(node, bytes, || false, &|out| self.left.set(self.left.get() + out.bytes));
        }

        fn miss(&self, nr: u32) {
            (0..nr).for_each(|_| self.own().note_miss(&|out| self.left.set(self.left.get() + out.bytes)));
        }

        fn stocked(&self) -> u64 {
            self.table.claimed().map(|slot| slot.peek().bytes).sum()
        }
    }

    #[test]
    fn a_slot_serves_only_its_own_node() {
        let bench = Bench::new();
        assert!(!bench.own().put(1, 10));
        bench.claim(1, 10);
        assert!(bench.own().put(1, 10));
        let neighbour = 1 + N as u32;
        assert!(!bench.own().take(neighbour, 1) && !bench.own().put(neighbour, 1));
        assert!(!bench.own().take(1, 11));
        assert!(bench.own().take(1, 10));
    }

    #[test]
    fn a_dead_node_gets_no_slot() {
        let bench = Bench::new();
        bench.own().claim(1, 10, || true, &|_| ());
        assert!(!bench.own().put(1, 10));
    }

    #[test]
    fn a_node_in_use_keeps_its_slot_for_one_more_round() {
        let bench = Bench::new();
        bench.claim(1, 1);
        assert!(bench.own().put(1, 10));
        let neighbour = 1 + N as u32;
        bench.claim(neighbour, 1);
        assert!(!bench.own().put(1, 10) && !bench.own().take(1, 10), "not recent any more");
        assert_eq!(bench.own().put_or_spill(1, 10), 0, "used lately");
        bench.claim(neighbour, 1);
        bench.claim(neighbour, 1);
        assert!(!bench.own().put(1, 10));
        assert!(bench.own().put(neighbour, 10));
        assert_eq!(bench.left.get(), 20);
    }

    #[test]
    fn the_more_slots_the_less_in_each() {
        let bench = Bench::new();
        let mut put = 0;
        for node in 1..=N as u32 {
            bench.claim(node, 1);
            let space = bench.own().space(node).unwrap();
            assert!(bench.own().put(node, space) && !bench.own().put(node, 1));
            put += space;
            assert!(bench.stocked() <= DIRECT_BYTES_MAX);
        }
        assert_eq!(bench.stocked() + bench.left.get(), put);
        assert_eq!(bench.stocked(), DIRECT_BYTES_MAX);
    }

    #[test]
    fn a_charge_that_would_not_fit_claims_nothing() {
        let bench = Bench::new();
        bench.claim(1, SLOT_BYTES_MAX + 1);
        assert_eq!(bench.own().space(1), None);
    }

    #[test]
    fn the_hand_takes_back_what_is_no_longer_used() {
        let bench = Bench::new();
        for node in 1..=32 {
            bench.claim(node, 1);
            assert!(bench.own().put(node, 100));
        }
        // Two rounds: the first forgets the use, the second finds none. Node 1 stays in use.
        for _ in 0..2 * 32 {
            bench.miss(MISSES_PER_TURN);
            assert!(bench.own().take(1, 1) || bench.own().retake(1, 1));
        }
        assert_eq!(bench.table.claimed().count(), 1);
        assert_eq!(bench.own().space(1).unwrap(), SLOT_BYTES_MAX - (100 - 64));
        assert_eq!(bench.left.get(), 31 * 100);
    }

    #[test]
    fn what_is_too_much_spills_to_half() {
        let bench = Bench::new();
        bench.claim(1, 1);
        assert_eq!(bench.own().put_or_spill(1, SLOT_BYTES_MAX), 0);
        assert_eq!(bench.own().put_or_spill(1, 100), SLOT_BYTES_MAX / 2 + 100);
        assert_eq!(bench.stocked(), SLOT_BYTES_MAX / 2);
        assert_eq!(bench.own().put_or_spill(2, 100), 100);
    }
}
