//! Data I/O of groups that have no room for a page: it continues, nothing waits in a ring, and
//! nothing stays.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use crate::common::{MemStore, Pool, group, pattern, pool};
use umemcg_cache::{File, FileError, PageQuota, Readahead};
use umemcg_group::{Group, StatItem};

const MIB: usize = 1 << 20;
/// Longer than anything here takes on a busy machine.
const LONG: Duration = Duration::from_secs(60);

/// Runs the threads to their end, which must come.
fn run_all(threads: Vec<Box<dyn FnOnce() + Send>>) {
    let (ended, ends) = mpsc::channel();
    let nr = threads.len();
    for act in threads {
        let ended = ended.clone();
        std::thread::spawn(move || {
            act();
            let _ = ended.send(());
        });
    }
    for _ in 0..nr {
        ends.recv_timeout(LONG).expect("a thread waits for ever, or has failed");
    }
}

fn reads(file: &Arc<File>, tenant: &Arc<Group>) -> Box<dyn FnOnce() + Send> {
    let (file, tenant) = (Arc::clone(file), Arc::clone(tenant));
    Box::new(move || {
        for _ in 0..300 {
            let pages = file.read(&tenant, 0, MIB, &Readahead::new()).unwrap();
            assert_eq!(pages.len(), MIB, "a whole request");
        }
    })
}

fn writes(file: &Arc<File>, tenant: &Arc<Group>, at: u64) -> Box<dyn FnOnce() + Send> {
    let (file, tenant) = (Arc::clone(file), Arc::clone(tenant));
    Box::new(move || {
        for _ in 0..3000 {
            assert_eq!(file.write(&tenant, at, &[7; 4096]).unwrap(), 4096);
        }
    })
}

#[test]
fn readers_and_writers_of_one_file_without_room_go_on() {
    let pool = pool(64 << 20);
    let tenant = group(&pool, "none", 0);
    let file = pool.open_file(MemStore::with(&pattern(1, 0, 4 * MIB)), 4 * MIB as u64).unwrap();
    let two_mib = 2 << 20;
    run_all(vec![
        reads(&file, &tenant),
        reads(&file, &tenant),
        writes(&file, &tenant, two_mib),
        writes(&file, &tenant, two_mib + 8192),
    ]);
    assert_eq!((tenant.usage_bytes(), file.nr_cached_pages()), (0, 0), "nothing is kept");
    assert!(tenant.stat_local(StatItem::UncachedIo) > 0);
}

#[derive(Debug)]
struct Unlimited;

impl PageQuota for Unlimited {
    fn take_up_to(&self, nr: u64) -> u64 {
        nr
    }
    fn give(&self, _nr: u64) {}
}

#[test]
fn a_group_full_of_what_lives_in_memory_reads_and_writes() {
    let pool = pool(64 << 20);
    let tenant = group(&pool, "full", 8 << 20);
    let memory = pool.cache().open_memory_file(Arc::new(Unlimited), 0).unwrap();
    let mut len = 0;
    loop {
        match memory.write(&tenant, len, &[1; 4096]) {
            Ok(nr) => len += nr as u64,
            Err(FileError::NoSpace) => break,
            Err(other) => panic!("{other}"),
        }
    }
    let file = pool.open_file(MemStore::with(&pattern(2, 0, 4 * MIB)), 4 * MIB as u64).unwrap();
    run_all(vec![reads(&file, &tenant), writes(&file, &tenant, 2 << 20), writes(&file, &tenant, 3 << 20)]);
    let beyond = tenant.usage_bytes().saturating_sub(8 << 20);
    assert_eq!(beyond, 0, "nothing stays beyond the limit");
}

#[test]
fn what_is_beyond_a_limit_is_a_request_at_most() {
    let pool = pool(64 << 20);
    let tenant = group(&pool, "none", 0);
    let store = MemStore::with(&pattern(3, 0, 8 * MIB));
    let file = pool.open_file(store.clone(), 8 * MIB as u64).unwrap();
    store.hang();
    let reader = std::thread::spawn({
        let (file, tenant) = (Arc::clone(&file), Arc::clone(&tenant));
        move || file.read(&tenant, 0, 8 * MIB, &Readahead::new()).unwrap().to_vec()
    });
    let (mut most, deadline) = (0, std::time::Instant::now() + LONG);
    while most < MIB as u64 {
        most = most.max(tenant.usage_bytes());
        assert!(std::time::Instant::now() < deadline, "{most} bytes in flight");
        std::thread::yield_now();
    }
    // Pages and the index nodes that lead to them.
    assert!(tenant.usage_bytes() <= (MIB + MIB / 32) as u64, "{}", tenant.usage_bytes());
    store.release();
    assert!(reader.join().unwrap() == pattern(3, 0, MIB), "clipped to what one request may have");
    assert_eq!(tenant.usage_bytes(), 0);
}

#[test]
fn a_sync_confirms_what_went_past_the_cache() {
    let pool = pool(64 << 20);
    let tenant = group(&pool, "none", 0);
    let store = MemStore::new();
    let file = pool.open_file(store.clone(), 0).unwrap();
    let data = pattern(4, 0, 100_000);
    assert_eq!(file.write(&tenant, 0, &data).unwrap(), data.len());
    assert!(store.live() == data && !file.is_stable());
    assert!(pool.sync_all(LONG).is_empty());
    assert!(store.after_cut(|_| false) == data && file.is_stable());
}

/// The file, and its length before.
fn with_bad_tail(pool: &Pool) -> (Arc<File>, Arc<MemStore>) {
    let store = MemStore::with(&pattern(5, 0, 100));
    let file = pool.open_file(store.clone(), 100).unwrap();
    *store.bad_reads.lock() = 0..100;
    (file, store)
}

#[test]
fn a_refused_append_leaves_the_length_as_it_was() {
    let pool = pool(64 << 20);
    let tenant = group(&pool, "a", 8 << 20);
    let (file, store) = with_bad_tail(&pool);
    assert!(matches!(file.append(&tenant, b"0123456789"), Err(FileError::Store(_))));
    assert_eq!(file.len(), 100, "EIO on the page that it begins in");
    *store.bad_reads.lock() = 0..0;
    assert_eq!(file.append(&tenant, b"0123456789").unwrap(), (100, 10));
    let memory = pool.cache().open_memory_file(Arc::new(Unlimited), 0).unwrap();
    let none = group(&pool, "none", 0);
    for _ in 0..4 {
        assert!(matches!(memory.append(&none, &[1; 65536]), Err(FileError::NoSpace)));
    }
    assert_eq!(memory.len(), 0, "ENOSPC");
}

#[test]
fn a_write_that_the_store_takes_in_part_is_short() {
    let pool = pool(64 << 20);
    let none = group(&pool, "none", 0);
    let store = MemStore::new();
    let file = pool.open_file(store.clone(), 0).unwrap();
    // It takes a page, and is full from the second call on.
    store.short_writes.store(true, Ordering::Relaxed);
    let (of_hook, has_taken) = (Arc::downgrade(&store), AtomicBool::new(false));
    store.on_call.set(move || {
        if has_taken.swap(true, Ordering::Relaxed) {
            *of_hook.upgrade().unwrap().bad.lock() = 0..u64::MAX;
        }
    });
    let data = pattern(8, 0, 8 * 4096);
    assert_eq!(file.write(&none, 0, &data).unwrap(), 4096);
    assert_eq!(file.len(), 4096, "what the store has taken is the file's");
    assert!(store.live() == data[..4096]);
    assert!(matches!(file.write(&none, 4096, &data), Err(FileError::Store(_))), "nothing at all");
    assert_eq!(file.len(), 4096);
}

#[test]
fn a_bad_sector_fails_no_read_before_it() {
    let pool = pool(64 << 20);
    let tenant = group(&pool, "a", 32 << 20);
    let data = pattern(6, 0, 2 * MIB);
    let store = MemStore::with(&data);
    let file = pool.open_file(store.clone(), 2 * MIB as u64).unwrap();
    *store.bad_reads.lock() = 600_000..600_001;
    let readahead = Readahead::new();
    let bad_page = 600_000 / 4096 * 4096;
    let mut got = Vec::new();
    let error = loop {
        match file.read(&tenant, got.len() as u64, 64 << 10, &readahead) {
            Ok(pages) => got.extend(pages.to_vec()),
            Err(error) => break error,
        }
    };
    assert!(matches!(error, FileError::Store(_)), "{error}");
    assert!(got == data[..bad_page], "{} of {bad_page} bytes before the bad page", got.len());
    let behind = bad_page as u64 + 4096;
    let pages = file.read(&tenant, behind, MIB, &Readahead::new()).unwrap();
    assert!(pages.to_vec() == data[behind as usize..][..MIB]);
}

#[test]
fn a_range_across_the_widest_fork_of_the_index_fits() {
    let pool = pool(64 << 20);
    let tenant = group(&pool, "a", 32 << 20);
    let file = pool.cache().open_memory_file(Arc::new(Unlimited), 0).unwrap();
    file.write(&tenant, 0, &[1; 10]).unwrap();
    // Every level of the tree has two nodes for it, below a root that grew by eight levels.
    let at = (1 << 60) - 4096;
    assert_eq!(file.write(&tenant, at, &[2; 8192]).unwrap(), 8192);
    assert_eq!(file.read(&tenant, at, 8192, &Readahead::new()).unwrap().to_vec(), [2; 8192]);
    drop(file);
    assert_eq!(pool.arena().nr_allocated(), 1, "the page of holes");
}

#[test]
fn a_sync_ends_while_the_file_grows() {
    let pool = pool(256 << 20);
    let tenant = group(&pool, "a", 200 << 20);
    let store = MemStore::new();
    let file = pool.open_file(store.clone(), 0).unwrap();
    // Backwards, so that what is appended is no long sequence, which would be written behind.
    file.write(&tenant, 2 << 20, &pattern(7, 2 << 20, 2 * MIB)).unwrap();
    file.write(&tenant, 0, &pattern(7, 0, 2 * MIB)).unwrap();
    // At each write of the store another thread appends as much again, 64 times at most.
    let (asked, asks) = mpsc::channel::<mpsc::Sender<()>>();
    let appender = std::thread::spawn({
        let (file, tenant) = (Arc::clone(&file), Arc::clone(&tenant));
        move || {
            for done in asks.iter().take(64) {
                file.append(&tenant, &[8; MIB]).unwrap();
                let _ = done.send(());
            }
        }
    });
    let is_syncing = Arc::new(AtomicBool::new(true));
    store.on_call.set({
        let (is_syncing, asked) = (Arc::clone(&is_syncing), parking_lot::Mutex::new(asked));
        move || {
            let (done, is_done) = mpsc::channel();
            if is_syncing.load(Ordering::Relaxed) && asked.lock().send(done).is_ok() {
                let _ = is_done.recv_timeout(LONG);
            }
        }
    });
    file.fsync(true, &file.sample_error()).unwrap();
    is_syncing.store(false, Ordering::Relaxed);
    let written = store.live().len();
    assert_eq!(written, 4 * MIB, "what was dirty when it began");
    store.on_call.clear();
    appender.join().unwrap();
}
