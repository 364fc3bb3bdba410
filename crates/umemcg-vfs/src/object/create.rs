//! Making files and directories.
//!
//! A new file is a draft, which is stored at its first `close` or `fsync` on the condition that
//! there still is no object of its key: what another program has made meanwhile is not replaced,
//! with `O_EXCL` or without. A new directory is an empty object whose key ends with a slash.

use std::ffi::OsStr;
use std::io;
use std::sync::Arc;
use std::time::Instant;

use rustix::fs::OFlags;
use rustix::io::Errno;

use super::ObjectVolume;
use super::bucket::{BucketError, Expected, Metadata, ObjectSource};
use super::content::Content;
use super::node::{Facts, KEY_BYTES_MAX, NodeCharge, Told};
use super::objects::key_part;
use super::open_file::OpenFile;
use crate::attr::{Entry, FileKind, NodeId};
use crate::caller::Caller;
use crate::error::VfsError;
use crate::handle_charge::HandleCharge;
use crate::volume::{Create, Lookup, VolumeFile};

/// Attempts to make a name or to open what has it, while others make and remove it.
const NR_ATTEMPTS_MAX: usize = 32;

/// Returns a name as a key can have it.
///
/// # Errors
/// `ENAMETOOLONG`, `EINVAL` as for any name and for control characters; `EILSEQ` for what is no
/// UTF-8.
pub(super) fn new_key_part(name: &OsStr) -> Result<&str, Errno> {
    match key_part(name) {
        Err(Errno::NOENT) if name.to_str().is_none() => Err(Errno::ILSEQ),
        Err(Errno::NOENT) => Err(Errno::INVAL),
        part => part,
    }
}

/// An object without bytes.
#[derive(Debug)]
struct Empty;

impl ObjectSource for Empty {
    fn size(&self) -> u64 {
        0
    }
    fn read_at(&self, _: u64, into: &mut [u8]) -> io::Result<()> {
        if into.is_empty() { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
    }
    fn note_upload(&self, _: Option<&str>) -> io::Result<()> {
        Ok(())
    }
}

impl ObjectVolume {
    /// Returns the key of a name that is to be made.
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
        (flags, since): (OFlags, Instant),
    ) -> Result<Option<(Entry, OpenFile)>, VfsError> {
        let (objects, drafts, group) = (&self.objects, self.drafts()?, &caller.group);
        let (engine, effort) = (&objects.engine, objects.reclaim_effort());
        let key = self.new_key(parent, name)?;
        let handle = HandleCharge::take(effort, engine, group, 0)?;
        let node = objects.next_node();
        let draft = drafts.new_draft(node, group)?;
        let content = Content::of_draft(effort, engine, group, (key, Arc::clone(&draft)))?;
        let charge = NodeCharge::take(effort, engine, group)?;
        let told = Told { at: Instant::now(), thread: 0 };
        let facts = (Facts::Object(draft.shown()), told);
        let lists = objects.lists().ok_or(Errno::STALE)?;
        let entered = {
            let mut tree = objects.tree.lock();
            let is_there = tree.child(parent, name).is_some_and(|(_, found)| found.is_staged());
            match is_there || tree.has_changed(parent, since) {
                true => None,
                false => {
                    let entered = tree.enter(lists, node, (parent, name), facts, charge);
                    if entered.is_ok()
                        && let Ok(found) = tree.get_mut(node)
                    {
                        found.content = Some(Arc::clone(&content));
                        let _ = tree.pin(node);
                        tree.note_changed(parent);
                    }
                    Some(entered)
                }
            }
        };
        let removed = match entered {
            None => return Ok(None),
            Some(Err((errno, charge))) => {
                drop(charge);
                return Err(errno.into());
            }
            Some(Ok(removed)) => removed,
        };
        objects.dispose(removed);
        let file = OpenFile::new((objects, Some(drafts)), (node, content), flags, group, handle);
        // Empty or not, it is to be stored.
        file.touch().inspect_err(|_| objects.forget(node, 1))?;
        let entry = objects.entry(node, objects.ino(node), &Facts::Object(draft.shown()));
        Ok(Some((entry, file)))
    }
    /// Makes a file, or opens the one that is there, unless the flags say that it must be new.
    fn make_file(
        &self,
        caller: &Caller,
        (parent, name): (NodeId, &OsStr),
        flags: OFlags,
    ) -> Result<(Entry, OpenFile), VfsError> {
        let objects = &self.objects;
        self.drafts()?;
        let part = new_key_part(name)?;
        if let Some(since) = objects.absent_since(caller, parent, part)
            && let Some(made) = self.new_file(caller, (parent, part), (flags, since))?
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
                        _ => self.open_file(caller, entry.node, flags),
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
            if let Some(made) = self.new_file(caller, (parent, part), (flags, since))? {
                return Ok(made);
            }
        }
        Err(Errno::BUSY.into())
    }
}

impl Create for ObjectVolume {
    /// # Errors
    /// `EPERM`: there are none.
    fn symlink(&self, _: &Caller, _: NodeId, _: &OsStr, _: &OsStr) -> Result<Entry, VfsError> {
        self.drafts()?;
        Err(Errno::PERM.into())
    }

    /// Makes an empty file, which is in the store when this returns.
    ///
    /// # Errors
    /// `EPERM` for what is no regular file; as [`create`](Self::create), and the store's.
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
        let (entry, file) = self.make_file(caller, (parent, name), OFlags::RDWR | OFlags::EXCL)?;
        if let Err(error) = file.fsync(false) {
            drop(file);
            self.objects.forget(entry.node, 1);
            return Err(error);
        }
        Ok(entry)
    }

    fn mkdir(&self, caller: &Caller, parent: NodeId, name: &OsStr, _: u32) -> Result<Entry, VfsError> {
        let objects = &self.objects;
        self.drafts()?;
        let part = new_key_part(name)?;
        if objects.absent_since(caller, parent, part).is_none() {
            match self.lookup(caller, parent, name) {
                Ok(entry) => {
                    objects.forget(entry.node, 1);
                    return Err(Errno::EXIST.into());
                }
                Err(error) if error.errno() == Errno::NOENT => {}
                Err(error) => return Err(error),
            }
        }
        self.make_directory(&self.new_key(parent, part)?)?;
        let told = Told { at: Instant::now(), thread: 0 };
        let known = (Facts::Directory, told);
        let entry = objects.enter(objects.reclaim_effort(), &caller.group, (parent, part), known)?;
        let mut tree = objects.tree.lock();
        tree.note_changed(parent);
        // It is there, whatever the store has of it.
        tree.note_emptied(entry.node);
        Ok(entry)
    }

    fn create(
        &self,
        caller: &Caller,
        parent: NodeId,
        name: &OsStr,
        _: u32,
        flags: OFlags,
    ) -> Result<(Entry, Arc<dyn VolumeFile>), VfsError> {
        let (entry, file) = self.make_file(caller, (parent, name), flags)?;
        Ok((entry, Arc::new(file)))
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
    /// Stores the object that stands for a directory. One that is there is no error.
    pub(super) fn make_directory(&self, key: &str) -> Result<(), Errno> {
        let (uid, gid) = self.objects.owner();
        let metadata: Metadata = [("mode", 0o040_755), ("uid", uid), ("gid", gid)]
            .map(|(name, value)| (name.to_owned(), value.to_string()))
            .into();
        match self.objects.bucket.upload(&format!("{key}/"), &Empty, &metadata, &Expected::Absent) {
            // A store of directories has no such objects.
            Ok(_) | Err(BucketError::Changed(_) | BucketError::NotFound(_)) => Ok(()),
            Err(error) => Err(self.objects.failures.report(&error)),
        }
    }
}
