//! A group full of dirty data that its store does not take: what else it does continues, and
//! nothing is lost.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::common::{MemStore, Pool, group, pattern, pool, read_all};
use umemcg_cache::{BackingStore, File, FileError, Readahead};
use umemcg_group::{Group, StatItem};

/// Dirties pages of a file until the group has no room for another; returns how many bytes.
fn fill_with_dirty_pages(file: &Arc<File>, tenant: &Arc<Group>) -> u64 {
    let pages = (0..).take_while(|page| {
        let at = page * 4096;
        file.try_write(tenant, at, &pattern(1, at, 4096)).is_some()
    });
    pages.count() as u64 * 4096
}

fn ground() -> (Arc<Pool>, Arc<Group>) {
    let pool = pool(16 << 20);
    let tenant = group(&pool, "t", 512 << 10);
    (pool, tenant)
}

#[test]
fn a_group_full_of_a_hanging_stores_data_works_uncached() {
    let (pool, tenant) = ground();
    let stuck = MemStore::on_store(1);
    let stuck_file = pool.open_file(stuck.clone(), 0).unwrap();
    stuck.hang();
    let len = fill_with_dirty_pages(&stuck_file, &tenant);
    assert!(len >= 256 << 10, "{len}");
    let data = pattern(2, 0, 1 << 20);
    let other = MemStore::with(&data);
    let other_file = pool.open_file(other.clone(), 1 << 20).unwrap();
    assert!(read_all(&other_file, &tenant) == data);
    let new = pattern(3, 0, 1 << 20);
    other_file.write(&tenant, 0, &new).unwrap();
    assert!(other.live() == new, "it went straight to the store");
    assert!(tenant.stat_local(StatItem::UncachedIo) > 0);
    // A neighbour keeps a cache.
    let neighbour = group(&pool, "n", 4 << 20);
    assert!(read_all(&other_file, &neighbour) == new);
    assert_eq!(neighbour.stat_local(StatItem::UncachedIo), 0);
    stuck.release();
    assert!(pool.sync_all(Duration::from_secs(60)).is_empty());
    assert!(stuck.live() == pattern(1, 0, len as usize));
}

#[test]
fn a_group_full_of_what_a_store_refuses_is_told_and_keeps_it() {
    let (pool, tenant) = ground();
    let failing = MemStore::on_store(1);
    let file = pool.open_file(failing.clone(), 0).unwrap();
    failing.fail_writes.store(5, Ordering::Relaxed);
    let mut len = fill_with_dirty_pages(&file, &tenant);
    // What reclaim of index nodes and stocks makes room for.
    while let Ok(nr) = file.write(&tenant, len, &pattern(1, len, 4096)) {
        len += nr as u64;
        assert!(len < 512 << 10);
    }
    // There is no room for more, and the store does not take it: every further write gets the
    // error.
    for _ in 0..20 {
        let refused = file.write(&tenant, len, &[9; 4096]);
        assert!(
            matches!(&refused, Err(FileError::Store(error)) if error.raw_os_error() == Some(5)),
            "{refused:?}"
        );
    }
    assert!(read_all(&file, &tenant) == pattern(1, 0, len as usize), "what was accepted is there");
    failing.fail_writes.store(0, Ordering::Relaxed);
    assert!(pool.sync_all(Duration::from_secs(60)).is_empty());
    assert!(failing.after_cut(|_| false) == pattern(1, 0, len as usize));
    assert_eq!(file.write(&tenant, len, &[9; 4096]).unwrap(), 4096);
}

#[test]
fn a_store_that_times_out_is_not_asked_again() {
    const ETIMEDOUT: u64 = 110;
    let (pool, tenant) = ground();
    let store = MemStore::with(&pattern(6, 0, 256 << 10));
    let file = pool.open_file(store.clone(), 256 << 10).unwrap();
    let nr_calls = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&nr_calls);
    store.on_call.set(move || _ = counted.fetch_add(1, Ordering::Relaxed));
    let nr_calls_of = |errno: u64| {
        store.fail_reads.store(errno, Ordering::Relaxed);
        let result = file.read(&tenant, 0, 4096, &Readahead::new()).map(|pages| pages.len());
        assert!(
            matches!(&result, Err(FileError::Store(error)) if error.raw_os_error() == Some(errno as i32)),
            "{result:?}"
        );
        nr_calls.swap(0, Ordering::Relaxed)
    };
    assert_eq!((nr_calls_of(ETIMEDOUT), nr_calls_of(5)), (1, 3));
}

#[test]
fn a_refused_range_keeps_no_later_one_from_being_written() {
    let pool = pool(32 << 20);
    let tenant = group(&pool, "t", 16 << 20);
    let store = MemStore::on_store(1);
    let file = pool.open_file(store.clone(), 0).unwrap();
    let cursor = file.sample_error();
    let data = pattern(4, 0, 4 << 20);
    // In the first run of pages.
    *store.bad.lock() = 4096..4097;
    file.write(&tenant, 0, &data).unwrap();
    assert!(matches!(file.fsync(true, &cursor), Err(FileError::Writeback(5))));
    // The background may be trying it again.
    let kept = file.nr_unclean();
    assert!(kept > 0 && kept <= 256, "one run of pages is left: {kept}");
    let durable = store.after_cut(|_| false);
    assert!(durable[1 << 20..] == data[1 << 20..], "what lies behind is durable");
    // Written behind the bad place later, by the background alone.
    let more = pattern(5, 3 << 20, 1 << 20);
    file.write(&tenant, 3 << 20, &more).unwrap();
    file.start_writeback();
    let deadline = std::time::Instant::now() + Duration::from_secs(60);
    while store.after_cut(|_| false)[3 << 20..] != more {
        assert!(std::time::Instant::now() < deadline, "the background does not come behind the bad place");
        std::thread::park_timeout(Duration::from_millis(5));
    }
    *store.bad.lock() = 0..0;
    file.fsync(true, &file.sample_error()).unwrap_or_default();
    file.fsync(true, &cursor).unwrap_or_default();
    file.fsync(true, &cursor).unwrap();
    assert!(store.after_cut(|_| false)[..1 << 20] == data[..1 << 20]);
}

#[test]
fn a_sync_writes_again_what_the_store_may_have_lost() {
    let (pool, tenant) = ground();
    let store = MemStore::new();
    let file = pool.open_file(Arc::clone(&store) as _, 0).unwrap();
    file.write(&tenant, 0, &[b'b'; 4096]).unwrap();
    let (seen, emptied) = (Arc::clone(&file), Arc::clone(&store));
    let nr_calls = AtomicU64::new(0);
    store.on_call.set(move || {
        // The page is written, and the store is about to confirm it.
        if nr_calls.fetch_add(1, Ordering::Relaxed) == 1 {
            emptied.set_len(0).unwrap();
            let seen = Arc::clone(&seen);
            std::thread::spawn(move || seen.revalidate(|| Some(0))).join().unwrap();
        }
    });
    file.fsync(true, &file.sample_error()).unwrap();
    store.on_call.clear();
    assert_eq!(file.len(), 4096);
    assert_eq!(store.after_cut(|_| false), [b'b'; 4096]);
    assert!(file.is_stable(), "the sync has covered it");
}

#[test]
fn looks_at_a_changed_file_do_not_keep_a_sync_from_ending() {
    let (pool, tenant) = ground();
    let store = MemStore::new();
    let file = pool.open_file(Arc::clone(&store) as _, 0).unwrap();
    file.write(&tenant, 0, &[b'b'; 4096]).unwrap();
    let (seen, nr_calls) = (Arc::clone(&file), AtomicU64::new(0));
    let looks = Arc::new(AtomicU64::new(0));
    let nr_looks = Arc::clone(&looks);
    // Before each confirmation another thread looks, for as long as it may.
    store.on_call.set(move || {
        if nr_calls.fetch_add(1, Ordering::Relaxed) % 2 == 1 {
            let (seen, nr_looks) = (Arc::clone(&seen), Arc::clone(&nr_looks));
            let is_first = nr_looks.load(Ordering::Relaxed) == 0;
            let look = std::thread::spawn(move || {
                seen.revalidate(|| Some(0));
                nr_looks.fetch_add(1, Ordering::Relaxed);
            });
            if is_first {
                look.join().unwrap();
            } else {
                std::thread::sleep(Duration::from_millis(50));
            }
        }
        assert!(nr_calls.load(Ordering::Relaxed) < 20, "the sync is repeated for each look");
    });
    file.fsync(true, &file.sample_error()).unwrap();
    store.on_call.clear();
    let deadline = std::time::Instant::now() + Duration::from_secs(60);
    while looks.load(Ordering::Relaxed) < 2 {
        assert!(std::time::Instant::now() < deadline, "no second look: the sync was not repeated");
        std::thread::yield_now();
    }
    assert_eq!(store.live(), [b'b'; 4096]);
}

#[test]
fn a_file_that_is_given_up_during_a_sync_goes_with_it() {
    let (pool, tenant) = ground();
    let (quick, stuck) = (MemStore::on_store(1), MemStore::on_store(2));
    let file = pool.open_file(quick, 0).unwrap();
    let stuck_file = pool.open_file(stuck.clone(), 0).unwrap();
    for file in [&file, &stuck_file] {
        file.write(&tenant, 0, &[1; 4096]).unwrap();
    }
    stuck.hang();
    let sync = std::thread::spawn({
        let pool = Arc::clone(&pool);
        move || pool.sync_all(Duration::from_secs(60))
    });
    // The thread that has synced it lets go of it, and the caller of the sync has it still.
    while !file.is_stable() || Arc::strong_count(&file) > 2 {
        std::thread::yield_now();
    }
    drop(file);
    stuck.release();
    assert!(sync.join().unwrap().is_empty());
}
