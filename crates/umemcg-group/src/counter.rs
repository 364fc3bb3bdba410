//! One level of accounting: the bytes charged to a group and everything below it, and their limit.
//!
//! A counter node is also the *owner handle* of all charges to its group: pages, objects, stocks
//! and child nodes name it by index, and it outlives the group for as long as any of them exists.
//! Its life is its word:
//!
//! ```text
//! bit 63        LIVE: the Arc<Group> exists
//! bits 62..0    bytes charged here and below, stocks and the state of child groups included
//! ```
//!
//! 1. A node is taken from the free list with the word LIVE.
//! 2. Charges add to the word, uncharges subtract, whether or not the group has been removed
//!    meanwhile.
//! 3. Dropping the group's last `Arc` clears LIVE.
//! 4. The thread bringing the word to 0 (there is exactly one) puts the node back on the free list.
//!
//! Charges and limit changes need no fence: both are read-modify-writes of the word. Whichever
//! comes second in the word's modification order sees the effect of the first: a charge sees the
//! new limit, or a limit change sees the new usage.

use umemcg_base::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// The group behind this node exists.
const LIVE: u64 = 1 << 63;

/// No limit.
pub const UNLIMITED: u64 = u64::MAX;

/// The largest usage, with or without a limit.
const USAGE_MAX: u64 = LIVE - 1;

/// The largest single charge; anything above is refused outright, so sums do not overflow.
pub const CHARGE_BYTES_MAX: u64 = 1 << 56;

/// The index for "no node": the root's parent, an unowned frame, an empty stock slot.
pub const NO_NODE: u32 = 0;

/// Distance below its soft limit at which a group may still count as in excess, in bytes. A group
/// above its soft limit counts as in excess immediately. The lag is the size of a full stock.
#[doc(alias = "SOFTLIMIT_EVENTS_TARGET")]
pub const EXCESS_LAG_BYTES: u64 = if cfg!(loom) { 2 } else { 256 << 10 };

/// Attempts of a limit change when charges come in between.
const SET_MAX_ATTEMPTS: u32 = 4;

/// One level of accounting. It has a cache line of its own, so two groups never share one.
#[doc(alias = "page_counter")]
#[derive(Debug)]
#[repr(align(64))]
pub struct CounterNode {
    /// (A) LIVE and the usage in bytes; see the module text.
    word: AtomicU64,
    /// (A) The limit: the highest usage allowed after a charge, in bytes.
    max: AtomicU64,
    /// (A) Highest usage after a granted charge, in bytes.
    peak: AtomicU64,
    /// (A) The usage in bytes at which charges raise the group's wake signal.
    mark: AtomicU64,
    /// (A) Charges refused by this level.
    failcnt: AtomicU64,
    /// (A) The soft limit in bytes; see [`crate::excess`].
    soft_limit: AtomicU64,
    /// (C) while allocated: the node above, or [`NO_NODE`].
    parent: AtomicU32,
    /// (C) while allocated: levels above this one.
    depth: AtomicU32,
    /// (A) The group has been removed. Never cleared while the node is allocated.
    dead: AtomicBool,
    /// The group counts as over its soft limit. Changes under the lock of its `Excess`.
    in_excess: AtomicBool,
}

impl Default for CounterNode {
    fn default() -> Self {
        Self {
            word: AtomicU64::new(0),
            max: AtomicU64::new(UNLIMITED),
            peak: AtomicU64::new(0),
            mark: AtomicU64::new(UNLIMITED),
            failcnt: AtomicU64::new(0),
            soft_limit: AtomicU64::new(UNLIMITED),
            parent: AtomicU32::new(NO_NODE),
            depth: AtomicU32::new(0),
            dead: AtomicBool::new(false),
            in_excess: AtomicBool::new(false),
        }
    }
}

/// A limit was not changed because usage is above the new value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OverUsage;

impl CounterNode {
    /// Makes a free node the counter of a new group.
    pub fn open(&self, parent: u32, depth: u32, max: u64) {
        self.max.store(max, Ordering::Relaxed);
        self.peak.store(0, Ordering::Relaxed);
        self.mark.store(UNLIMITED, Ordering::Relaxed);
        self.failcnt.store(0, Ordering::Relaxed);
        self.soft_limit.store(UNLIMITED, Ordering::Relaxed);
        self.in_excess.store(false, Ordering::Relaxed);
        self.parent.store(parent, Ordering::Relaxed);
        self.depth.store(depth, Ordering::Relaxed);
        self.dead.store(false, Ordering::Relaxed);
        // Release: a thread reaching the node through its word sees the fields above.
        let before = self.word.swap(LIVE, Ordering::AcqRel);
        assert_eq!(before, 0, "a counter node was opened while in use");
    }

    /// Returns the node above, or [`NO_NODE`].
    #[inline]
    pub fn parent(&self) -> u32 {
        self.parent.load(Ordering::Relaxed)
    }

    /// Returns the number of levels above this one.
    #[inline]
    pub fn depth(&self) -> u32 {
        self.depth.load(Ordering::Relaxed)
    }

    /// Returns the bytes charged here and below.
    #[inline]
    pub fn usage(&self) -> u64 {
        self.word.load(Ordering::Relaxed) & !LIVE
    }

    /// Returns the limit in bytes; [`UNLIMITED`] if there is none.
    #[inline]
    pub fn max(&self) -> u64 {
        self.max.load(Ordering::Relaxed)
    }

    /// Returns the highest usage of a granted charge since the last reset.
    pub fn peak(&self) -> u64 {
        self.peak.load(Ordering::Relaxed)
    }

    /// Resets the peak to the present usage.
    pub fn reset_peak(&self) {
        self.peak.store(self.usage(), Ordering::Relaxed);
    }

    /// Returns the number of refused charges since the last reset.
    pub fn failcnt(&self) -> u64 {
        self.failcnt.load(Ordering::Relaxed)
    }

    /// Counts a refused charge.
    pub fn count_failure(&self) {
        self.failcnt.fetch_add(1, Ordering::Relaxed);
    }

    /// Starts counting refused charges from zero.
    pub fn reset_failcnt(&self) {
        self.failcnt.store(0, Ordering::Relaxed);
    }

    /// Adds `bytes` if the limit allows it. The usage is never above the limit on the way, except
    /// while a limit is being lowered.
    #[doc(alias = "page_counter_try_charge")]
    #[inline]
    pub fn try_add(&self, bytes: u64) -> bool {
        let mut word = self.word.load(Ordering::Relaxed);
        // This loop ends: every failed attempt is another thread's success.
        loop {
            if (word & !LIVE) + bytes > self.allowed() {
                return false;
            }
            // AcqRel: pairs with `set_max`. If its read-modify-write came first, the load below
            // sees the new limit.
            match self.word.compare_exchange_weak(word, word + bytes, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => break,
                Err(now) => word = now,
            }
        }
        if (word & !LIVE) + bytes > self.allowed() {
            self.take_back(bytes);
            return false;
        }
        true
    }

    #[inline]
    fn allowed(&self) -> u64 {
        self.max.load(Ordering::Relaxed).min(USAGE_MAX)
    }

    /// Adds `bytes` whatever the limit says.
    #[doc(alias = "page_counter_charge")]
    #[inline]
    pub fn add(&self, bytes: u64) {
        // AcqRel: as in `try_add`.
        self.word.fetch_add(bytes, Ordering::AcqRel);
    }

    /// Undoes an addition by `try_add` or `add`. The node cannot become empty, since its caller
    /// keeps it.
    #[inline]
    pub fn take_back(&self, bytes: u64) {
        assert!(!self.sub(bytes), "a counter node was emptied under its user");
    }

    /// Subtracts `bytes`. Returns `true` if nothing else keeps the node; the caller must then free
    /// it.
    ///
    /// # Panics
    /// When less than `bytes` is charged.
    #[doc(alias = "page_counter_cancel")]
    #[inline]
    #[must_use = "an emptied node must be freed"]
    pub fn sub(&self, bytes: u64) -> bool {
        // AcqRel: all accesses of the node's users happen before its reuse.
        let before = self.word.fetch_sub(bytes, Ordering::AcqRel);
        if before & !LIVE < bytes {
            // Corrected first, so destructors running during the panic do not panic again.
            self.word.fetch_add(bytes, Ordering::AcqRel);
            panic!("uncharge of {bytes} bytes from a counter at {}", before & !LIVE);
        }
        before == bytes
    }

    /// Raises the peak to the present usage, after a charge was granted at every level. Returns
    /// `true` if the caller must act on the usage: it is at the mark or above it, or the group now
    /// has to count as over its soft limit.
    #[inline]
    pub fn note_usage(&self) -> bool {
        let usage = self.usage();
        if usage > self.peak.load(Ordering::Relaxed) {
            self.peak.fetch_max(usage, Ordering::Relaxed);
        }
        // A charge cannot bring a group out of excess.
        self.is_at_mark(usage) || (usage > self.soft_limit() && !self.is_in_excess())
    }

    #[inline]
    fn is_at_mark(&self, usage: u64) -> bool {
        usage >= self.mark.load(Ordering::Relaxed)
    }

    /// Returns whether the usage is at the mark or above it.
    pub fn is_over_mark(&self) -> bool {
        self.is_at_mark(self.usage())
    }

    /// Sets the mark, in bytes of usage. Charges reaching it from now on are noticed, at the latest
    /// when the next stock is filled.
    pub fn set_mark(&self, mark: u64) {
        // Relaxed: a charge in flight may miss it; the setter checks the usage afterwards.
        self.mark.store(mark, Ordering::Relaxed);
    }

    /// Returns the soft limit in bytes; [`UNLIMITED`] for none.
    #[inline]
    pub fn soft_limit(&self) -> u64 {
        self.soft_limit.load(Ordering::Relaxed)
    }

    /// Sets the soft limit in bytes. The caller updates the group's excess flag afterwards.
    pub fn set_soft_limit(&self, bytes: u64) {
        self.soft_limit.store(bytes, Ordering::Relaxed);
    }

    /// Returns whether the group counts as over its soft limit.
    #[inline]
    pub fn is_in_excess(&self) -> bool {
        self.in_excess.load(Ordering::Relaxed)
    }

    #[inline]
    fn is_excess_stale_at(&self, usage: u64, lag: u64) -> bool {
        let soft_limit = self.soft_limit();
        if self.is_in_excess() { usage <= soft_limit.saturating_sub(lag) } else { usage > soft_limit }
    }

    /// Returns whether the excess flag is stale: the group counts as over its soft limit and no
    /// longer should, or the other way round. Call it after a change of usage. The answer is a
    /// guess if nothing keeps the node.
    #[inline]
    pub fn is_excess_stale(&self) -> bool {
        self.is_excess_stale_at(self.usage(), EXCESS_LAG_BYTES)
    }

    /// Like `is_excess_stale`, after an uncharge: an uncharge can only bring a group out of excess.
    #[inline]
    pub fn is_excess_over(&self) -> bool {
        self.is_in_excess() && self.is_excess_stale()
    }

    /// Returns the right value of the flag if the flag is wrong. `HANDSHAKE` as in
    /// [`swap_max`](Self::swap_max).
    pub fn excess_to_publish<const HANDSHAKE: bool>(&self, lag: u64) -> Option<bool> {
        let word = if HANDSHAKE {
            // AcqRel: pairs with `try_add`, `add` and `sub`. A later change sees the flag and the
            // soft limit, an earlier one is seen here.
            self.word.fetch_add(0, Ordering::AcqRel)
        } else {
            self.word.load(Ordering::Acquire)
        };
        self.is_excess_stale_at(word & !LIVE, lag).then(|| !self.is_in_excess())
    }

    /// Writes the flag. Only under the lock of the group's `Excess`.
    pub fn publish_excess(&self, in_excess: bool) {
        // Relaxed: the following read of the usage orders it.
        self.in_excess.store(in_excess, Ordering::Relaxed);
    }

    /// Records that the group's last `Arc` is gone. Returns `true` if nothing else keeps the node;
    /// the caller must then free it.
    #[must_use = "an emptied node must be freed"]
    pub fn release_live(&self) -> bool {
        // AcqRel: as in `sub`.
        let before = self.word.fetch_and(!LIVE, Ordering::AcqRel);
        assert!(before & LIVE != 0, "a group died twice");
        before == LIVE
    }

    /// Sets the limit whatever the usage is; charges exceeding it are refused from now on.
    #[doc(alias = "page_counter_set_max")]
    pub fn set_max(&self, max: u64) {
        self.swap_max::<true>(max);
    }

    /// Sets the limit and returns the old one and the usage. Every charge is either included in
    /// this usage or held to the new limit. `HANDSHAKE` is false only in the model showing why it
    /// is needed.
    pub fn swap_max<const HANDSHAKE: bool>(&self, max: u64) -> (u64, u64) {
        let old = self.max.swap(max, Ordering::AcqRel);
        let word = if HANDSHAKE {
            // AcqRel: pairs with `try_add`. A later charge sees the new limit, an earlier one is
            // seen here.
            self.word.fetch_add(0, Ordering::AcqRel)
        } else {
            self.word.load(Ordering::Acquire)
        };
        (old, word & !LIVE)
    }

    /// Sets the limit unless usage is above it. Calls must not overlap.
    ///
    /// # Errors
    /// [`OverUsage`] when usage is above it; the old limit stays.
    pub fn try_set_max(&self, max: u64) -> Result<(), OverUsage> {
        self.try_set_max_with::<true>(max)
    }

    /// Does the work of [`try_set_max`](Self::try_set_max); see [`swap_max`](Self::swap_max) for
    /// `HANDSHAKE`.
    ///
    /// # Errors
    /// As there.
    pub fn try_set_max_with<const HANDSHAKE: bool>(&self, max: u64) -> Result<(), OverUsage> {
        for _ in 0..SET_MAX_ATTEMPTS {
            if self.usage() > max {
                return Err(OverUsage);
            }
            let (old, usage) = self.swap_max::<HANDSHAKE>(max);
            if usage <= max {
                return Ok(());
            }
            self.max.store(old, Ordering::Relaxed);
        }
        Err(OverUsage)
    }

    /// Marks the group as removed: it has no limit of its own, and lookups go to the parent.
    pub fn mark_dead(&self) {
        self.max.store(UNLIMITED, Ordering::Relaxed);
        self.mark.store(UNLIMITED, Ordering::Relaxed);
        self.soft_limit.store(UNLIMITED, Ordering::Relaxed);
        // Release: pairs with the acquire in `is_dead`.
        self.dead.store(true, Ordering::Release);
    }

    /// Returns whether the group has been removed.
    #[inline]
    pub fn is_dead(&self) -> bool {
        // Acquire: pairs with `mark_dead`.
        self.dead.load(Ordering::Acquire)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn node(max: u64) -> CounterNode {
        let node = CounterNode::default();
        node.open(NO_NODE, 0, max);
        node
    }

    #[test]
    fn two_nodes_never_share_a_cache_line() {
        assert_eq!((size_of::<CounterNode>(), align_of::<CounterNode>()), (64, 64));
    }

    #[test]
    fn a_limit_is_reached_and_not_passed() {
        let node = node(10);
        assert!(node.try_add(10) && !node.try_add(1));
        assert!(!node.sub(4));
        assert!(node.try_add(4));
        node.add(5);
        assert_eq!(node.usage(), 15);
    }

    #[test]
    fn without_a_limit_a_usage_still_has_an_end() {
        let node = node(UNLIMITED);
        let nr_granted = (0..200).take_while(|_| node.try_add(CHARGE_BYTES_MAX)).count();
        assert_eq!(nr_granted, 127);
    }

    #[test]
    fn the_last_of_group_and_charges_frees_the_node() {
        let by_charge = node(UNLIMITED);
        by_charge.add(5);
        assert!(!by_charge.release_live());
        assert!(!by_charge.sub(2));
        assert!(by_charge.sub(3));
        let by_group = node(UNLIMITED);
        by_group.add(5);
        assert!(!by_group.sub(5));
        assert!(by_group.release_live());
    }

    #[test]
    fn a_limit_change_is_refused_below_usage() {
        let node = node(UNLIMITED);
        node.add(5);
        assert_eq!(node.try_set_max(4), Err(OverUsage));
        assert_eq!(node.max(), UNLIMITED);
        assert_eq!(node.try_set_max(5), Ok(()));
        node.set_max(1);
        assert_eq!(node.max(), 1);
    }
}
