//! A group's statistics: its memory by kind and its events, for the group alone (`local`) and for
//! its subtree (`total`).
//!
//! A change is added to the group's local number and, in the same call, to the total of the group
//! and of every group above, so reading either is one load. Callers batch their changes. When a
//! group is removed, its local numbers move to the parent, and a late change moves on by itself:
//! the mover and the late adder both read-modify-write the same number, so the second of them sees
//! the first, and with it the group's "dead" mark.

use std::sync::atomic::AtomicU64;

use umemcg_base::sync::atomic::{AtomicI64, Ordering};

use crate::counter::{CounterNode, NO_NODE};
use crate::events::Events;
use crate::pending::NR_PENDING_ITEMS;

macro_rules! numbered {
    ($(#[$meta:meta])* $name:ident, $count:ident { $($(#[$doc:meta])* $variant:ident),+ $(,)? }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u8)]
        pub enum $name { $($(#[$doc])* $variant),+ }

        /// The number of items.
        pub const $count: usize = $name::ALL.len();

        impl $name {
            /// All of them, in order.
            pub const ALL: &'static [$name] = &[$($name::$variant),+];

            /// Returns its index in arrays.
            #[inline]
            pub const fn index(self) -> usize {
                self as usize
            }
        }
    };
}

numbered! {
    /// One number of a group. Gauges are in bytes and go up and down; the others count pages or
    /// events and only rise.
    #[doc(alias = "node_stat_item")]
    #[doc(alias = "memcg_stat_item")]
    StatItem, NR_STAT_ITEMS {
        /// Bytes of file pages on inactive lists.
        InactiveFile,
        /// Bytes of file pages on active lists.
        ActiveFile,
        /// Bytes of swap-backed pages on inactive lists.
        InactiveAnon,
        /// Bytes of swap-backed pages on active lists.
        ActiveAnon,
        /// Bytes of unevictable pages.
        Unevictable,
        /// Bytes of pages without a copy in any store; they also count as on a list or as
        /// unevictable.
        Shmem,
        /// Bytes of file pages in the kernel's page cache above a mount.
        FileKernel,
        /// Bytes held by embedders for memory of their own.
        Reserved,
        /// Bytes changed since they were last written to the store.
        FileDirty,
        /// Bytes being written to the store.
        FileWriteback,
        /// Bytes written, but not yet confirmed as durable by the store.
        #[doc(alias = "nfs_unstable")]
        FileUnstable,
        /// Bytes of the page indexes of files.
        IndexNodes,
        /// Part of `IndexNodes`: bytes of nodes with only shadow entries.
        ShadowNodes,
        /// Bytes of objects freeable by a shrinker.
        SlabReclaimable,
        /// Part of `SlabReclaimable`: bytes of names beyond the charge of their inode.
        SlabNames,
        /// Part of `SlabReclaimable`: bytes of files' contents beside their pages.
        SlabContents,
        /// Bytes of objects not freeable by a shrinker.
        SlabUnreclaimable,
        /// Bytes of the groups below, and of removed groups with remaining charges.
        GroupState,
        /// Pages charged.
        PgPgIn,
        /// Pages uncharged.
        PgPgOut,
        /// Pages scanned by direct reclaim.
        PgScanDirect,
        /// Pages scanned by background reclaim.
        PgScanKswapd,
        /// Pages scanned by requested reclaim (`memory.reclaim`).
        PgScanProactive,
        /// Pages freed by direct reclaim.
        PgStealDirect,
        /// Pages freed by background reclaim.
        PgStealKswapd,
        /// Pages freed by requested reclaim (`memory.reclaim`).
        PgStealProactive,
        /// Active pages scanned.
        PgRefill,
        /// Pages moved to an active list.
        PgActivate,
        /// Pages moved to an inactive list.
        PgDeactivate,
        /// Pages fetched again after their eviction: a lower bound.
        WorkingsetRefault,
        /// Refaulted pages made active immediately.
        WorkingsetActivate,
        /// Refaulted pages that had been active before.
        WorkingsetRestore,
        /// Quanta of background reclaim.
        KswapdRun,
        /// Direct reclaims, by charging threads.
        AllocStall,
        /// Pages of I/O served without caching them, for lack of room.
        UncachedIo,
        /// Pages read and found in the cache, except for the first use of a page read ahead;
        /// counted by [`hit_counters`](crate::hit_counters).
        CacheHit,
        /// Pages fetched, when read or ahead of a read.
        CacheMiss,
        /// Reads and writes of pages.
        PgFault,
        /// Reads and writes of pages that had to wait for the store.
        PgMajFault,
    }
}

/// Bytes charged for a name too long for the charge of its inode, or for a further name.
pub const NAME_BYTES: u64 = 256;
/// Bytes charged for a file's content beside its pages and their index: the growth of a daemon's
/// heap for each file opened once, including table slots and the allocator's rounding (890 to 960
/// bytes, measured with 48,000 files).
pub const CONTENT_BYTES: u64 = 928;

/// The place of [`StatItem::Reserved`] among the pending statistics.
pub const RESERVED_PLACE: usize = 5;

/// The unit of a statistic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum StatUnit {
    /// Bytes held now: a gauge.
    Bytes,
    /// Pages so far: a counter.
    Pages,
    /// Events so far: a counter.
    Events,
}

impl StatItem {
    /// Returns its name in metrics; the name in `memory.stat`, if the item is there.
    pub const fn name(self) -> &'static str {
        match self {
            Self::InactiveFile => "inactive_file",
            Self::ActiveFile => "active_file",
            Self::InactiveAnon => "inactive_anon",
            Self::ActiveAnon => "active_anon",
            Self::Unevictable => "unevictable",
            Self::Shmem => "shmem",
            Self::FileKernel => "file_kernel",
            Self::Reserved => "reserved",
            Self::FileDirty => "file_dirty",
            Self::FileWriteback => "file_writeback",
            Self::FileUnstable => "file_unstable",
            Self::IndexNodes => "index_nodes",
            Self::ShadowNodes => "shadow_nodes",
            Self::SlabReclaimable => "slab_reclaimable",
            Self::SlabNames => "slab_names",
            Self::SlabContents => "slab_contents",
            Self::SlabUnreclaimable => "slab_unreclaimable",
            Self::GroupState => "group_state",
            Self::PgPgIn => "pgpgin",
            Self::PgPgOut => "pgpgout",
            Self::PgScanDirect => "pgscan_direct",
            Self::PgScanKswapd => "pgscan_kswapd",
            Self::PgScanProactive => "pgscan_proactive",
            Self::PgStealDirect => "pgsteal_direct",
            Self::PgStealKswapd => "pgsteal_kswapd",
            Self::PgStealProactive => "pgsteal_proactive",
            Self::PgRefill => "pgrefill",
            Self::PgActivate => "pgactivate",
            Self::PgDeactivate => "pgdeactivate",
            Self::WorkingsetRefault => "workingset_refault",
            Self::WorkingsetActivate => "workingset_activate",
            Self::WorkingsetRestore => "workingset_restore",
            Self::KswapdRun => "kswapd_run",
            Self::AllocStall => "allocstall",
            Self::UncachedIo => "uncached_io",
            Self::CacheHit => "cache_hit",
            Self::CacheMiss => "cache_miss",
            Self::PgFault => "pgfault",
            Self::PgMajFault => "pgmajfault",
        }
    }

    /// Returns its unit.
    pub const fn unit(self) -> StatUnit {
        match self {
            Self::KswapdRun | Self::AllocStall | Self::PgFault | Self::PgMajFault => StatUnit::Events,
            _ if self.index() < Self::PgPgIn.index() => StatUnit::Bytes,
            _ => StatUnit::Pages,
        }
    }

    /// Returns its index among the [pending](crate::pending) statistics: the items changing with
    /// each page or each growth of a holding. [`PENDING`](Self::PENDING) is in the same order.
    #[inline]
    pub(crate) const fn pending_place(self) -> Option<usize> {
        match self {
            Self::FileDirty => Some(0),
            Self::FileWriteback => Some(1),
            Self::FileUnstable => Some(2),
            Self::InactiveFile => Some(3),
            Self::ActiveFile => Some(4),
            Self::Reserved => Some(RESERVED_PLACE),
            Self::PgPgIn => Some(6),
            Self::PgPgOut => Some(7),
            Self::CacheMiss => Some(8),
            _ => None,
        }
    }

    /// The pending statistics, in the order of `pending_place`.
    pub(crate) const PENDING: [Self; NR_PENDING_ITEMS] = [
        Self::FileDirty,
        Self::FileWriteback,
        Self::FileUnstable,
        Self::InactiveFile,
        Self::ActiveFile,
        Self::Reserved,
        Self::PgPgIn,
        Self::PgPgOut,
        Self::CacheMiss,
    ];

    /// The number of pending statistics for dirty data; they come first.
    pub(crate) const NR_UNCLEAN: usize = 3;

    /// The items for charges: every charged byte counts under exactly one of them. A new kind of
    /// charge must use one of these, or add one here.
    pub const CHARGED: &'static [Self] = &[
        Self::InactiveFile,
        Self::ActiveFile,
        Self::InactiveAnon,
        Self::ActiveAnon,
        Self::Unevictable,
        Self::FileKernel,
        Self::Reserved,
        Self::SlabReclaimable,
        Self::SlabUnreclaimable,
        Self::IndexNodes,
        Self::GroupState,
    ];

    /// Returns whether it counts bytes other than page data.
    #[inline]
    pub const fn is_metadata(self) -> bool {
        matches!(self, Self::SlabReclaimable | Self::SlabUnreclaimable | Self::IndexNodes | Self::GroupState)
    }
}

numbered! {
    /// An event caused by a limit.
    #[doc(alias = "memcg_memory_event")]
    EventKind, NR_EVENT_KINDS {
        /// Reclaimed although below the protected amount.
        Low,
        /// Throttled above the high mark.
        High,
        /// A charge found the group at its limit.
        Max,
        /// Reclaim could not make room.
        Oom,
        /// Something was killed to make room.
        OomKill,
        /// A whole group was killed to make room.
        OomGroupKill,
    }
}

impl EventKind {
    /// Returns its name, as in `memory.events`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Low => "low",
            Self::High => "high",
            Self::Max => "max",
            Self::Oom => "oom",
            Self::OomKill => "oom_kill",
            Self::OomGroupKill => "oom_group_kill",
        }
    }
}

/// A number of one group; moves to the group above when the group is removed.
#[derive(Debug, Default)]
pub struct SweptCell(AtomicI64);

impl SweptCell {
    /// Returns the number.
    #[inline]
    pub fn get(&self) -> i64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Adds to a statistic of the nearest living group. `cells` yields the counter and the statistic of
/// a group, then those of the groups above it. `HANDSHAKE` is false only in the model showing why
/// it is needed.
#[inline]
pub fn add_where_alive<'c, const HANDSHAKE: bool>(
    mut cells: impl Iterator<Item = (&'c CounterNode, &'c SweptCell)>,
    mut delta: i64,
) {
    // Bounded by the depth of the tree.
    while delta != 0
        && let Some((node, cell)) = cells.next()
    {
        // AcqRel: pairs with `take`. If the remover's came first, the check below sees the mark
        // "dead".
        cell.0.fetch_add(delta, if HANDSHAKE { Ordering::AcqRel } else { Ordering::Relaxed });
        // The root has no group above to move it to.
        if node.parent() == NO_NODE || !node.is_dead() {
            return;
        }
        delta = take(cell);
    }
}

/// Moves a statistic of a group marked dead to the nearest living group above.
pub fn sweep<'c>(mut cells: impl Iterator<Item = (&'c CounterNode, &'c SweptCell)>) {
    if let Some((node, cell)) = cells.next()
        && node.parent() != NO_NODE
    {
        add_where_alive::<true>(cells, take(cell));
    }
}

fn take(cell: &SweptCell) -> i64 {
    // AcqRel: pairs with `add_where_alive`.
    cell.0.swap(0, Ordering::AcqRel)
}

/// The numbers of one group.
#[derive(Debug)]
pub(crate) struct Stats {
    pub(crate) local: [SweptCell; NR_STAT_ITEMS],
    pub(crate) total: [AtomicI64; NR_STAT_ITEMS],
    pub(crate) events_local: [AtomicU64; NR_EVENT_KINDS],
    pub(crate) events: Events,
}

impl Default for Stats {
    fn default() -> Self {
        Self {
            local: std::array::from_fn(|_| SweptCell::default()),
            total: std::array::from_fn(|_| AtomicI64::new(0)),
            events_local: std::array::from_fn(|_| AtomicU64::new(0)),
            events: Events::default(),
        }
    }
}
