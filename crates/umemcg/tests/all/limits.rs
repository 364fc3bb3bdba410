//! Limits, and memory taken back on request: `set_limit`, `force_empty`, `drop_caches`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::common::{MemStore, engine, group, pattern, read_all};
use umemcg::files::File;
use umemcg::{DropCaches, Engine, Group, LimitError, ReclaimError, StatItem};

const MIB: usize = 1 << 20;

fn open(engine: &Engine, store: &Arc<MemStore>) -> Arc<File> {
    engine.open_file(Arc::clone(store) as _, 0).unwrap()
}

const STATES: [StatItem; 3] = [StatItem::FileDirty, StatItem::FileWriteback, StatItem::FileUnstable];

fn unclean(group: &Group) -> u64 {
    STATES.iter().map(|&item| group.stat_total(item)).sum::<i64>() as u64
}

fn written(store: &MemStore) -> usize {
    store.live().len()
}

fn wait_until(mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !condition() {
        assert!(Instant::now() < deadline, "condition not reached in time");
        std::thread::yield_now();
    }
}

#[test]
fn a_limit_that_cannot_be_met_is_refused_and_the_old_one_stays() {
    let engine = engine(32 << 20);
    let tenant = group(&engine, "a", 8 << 20);
    let held = engine.charge(&tenant, 2 << 20).unwrap();
    assert_eq!(engine.set_limit(&tenant, 1 << 20), Err(LimitError::Busy));
    assert_eq!(tenant.max_bytes(), 8 << 20);
    drop(held);
    engine.set_limit(&tenant, 1 << 20).unwrap();
    assert!(tenant.usage_bytes() <= 1 << 20);
    assert_eq!(engine.set_limit(engine.root(), 1 << 20), Err(LimitError::IsRoot));
}

#[test]
fn lowering_a_limit_and_force_empty_take_the_cache_back() {
    let engine = engine(64 << 20);
    let tenant = group(&engine, "a", 32 << 20);
    let file = engine.open_file(MemStore::with(&pattern(12, 0, 8 * MIB)), 8 * MIB as u64).unwrap();
    read_all(&file, &tenant);
    assert!(tenant.usage_bytes() > 8 << 20);
    engine.set_limit(&tenant, 1 << 20).unwrap();
    assert!(tenant.usage_bytes() <= 1 << 20);
    engine.force_empty(&tenant).unwrap();
    assert_eq!(tenant.usage_bytes(), 0);
    assert!(read_all(&file, &tenant) == pattern(12, 0, 8 * MIB));
}

#[test]
fn dropping_caches_takes_all_clean_pages_and_no_dirty_ones() {
    let engine = engine(64 << 20);
    let tenant = group(&engine, "a", 16 << 20);
    let clean = engine.open_file(MemStore::with(&pattern(3, 0, 4 * MIB)), 4 * MIB as u64).unwrap();
    let dirty = engine.open_file(MemStore::with(&[]), 0).unwrap();
    dirty.write(&tenant, 0, &pattern(4, 0, MIB)).unwrap();
    for _ in 0..4 {
        assert!(read_all(&clean, &tenant) == pattern(3, 0, 4 * MIB));
    }
    engine.drop_caches(DropCaches::Objects);
    assert_eq!(clean.nr_cached_pages(), 1024);
    engine.drop_caches(DropCaches::Pages);
    assert_eq!(clean.nr_cached_pages(), 0);
    assert_eq!(dirty.nr_cached_pages(), 256);
    assert_eq!(engine.cache().nr_shadow_leaves(), 16);
    assert!(tenant.stat_local(StatItem::ShadowNodes) > 0);
    assert!(read_all(&dirty, &tenant) == pattern(4, 0, MIB));
    dirty.fsync(true, &dirty.sample_error()).unwrap();
    engine.drop_caches(DropCaches::Pages);
    assert_eq!(dirty.nr_cached_pages(), 0);
    // Without pages there is nothing to compare shadows with. They go by halves, so it takes some
    // passes.
    wait_until(|| {
        engine.drop_caches(DropCaches::Objects);
        engine.cache().nr_shadow_leaves() == 0
    });
    assert_eq!(tenant.stat_local(StatItem::ShadowNodes), 0);
}

#[test]
fn forced_empty_a_group_writes_its_own_files_first() {
    let engine = engine(64 << 20);
    let (a, b) = (group(&engine, "a", u64::MAX), group(&engine, "b", u64::MAX));
    let (store, neighbours) = (MemStore::on_store(1), MemStore::on_store(1));
    let (file, other) = (open(&engine, &store), open(&engine, &neighbours));
    file.write(&a, 0, &vec![1; 3 * MIB]).unwrap();
    other.write(&b, 0, &vec![2; MIB]).unwrap();
    // A store that makes nothing durable for a second is waited for no longer.
    let is_empty = || {
        engine.force_empty(&a).unwrap();
        (unclean(&a), file.nr_cached_pages()) == (0, 0)
    };
    assert!((0..5).any(|_| is_empty()), "{} bytes, {} pages", unclean(&a), file.nr_cached_pages());
    assert!(store.after_cut(|_| false) == vec![1; 3 * MIB], "and durable");
    assert_eq!((written(&neighbours), unclean(&b)), (0, MIB as u64));
    assert!(engine.sync_all(Duration::from_secs(60)).is_empty());
}

#[test]
fn forced_empty_a_group_keeps_what_its_store_does_not_take() {
    let engine = engine(64 << 20);
    let a = group(&engine, "a", u64::MAX);
    let (hangs, works) = (MemStore::on_store(1), MemStore::on_store(2));
    hangs.hang();
    let [stuck, file] = [&hangs, &works].map(|store| open(&engine, store));
    stuck.write(&a, 0, &vec![1; MIB]).unwrap();
    file.write(&a, 0, &vec![2; MIB]).unwrap();
    assert_eq!(engine.force_empty_unless(&a, &|| true), Err(ReclaimError::Interrupted));
    // A store that makes nothing durable for a second is waited for no longer.
    let empties = |is_so: &dyn Fn() -> bool| {
        (0..5).any(|_| {
            engine.force_empty(&a).unwrap();
            is_so()
        })
    };
    assert!(empties(&|| file.nr_cached_pages() == 0));
    assert_eq!(stuck.nr_cached_pages(), MIB as u64 / 4096);
    hangs.release();
    assert!(empties(&|| (stuck.nr_cached_pages(), unclean(&a)) == (0, 0)));
    assert_eq!(written(&hangs), MIB);
}

#[test]
fn what_is_durable_can_be_dropped_at_once() {
    let engine = engine(64 << 20);
    let a = group(&engine, "a", u64::MAX);
    for _ in 0..20 {
        let store = MemStore::on_store(1);
        store.hang();
        let file = open(&engine, &store);
        file.write(&a, 0, &vec![1; 4 * MIB]).unwrap();
        // Reclaim meets the pages first, so that they come to the end of their list when they are
        // durable.
        engine.drop_caches(DropCaches::Pages);
        store.release();
        file.start_writeback();
        wait_until(|| unclean(&a) == 0);
        engine.drop_caches(DropCaches::Pages);
        assert_eq!(file.nr_cached_pages(), 0);
    }
}
