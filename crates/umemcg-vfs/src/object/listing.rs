//! An open directory of a volume of objects.
//!
//! A handle keeps one part of the store's listing (at most a thousand names), charged to its group,
//! and the place where the next part begins. So a listing of any length takes the memory of one
//! part. A position is the number of names before it. A read at a position before the kept part
//! begins the listing anew. Attributes come with the names, without a request for each. A name
//! looked up while the part is kept is found in it ([`listed_part`](super::listed_part)).
//!
//! New files without a stored object come after the names of the store. Their names are collected
//! when the listing begins, and dropped if the store lists them.

use std::ffi::OsStr;
use std::sync::Arc;
use std::time::Instant;

use rustix::io::Errno;
use umemcg_base::LeafMutex;

use super::key_parts::is_path_name;
use super::key_search::may_mark_directory;
use super::listed_part::ListedNames;
use super::listing_place::ListingPlace;
use super::node::{Facts, Told};
use super::objects::Objects;
use super::same_names::SameNames;
use crate::attr::{FileKind, NodeId};
use crate::bucket::{ListedName, ListedPart, ObjectInfo, TenantScope};
use crate::caller::Caller;
use crate::error::VfsError;
use crate::handle_charge::HandleCharge;
use crate::volume::{DirEntry, VolumeDir};
use umemcg::{ChargeEffort, Group};

/// Most names of a part.
const NR_NAMES: usize = 1000;
/// The text of such a part while it is read, in bytes: an entry has half a kilobyte, as a rule.
const PART_BYTES: u64 = 512 << 10;
/// The cost of a name kept until the end of a listing, in bytes.
const NEW_NAME_BYTES: u64 = 400;
/// Positions before those of names: `.` and `..`.
const NR_DOTS: u64 = 2;

/// Takes an entry, with the store's report of it unless it is `.` or `..`; false if it has no room.
type Take<'a> = dyn FnMut(&DirEntry<'_>, Option<(&ListedName, Told)>) -> bool + 'a;

/// An open directory.
#[derive(Debug)]
pub(super) struct OpenDirectory {
    objects: Arc<Objects>,
    node: NodeId,
    group: Arc<Group>,
    /// Its number among the open listings.
    handle: u64,
    /// The end of the last read. Locked to take it out and to put it back.
    kept: LeafMutex<Option<Box<Listing>>>,
    _charge: HandleCharge,
}

/// A part of a listing.
#[derive(Debug)]
struct Listing {
    part: Arc<ListedNames>,
    place: ListingPlace,
    /// Whether the part has new names, not reported by the store.
    is_at_new: bool,
    /// Names without a stored object when the listing began, in order. Names listed by the store
    /// are dropped.
    new_names: Vec<(Arc<str>, Facts)>,
    /// When `new_names` was collected: some may have been removed since.
    new_told: Told,
    same_names: SameNames,
}

impl Listing {
    fn new() -> Self {
        Self {
            part: Arc::new(ListedNames::none()),
            place: ListingPlace::default(),
            is_at_new: false,
            new_names: Vec::new(),
            new_told: Told { at: Instant::now(), thread: 0 },
            same_names: SameNames::default(),
        }
    }

    /// Fetches the next part. `told` is a time before the look-up of the prefix. False after the
    /// last part.
    fn fetch(
        &mut self,
        objects: &Objects,
        (node, prefix): (NodeId, &str),
        told: Told,
        group: &Arc<Group>,
    ) -> Result<bool, VfsError> {
        if self.place.is_at_end() {
            return self.take_new(objects, node, group);
        }
        if !self.place.is_begun() {
            self.new_told = told;
            self.new_names = objects.tree.lock().new_names(node);
        }
        let text = HandleCharge::take(objects.charge_effort(), &objects.engine, group, PART_BYTES)?;
        let _scope = TenantScope::of(group);
        let ListedPart { mut names, hidden, .. } =
            self.place.next_part(objects.listings(), prefix, NR_NAMES)?;
        hidden.iter().for_each(|key| objects.hide(key));
        for listed in &names {
            let at = self.new_names.binary_search_by(|(name, _)| (**name).cmp(&listed.name));
            at.ok().map(|at| self.new_names.remove(at));
        }
        drop(text);
        let bytes = names.iter().chain(self.same_names.undecided()).map(bytes_of).sum::<u64>()
            + self.new_names.len() as u64 * NEW_NAME_BYTES;
        let charge = HandleCharge::take(objects.charge_effort(), &objects.engine, group, bytes)?;
        let hide = |listed: &ListedName| {
            let slash = if listed.object.is_none() { "/" } else { "" };
            objects.hide(&format!("{prefix}{}{slash}", listed.name));
        };
        names.retain(|listed| {
            // The directory's own object has no name.
            let is_shown = is_path_name(&listed.name);
            if !is_shown && !listed.name.is_empty() {
                hide(listed);
            }
            is_shown
        });
        let may_mark = |info: &ObjectInfo| may_mark_directory(info, &*objects.bucket);
        let (names, told) = self.same_names.shown((names, told), self.place.is_at_end(), may_mark, hide);
        self.part = Arc::new(ListedNames::new(self.part.end(), names, told, charge));
        Ok(true)
    }

    /// Goes on with the names not listed by the store; false if there are none.
    fn take_new(&mut self, objects: &Objects, node: NodeId, group: &Arc<Group>) -> Result<bool, VfsError> {
        if self.new_names.is_empty() {
            return Ok(false);
        }
        let bytes = self.new_names.len() as u64 * NEW_NAME_BYTES;
        let charge = HandleCharge::take(objects.charge_effort(), &objects.engine, group, bytes)?;
        let new_names = std::mem::take(&mut self.new_names);
        let mut names: Vec<_> = {
            let tree = objects.tree.lock();
            // As they are now: since this began they may have been stored, and are then known no
            // more.
            let shown = |name: &str| tree.child(node, name).map(|(_, found)| found.shown());
            new_names
                .into_iter()
                .map(|(name, facts)| (shown(&name).unwrap_or(facts), name))
                .map(|(facts, name)| ListedName {
                    name: (*name).to_owned(),
                    object: match facts {
                        Facts::Object(info) => Some(info),
                        Facts::Directory(_) => None,
                    },
                })
                .collect()
        };
        names.sort_unstable_by(ListedNames::order);
        let first = self.part.end();
        self.part = Arc::new(ListedNames::new(first, names, self.new_told, charge));
        self.is_at_new = true;
        Ok(true)
    }
}

fn bytes_of(listed: &ListedName) -> u64 {
    let etag = listed.object.as_ref().and_then(|info| info.etag.as_ref()).map_or(0, |etag| etag.len());
    (size_of::<ListedName>() + listed.name.len() + etag + 32) as u64
}

impl OpenDirectory {
    /// Takes over one pin of the node.
    pub(super) fn new(
        objects: &Arc<Objects>,
        node: NodeId,
        group: &Arc<Group>,
        charge: HandleCharge,
    ) -> Self {
        let handle = objects.open_listings.enter(node);
        let (objects, group) = (Arc::clone(objects), Arc::clone(group));
        Self { objects, node, group, handle, kept: LeafMutex::default(), _charge: charge }
    }

    fn walk(&self, mut offset: u64, take: &mut Take<'_>) -> Result<(), VfsError> {
        let told = Told { at: Instant::now(), thread: 0 };
        let (prefix, ino, parent_ino) = {
            let tree = self.objects.tree.lock();
            // A removed directory has no entries, not even these.
            let Ok(prefix) = tree.prefix(self.node) else { return Ok(()) };
            (prefix, tree.get(self.node)?.ino, tree.parent_ino(self.node))
        };
        for (at, name, ino) in [(0, ".", ino), (1, "..", parent_ino)] {
            if offset == at {
                let kind = Some(FileKind::Directory);
                let entry = DirEntry { name: OsStr::new(name), ino, kind, next_offset: at + 1, entry: None };
                if !take(&entry, None) {
                    return Ok(());
                }
                offset += 1;
            }
        }
        let wanted = offset - NR_DOTS;
        let kept = self.kept.lock().take();
        let kept = kept.filter(|listing| listing.part.first <= wanted);
        let mut listing = kept.unwrap_or_else(|| Box::new(Listing::new()));
        let walked = self.walk_names(&mut listing, (&prefix, told), wanted, take);
        let replaced = self.kept.lock().replace(listing);
        drop(replaced);
        walked
    }

    fn walk_names(
        &self,
        listing: &mut Listing,
        (prefix, told): (&str, Told),
        wanted: u64,
        take: &mut Take<'_>,
    ) -> Result<(), VfsError> {
        // The position is after this part.
        while wanted >= listing.part.end() {
            if !listing.fetch(&self.objects, (self.node, prefix), told, &self.group)? {
                return Ok(());
            }
            let is_of_store = !listing.is_at_new;
            self.objects.open_listings.put(self.node, self.handle, is_of_store.then_some(&listing.part));
        }
        let part = &listing.part;
        let from = (wanted - part.first) as usize;
        for (at, listed) in part.names.iter().enumerate().skip(from) {
            let (ino, facts) = {
                let tree = self.objects.tree.lock();
                (tree.ino_below(self.node, &listed.name), self.objects.listed_facts(&tree, self.node, listed))
            };
            let entry = DirEntry {
                name: OsStr::new(&listed.name),
                ino,
                // An object may be a symbolic link; the listing does not say.
                kind: facts
                    .map(|facts| facts.kind())
                    .or(listed.object.is_none().then_some(FileKind::Directory)),
                next_offset: NR_DOTS + part.first + at as u64 + 1,
                entry: None,
            };
            if !take(&entry, Some((listed, part.told))) {
                break;
            }
        }
        // The next part comes with the next read: this one has given entries.
        Ok(())
    }
}

impl Drop for OpenDirectory {
    fn drop(&mut self) {
        self.objects.open_listings.remove(self.node, self.handle);
        let kept = self.kept.lock().take();
        drop(kept);
        self.objects.unpin(self.node);
    }
}

impl VolumeDir for OpenDirectory {
    fn readdir(&self, offset: u64, sink: &mut dyn FnMut(&DirEntry<'_>) -> bool) -> Result<(), VfsError> {
        self.walk(offset, &mut |entry, _| sink(entry))
    }

    fn readdirplus(
        &self,
        caller: &Caller,
        offset: u64,
        sink: &mut dyn FnMut(&DirEntry<'_>) -> bool,
    ) -> Result<(), VfsError> {
        let mut has_room = true;
        self.walk(offset, &mut |entry, listed| {
            // A name listed too long ago is looked up when a process requests it.
            let listed = listed.filter(|(_, told)| has_room && self.objects.is_listing_believed(*told));
            let looked_up = listed.and_then(|(listed, told)| {
                // Facts missing in a listing are requested when a process asks for them.
                let facts = self.objects.listed_facts(&self.objects.tree.lock(), self.node, listed)?;
                let name = (self.node, listed.name.as_str());
                // No process has requested the inode yet, so no reclaim for it: a name without room
                // is only listed, and looked up when a process requests it.
                match self.objects.enter(ChargeEffort::Immediate, &caller.group, name, (facts, told), true) {
                    Ok(entry) => Some(entry),
                    Err(error) => {
                        has_room = error.errno() != Errno::NOMEM;
                        None
                    }
                }
            });
            let taken = sink(&DirEntry { entry: looked_up, ..*entry });
            if let (false, Some(found)) = (taken, looked_up) {
                self.objects.forget(found.node, 1);
            }
            taken
        })
    }

    fn fsyncdir(&self, _data_only: bool) -> Result<(), VfsError> {
        Ok(())
    }
}
