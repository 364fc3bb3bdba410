//! What an inode has once it was opened: its cached content and the host file below it.
//!
//! Life:
//! 1. The first open makes it; it stays with the inode's entry afterwards, so that the cache survives close.
//! 2. While somebody has it open the host file is open, for writing once somebody wanted to write.
//! 3. After the last close the host file stays open until what is dirty has been written back (the entry *lingers*), then
//!    it is closed.
//!    Closing starts no write-back: a file that is removed soon after is never written.
//! 4. With the entry the content goes. If the file has no name any more, its dirty data is not worth writing.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::io::Errno;
use umemcg_base::sync::Mutex;

use crate::attr::Attr;
use crate::error::VfsError;
use crate::host::{self, GROUP_EXECUTE, HostStat, SET_GID, SET_UID};
use crate::host_store::{HostStore, StoreFds};
use crate::metadata_charge::{CONTENT_BYTES, MetadataCharge};
use crate::shown_times::{Shown, Stamp, Verdict};
use crate::volume::Volume;
use umemcg::{Engine, File, Group, OwnerId};

/// How often a stamp that raced with our own write-back is read again before our own view is taken.
const LOOKS_MAX: u32 = 4;

/// See the file's head.
#[derive(Debug)]
pub(crate) struct Content {
    /// First, because it is given back to a tree that the file may be the last to hold.
    charge: MetadataCharge<CONTENT_BYTES>,
    pub(crate) file: Arc<File>,
    pub(crate) store: Arc<HostStore>,
    volume: Arc<Volume>,
    /// How many have it open. Held while the host file is opened or closed: calls on this very file only.
    opens: Mutex<u32>,
    /// (A) The file may have set-id bits or capabilities that a write must clear. Relaxed: a write concurrent with the
    /// `chmod` that sets it may fall on either side.
    may_have_privileges: AtomicBool,
}

impl Content {
    /// Content of a host file that looks like this, charged to a group. May sleep for memory.
    pub(crate) fn new(
        engine: &Arc<Engine>,
        volume: &Arc<Volume>,
        stat: &HostStat,
        group: &Arc<Group>,
    ) -> Result<Arc<Self>, VfsError> {
        let charge = MetadataCharge::take(engine, group)?;
        let store = Arc::new(HostStore::new(Arc::clone(volume), Stamp::of(&stat.attr)));
        let file = engine
            .open_file(Arc::clone(&store) as _, stat.attr.size)
            .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
        Ok(Arc::new(Self {
            file,
            store,
            volume: Arc::clone(volume),
            opens: Mutex::new(0),
            may_have_privileges: AtomicBool::new(true),
            charge,
        }))
    }

    /// Counts an open and makes sure that the host file is open, with `open(writable)` where it is not.
    pub(crate) fn acquire(
        &self,
        for_writing: bool,
        open: impl FnOnce(bool) -> Result<OwnedFd, Errno>,
    ) -> Result<(), Errno> {
        let mut opens = self.opens.lock();
        if !self.store.fds().is_some_and(|fds| fds.is_writable || !for_writing) {
            self.store.set_fd(open(for_writing)?, for_writing);
        }
        *opens += 1;
        Ok(())
    }

    /// Uncounts an open. True when it was the last and the host file must stay open for write-back.
    pub(crate) fn release(&self) -> bool {
        let mut opens = self.opens.lock();
        *opens -= 1;
        *opens == 0 && !self.close_if_idle(*opens)
    }

    /// Closes the host file of content that nobody has open once all is written back. True when there is nothing left
    /// to wait for.
    pub(crate) fn try_close(&self) -> bool {
        // Only tried: who opens this very file may be the one who looks for descriptors to close.
        let Some(opens) = self.opens.try_lock() else { return false };
        *opens > 0 || self.close_if_idle(*opens)
    }

    fn close_if_idle(&self, opens: u32) -> bool {
        let is_idle = opens == 0 && self.file.is_stable() && self.store.times.is_settled();
        if is_idle {
            self.store.clear_fds();
        }
        is_idle
    }

    /// The file has no name any more: forgets its data without writing it, and closes the host file.
    pub(crate) fn discard(&self) {
        self.file.discard();
        // The flusher may know the file for a while yet; the host's space is free at once.
        if let Some(opens) = self.opens.try_lock()
            && *opens == 0
        {
            self.store.clear_fds();
        }
    }

    /// Whether one that is made anew from the host would do as well: nobody has it open, it has no page, and it knows nothing that
    /// a look at the host does not tell.
    pub(crate) fn is_spare(&self) -> bool {
        let Some(opens) = self.opens.try_lock() else { return false };
        *opens == 0
            && self.store.fds().is_none()
            && self.file.is_stable()
            && self.store.times.are_the_hosts()
            && !self.file.has_failed()
            && !self.file.has_cached_pages()
    }

    /// Who pays.
    pub(crate) fn owner(&self) -> OwnerId {
        self.charge.owner()
    }

    /// A descriptor of the host file, while it is open.
    pub(crate) fn fds(&self) -> Option<Arc<StoreFds>> {
        self.store.fds()
    }

    /// Attributes to show, after looking at the host with `stat`. Somebody else's change is adopted: clean pages are
    /// dropped, and the host's length is taken.
    pub(crate) fn look(&self, stat: impl Fn() -> Result<HostStat, Errno>) -> Result<Attr, Errno> {
        let times = &self.store.times;
        let mut tries = 0;
        loop {
            tries += 1;
            let epoch = times.epoch();
            let host = stat()?;
            self.volume.clock.saw(host.attr.ctime);
            match times.judge(Stamp::of(&host.attr), Some(epoch)) {
                Verdict::Ours(shown) => return Ok(self.merge(host.attr, shown)),
                Verdict::Raced(shown) if tries == LOOKS_MAX => return Ok(self.merge(host.attr, shown)),
                Verdict::Raced(_) => {}
                Verdict::Outside => {
                    if times.adopt(Stamp::of(&host.attr), epoch) {
                        tracing::debug!(ino = host.attr.ino, "changed from outside; cached pages dropped");
                        self.may_have_privileges.store(true, Ordering::Relaxed);
                        self.file.revalidate(host.attr.size);
                        return Ok(self.merge(host.attr, None));
                    }
                }
            }
        }
    }

    /// Attributes to show for a stamp that was read at an unknown moment; `None` when a closer look is needed.
    pub(crate) fn glance(&self, host: &HostStat) -> Option<Attr> {
        match self.store.times.judge(Stamp::of(&host.attr), None) {
            Verdict::Ours(shown) => Some(self.merge(host.attr, shown)),
            _ => None,
        }
    }

    fn merge(&self, mut attr: Attr, shown: Option<Shown>) -> Attr {
        attr.size = self.file.len();
        // What is not on the host yet has no blocks there, and a file without blocks looks like one hole to archivers.
        let pages = |bytes: u64| bytes.div_ceil(4096) * 8;
        let dirty_blocks = self.file.nr_dirty().saturating_mul(8);
        if dirty_blocks > 0 {
            attr.blocks = attr.blocks.saturating_add(dirty_blocks).min(attr.blocks.max(pages(attr.size)));
        }
        if let Some(shown) = shown {
            (attr.mtime, attr.ctime) = (shown.mtime, shown.ctime);
        }
        attr
    }

    /// An operation of ours changed attributes on the host; `stat` was read after it.
    pub(crate) fn changed_attributes(&self, stat: &HostStat, mtime_set: bool) {
        self.store.times.changed_attributes(Stamp::of(&stat.attr), mtime_set);
        self.may_have_privileges.store(true, Ordering::Relaxed);
    }

    /// A write is accepted now.
    pub(crate) fn accept_write(&self) {
        self.store.times.accept(self.volume.clock.now());
    }

    /// Whether a write must first look for privileges to clear.
    pub(crate) fn may_have_privileges(&self) -> bool {
        self.may_have_privileges.load(Ordering::Relaxed)
    }

    /// Clears what a write takes from a file: its capabilities, and with `set_id` its set-id bits. Once nothing is left to clear,
    /// later writes do not look.
    pub(crate) fn clear_privileges(&self, set_id: bool) -> Result<(), Errno> {
        let Some(fds) = self.fds() else { return Ok(()) };
        let fd = fds.buffered.as_fd();
        // Before the look, so that a `chmod` in between is not missed.
        self.may_have_privileges.store(false, Ordering::Relaxed);
        let had_capabilities = rustix::fs::fremovexattr(fd, c"security.capability").is_ok();
        let mode = host::stat_fd(fd)?.attr.mode;
        let cleared = mode_without_set_id(mode);
        if cleared != mode && set_id {
            host::chmod(fd, cleared)?;
        } else if cleared != mode {
            // A writer who may keep the bits says nothing about the next.
            self.may_have_privileges.store(true, Ordering::Relaxed);
        }
        if had_capabilities || (cleared != mode && set_id) {
            self.store.times.changed_attributes(Stamp::of(&host::stat_fd(fd)?.attr), false);
        }
        Ok(())
    }
}

/// The mode that a write by an unprivileged process leaves: without set-user-id, and without set-group-id where that means
/// running as the group (without group execution it is a mark of mandatory locking).
pub(crate) fn mode_without_set_id(mode: u32) -> u32 {
    let mode_bits = mode & 0o7777;
    if mode_bits & GROUP_EXECUTE != 0 { mode & !(SET_UID | SET_GID) } else { mode & !SET_UID }
}
