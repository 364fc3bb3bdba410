//! What every kind of volume can do: the seam between the operations of a file system and where
//! names and data live.
//!
//! A volume numbers its inodes by itself ([`NodeId::ROOT`] is its directory); [`crate::volumes`]
//! tells volumes apart. Open files and directories speak for themselves, so that what is open
//! survives the name that led to it.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use rustix::fs::{FallocateFlags, OFlags, RenameFlags, XattrFlags};

use crate::attr::{Attr, Entry, FileKind, NodeId, SetAttr, StatFs};
use crate::caller::Caller;
use crate::error::VfsError;
use crate::host_volume::HostVolume;
use crate::kernel_cache::KernelCache;
use crate::volume_config::IoMode;
use umemcg::{File, Group, PinnedPages, StoreId};

/// Where the data of a volume lives, for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum VolumeKind {
    /// In a directory of the host.
    Directory {
        /// Which.
        dir: PathBuf,
        /// How content is read and written there; never [`IoMode::Auto`].
        io_mode: IoMode,
    },
    /// In the pool.
    Tmpfs {
        /// Most bytes of data; none: as much as the groups of the writers may hold.
        size_bytes: Option<u64>,
        /// Bytes of data now, in whole pages.
        used_bytes: u64,
    },
}

/// What `lseek` looks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Whence {
    /// The next byte of data at or after the offset.
    Data,
    /// The next hole at or after the offset; the end of the file is one.
    Hole,
}

/// One name of a directory.
#[derive(Debug, Clone, Copy)]
pub struct DirEntry<'a> {
    /// The name, "." and ".." among them.
    pub name: &'a OsStr,
    /// The inode number on the host.
    pub ino: u64,
    /// The type, when the host says it in the directory.
    pub kind: Option<FileKind>,
    /// The position after this entry.
    pub next_offset: u64,
    /// With `readdirplus`: the inode, looked up (counts a reference if the entry is taken). `None`
    /// for "." and "..", for names that vanished meanwhile or lead out of the volume, and when the
    /// caller's group has no room.
    pub entry: Option<Entry>,
}

/// A volume. The methods are those of [`HostVolume`], where each is described; all but
/// [`store_id`](Self::store_id) may sleep. Errors are those of POSIX.
#[allow(clippy::missing_errors_doc)]
pub trait Volume: Send + Sync + fmt::Debug {
    /// Returns what it is.
    fn kind(&self) -> VolumeKind;
    /// Returns the store that content is in, for callers that keep queues.
    fn store_id(&self) -> StoreId;
    /// Path of an inode inside the volume; `None` when it has none. Never sleeps.
    fn path_of(&self, node: NodeId) -> Option<PathBuf>;
    /// Returns the path of the file whose content this is, for messages; `None` when it has no
    /// name. Walks all that is open or dirty.
    fn path_of_content(&self, file: &Arc<File>) -> Option<PathBuf>;

    /// Finds a name and counts a reference to its inode.
    fn lookup(&self, caller: &Caller, parent: NodeId, name: &OsStr) -> Result<Entry, VfsError>;
    /// Gives references back.
    fn forget(&self, node: NodeId, nr_lookups: u64);
    /// Attributes.
    fn getattr(&self, node: NodeId) -> Result<Attr, VfsError>;
    /// Changes attributes.
    fn setattr(&self, caller: &Caller, node: NodeId, change: &SetAttr) -> Result<Attr, VfsError>;
    /// Returns the text of a symbolic link.
    fn readlink(&self, node: NodeId) -> Result<OsString, VfsError>;
    /// Figures of the volume.
    fn statfs(&self) -> Result<StatFs, VfsError>;
    /// Makes a symbolic link.
    fn symlink(
        &self,
        caller: &Caller,
        parent: NodeId,
        name: &OsStr,
        target: &OsStr,
    ) -> Result<Entry, VfsError>;
    /// Makes a regular file, pipe, socket or device.
    fn mknod(
        &self,
        caller: &Caller,
        parent: NodeId,
        name: &OsStr,
        mode: u32,
        rdev: u64,
    ) -> Result<Entry, VfsError>;
    /// Makes a directory.
    fn mkdir(&self, caller: &Caller, parent: NodeId, name: &OsStr, mode: u32) -> Result<Entry, VfsError>;
    /// Removes a name that is no directory's.
    fn unlink(&self, caller: &Caller, parent: NodeId, name: &OsStr) -> Result<(), VfsError>;
    /// Removes an empty directory.
    fn rmdir(&self, parent: NodeId, name: &OsStr) -> Result<(), VfsError>;
    /// Renames within the volume.
    fn rename(
        &self,
        caller: &Caller,
        parent: NodeId,
        name: &OsStr,
        new_parent: NodeId,
        new_name: &OsStr,
        flags: RenameFlags,
    ) -> Result<(), VfsError>;
    /// Gives an inode a further name.
    fn link(
        &self,
        caller: &Caller,
        node: NodeId,
        new_parent: NodeId,
        new_name: &OsStr,
    ) -> Result<Entry, VfsError>;

    /// Opens a regular file.
    fn open(&self, caller: &Caller, node: NodeId, flags: OFlags) -> Result<Arc<dyn VolumeFile>, VfsError>;
    /// Makes and opens a regular file.
    fn create(
        &self,
        caller: &Caller,
        parent: NodeId,
        name: &OsStr,
        mode: u32,
        flags: OFlags,
    ) -> Result<(Entry, Arc<dyn VolumeFile>), VfsError>;
    /// Makes and opens a regular file without a name, in the file system of a directory.
    fn tmpfile(
        &self,
        caller: &Caller,
        parent: NodeId,
        mode: u32,
        flags: OFlags,
    ) -> Result<(Entry, Arc<dyn VolumeFile>), VfsError>;
    /// Opens a directory.
    fn opendir(&self, caller: &Caller, node: NodeId) -> Result<Arc<dyn VolumeDir>, VfsError>;

    /// Returns the value of an extended attribute.
    fn getxattr(&self, node: NodeId, name: &OsStr) -> Result<Vec<u8>, VfsError>;
    /// Sets an extended attribute.
    fn setxattr(
        &self,
        caller: &Caller,
        node: NodeId,
        name: &OsStr,
        value: &[u8],
        flags: XattrFlags,
        kill_set_gid: bool,
    ) -> Result<(), VfsError>;
    /// Names of the extended attributes, each followed by a zero byte.
    fn listxattr(&self, caller: &Caller, node: NodeId) -> Result<Vec<u8>, VfsError>;
    /// Removes an extended attribute.
    fn removexattr(&self, node: NodeId, name: &OsStr) -> Result<(), VfsError>;

    /// Sets the cache that refers to inodes beside the volume and can be asked to forget. Once,
    /// before the first request. Without one, what has been looked up stays until it is forgotten.
    fn set_kernel(&self, _kernel: Arc<dyn KernelCache>) {}
    /// Makes everything durable that was accepted before the call.
    fn syncfs(&self) -> Result<(), VfsError>;
    /// Every node id that was ever given out is below this.
    fn nodes_end(&self) -> u64;
    /// The volume was removed by force: drops cached data, which no request can reach any more.
    fn abandon(&self);
}

/// An open regular file of a volume. Dropping the last reference closes it.
#[allow(clippy::missing_errors_doc)]
pub trait VolumeFile: Send + Sync + fmt::Debug {
    /// Returns the inode that is open.
    fn node(&self) -> NodeId;
    /// Returns the cached content.
    fn content(&self) -> &Arc<File>;
    /// Returns the group of the opener.
    fn group(&self) -> &Arc<Group>;
    /// Returns whether it was opened for writing.
    fn is_writable(&self) -> bool;
    /// Bytes that are all there, or `None`. Never sleeps.
    fn try_read(&self, offset: u64, len: usize) -> Option<PinnedPages<'_>>;
    /// Bytes from `offset`, fewer at the end.
    fn read(&self, group: &Arc<Group>, offset: u64, len: usize) -> Result<PinnedPages<'_>, VfsError>;
    /// Writes if that needs no sleep at all, else `None` and nothing happened.
    fn try_write(&self, group: &Arc<Group>, offset: u64, data: &[u8], kill_set_id: bool) -> Option<usize>;
    /// Accepts bytes.
    fn write(
        &self,
        group: &Arc<Group>,
        offset: u64,
        data: &[u8],
        kill_set_id: bool,
    ) -> Result<usize, VfsError>;
    /// Accepts what the kernel writes back of a mapping, all of it, and where it was mapped also
    /// through a file that was opened for appending. The kernel does not look at how much was
    /// written, so a part counts as an error.
    fn write_mapped(&self, group: &Arc<Group>, offset: u64, data: &[u8]) -> Result<usize, VfsError>;
    /// `close` was called on a descriptor. Never sleeps.
    fn flush(&self) -> Result<(), VfsError>;
    /// Makes content durable.
    fn fsync(&self, data_only: bool) -> Result<(), VfsError>;
    /// Reserves, punches or zeroes a range; what that takes is charged to `group`. `kill_set_id` as
    /// for a write.
    fn fallocate(
        &self,
        group: &Arc<Group>,
        mode: FallocateFlags,
        offset: u64,
        len: u64,
        kill_set_id: bool,
    ) -> Result<(), VfsError>;
    /// Returns the next data or hole.
    fn lseek(&self, whence: Whence, offset: u64) -> Result<u64, VfsError>;
    /// Attributes of what is open.
    fn getattr(&self) -> Result<Attr, VfsError>;
    /// Changes attributes of what is open.
    fn setattr(&self, caller: &Caller, change: &SetAttr) -> Result<Attr, VfsError>;
}

/// An open directory of a volume.
#[allow(clippy::missing_errors_doc)]
pub trait VolumeDir: Send + Sync + fmt::Debug {
    /// Feeds entries from `offset` (0, or a `next_offset`) to `sink` until it answers false (that
    /// entry was not taken).
    fn readdir(&self, offset: u64, sink: &mut dyn FnMut(&DirEntry<'_>) -> bool) -> Result<(), VfsError>;
    /// The same with each name looked up: a taken entry with `entry` set counts one reference.
    fn readdirplus(
        &self,
        caller: &Caller,
        offset: u64,
        sink: &mut dyn FnMut(&DirEntry<'_>) -> bool,
    ) -> Result<(), VfsError>;
    /// Makes the entries durable.
    fn fsyncdir(&self, data_only: bool) -> Result<(), VfsError>;
}

impl Volume for HostVolume {
    fn kind(&self) -> VolumeKind {
        VolumeKind::Directory { dir: self.shared.host_dir.dir.clone(), io_mode: self.io_mode() }
    }
    fn store_id(&self) -> StoreId {
        self.shared.host_dir.store_id
    }
    fn path_of(&self, node: NodeId) -> Option<PathBuf> {
        self.path_of(node)
    }
    fn path_of_content(&self, file: &Arc<File>) -> Option<PathBuf> {
        let contents = self.shared.table.contents();
        let found = contents.into_iter().find(|(_, content)| Arc::ptr_eq(&content.file, file));
        found.and_then(|(node, _)| self.path_of(node))
    }
    fn lookup(&self, caller: &Caller, parent: NodeId, name: &OsStr) -> Result<Entry, VfsError> {
        self.lookup(caller, parent, name)
    }
    fn forget(&self, node: NodeId, nr_lookups: u64) {
        self.forget(node, nr_lookups);
    }
    fn getattr(&self, node: NodeId) -> Result<Attr, VfsError> {
        self.getattr(node, None)
    }
    fn setattr(&self, caller: &Caller, node: NodeId, change: &SetAttr) -> Result<Attr, VfsError> {
        self.setattr(caller, node, None, change)
    }
    fn readlink(&self, node: NodeId) -> Result<OsString, VfsError> {
        self.readlink(node)
    }
    fn statfs(&self) -> Result<StatFs, VfsError> {
        self.statfs()
    }
    fn symlink(
        &self,
        caller: &Caller,
        parent: NodeId,
        name: &OsStr,
        target: &OsStr,
    ) -> Result<Entry, VfsError> {
        self.symlink(caller, parent, name, target)
    }
    fn mknod(
        &self,
        caller: &Caller,
        parent: NodeId,
        name: &OsStr,
        mode: u32,
        rdev: u64,
    ) -> Result<Entry, VfsError> {
        self.mknod(caller, parent, name, mode, rdev)
    }
    fn mkdir(&self, caller: &Caller, parent: NodeId, name: &OsStr, mode: u32) -> Result<Entry, VfsError> {
        self.mkdir(caller, parent, name, mode)
    }
    fn unlink(&self, caller: &Caller, parent: NodeId, name: &OsStr) -> Result<(), VfsError> {
        self.unlink(caller, parent, name)
    }
    fn rmdir(&self, parent: NodeId, name: &OsStr) -> Result<(), VfsError> {
        self.rmdir(parent, name)
    }
    fn rename(
        &self,
        caller: &Caller,
        parent: NodeId,
        name: &OsStr,
        new_parent: NodeId,
        new_name: &OsStr,
        flags: RenameFlags,
    ) -> Result<(), VfsError> {
        self.rename(caller, parent, name, new_parent, new_name, flags)
    }
    fn link(
        &self,
        caller: &Caller,
        node: NodeId,
        new_parent: NodeId,
        new_name: &OsStr,
    ) -> Result<Entry, VfsError> {
        self.link(caller, node, new_parent, new_name)
    }
    fn open(&self, caller: &Caller, node: NodeId, flags: OFlags) -> Result<Arc<dyn VolumeFile>, VfsError> {
        Ok(self.open(caller, node, flags)?)
    }
    fn create(
        &self,
        caller: &Caller,
        parent: NodeId,
        name: &OsStr,
        mode: u32,
        flags: OFlags,
    ) -> Result<(Entry, Arc<dyn VolumeFile>), VfsError> {
        let (entry, file) = self.create(caller, parent, name, mode, flags)?;
        Ok((entry, file))
    }
    fn tmpfile(
        &self,
        caller: &Caller,
        parent: NodeId,
        mode: u32,
        flags: OFlags,
    ) -> Result<(Entry, Arc<dyn VolumeFile>), VfsError> {
        let (entry, file) = self.tmpfile(caller, parent, mode, flags)?;
        Ok((entry, file))
    }
    fn opendir(&self, caller: &Caller, node: NodeId) -> Result<Arc<dyn VolumeDir>, VfsError> {
        Ok(self.opendir(caller, node)?)
    }
    fn getxattr(&self, node: NodeId, name: &OsStr) -> Result<Vec<u8>, VfsError> {
        self.getxattr(node, name)
    }
    fn setxattr(
        &self,
        _caller: &Caller,
        node: NodeId,
        name: &OsStr,
        value: &[u8],
        flags: XattrFlags,
        kill_set_gid: bool,
    ) -> Result<(), VfsError> {
        self.setxattr(node, name, value, flags, kill_set_gid)
    }
    fn listxattr(&self, caller: &Caller, node: NodeId) -> Result<Vec<u8>, VfsError> {
        self.listxattr(caller, node)
    }
    fn removexattr(&self, node: NodeId, name: &OsStr) -> Result<(), VfsError> {
        self.removexattr(node, name)
    }
    fn set_kernel(&self, kernel: Arc<dyn KernelCache>) {
        // Only the first one counts.
        let _ = self.shared.kernel.set(kernel);
    }
    fn syncfs(&self) -> Result<(), VfsError> {
        self.syncfs()
    }
    fn nodes_end(&self) -> u64 {
        self.shared.table.nodes_end()
    }
    fn abandon(&self) {
        for (_, content) in self.shared.table.contents() {
            content.file.discard();
        }
        self.shared.reap_lingering(usize::MAX);
    }
}
