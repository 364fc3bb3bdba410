//! When files were last stored from here.
//!
//! A report about a name that the store made before is out of date. The file may be closed and
//! forgotten by the time the report is entered, so its node cannot tell. Names share a fixed number
//! of entries; a name that shares the entry of a stored one is asked for once more.

use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::time::Instant;

use crate::attr::NodeId;

/// The number of entries.
const NR_ENTRIES: usize = 256;

/// See the module text.
#[derive(Debug)]
pub(super) struct StoredNames(Box<[Option<Instant>; NR_ENTRIES]>);

impl Default for StoredNames {
    fn default() -> Self {
        Self(Box::new([None; NR_ENTRIES]))
    }
}

fn entry_of(directory: NodeId, name: &str) -> usize {
    BuildHasherDefault::<DefaultHasher>::default().hash_one((directory, name)) as usize % NR_ENTRIES
}

impl StoredNames {
    /// Notes that the file of a name has just been stored.
    pub(super) fn note(&mut self, directory: NodeId, name: &str) {
        self.0[entry_of(directory, name)] = Some(Instant::now());
    }

    /// Returns whether the file of a name may have been stored since a time.
    pub(super) fn is_stored_since(&self, directory: NodeId, name: &str, at: Instant) -> bool {
        self.0[entry_of(directory, name)].is_some_and(|stored| stored >= at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_from_before_a_file_was_stored_is_out_of_date() {
        let (mut stored, directory, before) = (StoredNames::default(), NodeId(7), Instant::now());
        assert!(!stored.is_stored_since(directory, "a", before));
        stored.note(directory, "a");
        assert!(stored.is_stored_since(directory, "a", before));
        std::thread::sleep(std::time::Duration::from_nanos(1));
        assert!(!stored.is_stored_since(directory, "a", Instant::now()));
        let nr_others =
            (0..100).filter(|nr| stored.is_stored_since(directory, &nr.to_string(), before)).count();
        assert!(nr_others < 10, "{nr_others} of 100 share its entry");
    }
}
