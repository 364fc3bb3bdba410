//! The control tree as a mounted file system.
//!
//! The kernel caches nothing: names and attributes have a lifetime of zero, and files are read and
//! written directly. So a change of owner takes effect immediately, and each text is generated for
//! its reader. Sizes are shown as in sysfs: a page. Truncation, requested by every `echo x > file`,
//! is accepted and has no effect. An error of a write is the error of `write(2)`.
//!
//! Limit writes reclaim and may take long. Any signal ends the wait: a v1 limit write then fails
//! with EINTR and has changed nothing; a v2 one has succeeded already. Other requests end only at
//! fatal signals: their callers do not retry, and the operation may have taken effect.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::UNIX_EPOCH;

use rustix::io::Errno;
use umemcg::internal::GroupPath;
use umemcg_base::LeafMutex;
use umemcg_control::{
    Access, Attr, ControlError, ControlTree, Credentials, HolderShare, NAME_BYTES_MAX, NodeId, OpenFile,
    PollResult, SetAttr, SetXattr, WRITE_BYTES_MAX, Waker, check_xattr_name,
};

use crate::classify::{Classifier, Payer, Requester, credentials_of};
use crate::errno::ToErrno;
use crate::inflight::Interrupts;
use crate::notifier::Notifier;
use crate::reply::Reply;
use crate::request::Request;
use crate::session::{Filesystem, QuickOutcome};
use crate::thread_pool::Keys;
use crate::wire::reply::{Attr as WireAttr, AttrOut, EntryOut, OpenOut, PollOut, StatfsOut};
use crate::wire::request::{PollIn, ReadIn, SetattrIn, WriteIn};
use crate::wire::{
    DirBuffer, InHeader, Negotiated, Op, POLL_SCHEDULE_NOTIFY, open_reply, read_flag, setattr_valid,
};

/// Type bits of a mode.
const DIRECTORY: u32 = 0o040_000;
const REGULAR: u32 = 0o100_000;
const TYPE_BITS: u32 = 0o170_000;
/// Shift from a mode to the type in a listing.
const TYPE_SHIFT: u32 = 12;

/// The answer to a read into the kernel's page cache, as for `sendfile` and `splice`. A text
/// generated for one reader would otherwise be shown to all others, and could be padded with NULs
/// to the file's size. With this error every tool falls back to `read`. It would not do so for a
/// file of size 0, which counts as empty.
const NOT_THROUGH_PAGE_CACHE: ControlError = ControlError::Invalid;

/// Fewest bytes of an entry in a listing.
const DIRENT_BYTES_MIN: usize = 24;

/// Open flags, the same on all supported architectures.
const ACCESS_MODE: u32 = 0o3;
const WRITE_ONLY: u32 = 0o1;
const READ_WRITE: u32 = 0o2;
const NONBLOCK: u32 = 0o4000;

/// Flags of a new attribute value.
const XATTR_CREATE: u32 = 1;
const XATTR_REPLACE: u32 = 2;

/// The poll events of every file: `POLLIN`, `POLLOUT`, `POLLRDNORM`, `POLLWRNORM`.
const POLL_ALWAYS: u32 = 0x001 | 0x004 | 0x040 | 0x100;
/// Additional poll events of a changed file.
const POLL_PRI: u32 = 0x002;
const POLL_ERR: u32 = 0x008;

/// Requests that may wait for reclaim do not share queue places with briefly sleeping ones. The
/// lowest bit of both keys distinguishes them.
const RECLAIMING: u64 = 1;
const BRIEF: u64 = 0;

/// The most control files open at a time: each keeps the text being read.
const NR_OPEN_MAX: u64 = 16_384;
/// The part of them kept for root.
const NR_OPEN_OF_ROOT: u64 = 1024;

/// Serves a [`ControlTree`].
pub struct ControlFs {
    tree: Arc<ControlTree>,
    /// Finds the paying group of a request.
    classifier: Arc<dyn Classifier>,
    open_files: LeafMutex<OpenFiles>,
    /// Wakes pollers; set once the mount is served.
    notifier: OnceLock<Notifier>,
}

impl fmt::Debug for ControlFs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ControlFs").field("tree", &self.tree).finish_non_exhaustive()
    }
}

#[derive(Debug)]
struct OpenFiles {
    nr_opened: u64,
    by_handle: HashMap<u64, Arc<OpenFile>>,
    share: HolderShare,
}

impl Default for OpenFiles {
    fn default() -> Self {
        let share = HolderShare::new(NR_OPEN_MAX, NR_OPEN_OF_ROOT);
        Self { nr_opened: 0, by_handle: HashMap::new(), share }
    }
}

impl OpenFiles {
    fn insert(&mut self, file: Arc<OpenFile>) -> Result<u64, Errno> {
        self.share.take(file.holder())?;
        self.nr_opened += 1;
        self.by_handle.insert(self.nr_opened, file);
        Ok(self.nr_opened)
    }

    fn remove(&mut self, handle: u64) -> Option<Arc<OpenFile>> {
        let file = self.by_handle.remove(&handle)?;
        self.share.give(file.holder());
        Some(file)
    }
}

impl ControlFs {
    /// Creates a file system for this tree. The memory of requests and open files is charged to the
    /// groups of the requesting processes.
    pub fn new(tree: Arc<ControlTree>, classifier: Arc<dyn Classifier>) -> Arc<Self> {
        let (open_files, notifier) = (LeafMutex::default(), OnceLock::new());
        Arc::new(Self { tree, classifier, open_files, notifier })
    }

    /// Returns the number of open files.
    pub fn nr_open_files(&self) -> usize {
        self.open_files.lock().by_handle.len()
    }

    fn open_file(&self, handle: u64) -> Result<Arc<OpenFile>, ControlError> {
        let file = self.open_files.lock().by_handle.get(&handle).cloned();
        file.ok_or(ControlError::System(Errno::BADF))
    }

    fn list(&self, node: NodeId, arg: &ReadIn) -> Result<DirBuffer, ControlError> {
        let mut list = DirBuffer::new(arg.size as usize);
        let dots = [(1, ".", node), (2, "..", self.tree.parent(node)?)];
        for (cookie, name, node) in dots.into_iter().filter(|&(cookie, ..)| cookie > arg.offset) {
            if !list.push(node.into_raw(), cookie, DIRECTORY >> TYPE_SHIFT, name.as_bytes()) {
                return Ok(list);
            }
        }
        for entry in self.tree.read_directory(node, arg.offset, arg.size as usize / DIRENT_BYTES_MIN)? {
            let kind = if entry.is_directory { DIRECTORY } else { REGULAR } >> TYPE_SHIFT;
            if !list.push(entry.node.into_raw(), entry.cookie, kind, entry.name.as_encoded_bytes()) {
                break;
            }
        }
        Ok(list)
    }

    fn open(&self, request: &Request<'_>, flags: u32) -> Result<u64, ControlError> {
        let (node, header) = (NodeId::from_raw(request.header.nodeid), request.header);
        let access = Access {
            read: flags & ACCESS_MODE != WRITE_ONLY,
            write: matches!(flags & ACCESS_MODE, WRITE_ONLY | READ_WRITE),
        };
        let payer = request.payer.map(Payer::group_for_now);
        let file = Arc::new(self.tree.open_for(node, access, credentials(header), payer)?);
        let inserted = self.open_files.lock().insert(file);
        inserted.map_err(ControlError::System)
    }

    fn close(&self, handle: u64) {
        let file = self.open_files.lock().remove(handle);
        drop(file);
    }

    fn read(&self, arg: &ReadIn, tid: u32, reply: &Reply) -> Result<Vec<u8>, ControlError> {
        let file = self.open_file(arg.fh)?;
        if arg.read_flags & read_flag::LOCKOWNER == 0 {
            return Err(NOT_THROUGH_PAGE_CACHE);
        }
        let request = umemcg_control::Request {
            tid,
            nonblocking: false,
            cancelled: &|| reply.is_cancelled(),
            accepted: &|| (),
        };
        self.tree.read(&file, arg.offset, arg.size as usize, &request)
    }

    fn write(&self, arg: &WriteIn, data: &[u8], tid: u32, reply: &Reply) -> Result<usize, ControlError> {
        let file = self.open_file(arg.fh)?;
        let request = umemcg_control::Request {
            tid,
            nonblocking: arg.flags & NONBLOCK != 0,
            cancelled: &|| reply.is_cancelled(),
            accepted: &|| reply.accepted_write(data.len() as u32),
        };
        self.tree.write(&file, data, &request)?;
        Ok(data.len())
    }

    /// Answers a poll. Every file is readable and writable at any time. A changed file is reported
    /// as in the kernel's own tree.
    fn poll(&self, arg: &PollIn) -> Result<PollOut, ControlError> {
        let file = self.open_file(arg.fh)?;
        let notifier = self.notifier.get().filter(|_| arg.flags & POLL_SCHEDULE_NOTIFY != 0).cloned();
        let kernel_handle = arg.kh;
        let waker = notifier.map(|notifier| Waker::new(move || notifier.poll_wakeup(kernel_handle)));
        let news = match self.tree.poll(&file, waker) {
            PollResult::None => 0,
            PollResult::Changed => POLL_PRI | POLL_ERR,
            PollResult::Triggered => POLL_PRI,
        };
        Ok(PollOut { revents: POLL_ALWAYS | news, padding: 0 })
    }

    /// Changes mode and owner. A change of size or of times is accepted and has no effect.
    fn set_attr(&self, node: NodeId, arg: &SetattrIn, header: &InHeader) -> Result<Attr, ControlError> {
        let given = |bit: u32| arg.valid & bit != 0;
        let set = SetAttr {
            mode: given(setattr_valid::MODE).then_some((arg.mode & 0o7777) as u16),
            uid: given(setattr_valid::UID).then_some(arg.uid),
            gid: given(setattr_valid::GID).then_some(arg.gid),
        };
        if set == SetAttr::default() {
            return self.tree.attr(node);
        }
        self.tree.set_attr(node, set, &credentials(header))
    }

    fn set_xattr(
        &self,
        node: NodeId,
        name: &OsStr,
        value: &[u8],
        flags: u32,
        caller: &Credentials,
    ) -> Result<(), ControlError> {
        let how = match flags {
            0 => SetXattr::Any,
            XATTR_CREATE => SetXattr::Create,
            XATTR_REPLACE => SetXattr::Replace,
            _ => return Err(ControlError::Invalid),
        };
        self.tree.set_xattr(node, name, value, how, caller)
    }

    /// Queues a request that may sleep, under its paying group and not under the group it is about,
    /// so that no request waits behind another tenant's.
    fn may_sleep(&self, request: &Request<'_>, reply: &mut Reply) -> QuickOutcome {
        let handle = match request.op {
            Op::Write { arg, .. } => Some(arg.fh),
            Op::Read(arg) => Some(arg.fh),
            _ => None,
        };
        let file = handle.and_then(|handle| self.open_file(handle).ok());
        let reclaims = match request.op {
            Op::Write { .. } if file.as_ref().is_some_and(|file| file.write_reclaims()) => {
                reply.set_interrupts(Interrupts::AnySignal);
                true
            }
            Op::Mkdir { .. } | Op::Setxattr { .. } => true,
            _ => false,
        };
        let kind = if reclaims { RECLAIMING } else { BRIEF };
        let (header, opener) = (request.header, file.and_then(|file| file.payer()));
        let payer = self.classifier.payer(&Requester {
            tid: header.pid,
            uid: header.uid,
            gid: header.gid,
            queued_after_ns: request.queued_after_ns,
            opener: opener.as_ref(),
            path: &|| None,
        });
        let of_kind = |id| id << 1 | kind;
        let path = GroupPath::of(payer.group_for_now()).map(of_kind);
        let store = of_kind(NodeId::from_raw(header.nodeid).group_serial());
        QuickOutcome::MaySleepAt(Keys { path, store }, payer)
    }
}

impl Filesystem for ControlFs {
    fn ready(&self, _negotiated: &Negotiated, notifier: &Notifier) {
        let _ = self.notifier.set(notifier.clone());
    }

    fn quick(&self, request: &Request<'_>, reply: &mut Reply) -> QuickOutcome {
        let node = NodeId::from_raw(request.header.nodeid);
        match request.op {
            Op::Lookup { name } => answer(reply, self.tree.lookup(node, name).map(|attr| entry(&attr))),
            Op::Getattr { .. } => answer(reply, self.tree.attr(node).map(|attr| attr_out(&attr))),
            Op::Opendir(_) => answer(reply, Ok(OpenOut::default())),
            Op::Readdir(arg) => {
                answer_with(reply, self.list(node, &arg), |reply, list| {
                    reply.bytes(list.as_bytes()).ignore()
                });
            }
            Op::Release(arg) => {
                self.close(arg.fh);
                reply.done().ignore();
            }
            Op::Poll(arg) => answer(reply, self.poll(&arg)),
            Op::Statfs => answer(reply, Ok(statfs())),
            Op::Releasedir(_) | Op::Syncfs => reply.done().ignore(),
            // Nodes hold nothing.
            Op::Forget { .. } | Op::BatchForget(_) => {}
            Op::Setxattr { name, .. } | Op::Getxattr { name, .. } | Op::Removexattr { name } => {
                match xattr_refusal(name) {
                    Some(errno) => reply.error(errno).ignore(),
                    None => return self.may_sleep(request, reply),
                }
            }
            // There is nothing to wait for.
            Op::Write { data, .. } if data.len() > WRITE_BYTES_MAX => {
                reply.error(ControlError::TooLong.to_errno()).ignore();
            }
            Op::Listxattr { .. }
            | Op::Open(_)
            | Op::Read(_)
            | Op::Write { .. }
            | Op::Mkdir { .. }
            | Op::Rmdir { .. }
            | Op::Rename { .. }
            | Op::Setattr(_) => return self.may_sleep(request, reply),
            ref op => reply.error(refusal(op)).ignore(),
        }
        QuickOutcome::Answered
    }

    fn slow(&self, request: &Request<'_>, reply: &mut Reply) {
        let (node, header) = (NodeId::from_raw(request.header.nodeid), request.header);
        match request.op {
            Op::Open(arg) => answer_with(reply, self.open(request, arg.flags), |reply, fh| {
                let out = OpenOut { fh, open_flags: open_reply::DIRECT_IO, padding: 0 };
                if reply.value(&out).is_gone() {
                    self.close(fh);
                }
            }),
            Op::Read(arg) => {
                let text = self.read(&arg, header.pid, reply);
                answer_with(reply, text, |reply, text| reply.bytes(&text).ignore());
            }
            Op::Write { arg, data } => {
                let written = self.write(&arg, data, header.pid, reply);
                answer_with(reply, written, |reply, bytes| reply.written(bytes).ignore());
            }
            Op::Mkdir { arg, name, .. } => {
                let made = self.tree.mkdir(node, name, (arg.mode & 0o7777) as u16, &credentials(header));
                answer(reply, made.map(|attr| entry(&attr)));
            }
            Op::Rmdir { name } => answer_done(reply, self.tree.rmdir(node, name, &credentials(header))),
            Op::Rename { flags, .. } if flags != 0 => reply.error(Errno::INVAL).ignore(),
            Op::Rename { new_parent, name, new_name, .. } => {
                let new_parent = NodeId::from_raw(new_parent);
                let renamed = self.tree.rename(node, name, new_parent, new_name, &credentials(header));
                answer_done(reply, renamed);
            }
            Op::Setattr(arg) => {
                answer(reply, self.set_attr(node, &arg, header).map(|attr| attr_out(&attr)));
            }
            Op::Setxattr { name, value, flags, .. } => {
                answer_done(reply, self.set_xattr(node, name, value, flags, &credentials(header)));
            }
            Op::Removexattr { name } => {
                answer_done(reply, self.tree.remove_xattr(node, name, &credentials(header)));
            }
            Op::Getxattr { name, size } => {
                let value = self.tree.xattr(node, name, &credentials(header));
                answer_with(reply, value, |reply, value| reply.sized(&value, size).ignore());
            }
            Op::Listxattr { size } => {
                let names = self.tree.xattr_names(node, &credentials(header));
                answer_with(reply, names, |reply, names| reply.sized(&names, size).ignore());
            }
            ref op => reply.error(refusal(op)).ignore(),
        }
    }
}

/// Returns the errno of an unsupported operation. After ENOSYS the kernel does not send the
/// operation again.
fn refusal(op: &Op<'_>) -> Errno {
    match op {
        Op::Create { .. } => Errno::ACCESS,
        Op::Mknod { arg, .. } if arg.mode & TYPE_BITS == REGULAR => Errno::ACCESS,
        Op::Unlink { .. } | Op::Mknod { .. } | Op::Symlink { .. } | Op::Link { .. } => Errno::PERM,
        Op::Readlink => Errno::INVAL,
        Op::Ioctl => Errno::NOTTY,
        Op::Fallocate(_) | Op::CopyFileRange | Op::Tmpfile { .. } => Errno::OPNOTSUPP,
        _ => Errno::NOSYS,
    }
}

/// Answers with `send` on success, and with the error otherwise.
fn answer_with<T>(reply: &mut Reply, result: Result<T, ControlError>, send: impl FnOnce(&mut Reply, T)) {
    match result {
        Ok(value) => send(reply, value),
        Err(error) => reply.error(error.to_errno()).ignore(),
    }
}

fn answer<T: zerocopy::IntoBytes + zerocopy::Immutable>(reply: &mut Reply, result: Result<T, ControlError>) {
    answer_with(reply, result, |reply, value| reply.value(&value).ignore());
}

fn answer_done(reply: &mut Reply, result: Result<(), ControlError>) {
    answer_with(reply, result, |reply, ()| reply.done().ignore());
}

/// Returns the error for an invalid attribute name; `None` for a valid one.
fn xattr_refusal(name: &OsStr) -> Option<Errno> {
    let error = check_xattr_name(name).err()?;
    // The kernel takes another answer about access lists for a failed check of permissions.
    let is_access_list = name.as_encoded_bytes().starts_with(b"system.posix_acl_");
    Some(if is_access_list { Errno::NODATA } else { error.to_errno() })
}

/// Returns the credentials of the requesting process, with its supplementary groups, which are
/// missing in the request.
fn credentials(header: &InHeader) -> Credentials {
    credentials_of(header.pid, header.uid, header.gid)
}

fn wire_attr(attr: &Attr) -> WireAttr {
    let [atime, mtime, ctime] = [attr.created, attr.modified, attr.changed]
        .map(|time| time.duration_since(UNIX_EPOCH).unwrap_or_default());
    WireAttr {
        ino: attr.node.into_raw(),
        size: attr.size,
        atime: atime.as_secs(),
        mtime: mtime.as_secs(),
        ctime: ctime.as_secs(),
        atimensec: atime.subsec_nanos(),
        mtimensec: mtime.subsec_nanos(),
        ctimensec: ctime.subsec_nanos(),
        mode: u32::from(attr.mode) | if attr.is_directory { DIRECTORY } else { REGULAR },
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        blksize: 4096,
        ..WireAttr::default()
    }
}

/// Has a lifetime of zero.
fn attr_out(attr: &Attr) -> AttrOut {
    AttrOut { attr: wire_attr(attr), ..AttrOut::default() }
}

/// Has a lifetime of zero.
fn entry(attr: &Attr) -> EntryOut {
    EntryOut { nodeid: attr.node.into_raw(), attr: wire_attr(attr), ..EntryOut::default() }
}

fn statfs() -> StatfsOut {
    StatfsOut { bsize: 4096, frsize: 4096, namelen: NAME_BYTES_MAX as u32, ..StatfsOut::default() }
}
