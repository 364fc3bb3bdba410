//! A draft: the bytes of an object that is being made or changed.
//!
//! A host file in the staging directory holds them, with a file of the engine over it: so limits
//! for dirty data, write-back and charges are those of a directory's files. All that have the node
//! open share the draft.
//!
//! Life:
//! 1. It is made empty for a new object and for one that is cut to nothing, else as a copy, when
//!    the first change comes.
//! 2. Before its first change it is *noted*: its record says so, its node stays known, and it is
//!    on the volume's list of what is not in the store.
//! 3. An upload stores what had changed when it began. If nothing has changed since, the draft is
//!    noted no more, until the next change.
//! 4. It goes with the last open file. One that was not stored stays on disk, as does the record of
//!    an upload that could not be ended.
//!
//! The turn of its node (`turns`) is had by what must see the draft whole, such as an upload, and
//! by what changes its state or its length; writes go on beside it.

use std::io;
use std::sync::Arc;

use rustix::fs::{Advice, FallocateFlags};
use rustix::io::Errno;
use umemcg::files::{BackingStore, File};
use umemcg::{Engine, Group};
use umemcg_base::LeafMutex;

use super::bucket::{ObjectInfo, ObjectSource};
use super::draft_record::DraftRecord;
use super::file_labels::{FileLabels, LabelChange};
use super::staging::Staging;
use super::staging_room::RoomClaim;
use crate::allowance::ReclaimEffort;
use crate::attr::{NodeId, Timestamp};
use crate::error::VfsError;
use crate::handle_charge::HandleCharge;
use crate::host::descriptor_share::{DescriptorShare, Purpose};
use crate::host::shown_times::Stamp;
use crate::host::store::{HostStore, StoreFds};
use crate::host::syscalls;
use crate::volume_config::IoMode;

/// The cost of a draft with the record in memory, its host file's descriptors and engine's file.
const DRAFT_BYTES: u64 = 4096;

/// See the module text.
#[derive(Debug)]
pub(super) struct Draft {
    pub(super) file: Arc<File>,
    pub(super) node: NodeId,
    store: Arc<HostStore>,
    serial: u64,
    staging: Arc<Staging>,
    pub(super) room: RoomClaim,
    progress: LeafMutex<Progress>,
    /// The group of the first writer.
    group: Arc<Group>,
    _charge: HandleCharge,
}

/// What is to become of a draft.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    /// It is stored under the name of its node.
    Stored,
    /// Its name was removed.
    Nameless,
    /// Another change of the object came first.
    Lost,
}

/// How far a draft is.
#[derive(Debug)]
struct Progress {
    /// Counts changes, each when it is done.
    nr_changes: u64,
    /// As many as the store has.
    nr_stored: u64,
    /// As many as there were when an upload was begun last.
    nr_tried: u64,
    /// An object of its name may be in the store.
    may_have_object: bool,
    /// Changes that are being made.
    nr_changing: u32,
    is_noted: bool,
    fate: Fate,
    /// The version that it stands on; none while it is not in the store.
    base: Option<ObjectInfo>,
    labels: FileLabels,
    /// The key and the id of an upload in parts that was begun, until it is over.
    noted_upload: Option<(String, String)>,
}

/// A change that is being made. It counts when this is dropped.
#[derive(Debug)]
#[must_use]
pub(super) struct Changing<'d>(&'d Draft);

/// An upload that is begun.
#[derive(Debug)]
pub(super) struct Upload {
    /// The changes that it has.
    pub(super) nr_changes: u64,
    /// The version that it replaces.
    pub(super) base: Option<ObjectInfo>,
    pub(super) labels: FileLabels,
}

/// What a draft is made with.
pub(super) struct DraftMaker<'a> {
    pub(super) engine: &'a Arc<Engine>,
    pub(super) effort: ReclaimEffort,
    pub(super) staging: &'a Arc<Staging>,
    pub(super) group: &'a Arc<Group>,
}

impl DraftMaker<'_> {
    /// Makes a draft of `len` bytes, which `fill` writes to the host's file; `base` is the version
    /// that it stands on, of `key`. May sleep for memory, for the disk, and as `fill` does.
    ///
    /// # Errors
    /// `ENOSPC`, `ENOMEM`, `ENFILE`, the host's, those of `fill`.
    pub(super) fn make(
        &self,
        node: NodeId,
        (base, key): (Option<ObjectInfo>, &str),
        (labels, len): (FileLabels, u64),
        fill: impl FnOnce(&StoreFds) -> Result<(), VfsError>,
    ) -> Result<Arc<Draft>, VfsError> {
        let charge =
            HandleCharge::take(self.effort, self.engine, self.group, DRAFT_BYTES + labels.bytes() as u64)?;
        let room = RoomClaim::take(&self.staging.room, self.group, len)?;
        let host_dir = &self.staging.host_dir;
        let nr_fds = if host_dir.io_mode() == IoMode::Direct { 2 } else { 1 };
        let share = DescriptorShare::take(self.group, nr_fds, Purpose::Open, Some(host_dir.store_id))?;
        // Nothing is lost with it before its first change.
        let record = DraftRecord { key: key.to_owned(), is_stored: true, ..DraftRecord::default() };
        let (serial, fd) = self.staging.create(&record).map_err(errno_of)?;
        let made = syscalls::stat_fd(&fd).map_err(VfsError::from).and_then(|stat| {
            let store = Arc::new(HostStore::new(Arc::clone(host_dir), Stamp::of(&stat.attr)));
            store.set_fd(fd, true, share);
            if let Some(fds) = store.fds() {
                fill(&fds)?;
            }
            let file = self.engine.open_file(Arc::clone(&store) as Arc<dyn BackingStore>, len);
            Ok((file.map_err(errno_of)?, store))
        });
        let (file, store) = made.inspect_err(|_| {
            self.staging.remove_bytes(serial);
            self.staging.remove_record(serial);
        })?;
        let progress = Progress {
            nr_changes: 0,
            nr_stored: 0,
            nr_tried: 0,
            may_have_object: base.is_some(),
            nr_changing: 0,
            is_noted: false,
            fate: Fate::Stored,
            base,
            labels,
            noted_upload: None,
        };
        Ok(Arc::new(Draft {
            file,
            node,
            store,
            serial,
            staging: Arc::clone(self.staging),
            room,
            progress: LeafMutex::new(progress),
            group: Arc::clone(self.group),
            _charge: charge,
        }))
    }
}

impl Draft {
    /// Returns the number that it has in the staging directory.
    pub(super) fn serial(&self) -> u64 {
        self.serial
    }

    /// Returns the group of the first writer; `None` once it is removed.
    pub(super) fn group(&self) -> Option<&Arc<Group>> {
        Some(&self.group).filter(|group| !group.is_dead())
    }

    /// Begins a change if the draft is noted, or does not have to be; `None` if it is to be noted
    /// first.
    ///
    /// # Errors
    /// `EIO` when it will not be stored, because another change came first.
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

    /// Notes it, by the thread that has the turn. The record need not be durable: no change is,
    /// before the next upload.
    pub(super) fn note(&self, key: &str) -> Result<(), Errno> {
        self.write_record(key, false, false)?;
        self.progress.lock().is_noted = true;
        Ok(())
    }

    /// Returns whether it has changes that the store has not.
    pub(super) fn is_unsaved(&self) -> bool {
        let progress = self.progress.lock();
        progress.fate == Fate::Stored && progress.nr_changes != progress.nr_stored
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

    /// Notes that one may be: another draft is about to be stored under its name.
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

    /// Returns the key and the id of an upload in parts that was begun and is not known to be over.
    pub(super) fn noted_upload(&self) -> Option<(String, String)> {
        self.progress.lock().noted_upload.clone()
    }

    /// Notes that it is over.
    pub(super) fn forget_upload(&self) {
        self.progress.lock().noted_upload = None;
    }

    /// Returns the version that it stands on; `None` while it is not in the store.
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

    /// Returns what is stored beside its bytes.
    pub(super) fn labels(&self) -> FileLabels {
        self.progress.lock().labels.clone()
    }

    /// Changes what is stored beside its bytes.
    ///
    /// # Errors
    /// Those of `change`.
    pub(super) fn change_labels(&self, _: &Changing<'_>, change: LabelChange<'_>) -> Result<(), Errno> {
        change(&mut self.progress.lock().labels)
    }

    /// Notes that its name was removed: it is not stored, and goes with the last open file.
    /// Returns whether it was noted.
    pub(super) fn lose_name(&self) -> bool {
        let mut progress = self.progress.lock();
        if progress.fate == Fate::Stored {
            progress.fate = Fate::Nameless;
        }
        std::mem::take(&mut progress.is_noted)
    }

    /// Keeps it in `lost/`, for good, after `tell` has told the open files, of which none may be
    /// opened or flushed in between. Returns the path.
    pub(super) fn lose(&self, key: &str, tell: impl FnOnce()) -> std::path::PathBuf {
        {
            let mut progress = self.progress.lock();
            tell();
            (progress.fate, progress.is_noted) = (Fate::Lost, false);
        }
        self.room.keep();
        self.staging.lose(self.serial, key)
    }

    /// Begins an upload, by the thread that has the turn; `None` when the store has all, or is to
    /// have nothing.
    pub(super) fn begin_upload(&self) -> Option<Upload> {
        let mut progress = self.progress.lock();
        if progress.fate != Fate::Stored || progress.nr_changes == progress.nr_stored {
            return None;
        }
        (progress.nr_tried, progress.may_have_object) = (progress.nr_changes, true);
        let (base, labels) = (progress.base.clone(), progress.labels.clone());
        Some(Upload { nr_changes: progress.nr_changes, base, labels })
    }

    /// Notes that so many changes are in the store, as this version. Returns whether these are all:
    /// then it is noted no more.
    pub(super) fn end_upload(&self, nr_changes: u64, info: &ObjectInfo, key: &str) -> bool {
        let is_saved = {
            let mut progress = self.progress.lock();
            progress.nr_stored = nr_changes;
            progress.base = Some(info.without_metadata());
            let is_saved = progress.nr_changes == nr_changes && progress.nr_changing == 0;
            progress.is_noted &= !is_saved;
            is_saved
        };
        // With the turn: the next change is noted after this.
        if is_saved && let Err(errno) = self.write_record(key, true, false) {
            tracing::warn!(%errno, key, "cannot note that a staged file is in the store");
        }
        is_saved
    }

    /// Stands on another version from now on.
    pub(super) fn rebase(&self, info: &ObjectInfo) {
        self.progress.lock().base = Some(info.without_metadata());
    }

    /// As [`rebase`](Self::rebase), on one whose labels are others by a change. A write that came
    /// meanwhile has changed them, too.
    pub(super) fn relabel(&self, info: &ObjectInfo, labels: FileLabels, change: LabelChange<'_>) {
        let mut progress = self.progress.lock();
        progress.base = Some(info.without_metadata());
        if progress.nr_changing == 0 && progress.nr_changes == progress.nr_stored {
            progress.labels = labels;
        } else if change(&mut progress.labels).is_err() {
            // The store has them as they were to be, and the next upload those of the draft.
        }
    }

    /// Makes its bytes durable on the staging disk. Returns how many they are: what is written
    /// beyond them meanwhile may not be there.
    ///
    /// # Errors
    /// The disk's.
    pub(super) fn sync(&self, key: &str) -> Result<u64, Errno> {
        let len = self.file.len();
        let seen = self.file.sample_error();
        // An error of earlier write-back whose data has been written since is none.
        if let Err(error) = self.file.fsync(false, &seen)
            && !self.file.is_stable()
        {
            return Err(VfsError::from(error).errno());
        }
        self.write_record(key, false, true)?;
        // A write that has made it longer may not have put its bytes there yet.
        let fds = self.store.fds().ok_or(Errno::BADF)?;
        let on_disk = rustix::fs::fstat(&fds.buffered)?.st_size;
        Ok(len.min(u64::try_from(on_disk).unwrap_or(0)))
    }

    /// Returns it as the source of an upload of `len` bytes as `key`.
    pub(super) fn source<'d>(&'d self, key: &'d str, len: u64) -> DraftSource<'d> {
        DraftSource { draft: self, key, len }
    }

    /// Cuts or extends it, by a thread that changes it and has the turn.
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

    fn write_record(&self, key: &str, is_stored: bool, durably: bool) -> Result<(), Errno> {
        let base = self.base().and_then(|base| base.etag.as_deref().map(str::to_owned));
        let upload = self.noted_upload().map(|(_, upload)| upload);
        let record = DraftRecord { key: key.to_owned(), base, upload, is_stored };
        self.staging.write_record(self.serial, &record, durably).map_err(errno_of)
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
    /// Notes that bytes change now, and clears the set-id bits where the system asks for that.
    pub(super) fn touch(&self, kill_set_id: bool) {
        let now = Timestamp::now();
        let attributes = &mut self.0.progress.lock().labels.attributes;
        (attributes.mtime, attributes.ctime) = (now, now);
        if kill_set_id {
            attributes.kill_set_id();
        }
    }
}

/// The bytes of a draft on the staging disk.
#[derive(Debug)]
pub(super) struct DraftSource<'d> {
    draft: &'d Draft,
    key: &'d str,
    len: u64,
}

impl ObjectSource for DraftSource<'_> {
    fn size(&self) -> u64 {
        self.len
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        let fds = self.draft.store.fds().ok_or(Errno::BADF)?;
        let mut done = 0;
        while done < into.len() {
            match rustix::io::pread(&fds.buffered, &mut into[done..], offset + done as u64) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(nr) => done += nr,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        // The kernel need not keep a second copy. Advice only.
        let len = std::num::NonZero::new(into.len() as u64);
        let _ = rustix::fs::fadvise(&fds.buffered, offset, len, Advice::DontNeed);
        Ok(())
    }

    fn note_upload(&self, upload: Option<&str>) -> io::Result<()> {
        let noted = upload.map(|upload| (self.key.to_owned(), upload.to_owned()));
        let old = std::mem::replace(&mut self.draft.progress.lock().noted_upload, noted);
        drop(old);
        Ok(self.draft.write_record(self.key, false, true)?)
    }
}

/// Returns the error number of an I/O error.
pub(super) fn errno_of(error: io::Error) -> Errno {
    Errno::from_io_error(&error).unwrap_or(Errno::IO)
}
