//! What the tests of the page cache share: a pool with its groups and its cache, stores that fail
//! on request, and bytes to compare.
#![allow(dead_code, unused_imports)]

pub mod bytes;
pub mod disk;
pub mod late_store;
pub mod mem_store;
pub mod pool;
pub mod steps;

use std::sync::Arc;

pub use bytes::{pattern, read_all};
pub use mem_store::MemStore;
pub use pool::Pool;
use umemcg_group::Group;
use umemcg_reclaim::Reason;

/// A small pool.
pub fn pool(pool_bytes: u64) -> Arc<Pool> {
    Pool::new(pool_bytes)
}

/// A group below the root with a hard limit.
pub fn group(pool: &Pool, name: &str, limit: u64) -> Arc<Group> {
    let create = || pool.create_group(pool.root(), name.as_ref());
    // In a full pool there may be no room for its state, as for an engine.
    let group = create().or_else(|_| {
        pool.reclaimer().reclaim(pool.root(), 1, Reason::Direct);
        create()
    });
    let group = group.unwrap();
    pool.set_max(&group, limit);
    group
}
