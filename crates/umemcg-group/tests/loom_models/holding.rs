//! The numbers of a holding under several threads, and its charges while its group is removed.

use loom::sync::Arc;
use loom::thread;
use umemcg_group::model::{HeldBytes, Ledger, NO_NODE, NODE_STATE_BYTES, ThreadStock, UNLIMITED};

fn model(body: impl Fn() + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(2);
    model.check(body);
}

/// Two threads give back 4 of 6 bytes each.
fn two_give_back<const ONE_STEP: bool>() {
    model(|| {
        let held = Arc::new(HeldBytes::new(6));
        let other = thread::spawn({
            let held = Arc::clone(&held);
            move || held.try_sub_with::<ONE_STEP>(4)
        });
        let (mine, theirs) = (held.try_sub_with::<ONE_STEP>(4), other.join().unwrap());
        assert!(mine != theirs && held.get() == 2, "bytes were given back twice");
    });
}

#[test]
fn no_byte_is_given_back_twice() {
    two_give_back::<true>();
}

#[test]
#[should_panic(expected = "given back twice")]
fn in_two_steps_bytes_are_given_back_twice() {
    two_give_back::<false>();
}

/// Two threads add bytes.
fn two_add<const MAX: bool>() {
    model(|| {
        let held = Arc::new(HeldBytes::default());
        let other = thread::spawn({
            let held = Arc::clone(&held);
            move || held.add_with::<MAX>(4)
        });
        held.add_with::<MAX>(5);
        other.join().unwrap();
        assert!((held.get(), held.peak()) == (9, 9), "a peak was lost");
    });
}

#[test]
fn a_peak_is_never_lost() {
    two_add::<true>();
}

#[test]
#[should_panic(expected = "a peak was lost")]
fn a_peak_that_is_stored_is_lost() {
    two_add::<false>();
}

/// A holding grows and gives all back, while its group is removed. `HERE` is false for a holding
/// that charges as a single charge does: to the nearest living group.
fn growth_against_removal<const HERE: bool>() {
    model(|| {
        let ledger = Arc::new(Ledger::default());
        let root = ledger.open(NO_NODE, UNLIMITED);
        ledger.charge_forced(&ThreadStock::new(), root, NODE_STATE_BYTES);
        let child = ledger.open(root, UNLIMITED);
        let remover = thread::spawn({
            let ledger = Arc::clone(&ledger);
            move || {
                ledger.node(child).mark_dead();
                ledger.purge::<true>(child, &|_| ());
            }
        });
        let (stock, held) = (ThreadStock::new(), HeldBytes::default());
        ledger.register_thread(&stock);
        if HERE {
            ledger.try_charge_here(&stock, child, ledger.node(child), 6).unwrap();
        } else {
            ledger.try_charge(&stock, child, 6).unwrap();
        }
        held.add(6);
        let all = held.take_all();
        if ledger.put_counted(&stock, child, all).is_none() {
            ledger.uncharge(&stock, child, all);
        }
        remover.join().unwrap();
        ledger.unregister_thread(&stock);
        assert_eq!((ledger.node(child).usage(), ledger.node(root).usage()), (0, NODE_STATE_BYTES));
    });
}

#[test]
fn a_holding_is_exact_while_its_group_is_removed() {
    growth_against_removal::<true>();
}

#[test]
#[should_panic(expected = "counter at")]
fn charged_to_the_living_it_gives_back_what_it_has_not() {
    growth_against_removal::<false>();
}
