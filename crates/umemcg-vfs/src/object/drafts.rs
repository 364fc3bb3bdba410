//! The drafts of a volume: their creation and upload, and the list of drafts not in the store.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use umemcg::Group;
use umemcg_base::{LeafMutex, assert_no_locks_held};

use super::config::{RETRY_PAUSE, StagingConfig};
use super::content::{Content, Place};
use super::draft::{Changing, Draft, Upload, errno_of};
use super::draft_maker::DraftMaker;
use super::draft_upload::{DraftUpload, UploadError, end_noted_upload};
use super::file_labels::FileLabels;
use super::objects::Objects;
use super::open_streams::OpenStreams;
use super::retries::{Retries, RetryUpload};
use super::staging::Staging;
use super::turns::{Claim, TurnGuard, Turns};
use super::upload_room::WAIT;
use crate::attr::{NodeId, Timestamp};
use crate::bucket::{
    BucketError, Expected, FileAttributes, ObjectInfo, StagedFile, TenantScope, read_placed, store_of,
    tenant_number,
};
use crate::error::{VfsError, VolumeError};
use crate::handle_charge::HandleCharge;
use crate::host::store::StoreFds;

/// The part of an object that is copied to the staging disk with one request.
const COPY_BYTES: u64 = 8 << 20;
/// The memory held by a copy at a time.
const COPY_HELD_BYTES: u64 = 1 << 20;

/// The drafts of a volume.
#[derive(Debug)]
pub(super) struct Drafts {
    pub(super) objects: Arc<Objects>,
    /// None on a volume whose files are written as streams.
    pub(super) staging: Option<Arc<Staging>>,
    /// (C) No object bigger than this is copied.
    max_bytes: u64,
    /// Drafts not in the store, by number.
    unsaved: LeafMutex<BTreeMap<u64, Arc<Content>>>,
    turns: Turns,
    /// (C) The prefix of the upload marks of this volume.
    mark: String,
    /// (C) How long an operation waits for room for its uploads.
    room_wait: Duration,
    pub(super) retries: Retries,
    pub(super) open_streams: OpenStreams,
}

/// The reason for an upload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum For {
    /// A caller, which gets the error of a failure, and waits for room until then.
    Caller(Instant),
    /// A retry, after a failure reported to a caller.
    Background,
}

impl Drafts {
    /// # Errors
    /// [`VolumeError::Staging`] without a thread for retries.
    pub(super) fn new(
        objects: &Arc<Objects>,
        staging: Option<(Arc<Staging>, &StagingConfig)>,
    ) -> Result<Arc<Self>, VolumeError> {
        let mark = format!("{:x}-{:x}", Timestamp::now().as_nanoseconds(), std::process::id());
        let (staging, config) = staging.unzip();
        let drafts = Arc::new(Self {
            objects: Arc::clone(objects),
            staging,
            max_bytes: config.map_or(0, |config| config.max_bytes),
            unsaved: LeafMutex::default(),
            turns: Turns::default(),
            mark,
            room_wait: config.map_or(WAIT, |config| config.room_wait),
            retries: Retries::new(config.map_or(RETRY_PAUSE, |config| config.retry_pause)),
            open_streams: OpenStreams::default(),
        });
        if let Some(staging) = &drafts.staging {
            let (uploads, bucket): (Weak<Self>, _) = (Arc::downgrade(&drafts), &objects.bucket);
            let served = drafts.retries.serve(uploads, store_of(&**bucket));
            served.map_err(|error| staging.failure(bucket, errno_of(error)))?;
        }
        Ok(drafts)
    }

    /// Waits for the turn to be alone on a node.
    pub(super) fn turn(&self, node: NodeId) -> TurnGuard<'_> {
        self.turn_for(&Claim { alone: &[node], ..Claim::default() })
    }

    /// Waits for a turn.
    pub(super) fn turn_for(&self, claim: &Claim<'_>) -> TurnGuard<'_> {
        self.turns.take(claim, |node| self.objects.tree.lock().above(node))
    }

    pub(super) fn nr_waiting(&self) -> u32 {
        self.turns.nr_waiting()
    }

    /// # Errors
    /// `EOPNOTSUPP` on a volume without a staging directory.
    pub(super) fn maker<'a>(&'a self, node: NodeId, group: &'a Arc<Group>) -> Result<DraftMaker<'a>, Errno> {
        let effort = self.objects.charge_effort();
        let staging = self.staging.as_ref().ok_or_else(|| self.objects.needs_staging(node))?;
        Ok(DraftMaker { engine: &self.objects.engine, effort, staging, group, mark: &self.mark })
    }

    /// Makes the draft of a new object.
    pub(super) fn new_draft(
        &self,
        node: NodeId,
        group: &Arc<Group>,
        attributes: FileAttributes,
    ) -> Result<Arc<Draft>, VfsError> {
        self.maker(node, group)?.make(node, (None, ""), (FileLabels::new(attributes), 0), |_| Ok(()))
    }

    /// Returns the draft of an object; makes one with the first `keep` bytes of the object if there
    /// is none. May sleep for memory, the disk and the store.
    pub(super) fn draft_of<'c>(
        &self,
        (node, content): (NodeId, &'c Arc<Content>),
        group: &Arc<Group>,
        keep: u64,
    ) -> Result<&'c Arc<Draft>, VfsError> {
        if let Some(draft) = content.draft() {
            return Ok(draft);
        }
        let maker = self.maker(node, group)?;
        let turn = self.turn(node);
        let _scope = TenantScope::of(group);
        if content.draft().is_none() {
            let place = content.place();
            let len = place.info.size.min(keep);
            if len > self.max_bytes {
                return Err(Errno::FBIG.into());
            }
            let copy = |fds: &StoreFds| copy_to(&self.objects, group, &place, len, fds);
            let labels = self.labels_of(node, &place)?;
            let base = (Some(place.info.clone()), &*place.key);
            let draft = maker.make(node, base, (labels, len), copy)?;
            if len < place.info.size {
                // The cut must be noted as a change before its bytes are missing.
                self.note(content, &draft)?;
                drop(draft.try_begin_change());
            }
            content.set_draft(draft);
        }
        drop(turn);
        Ok(content.draft().ok_or(Errno::IO)?)
    }

    /// Returns the labels of an object. May sleep for the store.
    ///
    /// # Errors
    /// `ESTALE` when it has another version by now, `ENOSPC` when its metadata leave no room for
    /// attributes; the store's.
    pub(super) fn labels_of(&self, node: NodeId, place: &Place) -> Result<FileLabels, Errno> {
        let Objects { shown, bucket, failures, .. } = &*self.objects;
        let labels = if shown.are_stored {
            self.objects.labels_of(node, &place.key, &place.info)?.1
        } else {
            let known = place.info.attributes.unwrap_or(shown.of_file(place.info.modified));
            let find = || bucket.find(&place.key).map_err(|error| failures.report(&error));
            match if bucket.keeps_metadata() { find()? } else { None } {
                Some(there) if there.is_same(&place.info) => {
                    FileLabels::of_uniform(&there.metadata.unwrap_or_default(), known)
                }
                // If there is another version, or none, the upload finds out.
                _ => FileLabels::new(known),
            }
        };
        // Check now: the store would refuse them only after the write was accepted.
        labels.check_room()?;
        Ok(labels)
    }

    /// Begins a change of a draft. May wait for an upload.
    ///
    /// # Errors
    /// `EIO` when it will never be stored; `ESTALE` when the object was replaced meanwhile; the
    /// staging disk's.
    pub(super) fn begin_change<'c>(
        &self,
        content: &'c Arc<Content>,
        draft: &'c Draft,
    ) -> Result<Changing<'c>, Errno> {
        // A noted draft stays noted until an upload ends. So the loop rarely goes round twice.
        loop {
            if let Some(changing) = draft.try_begin_change() {
                return changing;
            }
            let turn = self.turn(draft.node);
            if let Some(changing) = draft.try_begin_change() {
                return changing;
            }
            self.note(content, draft)?;
            drop(turn);
        }
    }

    /// Notes a draft about to change. The caller holds its turn.
    fn note(&self, content: &Arc<Content>, draft: &Draft) -> Result<(), Errno> {
        if self.objects.tree.lock().was_removed(draft.node) {
            draft.lose_name();
            return Ok(());
        }
        let key = self.objects.tree.lock().path(draft.node)?;
        self.objects.tree.lock().stage(draft.node)?;
        if let Err(errno) = draft.note(&key) {
            let removed = self.objects.tree.lock().unstage(self.objects.lists(), draft.node);
            self.objects.dispose(removed);
            return Err(errno);
        }
        self.unsaved.lock().insert(draft.serial(), Arc::clone(content));
        Ok(())
    }

    /// Stores the unsaved changes. May sleep for memory, the disk and the store.
    ///
    /// # Errors
    /// As recorded for the open files, too ([`Content::errors`]).
    pub(super) fn store(&self, content: &Arc<Content>, group: &Arc<Group>) -> Result<(), Errno> {
        self.store_for(For::Caller(self.room_deadline()), content, group)
    }

    fn store_for(&self, whom: For, content: &Arc<Content>, group: &Arc<Group>) -> Result<(), Errno> {
        let Some(draft) = content.draft().filter(|draft| draft.is_unsaved()) else { return Ok(()) };
        let _scope = TenantScope::of(group);
        let _turn = self.turn(draft.node);
        if !draft.is_unsaved() {
            // Another thread has stored or lost it meanwhile.
            return Ok(());
        }
        let key = self.objects.tree.lock().path(draft.node);
        let Ok(key) = key else {
            if self.objects.tree.lock().was_removed(draft.node) {
                self.lose_name(draft);
                return Ok(());
            }
            // The volume was removed, or another program has replaced the object.
            let gone = BucketError::Changed(format!("{}: it has no name any more", content.place().key));
            self.lose(content, draft, &content.place().key, &gone);
            return Err(Errno::IO);
        };
        self.store_as(whom, content, draft, group, (&key, None))
    }

    /// Stores a draft as `key`, in place of its base version or of the `expected` object. With
    /// `expected`, a draft that cannot be stored is not lost. Waits for upload room at most until
    /// the time `until`. The caller holds the draft's turn.
    pub(super) fn store_in_turn(
        &self,
        content: &Arc<Content>,
        draft: &Draft,
        group: &Arc<Group>,
        to: (&str, Option<Expected>),
        until: Instant,
    ) -> Result<(), Errno> {
        let _scope = TenantScope::of(group);
        self.store_as(For::Caller(until), content, draft, group, to)
    }

    /// Returns the deadline of an operation that begins now, for all its waits for upload room
    /// together.
    pub(super) fn room_deadline(&self) -> Instant {
        Instant::now() + self.room_wait
    }

    /// As [`store_in_turn`](Self::store_in_turn). The caller has set the tenant.
    fn store_as(
        &self,
        whom: For,
        content: &Arc<Content>,
        draft: &Draft,
        group: &Arc<Group>,
        (key, expected): (&str, Option<Expected>),
    ) -> Result<(), Errno> {
        let Some(upload) = draft.begin_upload() else { return Ok(()) };
        let is_elsewhere = expected.is_some();
        // A retry does not wait: another tenant's upload is next meanwhile.
        let until = if let For::Caller(until) = whom { until } else { Instant::now() };
        let attempt = DraftUpload { objects: &self.objects, draft, group, until };
        match attempt.run(&upload, (key, expected)) {
            Err(UploadError::Changed(_)) if is_elsewhere => Err(Errno::EXIST),
            Ok(info) => {
                // An upload whose end had no answer. If this fails, the next start aborts it.
                let _ = end_noted_upload(&self.objects, draft);
                self.stored(draft, &upload, (key, &info));
                Ok(())
            }
            Err(UploadError::Changed(error)) => {
                self.lose(content, draft, key, &error);
                Err(Errno::IO)
            }
            Err(UploadError::Failed(errno)) => {
                tracing::debug!(key, %errno, "a staged file is not in the store yet");
                if whom != For::Background {
                    self.keep(draft, key);
                    content.errors.record(errno.raw_os_error());
                }
                Err(errno)
            }
        }
    }

    /// Makes a draft durable after a failure that is about to be reported, and has the upload
    /// retried. The caller holds its turn.
    fn keep(&self, draft: &Draft, key: &str) {
        if let Err(errno) = draft.sync() {
            tracing::error!(key, %errno, path = %draft.path().display(), "a staged file may not be durable");
        }
        let group = draft.group().unwrap_or_else(|| self.objects.engine.root());
        self.retries.add(draft.serial(), tenant_number(group));
    }

    /// Returns the prefix of the upload marks of one file.
    pub(super) fn marks(&self, serial: u64) -> String {
        format!("{}-{serial}-", self.mark)
    }

    /// Notes that the store has a draft as it was when `upload` began.
    fn stored(&self, draft: &Draft, upload: &Upload, (key, info): (&str, &ObjectInfo)) {
        let is_saved = draft.end_upload(upload.nr_changes, info, key);
        let attributes = Some(upload.labels.attributes);
        let info = ObjectInfo { attributes, ..info.without_metadata() };
        let _ = self.objects.tree.lock().note_stored(draft.node, info);
        if is_saved {
            self.release(draft);
        }
    }

    /// Takes a draft from the list of unsaved drafts.
    fn release(&self, draft: &Draft) {
        let content = self.unsaved.lock().remove(&draft.serial());
        if content.is_some() {
            let removed = self.objects.tree.lock().unstage(self.objects.lists(), draft.node);
            self.objects.dispose(removed);
        }
    }

    /// Keeps a draft whose object was changed elsewhere, notifies the open files, and forgets its
    /// node: the name belongs to the other change.
    fn lose(&self, content: &Content, draft: &Draft, key: &str, error: &BucketError) {
        // If the upload cannot be aborted now, the next start aborts it.
        let _ = end_noted_upload(&self.objects, draft);
        let path = draft.lose(key, || content.errors.record(Errno::IO.raw_os_error()));
        tracing::error!(
            key, %error, path = %path.display(),
            "an object was changed elsewhere; what was written here is kept, and not stored"
        );
        // The node may be forgotten with the release.
        self.objects.open_listings.outdate_all();
        self.release(draft);
        self.objects.unlink_node(draft.node, Instant::now());
    }

    /// Notes that the name of a draft is gone. The caller holds its turn. May sleep for the store.
    pub(super) fn lose_name(&self, draft: &Draft) {
        // If the upload cannot be aborted now, the next start aborts it.
        let _ = end_noted_upload(&self.objects, draft);
        draft.lose_name();
        self.release(draft);
    }

    /// Stores all unsaved drafts. Returns the first error.
    pub(super) fn store_all(&self) -> Result<(), Errno> {
        let (whom, mut result) = (For::Caller(self.room_deadline()), Ok(()));
        for content in self.unsaved() {
            let Some(draft) = content.draft() else { continue };
            let group = draft.group().unwrap_or_else(|| self.objects.engine.root());
            let stored = self.store_for(whom, &content, group);
            if let Err(errno) = stored {
                let key = self.objects.tree.lock().path(draft.node).unwrap_or_default();
                tracing::warn!(key, %errno, path = %draft.path().display(), "not in the store; kept");
            }
            result = result.and(stored);
        }
        result
    }

    /// Keeps all unsaved drafts in `lost/`: the volume is gone.
    pub(super) fn lose_all(&self) {
        let unsaved: Vec<_> = self.unsaved.lock().values().cloned().collect();
        for content in unsaved {
            let Some(draft) = content.draft() else { continue };
            let _turn = self.turn(draft.node);
            let key = self.objects.tree.lock().path(draft.node).unwrap_or_default();
            if draft.is_unsaved() || draft.is_noted() {
                let gone = BucketError::Unavailable(format!("{key}: the volume was removed"));
                self.lose(&content, draft, &key, &gone);
            }
        }
    }

    /// Returns the staged files not in the store, at most `nr_max`, lost drafts first.
    pub(super) fn staged(&self, nr_max: usize) -> Vec<StagedFile> {
        let mut staged = self.staging.as_ref().map_or_else(Vec::new, |staging| staging.lost());
        let unsaved: Vec<_> = self.unsaved.lock().values().take(nr_max).cloned().collect();
        for content in unsaved {
            // A draft about to be lost is listed until it is in `lost/`.
            if let Some(draft) = content.draft().filter(|draft| draft.is_unsaved() || draft.is_lost()) {
                let key = self.objects.tree.lock().path(draft.node).unwrap_or_default();
                let bytes = draft.file.len();
                staged.push(StagedFile { key, path: draft.path(), bytes, is_lost: false });
            }
        }
        staged.truncate(nr_max);
        staged
    }

    /// Returns the contents of the unsaved drafts.
    pub(super) fn unsaved(&self) -> Vec<Arc<Content>> {
        self.unsaved.lock().values().cloned().collect()
    }
}

impl RetryUpload for Drafts {
    fn retry_upload(&self, serial: u64) -> bool {
        let Some(content) = self.unsaved.lock().get(&serial).cloned() else { return true };
        let Some(draft) = content.draft().filter(|draft| draft.is_unsaved()) else { return true };
        if !draft.is_quiet() && content.is_being_written() {
            // The writer's next close stores it, but no close follows a change by name.
            return false;
        }
        let group = draft.group().unwrap_or_else(|| self.objects.engine.root());
        self.store_for(For::Background, &content, group).is_ok() || draft.is_lost()
    }
}

/// Copies the first `len` bytes of an object to the staging disk.
fn copy_to(
    objects: &Objects,
    group: &Arc<Group>,
    place: &Place,
    len: u64,
    fds: &StoreFds,
) -> Result<(), VfsError> {
    assert_no_locks_held("a copy of an object");
    if len == 0 {
        return Ok(());
    }
    let effort = objects.charge_effort();
    let _charge = HandleCharge::take(effort, &objects.engine, group, COPY_HELD_BYTES.min(len))?;
    for from in (0..len).step_by(COPY_BYTES as usize) {
        let to = len.min(from + COPY_BYTES);
        let (mut end, mut written) = (from, Ok(()));
        let mut take = |mut at: u64, mut bytes: &[u8]| {
            while written.is_ok() && !bytes.is_empty() {
                match rustix::io::pwrite(&fds.buffered, bytes, at) {
                    Ok(nr) => (at, bytes) = (at + nr as u64, &bytes[nr..]),
                    Err(Errno::INTR) => {}
                    Err(errno) => written = Err(errno),
                }
            }
            end = at;
        };
        let of = (&*place.key, &place.info);
        read_placed(&*objects.bucket, of, from..to, &mut take).map_err(|error| {
            match objects.failures.report(&error) {
                // It was removed.
                Errno::NOENT => Errno::STALE,
                errno => errno,
            }
        })?;
        written?;
        if end != to {
            return Err(Errno::IO.into());
        }
    }
    // A later error would be taken for an error of new writes.
    Ok(rustix::fs::fdatasync(&fds.buffered)?)
}
