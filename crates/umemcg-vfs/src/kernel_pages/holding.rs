//! Adds pages to the shares of a window, and removes them.

use std::ops::Range;
use std::sync::{Arc, Weak};

use umemcg::OwnerId;
use umemcg::internal::arrival_order::ArrivalList;

use super::freed::Freed;
use super::share::{Share, Window};
use super::{KernelPages, PageWindows};
use crate::kernel_page_lists::PageHolder;
use crate::page_windows::bits_of;

impl KernelPages {
    /// Notes pages of a window charged to an owner. Returns the number of new shares.
    pub(super) fn hold(
        self: &Arc<Self>,
        state: &mut PageWindows,
        (window, pages): (u64, u64),
        list: ArrivalList,
        owner: OwnerId,
    ) -> u64 {
        let nr_opens_spent = state.nr_opens;
        let shares = &mut state.windows.entry(window).or_default().shares;
        shares.iter_mut().for_each(|share| share.left &= !pages);
        if let Some(share) = shares.iter_mut().find(|share| share.owner == owner && share.list == list) {
            share.pages |= pages;
            return 0;
        }
        let holder: Weak<dyn PageHolder> = Arc::downgrade(self) as _;
        let slot = self.lists.add(owner, list, (holder, window));
        shares.push(Share { owner, list, pages, nr_opens_spent, slot, asked: 0, left: 0 });
        1
    }

    /// Takes the pages of a range out of the windows selected by `is_gone`. Shares asked for in
    /// other windows are listed again. An empty share becomes a ghost if reclaim has taken pages of
    /// it.
    pub(super) fn take_out(
        &self,
        state: &mut PageWindows,
        (pages, is_reclaimed): (&Range<u64>, bool),
        freed: &mut Freed,
        is_gone: impl Fn(u64, &Window) -> bool,
    ) {
        let windows: Vec<u64> = self.known(state, pages).collect();
        for number in windows {
            let Some(window) = state.windows.get_mut(&number) else { continue };
            let bits = bits_of(number, pages);
            let gone_bits = if is_gone(number, window) { bits } else { 0 };
            let ghosts = &mut state.ghosts;
            window.shares.retain_mut(|share| {
                let (is_asked_no_more, nr_gone) = share.take_out(bits, gone_bits, is_reclaimed);
                freed.add(share.owner, nr_gone, 0);
                if share.pages == 0 {
                    ghosts.replace(&self.lists, number, share, freed);
                } else if let Some(slot) = share.slot.filter(|_| is_asked_no_more) {
                    self.lists.list(share.owner, share.list, slot);
                }
                share.pages != 0
            });
            if window.shares.is_empty() {
                state.windows.remove(&number);
            }
        }
    }
}
