//! What the plugin works on at the moment. One operation at a time on each volume: another is told
//! to try again, as the specification says, so it holds no thread. One at a time on the groups of a
//! namespace: another waits, for as long as it takes to write some control files.

use std::collections::HashSet;
use std::sync::Arc;

use umemcg_base::{Condvar, LeafMutex};

/// The keys that are in use.
#[derive(Debug, Default)]
pub struct BusyKeys {
    keys: LeafMutex<HashSet<String>>,
    /// Signalled when a key is given back.
    freed: Condvar,
}

/// A key in use; dropping it gives the key back.
#[derive(Debug)]
pub struct BusyKey {
    keys: Arc<BusyKeys>,
    key: String,
}

impl BusyKeys {
    /// Takes a key, unless it is in use.
    pub fn try_take(self: &Arc<Self>, key: &str) -> Option<BusyKey> {
        let is_free = self.keys.lock().insert(key.to_owned());
        is_free.then(|| BusyKey { keys: Arc::clone(self), key: key.to_owned() })
    }

    /// Takes a key. Blocks until it is free.
    pub fn take(self: &Arc<Self>, key: &str) -> BusyKey {
        let mut keys = self.keys.lock();
        while !keys.insert(key.to_owned()) {
            self.freed.wait(&mut keys);
        }
        BusyKey { keys: Arc::clone(self), key: key.to_owned() }
    }
}

impl Drop for BusyKey {
    fn drop(&mut self) {
        self.keys.keys.lock().remove(&self.key);
        self.keys.freed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_taken_once_and_given_back() {
        let keys = Arc::new(BusyKeys::default());
        let first = keys.try_take("a").unwrap();
        assert!(keys.try_take("a").is_none() && keys.try_take("b").is_some());
        let waiting = std::thread::spawn({
            let keys = Arc::clone(&keys);
            move || drop(keys.take("a"))
        });
        drop(first);
        waiting.join().unwrap();
        assert!(keys.try_take("a").is_some());
    }
}
