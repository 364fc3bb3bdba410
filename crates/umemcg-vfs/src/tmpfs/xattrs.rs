//! Extended attributes by node id.

use std::ffi::OsStr;

use rustix::fs::XattrFlags;

use super::Tmpfs;
use crate::attr::NodeId;
use crate::caller::Caller;
use crate::error::VfsError;
use crate::volume::Xattrs;

impl Xattrs for Tmpfs {
    fn getxattr(&self, node: NodeId, name: &OsStr) -> Result<Vec<u8>, VfsError> {
        Ok(self.inode(node)?.getxattr(name)?)
    }

    fn setxattr(
        &self,
        caller: &Caller,
        node: NodeId,
        name: &OsStr,
        value: &[u8],
        flags: XattrFlags,
        kill_set_gid: bool,
    ) -> Result<(), VfsError> {
        Ok(self.inode(node)?.setxattr(&self.engine, caller, name, value, flags, kill_set_gid)?)
    }

    fn listxattr(&self, caller: &Caller, node: NodeId) -> Result<Vec<u8>, VfsError> {
        Ok(self.inode(node)?.listxattr(caller.uid == 0))
    }

    fn removexattr(&self, _: &Caller, node: NodeId, name: &OsStr) -> Result<(), VfsError> {
        Ok(self.inode(node)?.removexattr(name)?)
    }
}
