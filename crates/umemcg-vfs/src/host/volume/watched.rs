//! A volume's inodes, as the watch for changes by other programs sees them.

use std::ffi::CString;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;

use rustix::fs::OFlags;
use rustix::io::Errno;
use umemcg_arena::handle::{FileHandle, open_by_handle};

use super::HostVolume;
use crate::attr::{FileKind, NodeId};
use crate::host::inodes::HostInodes;
use crate::host::outside_watch::Watched;
use crate::host::syscalls::{self, InodeKey};
use crate::volume::Volume;

/// Returns the errno of a handle that could not be opened, whose inode may exist; `None` if the
/// inode is gone.
fn refusal(error: &io::Error) -> Option<Errno> {
    Some(Errno::from_io_error(error).unwrap_or(Errno::IO)).filter(|errno| *errno != Errno::STALE)
}

impl Watched for HostInodes {
    fn ino_of(&self, handle: &FileHandle) -> Option<u64> {
        self.host_dir.handle_form?.ino(handle)
    }

    fn is_known_ino(&self, ino: u64) -> bool {
        ino == self.host_dir.root_stat.attr.ino || self.table.has_ino(ino)
    }

    fn key_of(&self, handle: &FileHandle) -> Result<Option<InodeKey>, Errno> {
        let root = self.host_dir.root.as_fd();
        match open_by_handle(root, handle, OFlags::PATH | OFlags::NOFOLLOW) {
            Ok(fd) => Ok(Some(syscalls::stat_fd(&fd)?.key())),
            Err(error) => refusal(&error).map_or(Ok(None), Err),
        }
    }

    fn node_of(&self, key: InodeKey) -> Option<NodeId> {
        if key == self.host_dir.root_stat.key() { Some(NodeId::ROOT) } else { self.table.find(key) }
    }

    fn names_in_kernel(&self, node: NodeId) -> Vec<(NodeId, Box<[u8]>)> {
        self.table.names_in_kernel(node).unwrap_or_default()
    }

    fn for_each_in_kernel(&self, tell: &mut dyn FnMut(NodeId)) {
        self.table.for_each_in_kernel(tell);
    }

    fn is_known_directory(&self, parent: NodeId, name: &[u8]) -> bool {
        let stat = CString::new(name).ok().and_then(|name| {
            let directory = self.descriptor(parent).ok()?;
            syscalls::stat_name(&directory, &name).ok()
        });
        stat.is_some_and(|stat| stat.kind == FileKind::Directory && self.table.find(stat.key()).is_some())
    }

    fn may_have_pages(&self, node: NodeId) -> bool {
        let content = self.find(node).ok().and_then(|found| found.content);
        content.is_some_and(|content| content.kernel_pages().is_some())
    }

    fn look(self: Arc<Self>, node: NodeId) -> bool {
        let Some(content) = self.find(node).ok().and_then(|found| found.content) else { return false };
        let volume = HostVolume { inodes: self };
        // If the look fails, the next open looks again.
        let is_changed = volume.look_at_open(node, &content).is_ok()
            && content.kernel_pages().is_some_and(|pages| pages.change().is_some());
        volume.drop_changed(node);
        is_changed
    }

    fn suspect(&self, node: NodeId) {
        if let Some(content) = self.find(node).ok().and_then(|found| found.content) {
            content.store.times.suspect();
        }
    }

    fn contents(&self) -> Vec<NodeId> {
        self.table.contents().into_iter().map(|(node, _)| node).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_stale_handle_says_that_its_inode_is_gone() {
        assert_eq!(refusal(&Errno::STALE.into()), None);
        for errno in [Errno::MFILE, Errno::NFILE, Errno::NOMEM, Errno::IO, Errno::PERM, Errno::INTR] {
            assert_eq!(refusal(&errno.into()), Some(errno));
        }
        assert_eq!(refusal(&io::ErrorKind::InvalidInput.into()), Some(Errno::IO));
    }
}
