//! The kernel's copy of an object, in its page cache.
//!
//! A node stands for one version of an object, or for the file being written in its place. All
//! writes on this volume go through the kernel's inode of that node. So the kernel's pages of a
//! node stay valid for as long as the kernel knows the node, and an open need not drop them. An
//! object replaced by another program gets another node, and the kernel has no pages of that node
//! yet.
//!
//! The copy belongs to the node and not to its content: a stored draft goes with the last open
//! file, and the object then behind the node has the same bytes.

use std::sync::Arc;

use umemcg::Group;
use umemcg_base::LeafMutex;

use crate::attr::{FileKind, NodeId};
use crate::kernel_page_lists::KernelPageLists;
use crate::kernel_pages::KernelPages;

/// See the module text.
#[derive(Debug)]
pub(super) struct KernelCopy {
    pub(super) pages: Arc<KernelPages>,
    /// A leaf lock.
    opens: LeafMutex<Opens>,
}

#[derive(Debug, Default)]
struct Opens {
    nr: u32,
    /// Whether the kernel caches the pages of the present opens: of all or of none.
    are_cached: Option<bool>,
}

impl KernelCopy {
    /// Creates the copy of a node without pages in the kernel. The bookkeeping is charged whatever
    /// the limits are; no lock may be held.
    pub(super) fn new(lists: &Arc<KernelPageLists>, node: NodeId, group: &Group) -> Arc<Self> {
        let pages = KernelPages::new(lists, (node, FileKind::Regular), group);
        Arc::new(Self { pages, opens: LeafMutex::default() })
    }

    /// Counts an open.
    pub(super) fn opened(&self) {
        self.opens.lock().nr += 1;
    }

    /// Uncounts an open.
    pub(super) fn closed(&self) {
        let mut opens = self.opens.lock();
        opens.nr -= 1;
        if opens.nr == 0 {
            opens.are_cached = None;
        }
    }

    /// Returns whether the kernel caches the pages of the present opens. The first of them decides
    /// with `decide`: otherwise one open would write past the cached pages of another.
    pub(super) fn is_cached(&self, decide: impl FnOnce() -> bool) -> bool {
        let known = self.opens.lock().are_cached;
        known.unwrap_or_else(|| {
            // Another open may have been faster.
            let decided = decide();
            *self.opens.lock().are_cached.get_or_insert(decided)
        })
    }
}
