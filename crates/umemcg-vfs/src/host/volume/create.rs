//! New objects: regular files, directories, links, pipes, sockets, devices.
//!
//! A new object belongs to the caller. The host creates it with the daemon as its owner, so its
//! ownership is changed afterwards:
//!
//! 1. The object is created with its final permission bits but without set-id bits, because the
//!    daemon owns it for a moment. The host applies the directory's default access list; where
//!    there is none, the caller's umask is applied here.
//! 2. Owner and group are set to the caller's. In a set-group-id directory, the group is the
//!    directory's.
//! 3. The mode is made exact, set-id bits included. A daemon without the privilege to change owners
//!    drops the set-id bits of other users' files: they would otherwise run as the daemon's user.
//!
//! If step 2 or 3 fails, or there is no memory for the inode's entry, the object is removed again.

use std::ffi::{CStr, CString, OsStr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;

use super::HostVolume;
use crate::attr::{Entry, FileKind, NodeId};
use crate::caller::Caller;
use crate::error::VfsError;
use crate::handle_charge::HandleCharge;
use crate::host::content::Content;
use crate::host::descriptor_share::{DescriptorShare, Purpose};
use crate::host::open_file::OpenFile;
use crate::host::syscalls::{self, HostStat};
use crate::name::component;
use crate::privileges::{GROUP_EXECUTE, SET_GID, SET_UID};
use crate::volume::{Create, Lookup, Open, VolumeFile};

/// The most attempts of `create` while another program keeps creating and removing the name.
const CREATE_TRIES_MAX: u32 = 8;

/// The properties of a new object.
#[derive(Debug, Clone, Copy)]
struct NewObject {
    kind: FileKind,
    /// `07777`, before the umask.
    mode: u32,
    /// The directory's default access list determines the permissions; the umask is ignored.
    by_acl: bool,
    umask: u32,
}

impl NewObject {
    /// Returns the mode bits for the creation on the host.
    fn first_mode(&self) -> Mode {
        Mode::from_raw_mode(self.bits() & 0o1777)
    }

    fn bits(&self) -> u32 {
        if self.by_acl { self.mode } else { self.mode & !self.umask }
    }
}

impl Create for HostVolume {
    /// Makes a symbolic link with any text.
    ///
    /// # Errors
    /// `EEXIST`, `ENOENT` for an empty text, `ENAMETOOLONG`, and the host's.
    fn symlink(
        &self,
        caller: &Caller,
        parent: NodeId,
        name: &OsStr,
        target: &OsStr,
    ) -> Result<Entry, VfsError> {
        let target = CString::new(target.as_bytes()).map_err(|_| Errno::INVAL)?;
        self.make(caller, parent, name, FileKind::Symlink, 0o777, |dir, name, _| {
            rustix::fs::symlinkat(&*target, dir, name)
        })
    }

    /// Makes a regular file, pipe, socket or device. `mode` carries the type (none means a regular
    /// file); `rdev` is encoded as `makedev` does.
    ///
    /// # Errors
    /// `EEXIST`, `EPERM` for a device without privilege, `EINVAL` for another type, and the host's.
    fn mknod(
        &self,
        caller: &Caller,
        parent: NodeId,
        name: &OsStr,
        mode: u32,
        rdev: u64,
    ) -> Result<Entry, VfsError> {
        let kind = FileKind::of_new_node(mode)?;
        self.make(caller, parent, name, kind, mode, |dir, name, first_mode| {
            rustix::fs::mknodat(dir, name, kind.file_type(), first_mode, rdev)
        })
    }

    /// Makes a directory. Of `mode` the permissions and the sticky bit count; set-group-id comes
    /// from the parent.
    ///
    /// # Errors
    /// `EEXIST`, `EMLINK`, and the host's.
    fn mkdir(&self, caller: &Caller, parent: NodeId, name: &OsStr, mode: u32) -> Result<Entry, VfsError> {
        self.make(caller, parent, name, FileKind::Directory, mode & 0o1777, |dir, name, first_mode| {
            rustix::fs::mkdirat(dir, name, first_mode)
        })
    }

    /// Creates and opens a regular file. Without `O_EXCL`, opens an existing one.
    ///
    /// # Errors
    /// `EEXIST` with `O_EXCL`; as [`open`](Open::open) for an existing file; and the host's.
    fn create(
        &self,
        caller: &Caller,
        parent: NodeId,
        name: &OsStr,
        mode: u32,
        flags: OFlags,
    ) -> Result<(Entry, Arc<dyn VolumeFile>), VfsError> {
        let c_name = component(name)?;
        let dir = self.directory(parent)?;
        let mut tries = 0;
        loop {
            tries += 1;
            match self.create_new(caller, parent, &dir, &c_name, mode, flags) {
                Err(VfsError::Host(Errno::EXIST)) if !flags.contains(OFlags::EXCL) => {}
                result => return result,
            }
            let there = match self.lookup_in(self.inodes.charge_effort(), caller, parent, (&dir, &c_name)) {
                // Another program has removed it on the host.
                Err(VfsError::Host(Errno::NOENT)) if tries < CREATE_TRIES_MAX => continue,
                result => result?,
            };
            let opened = self.open(caller, there.node, flags).and_then(|file| {
                let attr = file.getattr()?;
                Ok((Entry { attr, ..there }, file))
            });
            return opened.inspect_err(|_| self.forget(there.node, 1));
        }
    }

    /// Makes and opens a regular file without a name; [`link`](crate::volume::Names::link) may give
    /// it one. The file is on the file system of `parent`, and gets its owner and mode like a file
    /// created in that directory.
    ///
    /// # Errors
    /// `EOPNOTSUPP` where the host's file system does not support such files, and the host's.
    fn tmpfile(
        &self,
        caller: &Caller,
        parent: NodeId,
        mode: u32,
        flags: OFlags,
    ) -> Result<(Entry, Arc<dyn VolumeFile>), VfsError> {
        let inodes = &self.inodes;
        let (charge, share) = self.room_for_new(caller)?;
        let of_orphan = inodes.opens_silently().then(|| inodes.room_for_orphan(&caller.group)).transpose()?;
        let dir = self.directory(parent)?;
        let wanted = self.wanted(caller, &dir, FileKind::Regular, mode)?;
        let how = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        let fd = inodes.with_descriptors(|| rustix::fs::openat(&dir, c".", how, wanted.first_mode()))?;
        let stat = self.give_away(caller, dir.as_fd(), fd.as_fd(), &wanted)?;
        let held = inodes.with_descriptors(|| syscalls::reopen(fd.as_fd(), OFlags::PATH))?;
        let entry = self.enter_nameless(caller, &stat, (held, of_orphan))?;
        let content = self.open_new(caller, entry.node, &stat, (fd, share));
        let content = content.inspect_err(|_| self.forget(entry.node, 1))?;
        Ok((entry, OpenFile::new(inodes, entry.node, content, flags, &caller.group, charge)))
    }
}

impl HostVolume {
    fn create_new(
        &self,
        caller: &Caller,
        parent: NodeId,
        dir: &OwnedFd,
        name: &CStr,
        mode: u32,
        flags: OFlags,
    ) -> Result<(Entry, Arc<dyn VolumeFile>), VfsError> {
        let inodes = &self.inodes;
        let (charge, share) = self.room_for_new(caller)?;
        let wanted = self.wanted(caller, dir, FileKind::Regular, mode)?;
        let how = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = inodes.with_descriptors(|| rustix::fs::openat(dir, name, how, wanted.first_mode()))?;
        let made = self.give_away(caller, dir.as_fd(), fd.as_fd(), &wanted).map_err(VfsError::from);
        let opened = made.and_then(|stat| {
            let entry = self.enter(inodes.charge_effort(), caller, parent, (dir, name), &stat)?;
            let content = self.open_new(caller, entry.node, &stat, (fd, share));
            Ok((entry, content.inspect_err(|_| self.forget(entry.node, 1))?))
        });
        let (entry, content) = opened.inspect_err(|_| {
            let _ = rustix::fs::unlinkat(dir, name, AtFlags::empty());
        })?;
        Ok((entry, OpenFile::new(inodes, entry.node, content, flags, &caller.group, charge)))
    }

    /// Reserves memory and descriptors for a new open file, charged to the caller's group.
    fn room_for_new(&self, caller: &Caller) -> Result<(HandleCharge, DescriptorShare), Errno> {
        let share = self.inodes.room_for_fds(&caller.group, Purpose::Open, true)?;
        let inodes = &self.inodes;
        Ok((HandleCharge::take(inodes.charge_effort(), &inodes.engine, &caller.group, 0)?, share))
    }

    /// Returns the content of a new file opened as `fd`, with the node pinned.
    fn open_new(
        &self,
        caller: &Caller,
        node: NodeId,
        stat: &HostStat,
        (fd, share): (OwnedFd, DescriptorShare),
    ) -> Result<Arc<Content>, VfsError> {
        let inodes = &self.inodes;
        // The pin comes first, because unreferenced content may be dropped.
        if !inodes.table.pin(node) {
            return Err(Errno::STALE.into());
        }
        let acquired = self.new_content(caller, node, stat).inspect(|content| {
            content.acquire_new(&caller.group, fd, share, inodes.can_reopen(node));
        });
        acquired.inspect_err(|_| inodes.dispose(inodes.table.unpin(node)))
    }

    fn new_content(&self, caller: &Caller, node: NodeId, stat: &HostStat) -> Result<Arc<Content>, VfsError> {
        let inodes = &self.inodes;
        let fresh =
            Content::new(inodes.charge_effort(), &inodes.engine, &inodes.host_dir, stat, &caller.group)?;
        fresh.store.privileges.are_of_new(stat.attr.mode);
        let content =
            inodes.table.with(node, |entry| Arc::clone(entry.content.get_or_insert(Arc::clone(&fresh))));
        Ok(content.ok_or(Errno::STALE)?)
    }

    /// Creates an object other than an open file.
    fn make(
        &self,
        caller: &Caller,
        parent: NodeId,
        name: &OsStr,
        kind: FileKind,
        mode: u32,
        call: impl FnOnce(BorrowedFd<'_>, &CStr, Mode) -> Result<(), Errno>,
    ) -> Result<Entry, VfsError> {
        let name = component(name)?;
        let dir = self.directory(parent)?;
        let wanted = self.wanted(caller, &dir, kind, mode)?;
        call(dir.as_fd(), &name, wanted.first_mode())?;
        let fd = self.inodes.with_descriptors(|| syscalls::hold_name(&dir, &name))?;
        // An object not created by the daemon is not removed, either.
        self.check_own(&fd, kind)?;
        let made = self.give_away(caller, dir.as_fd(), fd.as_fd(), &wanted).map_err(VfsError::from);
        let effort = self.inodes.charge_effort();
        let entered = made.and_then(|stat| self.enter(effort, caller, parent, (&dir, &name), &stat));
        entered.inspect_err(|_| {
            let how = if kind == FileKind::Directory { AtFlags::REMOVEDIR } else { AtFlags::empty() };
            let _ = rustix::fs::unlinkat(&dir, &name, how);
        })
    }

    fn wanted(&self, caller: &Caller, dir: &OwnedFd, kind: FileKind, mode: u32) -> Result<NewObject, Errno> {
        let has_acls = &self.inodes.host_dir.has_acls;
        // Relaxed: a hint.
        let by_acl = kind != FileKind::Symlink
            && has_acls.load(Ordering::Relaxed)
            && match syscalls::has_default_acl(dir.as_fd()) {
                Err(Errno::OPNOTSUPP) => {
                    has_acls.store(false, Ordering::Relaxed);
                    false
                }
                Err(Errno::NOENT) => return Err(Errno::NOENT),
                found => found.unwrap_or(false),
            };
        Ok(NewObject { kind, mode: mode & 0o7777, by_acl, umask: caller.umask })
    }

    /// Checks, before the owner is changed, that the daemon created the object under the name.
    /// Where other users can write to the directory on the host, they may have replaced it.
    fn check_own(&self, fd: &OwnedFd, kind: FileKind) -> Result<(), Errno> {
        let stat = syscalls::stat_fd(fd)?;
        let is_ours = stat.kind == kind
            && stat.attr.uid == self.inodes.host_dir.uid
            && (kind == FileKind::Directory || stat.attr.nlink == 1);
        if is_ours { Ok(()) } else { Err(Errno::STALE) }
    }

    /// Does steps 2 and 3 of the module text.
    fn give_away(
        &self,
        caller: &Caller,
        dir: BorrowedFd<'_>,
        fd: BorrowedFd<'_>,
        wanted: &NewObject,
    ) -> Result<HostStat, Errno> {
        let first = syscalls::stat_fd(fd)?;
        let mut is_changed = false;
        let (mut uid, mut gid) = (first.attr.uid, first.attr.gid);
        if self.inodes.host_dir.is_privileged {
            if gid != caller.gid && syscalls::stat_fd(dir)?.attr.mode & SET_GID == 0 {
                gid = caller.gid;
            }
            uid = caller.uid;
            let set = |new: u32, old: u32| (new != old).then_some(new);
            let (new_uid, new_gid) = (set(uid, first.attr.uid), set(gid, first.attr.gid));
            if new_uid.is_some() || new_gid.is_some() {
                syscalls::chown(fd, new_uid, new_gid)?;
                is_changed = true;
            }
        }
        let mode = final_mode(caller, wanted, first.attr.mode, uid, gid);
        if wanted.kind != FileKind::Symlink && mode != first.attr.mode & 0o7777 {
            syscalls::chmod(fd, mode)?;
            is_changed = true;
        }
        if is_changed { syscalls::stat_fd(fd) } else { Ok(first) }
    }
}

/// Returns the mode of a new object, made by the host with mode `made` and now owned by `uid` and
/// `gid`.
fn final_mode(caller: &Caller, wanted: &NewObject, made: u32, uid: u32, gid: u32) -> u32 {
    let bits = wanted.bits();
    let permissions = if wanted.by_acl { made & 0o777 } else { bits & 0o777 };
    let sticky = bits & 0o1000;
    if wanted.kind == FileKind::Directory {
        return permissions | sticky | (made & SET_GID);
    }
    let mut set_id = bits & (SET_UID | SET_GID);
    if bits & GROUP_EXECUTE != 0 && !caller.is_in_group(gid) {
        set_id &= !SET_GID;
    }
    if uid != caller.uid {
        set_id = 0;
    }
    permissions | sticky | set_id
}
