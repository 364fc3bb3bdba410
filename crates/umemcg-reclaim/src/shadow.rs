//! Shadow entries: what stays in a file's index when a page is evicted, so that its return can be
//! judged.
//!
//! A shadow remembers which group did the reclaiming and how old that group's lists were (its *age*
//! grows with every eviction and every activation). When the page comes back, the age since is its
//! *refault distance*: how many more pages the lists would have had to hold to keep it. A distance
//! no larger than the active list means that the page is part of the working set, and it goes to
//! the active list immediately (`kernel-semantics` §2.2).

use std::sync::Arc;

use umemcg_group::{Group, OwnerId};

const OWNER_BITS: u32 = 24;
const AGE_BITS: u32 = 36;
const AGE_MASK: u64 = (1 << AGE_BITS) - 1;

/// A packed shadow entry; the low two bits are free for the index's own tag.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shadow(u64);

impl Shadow {
    /// Creates a shadow for a page evicted on behalf of `owner`, whose age was `age`.
    #[doc(alias = "pack_shadow")]
    pub fn new(owner: OwnerId, age: u64, workingset: bool) -> Self {
        let owner = u64::from(owner.into_raw()) & ((1 << OWNER_BITS) - 1);
        Self((owner << (AGE_BITS + 3)) | ((age & AGE_MASK) << 3) | (u64::from(workingset) << 2))
    }

    /// Returns the entry as the index stores it; bits 0 and 1 are zero.
    pub fn to_raw(self) -> u64 {
        self.0
    }

    /// Returns the shadow of a raw entry; the reverse of [`to_raw`](Self::to_raw). The tag bits are
    /// ignored.
    pub fn from_raw(raw: u64) -> Self {
        Self(raw & !3)
    }

    /// Returns the group that did the reclaiming, or its nearest living ancestor. Its handle may
    /// have been reused since; the distance is then a wrong guess, never a fault.
    pub fn evictor(self) -> Option<Arc<Group>> {
        OwnerId::from_raw((self.0 >> (AGE_BITS + 3)) as u32)?.try_resolve()
    }

    /// Returns the number of pages by which that group's lists have aged since.
    pub fn distance(self, age_now: u64) -> u64 {
        age_now.wrapping_sub(self.0 >> 3) & AGE_MASK
    }

    /// Returns whether the page was part of the working set when it was evicted.
    pub fn workingset(self) -> bool {
        self.0 & 4 != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::group_reclaim::owner_from;

    #[test]
    fn a_shadow_gives_back_what_went_in() {
        let shadow = Shadow::new(owner_from(77), 1000, true);
        assert_eq!(shadow.to_raw() & 3, 0);
        let back = Shadow::from_raw(shadow.to_raw() | 2);
        assert_eq!(back.distance(1010), 10);
        assert!(back.workingset());
    }

    #[test]
    fn the_age_may_wrap() {
        let shadow = Shadow::new(owner_from(1), AGE_MASK, false);
        assert_eq!(shadow.distance((AGE_MASK + 1) & AGE_MASK), 1);
        assert!(!shadow.workingset());
    }
}
