//! Open files: reading and writing their content.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use rustix::io::Errno;
use umemcg::Group;
use umemcg::files::PinnedPages;
use umemcg::internal::{ChargeMeter, Working};
use umemcg_base::PAGE_SIZE_U64;
use umemcg_vfs::volumes::{Member, Opened, ResolvedId};
use umemcg_vfs::{
    Caller, Entry, FallocateFlags, KernelCaching, NodeId, OFlags, VfsError, Volume, VolumeFile, Whence,
};

use super::request_end::pause;
use super::{DataFs, SilentOpen, reply_done, reply_with};
use crate::classify::Payer;
use crate::errno::ToErrno;
use crate::reply::{Answer, Reply};
use crate::request::Request;
use crate::session::QuickOutcome;
use crate::wire::reply::{CreateOut, LseekOut, OpenOut};
use crate::wire::request::{CreateIn, FallocateIn, FsyncIn, LseekIn, OpenIn, ReadIn, WriteIn};
use crate::wire::{FSYNC_FDATASYNC, InHeader, open_reply, read_flag, write_flag};

/// `lseek` for data and for holes.
const SEEK_DATA: u32 = 3;
const SEEK_HOLE: u32 = 4;

/// The kernel's own flag of an open by `execve` (`__FMODE_EXEC` in `linux/fs.h`).
const FMODE_EXEC: u32 = 1 << 5;

/// The most writes of a mount waiting at a time for pages to be dropped. An asynchronous write
/// occupies a place in the kernel, and the drop may need one, too, for the write-back before it.
const NR_DROP_TURNS_MAX: usize = 64;

/// A created file, open.
type NewFile = (Entry, Arc<dyn VolumeFile>);

/// The turn of a write waiting for pages to be dropped; released when dropped.
struct DropTurn(Arc<AtomicUsize>);

impl DropTurn {
    fn take(nr_turns: &Arc<AtomicUsize>) -> Option<Self> {
        // Relaxed: a count.
        let turn = Self(Arc::clone(nr_turns));
        (nr_turns.fetch_add(1, Ordering::Relaxed) < NR_DROP_TURNS_MAX).then_some(turn)
    }
}

impl Drop for DropTurn {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Returns the flags of an answered open. With direct I/O, every read and write comes here. A
/// read-only descriptor has nothing to report when it is closed.
fn open_flags(file: &dyn VolumeFile, caching: KernelCaching) -> u32 {
    let noflush = if file.is_writable() { 0 } else { open_reply::NOFLUSH };
    let caching = match caching {
        KernelCaching::Bypass => open_reply::DIRECT_IO | open_reply::PARALLEL_DIRECT_WRITES,
        KernelCaching::Keep => open_reply::KEEP_CACHE,
        KernelCaching::Refill => 0,
    };
    caching | noflush
}

/// Returns whether a read fills the kernel's page cache instead of a process's buffer.
pub(super) fn fills_cache(arg: &ReadIn) -> bool {
    arg.read_flags & read_flag::LOCKOWNER == 0
}

/// Returns whether a write goes through the kernel's page cache. Late write-back of a mapping does
/// not count: its pages came there with reads.
fn is_through_cache(arg: &WriteIn) -> bool {
    arg.write_flags & (write_flag::LOCKOWNER | write_flag::CACHE) == 0
}

/// Returns the silent open of a read.
pub(super) fn reading(request: &Request<'_>, arg: &ReadIn) -> SilentOpen {
    SilentOpen::reading(request.header.nodeid, arg.flags)
}

/// Returns the silent open of a write. Late write-back of a mapping comes without the flags of a
/// descriptor.
fn writing(request: &Request<'_>, arg: &WriteIn) -> SilentOpen {
    let flags = if arg.write_flags & write_flag::CACHE == 0 { arg.flags } else { 0 };
    SilentOpen::writing(request.header.nodeid, flags)
}

/// Notes a request through the kernel's page cache, from now until it is answered, unless it has
/// been noted: at its arrival the kernel may have had no known page of the file.
pub(super) fn begin_kernel_io(
    file: &dyn VolumeFile,
    (offset, size): (u64, u32),
    is_write: bool,
    group: &Arc<Group>,
    reply: &mut Reply,
) {
    if reply.kernel_io().is_none()
        && let Some(io) = file.begin_kernel_io(offset, u64::from(size), is_write, group)
    {
        reply.begin_kernel_io(io);
    }
}

impl DataFs {
    pub(super) fn send_pages(&self, reply: &mut Reply, pages: &PinnedPages) {
        reply.frames(&self.arena, pages.segments()).ignore();
    }

    pub(super) fn read_quickly(
        &self,
        request: &Request<'_>,
        arg: &ReadIn,
        reply: &mut Reply,
    ) -> QuickOutcome {
        let Some(file) = self.files.get(self.handle(arg.fh, reading(request, arg))) else {
            return self.without_file(
                request,
                arg.fh,
                fills_cache(arg).then_some((arg.offset, arg.size, false)),
                reply,
            );
        };
        let mut payer = None;
        if self.lifetimes.pages && fills_cache(arg) {
            let of_request = self.payer_of(request, Some(file.file.group()));
            begin_kernel_io(&*file.file, (arg.offset, arg.size), false, of_request.group_for_now(), reply);
            if reply.kernel_io().is_some_and(|io| io.is_beyond_limit()) {
                return self.may_sleep(request, of_request);
            }
            payer = Some(of_request);
        }
        match file.file.try_read(arg.offset, arg.size as usize) {
            Some(pages) => {
                self.send_pages(reply, &pages);
                QuickOutcome::Answered
            }
            None => {
                let payer = payer.unwrap_or_else(|| self.payer_of(request, Some(file.file.group())));
                self.may_sleep(request, payer)
            }
        }
    }

    /// Returns the outcome for a request on a file not open here. After a silent open, the serving
    /// thread opens the file. `range` is the part of the file that the request may put into the
    /// kernel's cache, and whether it writes.
    fn without_file(
        &self,
        request: &Request<'_>,
        fh: u64,
        range: Option<(u64, u32, bool)>,
        reply: &mut Reply,
    ) -> QuickOutcome {
        let header = request.header;
        let (true, Ok(ResolvedId::In(member, node))) =
            (self.is_silent(fh), self.volumes.place(header.nodeid))
        else {
            reply.error(self.no_handle(header)).ignore();
            return QuickOutcome::Answered;
        };
        let payer = self.payer_of(request, None);
        if let Some((offset, size, is_write)) = range {
            let range = (offset, u64::from(size));
            if let Some(io) = member.volume().begin_kernel_io(node, range, is_write, payer.group_for_now()) {
                reply.begin_kernel_io(io);
            }
        }
        self.may_sleep(request, payer)
    }

    /// Returns the delay at the end of a request. Reclaims first if the request has charged
    /// `bytes`, or other requests of its group have deferred some, while the group or one above is
    /// over its `memory.high`. May sleep, so only workers call it.
    pub(super) fn high_delay(
        &self,
        header: &InHeader,
        group: &Arc<Group>,
        bytes: u64,
        reply: &Reply,
    ) -> Duration {
        // Late write-back of a mapping is not the request of a process.
        if header.pid == 0 {
            return Duration::ZERO;
        }
        self.engine.reclaimer().handle_over_high(group, bytes, &|| reply.is_cancelled())
    }

    pub(super) fn write_quickly(
        &self,
        request: &Request<'_>,
        arg: &WriteIn,
        data: &[u8],
        reply: &mut Reply,
    ) -> QuickOutcome {
        let Some(file) = self.files.get(self.handle(arg.fh, writing(request, arg))) else {
            let range = is_through_cache(arg).then_some((arg.offset, data.len() as u32, true));
            return self.without_file(request, arg.fh, range, reply);
        };
        let payer = self.payer_of(request, Some(file.file.group()));
        let kill_set_id = arg.write_flags & write_flag::KILL_SUIDGID != 0;
        if self.lifetimes.pages && is_through_cache(arg) {
            let range = (arg.offset, data.len() as u32);
            begin_kernel_io(&*file.file, range, true, payer.group_for_now(), reply);
        }
        // Over `memory.high` a charging request reclaims, and this thread must not.
        if let Payer::Group(group) = &payer
            && !self.engine.reclaimer().is_over_high(group)
            && reply.kernel_io().is_none_or(|io| io.charge_copy(None, group))
            && let Some(written) = file.file.try_write(group, arg.offset, data, kill_set_id)
        {
            file.on.touch();
            self.finish_write(&file, group, arg, (written, Duration::ZERO), reply);
            return QuickOutcome::Answered;
        }
        self.may_sleep(request, payer)
    }

    pub(super) fn write(&self, request: &Request<'_>, arg: &WriteIn, data: &[u8], reply: &mut Reply) {
        let header = request.header;
        let opened = match self.file_for(request, arg.fh, writing(request, arg)) {
            Ok(opened) => opened,
            Err(error) => return reply.error(error.to_errno()).ignore(),
        };
        let file = &opened.file;
        let group = self.group(request);
        if self.is_silent(arg.fh) && is_through_cache(arg) {
            begin_kernel_io(&**file, (arg.offset, data.len() as u32), true, &group, reply);
        }
        let kill_set_id = arg.write_flags & write_flag::KILL_SUIDGID != 0;
        let (meter, _working) = (ChargeMeter::start(), Working::begin(&group));
        let _current = reply.make_current();
        if let Some(io) = reply.kernel_io()
            && !io.charge_copy(Some(&self.engine), &group)
        {
            io.drop_behind();
        }
        let result = match arg.write_flags & write_flag::CACHE {
            0 => file.write(&group, arg.offset, data, kill_set_id),
            _ => file.write_mapped(&group, arg.offset, data),
        };
        opened.on.touch();
        let is_refused_mapping = result.is_err() && arg.write_flags & write_flag::CACHE != 0;
        reply_with(reply, result, |reply, written| {
            reply.accepted_write(written as u32);
            let delay = self.high_delay(header, &group, meter.bytes(), reply);
            self.finish_write(&opened, &group, arg, (written, delay), reply);
        });
        if is_refused_mapping {
            // The kernel takes the pages for written, and would show them to every later reader.
            // After the answer, because the kernel waits for it before it drops them.
            file.drop_kernel_pages(arg.offset, data.len() as u64, Box::new(|| {}));
        }
    }

    /// Answers an accepted write once the kernel has no stale pages of the written range. The
    /// kernel does not drop them itself after an asynchronous direct write, nor pages dropped and
    /// read again while the write was under way.
    fn finish_write(
        &self,
        opened: &Arc<Opened<dyn VolumeFile>>,
        group: &Arc<Group>,
        arg: &WriteIn,
        (written, delay): (usize, Duration),
        reply: &mut Reply,
    ) {
        let (file, offset, len) = (&opened.file, arg.offset, written as u64);
        let kernel_io = reply.kernel_io();
        let is_crossed = match &kernel_io {
            Some(io) => io.is_crossed(),
            // Late write-back of a mapping comes from valid pages of the kernel.
            None => {
                let is_direct = arg.write_flags & write_flag::LOCKOWNER != 0;
                self.lifetimes.pages && is_direct && file.kernel_may_have(offset, len)
            }
        };
        if !is_crossed {
            return self.accepted(&**file, group, written, delay, reply);
        }
        // The kernel keeps a partly written page locked until the answer.
        let is_locked = kernel_io.is_some() && (offset | len) & (PAGE_SIZE_U64 - 1) != 0;
        drop(kernel_io);
        let turn = DropTurn::take(&self.nr_drop_turns).filter(|_| !is_locked);
        let (Some(turn), Some(me)) = (turn, self.me.upgrade()) else {
            self.accepted(&**file, group, written, delay, reply);
            return file.drop_kernel_pages(offset, len, Box::new(|| {}));
        };
        reply.end_kernel_io();
        let (opened, group, mut reply) = (Arc::clone(opened), Arc::clone(group), reply.take());
        reply.accepted_write(written as u32);
        let answer = move || {
            me.accepted(&*opened.file, &group, written, delay, &mut reply);
            drop(turn);
        };
        file.drop_kernel_pages(offset, len, Box::new(answer));
    }

    /// Answers an accepted write, immediately or after the writer's pause and `high_delay`.
    fn accepted(
        &self,
        file: &dyn VolumeFile,
        group: &Arc<Group>,
        written: usize,
        high_delay: Duration,
        reply: &mut Reply,
    ) {
        let Some((delay, again)) = pause(Some(file.content()), group, written, high_delay) else {
            return reply.written(written).ignore();
        };
        let (reply, written) = (reply.take(), written as u32);
        reply.accepted_write(written);
        self.delays.delay(reply, Answer::written(written), delay, again);
    }

    /// Returns whether a process executes a file. Walks all open files.
    fn is_executed(&self, member: &Arc<Member>, node: NodeId) -> bool {
        let is_of = |opened: &Opened<dyn VolumeFile>| {
            opened.is_executed && opened.file.node() == node && Arc::ptr_eq(&opened.on, member)
        };
        self.files.find(is_of).is_some()
    }

    pub(super) fn open(&self, request: &Request<'_>, arg: &OpenIn, reply: &mut Reply) {
        let caller = self.caller_opening(request, arg.open_flags);
        let header = request.header;
        let flags = OFlags::from_bits_retain(arg.flags);
        let is_cut = flags.contains(OFlags::TRUNC);
        let result = self.change(header.nodeid).map_err(VfsError::from).and_then(|(member, node)| {
            // The kernel refuses the other access modes itself, before it asks the daemon.
            if is_cut && !flags.intersects(OFlags::RWMODE) && self.is_executed(&member, node) {
                return Err(Errno::TXTBSY.into());
            }
            let on = member.begin_open()?;
            let file = member.volume().open(&caller, node, flags)?;
            Ok(Opened { file, on, is_executed: arg.flags & FMODE_EXEC != 0 })
        });
        reply_with(reply, result, |reply, opened| {
            let caching = opened.file.kernel_caching(false);
            let open_flags = open_flags(&*opened.file, caching);
            let (file, fh) = (Arc::clone(&opened.file), self.files.open(Arc::new(opened)));
            let files = Arc::clone(&self.files);
            let answer = move |reply: &mut Reply| {
                reply.hand_over(&OpenOut { fh, open_flags, padding: 0 }, move || drop(files.close(fh)));
            };
            if caching != KernelCaching::Refill {
                return answer(reply);
            }
            let mut reply = reply.take();
            file.when_refillable(Box::new(move || answer(&mut reply)));
        });
    }

    /// Creates a file with `make`, with or without a name, and answers with the open file.
    pub(super) fn open_new(
        &self,
        request: &Request<'_>,
        (arg, supplementary_gid): (&CreateIn, Option<u32>),
        reply: &mut Reply,
        make: impl FnOnce(&dyn Volume, &Caller, NodeId, OFlags) -> Result<NewFile, VfsError>,
    ) {
        let header = request.header;
        let caller = self.creator(request, supplementary_gid, arg.umask);
        let flags = OFlags::from_bits_retain(arg.flags);
        let moment = self.look_moment(header.nodeid);
        let result = self.change(header.nodeid).map_err(VfsError::from).and_then(|(member, node)| {
            let on = member.begin_open()?;
            let (entry, file) = make(&**member.volume(), &caller, node, flags)?;
            Ok((entry, member.entry_to_kernel(entry)?, Opened { file, on, is_executed: false }))
        });
        reply_with(reply, result, |reply, (inner, entry, opened)| {
            let (open_flags, member) =
                (open_flags(&*opened.file, opened.file.kernel_caching(true)), Arc::clone(&opened.on));
            let handle = self.files.open(Arc::new(opened));
            // With silent opens the kernel sends no RELEASE either.
            let fh = match self.lifetimes.silent_opens {
                true => {
                    let open = SilentOpen::of_new(entry.node.0, arg.flags);
                    self.close_handles(self.silent_opens.add(open, handle));
                    0
                }
                false => handle,
            };
            let open = OpenOut { fh, open_flags, padding: 0 };
            let files = Arc::clone(&self.files);
            let entry = Self::entry_out(&entry, self.lifetimes_of(&member, entry.attr.ino, moment));
            // Without O_EXCL the file may have existed.
            reply.also_changed([Some(inner.node), None]);
            reply.hand_over(&CreateOut { entry, open }, move || {
                drop(files.close(handle));
                member.volume().forget(inner.node, 1);
            });
        });
    }

    pub(super) fn flush(&self, header: &InHeader, fh: u64, reply: &mut Reply) {
        let file = self.file(header, fh).map(|opened| Arc::clone(&opened));
        reply_done(reply, file.map_err(VfsError::from).and_then(|opened| opened.file.flush_of(header.pid)));
    }

    pub(super) fn release(&self, fh: u64, reply: &mut Reply) {
        // Answered first: no caller waits for the close, which may take long.
        reply.done().ignore();
        if let Some(opened) = self.files.close(fh) {
            opened.file.closed();
        }
    }

    pub(super) fn fsync(&self, request: &Request<'_>, arg: &FsyncIn, reply: &mut Reply) {
        let data_only = arg.fsync_flags & FSYNC_FDATASYNC != 0;
        let open = SilentOpen::reading(request.header.nodeid, 0);
        let result = self.file_for(request, arg.fh, open);
        reply_done(reply, result.and_then(|opened| opened.file.fsync(data_only)));
    }

    pub(super) fn fallocate(&self, request: &Request<'_>, arg: &FallocateIn, reply: &mut Reply) {
        let mode = FallocateFlags::from_bits_retain(arg.mode);
        let result = self.file_for(request, arg.fh, SilentOpen::writing(request.header.nodeid, 0));
        let result = result.and_then(|opened| {
            let caller = self.caller_with_user(request);
            // The kernel leaves this to the daemon, and does not report the caller's CAP_FSETID;
            // the superuser has it.
            let kill_set_id = caller.uid != 0;
            let result = opened.file.fallocate(&caller.group, mode, arg.offset, arg.length, kill_set_id);
            opened.on.touch();
            result
        });
        reply_done(reply, result);
    }

    pub(super) fn lseek(&self, request: &Request<'_>, arg: &LseekIn, reply: &mut Reply) {
        let whence = match arg.whence {
            SEEK_DATA => Whence::Data,
            SEEK_HOLE => Whence::Hole,
            _ => return reply.error(Errno::INVAL).ignore(),
        };
        let result = self.file_for(request, arg.fh, SilentOpen::reading(request.header.nodeid, 0));
        let result = result.and_then(|opened| opened.file.lseek(whence, arg.offset));
        reply_with(reply, result, |reply, offset| reply.value(&LseekOut { offset }).ignore());
    }
}
