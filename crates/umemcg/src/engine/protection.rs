//! Protection: `memory.min`, `memory.low`, and their effect against reclaim from a given group.

use std::sync::Arc;

use umemcg_group::{Group, Protection};

use super::Engine;
use super::limits::whole_pages;

impl Engine {
    /// Sets `memory.min` in bytes, rounded down to a page: this many bytes of the group are never
    /// reclaimed by pressure from above it, as far as the groups above it are protected themselves.
    /// `u64::MAX` protects everything it has. Only stores the value: reclaims nothing, never
    /// blocks. On the root it does nothing.
    #[doc(alias = "memory_min_write")]
    pub fn set_min(&self, group: &Arc<Group>, bytes: u64) {
        if !group.is_root() {
            group.set_min(whole_pages(bytes));
        }
    }

    /// Sets `memory.low`, as [`set_min`](Self::set_min); but a whole reclaim finding nothing else
    /// takes protected memory as well, and counts a `low` event.
    #[doc(alias = "memory_low_write")]
    pub fn set_low(&self, group: &Arc<Group>, bytes: u64) {
        if !group.is_root() {
            group.set_low(whole_pages(bytes));
        }
    }

    /// Returns the bytes of `group` protected at present from a reclaim starting at `root`, the
    /// group itself or an ancestor. May be more than the group uses. The settings of `root` itself
    /// do not count.
    #[doc(alias = "mem_cgroup_protection")]
    pub fn effective_protection(&self, root: &Arc<Group>, group: &Arc<Group>) -> Protection {
        self.reclaimer().effective_protection(root, group)
    }
}
