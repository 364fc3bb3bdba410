//! The configuration of a tmpfs volume.

/// The configuration of a tmpfs volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TmpfsConfig {
    /// The most bytes of data, rounded up to pages; `None`: as much as the writers' groups may
    /// hold.
    pub size_bytes: Option<u64>,
    /// Permission bits of its root.
    pub mode: u32,
    /// Owner of its root.
    pub uid: u32,
    /// Group of its root.
    pub gid: u32,
}

impl Default for TmpfsConfig {
    /// Returns a volume as large as the groups allow; every user may make files in it.
    fn default() -> Self {
        Self { size_bytes: None, mode: 0o1777, uid: 0, gid: 0 }
    }
}
