//! A host directory as a volume: how inodes are found again and how their content is read and
//! written, both detected when the volume opens.
//!
//! The volume is one file system: mounts inside the directory, and subvolumes with a device number
//! of their own, answer `EXDEV`. A file handle reaches an object even after a program has moved it
//! out of the directory on the host, like a descriptor opened before the move. Names are always
//! resolved beneath the directory.

use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, CWD, FlockOperation, Mode, OFlags, StatVfsMountFlags};
use rustix::io::{Errno, ReadWriteFlags};
use rustix::thread::CapabilitySet;
use umemcg_arena::handle::{name_to_handle, open_by_handle};

use crate::error::VolumeError;
use crate::host::clock::VolumeClock;
use crate::host::handle_form::HandleForm;
use crate::host::recent_changes::RecentChanges;
use crate::host::syscalls::{self, HostStat};
use crate::volume::next_store_id;
use crate::volume_config::{IoMode, Resolve, VolumeConfig};
use umemcg::files::StoreId;

/// Kernel flag of uncached buffered I/O (`RWF_DONTCACHE`).
const DONTCACHE: ReadWriteFlags = ReadWriteFlags::from_bits_retain(0x80);
/// The alignment of direct I/O, in bytes: the alignment of frames.
pub(crate) const DIRECT_ALIGN: u64 = 4096;

/// How long to retry the lock of a directory, and how often: a thread of an ended volume may hold
/// the directory open while it handles an event.
const CLAIM_WAIT: Duration = Duration::from_secs(1);
const CLAIM_INTERVAL: Duration = Duration::from_millis(5);

/// The open directory of a volume.
#[derive(Debug)]
pub(crate) struct HostDirectory {
    /// (C) Its path, for messages.
    pub(crate) dir: PathBuf,
    /// (C) The directory; readable where the daemon may read it, so that handles can be opened on
    /// its mount. It holds the lock of an exclusive volume. So the lock ends with the last content
    /// that may write to the volume, or with the process.
    pub(crate) root: Arc<OwnedFd>,
    /// (C) Attributes of the directory when it was opened.
    pub(crate) root_stat: HostStat,
    /// (C)
    pub(crate) resolve: Resolve,
    /// (C) Whether the daemon can change the owner of files, because it runs as root.
    pub(crate) is_privileged: bool,
    /// (C) The daemon's own user.
    pub(crate) uid: u32,
    /// (C) The length of the longest file in the file system, in bytes.
    pub(crate) len_max: u64,
    /// (C) Whether the host's mount does not update access times.
    pub(crate) is_noatime: bool,
    /// (C) Whether data is on the device after a wait for its range (`sync_file_range`).
    pub(crate) waits_by_range: bool,
    /// (C) Whether a position in a directory means the same through any descriptor.
    pub(crate) has_lasting_positions: bool,
    /// (C) Whether a position in a directory with an index is a hash of 63 bits.
    pub(crate) has_hashed_positions: bool,
    /// (C) Whether a closed file can be opened again by its handle, even after a change of its
    /// permissions.
    pub(crate) reopens: bool,
    /// (C) Whether other programs' changes may be watched: all come through this kernel, and its
    /// handles identify inodes.
    pub(crate) may_be_watched: bool,
    /// (C) How handles show the numbers of inodes.
    pub(crate) handle_form: Option<HandleForm>,
    /// Other programs' changes of inodes, if they are watched.
    pub(crate) changes: OnceLock<Arc<RecentChanges>>,
    /// (C) For the engine's queues.
    pub(crate) store_id: StoreId,
    /// Stamps for accepted writes.
    pub(crate) clock: VolumeClock,
    /// (A) An [`IoMode`]; only ever steps down, when the file system refuses a mode it accepted
    /// before.
    io_mode: AtomicU8,
    /// (A) Whether directories here can have default access lists.
    pub(crate) has_acls: AtomicBool,
}

impl HostDirectory {
    pub(crate) fn open(config: &VolumeConfig) -> Result<Arc<Self>, VolumeError> {
        Self::open_as(next_store_id(), config)
    }

    /// Like [`open`](Self::open), as the store with this id.
    pub(crate) fn open_as(store_id: StoreId, config: &VolumeConfig) -> Result<Arc<Self>, VolumeError> {
        let failed = |errno| VolumeError::Open { dir: config.dir.clone(), errno };
        let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = match rustix::fs::openat(CWD, &config.dir, flags | OFlags::RDONLY, Mode::empty()) {
            Err(Errno::ACCESS) => {
                rustix::fs::openat(CWD, &config.dir, flags | OFlags::PATH, Mode::empty()).map_err(failed)?
            }
            root => root.map_err(failed)?,
        };
        if config.is_exclusive {
            claim(&root, &config.dir)?;
        }
        let root_stat = syscalls::stat_fd(&root).map_err(failed)?;
        let resolve = match config.resolve {
            Resolve::Names => Resolve::Names,
            wanted => match try_handles(&root, &root_stat) {
                Ok(()) => Resolve::Handle,
                Err(errno) if wanted == Resolve::Handle => {
                    return Err(VolumeError::NoHandles { dir: config.dir.clone(), errno });
                }
                Err(_) => Resolve::Names,
            },
        };
        // A file without a name, for experiments. Not possible on a read-only file system: there
        // the first real I/O decides.
        let scratch = rustix::fs::openat(
            &root,
            c".",
            OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC,
            Mode::RUSR | Mode::WUSR,
        )
        .ok();
        let io_mode = choose_io_mode(config, scratch.as_ref())?;
        let uid = rustix::process::geteuid();
        let file_system = rustix::fs::fstatfs(&root).map_or(0, |fs| fs.f_type as u64);
        let is_local = LOCAL.contains(&file_system) || file_system == TMPFS;
        Ok(Arc::new(Self {
            dir: config.dir.clone(),
            handle_form: HandleForm::of(&root, root_stat.attr.ino),
            root_stat,
            resolve,
            is_privileged: uid.is_root(),
            uid: uid.as_raw(),
            len_max: scratch.as_ref().map_or(i64::MAX as u64, longest),
            is_noatime: rustix::fs::fstatvfs(&root)
                .is_ok_and(|fs| fs.f_flag.contains(StatVfsMountFlags::NOATIME)),
            waits_by_range: is_local,
            changes: OnceLock::new(),
            may_be_watched: resolve == Resolve::Handle && is_local,
            has_lasting_positions: LOCAL.contains(&file_system),
            // A 32-bit process gets hashes of 31 bits.
            has_hashed_positions: file_system == EXT4 && cfg!(target_pointer_width = "64"),
            reopens: resolve == Resolve::Handle && is_local && overrides_modes(),
            store_id,
            clock: VolumeClock::default(),
            io_mode: AtomicU8::new(io_mode as u8),
            has_acls: AtomicBool::new(true),
            root: Arc::new(root),
        }))
    }

    /// Returns the mode in use; never [`IoMode::Auto`].
    pub(crate) fn io_mode(&self) -> IoMode {
        // Relaxed: a stale mode is only refused once more.
        match self.io_mode.load(Ordering::Relaxed) {
            mode if mode == IoMode::DontCache as u8 => IoMode::DontCache,
            mode if mode == IoMode::Direct as u8 => IoMode::Direct,
            _ => IoMode::DropBehind,
        }
    }

    /// Falls back to the next mode, because the file system refused uncached I/O.
    pub(crate) fn step_down_from(&self, mode: IoMode) {
        // Relaxed, as above.
        let _ = self.io_mode.compare_exchange(
            mode as u8,
            IoMode::DropBehind as u8,
            Ordering::Relaxed,
            Ordering::Relaxed,
        );
        tracing::info!(?mode, "the file system refuses this I/O mode; dropping behind instead");
    }

    /// Returns whether an inode belongs to the volume's file system.
    pub(crate) fn owns(&self, stat: &HostStat) -> bool {
        stat.dev == self.root_stat.dev && !stat.is_mount
    }
}

/// Returns whether the daemon may open files regardless of their mode.
fn overrides_modes() -> bool {
    rustix::thread::capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::DAC_OVERRIDE))
}

/// Keeps other volumes away from a directory as long as this open file description exists. Sleeps
/// for up to [`CLAIM_WAIT`] while another holds the lock.
fn claim(root: &OwnedFd, dir: &Path) -> Result<(), VolumeError> {
    let until = Instant::now() + CLAIM_WAIT;
    let claimed = loop {
        match rustix::fs::flock(root, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) if Instant::now() < until => std::thread::sleep(CLAIM_INTERVAL),
            claimed => break claimed,
        }
    };
    match claimed {
        Ok(()) => Ok(()),
        Err(Errno::WOULDBLOCK) => Err(VolumeError::InUse { dir: dir.to_owned() }),
        Err(errno) => {
            // The directory cannot be read, or its file system has no such locks.
            tracing::info!(%errno, dir = %dir.display(), "the directory cannot be locked; nothing keeps another daemon out");
            Ok(())
        }
    }
}

/// Opens the directory by its handle, and finds the same directory.
fn try_handles(root: &OwnedFd, stat: &HostStat) -> Result<(), Errno> {
    let errno = |error: std::io::Error| Errno::from_io_error(&error).unwrap_or(Errno::IO);
    let (handle, _) = name_to_handle(root.as_fd(), c"", AtFlags::EMPTY_PATH).map_err(errno)?;
    let again = open_by_handle(root.as_fd(), &handle, OFlags::PATH).map_err(errno)?;
    if syscalls::stat_fd(&again)?.key() == stat.key() { Ok(()) } else { Err(Errno::STALE) }
}

fn choose_io_mode(config: &VolumeConfig, scratch: Option<&OwnedFd>) -> Result<IoMode, VolumeError> {
    let works = |mode| match (mode, scratch) {
        (IoMode::DropBehind, _) | (_, None) => true,
        (IoMode::DontCache, Some(fd)) => can_dontcache(fd),
        (_, Some(fd)) => can_direct(fd),
    };
    match config.io_mode {
        IoMode::Auto => Ok([IoMode::DontCache, IoMode::Direct]
            .into_iter()
            .find(|&mode| works(mode))
            .unwrap_or(IoMode::DropBehind)),
        mode if works(mode) => Ok(mode),
        mode => Err(VolumeError::IoMode { dir: config.dir.clone(), mode }),
    }
}

fn can_dontcache(fd: &OwnedFd) -> bool {
    rustix::io::pwritev2(fd, &[IoSlice::new(&[0; 16])], 0, DONTCACHE).is_ok()
        && rustix::io::preadv2(fd, &mut [IoSliceMut::new(&mut [0; 16])], 0, DONTCACHE).is_ok()
}

fn can_direct(fd: &OwnedFd) -> bool {
    let Ok(direct) = syscalls::reopen(fd.as_fd(), OFlags::RDWR | OFlags::DIRECT) else { return false };
    let align = DIRECT_ALIGN as usize;
    let buffer = vec![0u8; 2 * align];
    let start = buffer.as_ptr().align_offset(align);
    buffer
        .get(start..start + align)
        .is_some_and(|aligned| rustix::io::pwrite(&direct, aligned, 0) == Ok(align))
}

/// Returns the maximum length of a file on the file system, found by trying.
fn longest(scratch: &OwnedFd) -> u64 {
    let fits = |len: u64| rustix::fs::ftruncate(scratch, len).is_ok();
    let (mut good, mut bad) = (0, i64::MAX as u64);
    if fits(bad) {
        return bad;
    }
    while bad - good > 1 {
        let middle = good + (bad - good) / 2;
        if fits(middle) { good = middle } else { bad = middle }
    }
    // A limit below the smallest of any present file system is due to the process or a full disk.
    if good < i32::MAX as u64 { i64::MAX as u64 } else { good }
}

/// Local file systems: their data lives in the kernel's page cache until it is on the device, and a
/// position in a directory names a place in it, for every descriptor. On other file systems
/// (network, stacked, with caches of their own) waiting for a range may have no effect, and
/// positions may be counted for each descriptor. Numbers as in `statfs(2)`: ext4, XFS, btrfs, F2FS.
const LOCAL: [u64; 4] = [EXT4, 0x5846_5342, 0x9123_683e, 0xf2f5_2010];
/// Its positions are hashes.
const EXT4: u64 = 0xef53;
/// Counted entries for each descriptor until Linux 6.6.
const TMPFS: u64 = 0x0102_1994;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_volume_says_what_it_detected() {
        let dir = tempfile::tempdir().unwrap();
        let volume = HostDirectory::open(&VolumeConfig::new(dir.path())).unwrap();
        assert_ne!(volume.io_mode(), IoMode::Auto);
        assert_ne!(volume.resolve, Resolve::Auto);
        assert!(volume.len_max > 4 << 30);
    }

    #[test]
    fn a_directory_is_one_volumes_until_that_is_gone() {
        let dir = tempfile::tempdir().unwrap();
        let config = VolumeConfig::new(dir.path());
        let first = HostDirectory::open(&config).unwrap();
        let refused = HostDirectory::open(&config).unwrap_err();
        assert!(matches!(&refused, VolumeError::InUse { dir: named } if named == dir.path()), "{refused}");
        // A read-only operation is not kept out.
        HostDirectory::open(&VolumeConfig { is_exclusive: false, ..config.clone() }).unwrap();
        drop(first);
        HostDirectory::open(&config).unwrap();
    }

    #[test]
    fn what_is_no_directory_is_no_volume() {
        let file = tempfile::NamedTempFile::new().unwrap();
        for (path, expected) in
            [(file.path().to_path_buf(), Errno::NOTDIR), ("/nonexistent/x".into(), Errno::NOENT)]
        {
            let error = HostDirectory::open(&VolumeConfig::new(&path)).unwrap_err();
            assert!(matches!(error, VolumeError::Open { errno, .. } if errno == expected), "{error}");
        }
    }

    #[test]
    fn every_forced_mode_is_used_or_refused() {
        let dir = tempfile::tempdir().unwrap();
        for mode in [IoMode::DontCache, IoMode::Direct, IoMode::DropBehind] {
            match HostDirectory::open(&VolumeConfig { io_mode: mode, ..VolumeConfig::new(dir.path()) }) {
                Ok(volume) => assert_eq!(volume.io_mode(), mode),
                Err(error) => assert!(matches!(error, VolumeError::IoMode { .. }), "{error}"),
            }
        }
    }
}
