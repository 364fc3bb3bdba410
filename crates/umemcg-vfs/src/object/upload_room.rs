//! The memory of uploads: the buffers of the store's client for an upload, charged before it
//! begins.
//!
//! A group without room for it, even after reclaim, has one upload at the cost of its parent, so
//! that written files can be stored. Its other uploads wait for the end of this one.

use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use umemcg::{ChargeEffort, Engine, Group};
use umemcg_base::{Condvar, LeafMutex};

use crate::allowance::{Allowance, AllowanceClaim};
use crate::slab::Slab;

/// How long an operation waits for room, unless the configuration says otherwise.
pub(super) const WAIT: Duration = Duration::from_secs(60);

/// The interval at which a waiter looks again: room also appears without a notification.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// Of all volumes, as the groups are.
static ROOM: LazyLock<UploadRoom> = LazyLock::new(UploadRoom::new);
/// Of parts of streams. Apart, because a part is held for as long as its writer takes to fill it.
static STREAMS: LazyLock<UploadRoom> = LazyLock::new(UploadRoom::new);

/// Where uploads wait for room.
#[derive(Debug)]
pub(super) struct UploadRoom {
    /// The room of groups without room of their own.
    beyond: Allowance,
    /// Counts ended uploads.
    nr_ended: LeafMutex<u64>,
    ended: Condvar,
}

/// The memory of one upload; given back when dropped, with no lock held.
#[derive(Debug)]
pub(super) struct UploadCharge {
    held: Option<(Slab, Vec<AllowanceClaim>)>,
    room: &'static UploadRoom,
}

impl UploadRoom {
    fn new() -> Self {
        Self { beyond: Allowance::new(1), nr_ended: LeafMutex::default(), ended: Condvar::default() }
    }

    pub(super) fn of_process() -> &'static Self {
        &ROOM
    }

    pub(super) fn of_streams() -> &'static Self {
        &STREAMS
    }

    /// Charges an upload, after others have ended if need be. May sleep for up to a minute beside
    /// reclaim; no lock may be held.
    ///
    /// # Errors
    /// `ENOMEM` without room after this wait.
    pub(super) fn take(
        &'static self,
        effort: ChargeEffort,
        engine: &Engine,
        group: &Arc<Group>,
        bytes: u64,
    ) -> Result<UploadCharge, Errno> {
        self.take_until(Instant::now() + WAIT, effort, engine, (group, bytes))
    }

    /// As [`take`](Self::take), but waits until `deadline` beside reclaim. An operation with
    /// several waits, for room or for anything else, has one deadline for all.
    pub(super) fn take_until(
        &'static self,
        deadline: Instant,
        effort: ChargeEffort,
        engine: &Engine,
        (group, bytes): (&Arc<Group>, u64),
    ) -> Result<UploadCharge, Errno> {
        loop {
            let nr_seen = *self.nr_ended.lock();
            let errno = match self.beyond.charge(effort, engine, group, bytes) {
                Ok((charge, beyond)) => {
                    return Ok(UploadCharge { held: Some((Slab::of(charge), beyond)), room: self });
                }
                Err(errno) => errno,
            };
            let now = Instant::now();
            if now >= deadline {
                return Err(errno);
            }
            let until = deadline.min(now + LOOK_INTERVAL);
            let mut nr_ended = self.nr_ended.lock();
            while *nr_ended == nr_seen && !self.ended.wait_until(&mut nr_ended, until).timed_out() {}
        }
    }
}

impl Drop for UploadCharge {
    fn drop(&mut self) {
        drop(self.held.take());
        *self.room.nr_ended.lock() += 1;
        self.room.ended.notify_all();
    }
}
