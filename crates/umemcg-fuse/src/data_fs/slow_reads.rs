//! Reads served by a worker: missing pages are charged, and come from the store.
//!
//! Where the store reads asynchronously, the worker does not wait for it: the request is parked
//! ([`crate::parking`]), and the resuming worker does the next step. A parked read is charged as a
//! waiting request and for its part of an answer ([`charge_parked`]), and keeps its file open. Its
//! I/O through the kernel's page cache stays under way with its reply.

use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use umemcg::files::{PinnedPages, ReadStep, StartedRead, WaitingRead};
use umemcg::internal::{ChargeMeter, CurrentRequest, Stalled, Working};
use umemcg::{ChargeEffort, Group, StatItem};
use umemcg_base::{Idle, PAGE_SIZE_U64, Rank, Wait, assert_may_wait};
use umemcg_vfs::volumes::Opened;
use umemcg_vfs::{KernelIo, VfsError, VolumeFile};

use super::DataFs;
use super::content::{begin_kernel_io, fills_cache, reading};
use super::reply_with;
use crate::errno::ToErrno;
use crate::parking::ParkedPlace;
use crate::reply::{Answer, Reply, holding};
use crate::request::Request;
use crate::thread_pool::Keys;
use crate::wait_charge::{PARKED_READ_BYTES, REQUEST_BYTES, charge_answer, charge_parked};
use crate::wire::InHeader;
use crate::wire::request::ReadIn;

/// The longest wait of a read for the kernel to drop pages.
const ROOM_WAIT_MAX: Duration = Duration::from_secs(2);

/// Waits until a read can continue; `None` if it has been given up.
fn wait_until_ready(waiting: WaitingRead) -> Option<StartedRead> {
    let (sender, ready) = mpsc::sync_channel(1);
    waiting.when_ready(move |read| drop(sender.send(read)));
    assert_may_wait(Rank::StoreFills, "a read that is not parked");
    let _idle = Idle::begin(Wait::Sure);
    ready.recv().ok()
}

/// A read being served.
struct SlowRead {
    opened: Arc<Opened<dyn VolumeFile>>,
    group: Arc<Group>,
    header: InHeader,
    keys: Keys,
    offset: u64,
    size: usize,
    /// The length of the file when the read began.
    len_before: u64,
    /// The bytes charged by its steps.
    charged_bytes: u64,
    /// It has waited without a thread: others may wait for its claims.
    was_parked: bool,
}

/// The read is kept by the store's callback, and then by the queue.
const _: () = assert!(
    2 * (size_of::<SlowRead>() + size_of::<StartedRead>() + size_of::<Reply>()) as u64
        <= REQUEST_BYTES + PARKED_READ_BYTES
);

impl DataFs {
    pub(super) fn read(&self, request: &Request<'_>, arg: &ReadIn, reply: &mut Reply) {
        let opened = match self.file_for(request, arg.fh, reading(request, arg)) {
            Ok(opened) => opened,
            Err(error) => return reply.error(error.to_errno()).ignore(),
        };
        let (group, file) = (self.group(request), &opened.file);
        let (meter, working) = (ChargeMeter::start(), Working::begin(&group));
        if self.is_silent(arg.fh) && fills_cache(arg) {
            begin_kernel_io(&**file, (arg.offset, arg.size), false, &group, reply);
        }
        if let Some(io) = &reply.kernel_io() {
            io.paid_by(&group);
            self.wait_for_room(io, &group, reply);
        }
        drop(working);
        let size = arg.size as usize;
        let read = file.content().start_read(arg.offset, size);
        let slow = SlowRead {
            header: *request.header,
            keys: Keys::of(&group, self.store_of(request.header.nodeid)),
            offset: arg.offset,
            size,
            len_before: file.content().len(),
            charged_bytes: meter.bytes(),
            was_parked: false,
            group,
            opened,
        };
        self.step(slow, read, reply);
    }

    /// Does the next step of a read, and answers or parks it.
    fn step(&self, mut slow: SlowRead, read: StartedRead, reply: &mut Reply) {
        let opened = Arc::clone(&slow.opened);
        let group = Arc::clone(&slow.group);
        let (meter, _working) = (ChargeMeter::start(), Working::begin(&group));
        let _current = reply.make_current();
        let step = opened.file.step_read(&group, read);
        slow.charged_bytes += meter.bytes();
        let result = match step {
            Ok(ReadStep::Done(pages)) => Ok(pages),
            Ok(ReadStep::Waits(waiting)) => match self.place_for(&slow) {
                Some(place) => {
                    let me = self.me.clone();
                    let held = charge_parked(self.engine.reclaimer(), &group, slow.size);
                    let reply = reply.take();
                    return waiting.when_ready(move |read| {
                        place.resume(reply, move |reply| {
                            drop(held);
                            if let Some(me) = me.upgrade() {
                                me.step(SlowRead { was_parked: true, ..slow }, read, reply);
                            }
                        });
                    });
                }
                // Too many wait already: this read keeps its thread, and all its pages so far.
                None => match wait_until_ready(*waiting) {
                    Some(read) => return self.step(slow, read, reply),
                    None => Err(Errno::IO.into()),
                },
            },
            Err(error) => Err(error),
        };
        self.answer_read(&slow, result, reply);
    }

    /// Takes a place to wait without a thread.
    fn place_for(&self, slow: &SlowRead) -> Option<ParkedPlace> {
        self.parking.get()?.park(slow.keys, slow.was_parked)
    }

    fn answer_read(&self, slow: &SlowRead, result: Result<PinnedPages<'_>, VfsError>, reply: &mut Reply) {
        let SlowRead { header, group, offset, size, len_before, charged_bytes, .. } = slow;
        let result = result.and_then(|pages| {
            let expected = len_before.saturating_sub(*offset).min(*size as u64);
            // The kernel takes a short answer for the end of the file, and asks page by page after
            // an error.
            let is_cut = reply.kernel_io().is_some()
                && (pages.len() as u64) < expected
                && slow.opened.file.content().len() >= *len_before;
            if is_cut { Err(Errno::IO.into()) } else { Ok(pages) }
        });
        reply_with(reply, result, |reply, pages| {
            match self.high_delay(header, group, *charged_bytes, reply) {
                Duration::ZERO => self.send_pages(reply, &pages),
                delay => {
                    // Without room for the copy the answer is not delayed: a delayed answer must be
                    // charged.
                    let Some(charge) = charge_answer(group, *size) else {
                        return self.send_pages(reply, &pages);
                    };
                    let bytes = pages.to_vec();
                    drop(pages);
                    let again = holding((Stalled::begin(group), charge));
                    self.delays.delay(reply.take(), Answer::success(bytes), delay, again);
                }
            }
        });
    }

    /// Makes a read into the kernel's cache wait while its group is beyond the limit and the kernel
    /// is about to drop some of the charged pages. The wait is bounded, since others may hold up
    /// the drop. Pages that cannot be asked for, such as those being filled by concurrent reads,
    /// are not waited for: the kernel drops them behind those reads.
    fn wait_for_room(&self, io: &KernelIo, group: &Arc<Group>, reply: &Reply) {
        let deadline = Instant::now() + ROOM_WAIT_MAX;
        let _current = reply.make_current();
        let cancelled = || reply.is_cancelled() || CurrentRequest::holds_up_release();
        while io.is_beyond_limit()
            && group.stat_total(StatItem::FileKernel) > 0
            && !cancelled()
            && Instant::now() < deadline
        {
            let reclaimer = self.engine.reclaimer();
            // It reclaims, and waits for the drops it asks for.
            let effort = ChargeEffort::Opportunistic;
            drop(reclaimer.charge_unless(group, PAGE_SIZE_U64, effort, &cancelled));
            if !io.awaits_drops() {
                return;
            }
            reclaimer.wait_for_release(|| io.is_beyond_limit() && io.awaits_drops() && !cancelled());
        }
    }
}
