//! Mutual exclusion of the plugin's operations. One operation at a time runs on a volume: a second
//! fails with `Aborted`, as the specification says, so it holds no thread. One operation at a time
//! runs on the groups of a namespace: a second waits while the first writes some control files. One
//! operation at a time decides the share of a namespace in the pool: it takes that key last, and
//! writes no control file meanwhile.

use std::collections::HashSet;
use std::sync::Arc;

use umemcg_base::{Condvar, LeafMutex};

/// The keys in use.
#[derive(Debug, Default)]
pub struct BusyKeys {
    keys: LeafMutex<HashSet<String>>,
    /// Signalled when a key is released.
    freed: Condvar,
}

/// A key in use; released on drop.
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
