//! A rate limit for each warning in the log, since a tenant can cause some at will.
//!
//! The next logged message reports the number of messages left out. Warnings with a bound per
//! volume or thread have a field for that number, and are not limited here. Nor are errors: each
//! names lost data, and one tenant's must not hide another's.

use std::collections::HashMap;
use std::fmt;

use tracing::callsite::Identifier;
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::layer::{Context, Filter};
use umemcg_base::clock::{Clock, SystemClock};
use umemcg_base::{LeafMutex, Rank, RateLimit};

/// The field of messages with a bound of their own.
const OWN_BOUND: &str = "nr_left_out";

/// See the module text.
pub(crate) struct LogRate {
    clock: SystemClock,
    /// By call site.
    limits: LeafMutex<HashMap<Identifier, RateLimit>>,
    tell: fn(Level, fmt::Arguments<'_>),
}

impl LogRate {
    /// Creates a rate limit. It reports the number of messages left out with `tell`.
    pub(crate) fn new(tell: fn(Level, fmt::Arguments<'_>)) -> Self {
        let limits = LeafMutex::with_rank(Rank::Innermost, HashMap::new());
        Self { clock: SystemClock::new(), limits, tell }
    }

    /// Returns the number of messages left out before, if this message may be logged now; else
    /// none.
    fn ask(&self, metadata: &Metadata<'_>) -> Option<u64> {
        let is_limited = *metadata.level() == Level::WARN
            // A record of the crate `log` has no place of its own.
            && metadata.file().is_some()
            && metadata.fields().field(OWN_BOUND).is_none();
        if !is_limited {
            return Some(0);
        }
        self.limits.lock().entry(metadata.callsite()).or_default().ask(self.clock.now())
    }
}

impl<S: Subscriber> Filter<S> for LogRate {
    fn enabled(&self, _: &Metadata<'_>, _: &Context<'_, S>) -> bool {
        true
    }

    fn event_enabled(&self, event: &Event<'_>, _: &Context<'_, S>) -> bool {
        let metadata = event.metadata();
        let nr_left_out = self.ask(metadata);
        if let Some(nr) = nr_left_out.filter(|&nr| nr > 0) {
            let (file, line) = (metadata.file().unwrap_or_default(), metadata.line().unwrap_or_default());
            (self.tell)(*metadata.level(), format_args!("{nr} messages from {file}:{line} were left out"));
        }
        nr_left_out.is_some()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    use tracing_subscriber::layer::SubscriberExt;
    use tracing_subscriber::{Layer, Registry};

    use super::*;

    /// Counts events.
    struct Count(Arc<AtomicU32>);

    impl<S: Subscriber> Layer<S> for Count {
        fn on_event(&self, _: &Event<'_>, _: Context<'_, S>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Returns the number of logged messages out of a thousand calls.
    fn nr_logged(log: impl Fn()) -> u32 {
        let nr = Arc::new(AtomicU32::new(0));
        let layer = Count(Arc::clone(&nr)).with_filter(LogRate::new(|_, _| ()));
        tracing::subscriber::with_default(Registry::default().with(layer), || (0..1000).for_each(|_| log()));
        nr.load(Ordering::Relaxed)
    }

    #[test]
    fn a_flood_of_one_message_hides_no_other() {
        let both = || {
            tracing::warn!("one");
            tracing::warn!(key = "k", "two");
        };
        // Within a second or two.
        let nr = nr_logged(both);
        assert!((2 * RateLimit::PER_SECOND..=200).contains(&nr), "{nr}");
    }

    #[test]
    fn other_levels_and_what_is_bounded_elsewhere_are_logged() {
        assert_eq!(nr_logged(|| tracing::info!("detail")), 1000);
        assert_eq!(nr_logged(|| tracing::error!(key = "k", "lost")), 1000);
        assert_eq!(nr_logged(|| tracing::warn!(nr_left_out = 0, "bounded for each volume")), 1000);
    }
}
