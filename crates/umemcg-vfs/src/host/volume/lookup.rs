//! Finding inodes of a host volume by name, and counting references to them.

use std::ffi::{CStr, OsStr};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::io::Errno;
use umemcg::ChargeEffort;

use super::HostVolume;
use crate::attr::{Attr, Entry, FileKind, NodeId};
use crate::caller::Caller;
use crate::error::VfsError;
use crate::host::descriptor_share::DescriptorShare;
use crate::host::inode_names::{NameCharge, is_long};
use crate::host::inode_table::NodeCharge;
use crate::host::name_shrinker;
use crate::host::syscalls::{self, HostStat};
use crate::name::component;
use crate::volume::{Attributes, Lookup, Volume};

impl Lookup for HostVolume {
    /// Finds a name in a directory and counts one reference to its inode. The memory for it is
    /// charged to the caller's group, or to an ancestor if the group has no room.
    ///
    /// # Errors
    /// `ENOENT`; `ENOMEM` if the pool is full of unreclaimable memory; `EXDEV` for a name on
    /// another file system (a mount point inside the directory); `ESTALE` if the directory is gone;
    /// the host's.
    fn lookup(&self, caller: &Caller, parent: NodeId, name: &OsStr) -> Result<Entry, VfsError> {
        let name = component(name)?;
        let dir = self.directory(parent)?;
        self.lookup_in(self.inodes.charge_effort(), caller, parent, (&dir, &name))
    }

    /// Releases `nr_lookups` references. Unknown nodes are ignored. May sleep for the host if a
    /// file without a name is forgotten during its write-back.
    fn forget(&self, node: NodeId, nr_lookups: u64) {
        let inodes = &self.inodes;
        inodes.forget_listing(node, nr_lookups);
        let (removed, is_newly_kept) = inodes.table.forget(node, nr_lookups, inodes.max_kept > 0);
        inodes.dispose(removed);
        if is_newly_kept {
            inodes.keep(node);
        }
        // A file without a name cannot be reached again, so its dirty data need not be written.
        let abandoned = inodes.table.with(node, |entry| {
            let is_abandoned = entry.lingers && entry.is_nameless && !entry.is_looked_up();
            entry.content.clone().filter(|_| is_abandoned)
        });
        if let Some(content) = abandoned.flatten() {
            content.discard();
            inodes.stop_lingering(node);
        }
    }
}

impl HostVolume {
    /// Counts a lookup of a name in a directory. If there is no room, waits for reclaim as the
    /// effort says.
    pub(crate) fn lookup_in(
        &self,
        effort: ChargeEffort,
        caller: &Caller,
        parent: NodeId,
        (dir, name): (&OwnedFd, &CStr),
    ) -> Result<Entry, VfsError> {
        let stat = syscalls::stat_name(dir, name)?;
        self.enter(effort, caller, parent, (dir, name), &stat)
    }

    /// Counts a lookup of the host's inode under a name.
    pub(crate) fn enter(
        &self,
        effort: ChargeEffort,
        caller: &Caller,
        parent: NodeId,
        (dir, name): (&OwnedFd, &CStr),
        stat: &HostStat,
    ) -> Result<Entry, VfsError> {
        let inodes = &self.inodes;
        if !inodes.host_dir.owns(stat) {
            return Err(Errno::XDEV.into());
        }
        inodes.host_dir.clock.saw(stat.attr.ctime);
        let bytes = name.to_bytes();
        let node = match inodes.table.count_known(stat.key(), stat.kind, parent, bytes) {
            Some(node) => node,
            None => {
                let (engine, group) = (&inodes.engine, &caller.group);
                let charge = NodeCharge::take(effort, engine, group)?;
                // If the inode is known already, this is a further name of it.
                let is_dear = is_long(bytes) || inodes.table.find(stat.key()).is_some();
                let for_name = is_dear.then(|| NameCharge::take(effort, engine, group)).transpose()?;
                inodes.table.lists_or(|| name_shrinker::register(inodes));
                let handle = inodes.handle_of(dir, name);
                let (node, removed) = inodes
                    .table
                    .count(stat.key(), stat.kind, (handle, Some(charge)), parent, (bytes, for_name))
                    .ok_or(Errno::STALE)?;
                inodes.dispose(removed);
                node
            }
        };
        match self.attr_after(node, stat) {
            Ok(attr) => Ok(Entry { node, generation: 0, attr }),
            Err(error) => {
                self.forget(node, 1);
                Err(error)
            }
        }
    }

    /// Counts a lookup of a new inode without a name, held by this descriptor. `share` is the
    /// descriptor's share if the file may be open without an open here.
    pub(crate) fn enter_nameless(
        &self,
        caller: &Caller,
        stat: &HostStat,
        (held, share): (OwnedFd, Option<DescriptorShare>),
    ) -> Result<Entry, VfsError> {
        let inodes = &self.inodes;
        inodes.host_dir.clock.saw(stat.attr.ctime);
        let charge = NodeCharge::take(self.inodes.charge_effort(), &inodes.engine, &caller.group)?;
        inodes.table.lists_or(|| name_shrinker::register(inodes));
        let held = Arc::new(held);
        // Descriptors counted for a tenant need no other bound.
        let max_orphans = if share.is_some() { usize::MAX } else { inodes.max_held };
        let (node, too_many) = inodes.table.count_nameless(stat.key(), stat.kind, charge, held, max_orphans);
        if let Some(share) = share {
            inodes.orphan_shares.lock().insert(node, share);
        }
        if let Some(fd) = too_many {
            inodes.descriptors.put(node, fd);
        }
        Ok(Entry { node, generation: 0, attr: stat.attr })
    }

    /// Returns the attributes to show for an inode, given its host attributes just read.
    pub(crate) fn attr_after(&self, node: NodeId, stat: &HostStat) -> Result<Attr, VfsError> {
        if stat.kind != FileKind::Regular {
            return Ok(stat.attr);
        }
        match self.inodes.find(node)?.content {
            None => Ok(stat.attr),
            Some(content) => match content.peek_attr(stat) {
                Some(attr) => Ok(attr),
                None => {
                    let attr = self.getattr(node);
                    self.drop_changed(node);
                    attr
                }
            },
        }
    }

    /// Returns a descriptor of a directory, for operations on its names.
    pub(crate) fn directory(&self, node: NodeId) -> Result<Arc<OwnedFd>, Errno> {
        if self.inodes.find(node)?.kind != FileKind::Directory {
            return Err(Errno::NOTDIR);
        }
        self.inodes.descriptor(node)
    }
}
