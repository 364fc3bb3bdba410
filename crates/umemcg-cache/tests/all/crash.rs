//! Power cuts: at every call to a store that forgets and reorders whatever was not synced, what
//! fsync acknowledged is there, and nothing that was fsynced later is there without what was
//! fsynced earlier.
//!
//! The promise is the cache's: layers above pass a user's sync on to it. That they do, with a file
//! system that forgets below a volume and every request to it as a cut, is shown in
//! `umemcg-fuse/tests/all/power_cut.rs`.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::common::disk::{CELL, Disk, Promises, Random, seeds};
use crate::common::{MemStore, group, pattern, pool};
use umemcg_arena::{Arena, Segment};
use umemcg_cache::{BackingStore, ErrorCursor, File, Readahead, StoreId};
use umemcg_group::Group;

const RECORD: usize = 6000;

/// Records of a log that are whole.
fn records(bytes: &[u8], seed: u64) -> usize {
    (0..)
        .take_while(|&i| {
            let at = i * RECORD;
            bytes.get(at..at + RECORD).is_some_and(|b| b == pattern(seed, at as u64, RECORD))
        })
        .count()
}

#[test]
fn no_second_synced_log_survives_without_the_first() {
    let pool = pool(8 << 20);
    // Small enough that reclaim and the flusher write and evict between the syncs.
    let tenant = group(&pool, "t", 256 << 10);
    let (first, second) = (MemStore::on_store(1), MemStore::on_store(1));
    let acknowledged = Arc::new(AtomicU64::new(0));
    let nr_cuts = Arc::new(AtomicU64::new(0));
    let check = {
        let (first, second) = (Arc::downgrade(&first), Arc::downgrade(&second));
        let (acknowledged, nr_cuts) = (Arc::clone(&acknowledged), Arc::clone(&nr_cuts));
        move || {
            let (Some(first), Some(second)) = (first.upgrade(), second.upgrade()) else { return };
            let acked = acknowledged.load(Ordering::SeqCst) as usize;
            // The worst disk: of the first log it lost all that it may, of the second it kept all.
            let late = records(&second.after_cut(|_| true), 2);
            let early = records(&first.after_cut(|_| false), 1);
            assert!(early >= late, "{late} records of the second log, {early} of the first");
            assert!(records(&second.after_cut(|_| false), 2) >= acked, "an acknowledged record is lost");
            nr_cuts.fetch_add(1, Ordering::Relaxed);
        }
    };
    first.on_call.set(check.clone());
    second.on_call.set(check);
    let log_a = pool.open_file(first.clone(), 0).unwrap();
    let log_b = pool.open_file(second.clone(), 0).unwrap();
    let (cursor_a, cursor_b) = (log_a.sample_error(), log_b.sample_error());
    let noise = pool.open_file(MemStore::on_store(1), 0).unwrap();
    for i in 0..60usize {
        let at = (i * RECORD) as u64;
        log_a.write(&tenant, at, &pattern(1, at, RECORD)).unwrap();
        noise.write(&tenant, (i as u64 % 7) << 16, &vec![i as u8; 64 << 10]).unwrap();
        log_a.fsync(true, &cursor_a).unwrap();
        log_b.write(&tenant, at, &pattern(2, at, RECORD)).unwrap();
        log_b.start_writeback();
        log_b.fsync(true, &cursor_b).unwrap();
        acknowledged.store(i as u64 + 1, Ordering::SeqCst);
    }
    assert!(nr_cuts.load(Ordering::Relaxed) >= 120, "every call was a cut");
    first.on_call.clear();
    second.on_call.clear();
}

#[test]
fn a_synced_write_survives_any_cut_while_others_overwrite() {
    let pool = pool(8 << 20);
    let tenant = group(&pool, "t", 512 << 10);
    let store = MemStore::new();
    let file = pool.open_file(store.clone(), 0).unwrap();
    let cursor = file.sample_error();
    // Generation g of page p is the byte g in all of it; after a cut a page holds an acknowledged
    // generation or a later one, never an older one.
    let pages = 64usize;
    let mut acked = vec![0u8; pages];
    for generation in 1..=40u8 {
        for page in 0..pages {
            if (page + generation as usize).is_multiple_of(3) {
                file.write(&tenant, (page * 4096) as u64, &vec![generation; 4096]).unwrap();
            }
        }
        if generation % 2 == 0 {
            file.fsync(true, &cursor).unwrap();
            let _ = file.read(&tenant, 0, pages * 4096, &Readahead::new()).unwrap();
            for (page, acked) in acked.iter_mut().enumerate() {
                for g in (generation - 1)..=generation {
                    if (page + g as usize).is_multiple_of(3) {
                        *acked = g;
                    }
                }
            }
        }
        let after = store.after_cut(|page| page % 2 == generation as usize % 2);
        for (page, &acked) in acked.iter().enumerate() {
            if acked > 0 {
                assert!(
                    after[page * 4096] >= acked,
                    "page {page}: {} after a cut, {acked} promised",
                    after[page * 4096]
                );
            }
        }
    }
}

/// A file of the disk that forgets, as the cache's store.
#[derive(Debug)]
struct DiskFile {
    disk: Arc<Disk>,
    file: usize,
}

impl BackingStore for DiskFile {
    fn store_id(&self) -> StoreId {
        StoreId(7)
    }
    fn read_at(&self, arena: &Arena, segments: &[Segment], offset: u64) -> std::io::Result<usize> {
        let wanted = segments.iter().map(|segment| usize::from(segment.len)).sum();
        let bytes = self.disk.read(self.file, offset as usize, wanted);
        let mut rest = &bytes[..];
        for segment in segments {
            let (here, more) = rest.split_at(rest.len().min(usize::from(segment.len)));
            arena.copy_in(segment.frame, usize::from(segment.offset), here);
            rest = more;
        }
        Ok(bytes.len())
    }
    fn write_at(&self, arena: &Arena, segments: &[Segment], offset: u64) -> std::io::Result<usize> {
        let mut bytes = Vec::new();
        for segment in segments {
            let start = bytes.len();
            bytes.resize(start + usize::from(segment.len), 0);
            arena.copy_out(segment.frame, usize::from(segment.offset), &mut bytes[start..]);
        }
        self.disk.write(self.file, offset as usize, &bytes);
        Ok(bytes.len())
    }
    fn sync_range(&self, _offset: u64, _len: u64) -> std::io::Result<()> {
        // Enough to evict, never enough for a user: no new length is committed, and no cache of the
        // device is flushed.
        self.disk.pass();
        Ok(())
    }
    fn sync(&self, _data_only: bool) -> std::io::Result<()> {
        self.disk.sync(self.file);
        Ok(())
    }
    fn set_len(&self, len: u64) -> std::io::Result<()> {
        self.disk.set_len(self.file, len as usize);
        Ok(())
    }
}

const NR_FILES: usize = 3;
const LEN_MAX: usize = 24 * 4096;

/// A user of one file.
struct User {
    file: Arc<File>,
    cursor: ErrorCursor,
    number: usize,
    disk: Arc<Disk>,
    promises: Arc<Mutex<Promises>>,
}

impl User {
    /// A range of whole cells.
    fn range(random: &mut Random) -> std::ops::Range<usize> {
        let start = random.below(LEN_MAX / CELL - 1);
        let len = 1 + random.below((LEN_MAX / CELL - start).min(40));
        start * CELL..(start + len) * CELL
    }

    fn promises(&self) -> std::sync::MutexGuard<'_, Promises> {
        self.promises.lock().unwrap()
    }

    fn sync(&self, data_only: bool) {
        self.file.fsync(data_only, &self.cursor).unwrap();
        self.promises().is_synced(self.number);
    }

    /// Does something; `value` has not been written before.
    fn act(&self, tenant: &Arc<Group>, random: &mut Random, value: u8) {
        let (file, number) = (&self.file, self.number);
        match random.below(16) {
            0..=5 => {
                let range = Self::range(random);
                self.promises().will_write(number, range.clone(), value);
                file.write(tenant, range.start as u64, &vec![value; range.len()]).unwrap();
                match random.below(8) {
                    // As a write to a file opened with O_DSYNC, or O_SYNC.
                    0 => self.sync(true),
                    1 => self.sync(false),
                    _ => {}
                }
            }
            6..=7 => {
                let len = self.promises().len(number);
                let more = CELL * (1 + random.below(8));
                if len + more <= LEN_MAX {
                    self.promises().will_write(number, len..len + more, value);
                    let (at, nr) = file.append(tenant, &vec![value; more]).unwrap();
                    assert_eq!((at, nr), (len as u64, more));
                }
            }
            8 => {
                let len = CELL * random.below(LEN_MAX / CELL + 1);
                self.promises().will_set_len(number, len);
                file.set_len(len as u64).unwrap();
            }
            9 => {
                let range = Self::range(random);
                self.promises().will_zero(number, range.clone());
                let punch = || {
                    self.disk.zero(number, range.clone());
                    // The cache forgets dirty pages there, and with them growth that only they
                    // would have brought.
                    let len = file.len() as usize;
                    if self.disk.len(number) < len {
                        self.disk.set_len(number, len);
                    }
                    Ok(())
                };
                file.zero_range(tenant, range.start as u64, range.len() as u64, punch).unwrap();
            }
            10..=11 => self.sync(true),
            12 => self.sync(false),
            13 => file.start_writeback(),
            _ => {
                let expected = self.promises().expected(number);
                let mut seen = Vec::new();
                while seen.len() < expected.len() {
                    let pages = file.read(tenant, seen.len() as u64, LEN_MAX, &Readahead::new()).unwrap();
                    seen.extend(pages.to_vec());
                }
                assert!(seen == expected, "file {number} reads as it was written");
            }
        }
    }
}

/// Several files changed in every way by one thread each, in a group so small that reclaim evicts
/// and flushers write all the time.
#[test]
fn a_cut_at_any_call_leaves_what_was_synced_or_something_newer() {
    let mut nr_cuts = 0;
    for seed in seeds(6) {
        let pool = pool(8 << 20);
        let tenant = group(&pool, "t", 160 << 10);
        let disk = Disk::new(NR_FILES);
        let promises = Promises::new(NR_FILES, LEN_MAX, seed);
        let watched = Arc::clone(&promises);
        disk.on_call(move |disk| watched.lock().unwrap().check(disk));
        let users: Vec<User> = (0..NR_FILES)
            .map(|number| {
                let store = DiskFile { disk: Arc::clone(&disk), file: number };
                let file = pool.open_file(Arc::new(store), 0).unwrap();
                let (disk, promises) = (Arc::clone(&disk), Arc::clone(&promises));
                User { cursor: file.sample_error(), file, number, disk, promises }
            })
            .collect();
        if seed % 2 == 0 {
            // One thread, in turns: the order between files is as strict as can be.
            let mut random = Random(seed);
            for step in 0..150 {
                users[random.below(NR_FILES)].act(&tenant, &mut random, 1 + step as u8);
            }
        } else {
            std::thread::scope(|scope| {
                for user in &users {
                    let (tenant, mut random) = (&tenant, Random(seed << 8 | user.number as u64));
                    scope.spawn(move || (0..50).for_each(|step| user.act(tenant, &mut random, 1 + step)));
                }
            });
        }
        assert!(pool.sync_all(Duration::from_secs(60)).is_empty());
        // What was written is durable now, though a hole alone need not be: that takes a sync of
        // the file.
        users.iter().for_each(|user| user.sync(false));
        disk.pass();
        let promises = promises.lock().unwrap();
        assert_eq!(promises.broken, None, "UMEMCG_CRASH_SEED={seed}");
        nr_cuts += promises.nr_cuts;
    }
    assert!(nr_cuts > 1_000, "{nr_cuts} cuts");
    eprintln!("{nr_cuts} cuts, every promise kept");
}

/// The test above sees what it is there to see.
#[test]
fn a_store_that_confirms_too_early_is_found_out() {
    let disk = Disk::new(1);
    let promises = Promises::new(1, LEN_MAX, 1);
    promises.lock().unwrap().will_write(0, 0..4096, 1);
    disk.write(0, 0, &[1; 4096]);
    promises.lock().unwrap().check(&disk);
    assert_eq!(promises.lock().unwrap().broken, None, "not promised yet");
    promises.lock().unwrap().is_synced(0);
    promises.lock().unwrap().check(&disk);
    assert!(promises.lock().unwrap().broken.is_some());
}
