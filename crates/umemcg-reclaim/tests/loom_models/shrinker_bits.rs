//! A shrinker's bit against everything that happens to it at the same time: no object is left
//! without its bit.

use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, Ordering::Relaxed};
use loom::thread;
use umemcg_reclaim::shrinker::Count;
use umemcg_reclaim::shrinker::bits::{ShrinkerBits, UNIT_IDS};

const ID: u32 = 5;

fn is_set(bits: &ShrinkerBits, id: u32) -> bool {
    bits.find(id).is_some_and(|place| place.unit.bits() >> place.bit & 1 == 1)
}

fn count(object: &AtomicBool) -> Count {
    if object.load(Relaxed) { Count::Objects(1) } else { Count::Empty }
}

fn add_against_clear<const ASK_AGAIN: bool>() {
    loom::model(|| {
        let bits = Arc::new(ShrinkerBits::new());
        let object = Arc::new(AtomicBool::new(false));
        bits.set(ID, || ()).unwrap();
        let adder = {
            let (bits, object) = (Arc::clone(&bits), Arc::clone(&object));
            thread::spawn(move || {
                object.store(true, Relaxed);
                bits.set(ID, || ()).unwrap();
            })
        };
        let place = bits.find(ID).unwrap();
        if count(&object) == Count::Empty {
            place.unit.clear_if_empty::<ASK_AGAIN>(place.bit, || count(&object));
        }
        adder.join().unwrap();
        assert!(is_set(&bits, ID), "an object without its bit");
    });
}

#[test]
fn an_object_added_while_the_bit_is_cleared_keeps_its_bit() {
    add_against_clear::<true>();
}

/// The adder has set the bit already when the clearer, whose count was older, takes it away.
#[test]
#[should_panic(expected = "an object without its bit")]
fn without_asking_again_the_object_would_be_forgotten() {
    add_against_clear::<false>();
}

fn growth_against_set<const RETRY: bool>() {
    loom::model(|| {
        let bits = Arc::new(ShrinkerBits::new());
        let far = ID + UNIT_IDS;
        bits.set(0, || ()).unwrap();
        let other = {
            let bits = Arc::clone(&bits);
            thread::spawn(move || {
                let place = bits.locate::<RETRY>(far, || ()).unwrap();
                place.unit.set(place.bit).unwrap();
            })
        };
        let place = bits.locate::<RETRY>(ID, || ()).unwrap();
        place.unit.set(place.bit).unwrap();
        other.join().unwrap();
        assert!(is_set(&bits, ID) && is_set(&bits, far), "a bit in the wrong unit");
    });
}

#[test]
fn units_appended_at_the_same_time_are_both_there() {
    growth_against_set::<true>();
}

#[test]
#[should_panic(expected = "a bit in the wrong unit")]
fn the_loser_of_a_race_to_append_must_look_at_the_winner() {
    growth_against_set::<false>();
}

fn reparenting_against_set<const FOLLOW: bool>() {
    loom::model(|| {
        let group = Arc::new(ShrinkerBits::new());
        let parent = Arc::new(ShrinkerBits::new());
        let adder = {
            let (group, parent) = (Arc::clone(&group), Arc::clone(&parent));
            thread::spawn(move || {
                if group.set(ID, || ()).is_err() && FOLLOW {
                    parent.set(ID, || ()).unwrap();
                }
            })
        };
        group.close(|id, set, _| {
            if set {
                parent.set(id, || ()).unwrap();
            }
        });
        adder.join().unwrap();
        assert!(is_set(&parent, ID), "a bit lost with its group");
    });
}

#[test]
fn a_bit_set_while_its_group_goes_ends_in_the_parent() {
    reparenting_against_set::<true>();
}

#[test]
#[should_panic(expected = "a bit lost with its group")]
fn a_setter_that_finds_the_group_closed_must_follow() {
    reparenting_against_set::<false>();
}

/// A group appears and gets its first object while the shrinker registers, under an id whose bit an
/// earlier shrinker left behind; a walk that does not know the shrinker yet clears that bit.
fn registration_against_a_new_group<const ASK_AGAIN: bool>() {
    loom::model(|| {
        let bits = Arc::new(ShrinkerBits::new());
        bits.set(ID, || ()).unwrap();
        let registered = Arc::new(AtomicBool::new(false));
        let newcomer = {
            let (bits, registered) = (Arc::clone(&bits), Arc::clone(&registered));
            thread::spawn(move || {
                registered.store(true, Relaxed);
                bits.set(ID, || ()).unwrap();
            })
        };
        let place = bits.find(ID).unwrap();
        if !registered.load(Relaxed) {
            place.unit.clear_if_empty::<ASK_AGAIN>(place.bit, || count(&registered));
        }
        newcomer.join().unwrap();
        assert!(is_set(&bits, ID), "a registered shrinker without its bit");
    });
}

#[test]
fn a_shrinker_that_registers_while_its_bit_is_cleared_keeps_it() {
    registration_against_a_new_group::<true>();
}

#[test]
#[should_panic(expected = "a registered shrinker without its bit")]
fn a_walk_that_does_not_look_again_loses_a_new_shrinker() {
    registration_against_a_new_group::<false>();
}
