//! The flag of a group over its soft limit, against charges, uncharges, a new limit and the group's
//! end, all at once.

use loom::sync::Arc;
use loom::thread;
use umemcg_group::model::{CounterNode, EXCESS_LAG_BYTES, Excess, NO_NODE, UNLIMITED};
use umemcg_group::subtree_marks::{PathNode, note_removed};

/// A high usage, a low one, and a limit between them by more than the lag.
const HIGH: u64 = 5;
const LOW: u64 = 1;
const SOFT_LIMIT: u64 = LOW + EXCESS_LAG_BYTES;

/// A group below a root.
struct Family {
    node: CounterNode,
    group: Excess<u64>,
    root: Excess<u64>,
}

impl Family {
    fn new(usage: u64, soft_limit: u64) -> Arc<Self> {
        let family = Self { node: CounterNode::default(), group: Excess::default(), root: Excess::default() };
        family.node.open(NO_NODE, 0, UNLIMITED);
        family.node.add(usage);
        family.node.set_soft_limit(soft_limit);
        family.update::<true>(0);
        Arc::new(family)
    }

    fn path_to_root(&self) -> impl Iterator<Item = PathNode<'_, u64>> {
        [&self.group, &self.root].into_iter().map(|at| PathNode {
            subtree_marks: at.subtree_marks(),
            id: 1,
            child: 1,
        })
    }

    fn update<const HANDSHAKE: bool>(&self, lag: u64) {
        self.group.update::<HANDSHAKE, _>(&self.node, lag, || self.path_to_root());
    }

    /// Takes the slow path of a charge or an uncharge.
    fn look<const HANDSHAKE: bool>(&self) {
        if self.node.is_excess_stale() {
            self.update::<HANDSHAKE>(EXCESS_LAG_BYTES);
        }
    }

    fn check(&self) {
        let in_excess = self.node.usage() > self.node.soft_limit();
        assert_eq!(self.node.is_in_excess(), in_excess, "the flag is not what the usage says");
        assert_eq!(
            self.root.subtree_marks().nr_children() == 1,
            in_excess,
            "the root's set is not what the flag says"
        );
        assert_eq!(self.root.subtree_marks().next_child(0).is_some(), in_excess);
    }
}

fn model(check: impl Fn() + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(check);
}

/// One goes down through the limit while another goes up through it.
fn charge_against_uncharge<const HANDSHAKE: bool>() {
    model(|| {
        let family = Family::new(HIGH, SOFT_LIMIT);
        let charger = {
            let family = Arc::clone(&family);
            thread::spawn(move || {
                family.node.add(HIGH);
                family.look::<HANDSHAKE>();
            })
        };
        assert!(!family.node.sub(HIGH));
        family.look::<HANDSHAKE>();
        charger.join().unwrap();
        family.check();
    });
}

#[test]
fn a_charge_and_an_uncharge_leave_the_flag_right() {
    charge_against_uncharge::<true>();
}

#[test]
#[should_panic(expected = "the flag is not what the usage says")]
fn without_the_fences_an_uncharge_clears_a_charges_flag() {
    charge_against_uncharge::<false>();
}

/// A limit is set below a usage that is just being reached.
fn charge_against_limit<const HANDSHAKE: bool>() {
    model(|| {
        let family = Family::new(LOW, UNLIMITED);
        let charger = {
            let family = Arc::clone(&family);
            thread::spawn(move || {
                family.node.add(HIGH);
                family.look::<HANDSHAKE>();
            })
        };
        family.node.set_soft_limit(SOFT_LIMIT);
        family.update::<HANDSHAKE>(0);
        charger.join().unwrap();
        family.check();
    });
}

#[test]
fn a_charge_and_a_new_limit_meet() {
    charge_against_limit::<true>();
}

#[test]
#[should_panic(expected = "the flag is not what the usage says")]
fn without_the_fences_a_charge_and_a_new_limit_miss_each_other() {
    charge_against_limit::<false>();
}

#[test]
fn a_group_that_goes_while_it_is_charged_is_in_nobodys_set() {
    model(|| {
        let family = Family::new(LOW, SOFT_LIMIT);
        let charger = {
            let family = Arc::clone(&family);
            thread::spawn(move || {
                family.node.add(HIGH);
                family.look::<true>();
            })
        };
        family.node.mark_dead();
        family.update::<true>(EXCESS_LAG_BYTES);
        note_removed(family.path_to_root());
        charger.join().unwrap();
        assert_eq!(family.root.subtree_marks().nr_children(), 0, "a removed group is found");
    });
}
