//! The end of a group against its last users: a dead node keeps no stock, and is freed exactly
//! once.

use loom::sync::Arc;
use loom::thread;
use umemcg_group::model::{Ledger, NO_NODE, NODE_STATE_BYTES, ThreadStock, UNLIMITED};

fn model(body: impl Fn() + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(body);
}

/// A root and a group below it.
fn two_levels() -> (Arc<Ledger>, u32, u32) {
    let ledger = Arc::new(Ledger::default());
    let root = ledger.open(NO_NODE, UNLIMITED);
    ledger.charge_forced(&ThreadStock::new(), root, NODE_STATE_BYTES);
    let child = ledger.open(root, UNLIMITED);
    (ledger, root, child)
}

/// One thread charges a group and gives back, so that the bytes may stay in its stock, while
/// another removes it.
fn charge_against_removal<const HANDSHAKE: bool>() {
    model(|| {
        let (ledger, root, child) = two_levels();
        let remover = {
            let ledger = Arc::clone(&ledger);
            thread::spawn(move || {
                ledger.node(child).mark_dead();
                ledger.purge::<HANDSHAKE>(child, &|_| ());
            })
        };
        let thread_stock = ThreadStock::new();
        ledger.register_thread(&thread_stock);
        let owner = ledger.try_charge(&thread_stock, child, 6).unwrap();
        ledger.uncharge(&thread_stock, owner, 6);
        remover.join().unwrap();
        assert_eq!(ledger.node(child).usage(), 0, "a removed group was left in stock");
        ledger.release_live(child);
        ledger.unregister_thread(&thread_stock);
        assert_eq!((ledger.nr_in_use(), ledger.node(root).usage()), (1, 0));
    });
}

#[test]
fn a_removed_group_is_not_left_in_stock() {
    charge_against_removal::<true>();
}

#[test]
#[should_panic(expected = "left in stock")]
fn without_the_intrusion_it_may_be() {
    charge_against_removal::<false>();
}

/// The last uncharge and the group's last reference race to free the node.
#[test]
fn a_node_is_freed_once_by_its_last_user() {
    model(|| {
        let (ledger, root, child) = two_levels();
        let thread_stock = ThreadStock::new();
        ledger.charge_forced(&thread_stock, child, 6);
        let other = {
            let ledger = Arc::clone(&ledger);
            thread::spawn(move || ledger.uncharge(&ThreadStock::new(), child, 6))
        };
        ledger.node(child).mark_dead();
        ledger.release_live(child);
        other.join().unwrap();
        assert_eq!((ledger.nr_in_use(), ledger.node(root).usage()), (1, 0));
    });
}

/// A freed node that is immediately another group's starts clean.
#[test]
fn a_freed_node_may_be_taken_again_at_once() {
    model(|| {
        let (ledger, root, child) = two_levels();
        ledger.charge_forced(&ThreadStock::new(), child, 6);
        let other = {
            let ledger = Arc::clone(&ledger);
            thread::spawn(move || ledger.uncharge(&ThreadStock::new(), child, 6))
        };
        ledger.node(child).mark_dead();
        ledger.release_live(child);
        ledger.charge_forced(&ThreadStock::new(), root, NODE_STATE_BYTES);
        let next = ledger.open(root, 10);
        assert!(!ledger.node(next).is_dead());
        assert_eq!((ledger.node(next).max(), ledger.node(next).usage()), (10, 0));
        other.join().unwrap();
        assert_eq!((ledger.nr_in_use(), ledger.node(root).usage()), (2, NODE_STATE_BYTES));
    });
}
