//! An engine for objects alone: it takes next to nothing, keeps limits, and refuses files.

use std::ffi::OsStr;
use std::io;
use std::sync::Arc;

use umemcg::files::{Arena, BackingStore, Segment, StoreId};
use umemcg::{Engine, EngineConfig, ObjectCache};

const TEBIBYTE: u64 = 1 << 40;

/// A store that is never asked.
#[derive(Debug)]
struct UnusedStore;

impl BackingStore for UnusedStore {
    fn store_id(&self) -> StoreId {
        unreachable!("the engine opens no file")
    }
    fn read_at(&self, _: &Arena, _: &[Segment], _: u64) -> io::Result<usize> {
        unreachable!("the engine opens no file")
    }
    fn write_at(&self, _: &Arena, _: &[Segment], _: u64) -> io::Result<usize> {
        unreachable!("the engine opens no file")
    }
    fn sync_range(&self, _: u64, _: u64) -> io::Result<()> {
        unreachable!("the engine opens no file")
    }
    fn sync(&self, _: bool) -> io::Result<()> {
        unreachable!("the engine opens no file")
    }
    fn set_len(&self, _: u64) -> io::Result<()> {
        unreachable!("the engine opens no file")
    }
}

/// Returns the resident memory of this process in bytes.
fn resident_bytes() -> u64 {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
    pages.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4096
}

#[test]
fn an_engine_without_pages_over_a_tebibyte_takes_no_memory() {
    // The first engine of a process makes what all of them share.
    drop(Engine::new(EngineConfig::new(TEBIBYTE).pages(false)).unwrap());
    let before = resident_bytes();
    let engine = Engine::new(EngineConfig::new(TEBIBYTE).pages(false)).unwrap();
    let taken = resident_bytes().saturating_sub(before);
    assert!(taken <= 1 << 20, "{taken} bytes");
    assert_eq!(engine.root().max_bytes(), TEBIBYTE);
}

#[test]
fn an_engine_without_pages_keeps_objects_within_limits() {
    let engine = Engine::new(EngineConfig::new(TEBIBYTE).pages(false)).unwrap();
    let tenant = engine.create_group(engine.root(), OsStr::new("tenant")).unwrap();
    engine.set_max(&tenant, 1 << 20);
    let cache: ObjectCache<u32, Vec<u8>> = ObjectCache::builder(&engine, "blobs").build();
    for key in 0..1000 {
        let _ = cache.insert(&tenant, key, vec![0; 4096]);
    }
    assert!(tenant.usage_bytes() <= 1 << 20);
    assert!(cache.len() > 100, "{} objects", cache.len());
}

#[test]
fn an_engine_without_pages_says_that_it_opens_no_files() {
    let engine = Engine::new(EngineConfig::new(64 << 20).pages(false)).unwrap();
    let refused = engine.open_file(Arc::new(UnusedStore), 1 << 20).unwrap_err();
    assert_eq!(refused.kind(), io::ErrorKind::Unsupported);
    assert!(refused.to_string().contains("keeps no pages"), "{refused}");
    // What looks after pages has nothing to do.
    engine.trim();
    assert!(engine.sync_all(std::time::Duration::from_secs(1)).is_empty());
}
