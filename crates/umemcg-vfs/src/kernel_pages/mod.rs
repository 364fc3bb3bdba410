//! The pages of one file in the page cache of the kernel above the mount, by paying group.
//!
//! A page put into the kernel's page cache by a READ or a WRITE stays charged to the requesting
//! group until the kernel has dropped it. Pages are recorded by *windows* of [`WINDOW_PAGES`]: a
//! bitmap for each group with pages charged to it. Each such *share* is an object on a list of
//! [`KernelPageLists`](crate::kernel_page_lists), and reclaim asks for it there.
//!
//! The kernel is asked to drop a range, and confirms the drop. A request that ended meanwhile may
//! have put pages back, so each window records the end of its last request. If a request has ended
//! since the kernel was asked, the window stays charged, and is asked for again. So the charge is
//! never less than the kernel's pages, and more only until the next drop.
//!
//! A share taken back by reclaim leaves a ghost ([`Ghosts`]). Pages that return soon form a
//! protected share of their own. A share whose file was opened meanwhile is protected, too, when
//! reclaim comes to it: see [`second_chance`].

mod changes;
mod freed;
mod ghosts;
mod holding;
mod missing;
mod second_chance;
mod share;

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
use crate::kernel_cache::DropTask;
use crate::kernel_page_lists::{AskedRange, KernelPageLists, PageHolder, SHARE_BYTES};
use crate::page_windows::{PAGES_END, WINDOW_PAGES, bits_of, page_range, windows_of};
use crate::streams::LastOpen;

/// The number of times a drop waits for the requests under way at that moment.
const NR_PARKED_MAX: u8 = 3;
/// The cost, in bytes, of the records of a file's pages and of its last open by a group.
const FILE_BYTES: u64 = 320;
/// The least room of a group with files cached by the kernel. The kernel reads ahead, and its
/// largest request must find room beside others.
const ROOM_BYTES_MIN: u64 = 1 << 20;

#[derive(Default)]
struct PageWindows {
    windows: BTreeMap<u64, Window>,
    ghosts: Ghosts,
    /// Opens of the file since the kernel first had pages of it.
    nr_opens: u64,
    /// Requests that may put pages into the kernel's cache.
    under_way: Vec<UnderWay>,
    /// Grows with each event.
    now: u64,
    /// The moments of pending drops: the kernel was asked then, and has not dropped the range yet.
    asked: BTreeSet<u64>,
    /// Calls to make when no drop asked for before these moments is pending; oldest first.
    when_dropped: VecDeque<(u64, Then)>,
    /// Calls to make when the kernel has dropped all pages from before these changes; oldest first.
    when_current: VecDeque<(u64, Then)>,
    /// The drops the kernel may be carrying out: their moments and ranges.
    being_told: Vec<(u64, Range<u64>)>,
    /// Drops waiting for requests older than these moments.
    parked: Vec<(u64, Box<RangeDrop>)>,
}

/// A request that may put pages into the kernel's cache.
#[derive(Debug)]
struct UnderWay {
    number: u64,
    pages: Range<u64>,
    is_write: bool,
    /// The same pages were read during this write: the data read may be from before it.
    is_crossed: bool,
}

impl UnderWay {
    fn overlaps(&self, pages: &Range<u64>) -> bool {
        self.pages.start < pages.end && pages.start < self.pages.end
    }
}

/// A drop sent to the kernel, or about to be sent.
#[derive(Debug)]
struct RangeDrop {
    /// Dead once the file is gone: all its charges have been given back.
    pages: Weak<KernelPages>,
    asked: AskedRange,
    /// None for a share chosen by reclaim: it stays if a request has come in between.
    then: Option<FinalCall>,
    nr_parked: u8,
}

struct FinalCall(Then);

impl fmt::Debug for FinalCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FinalCall")
    }
}

/// A call to make later.
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
    /// (A) The number of outside changes of the data, and the number of the last of them followed
    /// by a complete drop. Relaxed: a change is noted before it can be seen here.
    nr_changes: AtomicU64,
    nr_answered: AtomicU64,
    /// (A) The kernel has been asked to drop all. Relaxed: the thread finding it unset after a
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

    /// Notes a drop asked for now. Returns its moment, which identifies it.
    fn ask(&mut self) -> u64 {
        let asked_at = self.tick();
        self.asked.insert(asked_at);
        asked_at
    }

    /// Notes the end of the drop asked for at a moment. Returns the calls now due.
    fn was_dropped(&mut self, asked_at: u64) -> Vec<Then> {
        self.asked.remove(&asked_at);
        self.being_told.retain(|told| told.0 != asked_at);
        let oldest = self.asked.first().copied().unwrap_or(u64::MAX);
        let nr = self.when_dropped.partition_point(|&(moment, _)| moment < oldest);
        self.when_dropped.drain(..nr).map(|(_, then)| then).collect()
    }

    fn is_busy(&self, window: u64) -> bool {
        self.under_way.iter().any(|request| bits_of(window, &request.pages) != 0)
    }

    /// Returns how many pages of a range are not charged, and how many shares they need at most.
    fn nr_missing(&self, pages: &Range<u64>) -> (u64, u64) {
        let missing = windows_of(pages).map(|(window, bits)| {
            let known = self.windows.get(&window).map_or(0, Window::pages);
            u64::from((bits & !known).count_ones())
        });
        missing.filter(|&nr| nr > 0).fold((0, 0), |(nr_pages, nr_shares), nr| (nr_pages + nr, nr_shares + 1))
    }
}

/// The outcome of charging the pages of a request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Held {
    /// Whether the group and its ancestors are within their limits. Otherwise the pages should be
    /// dropped soon.
    pub(crate) has_room: bool,
    /// Pages the kernel has had before, counted as refaults.
    pub(crate) nr_returned: u64,
}

impl KernelPages {
    /// Creates the record of a file without pages in the kernel. The bookkeeping is charged
    /// regardless of limits.
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

    /// Returns whether the kernel should cache the pages of the file, of `len` bytes, for a group
    /// opening it. A file larger than the group's room would push out everything else, itself
    /// included, and a stream's pages are not read again. Data written may be read soon.
    pub(crate) fn are_worth_caching(&self, group: &Group, len: u64, is_writable: bool) -> bool {
        let room = group.ancestors().map(Group::max_bytes).min().unwrap_or(u64::MAX);
        if room < ROOM_BYTES_MIN || len > room {
            return false;
        }
        let mut last_open = *self.last_open.lock();
        let is_of_stream = self.lists.streams.note_open(group, room, len, &mut last_open);
        *self.last_open.lock() = last_open;
        !is_of_stream || self.has_any() || is_writable
    }

    /// Returns whether the kernel may keep a page.
    pub(crate) fn has_any(&self) -> bool {
        !self.state.lock().windows.is_empty()
    }

    /// Returns whether the kernel may have some of these bytes, or a request may be adding some.
    pub(crate) fn may_have_bytes(&self, offset: u64, len: u64) -> bool {
        let pages = &page_range(offset, len);
        let state = self.state.lock();
        let windows = pages.start / WINDOW_PAGES..pages.end.div_ceil(WINDOW_PAGES);
        let is_known =
            state.windows.range(windows).any(|(&window, known)| known.pages() & bits_of(window, pages) != 0);
        is_known || state.under_way.iter().any(|request| request.overlaps(pages))
    }

    /// Returns the first page behind a request for `pages` that the kernel has; `u64::MAX` if there
    /// is none. Also `u64::MAX` if the kernel should have a requested page: then the kernel has
    /// dropped pages unseen, perhaps many.
    pub(crate) fn first_kept_behind(&self, pages: &Range<u64>) -> u64 {
        let state = self.state.lock();
        let from = pages.start / WINDOW_PAGES;
        let first_of = |(&window, known): (&u64, &Window)| {
            let bits = known.pages() & bits_of(window, &(pages.start..PAGES_END));
            (bits != 0).then(|| window * WINDOW_PAGES + u64::from(bits.trailing_zeros()))
        };
        let first = state.windows.range(from..).find_map(first_of).unwrap_or(u64::MAX);
        if first < pages.end { u64::MAX } else { first }
    }

    /// Notes a request that may put these pages into the kernel's cache. Returns its number.
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

    /// Returns whether the pages of a write under way have been read during the write.
    pub(crate) fn is_crossed(&self, number: u64) -> bool {
        self.state.lock().under_way.iter().any(|request| request.number == number && request.is_crossed)
    }

    /// Returns whether the kernel may be waiting for this request, to drop pages around it.
    pub(crate) fn holds_up_drop(&self, number: u64) -> bool {
        let state = self.state.lock();
        let request = state.under_way.iter().find(|request| request.number == number);
        request.is_some_and(|request| state.being_told.iter().any(|(_, pages)| request.overlaps(pages)))
    }

    /// Returns the present moment, for [`forget_before`](Self::forget_before).
    pub(crate) fn moment(&self) -> u64 {
        self.state.lock().tick()
    }

    /// Returns the bytes to charge before the kernel can keep all pages of a range.
    pub(crate) fn missing_bytes(&self, pages: &Range<u64>) -> u64 {
        let (nr_pages, nr_shares) = self.state.lock().nr_missing(pages);
        nr_pages * PAGE_SIZE_U64 + nr_shares * SHARE_BYTES
    }

    /// Notes the answer to a request: the kernel may keep these pages from now on, charged to
    /// `group`. `prepaid` is charged already. Never sleeps; no lock may be held.
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
            // The owners differ if the group has been removed meanwhile: the earlier charge goes
            // back.
            if let Some(charge) = charge.take().filter(|charge| charge.owner() == more.owner()) {
                more.merge(charge);
            }
            charge = Some(more);
        }
        drop(charge);
        self.send_parked();
        Held { has_room: group.is_within_limits(), nr_returned }
    }

    /// Ends a request if `charge` suffices for its pages. Otherwise returns the missing bytes.
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

    /// Sends the parked drops with no request left to wait for.
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

    /// Notes the end of a drop: the kernel has dropped the range, or was not notified. Returns the
    /// freed bytes.
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

    /// Calls `then` when no drop asked for so far is pending. Never waits.
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

    /// Notes that the kernel has no page from before a moment.
    pub(crate) fn forget_before(&self, moment: u64) {
        let mut freed = Freed::default();
        let mut state = self.state.lock();
        let all = 0..PAGES_END;
        let busy: Vec<u64> = self.known(&state, &all).filter(|&w| state.is_busy(w)).collect();
        self.take_out(&mut state, (&all, false), &mut freed, |window, known| {
            known.last_end < moment && !busy.contains(&window)
        });
    }

    /// Notes that the kernel drops a range by itself, without being asked.
    pub(crate) fn forget(&self, pages: &Range<u64>) {
        let mut freed = Freed::default();
        let mut state = self.state.lock();
        state.ghosts.forget(&self.lists, pages, &mut freed);
        self.take_out(&mut state, (pages, false), &mut freed, |_, _| true);
    }

    /// Notes a truncation of the file to `len`: the kernel drops the pages beyond.
    pub(crate) fn was_cut(&self, len: u64) {
        self.forget(&(len.div_ceil(PAGE_SIZE_U64)..PAGES_END));
    }

    /// Notes a hole or zeroes in place of these bytes: the kernel drops the whole pages among them.
    pub(crate) fn was_emptied(&self, offset: u64, len: u64) {
        self.forget(&(offset.div_ceil(PAGE_SIZE_U64)..offset.saturating_add(len) / PAGE_SIZE_U64));
    }

    /// Returns the windows of a range with charged pages.
    fn known<'s>(&self, state: &'s PageWindows, pages: &Range<u64>) -> impl Iterator<Item = u64> + use<'s> {
        let windows = pages.start / WINDOW_PAGES..pages.end.div_ceil(WINDOW_PAGES);
        state.windows.range(windows).map(|(&window, _)| window)
    }

    /// Returns the owners of pages of a range.
    fn owners_of(&self, pages: &Range<u64>) -> Vec<OwnerId> {
        let state = self.state.lock();
        let shares = self.known(&state, pages).flat_map(|window| &state.windows[&window].shares);
        let mut owners: Vec<OwnerId> = shares.map(|share| share.owner).collect();
        owners.dedup();
        owners
    }

    /// Has the kernel drop a group's shares of a range, except shares already asked for and windows
    /// with a request under way. Never waits.
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

    /// Has the kernel drop the pages of these bytes. Calls `then` afterwards, on a thread that
    /// serves no requests. Never waits.
    pub(crate) fn drop_bytes(self: &Arc<Self>, offset: u64, len: u64, then: impl FnOnce() + Send + 'static) {
        self.drop_range(page_range(offset, len), then);
    }

    /// Has the kernel drop a range. Calls `then` afterwards, on a thread that serves no requests.
    /// Never waits.
    pub(crate) fn drop_range(self: &Arc<Self>, pages: Range<u64>, then: impl FnOnce() + Send + 'static) {
        let asked_at = self.state.lock().ask();
        let asked = AskedRange { pages, asked_at, nr_pages: 0, reclaim: None, leaving: None };
        let then = Some(FinalCall(Box::new(then)));
        self.send_or_park(Box::new(RangeDrop { pages: Arc::downgrade(self), asked, then, nr_parked: 0 }));
    }

    /// Sends a drop to the kernel, or parks it while a request for its pages is under way.
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
    /// Returns whether the kernel would wait for a request under way. A mandatory drop waits a few
    /// times at most: some request may always be under way.
    fn must_wait(&self, state: &PageWindows) -> bool {
        let may_wait = self.then.is_none() || self.nr_parked < NR_PARKED_MAX;
        may_wait && state.under_way.iter().any(|request| request.overlaps(&self.asked.pages))
    }
}

impl DropTask for RangeDrop {
    fn may_tell(&self) -> bool {
        let Some(pages) = self.pages.upgrade() else { return true };
        let mut state = pages.state.lock();
        let may_tell = !self.must_wait(&state);
        if may_tell {
            state.being_told.push((self.asked.asked_at, self.asked.pages.clone()));
        }
        may_tell
    }

    fn done(mut self: Box<Self>, was_told: bool) {
        let Some(pages) = self.pages.upgrade() else { return self.asked.end(None) };
        if !was_told && self.then.is_some() {
            return pages.send_or_park(self);
        }
        let freed_bytes = pages.dropped(&self.asked, was_told);
        self.asked.end(Some(freed_bytes));
        // An idle group above its limit starts no reclaim of its own.
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
