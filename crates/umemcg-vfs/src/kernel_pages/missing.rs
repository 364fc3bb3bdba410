//! Pages dropped by the kernel itself, for want of memory or on request (`drop_caches`).
//!
//! The kernel does not report such drops. A thread that serves no requests compares windows with
//! the kernel's page cache, and gives back missing pages. A page may come back between the
//! comparison and the note: it stays charged if a request has ended since, or is under way.

use std::ops::Range;

use umemcg::internal::ListSlot;

use super::KernelPages;
use super::freed::Freed;
use crate::attr::FileKind;
use crate::kernel_cache::WindowHolder;
use crate::page_windows::{WINDOW_PAGES, runs_of};

impl KernelPages {
    /// Returns the charged pages of a window and the present moment, if they can be compared with
    /// the kernel's page cache: no request is under way there, and no drop has been asked for.
    /// `None` unless `slot` is the first share. The kernel reports a directory's pages only up to
    /// the directory's size on the host.
    pub(super) fn comparable(&self, window: u64, slot: ListSlot) -> Option<(Vec<Range<u64>>, u64)> {
        let mut state = self.state.lock();
        let is_busy = self.kind != FileKind::Regular || state.is_busy(window);
        let known = state.windows.get(&window).filter(|_| !is_busy)?;
        let is_first = known.shares.iter().find_map(|share| share.slot) == Some(slot);
        let runs = runs_of(window, known.pages());
        (is_first && !known.is_asked()).then(|| (runs, state.tick()))
    }
}

impl WindowHolder for KernelPages {
    fn note_missing(&self, pages: &Range<u64>, moment: u64) -> bool {
        let mut freed = Freed::default();
        let mut state = self.state.lock();
        let window = pages.start / WINDOW_PAGES;
        let is_newer = |known: &super::Window| known.last_end >= moment || known.is_asked();
        if state.is_busy(window) || state.windows.get(&window).is_none_or(is_newer) {
            return false;
        }
        self.take_out(&mut state, (pages, false), &mut freed, |_, _| true);
        true
    }
}
