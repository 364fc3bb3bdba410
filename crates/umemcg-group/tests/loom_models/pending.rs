//! A thread that adds up changes against one that has them told, and against the removal of the
//! group: every change is told once, and nothing stays pending for a group that is gone.

use loom::sync::Arc;
use loom::sync::atomic::{AtomicI64, Ordering};
use loom::thread;
use umemcg_group::model::{Ledger, NO_NODE, NODE_STATE_BYTES, Pending, ThreadStock, UNLIMITED};

fn model(body: impl Fn() + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(body);
}

#[derive(Default)]
struct Told(AtomicI64);

impl Told {
    fn apply(&self) -> impl Fn(Pending) + '_ {
        |pending| {
            self.0.fetch_add(pending.deltas[0], Ordering::Relaxed);
        }
    }

    /// As a thread counts: pending if that may be, else immediately.
    fn count<const FENCED: bool>(
        &self,
        ledger: &Ledger,
        thread_stock: &ThreadStock<'_>,
        node: u32,
        delta: i64,
    ) {
        if !ledger.add_pending_with::<FENCED>(thread_stock, node, 0, delta) {
            ledger.apply_with_pending(thread_stock, node, 0, delta, &self.apply());
        }
    }
}

fn change_against_reader<const FENCED: bool>() {
    model(|| {
        let (ledger, told) = (Arc::new(Ledger::default()), Arc::new(Told::default()));
        let root = ledger.open(NO_NODE, UNLIMITED);
        let reader = thread::spawn({
            let (ledger, told) = (Arc::clone(&ledger), Arc::clone(&told));
            move || ledger.apply_pending(&ThreadStock::new(), &told.apply())
        });
        let thread_stock = ThreadStock::new();
        ledger.register_thread(&thread_stock);
        // The first is told and claims the slot, the second waits there, the third meets the
        // reader.
        told.count::<true>(&ledger, &thread_stock, root, 1);
        told.count::<true>(&ledger, &thread_stock, root, 10);
        told.count::<FENCED>(&ledger, &thread_stock, root, 100);
        reader.join().unwrap();
        ledger.apply_pending(&thread_stock, &told.apply());
        assert_eq!(told.0.load(Ordering::Relaxed), 111, "a change was lost or told twice");
        ledger.unregister_thread(&thread_stock);
    });
}

#[test]
fn what_a_reader_has_told_is_told_once() {
    change_against_reader::<true>();
}

#[test]
#[should_panic(expected = "lost or told twice")]
fn without_the_fence_both_tell_the_same_change() {
    change_against_reader::<false>();
}

/// A thread that was idle changes a statistic, while a sweep empties its slots.
fn change_against_sweep<const INSIDE: bool>() {
    model(|| {
        let (ledger, told) = (Arc::new(Ledger::default()), Arc::new(Told::default()));
        let root = ledger.open(NO_NODE, UNLIMITED);
        let thread_stock = ThreadStock::new();
        ledger.register_thread(&thread_stock);
        told.count::<true>(&ledger, &thread_stock, root, 1);
        // The first sweep looks at the set, the second finds it unchanged.
        ledger.sweep_pending::<true>(&ThreadStock::new(), &told.apply());
        let sweeper = {
            let (ledger, told) = (Arc::clone(&ledger), Arc::clone(&told));
            thread::spawn(move || ledger.sweep_pending::<INSIDE>(&ThreadStock::new(), &told.apply()))
        };
        told.count::<true>(&ledger, &thread_stock, root, 10);
        told.count::<true>(&ledger, &thread_stock, root, 100);
        sweeper.join().unwrap();
        ledger.apply_pending(&ThreadStock::new(), &told.apply());
        assert_eq!(told.0.load(Ordering::Relaxed), 111, "a reader overlooked a change");
        ledger.unregister_thread(&thread_stock);
    });
}

#[test]
fn a_reader_finds_what_is_added_after_a_sweep() {
    change_against_sweep::<true>();
}

#[test]
#[should_panic(expected = "overlooked a change")]
fn unlisted_outside_the_lock_a_set_is_overlooked() {
    change_against_sweep::<false>();
}

fn change_against_removal<const HANDSHAKE: bool>() {
    model(|| {
        let (ledger, told) = (Arc::new(Ledger::default()), Arc::new(Told::default()));
        let root = ledger.open(NO_NODE, UNLIMITED);
        ledger.charge_forced(&ThreadStock::new(), root, NODE_STATE_BYTES);
        let child = ledger.open(root, UNLIMITED);
        let remover = thread::spawn({
            let (ledger, told) = (Arc::clone(&ledger), Arc::clone(&told));
            move || {
                ledger.node(child).mark_dead();
                ledger.purge::<HANDSHAKE>(child, &told.apply());
            }
        });
        let thread_stock = ThreadStock::new();
        ledger.register_thread(&thread_stock);
        told.count::<true>(&ledger, &thread_stock, child, 1);
        told.count::<true>(&ledger, &thread_stock, child, 10);
        remover.join().unwrap();
        assert_eq!(told.0.load(Ordering::Relaxed), 11, "a removed group was left pending");
        ledger.unregister_thread(&thread_stock);
    });
}

#[test]
fn a_removed_group_is_not_left_pending() {
    change_against_removal::<true>();
}

#[test]
#[should_panic(expected = "left pending")]
fn without_the_intrusion_it_may_be() {
    change_against_removal::<false>();
}
