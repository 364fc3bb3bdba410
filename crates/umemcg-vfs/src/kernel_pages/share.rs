//! The pages of a window, divided into shares by paying group and list.

use umemcg::OwnerId;
use umemcg::internal::ListSlot;
use umemcg::internal::arrival_order::ArrivalList;

/// Opens of its file needed to keep a share on the protected list. With fewer, shares reused now
/// and then would push out earlier shares reused as often.
const NR_OPENS_PROTECTED: u64 = 2;

/// Pages of a window charged to one group and on one arrival list.
#[derive(Debug, Clone)]
pub(super) struct Share {
    pub(super) owner: OwnerId,
    pub(super) list: ArrivalList,
    pub(super) pages: u64,
    /// Opens of the file without effect on the share: they came before it, or have kept it already.
    pub(super) nr_opens_spent: u64,
    /// None if the lists had no room for another object: the share goes with its file only.
    pub(super) slot: Option<ListSlot>,
    /// Pages of pending drops. If there are any, the share is on no list.
    pub(super) asked: u64,
    /// Pages taken by reclaim that have not returned.
    pub(super) left: u64,
}

impl Share {
    /// Takes out the pages `gone`, and ends the drops of the pages `answered`. Returns whether
    /// these were the share's last pending drops, and how many pages are gone.
    pub(super) fn take_out(&mut self, answered: u64, gone: u64, is_reclaimed: bool) -> (bool, u64) {
        let gone = self.pages & gone;
        self.pages &= !gone;
        if is_reclaimed {
            self.left |= gone;
        }
        let was_asked = self.asked != 0;
        self.asked &= !answered;
        (was_asked && self.asked == 0, u64::from(gone.count_ones()))
    }
}

/// A window with pages perhaps in the kernel.
#[derive(Debug, Default)]
pub(super) struct Window {
    /// The moment of the end of the last request that may have added pages.
    pub(super) last_end: u64,
    /// Nearly always one share. Never empty.
    pub(super) shares: Vec<Share>,
}

impl Window {
    pub(super) fn pages(&self) -> u64 {
        self.shares.iter().fold(0, |pages, share| pages | share.pages)
    }

    /// Returns whether a drop of some of its pages is pending.
    pub(super) fn is_asked(&self) -> bool {
        self.shares.iter().any(|share| share.asked != 0)
    }

    /// Returns the index of a share not asked for, if its unspent opens, of the file's `nr_opens`,
    /// are as many as its list requires. All are spent then.
    pub(super) fn spend_opens(&mut self, slot: ListSlot, nr_opens: u64) -> Option<usize> {
        let at = self.shares.iter().position(|share| share.slot == Some(slot) && share.asked == 0)?;
        let share = &mut self.shares[at];
        let nr_unspent = nr_opens - share.nr_opens_spent;
        let nr_required = match share.list {
            ArrivalList::Probation => 1,
            ArrivalList::Protected => NR_OPENS_PROTECTED,
        };
        if nr_unspent < nr_required {
            return None;
        }
        share.nr_opens_spent = nr_opens;
        Some(at)
    }

    /// Chooses a share not asked for, to be dropped. Returns its owner, its list and its runs: the
    /// pages of other shares are between them, not in them.
    pub(super) fn ask(&mut self, slot: ListSlot) -> Option<(OwnerId, ArrivalList, Vec<u64>)> {
        let at = self.shares.iter().position(|share| share.slot == Some(slot) && share.asked == 0)?;
        let others = self.shares.iter().enumerate().filter(|(place, _)| *place != at);
        let others = others.fold(0, |pages, (_, share)| pages | share.pages);
        let share = &mut self.shares[at];
        share.asked = share.pages;
        Some((share.owner, share.list, runs_between(share.pages, others)))
    }
}

/// Returns pages in runs without any of `others` between their first and their last page.
fn runs_between(mut pages: u64, others: u64) -> Vec<u64> {
    let mut runs = Vec::new();
    while pages != 0 {
        let behind = others & (u64::MAX << pages.trailing_zeros());
        let run = pages & (behind & behind.wrapping_neg()).wrapping_sub(1);
        runs.push(run);
        pages &= !run;
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_ends_before_a_page_of_others() {
        assert_eq!(runs_between(0b1011, 0), [0b1011]);
        assert_eq!(runs_between(0b1011, 0b0100), [0b0011, 0b1000]);
        assert_eq!(runs_between(0b1010, 0b0001), [0b1010]);
        assert_eq!(runs_between(0b0101 | 1 << 63, 0b1010), [0b0001, 0b0100, 1 << 63]);
        assert_eq!(runs_between(0, 0b1010), Vec::<u64>::new());
        assert_eq!(runs_between(u64::MAX >> 1, 1 << 63), [u64::MAX >> 1]);
    }
}
