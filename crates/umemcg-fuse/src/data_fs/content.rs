//! Open files: reading and writing their content.

use std::ffi::OsStr;
use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;
use umemcg::{ChargeMeter, Group, PinnedPages, Stalled, Working, WritePause};
use umemcg_vfs::volumes::Opened;
use umemcg_vfs::{
    Entry, FallocateFlags, KernelCaching, NodeId, OFlags, VfsError, Volume, VolumeFile, Whence,
};

use super::{DataFs, reply_done, reply_with};
use crate::classify::Payer;
use crate::reply::{Answer, Delay, Reply};
use crate::request::Request;
use crate::session::QuickOutcome;
use crate::wait_charge::{charge_answer, charge_held};
use crate::wire::reply::{CreateOut, LseekOut, OpenOut};
use crate::wire::request::{CreateIn, FallocateIn, FsyncIn, LseekIn, OpenIn, ReadIn, WriteIn};
use crate::wire::{FSYNC_FDATASYNC, InHeader, open_reply, read_flag, write_flag};

/// `lseek` for data and for holes.
const SEEK_DATA: u32 = 3;
const SEEK_HOLE: u32 = 4;

/// Returns the flags of an answered open. Where the kernel does not cache pages it brings every
/// read and write here. A descriptor that cannot write has nothing to report when it is closed.
fn open_flags(file: &dyn VolumeFile, caching: KernelCaching) -> u32 {
    let noflush = if file.is_writable() { 0 } else { open_reply::NOFLUSH };
    let caching = match caching {
        KernelCaching::Bypass => open_reply::DIRECT_IO | open_reply::PARALLEL_DIRECT_WRITES,
        KernelCaching::Keep => open_reply::KEEP_CACHE,
        KernelCaching::Refill => 0,
    };
    caching | noflush
}

/// Returns whether a read is answered to the kernel's page cache, and not to a process.
fn fills_cache(arg: &ReadIn) -> bool {
    arg.read_flags & read_flag::LOCKOWNER == 0
}

/// Returns whether a write goes through the kernel's page cache. Late write-back of a mapping does
/// not count: its pages came there with reads.
fn is_through_cache(arg: &WriteIn) -> bool {
    arg.write_flags & (write_flag::LOCKOWNER | write_flag::CACHE) == 0
}

impl DataFs {
    fn send_pages(&self, reply: &mut Reply, pages: &PinnedPages) {
        reply.frames(&self.arena, pages.segments()).ignore();
    }

    pub(super) fn read_quickly(
        &self,
        request: &Request<'_>,
        arg: &ReadIn,
        reply: &mut Reply,
    ) -> QuickOutcome {
        let Some(file) = self.files.get(arg.fh) else {
            reply.error(self.no_handle(request.header)).ignore();
            return QuickOutcome::Answered;
        };
        let mut payer = None;
        if self.lifetimes.pages && fills_cache(arg) {
            let of_request = self.payer_of(request, Some(file.file.group()));
            self.begin_kernel_io(&*file.file, (arg.offset, arg.size), &of_request, reply);
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

    /// Notes that a request goes through the kernel's page cache, from now until it is answered.
    fn begin_kernel_io(
        &self,
        file: &dyn VolumeFile,
        (offset, size): (u64, u32),
        payer: &Payer,
        reply: &mut Reply,
    ) {
        if let Some(io) = file.begin_kernel_io(offset, u64::from(size), payer.group_for_now()) {
            reply.begin_kernel_io(io);
        }
    }

    pub(super) fn read(&self, request: &Request<'_>, arg: &ReadIn, reply: &mut Reply) {
        let header = request.header;
        let file = match self.file(header, arg.fh) {
            Ok(opened) => Arc::clone(&opened.file),
            Err(errno) => return reply.error(errno).ignore(),
        };
        let group = self.group(request);
        let (meter, _working) = (ChargeMeter::start(), Working::begin(&group));
        let kernel_io = reply.kernel_io();
        if let Some(io) = &kernel_io {
            io.paid_by(&group);
        }
        let len_before = file.content().len();
        let result = file.read(&group, arg.offset, arg.size as usize).and_then(|pages| {
            let expected = len_before.saturating_sub(arg.offset).min(u64::from(arg.size));
            // The kernel takes a short answer for the end of the file, and asks page by page after
            // an error.
            let is_cut =
                kernel_io.is_some() && (pages.len() as u64) < expected && file.content().len() >= len_before;
            if is_cut { Err(Errno::IO.into()) } else { Ok(pages) }
        });
        reply_with(reply, result, |reply, pages| match self.high_delay(header, &group, &meter, reply) {
            Duration::ZERO => self.send_pages(reply, &pages),
            delay => {
                // Without room for the copy the answer is not delayed: a delayed answer must be
                // charged.
                let Some(charge) = charge_answer(&group, arg.size as usize) else {
                    return self.send_pages(reply, &pages);
                };
                let bytes = pages.to_vec();
                drop(pages);
                let stalled = Stalled::begin(&group);
                let again = Box::new(move || {
                    let _until_it_goes = (&stalled, &charge);
                    None
                });
                self.delays.delay(reply.take(), Answer::Bytes(bytes), delay, again);
            }
        });
    }

    /// Returns the delay at the end of a request. If the request has charged memory while its
    /// group, or one above, is over its `memory.high`, this reclaims first. May sleep, so only
    /// workers call it.
    pub(super) fn high_delay(
        &self,
        header: &InHeader,
        group: &Arc<Group>,
        meter: &ChargeMeter,
        reply: &Reply,
    ) -> Duration {
        let (reclaimer, bytes) = (self.engine.reclaimer(), meter.bytes());
        // Late write-back of a mapping is not the request of a process.
        if bytes == 0 || header.pid == 0 || !reclaimer.is_over_high(group) {
            return Duration::ZERO;
        }
        reclaimer.handle_over_high(group, bytes, &|| reply.is_cancelled())
    }

    pub(super) fn write_quickly(
        &self,
        request: &Request<'_>,
        arg: &WriteIn,
        data: &[u8],
        reply: &mut Reply,
    ) -> QuickOutcome {
        let Some(file) = self.files.get(arg.fh) else {
            reply.error(self.no_handle(request.header)).ignore();
            return QuickOutcome::Answered;
        };
        let payer = self.payer_of(request, Some(file.file.group()));
        let kill_set_id = arg.write_flags & write_flag::KILL_SUIDGID != 0;
        if self.lifetimes.pages && is_through_cache(arg) {
            self.begin_kernel_io(&*file.file, (arg.offset, data.len() as u32), &payer, reply);
        }
        // Over `memory.high` a request that charges reclaims, which this thread must not do.
        if let Payer::Group(group) = &payer
            && !self.engine.reclaimer().is_over_high(group)
            && !self.is_written_past(&*file.file, arg, data)
            && reply.kernel_io().is_none_or(|io| io.charge_copy(None, group))
            && let Some(written) = file.file.try_write(group, arg.offset, data, kill_set_id)
        {
            file.on.touch();
            self.accepted(&*file.file, group, written, Duration::ZERO, reply);
            return QuickOutcome::Answered;
        }
        self.may_sleep(request, payer)
    }

    pub(super) fn write(&self, request: &Request<'_>, arg: &WriteIn, data: &[u8], reply: &mut Reply) {
        let header = request.header;
        let opened = match self.file(header, arg.fh) {
            Ok(opened) => Arc::clone(&opened),
            Err(errno) => return reply.error(errno).ignore(),
        };
        let file = &opened.file;
        let group = self.group(request);
        let kill_set_id = arg.write_flags & write_flag::KILL_SUIDGID != 0;
        let (meter, _working) = (ChargeMeter::start(), Working::begin(&group));
        if let Some(io) = reply.kernel_io()
            && !io.charge_copy(Some(&self.engine), &group)
        {
            io.drop_behind();
        }
        let is_past = self.is_written_past(&**file, arg, data);
        let result = match arg.write_flags & write_flag::CACHE {
            0 => file.write(&group, arg.offset, data, kill_set_id),
            _ => file.write_mapped(&group, arg.offset, data),
        };
        opened.on.touch();
        reply_with(reply, result, |reply, written| {
            reply.accepted_write(written as u32);
            let delay = self.high_delay(header, &group, &meter, reply);
            let me = self.me.upgrade().filter(|_| is_past);
            let Some(me) = me else { return self.accepted(&**file, &group, written, delay, reply) };
            let (opened, group, mut reply) = (Arc::clone(&opened), Arc::clone(&group), reply.take());
            let answer = move || me.accepted(&*opened.file, &group, written, delay, &mut reply);
            file.drop_kernel_pages(arg.offset, data.len() as u64, Box::new(answer));
        });
    }

    /// Returns whether a write passes by pages that the kernel may have. They are dropped before it
    /// is answered: after an asynchronous one the kernel does not do that.
    fn is_written_past(&self, file: &dyn VolumeFile, arg: &WriteIn, data: &[u8]) -> bool {
        self.lifetimes.pages
            && arg.write_flags & write_flag::LOCKOWNER != 0
            && file.kernel_may_have(arg.offset, data.len() as u64)
    }

    /// Answers an accepted write: immediately, or when the writer's pause and `delay` are over.
    fn accepted(
        &self,
        file: &dyn VolumeFile,
        group: &Arc<Group>,
        written: usize,
        delay: Duration,
        reply: &mut Reply,
    ) {
        let mut pause = file.content().write_pause(group, written);
        let rest = pause.as_mut().and_then(WritePause::remaining).unwrap_or_default().max(delay);
        if rest.is_zero() {
            return reply.written(written).ignore();
        }
        let (stalled, charge) = (Stalled::begin(group), charge_held(group));
        let again = Box::new(move || {
            let _until_it_goes = (&stalled, &charge);
            pause.as_mut()?.remaining()
        });
        self.delays.delay(reply.take(), Answer::Written(written as u32), rest, again);
    }

    pub(super) fn open(&self, request: &Request<'_>, arg: &OpenIn, reply: &mut Reply) {
        let caller = self.caller(request);
        let header = request.header;
        let flags = OFlags::from_bits_retain(arg.flags);
        let result = self.change(header.nodeid).map_err(VfsError::from).and_then(|(member, node)| {
            let on = member.begin_open()?;
            Ok(Opened { file: member.volume().open(&caller, node, flags)?, on })
        });
        reply_with(reply, result, |reply, opened| {
            let caching = opened.file.kernel_caching(false);
            let open_flags = open_flags(&*opened.file, caching);
            let file = Arc::clone(&opened.file);
            let fh = self.files.open(Arc::new(opened));
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

    pub(super) fn create(
        &self,
        request: &Request<'_>,
        arg: &CreateIn,
        name: &OsStr,
        supplementary_gid: Option<u32>,
        reply: &mut Reply,
    ) {
        let caller = self.creator(request, supplementary_gid, arg.umask);
        self.open_new(request, arg, reply, |volume, node, flags| {
            volume.create(&caller, node, name, arg.mode, flags)
        });
    }

    pub(super) fn tmpfile(
        &self,
        request: &Request<'_>,
        arg: &CreateIn,
        supplementary_gid: Option<u32>,
        reply: &mut Reply,
    ) {
        let caller = self.creator(request, supplementary_gid, arg.umask);
        self.open_new(request, arg, reply, |volume, node, flags| {
            volume.tmpfile(&caller, node, arg.mode, flags)
        });
    }

    /// Creates a file with `make`, with or without a name, and answers with the open file.
    fn open_new(
        &self,
        request: &Request<'_>,
        arg: &CreateIn,
        reply: &mut Reply,
        make: impl FnOnce(&dyn Volume, NodeId, OFlags) -> Result<(Entry, Arc<dyn VolumeFile>), VfsError>,
    ) {
        let header = request.header;
        let flags = OFlags::from_bits_retain(arg.flags);
        let result = self.change(header.nodeid).map_err(VfsError::from).and_then(|(member, node)| {
            let on = member.begin_open()?;
            let (entry, file) = make(&**member.volume(), node, flags)?;
            Ok((entry, member.entry_to_kernel(entry)?, Opened { file, on }))
        });
        reply_with(reply, result, |reply, (inner, entry, opened)| {
            let (open_flags, member) =
                (open_flags(&*opened.file, opened.file.kernel_caching(true)), Arc::clone(&opened.on));
            let fh = self.files.open(Arc::new(opened));
            let open = OpenOut { fh, open_flags, padding: 0 };
            let files = Arc::clone(&self.files);
            reply.hand_over(&CreateOut { entry: self.entry_out(&entry), open }, move || {
                drop(files.close(fh));
                member.volume().forget(inner.node, 1);
            });
        });
    }

    pub(super) fn release(&self, fh: u64, reply: &mut Reply) {
        // Answered first, because no caller waits for it and closing may take long.
        reply.done().ignore();
        drop(self.files.close(fh));
    }

    pub(super) fn fsync(&self, header: &InHeader, arg: &FsyncIn, reply: &mut Reply) {
        let data_only = arg.fsync_flags & FSYNC_FDATASYNC != 0;
        let result = self.file(header, arg.fh).map_err(VfsError::from);
        reply_done(reply, result.and_then(|opened| Arc::clone(&opened.file).fsync(data_only)));
    }

    pub(super) fn fallocate(&self, request: &Request<'_>, arg: &FallocateIn, reply: &mut Reply) {
        let header = request.header;
        let mode = FallocateFlags::from_bits_retain(arg.mode);
        let result = self.file(header, arg.fh).map_err(VfsError::from);
        reply_done(
            reply,
            result.and_then(|opened| {
                let opened = Arc::clone(&opened);
                let group = self.group(request);
                // The kernel leaves this to the daemon and does not say whether the caller has
                // CAP_FSETID; the superuser has it.
                let kill_set_id = request.header.uid != 0;
                let result = opened.file.fallocate(&group, mode, arg.offset, arg.length, kill_set_id);
                opened.on.touch();
                result
            }),
        );
    }

    pub(super) fn lseek(&self, header: &InHeader, arg: &LseekIn, reply: &mut Reply) {
        let whence = match arg.whence {
            SEEK_DATA => Whence::Data,
            SEEK_HOLE => Whence::Hole,
            _ => return reply.error(Errno::INVAL).ignore(),
        };
        let result = self.file(header, arg.fh).map_err(VfsError::from);
        let result = result.and_then(|opened| Arc::clone(&opened.file).lseek(whence, arg.offset));
        reply_with(reply, result, |reply, offset| reply.value(&LseekOut { offset }).ignore());
    }
}
