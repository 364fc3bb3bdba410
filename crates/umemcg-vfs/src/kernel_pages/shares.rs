//! The shares of a file's pages as objects of the lists of kernel pages.

use std::sync::{Arc, Weak};

use umemcg::ListSlot;

use super::{KernelPages, RangeDrop};
use crate::attr::NodeId;
use crate::kernel_cache::{DropTask, KeptWindow, WindowHolder};
use crate::kernel_page_lists::{AskedRange, PageHolder};
use crate::page_windows::span_of;

impl PageHolder for KernelPages {
    fn node(&self) -> NodeId {
        self.node
    }

    /// Chooses a share, unless it is asked for already, or a request is under way that may put
    /// pages there.
    fn ask(&self, window: u64, slot: ListSlot) -> Option<AskedRange> {
        let mut state = self.state.lock();
        if state.is_busy(window) {
            return None;
        }
        let asked_at = state.tick();
        let shares = &mut state.windows.get_mut(&window)?.shares;
        let share = shares.iter_mut().find(|share| share.slot == Some(slot) && !share.is_asked)?;
        share.is_asked = true;
        self.lists.unlist(slot);
        let pages = span_of(window, share.pages);
        let (nr_pages, owner) = (u64::from(share.pages.count_ones()), share.owner);
        state.asked.insert(asked_at);
        let awaited = Some(self.lists.await_drop(owner));
        Some(AskedRange { pages, asked_at, nr_pages, reclaim: None, awaited })
    }

    fn kept_window(self: Arc<Self>, window: u64) -> Option<KeptWindow> {
        let (pages, moment) = self.comparable(window)?;
        let holder: Weak<dyn WindowHolder> = Arc::downgrade(&self) as _;
        Some(KeptWindow { node: self.node, pages, holder, moment })
    }

    fn task(self: Arc<Self>, asked: AskedRange) -> Box<dyn DropTask> {
        Box::new(RangeDrop { pages: Arc::downgrade(&self), asked, then: None, nr_parked: 0 })
    }
}
