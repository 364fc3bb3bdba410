//! Extended attributes of a volume of objects: there are none.

use std::ffi::OsStr;

use rustix::fs::XattrFlags;
use rustix::io::Errno;

use super::ObjectVolume;
use crate::attr::NodeId;
use crate::caller::Caller;
use crate::error::VfsError;
use crate::volume::Xattrs;

impl ObjectVolume {
    /// Returns why an attribute cannot be set.
    fn refusal(&self) -> VfsError {
        self.drafts().err().unwrap_or(Errno::OPNOTSUPP).into()
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
        Err(self.refusal())
    }
    fn listxattr(&self, _: &Caller, _: NodeId) -> Result<Vec<u8>, VfsError> {
        Ok(Vec::new())
    }
    fn removexattr(&self, _: NodeId, _: &OsStr) -> Result<(), VfsError> {
        Err(self.refusal())
    }
}
