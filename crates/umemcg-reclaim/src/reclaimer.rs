//! The reclaimer: the frames, the groups, the shrinkers and the queue of the workers that reclaim
//! works with. The algorithm is in [`crate::reclaim`] and the files around it.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock, Weak};

use umemcg_arena::Arena;
use umemcg_base::clock::SystemClock;
use umemcg_group::{Group, GroupTree};

use crate::kswapd::Queue;
use crate::list_slots::ListSlots;
use crate::page_owner::PageOwner;
use crate::pending_release::PendingReleases;
use crate::pressure_level::{LevelListener, PressureLevel};
use crate::shrinker::{Registration, Shrinker, ShrinkerId, Shrinkers};

/// Reclaims memory from groups.
#[derive(Debug)]
pub struct Reclaimer {
    arena: Arc<Arena>,
    tree: Arc<GroupTree>,
    nr_nodes: usize,
    /// Weak: the page cache holds the reclaimer.
    owner: OnceLock<Weak<dyn PageOwner>>,
    clock: SystemClock,
    shrinkers: Arc<Shrinkers>,
    list_slots: Arc<ListSlots>,
    pending_releases: PendingReleases,
    /// Write-back's count of progress when a reclaim last waited for it in vain. (A)
    writeback_hung: AtomicU64,
    /// Groups that wait for background reclaim.
    kswapd_queue: Arc<Queue>,
    /// (C) Protection that no child claims is distributed to all children.
    pub(crate) recursive_protection: bool,
    /// The listener that is told the level of pressure.
    level_listener: LevelListener,
}

impl Reclaimer {
    /// Creates a reclaimer for one pool and one hierarchy.
    ///
    /// # Errors
    /// When the operating system has no address space for the places in object lists.
    pub fn new(arena: Arc<Arena>, tree: Arc<GroupTree>, nr_nodes: usize) -> io::Result<Self> {
        umemcg_base::table::use_huge_pages(umemcg_arena::sys::prefer_huge_pages);
        let list_slots = Arc::new(ListSlots::new(tree.capacity_bytes())?);
        Ok(Self {
            arena,
            tree,
            nr_nodes,
            owner: OnceLock::new(),
            clock: SystemClock::new(),
            shrinkers: Arc::default(),
            list_slots,
            pending_releases: PendingReleases::default(),
            writeback_hung: AtomicU64::new(u64::MAX),
            kswapd_queue: Arc::default(),
            recursive_protection: true,
            level_listener: LevelListener::default(),
        })
    }

    /// Returns the shrinkers.
    pub(crate) fn shrinkers(&self) -> &Arc<Shrinkers> {
        &self.shrinkers
    }

    /// Returns whether a reclaim has waited for write-back in vain, and its count of progress is
    /// what it was then.
    pub(crate) fn writeback_hung_at(&self, progress: u64) -> bool {
        self.writeback_hung.load(Relaxed) == progress
    }

    pub(crate) fn note_writeback_hangs(&self, progress: u64) {
        self.writeback_hung.store(progress, Relaxed);
    }

    pub(crate) fn kswapd_queue(&self) -> &Arc<Queue> {
        &self.kswapd_queue
    }

    pub(crate) fn level_listener(&self) -> &LevelListener {
        &self.level_listener
    }

    pub(crate) fn list_slots(&self) -> &Arc<ListSlots> {
        &self.list_slots
    }

    /// Places in object lists that are taken.
    pub fn nr_list_slots(&self) -> usize {
        self.list_slots.nr_taken()
    }

    /// Returns a number for a shrinker that is being made; its lists need it before it can be
    /// registered.
    #[doc(alias = "shrinker_alloc")]
    pub fn reserve_shrinker(&self) -> ShrinkerId {
        self.shrinkers.reserve()
    }

    /// Registers a shrinker. Reclaim that starts from now on asks it, until the registration is
    /// dropped.
    #[doc(alias = "shrinker_register")]
    pub fn register_shrinker(&self, id: ShrinkerId, shrinker: Arc<dyn Shrinker>) -> Registration {
        self.shrinkers.register(id, shrinker)
    }

    /// Shrinkers that are registered.
    pub fn nr_shrinkers(&self) -> usize {
        self.shrinkers.nr()
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

    /// Returns the frames.
    pub fn arena(&self) -> &Arc<Arena> {
        &self.arena
    }

    /// Returns the groups.
    pub fn tree(&self) -> &Arc<GroupTree> {
        &self.tree
    }

    /// Returns the number of memory nodes; lists exist per node.
    pub fn nr_nodes(&self) -> usize {
        self.nr_nodes
    }

    pub(crate) fn page_owner(&self) -> Option<Arc<dyn PageOwner>> {
        self.owner.get()?.upgrade()
    }

    /// Returns the bytes whose release shrinkers have requested from others.
    pub(crate) fn pending_releases(&self) -> &PendingReleases {
        &self.pending_releases
    }

    /// Reports that bytes whose release a shrinker had requested are free now, and wakes the
    /// threads that wait for them.
    pub fn note_released(&self, bytes: u64) {
        self.pending_releases.note(bytes);
    }

    /// Sets a listener that is called for every window of scanned pages that ends from now on;
    /// replaces the previous listener. It is called with no ranked lock held, by threads that
    /// reclaim, and must neither sleep nor reclaim. A panic of it is logged and goes no further.
    #[doc(alias = "vmpressure_register_event")]
    pub fn listen_for_levels(&self, listener: impl Fn(&Arc<Group>, PressureLevel) + Send + Sync + 'static) {
        self.level_listener.set(Some(Box::new(listener)));
    }

    /// Drops the listener, and stops counting.
    #[doc(alias = "vmpressure_unregister_event")]
    pub fn stop_listening_for_levels(&self) {
        self.level_listener.set(None);
    }
}
