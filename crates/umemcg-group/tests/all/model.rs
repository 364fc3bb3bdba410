//! The crate against a plain sequential model of it: groups, charges, limits, removals, statistics.
//! The model keeps no stock and no counter; it adds up what is held each time it is asked. It may
//! be read as the specification.

use std::ffi::OsString;
use std::sync::Arc;

use proptest::prelude::*;
use umemcg_group::{
    Charge, CreateError, GROUP_STATE_BYTES, Group, GroupTree, NODE_STATE_BYTES, OwnerId, RemoveError,
    StatItem, UNLIMITED,
};

const CAPACITY: u64 = 16 << 20;
/// The largest stock of one thread, in bytes.
const SLACK: u64 = 1 << 20;

/// An operation, by positions in the lists of everything that ever was (taken modulo their
/// lengths).
#[derive(Debug, Clone)]
enum Op {
    Create { parent: usize },
    Remove { group: usize },
    Forget { group: usize },
    Charge { group: usize, bytes: u64 },
    ChargeForced { group: usize, bytes: u64 },
    Uncharge { charge: usize },
    Split { charge: usize, part: u64 },
    Merge { charge: usize },
    SetMax { group: usize, max: u64 },
    TrySetMax { group: usize, max: u64 },
    Drain { group: usize },
    Count { group: usize, delta: i64 },
}

fn bytes() -> impl Strategy<Value = u64> {
    prop_oneof![
        3 => 0..200u64,
        5 => Just(4096),
        2 => 1..100_000u64,
        1 => 100_000..3_000_000u64,
        1 => Just(u64::MAX)
    ]
}

fn limit() -> impl Strategy<Value = u64> {
    prop_oneof![Just(UNLIMITED), Just(0), 0..10_000u64, 0..1_000_000u64, 0..(8 << 20) as u64]
}

fn op() -> impl Strategy<Value = Op> {
    let i = 0..1000usize;
    prop_oneof![
        3 => i.clone().prop_map(|parent| Op::Create { parent }),
        2 => i.clone().prop_map(|group| Op::Remove { group }),
        1 => i.clone().prop_map(|group| Op::Forget { group }),
        12 => (i.clone(), bytes()).prop_map(|(group, bytes)| Op::Charge { group, bytes }),
        1 => (i.clone(), 0..100_000u64).prop_map(|(group, bytes)| Op::ChargeForced { group, bytes }),
        9 => i.clone().prop_map(|charge| Op::Uncharge { charge }),
        1 => (i.clone(), any::<u64>()).prop_map(|(charge, part)| Op::Split { charge, part }),
        1 => i.clone().prop_map(|charge| Op::Merge { charge }),
        1 => (i.clone(), limit()).prop_map(|(group, max)| Op::SetMax { group, max }),
        1 => (i.clone(), limit()).prop_map(|(group, max)| Op::TrySetMax { group, max }),
        1 => i.clone().prop_map(|group| Op::Drain { group }),
        2 => (i, -50..50i64).prop_map(|(group, delta)| Op::Count { group, delta }),
    ]
}

/// A group as the model sees it. Groups are known by the order of their creation, the root is 0.
#[derive(Debug)]
struct ModelGroup {
    parent: Option<usize>,
    is_alive: bool,
    /// The test still has its `Arc`.
    is_known: bool,
    max: u64,
    failcnt: u64,
    /// Highest usage at a charge.
    peak: u64,
    local: i64,
    total: i64,
    /// Charged here, not below.
    own: u64,
    /// A forced charge may have brought usage, stocks included, above the limit. Forced charges
    /// leave stocks alone, and what is in stock has been granted.
    was_forced: bool,
}

#[derive(Debug, Default)]
struct Model {
    groups: Vec<ModelGroup>,
}

impl Model {
    fn add(&mut self, parent: Option<usize>, max: u64) {
        let (is_alive, is_known) = (true, true);
        let (failcnt, peak, local, total, own, was_forced) = (0, 0, 0, 0, 0, false);
        self.groups.push(ModelGroup {
            parent,
            is_alive,
            is_known,
            max,
            failcnt,
            peak,
            local,
            total,
            own,
            was_forced,
        });
    }

    fn children(&self, of: usize) -> impl Iterator<Item = usize> {
        (0..self.groups.len()).filter(move |&i| self.groups[i].parent == Some(of))
    }

    fn ancestors(&self, of: usize) -> impl Iterator<Item = usize> {
        std::iter::successors(Some(of), |&i| self.groups[i].parent)
    }

    /// Itself, or when it has been removed the nearest group above that has not.
    fn living(&self, of: usize) -> usize {
        self.ancestors(of).find(|&i| self.groups[i].is_alive).unwrap()
    }

    /// A group's memory is there while it lives, while anyone has its `Arc`, and while a group
    /// below has.
    fn is_in_memory(&self, of: usize) -> bool {
        self.groups[of].is_alive
            || self.groups[of].is_known
            || self.children(of).any(|child| self.is_in_memory(child))
    }

    /// Returns the bytes charged here and below, the state of groups and counter nodes below
    /// included.
    fn usage(&self, of: usize) -> u64 {
        let below = self.children(of).map(|child| {
            let usage = self.usage(child);
            usage
                + match (self.is_in_memory(child), usage) {
                    (true, _) => GROUP_STATE_BYTES,
                    (false, 0) => 0,
                    (false, _) => NODE_STATE_BYTES,
                }
        });
        self.groups[of].own + below.sum::<u64>()
    }

    /// The lowest group that does not allow `bytes` more. A removed group has no limit.
    fn refuses(&self, at: usize, bytes: u64) -> Option<usize> {
        if bytes == 0 {
            return None;
        }
        if bytes > 1 << 56 {
            let has_limit = |&i: &usize| i == 0 || self.groups[i].is_alive && self.groups[i].max != UNLIMITED;
            return self.ancestors(at).find(has_limit);
        }
        let is_full = |&i: &usize| {
            let group = &self.groups[i];
            group.is_alive
                && group.max != UNLIMITED
                && self.usage(i).checked_add(bytes).is_none_or(|sum| sum > group.max)
        };
        self.ancestors(at).find(is_full)
    }

    fn note_peaks(&mut self, at: usize) {
        for i in self.ancestors(at).collect::<Vec<_>>() {
            self.groups[i].peak = self.groups[i].peak.max(self.usage(i));
        }
    }

    fn note_forced(&mut self, at: usize) {
        for i in self.ancestors(at).collect::<Vec<_>>() {
            self.groups[i].was_forced |= self.usage(i).saturating_add(SLACK) > self.groups[i].max;
        }
    }

    /// Adds to the local number of the nearest living group, and to the total of the group and all
    /// above.
    fn count(&mut self, at: usize, delta: i64) {
        let living = self.living(at);
        self.groups[living].local += delta;
        for i in self.ancestors(at).collect::<Vec<_>>() {
            self.groups[i].total += delta;
        }
    }
}

/// Both at once.
struct Pair {
    model: Model,
    tree: Arc<GroupTree>,
    groups: Vec<Option<Arc<Group>>>,
    /// The charge, and the group that it is counted in.
    charges: Vec<(Charge, usize)>,
}

impl Pair {
    fn new() -> Self {
        let tree = GroupTree::new(CAPACITY);
        let mut model = Model::default();
        model.add(None, CAPACITY);
        Pair { groups: vec![Some(Arc::clone(tree.root()))], charges: Vec::new(), model, tree }
    }

    fn known(&self, i: usize) -> Option<(usize, Arc<Group>)> {
        let i = i % self.groups.len();
        self.groups[i].clone().map(|group| (i, group))
    }

    fn index_of(&self, group: &Arc<Group>) -> usize {
        self.groups.iter().position(|it| it.as_ref().is_some_and(|it| Arc::ptr_eq(it, group))).unwrap()
    }

    fn charge(&mut self, at: usize, group: &Group, bytes: u64) {
        let at = self.model.living(at);
        let refusing = self.model.refuses(at, bytes);
        match group.try_charge(bytes) {
            Ok(charge) => {
                assert!(
                    refusing.is_none_or(|i| self.model.groups[i].was_forced),
                    "{refusing:?} should refuse {bytes}"
                );
                assert_eq!(self.index_of(&charge.owner().resolve()), at);
                self.model.groups[at].own += bytes;
                self.model.note_peaks(at);
                self.charges.push((charge, at));
            }
            Err(refused) => {
                assert_eq!(Some(self.index_of(&refused.group)), refusing, "refusal of {bytes}");
                assert_eq!(refused.wanted_bytes, bytes);
                self.model.groups[refusing.unwrap()].failcnt += 1;
            }
        }
    }

    fn apply(&mut self, op: Op) {
        match op {
            Op::Create { parent } => {
                let Some((at, parent)) = self.known(parent) else { return };
                let name = OsString::from(format!("g{}", self.groups.len()));
                let refusing = self.model.refuses(at, GROUP_STATE_BYTES);
                match self.tree.create(&parent, &name) {
                    Ok(group) => {
                        assert!(self.model.groups[at].is_alive);
                        assert!(refusing.is_none_or(|i| self.model.groups[i].was_forced));
                        self.model.add(Some(at), UNLIMITED);
                        self.model.note_peaks(at);
                        self.groups.push(Some(group));
                    }
                    Err(CreateError::ParentGone) => assert!(!self.model.groups[at].is_alive),
                    Err(CreateError::Refused(refused)) => {
                        assert_eq!(Some(self.index_of(&refused.group)), refusing);
                        self.model.groups[refusing.unwrap()].failcnt += 1;
                    }
                    Err(error) => panic!("{error}"),
                }
            }
            Op::Remove { group } => {
                let Some((at, group)) = self.known(group) else { return };
                let expected = if at == 0 {
                    Err(RemoveError::IsRoot)
                } else if !self.model.groups[at].is_alive {
                    Err(RemoveError::Gone)
                } else if self.model.children(at).any(|child| self.model.groups[child].is_alive) {
                    Err(RemoveError::HasChildren)
                } else {
                    Ok(())
                };
                assert_eq!(self.tree.remove(&group, |_, _| ()), expected);
                if expected.is_ok() {
                    self.model.groups[at].is_alive = false;
                    let local = std::mem::take(&mut self.model.groups[at].local);
                    let living = self.model.living(at);
                    self.model.groups[living].local += local;
                }
            }
            Op::Forget { group } => {
                let at = group % self.groups.len();
                if !self.model.groups[at].is_alive {
                    self.groups[at] = None;
                    self.model.groups[at].is_known = false;
                }
            }
            Op::Charge { group, bytes } => {
                let Some((at, group)) = self.known(group) else { return };
                self.charge(at, &group, bytes);
            }
            Op::ChargeForced { group, bytes } => {
                let Some((at, group)) = self.known(group) else { return };
                let at = self.model.living(at);
                self.charges.push((group.charge_forced(bytes), at));
                self.model.groups[at].own += bytes;
                self.model.note_peaks(at);
                self.model.note_forced(at);
            }
            Op::Uncharge { charge } => {
                if !self.charges.is_empty() {
                    let (charge, at) = self.charges.swap_remove(charge % self.charges.len());
                    self.model.groups[at].own -= charge.bytes();
                }
            }
            Op::Split { charge, part } => {
                if !self.charges.is_empty() {
                    let i = charge % self.charges.len();
                    let (charge, at) = &mut self.charges[i];
                    let part = (charge.split(part % (charge.bytes() + 1)), *at);
                    self.charges.push(part);
                }
            }
            Op::Merge { charge } => {
                if !self.charges.is_empty() {
                    let (charge, at) = self.charges.swap_remove(charge % self.charges.len());
                    match self.charges.iter_mut().find(|(other, _)| other.owner() == charge.owner()) {
                        Some((other, its_group)) => {
                            // A charge of nothing keeps no owner: the number of a group that is
                            // gone may be another's by now.
                            if other.bytes() == 0 {
                                *its_group = at;
                            }
                            other.merge(charge);
                        }
                        // Nothing to merge with: through the raw form instead.
                        None => {
                            let (owner, bytes) = charge.into_raw();
                            let owner = OwnerId::from_raw(owner.into_raw()).unwrap();
                            self.charges.push((Charge::from_raw(owner, bytes), at));
                        }
                    }
                }
            }
            Op::SetMax { group, max } => {
                let Some((at, group)) = self.known(group) else { return };
                group.store_max(max);
                if self.model.groups[at].is_alive {
                    self.model.groups[at].max = max;
                }
            }
            Op::TrySetMax { group, max } => {
                let Some((at, group)) = self.known(group) else { return };
                let fits = !self.model.groups[at].is_alive || self.model.usage(at) <= max;
                assert_eq!(group.try_set_max(max).is_ok(), fits);
                if fits && self.model.groups[at].is_alive {
                    self.model.groups[at].max = max;
                }
            }
            Op::Drain { group } => {
                let Some((at, group)) = self.known(group) else { return };
                group.drain_stocks();
                assert_eq!(group.usage_bytes(), self.model.usage(at));
            }
            Op::Count { group, delta } => {
                let Some((at, group)) = self.known(group) else { return };
                group.stat_add(StatItem::PgFault, delta);
                self.model.count(at, delta);
            }
        }
    }

    fn compare(&self) {
        for (i, group) in self.groups.iter().enumerate() {
            let Some(group) = group else { continue };
            let model = &self.model.groups[i];
            let held = self.model.usage(i);
            let slack = group.usage_bytes().checked_sub(held);
            assert!(
                slack.is_some_and(|slack| slack <= SLACK),
                "group {i}: {} for {held}",
                group.usage_bytes()
            );
            assert_eq!(group.is_dead(), !model.is_alive);
            assert_eq!(group.stat_total(StatItem::PgFault), model.total);
            if model.is_alive {
                assert_eq!(group.max_bytes(), model.max);
                assert_eq!(group.failcnt(), model.failcnt);
                assert_eq!(group.stat_local(StatItem::PgFault), model.local);
                let peak = group.peak_bytes().checked_sub(model.peak);
                assert!(
                    peak.is_some_and(|over| over <= SLACK),
                    "group {i}: {} for {}",
                    group.peak_bytes(),
                    model.peak
                );
            }
        }
    }

    fn end(mut self) {
        self.tree.root().drain_stocks();
        for (i, group) in self.groups.iter().enumerate() {
            if let Some(group) = group {
                assert_eq!(group.usage_bytes(), self.model.usage(i));
            }
        }
        self.charges.clear();
        for group in self.groups.iter().skip(1).rev().flatten() {
            assert!(matches!(self.tree.remove(group, |_, _| ()), Ok(()) | Err(RemoveError::Gone)));
        }
        self.groups.clear();
        self.tree.root().drain_stocks();
        assert_eq!(self.tree.root().usage_bytes(), 0);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn the_tree_behaves_like_the_model(ops in prop::collection::vec(op(), 1..250)) {
        let mut pair = Pair::new();
        for op in ops {
            pair.apply(op);
            pair.compare();
        }
        pair.end();
    }
}
