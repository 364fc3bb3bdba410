//! Shrinkers that cannot free by themselves: they request a release, another party frees, and
//! reclaim waits for it a little.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};

use crate::support::{create, reclaimer};
use umemcg_group::{Charge, EventKind};
use umemcg_reclaim::shrinker::{Count, Scan, Scanned, ShrinkTarget, Shrinker, Usage};
use umemcg_reclaim::{ChargeEffort, Reason};

const POOL: u64 = 64 << 20;
const OBJECT: u64 = 1000;
const NR: u64 = 2000;

/// Objects that the other end frees, if there is one.
#[derive(Debug)]
struct Requesting {
    left: AtomicU64,
    asked: AtomicU64,
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
        self.asked.fetch_add(nr, Relaxed);
        if let Some(to) = &*self.to.lock().unwrap() {
            self.left.fetch_sub(nr, Relaxed);
            to.send(nr).unwrap();
        }
        Scan::Done(Scanned { scanned: nr, freed_bytes: 0, releasing_bytes: nr * OBJECT })
    }
    fn usage(&self, _: &ShrinkTarget<'_>) -> Usage {
        Usage::default()
    }
}

fn requesting(to: Option<Sender<u64>>) -> Arc<Requesting> {
    Arc::new(Requesting { left: NR.into(), asked: 0.into(), to: Mutex::new(to) })
}

/// Reclaim waits for no more than 120 ms in vain, in which the thread that frees may not run.
#[test]
fn a_requested_release_makes_room_and_no_more_is_asked_for() {
    // A cluster of pages is 131 objects; a priority too many doubles that.
    let is_so = |outcome: &(bool, u64)| outcome.0 && (4..NR).contains(&outcome.1);
    let outcomes = std::iter::repeat_with(charge_above_requested).take(20);
    let mut outcomes = outcomes.inspect(|outcome| eprintln!("{outcome:?} of {NR} objects for one page"));
    assert!(outcomes.any(|outcome| is_so(&outcome)));
}

/// Returns whether a page could be charged without an event, and how many objects were asked for.
fn charge_above_requested() -> (bool, u64) {
    let (tree, reclaimer) = reclaimer(POOL);
    let group = create(&tree, tree.root(), "a");
    let (to, asked) = channel();
    let shrinker = requesting(Some(to));
    let id = reclaimer.reserve_shrinker();
    let number = id.get();
    let _registered = reclaimer.register_shrinker(id, Arc::<Requesting>::clone(&shrinker));
    let mut objects: Vec<Charge> = (0..NR).map(|_| group.charge_forced(OBJECT)).collect();
    reclaimer.note_objects(&group, number);
    group.store_max(group.usage_bytes());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for nr in asked {
                objects.truncate(objects.len() - nr as usize);
                reclaimer.note_released(&group, nr * OBJECT);
            }
        });
        let charge = reclaimer.charge(&group, 4096, ChargeEffort::Full);
        let is_within = group.usage_bytes() <= group.max_bytes();
        let made_room = charge.is_ok() && is_within && group.event_count(EventKind::Oom) == 0;
        drop(charge);
        shrinker.to.lock().unwrap().take();
        (made_room, shrinker.asked.load(Relaxed))
    })
}

#[test]
fn a_release_that_does_not_happen_is_given_up() {
    let (tree, reclaimer) = reclaimer(POOL);
    let group = create(&tree, tree.root(), "a");
    let shrinker = requesting(None);
    let id = reclaimer.reserve_shrinker();
    let number = id.get();
    let _registered = reclaimer.register_shrinker(id, Arc::<Requesting>::clone(&shrinker));
    let objects: Vec<Charge> = (0..NR).map(|_| group.charge_forced(OBJECT)).collect();
    reclaimer.note_objects(&group, number);
    group.store_max(group.usage_bytes());
    let progress = reclaimer.reclaim(&group, 32, Reason::Direct);
    assert_eq!(progress.pages(), 0);
    assert!(progress.releasing_bytes > 0);
    assert!(reclaimer.charge(&group, 4096, ChargeEffort::Opportunistic).is_err());
    assert_eq!(objects.len() as u64, shrinker.left.load(Relaxed));
}
