//! The lists of a volume's two shrinkers: inodes by paying group, oldest first.
//!
//! Every charged entry of the inode table is on one of two lists. While the kernel refers to it, it
//! is a *name* in the kernel's cache, and is dropped when the kernel forgets it. Otherwise it is an
//! *inode* kept only by the daemon (for its cached content, a child's name or an open file). The
//! lists are made, and the shrinkers registered, with a volume's first entry: an idle volume costs
//! nothing.
//!
//! Lists are changed with the entry's shard locked, and their locks rank behind it; walks only
//! collect node ids and look at the entries afterwards.

use std::time::Instant;

use umemcg::Group;
use umemcg::OwnerId;
use umemcg::internal::{ListLru, ListSlot, Verdict};
use umemcg::shrinker::Registration;

use crate::attr::NodeId;

/// The time allowed for the kernel to forget an inode after it was asked.
const FORGET_TIMEOUT_MS: u32 = 100;
/// The time after which the kernel is asked again to forget an inode. It doubles each time: the
/// names pinned by a tenant must not all be requested every second.
const RETRY_INTERVAL_MS: u32 = 1000;
/// The most doublings of that time.
const NR_DOUBLINGS_MAX: u8 = 3;

/// All objects are on the lists of this memory node.
pub(crate) const NODE: usize = 0;

/// The list of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Listed {
    #[default]
    Nowhere,
    /// The kernel refers to the inode.
    Names,
    /// Only the daemon refers to the inode.
    Inodes,
}

/// Whether to ask the kernel to forget an inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Asking {
    /// It has just been asked, and is expected to forget the inode.
    Expected,
    /// It was asked a while ago and did not forget the inode.
    InVain,
    /// Ask it now.
    Now,
}

/// An entry's place in the lists, and its state for the shrinkers.
#[derive(Debug, Default)]
pub(crate) struct ListEntry {
    /// A [`ListSlot`] as a number plus 1; 0: none.
    slot: u32,
    /// The time of the last request to the kernel to forget the inode, on the lists' clock; 0 if
    /// there was none since the last lookup.
    asked_ms: u32,
    /// The number of requests since then.
    nr_asked: u8,
    on: Listed,
    /// Looked up again since a walk last visited the entry.
    is_used: bool,
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

    /// Unregisters the shrinkers. Afterwards none of them uses the lists.
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

    /// Returns the oldest `nr` entries of a group and moves them to the young end: a remaining
    /// entry is visited again only after all others.
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
    /// Decides whether to ask the kernel now, and records the request if so.
    pub(crate) fn ask(&mut self, now_ms: u32) -> Asking {
        if self.asked_ms != 0 {
            let again_after_ms = RETRY_INTERVAL_MS << (self.nr_asked - 1);
            match now_ms.wrapping_sub(self.asked_ms) {
                ..FORGET_TIMEOUT_MS => return Asking::Expected,
                since_ms if since_ms < again_after_ms => return Asking::InVain,
                _ => {}
            }
        }
        self.asked_ms = now_ms;
        self.nr_asked = (self.nr_asked + 1).min(1 + NR_DOUBLINGS_MAX);
        Asking::Now
    }

    /// Returns whether the inode was looked up again since the last call.
    pub(crate) fn take_used(&mut self) -> bool {
        std::mem::take(&mut self.is_used)
    }

    /// Returns whether the kernel was asked since the last lookup.
    pub(crate) fn was_asked(&self) -> bool {
        self.asked_ms != 0
    }

    /// Notes a lookup of the inode, `again` if the kernel referred to it before.
    pub(crate) fn looked_up(&mut self, again: bool) {
        (self.asked_ms, self.nr_asked, self.is_used) = (0, 0, again);
    }

    /// Moves the entry to the list `on`. The caller holds the entry's shard.
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
