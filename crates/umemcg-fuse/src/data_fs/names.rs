//! Lookup, change and listing of names.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;
use umemcg_vfs::volumes::{Member, Opened, ResolvedId};
use umemcg_vfs::{Caller, DirEntry, Entry, FileKind, ListedPart, NodeId, RenameFlags, VfsError, Volume};

use super::absent_names::StaleName;
use super::device::device_from_kernel;
use super::look_moment::LookMoment;
use super::{DataFs, Lifetimes, OpenDir, reply_done, reply_with};
use crate::errno::ToErrno;
use crate::reply::Reply;
use crate::request::Request;
use crate::store_messages::Message;
use crate::wire::reply::{EntryOut, OpenOut};
use crate::wire::request::{FsyncIn, ReadIn};
use crate::wire::{DirBuffer, FSYNC_FDATASYNC, InHeader, MAX_PAYLOAD_BYTES, Op, open_reply};

/// Returns the type of a directory entry: the top four bits of a mode.
fn dirent_kind(kind: FileKind) -> u32 {
    match kind {
        FileKind::Fifo => 1,
        FileKind::CharDevice => 2,
        FileKind::Directory => 4,
        FileKind::BlockDevice => 6,
        FileKind::Regular => 8,
        FileKind::Symlink => 10,
        FileKind::Socket => 12,
    }
}

fn kind_of(entry: &DirEntry<'_>) -> u32 {
    match (entry.kind, &entry.entry) {
        (Some(kind), _) => dirent_kind(kind),
        (None, Some(found)) => found.attr.mode >> 12,
        (None, None) => 0,
    }
}

impl DataFs {
    pub(super) fn entry_out(entry: &Entry, lifetimes: Lifetimes) -> EntryOut {
        let (name, attr) = (lifetimes.entry, Self::attr_lifetime(&entry.attr, lifetimes));
        EntryOut {
            nodeid: entry.node.0,
            generation: entry.generation,
            entry_valid: name.as_secs(),
            entry_valid_nsec: name.subsec_nanos(),
            attr_valid: attr.as_secs(),
            attr_valid_nsec: attr.subsec_nanos(),
            attr: super::attrs::attr_out(&entry.attr),
        }
    }

    /// Answers with a node found by a look begun at `moment`, and releases its lookup if no caller
    /// waits any more.
    fn reply_entry(
        &self,
        reply: &mut Reply,
        moment: LookMoment,
        result: Result<(Arc<Member>, Entry), VfsError>,
    ) {
        let result = result.and_then(|(member, inner)| {
            let entry = member.entry_to_kernel(inner)?;
            Ok((member, inner, entry))
        });
        reply_with(reply, result, |reply, (member, inner, entry)| {
            let out = Self::entry_out(&entry, self.lifetimes_of(&member, entry.attr.ino, moment));
            reply.hand_over(&out, move || member.volume().forget(inner.node, 1));
        });
    }

    /// Creates an object in the directory of a request and answers with it.
    fn reply_new(
        &self,
        request: &Request<'_>,
        (supplementary_gid, umask): (Option<u32>, u32),
        reply: &mut Reply,
        make: impl FnOnce(&dyn Volume, &Caller, NodeId) -> Result<Entry, VfsError>,
    ) {
        let caller = self.creator(request, supplementary_gid, umask);
        let moment = self.look_moment(request.header.nodeid);
        let result = self.change(request.header.nodeid).map_err(VfsError::from);
        let result = result.and_then(|(member, node)| {
            let entry = make(&**member.volume(), &caller, node)?;
            Ok((Arc::clone(&member), entry))
        });
        self.reply_entry(reply, moment, result);
    }

    /// Serves a request about names or directories. May sleep.
    pub(super) fn serve_names(&self, request: &Request<'_>, reply: &mut Reply) {
        let id = request.header.nodeid;
        match request.op {
            Op::Lookup { name } => self.lookup(request, name, reply),
            Op::Forget { nlookup } => self.forget(id, nlookup),
            Op::BatchForget(list) => list.iter().for_each(|(id, nr_lookups)| self.forget(id, nr_lookups)),
            Op::Symlink { name, target, parent_gid: gid } => {
                self.reply_new(request, (gid, 0), reply, |volume, caller, node| {
                    volume.symlink(caller, node, name, target)
                });
            }
            Op::Mknod { arg, name, parent_gid: gid } => {
                self.reply_new(request, (gid, arg.umask), reply, |volume, caller, node| {
                    volume.mknod(caller, node, name, arg.mode, device_from_kernel(arg.rdev))
                });
            }
            Op::Mkdir { arg, name, parent_gid: gid } => {
                self.reply_new(request, (gid, arg.umask), reply, |volume, caller, node| {
                    volume.mkdir(caller, node, name, arg.mode)
                });
            }
            Op::Link { old_node, name } => self.link(request, old_node, name, reply),
            Op::Unlink { name } => {
                let caller = self.caller(request);
                self.remove(id, name, reply, |volume, node| volume.unlink(&caller, node, name));
            }
            Op::Rmdir { name } => {
                let caller = self.caller(request);
                self.remove(id, name, reply, |volume, node| volume.rmdir(&caller, node, name).map(|()| None));
            }
            Op::Rename { new_parent, flags, name, new_name } => {
                self.rename(request, name, (new_parent, new_name), flags, reply);
            }
            Op::Readlink => {
                let target = self.on(id, |volume, node| volume.readlink(node));
                reply_with(reply, target, |reply, text| reply.bytes(text.as_encoded_bytes()).ignore());
            }
            Op::Opendir(_) => self.opendir(request, reply),
            Op::Readdir(arg) => self.readdir(request, &arg, reply),
            Op::Readdirplus(arg) => self.readdirplus(request, &arg, reply),
            Op::Releasedir(arg) => {
                reply.done().ignore();
                drop(self.dirs.close(arg.fh));
            }
            Op::Fsyncdir(arg) => self.fsyncdir(request.header, &arg, reply),
            _ => reply.error(Errno::NOSYS).ignore(),
        }
    }

    fn link(&self, request: &Request<'_>, old_node: u64, name: &OsStr, reply: &mut Reply) {
        let (caller, moment) = (self.caller(request), self.look_moment(old_node));
        let result = self.change_both(old_node, request.header.nodeid).map_err(VfsError::from);
        let result = result.and_then(|(member, old, node)| {
            let entry = member.volume().link(&caller, old, node, name)?;
            Ok((Arc::clone(&member), entry))
        });
        self.reply_entry(reply, moment, result);
    }

    fn rename(
        &self,
        request: &Request<'_>,
        name: &OsStr,
        (new_parent, new_name): (u64, &OsStr),
        flags: u32,
        reply: &mut Reply,
    ) {
        let flags = RenameFlags::from_bits_retain(flags);
        let caller = self.caller(request);
        let result = self.change_both(request.header.nodeid, new_parent).map_err(VfsError::from);
        let renamed = result.and_then(|(member, node, new_node)| {
            member.volume().rename(&caller, node, name, new_node, new_name, flags)
        });
        reply_with(reply, renamed, |reply, others| {
            reply.also_changed(others);
            reply.done().ignore();
        });
    }

    fn lookup(&self, request: &Request<'_>, name: &OsStr, reply: &mut Reply) {
        let header = request.header;
        let moment = self.look_moment(header.nodeid);
        let result = match self.volumes.place(header.nodeid) {
            Ok(ResolvedId::Top) => match self.top_lookup(name) {
                Ok(entry) => {
                    self.absent.exists(header.nodeid, name);
                    return reply.value(&Self::entry_out(&entry, self.lifetimes)).ignore();
                }
                Err(error) => Err(error),
            },
            Ok(ResolvedId::In(member, node)) => {
                let entry = member.volume().lookup(&self.caller(request), node, name);
                entry.map(|entry| (Arc::clone(&member), entry))
            }
            Err(errno) => Err(errno.into()),
        };
        match &result {
            Ok(_) => self.absent.exists(header.nodeid, name),
            Err(error) if error.to_errno() == Errno::NOENT => {
                let absent = self.lifetimes_of_absence(header.nodeid).absent;
                return self.reply_absent(header.nodeid, name, absent, reply);
            }
            Err(_) => {}
        }
        self.reply_entry(reply, moment, result);
    }

    /// Answers that a name does not exist. The kernel may cache this for `absent`, and is kept from
    /// caching too many names.
    fn reply_absent(&self, parent: u64, name: &OsStr, absent: Duration, reply: &mut Reply) {
        let stale = self.absent.note(parent, name);
        if absent.is_zero() || (parent == NodeId::ROOT.0 && self.volumes.whole().is_none()) {
            reply.error(Errno::NOENT).ignore();
        } else {
            // Node 0: the kernel may cache the absence for a while.
            let entry_valid_nsec = absent.subsec_nanos();
            let out = EntryOut { entry_valid: absent.as_secs(), entry_valid_nsec, ..Default::default() };
            reply.value(&out).ignore();
        }
        self.forget_absent(stale);
    }

    /// Has the kernel forget names. A name that cannot be sent stays there until the kernel drops
    /// it.
    fn forget_absent(&self, stale: Vec<StaleName>) {
        if let Some(notifier) = self.notifier.get().filter(|_| !stale.is_empty()) {
            notifier.forget_names(stale.into_iter().map(Message::from).collect());
        }
    }

    /// Removes a name with `call`; the kernel caches its absence.
    fn remove(
        &self,
        id: u64,
        name: &OsStr,
        reply: &mut Reply,
        call: impl FnOnce(&dyn Volume, NodeId) -> Result<Option<NodeId>, VfsError>,
    ) {
        let result = self.on(id, call);
        let stale = if result.is_ok() { self.absent.note(id, name) } else { Vec::new() };
        reply_with(reply, result, |reply, victim| {
            reply.also_changed([victim, None]);
            reply.done().ignore();
        });
        self.forget_absent(stale);
    }

    /// Releases references. References to a removed volume went with the volume.
    fn forget(&self, id: u64, nr_lookups: u64) {
        if let Ok(ResolvedId::In(member, node)) = self.volumes.place(id)
            && (node != NodeId::ROOT || self.volumes.whole().is_some())
        {
            if self.lifetimes.silent_opens {
                self.close_handles(self.silent_opens.take_all_of(id));
            }
            member.volume().forget(node, nr_lookups);
        }
    }

    fn opendir(&self, request: &Request<'_>, reply: &mut Reply) {
        let result = match self.volumes.place(request.header.nodeid) {
            Ok(ResolvedId::Top) => Ok(OpenDir::Top),
            Ok(ResolvedId::In(member, node)) => member.begin_open().map_err(VfsError::from).and_then(|on| {
                let file = member.volume().opendir(&self.caller(request), node)?;
                let opened = Opened { file, on, is_executed: false };
                Ok(OpenDir::In { is_kept: self.may_keep_listings(&**member.volume()), opened })
            }),
            Err(errno) => Err(errno.into()),
        };
        reply_with(reply, result, |reply, dir| {
            let open_flags = match dir {
                OpenDir::In { is_kept: true, .. } => open_reply::CACHE_DIR | open_reply::KEEP_CACHE,
                _ => 0,
            };
            let fh = self.dirs.open(Arc::new(dir));
            let dirs = Arc::clone(&self.dirs);
            reply.hand_over(&OpenOut { fh, open_flags, padding: 0 }, move || drop(dirs.close(fh)));
        });
    }

    /// Returns whether the kernel may keep listings, charged like pages, because it is notified of
    /// changes. It also lists again when the directory's modification time has changed, and asks
    /// for the time, once notified, when the directory is opened.
    fn may_keep_listings(&self, volume: &dyn Volume) -> bool {
        self.lifetimes.pages && volume.lists_without_open() && volume.moment().is_some()
    }

    /// Notes a listing to be kept by the kernel. Returns the part of it for this answer.
    fn begin_listing(
        &self,
        request: &Request<'_>,
        dir: &OpenDir,
        arg: &ReadIn,
        reply: &mut Reply,
    ) -> Option<ListedPart> {
        let OpenDir::In { opened, is_kept: true } = dir else { return None };
        let (io, part) = opened.file.begin_kernel_io(arg.offset, &self.group(request))?;
        reply.begin_kernel_io(io);
        Some(part)
    }

    fn readdir(&self, request: &Request<'_>, arg: &ReadIn, reply: &mut Reply) {
        let mut list = DirBuffer::new((arg.size as usize).min(MAX_PAYLOAD_BYTES));
        let dir = self.dir(request.header, arg.fh);
        let result = dir.and_then(|dir| match &*dir {
            OpenDir::Top => {
                self.top_readdir(arg.offset, false, &mut list);
                Ok(())
            }
            OpenDir::In { opened, .. } => {
                let mut part = self.begin_listing(request, &dir, arg, reply);
                let result = opened.file.readdir(arg.offset, &mut |entry| {
                    let ino = opened.on.ino_to_kernel(entry.ino);
                    let taken = list.push(ino, entry.next_offset, kind_of(entry), entry.name.as_bytes());
                    note_listed(&mut part, entry, taken);
                    taken
                });
                end_listing(part.as_ref(), reply);
                result
            }
        });
        reply_with(reply, keep_some(result, &list), |reply, ()| reply.bytes(list.as_bytes()).ignore());
    }

    fn fsyncdir(&self, header: &InHeader, arg: &FsyncIn, reply: &mut Reply) {
        let data_only = arg.fsync_flags & FSYNC_FDATASYNC != 0;
        let synced = self.dir(header, arg.fh).and_then(|dir| match &*dir {
            OpenDir::In { opened, .. } => opened.file.fsyncdir(data_only),
            OpenDir::Top => Ok(()),
        });
        reply_done(reply, synced);
    }

    fn readdirplus(&self, request: &Request<'_>, arg: &ReadIn, reply: &mut Reply) {
        let mut list = DirBuffer::new((arg.size as usize).min(MAX_PAYLOAD_BYTES));
        let dir = match self.dir(request.header, arg.fh) {
            Ok(dir) => dir,
            Err(error) => return reply.error(error.to_errno()).ignore(),
        };
        let OpenDir::In { opened, .. } = &*dir else {
            self.top_readdir(arg.offset, true, &mut list);
            return reply.bytes(list.as_bytes()).ignore();
        };
        let moment = LookMoment::of(&opened.on);
        let mut part = self.begin_listing(request, &dir, arg, reply);
        let mut handed_over = Vec::new();
        let caller = self.caller(request);
        let result = opened.file.readdirplus(&caller, arg.offset, &mut |entry| {
            // An inode without an id in the kernel is listed without a lookup.
            let found = entry.entry.and_then(|found| {
                opened.on.to_kernel(found.node).ok().map(|node| Entry {
                    node,
                    attr: opened.on.attr_to_kernel(found.attr),
                    ..found
                })
            });
            let out = found
                .as_ref()
                .map(|found| Self::entry_out(found, self.lifetimes_of(&opened.on, found.attr.ino, moment)));
            let out = out.unwrap_or_default();
            let ino = opened.on.ino_to_kernel(entry.ino);
            let taken = list.push_plus(&out, ino, entry.next_offset, kind_of(entry), entry.name.as_bytes());
            if let Some(inner) = entry.entry.filter(|_| taken) {
                match found {
                    Some(_) => handed_over.push(inner.node),
                    None => opened.on.volume().forget(inner.node, 1),
                }
            }
            note_listed(&mut part, entry, taken);
            taken
        });
        end_listing(part.as_ref(), reply);
        // On an error the list is empty.
        reply_with(reply, keep_some(result, &list), |reply, ()| {
            let dir = Arc::clone(&dir);
            reply.hand_over_bytes(list.as_bytes(), move || {
                let OpenDir::In { opened, .. } = &*dir else { return };
                handed_over.into_iter().for_each(|node| opened.on.volume().forget(node, 1));
            });
        });
    }
}

fn note_listed(part: &mut Option<ListedPart>, entry: &DirEntry<'_>, taken: bool) {
    if let (Some(part), true) = (part, taken) {
        part.push(entry.next_offset, entry.name.len());
    }
}

fn end_listing(part: Option<&ListedPart>, reply: &Reply) {
    if let (Some(part), Some(io)) = (part, reply.kernel_io()) {
        io.listed(part);
    }
}

/// Drops an error after some entries have been listed; the next part of the listing reports it.
fn keep_some(result: Result<(), VfsError>, list: &DirBuffer) -> Result<(), VfsError> {
    if list.is_empty() { result } else { Ok(()) }
}
