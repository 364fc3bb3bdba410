//! Expiry of objects: time to live since insertion, time to idle since the last use.
//!
//! Times are kept in ticks of about 4 ms, in 32 bits. An object counts as expired up to one tick
//! early, never late.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;

use umemcg_base::clock::{Clock, SystemClock};

/// log2 of the nanoseconds of a tick.
const TICK_SHIFT: u32 = 22;
/// The longest time to live or idle: a quarter of the range of ticks.
pub(super) const LONGEST: Duration = Duration::from_nanos((1 << 30) << TICK_SHIFT);

/// Stands for no time to live.
const NEVER: u32 = u32::MAX;

/// The times of an object's insertion and last use, in ticks. Kept beside the entries of caches
/// with expiry.
#[derive(Debug)]
pub(super) struct Age {
    born: u32,
    /// (A)
    used: AtomicU32,
}

impl Age {
    pub(super) fn new(now: u32) -> Self {
        Self { born: now, used: AtomicU32::new(now) }
    }
}

/// The expiry ages of objects, and the clock.
pub(super) struct Expiry {
    clock: Arc<dyn Clock>,
    /// Ages are kept beside the entries. (C)
    is_on: bool,
    /// In ticks; [`NEVER`] if objects live on. (A)
    live: AtomicU32,
    idle: Option<u32>,
}

impl fmt::Debug for Expiry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Expiry")
            .field("live_ticks", &self.live.load(Relaxed))
            .field("idle_ticks", &self.idle)
            .finish()
    }
}

/// The whole ticks of a time to live or idle.
fn whole(time: Duration) -> u32 {
    ticks(time.min(LONGEST)) as u32
}

fn ticks(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX) >> TICK_SHIFT
}

impl Expiry {
    pub(super) fn new(
        clock: Option<Arc<dyn Clock>>,
        time_to_live: Option<Duration>,
        time_to_idle: Option<Duration>,
    ) -> Self {
        Self {
            clock: clock.unwrap_or_else(|| Arc::new(SystemClock::new())),
            is_on: time_to_live.is_some() || time_to_idle.is_some(),
            live: AtomicU32::new(time_to_live.map_or(NEVER, whole)),
            idle: time_to_idle.map(whole),
        }
    }

    /// Changes the time to live. Returns `false` if ages are not kept.
    pub(super) fn set_time_to_live(&self, time: Option<Duration>) -> bool {
        if self.is_on {
            self.live.store(time.map_or(NEVER, whole), Relaxed);
        }
        self.is_on
    }

    /// Returns whether anything expires at all.
    #[inline]
    pub(super) fn is_on(&self) -> bool {
        self.is_on
    }

    /// Returns the time, in wrapping ticks; always the same, without reading the clock, when
    /// nothing expires.
    #[inline]
    pub(super) fn now(&self) -> u32 {
        if self.is_on() { ticks(self.clock.now()) as u32 } else { 0 }
    }

    /// Returns whether an object of that age is too old at `now`; never when nothing expires and
    /// ages are not kept.
    #[inline]
    pub(super) fn is_over(&self, age: Option<&Age>, now: u32) -> bool {
        let Some(age) = age else { return false };
        let is_older = |since: u32, limit: Option<u32>| {
            // Another thread may have read the clock after us: an age below zero is none.
            limit.is_some_and(|limit| now.wrapping_sub(since).cast_signed() >= limit.cast_signed())
        };
        let live = self.live.load(Relaxed);
        is_older(age.born, (live != NEVER).then_some(live)) || is_older(age.used.load(Relaxed), self.idle)
    }

    /// Records a use.
    #[inline]
    pub(super) fn note_use(&self, age: &Age, now: u32) {
        if self.idle.is_some() && age.used.load(Relaxed) != now {
            age.used.store(now, Relaxed);
        }
    }
}
