//! Something is added to a group while a walk that found nothing clears its mark: the next walk
//! finds the way.

use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, Ordering::Relaxed};
use loom::thread;
use umemcg_group::subtree_marks::{PathNode, SubtreeMarks, note_absent, note_present};

type Pair = Arc<[SubtreeMarks<u64>; 2]>;

/// From the group to the root.
fn chain(pair: &Pair) -> impl Iterator<Item = PathNode<'_, u64>> {
    pair.iter().enumerate().map(|(at, subtree_marks)| PathNode {
        subtree_marks,
        id: at as u64 + 1,
        child: at as u64 + 1,
    })
}

fn add_against_absent<const LOOK_AGAIN: bool>() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let pair: Pair = Arc::new([SubtreeMarks::default(), SubtreeMarks::default()]);
        let object = Arc::new(AtomicBool::new(false));
        note_present(chain(&pair));
        let adder = {
            let (pair, object) = (Arc::clone(&pair), Arc::clone(&object));
            thread::spawn(move || {
                object.store(true, Relaxed);
                note_present(chain(&pair));
            })
        };
        if !object.load(Relaxed) {
            note_absent::<LOOK_AGAIN, _>(chain(&pair), || object.load(Relaxed));
        }
        adder.join().unwrap();
        assert!(pair[0].is_marked() && pair[1].next_child(0) == Some(1), "a walk would not find it");
    });
}

#[test]
fn what_is_added_while_a_mark_is_cleared_is_found() {
    add_against_absent::<true>();
}

#[test]
#[should_panic(expected = "a walk would not find it")]
fn without_a_second_look_it_would_be_lost() {
    add_against_absent::<false>();
}

/// Two groups below one parent: one comes, one goes.
#[test]
fn a_child_that_comes_and_one_that_goes_leave_the_parent_linked() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        // Root, parent, two children.
        let family: Arc<[SubtreeMarks<u64>; 4]> = Arc::new(std::array::from_fn(|_| SubtreeMarks::default()));
        let way = |family: &Arc<[SubtreeMarks<u64>; 4]>, from: usize| {
            let family = Arc::clone(family);
            move |run: &dyn Fn(&mut dyn Iterator<Item = PathNode<'_, u64>>)| {
                let mut steps = [from, 1, 0].into_iter().map(|at| PathNode {
                    subtree_marks: &family[at],
                    id: at as u64,
                    child: at as u64,
                });
                run(&mut steps);
            }
        };
        way(&family, 2)(&|steps| note_present(steps));
        let comes = {
            let family = Arc::clone(&family);
            thread::spawn(move || way(&family, 3)(&|steps| note_present(steps)))
        };
        way(&family, 2)(&|steps| note_absent::<true, _>(steps, || false));
        comes.join().unwrap();
        assert_eq!(family[0].next_child(0), Some(1));
        assert_eq!(family[1].next_child(0), Some(3));
    });
}
