//! The guarantees of the page cache, on a store that can fail.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::common::{MemStore, group, pattern, pool, read_all};
use umemcg_cache::node_pool::NODE_BYTES;
use umemcg_cache::{FileError, Readahead};
use umemcg_group::{EventKind, StatItem};

const MIB: usize = 1 << 20;

#[test]
fn what_was_written_is_read_back_and_reaches_the_store_on_fsync() {
    let pool = pool(64 << 20);
    let tenant = group(&pool, "a", 32 << 20);
    let store = MemStore::new();
    let file = pool.open_file(store.clone(), 0).unwrap();
    let data = pattern(1, 0, 3 * MIB + 123);
    assert_eq!(file.write(&tenant, 0, &data).unwrap(), data.len());
    assert_eq!(file.len(), data.len() as u64);
    assert!(read_all(&file, &tenant) == data);
    let cursor = file.sample_error();
    file.fsync(true, &cursor).unwrap();
    assert!(store.live() == data);
    assert!(store.after_cut(|_| false) == data, "fsync makes it durable");
    assert_eq!(pool.root().stat_total(StatItem::FileDirty), 0);
    assert!(store.largest_write.load(Ordering::Relaxed) >= MIB as u64, "contiguous pages go out together");
}

#[test]
fn a_page_is_charged_for_the_nodes_that_its_file_lacks() {
    let pool = pool(64 << 20);
    let tenant = group(&pool, "a", 2 * 4096);
    let file = pool.open_file(MemStore::with(&pattern(1, 0, 4096)), 4096).unwrap();
    file.read(&tenant, 0, 1, &Readahead::new()).unwrap();
    assert!(file.try_read(0, 4096, &Readahead::new()).is_some(), "it stays");
    assert_eq!(tenant.stat_local(StatItem::IndexNodes), NODE_BYTES as i64);
    assert_eq!(tenant.stat_local(StatItem::UncachedIo), 0);
    // A page far behind makes the tree higher, by as many nodes as were counted.
    tenant.drain_stocks();
    pool.set_max(&tenant, 1 << 20);
    for page in [1 << 10, 1 << 20, 1 << 40, 100] {
        let nr_before = pool.cache().nr_index_nodes();
        file.write(&tenant, page * 4096, b"x").unwrap();
        assert!(pool.cache().nr_index_nodes() > nr_before, "page {page}");
    }
    assert_eq!(
        tenant.stat_local(StatItem::IndexNodes),
        i64::from(pool.cache().nr_index_nodes()) * NODE_BYTES as i64
    );
}

#[test]
fn a_hit_needs_no_store_and_a_window_is_one_read() {
    let pool = pool(64 << 20);
    let tenant = group(&pool, "a", 32 << 20);
    let store = MemStore::with(&pattern(2, 0, 8 * MIB));
    let file = pool.open_file(store.clone(), 8 * MIB as u64).unwrap();
    assert!(read_all(&file, &tenant) == pattern(2, 0, 8 * MIB));
    let reads = store.nr_reads.load(Ordering::Relaxed);
    assert!(reads <= 16, "{reads} reads for 8 MiB");
    let pages = file.try_read(5000, 100_000, &Readahead::new()).expect("cached");
    assert!(pages.to_vec() == pattern(2, 5000, 100_000));
    assert_eq!(store.nr_reads.load(Ordering::Relaxed), reads);
}

#[test]
fn usage_never_exceeds_the_limit_while_a_file_streams_through() {
    let pool = pool(64 << 20);
    let limit = 4 << 20;
    let tenant = group(&pool, "a", limit);
    let store = MemStore::new();
    let file = pool.open_file(store.clone(), 0).unwrap();
    for i in 0..40 {
        let data = pattern(3, (i * MIB) as u64, MIB);
        file.write(&tenant, (i * MIB) as u64, &data).unwrap();
        assert!(tenant.usage_bytes() <= limit);
    }
    for i in 0..40 {
        let offset = (i * MIB) as u64;
        let readahead = Readahead::new();
        let pages = file.read(&tenant, offset, MIB, &readahead).unwrap();
        assert!(pages.to_vec() == pattern(3, offset, pages.len()));
        assert!(tenant.usage_bytes() <= limit);
    }
    assert!(tenant.peak_bytes() <= limit);
    assert!(tenant.failcnt() > 0);
    assert!(tenant.event_count(EventKind::Max) > 0);
    assert!(tenant.stat_local(StatItem::PgStealDirect) > 0);
}

#[test]
fn io_goes_uncached_when_a_group_cannot_have_one_page() {
    let pool = pool(16 << 20);
    let tenant = group(&pool, "none", 0);
    let store = MemStore::with(&pattern(4, 0, MIB));
    let file = pool.open_file(store.clone(), MIB as u64).unwrap();
    let mut got = Vec::new();
    while got.len() < MIB {
        let pages = file.read(&tenant, got.len() as u64, 64 << 10, &Readahead::new()).unwrap();
        assert!(!pages.is_empty());
        got.extend(pages.to_vec());
    }
    assert!(got == pattern(4, 0, MIB));
    file.write(&tenant, 1000, &pattern(5, 1000, 10_000)).unwrap();
    assert!(store.live()[1000..11_000] == pattern(5, 1000, 10_000));
    assert_eq!(tenant.usage_bytes(), 0);
    assert!(tenant.stat_local(StatItem::UncachedIo) > 0);
    assert!(tenant.event_count(EventKind::Oom) > 0);
}

#[test]
fn a_failed_write_back_keeps_data_and_is_told_once_a_file() {
    let pool = pool(32 << 20);
    let tenant = group(&pool, "a", 16 << 20);
    let store = MemStore::new();
    let file = pool.open_file(store.clone(), 0).unwrap();
    let (first, second) = (file.sample_error(), file.sample_error());
    let data = pattern(6, 0, MIB);
    file.write(&tenant, 0, &data).unwrap();
    store.fail_writes.store(5, Ordering::Relaxed);
    assert!(matches!(file.fsync(true, &first), Err(FileError::Writeback(5))));
    assert!(read_all(&file, &tenant) == data, "nothing is dropped");
    assert_eq!(file.nr_dirty(), 256);
    store.fail_writes.store(0, Ordering::Relaxed);
    assert!(matches!(file.fsync(true, &second), Err(FileError::Writeback(5))));
    file.fsync(true, &first).unwrap();
    file.fsync(true, &second).unwrap();
    assert!(store.after_cut(|_| false) == data);
}

#[test]
fn pages_whose_durability_was_refused_become_dirty_again() {
    let pool = pool(32 << 20);
    let tenant = group(&pool, "a", 16 << 20);
    let store = MemStore::new();
    let file = pool.open_file(store.clone(), 0).unwrap();
    let cursor = file.sample_error();
    file.write(&tenant, 0, &pattern(7, 0, MIB)).unwrap();
    store.fail_syncs.store(28, Ordering::Relaxed);
    assert!(matches!(file.fsync(true, &cursor), Err(FileError::Writeback(28))));
    assert_eq!(file.nr_dirty(), 256);
    assert_eq!(tenant.stat_local(StatItem::FileUnstable), 0);
    store.fail_syncs.store(0, Ordering::Relaxed);
    file.fsync(true, &cursor).unwrap();
    assert!(file.is_stable());
    assert!(store.after_cut(|_| false) == pattern(7, 0, MIB));
}

#[test]
fn a_failed_fill_is_told_to_the_reader_and_leaves_nothing() {
    let pool = pool(32 << 20);
    let tenant = group(&pool, "a", 16 << 20);
    let store = MemStore::with(&pattern(8, 0, MIB));
    let file = pool.open_file(store.clone(), MIB as u64).unwrap();
    store.fail_reads.store(5, Ordering::Relaxed);
    assert!(file.read(&tenant, 0, 4096, &Readahead::new()).is_err());
    assert_eq!(file.nr_cached_pages(), 0);
    store.fail_reads.store(0, Ordering::Relaxed);
    assert!(read_all(&file, &tenant) == pattern(8, 0, MIB));
}

#[test]
fn short_writes_of_the_store_are_continued() {
    let pool = pool(32 << 20);
    let tenant = group(&pool, "a", 16 << 20);
    let store = MemStore::new();
    store.short_writes.store(true, Ordering::Relaxed);
    let file = pool.open_file(store.clone(), 0).unwrap();
    file.write(&tenant, 10, &pattern(9, 10, 50_000)).unwrap();
    file.fsync(false, &file.sample_error()).unwrap();
    assert!(store.live()[10..] == pattern(9, 10, 50_000));
}

#[test]
fn truncation_and_holes_read_as_zeroes() {
    let pool = pool(32 << 20);
    let tenant = group(&pool, "a", 16 << 20);
    let store = MemStore::new();
    let file = pool.open_file(store.clone(), 0).unwrap();
    file.write(&tenant, 0, &pattern(10, 0, 100_000)).unwrap();
    file.set_len(5000).unwrap();
    file.set_len(20_000).unwrap();
    let mut expected = pattern(10, 0, 5000);
    expected.resize(20_000, 0);
    assert!(read_all(&file, &tenant) == expected);
    file.write(&tenant, 8192, &pattern(11, 8192, 8192)).unwrap();
    file.zero_range(&tenant, 9000, 6000, || Ok(())).unwrap();
    expected[8192..9000].copy_from_slice(&pattern(11, 8192, 808));
    expected[15_000..16_384].copy_from_slice(&pattern(11, 15_000, 1384));
    assert!(read_all(&file, &tenant) == expected);
}

#[test]
fn a_group_at_its_limit_takes_nothing_from_its_neighbour() {
    let pool = pool(64 << 20);
    let (a, b) = (group(&pool, "a", 4 << 20), group(&pool, "b", 16 << 20));
    let quiet = pool.open_file(MemStore::with(&pattern(13, 0, 8 * MIB)), 8 * MIB as u64).unwrap();
    read_all(&quiet, &b);
    b.drain_stocks();
    let held = b.usage_bytes();
    let loud = pool.open_file(MemStore::with(&pattern(14, 0, 40 * MIB)), 40 * MIB as u64).unwrap();
    read_all(&loud, &a);
    b.drain_stocks();
    assert_eq!(b.usage_bytes(), held);
    assert_eq!(quiet.nr_cached_pages(), 2048);
}

#[test]
fn a_thousand_groups_come_fill_and_go_and_leave_nothing() {
    let pool = pool(64 << 20);
    let before = pool.root().usage_bytes();
    for round in 0..1000u64 {
        let tenant = group(&pool, "t", 1 << 20);
        let file = pool.open_file(MemStore::with(&pattern(round, 0, 100_000)), 100_000).unwrap();
        assert!(read_all(&file, &tenant) == pattern(round, 0, 100_000));
        file.write(&tenant, 50_000, b"dirty").unwrap();
        pool.remove_group(&tenant).unwrap();
        drop(tenant);
        // Half of the files die after their group, with pages that are the parent's by now.
        file.fsync(true, &file.sample_error()).unwrap();
        drop(file);
    }
    wait_until(|| {
        // An empty list is kept until a walk looks for what it could give.
        pool.drop_caches();
        pool.root().drain_stocks();
        pool.root().usage_bytes() == before
    });
    for &item in
        [StatItem::InactiveFile, StatItem::ActiveFile, StatItem::FileDirty, StatItem::FileUnstable].iter()
    {
        assert_eq!(pool.root().stat_total(item), 0, "{item:?}");
        assert_eq!(pool.root().stat_local(item), 0, "{item:?}");
    }
    assert_eq!(pool.cache().nr_index_nodes(), 0);
}

#[test]
fn shadow_entries_are_bounded_by_the_pages_that_a_group_has() {
    let pool = pool(64 << 20);
    let tenant = group(&pool, "a", 2 << 20);
    // 64 MiB through a group of 2 MiB: 248 leaves of shadows, were they all kept.
    let len = 64u64 << 20;
    let file = pool.open_file(MemStore::with(&vec![7; len as usize]), len).unwrap();
    let readahead = Readahead::new();
    for at in (0..len).step_by(MIB) {
        file.read(&tenant, at, MIB, &readahead).unwrap();
        let pages =
            (tenant.stat_local(StatItem::InactiveFile) + tenant.stat_local(StatItem::ActiveFile)) / 4096;
        let leaves = pool.cache().nr_shadow_leaves() as i64;
        assert!(leaves <= pages / 8 + 32, "{leaves} leaves for {pages} pages");
    }
    assert!(tenant.usage_bytes() <= 2 << 20);
}

#[test]
fn pages_of_a_removed_group_can_be_reclaimed_from_its_parent() {
    let pool = pool(64 << 20);
    let parent = group(&pool, "p", 16 << 20);
    let child = pool.create_group(&parent, "c".as_ref()).unwrap();
    let file = pool.open_file(MemStore::with(&pattern(15, 0, 4 * MIB)), 4 * MIB as u64).unwrap();
    read_all(&file, &child);
    pool.remove_group(&child).unwrap();
    drop(child);
    assert!(parent.usage_bytes() >= 4 << 20);
    pool.force_empty(&parent);
    assert_eq!(parent.usage_bytes(), 0);
    assert_eq!(file.nr_cached_pages(), 0);
}

#[test]
fn the_flusher_writes_what_is_over_the_threshold_by_itself() {
    let pool = pool(32 << 20);
    let tenant = group(&pool, "a", 32 << 20);
    let store = MemStore::new();
    let file = pool.open_file(store.clone(), 0).unwrap();
    file.write(&tenant, 0, &pattern(16, 0, 5 * MIB)).unwrap();
    wait_until(|| {
        store.nr_syncs.load(Ordering::Relaxed) > 0
            && !pool.cache().dirty_limits().is_over_background(pool.root())
    });
    assert!(store.live().len() >= MIB);
    assert!(file.nr_unclean() < 1280);
}

#[test]
fn a_growing_file_under_flushes_reaches_the_store_whole() {
    let pool = pool(32 << 20);
    let tenant = group(&pool, "a", 4 << 20);
    let store = MemStore::new();
    let file = pool.open_file(store.clone(), 0).unwrap();
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                file.fsync(true, &file.sample_error()).unwrap();
            }
        });
        let mut at = 0u64;
        while at < 16 * MIB as u64 {
            at += file.write(&tenant, at, &pattern(21, at, 70_000)).unwrap() as u64;
        }
        done.store(true, Ordering::Relaxed);
    });
    file.fsync(true, &file.sample_error()).unwrap();
    let len = file.len() as usize;
    assert!(store.after_cut(|_| false) == pattern(21, 0, len));
}

#[test]
fn a_page_used_twice_outlives_a_stream() {
    let pool = pool(64 << 20);
    let tenant = group(&pool, "a", 8 << 20);
    let hot = pool.open_file(MemStore::with(&pattern(17, 0, 2 * MIB)), 2 * MIB as u64).unwrap();
    for _ in 0..4 {
        read_all(&hot, &tenant);
    }
    let cold = pool.open_file(MemStore::with(&pattern(18, 0, 30 * MIB)), 30 * MIB as u64).unwrap();
    for _ in 0..3 {
        let mut at = 0;
        let readahead = Readahead::new();
        while at < 30 * MIB as u64 {
            at += cold.read(&tenant, at, 256 << 10, &readahead).unwrap().len() as u64;
            let _ = hot.try_read(at % (2 * MIB as u64), 4096, &Readahead::new());
        }
    }
    let kept = hot.nr_cached_pages();
    assert!(kept > 400, "{kept} of 512 hot pages are left");
    assert!(tenant.stat_local(StatItem::PgActivate) > 0);
}

#[test]
fn a_hanging_store_holds_up_no_other() {
    let pool = pool(32 << 20);
    let (a, b) = (group(&pool, "a", 8 << 20), group(&pool, "b", 8 << 20));
    let (stuck, fine) = (MemStore::on_store(1), MemStore::on_store(2));
    let stuck_file = pool.open_file(stuck.clone(), 0).unwrap();
    let fine_file = pool.open_file(fine.clone(), 0).unwrap();
    stuck.hang();
    stuck_file.write(&a, 0, &pattern(19, 0, MIB)).unwrap();
    stuck_file.start_writeback();
    fine_file.write(&b, 0, &pattern(20, 0, MIB)).unwrap();
    fine_file.fsync(false, &fine_file.sample_error()).unwrap();
    let lost = pool.sync_all(Duration::from_millis(200));
    assert_eq!(lost.len(), 1);
    assert_eq!(lost[0].bytes, MIB as u64);
    stuck.release();
    assert!(pool.sync_all(Duration::from_secs(60)).is_empty());
    assert!(stuck.live() == pattern(19, 0, MIB));
}

fn wait_until(mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !condition() {
        assert!(Instant::now() < deadline, "condition not reached in time");
        std::thread::yield_now();
    }
}

#[test]
fn many_threads_on_shared_files_and_small_groups_lose_nothing() {
    let pool = pool(24 << 20);
    let files: Vec<_> = (0..3).map(|i| pool.open_file(MemStore::on_store(i), 0).unwrap()).collect();
    const REGION: usize = 512 << 10;
    std::thread::scope(|scope| {
        for thread in 0..6u64 {
            let (pool, files) = (&pool, &files);
            scope.spawn(move || {
                let tenant = group(pool, &format!("t{thread}"), 1 << 20);
                let mut state = thread + 1;
                let mut next = || {
                    state ^= state << 13;
                    state ^= state >> 7;
                    state ^= state << 17;
                    state
                };
                let mut mine: Vec<Vec<u8>> = vec![vec![0; REGION]; files.len()];
                for file in files {
                    file.write(&tenant, (thread as usize * REGION) as u64, &vec![0; REGION]).unwrap();
                }
                for round in 0..400u64 {
                    let which = next() as usize % files.len();
                    let at = next() as usize % (REGION - 1);
                    let len = (next() as usize % (64 << 10)).min(REGION - at).max(1);
                    let offset = (thread as usize * REGION + at) as u64;
                    match next() % 8 {
                        0..=3 => {
                            let data = pattern(round, offset, len);
                            files[which].write(&tenant, offset, &data).unwrap();
                            mine[which][at..at + len].copy_from_slice(&data);
                        }
                        4..=6 => {
                            let pages = files[which].read(&tenant, offset, len, &Readahead::new()).unwrap();
                            assert!(pages.to_vec() == mine[which][at..at + pages.len()]);
                        }
                        _ => files[which].fsync(true, &files[which].sample_error()).unwrap(),
                    }
                }
            });
        }
    });
    assert!(pool.sync_all(Duration::from_secs(60)).is_empty());
    for name in 0..6 {
        let tenant = pool.root().child(format!("t{name}").as_ref()).unwrap();
        pool.remove_group(&tenant).unwrap();
    }
    drop(files);
    for item in [StatItem::FileDirty, StatItem::FileWriteback, StatItem::FileUnstable] {
        assert_eq!(pool.root().stat_total(item), 0, "{item:?}");
    }
    wait_until(|| {
        pool.root().stat_total(StatItem::InactiveFile) + pool.root().stat_total(StatItem::ActiveFile) == 0
    });
    let _ = Arc::strong_count(&pool);
}
