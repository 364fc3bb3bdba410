//! The operations of every kind of volume: the interface between file system requests and the place
//! of names and data.
//!
//! [`Volume`] combines one trait for each subject. A kind of volume implements each of them in a
//! file of its own. Callers with a `dyn Volume` need none of them by name.
//!
//! A volume numbers its inodes by itself ([`NodeId::ROOT`] is its directory); [`crate::volumes`]
//! distinguishes volumes. Open files and directories have traits of their own: an open file
//! outlives its name.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{FallocateFlags, OFlags, RenameFlags, XattrFlags};
use rustix::io::Errno;

use crate::attr::{Attr, Entry, FileKind, NodeId, SetAttr, StatFs};
use crate::bucket::StoreState;
use crate::caller::Caller;
use crate::error::VfsError;
use crate::kernel_cache::KernelCache;
use crate::kernel_io::{KernelCaching, KernelIo};
use crate::kernel_listing::ListedPart;
use crate::volume_config::IoMode;
use umemcg::Group;
pub use umemcg::files::StoreId;
use umemcg::files::{File, PinnedPages, ReadStep, StartedRead};

/// The serial number of the next store.
static NEXT_STORE: AtomicU64 = AtomicU64::new(1);

/// Returns a store id unique in the process, for a volume or for a source shared by volumes.
pub fn next_store_id() -> StoreId {
    // Relaxed: only uniqueness matters.
    StoreId(NEXT_STORE.fetch_add(1, Ordering::Relaxed))
}

/// The place where the data of a volume lives, for display.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum VolumeKind {
    /// In a directory of the host.
    Directory {
        /// Its path.
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
    /// In a store of objects.
    Objects(Box<StoreState>),
}

/// The target of an `lseek`.
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
    /// The type, if the host's directory has it.
    pub kind: Option<FileKind>,
    /// The position after this entry.
    pub next_offset: u64,
    /// With `readdirplus`: the inode, looked up (counts a reference if the entry is taken). `None`
    /// for "." and "..", for names that vanished meanwhile or lead out of the volume, and when the
    /// caller's group has no room.
    pub entry: Option<Entry>,
}

/// A volume: operations on names and inodes, by subject, and on the volume as a whole. Errors
/// follow POSIX. All methods but [`store_id`](Self::store_id) may sleep, unless they say otherwise.
#[allow(clippy::missing_errors_doc)]
pub trait Volume: Lookup + Attributes + Create + Names + Open + Xattrs + Send + Sync + fmt::Debug {
    /// Returns the kind of the volume, for display.
    fn kind(&self) -> VolumeKind;
    /// Returns the store of the content, for callers with a queue per store.
    fn store_id(&self) -> StoreId;
    /// Returns the path of an inode inside the volume; `None` if it has none. Never sleeps.
    fn path_of(&self, node: NodeId) -> Option<PathBuf>;
    /// Returns the path of the file with this content, for messages; `None` if it has no name.
    /// Walks all open or dirty files.
    fn path_of_content(&self, file: &Arc<File>) -> Option<PathBuf>;
    /// Sets the kernel's cache, which refers to inodes and can be asked to forget some. Called
    /// once, before the first request. Without it, an inode stays from its lookup until it is
    /// forgotten.
    fn set_kernel(&self, _kernel: Arc<dyn KernelCache>) {}
    /// Notes a request as [`VolumeFile::begin_kernel_io`] does, for a file not open here. `None`
    /// also if nothing of the file is known to be in the kernel's cache. Never sleeps.
    fn begin_kernel_io(
        &self,
        _node: NodeId,
        _range: (u64, u64),
        _is_write: bool,
        _payer: &Arc<Group>,
    ) -> Option<KernelIo> {
        None
    }
    /// Invalidates the kernel's cache of an inode: its attributes, and `len` bytes from `offset`
    /// on. Never waits.
    fn make_kernel_forget(&self, _node: NodeId, _offset: u64, _len: u64) {}
    /// Invalidates a name in the kernel. Returns `false`, and does nothing, on a volume without a
    /// watch. Never waits.
    fn make_kernel_forget_name(&self, _directory: NodeId, _name: &OsStr) -> bool {
        false
    }
    /// Has the kernel drop pages of a file from before a detected outside change. Never waits.
    fn drop_changed(&self, _node: NodeId) {}
    /// Returns the present moment if the kernel is notified of other programs' changes from now on;
    /// `None` if not. Never sleeps.
    fn moment(&self) -> Option<u64> {
        None
    }
    /// Returns whether the kernel may keep the inode's state found since a [`moment`](Self::moment)
    /// until it is notified of a change. Never sleeps.
    fn is_unchanged(&self, _ino: u64, _since: u64) -> bool {
        false
    }
    /// Makes all data and metadata accepted before the call durable.
    fn syncfs(&self) -> Result<(), VfsError>;
    /// Returns a bound on node ids: every id ever issued is below it.
    fn nodes_end(&self) -> u64;
    /// Drops cached data that no request can reach: the volume was removed by force.
    fn abandon(&self);
}

/// Finding inodes.
#[allow(clippy::missing_errors_doc)]
pub trait Lookup {
    /// Finds a name and counts a reference to its inode.
    fn lookup(&self, caller: &Caller, parent: NodeId, name: &OsStr) -> Result<Entry, VfsError>;
    /// Gives references back.
    fn forget(&self, node: NodeId, nr_lookups: u64);
}

/// Attributes of inodes and of the volume.
#[allow(clippy::missing_errors_doc)]
pub trait Attributes {
    /// Returns the attributes of an inode.
    fn getattr(&self, node: NodeId) -> Result<Attr, VfsError>;
    /// Returns the attributes of an inode if they are available without sleeping, else `None`.
    fn try_getattr(&self, _node: NodeId) -> Option<Attr> {
        None
    }
    /// Changes attributes, and returns all of them.
    fn setattr(&self, caller: &Caller, node: NodeId, change: &SetAttr) -> Result<Attr, VfsError>;
    /// Returns the text of a symbolic link.
    fn readlink(&self, node: NodeId) -> Result<OsString, VfsError>;
    /// Returns the statistics of the volume's file system.
    fn statfs(&self) -> Result<StatFs, VfsError>;
}

/// Making inodes.
#[allow(clippy::missing_errors_doc)]
pub trait Create {
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
}

/// Changing the names of existing inodes.
#[allow(clippy::missing_errors_doc)]
pub trait Names {
    /// Removes a name of an inode other than a directory. Returns the inode, if it is known.
    fn unlink(&self, caller: &Caller, parent: NodeId, name: &OsStr) -> Result<Option<NodeId>, VfsError>;
    /// Removes an empty directory.
    fn rmdir(&self, caller: &Caller, parent: NodeId, name: &OsStr) -> Result<(), VfsError>;
    /// Renames within the volume. Returns the inodes whose names have changed, as far as they are
    /// known.
    fn rename(
        &self,
        caller: &Caller,
        parent: NodeId,
        name: &OsStr,
        new_parent: NodeId,
        new_name: &OsStr,
        flags: RenameFlags,
    ) -> Result<[Option<NodeId>; 2], VfsError>;
    /// Gives an inode a further name.
    fn link(
        &self,
        caller: &Caller,
        node: NodeId,
        new_parent: NodeId,
        new_name: &OsStr,
    ) -> Result<Entry, VfsError>;
}

/// Opening existing inodes.
#[allow(clippy::missing_errors_doc)]
pub trait Open {
    /// Opens a regular file.
    fn open(&self, caller: &Caller, node: NodeId, flags: OFlags) -> Result<Arc<dyn VolumeFile>, VfsError>;
    /// Opens a regular file already open in a process whose open never came here: limits on new
    /// opens have room for it.
    fn reopen(&self, caller: &Caller, node: NodeId, flags: OFlags) -> Result<Arc<dyn VolumeFile>, VfsError> {
        self.open(caller, node, flags)
    }
    /// Opens a directory.
    fn opendir(&self, caller: &Caller, node: NodeId) -> Result<Arc<dyn VolumeDir>, VfsError>;
    /// Returns whether directories can be listed without an open: a position means the same in
    /// every listing.
    fn lists_without_open(&self) -> bool {
        false
    }
    /// Returns a directory opened for one request, at no cost; only where
    /// [`lists_without_open`](Self::lists_without_open).
    fn directory_for_request(&self, _node: NodeId) -> Result<Arc<dyn VolumeDir>, VfsError> {
        Err(Errno::BADF.into())
    }
}

/// Extended attributes.
#[allow(clippy::missing_errors_doc)]
pub trait Xattrs {
    /// Returns the value of an extended attribute.
    fn getxattr(&self, node: NodeId, name: &OsStr) -> Result<Vec<u8>, VfsError>;
    /// Returns whether the inode is known to lack the attribute. Never sleeps.
    fn is_known_absent(&self, _node: NodeId, _name: &OsStr) -> bool {
        false
    }
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
    /// Returns the names of the extended attributes, each followed by a zero byte.
    fn listxattr(&self, caller: &Caller, node: NodeId) -> Result<Vec<u8>, VfsError>;
    /// Removes an extended attribute.
    fn removexattr(&self, caller: &Caller, node: NodeId, name: &OsStr) -> Result<(), VfsError>;
}

/// An open regular file of a volume. Dropping the last reference closes it.
#[allow(clippy::missing_errors_doc)]
pub trait VolumeFile: Send + Sync + fmt::Debug {
    /// Returns the open inode.
    fn node(&self) -> NodeId;
    /// Returns the cached content.
    fn content(&self) -> &Arc<File>;
    /// Returns the group of the opener.
    fn group(&self) -> &Arc<Group>;
    /// Returns whether it was opened for writing.
    fn is_writable(&self) -> bool;
    /// Returns the bytes if all are cached, or `None`. Never sleeps.
    fn try_read(&self, offset: u64, len: usize) -> Option<PinnedPages<'_>>;
    /// Returns bytes from `offset`, fewer at the end.
    fn read(&self, group: &Arc<Group>, offset: u64, len: usize) -> Result<PinnedPages<'_>, VfsError>;
    /// Goes on with a [read](Self::read) [started](File::start_read) on the content, until it is
    /// done or waits for I/O begun by the store; see [`File::step_read`]. If the store does not
    /// begin reads, the read is done in one step.
    fn step_read(&self, group: &Arc<Group>, read: StartedRead) -> Result<ReadStep<'_>, VfsError> {
        self.read(group, read.offset(), read.len()).map(ReadStep::Done)
    }
    /// Writes if possible without sleeping; otherwise returns `None` and writes nothing.
    fn try_write(&self, group: &Arc<Group>, offset: u64, data: &[u8], kill_set_id: bool) -> Option<usize>;
    /// Accepts bytes.
    fn write(
        &self,
        group: &Arc<Group>,
        offset: u64,
        data: &[u8],
        kill_set_id: bool,
    ) -> Result<usize, VfsError>;
    /// Accepts bytes of a mapping written back by the kernel: all of them, at their mapped offset
    /// even if the file was opened for appending. The kernel ignores the number of bytes written,
    /// so a partial write is an error.
    fn write_mapped(&self, group: &Arc<Group>, offset: u64, data: &[u8]) -> Result<usize, VfsError>;
    /// Reports an error of earlier write-back at a `close` of a descriptor. Never sleeps unless
    /// [`flush_may_sleep`](Self::flush_may_sleep).
    fn flush(&self) -> Result<(), VfsError>;
    /// As [`flush`](Self::flush), for a close by a thread, as the kernel numbers it.
    fn flush_of(&self, _thread: u32) -> Result<(), VfsError> {
        self.flush()
    }
    /// Returns whether a [`flush`](Self::flush) waits for the written data.
    fn flush_may_sleep(&self) -> bool {
        false
    }
    /// Notes that the kernel has closed the file, for content not stored by a flush. May sleep for
    /// long, and has no caller to report to. A file dropped without this call stores nothing.
    fn closed(&self) {}
    /// Makes content durable.
    fn fsync(&self, data_only: bool) -> Result<(), VfsError>;
    /// Reserves, punches or zeroes a range. Memory needed is charged to `group`, the writer of
    /// pages made dirty. `kill_set_id` as for a write.
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
    /// Returns the attributes of the open file.
    fn getattr(&self) -> Result<Attr, VfsError>;
    /// Changes attributes of the open file.
    fn setattr(&self, caller: &Caller, change: &SetAttr) -> Result<Attr, VfsError>;
    /// Decides, once for each open, how the kernel is to cache the file; `is_new` if the open
    /// created it.
    fn kernel_caching(&self, _is_new: bool) -> KernelCaching {
        KernelCaching::Bypass
    }
    /// For an open with [`KernelCaching::Refill`]: calls `then` when the kernel has dropped all
    /// pages from before the latest change, and has carried out earlier drops. If a drop message
    /// crossed an answer with the new length, the kernel would ignore the answer, and read up to
    /// the old length. Never waits.
    fn when_refillable(&self, then: Box<dyn FnOnce() + Send>) {
        then();
    }
    /// Notes a request that may put pages of the file into the kernel's cache, for `len` bytes from
    /// `offset` on. It ends when the returned value is dropped. `None` if the kernel's pages are
    /// not charged here. Never sleeps.
    fn begin_kernel_io(
        &self,
        _offset: u64,
        _len: u64,
        _is_write: bool,
        _payer: &Arc<Group>,
    ) -> Option<KernelIo> {
        None
    }
    /// Returns whether the kernel may have some of `len` bytes from `offset` on. Never sleeps.
    fn kernel_may_have(&self, _offset: u64, _len: u64) -> bool {
        false
    }
    /// Calls `then` when the kernel has dropped its pages of `len` bytes from `offset` on. Never
    /// waits.
    fn drop_kernel_pages(&self, _offset: u64, _len: u64, then: Box<dyn FnOnce() + Send>) {
        then();
    }
}

/// An open directory of a volume.
#[allow(clippy::missing_errors_doc)]
pub trait VolumeDir: Send + Sync + fmt::Debug {
    /// Passes entries from `offset` (0, or a `next_offset`) on to `sink` until it returns `false`
    /// (the entry was not taken).
    fn readdir(&self, offset: u64, sink: &mut dyn FnMut(&DirEntry<'_>) -> bool) -> Result<(), VfsError>;
    /// Lists as [`readdir`](Self::readdir) does, with each name looked up: a taken entry with
    /// `entry` set counts one reference.
    fn readdirplus(
        &self,
        caller: &Caller,
        offset: u64,
        sink: &mut dyn FnMut(&DirEntry<'_>) -> bool,
    ) -> Result<(), VfsError>;
    /// Notes a request to list names from `offset` on. The kernel will keep them, charged to
    /// `payer`. The request ends when the returned [`KernelIo`] is dropped. `None` where the kernel
    /// keeps no names of a directory.
    fn begin_kernel_io(&self, _offset: u64, _payer: &Arc<Group>) -> Option<(KernelIo, ListedPart)> {
        None
    }
    /// Makes the entries durable.
    fn fsyncdir(&self, data_only: bool) -> Result<(), VfsError>;
}
