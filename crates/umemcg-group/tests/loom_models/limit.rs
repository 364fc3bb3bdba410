//! A charge against a limit change: whatever is granted is seen by the limit change, or sees the
//! new limit.

use loom::sync::Arc;
use loom::thread;
use umemcg_group::model::{CounterNode, NO_NODE, UNLIMITED};

fn check<const HANDSHAKE: bool>() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let node = Arc::new(CounterNode::default());
        node.open(NO_NODE, 0, UNLIMITED);
        let charger = {
            let node = Arc::clone(&node);
            thread::spawn(move || node.try_add(4))
        };
        let limited = node.try_set_max_with::<HANDSHAKE>(3).is_ok();
        let granted = charger.join().unwrap();
        assert_eq!(node.usage(), if granted { 4 } else { 0 });
        assert_eq!(node.max(), if limited { 3 } else { UNLIMITED });
        assert!(!(limited && granted), "4 bytes are charged under a limit of 3");
    });
}

#[test]
fn a_limit_is_never_set_below_what_is_granted() {
    check::<true>();
}

#[test]
#[should_panic(expected = "under a limit of 3")]
fn without_the_handshake_a_charge_slips_through() {
    check::<false>();
}

#[test]
fn two_charges_never_share_the_same_room() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let node = Arc::new(CounterNode::default());
        node.open(NO_NODE, 0, 5);
        let other = {
            let node = Arc::clone(&node);
            thread::spawn(move || node.try_add(3))
        };
        let granted = node.try_add(3);
        // One gets it, and a failure of one does not make the other fail.
        assert!(granted != other.join().unwrap());
        assert_eq!(node.usage(), 3);
    });
}
