//! A wake signal against its sleeper: every change followed by a signal is noticed, however the two
//! interleave.

use std::time::Duration;

use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, Ordering::Relaxed};
use loom::thread;
use umemcg_base::WakeSignal;

/// Two changes, each followed by a signal; a worker that sleeps until it has seen both. One that
/// slept for ever would be a deadlock to loom.
#[test]
fn no_sleeper_misses_a_ring() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let wake_signal = Arc::new(WakeSignal::new());
        let usage = Arc::new(AtomicU32::new(0));
        let worker = {
            let (wake_signal, usage) = (Arc::clone(&wake_signal), Arc::clone(&usage));
            thread::spawn(move || {
                while usage.load(Relaxed) < 2 {
                    wake_signal.wait(Duration::ZERO);
                }
            })
        };
        for change in 1..=2 {
            usage.store(change, Relaxed);
            wake_signal.raise();
        }
        worker.join().unwrap();
    });
}

/// A worker takes what was raised and looks, while two others each make a change and raise it.
fn changes_against_a_look<const LOOK_AFTER_THE_TAKE: bool>() {
    loom::model(|| {
        let wake_signal = Arc::new(WakeSignal::new());
        let changes: Arc<[AtomicU32; 2]> = Arc::default();
        let changers: Vec<_> = (0..2)
            .map(|at| {
                let (wake_signal, changes) = (Arc::clone(&wake_signal), Arc::clone(&changes));
                thread::spawn(move || {
                    changes[at].store(1, Relaxed);
                    wake_signal.raise();
                })
            })
            .collect();
        let look = || changes.iter().map(|change| change.load(Relaxed)).sum::<u32>();
        let seen = if LOOK_AFTER_THE_TAKE {
            wake_signal.take();
            look()
        } else {
            let seen = look();
            wake_signal.take();
            seen
        };
        changers.into_iter().for_each(|changer| changer.join().unwrap());
        assert!(seen == 2 || wake_signal.take(), "a change that no look will find");
    });
}

#[test]
fn what_is_not_seen_is_still_rung_for() {
    changes_against_a_look::<true>();
}

#[test]
#[should_panic(expected = "a change that no look will find")]
fn a_look_before_the_take_loses_changes() {
    changes_against_a_look::<false>();
}
