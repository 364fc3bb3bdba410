//! A cache's state for one group: statistics, ghosts, and the bytes of its objects.
//!
//! Created with the group's first object and charged to the group. When the group is removed, the
//! parent's state inherits this one: objects still referring to it continue to count here, and the
//! parent's statistics include them. Once no object refers to it any more, its statistics are added
//! to the parent's and it is dropped.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

use hashbrown::HashMap;
use umemcg_base::{LeafMutex, Rank, RankedMutex, RankedRwLock};
use umemcg_group::{Charge, Group, OwnerId, StatItem};
use umemcg_reclaim::{AccountedCharge, ListHandle, ListLru, ListSlot};

use super::ghosts::{BUCKET_BYTES, Ghosts};
use super::queue::Queue;
use super::removal_cause::{NR_REMOVAL_CAUSES, RemovalCause};
use super::stats::ObjectStats;
use super::striped_counter::StripedCounter;

/// A group counts as alone if its objects are at least this part of its usage.
const ALONE: (u64, u64) = (16, 15);

/// Returns the bytes of a payer, with its place in the map.
fn payer_bytes() -> u64 {
    (size_of::<Payer>() + 64) as u64 + StripedCounter::heap_bytes()
}

/// One group in one cache.
#[derive(Debug)]
pub(super) struct Payer {
    counts: StripedCounter,
    /// The owner of this state, charged for its objects. (C)
    owner: OwnerId,
    /// The lists of its objects, by queue, to save a lookup. Gone with the group.
    lists: [OnceLock<ListHandle>; 2],
    /// Its group holds hardly anything else. Updated now and then. (A)
    is_alone: AtomicBool,
    changing: Changing,
}

/// Rarely written fields.
#[derive(Debug)]
#[repr(align(64))]
struct Changing {
    declined: AtomicU64,
    /// Bytes of removed objects still held by readers.
    pinned_bytes: AtomicU64,
    /// Objects evicted by background reclaim.
    evicted_by_workers: AtomicU64,
    ghost_hits: AtomicU64,
    /// Evictions stand in the counts.
    departed: [AtomicU64; NR_REMOVAL_CAUSES],
    /// A leaf lock.
    ghosts: LeafMutex<ChargedGhosts>,
    /// State inherited from removed groups. Parent before child.
    inherited: RankedMutex<Inherited>,
    _charge: AccountedCharge,
}

#[derive(Debug, Default)]
struct ChargedGhosts {
    ghosts: Ghosts,
    charge: Option<AccountedCharge>,
}

#[derive(Debug, Default)]
struct Inherited {
    /// States possibly still referred to by objects.
    states: Vec<Arc<Payer>>,
    /// Statistics of states no longer referred to by any object.
    folded: ObjectStats,
}

impl Payer {
    fn new(owner: OwnerId, charge: AccountedCharge) -> Self {
        Self {
            counts: StripedCounter::new(),
            owner,
            lists: Default::default(),
            is_alone: AtomicBool::new(false),
            changing: Changing {
                declined: AtomicU64::new(0),
                pinned_bytes: AtomicU64::new(0),
                evicted_by_workers: AtomicU64::new(0),
                ghost_hits: AtomicU64::new(0),
                departed: Default::default(),
                ghosts: LeafMutex::default(),
                inherited: RankedMutex::new(Rank::ObjectPayers, Inherited::default()),
                _charge: charge,
            },
        }
    }

    /// Returns the owner charged for its objects.
    #[inline]
    pub(super) fn owner(&self) -> OwnerId {
        self.owner
    }

    #[inline]
    pub(super) fn note_hit(&self) {
        self.counts.add(|stripe| &stripe.hits, 1);
    }

    pub(super) fn note_miss(&self) {
        self.counts.add(|stripe| &stripe.misses, 1);
    }

    pub(super) fn note_declined(&self) {
        self.changing.declined.fetch_add(1, Relaxed);
    }

    pub(super) fn note_evicted_by_workers(&self, nr: u64) {
        self.changing.evicted_by_workers.fetch_add(nr, Relaxed);
    }

    pub(super) fn note_pinned(&self, bytes: u64) {
        self.changing.pinned_bytes.fetch_add(bytes, Relaxed);
    }

    pub(super) fn note_unpinned(&self, bytes: u64) {
        self.changing.pinned_bytes.fetch_sub(bytes, Relaxed);
    }

    /// Returns the number of inserts counted by this thread.
    pub(super) fn nr_inserted_here(&self) -> u64 {
        self.counts.add(|stripe| &stripe.inserted, 0)
    }

    /// Returns the number counted by this thread before.
    pub(super) fn note_inserted(&self, bytes: u64) -> u64 {
        self.counts.add(|stripe| &stripe.bytes, bytes);
        self.counts.add(|stripe| &stripe.inserted, 1)
    }

    pub(super) fn note_removed(&self, why: RemovalCause, nr: u64, bytes: u64) {
        match why {
            RemovalCause::Evicted => _ = self.counts.add(|stripe| &stripe.evicted, nr),
            _ => _ = self.changing.departed[why as usize].fetch_add(nr, Relaxed),
        }
        self.counts.add(|stripe| &stripe.bytes, bytes.wrapping_neg());
    }

    /// Checks whether its objects are nearly all of the group's usage; see
    /// [`is_alone`](Self::is_alone).
    pub(super) fn look_around(&self, group: &Group) {
        let is_alone = self.own_bytes() / ALONE.1 * ALONE.0 >= group.usage_bytes();
        if self.is_alone.load(Relaxed) != is_alone {
            self.is_alone.store(is_alone, Relaxed);
        }
    }

    /// Returns whether, at the last check, the group held hardly anything except its objects.
    /// Reclaim would then take from these.
    #[inline]
    pub(super) fn is_alone(&self) -> bool {
        self.is_alone.load(Relaxed)
    }

    /// Returns the list of a queue, if it is known.
    #[inline]
    pub(super) fn list_handle(&self, queue: Queue) -> Option<&ListHandle> {
        self.lists[queue as usize].get()
    }

    /// Puts the place of one of its objects on the list of a queue. The object's shard is locked.
    pub(super) fn enlist(&self, lists: &[ListLru; 2], queue: Queue, slot: ListSlot) {
        let list = &lists[queue as usize];
        if self.list_handle(queue).is_some_and(|known| list.add_to(known, self.owner, slot)) {
            return;
        }
        if let Some(known) = list.add_with_handle(self.owner, slot) {
            // Another thread may have been first; it is the same list as long as the group lives.
            _ = self.lists[queue as usize].set(known);
        }
    }

    /// Returns whether an inserted object was evicted lately. Adds a ghost of the object evicted in
    /// its place.
    pub(super) fn exchange_ghosts(&self, comes: u64, goes: Option<u64>) -> bool {
        let was_here = {
            let ghosts = &mut self.changing.ghosts.lock().ghosts;
            goes.into_iter().for_each(|hash| ghosts.add(hash));
            ghosts.take(comes)
        };
        if was_here {
            self.changing.ghost_hits.fetch_add(1, Relaxed);
        }
        was_here
    }

    /// Adds ghosts of evicted objects.
    pub(super) fn add_ghosts(&self, hashes: impl Iterator<Item = u64>) {
        let mut charged = self.changing.ghosts.lock();
        hashes.for_each(|hash| charged.ghosts.add(hash));
    }

    /// Makes room for ghosts, by the number of objects, if it can be charged without reclaim. No
    /// lock may be held.
    pub(super) fn fit_ghosts(&self, group: &Group) {
        let inserted = self.counts.sum(|stripe| &stripe.inserted);
        let wanted = Ghosts::buckets_for(inserted.saturating_sub(self.nr_departed()));
        let there = self.changing.ghosts.lock().ghosts.nr_buckets();
        // Between these bounds the size stays, so that it does not change back and forth.
        if wanted == there || (wanted * 2 > there && wanted * 4 < there * 5) {
            return;
        }
        let bytes = wanted as u64 * BUCKET_BYTES;
        let charge = match group.try_charge(bytes) {
            Ok(charge) if bytes > 0 => Some(AccountedCharge::new(charge, StatItem::SlabUnreclaimable)),
            Ok(_) => None,
            Err(_) => return,
        };
        let mut charged = self.changing.ghosts.lock();
        charged.ghosts.resize(wanted);
        let before = std::mem::replace(&mut charged.charge, charge);
        drop(charged);
        drop(before);
    }

    pub(super) fn drop_ghosts(&self) {
        let before = std::mem::take(&mut *self.changing.ghosts.lock());
        drop(before);
    }

    fn own_bytes(&self) -> u64 {
        self.counts.sum(|stripe| &stripe.bytes).cast_signed().max(0).cast_unsigned()
    }

    /// Returns the average bytes of its own objects.
    pub(super) fn mean_bytes(&self) -> u64 {
        let nr = self.counts.sum(|stripe| &stripe.inserted).saturating_sub(self.nr_departed());
        self.own_bytes() / nr.max(1)
    }

    fn nr_departed(&self) -> u64 {
        let others: u64 = self.changing.departed.iter().map(|nr| nr.load(Relaxed)).sum();
        others + self.counts.sum(|stripe| &stripe.evicted)
    }

    /// Returns the bytes of its objects, including inherited ones.
    pub(super) fn bytes(&self) -> u64 {
        let inherited = self.changing.inherited.lock_second();
        let theirs: u64 = inherited.states.iter().map(|state| state.bytes()).sum();
        self.own_bytes() + theirs
    }

    /// Returns its figures, including inherited ones.
    pub(super) fn stats(&self) -> ObjectStats {
        let changing = &self.changing;
        let departed = |why: RemovalCause| changing.departed[why as usize].load(Relaxed);
        let mut stats = ObjectStats {
            objects: 0,
            bytes: self.own_bytes(),
            pinned_bytes: changing.pinned_bytes.load(Relaxed),
            ghosts: changing.ghosts.lock().ghosts.nr(),
            hits: self.counts.sum(|stripe| &stripe.hits),
            misses: self.counts.sum(|stripe| &stripe.misses),
            ghost_hits: changing.ghost_hits.load(Relaxed),
            inserted: self.counts.sum(|stripe| &stripe.inserted),
            declined: changing.declined.load(Relaxed),
            evicted: self.counts.sum(|stripe| &stripe.evicted),
            evicted_by_workers: changing.evicted_by_workers.load(Relaxed),
            expired: departed(RemovalCause::Expired),
            removed: departed(RemovalCause::Removed),
            replaced: departed(RemovalCause::Replaced) + departed(RemovalCause::Outdated),
        };
        stats.objects = stats.inserted.saturating_sub(stats.departed());
        let inherited = changing.inherited.lock_second();
        stats.add(&inherited.folded);
        inherited.states.iter().for_each(|state| stats.add(&state.stats()));
        stats
    }

    /// Takes over the state of a removed group.
    fn inherit(&self, dying: Arc<Payer>) {
        dying.drop_ghosts();
        let left = std::mem::take(&mut *dying.changing.inherited.lock_second());
        let mut inherited = self.changing.inherited.lock_second();
        inherited.states.push(dying);
        inherited.states.extend(left.states);
        inherited.folded.add(&left.folded);
        let states = std::mem::take(&mut inherited.states);
        for state in states {
            // This was the last reference, so its statistics are final.
            match Arc::try_unwrap(state) {
                Ok(state) => inherited.folded.add(&state.stats()),
                Err(state) => inherited.states.push(state),
            }
        }
    }
}

/// The payers of one cache, by group.
#[derive(Debug)]
pub(super) struct Payers {
    /// By raw owner. A payer's charge keeps its owner's number from being reused.
    by_owner: RankedRwLock<HashMap<u32, Arc<Payer>>>,
}

impl Default for Payers {
    fn default() -> Self {
        Self { by_owner: RankedRwLock::new(Rank::ObjectPayers, HashMap::new()) }
    }
}

impl Payers {
    /// Returns the payer of a group, if there is one.
    pub(super) fn get(&self, owner: OwnerId) -> Option<Arc<Payer>> {
        self.by_owner.read().get(&owner.into_raw()).cloned()
    }

    /// Returns the payer of an owner kept alive by a charge of the caller; created if there is
    /// none.
    pub(super) fn of(&self, owner: OwnerId) -> Arc<Payer> {
        if let Some(payer) = self.get(owner) {
            return payer;
        }
        loop {
            let group = owner.resolve();
            if let Some(payer) = self.get(group.owner()) {
                return payer;
            }
            let charge: Charge = group.charge_forced(payer_bytes());
            // The group is being removed: the charge does not hold the number for finding the
            // payer. In a moment its owner resolves to the parent.
            if charge.owner() != group.owner() {
                umemcg_base::sync::thread::yield_now();
                continue;
            }
            let charge = AccountedCharge::new(charge, StatItem::SlabUnreclaimable);
            let fresh = Arc::new(Payer::new(group.owner(), charge));
            let mut by_owner = self.by_owner.write();
            let there = by_owner.entry(group.owner().into_raw()).or_insert_with(|| Arc::clone(&fresh));
            let payer = Arc::clone(there);
            drop(by_owner);
            drop(fresh);
            // The group was marked as dead before its state was looked up for the parent. So either
            // that lookup finds this payer, or we see the mark.
            if group.is_dead()
                && let Some(parent) = group.parent()
            {
                self.reparent(group.owner(), parent.owner());
            }
            return payer;
        }
    }

    /// Hands the state of a removed group to its parent.
    pub(super) fn reparent(&self, dying: OwnerId, parent: OwnerId) {
        let state = self.by_owner.write().remove(&dying.into_raw());
        if let Some(state) = state {
            self.of(parent).inherit(state);
        }
    }

    /// Returns all payers in the order of their owners' numbers, the same in every run of a model.
    pub(super) fn all(&self) -> Vec<(OwnerId, Arc<Payer>)> {
        let by_owner = self.by_owner.read();
        let named = |(&raw, payer): (&u32, &Arc<Payer>)| Some((OwnerId::from_raw(raw)?, Arc::clone(payer)));
        let mut all: Vec<_> = by_owner.iter().filter_map(named).collect();
        drop(by_owner);
        all.sort_unstable_by_key(|(owner, _)| owner.into_raw());
        all
    }

    pub(super) fn nr(&self) -> usize {
        self.by_owner.read().len()
    }
}
