//! [`TenantCache`]: DataFusion's caches of file metadata, listings and statistics as an
//! [`ObjectCache`] of the tenant.
//!
//! Each of DataFusion's default caches is bounded by a constant, whatever else the process needs.
//! An entry here is charged to the tenant's group of caches, and evicted under the tenant's limit
//! when a query, for instance, needs the room. The trait's own limit still holds in addition.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use datafusion_common::{HashMap, Result, TableReference};
use datafusion_execution::cache::{Cache, CacheEntryInfo, CacheKey, CacheValue};
use umemcg::{Engine, ObjectCache};

use crate::cache_group::CacheGroup;

/// One of DataFusion's caches, charged to a tenant. Created by
/// [`Tenant::cache_manager_config`](crate::Tenant::cache_manager_config).
#[derive(Debug)]
pub struct TenantCache<K, V>
where
    K: CacheKey + 'static,
    V: CacheValue + 'static,
{
    name: String,
    objects: ObjectCache<K, Arc<Entry<V>>>,
    group: Arc<CacheGroup>,
    settings: Mutex<Settings>,
}

#[derive(Debug, Clone, Copy)]
struct Settings {
    limit_bytes: usize,
    time_to_live: Option<Duration>,
}

/// A cached value, with the properties reported by the trait.
#[derive(Debug)]
struct Entry<V> {
    value: V,
    expires: Option<Instant>,
    hits: AtomicUsize,
}

impl<V> Entry<V> {
    fn is_expired(&self) -> bool {
        self.expires.is_some_and(|at| Instant::now() > at)
    }
}

impl<K, V> TenantCache<K, V>
where
    K: CacheKey + 'static,
    V: CacheValue + 'static,
{
    pub(crate) fn new(
        engine: &Arc<Engine>,
        group: &Arc<CacheGroup>,
        name: &str,
        ttl: Option<Duration>,
    ) -> Self {
        let objects = ObjectCache::builder(engine, name)
            .weigher(|key: &K, entry: &Arc<Entry<V>>| {
                let bytes = key.size() + size_of::<Entry<V>>();
                (bytes as u64).saturating_add(entry.value.size() as u64)
            })
            .build();
        let settings = Settings { limit_bytes: usize::MAX, time_to_live: ttl };
        Self { name: name.to_owned(), objects, group: Arc::clone(group), settings: Mutex::new(settings) }
    }

    /// Returns the bytes charged for the cache's entries.
    pub fn charged_bytes(&self) -> u64 {
        self.objects.stats().bytes
    }

    fn settings(&self) -> Settings {
        *self.settings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change_settings(&self, change: impl FnOnce(&mut Settings)) {
        change(&mut self.settings.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

impl<K, V> Cache<K, V> for TenantCache<K, V>
where
    K: CacheKey + 'static,
    V: CacheValue + 'static,
{
    fn get(&self, key: &K) -> Option<V> {
        let entry = self.objects.get_for(self.group.group(), key)?;
        if entry.is_expired() {
            self.objects.remove(key);
            return None;
        }
        entry.hits.fetch_add(1, Relaxed);
        Some(entry.value.clone())
    }

    fn put(&self, key: &K, value: V) -> Option<V> {
        let settings = self.settings();
        let value_bytes = value.size();
        if value_bytes == 0 {
            return None;
        }
        let previous = self.remove(key);
        if value_bytes.saturating_add(key.size()) <= settings.limit_bytes {
            let expires = settings.time_to_live.and_then(|ttl| Instant::now().checked_add(ttl));
            let entry = Arc::new(Entry { value, expires, hits: AtomicUsize::new(0) });
            // A declined entry is not cached.
            let _ = self.objects.insert(self.group.group(), key.clone(), entry);
        }
        previous
    }

    fn remove(&self, key: &K) -> Option<V> {
        self.objects.remove(key).map(|entry| entry.value.clone())
    }

    fn contains_key(&self, key: &K) -> bool {
        self.objects.peek(key).is_some_and(|entry| !entry.is_expired())
    }

    fn len(&self) -> usize {
        self.objects.len()
    }

    fn clear(&self) {
        self.objects.clear();
    }

    fn name(&self) -> String {
        self.name.clone()
    }

    fn cache_limit(&self) -> usize {
        self.settings().limit_bytes
    }

    fn update_cache_limit(&self, limit: usize) {
        self.change_settings(|settings| settings.limit_bytes = limit);
        self.objects.set_bytes_max(limit as u64);
    }

    fn cache_ttl(&self) -> Option<Duration> {
        self.settings().time_to_live
    }

    fn update_cache_ttl(&self, ttl: Option<Duration>) {
        self.change_settings(|settings| settings.time_to_live = ttl);
    }

    fn drop_table_entries(&self, table_ref: &TableReference) -> Result<()> {
        self.objects.retain(|key, _| key.table_ref() != Some(table_ref));
        Ok(())
    }

    fn list_entries(&self) -> HashMap<K, CacheEntryInfo<V>> {
        let mut entries = HashMap::new();
        self.objects.for_each(|key, entry| {
            let info = CacheEntryInfo {
                value: entry.value.clone(),
                size_bytes: entry.value.size(),
                hits: entry.hits.load(Relaxed),
                expires: entry.expires,
            };
            entries.insert(key.clone(), info);
        });
        entries
    }
}
