//! Bytes that are leaving: charged still, while another party has been asked to free them. It says
//! when it is done, whatever has come of it, so they are counted exactly, for the group that pays
//! and for those above.
//!
//! Usage falls only when they are gone. A reclaim that took them for used until then would take
//! what a group has under its protection, and one that finds nothing else would fail: see
//! [`protection`](crate::protection) and [`reclaim`](super::reclaim).

use std::sync::{Arc, Weak};

use umemcg_group::Group;

use super::Reclaimer;
use crate::group_reclaim::GroupReclaim;
use crate::leaving_bytes::LeavingBytes;

/// Bytes of a group that are leaving, until this is dropped.
#[derive(Debug)]
pub struct Leaving {
    /// Weak: the other party may be done when the engine is gone.
    reclaimer: Weak<Reclaimer>,
    /// A group that is removed meanwhile stays counted: those above are the same.
    group: Arc<Group>,
    bytes: u64,
}

impl Leaving {
    /// Counts bytes of a group as leaving.
    pub fn new(reclaimer: &Arc<Reclaimer>, group: &Arc<Group>, bytes: u64) -> Self {
        for level in group.ancestors() {
            GroupReclaim::of(level, reclaimer.nr_nodes()).leaving_bytes().begin(bytes);
        }
        Self { reclaimer: Arc::downgrade(reclaimer), group: Arc::clone(group), bytes }
    }

    /// Reports that some bytes have been freed, and that others that reclaim was promised stay. No
    /// lock may be held.
    pub fn end(self, freed_bytes: u64, kept_bytes: u64) {
        let (reclaimer, group) = (self.reclaimer.upgrade(), Arc::clone(&self.group));
        self.at_each_level(|leaving| leaving.note_freed(freed_bytes));
        drop(self); // before those that wait for it are woken
        let Some(reclaimer) = reclaimer else { return };
        if freed_bytes > 0 {
            reclaimer.note_released(&group, freed_bytes);
        }
        if kept_bytes > 0 {
            reclaimer.note_not_released(&group, kept_bytes);
        }
    }

    fn at_each_level(&self, note: impl Fn(&LeavingBytes)) {
        let parts = self.group.ancestors().filter_map(GroupReclaim::if_present);
        parts.for_each(|part| note(part.leaving_bytes()));
    }
}

impl Drop for Leaving {
    fn drop(&mut self) {
        self.at_each_level(|leaving| leaving.end(self.bytes));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::group_reclaim::leaving_bytes;
    use umemcg_arena::Arena;
    use umemcg_group::GroupTree;

    #[test]
    fn what_is_leaving_counts_above_also_when_its_group_goes() {
        let tree = GroupTree::new(1 << 20);
        let arena = Arena::new(1 << 20, 1).unwrap();
        let reclaimer = Arc::new(Reclaimer::new(arena, Arc::clone(&tree), 1).unwrap());
        let parent = tree.create(tree.root(), "p".as_ref()).unwrap();
        let group = tree.create(&parent, "g".as_ref()).unwrap();
        let [one, other] = [10, 20].map(|bytes| Leaving::new(&reclaimer, &group, bytes));
        assert_eq!([tree.root(), &parent, &group].map(|group| leaving_bytes(group)), [30; 3]);
        tree.remove(&group, |dying, parent| reclaimer.splice_to_parent(dying, parent)).unwrap();
        drop(group);
        one.end(10, 0);
        assert_eq!((leaving_bytes(&parent), reclaimer.released_bytes()), (20, 10));
        other.end(0, 20);
        assert_eq!((leaving_bytes(&parent), reclaimer.released_bytes()), (0, 10));
    }
}
