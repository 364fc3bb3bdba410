//! Windows begun before their reader reaches them, where the store begins reads.
//!
//! [`Readahead`] says when, and how far. A window is begun in parts, each a fill of its own, so a
//! reader that reaches it waits for the first part alone. Read-ahead gets only spare resources:
//!
//! - free memory of the group, or memory that it used once and no longer needs; within a quarter of
//!   the lowest limit
//! - reads of the store while no other read waits to be begun, up to half of the group's part
//!
//! If it gets less, the window ends there, and the rest is tried again a little later.
//!
//! A cache above reads ahead itself, and its requests may come out of order: pages beyond a request
//! may have been handed over already. So for such a file only the requested pages are read, or,
//! where a request costs a round trip, a window that ends before a page of the cache above. A
//! request past that cache has no read-ahead of its own either.

use std::ops::Range;
use std::sync::Arc;

use umemcg_base::PAGE_SIZE_U64;
use umemcg_group::Group;

use super::File;
use super::store_fill::{PART_PAGES, StoreFill};
use crate::ahead_room::AheadLimit;
use crate::index::Entry;
use crate::readahead::{AheadBounds, Readahead};

impl File {
    /// Returns whether windows are begun before their reader reaches them.
    pub(super) fn reads_ahead(&self) -> bool {
        self.begins_reads() && !self.is_kept_above()
    }

    /// Returns whether to read requested pages only, because a cache above reads ahead.
    pub(super) fn is_read_ahead_above(&self) -> bool {
        self.is_kept_above() && !self.begins_reads()
    }

    /// Returns the largest window for a reader, in pages.
    pub(super) fn window_max(&self, group: &Group, readahead: &Readahead) -> u64 {
        match &self.store_fills {
            Some(fills) if self.reads_ahead() => {
                let ahead_max = AheadLimit::of(group).nr_pages();
                readahead.window_max(Some(fills.pace.window_pages().unwrap_or(u64::MAX).min(ahead_max / 2)))
            }
            _ => readahead.window_max(None),
        }
    }

    /// Begins the next window if a read of pages `first..=last` makes it due. Waits for nothing but
    /// a little reclaim, and fails silently; no lock may be held.
    pub(super) fn read_ahead(
        self: &Arc<Self>,
        group: &Arc<Group>,
        (first, last): (u64, u64),
        readahead: &Readahead,
    ) {
        if !self.reads_ahead() {
            return;
        }
        let (asked, limit) = (first..last + 1, AheadLimit::of(group));
        let bounds = AheadBounds {
            window_max: self.window_max(group, readahead),
            ahead_max: limit.nr_pages(),
            file_end: self.len().div_ceil(PAGE_SIZE_U64),
        };
        let Some(window) = readahead.plan_ahead(&asked, bounds) else { return };
        let mut at = window.start;
        while at < window.end {
            let part = at..window.end.min(at + PART_PAGES as u64);
            let end = part.end;
            if !self.begin_part(group, part, limit) {
                return readahead.cut(&asked, &window, at);
            }
            at = end;
        }
    }

    /// Has the store begin to read the missing pages among `pages`. Returns whether it need not be
    /// tried again.
    fn begin_part(self: &Arc<Self>, group: &Arc<Group>, pages: Range<u64>, limit: AheadLimit) -> bool {
        let is_missing = |page: &u64| !matches!(self.index.lookup(*page), Entry::Page(_));
        let Some(first) = pages.clone().find(is_missing) else { return true };
        let nr = pages.end - first;
        let begin = || {
            let claim = self.cache.begun_reads().try_claim_ahead(group, self.store.source_id())?;
            let ahead = self.cache.ahead_room().try_claim(limit, nr)?;
            let new = self.pages_ahead(group, first, nr)?;
            Some(StoreFill::begin_ahead((self, group), new, first, (claim, ahead)))
        };
        begin().unwrap_or(false)
    }
}
