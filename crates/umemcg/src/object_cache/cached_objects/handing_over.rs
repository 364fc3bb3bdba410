//! Values handed to a worker, because they need reclaim and their callers must not wait for it.
//!
//! A value waiting for a worker is in the table as a *flight* with a value, so that lookups find
//! it. It is charged in full, above the limit if need be. A group has at most one
//! [`WAITING_SHARE`]th of its limit waiting, or one object; further values are declined. The worker
//! reclaims the missing memory and puts the object in the table. If that fails, the worker releases
//! the object. Every group has a worker of its own, see [`crate::group_workers`].

use std::hash::{BuildHasher, Hash};
use std::sync::Arc;

use hashbrown::HashMap;
use umemcg_base::{Condvar, LeafMutex, pages_for};
use umemcg_group::{Group, StatItem};
use umemcg_reclaim::{AccountedCharge, ChargeError, Reason};

use super::removing::end;
use super::storing::Funds;
use super::{CachedObjects, DeclineReason};
use crate::group_workers::is_worker;
use crate::object_cache::entry::Entry;
use crate::object_cache::flight::Flight;
use crate::object_cache::removal_cause::RemovalCause;

/// See the module text.
const WAITING_SHARE: u64 = 8;
/// Most waiting objects of a group.
const NR_WAITING_MAX: u64 = 1024;
/// Rounds of reclaim at one level for an object already charged.
const SETTLE_ROUNDS_MAX: u32 = 16;

/// The values of a cache waiting for workers.
#[derive(Debug, Default)]
pub(crate) struct HandedOver {
    /// By the serial number of the group: objects and bytes.
    waiting: LeafMutex<HashMap<u64, (u64, u64)>>,
    changed: Condvar,
}

/// One object's part of the waiting values, given back when dropped.
struct Place {
    of: Arc<HandedOver>,
    group: Arc<Group>,
    bytes: u64,
}

impl HandedOver {
    /// Blocks until no value waits for a worker any more. No lock may be held.
    pub(crate) fn wait(&self) {
        // A worker dropping the cache in a listener would wait for itself.
        if is_worker() {
            return;
        }
        let mut waiting = self.waiting.lock();
        while !waiting.is_empty() {
            self.changed.wait(&mut waiting);
        }
    }

    /// Takes a place for an object, if the group may have another one waiting.
    fn admit(self: &Arc<Self>, group: &Arc<Group>, bytes: u64) -> Option<Place> {
        let limit = std::iter::successors(Some(group), |at| at.parent()).map(|at| at.max_bytes()).min();
        let limit = limit.unwrap_or(0);
        let mut waiting = self.waiting.lock();
        let (nr, sum) = waiting.get(&group.id()).copied().unwrap_or_default();
        let fits = nr == 0 || sum + bytes <= limit / WAITING_SHARE;
        if bytes > limit || !fits || nr >= NR_WAITING_MAX {
            return None;
        }
        waiting.insert(group.id(), (nr + 1, sum + bytes));
        Some(Place { of: Arc::clone(self), group: Arc::clone(group), bytes })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut waiting = self.of.waiting.lock();
        if let Some((nr, sum)) = waiting.get_mut(&self.group.id()) {
            (*nr, *sum) = (*nr - 1, *sum - self.bytes);
            if *nr == 0 {
                waiting.remove(&self.group.id());
            }
        }
        if waiting.is_empty() {
            self.of.changed.notify_all();
        }
    }
}

/// A value waiting for a worker. Fields are dropped in this order: the place last, so that nothing
/// is left of the object, or of the cache, when no object waits.
struct Waiting<K: Hash + Eq, V: Clone, S: BuildHasher> {
    hash: u64,
    /// `None` once it is stored.
    object: Option<(K, V)>,
    /// `None` once it belongs to the object.
    charge: Option<AccountedCharge>,
    /// The old object of the key.
    old: Option<Entry<K, V>>,
    flight: Arc<Flight<V>>,
    objects: Arc<CachedObjects<K, V, S>>,
    _place: Place,
}

impl<K: Hash + Eq, V: Clone, S: BuildHasher> Waiting<K, V, S> {
    /// Makes room for the object and stores it, unless it has been cancelled.
    fn settle(&mut self) {
        let (objects, group) = (&self.objects, self.flight.group());
        if let Some(old) = self.old.take() {
            objects.finish_removal(old, RemovalCause::Replaced);
        }
        if !objects.is_in_flight(self.hash, &self.flight) || !objects.make_room(group) {
            return;
        }
        let Some(charge) = self.charge.take().map(AccountedCharge::into_charge) else { return };
        let paid = objects.charge_slot(group, charge.bytes(), Funds::Paid(charge));
        if let Ok(paid) = paid
            && let Some(object) = self.object.take()
        {
            objects.place(group, self.hash, object, paid, Some(&self.flight));
        }
    }
}

impl<K: Hash + Eq, V: Clone, S: BuildHasher> Drop for Waiting<K, V, S> {
    /// Also runs for a value never seen by a worker.
    fn drop(&mut self) {
        let (objects, group) = (&self.objects, self.flight.group());
        if let Some(old) = self.old.take() {
            objects.finish_removal(old, RemovalCause::Replaced);
        }
        if self.object.is_some() && objects.is_in_flight(self.hash, &self.flight) {
            objects.payers.of(group.owner()).note_declined();
        }
        objects.end_load(self.hash, &self.flight);
        end(self.object.take());
    }
}

impl<K, V, S> CachedObjects<K, V, S>
where
    K: Hash + Eq + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
    S: BuildHasher + Send + Sync + 'static,
{
    /// Stores a loaded value. Never sleeps for memory: a worker reclaims if necessary. Declined if
    /// too much waits already.
    pub(crate) fn store_loaded_soon(self: &Arc<Self>, hash: u64, key: K, value: V, flight: &Arc<Flight<V>>) {
        let group = flight.group();
        let bytes = self.weigh(&key, &value);
        match self.charge_slot(group, bytes, Funds::AtOnce) {
            Ok(paid) => self.place(group, hash, (key, value), paid, Some(flight)),
            Err(reason) => match self.admit(group, bytes, &reason) {
                Some(place) => self.hand_over(hash, (key, value), place, None, flight),
                None => self.decline(group, hash, &key, Some(flight)),
            },
        }
    }

    /// Takes a place for an object among the values waiting for workers, if it lacks only memory.
    fn admit(&self, group: &Arc<Group>, bytes: u64, refused: &DeclineReason) -> Option<Place> {
        let lacks_memory = matches!(refused, DeclineReason::Refused(ChargeError::Limit(_)));
        let admits = lacks_memory && self.workers.admits(group);
        admits.then(|| self.handed_over.admit(group, bytes)).flatten()
    }

    /// Stores a value without sleeping for memory. If memory is short, the value replaces the old
    /// one of its key at once, and a worker reclaims.
    pub(crate) fn store_soon(
        self: &Arc<Self>,
        group: &Arc<Group>,
        hash: u64,
        key: K,
        value: V,
    ) -> Result<(), (K, V, DeclineReason)>
    where
        K: Clone,
    {
        let bytes = self.weigh(&key, &value);
        let reason = match self.charge_slot(group, bytes, Funds::AtOnce) {
            Ok(paid) => {
                self.place(group, hash, (key, value), paid, None);
                return Ok(());
            }
            Err(reason) => reason,
        };
        let Some(place) = self.admit(group, bytes, &reason) else {
            self.decline(group, hash, &key, None);
            return Err((key, value, reason));
        };
        let flight = Flight::loaded(group, Self::FLIGHT_BYTES, value.clone());
        let stored = (key.clone(), Arc::clone(&flight));
        let (mut cancelled, mut old) = (Vec::new(), None);
        // The embedder's code first, then the table changes.
        let mut tables = self.shards.of(hash).tables.write();
        tables.flights.reserve(1, |(key, _)| self.hash(key));
        if !tables.flights.is_empty() {
            cancelled = tables.take_flights(hash, |there| *there == key);
        }
        if let Some((at, _)) = tables.find(hash, |entry| entry.key == key) {
            old = self.take_out(&mut tables, hash, at);
        }
        tables.flights.insert_unique(hash, stored, |_| unreachable!("room was made for one more"));
        drop(tables);
        end(cancelled);
        self.hand_over(hash, (key, value), place, old, &flight);
        Ok(())
    }

    /// Hands an admitted value to the worker of its group.
    fn hand_over(
        self: &Arc<Self>,
        hash: u64,
        object: (K, V),
        place: Place,
        old: Option<Entry<K, V>>,
        flight: &Arc<Flight<V>>,
    ) {
        let group = flight.group();
        let mut waiting = Waiting {
            hash,
            object: Some(object),
            charge: Some(AccountedCharge::forced(group, place.bytes, StatItem::SlabUnreclaimable)),
            old,
            flight: Arc::clone(flight),
            objects: Arc::clone(self),
            _place: place,
        };
        self.workers.run(group, move || waiting.settle());
    }
}

impl<K: Hash + Eq, V: Clone, S: BuildHasher> CachedObjects<K, V, S> {
    /// Reclaims until no level is above its limit. Returns `false` if one stays above.
    fn make_room(&self, group: &Arc<Group>) -> bool {
        std::iter::successors(Some(group), |at| at.parent()).all(|level| {
            for _ in 0..SETTLE_ROUNDS_MAX {
                let over = level.usage_bytes().saturating_sub(level.max_bytes());
                if over == 0 {
                    return true;
                }
                let freed = self.reclaimer.reclaim(level, pages_for(0, over), Reason::Direct);
                if freed.pages() == 0 {
                    level.drain_stocks();
                    break;
                }
            }
            level.usage_bytes() <= level.max_bytes()
        })
    }
}
