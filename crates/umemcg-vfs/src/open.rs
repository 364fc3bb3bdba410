//! Opening regular files, and what is done through an open one besides reading and writing: flush, fsync, fallocate,
//! lseek; and the sync of the whole volume.

use std::os::fd::AsFd;
use std::sync::Arc;

use rustix::fs::{FallocateFlags, OFlags};
use rustix::io::Errno;

use crate::attr::{FileKind, NodeId};
use crate::content::Content;
use crate::error::VfsError;
use crate::handle_share::{DescriptorShare, HandleCharge};
use crate::host;
use crate::open_file::OpenFile;
use crate::vfs::{Caller, Vfs};
use crate::volume::IoMode;

/// What `lseek` looks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Whence {
    /// The next byte of data at or after the offset.
    Data,
    /// The next hole at or after the offset; the end of the file is one.
    Hole,
}

/// Closed files looked at when a group has used up its share of descriptors.
const REAPED_FOR_SHARE: usize = 64;

impl Vfs {
    /// Opens a regular file. `O_TRUNC`, `O_APPEND`, `O_SYNC`, `O_DSYNC`, `O_DIRECTORY` and the access mode count. What was
    /// changed on the host since the cache last looked is noticed here.
    ///
    /// # Errors
    /// `EISDIR`, `ELOOP` for a symbolic link, `ENOTDIR` with `O_DIRECTORY`, `ENXIO` for pipes, sockets and devices
    /// (the kernel serves those itself), `EROFS`, `ENFILE` and `ENOMEM` when the caller's group has no share of descriptors or
    /// memory left for a handle, and the host's.
    pub fn open(&self, caller: &Caller, node: NodeId, flags: OFlags) -> Result<Arc<OpenFile>, VfsError> {
        match self.shared.find(node)?.kind {
            FileKind::Regular if flags.contains(OFlags::DIRECTORY) => return Err(Errno::NOTDIR.into()),
            FileKind::Regular => {}
            FileKind::Directory => return Err(Errno::ISDIR.into()),
            FileKind::Symlink => return Err(Errno::LOOP.into()),
            _ => return Err(Errno::NXIO.into()),
        }
        let room = self.room_for_file(caller)?;
        let content =
            self.acquire(caller, node, flags.intersects(OFlags::WRONLY | OFlags::RDWR | OFlags::TRUNC))?;
        // From here on dropping it closes.
        let file = OpenFile::new(Arc::clone(&self.shared), node, content, flags, room);
        self.getattr(node, Some(&file))?;
        if flags.contains(OFlags::TRUNC) {
            // The superuser stands for CAP_FSETID.
            if caller.uid != 0 {
                file.content.clear_privileges(true)?;
            }
            file.content.file.set_len(0)?;
        }
        Ok(file)
    }

    /// Room for an open file at the cost of the caller's group.
    pub(crate) fn room_for_file(&self, caller: &Caller) -> Result<(HandleCharge, DescriptorShare), Errno> {
        let share = self.share_for_file(caller)?;
        Ok((HandleCharge::take(&self.shared.engine, &caller.group, 0)?, share))
    }

    /// The descriptors of an open file as a part of the share of the caller's group.
    pub(crate) fn share_for_file(&self, caller: &Caller) -> Result<DescriptorShare, Errno> {
        let nr = if self.shared.volume.io_mode() == IoMode::Direct { 2 } else { 1 };
        DescriptorShare::take(&caller.group, nr).or_else(|_| {
            // Some may belong to closed files that have been written back meanwhile.
            self.shared.reap_lingering(REAPED_FOR_SHARE);
            DescriptorShare::take(&caller.group, nr)
        })
    }

    /// The content of a regular file with its host file open, and the node pinned; `Shared::close` gives both back.
    pub(crate) fn acquire(
        &self,
        caller: &Caller,
        node: NodeId,
        for_writing: bool,
    ) -> Result<Arc<Content>, VfsError> {
        let shared = &self.shared;
        if !shared.table.pin(node) {
            return Err(Errno::STALE.into());
        }
        let acquired = shared.content(node, &caller.group).and_then(|content| {
            content.acquire(for_writing, |writable| shared.open_for_io(node, writable))?;
            Ok(content)
        });
        if acquired.is_err() {
            shared.dispose(shared.table.unpin(node));
        }
        acquired
    }

    /// `close` was called on a descriptor: reports a write-back error not yet reported to this open. Never sleeps.
    ///
    /// # Errors
    /// The error of earlier write-back.
    pub fn flush(&self, file: &OpenFile) -> Result<(), VfsError> {
        Ok(file.content.file.check_error(&file.errors)?)
    }

    /// Makes content (and attributes, unless `data_only`) durable.
    ///
    /// # Errors
    /// Write-back errors, each once per open.
    pub fn fsync(&self, file: &OpenFile, data_only: bool) -> Result<(), VfsError> {
        Ok(file.content.file.fsync(data_only, &file.errors)?)
    }

    /// Reserves, punches or zeroes a byte range. As a write it takes capabilities, and with `kill_set_id` set-id bits.
    ///
    /// # Errors
    /// `EOPNOTSUPP` for other modes (collapsing, inserting) and where the host cannot; `EBADF` when not open for writing;
    /// `EINVAL`, `EFBIG`, `ENOSPC`, and the host's.
    pub fn fallocate(
        &self,
        file: &OpenFile,
        mode: FallocateFlags,
        offset: u64,
        len: u64,
        kill_set_id: bool,
    ) -> Result<(), VfsError> {
        const PUNCH: FallocateFlags = FallocateFlags::PUNCH_HOLE.union(FallocateFlags::KEEP_SIZE);
        if !file.is_writable() {
            return Err(Errno::BADF.into());
        }
        if len == 0 {
            return Err(Errno::INVAL.into());
        }
        let end = offset.checked_add(len).filter(|&end| end <= self.shared.volume.len_max);
        let end = end.ok_or(Errno::FBIG)?;
        let content = &file.content;
        if content.may_have_privileges() {
            content.clear_privileges(kill_set_id)?;
        }
        let on_host = || Ok(content.store.allocate(mode, offset, len, content.file.len())?);
        let grows = !mode.contains(FallocateFlags::KEEP_SIZE);
        if mode.difference(FallocateFlags::KEEP_SIZE).is_empty() {
            content.file.allocate(grows.then_some(end), on_host)?;
        } else if mode == PUNCH {
            content.file.zero_range(offset, len, on_host)?;
        } else if mode.difference(FallocateFlags::KEEP_SIZE) == FallocateFlags::ZERO_RANGE {
            content.file.zero_range(offset, len, on_host)?;
            if grows {
                // The host's file has grown already.
                content.file.allocate(Some(end), || Ok(()))?;
            }
        } else {
            return Err(Errno::OPNOTSUPP.into());
        }
        Ok(())
    }

    /// The next data or hole. What is dirty is written back first, so that the host knows it.
    ///
    /// # Errors
    /// `ENXIO` at or beyond the end, and where no data follows; write-back errors.
    pub fn lseek(&self, file: &OpenFile, whence: Whence, offset: u64) -> Result<u64, VfsError> {
        let content = &file.content;
        if offset >= content.file.len() {
            return Err(Errno::NXIO.into());
        }
        if content.file.nr_dirty() > 0 {
            content.file.write_back().map_err(umemcg::FileError::Store)?;
        }
        let found = content.store.seek(whence == Whence::Data, offset)?;
        let len = content.file.len();
        match whence {
            Whence::Data if found >= len => Err(Errno::NXIO.into()),
            Whence::Data => Ok(found),
            Whence::Hole => Ok(found.min(len)),
        }
    }

    /// Makes everything durable that the volume accepted before the call, metadata included. Goes on after an error and
    /// reports the first.
    ///
    /// # Errors
    /// Write-back errors, and the host's.
    pub fn syncfs(&self) -> Result<(), VfsError> {
        let mut result = Ok(());
        for (node, content) in self.shared.table.contents() {
            if content.fds().is_none() || (content.file.is_stable() && content.store.times.is_settled()) {
                continue;
            }
            let cursor = content.file.sample_error();
            let synced = content.file.fsync(false, &cursor);
            // An error of earlier write-back, whose data has been written since, is the open files' to hear of.
            if let Err(error) = synced
                && !content.file.is_stable()
            {
                tracing::warn!(?node, path = ?self.path_of(node), %error, "cannot write back");
                result = result.and(Err(error.into()));
            }
        }
        self.shared.reap_lingering(usize::MAX);
        // The root may be held without I/O rights.
        let synced = match rustix::fs::syncfs(&self.shared.volume.root) {
            Err(Errno::BADF) => {
                let flags = OFlags::RDONLY | OFlags::DIRECTORY;
                host::reopen(self.shared.volume.root.as_fd(), flags).and_then(rustix::fs::syncfs)
            }
            synced => synced,
        };
        result.and(synced.map_err(VfsError::from))
    }
}
