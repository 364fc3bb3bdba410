//! Reads that miss: plan a window, charge it, put locked pages into the index, fill them with one
//! vectored read per run, and unlock them.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use umemcg_arena::{FrameFlags as Flag, FrameId, Segment};
use umemcg_base::{
    Idle, PAGE_SHIFT, PAGE_SIZE, PAGE_SIZE_U64, Rank, Wait, Waiting, assert_may_wait, assert_no_locks_held,
};
use umemcg_group::hit_counters::count_hits;
use umemcg_group::{Group, StatItem};
use umemcg_reclaim::{GroupReclaim, LruKind, Shadow, StalledHere, advance_age};

use super::hit::{mark_accessed, segment_of};
use super::new_pages::NewPages;
use super::{File, FileError, owner_of};
use crate::overrun::RequestClaim;
use crate::pinned::PinnedPages;
use crate::readahead::Readahead;

/// A page that a fill put into the file: locked, its contents to come.
struct FillPage {
    page: u64,
    frame: FrameId,
    /// It goes to the active list, by refault distance.
    active: bool,
    /// The store has given its contents.
    is_filled: bool,
}

impl File {
    /// Reads `len` bytes at `offset`, clipped at the end of the file, and before a page that the
    /// store cannot give. Pages that are missing are charged to `group`; one that has no room for
    /// them gets at most [`OVERRUN_PAGES_PER_REQUEST`](crate::overrun::OVERRUN_PAGES_PER_REQUEST)
    /// of them, which are not kept. May sleep for memory and for the store; no lock may be held.
    ///
    /// # Errors
    /// [`FileError::Store`] when the store cannot give the first page, [`FileError::NoMemory`] when
    /// the pool has no index node for it.
    pub fn read(
        self: &Arc<Self>,
        group: &Arc<Group>,
        offset: u64,
        len: usize,
        readahead: &Readahead,
    ) -> Result<PinnedPages<'_>, FileError> {
        assert_no_locks_held("a read");
        let end = self.len().min(offset.saturating_add(len as u64));
        if offset >= end {
            return Ok(PinnedPages::new(&self.cache, 0));
        }
        let (first, last) = (offset >> PAGE_SHIFT, (end - 1) >> PAGE_SHIFT);
        let mut pinned = PinnedPages::new(&self.cache, (last - first + 1) as usize);
        let mut claim = RequestClaim::new(last - first + 1);
        let mut nr_missed = 0;
        let mut page = first;
        while page <= last {
            if let Some(frame) = self.pin_filled(page) {
                pinned.push(segment_of(page, offset, end, frame));
                page += 1;
                continue;
            }
            let Some(new) = self.pages_to_read(group, (first, page, last), readahead, &mut claim)? else {
                // Beyond the limit, and as many as one request may have.
                break;
            };
            let nr_new = new.frames.len() as u64;
            match self.fill(group, new, page, last + 1) {
                Ok(frames) => {
                    nr_missed += frames.len() as u64;
                    claim.put_back(nr_new - frames.len() as u64);
                    for frame in frames {
                        pinned.push(segment_of(page, offset, end, frame));
                        page += 1;
                    }
                }
                Err(error) if page == first => return Err(error.into()),
                Err(_) => break,
            }
        }
        pinned.keep_claim(claim.into_inner());
        if page == first {
            return Ok(pinned);
        }
        readahead.note(page - 1, page);
        if nr_missed > 0 {
            group.owner().count(StatItem::CacheMiss, nr_missed as i64);
        }
        count_hits(group, page - first - nr_missed);
        Ok(pinned)
    }

    /// Pins a page that is there, or that is a hole of a file in memory, once its contents are.
    /// `None` when it is missing.
    fn pin_filled(&self, page: u64) -> Option<FrameId> {
        loop {
            if let Some(frame) = self.pin_page(page) {
                self.cache.waiters().wait_unlocked(self.cache.arena(), frame);
                if self.record(frame).test(Flag::UPTODATE) {
                    mark_accessed(self.record(frame), self.record(frame).flags());
                    return Some(frame);
                }
                // It has left the file: its fill failed, or it was beyond a limit. Our turn.
                self.cache.reclaimer().unpin(frame);
            } else if self.is_memory() {
                // None if the page has come meanwhile.
                if let Some(frame) = self.pin_hole(page) {
                    return Some(frame);
                }
            } else {
                return None;
            }
        }
    }

    /// Returns pages for a read of `first..=last` that lacks `page`: with what is read ahead, or
    /// with fewer if the group has not room for all, or beyond its limit. `None` when the request
    /// has used up its claim to the last.
    fn pages_to_read(
        self: &Arc<Self>,
        group: &Arc<Group>,
        (first, page, last): (u64, u64, u64),
        readahead: &Readahead,
        claim: &mut RequestClaim,
    ) -> Result<Option<NewPages<'_>>, FileError> {
        let needed = last - page + 1;
        if !claim.is_made() {
            // Above its `memory.high` a group is slowed in proportion to its charges, so charge
            // only what was asked for.
            let is_over_high = self.cache.reclaimer().is_over_high(group);
            let window = if is_over_high { needed } else { readahead.plan(first, needed) };
            // Up to the end of the page that the store ends in; beyond it there is nothing to read
            // ahead.
            let file_end = self.len().div_ceil(PAGE_SIZE_U64);
            let window_end = (page + window).min(file_end).max(last + 1);
            if let Some(new) = self.new_pages(group, page, window_end - page, needed, true) {
                return Ok(Some(new));
            }
            group.stat_add(StatItem::UncachedIo, 1);
        }
        self.pages_beyond_limit(group, page, needed, claim)
    }

    /// Fills the pages from `page` on that are missing, as far as the new ones reach. Returns those
    /// from `page` on, pinned, as far as they are contiguous, at most up to `asked_end`. Empty when
    /// others were faster, or have taken a node out of the index.
    ///
    /// # Errors
    /// The store's, when it could not give `page`. What it could not give further on is missing,
    /// and no error.
    fn fill(
        self: &Arc<Self>,
        group: &Arc<Group>,
        mut new: NewPages<'_>,
        page: u64,
        asked_end: u64,
    ) -> io::Result<Vec<FrameId>> {
        let content = self.content.read();
        let mut inserted: Vec<FillPage> = Vec::with_capacity(new.frames.len());
        let (nr_frames, is_overrun) = (new.frames.len() as u64, new.is_overrun);
        self.fetch_records(&new.frames);
        let page_locks = Waiting::on(Rank::Page);
        {
            let index = self.index.lock();
            let (mut at, end, owner) = (page, page + nr_frames, new.charge.owner());
            while at < end && !new.frames.is_empty() {
                let stop =
                    index.insert_run(at..end, &mut new.frames, &mut new.nodes, |page, frame, shadow| {
                        // The base reference, and one for us until the fill is over.
                        self.adopt(frame, page, owner, 2);
                        let active = self.is_workingset_refault(shadow, group, frame);
                        inserted.push(FillPage { page, frame, active, is_filled: false });
                    });
                let Some(stop) = stop else { break };
                // It stopped at a page that is there already.
                at = stop + 1;
            }
        }
        self.give_back(new, inserted.len() as u64);
        let result = {
            // Reading a page again that was evicted too soon takes time because the group has too
            // little memory.
            let is_refault = inserted.iter().any(|page| page.active);
            let _stalled = is_refault.then(|| StalledHere::begin(group));
            self.fill_runs(&mut inserted, asked_end)
        };
        let contiguous = inserted.iter().zip(page..asked_end).take_while(|(page, at)| page.page == *at);
        let (nr_contiguous, nr_filled) = contiguous.fold((0, 0), |(nr, filled), (page, _)| {
            (nr + 1, filled + usize::from(page.is_filled && filled == nr))
        });
        self.publish_pages(group, inserted.iter().filter(|page| page.is_filled && !is_overrun), asked_end);
        self.take_out_locked(inserted.iter().filter(|page| !page.is_filled || is_overrun));
        // Not before: a truncation takes these pages out too, and zeroes what it finds up to date.
        drop(content);
        drop(page_locks);
        for page in &inserted[nr_filled..] {
            self.cache.reclaimer().unpin(page.frame);
        }
        match result {
            Err(error) if nr_filled == 0 && nr_contiguous > 0 => Err(error),
            _ => Ok(inserted[..nr_filled].iter().map(|page| page.frame).collect()),
        }
    }

    /// Returns whether a page that comes back belongs on the active list, by its refault distance.
    #[doc(alias = "workingset_refault")]
    pub(super) fn is_workingset_refault(
        &self,
        shadow: Option<Shadow>,
        group: &Arc<Group>,
        frame: FrameId,
    ) -> bool {
        let Some(shadow) = shadow else { return false };
        group.stat_add(StatItem::WorkingsetRefault, 1);
        let Some(evictor) = shadow.evictor() else { return false };
        let age = GroupReclaim::of(&evictor, self.cache.reclaimer().nr_nodes()).age();
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

    /// Reads the contents of locked pages, one vectored read for each contiguous run. Of a run that
    /// the store refuses, the pages that were asked for, those below `asked_end`, are read one by
    /// one up to the first that it cannot give: neither read-ahead nor a bad place behind them
    /// keeps good ones from being read.
    fn fill_runs(&self, pages: &mut [FillPage], asked_end: u64) -> io::Result<()> {
        let mut result = Ok(());
        for run in pages.chunk_by_mut(|a, b| a.page + 1 == b.page) {
            let nr_asked = run.partition_point(|page| page.page < asked_end);
            let is_filled = self.fill_run(run).is_ok()
                || nr_asked < run.len() && self.fill_run(&mut run[..nr_asked]).is_ok();
            if !is_filled {
                let failed = run[..nr_asked].chunks_mut(1).find_map(|page| self.fill_run(page).err());
                result = result.and(failed.map_or(Ok(()), Err));
            }
        }
        result
    }

    /// Reads pages side by side, all or none.
    fn fill_run(&self, run: &mut [FillPage]) -> io::Result<()> {
        if run.is_empty() {
            return Ok(());
        }
        let arena = self.cache.arena();
        let offset = run[0].page << PAGE_SHIFT;
        // Beyond what the store has, a page is zero, and costs no call.
        let stored = self.store_len.load(Ordering::Relaxed).saturating_sub(offset);
        let in_store = (stored.div_ceil(PAGE_SIZE_U64) as usize).min(run.len());
        let mut read = 0;
        if in_store > 0 {
            let whole = |page: &FillPage| Segment { frame: page.frame, offset: 0, len: PAGE_SIZE as u16 };
            let segments: Vec<Segment> = run[..in_store].iter().map(whole).collect();
            assert_may_wait(Rank::StoreIo, "a read of the store");
            let _idle = Idle::begin(Wait::Perhaps);
            read = self.store.read_at(arena, &segments, offset)?;
        }
        for (i, page) in run.iter_mut().enumerate() {
            let valid = read.saturating_sub(i * PAGE_SIZE).min(PAGE_SIZE);
            if valid < PAGE_SIZE {
                arena.zero(page.frame, valid, PAGE_SIZE - valid);
            }
            page.is_filled = true;
        }
        Ok(())
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
            advance_age(group, self.cache.reclaimer().nr_nodes(), lists[1].len() as u64);
        }
        for page in pages {
            self.cache.waiters().unlock(self.cache.arena(), page.frame);
        }
    }

    /// Takes locked pages without contents out of the file and unlocks them: their fill failed, or
    /// they are beyond the limit of their group. They never were up to date in the file, so no
    /// writer has touched them; a thread that waits for one finds it gone and tries for itself. The
    /// pins stay the caller's.
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
