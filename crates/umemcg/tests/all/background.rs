//! Background reclaim: readers and writers do not reclaim; the workers do, and sleep when there is
//! nothing to do.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::common::{MemStore, pattern};
use umemcg::files::Readahead;
use umemcg::internal::testing::hundred_below;
use umemcg::shrinker::{Count, Scan, Scanned, ShrinkTarget, Shrinker, Usage};
use umemcg::{Engine, EngineConfig, Group, StatItem};

const MIB: u64 = 1 << 20;

fn engine() -> Arc<Engine> {
    Engine::new(EngineConfig::new(64 * MIB)).unwrap()
}

fn limited(engine: &Engine, name: &str, limit: u64) -> Arc<Group> {
    let group = engine.create_group(engine.root(), name.as_ref()).unwrap();
    engine.set_limit(&group, limit).unwrap();
    group
}

fn set_marks(engine: &Engine, group: &Arc<Group>, low_distance: u64, high_distance: u64) {
    engine.set_high_wmark_distance(group, high_distance).unwrap();
    engine.set_low_wmark_distance(group, low_distance).unwrap();
}

fn wait_until(mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !condition() {
        assert!(Instant::now() < deadline, "condition not reached in time");
        std::thread::yield_now();
    }
}

/// Reads a file through, waiting for the workers where they are behind, so that what is counted
/// does not depend on the scheduler.
fn stream(engine: &Engine, group: &Arc<Group>, bytes: u64) {
    let file = engine.open_file(MemStore::with(&vec![1; bytes as usize]), bytes).unwrap();
    let readahead = Readahead::new();
    for at in (0..bytes).step_by(64 << 10) {
        wait_until(|| group.usage_bytes() + MIB <= group.max_bytes());
        drop(file.read(group, at, 64 << 10, &readahead).unwrap());
    }
}

/// The pages taken by workers, and by the janitor, which comes every two seconds.
fn stolen_in_background(group: &Group) -> i64 {
    group.stat_total(StatItem::PgStealKswapd) + group.stat_total(StatItem::PgStealProactive)
}

#[test]
fn workers_alone_keep_a_group_with_marks_below_its_limit() {
    let engine = engine();
    let group = limited(&engine, "a", 12 * MIB);
    set_marks(&engine, &group, 4 * MIB, 5 * MIB);
    stream(&engine, &group, 48 * MIB);
    assert_eq!(group.stat_total(StatItem::AllocStall), 0, "no reader or writer had to reclaim");
    assert_eq!(group.stat_total(StatItem::PgStealDirect), 0);
    assert!(stolen_in_background(&group) >= (36 * MIB / 4096) as i64);
    assert!(group.stat_total(StatItem::KswapdRun) > 0);
    wait_until(|| group.usage_bytes() < 8 * MIB);
}

#[test]
fn an_ancestor_with_marks_is_served_for_what_is_charged_below() {
    let engine = engine();
    let parent = limited(&engine, "p", 12 * MIB);
    set_marks(&engine, &parent, 4 * MIB, 5 * MIB);
    let child = engine.create_group(&parent, "c".as_ref()).unwrap();
    let file = engine.open_file(MemStore::with(&vec![1; 40 << 20]), 40 * MIB).unwrap();
    for at in (0..40 * MIB).step_by(64 << 10) {
        wait_until(|| parent.usage_bytes() + MIB <= parent.max_bytes());
        drop(file.read(&child, at, 64 << 10, &Readahead::new()).unwrap());
    }
    assert_eq!(parent.stat_total(StatItem::AllocStall), 0);
    assert!(child.stat_total(StatItem::PgStealKswapd) > 0);
}

#[test]
fn a_group_that_gives_nothing_does_not_hold_up_another() {
    let engine = Engine::new(EngineConfig::new(64 * MIB).nr_kswapd(1)).unwrap();
    // Everything in it is dirty, and its store does not answer.
    let stuck = limited(&engine, "stuck", 8 * MIB);
    let store = MemStore::on_store(7);
    store.hang();
    let dirty = engine.open_file(store.clone(), 0).unwrap();
    dirty.write(&stuck, 0, &pattern(1, 0, 6 << 20)).unwrap();
    set_marks(&engine, &stuck, 3 * MIB, 4 * MIB);
    let fine = limited(&engine, "fine", 12 * MIB);
    set_marks(&engine, &fine, 4 * MIB, 5 * MIB);
    stream(&engine, &fine, 30 * MIB);
    assert_eq!(fine.stat_total(StatItem::AllocStall), 0);
    assert!(stuck.usage_bytes() >= 6 * MIB);
    store.release();
    // What was stuck becomes clean, and its own turn comes.
    wait_until(|| {
        let _ = engine.sync_all(Duration::from_secs(1));
        stuck.usage_bytes() < 5 * MIB
    });
}

#[test]
fn a_dedicated_worker_ends_with_its_setting_or_its_group() {
    let engine = engine();
    let group = limited(&engine, "a", 12 * MIB);
    set_marks(&engine, &group, 4 * MIB, 5 * MIB);
    let kswapd = engine.kswapd();
    assert_eq!(kswapd.dedicated_tid(&group), None);
    kswapd.set_dedicated(&group, true).unwrap();
    kswapd.set_dedicated(&group, true).unwrap();
    let tid = kswapd.dedicated_tid(&group).unwrap();
    let name = || std::fs::read_to_string(format!("/proc/self/task/{tid}/comm"));
    assert_eq!(name().unwrap().trim(), format!("memcg_{}", group.id()));
    stream(&engine, &group, 30 * MIB);
    assert_eq!(group.stat_total(StatItem::AllocStall), 0);
    kswapd.set_dedicated(&group, false).unwrap();
    // A thread that was joined leaves `/proc` a moment later.
    wait_until(|| name().is_err());
    stream(&engine, &group, 30 * MIB);
    kswapd.set_dedicated(&group, true).unwrap();
    engine.remove_group(&group).unwrap();
    assert_eq!(kswapd.dedicated_tid(&group), None);
}

#[test]
fn marks_follow_the_limit_and_invalid_ones_change_nothing() {
    let engine = engine();
    let reclaimer = engine.reclaimer();
    let group = limited(&engine, "a", 500 * MIB);
    let shown = || {
        let marks = reclaimer.marks(&group);
        (marks.low, marks.high)
    };
    assert_eq!(shown(), (500 * MIB, 500 * MIB));
    assert!(reclaimer.set_low_wmark_distance(&group, 40 * MIB).is_err(), "the high one first");
    set_marks(&engine, &group, 40 * MIB, 50 * MIB);
    assert_eq!(shown(), (482_344_960, 471_859_200));
    for high in [40 * MIB, 39 * MIB, 500 * MIB, u64::MAX] {
        assert!(reclaimer.set_high_wmark_distance(&group, high).is_err(), "{high}");
    }
    for low in [50 * MIB, 51 * MIB, 500 * MIB, u64::MAX] {
        assert!(reclaimer.set_low_wmark_distance(&group, low).is_err(), "{low}");
    }
    assert_eq!(shown(), (482_344_960, 471_859_200));
    engine.set_limit(&group, 1000 * MIB).unwrap();
    assert_eq!(shown(), (960 * MIB, 950 * MIB));
    reclaimer.set_wmark_ratio(&group, 90).unwrap();
    assert_eq!(shown(), (900 * MIB, 895 * MIB));
    assert!(reclaimer.set_wmark_ratio(&group, 101).is_err());
    assert!(reclaimer.set_wmark_scale_factor(&group, 0).is_err());
    assert!(reclaimer.set_wmark_scale_factor(&group, 1001).is_err());
    engine.set_max(&group, 100 * MIB);
    assert_eq!(shown().0, 90 * MIB);
    reclaimer.set_wmark_ratio(&group, 0).unwrap();
    assert_eq!(shown(), (100 * MIB, 100 * MIB));
}

#[test]
fn marks_set_below_the_present_usage_take_effect_immediately() {
    let engine = engine();
    let group = limited(&engine, "a", 20 * MIB);
    let file = engine.open_file(MemStore::with(&vec![1; 16 << 20]), 16 * MIB).unwrap();
    drop(file.read(&group, 0, 16 << 20, &Readahead::new()).unwrap());
    assert!(group.usage_bytes() >= 16 * MIB);
    set_marks(&engine, &group, 10 * MIB, 11 * MIB);
    wait_until(|| group.usage_bytes() < 9 * MIB);
    assert_eq!(group.stat_total(StatItem::AllocStall), 0);
}

#[test]
fn workers_sleep_when_nothing_is_over_its_mark() {
    let engine = engine();
    let group = limited(&engine, "a", 20 * MIB);
    set_marks(&engine, &group, 4 * MIB, 5 * MIB);
    stream(&engine, &group, 40 * MIB);
    wait_until(|| group.usage_bytes() < 15 * MIB);
    let runs = || group.stat_total(StatItem::KswapdRun);
    // Once asleep, no worker runs again: the number of quanta stays while other threads work.
    wait_until(|| {
        let before = runs();
        (0..1000).for_each(|_| std::thread::yield_now());
        before == runs()
    });
    let before = runs();
    let other = limited(&engine, "b", 20 * MIB);
    stream(&engine, &other, 8 * MIB);
    // A worker may have been on its way.
    assert!(runs() <= before + 1);
}

#[test]
fn limits_marks_groups_and_workers_may_change_while_they_work() {
    let engine = engine();
    std::thread::scope(|scope| {
        for thread in 0..3u64 {
            let engine = &engine;
            scope.spawn(move || {
                for round in 0..40u64 {
                    let group = limited(engine, &format!("{thread}-{round}"), 4 * MIB);
                    set_marks(engine, &group, MIB, 2 * MIB);
                    if round % 4 == 0 {
                        engine.kswapd().set_dedicated(&group, true).unwrap();
                    }
                    let file = engine.open_file(MemStore::with(&vec![1; 6 << 20]), 6 * MIB).unwrap();
                    for at in (0..6 * MIB).step_by(256 << 10) {
                        drop(file.read(&group, at, 256 << 10, &Readahead::new()).unwrap());
                        if at % MIB == 0 {
                            let limit = (3 + at / MIB % 3) * MIB;
                            engine.set_max(&group, limit);
                        }
                    }
                    engine.remove_group(&group).unwrap();
                }
            });
        }
        let engine = &engine;
        scope.spawn(move || {
            for nr in [3, 1, 4, 2, 1, 5, 2] {
                engine.kswapd().set_nr_workers(nr).unwrap();
                assert_eq!(engine.kswapd().nr_workers(), nr);
                std::thread::yield_now();
            }
        });
    });
    assert!(engine.root().usage_bytes() <= 64 * MIB);
    drop(engine);
}

#[test]
fn the_pools_own_marks_keep_it_from_being_full() {
    let config = EngineConfig::new(128 * MIB).pool_marks(true);
    let engine = Engine::new(config).unwrap();
    let group = engine.create_group(engine.root(), "a".as_ref()).unwrap();
    stream_below(&engine, &group, 200 * MIB, 126 * MIB);
    assert_eq!(engine.root().stat_total(StatItem::AllocStall), 0);
    assert!(engine.root().stat_total(StatItem::PgStealKswapd) > 0);
}

/// As `stream`, for a group whose root is what has marks.
fn stream_below(engine: &Engine, group: &Arc<Group>, bytes: u64, usage: u64) {
    let file = engine.open_file(MemStore::with(&vec![1; bytes as usize]), bytes).unwrap();
    let readahead = Readahead::new();
    for at in (0..bytes).step_by(64 << 10) {
        wait_until(|| engine.root().usage_bytes() <= usage);
        drop(file.read(group, at, 64 << 10, &readahead).unwrap());
    }
}

#[test]
fn read_ahead_does_not_leap_over_the_mark_of_a_small_group() {
    const KIB: u64 = 1 << 10;
    let engine = engine();
    let groups: Vec<_> = (0..48)
        .map(|at| {
            let group = limited(&engine, &format!("g{at}"), 512 * KIB);
            set_marks(&engine, &group, 160 * KIB, 224 * KIB);
            let file = engine.open_file(MemStore::with(&vec![1; 8 << 20]), 8 * MIB).unwrap();
            (group, file, Readahead::new())
        })
        .collect();
    for at in (0..8 * MIB).step_by(32 << 10) {
        for (group, file, readahead) in &groups {
            wait_until(|| group.usage_bytes() < 352 * KIB);
            drop(file.read(group, at, 32 << 10, readahead).unwrap());
        }
    }
    for (group, ..) in &groups {
        assert_eq!(group.stat_total(StatItem::AllocStall), 0, "{}", group.path().display());
        assert!(stolen_in_background(group) as u64 >= (8 * MIB - 512 * KIB) / 4096);
    }
}

/// Objects that another party frees when asked.
#[derive(Debug)]
struct Requesting {
    left: AtomicU64,
    to: Mutex<Option<Sender<u64>>>,
}

impl Shrinker for Requesting {
    fn name(&self) -> String {
        "requesting".into()
    }
    fn count(&self, _: &ShrinkTarget<'_>) -> Count {
        match self.left.load(Relaxed) {
            0 => Count::Empty,
            nr => Count::Objects(nr),
        }
    }
    fn scan(&self, _: &ShrinkTarget<'_>, nr: u64) -> Scan {
        let nr = nr.min(self.left.load(Relaxed));
        self.left.fetch_sub(nr, Relaxed);
        if let Some(to) = &*self.to.lock().unwrap() {
            to.send(nr).unwrap();
        }
        Scan::Done(Scanned { scanned: nr, freed_bytes: 0, releasing_bytes: nr * OBJECT })
    }
    fn usage(&self, _: &ShrinkTarget<'_>) -> Usage {
        Usage::default()
    }
}

const OBJECT: u64 = 1000;

/// How long nothing was released.
struct Pauses {
    last: Instant,
    longest: Duration,
}

impl Pauses {
    fn begin() -> Self {
        Self { last: Instant::now(), longest: Duration::ZERO }
    }

    fn note(&mut self, release: impl FnOnce()) {
        let now = Instant::now();
        release();
        self.longest = self.longest.max(self.last.elapsed());
        self.last = now;
    }

    /// Returns the most that a worker may ask for: after 140 ms without a release, because the
    /// releasing thread did not run, it may ask for anything.
    fn most(&self, usual: u64) -> u64 {
        if self.longest < Duration::from_millis(100) { usual } else { u64::MAX }
    }
}

#[test]
fn workers_wait_for_releases_before_they_ask_for_more() {
    const NR: u64 = 20_000;
    let engine = engine();
    let group = limited(&engine, "a", 24 * MIB);
    let (to, asked) = channel::<u64>();
    let shrinker = Arc::new(Requesting { left: NR.into(), to: Mutex::new(Some(to)) });
    let reclaimer = engine.reclaimer();
    let id = reclaimer.reserve_shrinker();
    let number = id.get();
    let _registered = reclaimer.register_shrinker(id, Arc::<Requesting>::clone(&shrinker));
    let mut objects: Vec<_> = (0..NR).map(|_| group.try_charge(OBJECT).unwrap()).collect();
    reclaimer.note_objects(&group, number);
    let (owner, mut pauses) = (&group, Pauses::begin());
    let (asked_for, pauses) = std::thread::scope(|scope| {
        let releasing = scope.spawn(move || {
            while let Ok(mut nr) = asked.recv() {
                // As slow as can be: not before no caller asks for more.
                while let Ok(more) = asked.recv_timeout(Duration::from_millis(1)) {
                    nr += more;
                }
                pauses.note(|| {
                    objects.truncate(objects.len() - nr as usize);
                    reclaimer.note_released(owner, nr * OBJECT);
                });
            }
            pauses
        });
        // Of 19 MiB two have to go: some 2,200 objects.
        set_marks(&engine, &group, 6 * MIB, 7 * MIB);
        wait_until(|| group.usage_bytes() < 17 * MIB);
        let asked_for = NR - shrinker.left.load(Relaxed);
        shrinker.to.lock().unwrap().take();
        (asked_for, releasing.join().unwrap())
    });
    assert!((2000..pauses.most(NR / 2)).contains(&asked_for), "{asked_for} of {NR} objects were asked for");
}

#[test]
fn a_worker_asks_no_more_while_releases_trickle_in() {
    const NR: u64 = 20_000;
    let engine = engine();
    let group = limited(&engine, "a", 24 * MIB);
    let (to, asked) = channel::<u64>();
    let shrinker = Arc::new(Requesting { left: NR.into(), to: Mutex::new(Some(to)) });
    let reclaimer = engine.reclaimer();
    let id = reclaimer.reserve_shrinker();
    let number = id.get();
    let _registered = reclaimer.register_shrinker(id, Arc::<Requesting>::clone(&shrinker));
    let mut objects: Vec<_> = (0..NR).map(|_| group.try_charge(OBJECT).unwrap()).collect();
    reclaimer.note_objects(&group, number);
    let (owner, mut pauses) = (&group, Pauses::begin());
    let (asked_for, pauses) = std::thread::scope(|scope| {
        let releasing = scope.spawn(move || {
            for mut nr in asked {
                while nr > 0 {
                    // Longer in all than a worker waits for what does not come.
                    std::thread::sleep(Duration::from_millis(2));
                    let nr_now = nr.min(8);
                    pauses.note(|| {
                        objects.truncate(objects.len() - nr_now as usize);
                        reclaimer.note_released(owner, nr_now * OBJECT);
                    });
                    nr -= nr_now;
                }
            }
            pauses
        });
        // Of 19 MiB two have to go: some 2,200 objects.
        set_marks(&engine, &group, 6 * MIB, 7 * MIB);
        wait_until(|| group.usage_bytes() < 17 * MIB);
        let asked_for = NR - shrinker.left.load(Relaxed);
        shrinker.to.lock().unwrap().take();
        (asked_for, releasing.join().unwrap())
    });
    assert!((2000..pauses.most(3000)).contains(&asked_for), "{asked_for} of {NR} objects were asked for");
}

/// Has objects, all of them in use; counts how often it was asked.
#[derive(Debug, Default)]
struct InUse {
    nr_asked: AtomicU64,
}

impl Shrinker for InUse {
    fn name(&self) -> String {
        "in-use".into()
    }
    fn count(&self, _: &ShrinkTarget<'_>) -> Count {
        self.nr_asked.fetch_add(1, Relaxed);
        Count::NothingNow
    }
    fn scan(&self, _: &ShrinkTarget<'_>, _: u64) -> Scan {
        Scan::Stop
    }
    fn usage(&self, _: &ShrinkTarget<'_>) -> Usage {
        Usage::default()
    }
}

#[test]
fn idle_shrinkers_are_polled_rarely_under_easy_reclaim() {
    const LIMIT: u64 = 208 * MIB;
    const NR_PAGES: u64 = 32 * MIB / 4096;
    let config = EngineConfig::new(256 * MIB);
    let engine = Engine::new(config).unwrap();
    let group = limited(&engine, "a", LIMIT);
    let shrinker = Arc::new(InUse::default());
    let reclaimer = engine.reclaimer();
    let id = reclaimer.reserve_shrinker();
    let number = id.get();
    let _registered = reclaimer.register_shrinker(id, Arc::<InUse>::clone(&shrinker));
    reclaimer.note_objects(&group, number);
    let asked = || shrinker.nr_asked.swap(0, Relaxed);
    let file =
        engine.open_file(MemStore::with(&vec![1; (LIMIT + 32 * MIB) as usize]), LIMIT + 32 * MIB).unwrap();
    let readahead = Readahead::new();
    for at in (0..LIMIT + 32 * MIB).step_by(128 << 10) {
        drop(file.read(&group, at, 128 << 10, &readahead).unwrap());
    }
    let nr_asked = asked();
    assert!((NR_PAGES / 4096..=NR_PAGES / 512).contains(&nr_asked), "{nr_asked} times for {NR_PAGES} pages");
    // Without pages every shrinker is asked each time.
    drop(file);
    let _ = engine.reclaim(&group, u64::MAX);
    asked();
    for _ in 0..3 {
        let _ = engine.reclaim(&group, MIB);
        assert!(asked() > 0);
    }
}

#[test]
fn workers_of_single_groups_are_bounded_for_each_tenant() {
    let engine = engine();
    let kswapd = engine.kswapd();
    let tenant = limited(&engine, "tenant", 12 * MIB);
    let groups = hundred_below(engine.tree(), &tenant);
    for group in &groups[..8] {
        kswapd.set_dedicated(group, true).unwrap();
    }
    for refused in groups[8..].iter().chain([&tenant]) {
        let error = kswapd.set_dedicated(refused, true).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::QuotaExceeded);
    }
    kswapd.set_dedicated(&limited(&engine, "other", 12 * MIB), true).unwrap();
    kswapd.set_dedicated(&groups[0], false).unwrap();
    kswapd.set_dedicated(&groups[8], true).unwrap();
}
