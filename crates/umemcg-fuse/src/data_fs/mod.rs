//! Volumes as a mount: FUSE requests turned into calls of the [`Volume`] that they are about, each charged to the group
//! of whoever asks. Requests about the directory of all volumes are answered in `top`.
//!
//! What is answered on the reading thread is what cannot sleep: reads of cached pages, writes into pages that are there,
//! closes. Everything else may meet the store, and goes through [`slow`](Filesystem::slow).

mod absent_names;
mod attrs;
mod content;
mod ending;
mod kernel_names;
mod names;
mod top;

use std::ffi::OsStr;
use std::ops::Deref;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use rustix::io::Errno;
use umemcg::{Arena, Engine, Group};
use umemcg_vfs::volumes::{Member, MemberRef, Opened, Place};
use umemcg_vfs::{Caller, KernelCache, NodeId, Timestamp, VfsError, Volume, VolumeDir, VolumeFile, Volumes};

use crate::classify::Classifier;
use crate::errno::ToErrno;
use crate::handles::{HandleTable, Held};
use crate::notifier::Notifier;
use crate::park::Parking;
use crate::pool::Keys;
use crate::reply::Reply;
use crate::request::Asked;
use crate::session::{Filesystem, Step};
use crate::wire::{InHeader, InitFlags, Negotiated, Op};
use absent_names::AbsentNames;
use kernel_names::KernelNames;

/// How long the kernel may believe what it was told without asking again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lifetimes {
    /// That a name leads to a node.
    pub entry: Duration,
    /// That a name does not exist. Zero: asked every time.
    pub absent: Duration,
    /// Attributes of a node.
    pub attr: Duration,
}

impl Default for Lifetimes {
    /// One second for what is there, so that a warm `stat` does not reach us; nothing for what is not.
    fn default() -> Self {
        Self { entry: Duration::from_secs(1), absent: Duration::ZERO, attr: Duration::from_secs(1) }
    }
}

/// Forgetting nodes is nobody's work in particular.
const KEY_OF_NOBODY: u64 = u64::MAX;
/// Who has not been seen before shares a queue with others like him until his group is known.
const KEY_OF_STRANGERS: u64 = u64::MAX - 1;
/// The store of requests that meet none.
const NO_STORE: u64 = u64::MAX;
/// What a store is called by requests that forget: its lookups may be waiting for them, and must not take their places.
const FORGETTING: u64 = 1 << 63;

/// An open directory: a volume's, or that of all volumes.
#[derive(Debug)]
enum OpenDir {
    In(Opened<dyn VolumeDir>),
    Top,
}

/// A volume for the time of a request that changes it. Noted when that is over: a sync that has begun meanwhile may have
/// missed the change, a later one must not.
struct Changing<'a>(MemberRef<'a>);

impl Deref for Changing<'_> {
    type Target = Arc<Member>;
    fn deref(&self) -> &Arc<Member> {
        &self.0
    }
}

impl Drop for Changing<'_> {
    fn drop(&mut self) {
        self.0.touch();
    }
}

/// Volumes as a file system to be mounted.
#[derive(Debug)]
pub struct DataFs {
    volumes: Arc<Volumes>,
    engine: Arc<Engine>,
    arena: Arc<Arena>,
    classifier: Arc<dyn Classifier>,
    files: Arc<HandleTable<Opened<dyn VolumeFile>>>,
    dirs: Arc<HandleTable<OpenDir>>,
    parking: Arc<Parking>,
    /// (C) Itself, for what comes at the end of a request.
    me: Weak<DataFs>,
    lifetimes: Lifetimes,
    /// (C) When it began, which is as old as the directory of all volumes.
    since: Timestamp,
    absent: Arc<AbsentNames>,
    /// Once there is a kernel to be told something.
    notifier: OnceLock<Notifier>,
}

impl DataFs {
    /// Volumes of `engine`, for callers that `classifier` knows.
    ///
    /// # Errors
    /// When the system refuses a thread.
    pub fn new(
        engine: &Arc<Engine>,
        volumes: Arc<Volumes>,
        classifier: Arc<dyn Classifier>,
        lifetimes: Lifetimes,
    ) -> std::io::Result<Arc<Self>> {
        let parking = Arc::new(Parking::new()?);
        Ok(Arc::new_cyclic(|me| Self {
            me: Weak::clone(me),
            volumes,
            arena: Arc::clone(engine.arena()),
            engine: Arc::clone(engine),
            classifier,
            files: Arc::default(),
            dirs: Arc::default(),
            parking,
            lifetimes,
            since: now(),
            absent: Arc::default(),
            notifier: OnceLock::new(),
        }))
    }

    /// Files that are open.
    pub fn nr_open_files(&self) -> usize {
        self.files.len()
    }

    /// Requests whose answer is being held back.
    pub fn nr_parked(&self) -> usize {
        self.parking.len()
    }

    /// Closes everything that is open. For the end of the session: a kernel that has gone releases nothing.
    pub fn close_all(&self) {
        drop(self.files.close_all());
        drop(self.dirs.close_all());
    }

    /// Closes everything that is open on a volume that has been removed; who goes on using it gets errors.
    pub fn close_all_of(&self, member: &Arc<Member>) {
        drop(self.files.close_where(|opened| Arc::ptr_eq(&opened.on, member)));
        drop(
            self.dirs
                .close_where(|dir| matches!(dir, OpenDir::In(opened) if Arc::ptr_eq(&opened.on, member))),
        );
    }

    /// The group of whoever asks about the request's node. May sleep.
    fn group(&self, header: &InHeader) -> Arc<Group> {
        let path = || self.volumes.path_of(header.nodeid);
        self.classifier.classify_at(header.pid, header.uid, header.gid, &path)
    }

    /// The same, if it is known without sleeping.
    fn known_group(&self, header: &InHeader) -> Option<Arc<Group>> {
        if self.classifier.has_path_rules() {
            return None;
        }
        self.classifier.classify_known(header.pid, header.uid, header.gid)
    }

    fn caller(&self, header: &InHeader) -> Caller {
        self.creator(header, None, 0)
    }

    fn creator(&self, header: &InHeader, supplementary_gid: Option<u32>, umask: u32) -> Caller {
        Caller { uid: header.uid, gid: header.gid, supplementary_gid, group: self.group(header), umask }
    }

    fn keys(&self, header: &InHeader) -> Keys {
        let group = self.classifier.classify_known(header.pid, header.uid, header.gid);
        let group = group.map_or(KEY_OF_STRANGERS, |group| group.id());
        Keys { group, store: self.store_of(header.nodeid) }
    }

    /// The store that a request about this node may meet, as a key of the session's pool.
    fn store_of(&self, id: u64) -> u64 {
        match self.volumes.place(id) {
            Ok(Place::In(member, _)) => member.volume().store_id().0,
            _ => NO_STORE,
        }
    }

    /// The volume of a node that is about to be changed; the directory of all volumes cannot be.
    fn spot(&self, id: u64) -> Result<(Changing<'_>, NodeId), Errno> {
        match self.volumes.place(id)? {
            Place::Top => Err(Errno::ROFS),
            Place::In(member, node) => Ok((Changing(member), node)),
        }
    }

    /// Two nodes of one volume.
    fn spots(&self, one: u64, other: u64) -> Result<(Changing<'_>, NodeId, NodeId), Errno> {
        let ((member, node), (other_member, other_node)) = (self.spot(one)?, self.spot(other)?);
        if Arc::ptr_eq(&member, &other_member) { Ok((member, node, other_node)) } else { Err(Errno::XDEV) }
    }

    /// What a handle of the kernel stands for.
    fn file(&self, header: &InHeader, handle: u64) -> Result<Held<Opened<dyn VolumeFile>>, Errno> {
        self.files.get(handle).ok_or_else(|| self.no_handle(header))
    }

    fn dir(&self, header: &InHeader, handle: u64) -> Result<Held<OpenDir>, Errno> {
        self.dirs.get(handle).ok_or_else(|| self.no_handle(header))
    }

    /// A handle that is open for the kernel and not for us was on a volume that has been removed by force.
    fn no_handle(&self, header: &InHeader) -> Errno {
        if self.volumes.place(header.nodeid).is_err() { Errno::NODEV } else { Errno::BADF }
    }

    /// Calls an operation of the volume that a node is on.
    fn on<T>(
        &self,
        id: u64,
        call: impl FnOnce(&dyn Volume, NodeId) -> Result<T, VfsError>,
    ) -> Result<T, VfsError> {
        let (member, node) = self.spot(id)?;
        call(&**member.volume(), node)
    }
}

fn now() -> Timestamp {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
    Timestamp { seconds: now.tv_sec, nanoseconds: now.tv_nsec as u32 }
}

/// Answers with what `result` says; `answer` is for success.
fn settle<T>(reply: &mut Reply, result: Result<T, VfsError>, answer: impl FnOnce(&mut Reply, T)) {
    match result {
        Ok(value) => answer(reply, value),
        Err(error) => {
            if !matches!(error, VfsError::Host(_)) {
                tracing::debug!(%error, "file content");
            }
            reply.error(error.to_errno()).ignore();
        }
    }
}

fn settle_done(reply: &mut Reply, result: Result<(), VfsError>) {
    settle(reply, result, |reply, ()| reply.done().ignore());
}

/// The name that will exist when a request has been served, with its directory.
fn name_to_be<'a>(id: u64, op: &Op<'a>) -> Option<(u64, &'a OsStr)> {
    match op {
        Op::Create { name, .. }
        | Op::Mkdir { name, .. }
        | Op::Mknod { name, .. }
        | Op::Symlink { name, .. }
        | Op::Link { name, .. } => Some((id, *name)),
        Op::Rename { new_parent, new_name, .. } => Some((*new_parent, *new_name)),
        _ => None,
    }
}

impl Filesystem for DataFs {
    fn wanted(&self) -> u64 {
        InitFlags::DO_READDIRPLUS
            | InitFlags::READDIRPLUS_AUTO
            | InitFlags::HANDLE_KILLPRIV_V2
            | InitFlags::DIRECT_IO_ALLOW_MMAP
            | InitFlags::CREATE_SUPP_GROUP
            | InitFlags::AUTO_INVAL_DATA
            | InitFlags::CACHE_SYMLINKS
            // The kernel reads access lists and decides by them; default lists are the host's to apply, so
            // that the umask must come separately.
            | InitFlags::POSIX_ACL
            | InitFlags::DONT_MASK
    }

    fn ready(&self, _negotiated: &Negotiated, notifier: &Notifier) {
        let kernel: Arc<dyn KernelCache> = Arc::new(KernelNames(notifier.clone()));
        self.volumes.set_kernel(&kernel);
        let _ = self.notifier.set(notifier.clone());
    }

    fn quick(&self, asked: &Asked<'_>, reply: &mut Reply) -> Step {
        let header = asked.header;
        match asked.op {
            Op::Read(arg) => return self.read_quickly(header, &arg, reply),
            Op::Write { arg, data } => return self.write_quickly(header, &arg, data, reply),
            Op::Flush(arg) => {
                let file = self.file(header, arg.fh).map_err(VfsError::from);
                settle_done(reply, file.and_then(|opened| opened.file.flush()));
            }
            // The content of a file that is forgotten may be in the store's hands.
            Op::Forget { .. } => {
                let store = self.store_of(header.nodeid) | FORGETTING;
                return Step::MaySleep(Keys { group: KEY_OF_NOBODY, store });
            }
            Op::BatchForget(list) => {
                let store = list.iter().next().map_or(NO_STORE, |(node, _)| self.store_of(node)) | FORGETTING;
                return Step::MaySleep(Keys { group: KEY_OF_NOBODY, store });
            }
            Op::Ioctl { .. } => reply.error(Errno::NOTTY).ignore(),
            // The kernel falls back on something of its own for each of these, and asks no more.
            Op::Access { .. } | Op::Poll(_) | Op::Statx(_) | Op::Tmpfile { .. } | Op::CopyFileRange(_) => {
                reply.error(Errno::NOSYS).ignore();
            }
            _ => return Step::MaySleep(self.keys(header)),
        }
        Step::Settled
    }

    fn slow(&self, asked: &Asked<'_>, reply: &mut Reply) {
        let header = asked.header;
        let id = header.nodeid;
        if let Some((parent, name)) = name_to_be(id, &asked.op) {
            self.absent.exists(parent, name);
        }
        if let Some(gate) = self.gate(asked) {
            reply.set_gate(gate);
        }
        match asked.op {
            Op::Read(arg) => self.read(header, &arg, reply),
            Op::Write { arg, data } => self.write(header, &arg, data, reply),
            Op::Open(arg) => self.open(header, &arg, reply),
            Op::Create { arg, name, supplementary_gid } => {
                self.create(header, &arg, name, supplementary_gid, reply);
            }
            Op::Release(arg) => {
                // Nobody waits for this answer, and closing may take its time.
                reply.done().ignore();
                drop(self.files.close(arg.fh));
            }
            Op::Fsync(arg) => self.fsync(header, &arg, reply),
            Op::Fallocate(arg) => self.fallocate(header, &arg, reply),
            Op::Lseek(arg) => self.lseek(header, &arg, reply),
            Op::Syncfs => settle_done(reply, self.sync_volumes()),

            Op::Lookup { name } => self.lookup(header, name, reply),
            Op::Forget { nlookup } => self.forget(id, nlookup),
            Op::BatchForget(list) => list.iter().for_each(|(id, nr_lookups)| self.forget(id, nr_lookups)),
            Op::Symlink { name, target, supplementary_gid } => {
                let caller = self.creator(header, supplementary_gid, 0);
                self.reply_new(reply, id, |volume, node| volume.symlink(&caller, node, name, target));
            }
            Op::Mknod { arg, name, supplementary_gid } => {
                let caller = self.creator(header, supplementary_gid, arg.umask);
                let rdev = attrs::device_from_kernel(arg.rdev);
                self.reply_new(reply, id, |volume, node| volume.mknod(&caller, node, name, arg.mode, rdev));
            }
            Op::Mkdir { arg, name, supplementary_gid } => {
                let caller = self.creator(header, supplementary_gid, arg.umask);
                self.reply_new(reply, id, |volume, node| volume.mkdir(&caller, node, name, arg.mode));
            }
            Op::Link { old_node, name } => {
                let caller = self.caller(header);
                let result = self.spots(old_node, id).map_err(VfsError::from);
                let result = result.and_then(|(member, old, node)| {
                    let entry = member.volume().link(&caller, old, node, name)?;
                    Ok((Arc::clone(&member), entry))
                });
                self.reply_entry(reply, result);
            }
            Op::Unlink { name } => self.remove(id, name, reply, |volume, node| volume.unlink(node, name)),
            Op::Rmdir { name } => self.remove(id, name, reply, |volume, node| volume.rmdir(node, name)),
            Op::Rename { new_parent, flags, name, new_name } => {
                let flags = umemcg_vfs::RenameFlags::from_bits_retain(flags);
                let result = self.spots(id, new_parent).map_err(VfsError::from);
                settle_done(
                    reply,
                    result.and_then(|(member, node, new_node)| {
                        member.volume().rename(node, name, new_node, new_name, flags)
                    }),
                );
            }
            Op::Readlink => {
                settle(reply, self.on(id, |volume, node| volume.readlink(node)), |reply, text| {
                    reply.bytes(text.as_encoded_bytes()).ignore();
                });
            }
            Op::Opendir(_) => self.opendir(header, reply),
            Op::Readdir(arg) => self.readdir(header, &arg, reply),
            Op::Readdirplus(arg) => self.readdirplus(header, &arg, reply),
            Op::Releasedir(arg) => {
                reply.done().ignore();
                drop(self.dirs.close(arg.fh));
            }
            Op::Fsyncdir(arg) => {
                let data_only = arg.fsync_flags & crate::wire::FSYNC_FDATASYNC != 0;
                let result = self.dir(header, arg.fh).map_err(VfsError::from);
                settle_done(
                    reply,
                    result.and_then(|dir| match &**dir {
                        OpenDir::In(opened) => opened.file.fsyncdir(data_only),
                        OpenDir::Top => Ok(()),
                    }),
                );
            }

            Op::Getattr { fh } => self.getattr(id, fh, reply),
            Op::Setattr(arg) => self.setattr(header, &arg, reply),
            Op::Statfs => self.statfs(id, reply),
            Op::Getxattr { name, size } => self.getxattr(id, name, size, reply),
            Op::Listxattr { size } => self.listxattr(header, size, reply),
            Op::Setxattr { name, value, flags, setxattr_flags } => {
                let flags = umemcg_vfs::XattrFlags::from_bits_retain(flags);
                let kill_set_gid = setxattr_flags & crate::wire::SETXATTR_ACL_KILL_SGID != 0;
                let caller = self.caller(header);
                let set = |volume: &dyn Volume, node| {
                    volume.setxattr(&caller, node, name, value, flags, kill_set_gid)
                };
                settle_done(reply, self.on(id, set));
            }
            Op::Removexattr { name } => {
                settle_done(reply, self.on(id, |volume, node| volume.removexattr(node, name)));
            }
            _ => reply.error(Errno::NOSYS).ignore(),
        }
    }
}
