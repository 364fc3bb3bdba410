//! Making files and directories.
//!
//! A new file is a draft. Its first `close` or `fsync` stores it on the condition that there still
//! is no object of its key: a file made meanwhile by another program is not replaced, with `O_EXCL`
//! or without. A new directory is an empty object whose key ends with a slash.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::time::Instant;

use rustix::fs::OFlags;
use rustix::io::Errno;

use super::ObjectVolume;
use super::content::Content;
use super::key_parts::key_part;
use super::node::{Facts, KEY_BYTES_MAX, NodeCharge, Told};
use super::open_file::OpenFile;
use super::tree::Tree;
use super::turns::Claim;
use crate::attr::{Entry, FileKind, NodeId, Timestamp};
use crate::bucket::file_attributes::{DIRECTORY, FileAttributes, REGULAR, SYMLINK, SYMLINK_BYTES_MAX};
use crate::bucket::{BucketError, Expected, ObjectInfo, ObjectSource, TenantScope};
use crate::caller::Caller;
use crate::error::VfsError;
use crate::handle_charge::HandleCharge;
use crate::privileges::group_and_mode_in;
use crate::volume::{Create, Lookup, VolumeFile};

/// Most attempts to make or open a name, while others make and remove it.
const NR_ATTEMPTS_MAX: usize = 32;

/// A newly made file, open.
pub(super) type NewFile = (Entry, Arc<dyn VolumeFile>);

/// Returns a name as a part of a new key.
///
/// # Errors
/// `ENAMETOOLONG`, `EINVAL` as for any name and for control characters; `EILSEQ` if it is not
/// UTF-8.
pub(super) fn new_key_part(name: &OsStr) -> Result<&str, Errno> {
    match key_part(name) {
        Err(Errno::NOENT) if name.to_str().is_none() => Err(Errno::ILSEQ),
        Err(Errno::NOENT) => Err(Errno::INVAL),
        part => part,
    }
}

/// The few bytes of an object that is no file: a directory's, or a symbolic link's target.
#[derive(Debug)]
pub(super) struct Bytes<'a>(pub(super) &'a [u8]);

impl ObjectSource for Bytes<'_> {
    fn size(&self) -> u64 {
        self.0.len() as u64
    }
    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        let from = usize::try_from(offset).ok().and_then(|offset| self.0.get(offset..offset + into.len()));
        into.copy_from_slice(from.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }
    fn note_upload(&self, _: Option<&str>) -> io::Result<()> {
        Ok(())
    }
}

impl ObjectVolume {
    /// Returns the key of a new name.
    pub(super) fn new_key(&self, parent: NodeId, name: &str) -> Result<String, Errno> {
        let key = self.objects.tree.lock().prefix(parent)? + name;
        // A directory's key has a slash more.
        if key.len() < KEY_BYTES_MAX { Ok(key) } else { Err(Errno::NAMETOOLONG) }
    }

    /// Enters a new file and opens it; `None` if the name may exist by now: the store was asked
    /// `since`.
    fn new_file(
        &self,
        caller: &Caller,
        (parent, name): (NodeId, &str),
        new: (OFlags, FileAttributes),
        since: Instant,
    ) -> Result<Option<NewFile>, VfsError> {
        let (node, key) = (self.objects.next_node(), self.new_key(parent, name)?);
        match &self.streams {
            Some(streams) => self.new_stream(streams, caller, (parent, name), (node, key), new, since),
            None => self.new_draft(caller, (parent, name), (node, key), new, since),
        }
    }

    fn new_draft(
        &self,
        caller: &Caller,
        name: (NodeId, &str),
        (node, key): (NodeId, String),
        (flags, attributes): (OFlags, FileAttributes),
        since: Instant,
    ) -> Result<Option<NewFile>, VfsError> {
        let (objects, drafts, group) = (&self.objects, self.drafts()?, &caller.group);
        let (engine, effort) = (&objects.engine, objects.charge_effort());
        let handle = HandleCharge::take(effort, engine, group, 0)?;
        let draft = drafts.new_draft(node, group, attributes)?;
        let content = Content::of_draft(effort, engine, group, (key, Arc::clone(&draft)))?;
        let enter = |tree: &mut Tree| {
            if let Ok(found) = tree.get_mut(node) {
                found.content = Some(Arc::clone(&content));
            }
        };
        if !self.enter_new(caller, name, (node, draft.shown()), since, enter)? {
            return Ok(None);
        }
        let file = OpenFile::new((objects, Some(drafts)), (node, content), flags, group, handle);
        // Empty or not, it is to be stored.
        file.touch().inspect_err(|_| objects.forget(node, 1))?;
        let entry = objects.entry(node, objects.ino(node), &Facts::Object(draft.shown()));
        Ok(Some((entry, Arc::new(file))))
    }

    /// Enters the node of a new file, counts a lookup, and pins it for its open file. `with` is
    /// called before others see the node. Returns `false` if the name may exist by now.
    pub(super) fn enter_new(
        &self,
        caller: &Caller,
        (parent, name): (NodeId, &str),
        (node, info): (NodeId, ObjectInfo),
        since: Instant,
        with: impl FnOnce(&mut Tree),
    ) -> Result<bool, VfsError> {
        let objects = &self.objects;
        let charge = NodeCharge::take(objects.charge_effort(), &objects.engine, &caller.group)?;
        let told = Told { at: Instant::now(), thread: 0 };
        let lists = objects.lists().ok_or(Errno::STALE)?;
        let entered = {
            let mut tree = objects.tree.lock();
            let is_there = tree.child(parent, name).is_some_and(|(_, found)| found.is_staged());
            match is_there || tree.has_changed(parent, since) {
                true => None,
                false => {
                    let facts = (Facts::Object(info), told);
                    let entered = tree.enter(lists, node, (parent, name), facts, charge);
                    if entered.is_ok() {
                        let _ = tree.pin(node);
                        tree.note_changed(parent);
                        with(&mut tree);
                    }
                    Some(entered)
                }
            }
        };
        match entered {
            None => Ok(false),
            Some(Err((errno, charge))) => {
                drop(charge);
                Err(errno.into())
            }
            Some(Ok(removed)) => {
                objects.dispose(removed);
                Ok(true)
            }
        }
    }

    /// Returns the attributes of a new file or directory.
    fn new_attributes(&self, caller: &Caller, parent: NodeId, mode: u32) -> FileAttributes {
        let shown = &self.objects.shown;
        let now = Timestamp::now();
        if !shown.are_stored {
            return if mode & DIRECTORY == 0 { shown.of_file(now) } else { shown.of_directory() };
        }
        let directory = self.objects.tree.lock().get(parent).ok().and_then(|found| found.facts.attributes());
        let directory = directory.unwrap_or_else(|| shown.of_directory());
        let kind = FileKind::from_mode(mode).unwrap_or(FileKind::Regular);
        let in_directory = (directory.mode, directory.gid);
        let wanted = if kind == FileKind::Symlink { mode } else { mode & !caller.umask };
        let (gid, bits) = group_and_mode_in(in_directory, caller, kind, wanted & 0o7777);
        FileAttributes::new(mode & !0o7777 | bits, (caller.uid, gid), now)
    }

    /// Makes a file, or opens the existing one, unless the flags demand a new one.
    fn make_file(
        &self,
        caller: &Caller,
        (parent, name): (NodeId, &OsStr),
        (flags, mode): (OFlags, u32),
    ) -> Result<NewFile, VfsError> {
        let objects = &self.objects;
        self.drafts()?;
        let part = new_key_part(name)?;
        let new = (flags, self.new_attributes(caller, parent, REGULAR | mode & 0o7777));
        if let Some(since) = objects.absent_since(caller, parent, part)
            && let Some(made) = self.new_file(caller, (parent, part), new, since)?
        {
            return Ok(made);
        }
        for _ in 0..NR_ATTEMPTS_MAX {
            let since = Instant::now();
            match self.lookup(caller, parent, name) {
                Ok(entry) => {
                    let opened = match FileKind::from_mode(entry.attr.mode) {
                        _ if flags.contains(OFlags::EXCL) => Err(Errno::EXIST.into()),
                        Some(FileKind::Directory) => Err(Errno::ISDIR.into()),
                        _ => self.open_any(caller, entry.node, flags),
                    };
                    match opened {
                        Ok(file) => return Ok((entry, file)),
                        // Another has taken its place meanwhile, or nothing has.
                        Err(error) if matches!(error.errno(), Errno::STALE | Errno::NOENT) => {
                            objects.forget(entry.node, 1);
                            continue;
                        }
                        Err(error) => {
                            objects.forget(entry.node, 1);
                            return Err(error);
                        }
                    }
                }
                Err(error) if error.errno() == Errno::NOENT => {}
                Err(error) => return Err(error),
            }
            if let Some(made) = self.new_file(caller, (parent, part), new, since)? {
                return Ok(made);
            }
        }
        Err(Errno::BUSY.into())
    }
}

impl Create for ObjectVolume {
    /// Makes a symbolic link: an object whose bytes are the target.
    ///
    /// # Errors
    /// `EPERM` where all files have the same attributes; as [`create`](Self::create), and the
    /// store's.
    fn symlink(
        &self,
        caller: &Caller,
        parent: NodeId,
        name: &OsStr,
        target: &OsStr,
    ) -> Result<Entry, VfsError> {
        let _scope = TenantScope::of(&caller.group);
        let objects = &self.objects;
        self.drafts()?;
        if !objects.shown.are_stored {
            return Err(Errno::PERM.into());
        }
        if target.len() >= SYMLINK_BYTES_MAX {
            return Err(Errno::NAMETOOLONG.into());
        }
        let part = new_key_part(name)?;
        let _turn = self.drafts()?.turn_for(&Claim { keep: Some(parent), ..Claim::default() });
        self.check_absent(caller, parent, name)?;
        let attributes = self.new_attributes(caller, parent, SYMLINK | 0o777);
        let key = self.new_key(parent, part)?;
        let (source, metadata) = (Bytes(target.as_bytes()), attributes.to_metadata());
        let stored = objects.bucket.upload(&key, &source, &metadata, &Expected::Absent);
        let info = stored.map_err(|error| match error {
            BucketError::Changed(_) => Errno::EXIST,
            error => objects.failures.report(&error),
        })?;
        let told = Told { at: Instant::now(), thread: 0 };
        let facts = Facts::Object(ObjectInfo { attributes: Some(attributes), ..info.without_metadata() });
        let entry =
            objects.enter(objects.charge_effort(), &caller.group, (parent, part), (facts, told), false)?;
        objects.tree.lock().note_changed(parent);
        Ok(entry)
    }

    /// Makes an empty file, in the store when this returns.
    ///
    /// # Errors
    /// `EPERM` for anything but a regular file; as [`create`](Self::create), and the store's.
    fn mknod(
        &self,
        caller: &Caller,
        parent: NodeId,
        name: &OsStr,
        mode: u32,
        _: u64,
    ) -> Result<Entry, VfsError> {
        self.drafts()?;
        if FileKind::of_new_node(mode)? != FileKind::Regular {
            return Err(Errno::PERM.into());
        }
        let (entry, file) = self.make_file(caller, (parent, name), (OFlags::RDWR | OFlags::EXCL, mode))?;
        if let Err(error) = file.fsync(false) {
            drop(file);
            self.objects.forget(entry.node, 1);
            return Err(error);
        }
        Ok(entry)
    }

    fn mkdir(&self, caller: &Caller, parent: NodeId, name: &OsStr, mode: u32) -> Result<Entry, VfsError> {
        let _scope = TenantScope::of(&caller.group);
        let objects = &self.objects;
        self.drafts()?;
        let part = new_key_part(name)?;
        let _turn = self.drafts()?.turn_for(&Claim { keep: Some(parent), ..Claim::default() });
        self.check_absent(caller, parent, name)?;
        let attributes = self.new_attributes(caller, parent, DIRECTORY | mode & 0o7777);
        self.make_directory(&self.new_key(parent, part)?, attributes)?;
        let told = Told { at: Instant::now(), thread: 0 };
        let known = (Facts::Directory(Some(attributes)), told);
        let entry = objects.enter(objects.charge_effort(), &caller.group, (parent, part), known, false)?;
        let mut tree = objects.tree.lock();
        tree.note_changed(parent);
        // It exists even without a key in the store.
        tree.note_emptied(entry.node);
        Ok(entry)
    }

    fn create(
        &self,
        caller: &Caller,
        parent: NodeId,
        name: &OsStr,
        mode: u32,
        flags: OFlags,
    ) -> Result<(Entry, Arc<dyn VolumeFile>), VfsError> {
        self.make_file(caller, (parent, name), (flags, mode))
    }

    /// # Errors
    /// `EOPNOTSUPP`: an object has a key.
    fn tmpfile(
        &self,
        _: &Caller,
        _: NodeId,
        _: u32,
        _: OFlags,
    ) -> Result<(Entry, Arc<dyn VolumeFile>), VfsError> {
        self.drafts()?;
        Err(Errno::OPNOTSUPP.into())
    }
}

impl ObjectVolume {
    /// Checks that a name is free.
    ///
    /// # Errors
    /// `EEXIST`, the store's.
    fn check_absent(&self, caller: &Caller, parent: NodeId, name: &OsStr) -> Result<(), VfsError> {
        if self.objects.absent_since(caller, parent, new_key_part(name)?).is_some() {
            return Ok(());
        }
        match self.lookup(caller, parent, name) {
            Ok(entry) => {
                self.objects.forget(entry.node, 1);
                Err(Errno::EXIST.into())
            }
            Err(error) if error.errno() == Errno::NOENT => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Stores the object of a directory.
    ///
    /// # Errors
    /// `EEXIST` if there is one; the store's.
    pub(super) fn make_directory(&self, key: &str, attributes: FileAttributes) -> Result<(), Errno> {
        let (key, metadata) = (format!("{key}/"), attributes.to_metadata());
        match self.objects.bucket.upload(&key, &Bytes(b""), &metadata, &Expected::Absent) {
            // A store of directories has no such objects.
            Ok(_) | Err(BucketError::NotFound(_)) => Ok(()),
            Err(BucketError::Changed(_)) => Err(Errno::EXIST),
            Err(error) => Err(self.objects.failures.report(&error)),
        }
    }
}
