//! The quota of a tmpfs volume: its pages against its size.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use umemcg::files::PageQuota;

/// The pages of one volume. All counts are relaxed: each stands alone.
#[derive(Debug)]
pub(super) struct VolumeQuota {
    max: u64,
    used: AtomicU64,
}

impl VolumeQuota {
    pub(super) fn new(max: Option<u64>) -> Self {
        Self { max: max.unwrap_or(u64::MAX), used: AtomicU64::new(0) }
    }

    /// Returns the most pages, if there is a bound.
    pub(super) fn max(&self) -> Option<u64> {
        (self.max != u64::MAX).then_some(self.max)
    }

    /// Returns the number of pages in use.
    pub(super) fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }
}

/// The pages of one file, counted against its volume.
#[derive(Debug)]
pub(super) struct FilePages {
    size: Arc<VolumeQuota>,
    nr: AtomicU64,
}

impl FilePages {
    pub(super) fn new(size: &Arc<VolumeQuota>) -> Self {
        Self { size: Arc::clone(size), nr: AtomicU64::new(0) }
    }

    /// Returns the number of pages of the file; a few more while a write is under way.
    pub(super) fn nr(&self) -> u64 {
        self.nr.load(Ordering::Relaxed)
    }
}

impl PageQuota for FilePages {
    fn take_up_to(&self, nr: u64) -> u64 {
        let mut taken = 0;
        let take = |used: u64| {
            taken = nr.min(self.size.max.saturating_sub(used));
            Some(used + taken)
        };
        let _ = self.size.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take);
        self.nr.fetch_add(taken, Ordering::Relaxed);
        taken
    }

    fn give(&self, nr: u64) {
        let before = self.nr.fetch_sub(nr, Ordering::Relaxed);
        assert!(before >= nr, "a file gave back more pages than it had");
        self.size.used.fetch_sub(nr, Ordering::Relaxed);
    }
}
