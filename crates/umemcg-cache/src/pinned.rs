//! Pages handed to a reader: pinned while it copies or sends them, unpinned when dropped.

use std::fmt;
use std::sync::Arc;

use umemcg_arena::{FrameId, Segment};
use umemcg_group::hit_counters::count_hits;
use umemcg_group::{Group, StatItem};

use crate::cache_core::CacheCore;
use crate::overrun::{Overrun, OverrunClaim};

/// Segments kept in place: reads of this many pages allocate nothing.
const NR_IN_PLACE: usize = 4;

/// A run of a file's bytes in pinned frames. The frames stay readable until this is dropped,
/// whatever happens to the file; their contents may change under a concurrent write, as in any page
/// cache. Borrows the cache from the file: a count shared by all readers would be a cache line
/// written by all of them.
///
/// The claim is released after the pins: fields are dropped after `drop`.
pub struct PinnedPages<'a> {
    cache: &'a CacheCore,
    /// Segments in `few`; when there are more than fit, all are in `many`.
    nr_few: u32,
    /// Pages fetched and not used since.
    nr_fetched: u32,
    few: [Segment; NR_IN_PLACE],
    many: Vec<Segment>,
    /// For pages already out of their file, because their group has no room for them. Boxed: it is
    /// rare, and a hit moves this.
    claim: Option<Box<OverrunClaim>>,
}

impl<'a> PinnedPages<'a> {
    /// Creates an empty set, with room for `nr`.
    #[inline]
    pub(crate) fn new(cache: &'a CacheCore, nr: usize) -> Self {
        let many = if nr > NR_IN_PLACE { Vec::with_capacity(nr) } else { Vec::new() };
        Self {
            cache,
            nr_few: 0,
            nr_fetched: 0,
            few: [Segment { frame: FrameId::NONE, offset: 0, len: 0 }; NR_IN_PLACE],
            many,
            claim: None,
        }
    }

    /// Takes over a pin.
    #[inline]
    pub(crate) fn push(&mut self, segment: Segment) {
        if (self.nr_few as usize) < NR_IN_PLACE {
            self.few[self.nr_few as usize] = segment;
            self.nr_few += 1;
            return;
        }
        if self.many.is_empty() {
            self.many.extend_from_slice(&self.few);
        }
        self.many.push(segment);
    }

    #[inline]
    pub(crate) fn note_fetched(&mut self, nr: u32) {
        self.nr_fetched = nr;
    }

    /// Counts hits and misses for the group of the reader. The first use of a page after it was
    /// fetched is a miss.
    #[inline]
    pub fn count(&self, group: &Arc<Group>) {
        count_hits(group, self.segments().len() as u64 - u64::from(self.nr_fetched));
        if self.nr_fetched > 0 {
            group.owner().count(StatItem::CacheMiss, i64::from(self.nr_fetched));
        }
    }

    /// Keeps the claim of pages beyond the limit until the pages are unpinned.
    pub(crate) fn keep_claim(&mut self, claim: Option<OverrunClaim>) {
        self.claim = claim.map(Box::new);
    }

    /// Returns the pages without the borrow, to be kept over threads.
    pub(crate) fn keep(mut self, cache: &Arc<CacheCore>) -> KeptPages {
        let many = std::mem::take(&mut self.many);
        let segments = if many.is_empty() { self.few[..self.nr_few as usize].to_vec() } else { many };
        self.nr_few = 0;
        KeptPages { cache: Arc::clone(cache), segments, claim: self.claim.take().map(|claim| *claim) }
    }

    /// Returns the bytes, in order.
    #[inline]
    pub fn segments(&self) -> &[Segment] {
        if self.many.is_empty() { &self.few[..self.nr_few as usize] } else { &self.many }
    }

    /// Returns the number of bytes.
    pub fn len(&self) -> usize {
        self.segments().iter().map(|s| usize::from(s.len)).sum()
    }

    /// Returns whether there are none: the read was at or past the end of the file.
    pub fn is_empty(&self) -> bool {
        self.nr_few == 0
    }

    /// Copies the bytes out; `into` must be at least [`len`](Self::len) long. Returns how many.
    #[inline]
    pub fn copy_to(&self, into: &mut [u8]) -> usize {
        let mut at = 0;
        for segment in self.segments() {
            let len = usize::from(segment.len);
            self.cache.arena().copy_out(segment.frame, usize::from(segment.offset), &mut into[at..at + len]);
            at += len;
        }
        at
    }

    /// Returns the bytes as a vector, for tests and tools.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.len()];
        self.copy_to(&mut bytes);
        bytes
    }
}

impl Drop for PinnedPages<'_> {
    #[inline]
    fn drop(&mut self) {
        for segment in self.segments() {
            self.cache.reclaimer().unpin(segment.frame);
        }
    }
}

/// The pinned pages of a read, while no thread works on it. The claim is released after the pins.
pub(crate) struct KeptPages {
    cache: Arc<CacheCore>,
    segments: Vec<Segment>,
    pub(crate) claim: Option<OverrunClaim>,
}

impl KeptPages {
    /// Takes over a pin.
    pub(crate) fn push(&mut self, segment: Segment) {
        self.segments.push(segment);
    }

    /// Returns the pages for a thread that continues the read, and the claim.
    pub(crate) fn resume<'a>(&mut self, cache: &'a CacheCore) -> (PinnedPages<'a>, Option<OverrunClaim>) {
        let mut pinned = PinnedPages::new(cache, self.segments.len());
        self.segments.drain(..).for_each(|segment| pinned.push(segment));
        (pinned, self.claim.take())
    }

    pub(crate) fn overrun(&self) -> &Arc<Overrun> {
        self.cache.overrun()
    }
}

impl Drop for KeptPages {
    fn drop(&mut self) {
        for segment in &self.segments {
            self.cache.reclaimer().unpin(segment.frame);
        }
    }
}

impl fmt::Debug for PinnedPages<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PinnedPages").field("segments", &self.segments()).finish_non_exhaustive()
    }
}
