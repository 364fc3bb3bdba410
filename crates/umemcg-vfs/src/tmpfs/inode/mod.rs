//! An inode of a tmpfs volume: its attributes, its content, and its references.
//!
//! It lives in the tree while it has a name or the kernel refers to it, and outside the tree as
//! long as a process has it open.

pub(super) mod attributes;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rustix::io::Errno;
use umemcg_base::{LeafMutex, PAGE_SIZE, PAGE_SIZE_U64};

use crate::attr::{Attr, FileKind, NodeId, Timestamp};
use crate::privileges::ShownCapabilities;
use crate::slab::Slab;
use crate::tmpfs::config::TmpfsConfig;
use crate::tmpfs::directory::Name;
use crate::tmpfs::quota::{FilePages, VolumeQuota};
use umemcg::files::File;
use umemcg::{Engine, Group};

/// The cost of an inode with its places in the tables, in bytes; measured with 100,000 inodes, like
/// [`CONTENT_BYTES`].
pub(super) const INODE_BYTES: u64 = 384;
/// An access time of this age is updated by every read.
const DAY_SECONDS: i64 = 24 * 60 * 60;
/// The cost of a regular file in addition to its inode and its pages, in bytes.
const CONTENT_BYTES: u64 = 448;

/// The properties of a new inode.
#[derive(Debug, Clone, Copy)]
pub(super) struct NewInode<'a> {
    pub(super) kind: FileKind,
    /// `07777`, before the umask.
    pub(super) mode: u32,
    pub(super) rdev: u64,
    /// The text of a symbolic link.
    pub(super) target: Option<&'a [u8]>,
}

/// An extended attribute.
#[derive(Debug)]
pub(super) struct Xattr {
    pub(super) value: Box<[u8]>,
    pub(super) _charge: Slab,
}

/// The mutable attributes.
#[derive(Debug)]
pub(super) struct Meta {
    /// `07777`.
    pub(super) mode: u32,
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) nlink: u32,
    /// Whether the inode was created without a name and may get its first.
    pub(super) may_be_named: bool,
    pub(super) atime: Timestamp,
    pub(super) mtime: Timestamp,
    pub(super) ctime: Timestamp,
    pub(super) xattrs: BTreeMap<Box<[u8]>, Xattr>,
    /// The last used name, with its directory.
    pub(super) name: Option<(NodeId, Name)>,
}

/// The content of a regular file.
#[derive(Debug)]
pub(super) struct Content {
    pub(super) file: Arc<File>,
    pub(super) pages: Arc<FilePages>,
}

/// See the module text.
#[derive(Debug)]
pub(super) struct Inode {
    pub(super) node: NodeId,
    ino: u64,
    pub(super) kind: FileKind,
    rdev: u64,
    btime: Timestamp,
    pub(super) target: Option<Box<[u8]>>,
    pub(super) content: Option<Content>,
    pub(super) meta: LeafMutex<Meta>,
    /// (A) References of the kernel.
    nr_lookups: AtomicU64,
    /// (A) Whether it may have set-id bits or capabilities for a write to clear. Relaxed: a write
    /// concurrent with the `chmod` setting it may fall on either side.
    pub(super) may_have_privileges: AtomicBool,
    pub(super) shown_capabilities: ShownCapabilities,
    /// (A) Whether a read has updated the access time since the last change of the content and the
    /// last read of the attributes. Relaxed: a read concurrent with a write may fall on either
    /// side.
    was_read: AtomicBool,
    /// The root has no charge.
    _charge: Option<Slab>,
}

impl Meta {
    fn new(mode: u32, uid: u32, gid: u32, nlink: u32) -> Self {
        let now = Timestamp::now();
        Self {
            mode,
            uid,
            gid,
            nlink,
            may_be_named: false,
            atime: now,
            mtime: now,
            ctime: now,
            xattrs: BTreeMap::new(),
            name: None,
        }
    }

    /// Notes a change of the content, or of the entries of a directory.
    pub(super) fn changed_content(&mut self) {
        let now = Timestamp::now();
        (self.mtime, self.ctime) = (now, now);
    }

    /// Notes a change of attributes or names.
    pub(super) fn changed(&mut self) {
        self.ctime = Timestamp::now();
    }
}

impl Inode {
    pub(super) fn is_directory(&self) -> bool {
        self.kind == FileKind::Directory
    }

    /// Creates the root directory of a volume.
    pub(super) fn root(config: &TmpfsConfig, ino: u64) -> Arc<Self> {
        Arc::new(Self {
            node: NodeId::ROOT,
            ino,
            kind: FileKind::Directory,
            rdev: 0,
            btime: Timestamp::now(),
            target: None,
            content: None,
            meta: LeafMutex::new(Meta::new(config.mode & 0o7777, config.uid, config.gid, 2)),
            nr_lookups: AtomicU64::new(1),
            may_have_privileges: AtomicBool::new(false),
            shown_capabilities: ShownCapabilities::default(),
            was_read: AtomicBool::new(false),
            _charge: None,
        })
    }

    /// Creates an inode without a name yet, with one lookup counted. Owner and mode are set when it
    /// gets its name.
    ///
    /// # Errors
    /// `ENOSPC`.
    pub(super) fn new(
        engine: &Arc<Engine>,
        group: &Arc<Group>,
        size: &Arc<VolumeQuota>,
        node: NodeId,
        new: &NewInode<'_>,
    ) -> Result<Self, Errno> {
        let is_regular = new.kind == FileKind::Regular;
        let bytes = INODE_BYTES
            + if is_regular { CONTENT_BYTES } else { 0 }
            + new.target.map_or(0, |target| target.len() as u64);
        let charge = Slab::take(engine, group, bytes)?;
        let content = if is_regular {
            let pages = Arc::new(FilePages::new(size));
            let file = engine.open_memory_file(Arc::clone(&pages) as _, 0).map_err(|_| Errno::NOSPC)?;
            Some(Content { file, pages })
        } else {
            None
        };
        let nlink = if new.kind == FileKind::Directory { 2 } else { 1 };
        Ok(Self {
            node,
            ino: node.0,
            kind: new.kind,
            rdev: new.rdev,
            btime: Timestamp::now(),
            target: new.target.map(Box::from),
            content,
            meta: LeafMutex::new(Meta::new(0, 0, 0, nlink)),
            nr_lookups: AtomicU64::new(1),
            may_have_privileges: AtomicBool::new(true),
            shown_capabilities: ShownCapabilities::default(),
            was_read: AtomicBool::new(false),
            _charge: Some(charge),
        })
    }

    /// Notes a read of the content: updates the access time if it is not newer than the last
    /// change, or a day old, as Linux does (`relatime`).
    #[inline]
    pub(super) fn note_read(&self) {
        if !self.was_read.load(Ordering::Relaxed) {
            self.was_read.store(true, Ordering::Relaxed);
            let now = Timestamp::now();
            let mut meta = self.meta.lock();
            if meta.atime <= meta.mtime.max(meta.ctime) || now.seconds - meta.atime.seconds >= DAY_SECONDS {
                meta.atime = now;
            }
        }
    }

    /// Notes a change of the content.
    pub(super) fn note_change(&self) {
        self.meta.lock().changed_content();
        self.forget_reads();
    }

    fn forget_reads(&self) {
        if self.was_read.load(Ordering::Relaxed) {
            self.was_read.store(false, Ordering::Relaxed);
        }
    }

    /// Returns the attributes; `nr_entries` is the number of entries of a directory.
    pub(super) fn attr(&self, nr_entries: usize) -> Attr {
        self.forget_reads();
        let meta = self.meta.lock();
        let (size, pages) = match (&self.content, &self.target) {
            (Some(content), _) => (content.file.len(), content.pages.nr()),
            (None, Some(target)) => (target.len() as u64, 0),
            // Grows with the number of names, like their cost.
            (None, None) => (nr_entries as u64 * 32, 0),
        };
        Attr {
            ino: self.ino,
            size,
            blocks: pages * (PAGE_SIZE_U64 / 512),
            mode: self.kind.file_type().as_raw_mode() | meta.mode,
            nlink: meta.nlink,
            uid: meta.uid,
            gid: meta.gid,
            rdev: self.rdev,
            atime: meta.atime,
            mtime: meta.mtime,
            ctime: meta.ctime,
            btime: Some(self.btime),
            blksize: PAGE_SIZE as u32,
        }
    }

    /// Returns the inode number, as in listings.
    pub(super) fn ino(&self) -> u64 {
        self.ino
    }

    /// Counts a reference of the kernel. The caller holds the tree's lock, so the inode is not
    /// reaped meanwhile.
    pub(super) fn count_lookup(&self) {
        self.nr_lookups.fetch_add(1, Ordering::Relaxed);
    }

    /// Releases references; an excess is ignored. Returns `true` if the last one was released and
    /// the inode has no name.
    pub(super) fn forget(&self, nr: u64) -> bool {
        let take = |held: u64| Some(held.saturating_sub(nr));
        let before = self.nr_lookups.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take);
        // The lock orders this and the removal of the last name: the second sees the first.
        before.is_ok_and(|before| before <= nr) && self.meta.lock().nlink == 0
    }

    /// Returns whether neither a name nor the kernel holds it. The tree is locked for writing.
    pub(super) fn is_unheld(&self) -> bool {
        let is_nameless = self.meta.lock().nlink == 0;
        is_nameless && self.nr_lookups.load(Ordering::Relaxed) == 0
    }
}
