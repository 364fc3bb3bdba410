//! The parts of a cache together: looking up, storing, and seeing off what leaves.
//!
//! An entry is in its table as long as its place in the lists is its own. Whoever takes it out of the table, under the shard's
//! lock, takes its place off the list and gives back what was charged, with no lock held. Places go on lists under the
//! shard's lock (rank ObjectOwner, then Lruvec), so that a place in a table is never one that was given back.

use std::borrow::Borrow;
use std::fmt;
use std::hash::{BuildHasher, Hash};
use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU32, Ordering::Relaxed};

use umemcg_base::assert_no_locks_held;
use umemcg_group::{Charge, Group, OwnerId, StatItem};
use umemcg_reclaim::{ChargeError, ListLru, ListSlot, Reclaimer};

use super::departure::{Departure, Listener};
use super::entry::{Entry, Mark, NODE, Queue};
use super::expiry::Expiry;
use super::loading::Flight;
use super::payer::{Payer, Payers};
use super::shard::Shards;
use super::weight::{allocated_bytes, entry_bytes};

/// Room for ghosts is looked after once in so many inserts of a group.
const FIT_GHOSTS_EVERY: u64 = 64;

/// Says how many bytes a key and its value refer to on the heap.
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

/// A cache without its handle: what reclaim sees.
pub(super) struct Inner<K, V, S> {
    pub(super) name: String,
    pub(super) reclaimer: Arc<Reclaimer>,
    pub(super) shards: Shards<K, V>,
    pub(super) hasher: S,
    /// By [`Queue`].
    pub(super) lists: [ListLru; 2],
    pub(super) payers: Payers,
    pub(super) expiry: Expiry,
    pub(super) weigher: Option<Weigher<K, V>>,
    pub(super) listener: Listener<K, V>,
    pub(super) seeks: u32,
    pub(super) bytes_max: Option<u64>,
    /// Kept only when there is a bound. (A)
    pub(super) bytes: AtomicI64,
}

impl<K, V, S> fmt::Debug for Inner<K, V, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ObjectCache").field("name", &self.name).finish_non_exhaustive()
    }
}

/// What a look-up found.
pub(super) enum Found<V> {
    Value(V),
    Missing,
    /// In this place is an object that is too old.
    Expired(ListSlot),
}

impl<K: Hash + Eq, V: Clone, S: BuildHasher> Inner<K, V, S> {
    #[inline]
    pub(super) fn hash<Q: Hash + ?Sized>(&self, key: &Q) -> u64 {
        self.hasher.hash_one(key)
    }

    /// Looks a key up and counts a hit. Takes the shard's lock shared, and no other.
    #[inline]
    pub(super) fn find<Q: Eq + ?Sized>(&self, hash: u64, key: &Q) -> Found<V>
    where
        K: Borrow<Q>,
    {
        let now = self.expiry.now();
        let tables = self.shards.of(hash).tables.read();
        let Some(entry) = tables.find(hash, |entry| entry.key.borrow() == key) else {
            return Found::Missing;
        };
        if self.expiry.is_on() {
            if self.expiry.is_over(entry, now) {
                return Found::Expired(entry.slot);
            }
            self.expiry.note_use(entry, now);
        }
        entry.mark.note_use();
        entry.payer.note_hit();
        Found::Value(entry.value.clone())
    }

    pub(super) fn weigh(&self, key: &K, value: &V) -> u64 {
        let heap = self.weigher.as_ref().map_or(0, |weigh| weigh(key, value));
        allocated_bytes(heap).saturating_add(entry_bytes::<K, V>())
    }

    /// Charges for an object. Reclaims when that is refused; no lock may be held.
    fn pay(&self, group: &Arc<Group>, bytes: u64) -> Result<Charge, DeclineReason> {
        if u32::try_from(bytes).is_err() {
            return Err(DeclineReason::TooLarge { bytes });
        }
        // A cache can do without: one that is refused is no `oom` event.
        let charge = self.reclaimer.charge_opportunistic(group, bytes, &|| false);
        let charge = charge.map_err(DeclineReason::Refused)?;
        count_bytes(group, charge.owner(), bytes as i64);
        Ok(charge)
    }

    /// Stores a value. When it is declined the old value of the key goes nevertheless. A value that comes from a flight is kept
    /// only as long as nobody has taken the flight away.
    pub(super) fn store(
        &self,
        group: &Arc<Group>,
        hash: u64,
        key: K,
        value: V,
        flight: Option<&Arc<Flight<V>>>,
    ) -> Result<(), (K, V, DeclineReason)> {
        assert_no_locks_held("an insert");
        let bytes = self.weigh(&key, &value);
        let paid = self.pay(group, bytes).and_then(|charge| match self.lists[0].reserve(hash) {
            Ok(slot) => Ok((charge, slot)),
            Err(_) => {
                count_bytes(group, charge.owner(), -(bytes as i64));
                Err(DeclineReason::ListsFull)
            }
        });
        let (charge, slot) = match paid {
            Ok(paid) => paid,
            Err(reason) => {
                self.payers.of(group.owner()).note_declined();
                match flight {
                    Some(flight) => drop(self.end_flight(hash, flight)),
                    None => drop(self.remove(hash, &key, Departure::Outdated)),
                }
                return Err((key, value, reason));
            }
        };
        let payer = self.payers.of(charge.owner());
        let queue = if payer.take_ghost(hash) { Queue::Main } else { Queue::Probation };
        let now = self.expiry.now();
        let (owner, bytes) = charge.into_raw();
        let entry = Entry {
            key,
            value,
            payer: Arc::clone(&payer),
            slot,
            owner,
            bytes: bytes as u32,
            born: now,
            used: AtomicU32::new(now),
            mark: Mark::new(queue),
        };
        let out = self.put(hash, entry, &payer, flight);
        let nr_inserted = payer.note_inserted(bytes as u32);
        match out {
            Put::Fresh => {}
            Put::InPlaceOf(old) => self.see_off(old, Departure::Replaced),
            Put::NotWanted(entry) => self.see_off(entry, Departure::Outdated),
        }
        if nr_inserted.is_multiple_of(FIT_GHOSTS_EVERY) {
            payer.fit_ghosts(group);
        }
        if let Some(bytes_max) = self.bytes_max {
            self.keep_within(bytes_max, &payer, group);
        }
        Ok(())
    }

    /// Puts an entry in the table and on its list.
    fn put(
        &self,
        hash: u64,
        entry: Entry<K, V>,
        payer: &Payer,
        flight: Option<&Arc<Flight<V>>>,
    ) -> Put<K, V> {
        let mut tables = self.shards.of(hash).tables.write();
        if !tables.flights.is_empty() {
            let is_ours = |(key, there): &(K, Arc<Flight<V>>)| match flight {
                Some(flight) => Arc::ptr_eq(there, flight),
                None => *key == entry.key,
            };
            let taken = tables.flights.find_entry(hash, is_ours).is_ok_and(|there| {
                there.remove();
                true
            });
            if flight.is_some() && !taken {
                return Put::NotWanted(entry);
            }
        } else if flight.is_some() {
            return Put::NotWanted(entry);
        }
        if self.bytes_max.is_some() {
            self.bytes.fetch_add(i64::from(entry.bytes), Relaxed);
        }
        let (mut queue, owner, slot) = (entry.mark.queue(), entry.owner, entry.slot);
        let out = match tables.find_mut(hash, |there| there.key == entry.key) {
            None => {
                tables.put(hash, entry, |entry| self.hash(&entry.key));
                Put::Fresh
            }
            Some(there) => {
                let old = mem::replace(there, entry);
                // What has proved of use has done so under its key.
                if old.mark.queue() == Queue::Main && queue == Queue::Probation {
                    there.mark.promote();
                    queue = Queue::Main;
                }
                Put::InPlaceOf(old)
            }
        };
        payer.enlist(&self.lists, queue, owner, slot);
        out
    }

    /// Takes a key out. Also ends its flight: what is being loaded may be older than this removal.
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
        let entry = tables.take(hash, |entry| entry.key.borrow() == key)?;
        self.note_taken(&entry);
        tables.shrink_if_sparse(|entry| self.hash(&entry.key));
        Some(entry)
    }

    /// Removes a key and returns its value.
    pub(super) fn remove<Q: Eq + ?Sized>(&self, hash: u64, key: &Q, why: Departure) -> Option<V>
    where
        K: Borrow<Q>,
    {
        let entry = self.take(hash, key)?;
        let value = entry.value.clone();
        self.see_off(entry, why);
        Some(value)
    }

    /// Takes out what is in a place of the lists, if it is too old.
    pub(super) fn remove_expired(&self, hash: u64, slot: ListSlot) {
        let now = self.expiry.now();
        let mut tables = self.shards.of(hash).tables.write();
        let is_over = |entry: &Entry<K, V>| entry.slot == slot && self.expiry.is_over(entry, now);
        let Some(entry) = tables.take(hash, is_over) else { return };
        self.note_taken(&entry);
        drop(tables);
        self.see_off(entry, Departure::Expired);
    }

    pub(super) fn note_taken(&self, entry: &Entry<K, V>) {
        if self.bytes_max.is_some() {
            self.bytes.fetch_sub(i64::from(entry.bytes), Relaxed);
        }
    }

    /// Takes a flight out of its shard. False when somebody else did.
    pub(super) fn end_flight(&self, hash: u64, flight: &Arc<Flight<V>>) -> bool {
        let mut tables = self.shards.of(hash).tables.write();
        match tables.flights.find_entry(hash, |(_, there)| Arc::ptr_eq(there, flight)) {
            Ok(place) => {
                place.remove();
                true
            }
            Err(_) => false,
        }
    }

    /// Sees off an entry that was taken out of its table: off its list, charge given back, listener told. No lock may be held.
    pub(super) fn see_off(&self, entry: Entry<K, V>, why: Departure) {
        let (owner, bytes) = (entry.owner, i64::from(entry.bytes));
        if let Some(group) = owner.try_resolve() {
            group.stat_add(StatItem::SlabReclaimable, -bytes);
        }
        let Entry { key, value, payer, slot, owner, bytes, mark, .. } = entry;
        let list = &self.lists[mark.queue() as usize];
        list.remove(NODE, slot);
        list.release(slot);
        payer.note_departed(why, 1, u64::from(bytes));
        drop(payer);
        drop(Charge::from_raw(owner, u64::from(bytes)));
        self.listener.tell(key, value, why);
    }

    /// Takes every object out.
    pub(super) fn clear(&self, why: Departure) {
        for shard in self.shards.iter() {
            let entries = {
                let mut tables = shard.tables.write();
                tables.flights.clear();
                tables.take_all(|_| true, |entry| self.hash(&entry.key))
            };
            for entry in entries {
                self.note_taken(&entry);
                self.see_off(entry, why);
            }
        }
    }
}

/// What became of an entry that was put in the table.
enum Put<K, V> {
    Fresh,
    InPlaceOf(Entry<K, V>),
    /// Its flight had been taken away.
    NotWanted(Entry<K, V>),
}

/// Counts bytes of objects in the figures of whom they are charged to, which is `group` unless that has been removed.
fn count_bytes(group: &Arc<Group>, owner: OwnerId, bytes: i64) {
    if group.owner() == owner {
        group.stat_add(StatItem::SlabReclaimable, bytes);
    } else {
        owner.with_group(|group| group.stat_add(StatItem::SlabReclaimable, bytes));
    }
}

/// Whether a payer has more than its share of a cache.
pub(super) fn has_its_share(payer: &Payer, nr_payers: usize, bytes_max: u64) -> bool {
    payer.bytes().saturating_mul(nr_payers as u64) >= bytes_max
}
