//! Volumes of objects: the keys below a prefix of a bucket as files and directories. A volume is
//! read-only unless it has a staging directory for written data, or writes its files as streams.
//!
//! A key is a path: its slashes separate names. A prefix of further keys is a directory. So is a
//! prefix with an object of its own: the key of this object ends with a slash. An object may have
//! keys below it (`a` and `a/b`). An empty one marks the directory. A nonempty one is shown, and
//! the keys below it are counted as hidden. Keys with an empty name, `.` or `..` in them are
//! hidden, too.
//!
//! [`crate::bucket`] is the seam to the store. `objects` holds the state of a volume and sends
//! requests to the store, `tree` holds the known names. `listing` is an open directory, `content`
//! the cached bytes of an object in one version, `kernel_copy` the kernel's pages of it,
//! `open_file` an open object.
//!
//! Writes go to a `draft`, whose bytes are in the `staging` directory; `drafts` holds the drafts of
//! a volume, and `retries` retries their failed uploads. Without a staging directory they can go to
//! a `stream`, whose bytes are in memory until the store has them. `streams` holds the streams of a
//! volume, `stream_file` is an open file written as a stream, and `streaming` begins the streams of
//! a volume. `create`, `names` and `rename` change names.

mod absent_names;
mod config;
mod content;
mod create;
mod directory_labels;
mod draft;
mod draft_maker;
mod draft_progress;
mod draft_record;
mod draft_source;
mod draft_upload;
mod drafts;
mod failure_log;
mod file_labels;
mod hidden_keys;
mod kernel_copy;
mod key_parts;
mod key_search;
mod listed_part;
mod listing;
mod listing_place;
mod name_shrinker;
mod names;
mod node;
mod objects;
mod open_file;
mod open_streams;
mod parts_under_way;
mod relabeling;
mod rename;
mod retries;
mod retry_queue;
mod same_names;
mod shown_attributes;
mod side_by_side;
mod staging;
mod staging_note;
mod staging_room;
mod stored_names;
mod stream;
mod stream_file;
mod streaming;
mod streams;
mod tree;
mod turns;
mod upload_notes;
mod upload_room;
mod xattrs;

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::sync::Arc;

use rustix::fs::OFlags;
use rustix::io::Errno;

use crate::attr::{Attr, Entry, FileKind, NodeId, SetAttr, StatFs};
use crate::bucket::file_attributes::{FileAttributes, SYMLINK_BYTES_MAX, changes_attributes};
use crate::bucket::{StoreState, StoreWork, TenantScope, read_placed};
use crate::caller::Caller;
use crate::error::{VfsError, VolumeError};
use crate::handle_charge::HandleCharge;
use crate::kernel_cache::KernelCache;
use crate::kernel_page_lists::KernelPageLists;
use crate::name::NAME_MAX;
use crate::volume::{Attributes, Lookup, Open, Volume, VolumeDir, VolumeFile, VolumeKind, next_store_id};
pub use config::{Freshness, ObjectConfig, STAGING_BYTES, StagingConfig};
use drafts::Drafts;
use file_labels::FileLabels;
use key_parts::key_part;
use listing::OpenDirectory;
use node::Facts;
use objects::Objects;
use open_file::{OpenFile, wants_to_write};
use staging::Staging;
use staging_note::StagingNote;
use streams::Streams;
use umemcg::Engine;
use umemcg::files::{File, StoreId};
use upload_notes::UploadNotes;

/// The size shown by `df`, since stores report none: 1 EiB, in units of 4 KiB.
const BLOCKS: u64 = 1 << 48;

/// Most staged files named in a [`StoreState`].
const NR_STAGED_MAX: usize = 1000;

/// See the module text.
#[derive(Debug)]
pub struct ObjectVolume {
    objects: Arc<Objects>,
    /// The files being written; `None` on a read-only volume.
    drafts: Option<Arc<Drafts>>,
    /// Set where written bytes go to the store as they arrive.
    streams: Option<Arc<Streams>>,
    /// For the next start, which may have another staging directory.
    _staging_note: Option<StagingNote>,
}

impl ObjectVolume {
    /// Opens a volume; its node ids are above `node_base`. Requests one name from the store, so
    /// that a wrong address or wrong credentials are reported now.
    ///
    /// # Errors
    /// [`VolumeError::Bucket`], [`VolumeError::Staging`], [`VolumeError::InUse`].
    pub fn open(
        engine: &Arc<Engine>,
        config: &ObjectConfig,
        node_base: u64,
    ) -> Result<Arc<Self>, VolumeError> {
        let failed = |error| VolumeError::Bucket { url: config.bucket.url().to_owned(), error };
        config.bucket.list("", None, 1).map_err(failed)?;
        let store_id = next_store_id();
        let staging = config.staging.as_ref().map(|staging| {
            Ok((Staging::open(&staging.dir, staging.max_bytes, store_id, &config.bucket)?, staging))
        });
        let staging = staging.transpose()?;
        let objects = Arc::new(Objects::new(engine, config, (store_id, node_base)));
        let drafts = match staging {
            Some(staging) => Some(Drafts::new(&objects, Some(staging))?),
            None if config.streams => Some(Drafts::new(&objects, None)?),
            None => None,
        };
        let streams = drafts.as_ref().filter(|drafts| drafts.staging.is_none());
        let notes = || config.notes.as_ref().map(|below| UploadNotes::open(below, &config.bucket));
        let streams = streams.map(|drafts| Arc::new(Streams::new(drafts, notes())));
        let staging = config.staging.as_ref().map(|staging| &*staging.dir);
        let note = config.notes.as_ref().and_then(|below| StagingNote::open(below, &*config.bucket, staging));
        Ok(Arc::new(Self { objects, drafts, streams, _staging_note: note }))
    }

    /// Returns the drafts of the volume.
    ///
    /// # Errors
    /// `EROFS` on a read-only volume.
    fn drafts(&self) -> Result<&Arc<Drafts>, Errno> {
        self.drafts.as_ref().ok_or(Errno::ROFS)
    }

    /// Returns the number of known names.
    pub fn nr_nodes(&self) -> usize {
        self.objects.tree.lock().nr_nodes()
    }

    /// Returns the number of threads waiting for a turn on a file or directory, for tests.
    pub fn nr_waiting_for_turn(&self) -> u32 {
        self.drafts.as_ref().map_or(0, |drafts| drafts.nr_waiting())
    }

    /// Begins no more retries of failed uploads, and waits for those under way. For tests.
    pub fn stop_retries(&self) {
        if let Some(drafts) = &self.drafts {
            drafts.retries.stop();
        }
    }

    fn work(&self) -> StoreWork {
        let source = self.objects.bucket.source_id().unwrap_or(self.objects.store_id);
        let reads = self.objects.engine.cache().nr_reads_begun_and_waiting(source);
        let uploads = self.drafts.as_ref().map(|drafts| drafts.retries.nr_running_and_waiting());
        let (nr_running, nr_waiting) = uploads.unwrap_or_default();
        StoreWork {
            nr_reads_begun: reads.0,
            nr_reads_waiting: reads.1,
            nr_uploads_running: nr_running as u64,
            nr_uploads_waiting: nr_waiting as u64,
        }
    }

    fn open_file(&self, caller: &Caller, node: NodeId, flags: OFlags) -> Result<OpenFile, VfsError> {
        let objects = &self.objects;
        if wants_to_write(flags) {
            self.drafts()?;
        }
        let charge = HandleCharge::take(objects.charge_effort(), &objects.engine, &caller.group, 0)?;
        let content = objects.open(caller, node)?;
        let file =
            OpenFile::new((objects, self.drafts.as_ref()), (node, content), flags, &caller.group, charge);
        if flags.contains(OFlags::TRUNC) {
            file.truncate(&caller.group, 0)?;
        }
        Ok(file)
    }
}

impl ObjectVolume {
    fn change_directory(&self, node: NodeId, change: &SetAttr) -> Result<Attr, VfsError> {
        let shown = &self.objects.shown;
        if change.size.is_some() {
            return Err(Errno::ISDIR.into());
        }
        if !shown.are_stored {
            // A directory has the time of the mount.
            shown.of_directory().check_unchanged(change)?;
        } else if changes_attributes(change) {
            let change = |labels: &mut FileLabels| {
                labels.attributes.change(change);
                Ok(())
            };
            self.relabel_directory(node, &change)?;
        }
        self.objects.getattr(node)
    }
}

impl Lookup for ObjectVolume {
    fn lookup(&self, caller: &Caller, parent: NodeId, name: &OsStr) -> Result<Entry, VfsError> {
        let name = key_part(name)?;
        self.objects.lists_or(|| name_shrinker::register(&self.objects));
        self.objects.lookup(caller, parent, name)
    }
    fn forget(&self, node: NodeId, nr_lookups: u64) {
        self.objects.forget(node, nr_lookups);
    }
}

impl Attributes for ObjectVolume {
    fn getattr(&self, node: NodeId) -> Result<Attr, VfsError> {
        self.objects.getattr(node)
    }
    fn setattr(&self, caller: &Caller, node: NodeId, change: &SetAttr) -> Result<Attr, VfsError> {
        let _scope = TenantScope::of(&caller.group);
        self.drafts()?;
        if let Some((streams, stream)) = self.stream_of(node)
            && streams.set_named(&stream, change)?
        {
            // Its writer stores it.
            return self.objects.getattr(node);
        }
        let attr = self.objects.getattr(node)?;
        if FileKind::from_mode(attr.mode) == Some(FileKind::Directory) {
            return self.change_directory(node, change);
        }
        let shown = &self.objects.shown;
        if !shown.are_stored {
            FileAttributes::new(attr.mode, (attr.uid, attr.gid), attr.mtime).check_unchanged(change)?;
        }
        if change.size.is_none() && !shown.is_changed_by(change) {
            return Ok(attr);
        }
        if change.size == Some(0) && self.streams.is_some() {
            return self.cut_by_name(caller, node, change);
        }
        let file = self.open_file(caller, node, OFlags::RDWR)?;
        // A change of a file being written is stored together with its bytes. A new length is
        // stored at once, and so is a change after the last close: no later close would store it.
        let at_once = !file.is_unsaved() || change.size.is_some();
        let changed = file.store_by_name(at_once, file.setattr(caller, change));
        if let (Err(_), Some(len)) = (&changed, change.size) {
            // The file may be cut even so, and the kernel does not drop its pages after an error.
            self.make_kernel_forget(node, len, u64::MAX - len);
        }
        changed
    }
    fn readlink(&self, node: NodeId) -> Result<OsString, VfsError> {
        let objects = &self.objects;
        let (_, facts) = objects.facts(node, |told| !objects.is_believed(told))?;
        let Facts::Object(info) = facts else { return Err(Errno::INVAL.into()) };
        if info.attributes.is_none_or(|attributes| attributes.kind() != FileKind::Symlink) {
            return Err(Errno::INVAL.into());
        }
        if info.size >= SYMLINK_BYTES_MAX as u64 {
            return Err(Errno::NAMETOOLONG.into());
        }
        let (key, mut target) = (objects.tree.lock().path(node)?, Vec::new());
        let mut take = |at: u64, bytes: &[u8]| {
            target.truncate(at as usize);
            target.extend_from_slice(bytes);
        };
        let read = read_placed(&*objects.bucket, (&key, &info), 0..info.size, &mut take);
        read.map_err(|error| objects.failures.report(&error))?;
        Ok(OsString::from_vec(target))
    }
    fn statfs(&self) -> Result<StatFs, VfsError> {
        Ok(StatFs {
            frsize: 4096,
            bsize: 4096,
            blocks: BLOCKS,
            bfree: BLOCKS,
            bavail: BLOCKS,
            files: 0,
            ffree: 0,
            namemax: NAME_MAX as u64,
        })
    }
}

impl Open for ObjectVolume {
    fn open(&self, caller: &Caller, node: NodeId, flags: OFlags) -> Result<Arc<dyn VolumeFile>, VfsError> {
        self.open_any(caller, node, flags)
    }

    fn opendir(&self, caller: &Caller, node: NodeId) -> Result<Arc<dyn VolumeDir>, VfsError> {
        let objects = &self.objects;
        let (effort, engine) = (objects.charge_effort(), &objects.engine);
        let charge = HandleCharge::take(effort, engine, &caller.group, listed_part::NAMES_BYTES_MAX)?;
        {
            let mut tree = objects.tree.lock();
            if tree.get(node)?.facts.kind() != FileKind::Directory {
                return Err(Errno::NOTDIR.into());
            }
            tree.pin(node)?;
        }
        objects.lists_or(|| name_shrinker::register(objects));
        Ok(Arc::new(OpenDirectory::new(objects, node, &caller.group, charge)))
    }
}

impl Volume for ObjectVolume {
    fn kind(&self) -> VolumeKind {
        let bucket = &self.objects.bucket;
        let (hidden_keys, has_more_hidden) = self.objects.hidden.list();
        VolumeKind::Objects(Box::new(StoreState {
            url: bucket.url().to_owned(),
            endpoint: bucket.endpoint().map(str::to_owned),
            trouble: bucket.trouble(),
            figures: bucket.figures(),
            traffic: bucket.traffic(),
            work: self.work(),
            hidden_keys,
            has_more_hidden,
            staged: self.drafts.as_ref().map_or_else(Vec::new, |drafts| drafts.staged(NR_STAGED_MAX)),
        }))
    }
    fn store_id(&self) -> StoreId {
        self.objects.store_id
    }
    fn path_of(&self, node: NodeId) -> Option<PathBuf> {
        self.objects.tree.lock().path(node).ok().map(PathBuf::from)
    }
    fn path_of_content(&self, file: &Arc<File>) -> Option<PathBuf> {
        let unsaved = self.drafts.as_ref()?.unsaved();
        let content = unsaved.iter().find(|content| Arc::ptr_eq(content.file(), file))?;
        self.path_of(content.draft()?.node)
    }
    fn set_kernel(&self, kernel: Arc<dyn KernelCache>) {
        let objects = &self.objects;
        // A stream replaces the version of a node, and open files go on reading the old version.
        if kernel.keeps_pages() && self.streams.is_none() {
            objects
                .kernel_page_lists
                .get_or_init(|| KernelPageLists::new(Arc::clone(&kernel), objects.engine.reclaimer()));
        }
        let _ = objects.kernel.set(kernel);
    }
    fn make_kernel_forget(&self, node: NodeId, offset: u64, len: u64) {
        if let Some(kernel) = self.objects.kernel.get() {
            kernel.attributes_changed(node);
        }
        let copy = self.objects.tree.lock().kernel_copy(node);
        if let Some(copy) = copy.filter(|_| len > 0) {
            copy.pages.drop_bytes(offset, len, || {});
        }
    }
    fn syncfs(&self) -> Result<(), VfsError> {
        if let Some(streams) = &self.streams {
            return streams.store_all();
        }
        match &self.drafts {
            Some(drafts) => Ok(drafts.store_all()?),
            None => Ok(()),
        }
    }
    fn nodes_end(&self) -> u64 {
        self.objects.nodes_end()
    }
    fn abandon(&self) {
        if let Some(drafts) = &self.drafts {
            drafts.lose_all();
        }
        if let Some(streams) = &self.streams {
            streams.give_up_all();
        }
        let removed = self.objects.tree.lock().take_all(self.objects.lists());
        self.objects.dispose(removed);
    }
}
