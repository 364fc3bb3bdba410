//! Memory cgroups inside one process: per-tenant limits, reclaim and caches.
//!
//! A query engine, a database or a service for many tenants in one process has one heap for all of
//! them. This crate divides it as the Linux memory controller divides a machine: a tree of groups
//! with limits at every level, reclaim from the group at its limit, and caches that shrink for one
//! group at a time.
//!
//! # A first example
//!
//! ```
//! use std::ffi::OsStr;
//! use umemcg::{Engine, EngineConfig, ObjectCache};
//!
//! // One budget for everything, without files.
//! let engine = Engine::new(EngineConfig::new(64 << 20).pages(false))?;
//! let tenant = engine.create_group(engine.root(), OsStr::new("tenant"))?;
//! engine.set_limit(&tenant, 1 << 20)?;
//!
//! // A cache with a weigher fills the room of the tenant, and then evicts the tenant's own values.
//! let blobs: ObjectCache<u64, Vec<u8>> = ObjectCache::builder(&engine, "blobs")
//!     .weigher(|_: &u64, blob: &Vec<u8>| blob.len() as u64)
//!     .build();
//! for key in 0..1000 {
//!     blobs.insert(&tenant, key, vec![0; 4096])?;
//! }
//! assert!(tenant.usage_bytes() <= 1 << 20);
//! assert!(blobs.len() < 1000);
//!
//! // A query takes its memory from the same limit: the cache gives way.
//! let query = engine.account(&tenant);
//! query.try_grow(512 << 10)?;
//! assert!(tenant.usage_bytes() <= 1 << 20);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Concepts
//!
//! - An [`Engine`] has a budget and a tree of [`Group`]s. All memory is charged to one group and to
//!   all its ancestors.
//! - When a charge does not fit, only the refusing group is reclaimed.
//!   [`set_min`](Engine::set_min), [`set_low`](Engine::set_low) and [`Guarantee`] protect memory
//!   from reclaim; [`set_high`](Engine::set_high) and [`set_soft_limit`](Engine::set_soft_limit)
//!   start it earlier.
//! - Memory is taken as a [`Charge`] (one object) or an [`Account`] (the growing and shrinking
//!   memory of a query); [`Engine::reserve`] waits for the memory of an account.
//! - An [`ObjectCache`] keeps values; [`shrinker`] lets caches of your own take part; [`files`] are
//!   cached page by page and written back.
//! - [`Engine::snapshot`] and [`Group`] report the usage of each tenant, in the terms of
//!   [`StatItem`] and [`EventKind`].
//!
//! # Where to go on
//!
//! The repository's `docs/semantics/embedding.md` has the guarantees for embedders, and
//! `ARCHITECTURE.md` the design. The crate's examples show a cache, a cache of your own that is
//! shrunk for each tenant, and a third-party cache.
//!
//! # Systems
//!
//! Files need Linux. An engine [without pages](EngineConfig::pages) also compiles for macOS and
//! Windows, but has not been run there yet.
#![forbid(unsafe_code)]

mod commitments;
mod engine;
pub mod files;
mod group_workers;
#[doc(hidden)]
pub mod internal;
mod janitor;
mod lease;
mod object_cache;
pub mod objects;
mod removals;
pub mod shrinker;
mod waits;

pub use engine::{
    Account, DropCaches, Engine, EngineConfig, EngineError, GroupSnapshot, Guarantee, LimitError, Limits,
    OwnedGroup, ReclaimError, Refusal,
};
pub use lease::{Lease, Resizable};
pub use object_cache::ObjectCache;
pub use umemcg_arena::sys::limit_heap_arenas;
pub use umemcg_group::{
    Charge, CreateError, EventKind, Group, OwnerId, Protection, Refused, RemoveError, RenameError, StatItem,
    StatUnit, UNLIMITED, UserData,
};
pub use umemcg_reclaim::{ChargeEffort, ChargeError, InvalidMarks, Marks};

/// The blocks of the pages for authors of services, compiled and run as examples.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
#[doc = include_str!("../../../docs/services.md")]
struct PagesForAuthors;
