//! A charge: bytes counted to a group and all groups above it, as a value that gives itself back.

use std::fmt;
use std::mem;
use std::sync::Arc;

use arc_swap::ArcSwapOption;
use umemcg_base::Table;

use crate::counter::{CounterNode, NO_NODE};
use crate::excess::EXCESS_LAG_BYTES;
use crate::group::Group;
use crate::ledger::{Ledger, NODE_STATE_BYTES};
use crate::notices;
use crate::pending::Pending;
use crate::stats::StatItem;
use crate::stock::{Drain, Keeper};

/// The counters of this process.
pub(crate) static LEDGER: Ledger = Ledger::with_hook(note_node_freed);

/// The last of a removed group's state goes when nothing is charged to it any more.
fn note_node_freed(above: u32) {
    note_state_freed(OwnerId::new(above), NODE_STATE_BYTES);
}

/// State of a group that was below `above` is about to be given back.
pub(crate) fn note_state_freed(above: OwnerId, bytes: u64) {
    let mut at = above.0;
    // Bounded by the depth of the tree. Living groups are there to be found, so without one the tree has gone.
    loop {
        if let Some(group) = GROUPS.get(at).and_then(|slot| slot.load_full()) {
            return group.stat_add(StatItem::GroupState, -(bytes as i64));
        }
        match LEDGER.living(at) {
            living if living == at => return,
            living => at = living,
        }
    }
}

thread_local! {
    /// This thread's stock. Has no destructor, so that the fast path need not ask whether it has run.
    static KEEPER: Keeper<'static> = const { Keeper::new() };
    /// Gives the stock back when the thread ends.
    static AT_EXIT: AtExit = const { AtExit };
}

struct AtExit;

impl Drop for AtExit {
    fn drop(&mut self) {
        KEEPER.with(|keeper| LEDGER.dismiss(keeper));
        settle_unsettled();
    }
}

/// Lends this thread's keeper, with a stock unless the thread is ending.
fn with_stock<R>(use_it: impl FnOnce(&Keeper<'static>) -> R) -> R {
    KEEPER.with(|keeper| {
        if keeper.set().is_none() && AT_EXIT.try_with(|_| ()).is_ok() {
            LEDGER.enroll(keeper);
        }
        use_it(keeper)
    })
}

/// The living group of each counter node. Empty as soon as the group is removed.
static GROUPS: Table<ArcSwapOption<Group>> = Table::new();

/// Names whoever something is charged to: a group, or, once that has been removed, the nearest group above.
/// Fits in a frame record. Valid while its holder also holds a charge on it, or the group itself.
#[doc(alias = "mem_cgroup_id")]
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OwnerId(u32);

impl OwnerId {
    pub(crate) fn new(index: u32) -> Self {
        debug_assert_ne!(index, NO_NODE);
        Self(index)
    }

    /// The number to store where a type will not do; never 0.
    #[inline]
    pub fn into_raw(self) -> u32 {
        self.0
    }

    /// The id of a stored number; none for 0.
    #[inline]
    pub fn from_raw(raw: u32) -> Option<Self> {
        (raw != NO_NODE).then_some(Self(raw))
    }

    pub(crate) fn node(self) -> &'static CounterNode {
        LEDGER.node(self.0)
    }

    /// The nearest living group.
    ///
    /// # Panics
    /// When the whole tree is gone.
    #[doc(alias = "mem_cgroup_from_id")]
    pub fn resolve(self) -> Arc<Group> {
        self.with_group(Arc::clone)
    }

    /// Lends the nearest living group; cheaper than [`resolve`](Self::resolve) by two atomic operations.
    ///
    /// # Panics
    /// When the whole tree is gone.
    pub fn with_group<R>(self, use_it: impl FnOnce(&Arc<Group>) -> R) -> R {
        let mut at = self.0;
        loop {
            if let Some(group) = &*GROUPS.get(at).expect("an owner has had a group").load() {
                return use_it(group);
            }
            // Removed, so its node is dead and leads up. Bounded by the depth of the tree.
            assert!(LEDGER.node(at).forward() != NO_NODE, "{self:?} belongs to a tree that is gone");
            at = LEDGER.living(at);
        }
    }

    /// The nearest living group of a handle that nothing keeps alive (a shadow entry names one): `None`, or somebody
    /// else's, when the handle was freed since.
    pub fn try_resolve(self) -> Option<Arc<Group>> {
        let mut at = self.0;
        // Bounded: a stale handle may lead anywhere, but not for ever.
        for _ in 0..64 {
            if at == NO_NODE {
                break;
            }
            if let Some(group) = GROUPS.get(at).and_then(|slot| slot.load_full()) {
                return Some(group);
            }
            at = LEDGER.node(at).forward();
        }
        None
    }

    /// Adds to one of the numbers of the owner's group that say what states its pages are in, and to the totals above. The change
    /// may wait in the thread: by [`PENDING_BYTES_MAX`](crate::PENDING_BYTES_MAX) for each thread and owner at most.
    #[doc(alias = "mod_lruvec_page_state")]
    #[inline]
    pub fn count(self, item: StatItem, delta: i64) {
        let is_pending = item
            .pending_place()
            .is_some_and(|place| KEEPER.with(|keeper| LEDGER.add_pending(keeper, self.0, place, delta)));
        if !is_pending {
            self.count_at_once(item, delta);
        }
    }

    #[cold]
    #[inline(never)]
    fn count_at_once(self, item: StatItem, delta: i64) {
        match item.pending_place() {
            Some(place) => with_stock(|keeper| LEDGER.tell_change(keeper, self.0, place, delta, &tell)),
            None => self.with_group(|group| group.stat_add(item, delta)),
        }
    }

    pub(crate) fn set_group(self, group: Option<Arc<Group>>) {
        GROUPS.get_or_grow(self.0, ArcSwapOption::empty).store(group);
    }
}

impl fmt::Debug for OwnerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "owner {}", self.0)
    }
}

/// Counter nodes in use in this process: those of groups, and of removed groups that something is still charged to.
pub fn nr_owners_in_use() -> u32 {
    LEDGER.nr_in_use()
}

/// A charge did not fit.
#[derive(Debug, Clone, thiserror::Error)]
#[error("a charge of {wanted_bytes} bytes does not fit under the limit of {}", group.path().display())]
pub struct Refused {
    /// The lowest group whose limit is in the way; reclaim belongs there.
    pub group: Arc<Group>,
    /// What was asked for.
    pub wanted_bytes: u64,
}

/// Bytes counted to an owner and all above it, given back when dropped.
#[must_use = "a dropped charge is given back at once"]
#[derive(Debug)]
pub struct Charge {
    owner: OwnerId,
    bytes: u64,
}

impl Charge {
    /// Who it is counted to.
    #[inline]
    pub fn owner(&self) -> OwnerId {
        self.owner
    }

    /// How much.
    #[inline]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Cuts `bytes` off into a charge of their own.
    ///
    /// # Panics
    /// When it holds less.
    #[inline]
    pub fn split(&mut self, bytes: u64) -> Charge {
        assert!(bytes <= self.bytes, "split of {bytes} bytes from a charge of {}", self.bytes);
        self.bytes -= bytes;
        Charge { owner: self.owner, bytes }
    }

    /// Takes in another charge.
    ///
    /// # Panics
    /// When it is another owner's.
    #[inline]
    pub fn merge(&mut self, other: Charge) {
        assert_eq!(self.owner, other.owner, "charges of two owners cannot become one");
        let (_, bytes) = other.into_raw();
        self.bytes += bytes;
    }

    /// The parts, for whoever keeps many charges in a form of its own; [`uncharge_raw`] gives them back.
    #[inline]
    pub fn into_raw(self) -> (OwnerId, u64) {
        let parts = (self.owner, self.bytes);
        mem::forget(self);
        parts
    }

    /// The charge again. What was taken out with [`into_raw`](Self::into_raw) may go in once, whole or in parts.
    #[inline]
    pub fn from_raw(owner: OwnerId, bytes: u64) -> Charge {
        Charge { owner, bytes }
    }
}

impl Drop for Charge {
    #[inline]
    fn drop(&mut self) {
        uncharge_raw(self.owner, self.bytes);
    }
}

/// Gives back bytes that were taken out of charges with [`Charge::into_raw`].
///
/// # Panics
/// When less than `bytes` is charged; at once, or when the thread's stock is drained.
#[doc(alias = "mem_cgroup_uncharge")]
#[inline]
pub fn uncharge_raw(owner: OwnerId, bytes: u64) {
    KEEPER.with(|keeper| {
        if bytes != 0 && !LEDGER.put_stock(keeper, owner.0, bytes) {
            uncharge_without_stock(owner, bytes);
        }
    });
}

#[cold]
#[inline(never)]
fn uncharge_without_stock(owner: OwnerId, bytes: u64) {
    KEEPER.with(|keeper| LEDGER.uncharge(keeper, owner.0, bytes));
    settle_unsettled();
}

#[inline]
pub(crate) fn try_charge(owner: OwnerId, node: &CounterNode, bytes: u64) -> Result<Charge, Refused> {
    if KEEPER.with(|keeper| LEDGER.take_stock(keeper, owner.0, bytes)) {
        return Ok(Charge { owner, bytes });
    }
    try_charge_past_stock(owner, node, bytes)
}

#[cold]
#[inline(never)]
fn try_charge_past_stock(owner: OwnerId, node: &CounterNode, bytes: u64) -> Result<Charge, Refused> {
    let granted = with_stock(|keeper| LEDGER.try_charge_past_stock(keeper, owner.0, node, bytes));
    // Before the numbers become values with destructors, which the compiler would carry across this.
    if notices::take_reached_mark() {
        tell_of_usage(owner);
    }
    settle_unsettled();
    match granted {
        Ok(owner) => Ok(Charge { owner: OwnerId(owner), bytes }),
        Err(refusing) => Err(Refused { group: OwnerId(refusing).resolve(), wanted_bytes: bytes }),
    }
}

/// Rings the pressure bell of every level whose usage is at its mark, and settles the excess of those that count wrongly.
#[cold]
#[inline(never)]
fn tell_of_usage(owner: OwnerId) {
    let mut at = LEDGER.living(owner.0);
    while at != NO_NODE {
        let node = LEDGER.node(at);
        if node.is_over_mark()
            && let Some(group) = GROUPS.get(at).and_then(|slot| slot.load_full())
        {
            group.bells().pressure.ring();
        }
        if node.is_excess_stale() {
            settle(at);
        }
        at = node.parent();
    }
}

fn settle(index: u32) {
    if let Some(group) = GROUPS.get(index).and_then(|slot| slot.load_full()) {
        group.settle_excess_with(EXCESS_LAG_BYTES);
    }
}

/// Settles the excess of the groups that uncharges of this thread found wrong. With nothing locked that a thread waits for inside its stock.
#[inline]
pub(crate) fn settle_unsettled() {
    if notices::has_unsettled() {
        settle_all();
    }
}

#[cold]
#[inline(never)]
fn settle_all() {
    notices::take_unsettled().into_iter().for_each(settle);
}

pub(crate) fn charge_forced(owner: OwnerId, bytes: u64) -> Charge {
    let owner = with_stock(|keeper| LEDGER.charge_forced(keeper, owner.0, bytes));
    let charge = Charge { owner: OwnerId(owner), bytes };
    if notices::take_reached_mark() {
        tell_of_usage(charge.owner);
    }
    settle_unsettled();
    charge
}

/// Tells the nearest living group of what was pending for an owner.
fn tell(pending: Pending) {
    let mut at = pending.node;
    // Bounded by the depth of the tree. Of a tree that is gone nobody reads the numbers.
    while at != NO_NODE {
        if let Some(group) = GROUPS.get(at).map(|slot| slot.load())
            && let Some(group) = &*group
        {
            return tell_group(group, pending);
        }
        at = LEDGER.node(at).forward();
    }
}

pub(crate) fn tell_group(group: &Group, pending: Pending) {
    for (item, delta) in StatItem::PENDING.into_iter().zip(pending.deltas) {
        if delta != 0 {
            group.stat_add(item, delta);
        }
    }
}

/// Has everything told that threads have pending.
pub(crate) fn tell_pending() {
    KEEPER.with(|keeper| LEDGER.tell_pending(keeper, &tell));
}

pub(crate) fn drain_stocks(top: OwnerId, what: Drain) {
    KEEPER.with(|keeper| LEDGER.drain_subtree(keeper, top.0, what));
    settle_unsettled();
}

pub(crate) fn drain_own_stock(owner: OwnerId) {
    KEEPER.with(|keeper| LEDGER.drain_own(keeper, owner.0));
    settle_unsettled();
}

pub(crate) fn drain_down_to(top: OwnerId, goal: u64) -> bool {
    let is_down = KEEPER.with(|keeper| LEDGER.drain_down_to(keeper, top.0, goal));
    settle_unsettled();
    is_down
}
