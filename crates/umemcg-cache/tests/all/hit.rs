//! The guarantees of a read hit: the right bytes whatever happens to the page, no sleep, and
//! nothing shared written.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::common::{MemStore, group, pattern, pool, read_all};
use umemcg_cache::{File, Readahead};

const PAGE: usize = 4096;
const MIB: usize = 1 << 20;

#[test]
fn copies_and_pins_agree_at_every_offset_and_end() {
    let pool = pool(16 << 20);
    let tenant = group(&pool, "a", 8 << 20);
    let len = 9 * PAGE + 123;
    let bytes = pattern(1, 0, len);
    let file = pool.open_file(MemStore::with(&bytes), len as u64).unwrap();
    assert!(read_all(&file, &tenant) == bytes);
    let readahead = Readahead::new();
    let edges = |at: usize| [at.saturating_sub(1), at, at + 1];
    for from in [0, PAGE, 3 * PAGE, 8 * PAGE, len].into_iter().flat_map(edges) {
        for room in [0, 1, 7, 128, PAGE - 1, PAGE, PAGE + 1, 4 * PAGE, 5 * PAGE + 3, 20 * PAGE] {
            let expected = &bytes[from.min(len)..(from + room).min(len)];
            let pages = file.try_read(from as u64, room, &readahead).expect("cached");
            assert!(pages.to_vec() == expected, "{room} bytes at {from}, pinned");
            let mut copy = vec![0; room];
            let nr = file.try_read_into(from as u64, &mut copy, &readahead).expect("cached");
            assert!(copy[..nr] == *expected, "{room} bytes at {from}, copied");
        }
    }
    for at in (0..len - 7).step_by(8) {
        let word = u64::from_ne_bytes(bytes[at..at + 8].try_into().unwrap());
        assert_eq!(file.try_load_u64(at as u64), Some(word));
    }
    assert_eq!(file.try_load_u64((len & !7) as u64), None, "a word that reaches beyond the end");
    assert_eq!(file.try_load_u64(!7), None);
}

#[test]
fn what_is_not_cached_is_no_hit() {
    let pool = pool(16 << 20);
    let file = pool.open_file(MemStore::with(&pattern(2, 0, MIB)), MIB as u64).unwrap();
    let readahead = Readahead::new();
    file.read(pool.root(), 5 * PAGE as u64, 10, &readahead).unwrap();
    let mut room = [0; 10];
    assert_eq!(file.try_read_into(5 * PAGE as u64, &mut room, &readahead), Some(10));
    assert_eq!(file.try_read_into(6 * PAGE as u64 - 5, &mut room, &readahead), None);
    assert_eq!(file.try_read_into(77 * PAGE as u64, &mut room, &readahead), None);
    assert_eq!(file.try_load_u64(77 * PAGE as u64), None);
}

/// Most of a stretch of pages lies side by side; the others are looked for beside them first.
#[test]
fn a_page_apart_from_its_neighbours_is_found() {
    let pool = pool(64 << 20);
    let tenant = group(&pool, "a", 48 << 20);
    let len = 4 * MIB;
    let mut expected = pattern(1, 0, len);
    let file = pool.open_file(MemStore::with(&expected), len as u64).unwrap();
    let other = pool.open_file(MemStore::with(&pattern(2, 0, len)), len as u64).unwrap();
    let readahead = Readahead::new();
    // Checks the cached pages, copied, pinned and by word; returns how many there are.
    let check = |file: &Arc<File>, expected: &[u8]| {
        let mut copy = [0; PAGE];
        let is_cached = |at: &usize| {
            let page = &expected[*at..*at + PAGE];
            let hit = file.try_read_into(*at as u64, &mut copy, &readahead).is_some();
            assert!(!hit || copy == *page, "page {}, copied", at / PAGE);
            let pinned = file.try_read(*at as u64, PAGE, &readahead);
            assert!(pinned.map(|pages| pages.to_vec() == page) == hit.then_some(true), "page {}", at / PAGE);
            let word = u64::from_ne_bytes(page[..8].try_into().unwrap());
            assert_eq!(file.try_load_u64(*at as u64), hit.then_some(word));
            hit
        };
        (0..expected.len()).step_by(PAGE).filter(is_cached).count()
    };
    let nr_pages = len / PAGE;
    assert!(read_all(&file, &tenant) == expected);
    assert_eq!(check(&file, &expected), nr_pages);
    // Every third page goes, others take the frames, it comes back elsewhere.
    let holes: Vec<usize> = (0..len).step_by(3 * PAGE).collect();
    for &at in &holes {
        file.zero_range(&tenant, at as u64, PAGE as u64, || Ok(())).unwrap();
    }
    assert!(read_all(&other, &tenant) == pattern(2, 0, len));
    assert_eq!(check(&file, &expected), nr_pages - holes.len());
    for &at in &holes {
        let fresh = pattern(3, at as u64, PAGE);
        expected[at..at + PAGE].copy_from_slice(&fresh);
        // In two pieces, so that the second one finds what the first one made.
        file.write(&tenant, at as u64 + 8, &fresh[8..]).unwrap();
        file.write(&tenant, at as u64, &fresh[..8]).unwrap();
    }
    assert_eq!(check(&file, &expected), nr_pages);
    assert_eq!(check(&other, &pattern(2, 0, len)), nr_pages);
    // The same when half of them are gone, and of the others those in sparse blocks.
    file.fsync(true, &file.sample_error()).unwrap();
    file.set_len(len as u64 / 2).unwrap();
    drop(other);
    let nr_evicted = pool.cache().empty_sparse_blocks(usize::MAX);
    assert!(nr_evicted > 0);
    assert_eq!(check(&file, &expected[..len / 2]), nr_pages / 2 - nr_evicted);
    assert!(read_all(&file, &tenant) == expected[..len / 2]);
    assert_eq!(check(&file, &expected[..len / 2]), nr_pages / 2);
    assert_eq!(file.try_load_u64(len as u64 / 2), None);
}

/// A count that every hit changes would be a line that all of them write.
#[test]
fn a_hit_counts_nothing_that_others_count() {
    let pool = pool(16 << 20);
    let file = pool.open_file(MemStore::with(&pattern(3, 0, MIB)), MIB as u64).unwrap();
    let readahead = Readahead::new();
    drop(file.read(pool.root(), 0, MIB, &readahead).unwrap());
    let before = (Arc::strong_count(pool.cache()), Arc::strong_count(pool.arena()), Arc::strong_count(&file));
    let pages = file.try_read(0, MIB, &readahead).unwrap();
    assert_eq!(
        (Arc::strong_count(pool.cache()), Arc::strong_count(pool.arena()), Arc::strong_count(&file)),
        before
    );
    drop(pages);
}

#[test]
fn a_copy_is_never_another_page_while_pages_come_and_go() {
    // Two files of which one half fits, each read by random pages: frames change hands all the
    // time.
    let pool = pool(16 << 20);
    let tenant = group(&pool, "a", 2 << 20);
    let files: Vec<Arc<File>> = (0..2)
        .map(|seed| pool.open_file(MemStore::with(&pattern(seed, 0, 2 * MIB)), 2 * MIB as u64).unwrap())
        .collect();
    let expected: Vec<Vec<u8>> = (0..2).map(|seed| pattern(seed, 0, 2 * MIB)).collect();
    let (stop, nr_hits) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for thread in 0..2u64 {
            let (pool, tenant, files, expected, stop, nr_hits) =
                (&pool, &tenant, &files, &expected, &stop, &nr_hits);
            scope.spawn(move || {
                let readahead = Readahead::new();
                let mut copy = [0; PAGE];
                let mut state = 0x9e37_79b9_7f4a_7c15 + thread;
                while !stop.load(Ordering::Relaxed) {
                    state ^= state << 13;
                    state ^= state >> 7;
                    state ^= state << 17;
                    let (file, page) = ((state >> 40) as usize % 2, state as usize % (2 * MIB / PAGE));
                    let at = page * PAGE;
                    if let Some(nr) = files[file].try_read_into(at as u64, &mut copy, &readahead) {
                        assert!(copy[..nr] == expected[file][at..at + PAGE], "page {page} of file {file}");
                        nr_hits.fetch_add(1, Ordering::Relaxed);
                    } else {
                        let pages = files[file].read(tenant, at as u64, PAGE, &readahead).unwrap();
                        assert!(pages.to_vec() == expected[file][at..at + PAGE]);
                    }
                    if state % 257 == 0 {
                        pool.force_empty(tenant);
                    }
                }
            });
        }
        let (started, nr) = (Instant::now(), || nr_hits.load(Ordering::Relaxed));
        let is_enough = || nr() >= 100_000 || nr() > 0 && started.elapsed() > Duration::from_secs(1);
        while !is_enough() && started.elapsed() < Duration::from_secs(60) {
            std::thread::yield_now();
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert!(nr_hits.load(Ordering::Relaxed) > 0);
}
