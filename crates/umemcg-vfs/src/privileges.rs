//! The privileges of a file that a write clears: set-id bits and capabilities
//! (`security.capability`). These rules hold for every kind of volume.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::attr::FileKind;
use crate::caller::Caller;

/// `S_ISUID`.
pub(crate) const SET_UID: u32 = 0o4000;
/// `S_ISGID`.
pub(crate) const SET_GID: u32 = 0o2000;
/// `S_IXGRP`.
pub(crate) const GROUP_EXECUTE: u32 = 0o010;
/// The attribute with a file's capabilities.
pub(crate) const CAPABILITIES: &str = "security.capability";

/// Whether capabilities were shown since they were last removed.
///
/// Before the kernel changes the owner, length or allocation of a file, it reads the file's
/// capabilities and then removes them. If another write has cleared them in between, the removal
/// still succeeds, because a caller of `chown` or `truncate` must not see an error.
#[derive(Debug, Default)]
pub(crate) struct ShownCapabilities(AtomicBool);

impl ShownCapabilities {
    /// Notes whether the kernel was shown capabilities.
    pub(crate) fn note(&self, are_there: bool) {
        self.0.store(are_there, Ordering::Relaxed);
    }

    /// Returns the result to report for a removal.
    pub(crate) fn removed<E>(&self, result: Result<(), E>, is_missing: impl Fn(&E) -> bool) -> Result<(), E> {
        match (self.0.swap(false, Ordering::Relaxed), result) {
            (true, Err(error)) if is_missing(&error) => Ok(()),
            (_, result) => result,
        }
    }
}

/// Returns the group and the mode of a new inode in a directory of this mode and group: a
/// set-group-ID directory passes on its group, and to directories the bit (inode(7)).
pub(crate) fn group_and_mode_in(
    (dir_mode, dir_gid): (u32, u32),
    caller: &Caller,
    kind: FileKind,
    mode: u32,
) -> (u32, u32) {
    let gid = if dir_mode & SET_GID != 0 { dir_gid } else { caller.gid };
    if kind == FileKind::Directory {
        return (gid, mode & 0o1777 | dir_mode & SET_GID);
    }
    let runs_as_group = mode & SET_GID != 0 && mode & GROUP_EXECUTE != 0;
    let denied = if runs_as_group && !caller.is_in_group(gid) { SET_GID } else { 0 };
    (gid, mode & 0o7777 & !denied)
}

/// Returns a mode after a write by an unprivileged process: without set-user-id, and without
/// set-group-id if the file is executable by its group (otherwise the bit marks mandatory locking).
pub(crate) fn mode_without_set_id(mode: u32) -> u32 {
    let mode_bits = mode & 0o7777;
    if mode_bits & GROUP_EXECUTE != 0 { mode & !(SET_UID | SET_GID) } else { mode & !SET_UID }
}
