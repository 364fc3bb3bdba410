//! A thread that begins work against one that stalls: work changes in the word alone only while
//! nothing is stalled, and no change is lost.

use loom::sync::Arc;
use loom::thread;
use umemcg_reclaim::stall_counts::StallCounts;

fn work_against_stall<const SWAPS: bool>() {
    loom::model(|| {
        let counts = Arc::new(StallCounts::default());
        let stalled = thread::spawn({
            let counts = Arc::clone(&counts);
            move || {
                counts.change(1, 0);
                counts.change(-1, 0);
            }
        });
        counts.change_with::<SWAPS>(0, 1);
        counts.change_with::<SWAPS>(0, -1);
        stalled.join().unwrap();
        // Nothing that began is left: one more end would be one too many.
        counts.change(1, 1);
        counts.change(-1, -1);
    });
}

#[test]
fn work_waits_for_the_lock_while_something_is_stalled() {
    work_against_stall::<true>();
}

#[test]
#[should_panic(expected = "beside a stall")]
fn added_to_without_a_look_the_counts_change_beside_a_stall() {
    work_against_stall::<false>();
}
