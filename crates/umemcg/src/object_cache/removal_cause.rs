//! Why an object left the cache, and the listener for removals.

use std::fmt;
use std::mem::needs_drop;

use umemcg_base::contained;

/// Why an object left the cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum RemovalCause {
    /// Its memory was needed.
    Evicted,
    /// It was too old.
    Expired,
    /// A caller removed it.
    Removed,
    /// Another value took its place.
    Replaced,
    /// Another value was to take its place and was declined; the old one must not be served any
    /// more.
    Outdated,
}

/// The number of causes.
pub(super) const NR_REMOVAL_CAUSES: usize = RemovalCause::Outdated as usize + 1;

type ListenerFn<K, V> = Box<dyn Fn(K, V, RemovalCause) + Send + Sync>;

/// The listener, called for every removed object with no lock held.
pub(super) struct Listener<K, V>(pub(super) Option<ListenerFn<K, V>>);

impl<K, V> Listener<K, V> {
    /// Passes a removed object to the listener, or drops it if there is none. Either may panic. The
    /// panic is caught here, because the thread may belong to any caller and other objects may be
    /// leaving together with this one.
    pub(super) fn call(&self, key: K, value: V, why: RemovalCause) {
        if self.0.is_none() && !needs_drop::<(K, V)>() {
            return;
        }
        let result = contained(|| match &self.0 {
            Some(listener) => listener(key, value, why),
            None => drop((key, value)),
        });
        if let Err(panic) = result {
            tracing::error!(%panic, ?why, "the listener of a cache, or the end of an object, panicked");
        }
    }
}

impl<K, V> fmt::Debug for Listener<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "a listener" } else { "no listener" })
    }
}
