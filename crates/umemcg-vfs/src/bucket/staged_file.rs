//! A file of a staging directory, as shown in lists.

use std::path::PathBuf;

/// A file on the staging disk whose content is not in the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StagedFile {
    /// The key it was written as; empty if unknown.
    pub key: String,
    /// The file.
    pub path: PathBuf,
    /// Its length in bytes.
    pub bytes: u64,
    /// It will never be stored: another change came first, or a daemon ended before storing it.
    pub is_lost: bool,
}
