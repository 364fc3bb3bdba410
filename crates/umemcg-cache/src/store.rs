//! The trait of backing stores: read, write and make durable a range of one file.

use std::fmt;
use std::io;
use std::sync::Arc;

use umemcg_arena::{Arena, Segment};
use umemcg_base::{PAGE_SHIFT, PAGE_SIZE_U64, contained};

use crate::store_read::StoreRead;

/// Largest file, in bytes: the largest signed 64-bit offset, rounded down to whole pages.
pub const FILE_LEN_MAX: u64 = i64::MAX as u64 & !(PAGE_SIZE_U64 - 1);
/// The pages of such a file.
const FILE_PAGES_MAX: u64 = FILE_LEN_MAX >> PAGE_SHIFT;

/// The backing store (volume) of a file. Write-back is queued per store, so that a slow or hanging
/// one holds up no other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StoreId(pub u64);

impl StoreId {
    /// The store of files that live in the pool alone. Their data is never queued.
    pub const MEMORY: Self = Self(u64::MAX);
}

/// One file of a backing store. All calls may block for as long as the store does; none is made
/// with a lock that another file's user could want.
///
/// No write and no range of [`sync_range`](Self::sync_range) ends beyond [`FILE_LEN_MAX`], and no
/// length is larger: offsets, lengths and their sums fit the signed 64-bit numbers of system calls.
/// A read begins within the length of the file at its opening, or after its growth since.
///
/// A panic counts as a failed call: it is logged, and a waiting thread gets an error, as from any
/// other failure.
pub trait BackingStore: Send + Sync + fmt::Debug {
    /// Returns the store that this file is on.
    fn store_id(&self) -> StoreId;

    /// Returns the id of the source that answers its reads. Stores with the same source, such as
    /// the volumes of one bucket, share one store's part of the limit on begun reads. Called once,
    /// when the file is opened.
    fn source_id(&self) -> StoreId {
        self.store_id()
    }

    /// Reads from byte `offset` into the segments in order. Fewer bytes than asked for mean the end
    /// of the file.
    ///
    /// # Errors
    /// The store's error; the segments' contents are then unspecified.
    fn read_at(&self, arena: &Arena, segments: &[Segment], offset: u64) -> io::Result<usize>;

    /// Returns whether [`begin_read`](Self::begin_read) is offered. Called once, when the file is
    /// opened.
    fn begins_reads(&self) -> bool {
        false
    }

    /// Begins a read and returns without waiting for the store: the completion form of
    /// [`read_at`](Self::read_at), for stores whose answers take long. A reader that can be
    /// answered later then holds no thread meanwhile. Both forms are used side by side, and several
    /// reads of one file may be under way.
    fn begin_read(&self, read: StoreRead) {
        read.finish(Err(io::ErrorKind::Unsupported.into()));
    }

    /// Writes the segments in order at byte `offset`, growing the file when needed. May write less
    /// than asked, never nothing unless it fails.
    ///
    /// # Errors
    /// The store's error.
    fn write_at(&self, arena: &Arena, segments: &[Segment], offset: u64) -> io::Result<usize>;

    /// Returns when the data written to the range is durable as far as the store can say without
    /// committing metadata (`sync_file_range` with waits, or `fdatasync`). The range is not empty,
    /// and may end far beyond the end of the file: a range from 0 to [`FILE_LEN_MAX`] is the whole
    /// file.
    ///
    /// # Errors
    /// The store's error; the fate of the data written to the range is then unknown.
    fn sync_range(&self, offset: u64, len: u64) -> io::Result<()>;

    /// Returns when all data (and, unless `data_only`, all metadata) of the file is durable.
    ///
    /// # Errors
    /// The store's error.
    fn sync(&self, data_only: bool) -> io::Result<()>;

    /// Cuts or extends the file to `len` bytes.
    ///
    /// # Errors
    /// The store's error; the length is then unchanged.
    fn set_len(&self, len: u64) -> io::Result<()>;
}

/// The cache's wrapper around a store. Calls come from flushers, syncs and readers, in the middle
/// of work that must be finished. So a panic becomes an error, and a byte count beyond the request
/// is cut to the request.
#[derive(Debug)]
pub(crate) struct GuardedStore {
    /// `None` only while being dropped.
    store: Option<Arc<dyn BackingStore>>,
    id: StoreId,
    source_id: StoreId,
    begins_reads: bool,
}

impl GuardedStore {
    /// Asks the store for its ids and capabilities, once.
    pub(crate) fn new(store: Arc<dyn BackingStore>) -> Self {
        let (id, source_id, begins_reads) = (store.store_id(), store.source_id(), store.begins_reads());
        Self { store: Some(store), id, source_id, begins_reads }
    }

    /// As [`BackingStore::begins_reads`].
    pub(crate) fn begins_reads(&self) -> bool {
        self.begins_reads
    }

    /// As [`BackingStore::store_id`].
    pub(crate) fn id(&self) -> StoreId {
        self.id
    }

    /// As [`BackingStore::source_id`].
    pub(crate) fn source_id(&self) -> StoreId {
        self.source_id
    }

    fn call<R>(&self, what: &str, call: impl FnOnce(&dyn BackingStore) -> io::Result<R>) -> io::Result<R> {
        let Some(store) = &self.store else { return Err(io::ErrorKind::NotConnected.into()) };
        contained(|| call(&**store)).unwrap_or_else(|panic| {
            tracing::error!(%panic, store = self.id.0, what, "a store panicked");
            Err(io::Error::other(panic))
        })
    }

    /// As [`BackingStore::read_at`].
    pub(crate) fn read_at(&self, arena: &Arena, segments: &[Segment], offset: u64) -> io::Result<usize> {
        let nr_read = self.call("read_at", |store| store.read_at(arena, segments, offset))?;
        Ok(nr_read.min(bytes_of(segments)))
    }

    /// As [`BackingStore::begin_read`]. If the store panics, the read is dropped and so fails.
    pub(crate) fn begin_read(&self, read: StoreRead) {
        let _ = self.call("begin_read", |store| {
            store.begin_read(read);
            Ok(())
        });
    }

    /// As [`BackingStore::write_at`].
    pub(crate) fn write_at(&self, arena: &Arena, segments: &[Segment], offset: u64) -> io::Result<usize> {
        let nr_written = self.call("write_at", |store| store.write_at(arena, segments, offset))?;
        Ok(nr_written.min(bytes_of(segments)))
    }

    /// As [`BackingStore::sync_range`], for the pages `first..end`, clipped to the largest file.
    pub(crate) fn sync_pages(&self, first: u64, end: u64) -> io::Result<()> {
        let (first, end) = (first.min(FILE_PAGES_MAX), end.min(FILE_PAGES_MAX));
        if first >= end {
            return Ok(());
        }
        let (offset, len) = (first << PAGE_SHIFT, (end - first) << PAGE_SHIFT);
        self.call("sync_range", |store| store.sync_range(offset, len))
    }

    /// As [`BackingStore::sync`].
    pub(crate) fn sync(&self, data_only: bool) -> io::Result<()> {
        self.call("sync", |store| store.sync(data_only))
    }

    /// As [`BackingStore::set_len`].
    pub(crate) fn set_len(&self, len: u64) -> io::Result<()> {
        self.call("set_len", |store| store.set_len(len))
    }
}

impl Drop for GuardedStore {
    fn drop(&mut self) {
        // The last to hold a file may be a flusher.
        if let Err(panic) = contained(|| drop(self.store.take())) {
            tracing::error!(%panic, store = self.id.0, "the end of a store's file panicked");
        }
    }
}

fn bytes_of(segments: &[Segment]) -> usize {
    segments.iter().map(|segment| usize::from(segment.len)).sum()
}

/// The store of a file without a backing store.
#[derive(Debug)]
pub(crate) struct NoStore;

impl BackingStore for NoStore {
    fn store_id(&self) -> StoreId {
        StoreId::MEMORY
    }
    fn read_at(&self, _arena: &Arena, _segments: &[Segment], _offset: u64) -> io::Result<usize> {
        Ok(0)
    }
    fn write_at(&self, _arena: &Arena, _segments: &[Segment], _offset: u64) -> io::Result<usize> {
        Err(io::ErrorKind::Unsupported.into())
    }
    fn sync_range(&self, _offset: u64, _len: u64) -> io::Result<()> {
        Ok(())
    }
    fn sync(&self, _data_only: bool) -> io::Result<()> {
        Ok(())
    }
    fn set_len(&self, _len: u64) -> io::Result<()> {
        Ok(())
    }
}
