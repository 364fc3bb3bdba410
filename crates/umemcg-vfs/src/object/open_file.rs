//! An open object. Reads see the version present at the open. Changes go to a draft.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{FallocateFlags, OFlags};
use rustix::io::Errno;
use umemcg::Group;
use umemcg::files::{File, PinnedPages, ReadStep, Readahead, StartedRead};
use umemcg_base::ErrorCursor;

use super::content::Content;
use super::draft::Draft;
use super::drafts::Drafts;
use super::file_labels::FileLabels;
use super::kernel_copy::KernelCopy;
use super::node::Facts;
use super::objects::Objects;
use super::relabeling::Relabeling;
use crate::attr::{Attr, NodeId, SetAttr};
use crate::bucket::{FileAttributes, TenantScope};
use crate::caller::Caller;
use crate::error::VfsError;
use crate::handle_charge::HandleCharge;
use crate::kernel_io::{KernelCaching, KernelIo, Subject};
use crate::page_windows::page_range;
use crate::volume::{VolumeFile, Whence};

/// `O_DSYNC`; `O_SYNC` includes it.
const O_DSYNC: u32 = 0o10_000;

/// An open object. It shows the version present when it was opened. Uncached parts cannot be read
/// any more once the store has another version. Changes made through one open file are shown by all
/// others of the volume.
#[derive(Debug)]
pub(super) struct OpenFile {
    node: NodeId,
    ino: u64,
    content: Arc<Content>,
    flags: OFlags,
    readahead: Readahead,
    /// None where the kernel keeps no pages.
    kernel_copy: Option<Arc<KernelCopy>>,
    errors: ErrorCursor,
    /// (A) It is counted as a writer of the content. Relaxed: it is swapped once.
    is_writing: AtomicBool,
    group: Arc<Group>,
    _charge: HandleCharge,
    /// `None` on a read-only volume.
    drafts: Option<Arc<Drafts>>,
    /// Last: it may be the last reference to the engine, to which all other fields release memory.
    objects: Arc<Objects>,
}

impl OpenFile {
    /// Takes over one pin of the node.
    pub(super) fn new(
        (objects, drafts): (&Arc<Objects>, Option<&Arc<Drafts>>),
        (node, content): (NodeId, Arc<Content>),
        flags: OFlags,
        group: &Arc<Group>,
        charge: HandleCharge,
    ) -> Self {
        let kernel_copy = objects.kernel_copy(node, group);
        kernel_copy.iter().for_each(|copy| copy.opened());
        let is_writing = wants_to_write(flags);
        if is_writing {
            content.begin_writing();
        }
        Self {
            node,
            ino: objects.ino(node),
            flags,
            readahead: Readahead::of_remote(),
            kernel_copy,
            errors: content.errors.sample(),
            is_writing: AtomicBool::new(is_writing),
            content,
            group: Arc::clone(group),
            _charge: charge,
            drafts: drafts.cloned(),
            objects: Arc::clone(objects),
        }
    }

    /// Returns the open object.
    pub(super) fn object(&self) -> &Arc<Content> {
        &self.content
    }

    /// Returns whether it has unsaved changes.
    pub(super) fn is_unsaved(&self) -> bool {
        self.content.draft().is_some_and(|draft| draft.is_unsaved())
    }

    fn is_append(&self) -> bool {
        self.flags.contains(OFlags::APPEND)
    }

    /// Returns whether each write has to be in the store before it returns.
    fn is_synchronous(&self) -> bool {
        self.flags.bits() & O_DSYNC != 0
    }

    fn drafts(&self) -> Result<&Drafts, Errno> {
        self.drafts.as_deref().ok_or(Errno::ROFS)
    }

    /// Returns the draft, made with the first `keep` bytes of the object if there is none.
    fn draft(&self, group: &Arc<Group>, keep: u64) -> Result<(&Drafts, &Arc<Draft>), VfsError> {
        let drafts = self.drafts()?;
        Ok((drafts, drafts.draft_of((self.node, &self.content), group, keep)?))
    }

    /// Has it stored although no byte was written.
    pub(super) fn touch(&self) -> Result<(), VfsError> {
        let (drafts, draft) = self.draft(&self.group, u64::MAX)?;
        drop(drafts.begin_change(&self.content, draft)?);
        Ok(())
    }

    /// Cuts or extends the file.
    pub(super) fn truncate(&self, group: &Arc<Group>, len: u64) -> Result<(), VfsError> {
        let (drafts, draft) = self.draft(group, len)?;
        // First: a refused change would count as one, and the file would be stored anew.
        if !draft.is_lost() {
            draft.room.grow(len)?;
        }
        let changing = drafts.begin_change(&self.content, draft)?;
        let _turn = drafts.turn(self.node);
        if draft.is_lost() {
            // Its bytes are kept as they are.
            return Err(Errno::IO.into());
        }
        draft.set_len(&changing, len)?;
        if let Some(copy) = &self.kernel_copy {
            copy.pages.was_cut(len);
        }
        changing.touch(false);
        Ok(())
    }

    /// Writes at an offset, or at the end. Returns where, and how much.
    fn write_to(
        &self,
        offset: Option<u64>,
        group: &Arc<Group>,
        (data, kill_set_id): (&[u8], bool),
    ) -> Result<(u64, usize), VfsError> {
        if !self.is_writable() {
            return Err(Errno::BADF.into());
        }
        if data.is_empty() {
            return Ok((offset.unwrap_or(0), 0));
        }
        let (drafts, draft) = self.draft(group, u64::MAX)?;
        let written = {
            let changing = drafts.begin_change(&self.content, draft)?;
            let end = offset.unwrap_or_else(|| draft.file.len()).checked_add(data.len() as u64);
            draft.room.grow(end.ok_or(Errno::FBIG)?)?;
            let written = match offset {
                None => draft.file.append(group, data)?,
                Some(offset) => (offset, draft.file.write(group, offset, data)?),
            };
            changing.touch(kill_set_id);
            written
        };
        if self.is_synchronous() {
            self.store()?;
        }
        Ok(written)
    }

    /// Stores the unsaved changes, and reports each failed upload once.
    fn store(&self) -> Result<(), VfsError> {
        let stored = match &self.drafts {
            Some(drafts) => drafts.store(&self.content, &self.group),
            None => Ok(()),
        };
        let checked = self.content.errors.check_and_advance(&self.errors);
        checked.map_err(Errno::from_raw_os_error)?;
        Ok(stored?)
    }

    /// Notes that it writes no more. Returns whether it was the last writer.
    fn end_writing(&self) -> bool {
        self.is_writing.swap(false, Ordering::Relaxed) && self.content.end_writing()
    }

    /// Has a change by name stored, because no close follows it. It is stored now, if `at_once` or
    /// if no other open file writes the object; else by the close of the other file. A failed
    /// change may have been made in part; this part is stored, too. Returns the result of the
    /// change.
    pub(super) fn store_by_name<T>(
        &self,
        at_once: bool,
        changed: Result<T, VfsError>,
    ) -> Result<T, VfsError> {
        let is_last = self.end_writing();
        let is_due = match &changed {
            Ok(_) => is_last || at_once,
            Err(_) => is_last && self.has_news(),
        };
        let stored = if is_due { self.store() } else { Ok(()) };
        changed.and_then(|changed| stored.map(|()| changed))
    }

    /// Returns whether it has changed since an upload was last begun.
    fn has_news(&self) -> bool {
        self.content.draft().is_some_and(|draft| draft.has_news())
    }

    /// Changes attributes. Where they are not stored with the objects, they are stored along with
    /// unsaved bytes, and otherwise only remembered. For a file without a name they are only
    /// remembered.
    fn change_attributes(&self, group: &Arc<Group>, change: &SetAttr) -> Result<(), VfsError> {
        let change_labels = |labels: &mut FileLabels| {
            labels.attributes.change(change);
            Ok(())
        };
        let is_forgotten =
            || self.content.draft().is_none() && self.objects.tree.lock().was_removed(self.node);
        if (self.objects.shown.are_stored && !is_forgotten()) || self.is_unsaved() {
            let (drafts, node, content) = (self.drafts()?, self.node, &self.content);
            return Relabeling { drafts, node, content, group, change: &change_labels }.run();
        }
        let mut attributes = self.attributes();
        attributes.change(change);
        if let Some(found) = self.objects.tree.lock().get_used_mut(self.node)
            && let Facts::Object(info) = &mut found.facts
        {
            info.attributes = Some(attributes);
            self.content.learn(Some(attributes));
        }
        Ok(())
    }

    /// Returns the end of the readahead window of a read: the first page behind the read already in
    /// the kernel's cache.
    fn window_end(&self, offset: u64, len: usize) -> u64 {
        let copy = self.kernel_copy.as_ref().filter(|_| self.content.file().is_kept_above());
        copy.map_or(u64::MAX, |copy| copy.pages.first_kept_behind(&page_range(offset, len as u64)))
    }

    fn attributes(&self) -> FileAttributes {
        let shown = self.content.shown();
        shown.attributes.unwrap_or(self.objects.shown.of_file(shown.modified))
    }
}

impl Drop for OpenFile {
    /// May run on a thread that must not wait for a store. So nothing is stored here: unsaved
    /// drafts stay on the volume's list.
    fn drop(&mut self) {
        self.end_writing();
        self.kernel_copy.iter().for_each(|copy| copy.closed());
        self.objects.unpin(self.node);
    }
}

impl VolumeFile for OpenFile {
    fn node(&self) -> NodeId {
        self.node
    }
    #[inline]
    fn content(&self) -> &Arc<File> {
        self.content.file()
    }
    fn group(&self) -> &Arc<Group> {
        &self.group
    }
    fn is_writable(&self) -> bool {
        self.flags.intersects(OFlags::WRONLY | OFlags::RDWR)
    }
    #[inline]
    fn try_read(&self, offset: u64, len: usize) -> Option<PinnedPages<'_>> {
        let pages = self.content.file().try_read(offset, len, &self.readahead)?;
        pages.count(&self.group);
        Some(pages)
    }
    fn read(&self, group: &Arc<Group>, offset: u64, len: usize) -> Result<PinnedPages<'_>, VfsError> {
        let (_scope, window_end) = (TenantScope::of(group), self.window_end(offset, len));
        Ok(self.content.file().read_within(group, (offset, len), &self.readahead, window_end)?)
    }
    fn step_read(&self, group: &Arc<Group>, read: StartedRead) -> Result<ReadStep<'_>, VfsError> {
        let _scope = TenantScope::of(group);
        let window_end = self.window_end(read.offset(), read.len());
        // A read begun before there was a draft goes on with the object.
        Ok(self.content.file_of(&read).step_read(group, read.within(window_end), &self.readahead)?)
    }

    fn try_write(&self, group: &Arc<Group>, offset: u64, data: &[u8], kill: bool) -> Option<usize> {
        if !self.is_writable() || self.is_append() || self.is_synchronous() || data.is_empty() {
            return None;
        }
        let draft = self.content.draft()?;
        if !draft.room.holds(offset.checked_add(data.len() as u64)?) {
            return None;
        }
        let changing = draft.try_begin_change()?.ok()?;
        let written = draft.file.try_write(group, offset, data)?;
        changing.touch(kill);
        Some(written)
    }

    fn write(&self, group: &Arc<Group>, offset: u64, data: &[u8], kill: bool) -> Result<usize, VfsError> {
        let (at, written) = self.write_to((!self.is_append()).then_some(offset), group, (data, kill))?;
        if at != offset {
            // The kernel assumed another end of the file.
            self.drop_kernel_pages(offset, written as u64, Box::new(|| {}));
        }
        Ok(written)
    }

    fn write_mapped(&self, group: &Arc<Group>, offset: u64, data: &[u8]) -> Result<usize, VfsError> {
        let mut done = 0;
        while done < data.len() {
            done += self.write_to(Some(offset + done as u64), group, (&data[done..], false))?.1;
        }
        Ok(done)
    }

    /// Stores the written data, at a `close` of a descriptor.
    ///
    /// # Errors
    /// As [`fsync`](Self::fsync).
    fn flush(&self) -> Result<(), VfsError> {
        if self.is_writable() { self.store() } else { Ok(()) }
    }
    fn flush_may_sleep(&self) -> bool {
        self.is_writable()
    }

    fn closed(&self) {
        // Before it looks for news: a later change by name is stored by itself.
        self.end_writing();
        if self.has_news()
            && wants_to_write(self.flags)
            && let Some(drafts) = &self.drafts
            && let Err(errno) = drafts.store(&self.content, &self.group)
        {
            tracing::warn!(%errno, node = self.node.0, "a file that was closed is not in the store yet");
        }
    }

    /// Stores the written data.
    ///
    /// # Errors
    /// The store's and the staging disk's, each once per open, and `EIO` when the object was
    /// changed elsewhere.
    fn fsync(&self, _data_only: bool) -> Result<(), VfsError> {
        self.store()
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
        let end = offset.checked_add(len).ok_or(Errno::FBIG)?;
        let grows = !mode.contains(FallocateFlags::KEEP_SIZE);
        let kind = mode.difference(FallocateFlags::KEEP_SIZE);
        if !kind.is_empty() && mode != PUNCH && kind != FallocateFlags::ZERO_RANGE {
            return Err(Errno::OPNOTSUPP.into());
        }
        if kind.is_empty() && !grows {
            // Room beyond the end: an object cannot have any, and no claim covers it.
            return Ok(());
        }
        let (drafts, draft) = self.draft(group, u64::MAX)?;
        let changing = drafts.begin_change(&self.content, draft)?;
        // An upload reads all of it.
        let _turn = drafts.turn(self.node);
        if draft.is_lost() {
            return Err(Errno::IO.into());
        }
        let len = if grows { len } else { len.min(draft.file.len().saturating_sub(offset)) };
        if len == 0 {
            return Ok(());
        }
        let on_disk = || Ok(draft.allocate(mode, offset, len)?);
        if grows {
            draft.room.grow(end)?;
        }
        if kind.is_empty() {
            draft.file.allocate(Some(end), on_disk)?;
        } else {
            draft.file.zero_range(group, offset, len, on_disk)?;
            if let Some(copy) = &self.kernel_copy {
                copy.pages.was_emptied(offset, len);
            }
            if grows {
                // The host's file has grown already.
                draft.file.allocate(Some(end), || Ok(()))?;
            }
        }
        changing.touch(kill_set_id);
        Ok(())
    }

    fn lseek(&self, whence: Whence, offset: u64) -> Result<u64, VfsError> {
        let len = self.content.file().len();
        match whence {
            _ if offset >= len => Err(Errno::NXIO.into()),
            // An object has no holes.
            Whence::Data => Ok(offset),
            Whence::Hole => Ok(len),
        }
    }
    fn getattr(&self) -> Result<Attr, VfsError> {
        let nlink = u32::from(!self.objects.tree.lock().was_removed(self.node));
        Ok(Attr { nlink, ..self.objects.shown.attr_of(self.ino, &self.content.shown()) })
    }

    /// # Errors
    /// `EPERM` for another mode or owner where all files have the same; as [`write`](Self::write).
    fn setattr(&self, caller: &Caller, change: &SetAttr) -> Result<Attr, VfsError> {
        self.drafts()?;
        if !self.objects.shown.are_stored {
            self.attributes().check_unchanged(change)?;
        }
        if let Some(len) = change.size {
            self.truncate(&caller.group, len)?;
        }
        if self.objects.shown.is_changed_by(change) {
            self.change_attributes(&caller.group, change)?;
        }
        self.getattr()
    }

    fn kernel_caching(&self, _is_new: bool) -> KernelCaching {
        let Some(copy) = &self.kernel_copy else { return KernelCaching::Bypass };
        copy.pages.note_open();
        let (len, is_writable) = (self.content.file().len(), self.is_writable());
        let is_cached = copy.is_cached(|| copy.pages.are_worth_caching(&self.group, len, is_writable));
        self.content.set_kept_above(is_cached);
        // The kernel's pages of the node are of the open version.
        if is_cached { KernelCaching::Keep } else { KernelCaching::Bypass }
    }

    fn begin_kernel_io(&self, offset: u64, len: u64, is_write: bool, payer: &Arc<Group>) -> Option<KernelIo> {
        let pages = Arc::clone(&self.kernel_copy.as_ref()?.pages);
        let subject = Subject::Content(Arc::clone(&self.content) as _);
        Some(KernelIo::begin(pages, subject, (offset, len), is_write, payer))
    }

    fn kernel_may_have(&self, offset: u64, len: u64) -> bool {
        self.kernel_copy.as_ref().is_some_and(|copy| copy.pages.may_have_bytes(offset, len))
    }

    fn drop_kernel_pages(&self, offset: u64, len: u64, then: Box<dyn FnOnce() + Send>) {
        match &self.kernel_copy {
            Some(copy) => copy.pages.drop_bytes(offset, len, then),
            None => then(),
        }
    }
}

/// Returns whether an open wants to change something.
pub(super) fn wants_to_write(flags: OFlags) -> bool {
    flags.intersects(OFlags::WRONLY | OFlags::RDWR | OFlags::TRUNC)
}
