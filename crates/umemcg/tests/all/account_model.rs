//! Accounts and guarantees against a sequential model: what fits, which kind of refusal, and every
//! number after every operation.

use std::sync::Arc;

use proptest::prelude::*;
use umemcg::{Account, Engine, Group, Guarantee, Refusal, StatItem, UNLIMITED};

const KIB: u64 = 1 << 10;
const POOL: u64 = 4 << 20;
/// The groups: the root, one below it, and two below that.
const PARENTS: [Option<usize>; 4] = [None, Some(0), Some(1), Some(1)];
const NAMES: [&str; 4] = ["", "parent", "a", "b"];

#[derive(Debug, Clone)]
enum Operation {
    Open(usize),
    TryGrow(usize, u64),
    Grow(usize, u64),
    /// Gives back this many thousandths.
    Shrink(usize, u64),
    Split(usize, u64),
    Merge(usize, usize),
    Close(usize),
    SetMax(usize, u64),
    Guarantee(usize, u64),
    EndGuarantee(usize),
    Remove(usize),
}

fn operation() -> impl Strategy<Value = Operation> {
    use Operation::*;
    let (group, account, share) = (0..NAMES.len(), 0..8usize, 0..=1000u64);
    let bytes = prop_oneof![Just(0), 1..5000u64, 1..200 * KIB, 1..5000 * KIB];
    let limit = prop_oneof![Just(UNLIMITED), (0..300u64).prop_map(|pages| pages * 16 * KIB)];
    prop_oneof![
        2 => group.clone().prop_map(Open),
        8 => (account.clone(), bytes.clone()).prop_map(|(at, bytes)| TryGrow(at, bytes)),
        1 => (account.clone(), bytes.clone()).prop_map(|(at, bytes)| Grow(at, bytes)),
        5 => (account.clone(), share.clone()).prop_map(|(at, share)| Shrink(at, share)),
        1 => (account.clone(), share).prop_map(|(at, share)| Split(at, share)),
        1 => (account.clone(), account.clone()).prop_map(|(at, other)| Merge(at, other)),
        1 => account.clone().prop_map(Close),
        2 => (group.clone(), limit).prop_map(|(at, limit)| SetMax(at, limit)),
        2 => (group.clone(), bytes).prop_map(|(at, bytes)| Guarantee(at, bytes)),
        1 => account.prop_map(EndGuarantee),
        1 => group.prop_map(Remove),
    ]
}

struct Held {
    account: Account,
    group: usize,
    bytes: u64,
    peak: u64,
}

struct Model {
    engine: Arc<Engine>,
    groups: Vec<Arc<Group>>,
    /// What the groups use by themselves.
    base: Vec<u64>,
    max: Vec<u64>,
    is_alive: Vec<bool>,
    held: Vec<Held>,
    guarantees: Vec<(usize, Guarantee)>,
}

fn chain(group: usize) -> impl Iterator<Item = usize> {
    std::iter::successors(Some(group), |&at| PARENTS[at])
}

impl Model {
    fn new() -> Self {
        let engine = crate::common::engine(POOL);
        let mut groups = vec![Arc::clone(engine.root())];
        for at in 1..NAMES.len() {
            let parent = &groups[PARENTS[at].unwrap()];
            groups.push(engine.create_group(parent, NAMES[at].as_ref()).unwrap());
        }
        let base = groups.iter().map(|group| group.usage_exact()).collect();
        let mut max = vec![UNLIMITED; NAMES.len()];
        max[0] = POOL;
        let (is_alive, held) = (vec![true; NAMES.len()], Vec::new());
        Self { engine, groups, base, max, is_alive, held, guarantees: Vec::new() }
    }

    fn usage(&self, group: usize) -> u64 {
        let below = |held: &&Held| chain(held.group).any(|at| at == group);
        self.base[group] + self.held.iter().filter(below).map(|held| held.bytes).sum::<u64>()
    }

    fn living(&self, group: usize) -> usize {
        chain(group).find(|&at| self.is_alive[at]).unwrap()
    }

    fn guaranteed(&self, group: usize) -> u64 {
        self.guarantees.iter().filter(|(at, _)| *at == group).map(|(_, share)| share.bytes()).sum()
    }

    /// What a level is committed to, with as much more held or guaranteed in a group.
    fn committed(&self, level: usize, (group, held, guaranteed): (usize, u64, u64)) -> u64 {
        let of_level = |of: usize| self.living(of) == level;
        let here: u64 = self.held.iter().filter(|held| of_level(held.group)).map(|held| held.bytes).sum();
        let more = if of_level(group) { held } else { 0 };
        let below: u64 = (0..NAMES.len())
            .filter(|&at| PARENTS[at] == Some(level) && self.is_alive[at])
            .map(|at| self.committed(at, (group, held, guaranteed)))
            .sum();
        let own = self.guaranteed(level) + if group == level { guaranteed } else { 0 };
        own.max(here + more + below)
    }

    /// Whether a change leaves room for all that is committed.
    fn leaves_room(&self, group: usize, held: u64, guaranteed: u64) -> bool {
        chain(group).filter(|&at| self.is_alive[at]).all(|at| {
            let now = self.committed(at, (group, held, guaranteed));
            now <= self.committed(at, (group, 0, 0)) || now <= self.max[at]
        })
    }

    fn act(&mut self, operation: Operation) {
        use Operation::*;
        let nr_held = self.held.len();
        match operation {
            Open(group) if nr_held < 8 => {
                let account = self.engine.account(&self.groups[group]);
                self.held.push(Held { account, group, bytes: 0, peak: 0 });
            }
            TryGrow(at, bytes) if at < nr_held => self.try_grow(at, bytes),
            Grow(at, bytes) if at < nr_held && bytes < 100 * KIB => {
                let held = &mut self.held[at];
                held.account.grow(bytes);
                held.bytes += bytes;
                held.peak = held.peak.max(held.bytes);
            }
            Shrink(at, share) if at < nr_held => {
                let held = &mut self.held[at];
                let bytes = held.bytes * share / 1000;
                held.account.shrink(bytes);
                held.bytes -= bytes;
            }
            Split(at, share) if nr_held < 8 && at < nr_held => {
                let held = &mut self.held[at];
                let bytes = held.bytes * share / 1000;
                let (account, group) = (held.account.split(bytes), held.group);
                held.bytes -= bytes;
                self.held.push(Held { account, group, bytes, peak: bytes });
            }
            Merge(at, other)
                if at < other && other < nr_held && self.held[at].group == self.held[other].group =>
            {
                let other = self.held.remove(other);
                let held = &mut self.held[at];
                held.account.merge(other.account);
                held.bytes += other.bytes;
                held.peak = held.peak.max(held.bytes);
            }
            Close(at) if at < nr_held => drop(self.held.remove(at)),
            SetMax(group, limit) if group > 0 && self.is_alive[group] => {
                self.engine.set_max(&self.groups[group], limit);
                self.max[group] = limit;
            }
            Guarantee(group, bytes) if self.is_alive[group] && self.guarantees.len() < 8 => {
                let fits = self.leaves_room(group, 0, bytes);
                let share = self.engine.guarantee(&self.groups[group], bytes);
                assert_eq!(share.is_ok(), fits, "a guarantee of {bytes} for {}", NAMES[group]);
                self.guarantees.extend(share.ok().map(|share| (group, share)));
            }
            EndGuarantee(at) if at < self.guarantees.len() => drop(self.guarantees.remove(at)),
            Remove(group) if group > 0 && self.is_alive[group] => {
                let has_children = (0..NAMES.len()).any(|at| PARENTS[at] == Some(group) && self.is_alive[at]);
                // What is guaranteed to a removed group stays its own.
                if !has_children && self.guaranteed(group) == 0 {
                    self.engine.remove_group(&self.groups[group]).unwrap();
                    (self.is_alive[group], self.max[group]) = (false, UNLIMITED);
                }
            }
            _ => {}
        }
    }

    fn try_grow(&mut self, at: usize, bytes: u64) {
        let group = self.held[at].group;
        let is_never = chain(group).any(|level| bytes > self.max[level]);
        let has_space = bytes == 0 || chain(group).all(|level| self.usage(level) + bytes <= self.max[level]);
        let has_room = self.leaves_room(group, bytes, 0);
        let is_any_guaranteed = !self.guarantees.is_empty();
        let held = &mut self.held[at];
        match held.account.try_grow(bytes) {
            Ok(()) => {
                assert!(has_space && has_room, "{bytes} more in {} do not fit", NAMES[group]);
                held.bytes += bytes;
                held.peak = held.peak.max(held.bytes);
            }
            Err(Refusal::Never { .. }) => assert!(is_never, "{bytes} might fit later"),
            Err(Refusal::Overcommitted { .. }) => assert!(!is_never && !has_room && is_any_guaranteed),
            // Where nothing is guaranteed, limits alone decide.
            Err(Refusal::NotNow { .. }) => {
                assert!(!is_never && !has_space && (has_room || !is_any_guaranteed));
            }
            Err(other) => panic!("{other}"),
        }
    }

    fn check(&self) {
        for held in &self.held {
            assert_eq!((held.account.bytes(), held.account.peak()), (held.bytes, held.peak));
        }
        for (at, group) in self.groups.iter().enumerate() {
            assert_eq!(group.usage_exact(), self.usage(at), "usage of {}", NAMES[at]);
            if self.is_alive[at] {
                let reserved = self.usage(at) - self.base[at];
                assert_eq!(group.stat_total(StatItem::Reserved) as u64, reserved, "in {}", NAMES[at]);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    #[test]
    fn accounts_do_what_the_model_says(operations in prop::collection::vec(operation(), 1..120)) {
        let mut model = Model::new();
        for operation in operations {
            model.act(operation);
            model.check();
        }
        model.held.clear();
        model.guarantees.clear();
        model.check();
    }
}
