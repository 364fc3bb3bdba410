//! The file pages of a volume in the kernel's page cache, as a shrinker.
//!
//! Its objects are shares of a file's pages ([`PageHolder`]), in order of arrival, since the kernel
//! does not report hits: see [`arrival_order`]. Where opens reach the daemon, a share whose file
//! was opened meanwhile gets a second chance. The daemon cannot free this memory by itself: the
//! shrinker asks the kernel to drop the pages ([`KernelCache::drop_pages`]), and reports the bytes
//! to be released.
//!
//! A share taken back by reclaim leaves a ghost, on a third list. A group may have as many ghosts
//! as shares, or one for each [`PAGES_PER_GHOST`] of its pages, whichever is more. The oldest
//! ghosts beyond that are dropped.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Weak};

use umemcg::OwnerId;
use umemcg::internal::arrival_order::ArrivalList;
use umemcg::internal::{
    LIST_SLOT_BYTES, Leaving, ListLru, ListSlot, Reason, Reclaimer, Verdict, arrival_order, leaving_bytes,
};
use umemcg::shrinker::{Count, Registration, Scan, Scanned, ShrinkTarget, Shrinker, Usage};
use umemcg::{Group, StatItem};
use umemcg_base::{LeafMutex, PAGE_SIZE_U64};

use crate::attr::NodeId;
use crate::kernel_cache::{DropTask, KeptPages, KeptWindow, KernelCache, PageDrop};
use crate::streams::Streams;

/// Objects of one batch. Few, since an object is up to 64 pages.
const BATCH: u64 = 1;
/// A group streaming at its limit is asked for extra shares at once: one in this many of its
/// shares, at most [`NR_AHEAD_MAX`]. Each wait for the kernel costs four switches between threads.
const AHEAD_PART: u64 = 32;
const NR_AHEAD_MAX: u64 = 8;
/// A group is at its limit when it has less room than one request may need.
const AT_LIMIT_BYTES: u64 = 256 * PAGE_SIZE_U64;

/// Pages in the kernel per ghost: a group may keep that many ghosts, if they are more than its
/// shares.
const PAGES_PER_GHOST: u64 = 8;
/// The most shares of opened files kept by reclaim before it asks for one, opened or not.
const NR_SECOND_CHANCES_MAX: u64 = 32;
/// The most ghosts dropped at a time.
const NR_TRIMMED_MAX: u64 = 64;

/// The cost of a share, or of a ghost, with its place in its file, in a list and in the table of
/// slots, in bytes.
pub(crate) const SHARE_BYTES: u64 = 192 + LIST_SLOT_BYTES;

/// Returns whether drops under way lower the usage of the lowest level over its limit, among the
/// group and its ancestors.
pub(crate) fn awaits_drops(group: &Group) -> bool {
    let full = group.ancestors().find(|level| level.usage_bytes() > level.max_bytes());
    full.is_some_and(|level| leaving_bytes(level) > 0)
}

/// A range for the kernel to drop, and the moment of that decision.
#[derive(Debug)]
pub(crate) struct AskedRange {
    pub(crate) pages: Range<u64>,
    pub(crate) asked_at: u64,
    /// The number of charged pages among them.
    pub(crate) nr_pages: u64,
    /// Why reclaim asks for them; `None` if another caller does.
    pub(crate) reclaim: Option<Reason>,
    /// Of a share: the bytes leaving the paying group.
    pub(crate) leaving: Option<Leaving>,
}

impl AskedRange {
    /// Returns the bytes freed if the whole range is dropped: a share's own bytes become its
    /// ghost's.
    fn promised_bytes(&self) -> u64 {
        self.nr_pages * PAGE_SIZE_U64
    }

    /// Reports the end of a share's drop to reclaim, with the freed bytes; `None` if all its pages
    /// have been given back already.
    pub(crate) fn end(&mut self, freed_bytes: Option<u64>) {
        let promised_bytes = self.reclaim.map_or(0, |_| self.promised_bytes());
        let freed_bytes = freed_bytes.unwrap_or(promised_bytes);
        if let Some(leaving) = self.leaving.take() {
            leaving.end(freed_bytes, promised_bytes.saturating_sub(freed_bytes));
        }
    }
}

/// The holder of shares: the pages of a file.
pub(crate) trait PageHolder: Send + Sync + fmt::Debug {
    /// Returns the inode.
    fn node(&self) -> NodeId;
    /// Chooses a share to be dropped, and takes it off its list. Returns its runs of pages, none if
    /// it is to stay for now.
    fn ask(&self, window: u64, slot: ListSlot) -> Vec<AskedRange>;
    /// Keeps a share whose file has been opened often enough since it arrived, or since it was last
    /// kept. Returns whether it did.
    fn keep_if_opened(&self, window: u64, slot: ListSlot) -> bool;
    /// Returns the window of a share if it can be compared with the kernel's page cache, and the
    /// share is its first.
    fn kept_window(self: Arc<Self>, window: u64, slot: ListSlot) -> Option<KeptWindow>;
    /// Drops a ghost.
    fn forget_ghost(&self, window: u64, slot: ListSlot);
    /// Returns the task of a drop of such a share.
    fn task(self: Arc<Self>, asked: AskedRange) -> Box<dyn DropTask>;
}

/// Where a share or a ghost is: its file and its window.
type Home = (Weak<dyn PageHolder>, u64);

/// Homes by the place in the lists.
type Homes = LeafMutex<BTreeMap<u32, Home>>;

/// A slot with its home.
type Housed = (ListSlot, Home);

/// See the module text.
#[derive(Debug)]
pub(crate) struct KernelPageLists {
    kernel: Arc<dyn KernelCache>,
    probation: ListLru,
    protected: ListLru,
    ghosts: ListLru,
    /// Of the shares. A leaf lock.
    by_slot: Homes,
    /// Of the ghosts. A leaf lock.
    ghosts_by_slot: Homes,
    /// Streams recognised by the files a group opens.
    pub(crate) streams: Streams,
    /// Streams recognised by the pages that return.
    pub(crate) returns: Streams,
    reclaimer: Arc<Reclaimer>,
    _registration: Registration,
}

#[derive(Debug)]
struct KernelPageShrinker(Weak<KernelPageLists>);

/// The windows of all files, in the order of their places in the lists.
#[derive(Debug)]
struct ListedWindows(Weak<KernelPageLists>);

impl KernelPageLists {
    /// Creates the lists of a volume, and registers their shrinker.
    pub(crate) fn new(kernel: Arc<dyn KernelCache>, reclaimer: &Arc<Reclaimer>) -> Arc<Self> {
        let lists = Arc::new_cyclic(|me| {
            let id = reclaimer.reserve_shrinker();
            Self {
                kernel,
                probation: ListLru::new(reclaimer, &id, 0),
                protected: ListLru::new(reclaimer, &id, 1),
                ghosts: ListLru::new(reclaimer, &id, 2),
                by_slot: LeafMutex::default(),
                ghosts_by_slot: LeafMutex::default(),
                streams: Streams::default(),
                returns: Streams::default(),
                reclaimer: Arc::clone(reclaimer),
                _registration: reclaimer.register_shrinker(id, Arc::new(KernelPageShrinker(Weak::clone(me)))),
            }
        });
        lists.kernel.watch_pages(Box::new(ListedWindows(Arc::downgrade(&lists))));
        lists
    }

    fn shares(&self, list: ArrivalList) -> &ListLru {
        match list {
            ArrivalList::Probation => &self.probation,
            ArrivalList::Protected => &self.protected,
        }
    }

    /// Puts a new share on a list of its owner. `None` when there is no place for it.
    pub(crate) fn add(&self, owner: OwnerId, list: ArrivalList, home: Home) -> Option<ListSlot> {
        let slot = self.shares(list).reserve(home.1).ok()?;
        self.by_slot.lock().insert(slot.into_raw(), home);
        self.shares(list).add(owner, slot);
        Some(slot)
    }

    /// Puts a share back on a list of its owner.
    pub(crate) fn list(&self, owner: OwnerId, list: ArrivalList, slot: ListSlot) {
        self.shares(list).add(owner, slot);
    }

    /// Takes a share off its list.
    pub(crate) fn unlist(&self, list: ArrivalList, slot: ListSlot) {
        self.shares(list).remove(slot);
    }

    /// Moves a share from probation to the protected list, as the youngest of its owner.
    pub(crate) fn protect(&self, owner: OwnerId, slot: ListSlot) {
        self.probation.remove(slot);
        self.protected.add(owner, slot);
    }

    /// Makes a share the youngest of its owner on the protected list, if it is there.
    pub(crate) fn make_youngest(&self, slot: ListSlot) {
        self.protected.touch(slot);
    }

    /// Gives the place of a share back.
    pub(crate) fn release(&self, list: ArrivalList, slot: ListSlot) {
        self.shares(list).remove(slot);
        self.by_slot.lock().remove(&slot.into_raw());
        self.probation.release(slot);
    }

    /// Makes a share a ghost, the youngest of its owner.
    pub(crate) fn leave(&self, owner: OwnerId, list: ArrivalList, slot: ListSlot) {
        self.shares(list).remove(slot);
        let home = self.by_slot.lock().remove(&slot.into_raw());
        self.ghosts_by_slot.lock().extend(home.map(|home| (slot.into_raw(), home)));
        self.ghosts.add(owner, slot);
    }

    /// Makes a ghost the youngest of its owner.
    pub(crate) fn touch_ghost(&self, slot: ListSlot) {
        self.ghosts.touch(slot);
    }

    /// Gives the place of a ghost back.
    pub(crate) fn release_ghost(&self, slot: ListSlot) {
        self.ghosts.remove(slot);
        self.ghosts_by_slot.lock().remove(&slot.into_raw());
        self.ghosts.release(slot);
    }

    /// Returns the number of ghosts of a group beyond its allowance.
    fn nr_ghosts_beyond(&self, group: &Group) -> u64 {
        // Exact counts would mean stopping threads to apply their pending updates.
        let nr_pages = group.stat_local_applied(StatItem::FileKernel).max(0) as u64 / PAGE_SIZE_U64;
        let allowance = self.nr_shares(group).max(nr_pages / PAGES_PER_GHOST);
        self.ghosts.count(group).saturating_sub(allowance)
    }

    /// Drops the oldest ghosts of a group beyond its allowance. No lock may be held.
    pub(crate) fn trim_ghosts(&self, group: &Group) {
        let nr = self.nr_ghosts_beyond(group).min(NR_TRIMMED_MAX);
        if nr == 0 {
            return;
        }
        for (slot, (pages, window)) in oldest(&self.ghosts, &self.ghosts_by_slot, group, nr) {
            if let Some(pages) = pages.upgrade() {
                pages.forget_ghost(window, slot);
            }
        }
    }

    fn nr_shares(&self, group: &Group) -> u64 {
        self.probation.count(group) + self.protected.count(group)
    }

    /// Has the kernel drop pages of an inode. Never waits.
    pub(crate) fn send(&self, node: NodeId, pages: Range<u64>, task: Box<dyn DropTask>) {
        self.kernel.drop_pages(vec![PageDrop { node, pages, task }]);
    }

    /// Counts pages of an owner's share as leaving: the kernel is asked to drop them.
    pub(crate) fn note_leaving(&self, owner: OwnerId, nr_pages: u64) -> Leaving {
        owner.with_group(|group| Leaving::new(&self.reclaimer, group, nr_pages * PAGE_SIZE_U64))
    }

    /// Returns the next `nr` shares to ask for, and makes them the youngest of their list.
    fn next_shares(&self, group: &Group, nr: u64) -> Vec<Housed> {
        let nr_of = |list| self.shares(list).count(group);
        let list =
            arrival_order::victim_list(group, nr_of(ArrivalList::Probation), nr_of(ArrivalList::Protected));
        oldest(self.shares(list), &self.by_slot, group, nr)
    }

    /// Returns the next shares to ask for: the next `nr`, except shares kept because their file was
    /// opened. If all are kept, the search goes on with the following shares.
    fn next_victims(&self, group: &Group, nr: u64) -> Vec<Housed> {
        let mut nr_kept = 0;
        loop {
            let nr_kept_before = nr_kept;
            let mut shares = self.next_shares(group, nr);
            shares.retain(|(slot, (pages, window))| {
                let may_keep = nr_kept < NR_SECOND_CHANCES_MAX;
                let is_kept =
                    may_keep && pages.upgrade().is_some_and(|pages| pages.keep_if_opened(*window, *slot));
                nr_kept += u64::from(is_kept);
                !is_kept
            });
            if !shares.is_empty() || nr_kept == nr_kept_before {
                return shares;
            }
        }
    }

    /// Returns the number of shares to ask a group for beyond the wanted number: some if it streams
    /// and waits for room below its own limit, none for other groups or for a background worker.
    /// Where opens reach the daemon, streams bypass these lists, and an apparent stream is a loop
    /// larger than its room.
    fn nr_ahead(&self, target: &ShrinkTarget<'_>) -> u64 {
        let group = target.group;
        let room_bytes = group.max_bytes().saturating_sub(group.usage_bytes());
        let may_stream = self.kernel.opens_silently() && target.reason == Reason::Direct;
        if !may_stream || room_bytes >= AT_LIMIT_BYTES {
            return 0;
        }
        let nr = (self.nr_shares(group) / AHEAD_PART).min(NR_AHEAD_MAX);
        if nr > 0 && self.returns.is_streaming(group) { nr } else { 0 }
    }

    fn ask(&self, target: &ShrinkTarget<'_>, nr: u64) -> Scanned {
        let mut done = Scanned::default();
        let mut drops = Vec::new();
        let mut nr_pages = 0;
        self.trim_ghosts(target.group);
        for (slot, (pages, window)) in self.next_victims(target.group, nr + self.nr_ahead(target)) {
            done.scanned += 1;
            let Some(pages) = pages.upgrade() else { continue };
            for mut asked in pages.ask(window, slot) {
                asked.reclaim = Some(target.reason);
                nr_pages += asked.nr_pages;
                done.releasing_bytes += asked.promised_bytes();
                drops.push(PageDrop {
                    node: pages.node(),
                    pages: asked.pages.clone(),
                    task: Arc::clone(&pages).task(asked),
                });
            }
        }
        if !drops.is_empty() {
            target.group.stat_add(target.reason.scan_item(), nr_pages as i64);
            self.kernel.drop_pages(drops);
        }
        done
    }

    fn count(&self, target: &ShrinkTarget<'_>) -> u64 {
        self.nr_shares(target.group) + self.nr_ghosts_beyond(target.group)
    }
}

/// Returns the oldest `nr` objects of a group, and makes them the youngest.
fn oldest(list: &ListLru, homes: &Homes, group: &Group, nr: u64) -> Vec<Housed> {
    let mut slots = Vec::new();
    list.walk(group, nr, |_, _, slot| {
        slots.push(slot);
        Verdict::Rotate
    });
    let homes = homes.lock();
    slots.into_iter().filter_map(|slot| Some((slot, homes.get(&slot.into_raw())?.clone()))).collect()
}

impl KeptPages for ListedWindows {
    fn kept_windows(&self, place: &mut u32, nr: usize) -> Option<Vec<KeptWindow>> {
        let lists = self.0.upgrade()?;
        let homes: Vec<(u32, Home)> = {
            let by_slot = lists.by_slot.lock();
            let next = by_slot.range(*place..).take(nr);
            next.map(|(&slot, home)| (slot, home.clone())).collect()
        };
        *place = homes.last().filter(|_| homes.len() == nr).map_or(0, |(slot, _)| slot + 1);
        let windows = homes.into_iter().filter_map(|(slot, (pages, window))| {
            pages.upgrade()?.kept_window(window, ListSlot::from_raw(slot))
        });
        Some(windows.collect())
    }
}

impl Shrinker for KernelPageShrinker {
    fn name(&self) -> String {
        "kernel_pages".into()
    }

    fn batch(&self) -> u64 {
        BATCH
    }

    fn count(&self, target: &ShrinkTarget<'_>) -> Count {
        let Some(lists) = self.0.upgrade() else { return Count::Empty };
        match lists.count(target) {
            // With `Empty` the group would keep its list of ghosts after they are gone.
            0 if lists.ghosts.count(target.group) > 0 => Count::NothingNow,
            0 => Count::Empty,
            nr => Count::Objects(nr),
        }
    }

    fn scan(&self, target: &ShrinkTarget<'_>, nr: u64) -> Scan {
        self.0.upgrade().map_or(Scan::Stop, |lists| Scan::Done(lists.ask(target, nr)))
    }

    fn usage(&self, target: &ShrinkTarget<'_>) -> Usage {
        let Some(lists) = self.0.upgrade() else { return Usage::default() };
        let objects = lists.nr_shares(target.group) + lists.ghosts.count(target.group);
        Usage { objects, reclaimable: lists.count(target), bytes: objects * SHARE_BYTES }
    }
}
