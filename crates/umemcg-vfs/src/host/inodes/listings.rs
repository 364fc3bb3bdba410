//! The kernel's listings of directories.

use std::collections::HashMap;
use std::sync::Arc;

use umemcg_base::LeafMutex;

use crate::attr::NodeId;
use crate::kernel_listing::KernelListing;

/// By directory, from its first listing on until the kernel forgets the inode.
#[derive(Debug, Default)]
pub(super) struct Listings(LeafMutex<HashMap<NodeId, Arc<KernelListing>>>);

impl Listings {
    pub(super) fn get(&self, node: NodeId) -> Option<Arc<KernelListing>> {
        self.0.lock().get(&node).cloned()
    }

    /// Adds the first listing of a directory. Returns the listing of another thread, if it was
    /// first.
    pub(super) fn add(&self, node: NodeId, fresh: Arc<KernelListing>) -> Arc<KernelListing> {
        // Dropped after the lock is released: the drop of a listing takes other locks.
        let kept = Arc::clone(self.0.lock().entry(node).or_insert_with(|| Arc::clone(&fresh)));
        drop(fresh);
        kept
    }

    pub(super) fn remove(&self, node: NodeId) -> Option<Arc<KernelListing>> {
        let mut listings = self.0.lock();
        let removed = listings.remove(&node);
        if listings.capacity() > 64 && listings.len() < listings.capacity() / 8 {
            listings.shrink_to_fit();
        }
        removed
    }
}
