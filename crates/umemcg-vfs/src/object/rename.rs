//! The rename of one file or directory.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use rustix::io::Errno;
use umemcg::Group;
use umemcg_base::LeafMutex;

use super::ObjectVolume;
use super::content::Content;
use super::draft_upload::has_own;
use super::listing_place::ListingPlace;
use super::node::{Facts, Told};
use super::side_by_side::side_by_side;
use super::tree::Tree;
use super::turns::Claim;
use crate::attr::{Entry, NodeId};
use crate::bucket::{BucketError, Expected, ObjectInfo};
use crate::error::VfsError;
use crate::handle_charge::HandleCharge;

/// Most keys of a renamed directory.
const NR_KEYS_MAX: usize = 1000;

/// Longest object to copy: the limit of one request.
const COPY_BYTES_MAX: u64 = 5 << 30;

/// The copied version and its copy, by new key.
type Moved = BTreeMap<String, (ObjectInfo, ObjectInfo)>;

/// See the module text.
pub(super) struct Renaming<'a> {
    pub(super) volume: &'a ObjectVolume,
    pub(super) group: &'a Arc<Group>,
    pub(super) from: (NodeId, &'a str),
    pub(super) to: (NodeId, &'a str),
    /// Nothing is replaced.
    pub(super) must_be_new: bool,
}

impl Renaming<'_> {
    pub(super) fn run(&self, source: &Entry, target: Option<&Entry>) -> Result<(), VfsError> {
        if target.is_some() && self.must_be_new {
            return Err(Errno::EXIST.into());
        }
        if self.from == self.to || target.is_some_and(|target| target.node == source.node) {
            return Ok(());
        }
        let replaced = target.map(|target| target.node);
        match (source.is_directory(), target.map(Entry::is_directory)) {
            (false, Some(true)) => Err(Errno::ISDIR.into()),
            (true, Some(false)) => Err(Errno::NOTDIR.into()),
            (false, _) => self.rename_file(source.node, replaced),
            (true, _) => self.rename_directory(source.node, replaced),
        }
    }

    /// Checks that both names are as they were. The caller holds the turns.
    ///
    /// # Errors
    /// `ESTALE`, `EAGAIN`.
    fn check_names(&self, node: NodeId, target: Option<NodeId>) -> Result<(), Errno> {
        let tree = self.volume.objects.tree.lock();
        let node_of = |(parent, name)| tree.child(parent, name).map(|(node, _)| node);
        match (node_of(self.from), node_of(self.to)) {
            (Some(from), to) if from == node && to == target => Ok(()),
            (Some(from), _) if from == node => Err(Errno::AGAIN),
            _ => Err(Errno::STALE),
        }
    }

    fn content_of(&self, node: NodeId) -> Option<Arc<Content>> {
        let tree = self.volume.objects.tree.lock();
        tree.get(node).ok().and_then(|found| found.content.clone())
    }

    fn rename_file(&self, node: NodeId, target: Option<NodeId>) -> Result<(), VfsError> {
        let objects = &self.volume.objects;
        let drafts = self.volume.drafts()?;
        let alone: Vec<_> = [node].into_iter().chain(target).collect();
        let until = drafts.room_deadline();
        let claim = Claim { alone: &alone, keep: Some(self.to.0), name: Some(self.to), ..Claim::default() };
        let _turn = drafts.turn_for(&claim);
        self.check_names(node, target)?;
        self.volume.settle_stream(node, self.group)?;
        let new_key = &*self.volume.new_key(self.to.0, self.to.1)?;
        let (content, replaced) = (self.content_of(node), target.and_then(|node| self.content_of(node)));
        let draft = content.as_ref().and_then(|content| content.draft());
        let replaced = replaced.as_ref().and_then(|content| content.draft());
        let (key, facts) = {
            let tree = objects.tree.lock();
            (tree.path(node)?, tree.get(node)?.facts.clone())
        };
        // Whatever the result, the answer may be lost.
        replaced.inspect(|replaced| replaced.expect_object());
        objects.tree.lock().note_changed(self.to.0);
        let expected = if self.must_be_new { Expected::Absent } else { Expected::Anything };
        // Whether the old object is still there, and was not replaced by another program.
        let is_ours: Box<dyn Fn() -> Result<bool, Errno>>;
        let mut copied_from = None;
        match (content.as_ref(), draft.filter(|draft| draft.is_unsaved())) {
            (Some(content), Some(draft)) => {
                let (before, may_have_old) = (draft.before(), draft.may_have_object());
                let (group, to) = (self.group, (new_key, Some(expected)));
                drafts.store_in_turn(content, draft, group, to, until)?;
                let key = &*key;
                is_ours = Box::new(move || Ok(may_have_old && has_own(objects, draft, &before, key)?));
                self.rename_in_tree(node, None);
            }
            _ => {
                let Facts::Object(info) = &facts else { return Err(Errno::STALE.into()) };
                let copied = self.copy(&key, info, new_key, &expected).inspect_err(|errno| {
                    // The kernel looks the name up again, and finds the new version.
                    if matches!(*errno, Errno::STALE | Errno::NOENT) {
                        objects.unlink_node(node, Instant::now());
                    }
                })?;
                self.rename_in_tree(node, Some((new_key, &copied)));
                self.rebase_streams(node, info, &copied);
                is_ours = Box::new(|| self.has_version(&key, info));
                copied_from = Some(info);
            }
        }
        // Bytes were, or are being, written meanwhile.
        if let Some(draft) = draft.filter(|draft| draft.is_noted()) {
            draft.follow(new_key)?;
        }
        if let Some(replaced) = replaced {
            drafts.lose_name(replaced);
        }
        target.into_iter().for_each(|target| self.volume.lose_stream(target));
        if is_ours()? {
            self.delete_old(&key, copied_from)?;
        }
        Ok(())
    }

    /// Forgets a node found under the old name before the deletion in the store, but not a file
    /// newly made there.
    fn forget_old(&self) {
        let (objects, (parent, name), at) = (&self.volume.objects, self.from, Instant::now());
        let is_new = {
            let mut tree = objects.tree.lock();
            tree.note_emptied(parent);
            tree.child(parent, name).is_some_and(|(_, found)| found.is_written())
        };
        if !is_new {
            objects.unlink(parent, name, at);
        }
    }

    /// Deletes the object of the old name; after a copy, only in the copied version.
    fn delete_old(&self, key: &str, copied: Option<&ObjectInfo>) -> Result<(), Errno> {
        let objects = &self.volume.objects;
        let deleted = match copied {
            Some(info) => objects.bucket.delete_version(key, info),
            None => objects.bucket.delete(key),
        };
        left_alone(deleted).map_err(|error| objects.failures.report(&error))?;
        self.forget_old();
        Ok(())
    }

    fn copy(
        &self,
        key: &str,
        info: &ObjectInfo,
        new_key: &str,
        expected: &Expected,
    ) -> Result<ObjectInfo, Errno> {
        if info.size > COPY_BYTES_MAX {
            return Err(Errno::XDEV);
        }
        let copied = self.volume.objects.bucket.copy(key, info, new_key, expected);
        copied.map_err(|error| match (&error, expected) {
            (BucketError::Changed(_), Expected::Absent) => Errno::EXIST,
            _ => self.volume.objects.failures.report(&error),
        })
    }

    /// Returns whether the store still has this version of an object.
    fn has_version(&self, key: &str, info: &ObjectInfo) -> Result<bool, Errno> {
        let objects = &self.volume.objects;
        let there = objects.bucket.find(key).map_err(|error| objects.failures.report(&error))?;
        Ok(there.is_some_and(|there| there.is_same(info)))
    }

    /// Gives the node its new name, and its copy, if one was made: at once, so that no content is
    /// made of the old object under the new name. A node without its old name gets none: another
    /// program has replaced the object, and a lookup has seen that.
    fn rename_in_tree(&self, node: NodeId, copied: Option<(&str, &ObjectInfo)>) {
        let Some(lists) = self.volume.objects.lists() else { return };
        let removed = {
            let mut tree = self.volume.objects.tree.lock();
            if let Some(copied) = copied {
                self.move_object(&mut tree, node, copied);
            }
            tree.note_emptied(self.from.0);
            tree.note_changed(self.to.0);
            // Listings below a renamed directory are outdated, too.
            self.volume.objects.open_listings.outdate_all();
            tree.rename(lists, node, self.from, self.to)
        };
        self.volume.objects.dispose(removed);
    }

    /// Has open streams based on a version go on with its copy.
    fn rebase_streams(&self, node: NodeId, from: &ObjectInfo, copied: &ObjectInfo) {
        if let Some(drafts) = &self.volume.drafts {
            let copied = self.volume.objects.shown.kept(copied);
            drafts.open_streams.rebase(node, (from, &copied), None);
        }
    }

    /// Notes that the bytes of a node are in another object.
    fn move_object(&self, tree: &mut Tree, node: NodeId, (key, info): (&str, &ObjectInfo)) {
        let info = self.volume.objects.shown.kept(info);
        let Ok(found) = tree.get_mut(node) else { return };
        if let Facts::Object(known) = &mut found.facts {
            let attributes = info.attributes.or(known.attributes);
            *known = ObjectInfo { attributes, ..info.clone() };
            // Answers about the old name do not describe the other object.
            found.told = Told { at: Instant::now(), thread: 0 };
        }
        if let Some(content) = &found.content {
            content.move_to(key, &info);
            if let Some(draft) = content.draft() {
                draft.rebase(&info);
            }
        }
    }

    fn rename_directory(&self, node: NodeId, target: Option<NodeId>) -> Result<(), VfsError> {
        let objects = &self.volume.objects;
        let whole: Vec<_> = [node].into_iter().chain(target).collect();
        let claim = Claim { keep: Some(self.to.0), whole: &whole, ..Claim::default() };
        let until = self.volume.drafts()?.room_deadline();
        let _turn = self.volume.drafts()?.turn_for(&claim);
        self.check_names(node, target)?;
        let new_key = &*self.volume.new_key(self.to.0, self.to.1)?;
        let prefix = objects.tree.lock().prefix(node)?;
        let new_prefix = format!("{new_key}/");
        if new_prefix.starts_with(&prefix) {
            return Err(Errno::INVAL.into());
        }
        if let Some(target) = target
            && !self.volume.is_empty(target, &new_prefix)?
        {
            return Err(Errno::NOTEMPTY.into());
        }
        self.store_below(&prefix, until)?;
        let mark = self.volume.mark_of(&prefix)?;
        let keys = self.keys_below(&prefix)?;
        let bytes = keys.iter().map(|(key, _)| (2 * key.len() + 2 * size_of::<ObjectInfo>()) as u64).sum();
        let _charge = HandleCharge::take(objects.charge_effort(), &objects.engine, self.group, bytes)?;
        if keys.is_empty() {
            let known = objects.tree.lock().get(node)?.facts.attributes();
            match self.volume.make_directory(new_key, known.unwrap_or(objects.shown.of_directory())) {
                Err(Errno::EXIST) => {}
                made => made?,
            }
        }
        let (moved, copied) = self.copy_all(&keys, &prefix, &new_prefix);
        if let Err(errno) = copied {
            // The object of an existing directory stays.
            let is_new = |key: &str| target.is_none() || key != new_prefix;
            let copies = moved.iter().map(|(key, (_, copied))| (key.as_str(), copied));
            let _ = self.delete_all(copies.filter(|(key, _)| is_new(key)));
            return Err(errno.into());
        }
        self.rename_in_tree(node, None);
        self.move_known(node, (&prefix, &new_prefix), &moved);
        self.follow_below(&prefix)?;
        self.delete_copied(&prefix, &keys)?;
        self.volume.delete_mark(&prefix, mark)?;
        self.forget_old();
        Ok(())
    }

    /// Copies objects, up to the first failure. Returns the copies, too.
    fn copy_all(
        &self,
        keys: &[(String, ObjectInfo)],
        prefix: &str,
        new_prefix: &str,
    ) -> (Moved, Result<(), Errno>) {
        let moved = LeafMutex::new(Moved::new());
        let copy = |(key, info): &&(String, ObjectInfo)| {
            let to = format!("{new_prefix}{}", &key[prefix.len()..]);
            let copied = self.copy(key, info, &to, &Expected::Anything)?;
            moved.lock().insert(to, (info.clone(), copied));
            Ok(())
        };
        // A store of directories makes those missing above an object, without attributes.
        let (mut directories, files): (Vec<_>, Vec<_>) = keys.iter().partition(|(key, _)| key.ends_with('/'));
        directories.sort_unstable_by_key(|(key, _)| key);
        let copied = directories.iter().try_for_each(copy);
        let copied = copied.and_then(|()| side_by_side(self.group, &files, copy));
        (std::mem::take(&mut *moved.lock()), copied)
    }

    /// Deletes copied objects, except new versions stored meanwhile by another program.
    fn delete_copied(&self, prefix: &str, copied: &[(String, ObjectInfo)]) -> Result<(), Errno> {
        let there: BTreeMap<_, _> = self.keys_below(prefix)?.into_iter().collect();
        let is_same =
            |(key, info): &&(String, ObjectInfo)| there.get(key).is_some_and(|there| there.is_same(info));
        let ours = copied.iter().filter(is_same).map(|(key, info)| (key.as_str(), info));
        self.delete_all(ours)
    }

    /// Stores unsaved files below a prefix; waits for room `until` then.
    fn store_below(&self, prefix: &str, until: Instant) -> Result<(), Errno> {
        let drafts = self.volume.drafts()?;
        if let Some(streams) = &self.volume.streams {
            return streams.settle_below(prefix, self.group).map_err(|error| error.errno());
        }
        for content in drafts.unsaved() {
            let Some(draft) = content.draft() else { continue };
            let key = self.volume.objects.tree.lock().path(draft.node);
            if let Some(key) = key.ok().filter(|key| key.starts_with(prefix)) {
                drafts.store_in_turn(&content, draft, self.group, (&key, None), until)?;
            }
        }
        Ok(())
    }

    /// Puts the new names into the records of files written meanwhile.
    fn follow_below(&self, prefix: &str) -> Result<(), Errno> {
        for content in self.volume.drafts()?.unsaved() {
            let Some(draft) = content.draft().filter(|draft| draft.key().starts_with(prefix)) else {
                continue;
            };
            let key = self.volume.objects.tree.lock().path(draft.node);
            key.map_or(Ok(()), |key| draft.follow(&key))?;
        }
        Ok(())
    }

    /// Returns all keys below a prefix.
    fn keys_below(&self, prefix: &str) -> Result<Vec<(String, ObjectInfo)>, Errno> {
        let (mut keys, mut prefixes) = (Vec::new(), vec![prefix.to_owned()]);
        while let Some(prefix) = prefixes.pop() {
            let mut place = ListingPlace::default();
            while !place.is_at_end() {
                let part = place.next_part(self.volume.objects.listings(), &prefix, NR_KEYS_MAX)?;
                for listed in part.names {
                    match listed.object {
                        Some(info) => keys.push((format!("{prefix}{}", listed.name), info)),
                        None => prefixes.push(format!("{prefix}{}/", listed.name)),
                    }
                }
                if !part.hidden.is_empty() || keys.len() + prefixes.len() > NR_KEYS_MAX {
                    return Err(Errno::XDEV);
                }
            }
        }
        Ok(keys)
    }

    /// Deletes objects, up to the first failure: each further request may take its longest time,
    /// and others wait.
    fn delete_all<'k>(&self, objects: impl Iterator<Item = (&'k str, &'k ObjectInfo)>) -> Result<(), Errno> {
        side_by_side(self.group, &objects.collect::<Vec<_>>(), |(key, info)| {
            let deleted = left_alone(self.volume.objects.bucket.delete_version(key, info));
            deleted.map_err(|error| self.volume.objects.failures.report(&error))
        })
    }

    /// Makes the known nodes below a renamed directory stand for their copies, except nodes of
    /// another version, stored meanwhile by another program.
    fn move_known(&self, node: NodeId, (prefix, new_prefix): (&str, &str), moved: &Moved) {
        let below = self.volume.objects.tree.lock().below(node);
        for node in below {
            let known = {
                let tree = self.volume.objects.tree.lock();
                match tree.get(node).map(|found| &found.facts) {
                    Ok(Facts::Object(info)) => tree.path(node).ok().map(|key| (key, info.clone())),
                    _ => None,
                }
            };
            let Some((key, info)) = known else { continue };
            let old_key = || format!("{prefix}{}", key.strip_prefix(new_prefix).unwrap_or_default());
            let is_of_node = |copied: &ObjectInfo| {
                copied.is_same(&info)
                    || info.may_be(copied) && self.has_version(&old_key(), &info) == Ok(true)
            };
            match moved.get(&key).filter(|(copied, _)| is_of_node(copied)) {
                Some((_, copy)) => {
                    self.move_object(&mut self.volume.objects.tree.lock(), node, (&key, copy));
                    self.rebase_streams(node, &info, copy);
                }
                // It appeared, changed or was removed meanwhile.
                None => self.volume.objects.unlink_node(node, Instant::now()),
            }
        }
    }
}

/// Accepts [`BucketError::Changed`]: another program has stored another object meanwhile, and it
/// stays.
pub(super) fn left_alone(deleted: Result<(), BucketError>) -> Result<(), BucketError> {
    match deleted {
        Err(BucketError::Changed(_)) => Ok(()),
        deleted => deleted,
    }
}
