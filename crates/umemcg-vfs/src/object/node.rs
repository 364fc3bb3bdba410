//! A known name, together with its inode: an object has no other inode.

use std::collections::HashMap;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use super::content::Content;
use super::kernel_copy::KernelCopy;
use super::stream::Stream;
use crate::attr::{FileKind, NodeId};
use crate::bucket::{FileAttributes, ObjectInfo};
use crate::metadata_charge::{CONTENT_BYTES, MetadataCharge};
use crate::name_lists::{Asking, ListEntry, NameLists};
use crate::name_reclaim::LeaveOutcome;

/// The cost of a name with its inode, its place in a list and the longest name and ETag, in bytes.
pub(super) const NODE_BYTES: u64 = 832;
/// The charge for one name.
pub(super) type NodeCharge = MetadataCharge<NODE_BYTES>;
/// Longest key of a store, in bytes.
pub(super) const KEY_BYTES_MAX: usize = 1024;

/// The directory or the object version behind a name.
#[derive(Debug, Clone)]
pub(super) enum Facts {
    /// With its own attributes, if it has any and they were requested.
    Directory(Option<FileAttributes>),
    Object(ObjectInfo),
}

impl Facts {
    /// Returns whether both are a directory, or the same version of an object.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Directory(_), Self::Directory(_)) => true,
            (Self::Object(ours), Self::Object(theirs)) => ours.is_same(theirs),
            _ => false,
        }
    }

    pub(super) fn kind(&self) -> FileKind {
        match self {
            Self::Directory(_) => FileKind::Directory,
            Self::Object(info) => info.attributes.map_or(FileKind::Regular, |attributes| attributes.kind()),
        }
    }

    /// Returns its attributes, if known.
    pub(super) fn attributes(&self) -> Option<FileAttributes> {
        match self {
            Self::Directory(attributes) => *attributes,
            Self::Object(info) => info.attributes,
        }
    }

    /// Takes over the time and the attributes of the same version, newly reported by the store.
    pub(super) fn learn(&mut self, told: &Self) {
        match (self, told) {
            (Self::Directory(known), Self::Directory(Some(told))) => *known = Some(*told),
            (Self::Object(known), Self::Object(told)) => {
                known.modified = told.modified;
                known.attributes = told.attributes.or(known.attributes);
            }
            _ => {}
        }
    }
}

/// When the store reported the facts about a name.
#[derive(Debug, Clone, Copy)]
pub(super) struct Told {
    pub(super) at: Instant,
    /// The thread whose lookup of this very name asked; 0 for none.
    pub(super) thread: u32,
}

/// A known name.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) name: Arc<str>,
    pub(super) parent: NodeId,
    pub(super) ino: u64,
    pub(super) nlookup: u64,
    /// Known names in it, and open files and directories.
    pub(super) pins: u32,
    /// The kernel has forgotten it, but it has cached pages.
    pub(super) is_kept: bool,
    /// The name has been given to another node, or belongs to nothing.
    pub(super) is_gone: bool,
    /// The name was removed here, or given to another file.
    pub(super) was_removed: bool,
    /// Files at or below it with unsaved changes. Answers of the store about the name are not
    /// believed meanwhile.
    pub(super) nr_staged: u32,
    /// Of a directory: when a name was last removed from it here. The directory is shown even if no
    /// key contains it any more. Earlier answers of the store about names in it are not believed.
    pub(super) emptied: Option<Instant>,
    /// Of a directory: when a name in it was last made or removed here.
    pub(super) changed: Option<Instant>,
    pub(super) facts: Facts,
    pub(super) told: Told,
    pub(super) content: Option<Arc<Content>>,
    /// The stream that replaces the object, until the store has all of the stream.
    pub(super) stream: Option<Arc<Stream>>,
    /// A stream has replaced a version that was open, and may be mapped.
    pub(super) has_old_pages: bool,
    /// The kernel's copy of it, once it was opened.
    pub(super) kernel_copy: Option<Arc<KernelCopy>>,
    /// Only the root has none.
    pub(super) charge: Option<NodeCharge>,
    pub(super) place: ListEntry,
    pub(super) children: HashMap<Arc<str>, NodeId>,
}

/// The possible holders of cached pages of a node.
#[derive(Debug)]
pub(super) struct Cached {
    content: Option<Arc<Content>>,
    kernel_copy: Option<Arc<KernelCopy>>,
}

impl Cached {
    /// Returns whether any pages are cached. The tree must not be locked.
    pub(super) fn has_pages(&self) -> bool {
        self.kernel_copy.as_ref().is_some_and(|copy| copy.pages.has_any()) || self.has_own_pages()
    }

    /// Returns whether the daemon itself caches pages.
    pub(super) fn has_own_pages(&self) -> bool {
        self.content.as_ref().is_some_and(|content| content.file().has_cached_pages())
    }
}

/// Returns the inode number of a name in a directory: the same at every call.
pub(super) fn ino_of(parent: u64, name: &str) -> u64 {
    BuildHasherDefault::<DefaultHasher>::default().hash_one((parent, name)).max(2)
}

impl Node {
    pub(super) fn new(name: Arc<str>, parent: (NodeId, u64), (facts, told): (Facts, Told)) -> Self {
        let ino = ino_of(parent.1, &name);
        Self {
            name,
            parent: parent.0,
            ino,
            nlookup: 0,
            pins: 0,
            is_kept: false,
            is_gone: false,
            was_removed: false,
            nr_staged: 0,
            emptied: None,
            changed: None,
            facts,
            told,
            content: None,
            stream: None,
            has_old_pages: false,
            kernel_copy: None,
            charge: None,
            place: ListEntry::default(),
            children: HashMap::new(),
        }
    }

    /// Returns whether a read has found another version in the store.
    pub(super) fn is_outdated(&self) -> bool {
        self.content.as_ref().is_some_and(|content| content.is_outdated.load(Ordering::Relaxed))
    }

    /// Returns whether it, or something below it, has unsaved changes.
    pub(super) fn is_staged(&self) -> bool {
        self.nr_staged > 0
    }

    /// Returns whether it is or was open for writing, and may be newer than all answers of the
    /// store.
    pub(super) fn is_written(&self) -> bool {
        self.stream.is_some() || self.content.as_ref().is_some_and(|content| content.draft().is_some())
    }

    /// Returns whether it exists even if the store has no key of it.
    pub(super) fn is_shown_empty(&self) -> bool {
        self.emptied.is_some()
    }

    /// Returns the facts to show: those of the file being written, if there is one.
    pub(super) fn shown(&self) -> Facts {
        if let Some(stream) = &self.stream {
            return Facts::Object(stream.shown());
        }
        match self.content.as_ref().filter(|content| content.draft().is_some()) {
            Some(content) => Facts::Object(content.shown()),
            None => self.facts.clone(),
        }
    }

    /// Returns the possible holders of its cached pages.
    pub(super) fn cached(&self) -> Cached {
        Cached { content: self.content.clone(), kernel_copy: self.kernel_copy.clone() }
    }

    pub(super) fn is_referenced(&self) -> bool {
        self.nlookup > 0 || self.pins > 0 || self.is_kept
    }

    pub(super) fn bytes(&self) -> u64 {
        let Some(owner) = self.charge.as_ref().map(NodeCharge::owner) else { return 0 };
        let is_payers = self.content.as_ref().is_some_and(|content| content.owner() == owner);
        NODE_BYTES + if is_payers { CONTENT_BYTES } else { 0 }
    }

    /// Decides whether to ask the kernel to forget an idle node. Its content, if it has any, has no
    /// pages; the caller drops it without the tree's lock.
    pub(super) fn ask_to_leave(
        &mut self,
        lists: &NameLists,
        node: NodeId,
        now_ms: u32,
    ) -> (LeaveOutcome, Option<Arc<Content>>) {
        if let Some(content) = self.content.take() {
            let is_payers = self.charge.as_ref().is_some_and(|charge| charge.owner() == content.owner());
            let bytes = if is_payers { CONTENT_BYTES } else { 0 };
            return (LeaveOutcome::ContentDropped(bytes), Some(content));
        }
        let asking = self.place.ask(now_ms);
        self.list(lists, node);
        let outcome = match asking {
            Asking::Expected => LeaveOutcome::Requested(self.bytes()),
            Asking::InVain => LeaveOutcome::Kept,
            Asking::Now => LeaveOutcome::Idle {
                kind: self.facts.kind(),
                names: vec![(self.parent, self.name.as_bytes().into())],
                bytes: self.bytes(),
            },
        };
        (outcome, None)
    }

    /// Puts it on the list where it belongs.
    pub(super) fn list(&mut self, lists: &NameLists, node: NodeId) {
        if let Some(charge) = &self.charge {
            self.place.update(lists, node, charge.list_owner(), self.nlookup > 0);
        }
    }
}
