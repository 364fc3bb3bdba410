//! Open files and directories of a tmpfs volume.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rustix::fs::{FallocateFlags, OFlags};
use rustix::io::Errno;

use super::Tmpfs;
use super::directory::{FIRST_COOKIE, Name};
use super::inode::{Content, Inode};
use crate::attr::{Attr, Entry, FileKind, NodeId, SetAttr};
use crate::caller::Caller;
use crate::error::VfsError;
use crate::handle_charge::HandleCharge;
use crate::volume::{DirEntry, Lookup, Open, VolumeDir, VolumeFile, Whence};
use umemcg::files::{File, PinnedPages, Readahead};
use umemcg::{ChargeEffort, Group};

/// The number of entries copied from the tree at a time by a listing.
const BATCH: usize = 128;

/// An open regular file.
#[derive(Debug)]
pub(super) struct OpenFile {
    inode: Arc<Inode>,
    flags: OFlags,
    readahead: Readahead,
    group: Arc<Group>,
    _charge: HandleCharge,
}

/// An open directory.
#[derive(Debug)]
pub(super) struct OpenDirectory {
    volume: Arc<Tmpfs>,
    inode: Arc<Inode>,
    _charge: HandleCharge,
}

impl Open for Tmpfs {
    fn open(&self, caller: &Caller, node: NodeId, flags: OFlags) -> Result<Arc<dyn VolumeFile>, VfsError> {
        let inode = self.inode(node)?;
        self.open_inode(caller, inode, flags)
    }

    fn opendir(&self, caller: &Caller, node: NodeId) -> Result<Arc<dyn VolumeDir>, VfsError> {
        let volume = self.me.upgrade().ok_or(Errno::STALE)?;
        let _charge = self.room_for_handle(caller)?;
        let tree = self.tree.read();
        tree.directory(node)?;
        let inode = Arc::clone(tree.get(node)?);
        drop(tree);
        Ok(Arc::new(OpenDirectory { volume, inode, _charge }))
    }
}

impl Tmpfs {
    pub(super) fn room_for_handle(&self, caller: &Caller) -> Result<HandleCharge, Errno> {
        HandleCharge::take(ChargeEffort::Full, &self.engine, &caller.group, 0)
    }

    pub(super) fn open_inode(
        &self,
        caller: &Caller,
        inode: Arc<Inode>,
        flags: OFlags,
    ) -> Result<Arc<dyn VolumeFile>, VfsError> {
        let Some(content) = &inode.content else {
            return Err(match inode.kind {
                FileKind::Directory => Errno::ISDIR,
                FileKind::Symlink => Errno::LOOP,
                _ => Errno::NXIO,
            }
            .into());
        };
        if flags.contains(OFlags::DIRECTORY) {
            return Err(Errno::NOTDIR.into());
        }
        let charge = self.room_for_handle(caller)?;
        if flags.contains(OFlags::TRUNC) {
            // The superuser stands for CAP_FSETID.
            inode.clear_privileges(caller.uid != 0);
            content.file.set_len(0)?;
            inode.note_change();
        }
        Ok(Arc::new(OpenFile::new(inode, caller, flags, charge)))
    }
}

impl OpenFile {
    pub(super) fn new(inode: Arc<Inode>, caller: &Caller, flags: OFlags, charge: HandleCharge) -> Self {
        let group = Arc::clone(&caller.group);
        Self { inode, flags, readahead: Readahead::default(), group, _charge: charge }
    }

    fn of(&self) -> &Content {
        match &self.inode.content {
            Some(content) => content,
            None => unreachable!("only files with content are opened"),
        }
    }

    fn note_read(&self) {
        if !self.flags.contains(OFlags::NOATIME) {
            self.inode.note_read();
        }
    }

    fn is_append(&self) -> bool {
        self.flags.contains(OFlags::APPEND)
    }
}

impl VolumeFile for OpenFile {
    fn node(&self) -> NodeId {
        self.inode.node
    }
    #[inline]
    fn content(&self) -> &Arc<File> {
        &self.of().file
    }
    fn group(&self) -> &Arc<Group> {
        &self.group
    }
    fn is_writable(&self) -> bool {
        self.flags.intersects(OFlags::WRONLY | OFlags::RDWR)
    }
    #[inline]
    fn try_read(&self, offset: u64, len: usize) -> Option<PinnedPages<'_>> {
        let pages = self.of().file.try_read(offset, len, &self.readahead)?;
        pages.count(&self.group);
        self.note_read();
        Some(pages)
    }
    fn read(&self, group: &Arc<Group>, offset: u64, len: usize) -> Result<PinnedPages<'_>, VfsError> {
        let pages = self.of().file.read(group, offset, len, &self.readahead)?;
        self.note_read();
        Ok(pages)
    }

    fn try_write(&self, group: &Arc<Group>, offset: u64, data: &[u8], _kill_set_id: bool) -> Option<usize> {
        let has_privileges = self.inode.may_have_privileges.load(Ordering::Relaxed);
        if !self.is_writable() || self.is_append() || data.is_empty() || has_privileges {
            return None;
        }
        let written = self.of().file.try_write(group, offset, data)?;
        self.inode.note_change();
        Some(written)
    }

    fn write(
        &self,
        group: &Arc<Group>,
        offset: u64,
        data: &[u8],
        kill_set_id: bool,
    ) -> Result<usize, VfsError> {
        if !self.is_writable() {
            return Err(Errno::BADF.into());
        }
        if data.is_empty() {
            return Ok(0);
        }
        self.inode.clear_privileges(kill_set_id);
        let content = self.of();
        let written = if self.is_append() {
            content.file.append(group, data)?.1
        } else {
            content.file.write(group, offset, data)?
        };
        self.inode.note_change();
        Ok(written)
    }

    fn write_mapped(&self, group: &Arc<Group>, offset: u64, data: &[u8]) -> Result<usize, VfsError> {
        if !self.is_writable() {
            return Err(Errno::BADF.into());
        }
        let (content, mut done) = (self.of(), 0);
        while done < data.len() {
            done += content.file.write(group, offset + done as u64, &data[done..])?;
            self.inode.note_change();
        }
        Ok(done)
    }

    fn flush(&self) -> Result<(), VfsError> {
        Ok(())
    }
    fn fsync(&self, _data_only: bool) -> Result<(), VfsError> {
        Ok(())
    }

    fn fallocate(
        &self,
        group: &Arc<Group>,
        mode: FallocateFlags,
        offset: u64,
        len: u64,
        kill_set_id: bool,
    ) -> Result<(), VfsError> {
        const PUNCH: FallocateFlags = FallocateFlags::PUNCH_HOLE.union(FallocateFlags::KEEP_SIZE);
        if !self.is_writable() {
            return Err(Errno::BADF.into());
        }
        if len == 0 {
            return Err(Errno::INVAL.into());
        }
        self.inode.clear_privileges(kill_set_id);
        let file = &self.of().file;
        let grows = !mode.contains(FallocateFlags::KEEP_SIZE);
        if mode.difference(FallocateFlags::KEEP_SIZE).is_empty() {
            file.allocate_memory(group, offset, len, grows)?;
        } else if mode == PUNCH {
            file.zero_range(group, offset, len, || Ok(()))?;
        } else if mode.difference(FallocateFlags::KEEP_SIZE) == FallocateFlags::ZERO_RANGE {
            // Memory is charged first: if the charge fails, the content stays unchanged.
            file.allocate_memory(group, offset, len, grows)?;
            file.zero_range(group, offset, len, || Ok(()))?;
            file.allocate_memory(group, offset, len, grows)?;
        } else {
            return Err(Errno::OPNOTSUPP.into());
        }
        self.inode.note_change();
        Ok(())
    }

    fn lseek(&self, whence: Whence, offset: u64) -> Result<u64, VfsError> {
        let file = &self.of().file;
        if offset >= file.len() {
            return Err(Errno::NXIO.into());
        }
        match whence {
            Whence::Data => Ok(file.seek_data(offset).ok_or(Errno::NXIO)?),
            Whence::Hole => Ok(file.seek_hole(offset)),
        }
    }

    fn getattr(&self) -> Result<Attr, VfsError> {
        Ok(self.inode.attr(0))
    }
    fn setattr(&self, _caller: &Caller, change: &SetAttr) -> Result<Attr, VfsError> {
        self.inode.change(change)?;
        Ok(self.inode.attr(0))
    }
}

/// An entry of a listing, with a lookup counted if its attributes are wanted.
struct ListedEntry {
    cookie: u64,
    name: Name,
    inode: Arc<Inode>,
    entry: Option<Entry>,
}

impl OpenDirectory {
    fn walk(
        &self,
        mut offset: u64,
        plus: bool,
        sink: &mut dyn FnMut(&DirEntry<'_>) -> bool,
    ) -> Result<(), VfsError> {
        let parent_ino = {
            let tree = self.volume.tree.read();
            // A removed directory has no entries, not even these.
            let Ok(directory) = tree.directory(self.inode.node) else { return Ok(()) };
            tree.get(directory.parent).map_or(self.inode.ino(), |parent| parent.ino())
        };
        for (at, name, ino) in [(0, ".", self.inode.ino()), (1, "..", parent_ino)] {
            if offset > at {
                continue;
            }
            let kind = Some(FileKind::Directory);
            let entry = DirEntry { name: OsStr::new(name), ino, kind, next_offset: at + 1, entry: None };
            if !sink(&entry) {
                return Ok(());
            }
            offset = at + 1;
        }
        offset = offset.max(FIRST_COOKIE - 1);
        loop {
            let batch = self.batch(offset, plus);
            let is_last = batch.len() < BATCH;
            let mut batch = batch.into_iter();
            while let Some(ListedEntry { cookie, name, inode, entry }) = batch.next() {
                let taken = sink(&DirEntry {
                    name: OsStr::from_bytes(&name),
                    ino: inode.ino(),
                    kind: Some(inode.kind),
                    next_offset: cookie,
                    entry,
                });
                if !taken {
                    let untaken = std::iter::once((inode, entry)).chain(batch.map(|l| (l.inode, l.entry)));
                    for (inode, _) in untaken.filter(|(_, entry)| entry.is_some()) {
                        self.volume.forget(inode.node, 1);
                    }
                    return Ok(());
                }
                offset = cookie;
            }
            if is_last {
                return Ok(());
            }
        }
    }

    fn batch(&self, offset: u64, plus: bool) -> Vec<ListedEntry> {
        let tree = self.volume.tree.read();
        let Ok(directory) = tree.directory(self.inode.node) else { return Vec::new() };
        let listed = directory.after(offset).filter_map(|(cookie, name, node)| {
            let inode = Arc::clone(tree.get(node).ok()?);
            let entry = plus.then(|| {
                inode.count_lookup();
                Tmpfs::entry(&inode, tree.attr(&inode))
            });
            Some(ListedEntry { cookie, name: Arc::clone(name), inode, entry })
        });
        listed.take(BATCH).collect()
    }
}

impl VolumeDir for OpenDirectory {
    fn readdir(&self, offset: u64, sink: &mut dyn FnMut(&DirEntry<'_>) -> bool) -> Result<(), VfsError> {
        self.walk(offset, false, sink)
    }
    fn readdirplus(
        &self,
        _caller: &Caller,
        offset: u64,
        sink: &mut dyn FnMut(&DirEntry<'_>) -> bool,
    ) -> Result<(), VfsError> {
        self.walk(offset, true, sink)
    }
    fn fsyncdir(&self, _data_only: bool) -> Result<(), VfsError> {
        Ok(())
    }
}
