//! Numbers: a tree of groups, and who may hold how much. Nothing here knows what a page is, and nothing here
//! reclaims or sleeps; a charge is granted, or refused in the name of the group that is full.
//!
//! [`GroupTree`] makes and removes [`Group`]s. A group grants [`Charge`]s, values that give themselves back. What is
//! charged names its owner by [`OwnerId`], which stays good when the group is removed: it then means the nearest
//! group above.
#![forbid(unsafe_code)]

#[cfg(loom)]
pub mod biased_lock;
#[cfg(not(loom))]
mod biased_lock;
#[cfg(not(loom))]
mod charge;
#[cfg(loom)]
pub mod counter;
#[cfg(not(loom))]
mod counter;
#[cfg(not(loom))]
mod effective;
#[cfg(loom)]
pub mod events;
#[cfg(not(loom))]
mod events;
#[cfg(loom)]
pub mod excess;
#[cfg(not(loom))]
mod excess;
#[cfg(not(loom))]
mod group;
mod index_pool;
mod leaf_lock;
#[cfg(loom)]
pub mod ledger;
#[cfg(not(loom))]
mod ledger;
#[cfg(loom)]
pub mod notices;
#[cfg(not(loom))]
mod notices;
#[cfg(not(loom))]
mod parts;
#[cfg(loom)]
pub mod pending;
#[cfg(not(loom))]
mod pending;
pub mod presence;
#[cfg(not(loom))]
mod protection;
#[cfg(loom)]
pub mod rack;
#[cfg(not(loom))]
mod rack;
#[cfg(not(loom))]
mod soft_limit;
#[cfg(loom)]
pub mod stats;
#[cfg(not(loom))]
mod stats;
#[cfg(loom)]
pub mod stock;
#[cfg(not(loom))]
mod stock;
#[cfg(not(loom))]
pub mod tally;
#[cfg(not(loom))]
mod tree;
#[cfg(not(loom))]
mod walk;

#[cfg(not(loom))]
pub use charge::{Charge, OwnerId, Refused, nr_owners_in_use, uncharge_raw};
#[cfg(not(loom))]
pub use counter::UNLIMITED;
#[cfg(not(loom))]
pub use effective::EffectiveProtection;
pub use excess::EXCESS_LAG_BYTES;
#[cfg(not(loom))]
pub use group::{Busy, GROUP_STATE_BYTES, Group};
#[cfg(not(loom))]
pub use ledger::NODE_STATE_BYTES;
#[cfg(not(loom))]
pub use parts::{BellSlot, Bells, PartSlot};
#[cfg(not(loom))]
pub use pending::{NR_PENDING, PENDING_BYTES_MAX};
#[cfg(not(loom))]
pub use protection::{CLAIMS_DRIFT, CLAIMS_EXACT, Level, Protection, share};
pub use stats::{CONTENT_BYTES, EventKind, NAME_BYTES, NR_EVENT_KINDS, NR_STAT_ITEMS, StatItem};
#[cfg(not(loom))]
pub use tree::{CreateError, GroupTree, RemoveError, RenameError};
