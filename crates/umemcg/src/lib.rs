//! umemcg: memory cgroups inside one process.
//!
//! An [`Engine`] owns a pool of memory and a tree of groups. Everything kept in the pool is charged
//! to a group and to all its ancestors. When a group is at its limit, its own memory is reclaimed,
//! not that of other groups. Files of any [`BackingStore`] are cached page by page ([`File`]), and
//! bytes of your own can be charged directly ([`Engine::charge`]).
//!
//! ```
//! use std::ffi::OsStr;
//! use umemcg::{Engine, EngineConfig};
//!
//! let engine = Engine::new(EngineConfig { pool_bytes: 16 << 20, ..EngineConfig::default() })?;
//! let tenant = engine.create_group(engine.root(), OsStr::new("tenant"))?;
//! engine.set_max(&tenant, 1 << 20, &|| false);
//! let charge = engine.charge(&tenant, 4096)?;
//! assert!(tenant.usage_bytes() >= 4096);
//! assert!(engine.charge(&tenant, 2 << 20).is_err());
//! drop(charge);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

mod commitments;
mod engine;
mod janitor;
mod object_cache;

pub use engine::{
    Cancelled, DIRTY_WAIT_MAX, DropCaches, Engine, EngineConfig, EngineError, Guarantee, LimitError,
    ReclaimError, Reservation, ReserveError,
};
pub use object_cache::{
    DeclineReason, Declined, ObjectCache, ObjectCacheBuilder, ObjectStats, RemovalCause, allocated_bytes,
};
pub use umemcg_arena::sys::limit_heap_arenas;
pub use umemcg_arena::{Arena, FrameId, IoFlags, Segment};
pub use umemcg_cache::node_pool::NODE_BYTES as INDEX_NODE_BYTES;
pub use umemcg_cache::{
    BackingStore, DirtyBound, DirtyBounds, DirtyThreshold, ErrorCursor, File, FileError, LostData, PageCache,
    PageQuota, PinnedPages, Readahead, StoreId, WritePause, dirty,
};
pub use umemcg_group::apply_pending;
pub use umemcg_group::hit_counters::{collect_hits, count_hits};
pub use umemcg_group::{
    CLAIMS_EXACT, CONTENT_BYTES, Charge, CreateError, EffectiveProtection, EventKind, ExtensionSlot,
    GROUP_STATE_BYTES, Group, GroupTree, NAME_BYTES, OwnerId, Protection, Refused, RemoveError, RenameError,
    StatItem, UNLIMITED,
};
pub use umemcg_reclaim::shrinker::{
    self, Count, Registration, Scan, Scanned, ShrinkTarget, Shrinker, ShrinkerId, Usage,
};
pub use umemcg_reclaim::stall::pressure;
pub use umemcg_reclaim::{
    AccountedCharge, ChargeError, ChargeMeter, InvalidMarks, Kswapd, LIST_SLOT_BYTES, ListLru, ListSlot,
    ListsFull, Marks, Pressure, PressureLevel, PressureLine, Progress, Reason, Reclaimer, Stalled, Verdict,
    WalkedList, Working,
};
