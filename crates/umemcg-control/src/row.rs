//! What a control file is: one row of a table. Directory listings, permissions, dispatch and documentation all come
//! from the rows; nothing about a file is said twice.

use std::ffi::OsStr;
use std::sync::Arc;

use umemcg::Group;

use crate::error::ControlError;
use crate::open_file::OpenFile;
use crate::table::ROWS;
use crate::tree::{ControlTree, Request};

/// The generation of the interface that a name comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Version {
    /// The names of version 1, which the mails use.
    V1,
    /// The names of version 2.
    V2,
    /// The same name in both.
    Both,
    /// Neither: Linux has no such file.
    Own,
}

/// Which generation's files the tree shows, and with whose meaning where one name is in both.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Style {
    /// Those of version 1 alone.
    V1,
    /// Those of version 2 alone.
    V2,
    /// All in one directory; `memory.stat` has the names of both.
    #[default]
    Both,
}

impl Style {
    /// Whether there is a file of that generation. Our own can be opened whatever the style.
    pub(crate) fn has(self, version: Version) -> bool {
        match version {
            Version::V1 => self != Self::V2,
            Version::V2 => self != Self::V1,
            Version::Both | Version::Own => true,
        }
    }

    /// Whether it is listed: in a strict style our own are not, so that a directory looks as Linux's does.
    pub(crate) fn lists(self, version: Version) -> bool {
        self.has(version) && (self == Self::Both || version != Version::Own)
    }
}

/// Which groups have the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// Every group.
    Everywhere,
    /// Every group but the root, as in version 2.
    NotRoot,
    /// The root alone: what concerns the whole pool.
    RootOnly,
}

/// Read by all, written by nobody.
pub(crate) const SHOWN: u16 = 0o444;
/// Read by all, written by the owner.
pub(crate) const SET: u16 = 0o644;
/// Written by the owner, read by nobody.
pub(crate) const DONE: u16 = 0o200;

/// Makes the content of a file.
pub type ReadFn = fn(&FileContext<'_>) -> Result<String, ControlError>;
/// Acts on what was written to a file.
pub type WriteFn = fn(&FileContext<'_>, &[u8]) -> Result<(), ControlError>;

/// A control file as every group has it.
#[derive(Debug, Clone, Copy)]
pub struct Row {
    /// The file's name.
    pub name: &'static str,
    /// Where the name comes from.
    pub version: Version,
    /// Mode bits of the file in a fresh group.
    pub mode: u16,
    /// Which groups have it.
    pub place: Place,
    /// Makes the content; none for a file that cannot be read.
    pub read: Option<ReadFn>,
    /// Takes what is written; none for a file that cannot be written.
    pub write: Option<WriteFn>,
    /// Whether a write may wait for reclaim.
    pub write_reclaims: bool,
    /// What it is, in one line.
    pub doc: &'static str,
}

/// The size that `stat` shows of a file that can be read. As in sysfs, a page: tools know that less may be there, and
/// those that let the kernel copy would take a file of size 0 for an empty one.
const SHOWN_BYTES: u64 = 4096;

impl Row {
    /// The size that `stat` shows.
    pub(crate) fn shown_bytes(&self) -> u64 {
        if self.read.is_some() { SHOWN_BYTES } else { 0 }
    }

    /// Whether a group has this file.
    pub fn is_in(&self, is_root: bool) -> bool {
        match self.place {
            Place::Everywhere => true,
            Place::NotRoot => !is_root,
            Place::RootOnly => is_root,
        }
    }
}

/// What a row's functions act on.
#[derive(Debug)]
pub struct FileContext<'a> {
    /// The tree.
    pub tree: &'a ControlTree,
    /// The group whose file it is. Alive when the operation began.
    pub group: &'a Arc<Group>,
    /// The open file.
    pub file: &'a OpenFile,
    /// Who is asking, and whether he still wants it.
    pub request: &'a Request<'a>,
}

/// Whether a group cannot have this name, because a control file has it or may have it one day.
pub fn is_control_file_name(name: &OsStr) -> bool {
    let name = name.as_encoded_bytes();
    [b"memory.".as_slice(), b"cgroup.", b"vm.", b"umemcg."].iter().any(|prefix| name.starts_with(prefix))
        || find(name).is_some()
}

/// The row of this name and its number.
pub(crate) fn find(name: &[u8]) -> Option<(u8, &'static Row)> {
    let at = ROWS.iter().position(|row| row.name.as_bytes() == name)?;
    Some((at as u8, &ROWS[at]))
}
