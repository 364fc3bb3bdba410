//! A rate limiter for messages: at most a number each second, then a count of the suppressed ones.

use std::time::Duration;

use crate::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Grants at most [`PER_SECOND`](Self::PER_SECOND) in a second. Threads racing at the turn of a
/// second may get a few more.
#[derive(Debug, Default)]
pub struct RateLimit {
    /// The second of the last grant, since the clock's origin. (A)
    second: AtomicU64,
    /// Requests in that second. (A)
    nr_asked: AtomicU32,
    /// Suppressed since the last grant. (A)
    nr_left_out: AtomicU64,
}

impl RateLimit {
    /// Grants in a second.
    pub const PER_SECOND: u32 = 10;

    /// Returns `Some` if a message is granted now, with the number suppressed before it.
    pub fn ask(&self, now: Duration) -> Option<u64> {
        let second = now.as_secs();
        if self.second.swap(second, Ordering::Relaxed) != second {
            self.nr_asked.store(0, Ordering::Relaxed);
        }
        // Saturates: no second has as many as four billion.
        if self.nr_asked.fetch_add(1, Ordering::Relaxed) < Self::PER_SECOND {
            Some(self.nr_left_out.swap(0, Ordering::Relaxed))
        } else {
            self.nr_left_out.fetch_add(1, Ordering::Relaxed);
            None
        }
    }
}

#[cfg(all(test, not(any(loom, schedule))))]
mod tests {
    use super::*;

    #[test]
    fn a_second_has_ten_and_the_next_one_says_how_many_more() {
        let limit = RateLimit::default();
        let at = Duration::from_millis;
        let nr_granted = (0..100).filter(|&step| limit.ask(at(1000 + step)) == Some(0)).count();
        assert_eq!(nr_granted, 10);
        assert_eq!(limit.ask(at(2000)), Some(90));
        assert_eq!(limit.ask(at(2001)), Some(0));
    }
}
