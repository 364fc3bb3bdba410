//! The seam to where file data lives: read, write and make durable a range of one file.

use std::fmt;
use std::io;

use umemcg_arena::{Arena, Segment};

/// Which backing store (volume) a file lives on. Write-back is queued per store, so that a slow or hanging one holds
/// up nobody else.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StoreId(pub u64);

impl StoreId {
    /// Of files that live in the pool alone. Nothing of them is ever queued.
    pub const MEMORY: Self = Self(u64::MAX);
}

/// One file of a backing store. All calls may block for as long as the store does; none is made with a lock that
/// another file's user could want.
pub trait BackingStore: Send + Sync + fmt::Debug {
    /// Which store this file is on.
    fn store_id(&self) -> StoreId;

    /// Reads from byte `offset` into the segments in order. Fewer bytes than asked for mean the end of the file.
    ///
    /// # Errors
    /// What the store reports; the segments' contents are then unspecified.
    fn read_at(&self, arena: &Arena, segments: &[Segment], offset: u64) -> io::Result<usize>;

    /// Writes the segments in order at byte `offset`, growing the file when needed. May write less than asked, never
    /// nothing unless it fails.
    ///
    /// # Errors
    /// What the store reports.
    fn write_at(&self, arena: &Arena, segments: &[Segment], offset: u64) -> io::Result<usize>;

    /// Returns when the data written to the range is durable as far as the store can say without committing metadata
    /// (`sync_file_range` with waits, or `fdatasync`).
    ///
    /// # Errors
    /// What the store reports; what had been written to the range is then of unknown fate.
    fn sync_range(&self, offset: u64, len: u64) -> io::Result<()>;

    /// Returns when all data (and, unless `data_only`, all metadata) of the file is durable.
    ///
    /// # Errors
    /// What the store reports.
    fn sync(&self, data_only: bool) -> io::Result<()>;

    /// Cuts or extends the file to `len` bytes.
    ///
    /// # Errors
    /// What the store reports; the length is then as it was.
    fn set_len(&self, len: u64) -> io::Result<()>;
}
