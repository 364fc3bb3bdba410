//! Sparse blocks are emptied while their pages are used: nothing is lost, comes back, or is
//! forgotten by reclaim.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::common::{MemStore, Pool, group, pattern, pool, read_all};
use umemcg_cache::{BackingStore, File, PageQuota, Readahead};
use umemcg_group::Group;

const PAGE: u64 = 4096;
/// Four blocks' worth, of which wide holes are punched: its own blocks are sparse.
const NR_PAGES: u64 = 2048;
const RUN: Duration = Duration::from_secs(3);
/// Longest that it continues because nothing has been emptied yet.
const RUN_MAX: Duration = Duration::from_secs(60);

#[derive(Debug)]
struct Unlimited;

impl PageQuota for Unlimited {
    fn take_up_to(&self, nr: u64) -> u64 {
        nr
    }
    fn give(&self, _nr: u64) {}
}

/// Random numbers from a seed.
struct Dice(u64);

impl Dice {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % end
    }
}

/// Files of which every third page stays, so that the pages of others lie in sparse blocks. They
/// come and go.
fn fragment(pool: &Pool, tenant: &Arc<Group>, dice: &mut Dice) {
    let len = 4 << 20;
    let file = pool.open_file(MemStore::with(&pattern(9, 0, len)), len as u64).unwrap();
    read_all(&file, tenant);
    for page in 0..len as u64 / PAGE {
        if dice.below(3) != 0 {
            file.zero_range(tenant, page * PAGE, PAGE, || Ok(())).unwrap();
        }
    }
}

/// One change or look at a random place, in the file and in the model.
fn step(
    dice: &mut Dice,
    file: &Arc<File>,
    store: Option<&MemStore>,
    tenant: &Arc<Group>,
    model: &mut Vec<u8>,
) {
    let at = dice.below(NR_PAGES * PAGE);
    let len = 1 + dice.below(3 * PAGE).min(NR_PAGES * PAGE - at - 1);
    match dice.below(8) {
        0..3 => {
            let data = pattern(dice.below(1 << 40), at, len as usize);
            // As the mount does: without sleeping if that is possible.
            let written = file.try_write(tenant, at, &data);
            let written = written.unwrap_or_else(|| file.write(tenant, at, &data).unwrap());
            assert_eq!(written as u64, len);
            model.resize(model.len().max((at + len) as usize), 0);
            model[at as usize..(at + len) as usize].copy_from_slice(&data);
        }
        3 => {
            let len = dice.below(400 * PAGE).min(NR_PAGES * PAGE - at - 1) + 1;
            let end = (at + len).min(file.len());
            let punch = || {
                let Some(store) = store else { return Ok(()) };
                store.punch(at, end.saturating_sub(at));
                // The cache forgets what it has there: what only it had must not make the store's
                // file shorter.
                if store.live().len() < file.len() as usize { store.set_len(file.len()) } else { Ok(()) }
            };
            file.zero_range(tenant, at, len, punch).unwrap();
            model[(at as usize).min(end as usize)..end as usize].fill(0);
        }
        4 if dice.below(16) == 0 => {
            file.set_len(at).unwrap();
            model.resize(at as usize, 0);
        }
        _ => {
            let pages = file.read(tenant, at, len as usize, &Readahead::new()).unwrap();
            let from = (at as usize).min(model.len());
            let to = (from + len as usize).min(model.len());
            assert!(pages.to_vec() == model[from..to], "{len} bytes at {at}");
        }
    }
}

fn change_while_blocks_are_emptied(open: impl Fn(&Pool) -> (Arc<File>, Option<Arc<MemStore>>)) {
    let pool = pool(32 << 20);
    let tenant = group(&pool, "a", 16 << 20);
    let (file, store) = open(&pool);
    let stop = AtomicBool::new(false);
    let mut model = Vec::new();
    let nr_moved = AtomicU64::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                let nr = pool.cache().empty_sparse_blocks(usize::MAX) as u64;
                nr_moved.fetch_add(nr, Ordering::Relaxed);
            }
        });
        scope.spawn(|| {
            let mut dice = Dice(0x1234_5678_9abc_def1);
            while !stop.load(Ordering::Relaxed) {
                fragment(&pool, &tenant, &mut dice);
            }
        });
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                let _ = file.fsync(true, &file.sample_error());
                pool.cache().reclaimer().reclaim(&tenant, 64, umemcg_reclaim::Reason::Proactive);
            }
        });
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let mut dice = Dice(0x9e37_79b9_7f4a_7c15);
            let started = Instant::now();
            let is_enough = || nr_moved.load(Ordering::Relaxed) > 0 && started.elapsed() > RUN;
            while !is_enough() && started.elapsed() < RUN_MAX {
                step(&mut dice, &file, store.as_deref(), &tenant, &mut model);
            }
        }));
        stop.store(true, Ordering::Relaxed);
        outcome.unwrap_or_else(|failure| std::panic::resume_unwind(failure));
    });
    assert!(nr_moved.into_inner() > 0, "nothing was emptied");
    assert!(read_all(&file, &tenant) == model);
    if let Some(store) = store {
        file.fsync(true, &file.sample_error()).unwrap();
        let live = store.live();
        let differs = live.iter().zip(&model).position(|(a, b)| a != b);
        assert!(live == model, "first difference at {differs:?}, lengths {} and {}", live.len(), model.len());
        // Every page is on a list: reclaim finds them all.
        pool.force_empty(&tenant);
        assert_eq!(file.nr_cached_pages(), 0);
    }
    drop(file);
    assert!(pool.arena().nr_allocated() <= 1, "at most the page of holes is left");
}

#[test]
fn a_stored_file_keeps_its_contents_while_blocks_are_emptied() {
    change_while_blocks_are_emptied(|pool| {
        let store = MemStore::new();
        (pool.open_file(store.clone(), 0).unwrap(), Some(store))
    });
}

#[test]
fn a_file_in_memory_keeps_its_contents_while_it_moves() {
    change_while_blocks_are_emptied(|pool| {
        (pool.cache().open_memory_file(Arc::new(Unlimited), 0).unwrap(), None)
    });
}

#[test]
fn no_page_moves_while_its_file_is_being_changed() {
    const NR_KEPT: u64 = 64;
    let pool = pool(32 << 20);
    let tenant = group(&pool, "a", 16 << 20);
    let file = pool.cache().open_memory_file(Arc::new(Unlimited), 0).unwrap();
    file.write(&tenant, 0, &pattern(5, 0, 8 << 20)).unwrap();
    for page in (0..(8 << 20) / PAGE).filter(|page| page % NR_KEPT > 0) {
        file.zero_range(&tenant, page * PAGE, PAGE, || Ok(())).unwrap();
    }
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        let mut moves = None;
        let change = || {
            let mover = scope.spawn(|| {
                tell.send(std::fs::read_link("/proc/thread-self").unwrap()).unwrap();
                pool.cache().empty_sparse_blocks(usize::MAX)
            });
            let stat = std::path::Path::new("/proc").join(told.recv().unwrap()).join("stat");
            let is_asleep = || {
                std::fs::read_to_string(&stat)
                    .is_ok_and(|stat| stat.rsplit(')').next().unwrap().starts_with(" S"))
            };
            while !mover.is_finished() && !is_asleep() {
                std::thread::yield_now();
            }
            assert!(!mover.is_finished(), "it waits for the change");
            moves = Some(mover);
            Ok(())
        };
        file.zero_range(&tenant, 0, PAGE, change).unwrap();
        assert!(moves.unwrap().join().unwrap() > 0);
    });
}
