//! An open regular file.

use std::sync::Arc;
use std::time::Duration;

use rustix::fs::{FallocateFlags, OFlags};
use rustix::io::Errno;

use crate::attr::{Attr, NodeId, SetAttr};
use crate::caller::Caller;
use crate::error::VfsError;
use crate::handle_charge::HandleCharge;
use crate::host::content::Content;
use crate::host::inodes::HostInodes;
use crate::host::store::InUse;
use crate::host::volume::HostVolume;
use crate::kernel_io::{KernelCaching, KernelIo, Subject};
use crate::volume::{VolumeFile, Whence};
use umemcg::Group;
use umemcg::files::{ErrorCursor, File, PinnedPages, Readahead};

/// `O_DSYNC`, a part of `O_SYNC`.
const O_DSYNC: u32 = 0o10_000;
/// The bit of `O_SYNC` beyond `O_DSYNC`.
const O_SYNC_ONLY: u32 = 0o4_000_000;
/// The number of lingering files reaped per close; more than one, so their list shrinks.
const REAPED_PER_CLOSE: usize = 4;
/// Added to the lifetime of attributes in the kernel, since a host's clock and its stamps are
/// coarse.
const STAMP_SLACK: Duration = Duration::from_secs(1);

/// An open regular file. Dropping the last reference closes it. Closing starts no write-back of its
/// own: dirty data is written when it is old enough, or when there is too much of it. Only when
/// many closed files have data to write back does a close request write-back of the longest closed.
/// When there are too many, it waits for one of them.
#[derive(Debug)]
pub(crate) struct OpenFile {
    node: NodeId,
    pub(crate) content: Arc<Content>,
    flags: OFlags,
    readahead: Readahead,
    pub(crate) errors: ErrorCursor,
    group: Arc<Group>,
    _charge: HandleCharge,
    /// Last: it may be the last reference to the engine, to which all other fields release memory.
    pub(crate) inodes: Arc<HostInodes>,
}

impl OpenFile {
    /// Takes over one pin of the node and one count of the content.
    pub(crate) fn new(
        inodes: &Arc<HostInodes>,
        node: NodeId,
        content: Arc<Content>,
        flags: OFlags,
        group: &Arc<Group>,
        charge: HandleCharge,
    ) -> Arc<Self> {
        let errors = content.file.sample_error();
        if inodes.opens_silently() {
            inodes.table.with(node, |entry| entry.nr_silent += 1);
        }
        Arc::new(Self {
            inodes: Arc::clone(inodes),
            node,
            content,
            flags,
            readahead: Readahead::default(),
            errors,
            group: Arc::clone(group),
            _charge: charge,
        })
    }

    /// Returns whether every write goes to the end.
    fn is_append(&self) -> bool {
        self.flags.contains(OFlags::APPEND)
    }

    /// Returns `None` if a write need not be durable before it returns, else whether its data alone
    /// is enough.
    fn synchronous(&self) -> Option<bool> {
        let bits = self.flags.bits();
        (bits & (O_DSYNC | O_SYNC_ONLY) != 0).then_some(bits & O_SYNC_ONLY == 0)
    }

    /// Keeps the host file open. Opens it again if its descriptor was given back. May sleep.
    pub(crate) fn in_use(&self, for_writing: bool) -> Result<InUse<'_>, Errno> {
        self.inodes.in_use(self.node, &self.content, &self.group, for_writing, true)
    }

    /// Returns the file's volume.
    fn volume(&self) -> HostVolume {
        HostVolume { inodes: Arc::clone(&self.inodes) }
    }

    fn note_read(&self) {
        if !self.flags.contains(OFlags::NOATIME) {
            self.content.note_read();
        }
    }

    /// Writes at an offset, or at the end. Returns the offset and the number of bytes written.
    fn write_to(
        &self,
        offset: Option<u64>,
        group: &Arc<Group>,
        data: &[u8],
    ) -> Result<(u64, usize), VfsError> {
        if !self.is_writable() {
            return Err(Errno::BADF.into());
        }
        if data.is_empty() {
            return Ok((offset.unwrap_or(0), 0));
        }
        let start = offset.unwrap_or_else(|| self.content.file.len());
        let room = self.inodes.host_dir.len_max.saturating_sub(start);
        if room == 0 {
            return Err(Errno::FBIG.into());
        }
        let data = &data[..data.len().min(usize::try_from(room).unwrap_or(usize::MAX))];
        // Held until the data accepted here counts as dirty.
        let _in_use = self.in_use(true)?;
        // Before the content changes: its write-back restores the time found then.
        self.content.accept_write();
        let (at, written) = match offset {
            None => self.content.file.append(group, data)?,
            Some(offset) => (offset, self.content.file.write(group, offset, data)?),
        };
        if let Some(data_only) = self.synchronous() {
            self.content.file.sync_written(at, written as u64, data_only, &self.errors)?;
        }
        Ok((at, written))
    }
}

impl VolumeFile for OpenFile {
    /// Returns the open inode.
    fn node(&self) -> NodeId {
        self.node
    }

    /// Returns the cached content, shared by all opens and all names of the inode.
    #[inline]
    fn content(&self) -> &Arc<File> {
        &self.content.file
    }

    /// Returns the group of the opener; data that arrives without a caller is charged to it.
    fn group(&self) -> &Arc<Group> {
        &self.group
    }

    /// Returns whether it was opened for writing.
    fn is_writable(&self) -> bool {
        self.flags.intersects(OFlags::WRONLY | OFlags::RDWR)
    }

    /// Returns the bytes if all are cached, or `None`. Never sleeps.
    #[inline]
    fn try_read(&self, offset: u64, len: usize) -> Option<PinnedPages<'_>> {
        let pages = self.content.file.try_read(offset, len, &self.readahead)?;
        pages.count(&self.group);
        self.note_read();
        Some(pages)
    }

    /// Returns bytes from `offset`, fewer at the end of the file. May sleep for memory and for the
    /// host.
    ///
    /// # Errors
    /// The store's error.
    fn read(&self, group: &Arc<Group>, offset: u64, len: usize) -> Result<PinnedPages<'_>, VfsError> {
        let _in_use = self.in_use(false)?;
        let pages = self.content.file.read(group, offset, len, &self.readahead)?;
        self.note_read();
        Ok(pages)
    }

    /// Writes if possible without sleeping; otherwise returns `None` and writes nothing.
    /// `kill_set_id` clears set-id bits.
    fn try_write(&self, group: &Arc<Group>, offset: u64, data: &[u8], _kill_set_id: bool) -> Option<usize> {
        let is_simple = self.is_writable() && !self.is_append() && self.synchronous().is_none();
        let fits =
            offset.checked_add(data.len() as u64).is_some_and(|end| end <= self.inodes.host_dir.len_max);
        if !is_simple || !fits || data.is_empty() || self.content.may_have_privileges() {
            return None;
        }
        let _in_use = self.content.store.try_use(true)?;
        self.content.accept_write();
        self.content.file.try_write(group, offset, data)
    }

    /// Accepts bytes at `offset` (at the end for `O_APPEND`); durable on return for `O_SYNC` and
    /// `O_DSYNC`. Times change when the write is accepted. May sleep for memory, and for the host
    /// where a page is partly overwritten.
    ///
    /// # Errors
    /// `EBADF` if not open for writing, `EFBIG` beyond the host's largest file size, else the error
    /// of the content or the store.
    fn write(
        &self,
        group: &Arc<Group>,
        offset: u64,
        data: &[u8],
        kill_set_id: bool,
    ) -> Result<usize, VfsError> {
        if self.is_writable() && !data.is_empty() && self.content.may_have_privileges() {
            let _in_use = self.in_use(true)?;
            self.content.clear_privileges(kill_set_id)?;
        }
        let (at, written) = self.write_to((!self.is_append()).then_some(offset), group, data)?;
        if at != offset {
            // The file has grown from outside: the kernel assumes another end of the file.
            self.content.drop_from_kernel(offset, written as u64, || {});
        }
        Ok(written)
    }

    /// Accepts all bytes of a mapping written back by the kernel, at `offset` even for `O_APPEND`.
    /// Clears no privileges, as in Linux: the call comes at any time, even during an exclusive
    /// operation that has found some. May sleep as [`write`](Self::write) does.
    ///
    /// # Errors
    /// As [`write`](Self::write), even if a part was accepted.
    fn write_mapped(&self, group: &Arc<Group>, offset: u64, data: &[u8]) -> Result<usize, VfsError> {
        let mut done = 0;
        while done < data.len() {
            done += self.write_to(Some(offset + done as u64), group, &data[done..])?.1;
        }
        Ok(done)
    }

    /// Reports, at a `close` of a descriptor, a write-back error not yet reported to this open.
    /// Never sleeps.
    ///
    /// # Errors
    /// The error of earlier write-back.
    fn flush(&self) -> Result<(), VfsError> {
        Ok(self.content.file.check_error(&self.errors)?)
    }

    /// Makes content (and attributes, unless `data_only`) durable.
    ///
    /// # Errors
    /// Write-back errors, each once per open.
    fn fsync(&self, data_only: bool) -> Result<(), VfsError> {
        let _in_use = self.in_use(false)?;
        Ok(self.content.file.fsync(data_only, &self.errors)?)
    }

    /// Reserves, punches or zeroes a byte range. Like a write it clears capabilities, and with
    /// `kill_set_id` set-id bits.
    ///
    /// # Errors
    /// `EOPNOTSUPP` for other modes (collapsing, inserting) and where the host lacks support;
    /// `EBADF` if not open for writing; `EINVAL`, `EFBIG`, `ENOSPC`, and the host's.
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
        let end = offset.checked_add(len).filter(|&end| end <= self.inodes.host_dir.len_max);
        let end = end.ok_or(Errno::FBIG)?;
        let _in_use = self.in_use(true)?;
        let content = &self.content;
        if content.may_have_privileges() {
            content.clear_privileges(kill_set_id)?;
        }
        let on_host = || Ok(content.store.allocate(mode, offset, len, content.file.len())?);
        let grows = !mode.contains(FallocateFlags::KEEP_SIZE);
        let kind = mode.difference(FallocateFlags::KEEP_SIZE);
        if kind.is_empty() {
            content.file.allocate(grows.then_some(end), on_host)?;
        } else if mode == PUNCH || kind == FallocateFlags::ZERO_RANGE {
            content.file.zero_range(group, offset, len, on_host)?;
            content.was_emptied(offset, len);
            if grows {
                // The host's file has grown already.
                content.file.allocate(Some(end), || Ok(()))?;
            }
        } else {
            return Err(Errno::OPNOTSUPP.into());
        }
        Ok(())
    }

    /// Returns the next data or hole. Dirty data is written back first, so that the host knows it.
    /// If write-back fails, the whole file counts as data.
    ///
    /// # Errors
    /// `ENXIO` at or beyond the end, and where no data follows; the host's.
    fn lseek(&self, whence: Whence, offset: u64) -> Result<u64, VfsError> {
        let content = &self.content;
        if offset >= content.file.len() {
            return Err(Errno::NXIO.into());
        }
        let _in_use = self.in_use(false)?;
        // A sync reports the error.
        if !content.file.is_in_store() && content.file.write_back().is_err() {
            return Ok(if whence == Whence::Data { offset } else { content.file.len() });
        }
        let found = content.store.seek(whence == Whence::Data, offset)?;
        let len = content.file.len();
        match whence {
            Whence::Data if found >= len => Err(Errno::NXIO.into()),
            Whence::Data => Ok(found),
            Whence::Hole => Ok(found.min(len)),
        }
    }

    fn getattr(&self) -> Result<Attr, VfsError> {
        self.volume().attr_of(self.node, Some(Arc::clone(&self.content)))
    }

    fn setattr(&self, caller: &Caller, change: &SetAttr) -> Result<Attr, VfsError> {
        self.volume().change(caller, self.node, Some(self), change)
    }

    fn kernel_caching(&self, is_new: bool) -> KernelCaching {
        let (content, group) = (&self.content, self.group());
        let Some(pages) = self.inodes.kernel_pages(self.node(), content, group) else {
            return KernelCaching::Bypass;
        };
        pages.note_open();
        let kernel = self.inodes.kernel.get();
        let is_silent = self.inodes.opens_silently();
        let is_worth = || pages.are_worth_caching(group, content.file.len(), self.is_writable());
        let is_cached = content.kernel_caches(|| is_silent || is_worth());
        content.file.set_kept_above(is_cached);
        if let Some(kernel) = kernel.filter(|kernel| !kernel.is_exclusive()) {
            content.tell_if_new_within(kernel.attribute_lifetime() + STAMP_SLACK, || {
                // The kernel has no pages of the file, but may know its old length.
                if !is_new {
                    kernel.attributes_changed(self.node());
                }
            });
        }
        if pages.change().is_none() {
            return if is_cached { KernelCaching::Keep } else { KernelCaching::Bypass };
        }
        // This also invalidates the attributes in the kernel. The message is sent once for each
        // change: see `when_refillable`.
        pages.drop_if_changed();
        if is_cached { KernelCaching::Refill } else { KernelCaching::Bypass }
    }

    fn when_refillable(&self, then: Box<dyn FnOnce() + Send>) {
        match self.content.kernel_pages() {
            Some(pages) => {
                let (me, pages) = (Arc::clone(pages), Arc::clone(pages));
                pages.when_current(Box::new(move || me.when_dropped(then)));
            }
            None => then(),
        }
    }

    fn begin_kernel_io(&self, offset: u64, len: u64, is_write: bool, payer: &Arc<Group>) -> Option<KernelIo> {
        let pages = self.inodes.kernel_pages(self.node(), &self.content, payer)?;
        Some(KernelIo::begin(
            Arc::clone(pages),
            Subject::File(Arc::clone(&self.content.file)),
            (offset, len),
            is_write,
            payer,
        ))
    }

    fn kernel_may_have(&self, offset: u64, len: u64) -> bool {
        self.content.kernel_may_have(offset, len)
    }

    fn drop_kernel_pages(&self, offset: u64, len: u64, then: Box<dyn FnOnce() + Send>) {
        self.content.drop_from_kernel(offset, len, then);
    }
}

impl Drop for OpenFile {
    fn drop(&mut self) {
        if self.content.was_read() {
            // Opened only for the access time.
            let _in_use = self.inodes.in_use(self.node, &self.content, &self.group, false, false);
            self.content.update_host_atime();
        }
        if self.inodes.opens_silently() {
            self.inodes.table.with(self.node, |entry| entry.nr_silent -= 1);
        }
        self.inodes.close(self.node, &self.content);
        self.inodes.reap_lingering(REAPED_PER_CLOSE);
        self.inodes.bound_lingering();
    }
}
