//! The ledger: all counter nodes and all stocks, and charging through the levels.
//!
//! A charge is counted at its own node and at every node above, dead ones included, so an uncharge
//! walks the same way whatever was removed in between. In order, a charge
//!
//! 1. is taken from the thread's stock for the node, or else
//! 2. is added to the node, with an extra amount for its stock. At the level above it is taken from
//!    stock or else added in the same way, and so on up. When any level refuses, everything is
//!    undone, and it
//! 3. is added exactly, level by level. When that is refused, and the threads' stocks below the
//!    refusing node would make enough room, they are drained and the charge is tried again. So a
//!    refusal means the bytes are really held.
//!
//! No level ever goes above its limit on the way, except while a limit is being lowered.

mod drain;
mod held;
mod pending;
mod purge;

use std::sync::OnceLock;

use umemcg_base::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use umemcg_base::{LeafMutex, Rank, Table, const_fn};

use crate::biased_lock;
use crate::counter::{CHARGE_BYTES_MAX, CounterNode, NO_NODE, UNLIMITED};
use crate::index_pool::IndexPool;
use crate::mark_check::{note_uncharge, note_usage, take_back};
use crate::set_list::{SetList, Visits};
use crate::stock::{OwnStock, StockSet, ThreadStock};
use crate::stock_table::Stocked;

/// Bytes of a counter node; charged to the levels above for as long as the node exists.
pub const NODE_STATE_BYTES: u64 = 128;

/// Levels with a stock on the way up; above them a charge goes through unchanged.
const STOCKED_LEVELS_MAX: u32 = 8;

/// A stock is filled with at most one part in this many of its node's remaining room, so threads
/// near a limit leave room for each other.
const ROOM_SHARE: u64 = 8;

/// All counters and stocks of a process (or of one model).
#[derive(Debug)]
pub struct Ledger {
    nodes: Table<CounterNode>,
    free_nodes: IndexPool,
    sets: Table<OnceLock<Box<StockSet>>>,
    free_sets: IndexPool,
    /// Number of sets ever in use, without index 0.
    nr_sets: AtomicU32,
    /// The sets with possible stock.
    stocked: SetList,
    /// The sets with possible pending changes.
    with_pending: SetList,
    /// Visits of readers to sets with pending changes since the last sweep. (A)
    nr_pending_visits: AtomicUsize,
    /// Held by a thread entering the stocks of other threads.
    intruder: LeafMutex<Visits>,
    /// Called when the node of a removed group is freed, with the node above; [`NODE_STATE_BYTES`]
    /// are about to be uncharged from that node.
    node_freed: fn(u32),
}

impl Ledger {
    const_fn! {
        /// Creates an empty ledger. `node_freed` is called with the parent of each freed node.
        pub const fn with_hook(node_freed: fn(u32)) -> Self {
            Self {
                node_freed,
                nodes: Table::new(),
                free_nodes: IndexPool::new(),
                sets: Table::new(),
                free_sets: IndexPool::new(),
                nr_sets: AtomicU32::new(0),
                stocked: SetList::new(),
                with_pending: SetList::new(),
                nr_pending_visits: AtomicUsize::new(0),
                intruder: LeafMutex::with_rank(Rank::Stocks, Visits::NONE),
            }
        }
    }

    /// Returns a node; the caller keeps it alive.
    #[inline]
    pub fn node(&self, index: u32) -> &CounterNode {
        self.nodes.get(index).expect("an owner id names a counter node")
    }

    /// Returns the number of nodes in use, including nodes of removed groups with charges.
    pub fn nr_in_use(&self) -> u32 {
        self.free_nodes.nr_in_use()
    }

    /// Returns a node for a new group below `parent` ([`NO_NODE`] for a root). The caller has
    /// charged [`NODE_STATE_BYTES`] to `parent`; freeing the node uncharges them.
    pub fn open(&self, parent: u32, max: u64) -> u32 {
        let index = self.free_nodes.take();
        let depth = if parent == NO_NODE { 0 } else { self.node(parent).depth() + 1 };
        self.nodes.get_or_grow(index, CounterNode::default).open(parent, depth, max);
        index
    }

    /// Records that the group of `index` is gone; frees the node if nothing is charged to it.
    pub fn release_live(&self, index: u32) {
        let parent = self.node(index).parent();
        if self.node(index).release_live() {
            self.free_nodes.give_back(index);
            if parent != NO_NODE {
                (self.node_freed)(parent);
                self.give_back_exactly(parent, NODE_STATE_BYTES);
            }
        }
    }

    /// Returns the nearest chargeable node at or above `index`: the node of a group not removed, or
    /// the top node if the whole tree is removed. Earlier charges may still lie below it, with a
    /// group about to hand them over.
    pub fn living(&self, index: u32) -> u32 {
        let mut at = index;
        // Bounded by the depth: every step goes up.
        while self.node(at).is_dead() && self.node(at).parent() != NO_NODE {
            at = self.node(at).parent();
        }
        at
    }

    /// Gives a thread a stock. A thread without one charges the counters directly.
    pub fn register_thread<'l>(&'l self, thread: &ThreadStock<'l>) {
        if thread.set().is_some() {
            return;
        }
        biased_lock::prepare();
        let index = self.free_sets.take();
        let set = self.sets.get_or_grow(index, OnceLock::new).get_or_init(|| Box::new(StockSet::new(index)));
        self.stocked.prepare(index);
        self.with_pending.prepare(index);
        // AcqRel: pairs with `sets` and `listed_sets`.
        self.nr_sets.fetch_max(index, Ordering::AcqRel);
        thread.attach(index, set);
    }

    /// Takes the stock away from an ending thread.
    pub fn unregister_thread<'l>(&'l self, thread: &ThreadStock<'l>) {
        let _alone = self.intruder.lock();
        let unlist = |set: &StockSet| self.unlist(set);
        if let Some(index) = thread.retire(&|out| self.give_back_stocked(out), &unlist) {
            self.free_sets.give_back(index);
        }
    }

    /// Charges from stock alone. Returns `false` if there is not enough.
    #[inline]
    pub fn take_stock(&self, thread: &ThreadStock<'_>, index: u32, bytes: u64) -> bool {
        thread.enter().is_some_and(|own| own.direct().take(index, bytes))
    }

    /// Uncharges into stock alone. Returns `false` if there is no room.
    #[inline]
    pub fn put_stock(&self, thread: &ThreadStock<'_>, index: u32, bytes: u64) -> bool {
        thread.enter().is_some_and(|own| own.direct().put(index, bytes))
    }

    /// Charges `bytes` to the nearest living node at or above `index`, and all above it. Returns
    /// the node.
    ///
    /// # Errors
    /// The lowest node that refuses; nothing is charged then.
    #[cfg(any(test, loom))]
    pub fn try_charge(&self, thread: &ThreadStock<'_>, index: u32, bytes: u64) -> Result<u32, u32> {
        if self.take_stock(thread, index, bytes) {
            return Ok(index);
        }
        self.try_charge_past_stock(thread, index, self.node(index), bytes)
    }

    /// Like `try_charge`, for callers that already missed the stock and hold the node. A thread
    /// charging many groups in turn comes here with every charge and waits for the node's memory:
    /// the fewer instructions, the more of these waits overlap.
    ///
    /// # Errors
    /// As there.
    #[doc(alias = "try_charge_memcg")]
    #[inline]
    pub fn try_charge_past_stock(
        &self,
        thread: &ThreadStock<'_>,
        index: u32,
        node: &CounterNode,
        bytes: u64,
    ) -> Result<u32, u32> {
        let is_plain = bytes.wrapping_sub(1) < CHARGE_BYTES_MAX && !node.is_dead();
        if is_plain && thread.enter().is_some_and(|own| self.charge_filling_stocks(&own, index, node, bytes))
        {
            return Ok(index);
        }
        self.try_charge_exactly::<true>(thread, index, bytes)
    }

    /// Charges without filling stocks: the last resort, if a charge filling stocks was refused or
    /// is not allowed. `FORWARDS` charges the nearest living node in place of a dead one.
    #[cold]
    #[inline(never)]
    fn try_charge_exactly<const FORWARDS: bool>(
        &self,
        thread: &ThreadStock<'_>,
        index: u32,
        bytes: u64,
    ) -> Result<u32, u32> {
        let living = if FORWARDS { self.living(index) } else { index };
        let granted = if bytes == 0 {
            Ok(()) // Even above a limit.
        } else if bytes > CHARGE_BYTES_MAX {
            Err(self.lowest_limited(living))
        } else if living != index
            && thread
                .enter()
                .is_some_and(|own| self.charge_filling_stocks(&own, living, self.node(living), bytes))
        {
            Ok(())
        } else {
            self.charge_exactly(thread, living, bytes)
        };
        match granted {
            Ok(()) => Ok(living),
            Err(refusing) => {
                self.node(refusing).count_failure();
                Err(refusing)
            }
        }
    }

    /// Charges `bytes` to the nearest living node at or above `index`, and all above it, ignoring
    /// limits. Returns the node.
    pub fn charge_forced(&self, thread: &ThreadStock<'_>, index: u32, bytes: u64) -> u32 {
        if self.take_stock(thread, index, bytes) {
            return index;
        }
        let index = self.living(index);
        self.charge_here_forced(index, bytes);
        index
    }

    /// Charges `bytes` to `index` itself and all above it, ignoring limits, even if its group has
    /// been removed. The caller keeps the node alive.
    pub fn charge_here_forced(&self, index: u32, bytes: u64) {
        assert!(bytes <= CHARGE_BYTES_MAX, "a forced charge of {bytes} bytes");
        self.levels_to(index, NO_NODE).for_each(|node| node.add(bytes));
        self.levels_to(index, NO_NODE).for_each(note_usage);
    }

    /// Uncharges bytes of `index`: into stock while there is room, the rest from the counters.
    pub fn uncharge(&self, thread: &ThreadStock<'_>, index: u32, bytes: u64) {
        match thread.enter() {
            Some(own) => {
                let over = own.direct().put_or_spill(index, bytes);
                let shared = own.shared();
                self.uncharge_levels(index, over, |parent, bytes| {
                    if shared.put(parent, bytes) { 0 } else { shared.put_or_spill(parent, bytes) }
                });
            }
            None => self.give_back_exactly(index, bytes),
        }
    }

    /// Does step 2 of the module text. Returns `false` if some level refused; nothing is charged
    /// then.
    #[inline]
    fn charge_filling_stocks(&self, own: &OwnStock<'_>, index: u32, node: &CounterNode, bytes: u64) -> bool {
        let direct = own.direct();
        if direct.retake(index, bytes) {
            return true;
        }
        let space = direct.space(index);
        let extra = space.map_or(0, |space| self.extra(node, bytes, space));
        if !self.add_below_stock(own, node, bytes + extra, STOCKED_LEVELS_MAX) {
            return false;
        }
        if space.is_some() {
            let over = direct.put_or_spill(index, extra);
            debug_assert_eq!(over, 0, "there was space, and no other thread puts anything in");
        } else {
            direct.claim(index, bytes, || self.list_and_check(own, node), &|out| self.give_back_stocked(out));
        }
        direct.note_miss(&|out| self.give_back_stocked(out));
        true
    }

    /// Adds `bytes` to a node, and counts them at the levels above: from stock, or by adding them
    /// there.
    #[inline]
    fn add_below_stock(
        &self,
        own: &OwnStock<'_>,
        node: &CounterNode,
        bytes: u64,
        nr_stocked_levels: u32,
    ) -> bool {
        if !node.try_add(bytes) {
            return false;
        }
        let parent = node.parent();
        if parent != NO_NODE
            && !own.shared().take(parent, bytes)
            && !self.add_above(own, parent, bytes, nr_stocked_levels)
        {
            take_back(node, bytes);
            return false;
        }
        note_usage(node);
        true
    }

    /// Counts `bytes` at a node and all above it by adding, with some more for the stock of the
    /// level.
    #[inline(never)]
    fn add_above(&self, own: &OwnStock<'_>, index: u32, bytes: u64, nr_stocked_levels: u32) -> bool {
        if nr_stocked_levels == 0 {
            return self.charge_levels(index, bytes, None).is_ok();
        }
        let shared = own.shared();
        if shared.retake(index, bytes) {
            return true;
        }
        let node = self.node(index);
        let space = shared.space(index);
        let extra = space.map_or(0, |space| self.extra(node, bytes, space));
        if !self.add_below_stock(own, node, bytes + extra, nr_stocked_levels - 1) {
            return false;
        }
        if space.is_some() {
            // Bytes are left over if a level above has claimed a slot meanwhile and so reduced the
            // share of each slot.
            let over = shared.put_or_spill(index, extra);
            if over != 0 {
                self.give_back_exactly(index, over);
            }
        } else {
            shared.claim(index, bytes, || self.list_and_check(own, node), &|out| self.give_back_stocked(out));
        }
        shared.note_miss(&|out| self.give_back_stocked(out));
        true
    }

    /// Returns the bytes to charge at a node beyond `bytes`, for a stock with `space` left.
    fn extra(&self, node: &CounterNode, bytes: u64, space: u64) -> u64 {
        let room = node.max().saturating_sub(node.usage()).saturating_sub(bytes);
        space.min(room / ROOM_SHARE)
    }

    /// Does step 3 of the module text.
    fn charge_exactly(&self, thread: &ThreadStock<'_>, index: u32, bytes: u64) -> Result<(), u32> {
        // After every drain at least one more level grants the charge, unless other threads are
        // faster.
        let mut nr_drains_left = self.node(index).depth() + 1;
        loop {
            let refusing = match self.charge_levels(index, bytes, thread.enter().as_ref()) {
                Ok(()) => return Ok(()),
                Err(refusing) => refusing,
            };
            let goal = self.node(refusing).max().checked_sub(bytes);
            if nr_drains_left == 0 || !goal.is_some_and(|goal| self.drain_down_to(thread, refusing, goal)) {
                return Err(refusing);
            }
            nr_drains_left -= 1;
        }
    }

    /// Adds `bytes` level by level until a level can take the rest from stock. After a refusal,
    /// undoes everything and returns the node.
    fn charge_levels(&self, index: u32, bytes: u64, own: Option<&OwnStock<'_>>) -> Result<(), u32> {
        let mut at = index;
        while at != NO_NODE {
            if at != index && own.is_some_and(|own| own.shared().take(at, bytes)) {
                break;
            }
            if !self.node(at).try_add(bytes) {
                self.levels_to(index, at).for_each(|node| take_back(node, bytes));
                return Err(at);
            }
            at = self.node(at).parent();
        }
        self.levels_to(index, at).for_each(note_usage);
        Ok(())
    }

    /// Uncharges at every level, bypassing all stocks.
    pub fn give_back_exactly(&self, index: u32, bytes: u64) {
        self.uncharge_levels(index, bytes, |_, bytes| bytes);
    }

    pub(crate) fn give_back_stocked(&self, out: Stocked) {
        if out.bytes != 0 {
            self.give_back_exactly(out.node, out.bytes);
        }
    }

    /// Subtracts level by level. `keep` may put into stock some of the bytes due at the next level
    /// and all above it; it returns the rest.
    #[inline]
    fn uncharge_levels(&self, index: u32, bytes: u64, keep: impl Fn(u32, u64) -> u64) {
        let (mut at, mut bytes) = (index, bytes);
        while bytes != 0 {
            // Read first, because afterwards the node may belong to another group.
            let node = self.node(at);
            let parent = node.parent();
            if node.sub(bytes) {
                self.free_nodes.give_back(at);
                if parent != NO_NODE {
                    (self.node_freed)(parent);
                }
                bytes += NODE_STATE_BYTES;
            } else {
                note_uncharge(at, node);
            }
            if parent == NO_NODE {
                return;
            }
            bytes = keep(parent, bytes);
            at = parent;
        }
    }

    /// Returns whether a node is `top` or below it. A guess if nothing keeps the node alive; it
    /// ends in any case, since the depth must fall.
    pub(crate) fn is_below(&self, index: u32, top: u32) -> bool {
        let mut at = index;
        loop {
            if at == top {
                return true;
            }
            let Some(node) = self.nodes.get(at) else {
                return false;
            };
            let (parent, depth) = (node.parent(), node.depth());
            if parent == NO_NODE || self.node(parent).depth() >= depth {
                return false;
            }
            at = parent;
        }
    }

    /// Returns a node and all above it, up to but not including `end`.
    fn levels_to(&self, index: u32, end: u32) -> impl Iterator<Item = &CounterNode> {
        let mut at = index;
        std::iter::from_fn(move || {
            let node = (at != end).then(|| self.node(at))?;
            at = node.parent();
            Some(node)
        })
    }

    /// Returns the lowest node with a limit, or else the topmost: the node to refuse a charge too
    /// large to add.
    fn lowest_limited(&self, index: u32) -> u32 {
        let mut at = index;
        while self.node(at).max() == UNLIMITED && self.node(at).parent() != NO_NODE {
            at = self.node(at).parent();
        }
        at
    }
}

impl Default for Ledger {
    fn default() -> Self {
        Self::with_hook(|_| {})
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Returns a root and `nr_leaves` nodes below it.
    fn ledger(root_max: u64, nr_leaves: usize) -> (Ledger, u32, Vec<u32>) {
        let ledger = Ledger::with_hook(|_| {});
        let root = ledger.open(NO_NODE, root_max);
        let leaves = (0..nr_leaves).map(|_| {
            ledger.charge_forced(&ThreadStock::new(), root, NODE_STATE_BYTES);
            ledger.open(root, UNLIMITED)
        });
        let leaves = leaves.collect();
        (ledger, root, leaves)
    }

    #[test]
    fn groups_side_by_side_charge_their_parent_from_stock() {
        let (ledger, root, leaves) = ledger(1 << 30, 64);
        let thread = ThreadStock::new();
        ledger.register_thread(&thread);
        for leaf in &leaves[..2] {
            // The first claims the parent's slot, the second fills it.
            assert_eq!(ledger.try_charge(&thread, *leaf, 4096), Ok(*leaf));
        }
        let usage = ledger.node(root).usage();
        for leaf in &leaves[2..] {
            assert_eq!(ledger.try_charge(&thread, *leaf, 4096), Ok(*leaf));
            assert_eq!(ledger.node(*leaf).usage(), 4096);
        }
        assert_eq!(ledger.node(root).usage(), usage);
        leaves.iter().for_each(|leaf| ledger.uncharge(&thread, *leaf, 4096));
        ledger.unregister_thread(&thread);
        assert_eq!(ledger.node(root).usage(), leaves.len() as u64 * NODE_STATE_BYTES);
    }

    #[test]
    fn a_refusal_above_leaves_nothing_below() {
        let (ledger, root, leaves) = ledger(NODE_STATE_BYTES + 100, 1);
        let thread = ThreadStock::new();
        for _ in 0..2 {
            assert_eq!(ledger.try_charge(&thread, leaves[0], 101), Err(root));
            assert_eq!((ledger.node(leaves[0]).usage(), ledger.node(leaves[0]).peak()), (0, 0));
            ledger.register_thread(&thread);
        }
        assert_eq!(ledger.node(root).failcnt(), 2);
        assert_eq!(ledger.try_charge(&thread, leaves[0], 100), Ok(leaves[0]));
    }

    #[test]
    fn the_stock_of_an_ended_thread_is_returned_and_reused() {
        let (ledger, root, leaves) = ledger(1 << 30, 1);
        let (first, second) = (ThreadStock::new(), ThreadStock::new());
        ledger.register_thread(&first);
        for _ in 0..2 {
            assert!(ledger.try_charge(&first, leaves[0], 10).is_ok());
        }
        assert!(ledger.node(leaves[0]).usage() > 20);
        let set = first.set().unwrap();
        ledger.unregister_thread(&first);
        assert_eq!(ledger.node(root).usage(), NODE_STATE_BYTES + 20);
        ledger.register_thread(&second);
        assert!(std::ptr::eq(second.set().unwrap(), set));
    }

    #[test]
    fn a_charge_of_a_dead_chain_goes_to_the_nearest_living_node() {
        let ledger = Ledger::with_hook(|_| {});
        let mut chain = vec![ledger.open(NO_NODE, UNLIMITED)];
        for _ in 0..5 {
            chain.push(ledger.open(*chain.last().unwrap(), UNLIMITED));
        }
        chain[1..].iter().rev().for_each(|node| ledger.node(*node).mark_dead());
        assert_eq!(ledger.living(chain[5]), chain[0]);
    }
}
