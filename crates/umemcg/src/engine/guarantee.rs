//! [`Guarantee`]: a share of the pool available to a group at any time.
//!
//! Other groups may cache in its unused part. Accounts and reservations ([`Engine::reserve`]) of
//! the group get it back by reclaim from these groups. So the memory of a guarantee is never idle,
//! and still available when needed.
//!
//! Unreclaimable memory must not use the room of a guarantee. For accounts and reservations the
//! engine ensures this: all guarantees, and the other bytes held by accounts, fit at every level.
//! It cannot refuse charges of your own ([`Engine::charge`]), forced growth, tmpfs files, or names
//! and files held open by programs; leave room for them.

use std::sync::Arc;

use umemcg_group::Group;

use super::{Account, Engine, Refusal};

/// A share of the pool set aside for a group until dropped. Other groups may use the idle part, and
/// lose it when the group needs it.
#[must_use = "a dropped guarantee ends immediately"]
#[derive(Debug)]
pub struct Guarantee {
    engine: Arc<Engine>,
    group: Arc<Group>,
    bytes: u64,
}

impl Guarantee {
    /// Returns the group of the guarantee.
    pub fn group(&self) -> &Arc<Group> {
        &self.group
    }

    /// Returns the number of bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Reserves `bytes` in the group, reclaiming from groups using the idle part. May block; see
    /// [`Engine::reserve`].
    ///
    /// # Errors
    /// [`Refusal`].
    pub fn reserve(&self, bytes: u64) -> Result<Account, Refusal> {
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
    /// Guarantees `bytes` to a group as long as the result lives. Pressure from outside leaves the
    /// group that much of its memory (as [`set_min`](Self::set_min) would, for the group and its
    /// ancestors), and commitments to other groups leave room for it. Charges nothing, reclaims
    /// nothing, never blocks. Several guarantees of a group add up.
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
