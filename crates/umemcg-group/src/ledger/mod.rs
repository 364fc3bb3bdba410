//! All counter nodes and all stocks, and charging through the levels.
//!
//! A charge is counted at its own node and at every node above, dead ones included, so that an
//! uncharge walks the same way whatever was removed in between. In order, a charge
//!
//! 1. is taken from the thread's stock for the node, or else
//! 2. is added to the node, with something for the stock, and taken from the stock of the level
//!    above, or else added there as well, and so on up; when any level refuses, everything is
//!    undone, and it
//! 3. is added exactly, level by level; when that is refused, and what threads have in stock below
//!    the refusing node would make the difference, it is drained and the charge tried again. So a
//!    refusal means that the bytes are really held.
//!
//! No level ever goes above its limit on the way, except while a limit is being lowered.

mod expel;
mod pending;

use std::sync::OnceLock;

use umemcg_base::sync::atomic::{AtomicU32, Ordering};
use umemcg_base::{LeafMutex, Rank, Table};

use crate::biased_lock::{self, heavy_fence};
use crate::counter::{CHARGE_BYTES_MAX, CounterNode, NO_NODE, UNLIMITED};
use crate::index_pool::IndexPool;
use crate::mark_check::{note_fall, note_usage, take_back};
use crate::stock::{Drain, Keeper, OwnStock, StockSet};
use crate::stock_table::Stocked;

/// What a counter node costs; charged to the levels above for as long as the node exists.
pub const NODE_STATE_BYTES: u64 = 128;

/// Levels that get a stock of their own on the way up; above them a charge goes through unchanged.
const STOCKED_LEVELS_MAX: u32 = 8;

/// A stock is filled with at most this part of what its node has left, so that threads near a limit
/// leave each other something.
const ROOM_SHARE: u64 = 8;

/// All counters and stocks of a process (or of one model).
#[derive(Debug)]
pub struct Ledger {
    nodes: Table<CounterNode>,
    free_nodes: IndexPool,
    sets: Table<OnceLock<Box<StockSet>>>,
    free_sets: IndexPool,
    /// Sets that were ever in use, index 0 left out.
    nr_sets: AtomicU32,
    /// Held by a thread that enters the stocks of others.
    intruder: LeafMutex<()>,
    /// Called when the node of a group that is gone is freed, with the node above, which is about
    /// to get [`NODE_STATE_BYTES`] back.
    node_freed: fn(u32),
}

impl Ledger {
    /// Creates an empty ledger. `node_freed` is told of the node above each one that is freed.
    #[cfg(not(loom))]
    pub const fn with_hook(node_freed: fn(u32)) -> Self {
        Self {
            node_freed,
            nodes: Table::new(),
            free_nodes: IndexPool::new(),
            sets: Table::new(),
            free_sets: IndexPool::new(),
            nr_sets: AtomicU32::new(0),
            intruder: LeafMutex::with_rank(Rank::Stocks, ()),
        }
    }

    /// Creates an empty ledger.
    #[cfg(loom)]
    #[expect(clippy::new_without_default, reason = "only models make more than one")]
    pub fn new() -> Self {
        Self {
            node_freed: |_| {},
            nodes: Table::new(),
            free_nodes: IndexPool::new(),
            sets: Table::new(),
            free_sets: IndexPool::new(),
            nr_sets: AtomicU32::new(0),
            intruder: LeafMutex::with_rank(Rank::Stocks, ()),
        }
    }

    /// Returns a node that is held.
    #[inline]
    pub fn node(&self, index: u32) -> &CounterNode {
        self.nodes.get(index).expect("an owner id names a counter node")
    }

    /// Nodes in use: those of groups, and of removed groups that something is still charged to.
    pub fn nr_in_use(&self) -> u32 {
        self.free_nodes.nr_in_use()
    }

    /// Returns a node for a new group below `parent` ([`NO_NODE`] for a root). The caller has
    /// charged [`NODE_STATE_BYTES`] to `parent`; freeing the node gives them back.
    pub fn open(&self, parent: u32, max: u64) -> u32 {
        let index = self.free_nodes.take();
        let depth = if parent == NO_NODE { 0 } else { self.node(parent).depth() + 1 };
        self.nodes.get_or_grow(index, CounterNode::default).open(parent, depth, max);
        index
    }

    /// Notes that the group of `index` is gone; frees the node if nothing is charged to it.
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

    /// Returns the nearest node at or above `index` whose group has not been removed; the top one
    /// if the whole tree has.
    pub fn living(&self, index: u32) -> u32 {
        let mut at = index;
        // Bounded by the depth: every step goes up.
        while self.node(at).is_dead() && self.node(at).forward() != NO_NODE {
            at = self.node(at).forward();
        }
        if at != index && self.node(index).forward() != at {
            self.node(index).set_forward(at);
        }
        at
    }

    /// Gives a thread a stock. Without one, a thread charges the counters.
    pub fn enroll<'l>(&'l self, keeper: &Keeper<'l>) {
        if keeper.set().is_some() {
            return;
        }
        biased_lock::prepare();
        let index = self.free_sets.take();
        let set = self.sets.get_or_grow(index, OnceLock::new).get_or_init(Box::default);
        // AcqRel: pairs with `sets`.
        self.nr_sets.fetch_max(index, Ordering::AcqRel);
        keeper.enroll(index, set);
    }

    /// Takes a thread's stock away, when it ends.
    pub fn dismiss<'l>(&'l self, keeper: &Keeper<'l>) {
        let _alone = self.intruder.lock();
        if let Some(index) = keeper.retire(&|out| self.give_back_stocked(out)) {
            self.free_sets.give_back(index);
        }
    }

    /// Charges from stock alone. False when there is not enough.
    #[inline]
    pub fn take_stock(&self, keeper: &Keeper<'_>, index: u32, bytes: u64) -> bool {
        keeper.enter().is_some_and(|own| own.direct().take(index, bytes))
    }

    /// Uncharges into stock alone. False when there is no room.
    #[inline]
    pub fn put_stock(&self, keeper: &Keeper<'_>, index: u32, bytes: u64) -> bool {
        keeper.enter().is_some_and(|own| own.direct().put(index, bytes))
    }

    /// Charges `bytes` to the nearest living node at or above `index`, and all above it. Returns
    /// that node.
    ///
    /// # Errors
    /// The lowest node that refuses; nothing is charged then.
    #[cfg(any(test, loom))]
    pub fn try_charge(&self, keeper: &Keeper<'_>, index: u32, bytes: u64) -> Result<u32, u32> {
        if self.take_stock(keeper, index, bytes) {
            return Ok(index);
        }
        self.try_charge_past_stock(keeper, index, self.node(index), bytes)
    }

    /// Like `try_charge`, for callers that already missed the stock and hold the node. A thread
    /// that goes round many groups comes here with every charge, and waits for the node's memory:
    /// the fewer instructions, the more of that waiting overlaps.
    ///
    /// # Errors
    /// As there.
    #[doc(alias = "try_charge_memcg")]
    #[inline]
    pub fn try_charge_past_stock(
        &self,
        keeper: &Keeper<'_>,
        index: u32,
        node: &CounterNode,
        bytes: u64,
    ) -> Result<u32, u32> {
        let is_plain = bytes.wrapping_sub(1) < CHARGE_BYTES_MAX && !node.is_dead();
        if is_plain && keeper.enter().is_some_and(|own| self.charge_filling_stocks(&own, index, node, bytes))
        {
            return Ok(index);
        }
        self.try_charge_exactly(keeper, index, bytes)
    }

    /// What is left to do when a charge that fills stocks is refused, or not to be made.
    #[cold]
    #[inline(never)]
    fn try_charge_exactly(&self, keeper: &Keeper<'_>, index: u32, bytes: u64) -> Result<u32, u32> {
        let living = self.living(index);
        let granted = if bytes == 0 {
            Ok(()) // Even above a limit.
        } else if bytes > CHARGE_BYTES_MAX {
            Err(self.lowest_limited(living))
        } else if living != index
            && keeper
                .enter()
                .is_some_and(|own| self.charge_filling_stocks(&own, living, self.node(living), bytes))
        {
            Ok(())
        } else {
            self.charge_exactly(keeper, living, bytes)
        };
        match granted {
            Ok(()) => Ok(living),
            Err(refusing) => {
                self.node(refusing).count_failure();
                Err(refusing)
            }
        }
    }

    /// Charges `bytes` to the nearest living node at or above `index`, and all above it, whatever
    /// the limits say. Returns that node.
    pub fn charge_forced(&self, keeper: &Keeper<'_>, index: u32, bytes: u64) -> u32 {
        assert!(bytes <= CHARGE_BYTES_MAX, "a forced charge of {bytes} bytes");
        if self.take_stock(keeper, index, bytes) {
            return index;
        }
        let index = self.living(index);
        self.levels_to(index, NO_NODE).for_each(|node| node.add(bytes));
        self.levels_to(index, NO_NODE).for_each(note_usage);
        index
    }

    /// Gives back what was charged to `index`: into stock while there is room, and what is over to
    /// the counters.
    pub fn uncharge(&self, keeper: &Keeper<'_>, index: u32, bytes: u64) {
        match keeper.enter() {
            Some(own) => {
                let over = own.direct().put_or_spill(index, bytes);
                let shared = own.shared();
                self.climb_down(index, over, |parent, bytes| {
                    if shared.put(parent, bytes) { 0 } else { shared.put_or_spill(parent, bytes) }
                });
            }
            None => self.give_back_exactly(index, bytes),
        }
    }

    /// Takes everything in stock for the subtree of `top` back to the counters, with `Drain::Slots`
    /// the slots as well, so that nothing new is put in before the next charge that is granted.
    /// Dear when other threads have any.
    #[doc(alias = "drain_all_stock")]
    pub fn drain_subtree(&self, keeper: &Keeper<'_>, top: u32, what: Drain) {
        let is_meant = |slot: Stocked| what.applies_to(slot) && self.is_below(slot.node, top);
        let drain = |set: &StockSet| set.drain(what, is_meant, &|out| self.give_back_stocked(out));
        if let Some(own) = keeper.enter() {
            drain(own.set());
        }
        self.intrude(|set| set.glimpse().any(is_meant), drain);
    }

    /// Takes what the calling thread alone has in stock for `index` and the levels above back to
    /// the counters. Costs no other thread anything.
    pub fn drain_own(&self, keeper: &Keeper<'_>, index: u32) {
        let is_meant = |slot: Stocked| Drain::Slots.applies_to(slot) && self.is_below(index, slot.node);
        if let Some(own) = keeper.enter() {
            own.set().drain(Drain::Slots, is_meant, &|out| self.give_back_stocked(out));
        }
    }

    /// Drains the subtree of `top` if that brings its usage down to `goal`. True when it did, or
    /// when usage is there already.
    pub fn drain_down_to(&self, keeper: &Keeper<'_>, top: u32, goal: u64) -> bool {
        let would_help = {
            // After a drain that is under way, whose bytes are neither in stock nor given back.
            let _alone = self.intruder.lock();
            let below = self.sets().flat_map(StockSet::glimpse).filter(|slot| self.is_below(slot.node, top));
            let stocked: u64 = below.map(|slot| slot.bytes).sum();
            self.node(top).usage() <= goal.saturating_add(stocked)
        };
        if would_help {
            self.drain_subtree(keeper, top, Drain::Bytes);
        }
        would_help
    }

    /// Does something inside every chosen stock set, with its thread kept out.
    pub(crate) fn intrude(&self, choose: impl Fn(&StockSet) -> bool, act: impl Fn(&StockSet)) {
        let _alone = self.intruder.lock();
        let chosen: Vec<&StockSet> = self.sets().filter(|set| choose(set)).collect();
        if chosen.is_empty() {
            return;
        }
        chosen.iter().for_each(|set| set.lock().close());
        heavy_fence(); // One for all of them. Pairs with the light fence in `BiasedLock::enter`.
        for set in chosen {
            set.lock().wait_until_left();
            act(set);
            set.lock().open();
        }
    }

    /// Step 2 of the module text. False when some level refused; nothing is charged then.
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
            direct.claim(index, bytes, || node.is_dead(), &|out| self.give_back_stocked(out));
        }
        direct.note_miss(&|out| self.give_back_stocked(out));
        true
    }

    /// Adds `bytes` to a node, and gets them counted at the levels above: from the stock for those,
    /// or else by adding there.
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

    /// Gets `bytes` counted at a node and all above it by adding, with something for the stock of
    /// the level.
    #[inline(never)]
    fn add_above(&self, own: &OwnStock<'_>, index: u32, bytes: u64, nr_stocked_levels: u32) -> bool {
        if nr_stocked_levels == 0 {
            return self.climb(index, bytes, None).is_ok();
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
            // Something is over when on the way up a level above has claimed a slot, so that there
            // is less for each now.
            let over = shared.put_or_spill(index, extra);
            if over != 0 {
                self.give_back_exactly(index, over);
            }
        } else {
            shared.claim(index, bytes, || node.is_dead(), &|out| self.give_back_stocked(out));
        }
        shared.note_miss(&|out| self.give_back_stocked(out));
        true
    }

    /// Returns how much more than `bytes` to ask of a node, for a stock with that much space.
    fn extra(&self, node: &CounterNode, bytes: u64, space: u64) -> u64 {
        let room = node.max().saturating_sub(node.usage()).saturating_sub(bytes);
        space.min(room / ROOM_SHARE)
    }

    /// Step 3 of the module text.
    fn charge_exactly(&self, keeper: &Keeper<'_>, index: u32, bytes: u64) -> Result<(), u32> {
        // Every drain lets at least one more level grant, unless other threads are faster.
        let mut nr_drains_left = self.node(index).depth() + 1;
        loop {
            let refusing = match self.climb(index, bytes, keeper.enter().as_ref()) {
                Ok(()) => return Ok(()),
                Err(refusing) => refusing,
            };
            let goal = self.node(refusing).max().checked_sub(bytes);
            if nr_drains_left == 0 || !goal.is_some_and(|goal| self.drain_down_to(keeper, refusing, goal)) {
                return Err(refusing);
            }
            nr_drains_left -= 1;
        }
    }

    /// Adds `bytes` level by level until one can take the rest of the way from stock. After a
    /// refusal takes everything back and names the node.
    fn climb(&self, index: u32, bytes: u64, own: Option<&OwnStock<'_>>) -> Result<(), u32> {
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

    /// Gives back at every level, past all stocks.
    pub fn give_back_exactly(&self, index: u32, bytes: u64) {
        self.climb_down(index, bytes, |_, bytes| bytes);
    }

    pub(crate) fn give_back_stocked(&self, out: Stocked) {
        if out.bytes != 0 {
            self.give_back_exactly(out.node, out.bytes);
        }
    }

    /// Subtracts level by level. `keep` may keep some of what would be given back at the next level
    /// and all above it, and returns the rest.
    #[inline]
    fn climb_down(&self, index: u32, bytes: u64, keep: impl Fn(u32, u64) -> u64) {
        let (mut at, mut bytes) = (index, bytes);
        while bytes != 0 {
            // First, because afterwards the node may be another group's.
            let node = self.node(at);
            let parent = node.parent();
            if node.sub(bytes) {
                self.free_nodes.give_back(at);
                if parent != NO_NODE {
                    (self.node_freed)(parent);
                }
                bytes += NODE_STATE_BYTES;
            } else {
                note_fall(at, node);
            }
            if parent == NO_NODE {
                return;
            }
            bytes = keep(parent, bytes);
            at = parent;
        }
    }

    /// Returns whether a node is `top` or below it. A guess if the node is not held by anyone; it
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

    /// Returns the lowest node with a limit, else the highest: what refuses a charge that no sum
    /// may contain.
    fn lowest_limited(&self, index: u32) -> u32 {
        let mut at = index;
        while self.node(at).max() == UNLIMITED && self.node(at).parent() != NO_NODE {
            at = self.node(at).parent();
        }
        at
    }

    /// Returns every stock set that was ever in use. A thread that enrolls later has seen what the
    /// caller did before.
    pub(crate) fn sets(&self) -> impl Iterator<Item = &StockSet> {
        // A read-modify-write, AcqRel: pairs with `enroll`.
        let nr_sets = self.nr_sets.fetch_add(0, Ordering::AcqRel);
        (1..=nr_sets).filter_map(|index| self.sets.get(index).and_then(OnceLock::get).map(|set| &**set))
    }
}

#[cfg(not(loom))]
impl Default for Ledger {
    fn default() -> Self {
        Self::with_hook(|_| {})
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// A root and `nr_leaves` nodes below it.
    fn ledger(root_max: u64, nr_leaves: usize) -> (Ledger, u32, Vec<u32>) {
        let ledger = Ledger::with_hook(|_| {});
        let root = ledger.open(NO_NODE, root_max);
        let leaves = (0..nr_leaves).map(|_| {
            ledger.charge_forced(&Keeper::new(), root, NODE_STATE_BYTES);
            ledger.open(root, UNLIMITED)
        });
        let leaves = leaves.collect();
        (ledger, root, leaves)
    }

    #[test]
    fn groups_side_by_side_charge_their_parent_from_stock() {
        let (ledger, root, leaves) = ledger(1 << 30, 64);
        let keeper = Keeper::new();
        ledger.enroll(&keeper);
        for leaf in &leaves[..2] {
            // The first claims the parent's slot, the second fills it.
            assert_eq!(ledger.try_charge(&keeper, *leaf, 4096), Ok(*leaf));
        }
        let usage = ledger.node(root).usage();
        for leaf in &leaves[2..] {
            assert_eq!(ledger.try_charge(&keeper, *leaf, 4096), Ok(*leaf));
            assert_eq!(ledger.node(*leaf).usage(), 4096);
        }
        assert_eq!(ledger.node(root).usage(), usage);
        leaves.iter().for_each(|leaf| ledger.uncharge(&keeper, *leaf, 4096));
        ledger.dismiss(&keeper);
        assert_eq!(ledger.node(root).usage(), leaves.len() as u64 * NODE_STATE_BYTES);
    }

    #[test]
    fn a_refusal_above_leaves_nothing_below() {
        let (ledger, root, leaves) = ledger(NODE_STATE_BYTES + 100, 1);
        let keeper = Keeper::new();
        for _ in 0..2 {
            assert_eq!(ledger.try_charge(&keeper, leaves[0], 101), Err(root));
            assert_eq!((ledger.node(leaves[0]).usage(), ledger.node(leaves[0]).peak()), (0, 0));
            ledger.enroll(&keeper);
        }
        assert_eq!(ledger.node(root).failcnt(), 2);
        assert_eq!(ledger.try_charge(&keeper, leaves[0], 100), Ok(leaves[0]));
    }

    #[test]
    fn the_stock_of_an_ended_thread_is_returned_and_reused() {
        let (ledger, root, leaves) = ledger(1 << 30, 1);
        let (first, second) = (Keeper::new(), Keeper::new());
        ledger.enroll(&first);
        for _ in 0..2 {
            assert!(ledger.try_charge(&first, leaves[0], 10).is_ok());
        }
        assert!(ledger.node(leaves[0]).usage() > 20);
        let set = first.set().unwrap();
        ledger.dismiss(&first);
        assert_eq!(ledger.node(root).usage(), NODE_STATE_BYTES + 20);
        ledger.enroll(&second);
        assert!(std::ptr::eq(second.set().unwrap(), set));
    }

    #[test]
    fn a_lookup_from_a_dead_chain_remembers_its_way() {
        let ledger = Ledger::with_hook(|_| {});
        let mut chain = vec![ledger.open(NO_NODE, UNLIMITED)];
        for _ in 0..5 {
            chain.push(ledger.open(*chain.last().unwrap(), UNLIMITED));
        }
        chain[1..].iter().rev().for_each(|node| ledger.node(*node).mark_dead());
        assert_eq!(ledger.living(chain[5]), chain[0]);
        assert_eq!(ledger.node(chain[5]).forward(), chain[0]);
        assert_eq!(ledger.node(chain[5]).parent(), chain[4]);
    }
}
