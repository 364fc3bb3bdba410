//! An open directory and its entries.
//!
//! Positions are the host's own cookies (`d_off`), so they stay good whatever is added or removed, also across a `seekdir`
//! to a position from long ago. Entries are read ahead in batches; a read that does not go on where the last one ended
//! drops the batch and seeks, so that `rewinddir` sees what is new.

use std::collections::VecDeque;
use std::ffi::{CString, OsStr};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

use rustix::fs::{FileType, OFlags, RawDir, SeekFrom};
use rustix::io::Errno;
use umemcg_base::sync::Mutex;

use crate::attr::{Entry, FileKind, NodeId};
use crate::error::VfsError;
use crate::reach::Shared;
use crate::vfs::{Caller, Vfs};

/// Bytes of entries that one call to the host fetches.
const BATCH_BYTES: usize = 32 << 10;

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
    /// With `readdirplus`: the inode, looked up (counts a reference if the entry is taken). `None` for "." and "..", for
    /// names that vanished meanwhile or lead out of the volume, and when the caller's group has no room.
    pub entry: Option<Entry>,
}

#[derive(Debug)]
struct RawEntry {
    name: CString,
    ino: u64,
    kind: Option<FileKind>,
    next_offset: u64,
}

/// Entries fetched and not yet taken.
#[derive(Debug, Default)]
struct Batch {
    /// Position of the first entry.
    position: u64,
    entries: VecDeque<RawEntry>,
}

/// An open directory.
#[derive(Debug)]
pub struct DirHandle {
    shared: Arc<Shared>,
    node: NodeId,
    fd: OwnedFd,
    /// Held across reads of this very directory of the host only, not while entries are looked up.
    batch: Mutex<Batch>,
}

impl DirHandle {
    /// The inode that is open.
    pub fn node(&self) -> NodeId {
        self.node
    }

    /// The volume that it is on.
    pub(crate) fn vfs(&self) -> Vfs {
        Vfs { shared: Arc::clone(&self.shared) }
    }

    /// Takes the entries at a position out of the handle; empty at the end of the directory.
    fn take_batch(&self, offset: u64) -> Result<Batch, Errno> {
        let mut batch = self.batch.lock();
        if batch.entries.is_empty() || batch.position != offset {
            batch.entries.clear();
            batch.position = offset;
            rustix::fs::seek(&self.fd, SeekFrom::Start(offset))?;
            fetch(&self.fd, &mut batch.entries)?;
        }
        Ok(std::mem::take(&mut *batch))
    }

    /// Puts back what was not taken.
    fn put_back(&self, rest: Batch) {
        if !rest.entries.is_empty() {
            *self.batch.lock() = rest;
        }
    }
}

impl Drop for DirHandle {
    fn drop(&mut self) {
        self.shared.dispose(self.shared.table.unpin(self.node));
    }
}

/// Reads one batch from where the descriptor stands.
fn fetch(fd: &OwnedFd, entries: &mut VecDeque<RawEntry>) -> Result<(), Errno> {
    let mut space: Vec<MaybeUninit<u8>> = vec![MaybeUninit::uninit(); BATCH_BYTES];
    let mut dir = RawDir::new(fd, &mut space);
    while let Some(entry) = dir.next() {
        let entry = match entry {
            // The directory was removed.
            Err(Errno::NOENT) => return Ok(()),
            entry => entry?,
        };
        entries.push_back(RawEntry {
            name: entry.file_name().to_owned(),
            ino: entry.ino(),
            kind: kind_of(entry.file_type()),
            next_offset: entry.next_entry_cookie(),
        });
        if dir.is_buffer_empty() {
            break;
        }
    }
    Ok(())
}

fn kind_of(file_type: FileType) -> Option<FileKind> {
    Some(match file_type {
        FileType::RegularFile => FileKind::Regular,
        FileType::Directory => FileKind::Directory,
        FileType::Symlink => FileKind::Symlink,
        FileType::Fifo => FileKind::Fifo,
        FileType::Socket => FileKind::Socket,
        FileType::CharacterDevice => FileKind::CharDevice,
        FileType::BlockDevice => FileKind::BlockDevice,
        FileType::Unknown => return None,
    })
}

impl Vfs {
    /// Opens a directory.
    ///
    /// # Errors
    /// `ENOTDIR` for anything else, `ESTALE` when it is gone, and the host's.
    pub fn opendir(&self, node: NodeId) -> Result<Arc<DirHandle>, VfsError> {
        let shared = &self.shared;
        if shared.find(node)?.kind != FileKind::Directory {
            return Err(Errno::NOTDIR.into());
        }
        let held = shared.descriptor(node)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd =
            shared.with_descriptors(|| rustix::fs::openat(&held, c".", flags, rustix::fs::Mode::empty()))?;
        if !shared.table.pin(node) {
            return Err(Errno::STALE.into());
        }
        Ok(Arc::new(DirHandle { shared: Arc::clone(shared), node, fd, batch: Mutex::default() }))
    }

    /// Feeds entries from `offset` (0, or a `next_offset`) to `sink` until it answers false (that entry was not taken)
    /// or the directory ends.
    ///
    /// # Errors
    /// The host's; `EINVAL` for a position that it never gave.
    pub fn readdir(
        &self,
        dir: &DirHandle,
        offset: u64,
        sink: &mut dyn FnMut(&DirEntry<'_>) -> bool,
    ) -> Result<(), VfsError> {
        self.walk(dir, offset, &mut |entry, _| sink(entry))
    }

    /// Like [`readdir`](Self::readdir) with each name looked up: a taken entry with `entry` set counts one reference.
    ///
    /// # Errors
    /// As [`readdir`](Self::readdir).
    pub fn readdirplus(
        &self,
        caller: &Caller,
        dir: &DirHandle,
        offset: u64,
        sink: &mut dyn FnMut(&DirEntry<'_>) -> bool,
    ) -> Result<(), VfsError> {
        // One descriptor for the batch.
        let held = self.shared.descriptor(dir.node)?;
        let mut has_room = true;
        self.walk(dir, offset, &mut |entry, name| {
            let looked_up = match name.to_bytes() {
                b"." | b".." => None,
                // Nobody has asked for it yet: without room the name is listed, and looked up when somebody does.
                _ if !has_room => None,
                _ => match self.lookup_if_room(caller, dir.node, &held, name) {
                    Ok(entry) => Some(entry),
                    Err(error) => {
                        has_room = error.errno() != Errno::NOMEM;
                        None
                    }
                },
            };
            let taken = sink(&DirEntry { entry: looked_up, ..*entry });
            if let (false, Some(found)) = (taken, looked_up) {
                self.forget(found.node, 1);
            }
            taken
        })
    }

    fn walk(
        &self,
        dir: &DirHandle,
        mut offset: u64,
        take: &mut dyn FnMut(&DirEntry<'_>, &std::ffi::CStr) -> bool,
    ) -> Result<(), VfsError> {
        loop {
            let mut batch = dir.take_batch(offset)?;
            if batch.entries.is_empty() {
                return Ok(());
            }
            while let Some(raw) = batch.entries.front() {
                let is_above_root = dir.node == NodeId::ROOT && raw.name.to_bytes() == b"..";
                let entry = DirEntry {
                    name: OsStr::from_bytes(raw.name.to_bytes()),
                    // What is above the volume is nobody's business.
                    ino: if is_above_root { self.shared.volume.root_stat.attr.ino } else { raw.ino },
                    kind: raw.kind,
                    next_offset: raw.next_offset,
                    entry: None,
                };
                if !take(&entry, &raw.name) {
                    dir.put_back(batch);
                    return Ok(());
                }
                offset = raw.next_offset;
                batch.position = offset;
                batch.entries.pop_front();
            }
        }
    }

    /// Makes the entries of a directory durable.
    ///
    /// # Errors
    /// The host's.
    pub fn fsyncdir(&self, dir: &DirHandle, data_only: bool) -> Result<(), VfsError> {
        if data_only {
            rustix::fs::fdatasync(&dir.fd)?
        } else {
            rustix::fs::fsync(&dir.fd)?
        }
        Ok(())
    }
}
