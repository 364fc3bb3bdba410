//! The memory of uploads: what a store's client holds of one while it is sent, charged before it
//! is begun.
//!
//! A group that has no room for it, after reclaim, has one upload at the cost of the group above
//! it, so that what was accepted can be stored. Others of it wait for that to end.

use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use umemcg::{Engine, Group};
use umemcg_base::{Condvar, LeafMutex};

use crate::allowance::{Allowance, AllowanceClaim, ReclaimEffort};
use crate::slab::Slab;

/// How long an upload waits for room.
const WAIT: Duration = Duration::from_secs(60);

/// Of all groups.
static BEYOND: LazyLock<Allowance> = LazyLock::new(|| Allowance::new(1));

/// Where uploads wait for room.
#[derive(Debug, Default)]
pub(super) struct UploadRoom {
    /// Counts those that have ended.
    nr_ended: LeafMutex<u64>,
    ended: Condvar,
}

/// The memory of one upload; given back when dropped, with no lock held.
#[derive(Debug)]
pub(super) struct UploadCharge<'r> {
    held: Option<(Slab, Vec<AllowanceClaim>)>,
    room: &'r UploadRoom,
}

impl UploadRoom {
    /// Charges an upload, after others have ended if need be. May sleep for up to a minute beside
    /// reclaim; no lock may be held.
    ///
    /// # Errors
    /// `ENOMEM` when there is no room after that.
    pub(super) fn take(
        &self,
        effort: ReclaimEffort,
        engine: &Engine,
        group: &Arc<Group>,
        bytes: u64,
    ) -> Result<UploadCharge<'_>, Errno> {
        let deadline = Instant::now() + WAIT;
        loop {
            let nr_seen = *self.nr_ended.lock();
            let errno = match BEYOND.charge(effort, engine, group, bytes) {
                Ok((charge, beyond)) => {
                    return Ok(UploadCharge { held: Some((Slab::of(charge), beyond)), room: self });
                }
                Err(errno) => errno,
            };
            let mut nr_ended = self.nr_ended.lock();
            while *nr_ended == nr_seen {
                if self.ended.wait_until(&mut nr_ended, deadline).timed_out() {
                    return Err(errno);
                }
            }
        }
    }
}

impl Drop for UploadCharge<'_> {
    fn drop(&mut self) {
        drop(self.held.take());
        *self.room.nr_ended.lock() += 1;
        self.room.ended.notify_all();
    }
}
