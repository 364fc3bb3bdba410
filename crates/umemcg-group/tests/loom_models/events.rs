//! An event against the first poll of the file that shows it: the poller sees the count, or is
//! woken.

use loom::sync::Arc;
use loom::thread;
use umemcg_base::WakeSignal;
use umemcg_group::EventKind;
use umemcg_group::model::Events;

fn check<const FENCE: bool>(nr_events: u64) {
    loom::model(move || {
        let events = Arc::new(Events::default());
        let counted = Arc::clone(&events);
        let counter =
            thread::spawn(move || (0..nr_events).for_each(|_| counted.count::<FENCE>(EventKind::Max)));
        // A poll, as the control files do it: attach, take the signal, look.
        let wake_signal = std::sync::Arc::new(WakeSignal::new());
        events.attach::<FENCE>(std::sync::Arc::clone(&wake_signal));
        wake_signal.take();
        let seen = events.nr(EventKind::Max);
        counter.join().unwrap();
        assert!(seen == nr_events || wake_signal.take(), "the poller saw {seen} of {nr_events} and sleeps");
    });
}

#[test]
fn the_first_poller_sees_an_event_or_is_woken() {
    check::<true>(1);
}

#[test]
fn the_first_poller_is_woken_for_the_last_of_several_events() {
    check::<true>(2);
}

#[test]
#[should_panic(expected = "sleeps")]
fn without_the_fences_a_poller_sleeps_through_an_event() {
    check::<false>(1);
}
