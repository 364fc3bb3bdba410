//! The figures of a cache, for one group or for all.

/// What a cache has, and what happened to it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ObjectStats {
    /// Objects that are there.
    pub objects: u64,
    /// Bytes charged for them.
    pub bytes: u64,
    /// Objects that were evicted and are remembered.
    pub ghosts: u64,
    /// Look-ups that found an object; counted for the group that pays for it.
    pub hits: u64,
    /// Look-ups that found none; counted for a group only when the look-up names one.
    pub misses: u64,
    /// Inserted objects that were remembered.
    pub ghost_hits: u64,
    /// Objects that came in.
    pub inserted: u64,
    /// Objects that did not, for want of room.
    pub declined: u64,
    /// Objects that went because their memory was needed.
    pub evicted: u64,
    /// Objects that went because they were too old.
    pub expired: u64,
    /// Objects that a caller removed.
    pub removed: u64,
    /// Objects whose key was inserted again.
    pub replaced: u64,
}

impl ObjectStats {
    /// Objects that went.
    pub fn departed(&self) -> u64 {
        self.evicted + self.expired + self.removed + self.replaced
    }

    /// Hits of all look-ups; 0 when there were none.
    pub fn hit_ratio(&self) -> f64 {
        let lookups = self.hits + self.misses;
        if lookups == 0 { 0.0 } else { self.hits as f64 / lookups as f64 }
    }

    pub(super) fn add(&mut self, other: &Self) {
        self.objects += other.objects;
        self.bytes += other.bytes;
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
