//! The groups that count as over their soft limit are those that a recount finds, at every level,
//! whatever came before.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use proptest::prelude::*;
use umemcg_group::{Charge, EXCESS_LAG_BYTES, Group, GroupTree, UNLIMITED};

const KIB: u64 = 1 << 10;

fn subtree(root: &Arc<Group>) -> Vec<Arc<Group>> {
    std::iter::successors(Group::next_in_subtree(root, None), |at| Group::next_in_subtree(root, Some(at)))
        .collect()
}

fn set_of(group: &Group) -> Vec<u64> {
    std::iter::successors(group.next_child_in_excess(0), |at| group.next_child_in_excess(at.id()))
        .map(|child| child.id())
        .collect()
}

/// Holds flags against usages, and the sets and counts of every level against the flags.
fn recount(root: &Arc<Group>) {
    let groups = subtree(root);
    // A group in excess and all above it.
    let mut on_the_way = HashSet::new();
    for group in &groups {
        let (usage, soft_limit) = (group.usage_bytes(), group.soft_limit_bytes());
        if group.is_in_excess() {
            assert!(usage > soft_limit.saturating_sub(EXCESS_LAG_BYTES), "{group:?} counts as in excess");
            on_the_way.extend(group.ancestors().map(Group::id));
        } else {
            assert!(usage <= soft_limit, "{group:?} does not count as in excess");
        }
    }
    for group in &groups {
        let expected: Vec<u64> =
            group.children().iter().map(|child| child.id()).filter(|id| on_the_way.contains(id)).collect();
        assert_eq!(set_of(group), expected, "below {group:?}");
        assert_eq!(group.nr_children_in_excess() as usize, expected.len());
        let below = subtree(group).iter().skip(1).filter(|below| below.is_in_excess()).count();
        assert_eq!(group.nr_in_excess_below(), below as u64);
    }
}

#[test]
fn the_lag_is_what_is_published() {
    let tree = GroupTree::new(1 << 30);
    let group = tree.create(tree.root(), OsStr::new("a")).unwrap();
    let soft_limit = 4 * EXCESS_LAG_BYTES;
    group.set_soft_limit(soft_limit);
    let mut all = group.charge_forced(soft_limit);
    assert!(!group.is_in_excess(), "at the limit is not over it");
    let one = group.charge_forced(1);
    assert!(group.is_in_excess() && group.excess_bytes() == 1, "at once");
    drop(one);
    // Uncharges may go to stock first: what counts is the published usage.
    while group.is_in_excess() {
        assert!(
            group.usage_bytes() > soft_limit - EXCESS_LAG_BYTES,
            "it counts for longer than is published"
        );
        drop(all.split(KIB));
        group.drain_stocks();
    }
    assert_eq!(group.usage_bytes(), soft_limit - EXCESS_LAG_BYTES);
    recount(tree.root());
    // A walk that looks need not wait for the lag.
    let more = group.charge_forced(EXCESS_LAG_BYTES + 1);
    assert!(group.is_in_excess());
    drop(more);
    let few = group.charge_forced(1);
    group.update_excess();
    assert!(!group.is_in_excess());
    drop((all, few));
}

#[test]
fn a_soft_limit_counts_once_set_and_not_in_a_removed_group() {
    let tree = GroupTree::new(1 << 30);
    let parent = tree.create(tree.root(), OsStr::new("p")).unwrap();
    let child = tree.create(&parent, OsStr::new("c")).unwrap();
    let charge = child.charge_forced(100 * KIB);
    assert_eq!((child.soft_limit_bytes(), child.excess_bytes()), (UNLIMITED, 0));
    child.set_soft_limit(0);
    assert!(child.is_in_excess() && !parent.is_in_excess());
    assert_eq!((tree.root().nr_in_excess_below(), parent.nr_in_excess_below()), (1, 1));
    child.set_soft_limit(child.usage_bytes());
    assert_eq!(tree.root().nr_children_in_excess(), 0);
    child.set_soft_limit(0);
    tree.remove(&child, |_, _| ()).unwrap();
    assert_eq!((parent.nr_children_in_excess(), tree.root().nr_children_in_excess()), (0, 0));
    child.set_soft_limit(0);
    drop(charge);
    recount(tree.root());
}

#[test]
fn a_charge_that_reaches_the_counter_looks_at_the_limit() {
    let tree = GroupTree::new(1 << 30);
    let group = tree.create(tree.root(), OsStr::new("a")).unwrap();
    group.set_soft_limit(2 * KIB);
    let mut charges = Vec::new();
    while group.usage_bytes() <= 2 * KIB {
        assert!(!group.is_in_excess());
        charges.push(group.try_charge(KIB).unwrap());
    }
    assert!(group.is_in_excess(), "what is in stock counts as well");
    drop(charges);
    group.drain_stocks();
    assert_eq!((group.usage_bytes(), group.is_in_excess()), (0, false));
}

#[derive(Debug, Clone)]
enum Op {
    Create(usize),
    Remove(usize),
    Rename(usize),
    Charge(usize, u64),
    Uncharge(usize),
    SoftLimit(usize, u64),
    Limit(usize, u64),
    Drain(usize),
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let which = 0..64usize;
    let amount = prop_oneof![1..4096u64, Just(4096), (1..400u64).prop_map(|kib| kib * KIB)];
    let limit = prop_oneof![Just(0), Just(UNLIMITED), (1..1000u64).prop_map(|kib| kib * KIB)];
    let op = prop_oneof![
        2 => which.clone().prop_map(Op::Create),
        1 => which.clone().prop_map(Op::Remove),
        1 => which.clone().prop_map(Op::Rename),
        8 => (which.clone(), amount).prop_map(|(at, bytes)| Op::Charge(at, bytes)),
        7 => which.clone().prop_map(Op::Uncharge),
        4 => (which.clone(), limit.clone()).prop_map(|(at, bytes)| Op::SoftLimit(at, bytes)),
        1 => (which.clone(), limit).prop_map(|(at, bytes)| Op::Limit(at, bytes)),
        1 => which.prop_map(Op::Drain),
    ];
    proptest::collection::vec(op, 1..200)
}

/// Groups, and charges on them and on removed ones.
struct World {
    tree: Arc<GroupTree>,
    groups: Vec<Arc<Group>>,
    charges: Vec<Charge>,
    nr_names: u64,
}

impl World {
    fn new() -> Self {
        let tree = GroupTree::new(1 << 40);
        Self { groups: vec![Arc::clone(tree.root())], tree, charges: Vec::new(), nr_names: 0 }
    }

    fn name(&mut self) -> String {
        self.nr_names += 1;
        format!("g{}", self.nr_names)
    }

    fn group(&self, at: usize) -> Arc<Group> {
        Arc::clone(&self.groups[at % self.groups.len()])
    }

    fn run(&mut self, op: &Op) {
        match *op {
            Op::Create(at) => {
                let name = self.name();
                self.groups.extend(self.tree.create(&self.group(at), name.as_ref()));
            }
            Op::Remove(at) => {
                let group = self.group(at);
                if self.tree.remove(&group, |_, _| ()).is_ok() {
                    self.groups.retain(|known| !Arc::ptr_eq(known, &group));
                }
            }
            Op::Rename(at) => {
                let name = self.name();
                let _ = self.tree.rename(&self.group(at), name.as_ref());
            }
            Op::Charge(at, bytes) => self.charges.extend(self.group(at).try_charge(bytes)),
            Op::Uncharge(at) => {
                if !self.charges.is_empty() {
                    drop(self.charges.swap_remove(at % self.charges.len()));
                }
            }
            Op::SoftLimit(at, bytes) => self.group(at).set_soft_limit(bytes),
            Op::Limit(at, bytes) => {
                let group = self.group(at);
                if !group.is_root() {
                    group.store_max(bytes);
                }
            }
            Op::Drain(at) => self.group(at).drain_stocks(),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

    #[test]
    fn after_any_operations_a_recount_agrees(ops in ops()) {
        let mut world = World::new();
        for op in &ops {
            world.run(op);
            recount(world.tree.root());
        }
        world.charges.clear();
        world.tree.root().drain_stocks();
        recount(world.tree.root());
    }
}

/// Threads charge, uncharge, set limits, make and remove groups of one tree; whenever all of them
/// rest, a recount agrees.
#[test]
fn after_any_operations_of_many_threads_a_recount_agrees() {
    const NR_THREADS: u64 = 4;
    const NR_ROUNDS: u64 = 12;
    const NR_OPS: u64 = 2000;
    let tree = GroupTree::new(1 << 40);
    let mut shared = vec![Arc::clone(tree.root())];
    for at in 0..12 {
        // A few deep, a few side by side.
        let above = Arc::clone(&shared[at / 2]);
        shared.push(tree.create(&above, format!("s{at}").as_ref()).unwrap());
    }
    let barrier = std::sync::Barrier::new(NR_THREADS as usize);
    let failed = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let spawn = |thread: u64| {
            let (tree, shared, barrier, failed) = (&tree, &shared, &barrier, &failed);
            scope.spawn(move || {
                let mut random = thread.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
                let mut next = move |below: u64| {
                    random ^= random << 13;
                    random ^= random >> 7;
                    random ^= random << 17;
                    random % below
                };
                let mut charges: Vec<Charge> = Vec::new();
                let mut own: Vec<Arc<Group>> = Vec::new();
                for round in 0..NR_ROUNDS {
                    let busy = catch_unwind(AssertUnwindSafe(|| {
                        for op in 0..NR_OPS {
                            let group = match (next(3), own.last()) {
                                (0, Some(group)) => Arc::clone(group),
                                _ => Arc::clone(&shared[next(shared.len() as u64) as usize]),
                            };
                            match next(16) {
                                0 => group.set_soft_limit([0, UNLIMITED, next(4096) * KIB][next(3) as usize]),
                                1 if own.len() < 16 => {
                                    let name = format!("t{thread}-{round}-{op}");
                                    own.extend(tree.create(&group, name.as_ref()));
                                }
                                2 if !own.is_empty() => {
                                    let victim = next(own.len() as u64) as usize;
                                    if tree.remove(&own[victim], |_, _| ()).is_ok() {
                                        own.swap_remove(victim);
                                    }
                                }
                                3 if next(50) == 0 => group.drain_stocks(),
                                4..=9 if charges.len() < 400 => {
                                    charges.extend(group.try_charge(1 + next(64 * KIB)))
                                }
                                _ if charges.is_empty() => {}
                                _ => drop(charges.swap_remove(next(charges.len() as u64) as usize)),
                            }
                        }
                    }));
                    barrier.wait();
                    let recounted =
                        thread != 0 || catch_unwind(AssertUnwindSafe(|| recount(tree.root()))).is_ok();
                    if busy.is_err() || !recounted {
                        // The others must not wait for us for ever.
                        failed.store(true, Relaxed);
                    }
                    barrier.wait();
                    if failed.load(Relaxed) {
                        break;
                    }
                }
            })
        };
        // Joined, since the end of a scope does not wait for what threads do when they end: their
        // stocks go back.
        let threads: Vec<_> = (0..NR_THREADS).map(spawn).collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
    assert!(!failed.load(Relaxed), "see above");
    // All threads have ended, their charges and stocks are given back.
    recount(tree.root());
}
