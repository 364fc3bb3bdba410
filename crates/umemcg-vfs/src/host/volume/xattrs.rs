//! Extended attributes, passed to the host's file.
//!
//! The host decides about the names: it accepts `user.` on regular files and directories, access
//! lists (`system.posix_acl_…`), `security.` and `trusted.` as far as the daemon is allowed. Names
//! in `trusted.` are listed for the superuser only, as the kernel's own file systems do; the kernel
//! has checked permissions before it asks.

use std::ffi::{CStr, CString, OsStr};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

use rustix::fs::XattrFlags;
use rustix::io::Errno;

use super::HostVolume;
use crate::attr::NodeId;
use crate::caller::Caller;
use crate::error::VfsError;
use crate::host::content::Content;
use crate::host::syscalls;
use crate::name::NAME_MAX;
use crate::privileges::{CAPABILITIES, SET_GID};
use crate::volume::Xattrs;

/// Longest value, in bytes (`XATTR_SIZE_MAX`).
const VALUE_MAX: usize = 64 << 10;
/// Longest list, in bytes (`XATTR_LIST_MAX`).
const LIST_MAX: usize = 64 << 10;

fn attribute(name: &OsStr) -> Result<CString, Errno> {
    if name.is_empty() || name.len() > NAME_MAX {
        return Err(Errno::RANGE);
    }
    CString::new(name.as_bytes()).map_err(|_| Errno::INVAL)
}

impl Xattrs for HostVolume {
    /// Returns the value of an extended attribute.
    ///
    /// # Errors
    /// `ENODATA`, `EOPNOTSUPP`, `ERANGE` for an empty or too long name, and the host's.
    fn getxattr(&self, node: NodeId, name: &OsStr) -> Result<Vec<u8>, VfsError> {
        let name = attribute(name)?;
        let held = self.inodes.descriptor(node)?;
        let path = syscalls::path_of(held.as_fd());
        // Write-back removes capabilities for a moment.
        let content = self.content_with_capabilities(node, &name)?;
        let _look = content.as_ref().map(|content| content.store.times.shared());
        let value = sized(VALUE_MAX, |buffer| rustix::fs::getxattr(&*path, &name, buffer));
        if let Some(content) = &content {
            content.store.privileges.shown.note(value.is_ok());
        }
        Ok(value?)
    }

    /// Returns whether the inode is known to lack the attribute: a new file has no capabilities
    /// until they are set, and neither has a file after a write has cleared them.
    fn is_known_absent(&self, node: NodeId, name: &OsStr) -> bool {
        let is_exclusive = || self.inodes.kernel.get().is_some_and(|kernel| kernel.is_exclusive());
        if name.as_bytes() != CAPABILITIES.as_bytes() || !is_exclusive() {
            return false;
        }
        let content = self.inodes.find(node).ok().and_then(|found| found.content);
        let known = content.filter(|content| !content.store.privileges.may_have_capabilities());
        known.is_some_and(|content| {
            content.store.privileges.shown.note(false);
            true
        })
    }

    /// Sets an extended attribute. `kill_set_gid`: an access list set by a process outside the
    /// file's group.
    ///
    /// # Errors
    /// `EEXIST`, `ENODATA`, `ENOSPC`, `E2BIG`, `EPERM`, `EOPNOTSUPP`, and the host's.
    fn setxattr(
        &self,
        _caller: &Caller,
        node: NodeId,
        name: &OsStr,
        value: &[u8],
        flags: XattrFlags,
        kill_set_gid: bool,
    ) -> Result<(), VfsError> {
        let name = attribute(name)?;
        let held = self.inodes.descriptor(node)?;
        self.change_attributes(node, &held, || {
            rustix::fs::setxattr(&*syscalls::path_of(held.as_fd()), &name, value, flags)?;
            let mode = syscalls::stat_fd(&held)?.attr.mode;
            let loses_bit = kill_set_gid && mode & SET_GID != 0;
            if loses_bit { syscalls::chmod(held.as_fd(), mode & !SET_GID) } else { Ok(()) }
        })
    }

    /// Returns the names of the extended attributes, each followed by a zero byte; `trusted.` ones
    /// only for the superuser.
    ///
    /// # Errors
    /// The host's.
    fn listxattr(&self, caller: &Caller, node: NodeId) -> Result<Vec<u8>, VfsError> {
        let held = self.inodes.descriptor(node)?;
        let path = syscalls::path_of(held.as_fd());
        let list = sized(LIST_MAX, |buffer| rustix::fs::listxattr(&*path, buffer))?;
        if caller.uid == 0 {
            return Ok(list);
        }
        let names = list.split_inclusive(|&b| b == 0).filter(|name| !name.starts_with(b"trusted."));
        Ok(names.flatten().copied().collect())
    }

    /// Removes an extended attribute.
    ///
    /// # Errors
    /// `ENODATA`, `EPERM`, and the host's. Removing capabilities succeeds if they were shown and
    /// have been cleared since.
    fn removexattr(&self, _: &Caller, node: NodeId, name: &OsStr) -> Result<(), VfsError> {
        let name = attribute(name)?;
        let held = self.inodes.descriptor(node)?;
        let removed = self.change_attributes(node, &held, || {
            rustix::fs::removexattr(&*syscalls::path_of(held.as_fd()), &name)
        });
        match self.content_with_capabilities(node, &name)? {
            Some(content) => {
                let is_missing = |error: &VfsError| error.errno() == Errno::NODATA;
                content.store.privileges.shown.removed(removed, is_missing)
            }
            None => removed,
        }
    }
}

impl HostVolume {
    /// Returns the content of a node if the attribute is its capabilities.
    fn content_with_capabilities(&self, node: NodeId, name: &CStr) -> Result<Option<Arc<Content>>, VfsError> {
        let is_theirs = name.to_bytes() == CAPABILITIES.as_bytes();
        Ok(if is_theirs { self.inodes.find(node)?.content } else { None })
    }

    fn change_attributes(
        &self,
        node: NodeId,
        held: &Arc<OwnedFd>,
        change: impl FnOnce() -> Result<(), Errno>,
    ) -> Result<(), VfsError> {
        match self.inodes.find(node)?.content {
            Some(content) => Ok(content.change_xattrs(held.as_fd(), change)?),
            None => Ok(change()?),
        }
    }
}

/// Runs a call with a small buffer, and if that is too small, with a buffer of `max` bytes.
fn sized(max: usize, call: impl Fn(&mut [u8]) -> Result<usize, Errno>) -> Result<Vec<u8>, Errno> {
    const FIRST: usize = 256;
    for len in [FIRST, max] {
        let mut buffer = vec![0; len];
        match call(&mut buffer) {
            Err(Errno::RANGE) if len == FIRST => {}
            result => {
                buffer.truncate(result?);
                return Ok(buffer);
            }
        }
    }
    Err(Errno::RANGE)
}
