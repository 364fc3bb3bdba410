//! Panics of stores, quotas and "give up?" closures: a store that panics has failed, a quota that
//! panics has no room, and afterwards everything adds up.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

use crate::common::{MemStore, engine, group, pattern, read_all};
use umemcg::files::{Arena, BackingStore, FileError, PageQuota, Readahead, Segment, StoreId};
use umemcg::{ChargeEffort, DropCaches, Engine, Group, StatItem};

const PAGE: u64 = 4096;

/// Panics at one call of many.
#[derive(Debug)]
struct Fuse(AtomicI64);

impl Fuse {
    fn at(call: i64) -> Arc<Self> {
        Arc::new(Self(AtomicI64::new(call)))
    }
    fn pass(&self) {
        if self.0.fetch_sub(1, SeqCst) == 0 {
            panic!("blown on purpose");
        }
    }
    fn is_blown(&self) -> bool {
        self.0.load(SeqCst) < 0
    }
}

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !is_so() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Nothing is dirty, nothing is cached, nothing is charged.
fn check_nothing_is_left(engine: &Engine, tenant: &Group, run: &str) {
    let items = [
        StatItem::FileDirty,
        StatItem::FileWriteback,
        StatItem::FileUnstable,
        StatItem::InactiveFile,
        StatItem::ActiveFile,
        StatItem::Shmem,
    ];
    // A worker may have the last pages in its hands. Empty lists go when a pass finds them.
    until(&format!("{run}: all is given back"), || {
        engine.drop_caches(DropCaches::Both);
        tenant.drain_stocks();
        tenant.usage_bytes() == 0 && items.iter().all(|&item| tenant.stat_total(item) == 0)
    });
}

/// Once more where the store has failed; what fails twice is no matter of the one panic.
fn twice<R>(mut act: impl FnMut() -> Result<R, FileError>) -> R {
    act().or_else(|_| act()).unwrap_or_else(|error| panic!("once more: {error}"))
}

#[test]
fn a_store_that_panics_has_failed_at_any_call() {
    const LEN: u64 = 96 * PAGE;
    let mut at = 0;
    loop {
        let run = format!("call {at}");
        let engine = engine(16 << 20);
        let tenant = group(&engine, "t", 40 * PAGE);
        let data = pattern(1, 0, LEN as usize);
        let store = MemStore::with(&data);
        let fuse = Fuse::at(at);
        let blown = Arc::clone(&fuse);
        store.on_call.set(move || blown.pass());
        let file = engine.open_file(store.clone(), LEN).unwrap();
        let mut model = data;
        for round in 0..4u64 {
            // Parts of pages, so that what surrounds them is read.
            for n in 0..12 {
                let offset = (n * 7 + round) * PAGE + 100;
                let bytes = pattern(round, offset, 5000);
                assert_eq!(twice(|| file.write(&tenant, offset, &bytes)), bytes.len());
                model[offset as usize..][..bytes.len()].copy_from_slice(&bytes);
            }
            let _ = file.fsync(true, &file.sample_error());
            for n in 0..6 {
                let read = twice(|| file.read(&tenant, n * 16 * PAGE, 8 * PAGE as usize, &Readahead::new()));
                drop(read);
            }
            let cut = LEN - (round + 1) * PAGE - 50;
            twice(|| file.set_len(cut));
            twice(|| file.set_len(LEN));
            model[cut as usize..].fill(0);
        }
        store.on_call.clear();
        assert!(engine.sync_all(Duration::from_secs(30)).is_empty(), "{run}");
        assert!(store.live() == model, "{run}: what was accepted is in the store");
        assert!(read_all(&file, &tenant) == model, "{run}: and is read");
        assert!(file.is_stable(), "{run}");
        drop(file);
        check_nothing_is_left(&engine, &tenant, &run);
        if !fuse.is_blown() {
            assert!(at > 20, "the store was called");
            return;
        }
        at += 1 + at / 16;
    }
}

/// Ends with a panic, and says more than is true.
#[derive(Debug)]
struct Rude {
    ends_rudely: AtomicBool,
}

impl BackingStore for Rude {
    fn store_id(&self) -> StoreId {
        StoreId(77)
    }
    fn read_at(&self, _arena: &Arena, _segments: &[Segment], _offset: u64) -> io::Result<usize> {
        Ok(usize::MAX)
    }
    fn write_at(&self, _arena: &Arena, _segments: &[Segment], _offset: u64) -> io::Result<usize> {
        Ok(usize::MAX)
    }
    fn sync_range(&self, _offset: u64, _len: u64) -> io::Result<()> {
        Ok(())
    }
    fn sync(&self, _data_only: bool) -> io::Result<()> {
        Ok(())
    }
    fn set_len(&self, _len: u64) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Rude {
    fn drop(&mut self) {
        assert!(!self.ends_rudely.load(SeqCst), "a store ends with a panic");
    }
}

#[test]
fn a_store_that_overclaims_or_panics_keeps_its_flusher() {
    let engine = engine(16 << 20);
    let tenant = group(&engine, "t", 1 << 20);
    let rude = |ends_rudely| {
        let store = Rude { ends_rudely: AtomicBool::new(ends_rudely) };
        engine.open_file(Arc::new(store), 100 * PAGE).unwrap()
    };
    for _ in 0..3 {
        let file = rude(true);
        file.write(&tenant, 100, &[1; 10_000]).unwrap();
        file.start_writeback();
        // The flusher is the last to hold it.
        let known = Arc::downgrade(&file);
        drop(file);
        until("the flusher lets go of it", || known.upgrade().is_none());
    }
    let file = rude(false);
    file.write(&tenant, 100, &[1; 10_000]).unwrap();
    file.start_writeback();
    until("the flusher is alive", || file.is_stable());
    drop(file);
    check_nothing_is_left(&engine, &tenant, "");
}

/// As much as is wanted, with a panic in between.
#[derive(Debug)]
struct Quota {
    fuse: Arc<Fuse>,
    nr_taken: AtomicU64,
}

impl PageQuota for Quota {
    fn take_up_to(&self, nr: u64) -> u64 {
        self.fuse.pass();
        self.nr_taken.fetch_add(nr, SeqCst);
        nr
    }
    fn give(&self, nr: u64) {
        self.nr_taken.fetch_sub(nr, SeqCst);
        self.fuse.pass();
    }
}

#[test]
fn a_quota_that_panics_has_no_room_and_nothing_is_lost() {
    let mut at = 0;
    loop {
        let run = format!("call {at}");
        let engine = engine(16 << 20);
        let tenant = group(&engine, "t", 8 << 20);
        let fuse = Fuse::at(at);
        let quota = Arc::new(Quota { fuse: Arc::clone(&fuse), nr_taken: AtomicU64::new(0) });
        let file = engine.open_memory_file(Arc::clone(&quota) as _, 0).unwrap();
        let data = pattern(3, 0, 30_000);
        let mut done = 0;
        while done < data.len() {
            done += twice(|| file.write(&tenant, done as u64, &data[done..]));
        }
        twice(|| file.allocate_memory(&tenant, 10 * PAGE, 20 * PAGE, true));
        assert!(read_all(&file, &tenant)[..data.len()] == data, "{run}");
        file.set_len(5 * PAGE).unwrap();
        drop(file);
        assert_eq!(quota.nr_taken.load(SeqCst), 0, "{run}");
        check_nothing_is_left(&engine, &tenant, &run);
        if !fuse.is_blown() {
            assert!(at > 5, "the quota was called");
            return;
        }
        at += 1;
    }
}

#[test]
fn a_panic_of_a_give_up_closure_is_its_callers() {
    type Act = fn(&Engine, &Arc<Group>, &dyn Fn() -> bool);
    let acts: [(&str, Act); 7] = [
        ("charge", |engine, tenant, ask| {
            _ = engine.reclaimer().charge_unless(tenant, 64 * PAGE, ChargeEffort::Full, ask);
        }),
        ("reclaim", |engine, tenant, ask| {
            _ = engine.reclaimer().reclaim_unless(tenant, 64, umemcg::internal::Reason::Proactive, ask);
        }),
        ("set_max", |engine, tenant, ask| engine.set_max_unless(tenant, 32 * PAGE, ask)),
        ("set_limit", |engine, tenant, ask| _ = engine.set_limit_unless(tenant, 16 * PAGE, ask)),
        ("force_empty", |engine, tenant, ask| _ = engine.force_empty_unless(tenant, ask)),
        ("drop_caches", |engine, _, ask| engine.drop_caches_unless(DropCaches::Both, ask)),
        ("handle_over_high", |engine, tenant, ask| {
            engine.reclaimer().set_high(tenant, 8 * PAGE);
            _ = engine.reclaimer().handle_over_high(tenant, PAGE, ask);
        }),
    ];
    for (name, act) in acts {
        for at in 0..4 {
            let run = format!("{name}, call {at}");
            let engine = engine(16 << 20);
            let tenant = group(&engine, "t", 128 * PAGE);
            let store = MemStore::with(&pattern(1, 0, 100 << 12));
            let file = engine.open_file(store, 100 * PAGE).unwrap();
            drop(read_all(&file, &tenant));
            let fuse = Fuse::at(at);
            let ask = || {
                fuse.pass();
                false
            };
            let _ = catch_unwind(AssertUnwindSafe(|| act(&engine, &tenant, &ask)));
            // A worker may be faster to bring it below `memory.high`.
            assert!(at > 0 || name == "handle_over_high" || fuse.is_blown(), "{run}: it was never asked");
            // As if nothing had been.
            act(&engine, &tenant, &|| false);
            drop(file);
            check_nothing_is_left(&engine, &tenant, &run);
        }
    }
}
