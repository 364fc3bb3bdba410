//! A group: a name in the tree, a counter, statistics, events, and state of the layers above.
//!
//! A group is alive from its creation to its removal; its memory lives as long as its last `Arc`. A
//! removed group stays usable and harmless: its new charges and counts go to the nearest living
//! group above. Charged memory keeps only its [`OwnerId`].

mod charge;
mod holding;
mod idle_stock;
mod limit;
mod protection;
mod soft_limit;
mod statistics;
mod user_data;
mod walk;

use std::any::Any;
use std::collections::{BTreeMap, HashMap};
use std::ffi::OsStr;
use std::fmt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use arc_swap::ArcSwapOption;
use umemcg_base::{LeafRwLock, Rank, RankedMutex, Table, WakeSignal, const_static};

pub use charge::{Charge, Refused, uncharge_raw};
pub use holding::Holding;
pub use idle_stock::IdleStock;
pub use limit::Busy;
pub(crate) use statistics::apply_to_group;
pub use statistics::{apply_pending, pending_bytes_max};
pub use user_data::UserData;

use crate::claims::ProtectionSettings;
use crate::counter::{CounterNode, NO_NODE};
use crate::excess::{EXCESS_LAG_BYTES, Excess};
use crate::extensions::{ExtensionSlot, Extensions, WakeSignals};
use crate::ledger::{Ledger, NODE_STATE_BYTES};
use crate::mark_check;
use crate::stats::{EventKind, StatItem, Stats, SweptCell, add_where_alive};

/// Bytes of an empty group, all structures together. Charged to its parent.
pub const GROUP_STATE_BYTES: u64 = 2048;

const _: () = assert!(size_of::<Group>() as u64 + NODE_STATE_BYTES <= GROUP_STATE_BYTES - 512);

/// A group of the tree.
#[doc(alias = "mem_cgroup")]
pub struct Group {
    /// (C) Creation serial; never used again, and greater than the serials of all older groups.
    id: u64,
    /// (C)
    owner: OwnerId,
    /// (C) The counter behind `owner`.
    node: &'static CounterNode,
    /// (C) until the group is dropped.
    parent: Option<Arc<Group>>,
    /// Changed under the parent's `children`.
    pub(crate) name: LeafRwLock<Arc<OsStr>>,
    /// Locked parent before child.
    pub(crate) children: RankedMutex<Children>,
    /// Serializes changes of limits and protection with each other and with the group's removal.
    limit_lock: RankedMutex<()>,
    /// Created when protection is first set for the group or one of its children.
    protection_settings: OnceLock<Arc<ProtectionSettings>>,
    /// (A)
    stats: Stats,
    /// Highest sum of the items of [`StatItem::is_metadata`], groups below included. (A)
    metadata_peak: AtomicI64,
    /// The groups over their soft limit, here and below.
    excess: Excess<Weak<Group>>,
    wake_signals: WakeSignals,
    extensions: Extensions,
}

/// The children of a group.
#[derive(Debug, Default)]
pub(crate) struct Children {
    pub(crate) by_id: BTreeMap<u64, Arc<Group>>,
    pub(crate) by_name: HashMap<Arc<OsStr>, Arc<Group>>,
    /// Number of unlinked children still handing over their lists.
    pub(crate) nr_leaving: usize,
}

impl Group {
    /// Creates a group whose state is already charged to the parent. It is not in the tree yet.
    pub(crate) fn new(name: Arc<OsStr>, parent: Option<Arc<Group>>, max: u64) -> Arc<Group> {
        static NEXT_ID: AtomicU64 = AtomicU64::new(1);
        let above = parent.as_ref().map_or(NO_NODE, |parent| parent.owner.into_raw());
        let owner = OwnerId::new(LEDGER.open(above, max));
        Arc::new(Group {
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            owner,
            node: owner.node(),
            parent,
            name: LeafRwLock::new(name),
            children: RankedMutex::new(Rank::GroupChildren, Children::default()),
            limit_lock: RankedMutex::new(Rank::GroupLimit, ()),
            protection_settings: OnceLock::new(),
            stats: Stats::default(),
            metadata_peak: AtomicI64::new(0),
            excess: Excess::default(),
            wake_signals: WakeSignals::default(),
            extensions: Extensions::default(),
        })
    }

    /// Returns the group's serial number; it is never reused. Younger groups have greater numbers.
    #[doc(alias = "css_serial_nr")]
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Returns the last component of the path; empty for the root.
    pub fn name(&self) -> Arc<OsStr> {
        Arc::clone(&self.name.read())
    }

    /// Returns the path: `/` for the root, `/a/b` below; for a removed group, its former path.
    #[doc(alias = "cgroup_path")]
    pub fn path(&self) -> PathBuf {
        let mut names = Vec::new();
        let mut at = self;
        while let Some(parent) = &at.parent {
            names.push(at.name());
            at = parent;
        }
        let mut path = PathBuf::from("/");
        path.extend(names.iter().rev().map(|name| &**name));
        path
    }

    /// Returns the group above; none for the root.
    #[doc(alias = "parent_mem_cgroup")]
    pub fn parent(&self) -> Option<&Arc<Group>> {
        self.parent.as_ref()
    }

    /// Returns whether it is the top of its tree.
    pub fn is_root(&self) -> bool {
        self.parent.is_none()
    }

    /// Returns whether it has been removed.
    #[inline]
    pub fn is_dead(&self) -> bool {
        self.node.is_dead()
    }

    /// Returns the owner id of charges on this group.
    #[inline]
    pub fn owner(&self) -> OwnerId {
        self.owner
    }

    /// Returns the groups directly below, oldest first.
    pub fn children(&self) -> Vec<Arc<Group>> {
        self.children.lock().by_id.values().cloned().collect()
    }

    /// Returns the child of this name.
    pub fn child(&self, name: &OsStr) -> Option<Arc<Group>> {
        self.children.lock().by_name.get(name).cloned()
    }

    /// Returns the number of children.
    pub fn nr_children(&self) -> usize {
        self.children.lock().by_id.len()
    }

    /// Returns whether a child is being removed. It is no child any more, but until its removal is
    /// complete this group cannot be removed.
    #[doc(hidden)]
    pub fn has_leaving_children(&self) -> bool {
        self.children.lock().nr_leaving > 0
    }

    /// Returns whether it is `ancestor` or below it.
    #[doc(alias = "mem_cgroup_is_descendant")]
    pub fn is_descendant_of(&self, ancestor: &Group) -> bool {
        let mut at = self;
        loop {
            if std::ptr::eq(at, ancestor) {
                return true;
            }
            match &at.parent {
                Some(parent) => at = parent,
                None => return false,
            }
        }
    }

    /// Returns the group and every group above, lowest first.
    pub fn ancestors(&self) -> impl Iterator<Item = &Group> {
        std::iter::successors(Some(self), |at| at.parent.as_deref())
    }

    /// Returns the bytes charged here and below, stocks of threads included.
    #[doc(alias = "page_counter_read")]
    pub fn usage_bytes(&self) -> u64 {
        self.node.usage()
    }

    /// Returns whether the group and every group above it use no more than their limits.
    pub fn is_within_limits(&self) -> bool {
        self.ancestors().all(|level| level.usage_bytes() <= level.max_bytes())
    }

    /// Returns the highest usage since creation or the last reset.
    pub fn peak_bytes(&self) -> u64 {
        self.node.peak()
    }

    /// Resets the peak to the present usage.
    pub fn reset_peak(&self) {
        self.node.reset_peak();
    }

    /// Returns the limit; [`UNLIMITED`](crate::UNLIMITED) for none.
    #[inline]
    pub fn max_bytes(&self) -> u64 {
        self.node.max()
    }

    /// Sets the usage, in bytes, at which charges raise the pressure signal. Raises it immediately
    /// if the usage is already there. [`UNLIMITED`](crate::UNLIMITED) means never. Charges from a
    /// stock count as made when the stock was filled.
    #[doc(hidden)]
    pub fn set_pressure_mark(&self, usage_bytes: u64) {
        let _changing = self.limit_lock.lock();
        if self.is_dead() {
            return;
        }
        self.node.set_mark(usage_bytes);
        if self.node.is_over_mark() {
            self.wake_signals.pressure.raise();
        }
    }

    /// Returns the number of charges refused by this group's limit.
    pub fn failcnt(&self) -> u64 {
        self.node.failcnt()
    }

    /// Starts counting refused charges from zero.
    pub fn reset_failcnt(&self) {
        self.node.reset_failcnt();
    }

    /// Returns the bytes still allowed by this group's own limit; 0 if usage is over it.
    #[doc(alias = "mem_cgroup_margin")]
    pub fn margin_bytes(&self) -> u64 {
        self.node.max().saturating_sub(self.node.usage())
    }

    /// Marks the group as removed: from here on charges and lookups go to the parent.
    pub(crate) fn mark_dead(&self) {
        let _changing = self.limit_lock.lock();
        self.node.mark_dead();
        self.update_claimants();
    }

    /// Removes a dead group from look-ups.
    pub(crate) fn unpublish(&self) {
        self.owner.set_group(None);
    }

    /// Adds to a number of this group, and to the totals of the groups above.
    #[doc(alias = "mod_memcg_state")]
    #[doc(hidden)]
    pub fn stat_add(&self, item: StatItem, delta: i64) {
        add_where_alive::<true>(self.cells_upward(item), delta);
        for group in self.ancestors() {
            group.stats.total[item.index()].fetch_add(delta, Ordering::Relaxed);
            if delta > 0 && item.is_metadata() {
                let total = group.metadata_total();
                // A new peak is rare, and a load is cheaper than a store of the same value.
                if total > group.metadata_peak.load(Ordering::Relaxed) {
                    group.metadata_peak.fetch_max(total, Ordering::Relaxed);
                }
            }
        }
    }

    /// Returns the cells of a number, here and in every group above.
    pub(crate) fn cells_upward(&self, item: StatItem) -> impl Iterator<Item = (&CounterNode, &SweptCell)> {
        self.ancestors().map(move |group| (group.node, &group.stats.local[item.index()]))
    }

    /// Counts an event here and above, and raises the wake signals attached by listeners.
    #[doc(alias = "memcg_memory_event")]
    #[doc(hidden)]
    pub fn event(&self, kind: EventKind) {
        self.stats.events_local[kind.index()].fetch_add(1, Ordering::Relaxed);
        for group in self.ancestors() {
            group.stats.events.count::<true>(kind);
        }
    }

    /// Attaches a wake signal to be raised by events here and below, unless there is one already. A
    /// thread reading the counts afterward misses no event.
    #[doc(hidden)]
    pub fn listen_for_events(&self, wake_signal: Arc<WakeSignal>) {
        self.stats.events.attach::<true>(wake_signal);
    }

    /// Raises the wake signal of events without counting an event, so waiting threads check the
    /// group.
    #[doc(hidden)]
    pub fn announce(&self) {
        self.stats.events.raise();
    }

    /// Returns the number of events of this group and its descendants.
    pub fn event_count(&self, kind: EventKind) -> u64 {
        self.stats.events.nr(kind)
    }

    /// Returns the number of events of this group alone.
    pub fn event_count_local(&self, kind: EventKind) -> u64 {
        self.stats.events_local[kind.index()].load(Ordering::Relaxed)
    }

    /// Returns a layer's state in this group; `make` creates it on first use. A slot always holds
    /// the same type.
    #[doc(hidden)]
    pub fn extension<T: Any + Send + Sync>(&self, slot: ExtensionSlot, make: impl FnOnce() -> T) -> &T {
        self.extensions.get_or_make(slot, make)
    }

    /// Returns a layer's state in this group, if it has been created.
    #[doc(hidden)]
    pub fn extension_if_present<T: Any + Send + Sync>(&self, slot: ExtensionSlot) -> Option<&T> {
        self.extensions.get(slot)
    }

    /// Returns the wake signals of this group.
    #[doc(hidden)]
    pub fn wake_signals(&self) -> &WakeSignals {
        &self.wake_signals
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if let Some(parent) = OwnerId::from_raw(self.node.parent()) {
            // The node's own share stays charged until the node is free.
            note_state_freed(parent, GROUP_STATE_BYTES - NODE_STATE_BYTES);
            LEDGER.give_back_exactly(parent.into_raw(), GROUP_STATE_BYTES - NODE_STATE_BYTES);
        }
        LEDGER.release_live(self.owner.into_raw());
        update_stale_excess();
        // A chain of removed groups is dropped in a loop, not by recursion: trees may be deep.
        let mut above = self.parent.take();
        while let Some(mut group) = above.and_then(Arc::into_inner) {
            above = group.parent.take();
        }
    }
}

impl fmt::Debug for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Group")
            .field("id", &self.id)
            .field("path", &self.path())
            .field("usage_bytes", &self.usage_bytes())
            .field("dead", &self.is_dead())
            .finish_non_exhaustive()
    }
}

const_static! {
    /// The counters of this process.
    pub(crate) static LEDGER: Ledger = Ledger::with_hook(note_node_freed);
}

/// Frees the last state of a removed group, when nothing is charged to it any more.
fn note_node_freed(above: u32) {
    note_state_freed(OwnerId::new(above), NODE_STATE_BYTES);
}

/// Updates the statistic for state of a removed group below `above`; the state is about to be
/// uncharged.
fn note_state_freed(above: OwnerId, bytes: u64) {
    // If no group is found, the tree is gone.
    let Some(group) = above.try_resolve() else { return };
    group.stat_add(StatItem::GroupState, -(bytes as i64));
}

/// The group of each counter node, until it has handed everything over to its parent.
static GROUPS: Table<ArcSwapOption<Group>> = Table::new();

/// Identifies the charged group or, once the group has been removed, the nearest living group
/// above. Fits in a frame record. Valid while its holder also holds a charge on it, or the group
/// itself.
#[doc(alias = "mem_cgroup_id")]
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OwnerId(u32);

impl OwnerId {
    pub(crate) fn new(index: u32) -> Self {
        debug_assert_ne!(index, NO_NODE);
        Self(index)
    }

    /// Returns the id as a number, for packed structures; never 0.
    #[inline]
    #[doc(hidden)]
    pub fn into_raw(self) -> u32 {
        self.0
    }

    /// Returns the id of a number from [`into_raw`](Self::into_raw); `None` for 0.
    #[inline]
    #[doc(hidden)]
    pub fn from_raw(raw: u32) -> Option<Self> {
        (raw != NO_NODE).then_some(Self(raw))
    }

    fn node(self) -> &'static CounterNode {
        LEDGER.node(self.0)
    }

    /// Returns the current holder of memory charged to this owner: the group itself, or the nearest
    /// group above that has not handed over. A removed group keeps its memory, and the memory of
    /// groups removed below it, until it hands over to its parent.
    ///
    /// # Panics
    /// When the whole tree is gone.
    #[doc(alias = "mem_cgroup_from_id")]
    #[doc(hidden)]
    pub fn resolve(self) -> Arc<Group> {
        self.with_group(Arc::clone)
    }

    /// Calls `use_it` with the current holder, without the two atomic operations of
    /// [`resolve`](Self::resolve).
    ///
    /// # Panics
    /// When the whole tree is gone.
    #[doc(hidden)]
    pub fn with_group<R>(self, use_it: impl FnOnce(&Arc<Group>) -> R) -> R {
        let mut at = self.0;
        loop {
            if let Some(group) = &*GROUPS.get(at).expect("an owner has had a group").load() {
                return use_it(group);
            }
            // One level at a time: the next group may be dead and still hold everything. Bounded by
            // the depth of the tree.
            at = LEDGER.node(at).parent();
            assert!(at != NO_NODE, "{self:?} belongs to a tree that is gone");
        }
    }

    /// Like [`resolve`](Self::resolve), for a handle kept alive by nothing, such as a shadow
    /// entry's: `None` or another group if the handle has been freed since.
    #[doc(hidden)]
    pub fn try_resolve(self) -> Option<Arc<Group>> {
        let mut at = self.0;
        // Bounded by the levels above, because a stale handle may lead anywhere.
        for _ in 0..=self.node().depth() {
            if at == NO_NODE {
                break;
            }
            if let Some(group) = GROUPS.get(at).and_then(|slot| slot.load_full()) {
                return Some(group);
            }
            at = LEDGER.node(at).parent();
        }
        None
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

/// Returns the number of counter nodes in use in this process: nodes of groups, and of removed
/// groups with remaining charges.
pub fn nr_owners_in_use() -> u32 {
    LEDGER.nr_in_use()
}

fn update_excess(index: u32) {
    if let Some(group) = GROUPS.get(index).and_then(|slot| slot.load_full()) {
        group.update_excess_with(EXCESS_LAG_BYTES);
    }
}

/// Corrects excess flags found stale by uncharges of this thread. The caller must hold no lock
/// awaited by threads inside their stock.
#[inline]
pub(crate) fn update_stale_excess() {
    if mark_check::has_stale_excess() {
        update_all_stale_excess();
    }
}

#[cold]
#[inline(never)]
fn update_all_stale_excess() {
    mark_check::take_stale_excess().into_iter().for_each(update_excess);
}
