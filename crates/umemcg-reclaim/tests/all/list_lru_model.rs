//! Random list operations against plain deques: adds, removals, touches, walks with every verdict,
//! and removal of groups.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use crate::support::{create, reclaimer, remove};
use proptest::prelude::*;
use umemcg_group::{Charge, Group};
use umemcg_reclaim::{ListLru, ListSlot, Verdict};

#[derive(Debug, Clone)]
enum Op {
    Add(u8),
    Remove(u8),
    Touch(u8),
    Walk(u8, u8, Vec<u8>),
    RemoveGroup(u8),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => any::<u8>().prop_map(Op::Add),
        2 => any::<u8>().prop_map(Op::Remove),
        1 => any::<u8>().prop_map(Op::Touch),
        2 => (any::<u8>(), 0u8..12, prop::collection::vec(0u8..5, 1..6)).prop_map(|(g, n, v)| Op::Walk(g, n, v)),
        1 => any::<u8>().prop_map(Op::RemoveGroup),
    ]
}

/// Objects 0..24; object n belongs to group n % 3.
const NR_OBJECTS: u8 = 24;

struct World {
    groups: Vec<Arc<Group>>,
    /// The group that stands for each of them by now: itself, or the root.
    alive: [bool; 3],
    slots: Vec<ListSlot>,
    charges: Vec<Charge>,
    /// By group, 3 for the root; oldest first.
    lists: HashMap<usize, VecDeque<u8>>,
}

impl World {
    fn home(&self, object: u8) -> usize {
        let group = usize::from(object % 3);
        if self.alive[group] { group } else { 3 }
    }

    fn list(&mut self, object: u8) -> &mut VecDeque<u8> {
        let home = self.home(object);
        self.lists.entry(home).or_default()
    }

    fn take(&mut self, object: u8) -> bool {
        let list = self.list(object);
        let place = list.iter().position(|&o| o == object);
        place.is_some_and(|at| list.remove(at).is_some())
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]
    #[test]
    fn lists_do_what_deques_do(ops in prop::collection::vec(op(), 1..120)) {
        let (tree, reclaimer) = reclaimer(16 << 20);
        let id = reclaimer.reserve_shrinker();
        let lru = ListLru::new(&reclaimer, &id, 0);
        let groups: Vec<_> = (0..3).map(|n| create(&tree, tree.root(), &n.to_string())).collect();
        let slots = (0..NR_OBJECTS).map(|n| lru.reserve(u64::from(n)).unwrap()).collect();
        let charges = (0..NR_OBJECTS).map(|n| groups[usize::from(n % 3)].charge_forced(10)).collect();
        let mut world = World { groups, alive: [true; 3], slots, charges, lists: HashMap::new() };
        for op in ops {
            match op {
                Op::Add(n) => {
                    let n = n % NR_OBJECTS;
                    let is_new = !world.list(n).contains(&n);
                    if is_new {
                        world.list(n).push_back(n);
                    }
                    let owner = world.charges[usize::from(n)].owner();
                    prop_assert_eq!(lru.add(owner, world.slots[usize::from(n)]), is_new);
                }
                Op::Remove(n) => {
                    let n = n % NR_OBJECTS;
                    let was_there = world.take(n);
                    prop_assert_eq!(lru.remove(world.slots[usize::from(n)]), was_there);
                }
                Op::Touch(n) => {
                    let n = n % NR_OBJECTS;
                    let was_there = world.take(n);
                    if was_there {
                        world.list(n).push_back(n);
                    }
                    prop_assert_eq!(lru.touch(world.slots[usize::from(n)]), was_there);
                }
                Op::Walk(group, nr, verdicts) => {
                    let group = usize::from(group % 4);
                    let target = if group == 3 { Arc::clone(tree.root()) } else { Arc::clone(&world.groups[group]) };
                    let mut seen = Vec::new();
                    let mut turn = verdicts.iter().cycle();
                    let verdict = |code: u8| match code {
                        0 => Verdict::Removed,
                        1 => Verdict::Rotate,
                        2 => Verdict::Skip,
                        3 => Verdict::Retry,
                        _ => Verdict::Stop,
                    };
                    let removed = lru.walk(&target, u64::from(nr), |list, token, slot| {
                        seen.push(token as u8);
                        match *turn.next().unwrap() {
                            // By hand, with the lock away for a moment.
                            0 if token % 3 == 0 => {
                                list.isolate(slot);
                                list.unlocked(|| ());
                                Verdict::RemovedRetry
                            }
                            code => verdict(code),
                        }
                    });
                    // The same on the deque.
                    let list = world.lists.entry(group).or_default();
                    let (mut at, mut expected, mut nr_removed) = (0, Vec::new(), 0);
                    let mut turn = verdicts.iter().cycle();
                    for _ in 0..nr {
                        let Some(&object) = list.get(at) else { break };
                        expected.push(object);
                        match *turn.next().unwrap() {
                            0 => {
                                list.remove(at);
                                nr_removed += 1;
                                if object % 3 == 0 {
                                    at = 0;
                                }
                            }
                            1 => {
                                let is_last = at + 1 == list.len();
                                list.remove(at);
                                list.push_back(object);
                                if is_last {
                                    break;
                                }
                            }
                            2 => at += 1,
                            3 => at = 0,
                            _ => break,
                        }
                    }
                    prop_assert_eq!(&seen, &expected);
                    prop_assert_eq!(removed, nr_removed);
                }
                Op::RemoveGroup(group) => {
                    let group = usize::from(group % 3);
                    if !std::mem::replace(&mut world.alive[group], false) {
                        continue;
                    }
                    remove(&tree, &reclaimer, &world.groups[group]);
                    let moved = world.lists.remove(&group).unwrap_or_default();
                    world.lists.entry(3).or_default().extend(moved);
                }
            }
            for group in 0..4 {
                let target = if group == 3 { tree.root() } else { &world.groups[group] };
                let expected = world.lists.get(&group).map_or(0, VecDeque::len);
                prop_assert_eq!(lru.count(target), expected as u64);
            }
        }
        for &slot in &world.slots {
            lru.remove(slot);
            lru.release(slot);
        }
        prop_assert_eq!(reclaimer.nr_list_slots(), 0);
    }
}
