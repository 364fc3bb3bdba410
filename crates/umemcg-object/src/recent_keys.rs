//! Hashes of the two keys with the most recent responses of one kind. `pace.rs` keeps one for
//! accepted and one for refused requests. So it distinguishes a key always refused from a
//! throttling store, in constant memory.

use std::time::{Duration, Instant};

/// How long a key is remembered. A refused request is sent again after a pause of at most five
/// seconds, so a key always refused stays known.
const REMEMBERED: Duration = Duration::from_secs(20);

/// See the module text. The latest key is first.
#[derive(Debug, Default)]
pub(crate) struct RecentKeys([Option<(u64, Instant)>; 2]);

impl RecentKeys {
    /// Records a response for a key.
    pub(crate) fn note(&mut self, key: u64, now: Instant) {
        let [last, before] = &mut self.0;
        if last.is_none_or(|(last, _)| last != key) {
            *before = *last;
        }
        *last = Some((key, now));
    }

    /// Returns whether there was a response for this key.
    pub(crate) fn has(&self, key: u64, now: Instant) -> bool {
        self.known(now).any(|known| known == key)
    }

    /// Returns whether there was a response for another key.
    pub(crate) fn has_other(&self, key: u64, now: Instant) -> bool {
        self.known(now).any(|known| known != key)
    }

    fn known(&self, now: Instant) -> impl Iterator<Item = u64> {
        let is_recent = move |at| now.saturating_duration_since(at) < REMEMBERED;
        self.0.into_iter().flatten().filter(move |&(_, at)| is_recent(at)).map(|(key, _)| key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_two_last_keys_are_known() {
        let now = Instant::now();
        let mut keys = RecentKeys::default();
        assert!(!keys.has(1, now) && !keys.has_other(1, now));
        keys.note(1, now);
        keys.note(1, now);
        assert!(keys.has(1, now) && !keys.has_other(1, now));
        keys.note(2, now);
        assert!(keys.has(1, now) && keys.has(2, now) && keys.has_other(2, now));
        keys.note(3, now);
        assert!(!keys.has(1, now));
        keys.note(2, now);
        assert!(keys.has(2, now) && keys.has(3, now));
    }

    #[test]
    fn a_key_is_forgotten_in_time() {
        let now = Instant::now();
        let mut keys = RecentKeys::default();
        keys.note(1, now);
        assert!(!keys.has(1, now + REMEMBERED) && !keys.has_other(2, now + REMEMBERED));
    }
}
