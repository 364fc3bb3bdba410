//! Operations on names: unlink, rmdir, rename, link.
//!
//! A referenced inode without a name keeps a descriptor, its *orphan* descriptor, until the last
//! reference is released: unless the file is open, there is no other way to reach it. The number of
//! orphan descriptors is bounded. If the kernel is slow to forget removed files, it gets `ESTALE`
//! for some of them, unless a process has them open.

use std::ffi::{CStr, OsStr};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{AtFlags, OFlags, RenameFlags};
use rustix::io::Errno;

use super::HostVolume;
use crate::attr::{Entry, FileKind, NodeId};
use crate::caller::Caller;
use crate::error::VfsError;
use crate::host::content::{NamePin, Opening};
use crate::host::descriptor_share::{DescriptorShare, Purpose};
use crate::host::inode_names::{NameCharge, is_long};
use crate::host::inode_table::Loss;
use crate::host::syscalls::{self, InodeKey};
use crate::name::component;
use crate::privileges::SET_GID;
use crate::tenant::tenant;
use crate::volume::Names;

/// An inode about to lose a name.
struct Victim {
    fd: OwnedFd,
    key: InodeKey,
    /// Whether it has no other name.
    has_one_name: bool,
    /// The pin of a possibly open file.
    pin: Option<NamePin>,
    /// Room for its descriptor, if it may be open without an open here.
    share: Option<DescriptorShare>,
}

impl Names for HostVolume {
    /// Removes a name of anything but a directory.
    ///
    /// # Errors
    /// `EISDIR`, `ENOENT`, `ENFILE` if the caller's tenant has the file open and files without a
    /// name have used up its share of descriptors, and the host's.
    fn unlink(&self, caller: &Caller, parent: NodeId, name: &OsStr) -> Result<Option<NodeId>, VfsError> {
        let name = component(name)?;
        let dir = self.directory(parent)?;
        let victim = self.victim(&dir, &name, Some(caller))?;
        #[cfg(test)]
        crate::host::tests::pause_here();
        rustix::fs::unlinkat(&dir, &name, AtFlags::empty())?;
        self.lost_name(victim, Some(caller), parent, &name)
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// `ENOTEMPTY`, `ENOTDIR`, `ENOENT`, and the host's.
    fn rmdir(&self, _caller: &Caller, parent: NodeId, name: &OsStr) -> Result<(), VfsError> {
        let name = component(name)?;
        let dir = self.directory(parent)?;
        let victim = self.victim(&dir, &name, None)?;
        rustix::fs::unlinkat(&dir, &name, AtFlags::REMOVEDIR)?;
        self.lost_name(victim, None, parent, &name)?;
        Ok(())
    }

    /// Renames; `NOREPLACE`, `EXCHANGE` and `WHITEOUT` are supported. A whiteout belongs to the
    /// caller.
    ///
    /// # Errors
    /// `EINVAL` for other flags; `ENOMEM` if there is no room for a long name; the host's.
    fn rename(
        &self,
        caller: &Caller,
        parent: NodeId,
        name: &OsStr,
        new_parent: NodeId,
        new_name: &OsStr,
        flags: RenameFlags,
    ) -> Result<[Option<NodeId>; 2], VfsError> {
        if !(RenameFlags::NOREPLACE | RenameFlags::EXCHANGE | RenameFlags::WHITEOUT).contains(flags) {
            return Err(Errno::INVAL.into());
        }
        let (name, new_name) = (component(name)?, component(new_name)?);
        let (dir, new_dir) = (self.directory(parent)?, self.directory(new_parent)?);
        let moved = syscalls::stat_name(&dir, &name)?;
        if !self.inodes.host_dir.owns(&moved) {
            return Err(Errno::XDEV.into());
        }
        // An exchange removes no name.
        let remover = Some(caller).filter(|_| !flags.contains(RenameFlags::EXCHANGE));
        let victim = self.victim(&new_dir, &new_name, remover);
        let victim = match victim {
            Err(Errno::NOENT) => None,
            victim => Some(victim?),
        };
        let for_new = self.room_for(moved.key(), &new_name)?;
        let exchanged = victim.as_ref().filter(|_| flags.contains(RenameFlags::EXCHANGE));
        let for_old = exchanged.map(|victim| self.room_for(victim.key, &name)).transpose()?.flatten();
        rustix::fs::renameat_with(&dir, &name, &new_dir, &new_name, flags)?;
        if victim.as_ref().is_some_and(|v| v.key == moved.key()) {
            // Both names lead to one inode: the host changes nothing, or the exchange has no
            // effect.
            return Ok([None; 2]);
        }
        if flags.contains(RenameFlags::WHITEOUT) {
            self.give_away_whiteout(caller, &dir, &name);
        }
        let inodes = &self.inodes;
        let (old, new) = ((parent, name.to_bytes()), (new_parent, new_name.to_bytes()));
        let moved_node = inodes.table.find(moved.key());
        if let Some(node) = moved_node {
            inodes.dispose(inodes.table.name_added(node, Some(old), new.0, (new.1, for_new)));
            self.touched(node);
        }
        let Some(victim) = victim else { return Ok([moved_node, None]) };
        if flags.contains(RenameFlags::EXCHANGE) {
            let other = inodes.table.find(victim.key);
            if let Some(node) = other {
                inodes.dispose(inodes.table.name_added(node, Some(new), old.0, (old.1, for_old)));
                self.touched(node);
            }
            return Ok([moved_node, other]);
        }
        let remover = Some(caller).filter(|_| moved.kind != FileKind::Directory);
        Ok([moved_node, self.lost_name(victim, remover, new_parent, &new_name)?])
    }

    /// Gives an inode a further name.
    ///
    /// # Errors
    /// `EPERM` for a directory, `EEXIST`, `EMLINK`, `ENOENT` if the inode has lost its last name,
    /// and the host's.
    fn link(
        &self,
        caller: &Caller,
        node: NodeId,
        new_parent: NodeId,
        new_name: &OsStr,
    ) -> Result<Entry, VfsError> {
        let name = component(new_name)?;
        let dir = self.directory(new_parent)?;
        let held = self.inodes.descriptor(node)?;
        syscalls::link(held.as_fd(), dir.as_fd(), &name)?;
        // An inode without a name came from `tmpfile`: the host links no other.
        let orphan = self.inodes.table.named_again(node, || self.inodes.handle_of(&dir, &name));
        if let Some(fd) = orphan {
            self.inodes.descriptors.put(node, fd);
            let share = self.inodes.orphan_shares.lock().remove(&node);
            drop(share);
        }
        let stat = syscalls::stat_fd(&held)?;
        if let Some(content) = self.inodes.find(node)?.content {
            content.renamed(|| syscalls::stat_fd(&held))?;
        }
        self.enter(self.inodes.charge_effort(), caller, new_parent, (&dir, &name), &stat)
    }
}

impl HostVolume {
    /// Opens the inode under a name, before the name is removed. Unless it is a directory, it may
    /// be open: then its descriptors are reserved here.
    fn victim(&self, dir: &OwnedFd, name: &CStr, caller: Option<&Caller>) -> Result<Victim, Errno> {
        let fd = self.inodes.with_descriptors(|| syscalls::hold_name(dir, name))?;
        let stat = syscalls::stat_fd(&fd)?;
        if !self.inodes.host_dir.owns(&stat) {
            return Err(Errno::XDEV);
        }
        let key = stat.key();
        let pin = caller.map_or(Ok(None), |caller| self.pin_for_name(caller, &fd, key))?;
        let share = match caller.filter(|_| stat.attr.nlink == 1) {
            Some(caller) if self.may_be_open(key) => Some(self.inodes.room_for_orphan(&caller.group)?),
            _ => None,
        };
        Ok(Victim { fd, key, has_one_name: stat.attr.nlink == 1, pin, share })
    }

    /// Returns whether a file may be open without an open here. Opens made here are counted
    /// elsewhere.
    fn may_be_open(&self, key: InodeKey) -> bool {
        let table = &self.inodes.table;
        self.inodes.opens_silently()
            && table.find(key).is_some_and(|node| {
                table.with(node, |entry| entry.kind == FileKind::Regular && entry.is_looked_up())
                    == Some(true)
            })
    }

    /// Keeps the descriptor of an open file at the removal of its last name. The descriptor counts
    /// for the opener's tenant. A tenant with no share left cannot remove the file; a removal by
    /// another tenant succeeds, and the opener gets `ESTALE`.
    fn pin_for_name(&self, caller: &Caller, held: &OwnedFd, key: InodeKey) -> Result<Option<NamePin>, Errno> {
        let inodes = &self.inodes;
        let Some(node) = inodes.table.find(key) else { return Ok(None) };
        let Some(content) = inodes.find(node)?.content else { return Ok(None) };
        let opener = content.opener().unwrap_or_else(|| Arc::clone(&caller.group));
        let pinned = content.pin_for_name(&Opening {
            for_writing: false,
            can_reopen: inodes.can_reopen(node),
            room: &|| inodes.room_for_fds(&opener, Purpose::Open, true),
            open: &|_| inodes.with_descriptors(|| syscalls::reopen(held.as_fd(), OFlags::RDONLY)),
        });
        match pinned {
            // Where opens are silent, the orphan descriptor holds the file instead.
            Err(Errno::NFILE) if inodes.opens_silently() => Ok(None),
            Err(Errno::NFILE) if !Arc::ptr_eq(tenant(&opener), tenant(&caller.group)) => Ok(None),
            pinned => pinned.map(Some),
        }
    }

    /// Notes that an inode has lost a name, removed by this caller unless it is a directory.
    /// Returns the inode if it is known.
    fn lost_name(
        &self,
        victim: Victim,
        remover: Option<&Caller>,
        parent: NodeId,
        name: &CStr,
    ) -> Result<Option<NodeId>, VfsError> {
        let inodes = &self.inodes;
        let Some(node) = inodes.table.find(victim.key) else { return Ok(None) };
        // If only this mount changes the directory, the names are as before: the kernel adds no
        // name to an inode while it removes one.
        let is_exclusive = inodes.kernel.get().is_some_and(|kernel| kernel.is_exclusive());
        let is_last = remover.is_none()
            || (is_exclusive && victim.has_one_name)
            || syscalls::stat_fd(&victim.fd)?.attr.nlink == 0;
        if !is_last && let Some(content) = inodes.find(node)?.content {
            content.renamed(|| syscalls::stat_fd(&victim.fd))?;
        }
        if let (true, Some(pin)) = (is_last, victim.pin) {
            pin.keep();
        }
        let loss = if is_last { Loss::LastName(Arc::new(victim.fd)) } else { Loss::OneName };
        let mut max_orphans = inodes.max_held;
        // If all names are removed at once, each remover has seen another name.
        let late = remover.filter(|_| is_last && victim.share.is_none() && self.may_be_open(victim.key));
        let late = late.and_then(|caller| inodes.room_for_fds(&caller.group, Purpose::Reopen, true).ok());
        if let (true, Some(share)) = (is_last, victim.share.or(late)) {
            // A descriptor counted for a tenant needs no other bound.
            max_orphans = usize::MAX;
            let other = inodes.orphan_shares.lock().insert(node, share);
            drop(other);
        }
        let (removed, too_many) = inodes.table.name_removed(node, parent, name.to_bytes(), loss, max_orphans);
        inodes.dispose(removed);
        match too_many {
            // The descriptor is cached like any other, if there is room.
            Some(fd) => inodes.descriptors.put(node, fd),
            // The orphan descriptor is used instead from now on.
            None if is_last => inodes.descriptors.remove(node),
            None => {}
        }
        Ok(Some(node))
    }

    /// Makes the caller the owner of the whiteout left by a rename. If this fails, the daemon stays
    /// the owner.
    fn give_away_whiteout(&self, caller: &Caller, dir: &OwnedFd, name: &CStr) {
        let give = || {
            let fd = self.inodes.with_descriptors(|| syscalls::hold_name(dir, name))?;
            let stat = syscalls::stat_fd(&fd)?;
            // Another program may have replaced it on the host.
            let is_ours = stat.attr.uid == self.inodes.host_dir.uid && stat.attr.nlink == 1;
            let is_whiteout = stat.kind == FileKind::CharDevice && stat.attr.rdev == 0;
            let gid = (syscalls::stat_fd(dir)?.attr.mode & SET_GID == 0).then_some(caller.gid);
            if is_ours && is_whiteout { syscalls::chown(fd.as_fd(), Some(caller.uid), gid) } else { Ok(()) }
        };
        if self.inodes.host_dir.is_privileged
            && caller.uid != self.inodes.host_dir.uid
            && let Err(errno) = give()
        {
            tracing::debug!(%errno, "a whiteout stays the daemon's");
        }
    }

    /// Charges the new name of an inode to the group paying for the inode, if it is known and the
    /// name is long.
    fn room_for(&self, key: InodeKey, name: &CStr) -> Result<Option<NameCharge>, Errno> {
        let payer = self.inodes.table.payer(key).filter(|_| is_long(name.to_bytes()));
        payer
            .map(|payer| NameCharge::take(self.inodes.charge_effort(), &self.inodes.engine, &payer))
            .transpose()
    }

    /// Notes a change of an inode on the host by the daemon itself: its cached content must not
    /// count as changed from outside. If the inode's attributes cannot be read, the next open
    /// checks it.
    fn touched(&self, node: NodeId) {
        let Ok(found) = self.inodes.find(node) else { return };
        let Some(content) = found.content else { return };
        let _ = content.renamed(|| match content.fds() {
            Some(fds) => syscalls::stat_fd(&fds.buffered),
            None => self.inodes.descriptor(node).and_then(|fd| syscalls::stat_fd(&fd)),
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::tests::{Fixture, at_pause};
    use crate::kernel_cache::{IdleInode, KernelCache};
    use crate::volume::Volume;

    /// A kernel above a mount whose files are opened without a request.
    #[derive(Debug)]
    struct Kernel;

    impl KernelCache for Kernel {
        fn asks_by_name(&self) -> bool {
            false
        }
        fn let_go(&self, _idle: Vec<IdleInode>) -> bool {
            true
        }
        fn opens_silently(&self) -> bool {
            true
        }
    }

    #[test]
    fn two_names_that_are_removed_at_once_cost_a_descriptor() {
        let v = Fixture::new();
        v.vfs.set_kernel(Arc::new(Kernel));
        let (_, file) = v.create("one");
        let (caller, remover) = (v.caller(), v.caller());
        v.vfs.link(&caller, file.node(), NodeId::ROOT, OsStr::new("other")).unwrap();
        let (vfs, node) = (Arc::clone(&v.vfs), file.node());
        at_pause(move || _ = vfs.unlink(&remover, NodeId::ROOT, OsStr::new("other")).unwrap());
        v.vfs.unlink(&caller, NodeId::ROOT, OsStr::new("one")).unwrap();
        assert!(v.vfs.inodes.orphan_shares.lock().contains_key(&node));
    }
}
