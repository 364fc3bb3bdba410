//! Reads that miss: plan a window, charge it, put locked pages into the index, fill them with one vectored read per
//! run, let them go.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use umemcg_arena::{FrameFlags as Flag, FrameId, Segment, prefetch_for_write};
use umemcg_base::{PAGE_SHIFT, PAGE_SIZE, PAGE_SIZE_U64, assert_no_locks_held, pages_for};
use umemcg_group::tally::count_hits;
use umemcg_group::{Charge, Group, OwnerId, StatItem};
use umemcg_reclaim::{LruKind, ReclaimPart, Shadow, StalledHere, lruvec::advance_age};

use crate::file::{File, FileError};
use crate::hit::{mark_accessed, segment_of};
use crate::index::Index;
use crate::node_pool::{NODE_BYTES, NodeReserve};
use crate::pinned::PinnedPages;
use crate::readahead::Readahead;

/// Frames charged and taken for pages that are about to enter a file.
pub(crate) struct NewPages {
    pub(crate) charge: Charge,
    pub(crate) frames: Vec<FrameId>,
    pub(crate) nodes: NodeReserve,
}

impl File {
    /// Reads `len` bytes at `offset`, clipped at the end of the file. Pages that are missing are charged to `group`. May
    /// sleep for memory and for the store; no lock may be held.
    ///
    /// # Errors
    /// [`FileError::Store`] when the store cannot give what the cache does not have.
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
        let mut page = first;
        let mut nr_missed = 0;
        while page <= last {
            if let Some(frame) = self.pin_page(page) {
                self.cache.waiters().wait_unlocked(self.cache.arena(), frame);
                if self.record(frame).test(Flag::UPTODATE) {
                    mark_accessed(self.record(frame), self.record(frame).flags());
                    pinned.push(segment_of(page, offset, end, frame));
                    page += 1;
                } else {
                    // Its fill failed and took it out of the file: our turn to try, and to hear of the error.
                    self.cache.reclaimer().unpin(frame);
                }
                continue;
            }
            if self.is_memory() {
                if let Some(frame) = self.pin_hole(page) {
                    pinned.push(segment_of(page, offset, end, frame));
                    page += 1;
                }
                continue;
            }
            let needed = last - page + 1;
            let window = readahead.plan(first, needed);
            // Up to the end of the page that the store ends in; beyond it there is nothing to read ahead.
            let file_end = self.len().div_ceil(PAGE_SIZE_U64);
            let window_end = (page + window).min(file_end).max(last + 1);
            match self.fill(group, page, window_end, last + 1)? {
                Filled::Pages(frames) => {
                    nr_missed += frames.len() as u64;
                    for frame in frames {
                        pinned.push(segment_of(page, offset, end, frame));
                        page += 1;
                    }
                }
                Filled::NoRoom => {
                    drop(pinned);
                    group.stat_add(StatItem::CacheMiss, (last - first + 1) as i64);
                    return self.read_uncached(group, offset, end);
                }
            }
        }
        readahead.note(last, last + 1);
        if nr_missed > 0 {
            group.stat_add(StatItem::CacheMiss, nr_missed as i64);
        }
        count_hits(group, last - first + 1 - nr_missed);
        Ok(pinned)
    }

    /// Charges and takes frames for up to `want` pages from `first` on, fewer if `group` has no room for all. `None` when
    /// it has not room for one.
    pub(crate) fn new_pages(
        self: &Arc<Self>,
        group: &Arc<Group>,
        first: u64,
        want: u64,
        least: u64,
        may_sleep: bool,
    ) -> Option<NewPages> {
        let act = || self.charge_and_take(group, first, want, least, may_sleep);
        #[cfg(feature = "baseline")]
        let act = || umemcg_reclaim::baseline::charge_to_frame(act);
        act()
    }

    fn charge_and_take(
        self: &Arc<Self>,
        group: &Arc<Group>,
        first: u64,
        want: u64,
        least: u64,
        may_sleep: bool,
    ) -> Option<NewPages> {
        let mut want = want;
        loop {
            let nr_nodes = Index::nodes_for(first, first + want);
            let bytes = want * PAGE_SIZE_U64 + nr_nodes as u64 * NODE_BYTES;
            let charge = if !may_sleep {
                group.try_charge(bytes).ok()
            } else if want > least {
                self.cache.reclaimer().charge_surplus(group, bytes, &|| false).ok()
            } else if want > 1 {
                self.cache.reclaimer().charge_opportunistic(group, bytes, &|| false).ok()
            } else {
                self.cache.reclaimer().charge(group, bytes, &|| false).ok()
            };
            let Some(mut charge) = charge else {
                if want <= 1 || !may_sleep {
                    return None;
                }
                // Down to what is really needed, then to less: a small group still caches something.
                want = if want > least { least.max(want / 4) } else { (want / 4).max(1) };
                continue;
            };
            let node_charge = charge.split(nr_nodes as u64 * NODE_BYTES);
            let nodes = NodeReserve::new(self.cache.nodes(), nr_nodes, node_charge)?;
            let mut frames = Vec::with_capacity(want as usize);
            let node = self.cache.next_node();
            if self.cache.arena().alloc(node, &mut frames, want as usize) < want as usize {
                // Charges never exceed the pool; frames on their way back may be missing for a moment.
                self.cache.arena().free(&frames);
                drop(charge);
                if want == 1 || !may_sleep {
                    return None;
                }
                want = (want / 2).max(1);
                continue;
            }
            // Taken from the end: pages side by side get frames side by side where there are any, so that one piece of an
            // I/O vector covers many, and the index can tell their place from their neighbours'.
            return self.within_quota(NewPages { charge, frames, nodes });
        }
    }

    /// Fills the missing pages of `page..window_end`. Returns the pages from `page` on, pinned, as far as they are
    /// contiguous, at most up to `asked_end`. Empty when others were faster.
    fn fill(
        self: &Arc<Self>,
        group: &Arc<Group>,
        page: u64,
        window_end: u64,
        asked_end: u64,
    ) -> Result<Filled, FileError> {
        let Some(mut new) = self.new_pages(group, page, window_end - page, asked_end - page, true) else {
            return Ok(Filled::NoRoom);
        };
        let content = self.content.read();
        let mut inserted: Vec<(u64, FrameId, bool)> = Vec::with_capacity(new.frames.len());
        let nr_frames = new.frames.len() as u64;
        self.fetch_records(&new.frames);
        {
            let index = self.index.lock();
            let (mut at, end, owner) = (page, page + nr_frames, new.charge.owner());
            while at < end && !new.frames.is_empty() {
                let stop =
                    index.insert_run(at..end, &mut new.frames, &mut new.nodes, |page, frame, shadow| {
                        // The base reference, and one for us until the fill is over.
                        self.adopt(frame, page, owner, 2);
                        inserted.push((page, frame, self.judge_refault(shadow, group, frame)));
                    });
                let Some(stop) = stop else { unreachable!("the reserve was made for the largest case") };
                // Where it stopped there is a page already.
                at = stop + 1;
            }
        }
        self.give_back(new, inserted.len() as u64);
        let result = {
            // What is read again because it was evicted too soon is time lost for want of memory.
            let is_refault = inserted.iter().any(|&(_, _, of_the_working_set)| of_the_working_set);
            let _stalled = is_refault.then(|| StalledHere::begin(group));
            self.fill_runs(&inserted)
        };
        drop(content);
        self.settle(group, &inserted, asked_end);
        if let Err(error) = result {
            self.abandon(&inserted);
            return Err(error.into());
        }
        let mut frames = Vec::new();
        let mut next = page;
        for &(at, frame, _) in &inserted {
            if at == next && at < asked_end {
                frames.push(frame);
                next += 1;
            } else {
                self.cache.reclaimer().unpin(frame);
            }
        }
        Ok(Filled::Pages(frames))
    }

    /// Has the records of frames fetched that are about to be written: mostly a worker on another processor wrote them last.
    pub(crate) fn fetch_records(&self, frames: &[FrameId]) {
        frames.iter().for_each(|&frame| prefetch_for_write(self.record(frame)));
    }

    /// Gives a fresh frame the identity of a page: locked, contents to come. `pins` includes the base reference.
    pub(crate) fn adopt(&self, frame: FrameId, page: u64, owner: OwnerId, pins: u32) {
        let record = self.record(frame);
        record.owner.store(owner.into_raw(), Ordering::Relaxed);
        record.file.store(self.id, Ordering::Relaxed);
        record.index.store(page, Ordering::Relaxed);
        record.start_with(Flag::LOCKED);
        record.unfreeze_to(pins);
    }

    /// Returns what `inserted` pages did not use; the charge of those that did now belongs to their frames.
    pub(crate) fn give_back(&self, new: NewPages, inserted: u64) {
        let NewPages { mut charge, frames, nodes } = new;
        if !frames.is_empty() {
            self.give_quota(frames.len() as u64);
            self.cache.arena().free(&frames);
        }
        if inserted > 0 {
            let _ = charge.split(inserted * PAGE_SIZE_U64).into_raw();
        }
        drop(charge);
        drop(nodes);
    }

    /// Whether a page that comes back belongs on the active list, by its refault distance.
    #[doc(alias = "workingset_refault")]
    pub(crate) fn judge_refault(&self, shadow: Option<Shadow>, group: &Arc<Group>, frame: FrameId) -> bool {
        let Some(shadow) = shadow else { return false };
        group.stat_add(StatItem::WorkingsetRefault, 1);
        let Some(evictor) = shadow.evictor() else { return false };
        let age = ReclaimPart::of(&evictor, self.cache.reclaimer().nr_nodes()).age();
        let active = evictor.stat_total(StatItem::ActiveFile).max(0) as u64 / PAGE_SIZE_U64;
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

    /// Reads the contents of locked pages, one vectored read for each contiguous run.
    fn fill_runs(&self, pages: &[(u64, FrameId, bool)]) -> std::io::Result<()> {
        let arena = self.cache.arena();
        let mut at = 0;
        while at < pages.len() {
            let first = pages[at].0;
            let run = pages[at..].iter().enumerate().take_while(|(i, p)| p.0 == first + *i as u64).count();
            let frames = &pages[at..at + run];
            let offset = first << PAGE_SHIFT;
            // Beyond what the store has, a page is zero, and costs no call.
            let stored = self.store_len.load(Ordering::Relaxed).saturating_sub(offset);
            let in_store = (stored.div_ceil(PAGE_SIZE_U64) as usize).min(run);
            let mut read = 0;
            if in_store > 0 {
                let segments: Vec<Segment> = frames[..in_store]
                    .iter()
                    .map(|p| Segment { frame: p.1, offset: 0, len: PAGE_SIZE as u16 })
                    .collect();
                read = self.store.read_at(arena, &segments, offset)?;
            }
            for (i, &(_, frame, _)) in frames.iter().enumerate() {
                let valid = read.saturating_sub(i * PAGE_SIZE).min(PAGE_SIZE);
                if valid < PAGE_SIZE {
                    arena.zero(frame, valid, PAGE_SIZE - valid);
                }
            }
            for &(_, frame, _) in frames {
                self.record(frame).set(Flag::UPTODATE);
            }
            at += run;
        }
        Ok(())
    }

    /// Puts new pages on the lists and unlocks them. Pages below `asked_end` count as used once.
    fn settle(&self, group: &Arc<Group>, pages: &[(u64, FrameId, bool)], asked_end: u64) {
        if pages.is_empty() {
            return;
        }
        let owner = crate::file::owner_of(self.record(pages[0].1));
        let mut lists: [Vec<FrameId>; 2] = [Vec::with_capacity(pages.len()), Vec::new()];
        for &(page, frame, active) in pages {
            if page < asked_end {
                self.record(frame).mark(Flag::ACCESSED);
            }
            lists[usize::from(active)].push(frame);
        }
        self.cache.reclaimer().add_to_lists(owner, &lists[0], LruKind::Inactive);
        if !lists[1].is_empty() {
            self.cache.reclaimer().add_to_lists(owner, &lists[1], LruKind::Active);
            advance_age(group, self.cache.reclaimer().nr_nodes(), lists[1].len() as u64);
        }
        for &(_, frame, _) in pages {
            self.cache.waiters().unlock(self.cache.arena(), frame);
        }
    }

    /// Takes pages whose fill failed out of the file again.
    fn abandon(&self, pages: &[(u64, FrameId, bool)]) {
        for &(page, frame, _) in pages {
            if !self.record(frame).test(Flag::UPTODATE) {
                let index = self.index.lock();
                if self.record(frame).file.load(Ordering::Relaxed) == self.id {
                    self.detach(&index, page, frame);
                }
                drop(index);
            }
            self.cache.reclaimer().unpin(frame);
        }
    }

    /// Serves a whole read without keeping anything: the group has no room for a page. All frames are taken at once, by a
    /// reader that holds none, so that readers cannot wait for each other in a ring. Pages that are cached are copied.
    fn read_uncached(
        self: &Arc<Self>,
        group: &Arc<Group>,
        offset: u64,
        end: u64,
    ) -> Result<PinnedPages<'_>, FileError> {
        group.stat_add(StatItem::UncachedIo, 1);
        let arena = self.cache.arena();
        let first = offset >> PAGE_SHIFT;
        let nr = pages_for(offset, end - offset).min(self.cache.reserve().len() as u64);
        let end = end.min((first + nr) << PAGE_SHIFT);
        let frames = self.cache.reserve().take(nr as usize);
        let mut pinned = PinnedPages::new(&self.cache, frames.len());
        for (page, &frame) in (first..).zip(&frames) {
            pinned.push(segment_of(page, offset, end, frame));
        }
        let _content = self.content.read();
        let cached: Vec<bool> = (first..)
            .zip(&frames)
            .map(|(page, &frame)| {
                let Some(from) = self.pin_uptodate(page) else { return false };
                arena.copy_frame(from, frame);
                self.cache.reclaimer().unpin(from);
                true
            })
            .collect();
        let mut at = 0;
        while at < frames.len() {
            let run = cached[at..].iter().take_while(|&&c| !c).count();
            let whole = |&frame| Segment { frame, offset: 0, len: PAGE_SIZE as u16 };
            let segments: Vec<Segment> = frames[at..at + run].iter().map(whole).collect();
            let from = (first + at as u64) << PAGE_SHIFT;
            let mut read = 0;
            if run > 0 && from < self.store_len.load(Ordering::Relaxed) {
                read = self.store.read_at(arena, &segments, from)?;
            }
            for (i, segment) in segments.iter().enumerate() {
                let valid = read.saturating_sub(i * PAGE_SIZE).min(PAGE_SIZE);
                arena.zero(segment.frame, valid, PAGE_SIZE - valid);
            }
            at += run.max(1);
        }
        Ok(pinned)
    }
}

enum Filled {
    Pages(Vec<FrameId>),
    NoRoom,
}
