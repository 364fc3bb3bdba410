//! The objects of a cache: looking them up, storing and removing them. This is the cache without
//! its public handle, as reclaim sees it.
//!
//! An entry is in its table as long as its place in the lists is its own. The thread that takes it
//! out of the table, under the shard's lock, takes its place off the list and gives back what was
//! charged, with no lock held. Places go on lists under the shard's lock (rank ObjectOwner, then
//! Lruvec), so that a place in a table is never one that was given back.

mod eviction;
mod loading;
mod reclaim;

use std::borrow::Borrow;
use std::fmt;
use std::hash::{BuildHasher, Hash};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};

use umemcg_base::{assert_no_locks_held, contained};
use umemcg_group::{Charge, Group, OwnerId, StatItem};
use umemcg_reclaim::{ChargeError, ListLru, ListSlot, Reclaimer};

pub(super) use loading::{LoadGuard, Role};

use crate::object_cache::entry::{Entry, Mark};
use crate::object_cache::expiry::Expiry;
use crate::object_cache::in_flight::InFlight;
use crate::object_cache::payer::{Payer, Payers};
use crate::object_cache::queue::{NODE, Queue};
use crate::object_cache::removal_cause::{Listener, RemovalCause};
use crate::object_cache::shard::{Shards, Tables};
use crate::object_cache::striped_counter::StripedCounter;
use crate::object_cache::victim_hints::VictimHints;
use crate::object_cache::weight::{allocated_bytes, entry_bytes};

/// The room for ghosts and other state of a group is adjusted once in this many inserts.
const LOOK_AROUND_EVERY: u64 = 64;

/// Returns how many heap bytes a key and its value own.
pub(super) type Weigher<K, V> = Box<dyn Fn(&K, &V) -> u64 + Send + Sync>;

/// Why a value was not stored.
#[derive(Debug, Clone, thiserror::Error)]
pub enum DeclineReason {
    /// No group on the way up has room, not even after reclaim.
    #[error(transparent)]
    Refused(ChargeError),
    /// Heavier than 4 GiB.
    #[error("an object of {bytes} bytes is too large for a cache")]
    TooLarge {
        /// Its weight.
        bytes: u64,
    },
    /// There are as many objects in the pool as can be numbered.
    #[error("there is no room for another object in any list")]
    ListsFull,
}

/// The objects of one cache, and what it needs to find, charge and evict them.
pub(super) struct CachedObjects<K, V, S> {
    pub(super) name: String,
    pub(super) reclaimer: Arc<Reclaimer>,
    pub(super) shards: Shards<K, V>,
    pub(super) hasher: S,
    /// By [`Queue`].
    pub(super) lists: [ListLru; 2],
    pub(super) payers: Payers,
    pub(super) victim_hints: VictimHints,
    /// Look-ups that found nothing, of all groups.
    pub(super) missing: StripedCounter,
    pub(super) expiry: Expiry,
    pub(super) weigher: Option<Weigher<K, V>>,
    pub(super) listener: Listener<K, V>,
    pub(super) seeks: u32,
    pub(super) bytes_max: Option<u64>,
    /// Kept only when there is a bound. (A)
    pub(super) bytes: AtomicI64,
}

impl<K, V, S> fmt::Debug for CachedObjects<K, V, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ObjectCache").field("name", &self.name).finish_non_exhaustive()
    }
}

/// The result of a look-up.
pub(super) enum Found<V> {
    Value(V),
    Missing,
    /// The object in this slot has expired.
    Expired(ListSlot),
}

impl<K: Hash + Eq, V: Clone, S: BuildHasher> CachedObjects<K, V, S> {
    #[inline]
    pub(super) fn hash<Q: Hash + ?Sized>(&self, key: &Q) -> u64 {
        self.hasher.hash_one(key)
    }

    /// Returns the hash of an entry of the table, for a caller that does not look for its key.
    /// `None` when the key's `Hash` panics: the thread may belong to any caller, and is about to
    /// change the table.
    #[inline]
    pub(super) fn hash_of(&self, entry: &Entry<K, V>) -> Option<u64> {
        let hash = contained(|| self.hash(&entry.key));
        hash.inspect_err(|panic| tracing::error!(%panic, "the hash of a key in a cache panicked")).ok()
    }

    /// Looks a key up and counts a hit. Takes the shard's lock shared, and no other.
    #[inline]
    pub(super) fn find<Q: Eq + ?Sized>(&self, hash: u64, key: &Q) -> Found<V>
    where
        K: Borrow<Q>,
    {
        if self.expiry.is_on() {
            return self.find_unexpired(hash, key);
        }
        let tables = self.shards.of(hash).tables.read();
        match tables.find(hash, |entry| entry.key.borrow() == key) {
            Some((_, entry)) => Found::Value(self.hit(entry)),
            None => Found::Missing,
        }
    }

    /// Looks up a key in a cache in which objects expire.
    fn find_unexpired<Q: Eq + ?Sized>(&self, hash: u64, key: &Q) -> Found<V>
    where
        K: Borrow<Q>,
    {
        let now = self.expiry.now();
        let tables = self.shards.of(hash).tables.read();
        let Some((at, entry)) = tables.find(hash, |entry| entry.key.borrow() == key) else {
            return Found::Missing;
        };
        if let Some(age) = tables.age(at) {
            if self.expiry.is_over(Some(age), now) {
                return Found::Expired(entry.slot);
            }
            self.expiry.note_use(age, now);
        }
        Found::Value(self.hit(entry))
    }

    /// Counts a look-up that found nothing. Out of line: what a hit executes stays together.
    #[inline(never)]
    pub(super) fn note_missing(&self) {
        self.missing.add(|stripe| &stripe.misses, 1);
    }

    /// Counts a hit, and clones the value.
    #[inline]
    fn hit(&self, entry: &Entry<K, V>) -> V {
        // First: to clone often is a locked instruction on a line that must be fetched, and waits
        // for stores that came before it.
        let value = entry.value.clone();
        entry.mark.note_use();
        entry.payer.note_hit();
        value
    }

    pub(super) fn weigh(&self, key: &K, value: &V) -> u64 {
        let heap = self.weigher.as_ref().map_or(0, |weigh| weigh(key, value));
        allocated_bytes(heap).saturating_add(entry_bytes::<K, V>(self.expiry.is_on()))
    }

    /// Charges for an object and takes a place in the lists for it. Reclaims when that is refused;
    /// no lock may be held.
    fn charge_slot(&self, group: &Arc<Group>, bytes: u64) -> Result<ChargedSlot<K, V>, DeclineReason> {
        if u32::try_from(bytes).is_err() {
            return Err(DeclineReason::TooLarge { bytes });
        }
        let payer = self.payers.get(group.owner());
        if let Some(payer) = payer.filter(|payer| payer.is_alone())
            // Above the limit, by what was charged by force, only reclaim brings it below.
            && (group.max_bytes().saturating_sub(bytes) + 1..=group.max_bytes()).contains(&group.usage_bytes())
            && let Some((charge, evicted)) = self.exchange(group, &payer, bytes)
        {
            return Ok(ChargedSlot { charge, slot: evicted.slot, payer, evicted: Some(evicted) });
        }
        let mut group = Arc::clone(group);
        // Bounded by the depth of the tree: each time it is a group further up.
        loop {
            // A refusal is no `oom` event, because a cache can do without the object.
            let charge = self.reclaimer.charge_opportunistic(&group, bytes, &|| false);
            let charge = charge.map_err(DeclineReason::Refused)?;
            let payer = self.payers.of(charge.owner());
            if payer.owner() != charge.owner() {
                // The group was removed just now, and has no state here.
                group = payer.owner().resolve();
                continue;
            }
            let slot = self.lists[0].reserve(0).map_err(|_| DeclineReason::ListsFull)?;
            count_bytes(&group, charge.owner(), bytes as i64);
            return Ok(ChargedSlot { charge, slot, payer, evicted: None });
        }
    }

    /// Stores a value. Whatever of the embedder's code panics on the way, the value's charge is
    /// released with it, and the listener is called for the value that it replaced. When it is
    /// declined, the old value of the key is removed all the same. A loaded value is stored only if
    /// its load has not been cancelled.
    pub(super) fn store(
        &self,
        group: &Arc<Group>,
        hash: u64,
        key: K,
        value: V,
        flight: Option<&Arc<InFlight<V>>>,
    ) -> Result<(), (K, V, DeclineReason)> {
        assert_no_locks_held("an insert");
        self.victim_hints.look_ahead(group.owner(), &self.lists[0], &self.shards);
        let bytes = self.weigh(&key, &value);
        let ChargedSlot { charge, slot, payer, evicted } = match self.charge_slot(group, bytes) {
            Ok(paid) => paid,
            Err(reason) => {
                self.payers.of(group.owner()).note_declined();
                match flight {
                    Some(flight) => drop(self.end_load(hash, flight)),
                    None => drop(self.remove(hash, &key, RemovalCause::Outdated)),
                }
                return Err((key, value, reason));
            }
        };
        let ghost = evicted.as_ref().and_then(|evicted| evicted.ghost);
        let queue = if payer.exchange_ghosts(hash, ghost) { Queue::Main } else { Queue::Probation };
        let (_, bytes) = charge.into_raw();
        let nr_inserted = payer.note_inserted(bytes);
        if nr_inserted.is_multiple_of(LOOK_AROUND_EVERY) {
            payer.fit_ghosts(group);
            payer.look_around(group);
        }
        let entry = Entry { key, value, payer, slot, mark: Mark::new(queue, bytes) };
        let mut loose =
            RemovalGuard { objects: self, entry: Some(entry), why: RemovalCause::Outdated, evicted };
        if let Some(old) = self.put(hash, &mut loose, flight) {
            self.finish_removal(old, RemovalCause::Replaced);
        }
        drop(loose);
        if let Some(bytes_max) = self.bytes_max {
            self.keep_within(bytes_max, group);
        }
        Ok(())
    }

    /// Puts an entry in the table and on its list, unless its load has been cancelled. Returns the
    /// entry that it replaces. The embedder's code runs first, then the table changes.
    fn put(
        &self,
        hash: u64,
        loose: &mut RemovalGuard<'_, K, V, S>,
        flight: Option<&Arc<InFlight<V>>>,
    ) -> Option<Entry<K, V>> {
        let key = &loose.entry.as_ref()?.key;
        let now = self.expiry.now();
        let shard = self.shards.of(hash);
        let mut tables = shard.tables.write();
        if !tables.flights.is_empty() {
            let is_ours = |(there_key, there): &(K, Arc<InFlight<V>>)| match flight {
                Some(flight) => Arc::ptr_eq(there, flight),
                None => there_key == key,
            };
            let taken = tables.flights.find_entry(hash, is_ours).is_ok_and(|there| {
                there.remove();
                true
            });
            if flight.is_some() && !taken {
                return None;
            }
        } else if flight.is_some() {
            return None;
        }
        let there = tables.find(hash, |there| there.key == *key).map(|(at, _)| at);
        if there.is_none() {
            tables.make_room(|entry| self.hash(&entry.key));
        }
        let entry = loose.entry.take()?;
        if self.bytes_max.is_some() {
            self.bytes.fetch_add(entry.mark.bytes() as i64, Relaxed);
        }
        let (at, out) = match there {
            None => {
                let at = tables.put(hash, entry, now);
                shard.note_places(&tables);
                (at, None)
            }
            Some(at) => (at, tables.replace(at, entry, now)),
        };
        let token = tables.token(at);
        if let Some(entry) = tables.get_mut(at) {
            // Uses belong to the key, so they are kept.
            if let Some(old) = &out
                && old.mark.queue() == Queue::Main
            {
                entry.mark.promote();
            }
            // Before it is on a list, so that a walk finds it.
            self.lists[0].set_token(entry.slot, token);
            entry.payer.enlist(&self.lists, entry.mark.queue(), entry.slot);
        }
        out
    }

    /// Removes a key. Also cancels its load, whose value may be older than this removal.
    pub(super) fn take<Q: Eq + ?Sized>(&self, hash: u64, key: &Q) -> Option<Entry<K, V>>
    where
        K: Borrow<Q>,
    {
        let mut tables = self.shards.of(hash).tables.write();
        if !tables.flights.is_empty()
            && let Ok(flight) = tables.flights.find_entry(hash, |(there, _)| there.borrow() == key)
        {
            flight.remove();
        }
        let (at, _) = tables.find(hash, |entry| entry.key.borrow() == key)?;
        self.take_out(&mut tables, hash, at)
    }

    /// Takes the entry of that hash out of a place of a locked shard.
    pub(super) fn take_out(&self, tables: &mut Tables<K, V>, hash: u64, at: u32) -> Option<Entry<K, V>> {
        let entry = tables.take(hash, at)?;
        if self.bytes_max.is_some() {
            self.bytes.fetch_sub(entry.mark.bytes() as i64, Relaxed);
        }
        tables.shrink_if_sparse(|entry| self.hash_of(entry), |slot, token| self.note_moved(slot, token));
        Some(entry)
    }

    /// Notes that an entry is in another place now.
    pub(super) fn note_moved(&self, slot: ListSlot, token: u64) {
        self.lists[0].set_token(slot, token);
    }

    /// Removes a key and returns its value.
    pub(super) fn remove<Q: Eq + ?Sized>(&self, hash: u64, key: &Q, why: RemovalCause) -> Option<V>
    where
        K: Borrow<Q>,
    {
        let entry = self.take(hash, key)?;
        let loose = RemovalGuard { objects: self, entry: Some(entry), why, evicted: None };
        loose.entry.as_ref().map(|entry| entry.value.clone())
    }

    /// Removes the object of a slot, if it has expired.
    pub(super) fn remove_expired(&self, hash: u64, slot: ListSlot) {
        let now = self.expiry.now();
        let mut tables = self.shards.of(hash).tables.write();
        let Some((at, _)) = tables.find(hash, |entry| entry.slot == slot) else { return };
        if !self.expiry.is_over(tables.age(at), now) {
            return;
        }
        let Some(entry) = self.take_out(&mut tables, hash, at) else { return };
        drop(tables);
        self.finish_removal(entry, RemovalCause::Expired);
    }

    /// Removes a load from its shard. Returns `false` if another thread has removed it.
    pub(super) fn end_load(&self, hash: u64, flight: &Arc<InFlight<V>>) -> bool {
        let taken = {
            let mut tables = self.shards.of(hash).tables.write();
            let found = tables.flights.find_entry(hash, |(_, there)| Arc::ptr_eq(there, flight));
            found.ok().map(|place| place.remove().0)
        };
        let was_there = taken.is_some();
        end(taken);
        was_there
    }

    /// Finishes the removal of an entry that was taken out of its table: removes it from its list,
    /// releases its charge, calls the listener. No lock may be held.
    pub(super) fn finish_removal(&self, entry: Entry<K, V>, why: RemovalCause) {
        let Entry { key, value, payer, slot, mark } = entry;
        let (owner, bytes) = (payer.owner(), mark.bytes());
        if let Some(group) = owner.try_resolve() {
            group.stat_add(StatItem::SlabReclaimable, -(bytes as i64));
        }
        let list = &self.lists[mark.queue() as usize];
        list.remove(NODE, slot);
        list.release(slot);
        payer.note_removed(why, 1, bytes);
        drop(payer);
        drop(Charge::from_raw(owner, bytes));
        self.listener.call(key, value, why);
    }

    /// Finishes an eviction: releases charge and slot, leaves a ghost, calls the listener. No lock
    /// may be held.
    pub(super) fn finish_eviction(&self, payer: &Payer, evicted: Evicted<K, V>) {
        let Evicted { key, value, charge, slot, ghost } = evicted;
        if ghost.is_some() {
            payer.add_ghosts(ghost.into_iter());
        }
        self.lists[0].release(slot);
        drop(charge);
        self.listener.call(key, value, RemovalCause::Evicted);
    }

    /// Entries were taken out of the table.
    pub(super) fn note_taken(&self, entries: &[Entry<K, V>]) {
        if self.bytes_max.is_some() {
            let bytes: u64 = entries.iter().map(|entry| entry.mark.bytes()).sum();
            self.bytes.fetch_sub(bytes as i64, Relaxed);
        }
    }

    /// Takes every object out.
    pub(super) fn clear(&self, why: RemovalCause) {
        for shard in self.shards.iter() {
            let (entries, flights) = {
                let mut tables = shard.tables.write();
                (tables.take_all(), std::mem::take(&mut tables.flights))
            };
            end(flights);
            self.note_taken(&entries);
            entries.into_iter().for_each(|entry| self.finish_removal(entry, why));
        }
    }
}

/// The charge and the place that an object needs before it can be put in the table. Counted in the
/// statistics of its group.
struct ChargedSlot<K, V> {
    /// To the payer's owner.
    charge: Charge,
    slot: ListSlot,
    payer: Arc<Payer>,
    /// The object that it replaces, for which the listener is still to be called and a ghost to be
    /// left.
    evicted: Option<Evicted<K, V>>,
}

/// An object that was evicted, on no list and counted as gone in the figures of its group, with
/// what it held.
pub(super) struct Evicted<K, V> {
    pub(super) key: K,
    pub(super) value: V,
    pub(super) charge: Charge,
    pub(super) slot: ListSlot,
    /// The ghost that it leaves.
    pub(super) ghost: Option<u64>,
}

/// Objects that are in no table: one on its way in, and those it replaces. Their removal is
/// finished when this is dropped, so also when a key or a value panics.
struct RemovalGuard<'a, K, V, S>
where
    K: Hash + Eq,
    V: Clone,
    S: BuildHasher,
{
    objects: &'a CachedObjects<K, V, S>,
    /// `None` once it is in the table.
    entry: Option<Entry<K, V>>,
    /// The cause of its removal.
    why: RemovalCause,
    /// The object that was evicted for it, for which the listener is still to be called.
    evicted: Option<Evicted<K, V>>,
}

impl<K: Hash + Eq, V: Clone, S: BuildHasher> Drop for RemovalGuard<'_, K, V, S> {
    fn drop(&mut self) {
        if let Some(entry) = self.entry.take() {
            self.objects.finish_removal(entry, self.why);
        }
        if let Some(Evicted { key, value, .. }) = self.evicted.take() {
            self.objects.listener.call(key, value, RemovalCause::Evicted);
        }
    }
}

/// Drops something that holds keys or values, whose destructors may panic.
pub(super) fn end<T>(what: T) {
    if let Err(panic) = contained(|| drop(what)) {
        tracing::error!(%panic, "the end of a key or a value of a cache panicked");
    }
}

/// Counts bytes of objects in the statistics of the group that they are charged to, which is
/// `group` unless that has been removed.
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
