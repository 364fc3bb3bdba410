//! Our cache, behind the same functions as the others.

use std::ffi::OsStr;
use std::sync::Arc;

use foldhash::fast::RandomState;
use umemcg::{Engine, EngineConfig, Group, ObjectCache};

/// A cached value: 4 KiB. The first word is its key.
pub struct Value {
    pub key: u64,
    _rest: [u64; 511],
}

impl Value {
    /// Returns a new value with every byte written.
    pub fn make(key: u64) -> Arc<Self> {
        Arc::new(Self { key, _rest: [key; 511] })
    }
}

/// One of the caches.
pub trait Side: Sync {
    /// Looks up, and reads the first word of the value.
    fn get(&self, key: u64) -> Option<u64>;
    fn insert(&self, key: u64, value: Arc<Value>);
    /// Runs deferred work of the cache.
    fn settle(&self) {}
    /// Returns a description of a broken promise, if there is one.
    fn fault(&self) -> Option<String> {
        None
    }
}

type Objects = ObjectCache<u64, Arc<Value>, RandomState>;

/// Ours. Keys are spread over the groups. The limit of each group is its part of the capacity.
pub struct Umemcg {
    cache: Objects,
    groups: Vec<Arc<Group>>,
    engine: Arc<Engine>,
}

impl Umemcg {
    pub fn new(capacity: usize, nr_groups: usize) -> Self {
        let config = EngineConfig::new(capacity as u64 * 6000 + (64 << 20));
        let engine = Engine::new(config).expect("an engine");
        // 4 KiB, and the two counts of an `Arc`.
        let cache: Objects = ObjectCache::builder(&engine, "values")
            .weigher(|_, _| size_of::<Value>() as u64 + 16)
            .hasher(RandomState::default())
            .build();
        cache.insert(engine.root(), 0, Value::make(0)).expect("room for one");
        let object_bytes = cache.stats().bytes;
        cache.clear();
        let groups = (0..nr_groups).map(|nr| {
            let group = engine.create_group(engine.root(), OsStr::new(&format!("g{nr}"))).expect("a group");
            engine.set_max(&group, (capacity / nr_groups) as u64 * object_bytes);
            group
        });
        Self { groups: groups.collect(), cache, engine }
    }

    fn group_of(&self, key: u64) -> &Arc<Group> {
        let spread = key.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
        &self.groups[(spread as usize * self.groups.len()) >> 32]
    }
}

impl Side for Umemcg {
    #[inline]
    fn get(&self, key: u64) -> Option<u64> {
        self.cache.get(&key).map(|value| value.key)
    }

    #[inline]
    fn insert(&self, key: u64, value: Arc<Value>) {
        // Declined inserts are counted, and checked below.
        let _ = self.cache.insert(self.group_of(key), key, value);
    }

    /// Every object is charged to its group, and no group is above its limit.
    fn fault(&self) -> Option<String> {
        let stats = self.cache.stats();
        let mut charged = 0;
        for group in &self.groups {
            let theirs = self.cache.stats_of(group);
            if group.usage_bytes() > group.max_bytes() || group.usage_bytes() < theirs.bytes {
                return Some(format!(
                    "{group:?}, limit {}, holds {} bytes of objects",
                    group.max_bytes(),
                    theirs.bytes
                ));
            }
            charged += theirs.bytes;
        }
        let hardly = stats.declined * 1000 <= stats.inserted;
        let fits = charged == stats.bytes && self.engine.root().usage_bytes() >= charged;
        (!hardly || !fits).then(|| format!("{stats:?}, of which charged {charged} bytes"))
    }
}

impl Drop for Umemcg {
    fn drop(&mut self) {
        self.cache.clear();
        for group in &self.groups {
            group.drain_stocks();
            assert_eq!(self.cache.stats_of(group).bytes, 0, "an empty cache holds nothing");
        }
    }
}
