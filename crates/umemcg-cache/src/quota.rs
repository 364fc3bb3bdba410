//! Bounds on the pages of files in memory, beside the groups' limits.

use std::fmt;
use std::sync::Arc;

use umemcg_base::contained;

/// A bound on the pages of files in memory. Called with locks held, so it must not block. A panic
/// in `take_up_to` counts as no room, and one in `give` loses the returned pages to the quota;
/// nothing else is affected.
pub trait PageQuota: Send + Sync + fmt::Debug {
    /// Takes quota for up to `nr` pages; returns for how many.
    fn take_up_to(&self, nr: u64) -> u64;
    /// Returns the quota of `nr` pages.
    fn give(&self, nr: u64);
}

/// A quota as the cache calls it, with locks held: a panic is logged and goes no further, and no
/// more is taken than was asked for.
#[derive(Debug)]
pub(crate) struct GuardedQuota(Option<Arc<dyn PageQuota>>);

impl GuardedQuota {
    pub(crate) fn new(quota: Arc<dyn PageQuota>) -> Self {
        Self(Some(quota))
    }

    fn call<R>(&self, call: impl FnOnce(&dyn PageQuota) -> R) -> Option<R> {
        let quota = self.0.as_deref()?;
        contained(|| call(quota))
            .inspect_err(|panic| tracing::error!(%panic, "the quota of files in memory panicked"))
            .ok()
    }

    /// As [`PageQuota::take_up_to`].
    pub(crate) fn take_up_to(&self, nr: u64) -> u64 {
        self.call(|quota| quota.take_up_to(nr)).unwrap_or(0).min(nr)
    }

    /// As [`PageQuota::give`].
    pub(crate) fn give(&self, nr: u64) {
        let _ = self.call(|quota| quota.give(nr));
    }
}

impl Drop for GuardedQuota {
    fn drop(&mut self) {
        if let Err(panic) = contained(|| drop(self.0.take())) {
            tracing::error!(%panic, "the end of a quota panicked");
        }
    }
}
