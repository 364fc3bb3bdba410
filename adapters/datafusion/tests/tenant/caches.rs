//! DataFusion's caches as objects of a tenant.

use std::any::Any;
use std::collections::HashMap as StdHashMap;
use std::sync::Arc;
use std::time::Duration;

use datafusion_common::{HashMap, TableReference};
use datafusion_execution::cache::cache_manager::{
    CacheManager, CachedFileList, CachedFileMetadataEntry, FileMetadata,
};
use datafusion_execution::cache::default_cache::DefaultCache;
use datafusion_execution::cache::{Cache, CacheEntryInfo, TableScopedPath};
use object_store::ObjectMeta;
use object_store::path::Path;
use umemcg_datafusion::Tenant;

use crate::{MIB, tenant_of, tenant_with, usage_of};

/// File metadata of a given size.
struct Footer(usize);

impl FileMetadata for Footer {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn memory_size(&self) -> usize {
        self.0
    }

    fn extra_info(&self) -> HashMap<String, String> {
        HashMap::new()
    }
}

fn meta_of(path: &str) -> ObjectMeta {
    ObjectMeta {
        location: Path::from(path),
        last_modified: Default::default(),
        size: 1,
        e_tag: None,
        version: None,
    }
}

fn footer_of(path: &str, bytes: usize) -> CachedFileMetadataEntry {
    CachedFileMetadataEntry::new(meta_of(path), Arc::new(Footer(bytes)))
}

fn manager_of(tenant: &Tenant) -> Arc<CacheManager> {
    CacheManager::try_new(&tenant.cache_manager_config()).expect("a cache manager")
}

/// Puts `nr` entries of `bytes` into the cache of file metadata.
pub(crate) fn fill_metadata(tenant: &Tenant, nr: u64, bytes: usize) {
    let cache = manager_of(tenant).get_file_metadata_cache();
    for at in 0..nr {
        let path = format!("{at}.parquet");
        cache.put(&Path::from(path.as_str()), footer_of(&path, bytes));
    }
}

#[test]
fn entries_are_charged_to_the_tenant_and_bounded() {
    let tenant = tenant_of(8);
    fill_metadata(&tenant, 400, 64 << 10);
    let used = tenant.group().usage_bytes();
    assert!((6 * MIB..=8 * MIB).contains(&used), "{used}");
    let cache = manager_of(&tenant).get_file_metadata_cache();
    let charged: usize = cache.list_entries().values().map(|entry| entry.size_bytes).sum();
    assert!(charged as u64 <= used && charged as u64 >= used * 9 / 10, "{charged} of {used}");
    cache.clear();
    assert!(cache.is_empty());
}

#[test]
fn a_cache_behaves_as_the_trait_says() {
    let tenant = tenant_of(8);
    let cache = manager_of(&tenant).get_file_metadata_cache();
    let path = Path::from("a");
    assert!(cache.get(&path).is_none() && !cache.contains_key(&path));
    assert!(cache.put(&path, footer_of("a", 100)).is_none());
    assert_eq!(
        cache.put(&path, footer_of("a", 200)).expect("the one before").file_metadata.memory_size(),
        100
    );
    assert_eq!(cache.get(&path).expect("an entry").file_metadata.memory_size(), 200);
    assert_eq!(cache.list_entries()[&path].hits, 1);
    assert_eq!(cache.len(), 1);
    // Values of no size are not kept; a value beyond the limit removes the outdated one.
    assert!(cache.put(&Path::from("b"), footer_of("b", 0)).is_none());
    assert!(!cache.contains_key(&Path::from("b")));
    cache.update_cache_limit(1000);
    assert_eq!(cache.cache_limit(), 1000);
    assert!(cache.put(&path, footer_of("a", 2000)).is_some());
    assert!(cache.get(&path).is_none() && cache.is_empty());
}

/// Random operations on a tenant's cache and on DataFusion's own, with room for everything.
#[test]
fn a_cache_answers_as_the_default_one_does() {
    let tenant = tenant_of(32);
    let ours = manager_of(&tenant).get_list_files_cache().expect("a cache of listings");
    let default: DefaultCache<TableScopedPath, CachedFileList> = DefaultCache::new(usize::MAX);
    let mut random = 20_261_125_u64;
    let mut below = |bound: u64| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) % bound
    };
    for step in 0..20_000 {
        let table = ["a", "b", "c"].get(below(4) as usize).map(|name| TableReference::bare(*name));
        let key = TableScopedPath { table, path: Path::from(below(40).to_string()) };
        match below(100) {
            0 => {
                ours.clear();
                default.clear();
            }
            1..4 => {
                let table = TableReference::bare("b");
                ours.drop_table_entries(&table).expect("dropped");
                default.drop_table_entries(&table).expect("dropped");
            }
            4..20 => assert_eq!(ours.remove(&key), default.remove(&key), "{step}"),
            20..60 => {
                let files = (0..below(4)).map(|at| meta_of(&format!("{step}/{at}"))).collect();
                let list = CachedFileList::new(files);
                assert_eq!(ours.put(&key, list.clone()), default.put(&key, list), "{step}");
            }
            _ => {
                assert_eq!(ours.contains_key(&key), default.contains_key(&key), "{step}");
                assert_eq!(ours.get(&key), default.get(&key), "{step}");
            }
        }
        assert_eq!(ours.len(), default.len(), "{step}");
    }
    let values = |entries: HashMap<TableScopedPath, CacheEntryInfo<CachedFileList>>| -> StdHashMap<_, _> {
        entries.into_iter().map(|(key, entry)| (key, entry.value)).collect()
    };
    assert_eq!(values(ours.list_entries()), values(default.list_entries()));
}

#[test]
fn a_lower_limit_of_a_cache_evicts() {
    let tenant = tenant_of(8);
    fill_metadata(&tenant, 20, 10_000);
    let cache = manager_of(&tenant).get_file_metadata_cache();
    cache.update_cache_limit(100_000);
    assert!((1..10).contains(&cache.len()), "{}", cache.len());
}

#[test]
fn listings_expire_and_go_with_their_table() {
    let tenant = tenant_with(8, |builder| builder.listing_time_to_live(Some(Duration::from_secs(3600))));
    let cache = manager_of(&tenant).get_list_files_cache().expect("a cache of listings");
    assert_eq!(cache.cache_ttl(), Some(Duration::from_secs(3600)));
    let key = |table: &str, path: &str| TableScopedPath {
        table: Some(TableReference::bare(table.to_owned())),
        path: Path::from(path),
    };
    let list = || CachedFileList::new(vec![meta_of("t/1"), meta_of("t/2")]);
    for (table, path) in [("orders", "a"), ("orders", "b"), ("lineitem", "a")] {
        cache.put(&key(table, path), list());
    }
    cache.drop_table_entries(&TableReference::bare("orders")).expect("dropped");
    let left: StdHashMap<String, usize> =
        cache.list_entries().into_iter().map(|(key, entry)| (key.to_string(), entry.value.len())).collect();
    assert_eq!(left.into_iter().collect::<Vec<_>>(), [("a, lineitem".to_owned(), 2)]);
    // The time to live of later entries.
    cache.update_cache_ttl(Some(Duration::ZERO));
    cache.put(&key("orders", "c"), list());
    while cache.contains_key(&key("orders", "c")) {
        std::thread::yield_now();
    }
    assert!(cache.get(&key("orders", "c")).is_none());
    assert!(cache.get(&key("lineitem", "a")).is_some());
}

#[test]
fn tenants_have_caches_of_their_own() {
    let engine = crate::engine_of(32);
    let tenants = ["a", "b"].map(|name| {
        let group = crate::group_of(&engine, name, 8);
        Tenant::builder(&engine, &group).build().expect("a tenant")
    });
    fill_metadata(&tenants[0], 10, 1000);
    assert!(manager_of(&tenants[1]).get_file_metadata_cache().is_empty());
    let before = usage_of(tenants[0].group());
    fill_metadata(&tenants[1], 1000, 64 << 10);
    assert_eq!(manager_of(&tenants[0]).get_file_metadata_cache().len(), 10);
    assert_eq!(usage_of(tenants[0].group()), before);
}

#[test]
fn a_dropped_tenant_leaves_nothing_charged() {
    let engine = crate::engine_of(32);
    let group = crate::group_of(&engine, "gone", 8);
    let before = usage_of(&group);
    let tenant = Tenant::builder(&engine, &group).build().expect("a tenant");
    fill_metadata(&tenant, 50, 10_000);
    let manager = manager_of(&tenant);
    drop(tenant);
    assert_eq!(manager.get_file_metadata_cache().len(), 50, "the manager holds its caches");
    drop(manager);
    assert_eq!(group.nr_children(), 0);
    assert_eq!(usage_of(&group), before);
}
