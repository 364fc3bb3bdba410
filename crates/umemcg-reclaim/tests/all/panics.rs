//! Shrinkers that panic: a charge gets its room from others, registers stay right, and no other
//! caller sees the panic.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{
    AtomicBool, AtomicU64,
    Ordering::{Relaxed, SeqCst},
};
use std::time::{Duration, Instant};

use crate::support::numbers::{Numbers, OBJECT_BYTES};
use crate::support::{create, reclaimer, remove};
use umemcg_group::Group;
use umemcg_reclaim::shrinker::{Count, Scan, Scanned, ShrinkTarget, Shrinker, Usage};
use umemcg_reclaim::{ChargeEffort, Kswapd, Reason, Reclaimer};

const POOL: u64 = 64 << 20;

/// The call in which a shrinker panics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Where {
    Name,
    Seeks,
    Batch,
    Count,
    Scan,
    Usage,
    Reparent,
    Drop,
}

const EVERYWHERE: [Where; 8] = [
    Where::Name,
    Where::Seeks,
    Where::Batch,
    Where::Count,
    Where::Scan,
    Where::Usage,
    Where::Reparent,
    Where::Drop,
];

/// Says that it has objects, and panics in one place as long as it is told to.
#[derive(Debug)]
struct Panicking {
    place: Where,
    is_armed: Arc<AtomicBool>,
    nr_panics: Arc<AtomicU64>,
}

impl Panicking {
    fn pass(&self, place: Where) {
        if place == self.place && self.is_armed.load(Relaxed) {
            self.nr_panics.fetch_add(1, Relaxed);
            panic!("a shrinker panics in {place:?}");
        }
    }
}

impl Shrinker for Panicking {
    fn name(&self) -> String {
        self.pass(Where::Name);
        "panicking".into()
    }
    fn seeks(&self) -> u32 {
        self.pass(Where::Seeks);
        2
    }
    fn batch(&self) -> u64 {
        self.pass(Where::Batch);
        128
    }
    fn count(&self, _target: &ShrinkTarget<'_>) -> Count {
        self.pass(Where::Count);
        Count::Objects(1000)
    }
    fn scan(&self, _target: &ShrinkTarget<'_>, nr: u64) -> Scan {
        self.pass(Where::Scan);
        Scan::Done(Scanned { scanned: nr, freed_bytes: 0, releasing_bytes: 0 })
    }
    fn usage(&self, _target: &ShrinkTarget<'_>) -> Usage {
        self.pass(Where::Usage);
        Usage { objects: 1000, reclaimable: 1000, bytes: 0 }
    }
    fn reparent(&self, _dying: &Arc<Group>, _parent: &Arc<Group>) {
        self.pass(Where::Reparent);
    }
}

impl Drop for Panicking {
    fn drop(&mut self) {
        self.pass(Where::Drop);
    }
}

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !is_so() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn limited(reclaimer: &Reclaimer, name: &str, numbers: &Numbers, nr: u64) -> Arc<Group> {
    let tree = reclaimer.tree();
    let group = create(tree, tree.root(), name);
    (0..nr).for_each(|_| _ = numbers.insert(&group));
    group.store_max(group.usage_bytes());
    group
}

#[test]
fn a_charge_gets_room_from_the_shrinkers_that_do_not_panic() {
    for place in EVERYWHERE {
        let (tree, reclaimer) = reclaimer(POOL);
        let (is_armed, nr_panics) = (Arc::new(AtomicBool::new(true)), Arc::new(AtomicU64::new(0)));
        let id = reclaimer.reserve_shrinker();
        let number = id.get();
        let shrinker = Panicking { place, is_armed: is_armed.clone(), nr_panics: nr_panics.clone() };
        let registered = reclaimer.register_shrinker(id, Arc::new(shrinker));
        let (numbers, _registered) = Numbers::register(&reclaimer, "numbers");
        let group = limited(&reclaimer, "a", &numbers, 1000);
        reclaimer.note_objects(&group, number);
        let charge = reclaimer.charge(&group, 100 * OBJECT_BYTES, ChargeEffort::Full).unwrap();
        assert!(group.usage_bytes() <= group.max_bytes(), "{place:?}");
        drop(charge);
        reclaimer.reclaim(&group, u64::MAX, Reason::Proactive);
        assert_eq!(numbers.len(), 0, "{place:?}");
        let table = reclaimer.slab_usage(&group);
        let is_shown = !matches!(place, Where::Name | Where::Usage);
        assert_eq!(table.iter().any(|line| line.name == "panicking"), is_shown, "{place:?}");
        remove(&tree, &reclaimer, &group);
        // Waits for walks that use it, of which there are none.
        drop(registered);
        assert!(nr_panics.load(Relaxed) > 0, "{place:?} was never reached");
        reclaimer.drop_slab(tree.root());
        drop(group);
        tree.root().drain_stocks();
        assert_eq!(tree.root().usage_bytes(), 0, "{place:?}");
    }
}

/// Stays in its count until it may go on.
#[derive(Debug, Default)]
struct Slow {
    is_counting: AtomicBool,
    may_go_on: AtomicBool,
    has_counted: AtomicBool,
}

impl Shrinker for Slow {
    fn name(&self) -> String {
        "slow".into()
    }
    fn count(&self, _target: &ShrinkTarget<'_>) -> Count {
        self.is_counting.store(true, SeqCst);
        until("it may go on", || self.may_go_on.load(SeqCst));
        self.has_counted.store(true, SeqCst);
        Count::Empty
    }
    fn scan(&self, _target: &ShrinkTarget<'_>, _nr: u64) -> Scan {
        Scan::Stop
    }
    fn usage(&self, _target: &ShrinkTarget<'_>) -> Usage {
        Usage::default()
    }
}

#[test]
fn a_thread_that_saw_a_panic_still_waits_for_walks() {
    let (tree, reclaimer) = reclaimer(POOL);
    let [bad, good] = ["bad", "good"].map(|name| create(&tree, tree.root(), name));
    let id = reclaimer.reserve_shrinker();
    reclaimer.note_objects(&bad, id.get());
    let (is_armed, nr_panics) = (Arc::new(AtomicBool::new(true)), Arc::default());
    let _panicking =
        reclaimer.register_shrinker(id, Arc::new(Panicking { place: Where::Scan, is_armed, nr_panics }));
    let _ = catch_unwind(AssertUnwindSafe(|| reclaimer.drop_slab(&bad)));
    let id = reclaimer.reserve_shrinker();
    reclaimer.note_objects(&good, id.get());
    let slow = Arc::new(Slow::default());
    let registered = reclaimer.register_shrinker(id, Arc::<Slow>::clone(&slow));
    std::thread::scope(|scope| {
        scope.spawn(|| reclaimer.drop_slab(&good));
        until("the walk is inside", || slow.is_counting.load(SeqCst));
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(20));
            slow.may_go_on.store(true, SeqCst);
        });
        drop(registered);
        assert!(slow.has_counted.load(SeqCst), "the walk was over before");
    });
}

#[test]
fn background_reclaim_of_a_group_goes_on_after_panics() {
    let (tree, reclaimer) = reclaimer(POOL);
    let _kswapd = Kswapd::start(&reclaimer, 1).unwrap();
    let (is_armed, nr_panics) = (Arc::new(AtomicBool::new(true)), Arc::new(AtomicU64::new(0)));
    let id = reclaimer.reserve_shrinker();
    let number = id.get();
    let place = Where::Scan;
    let shrinker = Panicking { place, is_armed: is_armed.clone(), nr_panics: nr_panics.clone() };
    let _panicking = reclaimer.register_shrinker(id, Arc::new(shrinker));
    let (numbers, _registered) = Numbers::register(&reclaimer, "numbers");
    let group = create(&tree, tree.root(), "a");
    group.store_max(1 << 20);
    reclaimer.note_objects(&group, number);
    reclaimer.set_high_wmark_distance(&group, 512 << 10).unwrap();
    reclaimer.set_low_wmark_distance(&group, 256 << 10).unwrap();
    for round in 1..=3 {
        let before = nr_panics.load(Relaxed);
        while group.usage_bytes() < 900 << 10 {
            numbers.insert(&group);
        }
        // Each time: it is asked, it panics, and the others bring the group below its mark.
        until(&format!("round {round}"), || {
            numbers.insert(&group);
            group.usage_bytes() < 512 << 10 && nr_panics.load(Relaxed) > before
        });
    }
}
