//! Closed files. They *linger* while they have data to write back, and are *kept* for their cached
//! content after the kernel has forgotten them. Both numbers are bounded.

use std::sync::Arc;

use super::HostInodes;
use crate::attr::NodeId;
use crate::host::content::Content;

impl HostInodes {
    /// Gives back an open of content, and its pin of the node.
    pub(crate) fn close(&self, node: NodeId, content: &Content) {
        let must_linger = content.release();
        // The open's pin becomes the lingering pin, unless the node has one already or is
        // unreachable.
        let keeps_pin = must_linger
            && self.table.with(node, |slot| {
                let is_wanted = slot.is_looked_up() || !slot.is_nameless;
                is_wanted && !std::mem::replace(&mut slot.lingers, true)
            }) == Some(true);
        if keeps_pin {
            self.lingering.lock().push(node);
        } else {
            self.dispose(self.table.unpin(node));
        }
    }

    /// Closes the host files of lingering content once it has been written back. Checks at most
    /// `max` of each kind.
    pub(crate) fn reap_lingering(&self, max: usize) {
        let (waiting, asked) = self.lingering.lock().take_oldest(max);
        let still_waiting = waiting.into_iter().filter(|&node| !self.reap(node, false)).collect();
        let still_asked = asked.into_iter().filter(|&node| !self.reap(node, false)).collect();
        self.lingering.lock().put_back(still_waiting, still_asked);
    }

    /// Enforces the bound on lingering content. From half of the bound on, the flusher is asked to
    /// write the files closed longest ago, so a close seldom reaches the bound. A close beyond the
    /// bound writes the oldest file back itself. While a store fails, the bound is exceeded,
    /// because accepted data is not dropped.
    pub(crate) fn bound_lingering(&self) {
        let due = self.lingering.lock().ask_for_oldest(self.max_held);
        for node in due {
            if let Some(content) = self.lingering_content(node) {
                content.file.start_writeback();
            }
        }
        loop {
            let oldest = self.lingering.lock().take_beyond(self.max_held);
            let Some(node) = oldest else { return };
            if !self.reap(node, true) {
                self.lingering.lock().asked.push_back(node);
                return;
            }
        }
    }

    /// Returns the content of a lingering node; `None` if the node is gone or no longer lingers.
    fn lingering_content(&self, node: NodeId) -> Option<Arc<Content>> {
        self.table.with(node, |entry| entry.content.clone().filter(|_| entry.lingers)).flatten()
    }

    /// Releases a lingering node if it is clean, with `write_back` after writing it. Returns
    /// `false` if it still lingers.
    fn reap(&self, node: NodeId, write_back: bool) -> bool {
        let Some(content) = self.lingering_content(node) else { return true };
        let is_closed =
            content.try_close() || (write_back && content.file.write_back().is_ok() && content.try_close());
        if is_closed {
            self.stop_lingering(node);
        }
        is_closed
    }

    pub(crate) fn stop_lingering(&self, node: NodeId) {
        let lingered = self.table.with(node, |entry| std::mem::take(&mut entry.lingers));
        if lingered == Some(true) {
            self.dispose(self.table.unpin(node));
        }
    }

    /// Gives back the listing of an inode about to lose this many of the kernel's lookups, if they
    /// are the last: the pages went with the kernel's inode.
    pub(crate) fn forget_listing(&self, node: NodeId, nr_lookups: u64) {
        let Some(listing) = self.listings.get(node) else { return };
        let moment = listing.pages.moment();
        if self.table.is_last_lookup(node, nr_lookups) {
            // The kernel is asked to drop pages listed since then, after another lookup.
            listing.pages.forget_before(moment);
            drop(self.listings.remove(node));
        }
    }

    /// Keeps an inode just forgotten by the kernel. If there are too many, releases the inode kept
    /// longest.
    pub(crate) fn keep(&self, node: NodeId) {
        let oldest = {
            let mut kept = self.kept.lock();
            kept.push_back(node);
            if kept.len() > self.max_kept { kept.pop_front() } else { None }
        };
        let Some(oldest) = oldest else { return };
        if self.table.with(oldest, |entry| std::mem::take(&mut entry.is_kept)) == Some(true) {
            self.dispose(self.table.unpin(oldest));
        }
    }
}
