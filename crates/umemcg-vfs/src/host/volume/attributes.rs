//! Attributes of the inodes of a host volume, and the statistics of its file system.

use std::ffi::OsString;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStringExt;
use std::sync::Arc;

use rustix::io::Errno;

use super::HostVolume;
use crate::attr::{Attr, FileKind, NodeId, SetAttr, StatFs};
use crate::caller::Caller;
use crate::error::VfsError;
use crate::host::content::Content;
use crate::host::descriptor_share::Purpose;
use crate::host::open_file::OpenFile;
use crate::host::syscalls;
use crate::privileges::mode_without_set_id;
use crate::volume::{Attributes, Volume, VolumeFile};

impl Attributes for HostVolume {
    /// Returns the attributes of an inode.
    ///
    /// # Errors
    /// `ESTALE` if the inode is gone; the host's.
    fn getattr(&self, node: NodeId) -> Result<Attr, VfsError> {
        self.attr_of(node, self.inodes.find(node)?.content)
    }

    /// Returns the attributes of a directory with a held descriptor, on local file systems only:
    /// the host has them in memory then, and the call waits for nothing.
    fn try_getattr(&self, node: NodeId) -> Option<Attr> {
        let inodes = &self.inodes;
        if !inodes.host_dir.waits_by_range || inodes.find(node).ok()?.kind != FileKind::Directory {
            return None;
        }
        let held = if node == NodeId::ROOT {
            Arc::clone(&inodes.host_dir.root)
        } else {
            inodes.descriptors.get(node)?
        };
        let stat = syscalls::stat_fd(&held).ok()?;
        inodes.host_dir.clock.saw(stat.attr.ctime);
        Some(stat.attr)
    }

    /// Changes attributes, and returns all of them. Changing the owner clears set-id bits, as the
    /// host does.
    ///
    /// # Errors
    /// `EISDIR` or `EINVAL` if the length of anything but a regular file is set, `EFBIG`, `EPERM`,
    /// `EROFS`, and the host's.
    fn setattr(&self, caller: &Caller, node: NodeId, change: &SetAttr) -> Result<Attr, VfsError> {
        self.change(caller, node, None, change)
    }

    /// Returns the text of a symbolic link.
    ///
    /// # Errors
    /// `EINVAL` for anything else; the host's.
    fn readlink(&self, node: NodeId) -> Result<OsString, VfsError> {
        if self.inodes.find(node)?.kind != FileKind::Symlink {
            return Err(Errno::INVAL.into());
        }
        let held = self.inodes.descriptor(node)?;
        let text = rustix::fs::readlinkat(&held, c"", Vec::new())?;
        Ok(OsString::from_vec(text.into_bytes()))
    }

    /// Returns the statistics of the file system below.
    ///
    /// # Errors
    /// The host's.
    fn statfs(&self) -> Result<StatFs, VfsError> {
        let fs = rustix::fs::fstatvfs(&self.inodes.host_dir.root)?;
        Ok(StatFs {
            frsize: fs.f_frsize,
            bsize: fs.f_bsize,
            blocks: fs.f_blocks,
            bfree: fs.f_bfree,
            bavail: fs.f_bavail,
            files: fs.f_files,
            ffree: fs.f_ffree,
            namemax: fs.f_namemax,
        })
    }
}

impl HostVolume {
    /// Returns the attributes of an inode with this cached content. The kernel still has to drop
    /// changed pages: see [`Volume::drop_changed`].
    pub(crate) fn attr_of(&self, node: NodeId, content: Option<Arc<Content>>) -> Result<Attr, VfsError> {
        let Some(content) = content else {
            let stat = syscalls::stat_fd(&self.inodes.descriptor(node)?)?;
            self.inodes.host_dir.clock.saw(stat.attr.ctime);
            return Ok(stat.attr);
        };
        // Updating the host's access time needs a readable descriptor.
        let opener = content.was_read().then(|| content.opener()).flatten();
        let _in_use = opener.as_ref().map(|opener| self.inodes.in_use(node, &content, opener, false, false));
        self.look(node, &content, false)
    }

    fn look(&self, node: NodeId, content: &Content, is_open: bool) -> Result<Attr, VfsError> {
        Ok(match content.fds() {
            Some(fds) => content.look(is_open, || syscalls::stat_fd(&fds.buffered))?,
            None => {
                let held = self.inodes.descriptor(node)?;
                content.look(is_open, || syscalls::stat_fd(&held))?
            }
        })
    }

    /// Changes attributes, through an open file if there is one.
    pub(crate) fn change(
        &self,
        caller: &Caller,
        node: NodeId,
        file: Option<&OpenFile>,
        change: &SetAttr,
    ) -> Result<Attr, VfsError> {
        let found = self.inodes.find(node)?;
        if let Some(len) = change.size {
            match found.kind {
                FileKind::Regular => self.truncate(caller, node, file, len, change.kill_set_id)?,
                FileKind::Directory => return Err(Errno::ISDIR.into()),
                _ => return Err(Errno::INVAL.into()),
            }
        }
        let content = match file {
            Some(file) => Some(Arc::clone(&file.content)),
            None => self.inodes.find(node)?.content,
        };
        if *change != (SetAttr { size: change.size, ..SetAttr::default() }) {
            let fds = content.as_ref().and_then(|content| content.fds());
            let held = if fds.is_none() { Some(self.inodes.descriptor(node)?) } else { None };
            let fd = fds.as_ref().map(|fds| fds.buffered.as_fd()).or(held.as_ref().map(|fd| fd.as_fd()));
            let fd = fd.ok_or(Errno::STALE)?;
            let apply = || self.apply(fd, found.kind, change);
            match &content {
                Some(content) => {
                    let after = content.change_attributes(fd, change, apply)?;
                    if let Some(attr) = after.and_then(|after| content.peek_attr(&after)) {
                        return Ok(attr);
                    }
                }
                None => apply()?,
            }
        }
        let attr = match file {
            Some(_) => self.attr_of(node, content),
            None => self.getattr(node),
        };
        self.drop_changed(node);
        attr
    }

    /// Adopts, at an open, earlier changes by other programs on the host. Of stores through a
    /// mapping that left the times as they were, it adopts those the host has written back since.
    pub(crate) fn look_at_open(&self, node: NodeId, content: &Content) -> Result<(), VfsError> {
        if self.inodes.kernel.get().is_some_and(|kernel| kernel.is_exclusive()) {
            return Ok(());
        }
        content.store.times.doubt_if_due(|| self.inodes.host_dir.clock.now());
        self.look(node, content, true).map(|_| ())
    }

    fn truncate(
        &self,
        caller: &Caller,
        node: NodeId,
        file: Option<&OpenFile>,
        len: u64,
        kill_set_id: bool,
    ) -> Result<(), VfsError> {
        if len > self.inodes.host_dir.len_max {
            return Err(Errno::FBIG.into());
        }
        let set = |content: &Content| -> Result<(), VfsError> {
            if kill_set_id {
                content.clear_privileges(true)?;
            }
            content.file.set_len(len)?;
            content.was_cut(len);
            Ok(())
        };
        match file {
            Some(file) if file.is_writable() => {
                let _in_use = file.in_use(true)?;
                set(&file.content)
            }
            _ => {
                // Where opens are silent, the file may be open without an open here.
                let want = if self.inodes.opens_silently() { Purpose::Reopen } else { Purpose::Open };
                let content = self.acquire(want, caller, node, true)?;
                // Adopt changes on the host before deciding about data beyond the new end.
                let in_use = self.inodes.in_use(node, &content, &caller.group, true, true);
                let result = self.getattr(node).and_then(|_| set(&content));
                drop(in_use);
                self.inodes.close(node, &content);
                result
            }
        }
    }

    fn apply(&self, fd: BorrowedFd<'_>, kind: FileKind, change: &SetAttr) -> Result<(), Errno> {
        if change.uid.is_some() || change.gid.is_some() {
            syscalls::chown(fd, change.uid, change.gid)?;
        }
        if let Some(mode) = change.mode {
            syscalls::chmod(fd, mode)?;
        } else if change.kill_set_id && kind == FileKind::Regular {
            let mode = syscalls::stat_fd(fd)?.attr.mode;
            let cleared = mode_without_set_id(mode);
            if cleared != mode {
                syscalls::chmod(fd, cleared)?;
            }
        }
        if change.atime.is_some() || change.mtime.is_some() {
            syscalls::set_times(fd, change.atime, change.mtime)?;
        }
        #[cfg(test)]
        crate::host::tests::pause_here();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attr::{SetTime, Timestamp};
    use crate::host::tests::{Fixture, at_pause, until_asleep};

    #[test]
    fn a_time_that_is_set_during_write_back_stays() {
        let v = Fixture::new();
        let (path, file) = v.create("f");
        file.write(&v.group, 0, b"data", false).unwrap();
        let other = Arc::clone(&file);
        at_pause(move || {
            let (tell, told) = std::sync::mpsc::channel();
            std::thread::spawn(move || {
                tell.send(rustix::thread::gettid()).unwrap();
                other.fsync(false).unwrap();
            });
            until_asleep(told.recv().unwrap());
        });
        let wanted = Timestamp { seconds: 1_234_567_890, nanoseconds: 7 };
        let change = SetAttr { mtime: Some(SetTime::At(wanted)), ..SetAttr::default() };
        let attr = v.vfs.setattr(&v.caller(), file.node(), &change).unwrap();
        assert_eq!(attr.mtime, wanted);
        file.fsync(false).unwrap();
        assert_eq!(v.vfs.getattr(file.node()).unwrap().mtime, wanted);
        assert_eq!(syscalls::stat_fd(std::fs::File::open(path).unwrap()).unwrap().attr.mtime, wanted);
    }
}
