//! Reclaim: which memory is freed when a group has no room. This crate has the lists of every
//! group, the walk over a subtree, shrinkers, background workers, and "charge, or reclaim and try
//! again".
//!
//! One core serves every caller (a refused charge, a limit write, `force_empty`, `memory.reclaim`,
//! the background workers): a root group, a goal in pages, and a reason. Reclaim starts with
//! no lock held, frees clean pages only, and asks the layer above through [`PageOwner`] whether a
//! page may leave.
#![forbid(unsafe_code)]

#[cfg(not(loom))]
mod accounted_charge;
#[cfg(all(feature = "baseline", not(loom)))]
pub mod baseline;
#[cfg(all(feature = "baseline", not(loom)))]
#[doc(hidden)]
pub use baseline as mechanism;
#[cfg(not(loom))]
mod group_reclaim;
#[cfg(not(loom))]
pub mod kswapd;
#[cfg(not(loom))]
mod list_lru;
#[cfg(not(loom))]
mod list_slots;
#[cfg(not(loom))]
pub mod lruvec;
#[cfg(not(any(feature = "baseline", loom)))]
#[doc(hidden)]
pub mod mechanism;
#[cfg(not(loom))]
mod object_lists;
#[cfg(not(loom))]
pub mod page_owner;
#[cfg(not(loom))]
mod pending_release;
#[cfg(not(loom))]
pub mod pressure_level;
#[cfg(not(loom))]
mod protection;
#[cfg(not(loom))]
pub mod psi;
#[cfg(not(loom))]
mod reclaimer;
#[cfg(not(loom))]
mod rounds;
#[cfg(not(loom))]
pub mod scan_control;
#[cfg(not(loom))]
pub mod shadow;
pub mod shrinker;
#[cfg(not(loom))]
pub mod stall;
#[cfg(not(loom))]
mod victim;
#[cfg(not(loom))]
pub mod walk;
#[cfg(not(loom))]
mod walk_position;
#[cfg(not(loom))]
pub mod watermark;
#[cfg(not(loom))]
pub mod writeback_backoff;

#[cfg(not(loom))]
pub use {
    accounted_charge::AccountedCharge,
    group_reclaim::{GroupReclaim, advance_age, owner_from},
    kswapd::Kswapd,
    list_lru::{ListHandle, ListLru, Verdict, WalkedList},
    list_slots::{LIST_SLOT_BYTES, ListSlot, ListsFull},
    lruvec::{LruKind, Lruvec},
    page_owner::{Eviction, PageOwner},
    pressure_level::PressureLevel,
    psi::{Pressure, PressureLine},
    reclaimer::{ChargeError, ChargeMeter, Reclaimer},
    scan_control::{MAX_RECLAIM_RETRIES, Progress, Reason, SWAP_CLUSTER_MAX, WRITEBACK_WAIT},
    shadow::Shadow,
    stall::{Stalled, StalledHere, Working},
    watermark::{InvalidMarks, Marks},
};
