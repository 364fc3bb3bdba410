//! A thread's stock: bytes already charged to a group and all groups above it, and not yet handed
//! out.
//!
//! A charge with enough in stock touches no memory written by other threads, and needs no locked
//! instruction: a stock set is guarded by a [`BiasedLock`] owned by its thread. Other threads drain
//! it as intruders.
//!
//! A thread has two [tables](crate::stock_table) of slots: `direct` for the groups charged by the
//! thread itself, and `shared` for the levels above. A miss in `direct` is served from `shared`, so
//! sibling groups do not all write the counters of their common ancestors. The bytes in a node's
//! slot are counted at the node and at every level above it.
//!
//! No stock of a removed group may remain. The remover marks the node dead and then enters every
//! stock set; a thread claiming a slot checks the mark when it is inside. Whichever comes second
//! sees the other.

use std::cell::Cell;

use umemcg_base::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::biased_lock::{BiasedLock, OwnerGuard};
use crate::pending::{Apply, PendingSlots};
use crate::stock_table::{
    DIRECT_BYTES_MAX, GiveBack, OwnStockTable, SHARED_BYTES_MAX, SlotShares, StockSlot, StockTable, Stocked,
};

/// Slots in the table of the groups charged by a thread itself.
pub const NR_DIRECT: usize = if cfg!(loom) { 2 } else { 1024 };

/// Slots in the table of the levels above.
pub const NR_SHARED: usize = if cfg!(loom) { 2 } else { 128 };

const DIRECT_WORDS: usize = NR_DIRECT.div_ceil(64);
const SHARED_WORDS: usize = NR_SHARED.div_ceil(64);

/// The stocks removed by a drain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Drain {
    /// The bytes in stock. The slots stay claimed, so charges of their threads stay fast.
    Bytes,
    /// The slots as well.
    Slots,
}

impl Drain {
    /// Returns whether a slot holds anything to remove.
    pub fn applies_to(self, slot: Stocked) -> bool {
        match self {
            Drain::Bytes => slot.bytes != 0,
            Drain::Slots => slot.node != 0,
        }
    }
}

/// Everything that one thread holds in stock. Outlives the thread, and then serves another one.
#[derive(Debug)]
#[repr(align(128))]
pub struct StockSet {
    lock: BiasedLock,
    direct: StockTable<NR_DIRECT, DIRECT_WORDS>,
    shared: StockTable<NR_SHARED, SHARED_WORDS>,
    pending: PendingSlots,
    /// (C) Its place in the ledger.
    index: u32,
    /// It is in the ledger's list of sets with possible stock: true when a slot is claimed. Changed
    /// together with the list, inside the lock.
    is_listed: AtomicBool,
    /// A digest of the slots at the last sweep. Guarded by the ledger's `intruder`.
    swept: AtomicU64,
}

impl StockSet {
    /// Creates an empty stock set with this place in the ledger.
    pub fn new(index: u32) -> Self {
        Self {
            lock: BiasedLock::new(),
            direct: StockTable::new(),
            shared: StockTable::new(),
            pending: PendingSlots::default(),
            index,
            is_listed: AtomicBool::new(false),
            swept: AtomicU64::new(0),
        }
    }

    /// Returns its place in the ledger.
    pub(crate) fn index(&self) -> u32 {
        self.index
    }

    /// Returns whether the set is listed. For a thread inside.
    #[inline]
    pub(crate) fn is_listed(&self) -> bool {
        self.is_listed.load(Ordering::Relaxed)
    }

    /// Notes whether the set is listed. For a thread inside.
    pub(crate) fn set_listed(&self, is_listed: bool) {
        self.is_listed.store(is_listed, Ordering::Relaxed);
    }

    /// Returns whether the slots are unchanged since the last call. For the holder of the ledger's
    /// `intruder`.
    pub(crate) fn is_unchanged(&self) -> bool {
        let digest = self.peek().fold(1, |digest: u64, slot| {
            let mixed = digest ^ (u64::from(slot.node) << 32) ^ slot.bytes;
            mixed.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29)
        });
        let before = self.swept.load(Ordering::Relaxed);
        self.swept.store(digest, Ordering::Relaxed);
        digest == before
    }

    /// Returns the guard of the set.
    pub fn lock(&self) -> &BiasedLock {
        &self.lock
    }

    /// Returns the recent content of the slots in use. For threads other than the owner.
    pub fn peek(&self) -> impl Iterator<Item = Stocked> {
        self.slots().map(StockSlot::peek)
    }

    /// Drains the slots for which `is_meant` returns `true`. For a thread inside.
    pub fn drain(&self, what: Drain, is_meant: impl Fn(Stocked) -> bool, give_back: GiveBack<'_>) {
        for slot in self.slots().filter(|slot| is_meant(slot.peek())) {
            give_back(match what {
                Drain::Bytes => slot.trim(0),
                Drain::Slots => slot.clear(),
            });
        }
    }

    fn slots(&self) -> impl Iterator<Item = &StockSlot> {
        self.direct.claimed().chain(self.shared.claimed())
    }

    /// Returns the thread's pending changes.
    #[inline]
    pub(crate) fn pending(&self) -> &PendingSlots {
        &self.pending
    }

    /// Removes the stock, the pending changes and the slots of `node`. For a thread inside.
    pub fn purge(&self, node: u32, give_back: GiveBack<'_>, apply: Apply<'_>) {
        self.pending.purge(|there| there == node, apply);
        for slot in [self.direct.slot(node), self.shared.slot(node)] {
            if slot.peek().node == node {
                give_back(slot.clear());
            }
        }
    }
}

/// A thread's access to its stock set, if it has one.
#[derive(Debug)]
pub struct ThreadStock<'l> {
    set: Cell<Option<&'l StockSet>>,
    index: Cell<u32>,
    direct: SlotShares,
    shared: SlotShares,
}

/// A thread inside its own stock. All operations on it are short and never wait.
#[derive(Debug)]
pub struct OwnStock<'a> {
    set: &'a StockSet,
    direct: &'a SlotShares,
    shared: &'a SlotShares,
    _inside: OwnerGuard<'a>,
}

impl<'l> ThreadStock<'l> {
    /// Creates a thread without stock.
    pub const fn new() -> Self {
        Self {
            set: Cell::new(None),
            index: Cell::new(0),
            direct: SlotShares::new(DIRECT_BYTES_MAX),
            shared: SlotShares::new(SHARED_BYTES_MAX),
        }
    }

    /// Returns the thread's stock set.
    #[inline]
    pub fn set(&self) -> Option<&'l StockSet> {
        self.set.get()
    }

    /// Enters the thread's stock. `None` if it has none, or if another thread is draining it.
    #[inline]
    pub fn enter(&self) -> Option<OwnStock<'_>> {
        self.enter_with::<true>()
    }

    /// Does the work of [`enter`](Self::enter); see [`BiasedLock::enter`] for `FENCED`.
    #[inline]
    pub fn enter_with<const FENCED: bool>(&self) -> Option<OwnStock<'_>> {
        let set = self.set.get()?;
        let inside = set.lock.enter::<FENCED>()?;
        Some(OwnStock { set, direct: &self.direct, shared: &self.shared, _inside: inside })
    }

    pub(crate) fn attach(&self, index: u32, set: &'l StockSet) {
        self.index.set(index);
        self.set.set(Some(set));
    }

    /// Ends the thread's stock; its bytes go to `give_back`, then the set to `unlist`. Returns the
    /// index of the set. No intruder may be active.
    pub(crate) fn retire(&self, give_back: GiveBack<'_>, unlist: &dyn Fn(&StockSet)) -> Option<u32> {
        let own = self.enter()?;
        own.direct().clear(give_back);
        own.shared().clear(give_back);
        unlist(own.set());
        drop(own);
        self.set.set(None);
        Some(self.index.get())
    }
}

impl Default for ThreadStock<'_> {
    fn default() -> Self {
        Self::new()
    }
}

impl OwnStock<'_> {
    /// Returns the stocks of the groups charged by the thread itself.
    #[inline]
    pub fn direct(&self) -> OwnStockTable<'_, NR_DIRECT, DIRECT_WORDS> {
        OwnStockTable::new(&self.set.direct, self.direct)
    }

    /// Returns the stocks for the levels above.
    #[inline]
    pub fn shared(&self) -> OwnStockTable<'_, NR_SHARED, SHARED_WORDS> {
        OwnStockTable::new(&self.set.shared, self.shared)
    }

    /// Returns the whole set.
    pub fn set(&self) -> &StockSet {
        self.set
    }
}
