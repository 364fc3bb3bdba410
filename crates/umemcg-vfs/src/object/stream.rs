//! A stream: an object written from its first byte to its last, without a copy on a disk.
//!
//! Its bytes are in memory, in parts, until the store has them. They are charged before they
//! arrive. Only the thread holding the turn of the node works on the stream.
//!
//! 1. It is begun for a new file, or for a file cut to nothing. The old object stays until the new
//!    one is stored.
//! 2. Up to one part is kept in memory. A `close` or `fsync` after a change stores it with one PUT.
//! 3. With the next byte a multipart upload begins. A full part is sent while the next one is
//!    filled. With two parts under way a writer waits for one of them, so it writes at the store's
//!    rate. A group without room waits for its parts sooner. Without parts under way, it has the
//!    rest of one part at the cost of its parent.
//! 4. It ends *whole*, when its parts are completed; *failed*, when the store does not take it; or
//!    *nameless*, when its name is gone: later writes are then accepted and forgotten.

use std::sync::Arc;

use rustix::io::Errno;
use umemcg::{ChargeEffort, Engine, Group};
use umemcg_base::{LeafMutex, assert_no_locks_held};

use super::content::Content;
use super::draft_progress::number_of;
use super::file_labels::{FileLabels, LabelChange};
use super::parts_under_way::PartsUnderWay;
use super::upload_notes::UploadNotes;
use super::upload_room::{UploadCharge, UploadRoom};
use crate::attr::{NodeId, Timestamp};
use crate::bucket::{
    Bucket, BucketError, ChunkCharge, Expected, NoNote, ObjectInfo, ObjectSource, PartBytes, PartedUpload,
    UPLOAD_MARK,
};
use crate::handle_charge::HandleCharge;
use crate::slab::Slab;

/// Most parts under way at once.
const NR_UNDER_WAY_MAX: usize = 2;
/// Most parts of an upload: S3's limit.
const NR_PARTS_MAX: u64 = 10_000;
/// The memory for the record of a stored part, and the number of records charged at once.
const PART_RECORD_BYTES: u64 = 160;
const NR_RECORDS: u64 = 64;

/// Why a stream cannot go on.
#[derive(Debug)]
pub(super) enum StreamError {
    /// The operation is impossible, or impossible now.
    Refused(Errno),
    /// The store does not take it.
    Store(BucketError),
}

impl From<Errno> for StreamError {
    fn from(errno: Errno) -> Self {
        Self::Refused(errno)
    }
}

impl From<BucketError> for StreamError {
    fn from(error: BucketError) -> Self {
        Self::Store(error)
    }
}

/// The group that pays for new bytes, and the effort to make room for them.
pub(super) struct Payer<'a> {
    pub(super) engine: &'a Engine,
    pub(super) effort: ChargeEffort,
    pub(super) group: &'a Arc<Group>,
}

/// The fate of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StreamFate {
    /// It takes more bytes.
    Open,
    /// Its parts are completed.
    Whole,
    /// The store has not taken it.
    Failed,
    /// Its name was removed, or given to another file.
    Nameless,
}

/// See the module text.
#[derive(Debug)]
pub(super) struct Stream {
    pub(super) node: NodeId,
    /// The old object, or one without bytes.
    pub(super) content: Arc<Content>,
    bucket: Arc<dyn Bucket>,
    notes: Option<Arc<UploadNotes>>,
    /// The prefix of its upload marks.
    marks: String,
    progress: LeafMutex<Progress>,
    under_way: Arc<PartsUnderWay>,
}

#[derive(Debug)]
struct Progress {
    fate: StreamFate,
    size: u64,
    /// Counts changes.
    nr_changes: u64,
    /// The numbers of changes in the store, and in the last attempt to store them.
    nr_stored: u64,
    nr_tried: u64,
    /// The answer to an upload may have been lost.
    is_unsure: bool,
    /// An upload has failed, or the name was lost, and the writer has not got the error yet.
    untold: Option<Errno>,
    /// It was closed before anything was written.
    was_closed_empty: bool,
    /// The version to replace; `None` for a new object.
    base: Option<ObjectInfo>,
    labels: FileLabels,
    /// The labels have changed since the multipart upload was begun with them.
    is_relabelled: bool,
    filling: Filling,
    upload: Option<Arc<dyn PartedUpload>>,
    nr_parts: u64,
    /// The charges for the records of the parts.
    records: Vec<HandleCharge>,
}

/// The part being filled.
#[derive(Debug, Default)]
struct Filling {
    bytes: PartBytes,
    /// The charge for the rest of the part at once, and its unused bytes.
    room: Option<(Arc<UploadCharge>, usize)>,
}

/// The bytes of a stream stored with one PUT.
#[derive(Debug)]
struct OnePart(PartBytes);

impl ObjectSource for OnePart {
    fn size(&self) -> u64 {
        self.0.len() as u64
    }
    fn read_at(&self, offset: u64, into: &mut [u8]) -> std::io::Result<()> {
        let is_there = usize::try_from(offset).is_ok_and(|offset| self.0.copy_to(offset, into));
        if is_there { Ok(()) } else { Err(std::io::ErrorKind::UnexpectedEof.into()) }
    }
    fn note_upload(&self, _: Option<&str>) -> std::io::Result<()> {
        Ok(())
    }
    fn whole(&self) -> Option<PartBytes> {
        Some(self.0.clone())
    }
}

impl Stream {
    /// Creates a stream to replace `base`; `is_changed` if it is to be stored even without a write.
    pub(super) fn new(
        (node, content): (NodeId, Arc<Content>),
        (bucket, notes): (&Arc<dyn Bucket>, Option<&Arc<UploadNotes>>),
        marks: String,
        (base, labels): (Option<ObjectInfo>, FileLabels),
        is_changed: bool,
    ) -> Arc<Self> {
        let progress = Progress {
            fate: StreamFate::Open,
            size: 0,
            nr_changes: u64::from(is_changed),
            nr_stored: 0,
            nr_tried: 0,
            is_unsure: false,
            untold: None,
            was_closed_empty: false,
            base,
            labels,
            is_relabelled: false,
            filling: Filling::default(),
            upload: None,
            nr_parts: 0,
            records: Vec::new(),
        };
        let (bucket, notes, progress) = (Arc::clone(bucket), notes.map(Arc::clone), LeafMutex::new(progress));
        Arc::new(Self { node, content, bucket, notes, marks, progress, under_way: Arc::default() })
    }

    /// Returns its fate.
    pub(super) fn fate(&self) -> StreamFate {
        self.progress.lock().fate
    }

    /// Returns the number of bytes written to it.
    pub(super) fn size(&self) -> u64 {
        self.progress.lock().size
    }

    /// Returns whether it takes more bytes, and has unsaved changes.
    pub(super) fn is_unsaved(&self) -> bool {
        let progress = self.progress.lock();
        progress.fate == StreamFate::Open && progress.nr_changes != progress.nr_stored
    }

    /// Returns whether it has changes that were not even sent to the store.
    pub(super) fn has_news(&self) -> bool {
        let progress = self.progress.lock();
        let is_in_parts = progress.upload.is_some();
        progress.fate == StreamFate::Open && (is_in_parts || progress.nr_changes != progress.nr_tried)
    }

    /// Returns whether the store has had all of it at some time.
    pub(super) fn is_stored(&self) -> bool {
        self.progress.lock().nr_stored > 0
    }

    /// Returns whether a multipart upload is under way.
    pub(super) fn is_in_parts(&self) -> bool {
        self.progress.lock().upload.is_some()
    }

    /// Returns whether an object of its name may be in the store.
    pub(super) fn may_have_object(&self) -> bool {
        let progress = self.progress.lock();
        progress.base.is_some() || progress.nr_tried > 0
    }

    /// Notes a close. Returns whether it replaces an object and nothing was written yet: a shell
    /// closes one of two descriptors before it writes to the other.
    pub(super) fn note_close(&self) -> bool {
        let mut progress = self.progress.lock();
        let is_empty = progress.size == 0 && progress.base.is_some();
        progress.was_closed_empty |= is_empty;
        is_empty
    }

    /// Returns whether it was closed, and nothing was written.
    pub(super) fn was_closed_empty(&self) -> bool {
        let progress = self.progress.lock();
        progress.was_closed_empty && progress.size == 0
    }

    /// Returns its facts as those of an object.
    pub(super) fn shown(&self) -> ObjectInfo {
        let progress = self.progress.lock();
        let etag = progress.base.as_ref().and_then(|base| base.etag.clone());
        let attributes = progress.labels.attributes;
        let modified = progress.base.as_ref().map_or(attributes.mtime, |base| base.modified);
        ObjectInfo { size: progress.size, modified, etag, metadata: None, attributes: Some(attributes) }
    }

    /// Returns whether its base version, replaced or stored by it, is this object.
    pub(super) fn stands_on(&self, info: &ObjectInfo) -> bool {
        self.progress.lock().base.as_ref().is_none_or(|base| base.is_same(info))
    }

    /// Changes its base version from `from` to `to`; a stream with another base version stays as it
    /// is. Takes over `labels`, unless it has unsaved changes.
    pub(super) fn rebase(&self, from: &ObjectInfo, to: &ObjectInfo, labels: Option<&FileLabels>) {
        let mut progress = self.progress.lock();
        if progress.base.as_ref().is_some_and(|base| base.is_same(from)) {
            progress.base = Some(to.without_metadata());
            if let Some(labels) = labels.filter(|_| progress.nr_changes == progress.nr_stored) {
                progress.labels = labels.clone();
            }
        }
    }

    /// Returns its labels.
    pub(super) fn labels(&self) -> FileLabels {
        self.progress.lock().labels.clone()
    }

    /// Changes its labels. The caller holds the turn.
    ///
    /// # Errors
    /// Those of `change`; `EOPNOTSUPP` where an upload has begun with the old labels and the store
    /// cannot replace them; `EIO` when nothing of it will be stored any more.
    pub(super) fn change_labels(&self, change: LabelChange<'_>) -> Result<(), Errno> {
        let mut progress = self.progress.lock();
        if progress.fate == StreamFate::Failed {
            return Err(Errno::IO);
        }
        if progress.upload.is_some() && !self.bucket.replaces_metadata(progress.size) {
            return Err(Errno::OPNOTSUPP);
        }
        let mut labels = progress.labels.clone();
        change(&mut labels)?;
        let old = std::mem::replace(&mut progress.labels, labels);
        progress.is_relabelled |= progress.upload.is_some();
        progress.nr_changes += 1;
        drop(progress);
        drop(old);
        Ok(())
    }

    /// Appends bytes. Returns the number of bytes taken. The caller holds the turn. May sleep for
    /// memory and for the store.
    ///
    /// # Errors
    /// `EOPNOTSUPP` after its end; `EFBIG`, `ENOMEM`; the store's, when no more can be stored.
    pub(super) fn append(&self, payer: &Payer<'_>, key: &str, data: &[u8]) -> Result<usize, StreamError> {
        let size = {
            let mut progress = self.progress.lock();
            match progress.fate {
                StreamFate::Open => {}
                StreamFate::Whole => return Err(Errno::OPNOTSUPP.into()),
                StreamFate::Failed => return Err(Errno::IO.into()),
                StreamFate::Nameless => {
                    progress.size = progress.size.saturating_add(data.len() as u64);
                    return Ok(data.len());
                }
            }
            progress.size
        };
        let end = size.checked_add(data.len() as u64);
        if end.is_none_or(|end| end > NR_PARTS_MAX * self.bucket.part_bytes()) {
            return Err(Errno::FBIG.into());
        }
        self.under_way.wait_below(usize::MAX)?;
        let mut done = 0;
        while done < data.len() {
            match self.append_some(payer, key, &data[done..]) {
                Ok(nr) => done += nr,
                Err(StreamError::Refused(_)) if done > 0 => break,
                Err(error) => return Err(error),
            }
        }
        Ok(done)
    }

    fn append_some(&self, payer: &Payer<'_>, key: &str, data: &[u8]) -> Result<usize, StreamError> {
        let part_bytes = self.bucket.part_bytes() as usize;
        if self.progress.lock().filling.bytes.len() == part_bytes {
            self.send(payer, key)?;
        }
        let mut filling = std::mem::take(&mut self.progress.lock().filling);
        let filled = self.fill(payer, &mut filling, data);
        let mut progress = self.progress.lock();
        progress.filling = filling;
        let nr = filled?;
        progress.size += nr as u64;
        progress.nr_changes += 1;
        Ok(nr)
    }

    fn fill(&self, payer: &Payer<'_>, filling: &mut Filling, data: &[u8]) -> Result<usize, StreamError> {
        let nr = filling.bytes.fill(data);
        if nr > 0 {
            return Ok(nr);
        }
        let rest = self.bucket.part_bytes() as usize - filling.bytes.len();
        let bytes = filling.bytes.next_chunk_bytes().min(rest);
        let charge = self.charge(payer, (bytes, rest), &mut filling.room)?;
        filling.bytes.add_room(bytes, charge);
        // An allocation may be longer than requested.
        Ok(filling.bytes.fill(&data[..data.len().min(bytes)]))
    }

    /// Charges `bytes`; or without room, and with nothing under way to wait for, the rest of the
    /// part.
    fn charge(
        &self,
        payer: &Payer<'_>,
        (bytes, rest): (usize, usize),
        room: &mut Option<(Arc<UploadCharge>, usize)>,
    ) -> Result<ChunkCharge, Errno> {
        if let Some((charge, left)) = room
            && *left >= bytes
        {
            *left -= bytes;
            return Ok(Arc::clone(charge) as ChunkCharge);
        }
        assert_no_locks_held("room for a part");
        loop {
            match payer.engine.charge_with(payer.group, bytes as u64, ChargeEffort::Opportunistic) {
                Ok(charge) => return Ok(Arc::new(Slab::of(charge))),
                Err(_) if self.under_way.wait_for_one() => {}
                Err(_) => break,
            }
        }
        if let Ok(charge) = payer.engine.charge(payer.group, bytes as u64) {
            return Ok(Arc::new(Slab::of(charge)));
        }
        let taken = UploadRoom::of_streams().take(payer.effort, payer.engine, payer.group, rest as u64)?;
        let charge = Arc::new(taken);
        *room = Some((Arc::clone(&charge), rest - bytes));
        Ok(charge)
    }

    /// Begins to send the full part.
    fn send(&self, payer: &Payer<'_>, key: &str) -> Result<(), StreamError> {
        assert_no_locks_held("a part of an upload");
        let upload = self.begin(payer, key)?;
        self.under_way.wait_below(NR_UNDER_WAY_MAX)?;
        if self.progress.lock().nr_parts.is_multiple_of(NR_RECORDS) {
            let bytes = NR_RECORDS * PART_RECORD_BYTES;
            let records = HandleCharge::take(payer.effort, payer.engine, payer.group, bytes)?;
            self.progress.lock().records.push(records);
        }
        let filling = {
            let mut progress = self.progress.lock();
            progress.nr_parts += 1;
            std::mem::take(&mut progress.filling)
        };
        upload.begin_part(filling.bytes, self.under_way.begin());
        Ok(())
    }

    /// Returns the multipart upload; begins it if there is none.
    fn begin(&self, payer: &Payer<'_>, key: &str) -> Result<Arc<dyn PartedUpload>, StreamError> {
        if let Some(upload) = self.progress.lock().upload.clone() {
            return Ok(upload);
        }
        self.find_own(key)?;
        let (metadata, expected) = self.conditions();
        let noted = |notes: &Arc<UploadNotes>| notes.of(key, payer.group);
        let note = self.notes.as_ref().map_or_else(|| Arc::new(NoNote) as _, noted);
        let upload = self.bucket.begin_upload(key, &metadata, &expected, note)?;
        self.progress.lock().upload = Some(Arc::clone(&upload));
        Ok(upload)
    }

    /// Returns the metadata and the condition to store it with.
    fn conditions(&self) -> (Vec<(String, String)>, Expected) {
        let mut progress = self.progress.lock();
        progress.nr_tried = progress.nr_changes;
        let mut metadata = progress.labels.to_metadata();
        metadata.push((UPLOAD_MARK.to_owned(), format!("{}{}", self.marks, progress.nr_changes)));
        (metadata, progress.base.clone().map_or(Expected::Absent, Expected::Same))
    }

    /// Makes the stored object its base version, if it comes from an upload whose answer was lost.
    fn find_own(&self, key: &str) -> Result<(), BucketError> {
        if !self.progress.lock().is_unsure {
            return Ok(());
        }
        let nr_stored = self.progress.lock().nr_stored;
        // Older numbers are in copies made by another program.
        let is_own = |there: &ObjectInfo| number_of(there, &self.marks).is_some_and(|nr| nr > nr_stored);
        let own = self.bucket.find_confirmed(key)?.filter(is_own);
        let mut progress = self.progress.lock();
        progress.is_unsure = false;
        if let Some(own) = own {
            progress.base = Some(own.without_metadata());
        }
        Ok(())
    }

    /// Stores the unsaved changes, and returns the facts about the object. `None` if there was
    /// nothing to do, or if a multipart upload is under way and not to `end`. The caller holds the
    /// turn.
    ///
    /// # Errors
    /// `EOPNOTSUPP` when the object is stored, but not with its last attributes; the store's.
    pub(super) fn store(
        &self,
        payer: &Payer<'_>,
        key: &str,
        end: bool,
    ) -> Result<Option<ObjectInfo>, StreamError> {
        if !self.is_unsaved() {
            return Ok(None);
        }
        assert_no_locks_held("an upload");
        match self.is_in_parts() {
            true if end => self.complete(payer, key).map(Some),
            true => Ok(None),
            false => Ok(Some(self.put(key)?)),
        }
    }

    fn put(&self, key: &str) -> Result<ObjectInfo, BucketError> {
        self.find_own(key)?;
        let (nr_changes, source) = {
            let progress = self.progress.lock();
            (progress.nr_changes, OnePart(progress.filling.bytes.clone()))
        };
        let (metadata, expected) = self.conditions();
        let stored = self.bucket.upload(key, &source, &metadata, &expected);
        let mut progress = self.progress.lock();
        match stored {
            Ok(info) => {
                progress.nr_stored = nr_changes;
                progress.base = Some(info.without_metadata());
                Ok(info)
            }
            Err(error) => {
                progress.is_unsure = true;
                Err(error)
            }
        }
    }

    fn complete(&self, payer: &Payer<'_>, key: &str) -> Result<ObjectInfo, StreamError> {
        if !self.progress.lock().filling.bytes.is_empty() {
            self.send(payer, key)?;
        }
        self.under_way.wait_below(1)?;
        let upload = self.begin(payer, key)?;
        let info = upload.complete()?;
        let (old, is_relabelled) = {
            let mut progress = self.progress.lock();
            progress.fate = StreamFate::Whole;
            progress.nr_stored = progress.nr_changes;
            progress.base = Some(info.without_metadata());
            let old = (progress.upload.take(), std::mem::take(&mut progress.records));
            (old, progress.is_relabelled)
        };
        drop(old);
        if is_relabelled { self.relabel(key, info) } else { Ok(info) }
    }

    /// Replaces the labels from the beginning of the upload.
    fn relabel(&self, key: &str, info: ObjectInfo) -> Result<ObjectInfo, StreamError> {
        let metadata = self.labels().to_metadata();
        if !self.bucket.replaces_metadata(info.size) {
            return Err(Errno::OPNOTSUPP.into());
        }
        self.bucket.replace_metadata(key, &info, &metadata).map_err(|error| {
            tracing::warn!(key, %error, "a file is stored, but not with its last attributes");
            error.errno().into()
        })
    }

    /// Notes that bytes were written, and with `kill_set_id` clears the set-id bits. Once a
    /// multipart upload has begun, the times stay.
    pub(super) fn touch(&self, kill_set_id: bool) {
        let now = Timestamp::now();
        let mut progress = self.progress.lock();
        let is_in_parts = progress.upload.is_some();
        let attributes = &mut progress.labels.attributes;
        if !is_in_parts {
            (attributes.mtime, attributes.ctime) = (now, now);
        }
        let mode = attributes.mode;
        if kill_set_id {
            attributes.kill_set_id();
        }
        let is_changed = attributes.mode != mode;
        progress.is_relabelled |= is_in_parts && is_changed;
    }

    /// Begins again with no bytes. The caller holds the turn.
    ///
    /// # Errors
    /// `EOPNOTSUPP` once a part was sent.
    pub(super) fn cut(&self) -> Result<(), Errno> {
        let mut progress = self.progress.lock();
        if progress.upload.is_some() || progress.fate == StreamFate::Whole {
            return Err(Errno::OPNOTSUPP);
        }
        let old = std::mem::take(&mut progress.filling);
        (progress.size, progress.nr_changes) = (0, progress.nr_changes + 1);
        drop(progress);
        drop(old);
        Ok(())
    }

    /// Ends it without an object: nothing of it will be stored. The writer gets `errno`, if there
    /// is one, from its next call. The caller holds the turn. May sleep for the store.
    pub(super) fn end(&self, fate: StreamFate, errno: Option<Errno>) {
        let (upload, old) = {
            let mut progress = self.progress.lock();
            if progress.fate != StreamFate::Open {
                return;
            }
            (progress.fate, progress.untold) = (fate, errno);
            let old = (std::mem::take(&mut progress.filling), std::mem::take(&mut progress.records));
            (progress.upload.take(), old)
        };
        drop(old);
        if let Some(upload) = upload
            && let Err(error) = upload.abort()
        {
            tracing::warn!(%error, "an upload in parts may be left in the store; the next start ends it");
        }
    }

    /// Takes the error not yet reported to the writer.
    ///
    /// # Errors
    /// This error.
    pub(super) fn take_untold(&self) -> Result<(), Errno> {
        self.progress.lock().untold.take().map_or(Ok(()), Err)
    }

    /// Takes over attributes stored with the object after the stream.
    pub(super) fn learn(&self, info: &ObjectInfo) {
        if let Some(attributes) = info.attributes {
            self.progress.lock().labels.attributes = attributes;
        }
    }
}
