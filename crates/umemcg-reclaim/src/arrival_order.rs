//! The order of pages whose use is not seen, such as those that the kernel above a mount keeps: only
//! their arrivals are known.
//!
//! Pages arrive on the *probation* list. Those that are read again soon after they were taken back
//! arrive on the *protected* list. Both are first in, first out. A [`Shadow`] for each reclaimed
//! run of pages says how long ago that was.
//!
//! ```text
//!  read for the first time ──► probation ──┐ taken back, leaves a shadow
//!                                          ▼
//!  read again, late or never ◄────────── shadow ──────► read again soon: protected
//!                                          ▲                    │
//!                                          └────────────────────┘
//! ```
//!
//! Reclaim takes from probation while probation has more than its fraction of both. The fraction
//! is learnt from pages that return so soon that a slightly longer list would have kept them. A
//! probation page that does so lengthens probation, as after a change of the working set. A
//! protected page shortens it, by a larger step, since it has been used again before.
//!
//! A protected page that returns is protected again half of the time only. So a loop that does not
//! fit keeps a part of its pages rather than none.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use umemcg_base::PAGE_SIZE_U64;
use umemcg_group::{Group, OwnerId, StatItem};

use crate::group_reclaim::{GroupReclaim, advance_age};
use crate::shadow::Shadow;

/// A return is soon at up to this many hundredths of the group's pages as its refault distance.
const SOON_PERCENT: u64 = 75;
/// The same, for what a slightly longer list would have kept.
const NEARLY_KEPT_PERCENT: u64 = 25;
/// Pages by which probation grows for each of its pages that was nearly kept.
const GROWTH_PAGES: u64 = 4;
/// Pages by which it shrinks for each protected page that was nearly kept.
const SHRINKAGE_PAGES: u64 = 64;
/// The whole, for [`ArrivalOrder::probation`].
const WHOLE: u64 = u32::MAX as u64;
/// Probation's smallest fraction.
const PROBATION_MIN: u32 = (WHOLE / 100) as u32;

/// The lists of pages in the order of their arrival.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ArrivalList {
    /// Pages that have not returned.
    Probation,
    /// Pages that have returned soon after they were taken back.
    Protected,
}

/// Pages that return after they were taken back.
#[derive(Debug, Clone, Copy)]
pub struct Returned {
    /// What they left.
    pub shadow: Shadow,
    /// How many they are.
    pub nr_pages: u64,
    /// Of those, how many were protected.
    pub nr_protected: u64,
}

/// A group's balance of the two lists.
#[derive(Debug)]
pub struct ArrivalOrder {
    /// (A) Probation's fraction of both lists. Relaxed: a lost step is one of many.
    probation: AtomicU32,
}

impl Default for ArrivalOrder {
    fn default() -> Self {
        Self { probation: AtomicU32::new(2 * PROBATION_MIN) }
    }
}

impl ArrivalOrder {
    /// Returns the list to take from, given how many objects both have.
    fn victim(&self, nr_probation: u64, nr_protected: u64) -> ArrivalList {
        let all = u128::from(nr_probation + nr_protected);
        let target = (all * u128::from(self.probation.load(Relaxed)) / u128::from(WHOLE)) as u64;
        if nr_protected == 0 || nr_probation > target {
            ArrivalList::Probation
        } else {
            ArrivalList::Protected
        }
    }

    /// Moves the balance for pages that were nearly kept, of `nr_all` pages.
    fn note_nearly_kept(&self, nr_probation: u64, nr_protected: u64, nr_all: u64) {
        let fraction = |nr_pages: u64| (nr_pages.saturating_mul(WHOLE / nr_all.max(1))).min(WHOLE) as u32;
        let growth = fraction(nr_probation * GROWTH_PAGES);
        let shrinkage = fraction(nr_protected * SHRINKAGE_PAGES);
        let now = self.probation.load(Relaxed).saturating_add(growth).saturating_sub(shrinkage);
        self.probation.store(now.max(PROBATION_MIN), Relaxed);
    }
}

/// Returns the list of a group to take from, given how many objects both have.
pub fn victim_list(group: &Group, nr_probation: u64, nr_protected: u64) -> ArrivalList {
    let order = GroupReclaim::if_present(group).map(GroupReclaim::arrival_order);
    order.map_or(ArrivalList::Probation, |order| order.victim(nr_probation, nr_protected))
}

/// Makes the group of `owner`, which a charge keeps alive, older by pages that are taken back from
/// it. Returns what they leave.
pub fn leave_shadow(owner: OwnerId, nr_nodes: usize, nr_pages: u64) -> Shadow {
    owner.with_group(|group| {
        advance_age(group, nr_nodes, nr_pages);
        Shadow::new(group.owner(), GroupReclaim::of(group, nr_nodes).age(), false)
    })
}

/// Returns whether what left this shadow would return soon if it did now.
pub fn is_recent(shadow: Shadow, nr_nodes: usize) -> bool {
    shadow.evictor().is_some_and(|evictor| {
        let distance = shadow.distance(GroupReclaim::of(&evictor, nr_nodes).age());
        distance <= nr_pages_of(&evictor) * SOON_PERCENT / 100
    })
}

/// Counts pages that return to `reader`. Returns the list that they arrive on.
#[doc(alias = "workingset_refault")]
pub fn arrive_again(reader: &Group, nr_nodes: usize, returned: &Returned) -> ArrivalList {
    reader.stat_add(StatItem::WorkingsetRefault, returned.nr_pages as i64);
    let Some(evictor) = returned.shadow.evictor() else { return ArrivalList::Probation };
    let part = GroupReclaim::of(&evictor, nr_nodes);
    let (distance, nr_all) = (returned.shadow.distance(part.age()), nr_pages_of(&evictor));
    let nr_new = returned.nr_pages - returned.nr_protected;
    if distance <= nr_all * NEARLY_KEPT_PERCENT / 100 {
        part.arrival_order().note_nearly_kept(nr_new, returned.nr_protected, nr_all);
    }
    let is_kept_again = returned.nr_protected <= nr_new || is_heads(returned.shadow);
    if distance > nr_all * SOON_PERCENT / 100 || !is_kept_again {
        return ArrivalList::Probation;
    }
    reader.stat_add(StatItem::WorkingsetActivate, returned.nr_pages as i64);
    reader.stat_add(StatItem::WorkingsetRestore, returned.nr_protected as i64);
    ArrivalList::Protected
}

/// Returns the file pages of a group and those below it, whose reclaim makes it older.
fn nr_pages_of(group: &Group) -> u64 {
    let items = [StatItem::FileKernel, StatItem::InactiveFile, StatItem::ActiveFile];
    items.iter().map(|&item| group.stat_total(item)).sum::<i64>().max(0) as u64 / PAGE_SIZE_U64
}

/// Tosses a coin, once for each shadow.
fn is_heads(shadow: Shadow) -> bool {
    const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
    (shadow.to_raw() >> 3).wrapping_mul(GOLDEN) >> 63 == 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reclaim_takes_from_probation_beyond_its_fraction() {
        let order = ArrivalOrder::default();
        assert_eq!(order.victim(1, 0), ArrivalList::Probation);
        assert_eq!(order.victim(3, 97), ArrivalList::Probation);
        assert_eq!(order.victim(1, 99), ArrivalList::Protected);
        assert_eq!(order.victim(0, 1), ArrivalList::Protected);
    }

    #[test]
    fn what_was_nearly_kept_moves_the_balance() {
        let order = ArrivalOrder::default();
        order.note_nearly_kept(100, 0, 1000);
        assert_eq!(order.victim(40, 60), ArrivalList::Protected);
        order.note_nearly_kept(u64::MAX / 8, 0, 1000);
        assert_eq!(order.victim(99, 1), ArrivalList::Protected, "all of it may be on probation");
        order.note_nearly_kept(0, 10, 1000);
        assert_eq!(order.victim(40, 60), ArrivalList::Probation);
        order.note_nearly_kept(0, 1000, 1000);
        assert_eq!(order.victim(2, 98), ArrivalList::Probation);
        assert_eq!(order.victim(0, 1), ArrivalList::Protected, "but never none");
    }
}
