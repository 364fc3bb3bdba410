//! [`Guarantee`]: a share of the pool that a group can have at any time.
//!
//! Other groups may cache in the part that the group does not use. To get it, accounts and
//! [reservations](super::Reservation) of the group reclaim from those. So the memory of a guarantee
//! is never idle, and still available when it is needed.
//!
//! Memory that cannot be reclaimed must not use the room of a guarantee. For accounts and
//! reservations the engine ensures that: all guarantees, and what accounts hold beside them, fit at
//! every level. It cannot refuse charges of your own ([`Engine::charge`]), forced growth, tmpfs
//! files, or names and files that programs have open; leave room for them.

use std::sync::Arc;

use umemcg_group::Group;

use super::{Engine, Refusal, Reservation};

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
    /// [`Refusal`].
    pub fn reserve(&self, bytes: u64) -> Result<Reservation, Refusal> {
        self.engine.reserve(&self.group, bytes)
    }
}

impl Drop for Guarantee {
    fn drop(&mut self) {
        self.engine.commitments.end_guarantee(&self.group, self.bytes);
        self.engine.waits.wake_all();
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
    /// use umemcg::{Engine, EngineConfig, Refusal};
    ///
    /// let engine = Engine::new(EngineConfig::new(64 << 20))?;
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
    /// let Err(Refusal::Overcommitted { available, .. }) = too_much else { panic!() };
    /// assert_eq!(available, 40 << 20);
    ///
    /// drop(sort_buffer); // other groups may use the 16 MiB again
    /// drop(share);
    /// let buffer = engine.reserve(&exports, 48 << 20)?;
    /// # drop(buffer);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Refusal::Overcommitted`] when the group or an ancestor has too little left to commit.
    pub fn guarantee(self: &Arc<Self>, group: &Arc<Group>, bytes: u64) -> Result<Guarantee, Refusal> {
        self.commitments.guarantee(group, bytes).map_err(|refused| Refusal::overcommitted(refused, bytes))?;
        Ok(Guarantee { engine: Arc::clone(self), group: Arc::clone(group), bytes })
    }
}
