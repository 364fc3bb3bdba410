//! What is told to `tracing`: refusals and failed charges, a bounded number of them. A program of
//! its own, because the subscriber is the process's.

use std::fmt;
use std::sync::Mutex;

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

const MIB: u64 = 1 << 20;

/// The messages told, each with its fields.
static TOLD: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Keeps the events of this library.
struct Keeps;

impl Subscriber for Keeps {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("umemcg")
    }
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, event: &Event<'_>) {
        let mut text = Text::default();
        event.record(&mut text);
        TOLD.lock().unwrap().push(text.0);
    }
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

#[derive(Default)]
struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0 += &format!("{field}={value:?};");
    }
}

fn told(what: &str) -> Vec<String> {
    TOLD.lock().unwrap().iter().filter(|text| text.contains(what)).cloned().collect()
}

#[test]
fn refusals_and_failed_charges_are_told_a_bounded_number() {
    tracing::subscriber::set_global_default(Keeps).unwrap();
    let engine = crate::common::engine(64 * MIB);
    let group = crate::common::group(&engine, "group", 4 * MIB);
    let account = engine.account(&group);
    account.try_grow(3 * MIB).unwrap();
    assert!(told("").is_empty());
    let start = std::time::Instant::now();
    for _ in 0..1000 {
        account.try_grow(2 * MIB).unwrap_err();
        engine.charge(&group, 2 * MIB).unwrap_err();
    }
    let bound = 10 * (2 + start.elapsed().as_secs() as usize);
    let (refused, failed) = (told("was refused memory"), told("a charge failed"));
    for events in [&refused, &failed] {
        assert!((1..=bound).contains(&events.len()), "{} events: {:?}", events.len(), events.first());
        let first = &events[0];
        assert!(first.contains("group=/group;") && first.contains("bytes=2097152;"), "{first}");
    }
    assert!(refused[0].contains("do not fit in group /group now"), "{}", refused[0]);
}
