//! The content of an opened inode: its cached pages and the host file below it.
//!
//! Life:
//! 1. The first open creates the content. It stays with the inode's entry, so the cache survives
//!    close.
//! 2. While a process has it open, the host file is open, for writing once a process wanted to
//!    write. Where the host file can be opened again (see [`Reopens`]) it may be closed meanwhile,
//!    as long as it is unused and nothing is dirty; the next use opens it. The descriptor of a file
//!    about to lose its last name is pinned: it could not be opened again.
//! 3. After the last close the host file stays open until dirty data has been written back (the
//!    entry *lingers*), then it is closed. Closing starts no write-back: a file removed soon after
//!    is never written.
//! 4. The content is dropped with the entry. If the file has lost its last name, its dirty data is
//!    not written.

mod attributes;

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use rustix::io::Errno;
use umemcg_base::{Rank, RankedMutex};

use crate::error::VfsError;
use crate::host::descriptor_share::{DescriptorShare, Reopens};
use crate::host::directory::HostDirectory;
use crate::host::shown_times::{OwnOperation, Stamp};
use crate::host::store::{HostStore, InUse, StoreFds};
use crate::host::syscalls::{self, HostStat};
use crate::kernel_pages::KernelPages;
use crate::metadata_charge::{CONTENT_BYTES, MetadataCharge};
use umemcg::OwnerId;
use umemcg::files::{BackingStore, File, StoreId};
use umemcg::{ChargeEffort, Engine, Group};

/// See the module text.
#[derive(Debug)]
pub(crate) struct Content {
    /// First, because it is released to a tree that `file` may be the last to hold.
    charge: MetadataCharge<CONTENT_BYTES>,
    pub(crate) file: Arc<File>,
    pub(crate) store: Arc<HostStore>,
    host_dir: Arc<HostDirectory>,
    /// (A) Cached data was read since the host's access time was last updated. Relaxed: it stands
    /// alone.
    was_read: AtomicBool,
    /// Held while the host file is opened or closed: calls on this very file only.
    opens: RankedMutex<OpenState>,
    /// The kernel's pages of the file, once it may have some.
    kernel_pages: OnceLock<Arc<KernelPages>>,
    /// (C) The host's change time at the creation of this value, in nanoseconds since 1970.
    first_change_ns: i64,
    /// Set once the kernel has been notified of that change, if it may not have known it.
    is_first_told: OnceLock<()>,
}

/// The opens of the file.
#[derive(Debug, Default)]
struct OpenState {
    nr: u32,
    /// Removals of a name under way, and removals of the last name: the host file must stay open.
    nr_pins: u32,
    /// The group of the last opener, for operations without a caller; while the file is open.
    opener: Option<Arc<Group>>,
    /// Whether the kernel caches the pages of the present opens: of all or of none.
    kernel_caches: Option<bool>,
}

/// The means to open a host file, or to open it for writing.
pub(crate) struct Opening<'a> {
    pub(crate) for_writing: bool,
    /// Whether the daemon can open the file again.
    pub(crate) can_reopen: bool,
    /// Room for the descriptors; may sleep. Called once at most.
    pub(crate) room: &'a dyn Fn() -> Result<DescriptorShare, Errno>,
    pub(crate) open: &'a dyn Fn(bool) -> Result<OwnedFd, Errno>,
}

/// Keeps the host file of open content from being closed while a name of it is removed.
#[derive(Debug)]
pub(crate) struct NamePin(Arc<Content>);

impl NamePin {
    /// Keeps the descriptor for good, after the removal of the last name: there is no other way to
    /// the file.
    pub(crate) fn keep(self) {
        if let Some(fds) = self.0.fds() {
            fds.share.withdraw();
        }
        self.0.opens.lock().nr_pins += 1;
    }
}

impl Drop for NamePin {
    fn drop(&mut self) {
        self.0.opens.lock().nr_pins -= 1;
    }
}

impl Content {
    /// Creates the content of a host file with these attributes, charged to a group. May sleep for
    /// memory.
    pub(crate) fn new(
        effort: ChargeEffort,
        engine: &Arc<Engine>,
        host_dir: &Arc<HostDirectory>,
        stat: &HostStat,
        group: &Arc<Group>,
    ) -> Result<Arc<Self>, VfsError> {
        let charge = MetadataCharge::take(effort, engine, group)?;
        let store = Arc::new(HostStore::new(Arc::clone(host_dir), Stamp::of(&stat.attr)));
        let file = engine
            .open_file(Arc::clone(&store) as _, stat.attr.size)
            .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
        let (host_dir, was_read) = (Arc::clone(host_dir), AtomicBool::new(false));
        Ok(Arc::new(Self {
            file,
            store,
            host_dir,
            was_read,
            opens: RankedMutex::new(Rank::FileOpens, OpenState::default()),
            kernel_pages: OnceLock::new(),
            first_change_ns: stat.attr.ctime.as_nanoseconds(),
            is_first_told: OnceLock::new(),
            charge,
        }))
    }

    /// Counts an open by a group and ensures an open host file.
    pub(crate) fn acquire(self: &Arc<Self>, opener: &Arc<Group>, how: &Opening<'_>) -> Result<(), Errno> {
        self.with_open(how, |opens| {
            opens.nr += 1;
            opens.opener = Some(Arc::clone(opener));
        })
    }

    /// Like `acquire`, for a newly created file with its descriptor. Another writable descriptor,
    /// if there is one, stays.
    pub(crate) fn acquire_new(
        self: &Arc<Self>,
        opener: &Arc<Group>,
        fd: OwnedFd,
        share: DescriptorShare,
        can_reopen: bool,
    ) {
        let mut opens = self.opens.lock();
        if !self.store.fds().is_some_and(|fds| fds.is_writable) {
            self.set_fd(fd, true, share, can_reopen);
        }
        opens.nr += 1;
        opens.opener = Some(Arc::clone(opener));
    }

    /// Keeps the host file open. Opens it again if it was closed meanwhile.
    pub(crate) fn in_use(self: &Arc<Self>, how: &Opening<'_>) -> Result<InUse<'_>, Errno> {
        // Nothing can be given back with the lock held.
        self.with_open(how, |_| self.store.try_use(how.for_writing))?.ok_or(Errno::BADF)
    }

    /// Keeps the host file open for the removal of a name, if the content is open.
    pub(crate) fn pin_for_name(self: &Arc<Self>, how: &Opening<'_>) -> Result<NamePin, Errno> {
        let pin = |opens: &mut OpenState| {
            opens.nr_pins += 1;
            NamePin(Arc::clone(self))
        };
        {
            let mut opens = self.opens.lock();
            if opens.nr == 0 {
                return Ok(pin(&mut opens));
            }
        }
        self.with_open(how, pin)
    }

    /// Returns the group of the last opener, while the file is open.
    pub(crate) fn opener(&self) -> Option<Arc<Group>> {
        self.opens.lock().opener.clone()
    }

    /// Calls `then` with the host file open.
    fn with_open<R>(
        self: &Arc<Self>,
        how: &Opening<'_>,
        then: impl FnOnce(&mut OpenState) -> R,
    ) -> Result<R, Errno> {
        let is_open = || self.store.fds().is_some_and(|fds| fds.is_writable || !how.for_writing);
        {
            let mut opens = self.opens.lock();
            if is_open() {
                return Ok(then(&mut opens));
            }
        }
        // With nothing locked: other files may have to give descriptors back.
        let share = (how.room)()?;
        let mut opens = self.opens.lock();
        if !is_open() {
            self.set_fd((how.open)(how.for_writing)?, how.for_writing, share, how.can_reopen);
        }
        Ok(then(&mut opens))
    }

    fn set_fd(self: &Arc<Self>, fd: OwnedFd, is_writable: bool, share: DescriptorShare, can_reopen: bool) {
        if can_reopen {
            share.offer(Arc::downgrade(self) as Weak<dyn Reopens>);
        }
        self.store.set_fd(fd, is_writable, share);
    }

    /// Uncounts an open. Returns `true` if it was the last and the host file must stay open for
    /// write-back.
    pub(crate) fn release(&self) -> bool {
        let mut opens = self.opens.lock();
        opens.nr -= 1;
        if opens.nr == 0 {
            opens.kernel_caches = None;
        }
        opens.nr == 0 && !self.close_if_idle(&mut opens)
    }

    /// Returns whether pages of the file are cached, here or by the kernel.
    pub(crate) fn has_cached_pages(&self) -> bool {
        self.kernel_pages().is_some_and(|pages| pages.has_any()) || self.file.has_cached_pages()
    }

    /// Closes the host file of content not open in any process, once all is written back. Returns
    /// `true` if there is nothing left to wait for.
    pub(crate) fn try_close(&self) -> bool {
        // Only tried: the thread opening this very file may be looking for descriptors to close.
        let Some(mut opens) = self.opens.try_lock() else { return false };
        opens.nr > 0 || self.close_if_idle(&mut opens)
    }

    fn close_if_idle(&self, opens: &mut OpenState) -> bool {
        let is_idle = opens.nr == 0 && self.file.is_stable() && self.store.times.is_restored();
        if is_idle {
            self.store.clear_fds();
            opens.opener = None;
        }
        is_idle
    }

    /// Forgets the data of a file without a name without writing it, and closes the host file.
    pub(crate) fn discard(&self) {
        self.file.discard();
        // The flusher may know the file for a while yet; the host's space is free immediately.
        if let Some(mut opens) = self.opens.try_lock()
            && opens.nr == 0
        {
            self.store.clear_fds();
            opens.opener = None;
        }
    }

    /// Returns whether the content can be dropped and recreated from the host: no process has it
    /// open, it has no page, and all its state is in the host's attributes.
    pub(crate) fn is_spare(&self) -> bool {
        let Some(opens) = self.opens.try_lock() else { return false };
        opens.nr == 0
            && self.store.fds().is_none()
            && self.file.is_stable()
            && self.store.times.are_the_hosts()
            && !self.file.has_failed()
            && !self.has_cached_pages()
    }

    /// Returns whether the kernel caches the pages of the present opens. The first of them decides
    /// with `decide`: if they differed, a write through an uncached open would bypass the kernel's
    /// page.
    pub(crate) fn kernel_caches(&self, decide: impl FnOnce() -> bool) -> bool {
        *self.opens.lock().kernel_caches.get_or_insert_with(decide)
    }

    /// Returns the kernel's pages of the file, if it may have some.
    pub(crate) fn kernel_pages(&self) -> Option<&Arc<KernelPages>> {
        self.kernel_pages.get()
    }

    /// Returns the kernel's pages of the file, creating the record with `make` if there is none.
    pub(crate) fn kernel_pages_or(&self, make: impl FnOnce() -> Arc<KernelPages>) -> &Arc<KernelPages> {
        self.kernel_pages.get_or_init(make)
    }

    /// On the first call, calls `tell` if the file was changed less than `time` before its content
    /// was created: the kernel may have attributes from before that change. Other calls return when
    /// that is done.
    pub(crate) fn tell_if_new_within(&self, time: Duration, tell: impl FnOnce()) {
        self.is_first_told.get_or_init(|| {
            let age_ns = self.host_dir.clock.now().as_nanoseconds().saturating_sub(self.first_change_ns);
            if age_ns < i64::try_from(time.as_nanos()).unwrap_or(i64::MAX) {
                tell();
            }
        });
    }

    /// Notes a truncation of the file to `len`.
    pub(crate) fn was_cut(&self, len: u64) {
        if let Some(pages) = self.kernel_pages() {
            pages.was_cut(len);
        }
    }

    /// Notes a hole or zeroes in place of these bytes.
    pub(crate) fn was_emptied(&self, offset: u64, len: u64) {
        if let Some(pages) = self.kernel_pages() {
            pages.was_emptied(offset, len);
        }
    }

    /// Returns whether the kernel may have some of these bytes.
    pub(crate) fn kernel_may_have(&self, offset: u64, len: u64) -> bool {
        self.kernel_pages().is_some_and(|pages| pages.may_have_bytes(offset, len))
    }

    /// Calls `then` when the kernel has dropped its pages of these bytes. Never waits.
    pub(crate) fn drop_from_kernel(&self, offset: u64, len: u64, then: impl FnOnce() + Send + 'static) {
        match self.kernel_pages() {
            Some(pages) => pages.drop_bytes(offset, len, then),
            None => then(),
        }
    }

    /// Returns the paying group.
    pub(crate) fn owner(&self) -> OwnerId {
        self.charge.owner()
    }

    /// Returns the group with the content on its list, and so in its reclaim.
    pub(crate) fn list_owner(&self) -> OwnerId {
        self.charge.list_owner()
    }

    /// Returns a descriptor of the host file, while it is open.
    pub(crate) fn fds(&self) -> Option<Arc<StoreFds>> {
        self.store.fds()
    }

    /// Notes a read of data. Writes a shared cache line only the first time since the last update
    /// of the host's access time.
    #[inline]
    pub(crate) fn note_read(&self) {
        if !self.was_read.load(Ordering::Relaxed) {
            self.was_read.store(true, Ordering::Relaxed);
        }
    }

    /// Returns whether data was read since the last update of the host's access time.
    pub(crate) fn was_read(&self) -> bool {
        self.was_read.load(Ordering::Relaxed)
    }

    /// Makes the host update the access time if there was a read. Called before the host's
    /// attributes are read, and at each close.
    pub(crate) fn update_host_atime(&self) {
        if self.was_read.load(Ordering::Relaxed)
            && let Some(fds) = self.fds()
            && self.was_read.swap(false, Ordering::Relaxed)
        {
            self.store.update_host_atime(&fds);
        }
    }

    /// Notes the acceptance of a write now.
    pub(crate) fn accept_write(&self) {
        self.store.times.accept(self.host_dir.clock.now());
    }

    /// Returns whether a write must first look for privileges to clear.
    pub(crate) fn may_have_privileges(&self) -> bool {
        self.store.privileges.may_be_there()
    }

    /// Clears the privileges that a write takes from a file: its capabilities, and with `set_id`
    /// its set-id bits. Once nothing is left to clear, later writes do not look.
    pub(crate) fn clear_privileges(&self, set_id: bool) -> Result<(), Errno> {
        let Some(fds) = self.fds() else { return Ok(()) };
        let fd = fds.buffered.as_fd();
        let clear = |before: &HostStat| self.store.privileges.clear(fd, before.attr.mode, set_id);
        let did = OwnOperation::Attributes { mtime: false };
        self.store.exclusively(fd, |before| (clear(before), did)).0
    }
}

impl Reopens for Content {
    fn give_back(&self, is_hard: bool) {
        // Only tried: an open of this very file may be looking for descriptors.
        let Some(opens) = self.opens.try_lock() else { return };
        if opens.nr_pins > 0 {
            return;
        }
        let Some(fds) = self.store.take_idle_fds(is_hard, || self.file.is_stable()) else { return };
        let is_nameless = !syscalls::stat_fd(&fds.buffered).is_ok_and(|stat| stat.attr.nlink > 0);
        if is_nameless {
            // The file was removed on the host.
            fds.share.withdraw();
        }
        if is_nameless || !self.store.times.is_restored() {
            return self.store.put_back(fds);
        }
        if self.was_read.swap(false, Ordering::Relaxed) {
            self.store.update_host_atime(&fds);
        }
    }

    fn write_and_give_back(&self, store: StoreId) -> bool {
        let is_tried = self.store.store_id() == store && !self.file.is_stable();
        if is_tried && self.file.write_back().is_ok() {
            self.give_back(true);
        }
        is_tried
    }
}
