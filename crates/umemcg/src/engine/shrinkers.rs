//! The embedder's own caches in reclaim.

use std::sync::Arc;

use umemcg_group::Group;
use umemcg_reclaim::ListLru;
use umemcg_reclaim::shrinker::{Registration, Shrinker, ShrinkerId, SlabUsage};

use super::Engine;

impl Engine {
    /// Returns a number for a new shrinker; its lists need the number before the registration.
    #[doc(alias = "shrinker_alloc")]
    pub fn reserve_shrinker(&self) -> ShrinkerId {
        self.reclaimer().reserve_shrinker()
    }

    /// Creates lists of a shrinker's objects, one for each group, in the order of use. A shrinker
    /// with several kinds of lists numbers them by `sub`.
    #[doc(alias = "list_lru_init")]
    pub fn list_lru(&self, id: &ShrinkerId, sub: u32) -> ListLru {
        ListLru::new(self.reclaimer(), id, sub)
    }

    /// Registers a shrinker. Later reclaim calls it, until the registration is dropped.
    #[doc(alias = "shrinker_register")]
    pub fn register_shrinker(&self, id: ShrinkerId, shrinker: Arc<dyn Shrinker>) -> Registration {
        self.reclaimer().register_shrinker(id, shrinker)
    }

    /// Marks the shrinker with this number as having objects of `group`, so that reclaim calls it.
    /// For shrinkers with objects outside any [`ListLru`]; called after an object can be counted.
    pub fn note_objects(&self, group: &Arc<Group>, shrinker: u32) {
        self.reclaimer().note_objects(group, shrinker);
    }

    /// Returns the usage of each shrinker with objects in `group` itself: count, reclaimable count,
    /// bytes. Calls the shrinkers, so no lock of this library may be held.
    pub fn slab_usage(&self, group: &Arc<Group>) -> Vec<SlabUsage> {
        self.reclaimer().slab_usage(group)
    }
}
