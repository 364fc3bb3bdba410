//! The pages of one file that the kernel above the mount keeps, by the groups that pay for them.
//!
//! A page that a READ or a WRITE has put into the kernel's page cache stays charged to the group
//! that asked, until the kernel has dropped it. Pages are known by *windows* of
//! [`WINDOW_PAGES`]: a bitmap for each group that pays for some of them. Each such *share* is an
//! object on a list of [`KernelPageLists`](crate::kernel_page_lists), through which reclaim asks
//! for it.
//!
//! The kernel is asked to drop a range, and says when it has. A request that ended meanwhile may
//! have put pages back, so the windows of the range remember when the last request ended: what has
//! seen one since it was asked for stays charged, and is asked for again. So what is charged is
//! never less than what the kernel keeps, and more only until the next time.
//!
//! What reclaim has taken back leaves a ghost ([`Ghosts`]). Pages that return soon are a share of
//! their own, which is protected. A share whose file was opened meanwhile is protected, too, when
//! reclaim comes to it: see [`second_chance`].

mod bytes;
mod changes;
mod freed;
mod ghosts;
mod holding;
mod missing;
mod second_chance;
mod share;
mod worth;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Weak};

use umemcg::OwnerId;
use umemcg::internal::{AccountedCharge, ListSlot};
use umemcg::{Charge, Group, StatItem};
use umemcg_base::{LeafMutex, PAGE_SIZE_U64, Rank, RankedMutex};

use self::freed::{Freed, count};
use self::ghosts::Ghosts;
use self::share::Window;
use crate::attr::{FileKind, NodeId};
use crate::kernel_cache::{DropTask, KeptWindow, WindowHolder};
use crate::kernel_page_lists::{AskedRange, KernelPageLists, PageHolder, SHARE_BYTES};
use crate::page_windows::{PAGES_END, WINDOW_PAGES, bits_of, span_of, windows_of};
use crate::streams::LastOpen;

/// The number of times that a drop waits for the requests that are under way then.
const NR_PARKED_MAX: u8 = 3;
/// The cost of knowing a file's pages at all, and that a group has opened it, in bytes.
const FILE_BYTES: u64 = 320;

#[derive(Default)]
struct PageWindows {
    windows: BTreeMap<u64, Window>,
    ghosts: Ghosts,
    /// Opens of the file since the kernel has pages of it.
    nr_opens: u64,
    /// Requests that may put pages into the kernel's cache.
    under_way: Vec<UnderWay>,
    /// Grows with each event.
    now: u64,
    /// The moments at which the kernel was asked for the ranges that it has not dropped yet.
    asked: BTreeSet<u64>,
    /// To be called when it has dropped what it was asked for before these moments; oldest first.
    when_dropped: VecDeque<(u64, Then)>,
    /// To be called when it has dropped all from before these changes; oldest first.
    when_current: VecDeque<(u64, Then)>,
    /// Drops that wait for requests older than these moments.
    parked: Vec<(u64, Box<RangeDrop>)>,
}

/// A request that may put pages into the kernel's cache.
#[derive(Debug)]
struct UnderWay {
    number: u64,
    pages: Range<u64>,
    is_write: bool,
    /// A write beside which the same pages were read: what was read may be from before it.
    is_crossed: bool,
}

impl UnderWay {
    fn overlaps(&self, pages: &Range<u64>) -> bool {
        self.pages.start < pages.end && pages.start < self.pages.end
    }
}

/// A drop that the kernel is told, or to be told.
#[derive(Debug)]
struct RangeDrop {
    /// A file that is gone has given all back.
    pages: Weak<KernelPages>,
    asked: AskedRange,
    /// None for a share that reclaim has chosen: it stays if a request has come in between.
    then: Option<FinalCall>,
    nr_parked: u8,
}

struct FinalCall(Then);

impl fmt::Debug for FinalCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FinalCall")
    }
}

/// What is to be done later.
type Then = Box<dyn FnOnce() + Send>;

impl fmt::Debug for PageWindows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PageWindows")
            .field("windows", &self.windows)
            .field("now", &self.now)
            .finish_non_exhaustive()
    }
}

/// See the module text.
#[derive(Debug)]
pub(crate) struct KernelPages {
    node: NodeId,
    kind: FileKind,
    state: RankedMutex<PageWindows>,
    /// (A) Changes of the data from outside, and those of them after which the kernel has dropped
    /// all that it had. Relaxed: a change is noted before it can be seen here.
    nr_changes: AtomicU64,
    nr_answered: AtomicU64,
    /// (A) The kernel has been asked to drop all. Relaxed: the thread that finds it unset after a
    /// change asks.
    is_dropping_all: AtomicBool,
    /// A leaf lock.
    last_open: LeafMutex<Option<LastOpen>>,
    pub(crate) lists: Arc<KernelPageLists>,
    _charge: AccountedCharge,
}

impl PageWindows {
    fn tick(&mut self) -> u64 {
        self.now += 1;
        self.now
    }

    /// Notes that the kernel is asked for a range; returns the moment, which names it.
    fn ask(&mut self) -> u64 {
        let asked_at = self.tick();
        self.asked.insert(asked_at);
        asked_at
    }

    /// Notes that it has dropped what it was asked for at a moment. Returns what is to be called.
    fn was_dropped(&mut self, asked_at: u64) -> Vec<Then> {
        self.asked.remove(&asked_at);
        let oldest = self.asked.first().copied().unwrap_or(u64::MAX);
        let nr = self.when_dropped.partition_point(|&(moment, _)| moment < oldest);
        self.when_dropped.drain(..nr).map(|(_, then)| then).collect()
    }

    fn is_busy(&self, window: u64) -> bool {
        self.under_way.iter().any(|request| bits_of(window, &request.pages) != 0)
    }

    /// Returns how many pages of a range are not known, and how many shares they need at most.
    fn nr_missing(&self, pages: &Range<u64>) -> (u64, u64) {
        let missing = windows_of(pages).map(|(window, bits)| {
            let known = self.windows.get(&window).map_or(0, Window::pages);
            u64::from((bits & !known).count_ones())
        });
        missing.filter(|&nr| nr > 0).fold((0, 0), |(nr_pages, nr_shares), nr| (nr_pages + nr, nr_shares + 1))
    }
}

/// What has become of the pages of a request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Held {
    /// Whether the group is within its limit, and those above; else they should be dropped soon.
    pub(crate) has_room: bool,
    /// Pages that the kernel had before, and that are counted as refaults.
    pub(crate) nr_returned: u64,
}

impl KernelPages {
    /// Creates the pages of a file of which the kernel has none. The bookkeeping is charged
    /// whatever the limits are.
    pub(crate) fn new(
        lists: &Arc<KernelPageLists>,
        (node, kind): (NodeId, FileKind),
        group: &Group,
    ) -> Arc<Self> {
        Arc::new(Self {
            node,
            kind,
            state: RankedMutex::new(Rank::ObjectOwner, PageWindows::default()),
            nr_changes: AtomicU64::new(0),
            nr_answered: AtomicU64::new(0),
            is_dropping_all: AtomicBool::new(false),
            last_open: LeafMutex::default(),
            lists: Arc::clone(lists),
            _charge: AccountedCharge::forced(group, FILE_BYTES, StatItem::SlabReclaimable),
        })
    }

    /// Notes that a group with this much room opens the file, which has this many bytes. Returns
    /// whether it belongs to a stream, of which the kernel should keep nothing.
    pub(crate) fn is_of_stream(&self, group: &Group, room_bytes: u64, len: u64) -> bool {
        let mut last_open = *self.last_open.lock();
        let is_of_stream = self.lists.streams.note_open(group, room_bytes, len, &mut last_open);
        *self.last_open.lock() = last_open;
        is_of_stream && !self.has_any()
    }

    /// Returns whether the kernel may keep a page.
    pub(crate) fn has_any(&self) -> bool {
        !self.state.lock().windows.is_empty()
    }

    /// Returns whether the kernel may keep a page of a range, or a request may be putting one
    /// there.
    pub(crate) fn may_have(&self, pages: &Range<u64>) -> bool {
        let state = self.state.lock();
        let windows = pages.start / WINDOW_PAGES..pages.end.div_ceil(WINDOW_PAGES);
        let is_known =
            state.windows.range(windows).any(|(&window, known)| known.pages() & bits_of(window, pages) != 0);
        is_known || state.under_way.iter().any(|request| request.overlaps(pages))
    }

    /// Notes a request that may put these pages into the kernel's cache; returns its number.
    pub(crate) fn begin(&self, pages: &Range<u64>, is_write: bool) -> u64 {
        let mut state = self.state.lock();
        let number = state.tick();
        let mut is_crossed = false;
        for other in state.under_way.iter_mut().filter(|other| other.is_write != is_write) {
            if other.overlaps(pages) {
                other.is_crossed = other.is_write;
                is_crossed = is_write;
            }
        }
        state.under_way.push(UnderWay { number, pages: pages.clone(), is_write, is_crossed });
        number
    }

    /// Returns whether the pages of a write under way have been read beside it.
    pub(crate) fn is_crossed(&self, number: u64) -> bool {
        self.state.lock().under_way.iter().any(|request| request.number == number && request.is_crossed)
    }

    /// Returns whether the kernel may be waiting for a request about these pages while it drops some
    /// of them.
    pub(crate) fn holds_up_drop(&self, pages: &Range<u64>) -> bool {
        let state = self.state.lock();
        let asked_span = |window: &u64| state.windows.get(window).map_or(0, Window::asked_span);
        windows_of(pages).any(|(window, bits)| asked_span(&window) & bits != 0)
    }

    /// Returns the present moment, for [`forget_before`](Self::forget_before).
    pub(crate) fn moment(&self) -> u64 {
        self.state.lock().tick()
    }

    /// Returns the bytes that are to be charged before the kernel can keep all pages of a range.
    pub(crate) fn missing_bytes(&self, pages: &Range<u64>) -> u64 {
        let (nr_pages, nr_shares) = self.state.lock().nr_missing(pages);
        nr_pages * PAGE_SIZE_U64 + nr_shares * SHARE_BYTES
    }

    /// Notes that a request has been answered: the kernel may keep these pages from now on, charged
    /// to `group`, of which `prepaid` has been already. Never sleeps; no lock may be held.
    pub(crate) fn end(
        self: &Arc<Self>,
        number: u64,
        pages: &Range<u64>,
        group: &Group,
        prepaid: Option<Charge>,
    ) -> Held {
        let (mut charge, mut nr_returned) = (prepaid, 0);
        while let Some(short_bytes) = self.try_hold(number, pages, group, (&mut charge, &mut nr_returned)) {
            let mut more = group.try_charge(short_bytes).unwrap_or_else(|_| group.charge_forced(short_bytes));
            // They differ if the group has been removed meanwhile: then what it had goes back.
            if let Some(charge) = charge.take().filter(|charge| charge.owner() == more.owner()) {
                more.merge(charge);
            }
            charge = Some(more);
        }
        drop(charge);
        self.send_parked();
        Held { has_room: group.is_within_limits(), nr_returned }
    }

    /// Ends a request if `charge` suffices for its pages; otherwise returns the bytes that it
    /// lacks.
    fn try_hold(
        self: &Arc<Self>,
        number: u64,
        pages: &Range<u64>,
        group: &Group,
        (charge, nr_returned): (&mut Option<Charge>, &mut u64),
    ) -> Option<u64> {
        let mut state = self.state.lock();
        let (nr_pages, nr_shares) = state.nr_missing(pages);
        let (needed, has) =
            (nr_pages * PAGE_SIZE_U64 + nr_shares * SHARE_BYTES, charge.as_ref().map_or(0, Charge::bytes));
        if has < needed {
            return Some(needed - has);
        }
        state.under_way.retain(|request| request.number != number);
        let now = state.tick();
        let (mut held_pages, mut held_shares) = (0, 0);
        let mut freed = Freed::default();
        for (window, bits) in windows_of(pages) {
            let new = bits & !state.windows.get(&window).map_or(0, Window::pages);
            if let Some(charge) = charge.as_ref().filter(|_| new != 0) {
                let (list, nr) = state.ghosts.arrive(&self.lists, (window, new), group, &mut freed);
                *nr_returned += nr;
                held_shares += self.hold(&mut state, (window, new), list, charge.owner());
                held_pages += u64::from(new.count_ones());
            }
            if let Some(window) = state.windows.get_mut(&window) {
                window.last_end = now;
            }
        }
        drop(state);
        freed.settle();
        if let Some(mut charge) = charge.take().filter(|_| held_pages > 0) {
            let (owner, _) = charge.split(held_pages * PAGE_SIZE_U64 + held_shares * SHARE_BYTES).into_raw();
            count(owner, held_pages as i64, held_shares as i64);
        }
        None
    }

    /// Has the kernel told of drops that wait for no request any more.
    fn send_parked(&self) {
        let ready: Vec<Box<RangeDrop>> = {
            let mut guard = self.state.lock();
            let state = &mut *guard;
            if state.parked.is_empty() {
                return;
            }
            let waits = |parked: &mut (u64, Box<RangeDrop>)| {
                let (moment, drop) = (parked.0, &parked.1);
                let older = state.under_way.iter().filter(|request| request.number < moment);
                older.into_iter().any(|request| request.overlaps(&drop.asked.pages))
            };
            state.parked.extract_if(.., |parked| !waits(parked)).map(|(_, drop)| drop).collect()
        };
        for drop in ready {
            self.lists.send(self.node, drop.asked.pages.clone(), drop);
        }
    }

    /// Chooses all of a range to be dropped, whatever is under way.
    pub(crate) fn ask_range(&self, pages: Range<u64>) -> AskedRange {
        let asked_at = self.state.lock().ask();
        AskedRange { pages, asked_at, nr_pages: 0, reclaim: None, leaving: None }
    }

    /// Notes that the kernel has dropped what was asked for, or has not been told. Returns the
    /// bytes that this has freed.
    fn dropped(&self, asked: &AskedRange, was_told: bool) -> u64 {
        let mut freed = Freed::default();
        let waiting = {
            let mut state = self.state.lock();
            let busy: Vec<u64> = self.known(&state, &asked.pages).filter(|&w| state.is_busy(w)).collect();
            let is_reclaimed = asked.leaving.is_some();
            self.take_out(&mut state, (&asked.pages, is_reclaimed), &mut freed, |window, known| {
                was_told && known.last_end < asked.asked_at && !busy.contains(&window)
            });
            state.was_dropped(asked.asked_at)
        };
        if let Some(reason) = asked.reclaim {
            freed.count_as_reclaimed(reason);
        }
        let owners = freed.owners();
        let freed_bytes = freed.settle();
        owners.into_iter().filter_map(OwnerId::try_resolve).for_each(|group| self.lists.trim_ghosts(&group));
        waiting.into_iter().for_each(|then| then());
        freed_bytes
    }

    /// Calls `then` when the kernel has dropped what it has been asked for of the file. Never
    /// waits.
    pub(crate) fn when_dropped(&self, then: Then) {
        {
            let mut state = self.state.lock();
            if !state.asked.is_empty() {
                let moment = state.tick();
                return state.when_dropped.push_back((moment, then));
            }
        }
        then();
    }

    /// Notes that the kernel has nothing that was there before a moment.
    pub(crate) fn forget_before(&self, moment: u64) {
        let mut freed = Freed::default();
        {
            let mut state = self.state.lock();
            let all = 0..PAGES_END;
            let busy: Vec<u64> = self.known(&state, &all).filter(|&w| state.is_busy(w)).collect();
            self.take_out(&mut state, (&all, false), &mut freed, |window, known| {
                known.last_end < moment && !busy.contains(&window)
            });
        }
        freed.settle();
    }

    /// Notes that the kernel drops a range by itself.
    pub(crate) fn forget(&self, pages: &Range<u64>) {
        let mut freed = Freed::default();
        {
            let mut state = self.state.lock();
            state.ghosts.forget(&self.lists, pages, &mut freed);
            self.take_out(&mut state, (pages, false), &mut freed, |_, _| true);
        }
        freed.settle();
    }

    /// Returns the windows of a range that have pages.
    fn known<'s>(&self, state: &'s PageWindows, pages: &Range<u64>) -> impl Iterator<Item = u64> + use<'s> {
        let windows = pages.start / WINDOW_PAGES..pages.end.div_ceil(WINDOW_PAGES);
        state.windows.range(windows).map(|(&window, _)| window)
    }

    /// Returns those that pay for pages of a range.
    fn owners_of(&self, pages: &Range<u64>) -> Vec<OwnerId> {
        let state = self.state.lock();
        let shares = self.known(&state, pages).flat_map(|window| &state.windows[&window].shares);
        let mut owners: Vec<OwnerId> = shares.map(|share| share.owner).collect();
        owners.dedup();
        owners
    }

    /// Has the kernel drop a group's shares of a range that it has not been asked for and that no
    /// request is under way to. Never waits.
    pub(crate) fn drop_shares(self: &Arc<Self>, pages: &Range<u64>, of: OwnerId) {
        let shares: Vec<(u64, ListSlot)> = {
            let state = self.state.lock();
            let slots_of = |window: u64| {
                let shares = state.windows[&window].shares.iter().filter(|share| share.owner == of);
                shares.filter_map(move |share| Some((window, share.slot?)))
            };
            self.known(&state, pages).flat_map(slots_of).collect()
        };
        let asked = shares.into_iter().flat_map(|(window, slot)| self.ask(window, slot));
        for asked in asked.collect::<Vec<_>>() {
            self.lists.send(self.node, asked.pages.clone(), Arc::clone(self).task(asked));
        }
    }

    /// Has the kernel drop a range, and calls `then` when it has, on a thread that serves no
    /// requests. Never waits.
    pub(crate) fn drop_range(self: &Arc<Self>, pages: Range<u64>, then: impl FnOnce() + Send + 'static) {
        let asked = self.ask_range(pages);
        let then = Some(FinalCall(Box::new(then)));
        self.send_or_park(Box::new(RangeDrop { pages: Arc::downgrade(self), asked, then, nr_parked: 0 }));
    }

    /// Has the kernel told of a drop when no request is under way to its pages.
    fn send_or_park(&self, mut drop: Box<RangeDrop>) {
        {
            let mut state = self.state.lock();
            if drop.must_wait(&state) {
                drop.nr_parked += 1;
                let moment = state.tick();
                return state.parked.push((moment, drop));
            }
        }
        self.lists.send(self.node, drop.asked.pages.clone(), drop);
    }
}

impl RangeDrop {
    /// Returns whether the kernel would wait for a request that is under way. What must be dropped
    /// waits a few times at most: some request may always be under way.
    fn must_wait(&self, state: &PageWindows) -> bool {
        let may_wait = self.then.is_none() || self.nr_parked < NR_PARKED_MAX;
        may_wait && state.under_way.iter().any(|request| request.overlaps(&self.asked.pages))
    }
}

impl DropTask for RangeDrop {
    fn may_tell(&self) -> bool {
        self.pages.upgrade().is_none_or(|pages| !self.must_wait(&pages.state.lock()))
    }

    fn done(mut self: Box<Self>, was_told: bool) {
        let Some(pages) = self.pages.upgrade() else { return self.asked.end(None) };
        if !was_told && self.then.is_some() {
            return pages.send_or_park(self);
        }
        let freed_bytes = pages.dropped(&self.asked, was_told);
        self.asked.end(Some(freed_bytes));
        // A group that has gone idle beyond its limit asks for nothing.
        for owner in pages.owners_of(&self.asked.pages) {
            if was_told && !owner.with_group(|group| group.is_within_limits()) {
                pages.drop_shares(&self.asked.pages, owner);
            }
        }
        if let Some(FinalCall(then)) = self.then {
            then();
        }
    }
}

impl PageHolder for KernelPages {
    fn node(&self) -> NodeId {
        self.node
    }

    /// Chooses a share, unless it is asked for already, or a request is under way that may put
    /// pages there.
    fn ask(&self, window: u64, slot: ListSlot) -> Vec<AskedRange> {
        let mut state = self.state.lock();
        if state.is_busy(window) {
            return Vec::new();
        }
        let Some((owner, list, runs)) = state.windows.get_mut(&window).and_then(|known| known.ask(slot))
        else {
            return Vec::new();
        };
        self.lists.unlist(list, slot);
        let mut asked = Vec::with_capacity(runs.len());
        for pages in runs {
            let asked_at = state.tick();
            state.asked.insert(asked_at);
            let nr_pages = u64::from(pages.count_ones());
            asked.push(AskedRange {
                pages: span_of(window, pages),
                asked_at,
                nr_pages,
                reclaim: None,
                leaving: Some(self.lists.note_leaving(owner, nr_pages)),
            });
        }
        asked
    }

    fn keep_if_opened(&self, window: u64, slot: ListSlot) -> bool {
        self.give_second_chance(window, slot)
    }

    fn kept_window(self: Arc<Self>, window: u64, slot: ListSlot) -> Option<KeptWindow> {
        let (runs, moment) = self.comparable(window, slot)?;
        let holder: Weak<dyn WindowHolder> = Arc::downgrade(&self) as _;
        Some(KeptWindow { node: self.node, runs, holder, moment })
    }

    fn forget_ghost(&self, window: u64, slot: ListSlot) {
        let mut freed = Freed::default();
        self.state.lock().ghosts.forget_one(&self.lists, window, slot, &mut freed);
        freed.settle();
    }

    fn task(self: Arc<Self>, asked: AskedRange) -> Box<dyn DropTask> {
        Box::new(RangeDrop { pages: Arc::downgrade(&self), asked, then: None, nr_parked: 0 })
    }
}

impl Drop for KernelPages {
    fn drop(&mut self) {
        if self.has_any() {
            // The kernel has not forgotten the inode: its volume has been removed.
            let asked =
                AskedRange { pages: 0..PAGES_END, asked_at: 0, nr_pages: 0, reclaim: None, leaving: None };
            let drop = RangeDrop { pages: Weak::new(), asked, then: None, nr_parked: 0 };
            self.lists.send(self.node, 0..PAGES_END, Box::new(drop));
        }
        self.forget(&(0..PAGES_END));
    }
}
