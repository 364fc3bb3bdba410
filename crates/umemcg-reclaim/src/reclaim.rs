//! The core: a root group, a goal, a reason, priorities 12 down to 0.
//!
//! At priority p every visited list is scanned by its length divided by 2^p, so gentle passes come first and the whole
//! list is looked at only when nothing else helped (`kernel-semantics` §2.3, §2.4). Reclaim never writes dirty data: it
//! passes dirty pages by, rings the flusher, and when dirty pages are all it sees it waits, bounded, for write-back.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use umemcg_arena::Arena;
use umemcg_base::clock::{Clock, SystemClock};
use umemcg_base::sync::{Condvar, Instant, Mutex};
use umemcg_base::{PAGE_SIZE_U64, Rank, assert_may_wait, assert_no_locks_held};
use umemcg_group::{Group, GroupTree, StatItem};

use crate::kswapd::Queue;
use crate::list_slots::ListSlots;
use crate::lruvec::{ReclaimPart, splice_lists};
use crate::page_owner::PageOwner;
use crate::pressure_level::LevelListener;
use crate::rounds::{FirstRounds, Round};
use crate::shield::{Kept, Shield};
use crate::shrinker::{Registration, Shrinker, ShrinkerId, Shrinkers};

/// Pages that reclaim asks for at once, and the smallest goal.
pub const SWAP_CLUSTER_MAX: u64 = 32;
/// The gentlest priority: a 4,096th of a list.
pub const DEF_PRIORITY: u32 = 12;
/// Longest single wait for write-back inside a reclaim.
pub const WRITEBACK_WAIT: Duration = Duration::from_millis(100);
/// Longest single wait inside a reclaim for memory that somebody else promised to let go of.
const RELEASE_WAIT: Duration = Duration::from_millis(20);

/// Who reclaims; decides what is counted, nothing else.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// A refused charge, or a limit write.
    Direct,
    /// A background worker.
    Kswapd,
    /// `memory.reclaim`, `force_empty`, drop-caches.
    Proactive,
}

impl Reason {
    pub(crate) fn scan_item(self) -> StatItem {
        match self {
            Self::Direct => StatItem::PgScanDirect,
            Self::Kswapd => StatItem::PgScanKswapd,
            Self::Proactive => StatItem::PgScanProactive,
        }
    }
    pub(crate) fn steal_item(self) -> StatItem {
        match self {
            Self::Direct => StatItem::PgStealDirect,
            Self::Kswapd => StatItem::PgStealKswapd,
            Self::Proactive => StatItem::PgStealProactive,
        }
    }
}

/// What a reclaim moved.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Progress {
    /// Pages freed.
    pub reclaimed: u64,
    /// Pages looked at on inactive lists.
    pub scanned: u64,
    /// Of those, dirty or written but not yet durable.
    pub dirty: u64,
    /// Pages on the lists that were looked at.
    pub reclaimable: u64,
    /// Bytes of objects freed.
    pub slab_bytes: u64,
    /// Objects looked at.
    pub slab_scanned: u64,
    /// Bytes of objects that somebody else was asked to let go of; those that went in time are in `slab_bytes`, too.
    pub promised_bytes: u64,
}

impl Progress {
    /// Everything freed, in pages; a part of a page counts as one.
    pub fn pages(&self) -> u64 {
        self.reclaimed + self.slab_bytes.div_ceil(PAGE_SIZE_U64)
    }

    pub(crate) fn add(&mut self, other: Progress) {
        self.reclaimed += other.reclaimed;
        self.scanned += other.scanned;
        self.dirty += other.dirty;
        self.reclaimable += other.reclaimable;
        self.slab_bytes += other.slab_bytes;
        self.slab_scanned += other.slab_scanned;
        self.promised_bytes += other.promised_bytes;
    }
}

/// One visit to a group: how hard, how much, for whom.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pass {
    /// 12 gentle … 0 everything.
    pub(crate) priority: u32,
    /// Pages that are enough.
    pub(crate) goal: u64,
    /// Pages that a list gives beyond that, as long as they are surplus on it.
    pub(crate) ahead: u64,
    pub(crate) reason: Reason,
    pub(crate) round: Round,
    /// A batch of objects at least is asked for, however small the share of this priority.
    pub(crate) insists: bool,
    /// Of the old way: lists only, and of each kind as many pages at a time.
    #[cfg(feature = "baseline")]
    pub(crate) is_of_largest_excess: bool,
    /// A single memory node; all of them if none.
    pub(crate) node: Option<usize>,
    /// What of the group is out of reach; known once it is visited.
    pub(crate) kept: Kept,
}

impl Pass {
    /// So much at a priority from everybody.
    pub(crate) fn new(priority: u32, goal: u64, reason: Reason) -> Self {
        Self {
            priority,
            goal,
            ahead: 0,
            reason,
            round: Round::Everybody,
            insists: false,
            #[cfg(feature = "baseline")]
            is_of_largest_excess: false,
            node: None,
            kept: Kept::NOTHING,
        }
    }

    /// The nodes to look at, of so many.
    pub(crate) fn nodes(&self, nr_nodes: usize) -> std::ops::Range<usize> {
        self.node.map_or(0..nr_nodes, |node| node..node + 1)
    }
}

/// Takes memory back from groups.
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
    /// Bytes that were promised and then let go of, ever.
    released_bytes: (Mutex<u64>, Condvar),
    /// Write-back's count of progress when somebody last waited for it in vain. (A)
    writeback_hung: AtomicU64,
    /// Groups that wait for background reclaim.
    kswapd_queue: Arc<Queue>,
    /// (C) Protection that no child claims is handed down to all of them.
    pub(crate) recursive_protection: bool,
    /// Who is told the level of pressure.
    level_listener: LevelListener,
}

impl Reclaimer {
    /// A reclaimer for one pool and one hierarchy.
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
            released_bytes: (Mutex::new(0), Condvar::new()),
            writeback_hung: AtomicU64::new(u64::MAX),
            kswapd_queue: Arc::default(),
            recursive_protection: true,
            level_listener: LevelListener::default(),
        })
    }

    /// The shrinkers.
    pub(crate) fn shrinkers(&self) -> &Arc<Shrinkers> {
        &self.shrinkers
    }

    /// Whether somebody has waited for write-back in vain, and its count of progress is what it was then.
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

    /// A number for a shrinker that is being made; its lists need it before it can be registered.
    #[doc(alias = "shrinker_alloc")]
    pub fn reserve_shrinker(&self) -> ShrinkerId {
        self.shrinkers.reserve()
    }

    /// Registers a shrinker. Reclaim that starts from now on asks it, until the registration is dropped.
    #[doc(alias = "shrinker_register")]
    pub fn register_shrinker(&self, id: ShrinkerId, shrinker: Arc<dyn Shrinker>) -> Registration {
        self.shrinkers.register(id, shrinker)
    }

    /// Shrinkers that are registered.
    pub fn nr_shrinkers(&self) -> usize {
        self.shrinkers.nr()
    }

    /// So many bytes that a shrinker had promised are free now: whoever waits for them looks again.
    pub fn note_released(&self, bytes: u64) {
        *self.released_bytes.0.lock() += bytes;
        self.released_bytes.1.notify_all();
    }

    /// Bytes that have been let go of after a promise, ever.
    pub(crate) fn released_bytes(&self) -> u64 {
        *self.released_bytes.0.lock()
    }

    /// Waits, at most [`RELEASE_WAIT`], until half of `promised` bytes have been let go of since `before` was read; returns how
    /// many of them have. Not all, because some of what is asked for may be in use.
    pub(crate) fn wait_for_release(&self, before: u64, promised: u64) -> u64 {
        assert_may_wait(Rank::KernelRelease, "a wait for what was promised");
        let deadline = Instant::now() + RELEASE_WAIT;
        let mut bytes = self.released_bytes.0.lock();
        while *bytes - before < promised.div_ceil(2)
            && !self.released_bytes.1.wait_until(&mut bytes, deadline).timed_out()
        {}
        (*bytes - before).min(promised)
    }

    /// Moves everything that a dying group has to its parent: pages and lists of objects in O(1) each, shrinker bits, and what
    /// shrinkers owe.
    #[doc(alias = "memcg_reparent_objcgs")]
    pub fn splice_to_parent(&self, dying: &Arc<Group>, parent: &Arc<Group>) {
        let with_objects = splice_lists((&self.arena, &self.list_slots), (dying, parent), self.nr_nodes);
        for id in with_objects {
            self.shrinkers.with(id, |shrinker| shrinker.reparent(dying, parent));
        }
    }

    /// Says who owns the pages. Once, before the first page.
    pub fn set_page_owner(&self, owner: &Arc<dyn PageOwner>) {
        assert!(self.owner.set(Arc::downgrade(owner)).is_ok(), "the page owner is set once");
    }

    /// The frames.
    pub fn arena(&self) -> &Arc<Arena> {
        &self.arena
    }

    /// The groups.
    pub fn tree(&self) -> &Arc<GroupTree> {
        &self.tree
    }

    /// Memory nodes; lists exist per node.
    pub fn nr_nodes(&self) -> usize {
        self.nr_nodes
    }

    pub(crate) fn page_owner(&self) -> Option<Arc<dyn PageOwner>> {
        self.owner.get()?.upgrade()
    }

    /// Reclaims about `goal` pages from `root` and everything below it. May sleep. No lock may be held.
    ///
    /// Returns what was moved; zero reclaimed means that a caller at its limit has nothing left to hope for.
    #[doc(alias = "try_to_free_mem_cgroup_pages")]
    pub fn reclaim(
        &self,
        root: &Arc<Group>,
        goal: u64,
        reason: Reason,
        cancelled: &dyn Fn() -> bool,
    ) -> Progress {
        let first_rounds = FirstRounds::default();
        #[cfg(feature = "baseline")]
        return crate::baseline::Spent::in_reclaim(|| {
            self.reclaim_now(root, goal, reason, first_rounds, cancelled)
        });
        #[cfg(not(feature = "baseline"))]
        self.reclaim_now(root, goal, reason, first_rounds, cancelled)
    }

    /// Like [`reclaim`](Self::reclaim), for whoever wants everything from everybody: soft limits, which say who goes first, are not
    /// asked.
    pub fn reclaim_from_all(&self, root: &Arc<Group>, goal: u64, cancelled: &dyn Fn() -> bool) -> Progress {
        self.reclaim_now(root, goal, Reason::Proactive, FirstRounds::ignoring_soft_limits(), cancelled)
    }

    fn reclaim_now(
        &self,
        root: &Arc<Group>,
        goal: u64,
        reason: Reason,
        first_rounds: FirstRounds,
        cancelled: &dyn Fn() -> bool,
    ) -> Progress {
        assert_no_locks_held("reclaim");
        let mut progress = Progress::default();
        if reason == Reason::Direct {
            root.stat_add(StatItem::AllocStall, 1);
        }
        let mut shield = self.shield(root, false);
        loop {
            progress.add(self.reclaim_at_all_priorities(
                root,
                goal,
                reason,
                (&mut shield, first_rounds),
                cancelled,
            ));
            // Once more at most: nothing but what is protected as best we can.
            if progress.pages() > 0 || cancelled() || !shield.give_up_low() {
                return progress;
            }
        }
    }

    /// From the gentlest priority to the last, until the goal is reached.
    fn reclaim_at_all_priorities(
        &self,
        root: &Arc<Group>,
        goal: u64,
        reason: Reason,
        (shield, mut first_rounds): (&mut Shield<'_>, FirstRounds),
        cancelled: &dyn Fn() -> bool,
    ) -> Progress {
        let needed = goal.max(1);
        let goal = goal.max(SWAP_CLUSTER_MAX);
        let mut progress = Progress::default();
        for priority in (0..=DEF_PRIORITY).rev() {
            shield.refresh();
            let before = progress;
            let released_before = self.released_bytes();
            first_rounds.is_last_chance = priority == 0 && progress.pages() == 0;
            let left = goal - progress.pages().min(goal);
            let pass = Pass::new(priority, left, reason);
            let enough =
                |now: &Progress| now.pages() + now.promised_bytes / PAGE_SIZE_U64 >= left || cancelled();
            progress.add(self.shrink_in_rounds(root, &pass, shield, &mut first_rounds, &enough).0);
            if progress.pages() >= goal || cancelled() {
                self.note_pass(root, reason, priority, before, progress);
                return progress;
            }
            self.note_pass(root, reason, priority, before, progress);
            let scanned = progress.scanned - before.scanned;
            let dirty = progress.dirty - before.dirty;
            if progress.reclaimed > before.reclaimed {
                ReclaimPart::of(root, self.nr_nodes).patience.was_rewarded();
            } else if scanned > 0 && dirty == scanned && (priority == 0 || has_only_dirty(root)) {
                self.wait_for_dirty(root);
            }
            let promised = progress.promised_bytes - before.promised_bytes;
            if promised > 0 {
                // Who has what he came for leaves the rest to those who come after him.
                if progress.pages() >= needed && progress.pages() + promised / PAGE_SIZE_U64 >= goal {
                    return progress;
                }
                let released = self.wait_for_release(released_before, promised);
                progress.slab_bytes += released;
                // What is missing of a promise that is being kept is on its way.
                let coming = if released >= promised / 2 { promised - released } else { 0 };
                if progress.pages() + coming / PAGE_SIZE_U64 >= goal {
                    return progress;
                }
            }
        }
        progress
    }

    /// A pass that somebody waited for says how hard it is to free memory; one that was asked for says nothing.
    fn note_pass(&self, root: &Arc<Group>, reason: Reason, priority: u32, before: Progress, now: Progress) {
        if reason != Reason::Proactive {
            let (scanned, reclaimed) = (now.scanned - before.scanned, now.reclaimed - before.reclaimed);
            self.note_level(root, priority, scanned, reclaimed);
        }
    }

    /// Shrinks one group's lists and asks its shrinkers, both for the share of this pass, as far as the group is not shielded.
    pub(crate) fn shrink_group(
        &self,
        root: &Arc<Group>,
        group: &Arc<Group>,
        pass: &Pass,
        shield: &mut Shield<'_>,
    ) -> Progress {
        let Some(part) = ReclaimPart::if_present(group) else { return Progress::default() };
        let Some(kept) = shield.kept_of(group) else { return Progress::default() };
        let pass = &Pass { kept, ..*pass };
        let (mut progress, has_pages) = self.shrink_lists(root, group, part, pass);
        #[cfg(feature = "baseline")]
        crate::baseline::note_visit(pass.priority, &progress);
        #[cfg(feature = "baseline")]
        if crate::baseline::is_pages_only() || pass.is_of_largest_excess {
            return progress;
        }
        // Who is in excess and has no page to give, gives objects before all others do.
        let pass = &Pass { insists: pass.round == Round::InExcess && progress.reclaimed == 0, ..*pass };
        #[cfg(not(feature = "baseline"))]
        if !self.is_quiet(part, pass, &progress) {
            progress.add(self.shrink_slab(group, pass));
        }
        #[cfg(feature = "baseline")]
        let listed = crate::baseline::list_owner(group.owner()).resolve();
        #[cfg(feature = "baseline")]
        crate::baseline::Spent::in_asking(|| {
            if !self.is_quiet(part, pass, &progress) {
                progress.add(self.shrink_slab(&listed, pass));
            }
        });
        if !has_pages {
            part.note_absent_if_empty(group);
        }
        progress
    }

    /// Everything in sight is dirty: the flusher is rung, and we wait for it a little, as long as that is worth it.
    fn wait_for_dirty(&self, root: &Arc<Group>) {
        #[cfg(feature = "baseline")]
        if crate::baseline::is_as_mailed() {
            return;
        }
        let Some(owner) = self.page_owner() else { return };
        owner.start_writeback(root);
        if ReclaimPart::of(root, self.nr_nodes).patience.may_wait(self.clock.now()) {
            owner.wait_for_writeback(WRITEBACK_WAIT);
        }
    }
}

/// Whether next to nothing of a group and those below it is clean, by the counts: a pass may have met dirty pages only by
/// chance, and then the next one looks further.
fn has_only_dirty(root: &Group) -> bool {
    let sum = |items: &[StatItem]| items.iter().map(|&item| root.stat_total(item)).sum::<i64>();
    let pages = sum(&[StatItem::InactiveFile, StatItem::ActiveFile]);
    let unclean = sum(&[StatItem::FileDirty, StatItem::FileWriteback, StatItem::FileUnstable]);
    pages - unclean <= (SWAP_CLUSTER_MAX * PAGE_SIZE_U64) as i64
}
