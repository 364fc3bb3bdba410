//! The lists of a volume's two shrinkers: inodes by paying group, oldest first.
//!
//! Every entry of the inode table that is charged is on one of two lists. While the kernel refers
//! to it, it is a *name* in the kernel's cache, and is dropped when the kernel forgets it;
//! otherwise it is an *inode* that only we keep (for its cached content, or because a child's name
//! or an open file needs it). The lists are made, and the shrinkers registered, with a volume's
//! first entry, so that an idle volume costs nothing.
//!
//! Lists are changed with the entry's shard locked, and their locks rank behind it; walks only
//! collect node ids and look at the entries afterwards.

use std::time::Instant;

use umemcg::Group;
use umemcg::OwnerId;
use umemcg::internal::{ListLru, ListSlot, Verdict};
use umemcg::shrinker::Registration;

use crate::attr::NodeId;

/// All objects are on the lists of this memory node.
pub(crate) const NODE: usize = 0;

/// The list that an entry is on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Listed {
    #[default]
    Nowhere,
    /// The kernel refers to it.
    Names,
    /// Only we do.
    Inodes,
}

/// An entry's place in the lists, and its state for the shrinkers.
#[derive(Debug, Default)]
pub(crate) struct ListEntry {
    /// A [`ListSlot`] as a number plus 1; 0: none.
    slot: u32,
    /// The time at which the kernel was last asked to forget the inode, on the lists' clock; 0 if
    /// not since the last lookup.
    pub(crate) asked_ms: u32,
    /// The number of requests since then.
    pub(crate) nr_asked: u8,
    on: Listed,
    /// Looked up again since a walk last visited the entry.
    pub(crate) is_used: bool,
}

/// The lists of a volume.
#[derive(Debug)]
pub(crate) struct NameLists {
    names: ListLru,
    inodes: ListLru,
    started: Instant,
    /// The registrations of the shrinkers; dropped first when the volume is dropped.
    registrations: Option<[Registration; 2]>,
}

impl NameLists {
    /// Creates the lists behind two shrinkers, of names and of inodes.
    pub(crate) fn new(names: ListLru, inodes: ListLru, registrations: [Registration; 2]) -> Self {
        Self { names, inodes, started: Instant::now(), registrations: Some(registrations) }
    }

    /// Unregisters the shrinkers; none looks at the lists any more when this returns.
    pub(crate) fn unregister(&mut self) {
        drop(self.registrations.take());
    }

    fn list(&self, on: Listed) -> Option<&ListLru> {
        match on {
            Listed::Nowhere => None,
            Listed::Names => Some(&self.names),
            Listed::Inodes => Some(&self.inodes),
        }
    }

    /// Returns the time of the lists' clock in milliseconds; never 0.
    pub(crate) fn now_ms(&self) -> u32 {
        (self.started.elapsed().as_millis() as u32).max(1)
    }

    /// Returns the number of a group's entries on a list.
    pub(crate) fn count(&self, on: Listed, group: &Group) -> u64 {
        self.list(on).map_or(0, |list| list.count(group, NODE))
    }

    /// Returns the oldest `nr` entries of a group and moves them to the young end, so that an entry
    /// that stays is visited again only after all others.
    pub(crate) fn oldest(&self, on: Listed, group: &Group, nr: u64) -> Vec<NodeId> {
        let mut nodes = Vec::new();
        if let Some(list) = self.list(on) {
            list.walk(group, NODE, nr, |_, node, _| {
                nodes.push(NodeId(node));
                Verdict::Rotate
            });
        }
        nodes
    }
}

impl ListEntry {
    /// Moves the entry to the list where it belongs. The caller holds the entry's shard.
    pub(crate) fn update(&mut self, lists: &NameLists, node: NodeId, owner: OwnerId, on: Listed) {
        if self.on == on {
            return;
        }
        if self.slot == 0 {
            // There are more entries than list slots: the entry cannot be reclaimed by a shrinker.
            let Ok(slot) = lists.names.reserve(node.0) else { return };
            self.slot = slot.into_raw() + 1;
        }
        let slot = ListSlot::from_raw(self.slot - 1);
        if let Some(list) = lists.list(self.on) {
            list.remove(NODE, slot);
        }
        if let Some(list) = lists.list(on) {
            list.add(owner, NODE, slot);
        }
        self.on = on;
    }

    /// Takes the entry off its list for good. The caller holds the entry's shard.
    pub(crate) fn leave(&mut self, lists: &NameLists) {
        if self.slot == 0 {
            return;
        }
        let slot = ListSlot::from_raw(self.slot - 1);
        if let Some(list) = lists.list(self.on) {
            list.remove(NODE, slot);
        }
        lists.names.release(slot);
        (self.slot, self.on) = (0, Listed::Nowhere);
    }
}
