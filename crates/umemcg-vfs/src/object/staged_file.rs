//! A file of a staging directory, for lists.

use std::path::PathBuf;

/// A file that holds what is not in the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StagedFile {
    /// The key that it was written as; empty if that is not known.
    pub key: String,
    /// The file.
    pub path: PathBuf,
    /// Its length in bytes.
    pub bytes: u64,
    /// It will not be stored any more: another change came first, or a daemon ended before.
    pub is_lost: bool,
}
