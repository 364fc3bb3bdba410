//! A thread that uses its stock against one that drains it: every byte is in exactly one place.

use loom::sync::Arc;
use loom::thread;
use umemcg_group::model::{Drain, Ledger, NO_NODE, ThreadStock, UNLIMITED};

fn model(body: impl Fn() + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(body);
}

/// A thread with 6 bytes in stock takes 4 of them while another drains.
fn take_against_drain<const FENCED: bool>() {
    model(|| {
        let ledger = Arc::new(Ledger::default());
        let root = ledger.open(NO_NODE, UNLIMITED);
        let drainer = {
            let ledger = Arc::clone(&ledger);
            thread::spawn(move || ledger.drain_subtree(&ThreadStock::new(), root, Drain::Bytes))
        };
        let thread_stock = ThreadStock::new();
        ledger.register_thread(&thread_stock);
        // The first charge claims the slot, the uncharge fills it.
        assert_eq!(ledger.try_charge(&thread_stock, root, 6), Ok(root));
        ledger.uncharge(&thread_stock, root, 6);
        let taken = thread_stock.enter_with::<FENCED>().is_some_and(|own| own.direct().take(root, 4));
        drainer.join().unwrap();
        ledger.unregister_thread(&thread_stock);
        let held = if taken { 4 } else { 0 };
        assert_eq!(ledger.node(root).usage(), held, "bytes were lost or used twice");
    });
}

#[test]
fn a_drain_takes_only_what_the_thread_has_not_taken() {
    take_against_drain::<true>();
}

#[test]
#[should_panic(expected = "counter at")]
fn without_the_fence_both_take_the_same_bytes() {
    take_against_drain::<false>();
}

#[test]
fn two_drains_and_a_charge_agree() {
    model(|| {
        let ledger = Arc::new(Ledger::default());
        let root = ledger.open(NO_NODE, 100);
        let drainer = {
            let ledger = Arc::clone(&ledger);
            thread::spawn(move || {
                ledger.drain_subtree(&ThreadStock::new(), root, Drain::Bytes);
                ledger.drain_subtree(&ThreadStock::new(), root, Drain::Bytes);
            })
        };
        let thread_stock = ThreadStock::new();
        ledger.register_thread(&thread_stock);
        assert_eq!(ledger.try_charge(&thread_stock, root, 60), Ok(root));
        ledger.uncharge(&thread_stock, root, 60);
        // Too much for what is left beside the stock, so this drains as well.
        assert_eq!(ledger.try_charge(&thread_stock, root, 90), Ok(root));
        drainer.join().unwrap();
        ledger.unregister_thread(&thread_stock);
        assert_eq!(ledger.node(root).usage(), 90);
    });
}

/// A thread that was idle charges and gives back, while a sweep empties its set.
fn use_against_sweep<const INSIDE: bool>() {
    model(|| {
        let ledger = Arc::new(Ledger::default());
        let root = ledger.open(NO_NODE, 100);
        let thread_stock = ThreadStock::new();
        ledger.register_thread(&thread_stock);
        assert_eq!(ledger.try_charge(&thread_stock, root, 60), Ok(root));
        // The first sweep looks at the set, the second finds it unchanged.
        ledger.sweep::<true>(&ThreadStock::new());
        let sweeper = {
            let ledger = Arc::clone(&ledger);
            thread::spawn(move || ledger.sweep::<INSIDE>(&ThreadStock::new()))
        };
        assert_eq!(ledger.try_charge(&thread_stock, root, 10), Ok(root));
        ledger.uncharge(&thread_stock, root, 70);
        sweeper.join().unwrap();
        let all = ledger.try_charge(&ThreadStock::new(), root, 100);
        assert_eq!(all, Ok(root), "refused, with bytes in stock alone");
        ledger.unregister_thread(&thread_stock);
    });
}

#[test]
fn a_refusal_finds_what_comes_in_after_a_sweep() {
    use_against_sweep::<true>();
}

#[test]
#[should_panic(expected = "with bytes in stock alone")]
fn unlisted_outside_the_lock_a_set_is_overlooked() {
    use_against_sweep::<false>();
}
