//! Types of an [`ObjectCache`](crate::ObjectCache): its builder, the results of lookups and loads,
//! the causes of removals, and its figures.

pub use umemcg_base::clock::Clock;

pub use crate::object_cache::{
    AgesNotKept, DeclineReason, Declined, LoadGuard, LoadWait, Lookup, ObjectCacheBuilder, ObjectStats,
    Pinned, RemovalCause, allocated_bytes,
};
