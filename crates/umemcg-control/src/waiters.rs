//! Pollers waiting for changes: wakers, and the groups' lists of them.

use std::fmt;
use std::sync::{Arc, OnceLock, Weak};

use umemcg::Group;
use umemcg_base::{LeafMutex, WakeSignal};

/// Wakes a poller to look again. Called by the thread that counts an event: must be brief and must
/// not sleep.
pub struct Waker(Box<dyn Fn() + Send + Sync>);

impl Waker {
    /// Creates a waker that calls `wake`.
    pub fn new(wake: impl Fn() + Send + Sync + 'static) -> Self {
        Self(Box::new(wake))
    }

    pub(crate) fn wake(&self) {
        (self.0)();
    }
}

impl fmt::Debug for Waker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Waker")
    }
}

/// The pollers waiting for changes of a group. Each ends with its open file.
#[derive(Debug, Default)]
pub(crate) struct Waiters(LeafMutex<Vec<Weak<Waker>>>);

impl Waiters {
    /// Adds a waker, unless it is present.
    pub(crate) fn add(&self, waker: &Arc<Waker>) {
        let mut wakers = self.0.lock();
        wakers.retain(|known| known.strong_count() > 0 && !std::ptr::eq(known.as_ptr(), Arc::as_ptr(waker)));
        wakers.push(Arc::downgrade(waker));
    }

    /// Returns whether a waiting file is still open.
    pub(crate) fn is_waited_for(&self) -> bool {
        self.0.lock().iter().any(|waker| waker.strong_count() > 0)
    }

    pub(crate) fn wake_all(&self) {
        let wakers: Vec<_> = self.0.lock().iter().filter_map(Weak::upgrade).collect();
        wakers.iter().for_each(|waker| waker.wake());
    }
}

/// The pollers waiting for a group's events.
#[derive(Debug, Default)]
pub(crate) struct EventWaiters {
    pub(crate) waiters: Arc<Waiters>,
    wake_signal: OnceLock<Arc<WakeSignal>>,
}

impl EventWaiters {
    /// Arms the wake signal: the next event wakes all pollers of the list.
    pub(crate) fn arm(&self, group: &Group) {
        let wake_signal = self.wake_signal.get_or_init(|| {
            let waiters = Arc::clone(&self.waiters);
            let wake_signal = Arc::new(WakeSignal::with_hook(move || waiters.wake_all()));
            group.listen_for_events(Arc::clone(&wake_signal));
            wake_signal
        });
        wake_signal.take();
    }
}
