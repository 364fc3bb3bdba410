//! A draft: the bytes of an object being made or changed.
//!
//! A host file in the staging directory holds them, with a file of the engine over it. Limits for
//! dirty data, write-back and charges are thus those of a directory's files. All open files of a
//! node share the draft.
//!
//! Life:
//! 1. It is made when the first change comes: empty for a new object or one cut to nothing, else as
//!    a copy. Its record says *stored*: after a crash it is deleted.
//! 2. Before its first change it is *noted*: its record says *staged*, its node stays known, and it
//!    is on the volume's list of unsaved drafts. After a crash it is kept in `lost/`.
//! 3. An upload stores the changes made before it began. If nothing has changed since, the draft is
//!    *saved*: it is noted no more, until the next change.
//! 4. A failed upload leaves it noted, and makes it durable. A later close or a retry stores it.
//! 5. It becomes *nameless* when its name is removed, or *lost* when another change of the object
//!    came first. It is not stored any more; a lost draft is kept in `lost/`.
//! 6. It goes with the last open file. An unsaved draft stays on disk, as does the record of a
//!    multipart upload that could not be aborted.
//!
//! ```text
//!         first change          upload of all changes
//!   made --------------> noted -----------------------> saved
//!                        |   ^                            |
//!                        |   +-------- next change -------+
//!                        +--> lost        another change of the object came first
//!   made, noted, saved -----> nameless    the name was removed
//! ```
//!
//! Operations that must see the draft whole, such as an upload, hold the turn of its node
//! (`turns`); so do changes of its state or its length, and writes of its record. Writes of bytes
//! go on beside them.

use std::io;
use std::sync::Arc;

use rustix::fs::FallocateFlags;
use rustix::io::Errno;
use umemcg::Group;
use umemcg::files::File;
use umemcg_base::LeafMutex;

use super::draft_progress::{Before, Fate, Progress, number_of};
use super::draft_record::{DraftRecord, DraftState};
use super::file_labels::{FileLabels, LabelChange};
use super::staging::Staging;
use super::staging_room::RoomClaim;
use crate::attr::{NodeId, Timestamp};
use crate::bucket::ObjectInfo;
use crate::error::VfsError;
use crate::handle_charge::HandleCharge;
use crate::host::store::{HostStore, StoreFds};

/// See the module text.
#[derive(Debug)]
pub(super) struct Draft {
    pub(super) file: Arc<File>,
    pub(super) node: NodeId,
    store: Arc<HostStore>,
    serial: u64,
    staging: Arc<Staging>,
    pub(super) room: RoomClaim,
    /// (C) The prefix of its upload marks.
    mark: String,
    progress: LeafMutex<Progress>,
    /// The group of the first writer.
    group: Arc<Group>,
    _charge: HandleCharge,
}

/// A change in progress. It counts when this is dropped.
#[derive(Debug)]
#[must_use]
pub(super) struct Changing<'d>(&'d Draft);

/// An upload in progress.
#[derive(Debug)]
pub(super) struct Upload {
    /// The number of changes in it.
    pub(super) nr_changes: u64,
    /// The state in the store before it.
    pub(super) before: Before,
    pub(super) labels: FileLabels,
}

impl Draft {
    /// Creates a draft from the parts made by its maker.
    pub(super) fn new(
        (staging, group): (&Arc<Staging>, &Arc<Group>),
        node: NodeId,
        (serial, mark): (u64, String),
        (file, store): (Arc<File>, Arc<HostStore>),
        (progress, room, charge): (Progress, RoomClaim, HandleCharge),
    ) -> Arc<Self> {
        Arc::new(Self {
            file,
            node,
            store,
            serial,
            staging: Arc::clone(staging),
            room,
            mark,
            progress: LeafMutex::new(progress),
            group: Arc::clone(group),
            _charge: charge,
        })
    }

    /// Returns its number in the staging directory.
    pub(super) fn serial(&self) -> u64 {
        self.serial
    }

    /// Returns the group of the first writer; `None` once it is removed.
    pub(super) fn group(&self) -> Option<&Arc<Group>> {
        Some(&self.group).filter(|group| !group.is_dead())
    }

    /// Begins a change if the draft is noted, or does not have to be; `None` if it must be noted
    /// first.
    ///
    /// # Errors
    /// `EIO` when it will never be stored, because another change came first.
    pub(super) fn try_begin_change(&self) -> Option<Result<Changing<'_>, Errno>> {
        let mut progress = self.progress.lock();
        match progress.fate {
            Fate::Lost => return Some(Err(Errno::IO)),
            Fate::Stored if !progress.is_noted => return None,
            Fate::Stored | Fate::Nameless => {}
        }
        progress.nr_changing += 1;
        Some(Ok(Changing(self)))
    }

    /// Notes the draft. The caller holds the turn. The record need not be durable: no change is
    /// durable before the next upload.
    pub(super) fn note(&self, key: &str) -> Result<(), Errno> {
        key.clone_into(&mut self.progress.lock().key);
        self.write_record(Some(DraftState::Staged), false)?;
        self.progress.lock().is_noted = true;
        Ok(())
    }

    /// Returns the key it is stored under.
    pub(super) fn key(&self) -> String {
        self.progress.lock().key.clone()
    }

    /// Notes another key for the draft. The caller holds the turn.
    ///
    /// # Errors
    /// The disk's; then the next start may name the old key.
    pub(super) fn follow(&self, key: &str) -> Result<(), Errno> {
        key.clone_into(&mut self.progress.lock().key);
        self.write_record(None, false)
    }

    /// Returns whether nothing has changed since an upload was last begun.
    pub(super) fn is_quiet(&self) -> bool {
        let progress = self.progress.lock();
        progress.nr_changing == 0 && progress.nr_changes == progress.nr_tried
    }

    /// Returns whether it has unsaved changes.
    pub(super) fn is_unsaved(&self) -> bool {
        self.progress.lock().is_unsaved()
    }

    /// Returns whether the store has all of it, and no change is being made.
    pub(super) fn is_clean(&self) -> bool {
        let progress = self.progress.lock();
        let is_stored = progress.fate == Fate::Stored && progress.nr_changes == progress.nr_stored;
        is_stored && progress.nr_changing == 0
    }

    /// Returns whether it has changed since an upload was last begun.
    pub(super) fn has_news(&self) -> bool {
        let progress = self.progress.lock();
        progress.fate == Fate::Stored && progress.nr_changes != progress.nr_tried
    }

    /// Returns whether an object of its name may be in the store.
    pub(super) fn may_have_object(&self) -> bool {
        self.progress.lock().may_have_object
    }

    /// Notes that an object of its name may be in the store: another draft is about to be stored
    /// there.
    pub(super) fn expect_object(&self) {
        self.progress.lock().may_have_object = true;
    }

    /// Returns whether it is noted.
    pub(super) fn is_noted(&self) -> bool {
        self.progress.lock().is_noted
    }

    /// Returns whether another change of the object came first.
    pub(super) fn is_lost(&self) -> bool {
        self.progress.lock().fate == Fate::Lost
    }

    /// Returns the key and the id of a multipart upload not known to be over.
    pub(super) fn noted_upload(&self) -> Option<(String, String)> {
        self.progress.lock().noted_upload.clone()
    }

    /// Notes that the multipart upload is over.
    pub(super) fn forget_upload(&self) {
        self.progress.lock().noted_upload = None;
    }

    /// Returns its known state in the store.
    pub(super) fn before(&self) -> Before {
        self.progress.lock().before()
    }

    /// Returns the base version; `None` for an object not stored yet.
    pub(super) fn base(&self) -> Option<ObjectInfo> {
        self.progress.lock().base.clone()
    }

    /// Returns its facts as those of an object.
    pub(super) fn shown(&self) -> ObjectInfo {
        let progress = self.progress.lock();
        let etag = progress.base.as_ref().and_then(|base| base.etag.clone());
        let attributes = progress.labels.attributes;
        let modified = progress.base.as_ref().map_or(attributes.mtime, |base| base.modified);
        ObjectInfo { size: self.file.len(), modified, etag, metadata: None, attributes: Some(attributes) }
    }

    /// Returns its labels.
    pub(super) fn labels(&self) -> FileLabels {
        self.progress.lock().labels.clone()
    }

    /// Changes its labels.
    ///
    /// # Errors
    /// Those of `change`.
    pub(super) fn change_labels(&self, _: &Changing<'_>, change: LabelChange<'_>) -> Result<(), Errno> {
        change(&mut self.progress.lock().labels)
    }

    /// Notes that its name was removed: it is not stored, and goes with the last open file. The
    /// caller holds the turn.
    pub(super) fn lose_name(&self) {
        let mut progress = self.progress.lock();
        if progress.fate == Fate::Stored {
            progress.fate = Fate::Nameless;
        }
        progress.is_noted = false;
    }

    /// Keeps it in `lost/`, for good. Then calls `tell`, which notifies the open files: a notified
    /// program may look there. No file is opened or flushed in between. Returns the path.
    pub(super) fn lose(&self, key: &str, tell: impl FnOnce()) -> std::path::PathBuf {
        if let Err(errno) = self.sync_bytes() {
            tracing::error!(key, %errno, "what is kept of a staged file may be incomplete");
        }
        let path = self.staging.lose(self.serial, key);
        {
            let mut progress = self.progress.lock();
            tell();
            (progress.fate, progress.is_noted) = (Fate::Lost, false);
        }
        self.room.keep();
        path
    }

    /// Begins an upload; `None` when the store has all changes, or must not get any. The caller
    /// holds the turn.
    pub(super) fn begin_upload(&self) -> Option<Upload> {
        let mut progress = self.progress.lock();
        if progress.fate != Fate::Stored || progress.nr_changes == progress.nr_stored {
            return None;
        }
        (progress.nr_tried, progress.may_have_object) = (progress.nr_changes, true);
        let (before, labels) = (progress.before(), progress.labels.clone());
        Some(Upload { nr_changes: progress.nr_changes, before, labels })
    }

    /// Notes that the store has the first `nr_changes` changes, as the version `info`. Returns
    /// whether these are all changes; the draft is then noted no more.
    pub(super) fn end_upload(&self, nr_changes: u64, info: &ObjectInfo, key: &str) -> bool {
        let is_saved = {
            let mut progress = self.progress.lock();
            progress.nr_stored = nr_changes;
            progress.nr_marked = progress.nr_marked.max(nr_changes);
            progress.base = Some(info.without_metadata());
            key.clone_into(&mut progress.key);
            let is_saved = progress.nr_changes == nr_changes && progress.nr_changing == 0;
            progress.is_noted &= !is_saved;
            is_saved
        };
        // The caller holds the turn, so the next change is noted after this.
        if is_saved && let Err(errno) = self.write_record(None, false) {
            tracing::warn!(%errno, key, "cannot note that a staged file is in the store");
        }
        is_saved
    }

    /// Makes another version its base.
    pub(super) fn rebase(&self, info: &ObjectInfo) {
        let mut progress = self.progress.lock();
        progress.base = Some(info.without_metadata());
        progress.nr_marked = progress.nr_marked.max(number_of(info, &self.mark).unwrap_or(0));
    }

    /// As [`rebase`](Self::rebase), to a version whose `labels` come from `change`. If a write has
    /// changed the draft meanwhile, `change` is applied to its own labels.
    pub(super) fn relabel(&self, info: &ObjectInfo, labels: FileLabels, change: LabelChange<'_>) {
        let mut progress = self.progress.lock();
        progress.base = Some(info.without_metadata());
        if progress.nr_changing == 0 && progress.nr_changes == progress.nr_stored {
            progress.labels = labels;
        } else if change(&mut progress.labels).is_err() {
            // The store has the intended labels, and gets those of the draft with the next upload.
        }
    }

    /// Writes its bytes to its host file, for an upload. Returns their number; bytes written beyond
    /// them meanwhile may be missing. They need not be durable: nothing is acknowledged before the
    /// upload has succeeded.
    ///
    /// # Errors
    /// The disk's.
    pub(super) fn write_out(&self) -> Result<u64, Errno> {
        let len = self.file.len();
        self.file.write_out().map_err(|error| self.staging.report(errno_of(error)))?;
        self.len_on_disk(len)
    }

    /// Makes it durable on the staging disk, with its record.
    ///
    /// # Errors
    /// The disk's.
    pub(super) fn sync(&self) -> Result<(), Errno> {
        let synced = self.sync_bytes();
        // With or without the bytes: the next start has to find the draft.
        self.write_record(None, true)?;
        synced
    }

    fn sync_bytes(&self) -> Result<(), Errno> {
        let seen = self.file.sample_error();
        // An error of earlier write-back counts only if the data is still unwritten.
        if let Err(error) = self.file.fsync(false, &seen)
            && !self.file.is_stable()
        {
            return Err(self.staging.report(VfsError::from(error).errno()));
        }
        Ok(())
    }

    /// Returns how many of `len` bytes its host file has: a write that lengthens the draft may not
    /// have put its bytes there yet.
    fn len_on_disk(&self, len: u64) -> Result<u64, Errno> {
        let on_disk = rustix::fs::fstat(&self.host_file()?.buffered)?.st_size;
        Ok(len.min(u64::try_from(on_disk).unwrap_or(0)))
    }

    /// Returns its host file.
    pub(super) fn host_file(&self) -> Result<Arc<StoreFds>, Errno> {
        self.store.fds().ok_or(Errno::BADF)
    }

    /// Notes the key and the id of a multipart upload, durably, or the end of this upload. The end
    /// need not be durable: the next start can abort the upload once more.
    ///
    /// # Errors
    /// The disk's.
    pub(super) fn note_upload(&self, upload: Option<(&str, &str)>) -> Result<(), Errno> {
        let noted = upload.map(|(key, upload)| (key.to_owned(), upload.to_owned()));
        let old = std::mem::replace(&mut self.progress.lock().noted_upload, noted);
        drop(old);
        self.write_record(None, upload.is_some())
    }

    /// Cuts or extends it. The caller is changing it and holds the turn.
    pub(super) fn set_len(&self, _: &Changing<'_>, len: u64) -> Result<(), VfsError> {
        self.room.grow(len)?;
        self.file.set_len(len)?;
        self.room.shrink(self.file.len());
        Ok(())
    }

    /// Changes the allocation of a range on the staging disk; see [`HostStore::allocate`].
    pub(super) fn allocate(&self, mode: FallocateFlags, offset: u64, len: u64) -> Result<(), Errno> {
        self.store.allocate(mode, offset, len, self.file.len())
    }

    /// Returns the path of its bytes.
    pub(super) fn path(&self) -> std::path::PathBuf {
        self.staging.path_of(self.serial)
    }

    /// Returns the prefix of its upload marks.
    pub(super) fn mark(&self) -> &str {
        &self.mark
    }

    /// Writes the record with a state, or with the present one; `durably` if it must survive a
    /// power cut.
    fn write_record(&self, state: Option<DraftState>, durably: bool) -> Result<(), Errno> {
        let record = {
            let progress = self.progress.lock();
            if progress.fate == Fate::Lost {
                // The draft is in `lost/`.
                return Err(Errno::IO);
            }
            let (key, upload) = (progress.key.clone(), progress.noted_upload.clone());
            DraftRecord { key, upload, state: state.unwrap_or_else(|| progress.state()) }
        };
        let written = self.staging.write_record(self.serial, &record, durably);
        written.map_err(|error| self.staging.report(errno_of(error)))
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        let is_done = {
            let progress = self.progress.lock();
            match progress.fate {
                Fate::Stored => progress.nr_changes == progress.nr_stored,
                Fate::Nameless => true,
                Fate::Lost => false,
            }
        };
        if is_done {
            self.file.discard();
            self.store.clear_fds();
            self.staging.remove_bytes(self.serial);
            if self.noted_upload().is_none() {
                self.staging.remove_record(self.serial);
            }
        }
    }
}

impl Drop for Changing<'_> {
    fn drop(&mut self) {
        let mut progress = self.0.progress.lock();
        progress.nr_changing -= 1;
        progress.nr_changes += 1;
    }
}

impl Changing<'_> {
    /// Notes that bytes change now, and with `kill_set_id` clears the set-id bits.
    pub(super) fn touch(&self, kill_set_id: bool) {
        let now = Timestamp::now();
        let attributes = &mut self.0.progress.lock().labels.attributes;
        (attributes.mtime, attributes.ctime) = (now, now);
        if kill_set_id {
            attributes.kill_set_id();
        }
    }
}

/// Returns the error number of an I/O error.
pub(super) fn errno_of(error: io::Error) -> Errno {
    Errno::from_io_error(&error).unwrap_or(Errno::IO)
}
