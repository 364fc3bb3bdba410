//! Reclaim: frees memory when a group has no room. This crate has the lists of every group, the
//! walk over a subtree, shrinkers, background workers, and "charge, or reclaim and try again".
//!
//! One core serves every caller (a refused charge, a limit write, `force_empty`, `memory.reclaim`,
//! the background workers): a root group, a goal in pages, and a reason. Reclaim starts with
//! no lock held, frees clean pages only, and asks the layer above through [`PageOwner`] whether a
//! page may leave.
#![forbid(unsafe_code)]

mod accounted_charge;
mod arrival_balance;
pub mod arrival_order;
#[cfg(feature = "baseline")]
pub mod baseline;
#[cfg(feature = "baseline")]
#[doc(hidden)]
pub use baseline as mechanism;
mod current_request;
mod group_reclaim;
mod isolation;
pub mod kswapd;
mod leaving_bytes;
mod list_lru;
mod list_slots;
pub mod lruvec;
#[cfg(not(feature = "baseline"))]
#[doc(hidden)]
pub mod mechanism;
mod noteworthy;
mod object_lists;
pub mod page_owner;
mod pending_release;
mod protection;
pub mod psi;
mod reclaimer;
mod rounds;
pub mod scan_control;
pub mod shadow;
pub mod shrinker;
pub mod stall;
#[doc(hidden)]
pub mod stall_counts;
mod victim;
pub mod walk;
mod walk_position;
pub mod watermark;
pub mod writeback_backoff;

pub use accounted_charge::AccountedCharge;
pub use current_request::{CurrentRequest, HoldsUp};
pub use group_reclaim::{GroupReclaim, advance_age, leaving_bytes, owner_from};
pub use kswapd::Kswapd;
pub use list_lru::{ListHandle, ListLru, Verdict, WalkedList};
pub use list_slots::{LIST_SLOT_BYTES, ListSlot, ListsFull};
pub use lruvec::{LruKind, Lruvec};
pub use page_owner::{Eviction, PageOwner};
pub use psi::{Pressure, PressureLine};
pub use reclaimer::{ChargeEffort, ChargeError, ChargeMeter, Leaving, Reclaimer};
pub use scan_control::{MAX_RECLAIM_RETRIES, Progress, Reason, SWAP_CLUSTER_MAX, WRITEBACK_WAIT};
pub use shadow::Shadow;
pub use stall::{Stalled, StalledHere, Working};
pub use watermark::{InvalidMarks, Marks};
