//! Shrinkers: object caches that give memory back when a group is reclaimed, beside the pages.
//!
//! A shrinker counts and frees objects of one group. It is asked with no lock held, in every kind
//! of reclaim, in proportion to the pressure on pages ([`pressure`]), and only for groups with
//! possible objects ([`bits`]). Objects usually wait in a [`ListLru`](crate::ListLru), which does
//! the bookkeeping.

pub mod bits;
mod contract;
pub mod pressure;
mod registry;
pub(crate) mod slab;
pub(crate) mod slab_usage;

pub use registry::{Registration, ShrinkerId, Shrinkers};
pub use slab_usage::SlabUsage;

pub use contract::{Count, Scan, Scanned, Usage};
pub use contract::{ShrinkTarget, Shrinker};
pub use pressure::{DEFAULT_BATCH, DEFAULT_SEEKS};
