//! Names that a group has beyond its limit, while the group goes or its limit moves.

use std::ffi::OsStr;
use std::sync::{Arc, Mutex, RwLock};
use std::thread;

use crate::common::{Fixture, ROOT, errno, name};
use rustix::io::Errno;
use umemcg::{Group, StatItem};
use umemcg_vfs::{Caller, Lookup, NR_NAMES_BEYOND_MAX, NodeId};

/// What a name costs with its inode.
const NAME_BYTES: u64 = 344;
/// Names that fit in a group of [`LIMIT`].
const NR_WITHIN: u64 = 200;
const LIMIT: u64 = NR_WITHIN * NAME_BYTES;
/// More than a group may have within and beyond its limit.
const NR_FILES: usize = 2 * NR_WITHIN as usize + NR_NAMES_BEYOND_MAX + 100;

fn usage(group: &Arc<Group>) -> u64 {
    group.drain_stocks();
    group.usage_bytes()
}

/// Bytes of names that a group pays for, those below it included.
fn names_of(group: &Arc<Group>) -> u64 {
    group.stat_total(StatItem::SlabReclaimable) as u64
}

/// The names of so many files; the directory has them.
fn files(v: &Fixture, nr: usize) -> Vec<String> {
    let names: Vec<_> = (0..nr).map(|n| format!("f{n}")).collect();
    names.iter().for_each(|n| std::fs::write(v.host(n), "").unwrap());
    names
}

fn group_below(v: &Fixture, parent: &Arc<Group>, n: &str, limit: u64) -> Caller {
    let group = v.engine.create_group(parent, OsStr::new(n)).unwrap();
    v.engine.set_max(&group, limit);
    Caller { group, ..v.root.clone() }
}

/// Looks names up until one is refused or all are known.
fn look_up(v: &Fixture, caller: &Caller, names: &[String]) -> Vec<NodeId> {
    let mut nodes = Vec::new();
    for n in names {
        match v.vfs.lookup(caller, ROOT, name(n)) {
            Ok(entry) => nodes.push(entry.node),
            refused => {
                assert_eq!(errno(refused), Errno::NOMEM);
                break;
            }
        }
    }
    nodes
}

fn forget(v: &Fixture, nodes: impl IntoIterator<Item = NodeId>) {
    nodes.into_iter().for_each(|node| v.vfs.forget(node, 1));
}

/// What the root pays for, in total and for groups.
fn charged(v: &Fixture) -> (u64, i64) {
    (usage(v.engine.root()), v.engine.root().stat_total(StatItem::GroupState))
}

#[test]
fn names_beyond_a_limit_outlive_their_group() {
    let v = Fixture::new();
    let names = files(&v, NR_FILES);
    // The lists of the root stay.
    forget(&v, look_up(&v, &v.root, &names[..1]));
    let before = charged(&v);
    for limit in [0, LIMIT] {
        let parent = group_below(&v, v.engine.root(), "parent", LIMIT);
        let child = group_below(&v, &parent.group, "child", limit);
        let nodes = look_up(&v, &child, &names);
        assert!((NR_NAMES_BEYOND_MAX..NR_FILES).contains(&nodes.len()), "{}", nodes.len());
        let all = names_of(v.engine.root());
        v.engine.remove_group(&child.group).unwrap();
        drop(child);
        assert_eq!(names_of(v.engine.root()), all);
        // Some go while the parent has them, some while the root has.
        let (first, rest) = nodes.split_at(nodes.len() / 2);
        forget(&v, first.iter().copied());
        let again = look_up(&v, &parent, &names[..first.len()]);
        assert_eq!(again.len(), first.len(), "the parent has an allowance of its own");
        v.engine.remove_group(&parent.group).unwrap();
        drop(parent);
        forget(&v, rest.iter().copied().chain(again));
        assert_eq!((names_of(v.engine.root()), v.vfs.nr_inodes()), (0, 1));
        assert_eq!(charged(&v), before, "with a limit of {limit}");
    }
}

#[test]
fn names_come_back_within_a_limit_that_is_raised() {
    let v = Fixture::new();
    let names = files(&v, NR_FILES);
    let tenant = group_below(&v, v.engine.root(), "tenant", LIMIT);
    let local = |group: &Arc<Group>| group.stat_local(StatItem::SlabReclaimable) as u64;
    let mut nodes = look_up(&v, &tenant, &names);
    let nr = nodes.len();
    assert_eq!(local(v.engine.root()), NR_NAMES_BEYOND_MAX as u64 * NAME_BYTES);

    let raised = LIMIT + (NR_NAMES_BEYOND_MAX as u64 + 100) * NAME_BYTES;
    v.engine.set_max(&tenant.group, raised);
    nodes.extend(look_up(&v, &tenant, &names[nr..=nr]));
    assert_eq!(nodes.len(), nr + 1);
    assert_eq!(local(v.engine.root()), 0, "the group pays for its names where it has room");
    assert_eq!(local(&tenant.group), (nr as u64 + 1) * NAME_BYTES);

    // Lowered again, what the group has it keeps, and it has its allowance again.
    v.engine.set_max(&tenant.group, LIMIT);
    nodes.extend(look_up(&v, &tenant, &names[nr + 1..]));
    assert_eq!(nodes.len(), NR_FILES);
    let nr_beyond = NR_FILES as u64 - nr as u64 - 1;
    assert_eq!(local(v.engine.root()), nr_beyond * NAME_BYTES);
    forget(&v, nodes);
    assert_eq!((names_of(v.engine.root()), v.vfs.nr_inodes()), (0, 1));
}

#[test]
fn names_of_a_removed_group_come_back_to_its_parent() {
    let v = Fixture::new();
    let names = files(&v, 2 * NR_WITHIN as usize);
    let parent = group_below(&v, v.engine.root(), "parent", LIMIT);
    let child = group_below(&v, &parent.group, "child", 0);
    let local = |group: &Arc<Group>| group.stat_local(StatItem::SlabReclaimable) as u64;
    let mut nodes = look_up(&v, &child, &names[1..]);
    assert_eq!(nodes.len(), names.len() - 1);
    assert!(local(v.engine.root()) > 0, "neither has room");
    v.engine.remove_group(&child.group).unwrap();
    drop(child);
    v.engine.set_max(&parent.group, 2 * names.len() as u64 * NAME_BYTES);
    nodes.extend(look_up(&v, &parent, &names[..1]));
    assert_eq!(local(v.engine.root()), 0);
    assert_eq!(local(&parent.group), names.len() as u64 * NAME_BYTES);
    forget(&v, nodes);
    assert_eq!((names_of(v.engine.root()), v.vfs.nr_inodes()), (0, 1));
    assert_eq!(names_of(&parent.group), 0);
}

/// xorshift64*.
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) as usize % end
    }
}

/// The groups of a round: their callers, of which each may be replaced at any time.
type Tenants = [RwLock<Caller>; 2];

/// Looks names up and puts them where others find them, or lets go of names of others.
fn work(v: &Fixture, names: &[String], tenants: &Tenants, known: &Mutex<Vec<NodeId>>, seed: u64) {
    let mut random = Random(seed);
    for _ in 0..40 {
        let caller = tenants[random.below(2)].read().unwrap().clone();
        let from = random.below(names.len());
        let till = names.len().min(from + random.below(800));
        let nodes = look_up(v, &caller, &names[from..till]);
        drop(caller);
        let gone = {
            let mut known = known.lock().unwrap();
            known.extend(nodes);
            let from = random.below(known.len() + 1);
            let till = known.len().min(from + random.below(1200));
            known.drain(from..till).collect::<Vec<_>>()
        };
        forget(v, gone);
    }
}

/// Moves limits, and removes groups and makes them again.
fn disturb(v: &Fixture, tenants: &Tenants, seed: u64) {
    let mut random = Random(seed);
    for round in 0..300 {
        let limit = random.below(2000) as u64 * NAME_BYTES;
        match random.below(4) {
            0 => {
                // The lower one first.
                let mut child = tenants[1].write().unwrap();
                v.engine.remove_group(&child.group).unwrap();
                let mut parent = tenants[0].write().unwrap();
                if random.below(2) == 0 {
                    v.engine.remove_group(&parent.group).unwrap();
                    *parent = group_below(v, v.engine.root(), &format!("p{round}"), limit);
                }
                // A group's own state takes room.
                v.engine.set_max(&parent.group, u64::MAX);
                *child = group_below(v, &parent.group, &format!("c{round}"), limit / 2);
                v.engine.set_max(&parent.group, limit);
            }
            which => {
                let group = Arc::clone(&tenants[which % 2].read().unwrap().group);
                v.engine.set_max(&group, limit);
            }
        }
    }
}

#[test]
fn names_go_while_groups_go_and_limits_move() {
    let v = Fixture::new();
    let names = files(&v, NR_FILES);
    forget(&v, look_up(&v, &v.root, &names[..1]));
    let before = charged(&v);
    for seed in 1..=3 {
        let parent = group_below(&v, v.engine.root(), "parent", LIMIT);
        let child = group_below(&v, &parent.group, "child", 0);
        let (tenants, known) = ([RwLock::new(parent), RwLock::new(child)], Mutex::default());
        thread::scope(|scope| {
            for n in 1..=3 {
                let (v, names, tenants, known) = (&v, &names, &tenants, &known);
                scope.spawn(move || work(v, names, tenants, known, seed * 1_000_003 + n));
            }
            scope.spawn(|| disturb(&v, &tenants, seed));
        });
        forget(&v, known.into_inner().unwrap());
        let [parent, child] = tenants.map(|caller| caller.into_inner().unwrap());
        for group in [child, parent] {
            assert_eq!(names_of(&group.group), 0, "seed {seed}");
            v.engine.remove_group(&group.group).unwrap();
        }
        assert_eq!((names_of(v.engine.root()), v.vfs.nr_inodes()), (0, 1), "seed {seed}");
        assert_eq!(charged(&v), before, "seed {seed}");
    }
    // Nothing is left of the allowances either, wherever the group's state lies.
    let tenant = group_below(&v, v.engine.root(), "tenant", 0);
    let nodes = look_up(&v, &tenant, &names);
    assert_eq!(nodes.len(), NR_NAMES_BEYOND_MAX);
    forget(&v, nodes);
}
