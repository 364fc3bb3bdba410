//! Statistics of a cache, for one group or for all.

/// Statistics of a cache.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ObjectStats {
    /// Objects in the cache.
    pub objects: u64,
    /// Bytes charged for them.
    pub bytes: u64,
    /// Bytes charged for objects that have left the cache and that readers still hold; see
    /// [`ObjectCache::get_pinned`](super::ObjectCache::get_pinned).
    pub pinned_bytes: u64,
    /// Evicted objects that are remembered.
    pub ghosts: u64,
    /// Look-ups that found an object; counted for the group that the look-up names, or else for the
    /// group that pays for the object.
    pub hits: u64,
    /// Look-ups that found none; counted for a group only when the look-up names one.
    pub misses: u64,
    /// Inserted objects whose ghost was found.
    pub ghost_hits: u64,
    /// Objects that were inserted.
    pub inserted: u64,
    /// Objects that were declined for lack of room.
    pub declined: u64,
    /// Objects that were evicted because memory was needed.
    pub evicted: u64,
    /// Of those, objects that background reclaim has evicted, in threads of its own.
    pub evicted_by_workers: u64,
    /// Objects that expired.
    pub expired: u64,
    /// Objects that a caller removed.
    pub removed: u64,
    /// Objects whose key was inserted again.
    pub replaced: u64,
}

impl ObjectStats {
    /// Returns the number of objects that left the cache.
    pub fn departed(&self) -> u64 {
        self.evicted + self.expired + self.removed + self.replaced
    }

    /// Returns the fraction of look-ups that hit; 0 if there were none.
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
