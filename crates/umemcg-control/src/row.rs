//! A control file is one row of a table. Directory listings, permissions, dispatch and
//! documentation all come from the rows, so nothing about a file is stated twice.

use std::fmt::Display;

use crate::context::FileContext;
use crate::error::ControlError;
use crate::file_id::FileId;
use crate::style::Version;

/// The groups that have the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// Every group.
    Everywhere,
    /// Every group but the root, as in version 2.
    NotRoot,
    /// The root alone, for files that concern the whole pool.
    RootOnly,
}

/// Readable for all.
const READABLE: u16 = 0o444;
/// Writable for the owner.
const WRITABLE: u16 = 0o200;

/// The content of a file.
pub type ReadResult = Result<String, ControlError>;
/// The outcome of a write to a file.
pub type WriteResult = Result<(), ControlError>;
/// Makes the content of a file.
pub type ReadFn = fn(&FileContext<'_>) -> ReadResult;
/// Handles a text written to a file.
pub type WriteFn = fn(&FileContext<'_>, &[u8]) -> WriteResult;

/// A control file, present in every group of its scope.
#[derive(Debug, Clone, Copy)]
pub struct Row {
    /// The file's name.
    pub name: &'static str,
    /// The version of Linux's interface with this name.
    pub version: Version,
    /// Mode bits of the file in a fresh group.
    pub mode: u16,
    /// The groups with this file.
    pub scope: Scope,
    /// Makes the content; none for an unreadable file.
    pub read: Option<ReadFn>,
    /// Handles a write; none for a read-only file.
    pub write: Option<WriteFn>,
    /// True if a write may wait for reclaim.
    pub write_reclaims: bool,
    /// Its description, in one line.
    pub doc: &'static str,
}

/// The size shown by `stat` for a readable file. One page, as in sysfs: tools expect less content,
/// and tools with in-kernel copies would treat a file of size 0 as empty.
const SHOWN_BYTES: u64 = 4096;

impl Row {
    /// Returns a row without functions and description, which the following methods add.
    pub(crate) const fn new(name: &'static str, version: Version, scope: Scope) -> Self {
        Self { name, version, mode: 0, scope, read: None, write: None, write_reclaims: false, doc: "" }
    }

    /// Makes the file readable for all.
    pub(crate) const fn read(self, read: ReadFn) -> Self {
        Self { mode: self.mode | READABLE, read: Some(read), ..self }
    }

    /// Makes the file writable for its owner.
    pub(crate) const fn write(self, write: WriteFn) -> Self {
        Self { mode: self.mode | WRITABLE, write: Some(write), ..self }
    }

    /// Makes the file readable for all and writable for its owner.
    pub(crate) const fn read_write(self, read: ReadFn, write: WriteFn) -> Self {
        self.read(read).write(write)
    }

    /// Lets a write wait for reclaim.
    pub(crate) const fn write_reclaims(self) -> Self {
        Self { write_reclaims: true, ..self }
    }

    /// Adds the description, in one line.
    pub(crate) const fn doc(self, doc: &'static str) -> Self {
        Self { doc, ..self }
    }

    /// Returns the size shown by `stat`.
    pub(crate) fn shown_bytes(&self) -> u64 {
        if self.read.is_some() { SHOWN_BYTES } else { 0 }
    }

    /// Returns the part of the row used by lower modules.
    pub(crate) fn id(&self, number: u8) -> FileId {
        FileId { number, name: self.name, mode: self.mode, write_reclaims: self.write_reclaims }
    }

    /// Returns whether a group has this file.
    pub fn is_in(&self, is_root: bool) -> bool {
        match self.scope {
            Scope::Everywhere => true,
            Scope::NotRoot => !is_root,
            Scope::RootOnly => is_root,
        }
    }
}

/// Returns the content of a file with one value: a line.
pub(crate) fn line(value: impl Display) -> ReadResult {
    Ok(format!("{value}\n"))
}
