//! A value on its way into the cache, and the callers that wait for it.

use umemcg_base::{Condvar, LeafMutex};

/// A value that is being loaded.
#[derive(Debug)]
pub(super) struct InFlight<V> {
    state: LeafMutex<LoadState<V>>,
    finished: Condvar,
}

/// How far the load is.
#[derive(Debug)]
enum LoadState<V> {
    Loading,
    Value(V),
    /// The loader failed or panicked; another caller may try.
    Lost,
}

impl<V: Clone> InFlight<V> {
    pub(super) fn new() -> Self {
        Self { state: LeafMutex::new(LoadState::Loading), finished: Condvar::default() }
    }

    /// Waits for the value; `None` when the loader failed.
    pub(super) fn wait(&self) -> Option<V> {
        let mut state = self.state.lock();
        loop {
            match &*state {
                LoadState::Loading => self.finished.wait(&mut state),
                LoadState::Value(value) => return Some(value.clone()),
                LoadState::Lost => return None,
            }
        }
    }

    /// Ends the wait.
    pub(super) fn finish(&self, value: Option<V>) {
        *self.state.lock() = value.map_or(LoadState::Lost, LoadState::Value);
        self.finished.notify_all();
    }
}
