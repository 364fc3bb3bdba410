//! An open object: reads of the version that was there when it was opened.

use std::sync::Arc;

use rustix::fs::{FallocateFlags, OFlags};
use rustix::io::Errno;
use umemcg::Group;
use umemcg::files::{File, PinnedPages, ReadStep, Readahead, StartedRead};
use umemcg::internal::count_hits;

use super::content::Content;
use super::objects::Objects;
use crate::attr::{Attr, NodeId, SetAttr};
use crate::caller::Caller;
use crate::error::VfsError;
use crate::handle_charge::HandleCharge;
use crate::volume::{VolumeFile, Whence};

/// An open object. It shows the version that was there when it was opened; what of it is not
/// cached cannot be read any more once the store has another.
#[derive(Debug)]
pub(super) struct OpenFile {
    node: NodeId,
    ino: u64,
    content: Arc<Content>,
    readahead: Readahead,
    group: Arc<Group>,
    _charge: HandleCharge,
    /// Last: it may be the last reference to the engine, to which all other fields release memory.
    objects: Arc<Objects>,
}

impl OpenFile {
    /// Takes over one pin of the node.
    pub(super) fn new(
        objects: &Arc<Objects>,
        node: NodeId,
        content: Arc<Content>,
        group: &Arc<Group>,
        charge: HandleCharge,
    ) -> Self {
        Self {
            node,
            ino: objects.ino(node),
            content,
            readahead: Readahead::of_remote(),
            group: Arc::clone(group),
            _charge: charge,
            objects: Arc::clone(objects),
        }
    }
}

impl Drop for OpenFile {
    fn drop(&mut self) {
        self.objects.unpin(self.node);
    }
}

impl VolumeFile for OpenFile {
    fn node(&self) -> NodeId {
        self.node
    }
    #[inline]
    fn content(&self) -> &Arc<File> {
        &self.content.file
    }
    fn group(&self) -> &Arc<Group> {
        &self.group
    }
    fn is_writable(&self) -> bool {
        false
    }
    #[inline]
    fn try_read(&self, offset: u64, len: usize) -> Option<PinnedPages<'_>> {
        let pages = self.content.file.try_read(offset, len, &self.readahead)?;
        count_hits(&self.group, pages.segments().len() as u64);
        Some(pages)
    }
    fn read(&self, group: &Arc<Group>, offset: u64, len: usize) -> Result<PinnedPages<'_>, VfsError> {
        Ok(self.content.file.read(group, offset, len, &self.readahead)?)
    }
    fn step_read(&self, group: &Arc<Group>, read: StartedRead) -> Result<ReadStep<'_>, VfsError> {
        Ok(self.content.file.step_read(group, read, &self.readahead)?)
    }
    fn try_write(&self, _: &Arc<Group>, _: u64, _: &[u8], _: bool) -> Option<usize> {
        None
    }
    fn write(&self, _: &Arc<Group>, _: u64, _: &[u8], _: bool) -> Result<usize, VfsError> {
        Err(Errno::BADF.into())
    }
    fn write_mapped(&self, _: &Arc<Group>, _: u64, _: &[u8]) -> Result<usize, VfsError> {
        Err(Errno::BADF.into())
    }
    fn flush(&self) -> Result<(), VfsError> {
        Ok(())
    }
    fn fsync(&self, _data_only: bool) -> Result<(), VfsError> {
        Ok(())
    }
    fn fallocate(&self, _: &Arc<Group>, _: FallocateFlags, _: u64, _: u64, _: bool) -> Result<(), VfsError> {
        Err(Errno::BADF.into())
    }
    fn lseek(&self, whence: Whence, offset: u64) -> Result<u64, VfsError> {
        let len = self.content.file.len();
        match whence {
            _ if offset >= len => Err(Errno::NXIO.into()),
            // An object has no holes.
            Whence::Data => Ok(offset),
            Whence::Hole => Ok(len),
        }
    }
    fn getattr(&self) -> Result<Attr, VfsError> {
        Ok(self.objects.attr_of(self.ino, &self.content.info))
    }
    fn setattr(&self, _caller: &Caller, _change: &SetAttr) -> Result<Attr, VfsError> {
        Err(Errno::ROFS.into())
    }
}

/// Returns whether an open wants to change something.
pub(super) fn wants_to_write(flags: OFlags) -> bool {
    flags.intersects(OFlags::WRONLY | OFlags::RDWR | OFlags::TRUNC)
}
