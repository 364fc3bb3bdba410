//! A change of a number against the removal of its group: nothing stays behind in the dead group.

use loom::sync::Arc;
use loom::thread;
use umemcg_group::counter::{CounterNode, NO_NODE, UNLIMITED};
use umemcg_group::stats::{SweptCell, add_where_alive, sweep};

#[derive(Default)]
struct Home {
    node: CounterNode,
    cell: SweptCell,
}

type Homes = Arc<[Home; 3]>;

/// A root, a group and a group below that; index 2 is the root.
fn homes() -> Homes {
    let homes: Homes = Default::default();
    homes[2].node.open(NO_NODE, 0, UNLIMITED);
    homes[1].node.open(3, 1, UNLIMITED);
    homes[0].node.open(2, 2, UNLIMITED);
    homes
}

fn above(homes: &Homes, from: usize) -> impl Iterator<Item = (&CounterNode, &SweptCell)> {
    homes[from..].iter().map(|home| (&home.node, &home.cell))
}

fn remove(homes: &Homes, at: usize) {
    homes[at].node.mark_dead();
    sweep(above(homes, at));
}

fn check<const HANDSHAKE: bool>(nr_removed: usize) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(move || {
        let homes = homes();
        let adder = {
            let homes = Arc::clone(&homes);
            thread::spawn(move || add_where_alive::<HANDSHAKE>(above(&homes, 0), 7))
        };
        (0..nr_removed).for_each(|at| remove(&homes, at));
        adder.join().unwrap();
        let found: Vec<i64> = homes.iter().map(|home| home.cell.get()).collect();
        let mut expected = vec![0; 3];
        expected[nr_removed] = 7;
        assert_eq!(found, expected, "numbers by group");
    });
}

#[test]
fn a_change_ends_in_the_nearest_living_group() {
    check::<true>(1);
    check::<true>(2);
}

#[test]
#[should_panic(expected = "numbers by group")]
fn without_the_handshake_a_change_is_left_with_the_dead() {
    check::<false>(1);
}
