//! Logs the failures of a volume's store and of its staging disk, at a limited rate: a store that
//! is down may fail thousands of requests a second.

use std::path::Path;

use rustix::io::Errno;
use umemcg_base::RateLimit;
use umemcg_base::clock::{Clock, SystemClock};

use crate::bucket::BucketError;

/// The failures of one volume.
#[derive(Debug)]
pub(super) struct FailureLog {
    limit: RateLimit,
    clock: SystemClock,
}

impl FailureLog {
    pub(super) fn new() -> Self {
        Self { limit: RateLimit::default(), clock: SystemClock::new() }
    }

    /// Logs why a change of an object is refused, unless there were too many this second.
    pub(super) fn note_refusal(&self, key: &str, why: &str) {
        if let Some(nr_left_out) = self.limit.ask(self.clock.now()) {
            tracing::warn!(key, nr_left_out, "{why}");
        }
    }

    /// Logs a failure of the disk of a directory, with advice, unless too many failures were logged
    /// this second. Returns the error number.
    pub(super) fn report_disk(&self, dir: &Path, errno: Errno) -> Errno {
        let advice = match errno {
            Errno::NOSPC | Errno::DQUOT => {
                "the staging disk is full: make room on it, or give the volume another directory (--staging)"
            }
            Errno::ROFS => {
                "the staging disk is read-only: see the kernel's log, and mount it for writing again"
            }
            Errno::IO => "the staging disk fails: see the kernel's log",
            _ => return errno,
        };
        if let Some(nr_left_out) = self.limit.ask(self.clock.now()) {
            tracing::warn!(dir = %dir.display(), %errno, nr_left_out, "{advice}");
        }
        errno
    }

    /// Logs a failure, unless there were too many this second; returns its error number.
    pub(super) fn report(&self, error: &BucketError) -> Errno {
        let errno = error.errno();
        match error {
            BucketError::NotFound(_) | BucketError::Changed(_) => {
                tracing::debug!(%error, %errno, "an object is not there any more");
            }
            _ => {
                if let Some(nr_left_out) = self.limit.ask(self.clock.now()) {
                    tracing::warn!(%error, %errno, nr_left_out, "a store failed");
                }
            }
        }
        errno
    }
}
