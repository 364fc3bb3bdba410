//! Finding inodes and looking at them: lookup, forget, getattr, readlink, statfs.

use std::ffi::{CStr, OsStr, OsString};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt;
use std::sync::Arc;

use rustix::io::Errno;

use crate::attr::{Attr, Entry, FileKind, NodeId, StatFs};
use crate::caller::Caller;
use crate::content::Content;
use crate::error::VfsError;
use crate::host::{self, HostStat};
use crate::host_volume::HostVolume;
use crate::inode_names::{NameCharge, is_long};
use crate::inode_table::NodeCharge;
use crate::metadata_charge::Patience;
use crate::name::component;
use crate::name_shrinker;
use crate::open_file::OpenFile;

impl HostVolume {
    /// Finds a name in a directory and counts one reference to its inode. The memory for that is
    /// charged to the caller's group, or to an ancestor when the group has no room.
    ///
    /// # Errors
    /// `ENOENT`; `ENOMEM` when the pool is full of what cannot be reclaimed; `EXDEV` for what lies
    /// on another file system (a mount point inside the directory); `ESTALE` when the directory is
    /// gone; the host's.
    pub fn lookup(&self, caller: &Caller, parent: NodeId, name: &OsStr) -> Result<Entry, VfsError> {
        let name = component(name)?;
        let dir = self.directory(parent)?;
        self.lookup_in(caller, parent, &dir, &name)
    }

    pub(crate) fn lookup_in(
        &self,
        caller: &Caller,
        parent: NodeId,
        dir: &OwnedFd,
        name: &CStr,
    ) -> Result<Entry, VfsError> {
        let stat = host::stat_name(dir, name)?;
        self.enter(caller, parent, dir, name, &stat)
    }

    /// Looks up without waiting: `ENOMEM` when the caller's group has no room as it is.
    pub(crate) fn lookup_if_room(
        &self,
        caller: &Caller,
        parent: NodeId,
        dir: &OwnedFd,
        name: &CStr,
    ) -> Result<Entry, VfsError> {
        let stat = host::stat_name(dir, name)?;
        self.enter_with(Patience::None, caller, parent, (dir, name), &stat)
    }

    /// Counts a lookup of what was seen under a name.
    pub(crate) fn enter(
        &self,
        caller: &Caller,
        parent: NodeId,
        dir: &OwnedFd,
        name: &CStr,
        stat: &HostStat,
    ) -> Result<Entry, VfsError> {
        self.enter_with(self.patience(), caller, parent, (dir, name), stat)
    }

    /// Returns how long a request waits for room for a name.
    pub(crate) fn patience(&self) -> Patience {
        match self.shared.kernel.get().is_some_and(|kernel| kernel.asks_by_name()) {
            true => Patience::OneRound,
            false => Patience::Waits,
        }
    }

    fn enter_with(
        &self,
        patience: Patience,
        caller: &Caller,
        parent: NodeId,
        (dir, name): (&OwnedFd, &CStr),
        stat: &HostStat,
    ) -> Result<Entry, VfsError> {
        let shared = &self.shared;
        if !shared.host_dir.owns(stat) {
            return Err(Errno::XDEV.into());
        }
        shared.host_dir.clock.saw(stat.attr.ctime);
        let bytes = name.to_bytes();
        let node = match shared.table.count_known(stat.key(), stat.kind, parent, bytes) {
            Some(node) => node,
            None => {
                let (engine, group) = (&shared.engine, &caller.group);
                let charge = NodeCharge::take_by(patience, engine, group)?;
                // Of an inode that is known already it is a further name.
                let is_dear = is_long(bytes) || shared.table.find(stat.key()).is_some();
                let for_name = is_dear.then(|| NameCharge::take_by(patience, engine, group)).transpose()?;
                shared.table.lists_or(|| name_shrinker::register(shared));
                let handle = shared.handle_of(dir, name);
                let (node, removed) = shared
                    .table
                    .count(stat.key(), stat.kind, (handle, Some(charge)), parent, (bytes, for_name))
                    .ok_or(Errno::STALE)?;
                shared.dispose(removed);
                node
            }
        };
        match self.attr_after(node, stat) {
            Ok(attr) => Ok(Entry { node, generation: 0, attr }),
            Err(error) => {
                self.forget(node, 1);
                Err(error)
            }
        }
    }

    /// Counts a lookup of a new inode that has no name.
    pub(crate) fn enter_nameless(
        &self,
        caller: &Caller,
        stat: &HostStat,
        held: OwnedFd,
    ) -> Result<Entry, VfsError> {
        let shared = &self.shared;
        shared.host_dir.clock.saw(stat.attr.ctime);
        let charge = NodeCharge::take_by(self.patience(), &shared.engine, &caller.group)?;
        shared.table.lists_or(|| name_shrinker::register(shared));
        let held = Arc::new(held);
        let (node, too_many) =
            shared.table.count_nameless(stat.key(), stat.kind, charge, held, shared.max_held);
        if let Some(fd) = too_many {
            shared.descriptors.put(node, fd);
        }
        Ok(Entry { node, generation: 0, attr: stat.attr })
    }

    /// Returns the attributes to show for an inode that the host just described.
    pub(crate) fn attr_after(&self, node: NodeId, stat: &HostStat) -> Result<Attr, VfsError> {
        if stat.kind != FileKind::Regular {
            return Ok(stat.attr);
        }
        match self.shared.find(node)?.content {
            None => Ok(stat.attr),
            Some(content) => match content.peek_attr(stat) {
                Some(attr) => Ok(attr),
                None => self.getattr(node, None),
            },
        }
    }

    /// Returns a descriptor of a directory to work in.
    pub(crate) fn directory(&self, node: NodeId) -> Result<Arc<OwnedFd>, Errno> {
        if self.shared.find(node)?.kind != FileKind::Directory {
            return Err(Errno::NOTDIR);
        }
        self.shared.descriptor(node)
    }

    /// Gives back `nr_lookups` references. Unknown nodes are ignored. May sleep for the host when a
    /// file without a name goes while its data is being written back.
    pub fn forget(&self, node: NodeId, nr_lookups: u64) {
        let shared = &self.shared;
        let (removed, is_newly_kept) = shared.table.forget(node, nr_lookups, shared.max_kept > 0);
        shared.dispose(removed);
        if is_newly_kept {
            shared.keep(node);
        }
        // There is no way back to a file without a name, so what it still has to write is not worth
        // writing.
        let abandoned = shared.table.with(node, |slot| {
            let is_abandoned = slot.lingers && slot.is_nameless && !slot.is_looked_up();
            slot.content.clone().filter(|_| is_abandoned)
        });
        if let Some(content) = abandoned.flatten() {
            content.discard();
            shared.stop_lingering(node);
        }
    }

    /// Attributes of an inode, through an open file if there is one.
    ///
    /// # Errors
    /// `ESTALE` when the inode is gone; the host's.
    pub fn getattr(&self, node: NodeId, file: Option<&OpenFile>) -> Result<Attr, VfsError> {
        let content = match file {
            Some(file) => Some(Arc::clone(&file.content)),
            None => self.shared.find(node)?.content,
        };
        let Some(content) = content else {
            let stat = host::stat_fd(&self.shared.descriptor(node)?)?;
            self.shared.host_dir.clock.saw(stat.attr.ctime);
            return Ok(stat.attr);
        };
        // To tell the host of reads takes a descriptor that can read.
        let opener = content.was_read().then(|| content.opener()).flatten();
        let _in_use = opener.as_ref().map(|opener| self.shared.in_use(node, &content, opener, false, false));
        Ok(match content.fds() {
            Some(fds) => content.look(|| host::stat_fd(&fds.buffered))?,
            None => {
                let held = self.shared.descriptor(node)?;
                content.look(|| host::stat_fd(&held))?
            }
        })
    }

    /// Takes over, at an open, what was made of the file from outside before.
    pub(crate) fn look_at_open(&self, node: NodeId, content: &Content) -> Result<(), VfsError> {
        match content.fds() {
            Some(fds) => content.look_at_open(|| host::stat_fd(&fds.buffered))?,
            None => {
                let held = self.shared.descriptor(node)?;
                content.look_at_open(|| host::stat_fd(&held))?
            }
        };
        Ok(())
    }

    /// Returns the text of a symbolic link.
    ///
    /// # Errors
    /// `EINVAL` for anything else; the host's.
    pub fn readlink(&self, node: NodeId) -> Result<OsString, VfsError> {
        if self.shared.find(node)?.kind != FileKind::Symlink {
            return Err(Errno::INVAL.into());
        }
        let held = self.shared.descriptor(node)?;
        let text = rustix::fs::readlinkat(&held, c"", Vec::new())?;
        Ok(OsString::from_vec(text.into_bytes()))
    }

    /// Figures of the file system below.
    ///
    /// # Errors
    /// The host's.
    pub fn statfs(&self) -> Result<StatFs, VfsError> {
        let fs = rustix::fs::fstatvfs(&self.shared.host_dir.root)?;
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
