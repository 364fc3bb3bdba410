//! Accounting: a tree of groups, each with a limit of bytes. This crate does not know pages; it
//! neither reclaims nor sleeps. A charge is granted, or refused with the full group.
//!
//! [`GroupTree`] makes and removes [`Group`]s. A group grants [`Charge`]s; they release themselves
//! when dropped. Charged memory names its owner by [`OwnerId`]. An id stays valid when the group is
//! removed: it then means the nearest living group above.
#![forbid(unsafe_code)]

mod attention;
mod biased_lock;
mod claims;
mod counter;
mod effective_protection;
mod events;
mod excess;
mod extensions;
mod group;
mod group_path;
mod held_bytes;
pub mod hit_counters;
mod index_pool;
mod ledger;
mod mark_check;
mod pending;
mod set_list;
mod share_by_path;
mod stats;
mod stock;
mod stock_table;
pub mod subtree_marks;
#[doc(hidden)]
pub mod testing;
mod thread_stock;
mod tree;
mod turn_queue;

pub use attention::Attention;
pub use claims::{CLAIMS_DRIFT, CLAIMS_EXACT, Level, Protection, share};
pub use counter::UNLIMITED;
pub use effective_protection::EffectiveProtection;
pub use excess::EXCESS_LAG_BYTES;
pub use extensions::{ExtensionSlot, WakeSignalSlot, WakeSignals};
pub use group::{
    Busy, Charge, GROUP_STATE_BYTES, Group, Holding, IdleStock, OwnerId, Refused, UserData, apply_pending,
    nr_owners_in_use, pending_bytes_max, uncharge_raw,
};
pub use group_path::GroupPath;
pub use ledger::NODE_STATE_BYTES;
pub use pending::{NR_PENDING, PENDING_BYTES_MAX};
pub use share_by_path::ShareByPath;
pub use stats::{CONTENT_BYTES, EventKind, NAME_BYTES, NR_EVENT_KINDS, NR_STAT_ITEMS, StatItem, StatUnit};
pub use tree::{CreateError, GroupTree, RemoveError, RenameError};
pub use turn_queue::TurnQueue;

/// The protocols between threads, for the models of `tests/loom_models`.
#[cfg(loom)]
pub mod model {
    pub use crate::attention::*;
    pub use crate::biased_lock::*;
    pub use crate::counter::*;
    pub use crate::events::*;
    pub use crate::excess::*;
    pub use crate::held_bytes::*;
    pub use crate::ledger::*;
    pub use crate::mark_check::*;
    pub use crate::pending::*;
    pub use crate::stats::*;
    pub use crate::stock::*;
    pub use crate::stock_table::*;
}
