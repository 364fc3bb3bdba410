//! The streams of a volume: their beginning, storing and end, and the streams of files not in the
//! store.
//!
//! The stream of a file not in the store is *attached* to its node. The node is kept then, and
//! shows the state of the stream. A node has one attached stream at a time. A stream is detached
//! when the store has all its bytes, although its file may still be open, and attached again if
//! writes go on.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use rustix::io::Errno;
use umemcg::Group;
use umemcg_base::LeafMutex;

use super::content::Content;
use super::drafts::Drafts;
use super::file_labels::{FileLabels, LabelChange};
use super::node::Facts;
use super::objects::Objects;
use super::stream::{Payer, Stream, StreamError, StreamFate};
use super::upload_notes::UploadNotes;
use crate::attr::{NodeId, SetAttr};
use crate::bucket::{BucketError, FileAttributes, ObjectInfo, TenantScope};
use crate::error::VfsError;

/// See the module text.
#[derive(Debug)]
pub(super) struct Streams {
    pub(super) drafts: Arc<Drafts>,
    /// The notes of their multipart uploads.
    notes: Option<Arc<UploadNotes>>,
    /// (A) The number of the next stream. Relaxed: only uniqueness matters.
    next: AtomicU64,
    attached: LeafMutex<BTreeMap<NodeId, Arc<Stream>>>,
}

impl Streams {
    pub(super) fn new(drafts: &Arc<Drafts>, notes: Option<Arc<UploadNotes>>) -> Self {
        Self { drafts: Arc::clone(drafts), notes, next: AtomicU64::new(0), attached: LeafMutex::default() }
    }

    fn objects(&self) -> &Arc<Objects> {
        &self.drafts.objects
    }

    fn payer<'a>(&'a self, group: &'a Arc<Group>) -> Payer<'a> {
        Payer { engine: &self.objects().engine, effort: self.objects().charge_effort(), group }
    }

    fn make(
        &self,
        (node, content): (NodeId, Arc<Content>),
        (base, labels): (Option<ObjectInfo>, FileLabels),
        is_changed: bool,
    ) -> Arc<Stream> {
        let marks = self.drafts.marks(self.next.fetch_add(1, Ordering::Relaxed));
        let to = (&self.objects().bucket, self.notes.as_ref());
        Stream::new((node, content), to, marks, (base, labels), is_changed)
    }

    /// Returns the stream of a new object, for [`attach`](Self::attach). May sleep for memory.
    pub(super) fn new_stream(
        &self,
        (node, key): (NodeId, String),
        group: &Arc<Group>,
        attributes: FileAttributes,
    ) -> Result<Arc<Stream>, VfsError> {
        let objects = self.objects();
        let nothing = ObjectInfo {
            size: 0,
            modified: attributes.mtime,
            etag: None,
            metadata: None,
            attributes: Some(attributes),
        };
        let from = (&objects.bucket, objects.store_id, &objects.failures);
        let effort = objects.charge_effort();
        let content = Content::new(effort, &objects.engine, group, from, (key, &nothing))?;
        Ok(self.make((node, content), (None, FileLabels::new(attributes)), true))
    }

    /// Returns a stream to replace an open object; `is_cut` if the object is to be replaced even
    /// without a write. May sleep for the store.
    ///
    /// # Errors
    /// `EOPNOTSUPP` for an object with bytes that is not cut; `EBUSY` when another stream is
    /// attached; those of [`Drafts::labels_of`].
    pub(super) fn replace(
        &self,
        node: NodeId,
        content: &Arc<Content>,
        is_cut: bool,
    ) -> Result<Arc<Stream>, VfsError> {
        let place = content.place();
        if !is_cut && place.info.size > 0 {
            return Err(self.objects().needs_staging(node).into());
        }
        let labels = self.drafts.labels_of(node, &place)?;
        let stream = self.make((node, Arc::clone(content)), (Some(place.info), labels), is_cut);
        if is_cut {
            stream.touch(false);
            let _turn = self.drafts.turn(node);
            self.attach(&stream)?;
        }
        Ok(stream)
    }

    /// Attaches a stream to its file.
    ///
    /// # Errors
    /// `EBUSY` when another stream is attached; `ESTALE` when the object was replaced meanwhile.
    pub(super) fn attach(&self, stream: &Arc<Stream>) -> Result<(), Errno> {
        let was_removed = {
            let mut tree = self.objects().tree.lock();
            match tree.attach(stream) {
                Ok(false) => return Ok(()),
                Ok(true) => false,
                Err(Errno::STALE) if tree.was_removed(stream.node) => true,
                Err(errno) => return Err(errno),
            }
        };
        if was_removed {
            stream.end(StreamFate::Nameless, None);
            return Ok(());
        }
        self.note_attached(stream);
        let facts = self.objects().tree.lock().get(stream.node)?.facts.clone();
        if let Facts::Object(info) = &facts {
            if stream.may_have_object() && !stream.stands_on(info) {
                self.detach(stream);
                return Err(Errno::STALE);
            }
            if stream.is_stored() {
                stream.learn(info);
            }
        }
        Ok(())
    }

    /// Lists a stream already attached in the tree. The caller holds the turn.
    pub(super) fn note_attached(&self, stream: &Arc<Stream>) {
        self.attached.lock().insert(stream.node, Arc::clone(stream));
    }

    /// Ends [`attach`](Self::attach). Never waits.
    pub(super) fn detach(&self, stream: &Stream) {
        let objects = self.objects();
        let detached = objects.tree.lock().detach(objects.lists(), stream);
        if let Some((attached, removed)) = detached {
            let listed = self.attached.lock().remove(&stream.node);
            drop((attached, listed));
            objects.dispose(removed);
        }
    }

    /// Detaches the stream of a closed file and gives up its unsaved bytes. Never waits: another
    /// thread aborts a multipart upload. If the inode may have pages of an older version, the node
    /// goes with its last open stream.
    pub(super) fn leave(&self, stream: &Stream) {
        let is_last = self.drafts.open_streams.remove(stream);
        self.detach(stream);
        let has_old_pages = || {
            let tree = self.objects().tree.lock();
            tree.get(stream.node).is_ok_and(|found| found.has_old_pages)
        };
        if stream.is_unsaved() || is_last && has_old_pages() {
            self.objects().unlink_node(stream.node, Instant::now());
        }
    }

    /// Returns the stream attached to a file.
    pub(super) fn of(&self, node: NodeId) -> Option<Arc<Stream>> {
        self.objects().tree.lock().stream_of(node)
    }

    /// Lets a file be opened, unless a stream is attached to it. A stream closed before any write
    /// is stored first. May sleep for the store.
    ///
    /// # Errors
    /// `EBUSY`; the store's.
    pub(super) fn make_way(&self, node: NodeId, group: &Arc<Group>) -> Result<(), VfsError> {
        let Some(stream) = self.of(node) else { return Ok(()) };
        if stream.was_closed_empty() {
            let _turn = self.drafts.turn(node);
            if stream.was_closed_empty() {
                return self.store_in_turn(&stream, group, false);
            }
        }
        Err(Errno::BUSY.into())
    }

    /// Appends bytes at `offset`, or wherever the end is. May sleep for memory and the store.
    ///
    /// # Errors
    /// `EOPNOTSUPP` elsewhere than at the end, and after the end of the stream; `EIO` when the
    /// store does not take it.
    pub(super) fn write(
        &self,
        stream: &Arc<Stream>,
        offset: Option<u64>,
        group: &Arc<Group>,
        (data, kill_set_id): (&[u8], bool),
    ) -> Result<usize, VfsError> {
        let _turn = self.drafts.turn(stream.node);
        let _scope = TenantScope::of(group);
        let is_elsewhere = offset.is_some_and(|offset| offset != stream.size());
        if is_elsewhere && stream.fate() == StreamFate::Open {
            return Err(self.objects().needs_staging(stream.node).into());
        }
        let key = self.begin_change(stream)?;
        let appended = stream.append(&self.payer(group), &key, data);
        if appended.is_ok() {
            stream.touch(kill_set_id);
        }
        appended.map_err(|error| self.failed(stream, &key, error).into())
    }

    /// Attaches an open stream. Returns its key. The caller holds the turn.
    fn begin_change(&self, stream: &Arc<Stream>) -> Result<String, Errno> {
        if stream.fate() == StreamFate::Open {
            self.attach(stream).map_err(|errno| if errno == Errno::STALE { Errno::IO } else { errno })?;
        }
        match stream.fate() {
            StreamFate::Open => Ok(self.objects().tree.lock().path(stream.node)?),
            _ => Ok(String::new()),
        }
    }

    /// Stores the unsaved changes. With `end`, also completes a multipart upload; the stream then
    /// takes no more bytes. May sleep for the store.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub(super) fn store(&self, stream: &Stream, group: &Arc<Group>, end: bool) -> Result<(), VfsError> {
        if !stream.is_unsaved() {
            return Ok(());
        }
        let _turn = self.drafts.turn(stream.node);
        self.store_in_turn(stream, group, end)
    }

    fn store_in_turn(&self, stream: &Stream, group: &Arc<Group>, end: bool) -> Result<(), VfsError> {
        if !stream.is_unsaved() {
            return Ok(());
        }
        let _scope = TenantScope::of(group);
        let key = self.objects().tree.lock().path(stream.node);
        let Ok(key) = key else {
            let gone = BucketError::Changed("it has no name any more".into());
            return Err(self.failed(stream, "", gone.into()).into());
        };
        match stream.store(&self.payer(group), &key, end) {
            Ok(None) => Ok(()),
            Ok(Some(info)) => {
                self.stored(stream, &info);
                Ok(())
            }
            // A single part is kept, and can be stored the next time, unless there is another
            // object.
            Err(StreamError::Store(error))
                if !stream.is_in_parts() && !matches!(error, BucketError::Changed(_)) =>
            {
                Err(self.objects().failures.report(&error).into())
            }
            Err(StreamError::Refused(errno)) => {
                if stream.fate() == StreamFate::Whole {
                    // Stored, but not with its last attributes.
                    self.detach(stream);
                    self.objects().unlink_node(stream.node, Instant::now());
                }
                Err(errno.into())
            }
            Err(error) => Err(self.failed(stream, &key, error).into()),
        }
    }

    /// Notes that the store has all of a stream.
    fn stored(&self, stream: &Stream, info: &ObjectInfo) {
        let old = {
            let attributes = Some(stream.labels().attributes);
            let info = ObjectInfo { attributes, ..info.without_metadata() };
            let mut tree = self.objects().tree.lock();
            tree.note_stored(stream.node, info).and_then(|found| found.content.take())
        };
        // If the old version is mapped, the kernel's inode of this node has pages of it. The stream
        // holds the old content, too, if it was begun in its place.
        let is_open = old.as_ref().is_some_and(|old| {
            let nr_own = 1 + usize::from(Arc::ptr_eq(old, &stream.content));
            Arc::strong_count(old) > nr_own
        });
        drop(old);
        self.detach(stream);
        if is_open && stream.fate() == StreamFate::Whole {
            self.objects().unlink_node(stream.node, Instant::now());
        } else if is_open && let Ok(found) = self.objects().tree.lock().get_mut(stream.node) {
            // The stream may go on, and keeps its node until it is left.
            found.has_old_pages = true;
        }
    }

    /// Gives up a stream refused by the store, and forgets its node: the name belongs to the object
    /// in the store. The caller holds the turn. Returns the error for the writer. If this is not
    /// the writer's call, its next call reports the error.
    fn failed(&self, stream: &Stream, key: &str, error: StreamError) -> Errno {
        let error = match error {
            StreamError::Refused(errno) => return errno,
            StreamError::Store(error) => error,
        };
        tracing::error!(key, %error, "a file cannot be stored; what was written is given up");
        let errno = match error {
            BucketError::Changed(_) | BucketError::NotFound(_) => Errno::IO,
            error => error.errno(),
        };
        self.give_up(stream, StreamFate::Failed, Some(errno));
        errno
    }

    fn give_up(&self, stream: &Stream, fate: StreamFate, errno: Option<Errno>) {
        stream.end(fate, errno);
        // The node may be forgotten now.
        self.objects().open_listings.outdate_all();
        self.detach(stream);
        if fate == StreamFate::Failed {
            self.objects().unlink_node(stream.node, Instant::now());
        }
    }

    /// Notes that the name of a stream is gone. The caller holds its turn. May sleep for the store.
    pub(super) fn lose_name(&self, stream: &Stream) {
        self.give_up(stream, StreamFate::Nameless, None);
    }

    /// Gives up a stream that could not be stored until its file was closed. May sleep for the
    /// store.
    pub(super) fn lose(&self, stream: &Stream) {
        let _turn = self.drafts.turn(stream.node);
        self.give_up(stream, StreamFate::Failed, None);
    }

    /// Stores a file about to be renamed. The caller holds its turn.
    ///
    /// # Errors
    /// `EBUSY` for a multipart upload under way; as [`write`](Self::write).
    pub(super) fn settle(&self, node: NodeId, group: &Arc<Group>) -> Result<(), VfsError> {
        match self.of(node) {
            Some(stream) if stream.is_in_parts() => Err(Errno::BUSY.into()),
            Some(stream) => self.store_in_turn(&stream, group, false),
            None => Ok(()),
        }
    }

    /// As [`settle`](Self::settle), of all files below a prefix.
    pub(super) fn settle_below(&self, prefix: &str, group: &Arc<Group>) -> Result<(), VfsError> {
        for node in self.nodes() {
            let key = self.objects().tree.lock().path(node);
            if key.is_ok_and(|key| key.starts_with(prefix)) {
                self.settle(node, group)?;
            }
        }
        Ok(())
    }

    fn nodes(&self) -> Vec<NodeId> {
        self.attached.lock().keys().copied().collect()
    }

    /// Returns whether a stream is attached, and takes more bytes. The caller holds the turn.
    fn is_attached(&self, stream: &Arc<Stream>) -> bool {
        let attached = self.of(stream.node);
        attached.is_some_and(|attached| Arc::ptr_eq(&attached, stream)) && stream.fate() == StreamFate::Open
    }

    /// Changes the labels of a file, by its name. Returns false, and changes nothing, if the stream
    /// is no longer attached: its writer may just have ended it.
    ///
    /// # Errors
    /// Those of `change`; as [`Stream::change_labels`].
    pub(super) fn change_named_labels(
        &self,
        stream: &Arc<Stream>,
        change: LabelChange<'_>,
    ) -> Result<bool, VfsError> {
        let _turn = self.drafts.turn(stream.node);
        if !self.is_attached(stream) {
            return Ok(false);
        }
        stream.change_labels(change)?;
        Ok(true)
    }

    /// Changes a file by its name, as [`change_named_labels`](Self::change_named_labels).
    ///
    /// # Errors
    /// As [`set_attributes`](Self::set_attributes).
    pub(super) fn set_named(&self, stream: &Arc<Stream>, change: &SetAttr) -> Result<bool, VfsError> {
        let _turn = self.drafts.turn(stream.node);
        if !self.is_attached(stream) {
            return Ok(false);
        }
        self.set_in_turn(stream, change)?;
        Ok(true)
    }

    /// Changes a file being written, or about to be written again.
    ///
    /// # Errors
    /// `EPERM` for another mode or owner where all files have the same; `EOPNOTSUPP` for a length
    /// other than 0 or the file's, and once a part was sent; as [`Stream::change_labels`].
    pub(super) fn set_attributes(&self, stream: &Arc<Stream>, change: &SetAttr) -> Result<(), VfsError> {
        let _turn = self.drafts.turn(stream.node);
        self.set_in_turn(stream, change)
    }

    fn set_in_turn(&self, stream: &Arc<Stream>, change: &SetAttr) -> Result<(), VfsError> {
        let shown = &self.objects().shown;
        if !shown.are_stored {
            stream.labels().attributes.check_unchanged(change)?;
        }
        if let Some(len) = change.size {
            self.truncate(stream, len)?;
        }
        // A stored stream that is not to go on is changed by its name.
        if shown.is_changed_by(change) && stream.fate() == StreamFate::Open {
            self.begin_change(stream)?;
            stream.change_labels(&|labels: &mut FileLabels| {
                labels.attributes.change(change);
                Ok(())
            })?;
        }
        Ok(())
    }

    /// Cuts a file to a length. The caller holds the turn.
    fn truncate(&self, stream: &Arc<Stream>, len: u64) -> Result<(), VfsError> {
        if len == stream.size() {
            return Ok(());
        }
        if len > 0 {
            return Err(self.objects().needs_staging(stream.node).into());
        }
        self.begin_change(stream)?;
        stream.cut().map_err(|_| self.objects().needs_staging(stream.node))?;
        stream.touch(false);
        Ok(())
    }

    /// Stores the streams that fit one request; multipart uploads go on. Returns the first error.
    pub(super) fn store_all(&self) -> Result<(), VfsError> {
        let mut result = Ok(());
        for node in self.nodes() {
            let Some(stream) = self.of(node) else { continue };
            if !stream.was_closed_empty() && stream.size() == 0 && stream.may_have_object() {
                // Nothing was written yet in place of an object.
                continue;
            }
            result = result.and(self.store(&stream, self.objects().engine.root(), false));
        }
        result
    }

    /// Gives up all streams: the volume is gone.
    pub(super) fn give_up_all(&self) {
        for node in self.nodes() {
            let _turn = self.drafts.turn(node);
            if let Some(stream) = self.of(node) {
                let key = self.objects().tree.lock().path(node).unwrap_or_default();
                tracing::error!(key, "the volume was removed while a file was written to it");
                self.give_up(&stream, StreamFate::Failed, Some(Errno::IO));
            }
        }
    }
}
