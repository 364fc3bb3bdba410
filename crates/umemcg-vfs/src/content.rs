//! What an inode has once it was opened: its cached content and the host file below it.
//!
//! Life:
//! 1. The first open makes it; it stays with the inode's entry afterwards, so that the cache survives close.
//! 2. While somebody has it open the host file is open, for writing once somebody wanted to write.
//! 3. After the last close the host file stays open until what is dirty has been written back (the entry *lingers*), then
//!    it is closed.
//!    Closing starts no write-back: a file that is removed soon after is never written.
//! 4. With the entry the content goes. If the file has no name any more, its dirty data is not worth writing.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::io::Errno;
use umemcg_base::sync::Mutex;

use crate::attr::Attr;
use crate::error::VfsError;
use crate::handle_share::DescriptorShare;
use crate::host::HostStat;
use crate::host_store::{HostStore, StoreFds};
use crate::metadata_charge::{CONTENT_BYTES, MetadataCharge};
use crate::shown_times::{Did, Shown, Stamp};
use crate::volume::Volume;
use umemcg::{Engine, File, Group, OwnerId};

/// See the file's head.
#[derive(Debug)]
pub(crate) struct Content {
    /// First, because it is given back to a tree that the file may be the last to hold.
    charge: MetadataCharge<CONTENT_BYTES>,
    pub(crate) file: Arc<File>,
    pub(crate) store: Arc<HostStore>,
    volume: Arc<Volume>,
    /// (A) Cached data was read since the host last heard of a read. Relaxed: it stands alone.
    was_read: AtomicBool,
    /// Held while the host file is opened or closed: calls on this very file only.
    opens: Mutex<Opens>,
}

/// Who has the file open.
#[derive(Debug, Default)]
struct Opens {
    nr: u32,
    /// Of the last to close it, as long as the host file stays open for write-back.
    lingering: Option<DescriptorShare>,
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
        let (volume, was_read) = (Arc::clone(volume), AtomicBool::new(false));
        Ok(Arc::new(Self { file, store, volume, was_read, opens: Mutex::default(), charge }))
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
        opens.nr += 1;
        opens.lingering = None;
        Ok(())
    }

    /// Uncounts an open. True when it was the last and the host file must stay open for write-back; `share` then stays
    /// with it.
    pub(crate) fn release(&self, share: Option<DescriptorShare>) -> bool {
        let mut opens = self.opens.lock();
        opens.nr -= 1;
        let lingers = opens.nr == 0 && !self.close_if_idle(&mut opens);
        if lingers {
            opens.lingering = share;
        }
        lingers
    }

    /// Closes the host file of content that nobody has open once all is written back. True when there is nothing left
    /// to wait for.
    pub(crate) fn try_close(&self) -> bool {
        // Only tried: who opens this very file may be the one who looks for descriptors to close.
        let Some(mut opens) = self.opens.try_lock() else { return false };
        opens.nr > 0 || self.close_if_idle(&mut opens)
    }

    fn close_if_idle(&self, opens: &mut Opens) -> bool {
        let is_idle = opens.nr == 0 && self.file.is_stable() && self.store.times.is_settled();
        if is_idle {
            self.store.clear_fds();
            opens.lingering = None;
        }
        is_idle
    }

    /// The file has no name any more: forgets its data without writing it, and closes the host file.
    pub(crate) fn discard(&self) {
        self.file.discard();
        // The flusher may know the file for a while yet; the host's space is free at once.
        if let Some(mut opens) = self.opens.try_lock()
            && opens.nr == 0
        {
            self.store.clear_fds();
            opens.lingering = None;
        }
    }

    /// Whether one that is made anew from the host would do as well: nobody has it open, it has no page, and it knows nothing that
    /// a look at the host does not tell.
    pub(crate) fn is_spare(&self) -> bool {
        let Some(opens) = self.opens.try_lock() else { return false };
        opens.nr == 0
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

    /// Attributes to show, after looking at the host with `stat`. A change from outside is adopted: clean pages are
    /// dropped, and the host's length is taken.
    pub(crate) fn look(&self, stat: impl Fn() -> Result<HostStat, Errno>) -> Result<Attr, Errno> {
        self.tell_of_reads();
        let times = &self.store.times;
        let look = times.try_look();
        let host = stat()?;
        self.volume.clock.saw(host.attr.ctime);
        let shown = match &look {
            Some(look) => look.judge(Stamp::of(&host.attr)).map(|shown| (host.attr.mode, shown)),
            // An operation of ours is under way, which may take set-id bits away and put them back.
            None => times.known().map(|(known, shown)| (known.mode, shown)),
        };
        drop(look);
        match shown {
            Some((mode, shown)) => Ok(self.merge(Attr { mode, ..host.attr }, shown)),
            None => self.adopt(stat),
        }
    }

    /// Takes over what was made of the host's file from outside. The look that counts is one with our own write-back kept out:
    /// what that has written is neither theirs nor missing.
    fn adopt(&self, stat: impl Fn() -> Result<HostStat, Errno>) -> Result<Attr, Errno> {
        let mut seen = None;
        self.file.revalidate(|| {
            let alone = self.store.times.alone();
            let host = stat();
            let len = host.ok().and_then(|host| {
                alone.found(Stamp::of(&host.attr));
                alone.is_stale().then_some(host.attr.size)
            });
            seen = Some((host, alone));
            len
        });
        let Some((host, alone)) = seen else { unreachable!("revalidation looks once") };
        let host = host?;
        if alone.is_stale() {
            tracing::debug!(ino = host.attr.ino, "changed from outside; cached pages dropped");
            self.store.privileges.note();
            alone.adopted();
        }
        Ok(self.merge(host.attr, self.store.times.shown()))
    }

    /// Attributes to show for a stamp that was read at an unknown moment; `None` when a closer look is needed.
    pub(crate) fn glance(&self, host: &HostStat) -> Option<Attr> {
        if self.was_read.load(Ordering::Relaxed) && self.fds().is_some() {
            return None;
        }
        let shown = self.store.times.glance(Stamp::of(&host.attr))?;
        Some(self.merge(host.attr, shown))
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

    /// Changes attributes of the host's file through a descriptor that holds it.
    pub(crate) fn change_attributes<T>(
        &self,
        held: BorrowedFd<'_>,
        sets_mtime: bool,
        change: impl FnOnce() -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        let changed = self.store.alone(held, |_| (change(), Did::Attributes { mtime: sets_mtime }));
        self.store.privileges.note();
        changed
    }

    /// An operation of ours on names changed attributes on the host, where `stat` looks.
    pub(crate) fn renamed(&self, stat: impl FnOnce() -> Result<HostStat, Errno>) -> Result<(), Errno> {
        let alone = self.store.times.alone();
        let host = stat()?;
        self.volume.clock.saw(host.attr.ctime);
        alone.found_renamed(Stamp::of(&host.attr));
        Ok(())
    }

    /// Data is read. Writes a shared line only the first time since the host was told.
    #[inline]
    pub(crate) fn note_read(&self) {
        if !self.was_read.load(Ordering::Relaxed) {
            self.was_read.store(true, Ordering::Relaxed);
        }
    }

    /// Has the host move the access time if there was a read. Before a look at it, and at each close.
    pub(crate) fn tell_of_reads(&self) {
        if self.was_read.load(Ordering::Relaxed)
            && let Some(fds) = self.fds()
            && self.was_read.swap(false, Ordering::Relaxed)
        {
            self.store.tell_of_reads(&fds);
        }
    }

    /// A write is accepted now.
    pub(crate) fn accept_write(&self) {
        self.store.times.accept(self.volume.clock.now());
    }

    /// Whether a write must first look for privileges to clear.
    pub(crate) fn may_have_privileges(&self) -> bool {
        self.store.privileges.may_be_there()
    }

    /// Clears what a write takes from a file: its capabilities, and with `set_id` its set-id bits. Once nothing is left to clear,
    /// later writes do not look.
    pub(crate) fn clear_privileges(&self, set_id: bool) -> Result<(), Errno> {
        let Some(fds) = self.fds() else { return Ok(()) };
        let fd = fds.buffered.as_fd();
        self.store.alone(fd, |before| {
            (self.store.privileges.clear(fd, before.attr.mode, set_id), Did::Attributes { mtime: false })
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use crate::host;
    use crate::testing::{Fixture, until_asleep};

    #[test]
    fn an_outside_change_during_write_back_costs_no_data() {
        let v = Fixture::new();
        let (path, file) = v.create("f");
        file.write(&v.group, 0, &[b'a'; 100], false).unwrap();
        v.vfs.fsync(&file, false).unwrap();
        file.write(&v.group, 40960, &[b'b'; 4096], false).unwrap();
        // Somebody else on the host.
        std::io::Write::write_all(&mut std::fs::OpenOptions::new().append(true).open(&path).unwrap(), b"x")
            .unwrap();
        let host = std::fs::File::open(&path).unwrap();
        let nr_looks = AtomicU32::new(0);
        std::thread::scope(|scope| {
            let paused = file.content.store.pause();
            let flusher = scope.spawn(|| v.vfs.fsync(&file, false).unwrap());
            while file.content.file.nr_dirty() > 0 {
                std::thread::yield_now();
            }
            let (tell, told) = std::sync::mpsc::channel();
            let (content, looks, host) = (&file.content, &nr_looks, &host);
            let opener = scope.spawn(move || {
                tell.send(rustix::thread::gettid()).unwrap();
                let stat = || {
                    let stat = host::stat_fd(host);
                    looks.fetch_add(1, Ordering::Relaxed);
                    stat
                };
                content.look(stat).unwrap();
            });
            let opener_id = told.recv().unwrap();
            while nr_looks.load(Ordering::Relaxed) == 0 {
                std::thread::yield_now();
            }
            until_asleep(opener_id);
            drop(paused);
            flusher.join().unwrap();
            opener.join().unwrap();
        });
        assert_eq!(file.content.file.len(), 45056);
        assert_eq!(file.read(&v.group, 40960, 4096).unwrap().to_vec(), [b'b'; 4096]);
    }
}
