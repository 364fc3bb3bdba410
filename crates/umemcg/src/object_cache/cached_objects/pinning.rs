//! Pinning lookups.

use std::borrow::Borrow;
use std::hash::{BuildHasher, Hash};

use umemcg_group::Charge;
use umemcg_reclaim::ListSlot;

use super::CachedObjects;
use crate::object_cache::entry::Entry;
use crate::object_cache::pin::Pinned;

/// The result of a pinning lookup.
pub(crate) enum FoundPinned<V> {
    Value(Pinned<V>),
    Missing,
    /// The object in this slot has expired.
    Expired(ListSlot),
}

impl<K: Hash + Eq, V: Clone, S: BuildHasher> CachedObjects<K, V, S> {
    /// Looks a key up and pins the value. A hit is counted if it `counts`.
    pub(crate) fn find_pinned<Q: Eq + ?Sized>(&self, hash: u64, key: &Q, counts: bool) -> FoundPinned<V>
    where
        K: Borrow<Q>,
    {
        let now = self.expiry.now();
        let note_age = |age| {
            if counts {
                self.expiry.note_use(age, now);
            }
        };
        {
            let tables = self.shards.of(hash).tables.read();
            let Some((at, entry)) = tables.find(hash, |entry| entry.key.borrow() == key) else {
                return FoundPinned::Missing;
            };
            if self.expiry.is_over(tables.age(at), now) {
                return FoundPinned::Expired(entry.slot);
            }
            if entry.mark.has_pin()
                && let Some(hold) = self.pins.hold(entry.slot)
            {
                tables.age(at).into_iter().for_each(note_age);
                return FoundPinned::Value(Pinned::new(self.value_of(entry, counts), hold));
            }
        }
        let mut tables = self.shards.of(hash).tables.write();
        let Some((at, entry)) = tables.find(hash, |entry| entry.key.borrow() == key) else {
            return FoundPinned::Missing;
        };
        // The embedder's code first, then the mark.
        let value = self.value_of(entry, counts);
        let hold = match self.pins.hold(entry.slot) {
            Some(hold) => hold,
            None => self.pins.make(entry.slot, &entry.payer),
        };
        tables.age(at).into_iter().for_each(note_age);
        if let Some(entry) = tables.get_mut(at) {
            entry.mark.note_pin();
        }
        FoundPinned::Value(Pinned::new(value, hold))
    }

    /// Clones a value, then counts a hit for the object's group if `counts`.
    fn value_of(&self, entry: &Entry<K, V>, counts: bool) -> V {
        let value = entry.value.clone();
        if counts {
            entry.mark.note_use();
            entry.payer.note_hit();
        }
        value
    }

    /// Returns whether readers hold an object: evicting it would free nothing.
    #[inline]
    pub(super) fn is_held(&self, entry: &Entry<K, V>) -> bool {
        entry.mark.has_pin() && self.pins.is_held(entry.slot)
    }

    /// Releases the charge of a removed object, or leaves it to the holders of the object.
    pub(super) fn release_charge(&self, has_pin: bool, slot: ListSlot, charge: Charge) {
        let charge = if has_pin { self.pins.leave(slot, charge) } else { Some(charge) };
        drop(charge);
    }
}
