//! The identity of a control file of a group: the part of its row used by lower modules.

/// See the module text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileId {
    /// Its place in the table.
    pub(crate) number: u8,
    /// Its name.
    pub(crate) name: &'static str,
    /// Mode bits in a fresh group.
    pub(crate) mode: u16,
    /// True if a write may wait for reclaim.
    pub(crate) write_reclaims: bool,
}
