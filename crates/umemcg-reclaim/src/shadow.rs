//! Shadow entries: left in a file's index by an evicted page, to judge its refault.
//!
//! A shadow records the reclaiming group and its *age*, a count of its evictions and activations.
//! When the page comes back, the growth of the age since is its *refault distance*: the number of
//! further pages the lists would have had to hold to keep it. If the distance is no larger than the
//! active list, the page is part of the working set and goes to the active list immediately
//! (`kernel-semantics` §2.2).

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

    /// Returns the reclaiming group, or its nearest living ancestor. Its handle may have been
    /// reused since; the distance is then a wrong guess, never a fault.
    pub fn evictor(self) -> Option<Arc<Group>> {
        OwnerId::from_raw((self.0 >> (AGE_BITS + 3)) as u32)?.try_resolve()
    }

    /// Returns the growth of the evictor's age since, in pages.
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
