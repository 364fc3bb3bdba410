//! The objects of a cache: lookups, inserts and removals. This is the cache without its public
//! handle, as seen by reclaim.
//!
//! An entry is in its table as long as it owns its place in the lists. A thread takes it out of the
//! table under the shard's lock; the same thread then takes its place off the list and uncharges
//! it, with no lock held. Places go on lists under the shard's lock (rank ObjectOwner, then
//! Lruvec), so that a place in a table is never one given back.

mod eviction;
mod handing_over;
mod loading;
mod passing;
mod pinning;
mod reclaim;
mod removing;
mod storing;

use std::borrow::Borrow;
use std::fmt;
use std::hash::{BuildHasher, Hash};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64};

use umemcg_base::contained;
use umemcg_group::{Group, OwnerId, StatItem};
use umemcg_reclaim::{ChargeError, ListLru, ListSlot, Reclaimer};

pub(super) use handing_over::HandedOver;
pub(super) use loading::Role;
pub(super) use pinning::FoundPinned;

use crate::group_workers::GroupWorkers;
use crate::object_cache::entry::Entry;
use crate::object_cache::expiry::Expiry;
use crate::object_cache::payer::{Payer, Payers};
use crate::object_cache::pin::Pins;
use crate::object_cache::removal_cause::Listener;
use crate::object_cache::shard::{Shards, Tables};
use crate::object_cache::striped_counter::StripedCounter;
use crate::object_cache::victim_hints::VictimHints;
use crate::object_cache::weight::{allocated_bytes, entry_bytes};

/// Returns the heap bytes owned by a key and its value.
pub(super) type Weigher<K, V> = Box<dyn Fn(&K, &V) -> u64 + Send + Sync>;

/// Why a value was not stored.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum DeclineReason {
    /// The group or an ancestor has no room, not even after reclaim.
    #[error(transparent)]
    Refused(ChargeError),
    /// Heavier than 4 GiB.
    #[error("an object of {bytes} bytes is too large for a cache")]
    TooLarge {
        /// Its weight.
        bytes: u64,
    },
    /// The pool has the largest number of objects supported.
    #[error("there is no room for another object in any list")]
    ListsFull,
}

/// The objects of one cache, and the state to find, charge and evict them.
pub(super) struct CachedObjects<K, V, S> {
    pub(super) name: String,
    pub(super) reclaimer: Arc<Reclaimer>,
    pub(super) shards: Shards<K, V>,
    pub(super) hasher: S,
    /// By [`Queue`](super::queue::Queue).
    pub(super) lists: [ListLru; 2],
    pub(super) payers: Payers,
    pub(super) victim_hints: VictimHints,
    pub(super) pins: Pins,
    /// Missed lookups, of all groups.
    pub(super) missing: StripedCounter,
    pub(super) expiry: Expiry,
    pub(super) weigher: Option<Weigher<K, V>>,
    pub(super) listener: Listener<K, V>,
    pub(super) seeks: u32,
    /// [`NO_BOUND`] if there is none. (A)
    pub(super) bytes_max: AtomicU64,
    /// The sum of bytes, maintained only once there is a bound. (A)
    pub(super) bytes: AtomicI64,
    /// Threads for work without waiting callers.
    pub(super) workers: Arc<GroupWorkers>,
    pub(super) handed_over: Arc<HandedOver>,
}

/// Stands for no bound of the bytes of a cache.
pub(super) const NO_BOUND: u64 = u64::MAX;

impl<K, V, S> fmt::Debug for CachedObjects<K, V, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ObjectCache").field("name", &self.name).finish_non_exhaustive()
    }
}

/// The result of a lookup.
pub(super) enum Found<V> {
    Value(V),
    /// A value charged to another group than the caller's; the hit is still to be counted.
    OfAnother(V),
    /// A value of this group waiting for a worker; the hit is still to be counted.
    OnItsWay(V, Arc<Group>),
    Missing,
    /// The object in this slot has expired.
    Expired(ListSlot),
}

impl<K: Hash + Eq, V: Clone, S: BuildHasher> CachedObjects<K, V, S> {
    #[inline]
    pub(super) fn hash<Q: Hash + ?Sized>(&self, key: &Q) -> u64 {
        self.hasher.hash_one(key)
    }

    /// Returns the hash of an entry of the table, for a caller without its key. `None` when the
    /// key's `Hash` panics: the thread may belong to any caller, and is about to change the table.
    #[inline]
    pub(super) fn hash_of(&self, entry: &Entry<K, V>) -> Option<u64> {
        let hash = contained(|| self.hash(&entry.key));
        hash.inspect_err(|panic| tracing::error!(%panic, "the hash of a key in a cache panicked")).ok()
    }

    /// Looks a key up and counts a hit for the object's group, unless `asker` is another group.
    /// Takes only the shard's lock, shared.
    #[inline]
    pub(super) fn find<Q: Eq + ?Sized>(&self, hash: u64, key: &Q, asker: Option<OwnerId>) -> Found<V>
    where
        K: Borrow<Q>,
    {
        if self.expiry.is_on() {
            return self.find_unexpired(hash, key, asker);
        }
        let tables = self.shards.of(hash).tables.read();
        match tables.find(hash, |entry| entry.key.borrow() == key) {
            Some((_, entry)) => self.hit(entry, asker),
            None if !tables.flights.is_empty() => Self::find_on_its_way(&tables, hash, key),
            None => Found::Missing,
        }
    }

    /// Looks up a key in a cache with expiry.
    fn find_unexpired<Q: Eq + ?Sized>(&self, hash: u64, key: &Q, asker: Option<OwnerId>) -> Found<V>
    where
        K: Borrow<Q>,
    {
        let now = self.expiry.now();
        let tables = self.shards.of(hash).tables.read();
        let Some((at, entry)) = tables.find(hash, |entry| entry.key.borrow() == key) else {
            return Self::find_on_its_way(&tables, hash, key);
        };
        if let Some(age) = tables.age(at) {
            if self.expiry.is_over(Some(age), now) {
                return Found::Expired(entry.slot);
            }
            self.expiry.note_use(age, now);
        }
        self.hit(entry, asker)
    }

    /// Looks for a value waiting for a worker.
    fn find_on_its_way<Q: Eq + ?Sized>(tables: &Tables<K, V>, hash: u64, key: &Q) -> Found<V>
    where
        K: Borrow<Q>,
    {
        let of_key = tables.flights.iter_hash(hash).filter(|(there, _)| there.borrow() == key);
        let value = of_key.filter_map(|(_, flight)| Some((flight.value()?, flight.group()))).next();
        value.map_or(Found::Missing, |(value, group)| Found::OnItsWay(value, Arc::clone(group)))
    }

    /// Looks a key up on behalf of a group, and counts a hit for it. Removes an expired object. No
    /// lock may be held.
    pub(super) fn find_for<Q: Eq + ?Sized>(&self, group: &Arc<Group>, hash: u64, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
    {
        match self.find(hash, key, Some(group.owner())) {
            Found::Value(value) => return Some(value),
            Found::OfAnother(value) | Found::OnItsWay(value, _) => {
                self.payers.of(group.owner()).note_hit();
                return Some(value);
            }
            Found::Expired(slot) => self.remove_expired(hash, slot),
            Found::Missing => {}
        }
        None
    }

    /// Counts a miss. Out of line: the code of a hit stays together.
    #[inline(never)]
    pub(super) fn note_missing(&self) {
        self.missing.add(|stripe| &stripe.misses, 1);
    }

    /// Counts a hit, and clones the value.
    #[inline]
    fn hit(&self, entry: &Entry<K, V>, asker: Option<OwnerId>) -> Found<V> {
        // First: a clone is often a locked instruction on a cache line to be fetched, and waits for
        // earlier stores.
        let value = entry.value.clone();
        entry.mark.note_use();
        if asker.is_some_and(|asker| asker != entry.payer.owner()) {
            return Found::OfAnother(value);
        }
        entry.payer.note_hit();
        Found::Value(value)
    }

    pub(super) fn weigh(&self, key: &K, value: &V) -> u64 {
        let heap = self.weigher.as_ref().map_or(0, |weigh| weigh(key, value));
        allocated_bytes(heap).saturating_add(entry_bytes::<K, V>(self.expiry.is_on()))
    }
}

/// Counts bytes of objects in the statistics of the charged group: `group`, unless that has been
/// removed.
pub(super) fn count_bytes(group: &Arc<Group>, owner: OwnerId, bytes: i64) {
    if group.owner() == owner {
        group.stat_add(StatItem::SlabReclaimable, bytes);
    } else {
        owner.with_group(|group| group.stat_add(StatItem::SlabReclaimable, bytes));
    }
}

/// Returns whether a payer has more than its share of a cache.
pub(super) fn has_its_share(payer: &Payer, nr_payers: usize, bytes_max: u64) -> bool {
    payer.bytes().saturating_mul(nr_payers as u64) >= bytes_max
}
