//! [`Shares`]: the share of each spillable consumer in a tenant's budget.
//!
//! When refused, a spillable consumer gives its memory back; an unspillable one fails its query. So
//! spillable consumers get equal shares of the memory left by unspillable ones, and a part of the
//! budget is always kept from them:
//!
//! ```text
//!   |<------------------------- room of the queries ------------------------->|
//!   | share 1 | share 2 | … | share n |  held by, or kept for, those that      |
//!   |   consumers that can spill      |  cannot spill             | entry 4 %  |
//!   |                                 |<- 20 % or more; in a lone query, what  |
//!   |                                 |   they hold and the entry           -->|
//! ```
//!
//! A spillable consumer without memory has nothing to give back: refused, it fails its query, too.
//! DataFusion's `FairSpillPool` grants it its share whatever the others hold, and so exceeds its
//! size. A tenant's limit is never exceeded; instead:
//!
//! - **A starting consumer is not refused below its share in a fair pool**, an equal part of the
//!   memory left by unspillable consumers, as long as the group has room.
//! - **The entry is left free for it**: no share reaches into the entry. While a consumer holds
//!   nothing, others grow into the entry only by an equal part of it, or within the kept part if
//!   they are unspillable.
//!
//! A late query also starts with the kept part, until consumers above their new, smaller shares
//! have spilled.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

/// The default kept part, in percent of the room.
pub(crate) const KEPT_PERCENT: u8 = 20;
/// The part left to spillable consumers without memory, in percent of the room. A lone query keeps
/// no more, unless one of its unspillable consumers waits for its first memory.
const ENTRY_PERCENT: u64 = 4;

/// The counts behind the shares, for all queries of one tenant together.
///
/// They are read one by one. A share computed while another consumer comes or goes is correct for a
/// moment before or after. The limit of the tenant's group holds whatever the shares are.
#[derive(Debug)]
pub(crate) struct Shares {
    kept_percent: u64,
    /// Queries with a consumer.
    nr_queries: AtomicUsize,
    nr_spillable: AtomicUsize,
    /// Spillable consumers holding nothing.
    nr_empty: AtomicUsize,
    /// Unspillable consumers still without their first memory.
    nr_expecting: AtomicUsize,
    /// Held by unspillable consumers.
    unspillable_bytes: AtomicU64,
}

/// A growth to check, and the bytes held before it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Growth {
    pub(crate) can_spill: bool,
    /// Held by the consumer.
    pub(crate) held_bytes: u64,
    /// Held by all queries.
    pub(crate) all_held_bytes: u64,
    pub(crate) bytes: u64,
}

/// Why a growth is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BeyondShare {
    /// It exceeds the consumer's share.
    Fair { share_bytes: u64 },
    /// It reaches into the entry, left to consumers without memory.
    Entry { entry_bytes: u64 },
}

impl Shares {
    pub(crate) fn new(kept_percent: u8) -> Self {
        Self {
            kept_percent: u64::from(kept_percent.min(100)),
            nr_queries: AtomicUsize::new(0),
            nr_spillable: AtomicUsize::new(0),
            nr_empty: AtomicUsize::new(0),
            nr_expecting: AtomicUsize::new(0),
            unspillable_bytes: AtomicU64::new(0),
        }
    }

    pub(crate) fn query_started(&self) {
        self.nr_queries.fetch_add(1, Relaxed);
    }

    pub(crate) fn query_ended(&self) {
        self.nr_queries.fetch_sub(1, Relaxed);
    }

    pub(crate) fn spillable_came(&self) {
        self.nr_spillable.fetch_add(1, Relaxed);
    }

    pub(crate) fn spillable_left(&self) {
        self.nr_spillable.fetch_sub(1, Relaxed);
    }

    /// Counts a spillable consumer as holding nothing.
    pub(crate) fn empty(&self) {
        self.nr_empty.fetch_add(1, Relaxed);
    }

    pub(crate) fn no_more_empty(&self) {
        self.nr_empty.fetch_sub(1, Relaxed);
    }

    /// Counts an unspillable consumer as waiting for its first memory, until
    /// [`no_more_expecting`](Self::no_more_expecting).
    pub(crate) fn expecting(&self) {
        self.nr_expecting.fetch_add(1, Relaxed);
    }

    pub(crate) fn no_more_expecting(&self) {
        self.nr_expecting.fetch_sub(1, Relaxed);
    }

    pub(crate) fn unspillable_grew(&self, bytes: u64) {
        self.unspillable_bytes.fetch_add(bytes, Relaxed);
    }

    pub(crate) fn unspillable_shrank(&self, bytes: u64) {
        self.unspillable_bytes.fetch_sub(bytes, Relaxed);
    }

    /// Checks a growth, with `room_bytes` for all queries of the tenant.
    ///
    /// # Errors
    /// [`BeyondShare`].
    pub(crate) fn check(&self, room_bytes: u64, growth: Growth) -> Result<(), BeyondShare> {
        let Growth { can_spill, held_bytes, all_held_bytes, bytes } = growth;
        let entry_bytes = self.entry_bytes(room_bytes);
        let wanted_bytes = held_bytes.saturating_add(bytes);
        let starts = can_spill && (held_bytes == 0 || wanted_bytes <= self.part_of(entry_bytes));
        if can_spill {
            let share_bytes = if starts { self.fair_bytes(room_bytes) } else { self.share_bytes(room_bytes) };
            if wanted_bytes > share_bytes {
                return Err(BeyondShare::Fair { share_bytes });
            }
        }
        let may_enter = if can_spill { starts } else { self.is_in_kept_part(room_bytes, bytes) };
        let left_bytes = room_bytes.saturating_sub(all_held_bytes.saturating_add(bytes));
        if !may_enter && left_bytes < entry_bytes && self.nr_empty.load(Relaxed) > 0 {
            return Err(BeyondShare::Entry { entry_bytes });
        }
        Ok(())
    }

    /// Returns the most bytes for one spillable consumer.
    fn share_bytes(&self, room_bytes: u64) -> u64 {
        let is_lone = self.nr_queries.load(Relaxed) <= 1 && self.nr_expecting.load(Relaxed) == 0;
        let kept_bytes = if is_lone { 0 } else { percent_of(room_bytes, self.kept_percent) };
        let entry_bytes = self.entry_bytes(room_bytes);
        let kept_bytes = kept_bytes.max(self.unspillable_bytes.load(Relaxed).saturating_add(entry_bytes));
        self.part_of(room_bytes.saturating_sub(kept_bytes))
    }

    /// Returns the share of each spillable consumer in a fair pool.
    fn fair_bytes(&self, room_bytes: u64) -> u64 {
        self.part_of(room_bytes.saturating_sub(self.unspillable_bytes.load(Relaxed)))
    }

    fn entry_bytes(&self, room_bytes: u64) -> u64 {
        percent_of(room_bytes, ENTRY_PERCENT.min(self.kept_percent))
    }

    /// Returns whether unspillable consumers stay within the part kept for them.
    fn is_in_kept_part(&self, room_bytes: u64, more_bytes: u64) -> bool {
        let bytes = self.unspillable_bytes.load(Relaxed).saturating_add(more_bytes);
        bytes <= percent_of(room_bytes, self.kept_percent)
    }

    /// Divides bytes between the spillable consumers.
    fn part_of(&self, bytes: u64) -> u64 {
        bytes / self.nr_spillable.load(Relaxed).max(1) as u64
    }
}

/// Returns `percent` of `bytes`, rounded down.
pub(crate) fn percent_of(bytes: u64, percent: u64) -> u64 {
    bytes / 100 * percent + bytes % 100 * percent / 100
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOM: u64 = 100 << 20;

    fn mib_of(shares: &Shares) -> u64 {
        shares.share_bytes(ROOM) >> 20
    }

    #[test]
    fn a_lone_spilling_consumer_may_hold_nearly_all() {
        let shares = Shares::new(KEPT_PERCENT);
        shares.query_started();
        shares.spillable_came();
        assert_eq!(mib_of(&shares), 96);
    }

    #[test]
    fn a_second_query_brings_the_kept_part_back() {
        let shares = Shares::new(KEPT_PERCENT);
        shares.query_started();
        shares.spillable_came();
        shares.query_started();
        assert_eq!(mib_of(&shares), 80);
        shares.spillable_came();
        assert_eq!(mib_of(&shares), 40);
        shares.spillable_left();
        shares.query_ended();
        assert_eq!(mib_of(&shares), 96);
    }

    #[test]
    fn the_kept_part_waits_for_those_that_expect_memory() {
        let shares = Shares::new(KEPT_PERCENT);
        shares.query_started();
        shares.spillable_came();
        shares.expecting();
        assert_eq!(mib_of(&shares), 80);
        // It holds its memory now. Its bytes beyond the kept part are no longer shared.
        shares.no_more_expecting();
        shares.unspillable_grew(30 << 20);
        assert_eq!(mib_of(&shares), 66, "less the entry");
        shares.unspillable_shrank(30 << 20);
        assert_eq!(mib_of(&shares), 96);
    }

    #[test]
    fn a_consumer_that_starts_has_the_share_of_a_fair_pool() {
        let shares = Shares::new(KEPT_PERCENT);
        shares.query_started();
        shares.expecting();
        (0..4).for_each(|_| shares.spillable_came());
        let growth = |held_bytes, bytes| Growth { can_spill: true, held_bytes, all_held_bytes: 0, bytes };
        assert_eq!(shares.check(ROOM, growth(0, 25 << 20)), Ok(()));
        let beyond = BeyondShare::Fair { share_bytes: 25 << 20 };
        assert_eq!(shares.check(ROOM, growth(0, (25 << 20) + 1)), Err(beyond));
        let beyond = BeyondShare::Fair { share_bytes: 20 << 20 };
        assert_eq!(shares.check(ROOM, growth(1, 25 << 20)), Err(beyond), "it has something to spill");
    }

    #[test]
    fn only_consumers_that_start_use_the_entry() {
        let shares = Shares::new(KEPT_PERCENT);
        shares.query_started();
        (0..4).for_each(|_| shares.spillable_came());
        let growth = |can_spill, held_mib: u64, mib: u64| {
            let (held_bytes, bytes) = (held_mib << 20, mib << 20);
            shares.check(ROOM, Growth { can_spill, held_bytes, all_held_bytes: 96 << 20, bytes })
        };
        assert_eq!(growth(true, 10, 1), Ok(()), "no consumer waits");
        shares.empty();
        let entry = Err(BeyondShare::Entry { entry_bytes: 4 << 20 });
        assert_eq!((growth(true, 10, 1), growth(true, 1, 1)), (entry, entry));
        assert_eq!((growth(true, 0, 4), growth(true, 0, 1)), (Ok(()), Ok(())));
        assert_eq!(growth(false, 0, 4), Ok(()), "within the kept part");
        shares.unspillable_grew(20 << 20);
        assert_eq!(growth(false, 0, 4), entry);
        shares.no_more_empty();
        assert_eq!(growth(false, 0, 4), Ok(()));
    }

    #[test]
    fn shares_of_no_room_are_empty() {
        let shares = Shares::new(KEPT_PERCENT);
        shares.unspillable_grew(1 << 20);
        assert_eq!(shares.share_bytes(0), 0);
        assert_eq!(shares.share_bytes(1 << 20), 0);
        assert_eq!(percent_of(u64::MAX, 100), u64::MAX);
    }
}
