//! Extended attributes on a volume of objects: user attributes (`user.`), if attributes are stored
//! with the objects.

use std::ffi::OsStr;

use rustix::fs::{OFlags, XattrFlags};
use rustix::io::Errno;

use super::ObjectVolume;
use super::file_labels::{FileLabels, LabelChange};
use super::node::Facts;
use super::relabeling::Relabeling;
use crate::attr::NodeId;
use crate::bucket::TenantScope;
use crate::caller::Caller;
use crate::error::VfsError;
use crate::volume::Xattrs;

/// The prefix of their names.
const USER: &str = "user.";

impl ObjectVolume {
    /// Returns the name of an attribute, if a file may have it.
    fn xattr_name<'n>(&self, name: &'n OsStr) -> Option<&'n str> {
        let name = name.to_str().filter(|name| name.starts_with(USER));
        name.filter(|_| self.objects.shown.are_stored)
    }

    fn change_xattrs(&self, caller: &Caller, node: NodeId, change: LabelChange<'_>) -> Result<(), VfsError> {
        let _scope = TenantScope::of(&caller.group);
        let drafts = self.drafts()?;
        let is_directory = {
            let tree = self.objects.tree.lock();
            let found = tree.get(node).or_else(|errno| tree.removed(node).ok_or(errno))?;
            matches!(found.facts, Facts::Directory(_))
        };
        if is_directory {
            return self.relabel_directory(node, change);
        }
        if let Some((streams, stream)) = self.stream_of(node)
            && streams.change_named_labels(&stream, change)?
        {
            return Ok(());
        }
        let file = self.open_file(caller, node, OFlags::RDWR)?;
        // A change of a file being written is stored with its bytes.
        let at_once = !file.is_unsaved();
        let changed = Relabeling { drafts, node, content: file.object(), group: &caller.group, change }.run();
        file.store_by_name(at_once, changed)
    }
}

impl Xattrs for ObjectVolume {
    fn getxattr(&self, node: NodeId, name: &OsStr) -> Result<Vec<u8>, VfsError> {
        let name = self.xattr_name(name).ok_or(Errno::NODATA)?;
        Ok(self.labels(node)?.xattrs().remove(name).ok_or(Errno::NODATA)?)
    }

    fn is_known_absent(&self, _: NodeId, name: &OsStr) -> bool {
        self.xattr_name(name).is_none()
    }

    fn setxattr(
        &self,
        caller: &Caller,
        node: NodeId,
        name: &OsStr,
        value: &[u8],
        flags: XattrFlags,
        _: bool,
    ) -> Result<(), VfsError> {
        self.drafts()?;
        let name = self.xattr_name(name).ok_or(Errno::OPNOTSUPP)?;
        self.change_xattrs(caller, node, &|labels: &mut FileLabels| labels.set_xattr(name, value, flags))
    }

    fn listxattr(&self, _: &Caller, node: NodeId) -> Result<Vec<u8>, VfsError> {
        if !self.objects.shown.are_stored {
            return Ok(Vec::new());
        }
        let names = self.labels(node)?.xattrs().into_keys().filter(|name| name.starts_with(USER));
        Ok(names.flat_map(|name| [name.as_bytes(), b"\0"].concat()).collect())
    }

    fn removexattr(&self, caller: &Caller, node: NodeId, name: &OsStr) -> Result<(), VfsError> {
        self.drafts()?;
        let name = self.xattr_name(name).ok_or(Errno::NODATA)?;
        self.change_xattrs(caller, node, &|labels: &mut FileLabels| labels.remove_xattr(name))
    }
}
