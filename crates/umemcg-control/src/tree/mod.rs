//! The tree of directories and files: look-up, permissions, and dispatch to the rows' functions.
//!
//! Groups come and go without this layer (rules create them, too), so the tree stores only the map
//! from node numbers to groups. Permissions of directories are checked here, although a mount may
//! have checked them already. Permissions of files are checked at open, against the opener, and
//! hold for the life of the open file. Polls are in `polling`, extended attributes in `xattrs`.

mod polling;
mod xattrs;

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::sync::{Arc, Weak};

use umemcg::{CreateError, Engine, Group, RemoveError, RenameError};
use umemcg_base::{LeafMutex, LeafRwLock, Rank, RankedMutex};

use crate::context::FileContext;
use crate::error::ControlError;
use crate::file_id::FileId;
use crate::group_control::{Owner, Times};
use crate::holder_share::Holder;
use crate::membership::Membership;
use crate::node::{Attr, DirEntry, NodeId, serial_of};
use crate::open_file::{Content, OpenFile};
use crate::permission::{Credentials, READ, SEARCH, WRITE};
use crate::poll_watch::Watch;
use crate::request::{Access, Request};
use crate::row::Row;
use crate::state::ControlState;
use crate::style::Style;
use crate::table::{ROWS, find, row_of};

/// Longest name, in bytes.
pub const NAME_BYTES_MAX: usize = 255;
/// Longest text of one write to a control file.
pub const WRITE_BYTES_MAX: usize = 4096;
/// Listing position behind `.` and `..`; the first row's entry follows.
pub const FIRST_COOKIE: u64 = 2;
/// The mode bit by which new entries inherit a directory's owning group.
const SET_GID: u16 = 0o2000;
/// Listing positions from here on belong to child groups, by serial; below it to rows.
const FIRST_CHILD_COOKIE: u64 = 1024;

/// Changes of owner and mode bits; `None` leaves a value unchanged.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SetAttr {
    /// New mode bits.
    pub mode: Option<u16>,
    /// New owner.
    pub uid: Option<u32>,
    /// New owning user group.
    pub gid: Option<u32>,
}

/// The control tree of one engine.
#[derive(Debug)]
pub struct ControlTree {
    state: ControlState,
    /// Groups whose nodes were handed out, by serial. Groups removed by the engine alone are
    /// dropped when the map doubles.
    known: LeafRwLock<KnownGroup>,
}

#[derive(Debug, Default)]
struct KnownGroup {
    groups: HashMap<u64, Weak<Group>>,
    nr_after_last_prune: usize,
}

/// The map of known groups is not pruned below this size.
const PRUNE_MIN: usize = 64;

impl ControlTree {
    /// Returns the tree over an engine's groups. Groups not made through the tree belong to the
    /// user of this process.
    pub fn new(engine: Arc<Engine>, membership: Arc<dyn Membership>) -> Self {
        let files = ROWS.iter().enumerate().map(|(number, row)| row.id(number as u8)).collect();
        Self { state: ControlState::new(engine, membership, files), known: LeafRwLock::default() }
    }

    /// Returns the tree with the files of another style.
    #[must_use]
    pub fn with_style(self, style: Style) -> Self {
        Self { state: self.state.with_style(style), ..self }
    }

    /// Returns whether a group has this file.
    fn has(&self, row: &Row, group: &Group) -> bool {
        self.state.style().has(row.version) && row.is_in(group.is_root())
    }

    /// Returns the node of a name in a directory.
    ///
    /// # Errors
    /// `NotFound`, `NotDirectory`, `NameTooLong`.
    pub fn lookup(&self, parent: NodeId, name: &OsStr) -> Result<Attr, ControlError> {
        let group = self.directory(parent)?;
        let (node, group, row) = self.find(&group, name)?;
        Ok(self.attr_of(node, &group, row))
    }

    /// Returns the attributes of a node.
    ///
    /// # Errors
    /// `NotFound` once its group is gone.
    pub fn attr(&self, node: NodeId) -> Result<Attr, ControlError> {
        let (group, row) = self.resolve(node)?;
        Ok(self.attr_of(node, &group, row))
    }

    /// Returns at most `nr_max` entries of a directory behind the position `after`, without `.` and
    /// `..`: control files first, then groups by age. A position stays valid while names come and
    /// go. [`FIRST_COOKIE`] and below are the beginning.
    ///
    /// # Errors
    /// `NotFound`, `NotDirectory`.
    pub fn read_directory(
        &self,
        node: NodeId,
        after: u64,
        nr_max: usize,
    ) -> Result<Vec<DirEntry>, ControlError> {
        let group = self.directory(node)?;
        let files = ROWS
            .iter()
            .enumerate()
            .filter(|(_, row)| self.has(row, &group) && self.state.style().lists(row.version))
            .map(|(number, row)| {
                let node = NodeId::file(serial_of(&group), number as u8);
                let cookie = FIRST_COOKIE + 1 + number as u64;
                DirEntry { name: row.name.into(), node, is_directory: false, cookie }
            });
        let mut entries: Vec<_> = files.filter(|entry| entry.cookie > after).take(nr_max).collect();
        // Children come oldest first, so their serials and positions rise.
        let children = group.children().into_iter().filter(|child| FIRST_CHILD_COOKIE + child.id() > after);
        entries.extend(children.take(nr_max - entries.len()).map(|child| {
            let (name, cookie) = (OsString::from(&*child.name()), FIRST_CHILD_COOKIE + child.id());
            DirEntry { name, node: self.remember(&child), is_directory: true, cookie }
        }));
        Ok(entries)
    }

    /// Returns the parent directory, for `..`; the top directory is its own parent.
    ///
    /// # Errors
    /// `NotFound`, `NotDirectory`.
    pub fn parent(&self, node: NodeId) -> Result<NodeId, ControlError> {
        let group = self.directory(node)?;
        Ok(group.parent().map_or(NodeId::ROOT, |parent| self.remember(parent)))
    }

    /// Makes a group, owned by the calling user. May reclaim to make room for the group's own
    /// state.
    ///
    /// # Errors
    /// `Denied`, `Exists`, `Invalid` for an impossible name, `NameTooLong`, `NoMemory`, `NotFound`
    /// for the parent.
    pub fn mkdir(
        &self,
        parent: NodeId,
        name: &OsStr,
        mode: u16,
        caller: &Credentials,
    ) -> Result<Attr, ControlError> {
        let parent = self.writable_directory(parent, caller)?;
        check_name(name)?;
        if find(name.as_encoded_bytes()).is_some() {
            return Err(ControlError::Exists);
        }
        let group = self.state.engine().create_group(&parent, name).map_err(|error| match error {
            CreateError::Exists => ControlError::Exists,
            CreateError::ParentGone => ControlError::NotFound,
            CreateError::BadName => ControlError::Invalid,
            CreateError::Refused(_) => ControlError::NoMemory,
        })?;
        let above = self.state.control(&parent);
        above.note_changed_entry();
        let above = above.owner(None);
        // As on other file systems, entries of a set-gid directory inherit its owning group, and
        // subdirectories the bit.
        let (gid, set_gid) = if above.mode & SET_GID != 0 { (above.gid, SET_GID) } else { (caller.gid, 0) };
        self.state.control(&group).give_all_to(Owner { uid: caller.uid, gid, mode: mode & 0o7777 | set_gid });
        let node = self.remember(&group);
        Ok(self.attr_of(node, &group, None))
    }

    /// Removes a group without child groups or living processes. Its charges move to its parent.
    ///
    /// # Errors
    /// `Busy` for children or processes, `NotFound`, `NotDirectory`, `Denied`.
    pub fn rmdir(&self, parent: NodeId, name: &OsStr, caller: &Credentials) -> Result<(), ControlError> {
        let parent = self.writable_directory(parent, caller)?;
        let (_, group, row) = self.find(&parent, name)?;
        if row.is_some() {
            return Err(ControlError::NotDirectory);
        }
        if group.nr_children() > 0 {
            return Err(ControlError::Busy);
        }
        self.state.membership().close(&group)?;
        if let Err(error) = self.state.engine().remove_group(&group) {
            self.state.membership().reopen(&group);
            return Err(match error {
                RemoveError::HasChildren | RemoveError::IsRoot => ControlError::Busy,
                RemoveError::Gone => ControlError::NotFound,
            });
        }
        self.forget(&group);
        self.state.control(&group).xattrs.clear();
        self.state.control(&parent).note_changed_entry();
        Ok(())
    }

    /// Gives a group another name in the same directory. In version 2 of Linux's groups names stay.
    ///
    /// # Errors
    /// `NotPermitted` in that style, `OtherParent`, `Exists` (also for the name of a control file),
    /// `NotDirectory` for a control file, `Invalid` and `NameTooLong` for an impossible name,
    /// `Denied`.
    pub fn rename(
        &self,
        parent: NodeId,
        name: &OsStr,
        new_parent: NodeId,
        new_name: &OsStr,
        caller: &Credentials,
    ) -> Result<(), ControlError> {
        let directory = self.writable_directory(parent, caller)?;
        let (_, group, row) = self.find(&directory, name)?;
        if row.is_some() {
            return Err(ControlError::NotDirectory);
        }
        if self.state.style() == Style::V2 {
            return Err(ControlError::NotPermitted);
        }
        if parent != new_parent {
            return Err(ControlError::OtherParent);
        }
        check_name(new_name)?;
        if find(new_name.as_encoded_bytes()).is_some() {
            return Err(ControlError::Exists);
        }
        self.state.engine().rename_group(&group, new_name).map_err(|error| match error {
            RenameError::Exists => ControlError::Exists,
            RenameError::BadName => ControlError::Invalid,
            RenameError::IsRoot => ControlError::Busy,
            RenameError::Gone => ControlError::NotFound,
        })?;
        self.state.control(&directory).note_changed_entry();
        Ok(())
    }

    /// Changes owner and mode bits. Root may change all; the owner may change the mode bits, and
    /// the owning group to a group of its own.
    ///
    /// # Errors
    /// `NotPermitted`, `NotFound`.
    pub fn set_attr(&self, node: NodeId, set: SetAttr, caller: &Credentials) -> Result<Attr, ControlError> {
        let (group, row) = self.resolve(node)?;
        let part = self.state.control(&group);
        let mut owner = part.owner(row);
        let is_root = caller.uid == 0;
        let is_owner = is_root || caller.uid == owner.uid;
        let may_set_uid = set.uid.is_none_or(|uid| is_root || (is_owner && uid == owner.uid));
        let may_set_gid =
            set.gid.is_none_or(|gid| is_root || (is_owner && (gid == owner.gid || caller.is_in_group(gid))));
        if !may_set_uid || !may_set_gid || (set.mode.is_some() && !is_owner) {
            return Err(ControlError::NotPermitted);
        }
        owner.uid = set.uid.unwrap_or(owner.uid);
        owner.gid = set.gid.unwrap_or(owner.gid);
        owner.mode = set.mode.map_or(owner.mode, |mode| mode & 0o7777);
        part.set_owner(row, owner);
        Ok(self.attr_of(node, &group, row))
    }

    /// Opens a control file for `opener`; later reads and writes are checked against these
    /// credentials.
    ///
    /// # Errors
    /// `Denied`, `IsDirectory`, `NotFound`.
    pub fn open(&self, node: NodeId, access: Access, opener: Credentials) -> Result<OpenFile, ControlError> {
        self.open_for(node, access, opener, None)
    }

    /// Like [`open`](Self::open). Charges the text being read to `payer`.
    ///
    /// # Errors
    /// `Denied`, `IsDirectory`, `NotFound`.
    pub fn open_for(
        &self,
        node: NodeId,
        access: Access,
        opener: Credentials,
        payer: Option<&Arc<Group>>,
    ) -> Result<OpenFile, ControlError> {
        let (group, row) = self.resolve(node)?;
        let Some(id) = row else { return Err(ControlError::IsDirectory) };
        let wanted = if access.read { READ } else { 0 } | if access.write { WRITE } else { 0 };
        if !self.state.control(&group).owner(Some(id)).grants(&opener, wanted) {
            return Err(ControlError::Denied);
        }
        let holder = Holder::new(&opener, payer.unwrap_or(self.state.engine().root()));
        Ok(OpenFile {
            group: Arc::downgrade(&group),
            id,
            opener,
            payer: payer.map(Arc::downgrade),
            holder,
            content: RankedMutex::new(Rank::ControlFile, Content::default()),
            peak: LeafMutex::default(),
            trigger: RankedMutex::new(Rank::ControlFile, None),
            watch: Watch::default(),
        })
    }

    /// Returns the bytes of the content from `offset`. A read at the end of the previous read sees
    /// the same content; any other read generates it anew.
    ///
    /// # Errors
    /// `Invalid` for an unreadable file, `Gone`, and the errors of the row's read function.
    pub fn read(
        &self,
        file: &OpenFile,
        offset: u64,
        len: usize,
        request: &Request<'_>,
    ) -> Result<Vec<u8>, ControlError> {
        let read = row_of(file.id).read.ok_or(ControlError::Invalid)?;
        let offset = usize::try_from(offset).map_err(|_| ControlError::Invalid)?;
        let mut content = file.content.lock();
        let goes_on = content.goes_on_at(offset);
        let mut outdated = None;
        // The rest of a text no longer depends on the group.
        if !goes_on || content.is_read() {
            let group = file.group()?;
            if !goes_on {
                file.watch.note_read(file.id.name, &group);
                let text = read(&FileContext { state: &self.state, group: &group, file, request })?;
                outdated = Some(std::mem::replace(&mut *content, Content::new(text)));
            }
        }
        let payer = file.payer();
        let (piece, let_go) = content.take(offset, len, payer.as_ref().unwrap_or(self.state.engine().root()));
        drop(content);
        drop((outdated, let_go));
        Ok(piece)
    }

    /// Applies a written text, all of it or nothing. The file offset of the write does not matter.
    ///
    /// # Errors
    /// `TooLong` for more than [`WRITE_BYTES_MAX`], `Invalid` for a read-only file, `Gone`, and the
    /// errors of the row's write function.
    pub fn write(&self, file: &OpenFile, text: &[u8], request: &Request<'_>) -> Result<(), ControlError> {
        if text.len() > WRITE_BYTES_MAX {
            return Err(ControlError::TooLong);
        }
        let write = row_of(file.id).write.ok_or(ControlError::Invalid)?;
        let group = file.group()?;
        write(&FileContext { state: &self.state, group: &group, file, request }, text)
    }

    /// Returns the rows, for documentation.
    pub fn rows() -> &'static [Row] {
        ROWS
    }

    fn attr_of(&self, node: NodeId, group: &Group, file: Option<FileId>) -> Attr {
        let part = self.state.control(group);
        let Owner { uid, gid, mode } = part.owner(file);
        let nlink = if file.is_some() { 1 } else { 2 + group.nr_children() as u32 };
        let size = file.map_or(0, |file| row_of(file).shown_bytes());
        let Times { modified, changed } = part.times(file);
        let is_directory = file.is_none();
        Attr { node, is_directory, mode, uid, gid, nlink, size, created: part.created, modified, changed }
    }

    /// Returns the node, group and file of a name in a group's directory.
    fn find(
        &self,
        group: &Arc<Group>,
        name: &OsStr,
    ) -> Result<(NodeId, Arc<Group>, Option<FileId>), ControlError> {
        if name.len() > NAME_BYTES_MAX {
            return Err(ControlError::NameTooLong);
        }
        match find(name.as_encoded_bytes()) {
            Some((number, row)) if self.has(row, group) => {
                Ok((NodeId::file(serial_of(group), number), Arc::clone(group), Some(row.id(number))))
            }
            _ => {
                let child = group.child(name).ok_or(ControlError::NotFound)?;
                Ok((self.remember(&child), child, None))
            }
        }
    }

    /// Returns the group, and the row if the node is a file.
    fn resolve(&self, node: NodeId) -> Result<(Arc<Group>, Option<FileId>), ControlError> {
        let (serial, row) = node.parts().ok_or(ControlError::NotFound)?;
        let group = if serial == 0 {
            Arc::clone(self.state.engine().root())
        } else {
            let known = self.known.read();
            let group = known.groups.get(&serial).and_then(Weak::upgrade);
            group.filter(|group| !group.is_dead()).ok_or(ControlError::NotFound)?
        };
        let Some(number) = row else { return Ok((group, None)) };
        let file = self.state.file(number).filter(|&file| self.has(row_of(file), &group));
        Ok((group, Some(file.ok_or(ControlError::NotFound)?)))
    }

    fn directory(&self, node: NodeId) -> Result<Arc<Group>, ControlError> {
        match self.resolve(node)? {
            (group, None) => Ok(group),
            (_, Some(_)) => Err(ControlError::NotDirectory),
        }
    }

    fn writable_directory(&self, node: NodeId, caller: &Credentials) -> Result<Arc<Group>, ControlError> {
        let group = self.directory(node)?;
        if !self.state.control(&group).owner(None).grants(caller, WRITE | SEARCH) {
            return Err(ControlError::Denied);
        }
        Ok(group)
    }

    /// Returns the node of a group, and remembers the group for [`resolve`](Self::resolve).
    fn remember(&self, group: &Arc<Group>) -> NodeId {
        let serial = serial_of(group);
        if serial != 0 && !self.known.read().groups.contains_key(&serial) {
            let mut known = self.known.write();
            if known.groups.len() >= PRUNE_MIN.max(2 * known.nr_after_last_prune) {
                known.groups.retain(|_, group| group.upgrade().is_some_and(|group| !group.is_dead()));
                known.nr_after_last_prune = known.groups.len();
            }
            known.groups.insert(serial, Arc::downgrade(group));
        }
        NodeId::directory(serial)
    }

    /// Forgets a removed group. Even a weak reference would keep the allocation of the group.
    fn forget(&self, group: &Group) {
        let mut known = self.known.write();
        known.groups.remove(&serial_of(group));
        let nr = known.groups.len();
        if nr < known.groups.capacity() / 4 {
            known.groups.shrink_to(PRUNE_MIN.max(2 * nr));
        }
    }
}

fn check_name(name: &OsStr) -> Result<(), ControlError> {
    if name.len() > NAME_BYTES_MAX { Err(ControlError::NameTooLong) } else { Ok(()) }
}
