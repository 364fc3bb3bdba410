//! Reclaim that meets dirty pages: when it waits for write-back, and for how long.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::support::{create, reclaimer};
use umemcg_arena::{FrameFlags as Flag, FrameId};
use umemcg_base::PAGE_SIZE_U64;
use umemcg_group::{Charge, Group, GroupTree, StatItem};
use umemcg_reclaim::WRITEBACK_WAIT;
use umemcg_reclaim::writeback_backoff::{RECOVERY, WAIT_WITHOUT_PROGRESS_MAX};
use umemcg_reclaim::{ChargeEffort, Eviction, Kswapd, LruKind, PageOwner, Reason, Reclaimer, Shadow};

/// Pages of a store that cleans as many as it is told with every wait, or none.
#[derive(Debug)]
struct Pages {
    reclaimer: Arc<Reclaimer>,
    dirty: Mutex<Vec<(Arc<Group>, FrameId)>>,
    cleaned_by_a_wait: u64,
    nr_waits: AtomicU64,
    nr_wakes: AtomicU64,
    /// Something else has been written at each question.
    others_are_written: AtomicBool,
    nr_others_written: AtomicU64,
}

impl Pages {
    fn clean(&self, nr: u64) -> bool {
        let mut dirty = self.dirty.lock().unwrap();
        let left = dirty.len().saturating_sub(nr as usize);
        for (group, frame) in dirty.drain(left..) {
            self.reclaimer.arena().record(frame).clear(Flag::DIRTY);
            group.stat_add(StatItem::FileDirty, -(PAGE_SIZE_U64 as i64));
        }
        nr > 0
    }

    fn nr_waits(&self) -> u64 {
        self.nr_waits.load(Relaxed)
    }

    /// Gives a group pages, the first ones nearest to the tail.
    fn give(&self, group: &Arc<Group>, nr: u64, dirty: bool) {
        let arena = self.reclaimer.arena();
        for _ in 0..nr {
            let charge = group.try_charge(PAGE_SIZE_U64).unwrap();
            let owner = charge.owner();
            let mut frames = Vec::new();
            arena.alloc(&mut frames, 1);
            let record = arena.record(frames[0]);
            record.owner.store(owner.into_raw(), Relaxed);
            record.file.store(1, Relaxed);
            record.unfreeze_to(1);
            record.set(Flag::UPTODATE);
            if dirty {
                record.set(Flag::DIRTY);
                group.stat_add(StatItem::FileDirty, PAGE_SIZE_U64 as i64);
                self.dirty.lock().unwrap().push((Arc::clone(group), frames[0]));
            }
            let _ = charge.into_raw();
            self.reclaimer.add_to_lists(owner, &frames, LruKind::Inactive);
        }
    }
}

impl PageOwner for Pages {
    fn evict(&self, frames: &[FrameId], _shadow: &dyn Fn(FrameId, u64) -> Shadow, fates: &mut Vec<Eviction>) {
        for &frame in frames {
            let record = self.reclaimer.arena().record(frame);
            let is_free = !record.test(Flag::DIRTY) && record.freeze_from(2);
            if is_free {
                record.file.store(0, Relaxed);
            }
            fates.push(if is_free { Eviction::Evicted } else { Eviction::Busy });
        }
    }
    fn start_writeback(&self, _group: &Arc<Group>) {
        self.nr_wakes.fetch_add(1, Relaxed);
    }
    fn wait_for_writeback(&self, timeout: Duration) -> bool {
        self.nr_waits.fetch_add(1, Relaxed);
        if self.cleaned_by_a_wait == 0 {
            std::thread::sleep(timeout);
        }
        self.clean(self.cleaned_by_a_wait)
    }
    fn writeback_progress(&self) -> u64 {
        let nr_others = u64::from(self.others_are_written.load(Relaxed));
        let nr_others = self.nr_others_written.fetch_add(nr_others, Relaxed) + nr_others;
        nr_others + if self.cleaned_by_a_wait == 0 { 0 } else { self.nr_waits() }
    }
}

/// A pool, and a group of it.
struct Ground {
    tree: Arc<GroupTree>,
    pages: Arc<Pages>,
    group: Arc<Group>,
}

impl Ground {
    fn new(cleaned_by_a_wait: u64) -> Self {
        let (tree, reclaimer) = reclaimer(16 << 20);
        let group = create(&tree, tree.root(), "t");
        let pages = Arc::new(Pages {
            reclaimer,
            dirty: Mutex::default(),
            cleaned_by_a_wait,
            nr_waits: AtomicU64::new(0),
            nr_wakes: AtomicU64::new(0),
            others_are_written: AtomicBool::new(false),
            nr_others_written: AtomicU64::new(0),
        });
        pages.reclaimer.set_page_owner(&(Arc::clone(&pages) as _));
        Self { tree, pages, group }
    }

    /// No more room than there is.
    fn close(&self) {
        self.group.drain_stocks();
        self.group.store_max(self.group.usage_bytes());
    }

    fn charge_a_page(&self) -> Option<Charge> {
        self.pages.reclaimer.charge(&self.group, PAGE_SIZE_U64, ChargeEffort::Full).ok()
    }

    fn finish(self) {
        self.pages.clean(u64::MAX);
        while self.pages.reclaimer.reclaim(&self.group, 1 << 20, Reason::Proactive).reclaimed > 0 {}
        self.group.drain_stocks();
        assert_eq!(self.group.usage_bytes(), 0);
        self.tree.root().drain_stocks();
    }
}

#[test]
fn a_group_with_clean_pages_beside_dirty_ones_never_waits() {
    let ground = Ground::new(0);
    // The tail is full of dirty pages, more than the first passes look at.
    ground.pages.give(&ground.group, 700, true);
    ground.pages.give(&ground.group, 300, false);
    ground.close();
    let charges: Vec<_> = (0..200).map(|_| ground.charge_a_page().expect("clean pages make room")).collect();
    drop(charges);
    assert_eq!(ground.pages.nr_waits(), 0);
    ground.finish();
}

#[test]
fn a_group_of_dirty_pages_waits_and_gets_what_was_written() {
    let ground = Ground::new(8);
    ground.pages.give(&ground.group, 400, true);
    ground.close();
    let charges: Vec<_> =
        (0..200).map(|_| ground.charge_a_page().expect("written pages make room")).collect();
    drop(charges);
    let waits = ground.pages.nr_waits();
    assert!((1..=100).contains(&waits), "{waits}");
    assert!(ground.pages.nr_wakes.load(Relaxed) >= waits, "the flusher is woken before a reclaim waits");
    ground.finish();
}

#[test]
fn a_group_with_a_stuck_store_waits_once_not_for_each_page() {
    let ground = Ground::new(0);
    ground.pages.give(&ground.group, 400, true);
    ground.close();
    let started = Instant::now();
    for nr in 0..50 {
        assert!(ground.charge_a_page().is_none(), "page {nr}");
    }
    // A while now and then, however many pages are asked for.
    let whiles = 1 + (started.elapsed().as_millis() / RECOVERY.as_millis()) as u64;
    let waits = ground.pages.nr_waits();
    let waits_of_a_while = (WAIT_WITHOUT_PROGRESS_MAX.as_millis() / WRITEBACK_WAIT.as_millis()) as u64 + 1;
    assert!((1..=whiles * waits_of_a_while).contains(&waits), "{waits}");
    // Once the store takes something there is room immediately.
    ground.pages.clean(100);
    assert!(ground.charge_a_page().is_some());
    ground.finish();
}

/// What a group in excess has is dirty, and write-back continues: the worker backs off, however
/// often, and takes nothing from others.
#[test]
fn a_worker_waits_for_writes_before_it_takes_from_others() {
    let ground = Ground::new(0);
    let (pages, root) = (&ground.pages, Arc::clone(ground.tree.root()));
    let holder = create(&ground.tree, &root, "holder");
    pages.give(&ground.group, 400, true);
    ground.group.set_soft_limit(0);
    pages.give(&holder, 400, false);
    [&ground.group, &holder].iter().for_each(|group| group.drain_stocks());
    pages.others_are_written.store(true, Relaxed);
    let taken = || holder.stat_total(StatItem::PgStealKswapd);
    let until = |what: &str, is_so: &dyn Fn() -> bool| {
        let deadline = Instant::now() + Duration::from_secs(60);
        while !is_so() {
            assert!(Instant::now() < deadline, "{what}");
            std::thread::sleep(Duration::from_millis(1));
        }
    };
    // Both marks are below the usage.
    let reclaimer = &pages.reclaimer;
    reclaimer.set_high_wmark_distance(&root, root.max_bytes() - 400 * PAGE_SIZE_U64).unwrap();
    reclaimer.set_low_wmark_distance(&root, root.max_bytes() - 500 * PAGE_SIZE_U64).unwrap();
    let kswapd = Kswapd::start(reclaimer, 1).unwrap();
    // Read before: it waits for two seconds, and this thread may be off its processor for as long.
    let nr_taken = std::cell::Cell::new(0);
    until("the worker comes again and again", &|| {
        nr_taken.set(taken());
        root.stat_total(StatItem::KswapdRun) >= 20
    });
    assert_eq!(nr_taken.get(), 0);
    // Nothing is written any more.
    pages.others_are_written.store(false, Relaxed);
    until("then it takes what there is", &|| taken() > 0);
    drop(kswapd);
    pages.clean(u64::MAX);
    while reclaimer.reclaim(&root, 1 << 20, Reason::Proactive).reclaimed > 0 {}
    ground.finish();
}
