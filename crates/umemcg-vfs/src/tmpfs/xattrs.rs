//! Extended attributes: `user.`, `trusted.`, `security.` and access lists. The kernel has checked
//! permissions before it asks; names in `trusted.` are listed for the superuser only. Each is
//! charged to the group of the caller setting it.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::Ordering;

use rustix::fs::XattrFlags;
use rustix::io::Errno;

use super::Tmpfs;
use super::acl::{self, Acl};
use super::inode::{Inode, Xattr};
use crate::attr::{FileKind, NodeId};
use crate::caller::Caller;
use crate::error::VfsError;
use crate::name::NAME_MAX;
use crate::privileges::{CAPABILITIES, SET_GID};
use crate::slab::Slab;
use crate::volume::Xattrs;

/// The cost of an attribute beside the bytes of name and value.
pub(super) const XATTR_BYTES: u64 = 128;
/// The longest value, in bytes (`XATTR_SIZE_MAX`).
const VALUE_MAX: usize = 64 << 10;
/// The most bytes of all names of an inode, each with its zero (`XATTR_LIST_MAX`).
const LIST_MAX: usize = 64 << 10;
/// The most bytes of all values of an inode.
const VALUES_MAX: usize = 1 << 20;

/// Returns the name, if its namespace is supported.
fn attribute(name: &OsStr) -> Result<&[u8], Errno> {
    let name = name.as_bytes();
    if name.is_empty() || name.len() > NAME_MAX {
        return Err(Errno::RANGE);
    }
    if name.contains(&0) {
        return Err(Errno::INVAL);
    }
    let is_known = [&b"user."[..], b"trusted.", b"security."]
        .iter()
        .any(|prefix| name.len() > prefix.len() && name.starts_with(prefix));
    if is_known || is_access_list(name) { Ok(name) } else { Err(Errno::OPNOTSUPP) }
}

fn is_access_list(name: &[u8]) -> bool {
    name == acl::ACCESS || name == acl::DEFAULT
}

/// Returns whether an inode has room for this value of an attribute, beside its other attributes.
fn fits(xattrs: &BTreeMap<Box<[u8]>, Xattr>, name: &[u8], value: &[u8]) -> bool {
    let others = xattrs.iter().filter(|(other, _)| ***other != *name);
    let (names, values) = others.fold((name.len() + 1, value.len()), |(names, values), (other, xattr)| {
        (names + other.len() + 1, values + xattr.value.len())
    });
    names <= LIST_MAX && values <= VALUES_MAX
}

/// Checks that an inode may have the attribute: only files and directories have `user.` attributes.
fn may_have(inode: &Inode, name: &[u8]) -> Result<(), Errno> {
    let is_filled = matches!(inode.kind, FileKind::Regular | FileKind::Directory);
    if is_filled || !name.starts_with(b"user.") { Ok(()) } else { Err(Errno::PERM) }
}

/// Returns the access list in an attribute's value, if the attribute is an access list.
///
/// # Errors
/// `EINVAL`, `EPERM`, `EOPNOTSUPP`, `EACCES`.
fn access_list(inode: &Inode, name: &[u8], value: &[u8]) -> Result<Option<Acl>, Errno> {
    let is_list = is_access_list(name);
    let list = if is_list { Acl::parse(value)? } else { None };
    may_have(inode, name)?;
    if is_list && inode.kind == FileKind::Symlink {
        return Err(Errno::OPNOTSUPP);
    }
    if name == acl::DEFAULT && !inode.is_directory() && list.is_some() {
        return Err(Errno::ACCESS);
    }
    Ok(list)
}

impl Xattrs for Tmpfs {
    /// # Errors
    /// `ENODATA`, `EOPNOTSUPP`, `ERANGE`.
    fn getxattr(&self, node: NodeId, name: &OsStr) -> Result<Vec<u8>, VfsError> {
        let (inode, name) = (self.inode(node)?, attribute(name)?);
        let value = inode.meta.lock().xattrs.get(name).map(|xattr| xattr.value.to_vec());
        if name == CAPABILITIES.as_bytes() {
            inode.shown_capabilities.note(value.is_some());
        }
        Ok(value.ok_or(Errno::NODATA)?)
    }

    /// # Errors
    /// `EEXIST`, `ENODATA`, `ENOSPC`, `E2BIG`, `EOPNOTSUPP`, `EPERM`, `EACCES` for a default list
    /// on anything but a directory, `EINVAL` for an invalid access list.
    fn setxattr(
        &self,
        caller: &Caller,
        node: NodeId,
        name: &OsStr,
        value: &[u8],
        flags: XattrFlags,
        kill_set_gid: bool,
    ) -> Result<(), VfsError> {
        let (inode, name) = (self.inode(node)?, attribute(name)?);
        if value.len() > VALUE_MAX {
            return Err(Errno::TOOBIG.into());
        }
        if !(XattrFlags::CREATE | XattrFlags::REPLACE).contains(flags) {
            return Err(Errno::INVAL.into());
        }
        let list = access_list(&inode, name, value)?;
        let is_kept = match &list {
            // A list equivalent to permission bits is stored as permission bits.
            Some(list) => name == acl::DEFAULT || !list.is_minimal(),
            None => !is_access_list(name),
        };
        let bytes = XATTR_BYTES + (name.len() + value.len()) as u64;
        let charge = is_kept.then(|| Slab::take(&self.engine, &caller.group, bytes)).transpose()?;
        let mut meta = inode.meta.lock();
        if is_kept && !fits(&meta.xattrs, name, value) {
            drop(meta);
            return Err(Errno::NOSPC.into());
        }
        let old = match meta.xattrs.entry(name.into()) {
            Entry::Occupied(_) if flags.contains(XattrFlags::CREATE) => Err(Errno::EXIST),
            Entry::Vacant(_) if flags.contains(XattrFlags::REPLACE) => Err(Errno::NODATA),
            Entry::Occupied(mut there) => Ok(match charge {
                Some(charge) => Some(there.insert(Xattr { value: value.into(), _charge: charge })),
                None => Some(there.remove()),
            }),
            Entry::Vacant(place) => {
                if let Some(charge) = charge {
                    place.insert(Xattr { value: value.into(), _charge: charge });
                }
                Ok(None)
            }
        };
        if old.is_ok() {
            if let Some(list) = list.filter(|_| name == acl::ACCESS) {
                meta.mode = meta.mode & !0o777 | list.permissions();
            }
            if kill_set_gid {
                meta.mode &= !SET_GID;
            }
            meta.changed();
            inode.may_have_privileges.store(true, Ordering::Relaxed);
        }
        drop(meta);
        drop(old?);
        Ok(())
    }

    fn listxattr(&self, caller: &Caller, node: NodeId) -> Result<Vec<u8>, VfsError> {
        let inode = self.inode(node)?;
        let meta = inode.meta.lock();
        let shown = meta.xattrs.keys().filter(|name| caller.uid == 0 || !name.starts_with(b"trusted."));
        Ok(shown.flat_map(|name| name.iter().copied().chain([0])).collect())
    }

    /// # Errors
    /// `ENODATA`, `EOPNOTSUPP`, `EPERM`.
    fn removexattr(&self, _: &Caller, node: NodeId, name: &OsStr) -> Result<(), VfsError> {
        let (inode, name) = (self.inode(node)?, attribute(name)?);
        may_have(&inode, name)?;
        let mut meta = inode.meta.lock();
        let removed = meta.xattrs.remove(name);
        if removed.is_some() {
            meta.changed();
        }
        drop(meta);
        // Removing a nonexistent access list succeeds.
        let is_done = removed.is_some() || is_access_list(name);
        let result = if is_done { Ok(()) } else { Err(Errno::NODATA) };
        if name == CAPABILITIES.as_bytes() {
            return Ok(inode.shown_capabilities.removed(result, |errno| *errno == Errno::NODATA)?);
        }
        Ok(result?)
    }
}
