//! Conversion of attributes between the FUSE protocol and the volumes.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;
use umemcg_vfs::volumes::ResolvedId;
use umemcg_vfs::{
    Attr, FileKind, NodeId, SetAttr, SetTime, Timestamp, VfsError, Volume, VolumeFile, XattrFlags,
};

use super::device::device_to_kernel;
use super::look_moment::LookMoment;
use super::{DataFs, Lifetimes, reply_done, reply_with};
use crate::errno::ToErrno;
use crate::reply::Reply;
use crate::request::Request;
use crate::wire::reply::{Attr as WireAttr, AttrOut, StatfsOut, StatxAttr, StatxOut, StatxTime};
use crate::wire::request::{SetattrIn, StatxIn};
use crate::wire::{GETATTR_FH, SETXATTR_ACL_KILL_SGID, setattr_valid};

/// The mask of `statx(2)` for the fields of GETATTR.
const STATX_BASIC_STATS: u32 = 0x7ff;
/// The creation time.
const STATX_BTIME: u32 = 0x800;
/// Set-user-id and set-group-id.
const SET_ID: u32 = 0o6000;

pub(super) fn attr_out(attr: &Attr) -> WireAttr {
    WireAttr {
        ino: attr.ino,
        size: attr.size,
        blocks: attr.blocks,
        atime: attr.atime.seconds as u64,
        mtime: attr.mtime.seconds as u64,
        ctime: attr.ctime.seconds as u64,
        atimensec: attr.atime.nanoseconds,
        mtimensec: attr.mtime.nanoseconds,
        ctimensec: attr.ctime.nanoseconds,
        mode: attr.mode,
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        rdev: device_to_kernel(attr.rdev),
        blksize: attr.blksize,
        flags: 0,
    }
}

fn statx_out(attr: &Attr) -> StatxAttr {
    let time = |t: Timestamp| StatxTime { seconds: t.seconds, nanoseconds: t.nanoseconds, reserved: 0 };
    let (known, btime) = match attr.btime {
        Some(btime) => (STATX_BASIC_STATS | STATX_BTIME, btime),
        None => (STATX_BASIC_STATS, Timestamp::default()),
    };
    StatxAttr {
        mask: known,
        blksize: attr.blksize,
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        mode: attr.mode as u16,
        ino: attr.ino,
        size: attr.size,
        blocks: attr.blocks,
        atime: time(attr.atime),
        btime: time(btime),
        ctime: time(attr.ctime),
        mtime: time(attr.mtime),
        rdev_major: rustix::fs::major(attr.rdev),
        rdev_minor: rustix::fs::minor(attr.rdev),
        ..Default::default()
    }
}

/// Returns the change of attributes requested by a SETATTR.
fn change_of(arg: &SetattrIn) -> SetAttr {
    let has = |bit| arg.valid & bit != 0;
    let time = |set, now, seconds: u64, nanoseconds| match (has(set), has(now)) {
        (_, true) => Some(SetTime::Now),
        (true, false) => Some(SetTime::At(Timestamp { seconds: seconds as i64, nanoseconds })),
        (false, false) => None,
    };
    SetAttr {
        size: has(setattr_valid::SIZE).then_some(arg.size),
        mode: has(setattr_valid::MODE).then_some(arg.mode),
        uid: has(setattr_valid::UID).then_some(arg.uid),
        gid: has(setattr_valid::GID).then_some(arg.gid),
        atime: time(setattr_valid::ATIME, setattr_valid::ATIME_NOW, arg.atime, arg.atimensec),
        mtime: time(setattr_valid::MTIME, setattr_valid::MTIME_NOW, arg.mtime, arg.mtimensec),
        kill_set_id: has(setattr_valid::KILL_SUIDGID),
    }
}

/// Answers a request for at most `size` bytes; 0 requests the number of bytes.
pub(super) fn reply_sized(reply: &mut Reply, result: Result<Vec<u8>, VfsError>, size: u32) {
    reply_with(reply, result, |reply, bytes| reply.sized(&bytes, size).ignore());
}

impl DataFs {
    /// Returns how long the kernel may cache attributes. It is zero for a file with set-id bits: a
    /// write can clear these bits, and the answer to the write does not show it.
    pub(super) fn attr_lifetime(attr: &Attr, lifetimes: Lifetimes) -> Duration {
        let is_regular = FileKind::from_mode(attr.mode) == Some(FileKind::Regular);
        if is_regular && attr.mode & SET_ID != 0 { Duration::ZERO } else { lifetimes.attr }
    }

    fn attr_reply(attr: &Attr, lifetimes: Lifetimes) -> AttrOut {
        let valid = Self::attr_lifetime(attr, lifetimes);
        AttrOut {
            attr_valid: valid.as_secs(),
            attr_valid_nsec: valid.subsec_nanos(),
            dummy: 0,
            attr: attr_out(attr),
        }
    }

    pub(super) fn getattr(&self, id: u64, fh: Option<u64>, reply: &mut Reply) {
        let moment = self.look_moment(id);
        reply_with(reply, self.look(id, fh), |reply, attr| {
            reply.value(&Self::attr_reply(&attr, self.lifetimes_at(id, attr.ino, moment))).ignore();
        });
        self.drop_changed(id);
    }

    /// Makes the kernel drop pages older than a change found by a look. Called after the answer:
    /// the kernel ignores an answer overtaken by such a notification, and keeps the old length.
    fn drop_changed(&self, id: u64) {
        if let Ok(ResolvedId::In(member, node)) = self.volumes.place(id) {
            member.volume().drop_changed(node);
        }
    }

    /// Answers with the attributes of a node, if that needs no sleep.
    pub(super) fn getattr_quickly(&self, id: u64, reply: &mut Reply) -> bool {
        let Ok(ResolvedId::In(member, node)) = self.volumes.place(id) else { return false };
        let moment = LookMoment::of(&member);
        let Some(attr) = member.volume().try_getattr(node) else { return false };
        let attr = member.attr_to_kernel(attr);
        reply.value(&Self::attr_reply(&attr, self.lifetimes_of(&member, attr.ino, moment))).ignore();
        true
    }

    /// Returns whether a node is known to lack this extended attribute.
    pub(super) fn is_known_absent(&self, id: u64, name: &OsStr) -> bool {
        let Ok(ResolvedId::In(member, node)) = self.volumes.place(id) else { return false };
        member.volume().is_known_absent(node, name)
    }

    /// Answers STATX, the kernel's request for fields missing in GETATTR.
    pub(super) fn statx(&self, id: u64, arg: &StatxIn, reply: &mut Reply) {
        let fh = (arg.getattr_flags & GETATTR_FH != 0).then_some(arg.fh);
        let moment = self.look_moment(id);
        reply_with(reply, self.look(id, fh), |reply, attr| {
            let valid = Self::attr_lifetime(&attr, self.lifetimes_at(id, attr.ino, moment));
            let out = StatxOut {
                attr_valid: valid.as_secs(),
                attr_valid_nsec: valid.subsec_nanos(),
                stat: statx_out(&attr),
                ..Default::default()
            };
            reply.value(&out).ignore();
        });
        self.drop_changed(id);
    }

    fn look(&self, id: u64, fh: Option<u64>) -> Result<Attr, VfsError> {
        match self.volumes.place(id) {
            Ok(ResolvedId::Top) => Ok(self.top_attr()),
            Ok(ResolvedId::In(member, node)) => {
                // The kernel may name a directory's handle here too.
                let file = fh.and_then(|fh| self.file_of(fh, node));
                let attr = file.map_or_else(|| member.volume().getattr(node), |file| file.getattr());
                attr.map(|attr| member.attr_to_kernel(attr))
            }
            Err(errno) => Err(errno.into()),
        }
    }

    /// Returns the open file behind a handle, if it is of this inode.
    fn file_of(&self, fh: u64, node: NodeId) -> Option<Arc<dyn VolumeFile>> {
        let opened = self.files.get(fh)?;
        (opened.file.node() == node).then(|| Arc::clone(&opened.file))
    }

    pub(super) fn setattr(&self, request: &Request<'_>, arg: &SetattrIn, reply: &mut Reply) {
        let caller = self.caller(request);
        let result = self.change(request.header.nodeid).map_err(VfsError::from).and_then(|(member, node)| {
            let fh = (arg.valid & setattr_valid::FH != 0).then_some(arg.fh);
            let change = change_of(arg);
            let attr = match fh.and_then(|fh| self.file_of(fh, node)) {
                Some(file) => file.setattr(&caller, &change),
                None => member.volume().setattr(&caller, node, &change),
            };
            // The change ends here, not after the answer: a sync begun after the answer must see
            // it.
            let on = Arc::clone(&member);
            drop(member);
            Ok((on.attr_to_kernel(attr?), on))
        });
        reply_with(reply, result, |reply, (attr, member)| {
            reply.value(&Self::attr_reply(&attr, self.lifetimes_of_setattr(&member))).ignore();
        });
    }

    pub(super) fn getxattr(&self, id: u64, name: &OsStr, size: u32, reply: &mut Reply) {
        let result = match self.volumes.place(id) {
            Ok(ResolvedId::Top) => Err(Errno::NODATA.into()),
            Ok(ResolvedId::In(member, node)) => member.volume().getxattr(node, name),
            Err(errno) => Err(errno.into()),
        };
        let result = match result {
            // The kernel would take this error for a failed permission check; a host without access
            // lists has none.
            Err(error)
                if error.to_errno() == Errno::OPNOTSUPP
                    && name.as_bytes().starts_with(b"system.posix_acl_") =>
            {
                Err(Errno::NODATA.into())
            }
            result => result,
        };
        reply_sized(reply, result, size);
    }

    pub(super) fn setxattr(
        &self,
        request: &Request<'_>,
        name: &OsStr,
        value: &[u8],
        (flags, setxattr_flags): (u32, u32),
        reply: &mut Reply,
    ) {
        let flags = XattrFlags::from_bits_retain(flags);
        let kill_set_gid = setxattr_flags & SETXATTR_ACL_KILL_SGID != 0;
        let caller = self.caller(request);
        let set =
            |volume: &dyn Volume, node| volume.setxattr(&caller, node, name, value, flags, kill_set_gid);
        reply_done(reply, self.on(request.header.nodeid, set));
    }

    pub(super) fn listxattr(&self, request: &Request<'_>, size: u32, reply: &mut Reply) {
        let result = match self.volumes.place(request.header.nodeid) {
            Ok(ResolvedId::Top) => Ok(Vec::new()),
            Ok(ResolvedId::In(member, node)) => {
                member.volume().listxattr(&self.caller_with_user(request), node)
            }
            Err(errno) => Err(errno.into()),
        };
        reply_sized(reply, result, size);
    }

    pub(super) fn statfs(&self, id: u64, reply: &mut Reply) {
        let result = match self.volumes.place(id) {
            Ok(ResolvedId::Top) => Ok(self.top_statfs()),
            Ok(ResolvedId::In(member, _)) => member.volume().statfs(),
            Err(errno) => Err(errno.into()),
        };
        reply_with(reply, result, |reply, fs| {
            let out = StatfsOut {
                blocks: fs.blocks,
                bfree: fs.bfree,
                bavail: fs.bavail,
                files: fs.files,
                ffree: fs.ffree,
                bsize: fs.bsize as u32,
                namelen: fs.namemax as u32,
                frsize: fs.frsize as u32,
                ..Default::default()
            };
            reply.value(&out).ignore();
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_valid_changes() {
        let arg = SetattrIn {
            valid: setattr_valid::MODE | setattr_valid::MTIME | setattr_valid::MTIME_NOW | setattr_valid::FH,
            mode: 0o600,
            size: 7,
            ..Default::default()
        };
        let change = SetAttr { mode: Some(0o600), mtime: Some(SetTime::Now), ..Default::default() };
        assert_eq!(change_of(&arg), change);
    }

    #[test]
    fn times_before_1970_are_kept() {
        let arg = SetattrIn { valid: setattr_valid::ATIME, atime: -5i64 as u64, ..Default::default() };
        let expected = SetTime::At(Timestamp { seconds: -5, nanoseconds: 0 });
        assert_eq!(change_of(&arg).atime, Some(expected));
    }
}
