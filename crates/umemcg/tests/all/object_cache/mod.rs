//! The guarantees of `ObjectCache`, each test on an engine of its own.

mod expiry;
mod handing_over;
mod loading;
mod many_threads;
mod map;
mod panics;
mod pins;
mod tasks;
mod tenants;
mod traces;

use std::ffi::OsStr;
use std::sync::Arc;

use parking_lot::Mutex;
use umemcg::objects::{ObjectCacheBuilder, RemovalCause};
use umemcg::{DropCaches, Engine, EngineConfig, Group, ObjectCache, StatItem};

/// Bytes that a value holds.
pub(crate) const VALUE_BYTES: u64 = 4096;

/// Weighs [`VALUE_BYTES`], whatever it is.
pub(crate) type Value = u64;
pub(crate) type Cache = ObjectCache<u64, Value>;

pub(crate) fn engine(pool_mib: u64) -> Arc<Engine> {
    Engine::new(EngineConfig::new(pool_mib << 20)).unwrap()
}

pub(crate) fn group(engine: &Engine, parent: &Arc<Group>, name: &str) -> Arc<Group> {
    engine.create_group(parent, OsStr::new(name)).unwrap()
}

pub(crate) fn limit(engine: &Engine, group: &Arc<Group>, bytes: u64) {
    engine.set_max(group, bytes);
}

pub(crate) fn builder(engine: &Arc<Engine>) -> ObjectCacheBuilder<u64, Value> {
    ObjectCache::builder(engine, "values").weigher(|_, _| VALUE_BYTES)
}

/// Writes down what leaves.
#[derive(Debug, Clone, Default)]
pub(crate) struct Log(Arc<Mutex<Vec<(u64, Value, RemovalCause)>>>);

impl Log {
    pub(crate) fn listener(&self) -> impl Fn(u64, Value, RemovalCause) + Send + Sync + 'static {
        let log = self.clone();
        move |key, value, why| log.0.lock().push((key, value, why))
    }

    pub(crate) fn take(&self) -> Vec<(u64, Value, RemovalCause)> {
        std::mem::take(&mut *self.0.lock())
    }
}

/// Checks that nothing is left of any cache: not in the lists, the figures, the charges.
pub(crate) fn check_nothing_is_left(engine: &Engine, groups: &[&Arc<Group>]) {
    // Empty lists go when a pass finds them.
    engine.drop_caches(DropCaches::Objects);
    assert_eq!(engine.reclaimer().nr_list_slots(), 0, "places in lists");
    for group in groups.iter().copied().chain([engine.root()]) {
        let path = group.path();
        assert_eq!(group.stat_total(StatItem::SlabReclaimable), 0, "bytes of objects of {path:?}");
    }
    for group in groups {
        group.drain_stocks();
        assert_eq!(group.stat_total(StatItem::SlabUnreclaimable), 0, "bookkeeping of {:?}", group.path());
        assert_eq!(group.usage_bytes(), 0, "charges of {:?}", group.path());
    }
}
