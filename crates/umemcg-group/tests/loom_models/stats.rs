//! A change of a number against the removal of its group: nothing stays behind in the dead group.

use loom::sync::Arc;
use loom::thread;
use umemcg_group::model::{CounterNode, NO_NODE, SweptCell, UNLIMITED, add_where_alive, sweep};

#[derive(Default)]
struct Level {
    node: CounterNode,
    cell: SweptCell,
}

type Levels = Arc<[Level; 3]>;

/// A root, a group and a group below that; index 2 is the root.
fn levels() -> Levels {
    let levels: Levels = Default::default();
    levels[2].node.open(NO_NODE, 0, UNLIMITED);
    levels[1].node.open(3, 1, UNLIMITED);
    levels[0].node.open(2, 2, UNLIMITED);
    levels
}

fn above(levels: &Levels, from: usize) -> impl Iterator<Item = (&CounterNode, &SweptCell)> {
    levels[from..].iter().map(|level| (&level.node, &level.cell))
}

fn remove(levels: &Levels, at: usize) {
    levels[at].node.mark_dead();
    sweep(above(levels, at));
}

fn check<const HANDSHAKE: bool>(nr_removed: usize) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(move || {
        let levels = levels();
        let adder = {
            let levels = Arc::clone(&levels);
            thread::spawn(move || add_where_alive::<HANDSHAKE>(above(&levels, 0), 7))
        };
        (0..nr_removed).for_each(|at| remove(&levels, at));
        adder.join().unwrap();
        let found: Vec<i64> = levels.iter().map(|level| level.cell.get()).collect();
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
