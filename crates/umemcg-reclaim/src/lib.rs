//! Which memory goes: the lists of every group, the walk over a subtree, and "charge, or reclaim and try again".
//!
//! One core serves every caller (a refused charge, a limit write, `force_empty`, `memory.reclaim`, later the
//! background workers): a root group, a goal in pages, and a reason. Reclaim starts with no lock held, frees clean
//! pages only, and asks the layer above through [`PageOwner`] whether a page may leave.
#![forbid(unsafe_code)]

#[cfg(not(loom))]
mod accounted;
#[cfg(all(feature = "baseline", not(loom)))]
pub mod baseline;
#[cfg(not(loom))]
pub mod charge;
#[cfg(not(loom))]
mod drop_caches;
#[cfg(not(loom))]
pub mod frame_ref;
#[cfg(not(loom))]
pub mod high;
#[cfg(not(loom))]
pub mod kswapd;
#[cfg(not(loom))]
mod list_lru;
#[cfg(not(loom))]
mod list_slots;
#[cfg(not(loom))]
pub mod lruvec;
#[cfg(not(loom))]
mod object_lists;
#[cfg(not(loom))]
pub mod page_owner;
#[cfg(not(loom))]
pub mod patience;
#[cfg(not(loom))]
pub mod pressure_level;
#[cfg(not(loom))]
pub mod psi;
#[cfg(not(loom))]
pub mod reclaim;
#[cfg(not(loom))]
mod rounds;
#[cfg(not(loom))]
pub mod shadow;
#[cfg(not(loom))]
mod shield;
#[cfg(not(loom))]
pub mod shrink;
pub mod shrinker;
#[cfg(not(loom))]
mod sparse;
#[cfg(not(loom))]
pub mod stall;
#[cfg(not(loom))]
pub mod walk;
#[cfg(not(loom))]
pub mod watermark;

#[cfg(not(loom))]
pub use accounted::AccountedCharge;
#[cfg(not(loom))]
pub use charge::{ChargeError, MAX_RECLAIM_RETRIES};
#[cfg(not(loom))]
pub use high::ChargeMeter;
#[cfg(not(loom))]
pub use kswapd::Kswapd;
#[cfg(not(loom))]
pub use list_lru::{KnownList, ListLru, Verdict, WalkedList};
#[cfg(not(loom))]
pub use list_slots::{LIST_SLOT_BYTES, ListSlot, ListsFull};
#[cfg(not(loom))]
pub use lruvec::{LruKind, Lruvec, ReclaimPart, owner_from};
#[cfg(not(loom))]
pub use page_owner::{Eviction, PageOwner};
#[cfg(not(loom))]
pub use pressure_level::PressureLevel;
#[cfg(not(loom))]
pub use psi::{Pressure, PressureLine};
#[cfg(not(loom))]
pub use reclaim::{Progress, Reason, Reclaimer, SWAP_CLUSTER_MAX};
#[cfg(not(loom))]
pub use shadow::Shadow;
#[cfg(not(loom))]
pub use stall::{Stalled, StalledHere, Working};
#[cfg(not(loom))]
pub use watermark::{InvalidMarks, Marks};
