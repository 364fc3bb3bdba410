//! What the tests of the engine share: an engine with a small pool, and the store and the bytes of
//! the page cache's tests.
#![allow(dead_code, unused_imports)]

#[path = "../../../../umemcg-cache/tests/all/common/bytes.rs"]
mod bytes;
#[path = "../../../../umemcg-cache/tests/all/common/mem_store.rs"]
mod mem_store;

use std::sync::Arc;

pub use bytes::{pattern, read_all};
pub use mem_store::MemStore;
use umemcg::{Engine, EngineConfig, Group};

/// An engine with a small pool.
pub fn engine(pool_bytes: u64) -> Arc<Engine> {
    Engine::new(EngineConfig::new(pool_bytes)).unwrap()
}

pub fn group(engine: &Engine, name: &str, limit: u64) -> Arc<Group> {
    let group = engine.create_group(engine.root(), name.as_ref()).unwrap();
    engine.set_max(&group, limit);
    group
}
