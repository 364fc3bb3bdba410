//! The configuration of a volume of a host directory.

use std::path::PathBuf;

/// Most parts of an inode table.
pub(crate) const NR_SHARDS_MAX: usize = 64;

/// The way in which file content is read and written without leaving a second copy in the kernel's
/// page cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(u8)]
pub enum IoMode {
    /// The first of the following that the file system supports.
    #[default]
    Auto,
    /// Buffered I/O whose pages the kernel drops by itself (`RWF_DONTCACHE`).
    DontCache,
    /// `O_DIRECT` where offset and length are aligned, buffered and dropped where not.
    Direct,
    /// Buffered I/O, then `POSIX_FADV_DONTNEED`.
    DropBehind,
}

/// The way in which an inode is found again on the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Resolve {
    /// Handles where the process may open them, names otherwise.
    #[default]
    Auto,
    /// By file handle (needs `CAP_DAC_READ_SEARCH`); survives renames on the host.
    Handle,
    /// By the names that led to it, checked against device, inode and birth time.
    Names,
}

/// The configuration of a volume.
#[derive(Debug, Clone)]
pub struct VolumeConfig {
    /// The directory.
    pub dir: PathBuf,
    /// The way in which content is read and written.
    pub io_mode: IoMode,
    /// The way in which inodes are found again.
    pub resolve: Resolve,
    /// Most host descriptors kept for inodes that no process has open; most kept for closed files
    /// that have data to write back (then a close waits for the oldest of those); and most kept for
    /// inodes that lost their last name while the kernel refers to them. Each is at most an eighth
    /// of the process's limit, and idle ones of all volumes together a quarter. Beside these, one
    /// is held for the directory itself, and for each open file one, or two with direct I/O: these
    /// and those of closed files come out of the share of the group that opened them (see
    /// `handle_charge`). An open directory holds none, but where the file system's positions in a
    /// directory do not outlive a descriptor.
    pub max_idle_descriptors: usize,
    /// Most files whose cached content is kept although the kernel has forgotten them. Each costs
    /// about a kilobyte beside its pages, and no descriptor.
    pub max_kept_files: usize,
    /// True if the directory is claimed: an advisory lock on it (`flock(2)`) keeps other volumes
    /// out, of all processes, until the last byte of this one is written. Only where the directory
    /// may be read and its file system has such locks.
    pub is_exclusive: bool,
    /// Node ids other than the root's are above this.
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

    /// Returns the configuration of one of many volumes, with which an idle volume costs little.
    pub fn one_of_many(dir: impl Into<PathBuf>) -> Self {
        Self { max_idle_descriptors: 64, nr_shards: 2, ..Self::new(dir) }
    }
}
