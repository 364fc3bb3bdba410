//! The levels of logged messages, for tests.

use std::sync::{Arc, Mutex};

use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

/// Keeps the level of each message.
struct Levels(Arc<Mutex<Vec<Level>>>);

impl Subscriber for Levels {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, event: &Event<'_>) {
        self.0.lock().unwrap().push(*event.metadata().level());
    }
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

/// Returns the levels of the messages that `act` logs on this thread.
pub(crate) fn levels_of(act: impl FnOnce()) -> Vec<Level> {
    let levels = Arc::<Mutex<Vec<Level>>>::default();
    tracing::subscriber::with_default(Levels(Arc::clone(&levels)), act);
    levels.lock().unwrap().clone()
}
