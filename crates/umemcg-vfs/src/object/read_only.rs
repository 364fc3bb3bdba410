//! What a volume of objects refuses, because it cannot be written to.

use std::ffi::OsStr;
use std::sync::Arc;

use rustix::fs::{OFlags, RenameFlags, XattrFlags};
use rustix::io::Errno;

use super::ObjectVolume;
use crate::attr::{Entry, NodeId};
use crate::caller::Caller;
use crate::error::VfsError;
use crate::volume::{Create, Names, VolumeFile, Xattrs};

impl Create for ObjectVolume {
    fn symlink(&self, _: &Caller, _: NodeId, _: &OsStr, _: &OsStr) -> Result<Entry, VfsError> {
        Err(Errno::ROFS.into())
    }
    fn mknod(&self, _: &Caller, _: NodeId, _: &OsStr, _: u32, _: u64) -> Result<Entry, VfsError> {
        Err(Errno::ROFS.into())
    }
    fn mkdir(&self, _: &Caller, _: NodeId, _: &OsStr, _: u32) -> Result<Entry, VfsError> {
        Err(Errno::ROFS.into())
    }
    fn create(
        &self,
        _: &Caller,
        _: NodeId,
        _: &OsStr,
        _: u32,
        _: OFlags,
    ) -> Result<(Entry, Arc<dyn VolumeFile>), VfsError> {
        Err(Errno::ROFS.into())
    }
    fn tmpfile(
        &self,
        _: &Caller,
        _: NodeId,
        _: u32,
        _: OFlags,
    ) -> Result<(Entry, Arc<dyn VolumeFile>), VfsError> {
        Err(Errno::ROFS.into())
    }
}

impl Names for ObjectVolume {
    fn unlink(&self, _: &Caller, _: NodeId, _: &OsStr) -> Result<(), VfsError> {
        Err(Errno::ROFS.into())
    }
    fn rmdir(&self, _: NodeId, _: &OsStr) -> Result<(), VfsError> {
        Err(Errno::ROFS.into())
    }
    fn rename(
        &self,
        _: &Caller,
        _: NodeId,
        _: &OsStr,
        _: NodeId,
        _: &OsStr,
        _: RenameFlags,
    ) -> Result<(), VfsError> {
        Err(Errno::ROFS.into())
    }
    fn link(&self, _: &Caller, _: NodeId, _: NodeId, _: &OsStr) -> Result<Entry, VfsError> {
        // Read-only or not: an object has one key.
        Err(Errno::PERM.into())
    }
}

impl Xattrs for ObjectVolume {
    fn getxattr(&self, _: NodeId, _: &OsStr) -> Result<Vec<u8>, VfsError> {
        Err(Errno::NODATA.into())
    }
    fn is_known_absent(&self, _: NodeId, _: &OsStr) -> bool {
        true
    }
    fn setxattr(
        &self,
        _: &Caller,
        _: NodeId,
        _: &OsStr,
        _: &[u8],
        _: XattrFlags,
        _: bool,
    ) -> Result<(), VfsError> {
        Err(Errno::ROFS.into())
    }
    fn listxattr(&self, _: &Caller, _: NodeId) -> Result<Vec<u8>, VfsError> {
        Ok(Vec::new())
    }
    fn removexattr(&self, _: NodeId, _: &OsStr) -> Result<(), VfsError> {
        Err(Errno::ROFS.into())
    }
}
