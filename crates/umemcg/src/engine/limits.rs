//! Sets limits and reclaims on request, with the semantics of the control files (`kernel-semantics`
//! §1.5, §2.4).

use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;
use umemcg_base::PAGE_SIZE_U64;
use umemcg_base::clock::{Clock, SystemClock};
use umemcg_cache::dirty::thresholds::unclean_bytes;
use umemcg_group::{EventKind, Group};
use umemcg_reclaim::{MAX_RECLAIM_RETRIES, PageOwner, Reason, Reclaimer, leaving_bytes};

use super::Engine;

/// How long `force_empty` waits for write-back without progress.
const WRITE_WAIT: Duration = Duration::from_secs(1);
/// The interval between checks for progress.
const WRITE_LOOK: Duration = Duration::from_millis(50);
/// Longest wait at the end of a reclaim request for pages being dropped by the kernel.
const RELEASE_WAIT_MAX: Duration = Duration::from_secs(2);

/// Why a limit was not set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum LimitError {
    /// Usage cannot be brought below the new limit; the old one stays.
    #[error("usage cannot be brought below the new limit; the old limit stays")]
    Busy,
    /// The caller gave up; the old limit stays.
    #[error("interrupted; the old limit stays")]
    Interrupted,
    /// The root's limit is the pool's size.
    #[error("the root group's limit is the size of the pool")]
    IsRoot,
}

/// Why reclaim on request failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum ReclaimError {
    /// Less was reclaimed than requested.
    #[error("less could be reclaimed than was asked for")]
    Again,
    /// The caller gave up.
    #[error("interrupted")]
    Interrupted,
    /// Not for the root group.
    #[error("not for the root group")]
    IsRoot,
}

/// The kinds of memory to drop, as in `vm.drop_caches`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DropCaches {
    /// 1: clean pages.
    Pages,
    /// 2: objects freeable by shrinkers.
    Objects,
    /// 3: both.
    Both,
}

impl Engine {
    /// Drops clean and unused memory of the whole pool (`vm.drop_caches`). Writes nothing, so dirty
    /// pages stay. May take long.
    #[doc(alias = "drop_caches_sysctl_handler")]
    pub fn drop_caches(&self, what: DropCaches) {
        self.drop_caches_unless(what, &|| false);
    }

    /// Like [`drop_caches`](Self::drop_caches), and ends early when `cancelled` returns `true`.
    pub fn drop_caches_unless(&self, what: DropCaches, cancelled: &dyn Fn() -> bool) {
        if what != DropCaches::Objects {
            self.reclaimer().drop_pages_unless(self.root(), cancelled);
        }
        if what != DropCaches::Pages {
            self.reclaimer().drop_slab_unless(self.root(), cancelled);
        }
    }

    /// Sets a hard limit by the rule of v1: when usage is above it, reclaims first, and fails if
    /// that does not help. May sleep for reclaim. `limit_bytes` is rounded down to a page;
    /// `u64::MAX` is no limit.
    ///
    /// # Errors
    /// [`LimitError::Busy`], [`LimitError::IsRoot`]; the old limit then stays.
    #[doc(alias = "mem_cgroup_resize_max")]
    pub fn set_limit(&self, group: &Arc<Group>, limit_bytes: u64) -> Result<(), LimitError> {
        self.set_limit_unless(group, limit_bytes, &|| false)
    }

    /// Like [`set_limit`](Self::set_limit), and gives up when `cancelled` returns `true`.
    ///
    /// # Errors
    /// As [`set_limit`](Self::set_limit), or [`LimitError::Interrupted`].
    pub fn set_limit_unless(
        &self,
        group: &Arc<Group>,
        limit_bytes: u64,
        cancelled: &dyn Fn() -> bool,
    ) -> Result<(), LimitError> {
        if group.is_root() {
            return Err(LimitError::IsRoot);
        }
        self.set_limit_by_reclaim(group, whole_pages(limit_bytes), cancelled)?;
        self.reclaimer().limit_changed(group);
        self.waits.wake_all();
        Ok(())
    }

    fn set_limit_by_reclaim(
        &self,
        group: &Arc<Group>,
        limit: u64,
        cancelled: &dyn Fn() -> bool,
    ) -> Result<(), LimitError> {
        let mut fruitless = 0;
        loop {
            if cancelled() {
                return Err(LimitError::Interrupted);
            }
            if group.try_set_max(limit).is_ok() {
                return Ok(());
            }
            // Each time, because reclaimed memory goes into stocks first.
            group.drain_stocks();
            if group.try_set_max(limit).is_ok() {
                return Ok(());
            }
            let excess = group.usage_bytes().saturating_sub(limit) / PAGE_SIZE_U64;
            let step = excess.min(1024);
            if self.reclaimer().reclaim_unless(group, step, Reason::Direct, cancelled).pages() == 0 {
                fruitless += 1;
                if fruitless >= 2 {
                    return group.try_set_max(limit).map_err(|_| LimitError::Busy);
                }
            }
        }
    }

    /// Sets a hard limit in bytes by the rule of v2: immediately, then reclaims until usage fits or
    /// nothing more can be freed. May sleep for reclaim. Always succeeds on a group other than the
    /// root; there it does nothing.
    #[doc(alias = "memory_max_write")]
    pub fn set_max(&self, group: &Arc<Group>, limit_bytes: u64) {
        self.set_max_unless(group, limit_bytes, &|| false);
    }

    /// Like [`set_max`](Self::set_max), and stops reclaiming when `cancelled` returns `true`; the
    /// new limit stays.
    pub fn set_max_unless(&self, group: &Arc<Group>, limit_bytes: u64, cancelled: &dyn Fn() -> bool) {
        if group.is_root() {
            return;
        }
        let limit = whole_pages(limit_bytes);
        group.store_max(limit);
        self.reclaimer().limit_changed(group);
        self.waits.wake_all();
        let mut retries = MAX_RECLAIM_RETRIES;
        while group.usage_bytes() > limit && !cancelled() {
            group.drain_stocks();
            if group.usage_bytes() <= limit {
                return;
            }
            let excess = (group.usage_bytes() - limit.min(group.usage_bytes())).div_ceil(PAGE_SIZE_U64);
            if self.reclaimer().reclaim_unless(group, excess, Reason::Direct, cancelled).pages() == 0 {
                retries -= 1;
                if retries == 0 {
                    // No process is killed here; unreclaimable memory stays above the limit.
                    group.event(EventKind::Oom);
                    return;
                }
            }
        }
    }

    /// Sets `memory.high` in bytes, then reclaims the excess as long as reclaim makes progress. May
    /// sleep for reclaim. Always succeeds; on the root it does nothing.
    #[doc(alias = "memory_high_write")]
    pub fn set_high(&self, group: &Arc<Group>, bytes: u64) {
        self.set_high_unless(group, bytes, &|| false);
    }

    /// Like [`set_high`](Self::set_high), and stops reclaiming when `cancelled` returns `true`; the
    /// new value stays.
    pub fn set_high_unless(&self, group: &Arc<Group>, bytes: u64, cancelled: &dyn Fn() -> bool) {
        if group.is_root() {
            return;
        }
        let high = whole_pages(bytes);
        self.reclaimer().set_high(group, high);
        let mut retries = MAX_RECLAIM_RETRIES;
        while group.usage_bytes() > high && retries > 0 && !cancelled() {
            group.drain_stocks();
            let excess = group.usage_bytes().saturating_sub(high).div_ceil(PAGE_SIZE_U64);
            if self.reclaimer().reclaim_unless(group, excess, Reason::Proactive, cancelled).pages() == 0 {
                retries -= 1;
            }
        }
    }

    /// Sets a group's soft limit (`memory.soft_limit_in_bytes`), rounded down to a page; `u64::MAX`
    /// is none. Reclaims nothing and never blocks. When room is needed, groups over their soft
    /// limits, and their descendants, are reclaimed first. The root may have one, too.
    ///
    /// ```
    /// # use umemcg::{Engine, EngineConfig};
    /// let engine = Engine::new(EngineConfig::new(16 << 20))?;
    /// let batch = engine.create_group(engine.root(), "batch".as_ref())?;
    /// engine.set_soft_limit(&batch, 4 << 20);
    /// let charge = engine.charge(&batch, 5 << 20)?;
    /// assert!(batch.excess_bytes() >= 1 << 20 && batch.is_in_excess());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn set_soft_limit(&self, group: &Arc<Group>, bytes: u64) {
        group.set_soft_limit(whole_pages(bytes));
    }

    /// Drops as much of a group's cache as possible (`memory.force_empty`), regardless of soft
    /// limits. Dirty data is written first, as long as its stores accept it, so this may sleep for
    /// long. Succeeds even if something stays.
    ///
    /// # Errors
    /// [`ReclaimError::IsRoot`].
    #[doc(alias = "mem_cgroup_force_empty")]
    pub fn force_empty(&self, group: &Arc<Group>) -> Result<(), ReclaimError> {
        self.force_empty_unless(group, &|| false)
    }

    /// Like [`force_empty`](Self::force_empty), and gives up when `cancelled` returns `true`.
    ///
    /// # Errors
    /// As [`force_empty`](Self::force_empty), or [`ReclaimError::Interrupted`].
    pub fn force_empty_unless(
        &self,
        group: &Arc<Group>,
        cancelled: &dyn Fn() -> bool,
    ) -> Result<(), ReclaimError> {
        if group.is_root() {
            return Err(ReclaimError::IsRoot);
        }
        self.write_dirty(group, cancelled)?;
        let mut retries = MAX_RECLAIM_RETRIES;
        let mut requested = Requested::of(self.reclaimer(), group);
        while retries > 0 {
            group.drain_stocks();
            let usage_bytes = group.usage_bytes();
            if usage_bytes == 0 {
                break;
            }
            if cancelled() {
                return Err(ReclaimError::Interrupted);
            }
            let pages = usage_bytes.div_ceil(PAGE_SIZE_U64);
            let progress = self.reclaimer().reclaim_from_all(group, pages, cancelled);
            requested.bytes += progress.releasing_bytes;
            if progress.pages() == 0 && requested.wait() == 0 {
                retries -= 1;
            }
        }
        Ok(())
    }

    /// Writes the dirty data of a group and its descendants, and waits until it is durable, or
    /// until there was no progress for [`WRITE_WAIT`].
    fn write_dirty(&self, group: &Arc<Group>, cancelled: &dyn Fn() -> bool) -> Result<(), ReclaimError> {
        let clock = SystemClock::new();
        let (mut least, mut give_up) = (u64::MAX, WRITE_WAIT);
        // This ends: every further wait has reduced the bytes.
        loop {
            let unclean = unclean_bytes(group);
            if unclean < least {
                (least, give_up) = (unclean, clock.now() + WRITE_WAIT);
            }
            if unclean == 0 || clock.now() >= give_up {
                return Ok(());
            }
            if cancelled() {
                return Err(ReclaimError::Interrupted);
            }
            self.cache().start_writeback(group);
            self.cache().wait_for_writeback(WRITE_LOOK);
        }
    }

    /// Reclaims `bytes` from a group and everything below it (`memory.reclaim`). May sleep.
    ///
    /// # Errors
    /// [`ReclaimError::Again`] when less could be reclaimed.
    #[doc(alias = "memory_reclaim")]
    pub fn reclaim(&self, group: &Arc<Group>, bytes: u64) -> Result<(), ReclaimError> {
        self.reclaim_unless(group, bytes, &|| false)
    }

    /// Like [`reclaim`](Self::reclaim), and gives up when `cancelled` returns `true`.
    ///
    /// # Errors
    /// As [`reclaim`](Self::reclaim), or [`ReclaimError::Interrupted`].
    pub fn reclaim_unless(
        &self,
        group: &Arc<Group>,
        bytes: u64,
        cancelled: &dyn Fn() -> bool,
    ) -> Result<(), ReclaimError> {
        let goal = bytes / PAGE_SIZE_U64;
        let mut reclaimed = 0;
        let mut retries = MAX_RECLAIM_RETRIES;
        let mut requested = Requested::of(self.reclaimer(), group);
        while reclaimed < goal {
            if cancelled() {
                return Err(ReclaimError::Interrupted);
            }
            if group.is_dead() {
                return Err(ReclaimError::Again);
            }
            let reclaimed_before = reclaimed;
            let step = ((goal - reclaimed) / 4).max(umemcg_reclaim::SWAP_CLUSTER_MAX);
            let progress = self.reclaimer().reclaim_unless(group, step, Reason::Proactive, cancelled);
            requested.bytes += progress.releasing_bytes;
            reclaimed += match progress.pages() {
                0 => requested.wait(),
                pages => pages,
            };
            if reclaimed == reclaimed_before {
                retries -= 1;
                if retries == 0 {
                    return Err(ReclaimError::Again);
                }
            }
        }
        // Some bytes counted as reclaimed may not have arrived yet. A group in use may shrink for
        // other reasons at any time.
        let clock = SystemClock::new();
        let give_up = clock.now() + RELEASE_WAIT_MAX;
        while (requested.wait() > 0 || requested.is_leaving()) && clock.now() < give_up && !cancelled() {}
        Ok(())
    }
}

/// One caller's request to the kernel to drop memory of a group.
struct Requested<'a> {
    reclaimer: &'a Reclaimer,
    group: &'a Group,
    bytes: u64,
    released_before: u64,
}

impl<'a> Requested<'a> {
    fn of(reclaimer: &'a Reclaimer, group: &'a Group) -> Self {
        Self { reclaimer, group, bytes: 0, released_before: reclaimer.released_bytes() }
    }

    /// Returns whether requested bytes are missing, and pages are still leaving.
    fn is_leaving(&self) -> bool {
        let released = self.reclaimer.released_bytes() - self.released_before;
        released < self.bytes && leaving_bytes(self.group) > 0
    }

    /// Waits for a moment, unless all requested bytes have been released. Returns the decrease of
    /// the group's usage meanwhile, in pages: releases in other groups are no progress.
    fn wait(&self) -> u64 {
        self.group.drain_stocks();
        let before = self.group.usage_bytes();
        let released = || self.reclaimer.released_bytes() - self.released_before;
        self.reclaimer.wait_for_release(|| released() < self.bytes);
        self.group.drain_stocks();
        before.saturating_sub(self.group.usage_bytes()) / PAGE_SIZE_U64
    }
}

/// Limits are kept in whole pages, rounded down; no limit stays no limit.
pub(super) fn whole_pages(bytes: u64) -> u64 {
    if bytes == u64::MAX { bytes } else { bytes & !(PAGE_SIZE_U64 - 1) }
}
