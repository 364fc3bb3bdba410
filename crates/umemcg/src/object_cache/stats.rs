//! Statistics of a cache, for one group or for all.

/// Statistics of a cache.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ObjectStats {
    /// Objects in the cache.
    pub objects: u64,
    /// Bytes charged for them.
    pub bytes: u64,
    /// Bytes charged for objects removed from the cache but still held by readers; see
    /// [`ObjectCache::get_pinned`](super::ObjectCache::get_pinned).
    pub pinned_bytes: u64,
    /// Remembered evicted objects.
    pub ghosts: u64,
    /// Lookups that found an object; counted for the group named by the lookup, or else for the
    /// group charged for the object.
    pub hits: u64,
    /// Lookups that found none; counted for a group only when the lookup names one.
    pub misses: u64,
    /// Inserted objects whose ghost was found.
    pub ghost_hits: u64,
    /// Inserted objects.
    pub inserted: u64,
    /// Objects declined for lack of room.
    pub declined: u64,
    /// Objects evicted because memory was needed.
    pub evicted: u64,
    /// The part of `evicted` due to the threads of background reclaim.
    pub evicted_by_workers: u64,
    /// Objects that expired.
    pub expired: u64,
    /// Objects removed by a caller.
    pub removed: u64,
    /// Objects whose key was inserted again.
    pub replaced: u64,
}

impl ObjectStats {
    /// Returns the number of objects removed from the cache.
    pub fn departed(&self) -> u64 {
        self.evicted + self.expired + self.removed + self.replaced
    }

    /// Returns the fraction of lookups that hit; 0 if there were none.
    pub fn hit_ratio(&self) -> f64 {
        let lookups = self.hits + self.misses;
        if lookups == 0 { 0.0 } else { self.hits as f64 / lookups as f64 }
    }

    pub(super) fn add(&mut self, other: &Self) {
        self.objects += other.objects;
        self.bytes += other.bytes;
        self.pinned_bytes += other.pinned_bytes;
        self.evicted_by_workers += other.evicted_by_workers;
        self.ghosts += other.ghosts;
        self.hits += other.hits;
        self.misses += other.misses;
        self.ghost_hits += other.ghost_hits;
        self.inserted += other.inserted;
        self.declined += other.declined;
        self.evicted += other.evicted;
        self.expired += other.expired;
        self.removed += other.removed;
        self.replaced += other.replaced;
    }
}
