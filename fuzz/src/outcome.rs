//! The outcome of an input: stands in for the coverage that instrumented builds measure.

use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash, Hasher};

/// The different things that happened during one input.
#[derive(Debug, Default)]
pub struct Outcome(BTreeSet<u64>);

impl Outcome {
    /// Notes that something happened.
    pub fn note(&mut self, what: impl Hash) {
        let mut hasher = DefaultHasher::new();
        what.hash(&mut hasher);
        self.0.insert(hasher.finish());
    }

    /// Adds all of it to `seen`; returns whether anything was new.
    pub fn is_new_to(self, seen: &mut BTreeSet<u64>) -> bool {
        let nr_before = seen.len();
        seen.extend(self.0);
        seen.len() > nr_before
    }
}
