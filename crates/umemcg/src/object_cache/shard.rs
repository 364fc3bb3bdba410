//! The table, in shards: entries and flights by hash, each shard behind a lock that hits share.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use hashbrown::HashTable;
use umemcg_base::{Rank, RankedRwLock};

use super::entry::Entry;
use super::loading::Flight;

/// Bits of a hash below those that choose the shard. The table inside uses the lowest and the seven highest.
const SHARD_SHIFT: u32 = 44;
/// Most shards: what the bits between allow.
pub(super) const SHARDS_MAX: usize = 1 << 12;
/// A shard of whose places no more than this part is in use shrinks.
const SPARSE: usize = 4;
/// Shards of no more places never shrink.
const SMALL: usize = 64;

/// One shard, on cache lines of its own.
#[repr(align(128))]
pub(super) struct Shard<K, V> {
    pub(super) tables: RankedRwLock<Tables<K, V>>,
    /// Look-ups that found nothing. (A)
    misses: AtomicU64,
}

/// What the lock of a shard guards. Entries lie densely, and a table of their numbers is searched: together they take fewer pages
/// than a table of entries, half of whose places are empty, and it is pages that a hit on a large cache waits for.
pub(super) struct Tables<K, V> {
    /// Numbers of places, by the hash of the key.
    index: HashTable<u32>,
    places: Vec<Option<Entry<K, V>>>,
    /// Places that are empty.
    free: Vec<u32>,
    pub(super) flights: HashTable<(K, Arc<Flight<V>>)>,
}

impl<K, V> Shard<K, V> {
    fn new(capacity: usize) -> Self {
        let tables = Tables {
            index: HashTable::with_capacity(capacity),
            places: Vec::with_capacity(capacity),
            free: Vec::new(),
            flights: HashTable::new(),
        };
        Self { tables: RankedRwLock::new(Rank::ObjectOwner, tables), misses: AtomicU64::new(0) }
    }

    pub(super) fn note_miss(&self) {
        self.misses.fetch_add(1, Relaxed);
    }
}

/// The entry in a place that the index leads to.
#[inline]
fn entry_at<K, V>(places: &[Option<Entry<K, V>>], at: u32) -> Option<&Entry<K, V>> {
    places.get(at as usize)?.as_ref()
}

impl<K, V> Tables<K, V> {
    /// Entries that there are.
    pub(super) fn len(&self) -> usize {
        self.index.len()
    }

    /// The entry of that hash that is meant.
    #[inline]
    pub(super) fn find(&self, hash: u64, is_meant: impl Fn(&Entry<K, V>) -> bool) -> Option<&Entry<K, V>> {
        let at = self.index.find(hash, |&at| entry_at(&self.places, at).is_some_and(&is_meant))?;
        entry_at(&self.places, *at)
    }

    /// The same, to be changed; hash and key must stay.
    pub(super) fn find_mut(
        &mut self,
        hash: u64,
        is_meant: impl Fn(&Entry<K, V>) -> bool,
    ) -> Option<&mut Entry<K, V>> {
        let at = self.index.find(hash, |&at| entry_at(&self.places, at).is_some_and(&is_meant))?;
        self.places.get_mut(*at as usize)?.as_mut()
    }

    /// Takes the entry of that hash out that is meant.
    pub(super) fn take(&mut self, hash: u64, is_meant: impl Fn(&Entry<K, V>) -> bool) -> Option<Entry<K, V>> {
        let is_meant = |&at: &u32| entry_at(&self.places, at).is_some_and(&is_meant);
        let (at, _) = self.index.find_entry(hash, is_meant).ok()?.remove();
        self.free.push(at);
        self.places[at as usize].take()
    }

    /// Puts an entry in whose key is not there.
    pub(super) fn put(&mut self, hash: u64, entry: Entry<K, V>, rehash: impl Fn(&Entry<K, V>) -> u64) {
        let at = match self.free.pop() {
            Some(at) => {
                self.places[at as usize] = Some(entry);
                at
            }
            None => {
                self.places.push(Some(entry));
                self.places.len() as u32 - 1
            }
        };
        let places = &self.places;
        self.index.insert_unique(hash, at, |&at| entry_at(places, at).map_or(0, &rehash));
    }

    /// Takes out all that are meant.
    pub(super) fn take_all(
        &mut self,
        is_meant: impl Fn(&Entry<K, V>) -> bool,
        rehash: impl Fn(&Entry<K, V>) -> u64,
    ) -> Vec<Entry<K, V>> {
        let meant: Vec<(u64, u32)> = (0..self.places.len() as u32)
            .filter_map(|at| {
                let entry = entry_at(&self.places, at).filter(|entry| is_meant(entry))?;
                Some((rehash(entry), at))
            })
            .collect();
        let mut taken = Vec::with_capacity(meant.len());
        for (hash, at) in meant {
            if let Ok(there) = self.index.find_entry(hash, |&there| there == at) {
                there.remove();
            }
            self.free.push(at);
            taken.extend(self.places[at as usize].take());
        }
        self.shrink_if_sparse(rehash);
        taken
    }

    /// Gives memory back when little of it is used.
    pub(super) fn shrink_if_sparse(&mut self, rehash: impl Fn(&Entry<K, V>) -> u64) {
        let (len, capacity) = (self.index.len(), self.places.capacity());
        if capacity <= SMALL || len >= capacity / SPARSE {
            return;
        }
        let mut places = Vec::with_capacity(len * 2);
        places.extend(self.places.drain(..).filter(Option::is_some));
        (self.places, self.free) = (places, Vec::new());
        self.index.clear();
        let places = &self.places;
        let hash_at = |&at: &u32| entry_at(places, at).map_or(0, &rehash);
        self.index.shrink_to(len * 2, hash_at);
        for at in 0..places.len() as u32 {
            self.index.insert_unique(hash_at(&at), at, hash_at);
        }
    }
}

/// All shards.
pub(super) struct Shards<K, V>(Box<[Shard<K, V>]>);

impl<K, V> Shards<K, V> {
    /// `nr` is rounded up to a power of two.
    pub(super) fn new(nr: usize, capacity: usize) -> Self {
        let nr = nr.clamp(1, SHARDS_MAX).next_power_of_two();
        Self((0..nr).map(|_| Shard::new(capacity.div_ceil(nr))).collect())
    }

    #[inline]
    pub(super) fn of(&self, hash: u64) -> &Shard<K, V> {
        &self.0[(hash >> SHARD_SHIFT) as usize & (self.0.len() - 1)]
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Shard<K, V>> {
        self.0.iter()
    }

    pub(super) fn nr_misses(&self) -> u64 {
        self.iter().map(|shard| shard.misses.load(Relaxed)).sum()
    }
}
