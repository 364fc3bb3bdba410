//! The reclaimer: the frames, groups, shrinkers and worker queue used by reclaim.
//!
//! The files of this folder are the operations called by the layers above: charge, reclaim, drop
//! caches, evict the pages of sparse blocks, put frames on lists and free them, and set the marks
//! and `memory.high` of a group. The files outside this folder reclaim a subtree: in
//! [`rounds`](crate::rounds) over its groups, each [shrunk](crate::victim) as far as it is not
//! [protected](crate::protection).

mod charge;
mod drop_caches;
mod frames;
mod growth;
mod leaving;
mod marks;
mod memory_high;
mod reclaim;
mod sparse;

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock, Weak};
use std::{fmt, io};

use umemcg_arena::Arena;
use umemcg_base::assert_no_locks_held;
use umemcg_base::clock::SystemClock;
use umemcg_group::{EffectiveProtection, Group, GroupTree, Protection};

pub use charge::{ChargeEffort, ChargeError};
pub use leaving::Leaving;
pub use memory_high::ChargeMeter;

use crate::group_reclaim::{GroupReclaim, splice_lists};
use crate::kswapd::{Queue, note_ended};
use crate::list_slots::ListSlots;
use crate::noteworthy::Noteworthy;
use crate::page_owner::PageOwner;
use crate::pending_release::PendingReleases;
use crate::protection::ReclaimProtection;
use crate::shrinker::{Registration, Shrinker, ShrinkerId, Shrinkers, SlabUsage, slab_usage};

/// Reclaims memory from groups.
#[derive(Debug)]
pub struct Reclaimer {
    arena: Arc<Arena>,
    tree: Arc<GroupTree>,
    /// Weak: the page cache holds the reclaimer.
    owner: OnceLock<Weak<dyn PageOwner>>,
    clock: SystemClock,
    shrinkers: Arc<Shrinkers>,
    list_slots: Arc<ListSlots>,
    pending_releases: PendingReleases,
    /// Write-back's count of progress when a reclaim last waited for it in vain. (A)
    writeback_hung: AtomicU64,
    /// Groups waiting for background reclaim.
    kswapd_queue: Arc<Queue>,
    /// (C) Protection claimed by no child is distributed to all children.
    recursive_protection: bool,
    noteworthy: Noteworthy,
}

impl Reclaimer {
    /// Creates a reclaimer for one pool and one hierarchy.
    ///
    /// # Errors
    /// When the operating system cannot reserve address space for the places in object lists.
    pub fn new(arena: Arc<Arena>, tree: Arc<GroupTree>) -> io::Result<Self> {
        umemcg_base::table::use_huge_pages(umemcg_arena::sys::prefer_huge_pages);
        let list_slots = Arc::new(ListSlots::new(tree.capacity_bytes())?);
        Ok(Self {
            arena,
            tree,
            owner: OnceLock::new(),
            clock: SystemClock::new(),
            shrinkers: Arc::default(),
            list_slots,
            pending_releases: PendingReleases::default(),
            writeback_hung: AtomicU64::new(u64::MAX),
            kswapd_queue: Arc::default(),
            recursive_protection: true,
            noteworthy: Noteworthy::default(),
        })
    }

    /// Sets whether protection claimed by no child of a group is handed down to all its children.
    /// On by default.
    #[must_use]
    #[doc(alias = "memory_recursiveprot")]
    pub fn with_recursive_protection(mut self, on: bool) -> Self {
        self.recursive_protection = on;
        self
    }

    /// Returns the shrinkers.
    pub(crate) fn shrinkers(&self) -> &Arc<Shrinkers> {
        &self.shrinkers
    }

    /// Returns whether a reclaim has waited for write-back in vain at this count of progress.
    pub(crate) fn writeback_hung_at(&self, progress: u64) -> bool {
        self.writeback_hung.load(Relaxed) == progress
    }

    pub(crate) fn note_writeback_hangs(&self, progress: u64) {
        self.writeback_hung.store(progress, Relaxed);
    }

    pub(crate) fn kswapd_queue(&self) -> &Arc<Queue> {
        &self.kswapd_queue
    }

    pub(crate) fn list_slots(&self) -> &Arc<ListSlots> {
        &self.list_slots
    }

    /// Returns the number of places taken in object lists.
    pub fn nr_list_slots(&self) -> usize {
        self.list_slots.nr_taken()
    }

    /// Reserves a number for a shrinker; its lists need the number before it can be registered.
    #[doc(alias = "shrinker_alloc")]
    pub fn reserve_shrinker(&self) -> ShrinkerId {
        self.shrinkers.reserve()
    }

    /// Registers a shrinker. Reclaim started from now on asks it, until the registration is
    /// dropped.
    #[doc(alias = "shrinker_register")]
    pub fn register_shrinker(&self, id: ShrinkerId, shrinker: Arc<dyn Shrinker>) -> Registration {
        self.shrinkers.register(id, shrinker)
    }

    /// Returns the number of registered shrinkers.
    pub fn nr_shrinkers(&self) -> usize {
        self.shrinkers.nr()
    }

    /// Notes that a shrinker has objects of `group`. For shrinkers with objects outside any
    /// [`ListLru`](crate::ListLru), after an object can be counted.
    pub fn note_objects(&self, group: &Arc<Group>, shrinker: u32) {
        let mut at = group;
        loop {
            let part = GroupReclaim::of(at);
            let set = part.bit_place(at, shrinker).and_then(|place| place.unit.set(place.bit));
            if set.is_ok() {
                part.note_present(at);
                return;
            }
            // Removed: its objects are the parent's.
            match at.parent() {
                Some(parent) => at = parent,
                None => return,
            }
        }
    }

    /// Returns the objects of every shrinker with objects in `group` itself.
    pub fn slab_usage(&self, group: &Arc<Group>) -> Vec<SlabUsage> {
        assert_no_locks_held("a table of objects");
        slab_usage::usage_of(&self.shrinkers, group)
    }

    /// Sets the owner of the pages. Called once, before the first page.
    ///
    /// # Panics
    /// When called again.
    pub fn set_page_owner(&self, owner: &Arc<dyn PageOwner>) {
        assert!(self.owner.set(Arc::downgrade(owner)).is_ok(), "the page owner is set once");
    }

    pub(crate) fn clock(&self) -> &SystemClock {
        &self.clock
    }

    /// Logs with `tracing` that an account of `group` was refused `bytes`; ten times a second at
    /// most.
    #[cold]
    pub fn note_refused_growth(&self, group: &Group, bytes: u64, why: &dyn fmt::Display) {
        self.noteworthy.refused_growth(group, bytes, why);
    }

    /// Returns the frames.
    pub fn arena(&self) -> &Arc<Arena> {
        &self.arena
    }

    /// Returns the groups.
    pub fn tree(&self) -> &Arc<GroupTree> {
        &self.tree
    }

    pub(crate) fn page_owner(&self) -> Option<Arc<dyn PageOwner>> {
        self.owner.get()?.upgrade()
    }

    /// Returns the releases requested by shrinkers from other parties.
    pub(crate) fn pending_releases(&self) -> &PendingReleases {
        &self.pending_releases
    }

    /// Reports bytes of a group as free after a shrinker requested their release, and wakes the
    /// waiting threads and workers.
    pub fn note_released(&self, group: &Arc<Group>, bytes: u64) {
        self.note_release_ended(group, bytes, 0);
    }

    /// Reports bytes of a group as staying after a shrinker requested their release, so workers do
    /// not wait for them.
    pub fn note_not_released(&self, group: &Arc<Group>, bytes: u64) {
        self.note_release_ended(group, 0, bytes);
    }

    /// Reports the end of a release, and wakes the waiting threads; the workers only if any bytes
    /// had been promised.
    pub(crate) fn note_release_ended(&self, group: &Arc<Group>, freed_bytes: u64, kept_bytes: u64) {
        self.pending_releases.note(freed_bytes);
        if freed_bytes + kept_bytes > 0 {
            note_ended(self.kswapd_queue(), group, freed_bytes + kept_bytes);
        }
    }

    /// Returns the bytes of all groups freed after a request so far.
    pub fn released_bytes(&self) -> u64 {
        self.pending_releases.released_bytes()
    }

    /// Waits for a moment as long as `is_awaited` returns `true`; asks it again whenever a release
    /// requested by a shrinker has ended. No lock may be held.
    pub fn wait_for_release(&self, is_awaited: impl Fn() -> bool) {
        self.pending_releases.wait_while(is_awaited);
    }

    /// Returns the current protection of `group` from a reclaim starting at `root`.
    pub fn effective_protection(&self, root: &Arc<Group>, group: &Arc<Group>) -> Protection {
        EffectiveProtection::new(root, self.recursive_protection).of(group)
    }

    /// Returns the protection of groups from one reclaim starting at `root`. With `overrides_low`,
    /// only `min` counts.
    pub(crate) fn protection_from<'r>(
        &self,
        root: &'r Arc<Group>,
        overrides_low: bool,
    ) -> ReclaimProtection<'r> {
        ReclaimProtection::new(root, self.recursive_protection, overrides_low)
    }

    /// Moves everything of a dying group to its parent: lists of pages and of objects in O(1) each,
    /// shrinker bits, and the deferred work of shrinkers. Every shrinker is notified, since it may
    /// keep state of a group without objects.
    #[doc(alias = "memcg_reparent_objcgs")]
    pub fn splice_to_parent(&self, dying: &Arc<Group>, parent: &Arc<Group>) {
        splice_lists((self.arena(), self.list_slots()), (dying, parent));
        let part = GroupReclaim::of(parent);
        for id in 0..self.shrinkers().high() {
            self.shrinkers().with(id, |shrinker| shrinker.reparent(dying, parent));
            // The bits moved before the shrinker's own objects, so a count may have found nothing
            // and cleared them. A bit too many costs one count.
            if let Some(place) = part.shrinker_bits().find(id) {
                // Open: the parent has a child until this removal is over.
                let _ = place.unit.set(place.bit);
            }
        }
        part.note_present(parent);
    }
}
