//! Opening regular files, and the sync of the whole volume.

use std::os::fd::AsFd;
use std::sync::Arc;

use rustix::fs::OFlags;
use rustix::io::Errno;

use crate::attr::{FileKind, NodeId};
use crate::caller::Caller;
use crate::content::Content;
use crate::descriptor_share::Purpose;
use crate::error::VfsError;
use crate::handle_share::HandleCharge;
use crate::host;
use crate::host_volume::HostVolume;
use crate::open_file::OpenFile;

impl HostVolume {
    /// Opens a regular file. `O_TRUNC`, `O_APPEND`, `O_SYNC`, `O_DSYNC`, `O_DIRECTORY` and the
    /// access mode count. What was changed on the host since the cache last looked is noticed here.
    ///
    /// # Errors
    /// `EISDIR`, `ELOOP` for a symbolic link, `ENOTDIR` with `O_DIRECTORY`, `ENXIO` for pipes,
    /// sockets and devices (the kernel serves those itself), `EROFS`, `ENFILE` and `ENOMEM` when
    /// the caller's group has no share of descriptors or memory left for a handle, and the host's.
    pub fn open(&self, caller: &Caller, node: NodeId, flags: OFlags) -> Result<Arc<OpenFile>, VfsError> {
        match self.shared.find(node)?.kind {
            FileKind::Regular if flags.contains(OFlags::DIRECTORY) => return Err(Errno::NOTDIR.into()),
            FileKind::Regular => {}
            FileKind::Directory => return Err(Errno::ISDIR.into()),
            FileKind::Symlink => return Err(Errno::LOOP.into()),
            _ => return Err(Errno::NXIO.into()),
        }
        let charge = HandleCharge::take(&self.shared.engine, &caller.group, 0)?;
        let content =
            self.acquire(caller, node, flags.intersects(OFlags::WRONLY | OFlags::RDWR | OFlags::TRUNC))?;
        // From here on dropping it closes.
        let group = Arc::clone(&caller.group);
        let file = OpenFile::new(Arc::clone(&self.shared), node, content, flags, group, charge);
        self.look_at_open(node, &file.content)?;
        if flags.contains(OFlags::TRUNC) {
            let _in_use = file.in_use(true)?;
            // The superuser stands for CAP_FSETID.
            if caller.uid != 0 {
                file.content.clear_privileges(true)?;
            }
            file.content.file.set_len(0)?;
        }
        Ok(file)
    }

    /// Returns the content of a regular file with its host file open, and the node pinned;
    /// `Shared::close` gives both back.
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
            shared.opening(node, &caller.group, for_writing, (Purpose::Open, true), |how| {
                content.acquire(&caller.group, how)
            })?;
            Ok(content)
        });
        if acquired.is_err() {
            shared.dispose(shared.table.unpin(node));
        }
        acquired
    }

    /// Makes everything durable that the volume accepted before the call, metadata included. Goes
    /// on after an error and reports the first.
    ///
    /// # Errors
    /// Write-back errors, and the host's.
    pub fn syncfs(&self) -> Result<(), VfsError> {
        let mut result = Ok(());
        for (node, content) in self.shared.table.contents() {
            if content.fds().is_none() || (content.file.is_stable() && content.store.times.is_restored()) {
                continue;
            }
            let cursor = content.file.sample_error();
            let synced = content.file.fsync(false, &cursor);
            // An error of earlier write-back, whose data has been written since, is reported to the
            // open files.
            if let Err(error) = synced
                && !content.file.is_stable()
            {
                tracing::warn!(?node, path = ?self.path_of(node), %error, "cannot write back");
                result = result.and(Err(error.into()));
            }
        }
        self.shared.reap_lingering(usize::MAX);
        // The root may be held without I/O rights.
        let synced = match rustix::fs::syncfs(&self.shared.host_dir.root) {
            Err(Errno::BADF) => {
                let flags = OFlags::RDONLY | OFlags::DIRECTORY;
                host::reopen(self.shared.host_dir.root.as_fd(), flags).and_then(rustix::fs::syncfs)
            }
            synced => synced,
        };
        result.and(synced.map_err(VfsError::from))
    }
}

#[cfg(test)]
mod tests {
    use crate::volume::{VolumeFile, Whence};
    use std::sync::mpsc;

    use super::*;
    use crate::testing::{Fixture, at_pause, until_asleep};

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
            count.send(counter.getattr(node, None).unwrap().blocks).unwrap();
        });
        file.fsync(false).unwrap();
        assert!(counted.recv().unwrap() > 0, "archivers take a file without blocks for one hole");
        assert_eq!(is_found.recv().unwrap().unwrap(), 0);
    }
}
