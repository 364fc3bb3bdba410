//! Triggers on stall time for lack of memory, and the thread that checks them. While a trigger
//! exists, the thread checks ten times in the shortest window. A trigger belongs to the open file
//! it was written to, and ends with that file.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use umemcg::Group;
use umemcg_base::LeafMutex;
use umemcg_base::clock::{Clock, SystemClock, spawn_detached};

use crate::waiters::{Waiters, Waker};

/// Shortest window of a trigger.
pub(crate) const WINDOW_MIN: Duration = Duration::from_millis(500);
/// Longest.
pub(crate) const WINDOW_MAX: Duration = Duration::from_secs(10);
/// Checks in one window.
const CHECKS_PER_WINDOW: u32 = 10;

/// A sliding window. Its stall time is the stall time since it began, plus a share of the stall
/// time of the window before.
#[derive(Debug, Default)]
#[doc(alias = "psi_window")]
struct Window {
    /// None until the first check.
    began: Option<(Duration, Duration)>,
    lost_before: Duration,
    fired: Option<Duration>,
}

impl Window {
    /// Returns whether to fire at `now`, with a stall time of `total` so far.
    fn look(&mut self, now: Duration, total: Duration, threshold: Duration, window: Duration) -> bool {
        let (began, total_then) = *self.began.get_or_insert((now, total));
        let (passed, mut lost) = (now.saturating_sub(began), total.saturating_sub(total_then));
        if passed > window {
            (self.began, self.lost_before) = (Some((now, total)), lost);
        } else {
            let left = (window - passed).as_secs_f64() / window.as_secs_f64();
            lost += self.lost_before.mul_f64(left);
        }
        let fires = lost >= threshold && self.fired.is_none_or(|fired| now >= fired + window);
        if fires {
            self.fired = Some(now);
        }
        fires
    }
}

/// The event awaited by an open pressure file.
#[derive(Debug)]
#[doc(alias = "psi_trigger")]
pub(crate) struct Trigger {
    group: Weak<Group>,
    is_full: bool,
    threshold: Duration,
    window: Duration,
    /// Used by the checking thread.
    state: LeafMutex<Window>,
    /// Set until a poll has reported it. (A)
    has_fired: AtomicBool,
    waiters: Waiters,
}

impl Trigger {
    pub(crate) fn new(group: &Arc<Group>, is_full: bool, threshold: Duration, window: Duration) -> Arc<Self> {
        Arc::new(Self {
            group: Arc::downgrade(group),
            is_full,
            threshold,
            window,
            state: LeafMutex::default(),
            has_fired: AtomicBool::new(false),
            waiters: Waiters::default(),
        })
    }

    fn look(&self, now: Duration) {
        let Some(group) = self.group.upgrade() else { return };
        let pressure = umemcg::internal::pressure(&group);
        let total = if self.is_full { pressure.full.total } else { pressure.some.total };
        if self.state.lock().look(now, total, self.threshold, self.window) {
            // Before the waiters' lock: through it a later poll sees the flag.
            self.has_fired.store(true, Ordering::Relaxed);
            self.waiters.wake_all();
        }
    }

    /// Leaves a waker. Call it before [`take`](Self::take).
    pub(crate) fn wait(&self, waker: &Arc<Waker>) {
        self.waiters.add(waker);
    }

    /// Returns whether the trigger has fired since the last call.
    pub(crate) fn take(&self) -> bool {
        self.has_fired.swap(false, Ordering::Relaxed)
    }
}

/// All triggers of a tree, and the thread that checks them.
#[derive(Debug, Default)]
pub(crate) struct Triggers(Arc<LeafMutex<TriggerList>>);

#[derive(Debug, Default)]
struct TriggerList {
    triggers: Vec<Weak<Trigger>>,
    has_thread: bool,
}

impl Triggers {
    pub(crate) fn add(&self, trigger: &Arc<Trigger>) -> std::io::Result<()> {
        let mut looked = self.0.lock();
        if !looked.has_thread {
            let shared = Arc::clone(&self.0);
            spawn_detached("umemcg-psi", move || watch(&shared))?;
            looked.has_thread = true;
        }
        looked.triggers.push(Arc::downgrade(trigger));
        Ok(())
    }
}

/// Runs the thread, as long as there is a trigger.
fn watch(looked: &LeafMutex<TriggerList>) {
    let clock = SystemClock::new();
    loop {
        let triggers: Vec<Arc<Trigger>> = {
            let mut looked = looked.lock();
            looked.triggers.retain(|trigger| trigger.strong_count() > 0);
            let triggers = looked.triggers.iter().filter_map(Weak::upgrade).collect::<Vec<_>>();
            if triggers.is_empty() {
                looked.triggers.clear();
                looked.has_thread = false;
                return;
            }
            triggers
        };
        let now = clock.now();
        triggers.iter().for_each(|trigger| trigger.look(now));
        let shortest = triggers.iter().map(|trigger| trigger.window).min().unwrap_or(WINDOW_MIN);
        // Hold no references during the sleep: closing a file then ends its trigger at once.
        drop(triggers);
        std::thread::sleep(shortest / CHECKS_PER_WINDOW);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(milliseconds: u64) -> Duration {
        Duration::from_millis(milliseconds)
    }

    #[test]
    fn a_trigger_fires_once_a_window_and_not_below_its_threshold() {
        let (mut window, mut fired) = (Window::default(), Vec::new());
        // Half of the time is lost from the first to the third second.
        for at in (0..6000).step_by(100) {
            let lost = (at.clamp(1000, 3000) - 1000) / 2;
            if window.look(ms(at), ms(lost), ms(400), ms(1000)) {
                fired.push(at);
            }
        }
        assert!(fired.len() >= 2 && fired.len() <= 3, "{fired:?}");
        assert!(fired[0] >= 1800 && fired.windows(2).all(|pair| pair[1] - pair[0] >= 1000), "{fired:?}");
        assert!(fired.iter().all(|&at| at < 4000), "{fired:?}");
        let mut window = Window::default();
        assert!((0..100).all(|n| !window.look(ms(n * 100), ms(n * 30), ms(400), ms(1000))));
    }
}
