//! A host file as the backing store of cached content.
//!
//! The descriptor is there while somebody has the file open or data waits to be written back; content that is merely
//! cached needs none. Reads and writes leave no second copy in the kernel's page cache where the volume's mode allows that.
//!
//! Durability: background write-back asks for a range only ([`sync_range`](BackingStore::sync_range)). On local file systems
//! that means waiting for the range: its data is on the device then, and an error is known, but metadata (a new
//! length, new blocks) may not be committed. That takes the `fdatasync` or `fsync` of [`sync`](BackingStore::sync), which every sync that
//! a user asked for ends with; it costs a journal commit and a flush of the device, several times the writing itself, so
//! background write-back does not pay it. On file systems where waiting for a range may mean nothing it does.
//!
//! Every sync also gives the host's file the accepted modification time, see [`crate::shown_times`].

use std::io;
use std::num::NonZero;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, OnceLock};

use rustix::fs::{Advice, FallocateFlags, OFlags, SeekFrom};
use rustix::io::Errno;
use umemcg_arena::io::{self as arena_io, IoFlags};
use umemcg_arena::{Arena, Segment};
use umemcg_base::sync::{Mutex, RwLock};

use crate::host;
use crate::setattr::SetTime;
use crate::shown_times::{ShownTimes, Stamp};
use crate::unsynced::Unsynced;
use crate::volume::{DIRECT_ALIGN, IoMode, Volume};
use umemcg::{BackingStore, StoreId};

/// The descriptors of one open host file.
#[derive(Debug)]
pub(crate) struct StoreFds {
    pub(crate) buffered: OwnedFd,
    pub(crate) is_writable: bool,
    /// Opened with the first direct transfer; `None` inside where that was refused.
    direct: OnceLock<Option<OwnedFd>>,
}

impl StoreFds {
    fn direct(&self) -> Option<BorrowedFd<'_>> {
        let access = if self.is_writable { OFlags::RDWR } else { OFlags::RDONLY };
        let open = || host::reopen(self.buffered.as_fd(), access | OFlags::DIRECT).ok();
        self.direct.get_or_init(open).as_ref().map(AsFd::as_fd)
    }
}

/// See the file's head.
#[derive(Debug)]
pub(crate) struct HostStore {
    volume: Arc<Volume>,
    fds: RwLock<Option<Arc<StoreFds>>>,
    pub(crate) times: ShownTimes,
    /// A leaf lock.
    unsynced: Mutex<Unsynced>,
}

impl HostStore {
    pub(crate) fn new(volume: Arc<Volume>, known: Stamp) -> Self {
        Self { volume, fds: RwLock::new(None), times: ShownTimes::new(known), unsynced: Mutex::default() }
    }

    /// The descriptors, while there are any.
    pub(crate) fn fds(&self) -> Option<Arc<StoreFds>> {
        self.fds.read().clone()
    }

    /// Uses this descriptor from now on.
    pub(crate) fn set_fd(&self, buffered: OwnedFd, is_writable: bool) {
        let fds = Arc::new(StoreFds { buffered, is_writable, direct: OnceLock::new() });
        let old = self.fds.write().replace(fds);
        drop(old);
    }

    /// Closes the descriptors.
    pub(crate) fn clear_fds(&self) {
        let old = self.fds.write().take();
        drop(old);
    }

    fn open_fds(&self) -> io::Result<Arc<StoreFds>> {
        // Nobody reads or writes content that nobody has open and that is clean.
        self.fds().ok_or_else(|| Errno::BADF.into())
    }

    /// Changes the allocation of a range on the host. The cache forgets what it has there, so the host's file must not stay
    /// shorter than the cache's `file_len` for want of data that only the cache had.
    pub(crate) fn allocate(
        &self,
        mode: FallocateFlags,
        offset: u64,
        len: u64,
        file_len: u64,
    ) -> Result<(), Errno> {
        let fds = self.fds().ok_or(Errno::BADF)?;
        self.change_content(&fds, || {
            rustix::fs::fallocate(&fds.buffered, mode, offset, len)?;
            let is_short = host::stat_fd(&fds.buffered)?.attr.size < file_len;
            if is_short { rustix::fs::ftruncate(&fds.buffered, file_len) } else { Ok(()) }
        })
    }

    /// A change of the content that the caller asked for: it leaves the host's times for both sides.
    fn change_content(
        &self,
        fds: &StoreFds,
        change: impl FnOnce() -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        self.times.begin();
        let result = change();
        let left = result.and_then(|()| host::stat_fd(&fds.buffered)).ok();
        if let Some(stat) = &left {
            self.volume.clock.saw(stat.attr.ctime);
        }
        self.times.end_change(left.map(|stat| Stamp::of(&stat.attr)));
        result
    }

    fn settle(&self, fds: &StoreFds) -> Result<(), Errno> {
        self.times.settle(
            |mtime| host::set_times(fds.buffered.as_fd(), None, Some(SetTime::At(mtime))),
            || {
                let stat = host::stat_fd(&fds.buffered)?;
                self.volume.clock.saw(stat.attr.ctime);
                Ok(Stamp::of(&stat.attr))
            },
        )
    }

    /// Runs a transfer in the volume's mode; steps down when the file system refuses the mode after all.
    fn transfer(
        &self,
        fds: &StoreFds,
        segments: &[Segment],
        offset: u64,
        call: impl Fn(BorrowedFd<'_>, IoFlags) -> io::Result<usize>,
    ) -> io::Result<usize> {
        let mode = self.volume.io_mode();
        let refused = |error: &io::Error, errnos: &[Errno]| {
            Errno::from_io_error(error).is_some_and(|errno| errnos.contains(&errno))
        };
        match mode {
            IoMode::DontCache => match call(fds.buffered.as_fd(), IoFlags::DONTCACHE) {
                Err(error) if refused(&error, &[Errno::OPNOTSUPP]) => self.volume.step_down_from(mode),
                result => return result,
            },
            IoMode::Direct if is_aligned(segments, offset) => {
                if let Some(direct) = fds.direct() {
                    match call(direct, IoFlags::NONE) {
                        Err(error) if refused(&error, &[Errno::OPNOTSUPP, Errno::INVAL]) => {
                            self.volume.step_down_from(mode);
                        }
                        result => return result,
                    }
                }
            }
            _ => {}
        }
        call(fds.buffered.as_fd(), IoFlags::NONE)
    }

    /// The kernel's copy of a range is not wanted. Advice: what is still dirty there stays.
    fn drop_behind(&self, fds: &StoreFds, offset: u64, len: u64) {
        if self.volume.io_mode() != IoMode::DontCache {
            // None means to the end.
            let len = NonZero::new(len).filter(|len| offset.saturating_add(len.get()) <= i64::MAX as u64);
            let _ = rustix::fs::fadvise(&fds.buffered, offset, len, Advice::DontNeed);
        }
    }

    /// The next data or hole on the host; dirty content must have been written back before.
    pub(crate) fn seek(&self, from_data: bool, offset: u64) -> Result<u64, Errno> {
        let fds = self.fds().ok_or(Errno::BADF)?;
        let position = if from_data { SeekFrom::Data(offset) } else { SeekFrom::Hole(offset) };
        rustix::fs::seek(&fds.buffered, position)
    }
}

fn is_aligned(segments: &[Segment], offset: u64) -> bool {
    offset.is_multiple_of(DIRECT_ALIGN)
        && segments.iter().all(|s| s.offset == 0 && u64::from(s.len) == DIRECT_ALIGN)
}

impl BackingStore for HostStore {
    fn store_id(&self) -> StoreId {
        self.volume.store_id
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
        self.times.begin();
        let written = self.transfer(&fds, segments, offset, |fd, flags| {
            arena_io::write_at(arena, segments, fd, offset, flags)
        });
        self.times.end_write();
        if let Ok(len) = &written {
            self.unsynced.lock().wrote(offset, *len as u64);
        }
        written
    }

    fn sync_range(&self, offset: u64, len: u64) -> io::Result<()> {
        let Some(fds) = self.fds() else { return Ok(()) };
        let result = self.settle(&fds).and_then(|()| {
            if self.volume.waits_by_range {
                // 0 means to the end.
                let len = if offset.saturating_add(len) > i64::MAX as u64 { 0 } else { len };
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

    // Without descriptors there is nothing to sync: they were closed after the last write-back and nobody has it open. A sync of
    // everything may come just after that; what the closed file's metadata needs is its part of `syncfs`.
    fn sync(&self, data_only: bool) -> io::Result<()> {
        let Some(fds) = self.fds() else { return Ok(()) };
        let nr = self.unsynced.lock().begin();
        let result = self.settle(&fds).and_then(|()| {
            if data_only { rustix::fs::fdatasync(&fds.buffered) } else { rustix::fs::fsync(&fds.buffered) }
        });
        Ok(self.unsynced.lock().synced_all(nr, result)?)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let fds = self.open_fds()?;
        self.change_content(&fds, || rustix::fs::ftruncate(&fds.buffered, len))?;
        self.unsynced.lock().cut(len);
        Ok(())
    }
}
