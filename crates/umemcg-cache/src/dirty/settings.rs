//! The settings of a group's control files for dirty data: two pairs, each a share or a number of
//! bytes, whichever was written last.
//!
//! A pair is one word, so no reader ever sees both set or neither. A group without any settings,
//! created below another such group, has no state for them: the defaults hold.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use umemcg_base::LeafMutex;
use umemcg_group::{ExtensionSlot, Group};

use crate::dirty::lease;
use crate::dirty::throttle::SmoothedLimit;

/// Share of dirtyable memory at which writers are held, in percent, unless set.
pub const DIRTY_RATIO_PERCENT: u8 = 20;
/// Share at which write-back starts by itself, in percent, unless set.
pub const DIRTY_BACKGROUND_RATIO_PERCENT: u8 = 10;

/// The top bit of a pair's word: bytes, not percent.
const IS_BYTES: u64 = 1 << 63;

/// One pair of control files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DirtyBound {
    /// Percent of the group's dirtyable memory, 0 to 100.
    Percent(u8),
    /// Bytes, below 2⁶³.
    Bytes(u64),
}

impl DirtyBound {
    fn encode(self) -> u64 {
        match self {
            Self::Percent(percent) => percent.into(),
            Self::Bytes(bytes) => bytes.min(IS_BYTES - 1) | IS_BYTES,
        }
    }

    fn decode(word: u64) -> Self {
        if word & IS_BYTES != 0 { Self::Bytes(word & !IS_BYTES) } else { Self::Percent(word as u8) }
    }

    /// Returns the value of `dirty_ratio`: 0 while bytes are set.
    pub fn percent(self) -> u8 {
        match self {
            Self::Percent(percent) => percent,
            Self::Bytes(_) => 0,
        }
    }

    /// Returns the value of `dirty_limit_in_bytes`: 0 while a share is set.
    pub fn bytes(self) -> u64 {
        match self {
            Self::Percent(_) => 0,
            Self::Bytes(bytes) => bytes,
        }
    }
}

/// One of the two pairs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DirtyThreshold {
    /// Writers are held there.
    Foreground,
    /// Write-back starts there.
    Background,
}

/// Both pairs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DirtyBounds {
    /// `dirty_ratio`, `dirty_limit_in_bytes`.
    pub foreground: DirtyBound,
    /// `dirty_background_ratio`, `dirty_background_limit_in_bytes`.
    pub background: DirtyBound,
}

impl Default for DirtyBounds {
    fn default() -> Self {
        Self {
            foreground: DirtyBound::Percent(DIRTY_RATIO_PERCENT),
            background: DirtyBound::Percent(DIRTY_BACKGROUND_RATIO_PERCENT),
        }
    }
}

impl DirtyBounds {
    /// Returns the settings of a group; for the root, those of the pool.
    pub fn of(group: &Group) -> Self {
        GroupDirty::if_present(group).map_or_else(Self::default, GroupDirty::bounds)
    }

    /// Returns one of the two.
    pub fn get(self, which: DirtyThreshold) -> DirtyBound {
        match which {
            DirtyThreshold::Foreground => self.foreground,
            DirtyThreshold::Background => self.background,
        }
    }

    /// Copies the parent's settings to a new group, before it has a writer.
    pub fn inherit(parent: &Group, child: &Group) {
        let bounds = Self::of(parent);
        if bounds != Self::default() {
            let _ = child.extension(ExtensionSlot::Cache, || GroupDirty::new(bounds));
        }
    }
}

/// The cache's state of a group with writers or a setting of its own.
#[derive(Debug)]
pub(crate) struct GroupDirty {
    /// (A)
    foreground: AtomicU64,
    /// (A)
    background: AtomicU64,
    /// Bytes that the group's writers may write before they check thresholds again; below 0, a
    /// writer is about to check. (A)
    credit: AtomicI64,
    pub(crate) smoothed: LeafMutex<SmoothedLimit>,
    /// The time at which flushers were last woken for it, in milliseconds of the cache's clock. (A)
    rung_ms: AtomicU64,
}

impl Default for GroupDirty {
    fn default() -> Self {
        Self::new(DirtyBounds::default())
    }
}

impl GroupDirty {
    fn new(bounds: DirtyBounds) -> Self {
        Self {
            foreground: AtomicU64::new(bounds.foreground.encode()),
            background: AtomicU64::new(bounds.background.encode()),
            credit: AtomicI64::new(0),
            smoothed: LeafMutex::default(),
            rung_ms: AtomicU64::new(0),
        }
    }

    pub(crate) fn of(group: &Group) -> &Self {
        group.extension(ExtensionSlot::Cache, Self::default)
    }

    #[inline]
    pub(crate) fn if_present(group: &Group) -> Option<&Self> {
        group.extension_if_present(ExtensionSlot::Cache)
    }

    pub(crate) fn bounds(&self) -> DirtyBounds {
        let decode = |word: &AtomicU64| DirtyBound::decode(word.load(Ordering::Relaxed));
        DirtyBounds { foreground: decode(&self.foreground), background: decode(&self.background) }
    }

    pub(crate) fn set(&self, which: DirtyThreshold, bound: DirtyBound) {
        let word = match which {
            DirtyThreshold::Foreground => &self.foreground,
            DirtyThreshold::Background => &self.background,
        };
        word.store(bound.encode(), Ordering::Relaxed);
        // It was smoothed from another limit.
        *self.smoothed.lock() = SmoothedLimit::default();
        self.set_credit(0);
    }

    /// Takes `bytes` from the group's credit. Returns whether there was enough; then the thread
    /// also gets a lease of a part of the rest. Concurrent writers may take the same bytes, so the
    /// credit holds for each thread: exactness is not worth a locked instruction.
    pub(crate) fn spend(&self, group: u64, bytes: u64) -> bool {
        let left = self.credit.load(Ordering::Relaxed) - bytes as i64;
        if left >= 0 {
            self.credit.store(left - lease::take(group, left as u64) as i64, Ordering::Relaxed);
        }
        left >= 0
    }

    pub(crate) fn set_credit(&self, bytes: u64) {
        self.credit.store(bytes as i64, Ordering::Relaxed);
    }

    /// Returns whether `interval` has passed since this last returned `true`.
    pub(crate) fn may_wake(&self, now_ms: u64, interval: Duration) -> bool {
        let last = self.rung_ms.load(Ordering::Relaxed);
        (last == 0 || now_ms >= last + interval.as_millis() as u64)
            && self
                .rung_ms
                .compare_exchange(last, now_ms.max(1), Ordering::Relaxed, Ordering::Relaxed)
                .is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use umemcg_group::GroupTree;

    #[test]
    fn of_a_pair_one_is_set_and_the_other_shows_zero() {
        for bound in [
            DirtyBound::Percent(0),
            DirtyBound::Percent(100),
            DirtyBound::Bytes(0),
            DirtyBound::Bytes(4097),
            DirtyBound::Bytes(IS_BYTES - 1),
        ] {
            assert_eq!(DirtyBound::decode(bound.encode()), bound);
            assert!(bound.percent() == 0 || bound.bytes() == 0);
        }
        assert_eq!(DirtyBound::decode(DirtyBound::Bytes(u64::MAX).encode()).bytes(), IS_BYTES - 1);
    }

    #[test]
    fn a_new_group_has_what_its_parent_had_and_keeps_it() {
        let tree = GroupTree::new(1 << 30);
        let root = tree.root();
        let make = |parent, name: &str| {
            let group = tree.create(parent, name.as_ref()).unwrap();
            DirtyBounds::inherit(parent, &group);
            group
        };
        let before = make(root, "before");
        assert!(GroupDirty::if_present(&before).is_none(), "nothing to remember");
        GroupDirty::of(root).set(DirtyThreshold::Foreground, DirtyBound::Bytes(1 << 20));
        let after = make(root, "after");
        GroupDirty::of(root).set(DirtyThreshold::Foreground, DirtyBound::Percent(7));
        assert_eq!(DirtyBounds::of(&before), DirtyBounds::default());
        assert_eq!(DirtyBounds::of(&after).foreground, DirtyBound::Bytes(1 << 20));
        assert_eq!(DirtyBounds::of(&make(&after, "below")), DirtyBounds::of(&after));
    }

    #[test]
    fn credit_is_spent_once() {
        let dirty = GroupDirty::default();
        let spend = |bytes| lease::spend(u64::MAX, bytes) || dirty.spend(u64::MAX, bytes);
        assert!(!spend(1));
        dirty.set_credit(100);
        assert!(spend(60) && !spend(60) && spend(5) && spend(35) && !spend(1));
    }
}
