//! Attributes of an inode: initial values, changes, and the privileges cleared by a write.

use std::sync::atomic::Ordering;

use rustix::io::Errno;

use super::{Inode, Meta, NewInode, Xattr};
use crate::attr::{FileKind, SetAttr, SetTime, Timestamp};
use crate::caller::Caller;
use crate::error::VfsError;
use crate::privileges::{CAPABILITIES, SET_GID, SET_UID, group_and_mode_in, mode_without_set_id};
use crate::tmpfs::acl::{self, Acl};

/// Access lists of a new object, inherited from its directory.
#[derive(Debug)]
pub(crate) struct Inherited {
    /// The permission bits left by the lists.
    pub(crate) permissions: u32,
    pub(crate) lists: Vec<(&'static [u8], Xattr)>,
}

impl Inode {
    /// Sets the owner and mode of a new inode about to be linked into `dir`.
    pub(crate) fn set_initial_attributes(
        &self,
        caller: &Caller,
        dir: &Inode,
        new: &NewInode<'_>,
        lists: Option<Inherited>,
    ) {
        let (dir_mode, dir_gid) = {
            let dir = dir.meta.lock();
            (dir.mode, dir.gid)
        };
        let permissions = match &lists {
            Some(lists) => lists.permissions,
            None if new.kind == FileKind::Symlink => 0o777,
            None => new.mode & !caller.umask & 0o777,
        };
        let wanted = new.mode & 0o7000 | permissions;
        let (gid, mode) = group_and_mode_in((dir_mode, dir_gid), caller, new.kind, wanted);
        let mut meta = self.meta.lock();
        (meta.uid, meta.gid, meta.mode) = (caller.uid, gid, mode);
        meta.xattrs.extend(lists.into_iter().flat_map(|l| l.lists).map(|(name, list)| (name.into(), list)));
    }

    /// Changes attributes in the order size, owner, mode, times.
    ///
    /// # Errors
    /// As [`Attributes::setattr`](crate::volume::Attributes::setattr).
    pub(crate) fn change(&self, change: &SetAttr) -> Result<(), VfsError> {
        if let Some(len) = change.size {
            let content = match (&self.content, self.kind) {
                (Some(content), _) => content,
                (None, FileKind::Directory) => return Err(Errno::ISDIR.into()),
                (None, _) => return Err(Errno::INVAL.into()),
            };
            content.file.set_len(len)?;
            self.clear_privileges(change.kill_set_id);
            self.note_change();
        }
        let kill_set_id = change.kill_set_id && change.size.is_none();
        if (SetAttr { size: None, kill_set_id, ..*change }) == SetAttr::default() {
            return Ok(());
        }
        if change.uid == Some(u32::MAX) || change.gid == Some(u32::MAX) {
            return Err(Errno::INVAL.into());
        }
        for time in [change.atime, change.mtime] {
            if let Some(SetTime::At(time)) = time
                && time.nanoseconds >= 1_000_000_000
            {
                return Err(Errno::INVAL.into());
            }
        }
        let mut dropped = None;
        let mut meta = self.meta.lock();
        if change.uid.is_some() || change.gid.is_some() {
            meta.uid = change.uid.unwrap_or(meta.uid);
            meta.gid = change.gid.unwrap_or(meta.gid);
            if self.kind != FileKind::Directory {
                meta.mode = mode_without_set_id(meta.mode);
                dropped = meta.xattrs.remove(CAPABILITIES.as_bytes());
            }
        }
        if let Some(mode) = change.mode {
            set_mode(&mut meta, mode & 0o7777);
        } else if change.kill_set_id && self.kind == FileKind::Regular {
            meta.mode = mode_without_set_id(meta.mode);
        }
        let time = |set: Option<SetTime>, old: Timestamp| match set {
            None => old,
            Some(SetTime::Now) => Timestamp::now(),
            Some(SetTime::At(time)) => time,
        };
        (meta.atime, meta.mtime) = (time(change.atime, meta.atime), time(change.mtime, meta.mtime));
        meta.changed();
        drop(meta);
        drop(dropped);
        self.may_have_privileges.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Clears the privileges that a write takes from a file: its capabilities, and with `set_id`
    /// its set-id bits. Once nothing is left to clear, later writes do not look.
    pub(crate) fn clear_privileges(&self, set_id: bool) {
        if !self.may_have_privileges.load(Ordering::Relaxed) {
            return;
        }
        let mut meta = self.meta.lock();
        let dropped = meta.xattrs.remove(CAPABILITIES.as_bytes());
        let cleared = mode_without_set_id(meta.mode);
        if cleared != meta.mode && set_id {
            meta.mode = cleared;
            meta.changed();
        }
        // The next writer may not be allowed to keep the bits kept by this one. A `chmod` after
        // this check sets the flag again.
        if meta.mode & (SET_UID | SET_GID) == 0 {
            self.may_have_privileges.store(false, Ordering::Relaxed);
        }
        drop(meta);
        drop(dropped);
    }
}

/// Sets the permission bits; an access list follows.
fn set_mode(meta: &mut Meta, mode: u32) {
    meta.mode = mode;
    if let Some(xattr) = meta.xattrs.get_mut(acl::ACCESS)
        && let Ok(Some(mut list)) = Acl::parse(&xattr.value)
    {
        list.set_permissions(mode);
        xattr.value = list.to_bytes().into();
    }
}
