//! Opening files and directories of a host volume.

use std::sync::Arc;

use rustix::fs::OFlags;
use rustix::io::Errno;

use super::HostVolume;
use crate::attr::{FileKind, NodeId};
use crate::caller::Caller;
use crate::error::VfsError;
use crate::handle_charge::HandleCharge;
use crate::host::content::Content;
use crate::host::descriptor_share::Purpose;
use crate::host::dir_handle::DirHandle;
use crate::host::open_file::OpenFile;
use crate::volume::{Open, VolumeDir, VolumeFile};

impl Open for HostVolume {
    /// Opens a regular file. `O_TRUNC`, `O_APPEND`, `O_SYNC`, `O_DSYNC`, `O_DIRECTORY` and the
    /// access mode count. The open detects changes on the host since the cache's last look.
    ///
    /// # Errors
    /// `EISDIR`, `ELOOP` for a symbolic link, `ENOTDIR` with `O_DIRECTORY`, `ENXIO` for pipes,
    /// sockets and devices (the kernel serves those itself), `EROFS`, `ENFILE` and `ENOMEM` if the
    /// caller's group has no share of descriptors or memory left for a handle, and the host's.
    fn open(&self, caller: &Caller, node: NodeId, flags: OFlags) -> Result<Arc<dyn VolumeFile>, VfsError> {
        self.open_for(Purpose::Open, caller, node, flags)
    }

    fn reopen(&self, caller: &Caller, node: NodeId, flags: OFlags) -> Result<Arc<dyn VolumeFile>, VfsError> {
        self.open_for(Purpose::Reopen, caller, node, flags)
    }

    /// Opens a directory, at the cost of the caller's group.
    ///
    /// # Errors
    /// `ENOTDIR` for anything else, `ESTALE` when it is gone, `ENFILE` and `ENOMEM` when the group
    /// has no share of descriptors or memory left for a handle, and the host's.
    fn opendir(&self, caller: &Caller, node: NodeId) -> Result<Arc<dyn VolumeDir>, VfsError> {
        Ok(Arc::new(DirHandle::open(&self.inodes, caller, node)?))
    }

    fn lists_without_open(&self) -> bool {
        self.inodes.host_dir.has_lasting_positions
    }

    /// Returns a directory for one request.
    ///
    /// # Errors
    /// `ENOTDIR` for anything else, `ESTALE` when it is gone.
    fn directory_for_request(&self, node: NodeId) -> Result<Arc<dyn VolumeDir>, VfsError> {
        Ok(Arc::new(DirHandle::for_request(&self.inodes, node)?))
    }
}

impl HostVolume {
    fn open_for(
        &self,
        want: Purpose,
        caller: &Caller,
        node: NodeId,
        flags: OFlags,
    ) -> Result<Arc<dyn VolumeFile>, VfsError> {
        match self.inodes.find(node)?.kind {
            FileKind::Regular if flags.contains(OFlags::DIRECTORY) => return Err(Errno::NOTDIR.into()),
            FileKind::Regular => {}
            FileKind::Directory => return Err(Errno::ISDIR.into()),
            FileKind::Symlink => return Err(Errno::LOOP.into()),
            _ => return Err(Errno::NXIO.into()),
        }
        let inodes = &self.inodes;
        let charge = HandleCharge::take(inodes.charge_effort(), &inodes.engine, &caller.group, 0)?;
        let content = self.acquire(
            want,
            caller,
            node,
            flags.intersects(OFlags::WRONLY | OFlags::RDWR | OFlags::TRUNC),
        )?;
        // From here on, dropping `file` closes it.
        let file = OpenFile::new(inodes, node, content, flags, &caller.group, charge);
        self.look_at_open(node, &file.content)?;
        if flags.contains(OFlags::TRUNC) {
            let _in_use = file.in_use(true)?;
            // The superuser stands for CAP_FSETID.
            if caller.uid != 0 {
                file.content.clear_privileges(true)?;
            }
            file.content.file.set_len(0)?;
            file.content.was_cut(0);
        }
        Ok(file)
    }

    /// Returns the content of a regular file with its host file open, and the node pinned;
    /// `HostInodes::close` gives both back.
    pub(crate) fn acquire(
        &self,
        want: Purpose,
        caller: &Caller,
        node: NodeId,
        for_writing: bool,
    ) -> Result<Arc<Content>, VfsError> {
        let inodes = &self.inodes;
        if !inodes.table.pin(node) {
            return Err(Errno::STALE.into());
        }
        let acquired = inodes.content(node, &caller.group).and_then(|content| {
            inodes.opening(node, &caller.group, for_writing, (want, true), |how| {
                content.acquire(&caller.group, how)
            })?;
            Ok(content)
        });
        if acquired.is_err() {
            inodes.dispose(inodes.table.unpin(node));
        }
        acquired
    }
}

#[cfg(test)]
mod tests {
    use crate::volume::{Attributes, Whence};
    use std::sync::mpsc;

    use super::*;
    use crate::host::tests::{Fixture, at_pause, until_asleep};

    #[test]
    fn data_that_is_being_written_back_is_no_hole() {
        let v = Fixture::new();
        let (_, file) = v.create("f");
        file.write(&v.group, 0, b"data", false).unwrap();
        let other = Arc::clone(&file);
        let (counter, node) = (Arc::clone(&v.vfs), file.node());
        let ((found, is_found), (count, counted)) = (mpsc::channel(), mpsc::channel());
        at_pause(move || {
            let (tell, told) = mpsc::channel();
            std::thread::spawn(move || {
                tell.send(rustix::thread::gettid()).unwrap();
                found.send(other.lseek(Whence::Data, 0)).unwrap();
            });
            until_asleep(told.recv().unwrap());
            count.send(counter.getattr(node).unwrap().blocks).unwrap();
        });
        file.fsync(false).unwrap();
        assert!(counted.recv().unwrap() > 0, "archivers take a file without blocks for one hole");
        assert_eq!(is_found.recv().unwrap().unwrap(), 0);
    }
}
