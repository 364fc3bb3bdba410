//! The progress of one group's background reclaim, and its back-offs.

use std::time::Duration;

use umemcg_base::PAGE_SIZE_U64;

use crate::scan_control::DEF_PRIORITY;

/// Pages of a quantum.
pub const QUANTUM_PAGES: u64 = 32;
/// First back-off of a group from which nothing can be freed.
pub(super) const BACKOFF_FIRST: Duration = Duration::from_millis(20);
/// Back-offs up to this one are for pages that are dirty; a worker that still finds nothing else
/// then takes from other groups (see [`crate::rounds`]).
pub(super) const BACKOFF_IN_VAIN: Duration = Duration::from_millis(160);
/// Back-offs for dirty pages in which something is written but nothing is freed, before they are in
/// vain as well: two seconds.
pub(super) const DIRTY_BACKOFFS_MAX: u32 = 100;
/// Longest.
pub(super) const BACKOFF_MAX: Duration = Duration::from_secs(2);

/// The counts when a worker backed off because it saw nothing but dirty pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct BackoffBaseline {
    /// Write-backs that had finished.
    pub(super) nr_written: u64,
    /// Pages that had been taken on behalf of the group, by any thread.
    pub(super) nr_freed: u64,
    /// Back-offs since the last page was.
    pub(super) nr_backoffs: u32,
}

impl BackoffBaseline {
    /// Returns whether the back-off that ends now was useful: pages were freed, by any thread, or,
    /// for a while, something was written.
    pub(super) fn was_useful(&self, nr_written: u64, nr_freed: u64) -> bool {
        nr_freed != self.nr_freed || (nr_written != self.nr_written && self.nr_backoffs < DIRTY_BACKOFFS_MAX)
    }

    /// Returns the baseline of the next back-off, with these counts.
    pub(super) fn next(before: Option<Self>, nr_written: u64, nr_freed: u64) -> Self {
        let nr_backoffs =
            before.filter(|before| before.nr_freed == nr_freed).map_or(0, |before| before.nr_backoffs);
        Self { nr_written, nr_freed, nr_backoffs: nr_backoffs + 1 }
    }
}

/// The progress of a job, which only the worker that runs it touches.
#[derive(Debug)]
pub(super) struct JobProgress {
    pub(super) priority: u32,
    /// Node of the next quantum.
    pub(super) next_node: usize,
    /// Nodes that still give something; when none is left the group backs off.
    pub(super) candidates: Vec<bool>,
    /// Pages freed since the walk over the subtree last came to its end.
    pub(super) freed_in_round: u64,
    pub(super) backoff: Duration,
    /// The counts when it last backed off for dirty pages.
    pub(super) backed_off_at: Option<BackoffBaseline>,
    /// Bytes whose release was requested since the group last backed off, or began.
    pub(super) releasing_bytes: u64,
    /// It backs off until requested releases happen: the bytes that had been released before the
    /// request, and how often it has backed off since.
    pub(super) awaits: Option<(u64, u32)>,
    /// A round at the last priority brought nothing and `low` was in the way: only `min` counts,
    /// until the high mark is reached.
    pub(super) overrides_low: bool,
    /// `low` was in the way since the priorities were last started from the beginning.
    pub(super) low_was_in_the_way: bool,
    /// Reclaim has started and has not reached the high mark yet.
    pub(super) is_active: bool,
}

/// Back-offs, each twice as long as the previous one, before requested releases no longer count:
/// 140 ms.
const RELEASE_BACKOFFS_MAX: u32 = 2;

impl JobProgress {
    pub(super) fn new(nr_nodes: usize) -> Self {
        Self {
            priority: DEF_PRIORITY,
            next_node: 0,
            candidates: vec![true; nr_nodes],
            freed_in_round: 0,
            backoff: BACKOFF_FIRST,
            backed_off_at: None,
            releasing_bytes: 0,
            awaits: None,
            overrides_low: false,
            low_was_in_the_way: false,
            is_active: false,
        }
    }

    /// Resets the state, since the high mark was reached: the next reclaim starts from the first
    /// priority.
    pub(super) fn start_again(&mut self) {
        *self = Self { next_node: self.next_node, ..Self::new(self.candidates.len()) };
    }

    /// Returns whether bytes whose release is requested count as freed; `None` if the group
    /// continues to back off for earlier requests. `released_bytes` is the number of bytes released
    /// so far.
    pub(super) fn counts_releasing_bytes(&mut self, released_bytes: u64) -> Option<bool> {
        match self.awaits.take() {
            Some((before, nr_backoffs)) if released_bytes == before => {
                if nr_backoffs < RELEASE_BACKOFFS_MAX {
                    self.awaits = Some((before, nr_backoffs + 1));
                    return None;
                }
                // The releases do not happen: the names are in use, or the kernel does not answer.
                Some(false)
            }
            Some(_) => {
                self.backoff = BACKOFF_FIRST;
                Some(true)
            }
            None => Some(true),
        }
    }

    /// Notes that a quantum has freed pages. Bytes whose release is requested count as freed for
    /// now: a worker that asked for more meanwhile would take far too much.
    pub(super) fn note_freed(&mut self, pages: u64, releasing_bytes: u64) {
        self.releasing_bytes += releasing_bytes;
        self.freed_in_round += pages + releasing_bytes / PAGE_SIZE_U64;
        if pages > 0 || releasing_bytes > 0 {
            self.backoff = BACKOFF_FIRST;
            self.backed_off_at = None;
        }
    }

    /// Chooses the next priority when the walk over the subtree has come to its end with a quantum
    /// on this node.
    pub(super) fn end_round(&mut self, node: usize) {
        if self.freed_in_round >= QUANTUM_PAGES {
            // One step gentler, not the gentlest: at the gentlest priority small groups give
            // nothing.
            self.priority = (self.priority + 1).min(DEF_PRIORITY);
            self.candidates.fill(true);
        } else if self.priority > 0 {
            self.priority -= 1;
        } else {
            // Only memory that `low` protects is left, so take that.
            let gives_up_low = self.freed_in_round == 0 && self.low_was_in_the_way && !self.overrides_low;
            self.overrides_low |= gives_up_low;
            self.low_was_in_the_way = false;
            self.candidates[node] = gives_up_low || self.freed_in_round > 0;
            self.priority = DEF_PRIORITY;
        }
        self.freed_in_round = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_back_off_is_useful_while_a_worker_frees_pages() {
        let mut baseline = BackoffBaseline::next(None, 5, 40);
        for nr_freed in 41..1041 {
            assert!(baseline.was_useful(5, nr_freed));
            baseline = BackoffBaseline::next(Some(baseline), 5, nr_freed);
            assert_eq!(baseline.nr_backoffs, 1);
        }
        assert!(!baseline.was_useful(5, 1040), "nothing was written and nothing was freed");
    }

    #[test]
    fn written_pages_are_waited_for_as_often_as_the_bound_says() {
        let mut baseline = BackoffBaseline::next(None, 0, 7);
        for nr_written in 1..u64::from(DIRTY_BACKOFFS_MAX) {
            assert!(baseline.was_useful(nr_written, 7), "{nr_written}");
            baseline = BackoffBaseline::next(Some(baseline), nr_written, 7);
        }
        assert!(!baseline.was_useful(u64::MAX, 7));
        assert!(baseline.was_useful(0, 8), "but for a worker that has freed something");
    }
}
