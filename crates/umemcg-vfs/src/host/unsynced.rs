//! Written ranges of a host file not yet reported durable, so that an error reaches all of them.
//!
//! The kernel reports a write-back error once per descriptor, to whichever sync comes first, and
//! not by range. The sync of one range could take the error of another, whose own sync then
//! succeeds although its data is lost. So a failed sync fails every written range not yet synced:
//! the sync of each range reports the error.

use rustix::io::Errno;

/// Disjoint half-open ranges, sorted.
#[derive(Debug, Default)]
struct Ranges(Vec<(u64, u64)>);

impl Ranges {
    fn add(&mut self, start: u64, end: u64) {
        let first = self.0.partition_point(|r| r.1 < start);
        let last = self.0.partition_point(|r| r.0 <= end);
        let merged = self.0[first..last].iter().fold((start, end), |m, r| (m.0.min(r.0), m.1.max(r.1)));
        self.0.splice(first..last, [merged]);
    }

    /// Removes a range. Returns whether any part of it was present.
    fn remove(&mut self, start: u64, end: u64) -> bool {
        let first = self.0.partition_point(|r| r.1 <= start);
        let last = self.0.partition_point(|r| r.0 < end);
        if first >= last {
            return false;
        }
        let left = (self.0[first].0, start);
        let right = (end, self.0[last - 1].1);
        let keep = [left, right].into_iter().filter(|r| r.0 < r.1);
        self.0.splice(first..last, keep);
        true
    }
}

/// See the module text.
#[derive(Debug, Default)]
pub(crate) struct Unsynced {
    written: Ranges,
    /// The ranges among them written since the last sync of everything began.
    since: Ranges,
    /// The number of syncs of everything begun so far.
    nr_begun: u64,
    failed: Ranges,
    error: Option<Errno>,
}

impl Unsynced {
    /// Notes a (repeated) write of a range.
    pub(crate) fn wrote(&mut self, offset: u64, len: u64) {
        if len > 0 {
            let end = offset.saturating_add(len);
            self.failed.remove(offset, end);
            self.written.add(offset, end);
            self.since.add(offset, end);
        }
    }

    /// Begins a sync of everything. Returns its number, for [`synced_all`](Self::synced_all).
    pub(crate) fn begin(&mut self) -> u64 {
        self.since = Ranges::default();
        self.nr_begun += 1;
        self.nr_begun
    }

    /// Ends a sync of a range with `result`. Returns the result to report to the owner of the
    /// range.
    pub(crate) fn synced(&mut self, offset: u64, len: u64, result: Result<(), Errno>) -> Result<(), Errno> {
        let end = offset.saturating_add(len);
        if let Err(errno) = result {
            self.fail(errno);
        }
        let has_failed = self.failed.remove(offset, end);
        self.written.remove(offset, end);
        self.since.remove(offset, end);
        match self.error {
            Some(errno) if has_failed => Err(errno),
            _ => result,
        }
    }

    /// Ends the sync of everything with number `nr` and `result`. An error still to be reported for
    /// some range is an error here, too.
    pub(crate) fn synced_all(&mut self, nr: u64, result: Result<(), Errno>) -> Result<(), Errno> {
        // A durable range is removed: it is not synced again, so a later error would stay
        // unreported for it for ever.
        if result.is_ok() && nr == self.nr_begun {
            self.written = std::mem::take(&mut self.since);
        }
        match (result, self.error) {
            (Err(errno), _) => {
                self.fail(errno);
                Err(errno)
            }
            (Ok(()), Some(errno)) if !self.failed.0.is_empty() => Err(errno),
            (Ok(()), _) => Ok(()),
        }
    }

    /// Forgets errors and ranges beyond `len`, after a truncation.
    pub(crate) fn cut(&mut self, len: u64) {
        self.written.remove(len, u64::MAX);
        self.since.remove(len, u64::MAX);
        self.failed.remove(len, u64::MAX);
    }

    fn fail(&mut self, errno: Errno) {
        self.error = Some(errno);
        self.since = Ranges::default();
        for (start, end) in self.written.0.drain(..) {
            self.failed.add(start, end);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(unsynced: &mut Unsynced, result: Result<(), Errno>) -> Result<(), Errno> {
        let nr = unsynced.begin();
        unsynced.synced_all(nr, result)
    }

    #[test]
    fn what_a_sync_of_everything_made_durable_owes_no_later_error() {
        let mut unsynced = Unsynced::default();
        unsynced.wrote(0, 8192);
        assert_eq!(all(&mut unsynced, Ok(())), Ok(()));
        unsynced.wrote(0, 4096);
        assert_eq!(all(&mut unsynced, Err(Errno::IO)), Err(Errno::IO));
        unsynced.wrote(0, 4096);
        assert_eq!(all(&mut unsynced, Ok(())), Ok(()));
    }

    #[test]
    fn a_write_during_a_sync_of_everything_is_not_durable_by_it() {
        let mut unsynced = Unsynced::default();
        let nr = unsynced.begin();
        unsynced.wrote(0, 4096);
        assert_eq!(unsynced.synced_all(nr, Ok(())), Ok(()));
        assert_eq!(unsynced.synced(8192, 4096, Err(Errno::IO)), Err(Errno::IO));
        assert_eq!(unsynced.synced(0, 4096, Ok(())), Err(Errno::IO), "it learns of the error");
        // Two at the same time: only the later sync knows the writes after its start.
        unsynced.wrote(0, 4096);
        let (first, second) = (unsynced.begin(), unsynced.begin());
        unsynced.wrote(4096, 4096);
        assert_eq!(
            (unsynced.synced_all(second, Ok(())), unsynced.synced_all(first, Ok(()))),
            (Ok(()), Ok(()))
        );
        assert_eq!(unsynced.synced(8192, 4096, Err(Errno::IO)), Err(Errno::IO));
        assert_eq!(unsynced.synced(0, 4096, Ok(())), Ok(()));
        assert_eq!(unsynced.synced(4096, 4096, Ok(())), Err(Errno::IO));
    }

    #[test]
    fn an_error_reaches_every_range_that_was_written_before_it() {
        let mut unsynced = Unsynced::default();
        unsynced.wrote(0, 4096);
        unsynced.wrote(8192, 4096);
        assert_eq!(unsynced.synced(0, 4096, Err(Errno::IO)), Err(Errno::IO));
        assert_eq!(all(&mut unsynced, Ok(())), Err(Errno::IO), "one range does not know yet");
        assert_eq!(unsynced.synced(8192, 4096, Ok(())), Err(Errno::IO));
        assert_eq!(unsynced.synced(8192, 4096, Ok(())), Ok(()));
        assert_eq!(all(&mut unsynced, Ok(())), Ok(()));
    }

    #[test]
    fn what_is_written_again_after_the_error_starts_afresh() {
        let mut unsynced = Unsynced::default();
        unsynced.wrote(0, 8192);
        assert_eq!(all(&mut unsynced, Err(Errno::NOSPC)), Err(Errno::NOSPC));
        unsynced.wrote(0, 4096);
        assert_eq!(unsynced.synced(0, 4096, Ok(())), Ok(()));
        assert_eq!(unsynced.synced(4096, 4096, Ok(())), Err(Errno::NOSPC));
    }

    #[test]
    fn what_was_cut_off_is_owed_nothing() {
        let mut unsynced = Unsynced::default();
        unsynced.wrote(4096, 4096);
        assert_eq!(all(&mut unsynced, Err(Errno::IO)), Err(Errno::IO));
        unsynced.cut(100);
        assert_eq!(all(&mut unsynced, Ok(())), Ok(()));
    }

    #[test]
    fn ranges_agree_with_a_set_of_bytes() {
        let mut ranges = Ranges::default();
        let mut model = std::collections::BTreeSet::new();
        let mut seed = 7u64;
        for _ in 0..2000 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let (start, len) = ((seed >> 33) % 60, (seed >> 50) % 10 + 1);
            if seed >> 63 == 0 {
                ranges.add(start, start + len);
                model.extend(start..start + len);
            } else {
                let had = (start..start + len).filter(|b| model.remove(b)).count() > 0;
                assert_eq!(ranges.remove(start, start + len), had);
            }
            let bytes: Vec<u64> = ranges.0.iter().flat_map(|r| r.0..r.1).collect();
            assert_eq!(bytes, model.iter().copied().collect::<Vec<_>>());
            assert!(ranges.0.windows(2).all(|w| w[0].1 < w[1].0), "{ranges:?}");
        }
    }
}
