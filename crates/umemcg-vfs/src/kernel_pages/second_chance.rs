//! Second chances: an open of a file is a use of its pages in the kernel, the only use visible to
//! the daemon.
//!
//! An open only counts itself. Reclaim looks at the count when a share is its next victim. A share
//! on probation stays if there was an open since it arrived. A share on the protected list stays if
//! there were two since it was put there. It becomes the youngest protected share, and needs new
//! opens to stay again. Programs opening a large file all the time must not keep it forever, so
//! reclaim gives a bounded number of second chances before it takes a share
//! ([`KernelPageLists`](crate::kernel_page_lists)).

use umemcg::OwnerId;
use umemcg::StatItem;
use umemcg::internal::ListSlot;
use umemcg::internal::arrival_order::ArrivalList;

use super::freed::Freed;
use super::share::{Share, Window};
use super::{KernelPages, PageWindows};

impl KernelPages {
    /// Notes that a process opens the file.
    pub(crate) fn note_open(&self) {
        self.state.lock().nr_opens += 1;
    }

    /// Keeps a share whose file has been opened often enough since it arrived, or since it was last
    /// kept here. Returns whether it did.
    pub(super) fn give_second_chance(&self, window: u64, slot: ListSlot) -> bool {
        let mut freed = Freed::default();
        let mut guard = self.state.lock();
        let PageWindows { windows, nr_opens, .. } = &mut *guard;
        let Some(known) = windows.get_mut(&window) else { return false };
        let Some(at) = known.spend_opens(slot, *nr_opens) else { return false };
        self.protect(known, at, &mut freed);
        true
    }

    /// Puts a share on the protected list, or moves its pages into the owner's share there.
    fn protect(&self, known: &mut Window, at: usize, freed: &mut Freed) {
        let Share { owner, list, pages, .. } = known.shares[at];
        if list == ArrivalList::Protected {
            return; // and the youngest: reclaim has moved it
        }
        count_activated(owner, pages);
        let is_there = |share: &Share| share.owner == owner && share.list == ArrivalList::Protected;
        let Some(there) = known.shares.iter().position(is_there) else {
            let share = &mut known.shares[at];
            share.list = ArrivalList::Protected;
            share.slot.into_iter().for_each(|slot| self.lists.protect(owner, slot));
            return;
        };
        let share = known.shares[at].clone();
        let protected = &mut known.shares[there];
        protected.pages |= share.pages;
        protected.left |= share.left;
        protected.nr_opens_spent = share.nr_opens_spent;
        protected.slot.into_iter().for_each(|slot| self.lists.make_youngest(slot));
        share.slot.into_iter().for_each(|slot| self.lists.release(list, slot));
        freed.add(owner, 0, 1);
        known.shares.swap_remove(at);
    }
}

fn count_activated(owner: OwnerId, pages: u64) {
    owner.with_group(|group| group.stat_add(StatItem::PgActivate, i64::from(pages.count_ones())));
}
