//! Accounting: a tree of groups, and how many bytes each group may hold. This crate does not know
//! pages; it neither reclaims nor sleeps. A charge is granted, or refused with the name of the
//! group that is full.
//!
//! [`GroupTree`] makes and removes [`Group`]s. A group grants [`Charge`]s, which release themselves
//! when dropped. Charged memory names its owner by [`OwnerId`], which stays valid when the group is
//! removed: it then means the nearest living group above.
#![forbid(unsafe_code)]

#[cfg(loom)]
pub mod biased_lock;
#[cfg(not(loom))]
mod biased_lock;
#[cfg(not(loom))]
mod charge;
#[cfg(not(loom))]
mod claims;
#[cfg(loom)]
pub mod counter;
#[cfg(not(loom))]
mod counter;
#[cfg(not(loom))]
mod effective_protection;
#[cfg(loom)]
pub mod events;
#[cfg(not(loom))]
mod events;
#[cfg(loom)]
pub mod excess;
#[cfg(not(loom))]
mod excess;
#[cfg(not(loom))]
mod extensions;
#[cfg(not(loom))]
mod group;
#[cfg(not(loom))]
mod group_stats;
#[cfg(not(loom))]
pub mod hit_counters;
mod index_pool;
#[cfg(loom)]
pub mod ledger;
#[cfg(not(loom))]
mod ledger;
#[cfg(not(loom))]
mod limit;
#[cfg(loom)]
pub mod mark_check;
#[cfg(not(loom))]
mod mark_check;
#[cfg(loom)]
pub mod pending;
#[cfg(not(loom))]
mod pending;
#[cfg(not(loom))]
mod protection;
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
#[cfg(loom)]
pub mod stock_table;
#[cfg(not(loom))]
mod stock_table;
pub mod subtree_marks;
#[cfg(not(loom))]
mod thread_stock;
#[cfg(not(loom))]
mod tree;
#[cfg(not(loom))]
mod walk;

#[cfg(not(loom))]
pub use charge::{Charge, Refused, uncharge_raw};
#[cfg(not(loom))]
pub use claims::{CLAIMS_DRIFT, CLAIMS_EXACT, Level, Protection, share};
#[cfg(not(loom))]
pub use counter::UNLIMITED;
#[cfg(not(loom))]
pub use effective_protection::EffectiveProtection;
pub use excess::EXCESS_LAG_BYTES;
#[cfg(not(loom))]
pub use extensions::{ExtensionSlot, WakeSignalSlot, WakeSignals};
#[cfg(not(loom))]
pub use group::{GROUP_STATE_BYTES, Group, OwnerId, nr_owners_in_use};
#[cfg(not(loom))]
pub use ledger::NODE_STATE_BYTES;
#[cfg(not(loom))]
pub use limit::Busy;
#[cfg(not(loom))]
pub use pending::{NR_PENDING, PENDING_BYTES_MAX};
pub use stats::{CONTENT_BYTES, EventKind, NAME_BYTES, NR_EVENT_KINDS, NR_STAT_ITEMS, StatItem};
#[cfg(not(loom))]
pub use tree::{CreateError, GroupTree, RemoveError, RenameError};
