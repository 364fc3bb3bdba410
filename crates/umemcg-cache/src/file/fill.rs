//! A fill: missing pages enter the file locked, the store delivers their contents, and they are
//! published.
//!
//! 1. [`File::insert_locked`] puts the pages into the index.
//! 2. The store is asked for each run of adjacent pages, one part of the run after the other, as
//!    decided by [`RunFill::part`]. Either the thread waits for each part ([`File::fill`]), or the
//!    store reports its end (`store_fill.rs`).
//! 3. [`File::end_fill`] publishes the filled pages, takes out the rest, and unlocks both.

use std::io;
use std::ops::{DerefMut, Range};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use umemcg_arena::{FrameFlags as Flag, FrameId, Segment};
use umemcg_base::{Idle, PAGE_SHIFT, PAGE_SIZE, PAGE_SIZE_U64, Rank, Wait, Waiting, assert_may_wait};
use umemcg_group::{Group, StatItem};
use umemcg_reclaim::{GroupReclaim, LruKind, Shadow, StalledHere, advance_age};

use super::new_pages::NewPages;
use super::{File, owner_of};

/// A page put into the file by a fill: locked, its contents to come.
#[derive(Debug)]
pub(super) struct FillPage {
    page: u64,
    frame: FrameId,
    /// It goes to the active list, by refault distance.
    active: bool,
    /// The store has delivered its contents.
    is_filled: bool,
}

/// The next request to the store.
#[derive(Debug, Clone, Copy)]
enum Attempt {
    /// The run.
    Whole,
    /// The pages requested by the reader, since the store refuses the run.
    Asked,
    /// One of these pages, since the store refuses them together.
    Page(usize),
    /// Nothing.
    Ended,
}

/// Returns whether this error would recur at every place of the file: the store does not answer, or
/// refuses the whole file, or delivers bytes that are not the file's (a smaller part could deliver
/// such bytes unnoticed). All other errors may concern one place of a device, or the size of the
/// read.
fn is_of_whole_store(error: &io::Error) -> bool {
    use io::ErrorKind as Kind;
    matches!(
        error.kind(),
        Kind::TimedOut
            | Kind::ConnectionRefused
            | Kind::ConnectionReset
            | Kind::ConnectionAborted
            | Kind::NotConnected
            | Kind::BrokenPipe
            | Kind::HostUnreachable
            | Kind::NetworkUnreachable
            | Kind::NetworkDown
            | Kind::StaleNetworkFileHandle
            | Kind::NotFound
            | Kind::InvalidData
            | Kind::PermissionDenied
    )
}

/// Adjacent pages requested from the store together. If the store refuses the run, the pages
/// requested by the reader are read one by one, up to the first failure: neither read-ahead nor a
/// bad place behind them keeps good pages from being read. A store that fails as a whole gets no
/// further requests: each may last until its timeout.
///
/// A thread waiting for a run borrows the pages; a run without a waiting thread owns its pages.
#[derive(Debug)]
pub(super) struct RunFill<P> {
    pages: P,
    /// Number of pages requested by the reader; the others are read ahead.
    nr_asked: usize,
    attempt: Attempt,
    error: Option<io::Error>,
    /// The store has failed as a whole.
    store_failed: bool,
}

impl<P: DerefMut<Target = [FillPage]>> RunFill<P> {
    /// Creates a run of adjacent pages. The reader has requested the pages below `asked_end`.
    fn new(pages: P, asked_end: u64) -> Self {
        let nr_asked = pages.partition_point(|page| page.page < asked_end);
        Self { pages, nr_asked, attempt: Attempt::Whole, error: None, store_failed: false }
    }

    pub(super) fn first_page(&self) -> Option<u64> {
        self.pages.first().map(|page| page.page)
    }

    /// Returns the part to read now; `None` when there is nothing more to try.
    fn part(&self) -> Option<Range<usize>> {
        match self.attempt {
            Attempt::Whole => Some(0..self.pages.len()),
            Attempt::Asked => Some(0..self.nr_asked),
            Attempt::Page(at) => Some(at..at + 1),
            Attempt::Ended => None,
        }
    }

    /// Decides the next attempt after a refusal.
    fn refused(&mut self, error: io::Error) {
        self.store_failed = is_of_whole_store(&error);
        self.attempt = match self.attempt {
            Attempt::Whole if self.nr_asked == 0 => Attempt::Ended,
            _ if self.store_failed => {
                self.error = Some(error);
                Attempt::Ended
            }
            Attempt::Whole if self.nr_asked < self.pages.len() => Attempt::Asked,
            Attempt::Whole | Attempt::Asked => Attempt::Page(0),
            Attempt::Page(_) | Attempt::Ended => {
                self.error = Some(error);
                Attempt::Ended
            }
        };
    }

    /// Returns whether the store would fail other runs as well.
    pub(super) fn store_failed(&self) -> bool {
        self.store_failed
    }

    /// Makes no further request to the store.
    pub(super) fn give_up(&mut self) {
        self.attempt = Attempt::Ended;
    }

    /// Decides the next attempt when the part has been read.
    fn given(&mut self) {
        self.attempt = match self.attempt {
            Attempt::Page(at) if at + 1 < self.nr_asked => Attempt::Page(at + 1),
            _ => Attempt::Ended,
        };
    }
}

/// The pages put into the file by a fill.
#[derive(Debug)]
pub(super) struct Fill {
    pages: Vec<FillPage>,
    /// From the first page missing for the reader to the end of its request.
    wanted: Range<u64>,
    /// The number of frames charged for the fill.
    nr_new: u64,
    /// The pages are beyond the limit of their group, and are not kept.
    is_overrun: bool,
    /// The first refusal of a page requested by the reader.
    error: Option<io::Error>,
}

fn are_side_by_side(a: &FillPage, b: &FillPage) -> bool {
    a.page + 1 == b.page
}

impl Fill {
    /// Returns whether one of the pages was evicted too soon: the reader waits because its group
    /// has too little memory.
    pub(super) fn is_refault(&self) -> bool {
        self.pages.iter().any(|page| page.active)
    }

    /// Takes the pages out, in runs of at most `max` adjacent pages.
    pub(super) fn split(&mut self, max: usize) -> Vec<RunFill<Vec<FillPage>>> {
        let (mut rest, mut runs) = (std::mem::take(&mut self.pages), Vec::new());
        while let Some(nr) = rest.chunk_by(are_side_by_side).next().map(<[_]>::len) {
            let behind = rest.split_off(nr.min(max));
            runs.push(RunFill::new(std::mem::replace(&mut rest, behind), self.wanted.end));
        }
        runs
    }

    /// Puts runs back, in their order.
    pub(super) fn join(&mut self, mut runs: Vec<RunFill<Vec<FillPage>>>) {
        runs.sort_by_key(RunFill::first_page);
        for mut run in runs {
            self.error = self.error.take().or(run.error.take());
            self.pages.append(&mut run.pages);
        }
    }
}

/// The result of a fill for its reader.
#[derive(Debug)]
pub(super) struct Filled {
    /// The contiguous filled pages from the first missing page on, pinned. None when others were
    /// faster, or have taken a node out of the index.
    pub(super) frames: Vec<FrameId>,
    /// The number of frames charged for the fill.
    pub(super) nr_new: u64,
    /// The store failed to read the first page. A failure further on only leaves pages missing, and
    /// is no error.
    pub(super) error: Option<io::Error>,
}

impl File {
    /// Fills the missing pages of `wanted` and the read-ahead behind them, as far as the new pages
    /// reach. Waits for the store.
    pub(super) fn fill(
        self: &Arc<Self>,
        group: &Arc<Group>,
        new: NewPages<'_>,
        wanted: Range<u64>,
    ) -> Filled {
        let content = self.content.read();
        let page_locks = Waiting::on(Rank::Page);
        let mut fill = self.insert_locked(group, new, wanted);
        {
            let _stalled = fill.is_refault().then(|| StalledHere::begin(group));
            for pages in fill.pages.chunk_by_mut(are_side_by_side) {
                let mut run = RunFill::new(pages, fill.wanted.end);
                while let Some((segments, offset)) = self.next_part(&mut run) {
                    assert_may_wait(Rank::StoreIo, "a read of the store");
                    let _idle = Idle::begin(Wait::Perhaps);
                    let result = self.store.read_at(self.cache.arena(), &segments, offset);
                    self.end_part(&mut run, result);
                }
                fill.error = fill.error.take().or(run.error);
                if run.store_failed {
                    break;
                }
            }
        }
        // Under `content`: a truncation takes these pages out too, and zeroes up-to-date pages.
        let filled = self.end_fill(group, fill);
        drop(content);
        drop(page_locks);
        filled
    }

    /// Puts locked pages in place of missing pages from the start of `wanted` on, as far as the new
    /// pages reach.
    pub(super) fn insert_locked(
        self: &Arc<Self>,
        group: &Arc<Group>,
        mut new: NewPages<'_>,
        wanted: Range<u64>,
    ) -> Fill {
        let mut pages = Vec::with_capacity(new.frames.len());
        let (nr_new, is_overrun) = (new.frames.len() as u64, new.is_overrun);
        self.fetch_records(&new.frames);
        {
            let index = self.index.lock();
            let (mut at, end, owner) = (wanted.start, wanted.start + nr_new, new.charge.owner());
            while at < end && !new.frames.is_empty() {
                let stop =
                    index.insert_run(at..end, &mut new.frames, &mut new.nodes, |page, frame, shadow| {
                        // The base reference, and one for us until the fill is over.
                        self.adopt(frame, page, owner, 2);
                        let active = self.is_workingset_refault(shadow, group, frame);
                        pages.push(FillPage { page, frame, active, is_filled: false });
                    });
                let Some(stop) = stop else { break };
                // It stopped at an existing page.
                at = stop + 1;
            }
        }
        self.give_back(new, pages.len() as u64);
        Fill { pages, wanted, nr_new, is_overrun, error: None }
    }

    /// Returns the next segments to read from the store, and their offset. Parts beyond the end of
    /// the store's file are zeroed on the way. `None` when the run is over.
    pub(super) fn next_part(
        &self,
        run: &mut RunFill<impl DerefMut<Target = [FillPage]>>,
    ) -> Option<(Vec<Segment>, u64)> {
        loop {
            let part = &run.pages[run.part()?];
            let offset = part[0].page << PAGE_SHIFT;
            // Beyond the length of the store's file, a page is zero and costs no call.
            let stored = self.store_len.load(Ordering::Relaxed).saturating_sub(offset);
            let in_store = (stored.div_ceil(PAGE_SIZE_U64) as usize).min(part.len());
            if in_store > 0 {
                let whole = |page: &FillPage| Segment { frame: page.frame, offset: 0, len: PAGE_SIZE as u16 };
                return Some((part[..in_store].iter().map(whole).collect(), offset));
            }
            self.end_part(run, Ok(0));
        }
    }

    /// Notes the result of the part: the store has delivered all of it, or nothing.
    pub(super) fn end_part(
        &self,
        run: &mut RunFill<impl DerefMut<Target = [FillPage]>>,
        result: io::Result<usize>,
    ) {
        let Some(part) = run.part() else { return };
        let nr_read = match result {
            Ok(nr_read) => nr_read,
            Err(error) => return run.refused(error),
        };
        for (i, page) in run.pages[part].iter_mut().enumerate() {
            let valid = nr_read.saturating_sub(i * PAGE_SIZE).min(PAGE_SIZE);
            if valid < PAGE_SIZE {
                self.cache.arena().zero(page.frame, valid, PAGE_SIZE - valid);
            }
            page.is_filled = true;
        }
        run.given();
    }

    /// Ends a fill: filled pages within the limit are published, the others leave the file.
    pub(super) fn end_fill(&self, group: &Arc<Group>, fill: Fill) -> Filled {
        let Fill { pages, wanted, nr_new, is_overrun, error } = fill;
        let contiguous = pages.iter().zip(wanted.clone()).take_while(|(page, at)| page.page == *at);
        let (nr_contiguous, nr_filled) = contiguous.fold((0, 0), |(nr, filled), (page, _)| {
            (nr + 1, filled + usize::from(page.is_filled && filled == nr))
        });
        let nr_fetched = pages.iter().filter(|page| page.is_filled).count() as u64;
        let nr_refaults = self.fetch_counts.note_fetched(nr_fetched, self.len().div_ceil(PAGE_SIZE_U64));
        if nr_refaults > 0 {
            group.stat_add(StatItem::WorkingsetRefault, nr_refaults as i64);
        }
        self.publish_pages(group, pages.iter().filter(|page| page.is_filled && !is_overrun), wanted.end);
        self.take_out_locked(pages.iter().filter(|page| !page.is_filled || is_overrun));
        for page in &pages[nr_filled..] {
            self.cache.reclaimer().unpin(page.frame);
        }
        Filled {
            frames: pages[..nr_filled].iter().map(|page| page.frame).collect(),
            nr_new,
            error: error.filter(|_| nr_filled == 0 && nr_contiguous > 0),
        }
    }

    /// Returns whether a refaulting page belongs on the active list, by its refault distance.
    #[doc(alias = "workingset_refault")]
    pub(super) fn is_workingset_refault(
        &self,
        shadow: Option<Shadow>,
        group: &Arc<Group>,
        frame: FrameId,
    ) -> bool {
        let Some(shadow) = shadow else { return false };
        self.fetch_counts.note_refaults(1);
        group.stat_add(StatItem::WorkingsetRefault, 1);
        let Some(evictor) = shadow.evictor() else { return false };
        let age = GroupReclaim::of(&evictor).age();
        let active = evictor.stat_total_applied(StatItem::ActiveFile).max(0) as u64 / PAGE_SIZE_U64;
        if shadow.workingset() {
            self.record(frame).set(Flag::WORKINGSET);
        }
        if shadow.distance(age) > active {
            return false;
        }
        group.stat_add(StatItem::WorkingsetActivate, 1);
        if shadow.workingset() {
            group.stat_add(StatItem::WorkingsetRestore, 1);
        }
        self.record(frame).set(Flag::WORKINGSET);
        true
    }

    /// Publishes new pages: marks them as up to date, puts them on the lists and unlocks them.
    /// Pages below `asked_end` count as used once.
    fn publish_pages<'p>(
        &self,
        group: &Arc<Group>,
        pages: impl Iterator<Item = &'p FillPage> + Clone,
        asked_end: u64,
    ) {
        let Some(first) = pages.clone().next() else { return };
        let owner = owner_of(self.record(first.frame));
        let mut lists: [Vec<FrameId>; 2] = [Vec::with_capacity(pages.size_hint().1.unwrap_or(0)), Vec::new()];
        for page in pages.clone() {
            let record = self.record(page.frame);
            record.set(Flag::UPTODATE);
            if page.page < asked_end {
                record.mark(Flag::ACCESSED);
            }
            lists[usize::from(page.active)].push(page.frame);
        }
        self.cache.reclaimer().add_to_lists(owner, &lists[0], LruKind::Inactive);
        if !lists[1].is_empty() {
            self.cache.reclaimer().add_to_lists(owner, &lists[1], LruKind::Active);
            advance_age(group, lists[1].len() as u64);
        }
        for page in pages {
            self.cache.waiters().unlock(self.cache.arena(), page.frame);
        }
    }

    /// Takes locked pages without contents out of the file and unlocks them: their fill failed, or
    /// they are beyond the limit of their group. They never were up to date in the file, so no
    /// writer has touched them; a waiting thread finds its page gone and tries for itself. The pins
    /// stay the caller's.
    fn take_out_locked<'p>(&self, pages: impl Iterator<Item = &'p FillPage> + Clone) {
        let Some(first) = pages.clone().next() else { return };
        let owner = owner_of(self.record(first.frame));
        owner.count(StatItem::PgPgIn, pages.clone().count() as i64);
        {
            let index = self.index.lock();
            pages.clone().for_each(|page| self.detach(&index, page.page, page.frame));
        }
        for page in pages {
            self.cache.waiters().unlock(self.cache.arena(), page.frame);
        }
    }
}
