//! The table of all referenced inodes, by node id and by identity on the host.
//!
//! Each inode has one entry, regardless of its number of names, so hard links share one cached
//! content. An entry is small (its size is asserted below) and holds no descriptor of the host
//! unless the inode has lost its last name.
//!
//! An entry lives while the kernel's lookups or a pin hold it. A pin is an open file or directory,
//! a child's name, or content being written back or kept. An entry remembers the names of its
//! lookups, newest last, each as (parent, name). Each name pins the parent, which keeps the chain
//! to the root whole.
//!
//! Entries are spread over shards, each with one lock of rank `ObjectOwner`; the shard is part of
//! the node id. No two shards are locked together and nothing is called with a shard locked;
//! removed entries are returned and dropped outside.

use std::collections::hash_map::Entry as MapEntry;
use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher, RandomState};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use umemcg::Group;
use umemcg::OwnerId;
use umemcg_arena::handle::FileHandle;
use umemcg_base::{Rank, RankedMutex};

use crate::attr::{FileKind, NodeId};
use crate::host::content::Content;
use crate::host::inode_names::{InodeNames, NAMES_MAX, Name, NameCharge};
use crate::host::syscalls::InodeKey;
use crate::metadata_charge::{CONTENT_BYTES, MetadataCharge, NAME_BYTES};
use crate::name_lists::{ListEntry, NameLists};
use crate::volume_config::NR_SHARDS_MAX;

/// The number of low bits of a node id, which identify the shard.
const SHARD_SHIFT: u32 = NR_SHARDS_MAX.ilog2();
/// Maps with less room than this are not shrunk.
const SPARSE_FROM: usize = 256;
/// The most components between an inode and the root. A longer chain is a cycle of stale names, a
/// possible result of changes on the host.
const DEPTH_MAX: usize = 1 << 16;

/// The cost of an entry with its name, handle and place in a list, measured with short names and
/// both maps half full, in bytes.
pub(crate) const NODE_BYTES: u64 = 344;
/// The charge for one entry.
pub(crate) type NodeCharge = MetadataCharge<NODE_BYTES>;

/// One inode. All fields are guarded by the shard's lock.
#[derive(Debug)]
pub(crate) struct InodeEntry {
    pub(crate) key: InodeKey,
    /// References held by the kernel, one for each lookup.
    nlookup: u64,
    /// References from inside, see the module text.
    pins: u32,
    /// The number of pins of files open here but perhaps in no process: where opens are silent,
    /// only the kernel knows.
    pub(crate) nr_silent: u32,
    pub(crate) kind: FileKind,
    names: InodeNames,
    pub(crate) handle: Option<Box<FileHandle>>,
    /// Cached content, from the first open on.
    pub(crate) content: Option<Arc<Content>>,
    /// The descriptor of an inode without a name and not open in any process: there is no other way
    /// to reach it.
    pub(crate) orphan: Option<Arc<OwnedFd>>,
    /// The last name is gone: the inode cannot be reached by name.
    pub(crate) is_nameless: bool,
    /// Content is being written back after the last close. Counts as one pin.
    pub(crate) lingers: bool,
    /// The charge to the paying group, the first to look the inode up. Only the root has none.
    charge: Option<NodeCharge>,
    /// The inode is kept for its cached content after the kernel has forgotten it, now or earlier.
    /// Counts as one pin.
    pub(crate) is_kept: bool,
    /// Its place in the lists of the shrinkers.
    place: ListEntry,
}

// Half a million entries are to cost little: 128 MiB with both maps at their worst load.
const _: () = assert!(size_of::<InodeEntry>() <= 120);

/// The remains of an entry without references; dropped outside the locks.
#[derive(Debug)]
#[must_use]
pub(crate) struct Removed {
    pub(crate) node: NodeId,
    pub(crate) content: Option<Arc<Content>>,
    pub(crate) is_nameless: bool,
    /// The kernel was asked to forget it.
    pub(crate) was_asked: bool,
    /// The group that paid for it, and the bytes freed with it, see [`InodeEntry::bytes`].
    pub(crate) owner: Option<OwnerId>,
    pub(crate) bytes: u64,
    /// Only to be dropped.
    _charge: Option<NodeCharge>,
    _orphan: Option<Arc<OwnedFd>>,
}

/// The kind of name lost by an inode.
#[derive(Debug)]
pub(crate) enum Loss {
    /// One of several names.
    OneName,
    /// The last name; the descriptor holds the inode.
    LastName(Arc<OwnedFd>),
}

#[derive(Debug, Default)]
struct Shard {
    /// Boxed, because a map has up to three times the room needed for its entries.
    by_node: HashMap<u64, Box<InodeEntry>>,
    by_key: BTreeMap<InodeKey, u64>,
}

impl Shard {
    /// Shrinks the map after entries have been removed.
    fn shrink(&mut self) {
        let len = self.by_node.len();
        if self.by_node.capacity() > SPARSE_FROM && len < self.by_node.capacity() / 8 {
            self.by_node.shrink_to(2 * len);
        }
    }
}

/// See the module text.
#[derive(Debug)]
pub(crate) struct InodeTable {
    shards: Box<[RankedMutex<Shard>]>,
    hasher: RandomState,
    /// (A) Serial of the next node; the low bits of a node id are its shard.
    next: AtomicU64,
    /// (A) Orphan descriptors held. Relaxed: a count, exceeded by operations in flight at most.
    nr_orphans: AtomicUsize,
    lists: OnceLock<NameLists>,
}

impl InodeTable {
    /// Creates a table with the root, which is never removed. Other node ids are above `base`;
    /// shards are a power of two from 2 to [`NR_SHARDS_MAX`].
    pub(crate) fn numbered(root: InodeKey, base: u64, nr_shards: usize) -> Self {
        assert!(nr_shards.is_power_of_two() && (2..=NR_SHARDS_MAX).contains(&nr_shards));
        let shards: Box<[_]> =
            (0..nr_shards).map(|_| RankedMutex::new(Rank::ObjectOwner, Shard::default())).collect();
        let table = Self {
            shards,
            hasher: RandomState::new(),
            next: AtomicU64::new((base >> SHARD_SHIFT) + 1),
            nr_orphans: AtomicUsize::new(0),
            lists: OnceLock::new(),
        };
        {
            // The root's id is fixed and says shard 1. Its key lies in that shard, too, not in the
            // shard of its hash: no caller looks up the root by key.
            let mut shard = table.shard(NodeId::ROOT).lock();
            let mut entry = Box::new(InodeEntry::new(root, FileKind::Directory, None, None));
            entry.pins = 1;
            shard.by_node.insert(NodeId::ROOT.0, entry);
        }
        table
    }

    fn shard(&self, node: NodeId) -> &RankedMutex<Shard> {
        &self.shards[node.0 as usize & (self.shards.len() - 1)]
    }

    fn shard_of_key(&self, key: InodeKey) -> usize {
        self.hasher.hash_one(key.ino) as usize & (self.shards.len() - 1)
    }

    /// Returns a number above every node id issued so far.
    pub(crate) fn nodes_end(&self) -> u64 {
        self.next.load(Ordering::Relaxed) << SHARD_SHIFT
    }

    /// Returns the lists of the shrinkers, once there are any.
    pub(crate) fn lists(&self) -> Option<&NameLists> {
        self.lists.get()
    }

    /// Creates the lists if there are none. Called before the first charged entry is added.
    pub(crate) fn lists_or(&self, make: impl FnOnce() -> NameLists) {
        self.lists.get_or_init(make);
    }

    /// Returns the group paying for additions to a known inode.
    pub(crate) fn payer(&self, key: InodeKey) -> Option<Arc<Group>> {
        let owner = self.with(self.find(key)?, |entry| Some(entry.charge.as_ref()?.list_owner()))??;
        owner.try_resolve()
    }

    /// Moves an entry to the right list after a change of its references.
    fn update_list(&self, node: NodeId, entry: &mut InodeEntry) {
        if let (Some(lists), Some(charge)) = (self.lists.get(), &entry.charge) {
            entry.place.update(lists, node, charge.list_owner(), entry.nlookup > 0);
        }
    }

    /// Calls `look` with an entry and its shard locked. `look` must not call anything outside the
    /// table.
    pub(crate) fn with<R>(&self, node: NodeId, look: impl FnOnce(&mut InodeEntry) -> R) -> Option<R> {
        self.shard(node).lock().by_node.get_mut(&node.0).map(|entry| look(entry))
    }

    /// Returns whether an inode of this number is known, or was before its number was used again.
    pub(crate) fn has_ino(&self, ino: u64) -> bool {
        let [first, last] = [0, u64::MAX].map(|birth| InodeKey { ino, birth });
        self.shards[self.shard_of_key(first)].lock().by_key.range(first..=last).next().is_some()
    }

    /// Returns the node of an inode, if it has one.
    pub(crate) fn find(&self, key: InodeKey) -> Option<NodeId> {
        self.shards[self.shard_of_key(key)].lock().by_key.get(&key).copied().map(NodeId)
    }

    /// Counts a lookup of an inode with an entry, if it is known by this name.
    pub(crate) fn count_known(
        &self,
        key: InodeKey,
        kind: FileKind,
        parent: NodeId,
        name: &[u8],
    ) -> Option<NodeId> {
        let mut shard = self.shards[self.shard_of_key(key)].lock();
        let node = *shard.by_key.get(&key)?;
        let entry = shard.by_node.get_mut(&node)?;
        (entry.kind == kind && entry.names.contains(parent, name)).then(|| {
            entry.looked_up();
            self.update_list(NodeId(node), entry);
            NodeId(node)
        })
    }

    /// Counts a lookup of an inode under a name. Creates the entry if there is none, with this
    /// handle and charge. `None` if the parent is gone.
    pub(crate) fn count(
        &self,
        key: InodeKey,
        kind: FileKind,
        (handle, charge): (Option<Box<FileHandle>>, Option<NodeCharge>),
        parent: NodeId,
        (name, for_name): (&[u8], Option<NameCharge>),
    ) -> Option<(NodeId, Vec<Removed>)> {
        // An unused charge is dropped with no lock held.
        let mut charge = charge;
        let name = Name { parent, name: name.into(), charge: for_name };
        if !self.pin(parent) {
            return None;
        }
        let index = self.shard_of_key(key);
        let (node, displaced) = {
            let mut shard = self.shards[index].lock();
            let shard = &mut *shard;
            let known = shard.by_key.get(&key).copied();
            // An entry of another kind belongs to a deleted inode of the host, whose number was
            // reused.
            let known = known.filter(|node| shard.by_node.get(node).is_some_and(|entry| entry.kind == kind));
            let node = known.unwrap_or_else(|| {
                // Relaxed: only uniqueness matters.
                let node = (self.next.fetch_add(1, Ordering::Relaxed) << SHARD_SHIFT) | index as u64;
                shard.by_key.insert(key, node);
                node
            });
            let entry = match shard.by_node.entry(node) {
                MapEntry::Occupied(entry) => entry.into_mut(),
                MapEntry::Vacant(place) => {
                    place.insert(Box::new(InodeEntry::new(key, kind, handle, charge.take())))
                }
            };
            entry.looked_up();
            self.update_list(NodeId(node), entry);
            let displaced = if entry.names.contains(name.parent, &name.name) {
                Some(name)
            } else {
                entry.names.add(name, if kind == FileKind::Directory { 1 } else { NAMES_MAX })
            };
            (NodeId(node), displaced)
        };
        let removed = displaced.map(|name| self.unpin(name.parent)).unwrap_or_default();
        Some((node, removed))
    }

    /// Counts a lookup of a new inode without a name, held by this descriptor. The descriptor is
    /// returned if `max_orphans` are held already.
    pub(crate) fn count_nameless(
        &self,
        key: InodeKey,
        kind: FileKind,
        charge: NodeCharge,
        held: Arc<OwnedFd>,
        max_orphans: usize,
    ) -> (NodeId, Option<Arc<OwnedFd>>) {
        let index = self.shard_of_key(key);
        let mut held = Some(held);
        let mut shard = self.shards[index].lock();
        // Relaxed: only uniqueness matters.
        let node = (self.next.fetch_add(1, Ordering::Relaxed) << SHARD_SHIFT) | index as u64;
        let mut entry = Box::new(InodeEntry::new(key, kind, None, Some(charge)));
        entry.is_nameless = true;
        if self.nr_orphans.load(Ordering::Relaxed) < max_orphans {
            self.nr_orphans.fetch_add(1, Ordering::Relaxed);
            entry.orphan = held.take();
        }
        entry.looked_up();
        self.update_list(NodeId(node), &mut entry);
        shard.by_key.insert(key, node);
        shard.by_node.insert(node, entry);
        (NodeId(node), held)
    }

    /// Prepares an inode without a name for a new name; `handle` finds its file handle. Returns its
    /// orphan descriptor.
    pub(crate) fn named_again(
        &self,
        node: NodeId,
        handle: impl FnOnce() -> Option<Box<FileHandle>>,
    ) -> Option<Arc<OwnedFd>> {
        if self.with(node, |entry| entry.is_nameless) != Some(true) {
            return None;
        }
        let handle = handle();
        let orphan = self.with(node, |entry| {
            entry.is_nameless = false;
            entry.handle = handle;
            entry.orphan.take()
        });
        orphan.flatten().inspect(|_| _ = self.nr_orphans.fetch_sub(1, Ordering::Relaxed))
    }

    /// Pins an entry. Returns `false` if there is none.
    pub(crate) fn pin(&self, node: NodeId) -> bool {
        self.with(node, |entry| entry.pins += 1).is_some()
    }

    /// Unpins an entry. Returns it and the entries pinned only by it, if they have no references
    /// left.
    pub(crate) fn unpin(&self, node: NodeId) -> Vec<Removed> {
        self.release(node, |entry| {
            assert!(entry.pins > 0, "inode {node:?} unpinned more often than pinned");
            entry.pins -= 1;
        })
    }

    /// Drops a reference and removes entries without references: this one, then its parent if it
    /// has no other child, and so on up.
    fn release(&self, node: NodeId, let_go: impl FnOnce(&mut InodeEntry)) -> Vec<Removed> {
        let mut removed = Vec::new();
        let mut parents = self.release_one(node, let_go, &mut removed);
        while let Some(parent) = parents.pop() {
            parents.extend(self.release_one(parent, |entry| entry.pins -= 1, &mut removed));
        }
        removed
    }

    /// Returns the parents pinned by the removed entry.
    fn release_one(
        &self,
        node: NodeId,
        let_go: impl FnOnce(&mut InodeEntry),
        removed: &mut Vec<Removed>,
    ) -> Vec<NodeId> {
        let mut shard = self.shard(node).lock();
        let Some(entry) = shard.by_node.get_mut(&node.0) else { return Vec::new() };
        let_go(entry);
        if entry.nlookup > 0 || entry.pins > 0 {
            self.update_list(node, entry);
            return Vec::new();
        }
        let Some(mut entry) = shard.by_node.remove(&node.0) else { return Vec::new() };
        if let Some(lists) = self.lists.get() {
            entry.place.leave(lists);
        }
        if shard.by_key.get(&entry.key) == Some(&node.0) {
            shard.by_key.remove(&entry.key);
        }
        let bytes = entry.bytes();
        let names = entry.names.take();
        shard.shrink();
        drop(shard);
        let orphan = entry.orphan.take();
        if orphan.is_some() {
            self.nr_orphans.fetch_sub(1, Ordering::Relaxed);
        }
        removed.push(Removed {
            node,
            content: entry.content.take(),
            is_nameless: entry.is_nameless,
            was_asked: entry.place.was_asked(),
            owner: entry.charge.as_ref().map(NodeCharge::owner),
            bytes,
            _charge: entry.charge.take(),
            _orphan: orphan,
        });
        names.into_iter().map(|name| name.parent).collect()
    }

    /// Notes a further name of an inode or, with `from`, a rename. The parent must exist.
    pub(crate) fn name_added(
        &self,
        node: NodeId,
        from: Option<(NodeId, &[u8])>,
        parent: NodeId,
        (name, for_name): (&[u8], Option<NameCharge>),
    ) -> Vec<Removed> {
        let mut removed = Vec::new();
        if !self.pin(parent) {
            return removed;
        }
        let mut loose = Vec::new();
        // An unused charge is dropped with no lock held.
        let mut for_name = for_name;
        let found = self.with(node, |entry| {
            if let Some((parent, name)) = from
                && let Some(mut old) = entry.names.remove(parent, name)
            {
                for_name = for_name.take().or_else(|| old.charge.take());
                loose.push(old);
            }
            let max = if entry.kind == FileKind::Directory { 1 } else { NAMES_MAX };
            if entry.names.contains(parent, name) {
                loose.push(Name { parent, name: Box::default(), charge: None });
            } else {
                loose.extend(
                    entry.names.add(Name { parent, name: name.into(), charge: for_name.take() }, max),
                );
            }
        });
        if found.is_none() {
            loose.push(Name { parent, name: Box::default(), charge: None });
        }
        for name in loose {
            removed.extend(self.unpin(name.parent));
        }
        removed
    }

    /// Notes the loss of a name. After the loss of its last name, an inode is no longer kept for
    /// its content, and its descriptor stays with the entry. If `max_orphans` are held already, the
    /// descriptor is returned instead.
    pub(crate) fn name_removed(
        &self,
        node: NodeId,
        parent: NodeId,
        name: &[u8],
        loss: Loss,
        max_orphans: usize,
    ) -> (Vec<Removed>, Option<Arc<OwnedFd>>) {
        let mut handed_back = None;
        let loose = self.with(node, |entry| match loss {
            Loss::OneName => (entry.names.remove(parent, name).into_iter().collect(), false),
            Loss::LastName(fd) => {
                entry.is_nameless = true;
                if entry.orphan.is_none() && self.nr_orphans.load(Ordering::Relaxed) < max_orphans {
                    self.nr_orphans.fetch_add(1, Ordering::Relaxed);
                    entry.orphan = Some(fd);
                } else {
                    handed_back = Some(fd);
                }
                (entry.names.take(), std::mem::take(&mut entry.is_kept))
            }
        });
        let (names, was_kept) = loose.unwrap_or_default();
        let parents = names.into_iter().map(|name| name.parent);
        let removed = parents.chain(was_kept.then_some(node)).flat_map(|node| self.unpin(node)).collect();
        (removed, handed_back)
    }

    /// Returns the components from the root to an inode by its names, newest first; `nth` chooses
    /// among the inode's own names. `None` if there is no such name.
    pub(crate) fn path(&self, node: NodeId, nth: usize) -> Option<Vec<Box<[u8]>>> {
        let mut components = Vec::new();
        let (mut at, mut nth) = (node, nth);
        while at != NodeId::ROOT {
            let (parent, name) = self.with(at, |entry| {
                entry.names.iter().nth(nth).map(|name| (name.parent, name.name.clone()))
            })??;
            components.push(name);
            if components.len() > DEPTH_MAX {
                return None;
            }
            (at, nth) = (parent, 0);
        }
        components.reverse();
        Some(components)
    }

    /// Returns the number of entries.
    pub(crate) fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().by_node.len()).sum()
    }

    /// Returns the names of an inode, each with its directory; `None` if the kernel does not refer
    /// to it.
    pub(crate) fn names_in_kernel(&self, node: NodeId) -> Option<Vec<(NodeId, Box<[u8]>)>> {
        let names = self.with(node, |entry| {
            let names = entry.names.iter().map(|name| (name.parent, name.name.clone()));
            entry.is_looked_up().then(|| names.collect())
        });
        names.flatten()
    }

    /// Calls `tell` with each inode referenced by the kernel, with nothing locked.
    pub(crate) fn for_each_in_kernel(&self, mut tell: impl FnMut(NodeId)) {
        for shard in &self.shards {
            let nodes: Vec<u64> = {
                let shard = shard.lock();
                let known = shard.by_node.iter().filter(|(_, entry)| entry.is_looked_up());
                known.map(|(&node, _)| node).collect()
            };
            nodes.into_iter().for_each(|node| tell(NodeId(node)));
        }
        // The kernel refers to the root without a lookup.
        tell(NodeId::ROOT);
    }

    /// Returns all contents, for a sync of the volume.
    pub(crate) fn contents(&self) -> Vec<(NodeId, Arc<Content>)> {
        let mut all = Vec::new();
        for shard in &self.shards {
            let shard = shard.lock();
            all.extend(
                shard.by_node.iter().filter_map(|(&n, s)| Some((NodeId(n), Arc::clone(s.content.as_ref()?)))),
            );
        }
        all
    }
}

impl Drop for InodeTable {
    fn drop(&mut self) {
        let Some(mut lists) = self.lists.take() else { return };
        lists.unregister();
        for shard in &mut self.shards {
            shard.get_mut().by_node.values_mut().for_each(|entry| entry.place.leave(&lists));
        }
    }
}

impl InodeEntry {
    fn new(
        key: InodeKey,
        kind: FileKind,
        handle: Option<Box<FileHandle>>,
        charge: Option<NodeCharge>,
    ) -> Self {
        Self {
            key,
            nlookup: 0,
            pins: 0,
            nr_silent: 0,
            kind,
            names: InodeNames::default(),
            handle,
            content: None,
            orphan: None,
            is_nameless: false,
            lingers: false,
            charge,
            is_kept: false,
            place: ListEntry::default(),
        }
    }

    /// Counts a reference of the kernel.
    fn looked_up(&mut self) {
        self.place.looked_up(self.nlookup > 0);
        self.nlookup += 1;
    }

    /// Returns the bytes charged to its payer: entry, names and content, without the content's
    /// pages and their index. A name beyond the group's limit frees no bytes, only its place in the
    /// allowance.
    fn bytes(&self) -> u64 {
        let Some(charge) = &self.charge else { return 0 };
        let owner = charge.owner();
        let names = self.names.iter().filter_map(|name| name.charge.as_ref());
        let names = names.filter(|charge| charge.owner() == owner).count() as u64 * NAME_BYTES;
        let has_content = self.content.as_ref().is_some_and(|content| content.owner() == owner);
        NODE_BYTES + names + if has_content { CONTENT_BYTES } else { 0 }
    }

    /// Returns whether the kernel still refers to it.
    pub(crate) fn is_looked_up(&self) -> bool {
        self.nlookup > 0
    }
}

mod leaving;
pub(crate) mod take_over;
