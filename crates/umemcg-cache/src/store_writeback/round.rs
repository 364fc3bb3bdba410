//! The progress of a round of write-back, its end, and the time of the next one.

use std::sync::Arc;
use std::time::Duration;

use umemcg_base::sync::Instant;

use crate::dirty::dirty_file::DirtyFile;

/// Longest time from the first file's turn in a round to the beginning of the last one: groups that
/// become dirty meanwhile wait for the next round.
const ROUND_MAX: Duration = Duration::from_secs(1);
/// This many failed files end a round: the store needs a rest. Fewer keep no other file from being
/// written.
const NR_FAILED_MAX: u32 = 4;

/// The time of the next round.
#[derive(Debug, Clone, Copy)]
pub(super) struct RoundSchedule {
    /// After an error: the earliest time, and the length of that wait.
    pub(super) retry: Option<(Instant, Duration)>,
    pub(super) last_round: Instant,
    /// It left due files.
    pub(super) is_more: bool,
}

/// The progress of a round.
#[derive(Debug, Default)]
pub(super) struct Round {
    /// Small files written but not yet confirmed by the store, and their pages. They are confirmed
    /// together: while the store confirms the first, the device writes the others.
    pub(super) written: Vec<Arc<dyn DirtyFile>>,
    pub(super) nr_unconfirmed: u64,
    /// A file was written.
    pub(super) has_written: bool,
    nr_failed: u32,
    pub(super) error: Option<std::io::Error>,
    /// Due files are left.
    pub(super) is_more: bool,
    /// No turn begins any more. None before the first turn.
    end: Option<Instant>,
}

impl Round {
    /// Notes the beginning of a file's turn.
    pub(super) fn begin_turn(&mut self) {
        self.end.get_or_insert_with(|| Instant::now() + ROUND_MAX);
    }

    /// Notes that a file could not be written.
    pub(super) fn failed(&mut self, file: &dyn DirtyFile, error: std::io::Error) {
        file.queue_mark().make_due();
        self.nr_failed += 1;
        // The others have their time after it, however long it took.
        self.end = Some(Instant::now() + ROUND_MAX);
        self.error = Some(error);
    }

    /// Returns whether the store needs a rest: many files failed, or nothing else has happened.
    pub(super) fn needs_rest(&self) -> bool {
        self.nr_failed >= NR_FAILED_MAX || self.nr_failed > 0 && !self.has_written
    }

    /// Returns whether another file's turn may begin.
    pub(super) fn goes_on(&self) -> bool {
        self.nr_failed < NR_FAILED_MAX && self.end.is_none_or(|end| Instant::now() < end)
    }
}
