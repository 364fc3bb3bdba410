//! The progress of one group's background reclaim, and its back-offs.

use std::time::Duration;

use umemcg_base::PAGE_SIZE_U64;

use crate::scan_control::DEF_PRIORITY;

/// Pages of a quantum.
pub const QUANTUM_PAGES: u64 = 32;
/// First back-off of a group with nothing to free.
pub(super) const BACKOFF_FIRST: Duration = Duration::from_millis(20);
/// Back-offs up to this length wait for dirty pages; a worker still finding nothing else then takes
/// from other groups (see [`crate::rounds`]).
pub(super) const BACKOFF_IN_VAIN: Duration = Duration::from_millis(160);
/// Back-offs for dirty pages with something written but nothing freed, before they count as in vain
/// as well: two seconds.
pub(super) const DIRTY_BACKOFFS_MAX: u32 = 100;
/// Longest back-off.
pub(super) const BACKOFF_MAX: Duration = Duration::from_secs(2);

/// The counts when a worker backed off because it found only dirty pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct BackoffBaseline {
    /// Finished write-backs.
    pub(super) nr_written: u64,
    /// Pages taken on behalf of the group, by any thread.
    pub(super) nr_freed: u64,
    /// Back-offs since the last page was taken.
    pub(super) nr_backoffs: u32,
}

impl BackoffBaseline {
    /// Returns whether the back-off ending now was useful: pages were freed, by any thread, or, for
    /// a while, something was written.
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

/// The progress of a job, touched only by its current worker.
#[derive(Debug)]
pub(super) struct JobProgress {
    pub(super) priority: u32,
    /// A round at the last priority brought nothing: the group backs off.
    pub(super) is_exhausted: bool,
    /// Pages freed since the walk over the subtree last came to its end.
    pub(super) freed_in_round: u64,
    pub(super) backoff: Duration,
    /// The counts when it last backed off for dirty pages.
    pub(super) backed_off_at: Option<BackoffBaseline>,
    pub(super) requested: Requested,
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
/// The same while bytes are [leaving](crate::Leaving) the group, since their requests always end:
/// 1.3 s.
const LEAVING_BACKOFFS_MAX: u32 = 5;

/// The pending releases requested by a worker.
///
/// The group counts the bytes of ended requests, whichever thread made them. The pending bytes are
/// the distance from this count to its value once all requests have ended.
#[derive(Debug, Default)]
pub(super) struct Requested {
    /// The group's count when all requests of the worker have ended.
    ends_at: u64,
    /// The group's count when the worker last looked at it.
    seen: u64,
    /// Some requests have ended since the first pending one was made.
    has_some_ended: bool,
    /// The worker has backed off for them.
    is_awaited: bool,
    /// Back-offs since any request ended.
    nr_backoffs: u32,
}

impl Requested {
    /// Returns the pending bytes.
    pub(super) fn coming_bytes(&self) -> u64 {
        self.ends_at.saturating_sub(self.seen)
    }

    /// Returns the count at which another look is worthwhile: half of the pending bytes have ended.
    pub(super) fn wake_at(&self) -> u64 {
        match self.coming_bytes() {
            0 => u64::MAX,
            coming => self.seen + coming.div_ceil(2),
        }
    }

    /// Notes a request.
    fn add(&mut self, bytes: u64) {
        self.ends_at = self.ends_at.max(self.seen) + bytes;
    }
}

impl JobProgress {
    pub(super) fn new() -> Self {
        Self {
            priority: DEF_PRIORITY,
            is_exhausted: false,
            freed_in_round: 0,
            backoff: BACKOFF_FIRST,
            backed_off_at: None,
            requested: Requested::default(),
            overrides_low: false,
            low_was_in_the_way: false,
            is_active: false,
        }
    }

    /// Resets the state, since the high mark was reached: the next reclaim starts from the first
    /// priority.
    pub(super) fn start_again(&mut self) {
        *self = Self::new();
    }

    /// Returns whether requested bytes count as freed; `None` if the group backs off for the
    /// pending ones. `ended_bytes` is the group's count of ended requests. `is_leaving` is true
    /// while a request for pages has not ended. `is_enough` returns whether this many bytes fewer
    /// would reach the high mark.
    pub(super) fn counts_releasing_bytes(
        &mut self,
        (ended_bytes, is_leaving): (u64, bool),
        is_enough: impl FnOnce(u64) -> bool,
    ) -> Option<bool> {
        let requested = &mut self.requested;
        let has_more_ended = ended_bytes != requested.seen;
        requested.seen = ended_bytes;
        if requested.coming_bytes() == 0 {
            self.requested = Requested { seen: ended_bytes, ..Requested::default() };
            self.backoff = if has_more_ended { BACKOFF_FIRST } else { self.backoff };
            return Some(true);
        }
        if has_more_ended {
            self.backoff = BACKOFF_FIRST;
            requested.nr_backoffs = 0;
            requested.has_some_ended = true;
        } else if requested.is_awaited {
            requested.nr_backoffs += 1;
        }
        let nr_backoffs_max = if is_leaving { LEAVING_BACKOFFS_MAX } else { RELEASE_BACKOFFS_MAX };
        if requested.nr_backoffs > nr_backoffs_max {
            // The rest is not released: the names are in use, or the kernel does not answer.
            let has_some_ended = requested.has_some_ended;
            self.requested = Requested { seen: ended_bytes, ..Requested::default() };
            return Some(has_some_ended);
        }
        let waits_on = requested.is_awaited && !has_more_ended;
        requested.is_awaited = waits_on || is_enough(requested.coming_bytes());
        if requested.is_awaited { None } else { Some(true) }
    }

    /// Notes pages freed by a quantum. Requested bytes count as freed for now: a worker asking for
    /// more meanwhile would take far too much.
    pub(super) fn note_freed(&mut self, pages: u64, releasing_bytes: u64) {
        self.requested.add(releasing_bytes);
        self.freed_in_round += pages + releasing_bytes / PAGE_SIZE_U64;
        if pages > 0 || releasing_bytes > 0 {
            self.backoff = BACKOFF_FIRST;
            self.backed_off_at = None;
        }
    }

    /// Chooses the next priority after a walk over the subtree has ended.
    pub(super) fn end_round(&mut self) {
        if self.freed_in_round >= QUANTUM_PAGES {
            // One step gentler, not the gentlest: at the gentlest priority small groups give
            // nothing.
            self.priority = (self.priority + 1).min(DEF_PRIORITY);
        } else if self.priority > 0 {
            self.priority -= 1;
        } else {
            // Only memory protected by `low` is left, so take it.
            let gives_up_low = self.freed_in_round == 0 && self.low_was_in_the_way && !self.overrides_low;
            self.overrides_low |= gives_up_low;
            self.low_was_in_the_way = false;
            self.is_exhausted = !gives_up_low && self.freed_in_round == 0;
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

    /// A mark this many bytes away.
    fn reached_by(distance: u64) -> impl FnOnce(u64) -> bool {
        move |coming| coming >= distance
    }

    #[test]
    fn a_worker_waits_on_when_part_of_its_request_has_ended() {
        let mut progress = JobProgress::new();
        assert_eq!(progress.counts_releasing_bytes((700, false), reached_by(100)), Some(true));
        progress.note_freed(0, 100);
        assert_eq!(progress.counts_releasing_bytes((700, false), reached_by(100)), None);
        assert_eq!(progress.requested.wake_at(), 750);
        // However long the rest takes, as long as some of it ends.
        for ended in 701..800 {
            assert_eq!(progress.counts_releasing_bytes((ended, false), reached_by(800 - ended)), None);
        }
        assert_eq!(progress.counts_releasing_bytes((800, false), reached_by(50)), Some(true));
        assert_eq!(progress.requested.coming_bytes(), 0);
    }

    #[test]
    fn only_what_is_not_on_its_way_is_asked_for() {
        let mut progress = JobProgress::new();
        progress.note_freed(0, 100);
        assert_eq!(progress.counts_releasing_bytes((0, false), reached_by(100)), None);
        // Half has ended, and others have charged more.
        assert_eq!(progress.counts_releasing_bytes((50, false), reached_by(70)), Some(true));
        progress.note_freed(0, 20);
        assert_eq!(progress.counts_releasing_bytes((50, false), reached_by(70)), None);
        assert_eq!(progress.requested.coming_bytes(), 70);
    }

    #[test]
    fn requests_that_do_not_end_count_no_more() {
        let cases = [(0, false, RELEASE_BACKOFFS_MAX), (40, true, RELEASE_BACKOFFS_MAX)];
        for (ended, counts, nr_backoffs) in cases.into_iter().chain([(0, false, LEAVING_BACKOFFS_MAX)]) {
            let is_leaving = nr_backoffs == LEAVING_BACKOFFS_MAX;
            let mut progress = JobProgress::new();
            progress.note_freed(0, 100);
            assert_eq!(progress.counts_releasing_bytes((0, is_leaving), reached_by(100)), None);
            if ended > 0 {
                assert_eq!(progress.counts_releasing_bytes((ended, is_leaving), reached_by(60)), None);
            }
            for _ in 0..nr_backoffs {
                assert_eq!(progress.counts_releasing_bytes((ended, is_leaving), reached_by(60)), None);
            }
            assert_eq!(progress.counts_releasing_bytes((ended, is_leaving), reached_by(60)), Some(counts));
            assert_eq!(progress.requested.coming_bytes(), 0);
        }
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
