//! Shrinkers in reclaim: which are asked, how much is freed, and that nothing is lost when groups
//! or shrinkers are removed.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, Weak};

use crate::support::numbers::{Numbers, OBJECT_BYTES};
use crate::support::{create, reclaimer, remove};
use umemcg_group::{Group, StatItem};
use umemcg_reclaim::shrinker::{Count, Scan, Scanned, ShrinkTarget, Shrinker, Usage};
use umemcg_reclaim::{ChargeEffort, ListLru, Reason, Reclaimer, Verdict};

const POOL: u64 = 64 << 20;

#[test]
fn a_charge_at_the_limit_frees_objects_and_succeeds() {
    let (tree, reclaimer) = reclaimer(POOL);
    let (numbers, _registered) = Numbers::register(&reclaimer, "numbers");
    let group = create(&tree, tree.root(), "a");
    let other = create(&tree, tree.root(), "b");
    for _ in 0..1000 {
        numbers.insert(&group);
        numbers.insert(&other);
    }
    group.store_max(group.usage_bytes());
    let charge = reclaimer.charge(&group, 100 * OBJECT_BYTES, ChargeEffort::Full).unwrap();
    assert!(group.usage_bytes() <= group.max_bytes());
    assert!(numbers.lru().count(&group) <= 900);
    assert_eq!(numbers.lru().count(&other), 1000, "the neighbour keeps all of its objects");
    drop(charge);
}

#[test]
fn pressure_on_an_ancestor_reaches_objects_of_all_below() {
    let (tree, reclaimer) = reclaimer(POOL);
    let (numbers, _registered) = Numbers::register(&reclaimer, "numbers");
    let top = create(&tree, tree.root(), "top");
    let groups: Vec<_> = (0..5).map(|n| create(&tree, &top, &n.to_string())).collect();
    for group in &groups {
        (0..500).for_each(|_| _ = numbers.insert(group));
    }
    reclaimer.reclaim(&top, u64::MAX, Reason::Proactive);
    assert_eq!(numbers.len(), 0);
    assert_eq!(top.stat_total(StatItem::SlabReclaimable), 0);
    assert_eq!(reclaimer.nr_list_slots(), 0);
}

#[test]
fn only_groups_and_shrinkers_that_have_something_are_asked() {
    let (tree, reclaimer) = reclaimer(POOL);
    let shrinkers: Vec<_> = (0..200).map(|n| Numbers::register(&reclaimer, &n.to_string())).collect();
    let groups: Vec<_> = (0..100).map(|n| create(&tree, tree.root(), &n.to_string())).collect();
    for (numbers, _) in &shrinkers {
        numbers.insert(&groups[7]);
    }
    let asked = || shrinkers.iter().map(|(numbers, _)| numbers.nr_counts.swap(0, Relaxed)).sum::<u64>();
    reclaimer.drop_slab(tree.root());
    assert!((200..=1000).contains(&asked()), "each shrinker for one group, some times");
    assert!(shrinkers.iter().all(|(numbers, _)| numbers.len() == 0));
    // The pass that finds nothing clears the bits; from then on no shrinker is asked.
    reclaimer.drop_slab(tree.root());
    asked();
    reclaimer.drop_slab(tree.root());
    assert_eq!(asked(), 0);
    // One new object, and just its shrinker is asked again.
    shrinkers[150].0.insert(&groups[3]);
    reclaimer.drop_slab(tree.root());
    assert_eq!(shrinkers[150].0.len(), 0);
    assert_eq!(shrinkers[..150].iter().map(|(numbers, _)| numbers.nr_counts.load(Relaxed)).sum::<u64>(), 0);
}

#[test]
fn objects_of_a_removed_group_are_freed_through_its_parent() {
    let (tree, reclaimer) = reclaimer(POOL);
    let (numbers, _registered) = Numbers::register(&reclaimer, "numbers");
    let parent = create(&tree, tree.root(), "parent");
    let child = create(&tree, &parent, "child");
    let kept: Vec<u64> = (0..50).map(|_| numbers.insert(&child)).collect();
    remove(&tree, &reclaimer, &child);
    drop(child);
    assert_eq!(numbers.lru().count(&parent), 50);
    assert!(numbers.remove(kept[10]), "an object of the removed group leaves the parent's list");
    assert_eq!(numbers.lru().count(&parent), 49);
    reclaimer.drop_slab(&parent);
    assert_eq!(numbers.len(), 0);
    reclaimer.drop_slab(&parent);
    parent.drain_stocks();
    assert_eq!(parent.usage_bytes(), 0, "lists and bookkeeping included");
}

#[test]
fn a_shrinker_that_unregisters_is_never_asked_again() {
    let (tree, reclaimer) = reclaimer(POOL);
    let (numbers, registered) = Numbers::register(&reclaimer, "numbers");
    let kept: Vec<u64> = (0..10).map(|_| numbers.insert(tree.root())).collect();
    drop(registered);
    reclaimer.drop_slab(tree.root());
    assert_eq!((numbers.len(), numbers.nr_counts.load(Relaxed)), (10, 0));
    kept.into_iter().for_each(|number| assert!(numbers.remove(number)));
    drop(numbers);
    // The number is used again, and what the first left behind does no harm.
    let (second, _registered) = Numbers::register(&reclaimer, "second");
    second.insert(tree.root());
    reclaimer.drop_slab(tree.root());
    assert_eq!(second.len(), 0);
}

#[test]
fn the_object_table_shows_every_shrinker_of_the_group_only() {
    let (tree, reclaimer) = reclaimer(POOL);
    let (first, _a) = Numbers::register(&reclaimer, "first");
    let (second, _b) = Numbers::register(&reclaimer, "second");
    let group = create(&tree, tree.root(), "a");
    (0..3).for_each(|_| _ = first.insert(&group));
    second.insert(tree.root());
    let table = reclaimer.slab_usage(&group);
    assert_eq!(table.len(), 1);
    assert_eq!((table[0].name.as_str(), table[0].usage.objects), ("first", 3));
    assert_eq!(table[0].usage.bytes, 3 * OBJECT_BYTES);
}

#[test]
fn groups_and_shrinkers_removed_under_reclaim_leave_nothing() {
    let (tree, reclaimer) = reclaimer(POOL);
    let stop = AtomicBool::new(false);
    let (shared, shared_registration) = Numbers::register(&reclaimer, "shared");
    std::thread::scope(|scope| {
        let reclaiming: Vec<_> = (0..2)
            .map(|_| {
                scope.spawn(|| {
                    while !stop.load(Relaxed) {
                        reclaimer.reclaim_unless(tree.root(), 64, Reason::Proactive, &|| stop.load(Relaxed));
                    }
                })
            })
            .collect();
        let churning: Vec<_> = (0..3)
            .map(|thread| {
                let (tree, reclaimer, shared) = (&tree, &reclaimer, &shared);
                scope.spawn(move || {
                    for round in 0..600 {
                        let outer = create(tree, tree.root(), &format!("{thread}-{round}"));
                        let inner = create(tree, &outer, "inner");
                        let (own, own_registration) = Numbers::register(reclaimer, "own");
                        let mine: Vec<u64> = (0..40)
                            .map(|n| {
                                own.insert(if n % 2 == 0 { &inner } else { &outer });
                                shared.insert(&inner)
                            })
                            .collect();
                        remove(tree, reclaimer, &inner);
                        // Half of them by hand, against the shrinkers; the others are the parent's.
                        for &number in mine.iter().step_by(2) {
                            shared.remove(number);
                        }
                        reclaimer.drop_slab(&outer);
                        while own.len() > 0 {
                            reclaimer.reclaim(tree.root(), 64, Reason::Proactive);
                        }
                        remove(tree, reclaimer, &outer);
                        drop(own_registration);
                    }
                })
            })
            .collect();
        churning.into_iter().for_each(|thread| thread.join().unwrap());
        stop.store(true, Relaxed);
        reclaiming.into_iter().for_each(|thread| thread.join().unwrap());
    });
    while shared.len() > 0 {
        reclaimer.drop_slab(tree.root());
    }
    reclaimer.drop_slab(tree.root());
    drop(shared_registration);
    assert_eq!((reclaimer.nr_list_slots(), reclaimer.nr_shrinkers()), (0, 0));
    let root = tree.root();
    for item in [StatItem::SlabReclaimable, StatItem::SlabUnreclaimable] {
        assert_eq!((root.stat_local(item), root.stat_total(item)), (0, 0), "{item:?}");
    }
    root.drain_stocks();
    assert_eq!(root.usage_bytes(), 0);
    assert!(Arc::strong_count(root) >= 1);
}

#[test]
fn an_object_can_be_removed_while_a_walk_rotates_it() {
    let (tree, reclaimer) = reclaimer(POOL);
    let id = reclaimer.reserve_shrinker();
    let lru = ListLru::new(&reclaimer, &id, 0);
    let owner = tree.root().owner();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Relaxed) {
                lru.walk(tree.root(), 8, |_, _, _| Verdict::Rotate);
            }
        });
        for round in 0..50_000 {
            let slot = lru.reserve(round).unwrap();
            assert!(lru.add(owner, slot));
            assert!(lru.remove(slot), "it is on the list until we take it off");
            lru.release(slot);
        }
        stop.store(true, Relaxed);
    });
}

#[test]
fn an_object_leaves_the_list_that_its_group_was_spliced_to() {
    let (tree, reclaimer) = reclaimer(POOL);
    let id = reclaimer.reserve_shrinker();
    let lru = ListLru::new(&reclaimer, &id, 0);
    let parent = create(&tree, tree.root(), "a");
    let child = create(&tree, &parent, "b");
    let charge = child.try_charge(4096).unwrap();
    let [first, second, third, other] = [0, 1, 2, 9].map(|token| lru.reserve(token).unwrap());
    lru.add(tree.root().owner(), other);
    for slot in [first, second, third] {
        lru.add(charge.owner(), slot);
    }
    remove(&tree, &reclaimer, &child);
    // The parent is marked as removed, and has the list still.
    let splice = |dying: &Arc<Group>, root: &Arc<Group>| {
        assert!(lru.remove(second) && lru.touch(first));
        reclaimer.splice_to_parent(dying, root);
    };
    tree.remove(&parent, splice).unwrap();
    let mut left = Vec::new();
    lru.walk(tree.root(), 9, |_, token, _| {
        left.push(token);
        Verdict::Removed
    });
    assert_eq!((left, lru.count(tree.root())), (vec![9, 2, 0], 0));
}

/// Keeps the number of its objects by group. Before it takes over from a removed group, the parent
/// is reclaimed.
#[derive(Debug)]
struct ByGroup {
    objects: Mutex<HashMap<u64, u64>>,
    reclaimer: Weak<Reclaimer>,
}

impl Shrinker for ByGroup {
    fn name(&self) -> String {
        "by-group".into()
    }

    fn count(&self, target: &ShrinkTarget<'_>) -> Count {
        match self.objects.lock().unwrap().get(&target.group.id()) {
            Some(&nr @ 1..) => Count::Objects(nr),
            _ => Count::Empty,
        }
    }

    fn scan(&self, target: &ShrinkTarget<'_>, nr: u64) -> Scan {
        let mut objects = self.objects.lock().unwrap();
        let Some(left) = objects.get_mut(&target.group.id()) else { return Scan::Stop };
        let scanned = nr.min(*left);
        *left -= scanned;
        Scan::Done(Scanned { scanned, freed_bytes: scanned * OBJECT_BYTES, releasing_bytes: 0 })
    }

    fn usage(&self, _: &ShrinkTarget<'_>) -> Usage {
        Usage::default()
    }

    fn reparent(&self, dying: &Arc<Group>, parent: &Arc<Group>) {
        self.reclaimer.upgrade().unwrap().drop_slab(parent);
        let mut objects = self.objects.lock().unwrap();
        let moved = objects.remove(&dying.id()).unwrap_or(0);
        *objects.entry(parent.id()).or_default() += moved;
    }
}

#[test]
fn objects_that_a_shrinker_keeps_by_group_go_to_the_parent() {
    let (tree, reclaimer) = reclaimer(POOL);
    let id = reclaimer.reserve_shrinker();
    let group = create(&tree, tree.root(), "a");
    let objects = Mutex::new(HashMap::from([(group.id(), 50)]));
    let shrinker = Arc::new(ByGroup { objects, reclaimer: Arc::downgrade(&reclaimer) });
    let number = id.get();
    let _registered = reclaimer.register_shrinker(id, Arc::<ByGroup>::clone(&shrinker));
    reclaimer.note_objects(&group, number);
    remove(&tree, &reclaimer, &group);
    reclaimer.drop_slab(tree.root());
    assert_eq!(shrinker.objects.lock().unwrap()[&tree.root().id()], 0);
}

#[test]
fn reclaim_from_a_group_that_was_removed_ends() {
    let (tree, reclaimer) = reclaimer(POOL);
    let group = create(&tree, tree.root(), "a");
    let child = create(&tree, &group, "b");
    remove(&tree, &reclaimer, &child);
    remove(&tree, &reclaimer, &group);
    for gone in [&group, &child] {
        assert_eq!(reclaimer.reclaim(gone, 1, Reason::Proactive).pages(), 0);
    }
}
