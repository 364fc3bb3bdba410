//! [`Reservation`]: memory charged in advance. [`Guarantee`]: a share of the pool that a group can
//! have at any time.
//!
//! A [`Guarantee`] is a share of the pool that a group can have at any time. Other groups may cache
//! in the part that the group does not use. A [`Reservation`] holds bytes for memory of your own,
//! such as buffers; to get them, such caches are reclaimed. So the memory of a guarantee is never
//! idle, and still available when it is needed.
//!
//! The time that takes depends on the kind of memory to be reclaimed, never on the group that uses
//! it:
//!
//! - clean pages and objects are reclaimed: 0.1 to 0.6 µs for each page, 1 µs at most by the
//!   benchmark's target (`umemcg-bench guarantee` prints it for the machine that it runs on), so 1
//!   GiB in less than 0.3 s;
//! - dirty data is written as fast as its store takes it, and its amount is bounded by the dirty
//!   limit of the pool;
//! - a reservation that makes no progress for [`DIRTY_WAIT_MAX`], because all reclaimable memory is
//!   dirty and its store hangs, is refused; where nothing is dirty and nothing can be reclaimed, it
//!   is refused immediately.
//!
//! Memory that cannot be reclaimed must not use the room of a guarantee. For reservations the
//! engine ensures that: all guarantees and reservations together fit at every level. It cannot
//! refuse charges of your own ([`Engine::charge`]), tmpfs files, or names and files that programs
//! have open; leave room for them.

use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;
use umemcg_base::assert_no_locks_held;
use umemcg_base::clock::{Clock, SystemClock};
use umemcg_group::{Charge, Group, StatItem};
use umemcg_reclaim::{AccountedCharge, ChargeError, PageOwner};

use super::Engine;
use crate::commitments::{Kind, Overcommitted};

/// Bytes charged at a time: memory that has been reclaimed stays charged while the rest is waited
/// for.
const STEP_BYTES: u64 = 1 << 20;
/// The smallest step, for when others take what is freed as fast as it comes free: so small a
/// charge is tried again after any progress.
const STEP_BYTES_MIN: u64 = 32 << 10;
/// The time for which a reservation waits for dirty data to be written, with nothing gained, before
/// it is refused.
pub const DIRTY_WAIT_MAX: Duration = Duration::from_secs(30);
/// Longest wait before the next attempt.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// Why memory was not guaranteed or reserved.
#[derive(Debug, Clone, Error)]
pub enum ReserveError {
    /// A level's commitments and this one together exceed its limit, whatever is reclaimed.
    #[error("group {} cannot commit that much: {available_bytes} bytes are left to commit", group.path().display())]
    Overcommitted {
        /// The lowest such level.
        group: Arc<Group>,
        /// The bytes that it could still commit.
        available_bytes: u64,
    },
    /// Not enough could be reclaimed. The group that refused counted `max` and `oom` events.
    #[error(transparent)]
    Charge(#[from] ChargeError),
}

impl From<Overcommitted> for ReserveError {
    fn from(Overcommitted { group, available_bytes }: Overcommitted) -> Self {
        Self::Overcommitted { group, available_bytes }
    }
}

/// Bytes charged to a group, for memory of the embedder's own that cannot be reclaimed. Released
/// when dropped.
///
/// Counted as `anon` and `unevictable` in `memory.stat`. When the group is removed, the bytes
/// belong to its parent.
#[must_use = "a dropped reservation is given back immediately"]
#[derive(Debug)]
pub struct Reservation {
    engine: Arc<Engine>,
    group: Arc<Group>,
    /// One for each owner: more than one only when the group was removed meanwhile.
    held: Vec<AccountedCharge>,
    bytes: u64,
}

impl Reservation {
    fn new(engine: &Arc<Engine>, group: &Arc<Group>) -> Self {
        Self { engine: Arc::clone(engine), group: Arc::clone(group), held: Vec::new(), bytes: 0 }
    }

    /// Returns the group that it was created for.
    pub fn group(&self) -> &Arc<Group> {
        &self.group
    }

    /// Returns the bytes held.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Reserves `bytes` more, reclaiming from others and waiting for write-back as needed; see
    /// [`Engine::reserve`]. No lock of this library may be held.
    ///
    /// # Errors
    /// [`ReserveError`]; the reservation is as before then.
    pub fn grow(&mut self, bytes: u64) -> Result<(), ReserveError> {
        assert_no_locks_held("a reservation");
        self.engine.commitments.commit(&self.group, Kind::Reservation, bytes)?;
        let before = self.bytes;
        let mut left = bytes;
        while left > 0 {
            match self.engine.charge_with_writeback_wait(&self.group, left.min(STEP_BYTES)) {
                Ok(charge) => {
                    left -= charge.bytes();
                    self.take_in(AccountedCharge::new(charge, StatItem::Reserved));
                }
                Err(error) => {
                    self.give_back(self.bytes - before);
                    self.engine.commitments.release(&self.group, Kind::Reservation, bytes);
                    return Err(error.into());
                }
            }
        }
        Ok(())
    }

    /// Releases `bytes`. Never blocks.
    ///
    /// # Panics
    /// When it holds less.
    pub fn shrink(&mut self, bytes: u64) {
        assert!(bytes <= self.bytes, "{bytes} bytes of a reservation of {}", self.bytes);
        self.give_back(bytes);
        self.engine.commitments.release(&self.group, Kind::Reservation, bytes);
    }

    fn take_in(&mut self, charge: AccountedCharge) {
        self.bytes += charge.bytes();
        let apart = match self.held.last_mut() {
            Some(last) => last.absorb(charge).err(),
            None => Some(charge),
        };
        self.held.extend(apart);
    }

    fn give_back(&mut self, bytes: u64) {
        self.bytes -= bytes;
        let mut left = bytes;
        while left > 0 {
            let last = self.held.last_mut().expect("what is held adds up to the bytes");
            if last.bytes() > left {
                last.shrink(left);
                return;
            }
            left -= last.bytes();
            self.held.pop();
        }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let bytes = self.bytes;
        self.give_back(bytes);
        self.engine.commitments.release(&self.group, Kind::Reservation, bytes);
    }
}

/// A share of the pool that is set aside for a group until dropped. Other groups may use the idle
/// part, and lose it when the group needs it.
#[must_use = "a dropped guarantee ends immediately"]
#[derive(Debug)]
pub struct Guarantee {
    engine: Arc<Engine>,
    group: Arc<Group>,
    bytes: u64,
}

impl Guarantee {
    /// Returns the group that it belongs to.
    pub fn group(&self) -> &Arc<Group> {
        &self.group
    }

    /// Returns the number of bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Reserves `bytes` in the group, reclaiming from groups that use the idle part. May block; see
    /// [`Engine::reserve`].
    ///
    /// # Errors
    /// [`ReserveError`].
    pub fn reserve(&self, bytes: u64) -> Result<Reservation, ReserveError> {
        self.engine.reserve(&self.group, bytes)
    }
}

impl Drop for Guarantee {
    fn drop(&mut self) {
        self.engine.commitments.release(&self.group, Kind::Guarantee, self.bytes);
    }
}

impl Engine {
    /// Guarantees `bytes` to a group: as long as the result lives, pressure from outside leaves the
    /// group that much of what it uses (as [`set_min`](Self::set_min) would, for the group and all
    /// above it), and commitments to others leave room for it. Charges nothing, reclaims nothing,
    /// never blocks. Several guarantees of a group add up.
    ///
    /// ```
    /// use std::ffi::OsStr;
    /// use umemcg::{Engine, EngineConfig, ReserveError};
    ///
    /// let engine = Engine::new(EngineConfig { pool_bytes: 64 << 20, ..EngineConfig::default() })?;
    /// let queries = engine.create_group(engine.root(), OsStr::new("queries"))?;
    /// let exports = engine.create_group(engine.root(), OsStr::new("exports"))?;
    ///
    /// // Queries can have 24 MiB whenever they need it. Until then, others cache in it.
    /// let share = engine.guarantee(&queries, 24 << 20)?;
    /// let sort_buffer = share.reserve(16 << 20)?;
    /// assert!(queries.usage_bytes() >= 16 << 20);
    ///
    /// // A guarantee cannot be given away, however little of it is in use.
    /// let too_much = engine.reserve(&exports, 48 << 20);
    /// let Err(ReserveError::Overcommitted { available_bytes, .. }) = too_much else { panic!() };
    /// assert_eq!(available_bytes, 40 << 20);
    ///
    /// drop(sort_buffer); // other groups may use the 16 MiB again
    /// drop(share);
    /// let buffer = engine.reserve(&exports, 48 << 20)?;
    /// # drop(buffer);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`ReserveError::Overcommitted`] when the group or an ancestor has too little left to commit.
    pub fn guarantee(self: &Arc<Self>, group: &Arc<Group>, bytes: u64) -> Result<Guarantee, ReserveError> {
        self.commitments.commit(group, Kind::Guarantee, bytes)?;
        Ok(Guarantee { engine: Arc::clone(self), group: Arc::clone(group), bytes })
    }

    /// Reserves `bytes` in a group for memory of your own. Reclaims missing memory from others:
    /// clean pages and objects immediately, dirty data after write-back. Sleeps as long as that
    /// takes, but gives up after [`DIRTY_WAIT_MAX`] without progress, and immediately when nothing
    /// is dirty and nothing can be reclaimed. No lock of this library may be held.
    ///
    /// # Errors
    /// [`ReserveError::Overcommitted`] immediately; [`ReserveError::Charge`] names the group from
    /// which nothing more can be reclaimed.
    pub fn reserve(self: &Arc<Self>, group: &Arc<Group>, bytes: u64) -> Result<Reservation, ReserveError> {
        let mut reservation = Reservation::new(self, group);
        reservation.grow(bytes)?;
        Ok(reservation)
    }

    /// Returns a charge of `bytes` or less that waits for dirty data, [`DIRTY_WAIT_MAX`] at most.
    fn charge_with_writeback_wait(&self, group: &Arc<Group>, bytes: u64) -> Result<Charge, ChargeError> {
        let clock = SystemClock::new();
        let mut bytes = bytes;
        while clock.now() < DIRTY_WAIT_MAX {
            let refused = match self.reclaimer().charge_opportunistic(group, bytes, &|| false) {
                Err(ChargeError::Limit(refused)) => refused,
                result => return result,
            };
            if bytes > STEP_BYTES_MIN {
                bytes = (bytes / 2).max(STEP_BYTES_MIN);
                continue;
            }
            let unclean = [StatItem::FileDirty, StatItem::FileWriteback, StatItem::FileUnstable];
            if unclean.iter().all(|&item| refused.group.stat_total(item) <= 0) {
                break;
            }
            self.cache().start_writeback(&refused.group);
            self.cache().wait_for_writeback(LOOK_AGAIN);
        }
        // With all that a charge can do, and the events that its refusal is.
        self.charge(group, bytes)
    }
}
