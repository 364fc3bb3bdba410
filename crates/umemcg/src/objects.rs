//! What goes with an [`ObjectCache`](crate::ObjectCache): how it is built, what look-ups and loads
//! return, why values leave it, and its figures.

pub use umemcg_base::clock::Clock;

pub use crate::object_cache::{
    AgesNotKept, DeclineReason, Declined, LoadGuard, LoadWait, Lookup, ObjectCacheBuilder, ObjectStats,
    Pinned, RemovalCause, allocated_bytes,
};
