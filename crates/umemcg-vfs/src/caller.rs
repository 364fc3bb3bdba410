//! The process requesting an operation: its ids, and the paying group.

use std::sync::Arc;

use umemcg::Group;

/// The process requesting an operation.
#[derive(Debug, Clone)]
pub struct Caller {
    /// File system user id.
    pub uid: u32,
    /// File system group id.
    pub gid: u32,
    /// The group of the parent directory, if the caller is a member of it beside `gid`.
    pub supplementary_gid: Option<u32>,
    /// The paying group.
    pub group: Arc<Group>,
    /// Permission bits to leave out on new objects.
    pub umask: u32,
    /// The requesting thread; 0 if unknown.
    pub thread: u32,
}

impl Caller {
    /// Returns whether the caller may set the set-group-id bit on a file of group `gid`.
    pub(crate) fn is_in_group(&self, gid: u32) -> bool {
        // The superuser stands for CAP_FSETID.
        self.uid == 0 || self.gid == gid || self.supplementary_gid == Some(gid)
    }
}
