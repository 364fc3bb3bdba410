//! Extended attributes of groups and control files: notes of programs to each other, such as
//! systemd's `trusted.delegate` and `user.oomd_omit`.
//!
//! The kernel's rules hold: `user.` is for every user with read or write access to the directory or
//! file, `trusted.` for root alone, and other names are refused. The memory of an attribute is
//! charged to the group, and freed with the group.

use std::ffi::OsStr;

use umemcg::internal::AccountedCharge;
use umemcg::{Group, StatItem};

use super::ControlTree;
use crate::error::ControlError;
use crate::file_id::FileId;
use crate::node::NodeId;
use crate::permission::{Credentials, READ, WRITE};
use crate::xattrs::{Namespace, SetXattr, XATTR_BYTES, Xattr, admit, key, namespace, of_node};

impl ControlTree {
    /// Returns the value of an attribute.
    ///
    /// # Errors
    /// `NoAttribute`, also for a `trusted.` attribute unless the caller is root; `Denied`,
    /// `NotSupported`, `Invalid`, `NotFound`.
    #[doc(alias = "kernfs_xattr_get")]
    pub fn xattr(&self, node: NodeId, name: &OsStr, caller: &Credentials) -> Result<Vec<u8>, ControlError> {
        let (group, file) = self.resolve(node)?;
        if self.check_xattr(&group, file, name, READ, caller)? == Namespace::Trusted && caller.uid != 0 {
            return Err(ControlError::NoAttribute);
        }
        let names = self.state.control(&group).xattrs.0.lock();
        names.get(&key(file, name)).map(|xattr| xattr.value.to_vec()).ok_or(ControlError::NoAttribute)
    }

    /// Returns the names of all attributes visible to `caller`, each followed by a NUL.
    ///
    /// # Errors
    /// `NotFound`.
    #[doc(alias = "simple_xattr_list")]
    pub fn xattr_names(&self, node: NodeId, caller: &Credentials) -> Result<Vec<u8>, ControlError> {
        let (group, file) = self.resolve(node)?;
        let names = self.state.control(&group).xattrs.0.lock();
        let mut list = Vec::new();
        for (name, _) in of_node(&names, file)
            .filter(|(name, _)| caller.uid == 0 || name.starts_with(Namespace::User.prefix()))
        {
            list.extend_from_slice(name);
            list.push(0);
        }
        Ok(list)
    }

    /// Sets an attribute. Charges its memory to the group. May wait for reclaim.
    ///
    /// # Errors
    /// `Exists` and `NoAttribute` as `how` says; `NoSpace` for more than `NR_XATTRS_MAX` or
    /// `XATTR_VALUES_BYTES_MAX`, `NoMemory`; `NotPermitted` for a `trusted.` attribute unless the
    /// caller is root; `Denied`, `NotSupported`, `Invalid`, `NotFound`.
    #[doc(alias = "kernfs_xattr_set")]
    pub fn set_xattr(
        &self,
        node: NodeId,
        name: &OsStr,
        value: &[u8],
        how: SetXattr,
        caller: &Credentials,
    ) -> Result<(), ControlError> {
        let (group, file) = self.resolve(node)?;
        self.check_change_of_xattr(&group, file, name, caller)?;
        let xattrs = &self.state.control(&group).xattrs;
        // Refuse before any reclaim. `insert` checks again for concurrent changes.
        admit(&xattrs.0.lock(), file, name, value.len(), how)?;
        let bytes = XATTR_BYTES + (name.len() + value.len()) as u64;
        let charge = self.state.engine().charge(&group, bytes).map_err(|_| ControlError::NoMemory)?;
        let charge = AccountedCharge::new(charge, StatItem::SlabUnreclaimable);
        xattrs.insert(file, name, Xattr { value: value.into(), _charge: charge }, how)
    }

    /// Removes an attribute.
    ///
    /// # Errors
    /// `NoAttribute`; `NotPermitted` for a `trusted.` attribute unless the caller is root;
    /// `Denied`, `NotSupported`, `Invalid`, `NotFound`.
    pub fn remove_xattr(&self, node: NodeId, name: &OsStr, caller: &Credentials) -> Result<(), ControlError> {
        let (group, file) = self.resolve(node)?;
        self.check_change_of_xattr(&group, file, name, caller)?;
        self.state.control(&group).xattrs.remove(file, name)
    }

    fn check_change_of_xattr(
        &self,
        group: &Group,
        file: Option<FileId>,
        name: &OsStr,
        caller: &Credentials,
    ) -> Result<(), ControlError> {
        match self.check_xattr(group, file, name, WRITE, caller)? {
            Namespace::Trusted if caller.uid != 0 => Err(ControlError::NotPermitted),
            _ => Ok(()),
        }
    }

    /// Checks a request for an attribute. The mode bits of the directory or file rule over its
    /// `user.` attributes.
    #[doc(alias = "xattr_permission")]
    fn check_xattr(
        &self,
        group: &Group,
        file: Option<FileId>,
        name: &OsStr,
        wanted: u16,
        caller: &Credentials,
    ) -> Result<Namespace, ControlError> {
        let namespace = namespace(name)?;
        if namespace == Namespace::User && !self.state.control(group).owner(file).grants(caller, wanted) {
            return Err(ControlError::Denied);
        }
        Ok(namespace)
    }
}
