//! The configuration of a volume of a host directory.

use std::path::PathBuf;

/// The most parts of an inode table.
pub(crate) const NR_SHARDS_MAX: usize = 64;

/// How file content is read and written without leaving a second copy in the kernel's page cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(u8)]
pub enum IoMode {
    /// The first of the following modes supported by the file system.
    #[default]
    Auto,
    /// Buffered I/O whose pages the kernel drops by itself (`RWF_DONTCACHE`).
    DontCache,
    /// `O_DIRECT` where offset and length are aligned, buffered and dropped where not.
    Direct,
    /// Buffered I/O, then `POSIX_FADV_DONTNEED`.
    DropBehind,
}

/// How an inode is found again on the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Resolve {
    /// File handles where the process may open them, names otherwise.
    #[default]
    Auto,
    /// By file handle (needs `CAP_DAC_READ_SEARCH`); survives renames on the host.
    Handle,
    /// By its path of names, checked against device, inode and birth time.
    Names,
}

/// The configuration of a volume.
#[derive(Debug, Clone)]
pub struct VolumeConfig {
    /// The directory.
    pub dir: PathBuf,
    /// How content is read and written.
    pub io_mode: IoMode,
    /// How inodes are found again.
    pub resolve: Resolve,
    /// The most host descriptors kept for inodes not open in any process; also the most kept for
    /// closed files with data to write back (beyond it, a close waits for the oldest of them), and
    /// the most kept for inodes without a name to which the kernel still refers. Each is at most an
    /// eighth of the process's limit, and idle descriptors of all volumes together a quarter. In
    /// addition the directory itself holds one descriptor, and each open file one, or two with
    /// direct I/O. Descriptors of open and closed files come out of the share of the opener's group
    /// (see `handle_charge`). An open directory holds none, except where the file system's
    /// directory positions do not outlive a descriptor.
    pub max_idle_descriptors: usize,
    /// The most files kept with cached content after the kernel has forgotten them. Each costs
    /// about a kilobyte beside its pages, and no descriptor.
    pub max_kept_files: usize,
    /// Whether to claim the directory: an advisory lock on it (`flock(2)`) keeps other volumes out,
    /// in all processes, until the last byte of this volume is written. Only where the directory
    /// may be read and its file system has such locks.
    pub is_exclusive: bool,
    /// All node ids except the root's are above this.
    pub node_base: u64,
    /// Parts of the inode table, each with a lock of its own: a power of two from 2 to 64. An empty
    /// part takes 112 bytes.
    pub nr_shards: usize,
}

impl VolumeConfig {
    /// Returns the configuration of a directory, with I/O mode and resolution to be detected.
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        Self {
            dir: dir.into(),
            io_mode: IoMode::Auto,
            resolve: Resolve::Auto,
            max_idle_descriptors: 1024,
            max_kept_files: 4096,
            is_exclusive: true,
            node_base: 0,
            nr_shards: NR_SHARDS_MAX,
        }
    }

    /// Returns a configuration for one of many volumes: an idle volume costs little.
    pub fn one_of_many(dir: impl Into<PathBuf>) -> Self {
        Self { max_idle_descriptors: 64, nr_shards: 2, ..Self::new(dir) }
    }
}
