//! A group: a name in the tree, a counter, statistics, events, and what the layers above keep in it.
//!
//! A group is alive from its creation to its removal; its memory lives as long as its last `Arc`. A removed group
//! stays usable and harmless: what is charged to it is charged to the nearest living group above, and what is counted
//! in it is counted there.

use std::any::Any;
use std::collections::{BTreeMap, HashMap};
use std::ffi::OsStr;
use std::fmt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use umemcg_base::sync::{Mutex, RwLock};
use umemcg_base::{Bell, Rank, RankedMutex};

use crate::charge::{self, Charge, LEDGER, OwnerId, Refused};
use crate::counter::{CounterNode, OverUsage};
use crate::excess::Excess;
use crate::ledger::NODE_STATE_BYTES;
use crate::parts::{Bells, PartSlot, Parts};
use crate::protection::Promises;
use crate::stats::{EventKind, StatItem, Stats, SweptCell, add_where_alive, sweep};
use crate::stock::Drain;

/// What an empty group costs, in bytes, all structures together; charged to its parent.
pub const GROUP_STATE_BYTES: u64 = 2048;

const _: () = assert!(size_of::<Group>() as u64 + NODE_STATE_BYTES <= GROUP_STATE_BYTES - 512);

/// The limit cannot be set: more is in use than it would allow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{usage_bytes} bytes are in use, more than the new limit")]
pub struct Busy {
    /// What was in use.
    pub usage_bytes: u64,
}

/// A group of the tree.
#[doc(alias = "mem_cgroup")]
pub struct Group {
    /// (C) Creation serial; never used again, and greater than that of every older group.
    id: u64,
    /// (C)
    owner: OwnerId,
    /// (C) The counter behind `owner`.
    pub(crate) node: &'static CounterNode,
    /// (C) until the group is dropped.
    pub(crate) parent: Option<Arc<Group>>,
    /// Changed under the parent's `children`.
    pub(crate) name: RwLock<Arc<OsStr>>,
    /// Locked parent before child.
    pub(crate) children: RankedMutex<Children>,
    /// Serialises changes of the limit and of what is promised, and the end of them when the group dies.
    pub(crate) limit_lock: Mutex<()>,
    /// Made with the first promise to the group or to one directly below it.
    pub(crate) promises: OnceLock<Arc<Promises>>,
    /// (A)
    stats: Stats,
    /// Highest sum of the items of [`StatItem::is_metadata`], groups below included. (A)
    metadata_peak: AtomicI64,
    /// Who is over a soft limit, here and below.
    excess: Excess<Weak<Group>>,
    bells: Bells,
    parts: Parts,
}

/// The groups directly below one.
#[derive(Debug, Default)]
pub(crate) struct Children {
    pub(crate) by_id: BTreeMap<u64, Arc<Group>>,
    pub(crate) by_name: HashMap<Arc<OsStr>, Arc<Group>>,
    /// Unlinked, but still handing over what they hold.
    pub(crate) nr_leaving: usize,
}

impl Group {
    /// A group whose state is already charged to the parent. It is not in the tree yet.
    pub(crate) fn new(name: Arc<OsStr>, parent: Option<Arc<Group>>, max: u64) -> Arc<Group> {
        static NEXT_ID: AtomicU64 = AtomicU64::new(1);
        let above = parent.as_ref().map_or(crate::counter::NO_NODE, |parent| parent.owner.into_raw());
        let owner = OwnerId::new(LEDGER.open(above, max));
        Arc::new(Group {
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            owner,
            node: owner.node(),
            parent,
            name: RwLock::new(name),
            children: RankedMutex::new(Rank::GroupChildren, Children::default()),
            limit_lock: Mutex::new(()),
            promises: OnceLock::new(),
            stats: Stats::default(),
            metadata_peak: AtomicI64::new(0),
            excess: Excess::default(),
            bells: Bells::default(),
            parts: Parts::default(),
        })
    }

    /// A number of its own, never used again; younger groups have greater ones.
    #[doc(alias = "css_serial_nr")]
    pub fn id(&self) -> u64 {
        self.id
    }

    /// The last part of the path; empty for the root.
    pub fn name(&self) -> Arc<OsStr> {
        Arc::clone(&self.name.read())
    }

    /// `/` for the root, `/a/b` below. Of a removed group, where it was.
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

    /// The group above; none for the root.
    #[doc(alias = "parent_mem_cgroup")]
    pub fn parent(&self) -> Option<&Arc<Group>> {
        self.parent.as_ref()
    }

    /// Whether it is the top of its tree.
    pub fn is_root(&self) -> bool {
        self.parent.is_none()
    }

    /// Whether it has been removed.
    #[inline]
    pub fn is_dead(&self) -> bool {
        self.node.is_dead()
    }

    /// What charges on this group name as their owner.
    #[inline]
    pub fn owner(&self) -> OwnerId {
        self.owner
    }

    /// The groups directly below, oldest first.
    pub fn children(&self) -> Vec<Arc<Group>> {
        self.children.lock().by_id.values().cloned().collect()
    }

    /// The group of that name directly below.
    pub fn child(&self, name: &OsStr) -> Option<Arc<Group>> {
        self.children.lock().by_name.get(name).cloned()
    }

    /// How many groups are directly below.
    pub fn nr_children(&self) -> usize {
        self.children.lock().by_id.len()
    }

    /// Whether it is `ancestor` or below it.
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

    /// Itself and every group above, lowest first.
    pub fn ancestors(&self) -> impl Iterator<Item = &Group> {
        std::iter::successors(Some(self), |at| at.parent.as_deref())
    }

    /// Charges `bytes` here and at every level above, from this thread's stock if that has enough. Never reclaims and
    /// never sleeps; before it refuses, it drains stocks of other threads (some microseconds) if that makes room, so
    /// a refusal means that the bytes are really held.
    ///
    /// # Errors
    /// [`Refused`] names the lowest group whose limit is in the way.
    #[doc(alias = "mem_cgroup_try_charge")]
    #[doc(alias = "try_charge_memcg")]
    #[inline]
    pub fn try_charge(&self, bytes: u64) -> Result<Charge, Refused> {
        charge::try_charge(self.owner, self.node, bytes)
    }

    /// Charges `bytes` whatever the limits say, for what must not fail.
    pub fn charge_forced(&self, bytes: u64) -> Charge {
        charge::charge_forced(self.owner, bytes)
    }

    /// Bytes charged here and below, stocks of threads included.
    #[doc(alias = "page_counter_read")]
    pub fn usage_bytes(&self) -> u64 {
        self.node.usage()
    }

    /// Highest usage since creation or the last reset.
    pub fn peak_bytes(&self) -> u64 {
        self.node.peak()
    }

    /// Starts the peak again from the usage of now.
    pub fn reset_peak(&self) {
        self.node.reset_peak();
    }

    /// The limit; [`UNLIMITED`](crate::UNLIMITED) for none.
    #[inline]
    pub fn max_bytes(&self) -> u64 {
        self.node.max()
    }

    /// Has the pressure bell rung by charges that bring the usage to `usage_bytes` or above; at once if it is there.
    /// [`UNLIMITED`](crate::UNLIMITED) for never. Charges from a stock count as made when the stock was filled.
    pub fn set_pressure_mark(&self, usage_bytes: u64) {
        let _changing = self.limit_lock.lock();
        if self.is_dead() {
            return;
        }
        self.node.set_mark(usage_bytes);
        if self.node.is_over_mark() {
            self.bells.pressure.ring();
        }
    }

    pub(crate) fn excess(&self) -> &Excess<Weak<Group>> {
        &self.excess
    }

    pub(crate) fn counter(&self) -> &'static CounterNode {
        self.node
    }

    /// Whether the soft limit was set: not on a group that has been removed.
    pub(crate) fn put_soft_limit(&self, bytes: u64) -> bool {
        let _changing = self.limit_lock.lock();
        let is_alive = !self.is_dead();
        if is_alive {
            self.node.set_soft_limit(bytes);
        }
        is_alive
    }

    /// Charges that were refused for this group's limit.
    pub fn failcnt(&self) -> u64 {
        self.node.failcnt()
    }

    /// Starts counting refused charges from zero.
    pub fn reset_failcnt(&self) {
        self.node.reset_failcnt();
    }

    /// How much more this group's own limit allows; 0 when over it.
    #[doc(alias = "mem_cgroup_margin")]
    pub fn margin_bytes(&self) -> u64 {
        self.node.max().saturating_sub(self.node.usage())
    }

    /// Sets the limit unless more is in use (the v1 rule): usage is never left above it.
    ///
    /// # Errors
    /// [`Busy`] when it is; the old limit stays.
    #[doc(alias = "mem_cgroup_resize_max")]
    pub fn try_set_max(&self, max_bytes: u64) -> Result<(), Busy> {
        let _changing = self.limit_lock.lock();
        let busy = |_| Busy { usage_bytes: self.node.usage() };
        if self.is_dead() {
            return Ok(());
        }
        match self.node.try_set_max(max_bytes) {
            Err(OverUsage) if charge::drain_down_to(self.owner, max_bytes) => {
                self.node.try_set_max(max_bytes).map_err(busy)
            }
            result => result.map_err(busy),
        }
    }

    /// Sets the limit at once (the v2 rule); usage may be above it until reclaim has done its work. Stocks do not
    /// outlast a limit below usage, so charges are refused from then on.
    pub fn set_max(&self, max_bytes: u64) {
        let _changing = self.limit_lock.lock();
        if !self.is_dead() {
            self.node.set_max(max_bytes);
            if self.node.usage() > max_bytes {
                charge::drain_stocks(self.owner, Drain::Slots);
            }
        }
    }

    /// Gives back what the threads hold in stock for this group and the groups below. Takes some microseconds when
    /// other threads hold any.
    #[doc(alias = "drain_all_stock")]
    pub fn drain_stocks(&self) {
        charge::drain_stocks(self.owner, Drain::Bytes);
    }

    /// Gives back what the calling thread has in stock for this group and the groups above: after what it was charged beyond
    /// a limit has been given back, which would else be in stock, and let others in beyond the limit for good.
    pub fn drain_own_stock(&self) {
        charge::drain_own_stock(self.owner);
    }

    /// From here on charges and lookups go to the parent.
    pub(crate) fn mark_dead(&self) {
        let _changing = self.limit_lock.lock();
        self.node.mark_dead();
        self.tell_parent();
    }

    /// Ends lookups of a dead group.
    pub(crate) fn unpublish(&self) {
        self.owner.set_group(None);
    }

    /// Ends the part of a dead group in the tree: its owner id means the parent, its numbers move there.
    pub(crate) fn retire(self: &Arc<Self>) {
        self.withdraw_excess();
        self.unpublish();
        // Told to this group, whose numbers move afterwards.
        LEDGER.expel::<true>(self.owner.into_raw(), &|pending| charge::tell_group(self, pending));
        charge::settle_unsettled();
        for item in StatItem::ALL {
            sweep(self.homes(*item));
        }
    }

    /// Adds to a number of this group, and to the totals of the groups above.
    #[doc(alias = "mod_memcg_state")]
    pub fn stat_add(&self, item: StatItem, delta: i64) {
        add_where_alive::<true>(self.homes(item), delta);
        for group in self.ancestors() {
            group.stats.total[item.index()].fetch_add(delta, Ordering::Relaxed);
            if delta > 0 && item.is_metadata() {
                let total = group.metadata_total();
                // Seldom a new peak: looking is cheaper than writing what is there already.
                if total > group.metadata_peak.load(Ordering::Relaxed) {
                    group.metadata_peak.fetch_max(total, Ordering::Relaxed);
                }
            }
        }
    }

    fn metadata_total(&self) -> i64 {
        StatItem::ALL.iter().filter(|item| item.is_metadata()).map(|&item| self.stat_total(item)).sum()
    }

    /// What the statistics say is charged to this group and those below it: the usage, except for what threads hold in
    /// stock and what is on its way between a charge and its statistic.
    pub fn named_bytes(&self) -> u64 {
        StatItem::CHARGED.iter().map(|&item| self.stat_total(item)).sum::<i64>().max(0) as u64
    }

    /// Bytes that are no page data, of this group and all below it: objects and bookkeeping.
    #[doc(alias = "kmem_usage")]
    pub fn metadata_bytes(&self) -> u64 {
        self.metadata_total().max(0) as u64
    }

    /// Highest [`metadata_bytes`](Self::metadata_bytes) since creation or the last reset.
    pub fn metadata_peak_bytes(&self) -> u64 {
        self.metadata_peak.load(Ordering::Relaxed).max(0) as u64
    }

    /// Starts that peak again from the bytes of now.
    pub fn reset_metadata_peak(&self) {
        self.metadata_peak.store(self.metadata_total(), Ordering::Relaxed);
    }

    /// A number's place here and in every group above.
    fn homes(&self, item: StatItem) -> impl Iterator<Item = (&CounterNode, &SweptCell)> {
        self.ancestors().map(move |group| (group.node, &group.stats.local[item.index()]))
    }

    /// A number of this group alone. May be negative for a moment while a group below is being removed. Exact when nothing changes;
    /// the states of dirty data cost some microseconds when other threads have changes pending.
    pub fn stat_local(&self, item: StatItem) -> i64 {
        if item.pending_place().is_some() {
            charge::tell_pending();
        }
        self.stats.local[item.index()].get()
    }

    /// A number of this group and all below it, removed ones included. As exact, and as dear, as [`stat_local`](Self::stat_local).
    pub fn stat_total(&self, item: StatItem) -> i64 {
        if item.pending_place().is_some() {
            charge::tell_pending();
        }
        self.stat_total_told(item)
    }

    /// The same without what threads have pending: one load.
    pub fn stat_total_told(&self, item: StatItem) -> i64 {
        self.stats.total[item.index()].load(Ordering::Relaxed)
    }

    /// Bytes of this group and all below it that are dirty, under write-back or unstable, for who compares them with a threshold of
    /// `near` or more: when they may be near it, with what seems to be pending, else without.
    pub fn unclean_bytes_about(&self, near: u64) -> u64 {
        let told: i64 = StatItem::PENDING.iter().map(|&item| self.stat_total_told(item)).sum();
        let slack = StatItem::PENDING.len() as u64 * LEDGER.pending_bytes_max();
        let pending = if told.saturating_add_unsigned(slack) >= near.min(i64::MAX as u64) as i64 {
            LEDGER.glimpse_pending(self.owner.into_raw()).iter().sum()
        } else {
            0
        };
        (told + pending).max(0) as u64
    }

    /// Counts an event here and above, and rings the bells of those who listen.
    #[doc(alias = "memcg_memory_event")]
    pub fn event(&self, kind: EventKind) {
        self.stats.events_local[kind.index()].fetch_add(1, Ordering::Relaxed);
        for group in self.ancestors() {
            group.stats.events.count::<true>(kind);
        }
    }

    /// Hangs the bell that events here and below ring; the first one stays. Who looks at the counts afterwards misses no event.
    pub fn listen_for_events(&self, bell: Arc<Bell>) {
        self.stats.events.hang::<true>(bell);
    }

    /// Rings that bell although nothing was counted: whoever waits for news should look.
    pub fn announce(&self) {
        self.stats.events.ring();
    }

    /// Events of this group and all below it.
    pub fn event_count(&self, kind: EventKind) -> u64 {
        self.stats.events.nr(kind)
    }

    /// Events of this group alone.
    pub fn event_count_local(&self, kind: EventKind) -> u64 {
        self.stats.events_local[kind.index()].load(Ordering::Relaxed)
    }

    /// A layer's state in this group, made when first asked for. A slot always holds the same type.
    pub fn part<T: Any + Send + Sync>(&self, slot: PartSlot, make: impl FnOnce() -> T) -> &T {
        self.parts.get_or_make(slot, make)
    }

    /// A layer's state in this group, if it was ever asked for.
    pub fn part_if_present<T: Any + Send + Sync>(&self, slot: PartSlot) -> Option<&T> {
        self.parts.get(slot)
    }

    /// The bells of this group.
    pub fn bells(&self) -> &Bells {
        &self.bells
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if let Some(parent) = OwnerId::from_raw(self.node.parent()) {
            // The node's own share stays charged until the node is free.
            charge::note_state_freed(parent, GROUP_STATE_BYTES - NODE_STATE_BYTES);
            LEDGER.give_back_exactly(parent.into_raw(), GROUP_STATE_BYTES - NODE_STATE_BYTES);
        }
        LEDGER.release_live(self.owner.into_raw());
        charge::settle_unsettled();
        // A chain of removed groups goes one by one, not by recursion: trees may be deep.
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
