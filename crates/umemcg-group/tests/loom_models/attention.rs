//! A thread that gives something back against one that is about to wait for it: either the giver
//! sees the flag, or the waiter sees what was given.

use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering};
use loom::thread;
use umemcg_group::model::Attention;

fn change_against_wait<const FENCED: bool>() {
    loom::model(|| {
        let shared = Arc::new((Attention::default(), AtomicU64::new(0)));
        let giver = thread::spawn({
            let shared = Arc::clone(&shared);
            move || {
                let (attention, given) = &*shared;
                given.store(1, Ordering::Relaxed);
                attention.is_raised_with::<FENCED>()
            }
        });
        let (attention, given) = &*shared;
        attention.raise();
        let is_seen = given.load(Ordering::Relaxed) == 1;
        let is_told = giver.join().unwrap();
        assert!(is_seen || is_told, "a waiter sleeps through a change");
        attention.lower();
        assert!(!attention.is_raised());
    });
}

#[test]
fn a_waiter_sees_a_change_or_is_told_of_it() {
    change_against_wait::<true>();
}

#[test]
#[should_panic(expected = "sleeps through")]
fn without_the_fence_a_waiter_sleeps_through_a_change() {
    change_against_wait::<false>();
}
