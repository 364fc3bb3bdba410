//! The table, in shards: entries and flights by hash, each shard behind a lock shared by hits.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering::Relaxed};

use hashbrown::HashTable;
use umemcg_base::{Rank, RankedRwLock};
use umemcg_reclaim::ListSlot;

use super::entry::Entry;
use super::expiry::Age;
use super::flight::Flight;

/// Shift of the hash bits for the choice of the shard. The index inside a shard uses the lowest and
/// the seven highest bits.
const SHARD_SHIFT: u32 = 44;
/// Most shards, by the bits in between.
pub(super) const SHARDS_MAX: usize = 1 << 12;
/// A shard with less than one in this many places in use shrinks.
const SPARSE: usize = 4;
/// A shard with at most this many places never shrinks.
const SMALL: usize = 64;

/// One shard, on cache lines of its own.
#[repr(align(128))]
pub(super) struct Shard<K, V> {
    pub(super) tables: RankedRwLock<Tables<K, V>>,
    /// The address of the places, possibly outdated. (A)
    places_at: AtomicUsize,
}

/// The state under the lock of a shard. Entries are stored densely, with an index of their numbers.
/// Together they take fewer pages than a table of entries with half of its places empty, and a hit
/// on a large cache waits for pages.
pub(super) struct Tables<K, V> {
    /// The number of the shard.
    number: usize,
    /// Numbers of places, by the hash of the key.
    index: HashTable<u32>,
    places: Vec<Option<Entry<K, V>>>,
    /// The age of the entry in the same place; empty without expiry.
    ages: Vec<Age>,
    keeps_ages: bool,
    /// Empty places.
    free: Vec<u32>,
    /// One key has several flights only for several groups.
    pub(super) flights: HashTable<(K, Arc<Flight<V>>)>,
    /// The cache has been dropped; no more inserts.
    pub(super) is_closed: bool,
    /// The bytes of all entries.
    bytes: i64,
    /// The part of `bytes` already in the cache's sum, once the sum is maintained.
    published: Option<i64>,
}

impl<K, V> Shard<K, V> {
    fn new(number: usize, capacity: usize, keeps_ages: bool) -> Self {
        let tables = Tables {
            number,
            index: HashTable::with_capacity(capacity),
            places: Vec::with_capacity(capacity),
            ages: Vec::new(),
            keeps_ages,
            free: Vec::new(),
            flights: HashTable::new(),
            is_closed: false,
            bytes: 0,
            published: None,
        };
        Self { tables: RankedRwLock::new(Rank::ObjectOwner, tables), places_at: AtomicUsize::new(0) }
    }

    /// Records the address of a locked shard's places.
    #[inline]
    pub(super) fn note_places(&self, tables: &Tables<K, V>) {
        let at = tables.places.as_ptr().addr();
        if self.places_at.load(Relaxed) != at {
            self.places_at.store(at, Relaxed);
        }
    }
}

/// Returns the entry in a place from the index.
#[inline]
fn entry_at<K, V>(places: &[Option<Entry<K, V>>], at: u32) -> Option<&Entry<K, V>> {
    places.get(at as usize)?.as_ref()
}

impl<K, V> Tables<K, V> {
    /// Returns the token of a place, for its slot in the lists: the shard and the place.
    #[inline]
    pub(super) fn token(&self, at: u32) -> u64 {
        (self.number as u64) << 32 | u64::from(at)
    }

    /// Returns the number of entries.
    pub(super) fn len(&self) -> usize {
        self.index.len()
    }

    /// Returns the entry of that hash selected by `is_meant`, and its place.
    #[inline]
    pub(super) fn find(
        &self,
        hash: u64,
        is_meant: impl Fn(&Entry<K, V>) -> bool,
    ) -> Option<(u32, &Entry<K, V>)> {
        let at = *self.index.find(hash, |&at| entry_at(&self.places, at).is_some_and(&is_meant))?;
        Some((at, entry_at(&self.places, at)?))
    }

    /// Returns the entry in a place.
    #[inline]
    pub(super) fn get(&self, at: u32) -> Option<&Entry<K, V>> {
        entry_at(&self.places, at)
    }

    /// Returns the entry in a place for changes; hash and key must stay.
    #[inline]
    pub(super) fn get_mut(&mut self, at: u32) -> Option<&mut Entry<K, V>> {
        self.places.get_mut(at as usize)?.as_mut()
    }

    /// Returns all entries, with their places.
    pub(super) fn entries(&self) -> impl Iterator<Item = (u32, &Entry<K, V>)> {
        (0..).zip(&self.places).filter_map(|(at, place)| Some((at, place.as_ref()?)))
    }

    /// Returns the age of the entry in a place, if ages are kept.
    #[inline]
    pub(super) fn age(&self, at: u32) -> Option<&Age> {
        self.ages.get(at as usize)
    }

    /// Takes the entry of this hash out of its place.
    pub(super) fn take(&mut self, hash: u64, at: u32) -> Option<Entry<K, V>> {
        self.index.find_entry(hash, |&there| there == at).ok()?.remove();
        self.free.push(at);
        let entry = self.places[at as usize].take();
        self.bytes -= entry.as_ref().map_or(0, |entry| entry.mark.bytes() as i64);
        entry
    }

    /// Removes all flights with a key selected by `is_meant`.
    pub(super) fn take_flights(
        &mut self,
        hash: u64,
        is_meant: impl Fn(&K) -> bool,
    ) -> Vec<(K, Arc<Flight<V>>)> {
        let mut taken = Vec::new();
        // Bounded by the number of groups loading the key.
        while let Ok(place) = self.flights.find_entry(hash, |(key, _)| is_meant(key)) {
            taken.push(place.remove().0);
        }
        taken
    }

    /// Starts maintaining this shard's part of the cache's sum of bytes.
    pub(super) fn count_bytes_in(&mut self, sum: &AtomicI64) {
        self.published.get_or_insert(0);
        self.publish_bytes(sum);
    }

    /// Adds the change since the last call to the cache's sum of bytes, if maintained.
    #[inline]
    pub(super) fn publish_bytes(&mut self, sum: &AtomicI64) {
        if let Some(published) = &mut self.published {
            sum.fetch_add(self.bytes - *published, Relaxed);
            *published = self.bytes;
        }
    }

    /// Makes room in the index for one more entry. The hashes are computed first: a panic in a hash
    /// changes nothing.
    pub(super) fn make_room(&mut self, rehash: impl Fn(&Entry<K, V>) -> u64) {
        if self.index.len() < self.index.capacity() {
            return;
        }
        let hash_of = |place: &Option<Entry<K, V>>| place.as_ref().map_or(0, &rehash);
        let hashes: Vec<u64> = self.places.iter().map(hash_of).collect();
        self.index.reserve(1, |&at| hashes[at as usize]);
    }

    /// Inserts an entry with a new key; returns its place. There is [room](Self::make_room).
    pub(super) fn put(&mut self, hash: u64, entry: Entry<K, V>, now: u32) -> u32 {
        self.bytes += entry.mark.bytes() as i64;
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
        self.set_age(at, now);
        self.index.insert_unique(hash, at, |_| unreachable!("room was made for one more"));
        at
    }

    /// Replaces an entry by another of the same key; returns the old one.
    pub(super) fn replace(&mut self, at: u32, entry: Entry<K, V>, now: u32) -> Option<Entry<K, V>> {
        self.set_age(at, now);
        self.bytes += entry.mark.bytes() as i64;
        let old = self.places[at as usize].replace(entry);
        self.bytes -= old.as_ref().map_or(0, |old| old.mark.bytes() as i64);
        old
    }

    fn set_age(&mut self, at: u32, now: u32) {
        if !self.keeps_ages {
            return;
        }
        match self.ages.get_mut(at as usize) {
            Some(age) => *age = Age::new(now),
            None => self.ages.push(Age::new(now)),
        }
    }

    /// Removes all entries selected by `is_meant`, by place, except entries with an unknown hash.
    pub(super) fn take_those(
        &mut self,
        is_meant: impl Fn(&Self, u32) -> bool,
        rehash: impl Fn(&Entry<K, V>) -> Option<u64>,
        moved: impl Fn(ListSlot, u64),
    ) -> Vec<Entry<K, V>> {
        let meant: Vec<(u64, u32)> = (0..self.places.len() as u32)
            .filter(|&at| is_meant(self, at))
            .filter_map(|at| Some((rehash(entry_at(&self.places, at)?)?, at)))
            .collect();
        let taken = meant.into_iter().filter_map(|(hash, at)| self.take(hash, at)).collect();
        self.shrink_if_sparse(rehash, moved);
        taken
    }

    /// Takes all entries out; computes no hash.
    pub(super) fn take_all(&mut self) -> Vec<Entry<K, V>> {
        self.index = HashTable::new();
        self.bytes = 0;
        (self.ages, self.free) = (Vec::new(), Vec::new());
        std::mem::take(&mut self.places).into_iter().flatten().collect()
    }

    /// Frees memory when little of it is used, unless a hash is unknown. `moved` is called with the
    /// new tokens of entries.
    pub(super) fn shrink_if_sparse(
        &mut self,
        rehash: impl Fn(&Entry<K, V>) -> Option<u64>,
        moved: impl Fn(ListSlot, u64),
    ) {
        let (len, capacity) = (self.index.len(), self.places.capacity());
        if capacity <= SMALL || len >= capacity / SPARSE {
            return;
        }
        let hashes: Option<Vec<u64>> = self.places.iter().flatten().map(rehash).collect();
        let Some(hashes) = hashes else { return };
        let mut places = Vec::with_capacity(len * 2);
        let mut ages = Vec::with_capacity(if self.keeps_ages { len * 2 } else { 0 });
        let mut old_ages = self.ages.drain(..);
        for place in self.places.drain(..) {
            let age = old_ages.next();
            if let Some(entry) = place {
                moved(entry.slot, (self.number as u64) << 32 | places.len() as u64);
                places.push(Some(entry));
                ages.extend(age);
            }
        }
        drop(old_ages);
        (self.places, self.ages, self.free) = (places, ages, Vec::new());
        self.index = HashTable::with_capacity(len * 2);
        for (at, hash) in (0..).zip(hashes) {
            self.index.insert_unique(hash, at, |_| unreachable!("room was made for twice as many"));
        }
    }
}

/// The table, in shards.
pub(super) struct Shards<K, V>(Box<[Shard<K, V>]>);

impl<K, V> Shards<K, V> {
    /// Creates shards; `nr` is rounded up to a power of two.
    pub(super) fn new(nr: usize, capacity: usize, keeps_ages: bool) -> Self {
        let nr = nr.clamp(1, SHARDS_MAX).next_power_of_two();
        Self((0..nr).map(|number| Shard::new(number, capacity.div_ceil(nr), keeps_ages)).collect())
    }

    #[inline]
    pub(super) fn of(&self, hash: u64) -> &Shard<K, V> {
        &self.0[(hash >> SHARD_SHIFT) as usize & (self.0.len() - 1)]
    }

    /// Returns the shard and the place of a token.
    #[inline]
    pub(super) fn named_by(&self, token: u64) -> (&Shard<K, V>, u32) {
        (&self.0[(token >> 32) as usize & (self.0.len() - 1)], token as u32)
    }

    /// Returns the probable address of the place of a token. Takes no lock.
    #[inline]
    pub(super) fn address_of(&self, token: u64) -> usize {
        let (shard, at) = self.named_by(token);
        shard.places_at.load(Relaxed).wrapping_add(at as usize * size_of::<Option<Entry<K, V>>>())
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Shard<K, V>> {
        self.0.iter()
    }
}
