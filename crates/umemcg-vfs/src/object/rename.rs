//! One renaming of a file or a directory.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use rustix::io::Errno;
use umemcg::Group;

use super::ObjectVolume;
use super::bucket::{BucketError, Expected, ObjectInfo};
use super::node::Facts;
use crate::attr::{Entry, NodeId};
use crate::error::VfsError;
use crate::handle_charge::HandleCharge;

/// Most keys of a directory that is renamed.
const NR_KEYS_MAX: usize = 1000;

/// Longest object that is copied: no longer one can be with one request.
const COPY_BYTES_MAX: u64 = 5 << 30;

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
        match (source.is_directory(), target.map(Entry::is_directory)) {
            (false, Some(true)) => Err(Errno::ISDIR.into()),
            (true, Some(false)) => Err(Errno::NOTDIR.into()),
            (false, _) => self.rename_file(source.node, target),
            (true, _) => self.rename_directory(source.node, target),
        }
    }

    fn rename_file(&self, node: NodeId, target: Option<&Entry>) -> Result<(), VfsError> {
        let objects = &self.volume.objects;
        let drafts = self.volume.drafts()?;
        let target = target.map(|target| target.node);
        let _turns = drafts.turns.take_two(node, target);
        let content_of = |node| {
            let tree = objects.tree.lock();
            tree.get(node).ok().and_then(|found| found.content.clone())
        };
        if objects.tree.lock().child(self.to.0, self.to.1).map(|(node, _)| node) != target {
            return Err(Errno::AGAIN.into());
        }
        let new_key = self.volume.new_key(self.to.0, self.to.1)?;
        let (content, replaced) = (content_of(node), target.and_then(content_of));
        let draft = content.as_ref().and_then(|content| content.draft());
        let replaced = replaced.as_ref().and_then(|content| content.draft());
        let (key, facts) = {
            let tree = objects.tree.lock();
            (tree.path(node)?, tree.get(node)?.facts.clone())
        };
        // Whatever comes of it, an answer may be lost.
        replaced.inspect(|replaced| replaced.expect_object());
        objects.tree.lock().note_changed(self.to.0);
        let expected = if self.must_be_new { Expected::Absent } else { Expected::Anything };
        let mut stored = None;
        match (content.as_ref(), draft.filter(|draft| draft.is_unsaved())) {
            (Some(content), Some(draft)) => {
                let (base, may_have_old) = (draft.base(), draft.may_have_object());
                let (group, to) = (self.group, (&*new_key, Some(expected)));
                drafts.store_in_turn(content, draft, group, to)?;
                stored = Some((draft, base, may_have_old));
            }
            _ => {
                let Facts::Object(info) = &facts else { return Err(Errno::STALE.into()) };
                let copied = self.copy(&key, info, &new_key, &expected).inspect_err(|errno| {
                    // The kernel looks the name up again, and finds what is there now.
                    if matches!(*errno, Errno::STALE | Errno::NOENT) {
                        objects.unlink_node(node, Instant::now());
                    }
                })?;
                self.move_object(node, (&new_key, &copied));
            }
        }
        let has_moved = self.rename_in_tree(node);
        if let Some(replaced) = replaced {
            drafts.lose_name(replaced);
        }
        let has_old = match stored {
            None => has_moved,
            // Not what another program has stored there meanwhile.
            Some((draft, base, may_have_old)) => {
                may_have_old && drafts.has_own(draft, base.as_ref(), &key)?
            }
        };
        if has_old {
            objects.bucket.delete(&key).map_err(|error| objects.failures.report(&error))?;
        }
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

    /// Notes that the bytes of a node are in another object.
    fn move_object(&self, node: NodeId, (key, info): (&str, &ObjectInfo)) {
        let content = {
            let mut tree = self.volume.objects.tree.lock();
            let Ok(found) = tree.get_mut(node) else { return };
            if let Facts::Object(known) = &mut found.facts {
                // The time is the file's; without an ETag it tells versions apart.
                let modified = info.etag.as_ref().map_or(info.modified, |_| known.modified);
                *known = ObjectInfo { modified, ..info.without_metadata() };
            }
            found.content.clone()
        };
        if let Some(content) = content {
            content.move_to(key, info);
            if let Some(draft) = content.draft() {
                draft.rebase(info.clone());
            }
        }
    }

    /// Gives the node its new name. Returns whether it had the old one still: not if another
    /// program has replaced the object meanwhile, and a lookup has seen that.
    fn rename_in_tree(&self, node: NodeId) -> bool {
        let Some(lists) = self.volume.objects.lists() else { return false };
        let (has_moved, removed) = {
            let mut tree = self.volume.objects.tree.lock();
            tree.note_emptied(self.from.0);
            tree.note_changed(self.to.0);
            let has_moved = tree.stands_for(self.from, node);
            let removed = match has_moved {
                true => tree.rename(lists, self.from, self.to),
                false => tree.remove(lists, self.to.0, self.to.1),
            };
            (has_moved, removed)
        };
        self.volume.objects.dispose(removed);
        has_moved
    }

    fn rename_directory(&self, node: NodeId, target: Option<&Entry>) -> Result<(), VfsError> {
        let objects = &self.volume.objects;
        let _turns = self.volume.drafts()?.turns.take_all();
        // With the turns: no other renaming changes these meanwhile.
        let new_key = self.volume.new_key(self.to.0, self.to.1)?;
        let new_prefix = format!("{new_key}/");
        let prefix = {
            let tree = objects.tree.lock();
            if !tree.stands_for(self.from, node) {
                return Err(Errno::STALE.into());
            }
            if tree.child(self.to.0, self.to.1).map(|(node, _)| node) != target.map(|target| target.node) {
                return Err(Errno::AGAIN.into());
            }
            tree.prefix(node)?
        };
        if new_prefix.starts_with(&prefix) {
            return Err(Errno::INVAL.into());
        }
        if let Some(target) = target
            && !self.volume.is_empty(target.node, &new_prefix)?
        {
            return Err(Errno::NOTEMPTY.into());
        }
        self.store_below(&prefix)?;
        let keys = self.keys_below(&prefix)?;
        let bytes = keys.iter().map(|(key, _)| (2 * key.len() + 2 * size_of::<ObjectInfo>()) as u64).sum();
        let _charge = HandleCharge::take(objects.reclaim_effort(), &objects.engine, self.group, bytes)?;
        if keys.is_empty() {
            self.volume.make_directory(&new_key)?;
        }
        let mut moved = BTreeMap::new();
        for (key, info) in &keys {
            let to = format!("{new_prefix}{}", &key[prefix.len()..]);
            match self.copy(key, info, &to, &Expected::Anything) {
                Ok(copied) => drop(moved.insert(to, (info.clone(), copied))),
                Err(errno) => {
                    self.delete_all(moved.keys().map(String::as_str));
                    return Err(errno.into());
                }
            }
        }
        self.rename_in_tree(node);
        self.move_known(node, &moved);
        self.delete_all(keys.iter().map(|(key, _)| key.as_str())).map_or(Ok(()), |errno| Err(errno.into()))
    }

    /// Stores what is being written below a prefix.
    fn store_below(&self, prefix: &str) -> Result<(), Errno> {
        let drafts = self.volume.drafts()?;
        for content in drafts.unsaved() {
            let Some(draft) = content.draft() else { continue };
            let key = self.volume.objects.tree.lock().path(draft.node);
            if let Some(key) = key.ok().filter(|key| key.starts_with(prefix)) {
                drafts.store_in_turn(&content, draft, self.group, (&key, None))?;
            }
        }
        Ok(())
    }

    /// Returns all keys below a prefix.
    fn keys_below(&self, prefix: &str) -> Result<Vec<(String, ObjectInfo)>, Errno> {
        let (mut keys, mut prefixes) = (Vec::new(), vec![prefix.to_owned()]);
        while let Some(prefix) = prefixes.pop() {
            let mut from = None;
            loop {
                let part = self.volume.objects.list(&prefix, from.as_deref(), NR_KEYS_MAX)?;
                for listed in part.names {
                    match listed.object {
                        Some(info) => keys.push((format!("{prefix}{}", listed.name), info)),
                        None => prefixes.push(format!("{prefix}{}/", listed.name)),
                    }
                }
                if !part.hidden.is_empty() || keys.len() + prefixes.len() > NR_KEYS_MAX {
                    return Err(Errno::XDEV);
                }
                from = part.next;
                if from.is_none() {
                    break;
                }
            }
        }
        Ok(keys)
    }

    /// Deletes objects, up to the first that the store does not delete. Returns why.
    fn delete_all<'k>(&self, keys: impl Iterator<Item = &'k str>) -> Option<Errno> {
        for key in keys {
            if let Err(error) = self.volume.objects.bucket.delete(key) {
                // Each further one may take its longest time, and others wait.
                return Some(self.volume.objects.failures.report(&error));
            }
        }
        None
    }

    /// Has what is known below a renamed directory stand for the copies of it: not of another
    /// version, which another program has stored meanwhile.
    fn move_known(&self, node: NodeId, moved: &BTreeMap<String, (ObjectInfo, ObjectInfo)>) {
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
            match moved.get(&key).filter(|(copied, _)| copied.is_same(&info)) {
                Some((_, copy)) => self.move_object(node, (&key, copy)),
                // It came, changed or was removed meanwhile.
                None => self.volume.objects.unlink_node(node, Instant::now()),
            }
        }
    }
}
