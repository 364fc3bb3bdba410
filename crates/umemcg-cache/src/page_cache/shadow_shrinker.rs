//! The shrinker of index leaves with shadow entries only.
//!
//! A group may keep one such leaf for every eight of its cached pages: enough to judge refaults.
//! Shadows above that are dropped under pressure, oldest first, half of it each time
//! (`kernel-semantics` §2.2).

use std::sync::{Arc, Weak};

use umemcg_base::PAGE_SIZE_U64;
use umemcg_group::{Group, StatItem};
use umemcg_reclaim::Verdict;
use umemcg_reclaim::shrinker::{Count, Registration, Scan, Scanned, ShrinkTarget, Shrinker, Usage};

use super::PageCache;
use crate::index_node::NODE_BYTES;

/// Cached pages of a group for each leaf of shadows that it may keep.
const PAGES_PER_LEAF: u64 = 8;

/// Returns the number of leaves of a group. Nothing but a load, since every visit of reclaim asks.
fn count(group: &Group) -> u64 {
    group.stat_local(StatItem::ShadowNodes).max(0) as u64 / NODE_BYTES
}

/// The shrinker.
#[derive(Debug)]
struct ShadowShrinker(Weak<PageCache>);

impl PageCache {
    /// Registers the shrinker of shadow entries.
    pub fn register_shadow_shrinker(self: &Arc<Self>) -> Registration {
        let id = self.core().nodes().shadow_leaves().id.clone();
        self.reclaimer().register_shrinker(id, Arc::new(ShadowShrinker(Arc::downgrade(self))))
    }

    /// Returns the number of index leaves with shadow entries only.
    pub fn nr_shadow_leaves(&self) -> u64 {
        self.core().nodes().shadow_leaves().nr()
    }
}

/// Returns the number of leaves that a group may keep.
fn allowance(group: &Group) -> u64 {
    let pages =
        group.stat_local_applied(StatItem::InactiveFile) + group.stat_local_applied(StatItem::ActiveFile);
    pages.max(0) as u64 / PAGE_SIZE_U64 / PAGES_PER_LEAF
}

impl ShadowShrinker {
    fn list_is_empty(&self, group: &Group) -> bool {
        self.0.upgrade().is_none_or(|cache| cache.core().nodes().shadow_leaves().lru.count(group) == 0)
    }
}

impl Shrinker for ShadowShrinker {
    fn name(&self) -> String {
        "shadow_nodes".into()
    }

    /// Returns 0: no data is read again for a dropped shadow.
    fn seeks(&self) -> u32 {
        0
    }

    #[doc(alias = "count_shadow_nodes")]
    fn count(&self, target: &ShrinkTarget<'_>) -> Count {
        match count(target.group) {
            // The count of a removed group reaches its parent a moment after its list.
            0 if self.list_is_empty(target.group) => Count::Empty,
            0 => Count::NothingNow,
            nr => match nr.saturating_sub(allowance(target.group)) {
                0 => Count::NothingNow,
                excess => Count::Objects(excess),
            },
        }
    }

    #[doc(alias = "scan_shadow_nodes")]
    fn scan(&self, target: &ShrinkTarget<'_>, nr: u64) -> Scan {
        let Some(cache) = self.0.upgrade() else { return Scan::Stop };
        let mut leaves = Vec::with_capacity(nr as usize);
        cache.core().nodes().shadow_leaves().lru.walk(target.group, nr, |_, leaf, _| {
            leaves.push(cache.core().nodes().place_of_leaf(leaf as u32));
            // It leaves the list with its last shadow.
            Verdict::Rotate
        });
        let freed = leaves.iter().filter(|&&(file, first_page)| {
            cache.file(file).is_some_and(|file| file.index.lock().remove_shadow_leaf(first_page))
        });
        let freed_bytes = freed.count() as u64 * NODE_BYTES;
        Scan::Done(Scanned { scanned: leaves.len() as u64, freed_bytes, releasing_bytes: 0 })
    }

    fn usage(&self, target: &ShrinkTarget<'_>) -> Usage {
        let objects = count(target.group);
        let reclaimable = objects.saturating_sub(allowance(target.group));
        Usage { objects, reclaimable, bytes: objects * NODE_BYTES }
    }
}
