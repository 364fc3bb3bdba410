//! The lists of a volume's two shrinkers: inodes by paying group, oldest first.
//!
//! Every charged entry of the inode table is on one of three lists. While the kernel refers to it,
//! it is a *name* in the kernel's cache, and is dropped when the kernel forgets it. Otherwise it is
//! an *inode* kept only by the daemon (for its cached content, a child's name or an open file). A
//! name that the kernel was asked to forget in vain is a *pinned* one until it is looked up again.
//! The lists are made, and the shrinkers registered, with a volume's first entry: an idle volume
//! costs nothing.
//!
//! Lists are changed with the entry's shard locked, and their locks rank behind it; walks only
//! collect node ids and look at the entries afterwards.

use std::sync::Arc;
use std::time::Instant;

use umemcg::Group;
use umemcg::OwnerId;
use umemcg::internal::{ListLru, ListSlot, Reclaimer, Verdict};
use umemcg::shrinker::{Count, Registration, ShrinkTarget, Shrinker, Usage};

use crate::attr::NodeId;

/// The time allowed for the kernel to forget an inode after it was asked.
const FORGET_TIMEOUT_MS: u32 = 100;
/// The time after which the kernel is asked again to forget an inode. It doubles each time: the
/// names pinned by a tenant must not all be requested every second.
const RETRY_INTERVAL_MS: u32 = 1000;
/// The most doublings of that time.
const NR_DOUBLINGS_MAX: u8 = 3;

/// The most pinned names that one scan asks for again.
pub(crate) const NR_PINNED_ASKED: u64 = 32;

/// The list of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Listed {
    #[default]
    Nowhere,
    /// The kernel refers to the inode.
    Names,
    /// The kernel refers to the inode, and did not forget it when it was asked.
    Pinned,
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
    /// The kernel was asked in vain since the last lookup.
    is_pinned: bool,
    /// Looked up again since a walk last visited the entry.
    is_used: bool,
}

/// The lists of a volume.
#[derive(Debug)]
pub(crate) struct NameLists {
    names: ListLru,
    pinned: ListLru,
    inodes: ListLru,
    started: Instant,
    /// The registrations of the shrinkers; dropped first when the volume is dropped.
    registrations: Option<[Registration; 2]>,
}

impl NameLists {
    /// Makes the lists of two shrinkers, of names and of inodes, and registers these.
    pub(crate) fn new(
        reclaimer: &Arc<Reclaimer>,
        dentry: Arc<dyn Shrinker>,
        inode: Arc<dyn Shrinker>,
    ) -> Self {
        let (of_names, of_inodes) = (reclaimer.reserve_shrinker(), reclaimer.reserve_shrinker());
        let names = ListLru::new(reclaimer, &of_names, 0);
        let pinned = ListLru::new(reclaimer, &of_names, 1);
        let inodes = ListLru::new(reclaimer, &of_inodes, 0);
        let registrations =
            [reclaimer.register_shrinker(of_names, dentry), reclaimer.register_shrinker(of_inodes, inode)];
        Self { names, pinned, inodes, started: Instant::now(), registrations: Some(registrations) }
    }

    /// Unregisters the shrinkers. Afterwards none of them uses the lists.
    pub(crate) fn unregister(&mut self) {
        drop(self.registrations.take());
    }

    fn list(&self, on: Listed) -> Option<&ListLru> {
        match on {
            Listed::Nowhere => None,
            Listed::Names => Some(&self.names),
            Listed::Pinned => Some(&self.pinned),
            Listed::Inodes => Some(&self.inodes),
        }
    }

    /// Returns the time of the lists' clock in milliseconds; never 0.
    pub(crate) fn now_ms(&self) -> u32 {
        (self.started.elapsed().as_millis() as u32).max(1)
    }

    fn nr(&self, on: Listed, group: &Group) -> u64 {
        self.list(on).map_or(0, |list| list.count(group))
    }

    /// Returns the number of a group's entries on a list for a shrinker to scan, among the names
    /// the pinned ones to ask for again.
    pub(crate) fn count(&self, on: Listed, target: &ShrinkTarget<'_>) -> Count {
        let nr_pinned = if on == Listed::Names { self.nr(Listed::Pinned, target.group) } else { 0 };
        match self.nr(on, target.group) + nr_pinned.min(NR_PINNED_ASKED) {
            0 => Count::Empty,
            nr => Count::Objects(nr),
        }
    }

    /// Returns a group's usage of a list with entries of this size. Pinned names cannot be freed
    /// now.
    pub(crate) fn usage(&self, on: Listed, target: &ShrinkTarget<'_>, entry_bytes: u64) -> Usage {
        let nr_pinned = if on == Listed::Names { self.nr(Listed::Pinned, target.group) } else { 0 };
        let reclaimable = self.nr(on, target.group);
        let objects = reclaimable + nr_pinned;
        Usage { objects, reclaimable, bytes: objects * entry_bytes }
    }

    /// Returns the oldest `nr` entries of a group and moves them to the young end: a remaining
    /// entry is visited again only after all others.
    pub(crate) fn oldest(&self, on: Listed, group: &Group, nr: u64) -> Vec<NodeId> {
        let mut nodes = Vec::new();
        if let Some(list) = self.list(on) {
            list.walk(group, nr, |_, node, _| {
                nodes.push(NodeId(node));
                Verdict::Rotate
            });
        }
        nodes
    }
}

impl ListEntry {
    /// Decides whether to ask the kernel now, and records the request if so. The caller calls
    /// [`update`](Self::update) next: the name may be a pinned one.
    pub(crate) fn ask(&mut self, now_ms: u32) -> Asking {
        if self.asked_ms != 0 {
            let again_after_ms = RETRY_INTERVAL_MS << (self.nr_asked - 1);
            let since_ms = now_ms.wrapping_sub(self.asked_ms);
            if since_ms < FORGET_TIMEOUT_MS {
                return Asking::Expected;
            }
            self.is_pinned = true;
            if since_ms < again_after_ms {
                return Asking::InVain;
            }
        }
        self.asked_ms = now_ms;
        self.nr_asked = (self.nr_asked + 1).min(1 + NR_DOUBLINGS_MAX);
        Asking::Now
    }

    /// Notes that the kernel did not take the request.
    pub(crate) fn not_asked(&mut self) {
        (self.asked_ms, self.nr_asked) = (0, 0);
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
        (self.asked_ms, self.nr_asked, self.is_pinned, self.is_used) = (0, 0, false, again);
    }

    /// Moves the entry to the right list, given whether the kernel refers to it. The caller holds
    /// the entry's shard.
    pub(crate) fn update(&mut self, lists: &NameLists, node: NodeId, owner: OwnerId, is_name: bool) {
        let on = match is_name {
            true if self.is_pinned => Listed::Pinned,
            true => Listed::Names,
            false => Listed::Inodes,
        };
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
            list.remove(slot);
        }
        if let Some(list) = lists.list(on) {
            list.add(owner, slot);
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
            list.remove(slot);
        }
        lists.names.release(slot);
        (self.slot, self.on) = (0, Listed::Nowhere);
    }
}
