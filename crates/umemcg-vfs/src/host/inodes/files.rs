//! Opening the host files of inodes for I/O, within the groups' shares of descriptors.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::OFlags;
use rustix::io::Errno;
use umemcg_base::sync::Instant;

use super::HostInodes;
use crate::attr::NodeId;
use crate::host::content::{Content, Opening};
use crate::host::descriptor_share::{DescriptorShare, Purpose};
use crate::host::inode_table::InodeEntry;
use crate::host::store::InUse;
use crate::host::syscalls;
use crate::volume_config::IoMode;
use umemcg::Group;

/// The most closed files checked when a group has used up its share of descriptors.
const REAPED_FOR_SHARE: usize = 64;
/// The longest wait for the kernel to forget removed files. It lags behind a thread removing many,
/// and does not forget an open file at all.
const FORGET_WAIT_MAX: Duration = Duration::from_secs(1);

impl HostInodes {
    /// Opens a regular file for I/O: for reading or, with `for_writing`, for both.
    pub(crate) fn open_for_io(&self, node: NodeId, for_writing: bool) -> Result<OwnedFd, Errno> {
        let access = if for_writing { OFlags::RDWR } else { OFlags::RDONLY };
        // A handle opens the file in one step, and so does a held descriptor.
        let handle = match self.descriptors.get(node) {
            None => self.table.with(node, |entry| (entry.key, entry.handle.clone())),
            Some(_) => None,
        };
        if let Some((key, Some(handle))) = handle
            && let Ok(fd) = self.open_handle(key, &handle, access)
        {
            return Ok(fd);
        }
        let held = self.descriptor(node)?;
        self.with_descriptors(|| syscalls::reopen(held.as_fd(), access))
    }

    /// Returns whether an inode's host file can be opened again after changes of its mode and
    /// names, as long as it has a name.
    pub(crate) fn can_reopen(&self, node: NodeId) -> bool {
        let has_handle = |entry: &mut InodeEntry| entry.handle.is_some() && !entry.is_nameless;
        self.host_dir.reopens && self.table.with(node, has_handle) == Some(true)
    }

    /// Reserves the descriptors of one file in a group's share. May sleep if it `can_wait`; no lock
    /// may be held.
    pub(crate) fn room_for_fds(
        &self,
        group: &Arc<Group>,
        want: Purpose,
        can_wait: bool,
    ) -> Result<DescriptorShare, Errno> {
        let nr = if self.host_dir.io_mode() == IoMode::Direct { 2 } else { 1 };
        let store = can_wait.then_some(self.host_dir.store_id);
        DescriptorShare::take(group, nr, want, store).or_else(|_| {
            // Some descriptors may belong to closed files written back meanwhile.
            self.reap_lingering(REAPED_FOR_SHARE);
            DescriptorShare::take(group, nr, want, store)
        })
    }

    /// Reserves the descriptor of an inode about to be without a name while the kernel refers to
    /// it. If there is no room, waits, with no lock held, for the kernel to forget others.
    pub(crate) fn room_for_orphan(&self, group: &Arc<Group>) -> Result<DescriptorShare, Errno> {
        let take = || DescriptorShare::take(group, 1, Purpose::Open, Some(self.host_dir.store_id));
        take().or_else(|_| {
            DescriptorShare::wait_for_room(group, 1, Instant::now() + FORGET_WAIT_MAX);
            take()
        })
    }

    /// Calls `then` with the means to open a regular file.
    pub(crate) fn opening<R>(
        &self,
        node: NodeId,
        group: &Arc<Group>,
        for_writing: bool,
        (want, can_wait): (Purpose, bool),
        then: impl FnOnce(&Opening<'_>) -> R,
    ) -> R {
        then(&Opening {
            for_writing,
            can_reopen: self.can_reopen(node),
            room: &|| self.room_for_fds(group, want, can_wait),
            open: &|writable| self.open_for_io(node, writable),
        })
    }

    /// Keeps the host file of open content open. Waits for data of other files to be written only
    /// if it `can_wait`.
    pub(crate) fn in_use<'a>(
        &self,
        node: NodeId,
        content: &'a Arc<Content>,
        group: &Arc<Group>,
        for_writing: bool,
        can_wait: bool,
    ) -> Result<InUse<'a>, Errno> {
        match content.store.try_use(for_writing) {
            Some(in_use) => Ok(in_use),
            None => {
                self.opening(node, group, for_writing, (Purpose::Reopen, can_wait), |how| content.in_use(how))
            }
        }
    }
}
