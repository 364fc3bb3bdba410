//! The process that requests an operation: its ids, and the group that pays.

use std::sync::Arc;

use umemcg::Group;

/// The process that requests an operation.
#[derive(Debug, Clone)]
pub struct Caller {
    /// File system user id.
    pub uid: u32,
    /// File system group id.
    pub gid: u32,
    /// The group of the parent directory, if the caller is a member of it beside `gid`.
    pub supplementary_gid: Option<u32>,
    /// The group that pays.
    pub group: Arc<Group>,
    /// Permission bits that the caller does not want on new objects.
    pub umask: u32,
    /// The thread that requests; 0 if it is not known.
    pub thread: u32,
}

/// The process that closes a descriptor.
#[derive(Debug, Clone, Copy)]
pub struct Closer {
    /// Its thread; 0 if it is not known.
    pub thread: u32,
    /// The kernel's number of its table of descriptors.
    pub lock_owner: u64,
}

impl Caller {
    /// Returns whether the caller may set the set-group-id bit on a file of group `gid`.
    pub(crate) fn is_in_group(&self, gid: u32) -> bool {
        // The superuser stands for CAP_FSETID.
        self.uid == 0 || self.gid == gid || self.supplementary_gid == Some(gid)
    }
}
