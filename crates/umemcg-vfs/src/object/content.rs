//! The cached content of one object in one version, and this object as its backing store.
//!
//! The first change makes a draft. From then on the content has the bytes of the draft.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use rustix::io::Errno;
use umemcg::files::{BackingStore, File, StartedRead, StoreId, StoreRead};
use umemcg::{ChargeEffort, Engine, Group, OwnerId};
use umemcg_arena::{Arena, Segment};
use umemcg_base::{ErrorSequence, LeafMutex};

use super::draft::Draft;
use super::failure_log::FailureLog;
use crate::bucket::{
    Bucket, BucketError, FileAttributes, ObjectBody, ObjectInfo, TenantScope, current_tenant, read_placed,
};
use crate::error::VfsError;
use crate::kernel_io::ContentFiles;
use crate::metadata_charge::{CONTENT_BYTES, MetadataCharge};

/// Longest key covered by the charge of a content, in bytes.
const SHORT_KEY_BYTES: usize = 128;
/// The charge of a longer key; no key is longer than this.
const LONG_KEY_BYTES: u64 = 1024;

/// The charge for a key.
type KeyCharge = MetadataCharge<LONG_KEY_BYTES>;

/// Charges a key longer than [`SHORT_KEY_BYTES`]. May sleep for memory.
fn key_charge(
    effort: ChargeEffort,
    engine: &Arc<Engine>,
    group: &Arc<Group>,
    key: &str,
) -> Result<Option<KeyCharge>, VfsError> {
    let is_long = key.len() > SHORT_KEY_BYTES;
    Ok(is_long.then(|| KeyCharge::take(effort, engine, group)).transpose()?)
}

/// The content of an object in one version. Each version has a content of its own, so no read mixes
/// two versions.
#[derive(Debug)]
pub(super) struct Content {
    /// First: it is released to a tree, and `file` may hold the last reference to this tree.
    charge: MetadataCharge<CONTENT_BYTES>,
    /// For a key longer than [`SHORT_KEY_BYTES`].
    _key_charge: Option<KeyCharge>,
    place: Arc<LeafMutex<Place>>,
    file: Arc<File>,
    /// The changed bytes, once there are any.
    draft: OnceLock<Arc<Draft>>,
    /// Errors of uploads, for the open files.
    pub(super) errors: ErrorSequence,
    /// (A) A read has found another version in the store. Relaxed: it stands alone.
    pub(super) is_outdated: Arc<AtomicBool>,
    /// (A) Open files writing it.
    nr_writers: AtomicUsize,
}

/// Where the bytes of a content are.
#[derive(Debug, Clone)]
pub(super) struct Place {
    pub(super) key: Arc<str>,
    pub(super) info: ObjectInfo,
}

impl Content {
    /// Creates the content of an object, charged to a group. May sleep for memory.
    pub(super) fn new(
        effort: ChargeEffort,
        engine: &Arc<Engine>,
        group: &Arc<Group>,
        (bucket, id, failures): (&Arc<dyn Bucket>, StoreId, &Arc<FailureLog>),
        (key, info): (String, &ObjectInfo),
    ) -> Result<Arc<Self>, VfsError> {
        let charge = MetadataCharge::take(effort, engine, group)?;
        let _key_charge = key_charge(effort, engine, group, &key)?;
        let is_outdated = Arc::new(AtomicBool::new(false));
        let (bucket, log) = (Arc::clone(bucket), Arc::clone(failures));
        let failures = ReadFailures { log, is_outdated: Arc::clone(&is_outdated) };
        let place = Arc::new(LeafMutex::new(Place { key: key.into(), info: info.clone() }));
        let store = ObjectStore { id, bucket, place: Arc::clone(&place), failures };
        let file = engine
            .open_file(Arc::new(store), info.size)
            .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
        let draft = OnceLock::new();
        let errors = ErrorSequence::new();
        Ok(Arc::new(Self {
            charge,
            _key_charge,
            place,
            file,
            draft,
            errors,
            is_outdated,
            nr_writers: AtomicUsize::new(0),
        }))
    }

    /// Creates the content of an object being made, charged to a group. May sleep for memory.
    pub(super) fn of_draft(
        effort: ChargeEffort,
        engine: &Arc<Engine>,
        group: &Arc<Group>,
        (key, draft): (String, Arc<Draft>),
    ) -> Result<Arc<Self>, VfsError> {
        Ok(Arc::new(Self {
            _key_charge: key_charge(effort, engine, group, &key)?,
            charge: MetadataCharge::take(effort, engine, group)?,
            place: Arc::new(LeafMutex::new(Place { key: key.into(), info: draft.shown() })),
            file: Arc::clone(&draft.file),
            draft: OnceLock::from(draft),
            errors: ErrorSequence::new(),
            is_outdated: Arc::default(),
            nr_writers: AtomicUsize::new(0),
        }))
    }

    /// Returns the group that pays.
    pub(super) fn owner(&self) -> OwnerId {
        self.charge.owner()
    }

    /// Returns the file with its bytes: the draft's, if there is one.
    #[inline]
    pub(super) fn file(&self) -> &Arc<File> {
        self.draft.get().map_or(&self.file, |draft| &draft.file)
    }

    /// Returns the file of a started read.
    pub(super) fn file_of(&self, read: &StartedRead) -> &Arc<File> {
        if self.file.has_started(read) { &self.file } else { self.file() }
    }

    /// Returns the draft, if there is one.
    #[inline]
    pub(super) fn draft(&self) -> Option<&Arc<Draft>> {
        self.draft.get()
    }

    /// Puts a draft in its place. The caller holds the node's turn.
    pub(super) fn set_draft(&self, draft: Arc<Draft>) {
        let draft = self.draft.get_or_init(|| draft);
        draft.file.set_kept_above(self.file.is_kept_above());
    }

    /// Sets whether the kernel keeps the bytes read and written.
    pub(super) fn set_kept_above(&self, is_kept_above: bool) {
        self.file.set_kept_above(is_kept_above);
        self.file().set_kept_above(is_kept_above);
    }

    /// Counts an open file writing it.
    pub(super) fn begin_writing(&self) {
        // Relaxed: only their ends are in an order with changes.
        self.nr_writers.fetch_add(1, Ordering::Relaxed);
    }

    /// Ends [`begin_writing`](Self::begin_writing). Returns whether no other open file writes it:
    /// then this one sees all changes made by the others before their ends.
    pub(super) fn end_writing(&self) -> bool {
        // Acquire and release: its partners are the ends of the others.
        self.nr_writers.fetch_sub(1, Ordering::AcqRel) == 1
    }

    /// Returns whether any open file writes it.
    pub(super) fn is_being_written(&self) -> bool {
        // Relaxed: it may begin or end at any time.
        self.nr_writers.load(Ordering::Relaxed) > 0
    }

    /// Returns the object of the content.
    pub(super) fn place(&self) -> Place {
        self.place.lock().clone()
    }

    /// Returns the facts to show: those of the draft, if there is one.
    pub(super) fn shown(&self) -> ObjectInfo {
        self.draft().map_or_else(|| self.place.lock().info.clone(), |draft| draft.shown())
    }

    /// Takes over attributes reported by the store.
    pub(super) fn learn(&self, attributes: Option<FileAttributes>) {
        let mut place = self.place.lock();
        place.info.attributes = attributes.or(place.info.attributes);
    }

    /// Reads the same bytes from another object from now on. If there is a draft, the object may
    /// have other bytes, and is not read.
    pub(super) fn move_to(&self, key: &str, info: &ObjectInfo) {
        if self.draft().is_some() {
            return;
        }
        let mut place = self.place.lock();
        let attributes = info.attributes.or(place.info.attributes);
        let moved = Place { key: key.into(), info: ObjectInfo { attributes, ..info.without_metadata() } };
        let old = std::mem::replace(&mut *place, moved);
        drop(place);
        drop(old);
    }
}

impl ContentFiles for Content {
    fn files(&self) -> (&Arc<File>, Option<&Arc<File>>) {
        match self.draft.get() {
            // For an object being made both are one file.
            Some(draft) => (&draft.file, Some(&self.file).filter(|file| !Arc::ptr_eq(file, &draft.file))),
            None => (&self.file, None),
        }
    }
}

/// An object as the store of its content.
#[derive(Debug, Clone)]
struct ObjectStore {
    id: StoreId,
    bucket: Arc<dyn Bucket>,
    place: Arc<LeafMutex<Place>>,
    failures: ReadFailures,
}

impl ObjectStore {
    fn place(&self) -> Place {
        self.place.lock().clone()
    }

    /// Begins a read: the first one of its bytes, or if `is_second`, the second.
    fn deliver(&self, read: StoreRead, is_second: bool) {
        let Place { key, info } = self.place();
        let end = info.size.min(read.offset().saturating_add(read.len() as u64));
        let range = read.offset()..end;
        if range.is_empty() {
            return read.finish(Ok(()));
        }
        let (store, of) = (self.clone(), Arc::clone(&key));
        let tenant = current_tenant();
        let body = Box::new(Delivery { read, store, key: of, tenant, has_bytes: false, is_second });
        self.bucket.begin_read(&key, &info, range, body);
    }

    /// Returns whether the error only means that the object was renamed here meanwhile.
    fn has_moved(&self, asked: &Arc<str>, error: &BucketError) -> bool {
        let is_elsewhere = matches!(error, BucketError::NotFound(_) | BucketError::Changed(_));
        is_elsewhere && !Arc::ptr_eq(asked, &self.place.lock().key)
    }
}

/// Handles the failures of reads.
#[derive(Debug, Clone)]
struct ReadFailures {
    log: Arc<FailureLog>,
    is_outdated: Arc<AtomicBool>,
}

impl ReadFailures {
    /// Notes and logs a failure, and returns it as a store's.
    fn note(&self, error: BucketError) -> io::Error {
        let error = match error {
            // An object removed under an open file counts as changed.
            BucketError::NotFound(what) => BucketError::Changed(what),
            error => error,
        };
        if matches!(error, BucketError::Changed(_)) {
            self.is_outdated.store(true, Ordering::Relaxed);
        }
        let errno = self.log.report(&error);
        match error {
            // Its kind says so to the cache; a caller gets the same error number.
            BucketError::Unavailable(_) => io::Error::new(io::ErrorKind::TimedOut, error),
            BucketError::Corrupt(_) => io::Error::new(io::ErrorKind::InvalidData, error),
            _ => errno.into(),
        }
    }
}

/// A read of the cache under way.
#[derive(Debug)]
struct Delivery {
    read: StoreRead,
    store: ObjectStore,
    /// The key of the requested object.
    key: Arc<str>,
    /// The number of the reading tenant.
    tenant: usize,
    has_bytes: bool,
    /// The first read returned damaged bytes.
    is_second: bool,
}

impl ObjectBody for Delivery {
    fn take(&mut self, bytes: &[u8]) {
        self.has_bytes = true;
        self.read.deliver(bytes);
    }

    fn end(self: Box<Self>, result: Result<(), BucketError>) {
        let Self { mut read, store, key, tenant, has_bytes, is_second } = *self;
        // The next read of the same bytes, or of those behind them, begins on this thread.
        let _scope = TenantScope::of_number(tenant);
        match result {
            Err(error) if !has_bytes && store.has_moved(&key, &error) => store.deliver(read, is_second),
            Err(BucketError::Corrupt(what)) if !is_second => {
                tracing::warn!(what, "bytes of an object came damaged, and are asked for again");
                read.restart();
                store.deliver(read, true);
            }
            result => read.finish(result.map_err(|error| store.failures.note(error))),
        }
    }
}

impl BackingStore for ObjectStore {
    fn store_id(&self) -> StoreId {
        self.id
    }

    fn source_id(&self) -> StoreId {
        self.bucket.source_id().unwrap_or(self.id)
    }

    fn read_at(&self, arena: &Arena, segments: &[Segment], offset: u64) -> io::Result<usize> {
        let wanted: u64 = segments.iter().map(|segment| u64::from(segment.len)).sum();
        loop {
            let Place { key, info } = self.place();
            let end = info.size.min(offset.saturating_add(wanted));
            if offset >= end {
                return Ok(0);
            }
            let start = SegmentWriter { arena, segments, at: 0 };
            let mut into = start;
            let mut take = |at: u64, bytes: &[u8]| {
                if at == offset {
                    into = start;
                }
                into.write(bytes);
            };
            match read_placed(&*self.bucket, (&key, &info), offset..end, &mut take) {
                Ok(()) => return Ok((end - offset) as usize),
                Err(error) if self.has_moved(&key, &error) => {}
                Err(error) => return Err(self.failures.note(error)),
            }
        }
    }

    fn begins_reads(&self) -> bool {
        true
    }

    fn begin_read(&self, read: StoreRead) {
        self.deliver(read, false);
    }

    fn write_at(&self, _arena: &Arena, _segments: &[Segment], _offset: u64) -> io::Result<usize> {
        Err(Errno::ROFS.into())
    }

    fn sync_range(&self, _offset: u64, _len: u64) -> io::Result<()> {
        Ok(())
    }

    fn sync(&self, _data_only: bool) -> io::Result<()> {
        Ok(())
    }

    fn set_len(&self, _len: u64) -> io::Result<()> {
        Err(Errno::ROFS.into())
    }
}

/// Copies bytes into segments, one after another; bytes that do not fit are dropped.
#[derive(Clone, Copy)]
struct SegmentWriter<'a> {
    arena: &'a Arena,
    segments: &'a [Segment],
    /// Bytes written to the first segment.
    at: usize,
}

impl SegmentWriter<'_> {
    fn write(&mut self, mut bytes: &[u8]) {
        while let (Some(first), false) = (self.segments.first(), bytes.is_empty()) {
            let len = bytes.len().min(usize::from(first.len) - self.at);
            self.arena.copy_in(first.frame, usize::from(first.offset) + self.at, &bytes[..len]);
            self.at += len;
            bytes = &bytes[len..];
            if self.at == usize::from(first.len) {
                (self.segments, self.at) = (&self.segments[1..], 0);
            }
        }
    }
}
