//! Where threads of a test wait until it lets them go on.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex};

/// See the module text.
#[derive(Debug, Default)]
pub struct Gate {
    is_closed: Mutex<bool>,
    opened: Condvar,
    /// Those that wait or pass.
    nr_there: AtomicUsize,
}

impl Gate {
    pub fn close(&self) {
        *self.is_closed.lock().unwrap() = true;
    }

    pub fn open(&self) {
        *self.is_closed.lock().unwrap() = false;
        self.opened.notify_all();
    }

    pub fn pass(&self) {
        self.nr_there.fetch_add(1, Ordering::Relaxed);
        drop(self.opened.wait_while(self.is_closed.lock().unwrap(), |is_closed| *is_closed).unwrap());
        self.nr_there.fetch_sub(1, Ordering::Relaxed);
    }

    /// Returns how many wait, while it is closed.
    pub fn nr_waiting(&self) -> usize {
        self.nr_there.load(Ordering::Relaxed)
    }
}
