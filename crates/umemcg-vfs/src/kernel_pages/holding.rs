//! Adds pages to the shares of a window, removes them, and answers the lists about a share.

use std::ops::Range;
use std::sync::{Arc, Weak};

use umemcg::OwnerId;
use umemcg::internal::ListSlot;
use umemcg::internal::arrival_order::ArrivalList;

use super::freed::Freed;
use super::share::{Share, Window};
use super::{KernelPages, PageWindows, RangeDrop};
use crate::attr::NodeId;
use crate::kernel_cache::{DropTask, KeptWindow, WindowHolder};
use crate::kernel_page_lists::{AskedRange, PageHolder};
use crate::page_windows::{bits_of, span_of};

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

impl PageHolder for KernelPages {
    fn node(&self) -> NodeId {
        self.node
    }

    /// Chooses a share, unless it is asked for already, or a request under way may add pages there.
    fn ask(&self, window: u64, slot: ListSlot) -> Vec<AskedRange> {
        let mut state = self.state.lock();
        if state.is_busy(window) {
            return Vec::new();
        }
        let Some((owner, list, runs)) = state.windows.get_mut(&window).and_then(|known| known.ask(slot))
        else {
            return Vec::new();
        };
        self.lists.unlist(list, slot);
        let mut asked = Vec::with_capacity(runs.len());
        for pages in runs {
            let asked_at = state.ask();
            let nr_pages = u64::from(pages.count_ones());
            asked.push(AskedRange {
                pages: span_of(window, pages),
                asked_at,
                nr_pages,
                reclaim: None,
                leaving: Some(self.lists.note_leaving(owner, nr_pages)),
            });
        }
        asked
    }

    fn keep_if_opened(&self, window: u64, slot: ListSlot) -> bool {
        self.give_second_chance(window, slot)
    }

    fn kept_window(self: Arc<Self>, window: u64, slot: ListSlot) -> Option<KeptWindow> {
        let (runs, moment) = self.comparable(window, slot)?;
        let holder: Weak<dyn WindowHolder> = Arc::downgrade(&self) as _;
        Some(KeptWindow { node: self.node, runs, holder, moment })
    }

    fn forget_ghost(&self, window: u64, slot: ListSlot) {
        let mut freed = Freed::default();
        self.state.lock().ghosts.forget_one(&self.lists, window, slot, &mut freed);
    }

    fn task(self: Arc<Self>, asked: AskedRange) -> Box<dyn DropTask> {
        Box::new(RangeDrop { pages: Arc::downgrade(&self), asked, then: None, nr_parked: 0 })
    }
}
