//! `memory.pressure`: time lost for want of memory, and triggers on it (`kernel-semantics` §7.4).
//!
//! A trigger belongs to the open file that it was written to and goes with it. One thread looks at all triggers, ten times in the
//! shortest window, as long as there is one.

use std::fmt::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use umemcg::{Group, PressureLine};
use umemcg_base::clock::{Clock, SystemClock, spawn_detached};
use umemcg_base::sync::Mutex;

use crate::error::ControlError;
use crate::row::FileContext;
use crate::value::{parse_decimal, strip};
use crate::watch::{Waiters, Waker};

const WINDOW_MIN: Duration = Duration::from_millis(500);
const WINDOW_MAX: Duration = Duration::from_secs(10);
/// Looks in one window.
const CHECKS_PER_WINDOW: u32 = 10;

/// `memory.pressure`.
#[doc(alias = "psi_show")]
pub(crate) fn show(context: &FileContext<'_>) -> Result<String, ControlError> {
    let pressure = umemcg::pressure(context.group);
    let mut text = String::new();
    for (name, line) in [("some", pressure.some), ("full", pressure.full)] {
        let PressureLine { averages: [ten, sixty, long], total } = line;
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "{name} avg10={ten:.2} avg60={sixty:.2} avg300={long:.2} total={}",
            total.as_micros()
        );
    }
    Ok(text)
}

/// Sets the open file's trigger: `some|full <us> <window us>`.
#[doc(alias = "psi_trigger_create")]
pub(crate) fn set_trigger(context: &FileContext<'_>, written: &[u8]) -> Result<(), ControlError> {
    let (is_full, threshold, window) = parse(written).ok_or(ControlError::Invalid)?;
    let mut own = context.file.trigger.lock();
    if own.is_some() {
        return Err(ControlError::Busy);
    }
    let trigger = Arc::new(Trigger {
        group: Arc::downgrade(context.group),
        is_full,
        threshold,
        window,
        state: Mutex::default(),
        has_fired: AtomicBool::new(false),
        waiters: Waiters::default(),
    });
    context.tree.triggers().add(&trigger).map_err(|_| ControlError::Again)?;
    *own = Some(trigger);
    Ok(())
}

fn parse(written: &[u8]) -> Option<(bool, Duration, Duration)> {
    let mut words = strip(written).split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
    let is_full = match words.next()? {
        b"some" => false,
        b"full" => true,
        _ => return None,
    };
    let [threshold, window] = [words.next()?, words.next()?].map(parse_decimal);
    let (threshold, window) = (Duration::from_micros(threshold?), Duration::from_micros(window?));
    let fits = (WINDOW_MIN..=WINDOW_MAX).contains(&window) && !threshold.is_zero() && threshold <= window;
    (fits && words.next().is_none()).then_some((is_full, threshold, window))
}

/// A window that slides: what was lost in it is what was lost since it began, and a share of what was lost in the one before.
#[derive(Debug, Default)]
#[doc(alias = "psi_window")]
struct Window {
    /// None until the first look.
    began: Option<(Duration, Duration)>,
    lost_before: Duration,
    fired: Option<Duration>,
}

impl Window {
    /// Whether to fire at `now`, when `total` has been lost ever.
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

/// What an open pressure file waits for.
#[derive(Debug)]
#[doc(alias = "psi_trigger")]
pub(crate) struct Trigger {
    group: Weak<Group>,
    is_full: bool,
    threshold: Duration,
    window: Duration,
    /// Of the thread that looks.
    state: Mutex<Window>,
    /// Until a poll has said so. (A)
    has_fired: AtomicBool,
    waiters: Waiters,
}

impl Trigger {
    fn look(&self, now: Duration) {
        let Some(group) = self.group.upgrade() else { return };
        let pressure = umemcg::pressure(&group);
        let total = if self.is_full { pressure.full.total } else { pressure.some.total };
        if self.state.lock().look(now, total, self.threshold, self.window) {
            // Before the waiters' lock, through which who comes later sees it.
            self.has_fired.store(true, Ordering::Relaxed);
            self.waiters.wake_all();
        }
    }

    /// Leaves a waker; to be done before the look.
    pub(crate) fn wait(&self, waker: &Arc<Waker>) {
        self.waiters.add(waker);
    }

    /// Whether it has fired since this was last asked.
    pub(crate) fn take(&self) -> bool {
        self.has_fired.swap(false, Ordering::Relaxed)
    }
}

/// All triggers of a tree, and the thread that looks at them.
#[derive(Debug, Default)]
pub(crate) struct Triggers(Arc<Mutex<Looked>>);

#[derive(Debug, Default)]
struct Looked {
    triggers: Vec<Weak<Trigger>>,
    has_thread: bool,
}

impl Triggers {
    fn add(&self, trigger: &Arc<Trigger>) -> std::io::Result<()> {
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

/// The thread's life: as long as there is a trigger.
fn watch(looked: &Mutex<Looked>) {
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
        // Whoever closes his file meanwhile does not wait for this thread.
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
    fn a_trigger_is_a_line_of_three_words() {
        assert_eq!(parse(b"some 150000 1000000\n"), Some((false, ms(150), ms(1000))));
        assert_eq!(parse(b"full 500000 500000\0"), Some((true, ms(500), ms(500))));
        for text in [
            "",
            "some",
            "some 1",
            "some 0 1000000",
            "some 1 499999",
            "full 1 10000001",
            "some 600000 500000",
            "most 1 1000000",
            "some 1 1000000 1",
            "some x 1000000",
            "some -1 1000000",
        ] {
            assert_eq!(parse(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn a_trigger_fires_at_most_once_in_a_window_and_not_below_its_threshold() {
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
