//! Dirty limits of groups, on stores in memory: which files are written, which writers are slowed,
//! what is counted.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::common::{MemStore, Pool, group, pool};
use umemcg_arena::{Arena, Segment};
use umemcg_cache::{BackingStore, DirtyBound, DirtyThreshold, File, StoreId};
use umemcg_group::{Group, StatItem};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

fn limit(pool: &Pool, group: &Arc<Group>, foreground: u64, background: u64) {
    let limits = pool.cache().dirty_limits();
    limits.set_bound(group, DirtyThreshold::Foreground, DirtyBound::Bytes(foreground));
    limits.set_bound(group, DirtyThreshold::Background, DirtyBound::Bytes(background));
}

fn open(pool: &Pool, store: &Arc<MemStore>) -> Arc<File> {
    pool.open_file(Arc::clone(store) as _, 0).unwrap()
}

const STATES: [StatItem; 3] = [StatItem::FileDirty, StatItem::FileWriteback, StatItem::FileUnstable];

/// The least of several sums: what moves from one state to the next meanwhile is counted twice.
fn unclean(group: &Group) -> u64 {
    let sum = |_| STATES.iter().map(|&item| group.stat_total(item)).sum::<i64>();
    (0..5).map(sum).min().unwrap() as u64
}

fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !condition() {
        assert!(Instant::now() < deadline, "never: {what}");
        std::thread::park_timeout(Duration::from_millis(2));
    }
}

fn written(store: &MemStore) -> usize {
    store.live().len()
}

#[test]
fn a_group_over_its_limit_writes_its_own_files_only() {
    let pool = pool(64 * MIB);
    let (a, b) = (group(&pool, "a", u64::MAX), group(&pool, "b", u64::MAX));
    limit(&pool, &a, MIB, 512 * KIB);
    let (store_a, store_b) = (MemStore::on_store(1), MemStore::on_store(1));
    let (file_a, file_b) = (open(&pool, &store_a), open(&pool, &store_b));
    file_b.write(&b, 0, &vec![2; 3 * MIB as usize]).unwrap();
    for at in 0..64 {
        file_a.write(&a, at * 128 * KIB, &vec![1; 128 * KIB as usize]).unwrap();
        file_a.throttle(&a, 128 << 10);
        assert!(unclean(&a) <= MIB + 256 * KIB, "{}", unclean(&a));
    }
    until("a is below its background", || unclean(&a) <= 512 * KIB);
    assert!(written(&store_a) as u64 >= 7 * MIB);
    assert_eq!((written(&store_b), unclean(&b)), (0, 3 * MIB), "the neighbour's file was not touched");
    assert!(file_b.write_pause(&b, 128 << 10).is_none());
    assert!(pool.sync_all(Duration::from_secs(60)).is_empty());
    assert_eq!(unclean(pool.root()), 0);
}

#[test]
fn shared_files_are_written_for_a_group_without_its_own() {
    let pool = pool(64 * MIB);
    let (a, b) = (group(&pool, "a", u64::MAX), group(&pool, "b", u64::MAX));
    let stores = [MemStore::on_store(1), MemStore::on_store(1)];
    let [shared, others] = stores.each_ref().map(|store| open(&pool, store));
    // First b's, then a writes most of it.
    shared.write(&b, 0, &[1; 4096]).unwrap();
    others.write(&b, 0, &[1; 65536]).unwrap();
    shared.write(&a, 4096, &vec![2; MIB as usize]).unwrap();
    assert!(Arc::ptr_eq(&shared.dirty_group().unwrap(), &b));
    limit(&pool, &a, 512 * KIB, 256 * KIB);
    shared.throttle(&a, 1);
    until("a is below its background", || unclean(&a) <= 256 * KIB);
    assert_eq!(written(&stores[1]), 0, "a file that is b's alone stays");
}

#[test]
fn a_file_that_changes_hands_follows_its_writer() {
    let pool = pool(64 * MIB);
    let (a, b) = (group(&pool, "a", u64::MAX), group(&pool, "b", u64::MAX));
    // Slow enough for rounds to have a length.
    let store = Slow::new(MemStore::on_store(1), 8 * MIB);
    let file = pool.open_file(store as _, 0).unwrap();
    limit(&pool, &a, 512 * KIB, 256 * KIB);
    limit(&pool, &b, 512 * KIB, 256 * KIB);
    let mut at = 0;
    let mut write = |group: &Arc<Group>, done: &dyn Fn() -> bool| {
        let deadline = Instant::now() + Duration::from_secs(60);
        while !done() {
            assert!(Instant::now() < deadline);
            file.write(group, at, &[7; 65536]).unwrap();
            at += 65536;
            file.throttle(group, 65536);
        }
    };
    let is_of = |group: &Arc<Group>| file.dirty_group().is_some_and(|owner| Arc::ptr_eq(&owner, group));
    write(&a, &|| unclean(&a) > 256 * KIB);
    assert!(is_of(&a));
    write(&b, &|| is_of(&b));
}

#[test]
fn a_removed_groups_dirty_files_are_its_parents() {
    let pool = pool(64 * MIB);
    let parent = group(&pool, "parent", u64::MAX);
    let child = pool.create_group(&parent, "child".as_ref()).unwrap();
    let (store, neighbours) = (MemStore::on_store(1), MemStore::on_store(1));
    let (file, other) = (open(&pool, &store), open(&pool, &neighbours));
    file.write(&child, 0, &vec![1; MIB as usize]).unwrap();
    other.write(pool.root(), 0, &[1; 4096]).unwrap();
    pool.remove_group(&child).unwrap();
    assert_eq!(unclean(&parent), MIB);
    assert_eq!(parent.stat_local(StatItem::FileDirty), MIB as i64);
    limit(&pool, &parent, 512 * KIB, 256 * KIB);
    file.throttle(&parent, 1);
    until("the parent is below its background", || unclean(&parent) <= 256 * KIB);
    assert_eq!(written(&neighbours), 0);
    assert!(pool.sync_all(Duration::from_secs(60)).is_empty());
    assert_eq!((unclean(pool.root()), parent.stat_local(StatItem::FileDirty)), (0, 0));
}

#[test]
fn a_level_above_holds_its_children_and_no_sibling() {
    let pool = pool(64 * MIB);
    let parent = group(&pool, "parent", u64::MAX);
    let [x, y] = ["x", "y"].map(|name| pool.create_group(&parent, name.as_ref()).unwrap());
    let beside = group(&pool, "beside", u64::MAX);
    limit(&pool, &parent, MIB, 512 * KIB);
    let store = MemStore::on_store(1);
    store.hang();
    let file = open(&pool, &store);
    file.write(&x, 0, &vec![1; MIB as usize]).unwrap();
    let mut pause = file.write_pause(&y, 4096).expect("its parent is at its limit");
    assert!(pause.remaining().unwrap() <= Duration::from_millis(200));
    assert!(file.write_pause(&x, 4096).is_some());
    assert!(file.write_pause(&beside, 4096).is_none());
    store.release();
    until("the writer is not held any more", || pause.remaining().is_none());
}

#[test]
fn a_writer_held_by_a_hanging_store_can_be_killed() {
    let pool = pool(64 * MIB);
    let a = group(&pool, "a", u64::MAX);
    limit(&pool, &a, MIB, 512 * KIB);
    let (hangs, works) = (MemStore::on_store(1), MemStore::on_store(2));
    hangs.hang();
    let (file, other) = (open(&pool, &hangs), open(&pool, &works));
    file.write(&a, 0, &vec![1; 2 * MIB as usize]).unwrap();
    let killed = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| file.throttle_unless(&a, 4096, &|| killed.load(Ordering::Relaxed)));
        until("it is stalled", || umemcg_reclaim::stall::pressure(&a).some.total > Duration::ZERO);
        for at in 0..100 {
            other.write(&a, at * 64 * KIB, &[2; 65536]).unwrap();
            other.throttle(&a, 65536);
        }
        assert!(!writer.is_finished());
        killed.store(true, Ordering::Relaxed);
    });
    hangs.release();
    assert!(pool.sync_all(Duration::from_secs(60)).is_empty());
}

#[test]
fn a_writer_at_its_limit_is_told_that_the_store_is_full() {
    const ENOSPC: u64 = 28;
    let pool = pool(64 * MIB);
    let [a, b] = ["a", "b"].map(|name| group(&pool, name, u64::MAX));
    limit(&pool, &a, MIB, 512 * KIB);
    let store = MemStore::on_store(1);
    store.fail_writes.store(ENOSPC, Ordering::Relaxed);
    let file = open(&pool, &store);
    let (tell, told) = std::sync::mpsc::channel();
    let (writer, writers) = (Arc::clone(&file), Arc::clone(&a));
    std::thread::spawn(move || {
        let mut at = 0;
        let error = loop {
            match writer.write(&writers, at, &[7; 65536]) {
                Ok(nr) => at += nr as u64,
                Err(error) => break error,
            }
            writer.throttle(&writers, 65536);
        };
        let _ = tell.send((at, error));
    });
    let (at, error) = told.recv_timeout(Duration::from_secs(60)).expect("the writer waits");
    assert!(
        matches!(&error, umemcg_cache::FileError::Store(error) if error.raw_os_error() == Some(28)),
        "{error}"
    );
    assert!(unclean(&a) == at && at <= 2 * MIB, "{at}, {}", unclean(&a));
    assert!(file.try_write(&a, 0, &[8; 4096]).is_none(), "nor does it slip by");
    file.write(&b, 0, &[7; 4096]).expect("a group below its limit goes on");
    store.fail_writes.store(0, Ordering::Relaxed);
    until("the store has everything", || unclean(&a) == 0);
    file.write(&a, at, &[7; 65536]).unwrap();
    assert!(pool.sync_all(Duration::from_secs(60)).is_empty());
    assert!(store.live() == vec![7; at as usize + 65536]);
}

#[test]
fn dirty_data_on_another_store_does_not_slow_a_group() {
    // So large that the pool itself wants nothing written.
    let pool = pool(256 * MIB);
    let (a, b) = (group(&pool, "a", u64::MAX), group(&pool, "b", u64::MAX));
    limit(&pool, &a, MIB, 512 * KIB);
    limit(&pool, &b, 32 * MIB, 31 * MIB);
    let (hangs, works) = (MemStore::on_store(1), MemStore::on_store(2));
    hangs.hang();
    let [stuck, neighbours] = [&hangs, &works].map(|store| open(&pool, store));
    let file = pool.open_file(MemStore::on_store(2) as _, 0).unwrap();
    stuck.write(&a, 0, &vec![1; 2 * MIB as usize]).unwrap();
    neighbours.write(&b, 0, &vec![2; 4 * MIB as usize]).unwrap();
    file.write(&a, 0, &[3; 4096]).unwrap();
    assert!(unclean(&a) > MIB && unclean(&b) == 4 * MIB);
    assert!(file.write_pause(&a, 4096).is_none(), "a has next to nothing there");
    assert!(stuck.write_pause(&a, 4096).is_some());
    // Pages count for the group that wrote them, in a file of another group, too.
    works.hang();
    neighbours.write(&a, 4 * MIB, &[4; 4096]).unwrap();
    assert!(file.write_pause(&a, 4096).is_none(), "a has two pages there");
    neighbours.write(&a, 4 * MIB, &vec![4; 256 * KIB as usize]).unwrap();
    assert!(file.write_pause(&a, 4096).is_some(), "more than an eighth of its threshold");
    [&hangs, &works].into_iter().for_each(|store| store.release());
    assert!(pool.sync_all(Duration::from_secs(60)).is_empty());
}

/// Opens a file of 16 MiB whose clean pages `payer` pays for, and lets its store hang.
fn paid_by(pool: &Pool, payer: &Arc<Group>, store: &Arc<MemStore>) -> Arc<File> {
    let file = open(pool, store);
    file.write(payer, 0, &vec![1; 16 * MIB as usize]).unwrap();
    assert!(pool.sync_all(Duration::from_secs(60)).is_empty());
    limit(pool, payer, 8 * MIB, 4 * MIB);
    store.hang();
    file
}

#[test]
fn a_group_does_not_wait_for_what_others_dirty_of_its_pages() {
    let pool = pool(256 * MIB);
    let [a, b, c] = ["a", "b", "c"].map(|name| group(&pool, name, u64::MAX));
    let store = MemStore::on_store(1);
    let (shared, own) = (paid_by(&pool, &b, &store), open(&pool, &MemStore::on_store(1)));
    let piece = vec![2; 64 * KIB as usize];
    let rewrite = |at: u64| {
        shared.write(&a, at * 64 * KIB, &piece).unwrap();
        shared.write_pause(&a, piece.len())
    };
    let mut pause = (0..15 * 16).find_map(rewrite).expect("a waits for b's dirty room");
    assert!((4 * MIB..8 * MIB).contains(&unclean(&b)), "{}", unclean(&b));
    assert_eq!(unclean(&a), 0);
    for at in 0..20 {
        own.write(&b, at * 4096, &[3; 4096]).unwrap();
        assert!(own.write_pause(&b, 4096).is_none(), "b waits for a");
    }
    shared.write(&c, 15 * MIB, &piece).unwrap();
    assert!(shared.write_pause(&c, piece.len()).is_none(), "c queues behind a");
    store.release();
    until("a goes on", || pause.remaining().is_none());
    assert!(pool.sync_all(Duration::from_secs(60)).is_empty());
}

#[test]
fn killing_the_writer_or_removing_the_payer_ends_a_hold() {
    let pool = pool(256 * MIB);
    let [a, b] = ["a", "b"].map(|name| group(&pool, name, u64::MAX));
    let store = MemStore::on_store(1);
    let shared = paid_by(&pool, &b, &store);
    shared.write(&a, 0, &vec![2; 9 * MIB as usize]).unwrap();
    assert!(unclean(&b) > 8 * MIB && unclean(&a) == 0);
    let mut pause = shared.write_pause(&a, 4096).expect("b is at its limit");
    assert!(pause.remaining().is_some());
    shared.write(&a, 9 * MIB, &[2; 4096]).unwrap();
    let nr_asked = std::cell::Cell::new(0);
    let is_killed = || nr_asked.replace(nr_asked.get() + 1) == 2;
    shared.throttle_unless(&a, 4096, &is_killed);
    assert_eq!(nr_asked.get(), 3, "it was held until it was killed");
    pool.remove_group(&b).unwrap();
    assert!(pause.remaining().is_none(), "the pages are the root's");
    store.release();
    assert!(pool.sync_all(Duration::from_secs(60)).is_empty());
}

/// A store that takes this many bytes a second.
#[derive(Debug)]
struct Slow {
    below: Arc<MemStore>,
    rate: u64,
    free_at: parking_lot::Mutex<Instant>,
}

impl Slow {
    fn new(below: Arc<MemStore>, rate: u64) -> Arc<Self> {
        Arc::new(Self { below, rate, free_at: parking_lot::Mutex::new(Instant::now()) })
    }
}

impl BackingStore for Slow {
    fn store_id(&self) -> StoreId {
        self.below.store_id()
    }
    fn read_at(&self, arena: &Arena, segments: &[Segment], offset: u64) -> io::Result<usize> {
        self.below.read_at(arena, segments, offset)
    }
    fn write_at(&self, arena: &Arena, segments: &[Segment], offset: u64) -> io::Result<usize> {
        let written = self.below.write_at(arena, segments, offset)?;
        let due = {
            let mut free_at = self.free_at.lock();
            let cost = Duration::from_secs_f64(written as f64 / self.rate as f64);
            *free_at = (*free_at).max(Instant::now()) + cost;
            *free_at
        };
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        Ok(written)
    }
    fn sync_range(&self, offset: u64, len: u64) -> io::Result<()> {
        self.below.sync_range(offset, len)
    }
    fn sync(&self, data_only: bool) -> io::Result<()> {
        self.below.sync(data_only)
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        self.below.set_len(len)
    }
}

#[test]
fn a_writer_settles_between_free_run_and_limit_at_store_speed() {
    let pool = pool(64 * MIB);
    let a = group(&pool, "a", u64::MAX);
    limit(&pool, &a, 4 * MIB, 2 * MIB);
    let store = Slow::new(MemStore::on_store(1), 16 * MIB);
    let file = pool.open_file(store.clone() as _, 0).unwrap();
    let (mut most, mut nr_dry, start) = (0, 0, Instant::now());
    for at in 0..384 {
        file.write(&a, at * 64 * KIB, &[1; 65536]).unwrap();
        file.throttle(&a, 65536);
        most = most.max(unclean(&a));
        // Above the free run point from some time on, but for a moment after this thread was not
        // run, while the store was.
        nr_dry += u32::from(at >= 192 && unclean(&a) < MIB);
    }
    println!("24 MiB in {:?}, at most {} KiB dirty", start.elapsed(), most / KIB);
    assert!(nr_dry < 192 / 2, "it ran dry {nr_dry} times");
    assert!(most <= 4 * MIB + 128 * KIB, "{most}");
    let sent = store.below.live().len() as u64;
    assert!(sent + 4 * MIB + 128 * KIB >= 24 * MIB, "no faster than the store");
}

#[test]
fn counts_are_exact_after_anything_happens_to_dirty_pages() {
    let pool = pool(24 * MIB);
    let parent = group(&pool, "parent", u64::MAX);
    limit(&pool, &parent, 2 * MIB, MIB);
    let stores = [1, 1, 2].map(MemStore::on_store);
    let files = stores.each_ref().map(|store| open(&pool, store));
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..3u64)
            .map(|nr| {
                let (pool, parent, files) = (&pool, &parent, &files);
                scope.spawn(move || {
                    let mut random = nr + 1;
                    let mut below = |bound: u64| {
                        random = random
                            .wrapping_mul(6_364_136_223_846_793_005)
                            .wrapping_add(1_442_695_040_888_963_407);
                        (random >> 33) % bound
                    };
                    for round in 0..12 {
                        let name = format!("g{nr}-{round}");
                        let group = pool.create_group(parent, name.as_ref()).unwrap();
                        for _ in 0..60 {
                            let file = &files[below(3) as usize];
                            let (at, len) = (below(3 * MIB), 1 + below(100 * KIB) as usize);
                            match below(12) {
                                0 => file.set_len(at).unwrap(),
                                1 => drop(file.write_back()),
                                2 => drop(file.fsync(true, &file.sample_error())),
                                _ => {
                                    // A failing store refuses what goes past the cache.
                                    let _ = file.write(&group, at, &vec![nr as u8; len]);
                                    file.throttle_unless(&group, len, &|| true);
                                }
                            }
                        }
                        pool.remove_group(&group).unwrap();
                        // Late changes move themselves.
                        until("it is the parent's", || STATES.map(|item| group.stat_local(item)) == [0; 3]);
                    }
                })
            })
            .collect();
        scope.spawn(|| {
            let mut fails = false;
            while !over.load(Ordering::Relaxed) {
                pool.cache().empty_sparse_blocks(64);
                fails = !fails;
                let errno = if fails { 5 } else { 0 };
                stores[0].fail_writes.store(errno, Ordering::Relaxed);
                stores[2].fail_syncs.store(errno, Ordering::Relaxed);
                pool.reclaim(&parent, 64 * KIB);
                std::thread::yield_now();
            }
        });
        for writer in writers {
            writer.join().unwrap();
        }
        over.store(true, Ordering::Relaxed);
    });
    for store in &stores {
        store.hang();
        store.fail_writes.store(0, Ordering::Relaxed);
        store.fail_syncs.store(0, Ordering::Relaxed);
    }
    let pages = || files.iter().map(|file| file.nr_unclean()).sum::<u64>();
    until("counts and marks agree", || {
        pages() * 4096 == unclean(pool.root()) && unclean(&parent) == unclean(pool.root())
    });
    stores.iter().for_each(|store| store.release());
    assert!(pool.sync_all(Duration::from_secs(60)).is_empty());
    for item in STATES {
        assert_eq!((pool.root().stat_total(item), parent.stat_local(item)), (0, 0), "{item:?}");
    }
    assert_eq!(pool.cache().dirty_limits().nr_unclean(), 0);
}

/// Returns the steps of removing a group that has this many dirty files: locks, and files looked
/// at.
#[cfg(debug_assertions)]
fn nr_steps_of_removal(nr_files: u64) -> u64 {
    let pool = pool(512 * MIB);
    let parent = group(&pool, "p", u64::MAX);
    let child = pool.create_group(&parent, "c".as_ref()).unwrap();
    let store = MemStore::on_store(1);
    // The parent has some of its own, behind which those of the child go.
    let files: Vec<_> = (0..nr_files + 1).map(|_| open(&pool, &store)).collect();
    for (n, file) in files.iter().enumerate() {
        file.write(if n == 0 { &parent } else { &child }, 0, b"dirty").unwrap();
    }
    assert!(files.iter().all(|file| file.nr_dirty() == 1));
    let before = umemcg_base::held::nr_steps();
    pool.remove_group(&child).unwrap();
    let nr_steps = umemcg_base::held::nr_steps() - before;
    files.iter().for_each(|file| file.fsync(true, &file.sample_error()).unwrap());
    assert_eq!(unclean(pool.root()), 0);
    nr_steps
}

#[cfg(debug_assertions)]
#[test]
fn a_removed_group_hands_any_number_of_dirty_files_over_at_once() {
    let (few, many) = (nr_steps_of_removal(10), nr_steps_of_removal(10_000));
    assert!(many <= few + 4, "{few} steps with 10 files, {many} with 10,000");
}
