//! Ghosts: records of shares taken back by reclaim, kept to judge the return of their pages.
//!
//! A ghost takes the place of its share: its owner goes on paying for it, and it keeps the slot.
//! It is gone when all its pages have returned, with its file, or when its owner has too many.

use std::collections::BTreeMap;
use std::ops::Range;

use umemcg::Group;
use umemcg::OwnerId;
use umemcg::internal::arrival_order::{ArrivalList, Returned, arrive_again, is_recent, leave_shadow};
use umemcg::internal::{ListSlot, Shadow};

use super::freed::Freed;
use super::share::Share;
use crate::kernel_page_lists::KernelPageLists;
use crate::page_windows::{WINDOW_PAGES, bits_of};

/// Pages of a window once charged to one group.
#[derive(Debug)]
struct Ghost {
    owner: OwnerId,
    slot: ListSlot,
    shadow: Shadow,
    /// Never none.
    pages: u64,
    /// The pages from the protected list.
    protected: u64,
}

/// The ghosts of a file, by window.
#[derive(Debug, Default)]
pub(super) struct Ghosts(BTreeMap<u64, Vec<Ghost>>);

impl Ghosts {
    /// Replaces an empty share by a ghost if reclaim has taken some of its pages. Otherwise gives
    /// the share back.
    pub(super) fn replace(&mut self, lists: &KernelPageLists, window: u64, share: &Share, freed: &mut Freed) {
        let (owner, pages) = (share.owner, share.left);
        let Some(slot) = share.slot.filter(|_| pages != 0) else {
            share.slot.into_iter().for_each(|slot| lists.release(share.list, slot));
            return freed.add(owner, 0, 1);
        };
        let shadow = leave_shadow(owner, u64::from(pages.count_ones()));
        let protected = if share.list == ArrivalList::Protected { pages } else { 0 };
        let ghosts = self.0.entry(window).or_default();
        let Some(known) = ghosts.iter_mut().find(|ghost| ghost.owner == owner) else {
            lists.leave(owner, share.list, slot);
            return ghosts.push(Ghost { owner, slot, shadow, pages, protected });
        };
        // All its pages take the age of the newest.
        let kept = if is_recent(known.shadow) { known.pages & !pages } else { 0 };
        (known.pages, known.protected) = (pages | kept, protected | known.protected & kept);
        known.shadow = shadow;
        lists.touch_ghost(known.slot);
        lists.release(share.list, slot);
        freed.add(owner, 0, 1);
    }

    /// Returns the arrival list of pages of a window, as decided by most of them, and the number of
    /// returning pages.
    pub(super) fn arrive(
        &mut self,
        lists: &KernelPageLists,
        (window, pages): (u64, u64),
        reader: &Group,
        freed: &mut Freed,
    ) -> (ArrivalList, u64) {
        let (mut nr_returned, mut nr_protected) = (0, 0);
        for ghost in self.0.get(&window).into_iter().flatten().filter(|ghost| ghost.pages & pages != 0) {
            let nr_pages = u64::from((ghost.pages & pages).count_ones());
            nr_returned += nr_pages;
            let returned = Returned {
                shadow: ghost.shadow,
                nr_pages,
                nr_protected: u64::from((ghost.protected & pages).count_ones()),
            };
            if arrive_again(reader, &returned) == ArrivalList::Protected {
                nr_protected += nr_pages;
            }
        }
        if nr_returned > 0 {
            lists.returns.note_returned(reader, nr_returned);
        }
        self.forget_pages(lists, (window, pages), freed);
        let is_protected = 2 * nr_protected >= u64::from(pages.count_ones()).max(1);
        (if is_protected { ArrivalList::Protected } else { ArrivalList::Probation }, nr_returned)
    }

    /// Forgets the ghosts' pages in a range.
    pub(super) fn forget(&mut self, lists: &KernelPageLists, pages: &Range<u64>, freed: &mut Freed) {
        let windows = pages.start / WINDOW_PAGES..pages.end.div_ceil(WINDOW_PAGES);
        let known: Vec<u64> = self.0.range(windows).map(|(&window, _)| window).collect();
        for window in known {
            self.forget_pages(lists, (window, bits_of(window, pages)), freed);
        }
    }

    fn forget_pages(&mut self, lists: &KernelPageLists, (window, pages): (u64, u64), freed: &mut Freed) {
        let forget = |ghost: &mut Ghost| {
            ghost.pages &= !pages;
            ghost.protected &= !pages;
            ghost.pages == 0
        };
        self.drop_if(lists, window, forget, freed);
    }

    /// Drops one ghost.
    pub(super) fn forget_one(
        &mut self,
        lists: &KernelPageLists,
        window: u64,
        slot: ListSlot,
        freed: &mut Freed,
    ) {
        self.drop_if(lists, window, |ghost| ghost.slot == slot, freed);
    }

    fn drop_if(
        &mut self,
        lists: &KernelPageLists,
        window: u64,
        is_over: impl FnMut(&mut Ghost) -> bool,
        freed: &mut Freed,
    ) {
        let Some(ghosts) = self.0.get_mut(&window) else { return };
        for ghost in ghosts.extract_if(.., is_over) {
            lists.release_ghost(ghost.slot);
            freed.add(ghost.owner, 0, 1);
        }
        if ghosts.is_empty() {
            self.0.remove(&window);
        }
    }
}
