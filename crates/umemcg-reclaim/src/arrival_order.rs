//! The order of pages whose use is not seen, such as pages in the kernel's page cache above a
//! mount: only their arrivals are known.
//!
//! Pages arrive on the *probation* list. Pages read again soon after being taken back arrive on the
//! *protected* list. Both lists are first in, first out. A [`Shadow`] for each reclaimed run of
//! pages records the group's age at that time.
//!
//! ```text
//!  read for the first time ──► probation ──┐ taken back, leaves a shadow
//!                                          ▼
//!  read again, late or never ◄────────── shadow ──────► read again soon: protected
//!                                          ▲                    │
//!                                          └────────────────────┘
//! ```
//!
//! Reclaim takes from probation while probation has more than its fraction of both. The fraction is
//! learnt from nearly kept pages: pages that return so soon that a slightly longer list would have
//! kept them. A nearly kept probation page lengthens probation, as after a change of the working
//! set. A nearly kept protected page shortens it, by a larger step, since it has been used again
//! before.
//!
//! A returning protected page is protected again only half of the time. So a loop too large for the
//! cache keeps a part of its pages rather than none.

use umemcg_base::PAGE_SIZE_U64;
use umemcg_group::{Group, OwnerId, StatItem};

pub use crate::arrival_balance::ArrivalList;
use crate::group_reclaim::{GroupReclaim, advance_age};
use crate::shadow::Shadow;

/// A return is soon at up to this many hundredths of the group's pages as its refault distance.
const SOON_PERCENT: u64 = 75;
/// The same, for nearly kept pages.
const NEARLY_KEPT_PERCENT: u64 = 25;
/// Pages returning after being taken back.
#[derive(Debug, Clone, Copy)]
pub struct Returned {
    /// The shadow left by them.
    pub shadow: Shadow,
    /// Their number.
    pub nr_pages: u64,
    /// Number of protected pages among them.
    pub nr_protected: u64,
}

/// Returns the list of a group to take from, given the lengths of both.
pub fn victim_list(group: &Group, nr_probation: u64, nr_protected: u64) -> ArrivalList {
    let balance = GroupReclaim::if_present(group).map(GroupReclaim::arrival_balance);
    balance.map_or(ArrivalList::Probation, |balance| balance.victim(nr_probation, nr_protected))
}

/// Makes the group of `owner` older by `nr_pages` taken back from it, and returns their shadow. A
/// charge must keep `owner` alive.
pub fn leave_shadow(owner: OwnerId, nr_pages: u64) -> Shadow {
    owner.with_group(|group| {
        advance_age(group, nr_pages);
        Shadow::new(group.owner(), GroupReclaim::of(group).age(), false)
    })
}

/// Returns whether pages with this shadow would count as returning soon if read now.
pub fn is_recent(shadow: Shadow) -> bool {
    shadow.evictor().is_some_and(|evictor| {
        let distance = shadow.distance(GroupReclaim::of(&evictor).age());
        distance <= nr_pages_of(&evictor) * SOON_PERCENT / 100
    })
}

/// Counts pages returning to `reader`. Returns their arrival list.
#[doc(alias = "workingset_refault")]
pub fn arrive_again(reader: &Group, returned: &Returned) -> ArrivalList {
    reader.stat_add(StatItem::WorkingsetRefault, returned.nr_pages as i64);
    let Some(evictor) = returned.shadow.evictor() else { return ArrivalList::Probation };
    let part = GroupReclaim::of(&evictor);
    let (distance, nr_all) = (returned.shadow.distance(part.age()), nr_pages_of(&evictor));
    let nr_new = returned.nr_pages - returned.nr_protected;
    if distance <= nr_all * NEARLY_KEPT_PERCENT / 100 {
        part.arrival_balance().note_nearly_kept(nr_new, returned.nr_protected, nr_all);
    }
    let is_kept_again = returned.nr_protected <= nr_new || is_heads(returned.shadow);
    if distance > nr_all * SOON_PERCENT / 100 || !is_kept_again {
        return ArrivalList::Probation;
    }
    reader.stat_add(StatItem::WorkingsetActivate, returned.nr_pages as i64);
    reader.stat_add(StatItem::WorkingsetRestore, returned.nr_protected as i64);
    ArrivalList::Protected
}

/// Returns the number of file pages of a group and its descendants; their reclaim makes the group
/// older.
fn nr_pages_of(group: &Group) -> u64 {
    let items = [StatItem::FileKernel, StatItem::InactiveFile, StatItem::ActiveFile];
    items.iter().map(|&item| group.stat_total(item)).sum::<i64>().max(0) as u64 / PAGE_SIZE_U64
}

/// Tosses a coin, once for each shadow.
fn is_heads(shadow: Shadow) -> bool {
    const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
    (shadow.to_raw() >> 3).wrapping_mul(GOLDEN) >> 63 == 1
}
