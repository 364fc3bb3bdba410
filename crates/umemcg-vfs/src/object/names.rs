//! Removing and renaming files and directories.
//!
//! An object cannot be renamed: it is copied, and then removed. An unsaved file is stored under its
//! new name. A directory is renamed key by key, if there are not too many.

use std::ffi::OsStr;
use std::time::Instant;

use rustix::fs::RenameFlags;
use rustix::io::Errno;

use super::ObjectVolume;
use super::create::new_key_part;
use super::key_parts::key_part;
use super::key_search::may_mark_directory;
use super::listing_place::ListingPlace;
use super::node::Facts;
use super::objects::Objects;
use super::rename::{Renaming, left_alone};
use super::tree::Tree;
use super::turns::Claim;
use crate::attr::{Entry, FileKind, NodeId};
use crate::bucket::{BucketError, ObjectInfo, TenantScope};
use crate::caller::Caller;
use crate::error::VfsError;
use crate::volume::{Lookup, Names};

/// Returns the key of a directory's mark.
fn mark_key(prefix: &str) -> &str {
    prefix.strip_suffix('/').unwrap_or(prefix)
}

/// Most attempts of a rename while others take the new name.
const NR_ATTEMPTS_MAX: usize = 8;

impl ObjectVolume {
    fn remove_file(&self, node: NodeId, (parent, name): (NodeId, &str)) -> Result<(), VfsError> {
        let drafts = self.drafts()?;
        // No upload makes the object anew afterwards, and no rename replaces it meanwhile.
        let claim = Claim { alone: &[node], name: Some((parent, name)), ..Claim::default() };
        let turn = drafts.turn_for(&claim);
        let content = {
            let tree = self.objects.tree.lock();
            self.check_name(&tree, node, (parent, name))?;
            tree.get(node)?.content.clone()
        };
        let draft = content.as_ref().and_then(|content| content.draft());
        let stream = self.stream_of(node);
        let (key, facts) = {
            let tree = self.objects.tree.lock();
            (tree.path(node)?, tree.get(node)?.facts.clone())
        };
        if draft.is_none_or(|draft| draft.may_have_object())
            && stream.as_ref().is_none_or(|(_, stream)| stream.may_have_object())
        {
            let deleted = match facts {
                Facts::Object(info) if stream.is_none() && draft.is_none_or(|draft| draft.is_clean()) => {
                    self.objects.bucket.delete_version(&key, &info)
                }
                // Its version depends on the outcome of an upload.
                _ => self.objects.bucket.delete(&key),
            };
            deleted.map_err(|error| self.not_removed(node, &error))?;
        }
        self.remove_name(node, (parent, name));
        if let Some(draft) = draft {
            drafts.lose_name(draft);
        }
        if let Some((streams, stream)) = stream {
            streams.lose_name(&stream);
        }
        drop(turn);
        Ok(())
    }

    /// Checks that a node still has its name, after a wait for a rename. At ESTALE the kernel looks
    /// the name up again.
    fn check_name(&self, tree: &Tree, node: NodeId, name: (NodeId, &str)) -> Result<(), Errno> {
        if tree.stands_for(name, node) { Ok(()) } else { Err(Errno::STALE) }
    }

    /// Returns the error of a failed removal for its caller. If another program has replaced the
    /// object, the caller has to look the name up again. At ESTALE the kernel would do so by
    /// itself, and remove a version not seen by any program.
    fn not_removed(&self, node: NodeId, error: &BucketError) -> Errno {
        let errno = self.objects.failures.report(error);
        if matches!(error, BucketError::Changed(_)) {
            self.objects.unlink_node(node, Instant::now());
            return Errno::AGAIN;
        }
        errno
    }

    fn remove_directory(&self, node: NodeId, (parent, name): (NodeId, &str)) -> Result<(), VfsError> {
        let _turn = self.drafts()?.turn_for(&Claim { whole: &[node], ..Claim::default() });
        let prefix = {
            let tree = self.objects.tree.lock();
            self.check_name(&tree, node, (parent, name))?;
            tree.prefix(node)?
        };
        if !self.is_empty(node, &prefix)? {
            return Err(Errno::NOTEMPTY.into());
        }
        // First: a failure leaves a directory.
        self.delete_mark(&prefix, self.mark_of(&prefix)?)?;
        match self.objects.bucket.delete(&prefix) {
            // A store of directories has no object for a directory.
            Ok(()) | Err(BucketError::NotFound(_)) => {}
            Err(error) => return Err(self.objects.failures.report(&error).into()),
        }
        self.remove_name(node, (parent, name));
        Ok(())
    }

    /// Returns whether nothing is in a directory.
    pub(super) fn is_empty(&self, node: NodeId, prefix: &str) -> Result<bool, Errno> {
        if self.objects.tree.lock().get(node)?.is_staged() {
            return Ok(false);
        }
        let part = self.objects.listings().part(prefix, None, 2)?;
        // The directory's own object has no name.
        let is_empty = part.names.iter().all(|listed| listed.name.is_empty());
        Ok(is_empty && part.hidden.is_empty() && part.next.is_none())
    }

    /// Returns the empty object with the name of a directory. It marks the directory, and would be
    /// a file without it.
    pub(super) fn mark_of(&self, prefix: &str) -> Result<Option<ObjectInfo>, Errno> {
        let (objects, key) = (&self.objects, mark_key(prefix));
        let (mut place, mut first) = (ListingPlace::default(), None);
        // The listing begins with the object of this key, if there is one. A part may be empty.
        while first.is_none() && !objects.bucket.knows_absence() && !place.is_at_end() {
            first = place.next_part(objects.listings(), key, 1)?.names.pop();
        }
        let name = key.rsplit('/').next();
        let object = first.filter(|first| Some(&*first.name) == name).and_then(|first| first.object);
        Ok(object.filter(|info| may_mark_directory(info, &*objects.bucket)))
    }

    /// Deletes the [mark](Self::mark_of) of a removed or renamed directory, unless another program
    /// has replaced it.
    pub(super) fn delete_mark(&self, prefix: &str, mark: Option<ObjectInfo>) -> Result<(), Errno> {
        let Objects { bucket, failures, .. } = &*self.objects;
        let (Some(mark), key) = (mark, mark_key(prefix)) else { return Ok(()) };
        // A store may have no condition for a deletion.
        let there = bucket.find(key).map_err(|error| failures.report(&error))?;
        if !there.is_some_and(|there| there.is_same(&mark)) {
            return Ok(());
        }
        left_alone(bucket.delete_version(key, &mark)).map_err(|error| failures.report(&error))
    }

    /// Removes the name of a node, unless another program has made a file of this name meanwhile.
    fn remove_name(&self, node: NodeId, (parent, name): (NodeId, &str)) {
        let Some(lists) = self.objects.lists() else { return };
        let removed = {
            let mut tree = self.objects.tree.lock();
            tree.note_emptied(parent);
            tree.remove_node(lists, node, (parent, name))
        };
        self.objects.dispose(removed);
    }
}

impl Names for ObjectVolume {
    /// Removes a file, in the version known here.
    ///
    /// # Errors
    /// `EAGAIN` when another program has stored another version, which stays; the store's.
    fn unlink(&self, caller: &Caller, parent: NodeId, name: &OsStr) -> Result<Option<NodeId>, VfsError> {
        let _scope = TenantScope::of(&caller.group);
        let objects = &self.objects;
        self.drafts()?;
        let entry = self.lookup(caller, parent, name)?;
        let removed = match entry.is_directory() {
            true => Err(Errno::ISDIR.into()),
            false => self.remove_file(entry.node, (parent, key_part(name)?)),
        };
        objects.forget(entry.node, 1);
        // It had one name.
        removed.map(|()| None)
    }

    fn rmdir(&self, caller: &Caller, parent: NodeId, name: &OsStr) -> Result<(), VfsError> {
        let _scope = TenantScope::of(&caller.group);
        let objects = &self.objects;
        self.drafts()?;
        let name = key_part(name)?;
        // The kernel has looked it up.
        let node = {
            let tree = objects.tree.lock();
            let (node, found) = tree.child(parent, name).ok_or(Errno::STALE)?;
            if found.facts.kind() != FileKind::Directory {
                return Err(Errno::NOTDIR.into());
            }
            node
        };
        self.remove_directory(node, (parent, name))
    }

    /// Renames a file, or a directory with few keys below it.
    ///
    /// # Errors
    /// `EXDEV` for a directory with too many keys, or with keys that cannot be shown; `EINVAL` for
    /// an exchange; the store's. After one of these an object may be there under both names.
    fn rename(
        &self,
        caller: &Caller,
        parent: NodeId,
        name: &OsStr,
        new_parent: NodeId,
        new_name: &OsStr,
        flags: RenameFlags,
    ) -> Result<[Option<NodeId>; 2], VfsError> {
        let _scope = TenantScope::of(&caller.group);
        let objects = &self.objects;
        self.drafts()?;
        if !flags.difference(RenameFlags::NOREPLACE).is_empty() {
            return Err(Errno::INVAL.into());
        }
        let (from, to) = ((parent, key_part(name)?), (new_parent, new_key_part(new_name)?));
        let source = self.lookup(caller, parent, name)?;
        let must_be_new = flags.contains(RenameFlags::NOREPLACE);
        let renaming = Renaming { volume: self, group: &caller.group, from, to, must_be_new };
        let mut renamed = Err(Errno::BUSY.into());
        for _ in 0..NR_ATTEMPTS_MAX {
            renamed = match self.lookup(caller, new_parent, new_name) {
                Err(error) if error.errno() != Errno::NOENT => Err(error),
                target => {
                    let target = target.ok();
                    let renamed = renaming.run(&source, target.as_ref());
                    target.inspect(|target| objects.forget(target.node, 1));
                    renamed
                }
            };
            // Another file has taken the new name meanwhile.
            if !matches!(renamed, Err(VfsError::Host(Errno::AGAIN))) {
                break;
            }
        }
        objects.forget(source.node, 1);
        renamed.map(|()| [None; 2])
    }

    fn link(&self, _: &Caller, _: NodeId, _: NodeId, _: &OsStr) -> Result<Entry, VfsError> {
        // Read-only or not: an object has one key.
        Err(Errno::PERM.into())
    }
}
