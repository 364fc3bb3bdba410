//! Which groups stream: they read more than they have room for, and next to nothing twice.
//!
//! The kernel's page cache does not help a stream, and each page must be taken back from it. So a
//! file that a streaming group opens for the first time is served without that cache. Its pages are
//! on the daemon's lists like those of any file of a mount with own pages. A file that is opened
//! again soon, before the group has read [`ROOMS_MAX`] times as much as it has room for, is
//! *reused*: it is served through the kernel's cache, and its pages count against a stream. Of a
//! loop that is somewhat larger than the room, a part stays there.
//!
//! The clock of a group is the number of pages that have come in for it, into either cache.

use std::collections::HashMap;

use umemcg::{Group, OwnerId, StatItem};
use umemcg_base::{LeafMutex, PAGE_SIZE_U64};

/// Pages that are read once, for each page that is reused, in what is no stream.
const READ_ONCE_PER_REUSED: u64 = 8;
/// How much of what was read once counts, and how much may be read before a reuse, in multiples of
/// the group's room. So reuse of three eighths of the room ends any stream.
const ROOMS_MAX: u64 = 3;
/// Groups before those that are gone are forgotten.
const NR_GROUPS_MIN: usize = 64;

/// When a file was last opened.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LastOpen {
    owner: OwnerId,
    /// The owner's clock.
    at_page: u64,
}

/// The groups that have opened files of a volume.
#[derive(Debug, Default)]
pub(crate) struct Streams {
    /// For each group the moment after which its pages count as read once; reuse moves it on.
    since_page: LeafMutex<HashMap<OwnerId, u64>>,
}

impl Streams {
    /// Notes that a group opens a file of this many bytes, and when that was done before. Returns
    /// whether it belongs to a stream.
    pub(crate) fn note_open(
        &self,
        group: &Group,
        room_bytes: u64,
        len: u64,
        last_open: &mut Option<LastOpen>,
    ) -> bool {
        let (owner, room) = (group.owner(), room_bytes / PAGE_SIZE_U64);
        let now = u64::try_from(group.stat_total_applied(StatItem::PgPgIn)).unwrap_or(0);
        let before = last_open.replace(LastOpen { owner, at_page: now });
        let is_soon = |at_page: u64| now.saturating_sub(at_page) <= room.saturating_mul(ROOMS_MAX);
        let is_reused = before.is_some_and(|before| before.owner != owner || is_soon(before.at_page));
        let mut groups = self.since_page.lock();
        if !groups.contains_key(&owner) && groups.len() >= NR_GROUPS_MIN && groups.len() == groups.capacity()
        {
            groups.retain(|owner, _| owner.with_group(|group| group.owner() == *owner));
        }
        let since = groups.entry(owner).or_insert(now);
        *since = (*since).max(now.saturating_sub(room.saturating_mul(ROOMS_MAX)));
        if is_reused {
            let nr_reused = len.div_ceil(PAGE_SIZE_U64);
            *since = since.saturating_add(nr_reused.saturating_mul(READ_ONCE_PER_REUSED)).min(now);
        }
        !is_reused && now.saturating_sub(*since) >= room
    }
}
