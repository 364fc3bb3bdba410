//! Detects streaming groups: they read more than they have room for, and next to nothing twice.
//!
//! The kernel's page cache does not help a stream, and each page must be taken back from it. So a
//! file opened by a streaming group for the first time is served without that cache. Its pages are
//! on the daemon's lists like those of any file of a mount with own pages. A file opened again
//! soon, before the group has read [`ROOMS_MAX`] times its room, is *reused*: it is served through
//! the kernel's cache, and its pages count against a stream. If a loop is somewhat larger than the
//! room, a part of it stays there.
//!
//! Where opens do not reach the daemon, a stream shows by its pages: next to none of the pages
//! taken back by reclaim returns while its ghost lasts. The stream's pages go through the kernel's
//! cache, but reclaim takes more of them at a time.
//!
//! The clock of a group is the number of pages brought in for it, into either cache.

use std::collections::HashMap;

use umemcg::OwnerId;
use umemcg::{Group, StatItem};
use umemcg_base::{LeafMutex, PAGE_SIZE_U64};

/// A group that reuses one page for this many pages read once does not stream.
const READ_ONCE_PER_REUSED: u64 = 8;
/// The most pages read once that count, and the most pages read before a reuse, in multiples of the
/// group's room. So reuse of three eighths of the room ends any stream.
const ROOMS_MAX: u64 = 3;
/// With fewer groups than this, removed groups are not forgotten.
const NR_GROUPS_MIN: usize = 64;

/// When a file was last opened.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LastOpen {
    owner: OwnerId,
    /// The owner's clock.
    at_page: u64,
}

/// The groups with opens of a volume's files, or with returning pages.
#[derive(Debug, Default)]
pub(crate) struct Streams {
    /// For each group, the moment after which its pages count as read once; reuse advances it.
    since_page: LeafMutex<HashMap<OwnerId, u64>>,
}

impl Streams {
    /// Notes an open of a file of `len` bytes by a group, and updates the file's last open. Returns
    /// whether the file belongs to a stream.
    pub(crate) fn note_open(
        &self,
        group: &Group,
        room_bytes: u64,
        len: u64,
        last_open: &mut Option<LastOpen>,
    ) -> bool {
        let (owner, room, now) = (group.owner(), room_bytes / PAGE_SIZE_U64, clock(group));
        let before = last_open.replace(LastOpen { owner, at_page: now });
        // A later moment belongs to an earlier group with the same number.
        let is_soon = |at_page: u64| {
            now.checked_sub(at_page).is_some_and(|read| read <= room.saturating_mul(ROOMS_MAX))
        };
        let is_reused = before.is_some_and(|before| before.owner != owner || is_soon(before.at_page));
        let mut groups = self.since_page.lock();
        let since = since_page(&mut groups, owner, (now, room));
        if is_reused {
            note_reused(since, now, len.div_ceil(PAGE_SIZE_U64));
        }
        !is_reused && now.saturating_sub(*since) >= room
    }

    /// Notes the return of pages a group has had before. Ignored until the first
    /// [`is_streaming`](Self::is_streaming) for the group.
    pub(crate) fn note_returned(&self, group: &Group, nr_pages: u64) {
        if let Some(since) = self.since_page.lock().get_mut(&group.owner()) {
            note_reused(since, clock(group), nr_pages);
        }
    }

    /// Returns whether a group reads next to nothing twice, by the pages that returned.
    pub(crate) fn is_streaming(&self, group: &Group) -> bool {
        let (now, room) = (clock(group), group.max_bytes() / PAGE_SIZE_U64);
        let since = *since_page(&mut self.since_page.lock(), group.owner(), (now, room));
        now.saturating_sub(since) >= room
    }
}

/// Returns the number of pages brought in for a group.
fn clock(group: &Group) -> u64 {
    u64::try_from(group.stat_total_applied(StatItem::PgPgIn)).unwrap_or(0)
}

/// Returns the moment after which a group's pages count as read once.
fn since_page(groups: &mut HashMap<OwnerId, u64>, owner: OwnerId, (now, room): (u64, u64)) -> &mut u64 {
    if !groups.contains_key(&owner) && groups.len() >= NR_GROUPS_MIN && groups.len() == groups.capacity() {
        groups.retain(|owner, _| owner.try_resolve().is_some_and(|group| group.owner() == *owner));
    }
    let since = groups.entry(owner).or_insert(now);
    // A later moment belongs to an earlier group with the same number.
    *since = (*since).min(now).max(now.saturating_sub(room.saturating_mul(ROOMS_MAX)));
    since
}

fn note_reused(since: &mut u64, now: u64, nr_reused: u64) {
    *since = since.saturating_add(nr_reused.saturating_mul(READ_ONCE_PER_REUSED)).min(now);
}

#[cfg(test)]
mod tests {
    use super::*;
    use umemcg::internal::{GroupTree, apply_pending};

    const ROOM_BYTES: u64 = 100 * PAGE_SIZE_U64;
    /// A moment of a removed group whose id has been reused.
    const LONG_AGO: u64 = 1_000_000;

    #[test]
    fn a_group_streams_whose_number_was_another_groups() {
        let tree = GroupTree::new(ROOM_BYTES);
        let group = tree.root();
        let streams = Streams::default();
        streams.since_page.lock().insert(group.owner(), LONG_AGO);
        assert!(!streams.is_streaming(group));
        group.stat_add(StatItem::PgPgIn, 100);
        apply_pending();
        assert!(streams.is_streaming(group));
        let mut last_open = Some(LastOpen { owner: group.owner(), at_page: LONG_AGO });
        assert!(streams.note_open(group, ROOM_BYTES, PAGE_SIZE_U64, &mut last_open));
    }

    #[test]
    fn groups_of_a_tree_that_is_gone_are_forgotten() {
        let gone = GroupTree::new(1 << 30);
        let mut groups = HashMap::new();
        while groups.len() < NR_GROUPS_MIN || groups.len() < groups.capacity() {
            let name = groups.len().to_string();
            groups.insert(gone.create(gone.root(), name.as_ref()).unwrap().owner(), 0);
        }
        let (tree, nr) = (GroupTree::new(ROOM_BYTES), groups.len());
        drop(gone);
        since_page(&mut groups, tree.root().owner(), (0, 100));
        // Groups of other tests may have some of the numbers by now.
        assert!(groups.len() < nr);
    }
}
