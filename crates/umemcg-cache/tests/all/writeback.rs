//! The order in which a store is written and asked to confirm: it has always work, and is asked
//! for many small files at once.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::common::{MemStore, Pool, group, pattern, pool};
use parking_lot::Mutex;
use umemcg_arena::{Arena, Segment};
use umemcg_cache::{BackingStore, FILE_LEN_MAX, File, StoreId};
use umemcg_reclaim::PageOwner;

const MIB: u64 = 1 << 20;
const NR_FILES: usize = 10;

/// A call of a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Call {
    Wrote { bytes: u64 },
    Confirmed { offset: u64, len: u64 },
}

/// The calls of all files of a store, in order.
type Calls = Arc<Mutex<Vec<Call>>>;

/// A file of a store that notes the calls of all its files.
#[derive(Debug)]
struct Logged {
    below: Arc<MemStore>,
    calls: Calls,
}

impl BackingStore for Logged {
    fn store_id(&self) -> StoreId {
        self.below.store_id()
    }
    fn read_at(&self, arena: &Arena, segments: &[Segment], offset: u64) -> io::Result<usize> {
        self.below.read_at(arena, segments, offset)
    }
    fn write_at(&self, arena: &Arena, segments: &[Segment], offset: u64) -> io::Result<usize> {
        let written = self.below.write_at(arena, segments, offset)?;
        self.calls.lock().push(Call::Wrote { bytes: written as u64 });
        Ok(written)
    }
    fn sync_range(&self, offset: u64, len: u64) -> io::Result<()> {
        self.calls.lock().push(Call::Confirmed { offset, len });
        self.below.sync_range(offset, len)
    }
    fn sync(&self, data_only: bool) -> io::Result<()> {
        self.below.sync(data_only)
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        self.below.set_len(len)
    }
}

fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !condition() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Small dirty files of one store, the first of which the flusher is writing: the store hangs.
struct Ground {
    pool: Arc<Pool>,
    stores: Vec<Arc<MemStore>>,
    files: Vec<Arc<File>>,
    calls: Calls,
}

impl Ground {
    fn new() -> Self {
        let pool = pool(64 * MIB);
        let tenant = group(&pool, "t", u64::MAX);
        let calls = Arc::default();
        let stores: Vec<_> = (0..NR_FILES).map(|_| MemStore::on_store(1)).collect();
        let open = |below: &Arc<MemStore>| {
            let store = Logged { below: Arc::clone(below), calls: Arc::clone(&calls) };
            pool.open_file(Arc::new(store), 0).unwrap()
        };
        let files: Vec<_> = stores.iter().map(open).collect();
        for (seed, file) in files.iter().enumerate() {
            file.write(&tenant, 0, &pattern(seed as u64, 0, 5000)).unwrap();
        }
        stores[0].hang();
        files[0].start_writeback();
        until("the flusher writes the first file", || files[0].nr_unclean() > 0 && has_begun(&stores[0]));
        for file in &files {
            file.start_writeback();
        }
        Self { pool, stores, files, calls }
    }
}

/// Returns whether a call of a store that hangs has begun.
fn has_begun(store: &MemStore) -> bool {
    store.nr_waiting.load(Ordering::Relaxed) > 0
}

#[test]
fn small_files_are_confirmed_together() {
    let Ground { pool: _pool, stores, files, calls } = Ground::new();
    stores[0].release();
    until("all files are durable", || files.iter().all(|file| file.nr_unclean() == 0));
    let calls = calls.lock();
    let first = calls.iter().position(|call| matches!(call, Call::Confirmed { .. })).unwrap();
    assert_eq!(first, NR_FILES, "{calls:?}");
    assert_eq!(calls.len(), 2 * NR_FILES, "each is confirmed once: {calls:?}");
}

#[test]
fn a_range_to_confirm_fits_the_offsets_of_system_calls() {
    let Ground { pool: _pool, stores, files, calls } = Ground::new();
    stores[0].release();
    until("all files are durable", || files.iter().all(|file| file.nr_unclean() == 0));
    for call in calls.lock().iter() {
        let Call::Confirmed { offset, len } = *call else { continue };
        assert!(len > 0, "0 means to the end of the file for sync_file_range");
        assert!(offset.checked_add(len).is_some_and(|end| end <= FILE_LEN_MAX), "{call:?}");
    }
}

#[test]
fn a_file_that_is_not_confirmed_stays_dirty_alone() {
    let Ground { pool, stores, files, .. } = Ground::new();
    stores[4].fail_syncs.store(5, Ordering::Relaxed);
    stores[0].release();
    until("the others are durable", || files.iter().filter(|file| file.nr_unclean() == 0).count() == 9);
    assert!(files[4].nr_unclean() > 0);
    stores[4].fail_syncs.store(0, Ordering::Relaxed);
    assert!(pool.sync_all(Duration::from_secs(30)).is_empty());
    for (seed, store) in stores.iter().enumerate() {
        assert!(store.after_cut(|_| false) == pattern(seed as u64, 0, 5000), "{seed}");
    }
}

#[test]
fn a_store_that_hangs_with_many_files_holds_up_no_other() {
    let Ground { pool, stores, .. } = Ground::new();
    let tenant = group(&pool, "other", u64::MAX);
    let healthy = MemStore::on_store(2);
    let file = pool.open_file(healthy.clone(), 0).unwrap();
    file.write(&tenant, 0, &pattern(1, 0, 5000)).unwrap();
    file.start_writeback();
    until("the healthy store has it", || file.nr_unclean() == 0);
    stores[0].release();
}

#[test]
fn a_round_writes_what_a_removed_group_hands_over_meanwhile() {
    let pool = lazy_pool();
    let tenant = group(&pool, "t", u64::MAX);
    for parent in [&tenant, pool.root()] {
        let child = pool.create_group(parent, "child".as_ref()).unwrap();
        let stores = [MemStore::on_store(1), MemStore::on_store(1)];
        let [first, second] = stores.each_ref().map(|store| pool.open_file(store.clone(), 0).unwrap());
        first.write(parent, 0, &[1; 5000]).unwrap();
        second.write(&child, 0, &[2; 5000]).unwrap();
        stores[0].hang();
        pool.cache().start_writeback(parent);
        until("the flusher writes the parent's file", || has_begun(&stores[0]));
        pool.remove_group(&child).unwrap();
        stores[0].release();
        until("the child's file is durable", || second.nr_unclean() == 0);
    }
}

/// A file of 16 MiB that is dirty and not being written.
fn long_dirty_file() -> (Arc<Pool>, Arc<MemStore>, Arc<File>, Calls) {
    let pool = lazy_pool();
    let tenant = group(&pool, "t", u64::MAX);
    let calls: Calls = Arc::default();
    let below = MemStore::on_store(1);
    let store = Logged { below: Arc::clone(&below), calls: Arc::clone(&calls) };
    let file = pool.open_file(Arc::new(store), 0).unwrap();
    // Backwards, so that the flusher does not follow.
    for at in (0..16).rev().map(|at| at * MIB) {
        file.write(&tenant, at, &pattern(1, at, 1 << 20)).unwrap();
    }
    (pool, below, file, calls)
}

/// A pool so large that write-back does not start by itself.
fn lazy_pool() -> Arc<Pool> {
    let pool = pool(256 * MIB);
    pool.cache().dirty_limits().set_expire(Duration::MAX);
    pool
}

/// A pool whose flushers look at nothing by themselves.
fn pool_without_rounds() -> Arc<Pool> {
    let pool = lazy_pool();
    pool.cache().dirty_limits().set_interval(Duration::ZERO);
    pool
}

#[test]
fn a_synced_file_goes_with_its_last_user() {
    let pool = pool_without_rounds();
    let tenant = group(&pool, "t", u64::MAX);
    let [synced, clean] = [1, 1].map(MemStore::on_store).map(|store| pool.open_file(store, 0).unwrap());
    for file in [&synced, &clean] {
        file.write(&tenant, 0, &[1; 5000]).unwrap();
    }
    clean.fsync(false, &clean.sample_error()).unwrap();
    assert!(pool.sync_all(Duration::from_secs(30)).is_empty());
    let files = [&synced, &clean].map(Arc::downgrade);
    drop((synced, clean));
    until("the flusher has let go of them", || files.iter().all(|file| file.upgrade().is_none()));
}

#[test]
fn a_dirty_file_does_not_outlive_the_engine() {
    let pool = pool_without_rounds();
    let tenant = group(&pool, "t", u64::MAX);
    let [first, second] = [1, 1].map(MemStore::on_store).map(|store| pool.open_file(store, 0).unwrap());
    first.write(&tenant, 0, &[1; 5000]).unwrap();
    drop(pool);
    second.write(&tenant, 0, &[1; 5000]).unwrap();
    let files = [&first, &second].map(Arc::downgrade);
    drop((first, second));
    until("the flusher has let go of them", || files.iter().all(|file| file.upgrade().is_none()));
}

#[test]
fn a_long_sequential_write_is_written_behind() {
    let pool = lazy_pool();
    let tenant = group(&pool, "t", u64::MAX);
    let dirty = |pages: &mut dyn Iterator<Item = u64>| {
        let store = MemStore::on_store(1);
        let file = pool.open_file(store.clone(), 0).unwrap();
        for page in pages {
            file.write(&tenant, page * MIB, &pattern(1, page * MIB, 1 << 20)).unwrap();
        }
        (store, file)
    };
    let short = dirty(&mut (0..7));
    let scattered = dirty(&mut (0..9).rev());
    let (store, long) = dirty(&mut (0..8));
    until("the long file is in its store", || long.nr_unclean() == 0);
    assert!(store.after_cut(|_| false) == pattern(1, 0, 8 << 20));
    assert_eq!((short.1.nr_dirty(), scattered.1.nr_dirty()), (7 * 256, 9 * 256));
}

#[test]
fn the_next_piece_is_written_while_one_is_brought_to_the_device() {
    let (_pool, below, file, calls) = long_dirty_file();
    file.write_back().unwrap();
    assert!(below.after_cut(|_| false) == pattern(1, 0, 16 << 20));
    let (mut ahead, mut when_asked) = (0, Vec::new());
    for call in calls.lock().iter() {
        match *call {
            Call::Wrote { bytes } => ahead += bytes,
            Call::Confirmed { len, .. } => {
                when_asked.push(ahead / MIB);
                ahead -= len;
            }
        }
    }
    assert_eq!((when_asked, ahead), (vec![8, 8, 8, 4], 0));
}

#[test]
fn a_piece_that_is_not_confirmed_takes_the_next_one_with_it() {
    let (_pool, below, file, calls) = long_dirty_file();
    below.fail_syncs.store(5, Ordering::Relaxed);
    file.write_back().unwrap_err();
    below.fail_syncs.store(0, Ordering::Relaxed);
    calls.lock().clear();
    file.write_back().unwrap();
    let bytes = |call: &Call| if let Call::Wrote { bytes } = *call { bytes } else { 0 };
    assert_eq!(calls.lock().iter().map(bytes).sum::<u64>(), 16 * MIB, "all is written again");
}
