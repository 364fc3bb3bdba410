//! Volumes as a mount: each FUSE request becomes a call of its [`Volume`], charged to the group of
//! the requesting process. `volumes_directory` answers requests about the directory of all volumes.
//!
//! The reader answers requests that cannot sleep: reads of cached pages, writes into cached pages,
//! closes. Everything else may need the store, and goes through [`slow`](Filesystem::slow).

mod absent_names;
mod attrs;
mod content;
mod device;
mod invalidation;
mod kernel_names;
mod lifetimes;
mod look_moment;
mod names;
mod refusals;
mod request_end;
mod silent_opens;
mod slow_reads;
mod user_ids;
mod volumes_directory;

use std::ffi::OsStr;
use std::ops::Deref;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, OnceLock, Weak};

use rustix::io::Errno;
use umemcg::files::Arena;
use umemcg::{Engine, Group};
use umemcg_vfs::volumes::{Member, MemberRef, Opened, ResolvedId};
use umemcg_vfs::{Caller, KernelCache, NodeId, Timestamp, VfsError, Volume, VolumeDir, VolumeFile, Volumes};

use crate::classify::{Classifier, Payer, Requester};
use crate::delayed_replies::DelayQueue;
use crate::errno::ToErrno;
use crate::handles::{HandleRef, HandleTable};
use crate::notifier::Notifier;
use crate::parking::Parking;
use crate::reply::Reply;
use crate::request::Request;
use crate::session::{Filesystem, QuickOutcome};
use crate::thread_pool::Keys;
use crate::wire::{InHeader, InitFlags, Negotiated, Op};
use absent_names::AbsentNames;
use kernel_names::KernelNames;
pub use lifetimes::Lifetimes;
use refusals::Refusals;
use silent_opens::{SilentOpen, SilentOpens};

/// The store key of requests without a store.
const NO_STORE: u64 = u64::MAX;
/// Added to a store's key for FORGET requests. Lookups on the store may be waiting for them, and
/// must not take their places. The same key stands for their group: a FORGET belongs to no group,
/// and does not wait for another store's.
const FORGETTING: u64 = 1 << 63;
/// Added to a store's key for requests holding their directory, so that they wait behind no content
/// of their own tenant while others wait for the directory.
const OF_DIRECTORY: u64 = 1 << 61;

/// Returns the queue keys of FORGET requests for nodes of a store.
fn forgetting(store: u64) -> Keys {
    Keys::single(store | FORGETTING, store | FORGETTING)
}

/// An open directory: of a volume, or the directory of all volumes.
#[derive(Debug)]
enum OpenDir {
    In {
        opened: Opened<dyn VolumeDir>,
        /// The kernel keeps the listing.
        is_kept: bool,
    },
    Top,
}

/// A volume during a change by a request. The change is noted when the request ends: a sync begun
/// earlier may miss it, but the next sync must not.
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
    delays: Arc<DelayQueue>,
    refusals: Refusals,
    /// (C) Itself, for gates at the end of requests.
    me: Weak<DataFs>,
    lifetimes: Lifetimes,
    silent_opens: SilentOpens,
    /// (A) The number of writes waiting for the kernel to drop pages.
    nr_drop_turns: Arc<AtomicUsize>,
    /// (C) The creation time, shown as the times of the directory of all volumes.
    since: Timestamp,
    absent: Arc<AbsentNames>,
    /// Set once the session is ready.
    notifier: OnceLock<Notifier>,
    /// Set before the first request.
    parking: OnceLock<Parking>,
}

impl DataFs {
    /// Returns the classifier, which finds the group of each request.
    pub fn classifier(&self) -> &Arc<dyn Classifier> {
        &self.classifier
    }

    /// Creates the file system for volumes of `engine`.
    ///
    /// # Errors
    /// When the system refuses a thread.
    pub fn new(
        engine: &Arc<Engine>,
        volumes: Arc<Volumes>,
        classifier: Arc<dyn Classifier>,
        lifetimes: Lifetimes,
    ) -> std::io::Result<Arc<Self>> {
        let delays = Arc::new(DelayQueue::new()?);
        Ok(Arc::new_cyclic(|me| Self {
            me: Weak::clone(me),
            volumes,
            arena: Arc::clone(engine.arena()),
            engine: Arc::clone(engine),
            classifier,
            files: Arc::default(),
            dirs: Arc::default(),
            delays,
            refusals: Refusals::default(),
            lifetimes,
            silent_opens: SilentOpens::default(),
            nr_drop_turns: Arc::default(),
            since: now(),
            absent: Arc::default(),
            notifier: OnceLock::new(),
            parking: OnceLock::new(),
        }))
    }

    /// Returns the number of open files.
    pub fn nr_open_files(&self) -> usize {
        self.files.len()
    }

    /// Returns the number of requests with a delayed answer.
    pub fn nr_delayed(&self) -> usize {
        self.delays.len()
    }

    /// Closes all handles. Called at the end of the session, when the kernel sends no more
    /// releases.
    pub fn close_all(&self) {
        drop(self.files.close_all());
        drop(self.dirs.close_all());
    }

    /// Closes all handles on a removed volume; further uses get errors.
    pub fn close_all_of(&self, member: &Arc<Member>) {
        drop(self.files.close_where(|opened| Arc::ptr_eq(&opened.on, member)));
        drop(
            self.dirs.close_where(
                |dir| matches!(dir, OpenDir::In { opened, .. } if Arc::ptr_eq(&opened.on, member)),
            ),
        );
    }

    /// Returns the path of an open file of a volume, or a description of another open object.
    pub fn example_of_open(&self, member: &Arc<Member>) -> String {
        let is_file = |opened: &Opened<dyn VolumeFile>| Arc::ptr_eq(&opened.on, member);
        if let Some(opened) = self.files.find(is_file) {
            let path = member.volume().path_of(opened.file.node());
            return path.map_or("a file without a name".into(), |path| format!("{path:?}"));
        }
        let is_dir =
            |dir: &OpenDir| matches!(dir, OpenDir::In { opened, .. } if Arc::ptr_eq(&opened.on, member));
        match self.dirs.find(is_dir) {
            Some(_) => "a directory".into(),
            // The kernel has closed it.
            None => "one that a request still uses".into(),
        }
    }

    /// Returns the group charged for an arriving request; `opener` is the group that opened its
    /// file. Does not sleep.
    fn payer_of(&self, request: &Request<'_>, opener: Option<&Arc<Group>>) -> Payer {
        let header = request.header;
        let heir;
        let opener = match opener {
            Some(removed) if removed.is_dead() => {
                heir = living(removed);
                Some(&heir)
            }
            opener => opener,
        };
        self.classifier.payer(&Requester {
            tid: header.pid,
            uid: header.uid,
            gid: header.gid,
            queued_after_ns: request.queued_after_ns,
            opener,
            path: &|| self.volumes.path_of(header.nodeid),
        })
    }

    /// Returns the group that pays for a request, determined at its arrival. Creates it if needed,
    /// and may sleep for that.
    fn group(&self, request: &Request<'_>) -> Arc<Group> {
        match request.payer {
            Some(payer) => self.group_of(payer),
            None => self.group_of(&self.payer_of(request, None)),
        }
    }

    fn group_of(&self, payer: &Payer) -> Arc<Group> {
        match payer {
            Payer::Group(group) => living(group),
            Payer::Unmade { names, above } => self.classifier.make_group(names, above),
        }
    }

    fn caller(&self, request: &Request<'_>) -> Caller {
        self.creator(request, None, 0)
    }

    fn creator(&self, request: &Request<'_>, supplementary_gid: Option<u32>, umask: u32) -> Caller {
        let header = request.header;
        Caller {
            uid: header.uid,
            gid: header.gid,
            supplementary_gid,
            group: self.group(request),
            umask,
            thread: header.pid,
        }
    }

    /// Returns the outcome for a request that may sleep: its queue keys and the paying group.
    fn may_sleep(&self, request: &Request<'_>, payer: Payer) -> QuickOutcome {
        let kind = if request.op.holds_directory() { OF_DIRECTORY } else { 0 };
        let keys = Keys::of(payer.group_for_now(), self.store_of(request.header.nodeid) ^ kind);
        QuickOutcome::MaySleepAt(keys, payer)
    }

    /// Returns the group that opened a request's file, for requests possibly about its content.
    fn opener_of(&self, op: &Op<'_>) -> Option<Arc<Group>> {
        let fh = match op {
            Op::Release(arg) => arg.fh,
            Op::Fsync(arg) => arg.fh,
            Op::Fallocate(arg) => arg.fh,
            Op::Lseek(arg) => arg.fh,
            _ => return None,
        };
        Some(Arc::clone(self.files.get(fh)?.file.group()))
    }

    /// Returns the store of a node, as a queue key.
    fn store_of(&self, id: u64) -> u64 {
        match self.volumes.place(id) {
            Ok(ResolvedId::In(member, _)) => member.volume().store_id().0,
            _ => NO_STORE,
        }
    }

    /// Returns the volume of a node about to be changed. The directory of all volumes cannot be
    /// changed.
    fn change(&self, id: u64) -> Result<(Changing<'_>, NodeId), Errno> {
        match self.volumes.place(id)? {
            ResolvedId::Top => Err(Errno::ROFS),
            ResolvedId::In(member, node) => Ok((Changing(member), node)),
        }
    }

    /// Returns two nodes of one volume.
    fn change_both(&self, one: u64, other: u64) -> Result<(Changing<'_>, NodeId, NodeId), Errno> {
        let ((member, node), (other_member, other_node)) = (self.change(one)?, self.change(other)?);
        if Arc::ptr_eq(&member, &other_member) { Ok((member, node, other_node)) } else { Err(Errno::XDEV) }
    }

    /// Returns the open file behind a handle of the kernel.
    fn file(&self, header: &InHeader, handle: u64) -> Result<HandleRef<Opened<dyn VolumeFile>>, Errno> {
        self.files.get(handle).ok_or_else(|| self.no_handle(header))
    }

    /// Returns the handle of a request: `fh`, or the handle kept for this open if the open was
    /// silent.
    fn handle(&self, fh: u64, open: SilentOpen) -> u64 {
        if self.is_silent(fh) { self.silent_opens.handle(open) } else { fh }
    }

    /// Returns whether a request comes through a silently opened descriptor.
    fn is_silent(&self, fh: u64) -> bool {
        fh == 0 && self.lifetimes.silent_opens
    }

    /// Returns the open file of a request. Opens it after a silent open, and may sleep for that.
    fn file_for(
        &self,
        request: &Request<'_>,
        fh: u64,
        open: SilentOpen,
    ) -> Result<Arc<Opened<dyn VolumeFile>>, VfsError> {
        let header = request.header;
        let known = self.files.get(self.handle(fh, open)).map(|opened| Arc::clone(&opened));
        if let Some(opened) = known {
            return Ok(opened);
        }
        let (true, ResolvedId::In(member, node)) = (self.is_silent(fh), self.volumes.place(header.nodeid)?)
        else {
            return Err(self.no_handle(header).into());
        };
        let on = member.begin_open()?;
        let caller = self.caller(request);
        let reopen = || member.volume().reopen(&caller, node, open.flags());
        let file = match reopen() {
            // The kept opens may hold descriptors.
            Err(VfsError::Host(Errno::NFILE)) => {
                self.close_handles(self.silent_opens.take_all());
                reopen()?
            }
            file => file?,
        };
        // On this mount it is cached, regardless of room.
        file.kernel_caching(false);
        let opened = Arc::new(Opened { file, on, is_executed: false });
        self.close_handles(self.silent_opens.add(open, self.files.open(Arc::clone(&opened) as _)));
        Ok(opened)
    }

    fn close_handles(&self, handles: Vec<u64>) {
        handles.into_iter().for_each(|handle| drop(self.files.close(handle)));
    }

    /// Returns the open directory of a request. After a silent open, makes one for this request.
    fn dir(&self, header: &InHeader, handle: u64) -> Result<Arc<OpenDir>, VfsError> {
        if let Some(dir) = self.dirs.get(handle) {
            return Ok(Arc::clone(&dir));
        }
        let (true, ResolvedId::In(member, node)) =
            (self.is_silent(handle), self.volumes.place(header.nodeid)?)
        else {
            return Err(self.no_handle(header).into());
        };
        let on = member.begin_open()?;
        let file = member.volume().directory_for_request(node)?;
        let opened = Opened { file, on, is_executed: false };
        Ok(Arc::new(OpenDir::In { opened, is_kept: true }))
    }

    /// Returns whether directories are listed without an OPENDIR.
    fn lists_silently(&self) -> bool {
        let lists = || self.volumes.whole().is_some_and(|member| member.volume().lists_without_open());
        self.lifetimes.silent_opens && lists()
    }

    /// Returns the errno for a handle open in the kernel and unknown here, because its volume was
    /// removed by force.
    fn no_handle(&self, header: &InHeader) -> Errno {
        if self.volumes.place(header.nodeid).is_err() { Errno::NODEV } else { Errno::BADF }
    }

    /// Calls an operation of a node's volume.
    fn on<T>(
        &self,
        id: u64,
        call: impl FnOnce(&dyn Volume, NodeId) -> Result<T, VfsError>,
    ) -> Result<T, VfsError> {
        let (member, node) = self.change(id)?;
        call(&**member.volume(), node)
    }
}

/// Returns the group, or its nearest living ancestor.
fn living(group: &Arc<Group>) -> Arc<Group> {
    if group.is_dead() { group.owner().resolve() } else { Arc::clone(group) }
}

fn now() -> Timestamp {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
    Timestamp { seconds: now.tv_sec, nanoseconds: now.tv_nsec as u32 }
}

/// Answers with `answer` on success, and with the error otherwise.
fn reply_with<T>(reply: &mut Reply, result: Result<T, VfsError>, answer: impl FnOnce(&mut Reply, T)) {
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

fn reply_done(reply: &mut Reply, result: Result<(), VfsError>) {
    reply_with(reply, result, |reply, ()| reply.done().ignore());
}

/// Returns the name to be created by a request, with its directory.
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
            // The kernel drops pages from its page cache on request; without this flag, a new
            // modification time would make it drop all.
            | if self.lifetimes.pages { InitFlags::EXPLICIT_INVAL_DATA } else { InitFlags::AUTO_INVAL_DATA }
            // The kernel truncates with an open or with a separate SETATTR; the latter comes here
            // in any case.
            | if self.lifetimes.silent_opens { 0 } else { InitFlags::ATOMIC_O_TRUNC }
            | InitFlags::CACHE_SYMLINKS
            // The kernel reads access lists and decides by them. The host applies default lists, so
            // the umask must come separately.
            | InitFlags::POSIX_ACL
            | InitFlags::DONT_MASK
            // See `user_ids`.
            | if self.classifier.goes_by_user() { 0 } else { InitFlags::ALLOW_IDMAP }
    }

    fn set_parking(&self, parking: Parking) {
        let _ = self.parking.set(parking);
    }

    fn ready(&self, negotiated: &Negotiated, notifier: &Notifier) {
        if negotiated.has(InitFlags::ALLOW_IDMAP) {
            self.classifier.lose_users();
        }
        let kernel: Arc<dyn KernelCache> =
            Arc::new(KernelNames { notifier: notifier.clone(), lifetimes: self.lifetimes });
        self.volumes.set_kernel(&kernel);
        let _ = self.notifier.set(notifier.clone());
    }

    fn quick(&self, request: &Request<'_>, reply: &mut Reply) -> QuickOutcome {
        let header = request.header;
        match request.op {
            Op::Read(arg) => return self.read_quickly(request, &arg, reply),
            Op::Write { arg, data } => return self.write_quickly(request, &arg, data, reply),
            // The kernel sends neither again: a failed write is reported by fsync.
            Op::Open(_) | Op::Flush(_) if self.lifetimes.silent_opens => {
                reply.error(Errno::NOSYS).ignore();
            }
            // Nor this. From then on the kernel keeps its listings.
            Op::Opendir(_) if self.lists_silently() => reply.error(Errno::NOSYS).ignore(),
            Op::Flush(arg) => match self.file(header, arg.fh) {
                // `execve` closes files with a lock of the process held, so nothing is read about
                // the requester.
                Ok(opened) if opened.file.flush_may_sleep() => {
                    return self.may_sleep(request, Payer::Group(living(opened.file.group())));
                }
                file => {
                    reply_done(reply, file.map_err(VfsError::from).and_then(|opened| opened.file.flush()))
                }
            },
            // The store may be writing the content of a forgotten file.
            Op::Forget { .. } => {
                return QuickOutcome::MaySleep(forgetting(self.store_of(header.nodeid)));
            }
            Op::BatchForget(list) => {
                let store = list.iter().next().map_or(NO_STORE, |(node, _)| self.store_of(node));
                return QuickOutcome::MaySleep(forgetting(store));
            }
            Op::Getattr { .. } if self.getattr_quickly(header.nodeid, reply) => {}
            Op::Getxattr { name, .. } if self.is_known_absent(header.nodeid, name) => {
                reply.error(Errno::NODATA).ignore();
            }
            Op::Ioctl => reply.error(Errno::NOTTY).ignore(),
            // The kernel has a fallback for each of these, and does not send them again.
            Op::Access | Op::Poll(_) | Op::CopyFileRange => {
                reply.error(Errno::NOSYS).ignore();
            }
            ref op => {
                let opener = self.opener_of(op);
                let payer = match (op, opener) {
                    // A release charges nothing, and a file's last release may come from no thread
                    // at all.
                    (Op::Release(_), Some(opener)) => Payer::Group(living(&opener)),
                    (_, opener) => self.payer_of(request, opener.as_ref()),
                };
                return self.may_sleep(request, payer);
            }
        }
        QuickOutcome::Answered
    }

    fn refuse(&self, request: &Request<'_>, reply: &mut Reply) {
        self.refusals.refuse(request, reply, &self.delays);
    }

    fn slow(&self, request: &Request<'_>, reply: &mut Reply) {
        if let Some(invalidation) = self.invalidation(request) {
            if reply.is_cancelled() {
                // The caller was killed before the change began.
                return reply.error(Errno::INTR).ignore();
            }
            reply.begin_change(invalidation);
        }
        if let Some((parent, name)) = name_to_be(request.header.nodeid, &request.op) {
            self.absent.exists(parent, name);
        }
        if let Some(gate) = self.gate(request) {
            reply.set_gate(gate);
        }
        self.serve(request, reply);
    }
}

impl DataFs {
    /// Serves a request that may sleep.
    fn serve(&self, request: &Request<'_>, reply: &mut Reply) {
        let (header, id) = (request.header, request.header.nodeid);
        match request.op {
            Op::Read(arg) => self.read(request, &arg, reply),
            Op::Write { arg, data } => self.write(request, &arg, data, reply),
            Op::Open(arg) => self.open(request, &arg, reply),
            Op::Create { arg, name, parent_gid: gid } => {
                self.open_new(request, (&arg, gid), reply, |volume, caller, node, flags| {
                    volume.create(caller, node, name, arg.mode, flags)
                });
            }
            Op::Tmpfile { arg, parent_gid: gid } => {
                self.open_new(request, (&arg, gid), reply, |volume, caller, node, flags| {
                    volume.tmpfile(caller, node, arg.mode, flags)
                });
            }
            Op::Flush(arg) => self.flush(header, arg.fh, reply),
            Op::Release(arg) => self.release(arg.fh, reply),
            Op::Fsync(arg) => self.fsync(request, &arg, reply),
            Op::Fallocate(arg) => self.fallocate(request, &arg, reply),
            Op::Lseek(arg) => self.lseek(request, &arg, reply),
            Op::Syncfs => reply_done(reply, self.sync_volumes()),

            Op::Getattr { fh } => self.getattr(id, fh, reply),
            Op::Statx(arg) => self.statx(id, &arg, reply),
            Op::Setattr(arg) => self.setattr(request, &arg, reply),
            Op::Statfs => self.statfs(id, reply),
            Op::Getxattr { name, size } => self.getxattr(id, name, size, reply),
            Op::Listxattr { size } => self.listxattr(request, size, reply),
            Op::Setxattr { name, value, flags, setxattr_flags } => {
                self.setxattr(request, name, value, (flags, setxattr_flags), reply);
            }
            Op::Removexattr { name } => {
                let caller = self.caller(request);
                reply_done(reply, self.on(id, |volume, node| volume.removexattr(&caller, node, name)));
            }
            _ => self.serve_names(request, reply),
        }
    }
}
