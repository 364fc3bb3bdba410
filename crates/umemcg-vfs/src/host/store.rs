//! A host file as the backing store of cached content.
//!
//! The store has a descriptor while a process has the file open or data waits for write-back;
//! merely cached content needs none. A reopenable descriptor may be closed while it is unused
//! ([`InUse`]) and no data waits. Reads and writes leave no second copy in the kernel's page cache
//! where the volume's mode allows that.
//!
//! Durability: background write-back asks for a range only
//! ([`sync_range`](BackingStore::sync_range)). On local file systems the call waits for the range:
//! afterwards its data is on the device and an error is known, but metadata (a new length, new
//! blocks) may not be committed. Committing it takes the `fdatasync` or `fsync` of
//! [`sync`](BackingStore::sync), the last step of every sync requested by a user. It costs a
//! journal commit and a flush of the device, several times as much as the write, so background
//! write-back omits it. On file systems where waiting for a range may have no effect, background
//! write-back uses it too.
//!
//! Every sync also sets the host file's modification time to the accepted time; see
//! [`crate::host::shown_times`].

use std::io;
use std::num::NonZero;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, OnceLock};

use rustix::fs::{Advice, FallocateFlags, OFlags, SeekFrom};
use rustix::io::Errno;
use umemcg_arena::io::{self as arena_io, IoFlags};
use umemcg_arena::{Arena, Segment};
use umemcg_base::{LeafMutex, LeafRwLock};

use crate::attr::SetTime;
use crate::host::descriptor_share::DescriptorShare;
use crate::host::directory::{DIRECT_ALIGN, HostDirectory};
use crate::host::file_privileges::Privileges;
use crate::host::shown_times::{OwnOperation, ShownTimes, Stamp};
use crate::host::syscalls::{self, HostStat};
use crate::host::unsynced::Unsynced;
use crate::volume_config::IoMode;
use umemcg::files::{BackingStore, StoreId};

/// The descriptors of one open host file.
#[derive(Debug)]
pub(crate) struct StoreFds {
    pub(crate) buffered: OwnedFd,
    pub(crate) is_writable: bool,
    /// Opened by the first direct transfer; `None` inside if the open was refused.
    direct: OnceLock<Option<OwnedFd>>,
    /// The share of the opener's group. The last field, so the descriptors count until they are
    /// closed.
    pub(crate) share: DescriptorShare,
}

impl StoreFds {
    fn direct(&self) -> Option<BorrowedFd<'_>> {
        let access = if self.is_writable { OFlags::RDWR } else { OFlags::RDONLY };
        let open = || syscalls::reopen(self.buffered.as_fd(), access | OFlags::DIRECT).ok();
        self.direct.get_or_init(open).as_ref().map(AsFd::as_fd)
    }
}

/// The descriptors and their users.
#[derive(Debug, Default)]
pub(crate) struct Fds {
    open: Option<Arc<StoreFds>>,
    nr_users: u32,
    /// Whether they were used since the last request for them.
    were_used: bool,
}

/// Keeps the descriptors open while an operation needs them or creates dirty data.
#[derive(Debug)]
pub(crate) struct InUse<'a> {
    store: &'a HostStore,
}

impl Drop for InUse<'_> {
    fn drop(&mut self) {
        self.store.fds.write().nr_users -= 1;
    }
}

/// See the module text.
#[derive(Debug)]
pub(crate) struct HostStore {
    host_dir: Arc<HostDirectory>,
    fds: LeafRwLock<Fds>,
    pub(crate) times: ShownTimes,
    pub(crate) privileges: Privileges,
    /// A leaf lock.
    unsynced: LeafMutex<Unsynced>,
}

impl HostStore {
    pub(crate) fn new(host_dir: Arc<HostDirectory>, known: Stamp) -> Self {
        Self {
            fds: LeafRwLock::default(),
            times: ShownTimes::new(known, !host_dir.waits_by_range),
            privileges: Privileges::default(),
            unsynced: LeafMutex::default(),
            host_dir,
        }
    }

    /// Returns the descriptors, if the store has any.
    pub(crate) fn fds(&self) -> Option<Arc<StoreFds>> {
        self.fds.read().open.clone()
    }

    /// Uses the descriptors, if the store has any that suffice.
    pub(crate) fn try_use(&self, for_writing: bool) -> Option<InUse<'_>> {
        let mut fds = self.fds.write();
        fds.open.as_ref().filter(|open| open.is_writable || !for_writing)?;
        fds.nr_users += 1;
        fds.were_used = true;
        Some(InUse { store: self })
    }

    /// Uses this descriptor from now on.
    pub(crate) fn set_fd(&self, buffered: OwnedFd, is_writable: bool, share: DescriptorShare) {
        let fds = Arc::new(StoreFds { buffered, is_writable, direct: OnceLock::new(), share });
        let old = {
            let mut place = self.fds.write();
            place.were_used = true;
            place.open.replace(fds)
        };
        drop(old);
    }

    /// Takes the descriptors of an unused store if its file `is_stable`. Without `is_hard`, only if
    /// they were not used since the last attempt. The caller keeps others from being opened
    /// meanwhile.
    pub(crate) fn take_idle_fds(
        &self,
        is_hard: bool,
        is_stable: impl FnOnce() -> bool,
    ) -> Option<Arc<StoreFds>> {
        let mut fds = self.fds.write();
        let was_used = std::mem::take(&mut fds.were_used);
        // The descriptors have no users left, so pages dirtied by past users are visible here.
        let is_idle = fds.nr_users == 0 && (is_hard || !was_used) && is_stable();
        if is_idle { fds.open.take() } else { None }
    }

    /// Puts taken descriptors back.
    pub(crate) fn put_back(&self, taken: Arc<StoreFds>) {
        self.fds.write().open = Some(taken);
    }

    /// Blocks transfers until the guard is dropped: they wait before they touch the host's file.
    #[cfg(test)]
    pub(crate) fn pause(&self) -> umemcg_base::RankedWriteGuard<'_, Fds> {
        self.fds.write()
    }

    /// Closes the descriptors.
    pub(crate) fn clear_fds(&self) {
        let old = self.fds.write().open.take();
        drop(old);
    }

    fn open_fds(&self) -> io::Result<Arc<StoreFds>> {
        // Clean, unused content is neither read nor written.
        self.fds().ok_or_else(|| Errno::BADF.into())
    }

    /// Changes the allocation of a range on the host. The cache drops its data of the range, so the
    /// host's file is then extended to `file_len`, the length in the cache, if it is shorter.
    pub(crate) fn allocate(
        &self,
        mode: FallocateFlags,
        offset: u64,
        len: u64,
        file_len: u64,
    ) -> Result<(), Errno> {
        let fds = self.fds().ok_or(Errno::BADF)?;
        let change = || {
            rustix::fs::fallocate(&fds.buffered, mode, offset, len)?;
            let is_short = syscalls::stat_fd(&fds.buffered)?.attr.size < file_len;
            if is_short { rustix::fs::ftruncate(&fds.buffered, file_len) } else { Ok(()) }
        };
        self.exclusively(fds.buffered.as_fd(), |_| done_to_content(change())).0
    }

    /// Runs an operation on the host's file, held by the descriptor `held`, atomically with respect
    /// to other threads of the daemon. The operation gets the file's previous attributes, and
    /// returns its effect. Returns the result, and the attributes afterwards if they could be read.
    pub(crate) fn exclusively<T, E: From<Errno>>(
        &self,
        held: BorrowedFd<'_>,
        operation: impl FnOnce(&HostStat) -> (Result<T, E>, OwnOperation),
    ) -> (Result<T, E>, Option<HostStat>) {
        let alone = self.times.exclusive();
        let before = match syscalls::stat_fd(held) {
            Ok(before) => before,
            Err(errno) => return (Err(errno.into()), None),
        };
        alone.found(Stamp::of(&before.attr));
        let (result, did) = operation(&before);
        // If the attributes cannot be read, the file counts as changed from outside at the next
        // check.
        let after = syscalls::stat_fd(held).ok();
        if let Some(after) = &after {
            self.host_dir.clock.saw(after.attr.ctime);
            alone.left(Stamp::of(&after.attr), did);
        }
        (result, after)
    }

    /// Updates the host's access time according to the options of the host's mount, with a read at
    /// the end of the file: it returns no data and leaves ctime unchanged.
    pub(crate) fn update_host_atime(&self, fds: &StoreFds) {
        let fd = fds.buffered.as_fd();
        let Ok(before) = syscalls::stat_fd(fd) else { return };
        let _ = rustix::io::pread(fd, &mut [0], before.attr.size);
        // The host compares with its own times, and accepted data may be newer.
        let Some(shown) = self.times.shown().filter(|_| !self.host_dir.is_noatime) else { return };
        let changed = shown.mtime.max(shown.ctime);
        if syscalls::stat_fd(fd).is_ok_and(|stat| stat.attr.atime < changed) {
            let set = || syscalls::set_times(fd, Some(SetTime::Now), None);
            let _ = self.exclusively(fd, |_| (set(), OwnOperation::Access));
        }
    }

    fn restore_times(&self, fds: &StoreFds) -> Result<(), Errno> {
        if self.times.is_restored() {
            return Ok(());
        }
        let fd = fds.buffered.as_fd();
        let alone = self.times.exclusive();
        alone.found(Stamp::of(&syscalls::stat_fd(fd)?.attr));
        let Some(mtime) = alone.mtime_pending() else { return Ok(()) };
        let refused = mtime.filter(|&mtime| syscalls::set_times(fd, None, Some(SetTime::At(mtime))).is_err());
        let stat = syscalls::stat_fd(fd)?;
        self.host_dir.clock.saw(stat.attr.ctime);
        alone.left(Stamp::of(&stat.attr), OwnOperation::RestoreTimes { refused });
        Ok(())
    }

    /// Runs a transfer in the volume's mode; falls back to the next mode if the file system refuses
    /// it.
    fn transfer(
        &self,
        fds: &StoreFds,
        segments: &[Segment],
        offset: u64,
        call: impl Fn(BorrowedFd<'_>, IoFlags) -> io::Result<usize>,
    ) -> io::Result<usize> {
        let mode = self.host_dir.io_mode();
        let refused = |error: &io::Error, errnos: &[Errno]| {
            Errno::from_io_error(error).is_some_and(|errno| errnos.contains(&errno))
        };
        match mode {
            IoMode::DontCache => match call(fds.buffered.as_fd(), IoFlags::DONTCACHE) {
                Err(error) if refused(&error, &[Errno::OPNOTSUPP]) => self.host_dir.step_down_from(mode),
                result => return result,
            },
            IoMode::Direct if is_aligned(segments, offset) => {
                if let Some(direct) = fds.direct() {
                    match call(direct, IoFlags::NONE) {
                        Err(error) if refused(&error, &[Errno::OPNOTSUPP, Errno::INVAL]) => {
                            self.host_dir.step_down_from(mode);
                        }
                        result => return result,
                    }
                }
            }
            _ => {}
        }
        call(fds.buffered.as_fd(), IoFlags::NONE)
    }

    /// Drops the kernel's copy of a range. Advice only: dirty pages stay.
    fn drop_behind(&self, fds: &StoreFds, offset: u64, len: u64) {
        if self.host_dir.io_mode() != IoMode::DontCache {
            // `None` means to the end.
            let _ = rustix::fs::fadvise(&fds.buffered, offset, NonZero::new(len), Advice::DontNeed);
        }
    }

    /// Returns the next data or hole on the host; dirty content must have been written back before.
    pub(crate) fn seek(&self, from_data: bool, offset: u64) -> Result<u64, Errno> {
        let fds = self.fds().ok_or(Errno::BADF)?;
        let position = if from_data { SeekFrom::Data(offset) } else { SeekFrom::Hole(offset) };
        rustix::fs::seek(&fds.buffered, position)
    }
}

/// Returns the effect of a requested change of the content: none if it failed.
fn done_to_content(result: Result<(), Errno>) -> (Result<(), Errno>, OwnOperation) {
    let did = if result.is_ok() { OwnOperation::Content } else { OwnOperation::Attributes { mtime: false } };
    (result, did)
}

fn is_aligned(segments: &[Segment], offset: u64) -> bool {
    offset.is_multiple_of(DIRECT_ALIGN)
        && segments.iter().all(|s| s.offset == 0 && u64::from(s.len) == DIRECT_ALIGN)
}

impl BackingStore for HostStore {
    fn store_id(&self) -> StoreId {
        self.host_dir.store_id
    }

    fn read_at(&self, arena: &Arena, segments: &[Segment], offset: u64) -> io::Result<usize> {
        let fds = self.open_fds()?;
        let nr_read = self.transfer(&fds, segments, offset, |fd, flags| {
            arena_io::read_at(arena, segments, fd, offset, flags)
        })?;
        self.drop_behind(&fds, offset, nr_read as u64);
        Ok(nr_read)
    }

    fn write_at(&self, arena: &Arena, segments: &[Segment], offset: u64) -> io::Result<usize> {
        let fds = self.open_fds()?;
        let held = fds.buffered.as_fd();
        let (written, _) = self.exclusively(held, |before| {
            let privileges = self.privileges.held(held, before.attr.mode);
            #[cfg(test)]
            crate::host::tests::pause_here();
            let written = self.transfer(&fds, segments, offset, |fd, flags| {
                arena_io::write_at(arena, segments, fd, offset, flags)
            });
            privileges.put_back(held);
            let end = written.as_ref().map_or(0, |&len| offset + len as u64);
            (written, OwnOperation::WriteBack { end })
        });
        if let Ok(len) = &written {
            self.unsynced.lock().wrote(offset, *len as u64);
        }
        written
    }

    fn sync_range(&self, offset: u64, len: u64) -> io::Result<()> {
        let Some(fds) = self.fds() else { return Ok(()) };
        let result = self.restore_times(&fds).and_then(|()| {
            if self.host_dir.waits_by_range {
                let waited = arena_io::sync_file_range_wait(fds.buffered.as_fd(), offset, len);
                waited.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))
            } else {
                rustix::fs::fdatasync(&fds.buffered)
            }
        });
        self.unsynced.lock().synced(offset, len, result)?;
        self.drop_behind(&fds, offset, len);
        Ok(())
    }

    // Without descriptors there is nothing to sync: they were closed after the last write-back, and
    // no process has the file open. A following `syncfs` commits the closed file's metadata itself.
    fn sync(&self, data_only: bool) -> io::Result<()> {
        let Some(fds) = self.fds() else { return Ok(()) };
        let nr = self.unsynced.lock().begin();
        let result = self.restore_times(&fds).and_then(|()| {
            if data_only { rustix::fs::fdatasync(&fds.buffered) } else { rustix::fs::fsync(&fds.buffered) }
        });
        Ok(self.unsynced.lock().synced_all(nr, result)?)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let fds = self.open_fds()?;
        let cut = || rustix::fs::ftruncate(&fds.buffered, len);
        self.exclusively(fds.buffered.as_fd(), |_| done_to_content(cut())).0?;
        self.unsynced.lock().cut(len);
        Ok(())
    }
}
