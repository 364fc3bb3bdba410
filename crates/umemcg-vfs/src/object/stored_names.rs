//! The names of the files stored last from here.
//!
//! A report of the store about a name is out of date if the file was stored after the report was
//! made. The node cannot decide this: the file may be closed and forgotten before the report is
//! entered. So a fixed number of names is remembered. If more files are stored while the store
//! makes one report, an old report may be believed, for as long as any report is.

use std::collections::VecDeque;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::time::Instant;

use crate::attr::NodeId;

/// The most names remembered.
const NR_NAMES_MAX: usize = 128;

/// See the module text.
#[derive(Debug, Default)]
pub(super) struct StoredNames {
    /// Names by hash, each with its time; the latest last.
    latest: VecDeque<(u64, Instant)>,
}

fn hash_of(directory: NodeId, name: &str) -> u64 {
    BuildHasherDefault::<DefaultHasher>::default().hash_one((directory, name))
}

impl StoredNames {
    /// Notes that the file of a name has just been stored.
    pub(super) fn note(&mut self, directory: NodeId, name: &str) {
        if self.latest.len() == NR_NAMES_MAX {
            self.latest.pop_front();
        }
        self.latest.push_back((hash_of(directory, name), Instant::now()));
    }

    /// Returns whether the file of a name was stored since a time.
    pub(super) fn is_stored_since(&self, directory: NodeId, name: &str, since: Instant) -> bool {
        let mut later = self.latest.iter().rev().take_while(|(_, at)| *at >= since).peekable();
        later.peek().is_some() && {
            let hash = hash_of(directory, name);
            later.any(|(stored, _)| *stored == hash)
        }
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
        stored.note(directory, "b");
        assert!(stored.is_stored_since(directory, "a", before));
        assert!(!stored.is_stored_since(directory, "c", before));
        assert!(!stored.is_stored_since(NodeId(8), "a", before));
        std::thread::sleep(std::time::Duration::from_nanos(1));
        assert!(!stored.is_stored_since(directory, "a", Instant::now()));
        (0..NR_NAMES_MAX).for_each(|nr| stored.note(directory, &nr.to_string()));
        assert!(!stored.is_stored_since(directory, "a", before));
        assert_eq!(stored.latest.len(), NR_NAMES_MAX);
    }
}
