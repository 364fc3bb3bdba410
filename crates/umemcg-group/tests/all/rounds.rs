//! Groups that come and go leave nothing behind. Counts the nodes of the whole process, so it is a
//! program of its own.

use std::ffi::OsString;
use std::sync::{Arc, mpsc};
use std::thread;

use umemcg_group::{Charge, Group, GroupTree, StatItem, nr_owners_in_use};

const NR_THREADS: usize = 4;
const NR_ROUNDS: usize = 1000;

#[test]
fn a_thousand_rounds_of_create_charge_and_remove_leave_nothing() {
    let tree = GroupTree::new(1 << 30);
    let parent = tree.create(tree.root(), &OsString::from("parent")).unwrap();
    // What one thread charges another gives back, long after the group is gone.
    let (senders, receivers): (Vec<_>, Vec<_>) = (0..NR_THREADS).map(|_| mpsc::channel::<Charge>()).unzip();
    thread::scope(|scope| {
        for (i, receiver) in receivers.into_iter().enumerate() {
            let (tree, parent, to) = (&tree, &parent, senders[(i + 1) % NR_THREADS].clone());
            scope.spawn(move || {
                let mut received = Vec::new();
                for round in 0..NR_ROUNDS {
                    let outer = tree.create(parent, &OsString::from(format!("{i}.{round}"))).unwrap();
                    let inner = tree.create(&outer, &OsString::from("inner")).unwrap();
                    for group in [&outer, &inner, parent] {
                        let bytes = 1 + (round as u64 * 997) % 20_000;
                        to.send(group.try_charge(bytes).unwrap()).unwrap();
                        drop(group.try_charge(bytes).unwrap());
                        group.stat_add(StatItem::ActiveFile, bytes as i64);
                    }
                    let handover =
                        |dying: &Arc<Group>, above: &Arc<Group>| assert!(dying.is_descendant_of(above));
                    tree.remove(&inner, handover).unwrap();
                    tree.remove(&outer, handover).unwrap();
                    let late = inner.try_charge(100).unwrap();
                    assert!(!late.owner().resolve().is_dead());
                    to.send(late).unwrap();
                    received.extend(receiver.try_iter());
                    if round % 10 == 9 {
                        received.clear();
                    }
                }
                drop(to);
                // Until the thread before has ended.
                received.extend(receiver);
            });
        }
        // So that receivers see the end.
        drop(senders);
        let mut at = None;
        for _ in 0..20_000 {
            at = Group::next_in_subtree(tree.root(), at.as_ref());
            if at.as_ref().is_some_and(|group| group.nr_children() > 100) {
                tree.root().drain_stocks();
            }
        }
    });
    let local = |group: &Group| group.stat_local(StatItem::ActiveFile);
    assert_eq!(local(&parent), tree.root().stat_total(StatItem::ActiveFile));
    tree.remove(&parent, |_, _| ()).unwrap();
    assert_eq!(local(tree.root()), tree.root().stat_total(StatItem::ActiveFile));
    drop(parent);
    tree.root().drain_stocks();
    assert_eq!(tree.root().usage_bytes(), 0);
    assert_eq!(nr_owners_in_use(), 1);
    drop(tree);
    assert_eq!(nr_owners_in_use(), 0);
}
