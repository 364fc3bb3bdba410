//! A thread waiting for a future: the blocking half of single flight.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

use umemcg_base::{Condvar, LeafMutex};

/// A sleeping thread, until woken.
#[derive(Debug, Default)]
struct Sleeper {
    is_woken: LeafMutex<bool>,
    changed: Condvar,
}

impl Wake for Sleeper {
    fn wake(self: Arc<Self>) {
        *self.is_woken.lock() = true;
        self.changed.notify_all();
    }
}

/// Polls a future until it is ready; the thread sleeps in between. No lock may be held.
pub(super) fn wait_for<F: Future>(future: F) -> F::Output {
    let sleeper = Arc::new(Sleeper::default());
    let waker = Waker::from(Arc::clone(&sleeper));
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return output;
        }
        let mut is_woken = sleeper.is_woken.lock();
        while !*is_woken {
            sleeper.changed.wait(&mut is_woken);
        }
        *is_woken = false;
    }
}
