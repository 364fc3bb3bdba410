//! Files that live in the pool alone: what they cost, what refuses them, and that all of it comes
//! back.

use std::ffi::OsStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::common::{Pool, group, pattern, pool, read_all};
use umemcg_cache::{File, FileError, PageQuota, Readahead};
use umemcg_group::{Group, StatItem};

const PAGE: u64 = 4096;

/// This many pages and no more, and how often it was asked.
#[derive(Debug)]
struct Quota {
    free: AtomicU64,
    nr_asked: AtomicU64,
}

impl Quota {
    fn of(pages: u64) -> Arc<Self> {
        Arc::new(Self { free: AtomicU64::new(pages), nr_asked: AtomicU64::new(0) })
    }
    fn free(&self) -> u64 {
        self.free.load(Ordering::Relaxed)
    }
}

impl PageQuota for Quota {
    fn take_up_to(&self, nr: u64) -> u64 {
        let mut taken = 0;
        self.nr_asked.fetch_add(1, Ordering::Relaxed);
        let _ = self.free.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |free| {
            taken = nr.min(free);
            Some(free - taken)
        });
        taken
    }
    fn give(&self, nr: u64) {
        self.free.fetch_add(nr, Ordering::Relaxed);
    }
}

fn file(pool: &Pool, quota: &Arc<Quota>) -> Arc<File> {
    pool.open_memory_file(Arc::clone(quota) as _, 0).unwrap()
}

fn stat(group: &Group, item: StatItem) -> u64 {
    group.stat_local(item) as u64
}

#[test]
fn written_data_is_read_back_and_is_unevictable_shmem() {
    let pool = pool(16 << 20);
    let tenant = group(&pool, "tenant", 8 << 20);
    let quota = Quota::of(u64::MAX / 2);
    let file = file(&pool, &quota);
    let text = pattern(1, 0, 300_000);
    assert_eq!(file.write(&tenant, 5000, &text).unwrap(), text.len());
    let all = read_all(&file, &tenant);
    assert!(all[..5000].iter().all(|&byte| byte == 0) && all[5000..] == text[..]);
    let bytes = (5000 + 300_000u64).div_ceil(PAGE) * PAGE - PAGE;
    assert_eq!(stat(&tenant, StatItem::Shmem), bytes);
    assert_eq!(stat(&tenant, StatItem::Unevictable), bytes);
    assert_eq!(stat(&tenant, StatItem::FileDirty) + stat(&tenant, StatItem::InactiveFile), 0);
    assert!(tenant.usage_bytes() >= bytes);
    // Nothing that reclaim does takes a page.
    pool.force_empty(&tenant);
    assert_eq!(stat(&tenant, StatItem::Shmem), bytes);
    assert_eq!(read_all(&file, &tenant), all);
}

/// One round for each page would cost more than the copy.
#[test]
fn a_write_in_the_reserve_of_the_marks_is_one_round() {
    const MIB: u64 = 1 << 20;
    let pool = pool(16 << 20);
    let tenant = group(&pool, "tenant", 12 * MIB);
    pool.reclaimer().set_high_wmark_distance(&tenant, 6 * MIB).unwrap();
    pool.reclaimer().set_low_wmark_distance(&tenant, 5 * MIB).unwrap();
    let quota = Quota::of(u64::MAX / 2);
    let file = file(&pool, &quota);
    let text = pattern(1, 0, 128 << 10);
    let mut rounds = Vec::new();
    // The workers can free nothing of it.
    for offset in (0..11 * MIB).step_by(text.len()) {
        let before = quota.nr_asked.load(Ordering::Relaxed);
        assert_eq!(file.write(&tenant, offset, &text).unwrap(), text.len());
        rounds.push(quota.nr_asked.load(Ordering::Relaxed) - before);
    }
    assert!(rounds.iter().all(|&nr| nr == 1), "{rounds:?}");
    assert_eq!(stat(&tenant, StatItem::AllocStall), 0);
    // At the limit a write takes what fits, in a few rounds.
    let (mut end, mut nr_written) = (11 * MIB, text.len());
    while nr_written > 0 {
        let before = quota.nr_asked.load(Ordering::Relaxed);
        nr_written = file.write(&tenant, end, &text).unwrap_or(0);
        rounds.push(quota.nr_asked.load(Ordering::Relaxed) - before);
        end += nr_written as u64;
    }
    assert!(tenant.usage_bytes() + 2 * PAGE >= 12 * MIB, "{}", tenant.usage_bytes());
    assert!(rounds.iter().all(|&nr| nr <= 8), "{rounds:?}");
}

#[test]
fn a_hole_reads_as_zeroes_and_takes_no_memory() {
    let pool = pool(16 << 20);
    let tenant = group(&pool, "tenant", 1 << 20);
    let quota = Quota::of(100);
    let file = file(&pool, &quota);
    let far = 5u64 << 30;
    file.set_len(far).unwrap();
    let before = tenant.usage_bytes();
    for offset in [0, 1 << 20, (4 << 30) - 7, far - 100] {
        let pages = file.read(&tenant, offset, 100_000, &Readahead::default()).unwrap();
        assert!(!pages.is_empty() && pages.to_vec().iter().all(|&byte| byte == 0));
    }
    assert_eq!((tenant.usage_bytes(), quota.free()), (before, 100));
    file.write(&tenant, far - 3, b"end").unwrap();
    assert_eq!(file.read(&tenant, far - 4, 10, &Readahead::default()).unwrap().to_vec(), b"\0end");
    assert_eq!(file.seek_data(0), Some((far - 3) / PAGE * PAGE));
    assert_eq!((file.seek_hole(far - 1), file.seek_hole(9)), (far, 9));
}

#[test]
fn a_page_far_out_in_an_empty_file_leaves_no_index_behind() {
    let pool = pool(16 << 20);
    let quota = Quota::of(100);
    for shift in (0..50).step_by(3) {
        let file = file(&pool, &quota);
        file.write(pool.root(), (1 << shift) + 9, b"x").unwrap();
        file.write(pool.root(), 0, b"x").unwrap();
        assert_eq!(
            file.read(pool.root(), (1 << shift) + 9, 1, &Readahead::default()).unwrap().to_vec(),
            b"x"
        );
        file.set_len(0).unwrap();
        assert_eq!(pool.cache().nr_index_nodes(), 0, "1 << {shift}");
        file.write(pool.root(), (1 << shift) + 9, b"x").unwrap();
        drop(file);
        assert_eq!((pool.cache().nr_index_nodes(), quota.free()), (0, 100), "1 << {shift}");
    }
}

#[test]
fn a_write_beyond_the_limit_is_refused_and_old_data_stays() {
    let pool = pool(16 << 20);
    let tenant = group(&pool, "tenant", 1 << 20);
    let quota = Quota::of(u64::MAX / 2);
    let file = file(&pool, &quota);
    let text = pattern(2, 0, 4 << 20);
    let written = file.write(&tenant, 0, &text).unwrap();
    assert!(written > 500_000 && written < 1 << 20, "{written}");
    assert!(matches!(file.write(&tenant, 2 << 20, b"more"), Err(FileError::NoSpace)));
    assert_eq!(file.len(), written as u64, "a refused write leaves the length alone");
    assert_eq!(read_all(&file, &tenant), text[..written]);
    // Overwriting takes nothing.
    assert_eq!(file.write(&tenant, 100, b"over").unwrap(), 4);
    file.zero_range(&tenant, 0, 64 * PAGE, || Ok(())).unwrap();
    assert_eq!(file.write(&tenant, 2 << 20, b"more").unwrap(), 4);
}

#[test]
fn the_quota_is_met_exactly_and_comes_back() {
    let pool = pool(16 << 20);
    let quota = Quota::of(10);
    let one = file(&pool, &quota);
    let other = file(&pool, &quota);
    assert_eq!(one.write(pool.root(), 0, &vec![1; 7 * 4096]).unwrap(), 7 * 4096);
    assert_eq!(other.write(pool.root(), 10, &vec![2; 9 * 4096]).unwrap(), 3 * 4096 - 10);
    assert_eq!(quota.free(), 0);
    assert!(matches!(one.write(pool.root(), 100 * PAGE, b"x"), Err(FileError::NoSpace)));
    one.set_len(4096 + 1).unwrap();
    assert_eq!(quota.free(), 5);
    one.zero_range(pool.root(), 0, 4096, || Ok(())).unwrap();
    assert_eq!(quota.free(), 6);
    drop(one);
    assert_eq!(quota.free(), 7);
    other.discard();
    assert_eq!(quota.free(), 10);
}

#[test]
fn an_allocation_gives_all_or_changes_nothing() {
    let pool = pool(16 << 20);
    let tenant = group(&pool, "tenant", 1 << 20);
    let quota = Quota::of(100);
    let file = file(&pool, &quota);
    file.write(&tenant, 3 * PAGE + 5, b"here").unwrap();
    let usage = tenant.usage_bytes();
    assert!(matches!(file.allocate_memory(&tenant, 0, 101 * PAGE, true), Err(FileError::NoSpace)));
    assert!(matches!(file.allocate_memory(&tenant, 0, 9 << 40, true), Err(FileError::NoSpace)));
    assert_eq!((quota.free(), file.len()), (99, 3 * PAGE + 9));
    file.allocate_memory(&tenant, 1, 50 * PAGE, false).unwrap();
    assert_eq!((quota.free(), file.len()), (49, 3 * PAGE + 9), "the page that was there stays");
    assert!(tenant.usage_bytes() >= usage + 50 * PAGE);
    file.allocate_memory(&tenant, 0, 60 * PAGE, true).unwrap();
    assert_eq!((quota.free(), file.len()), (40, 60 * PAGE));
    assert_eq!(file.seek_hole(0), 60 * PAGE);
    let all = read_all(&file, &tenant);
    let at = 3 * PAGE as usize + 5;
    assert_eq!(&all[at..at + 4], b"here");
    assert!(all[..at].iter().chain(&all[at + 4..]).all(|&byte| byte == 0));
}

#[test]
fn a_removed_groups_pages_go_up_and_all_gauges_end_at_zero() {
    let pool = pool(16 << 20);
    let quota = Quota::of(u64::MAX / 2);
    let file = file(&pool, &quota);
    let parent = group(&pool, "parent", 8 << 20);
    let child = pool.create_group(&parent, OsStr::new("child")).unwrap();
    let text = pattern(3, 0, 1 << 20);
    file.write(&child, 0, &text).unwrap();
    pool.remove_group(&child).unwrap();
    assert_eq!(stat(&parent, StatItem::Shmem), 1 << 20);
    assert_eq!(read_all(&file, &parent), text);
    drop(file);
    for item in [StatItem::Shmem, StatItem::Unevictable] {
        assert_eq!((parent.stat_local(item), pool.root().stat_total(item)), (0, 0), "{item:?}");
    }
    parent.drain_stocks();
    pool.remove_group(&parent).unwrap();
    assert_eq!(pool.cache().nr_index_nodes(), 0);
}

#[test]
fn pages_that_are_moved_to_other_frames_stay_what_they_are() {
    let pool = pool(64 << 20);
    let quota = Quota::of(u64::MAX / 2);
    let files: Vec<_> = (0..16).map(|_| file(&pool, &quota)).collect();
    // Page by page in turn, so that each block has pages of all files.
    for page in 0..400 {
        for (n, file) in files.iter().enumerate() {
            file.write(pool.root(), page * PAGE, &pattern(n as u64, page * PAGE, 4096)).unwrap();
        }
    }
    let kept = 7;
    for (n, file) in files.iter().enumerate().filter(|(n, _)| *n != kept) {
        file.set_len(0).unwrap_or_else(|error| panic!("{n}: {error}"));
    }
    pool.trim();
    assert_eq!(read_all(&files[kept], pool.root()), pattern(kept as u64, 0, 400 * 4096));
    assert_eq!(pool.root().stat_total(StatItem::Shmem), 400 * 4096);
    drop(files);
    assert_eq!(pool.root().stat_total(StatItem::Shmem), 0);
}

#[test]
fn writers_readers_and_truncation_at_once_lose_no_page() {
    let pool = pool(16 << 20);
    let tenant = group(&pool, "tenant", 2 << 20);
    let quota = Quota::of(300);
    let file = file(&pool, &quota);
    std::thread::scope(|scope| {
        for seed in 0..3u64 {
            let (file, tenant) = (&file, &tenant);
            scope.spawn(move || {
                for round in 0..400u64 {
                    let at = (round * 7919 + seed * 104_729) % (1 << 20);
                    match (round + seed) % 5 {
                        0 => file.set_len(at).unwrap(),
                        1 => file.zero_range(tenant, at, 50_000, || Ok(())).unwrap(),
                        2 => drop(file.read(tenant, at, 30_000, &Readahead::default()).unwrap()),
                        3 => drop(file.allocate_memory(tenant, at, 20_000, true)),
                        _ => drop(file.write(tenant, at, &[7; 30_000])),
                    }
                }
            });
        }
    });
    let pages = 300 - quota.free();
    assert_eq!(stat(&tenant, StatItem::Shmem), pages * PAGE);
    assert_eq!(file.nr_cached_pages(), pages);
    drop(file);
    assert_eq!((quota.free(), stat(&tenant, StatItem::Shmem)), (300, 0));
}
