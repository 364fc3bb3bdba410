//! A read in steps. Between steps it belongs to no thread, and waits for reads begun by its file's
//! store.
//!
//! [`File::step_read`] continues a [`StartedRead`] until it is done or has to wait for a store.
//! Then it returns a [`WaitingRead`], which hands the read over when it can continue. A step
//! charges, and may reclaim; it never runs on the thread of a store. Pinned pages stay pinned
//! between the steps: every step makes progress, whatever is evicted meanwhile.

use std::fmt;
use std::io;
use std::sync::Arc;

use umemcg_arena::Segment;
use umemcg_base::{PAGE_SHIFT, contained};
use umemcg_group::Group;

use super::File;
use super::fill::Filled;
use super::hit::segment_of;
use super::store_fill::StoreFill;
use super::store_fills::{FillNumber, Turn};
use crate::cache_core::CacheCore;
use crate::overrun::{OverrunClaim, RequestClaim};
use crate::pinned::{KeptPages, PinnedPages};
use crate::shared_room::Claim;

/// The position of a read.
#[derive(Debug, Clone, Copy)]
pub(super) struct ReadPosition {
    pub(super) offset: u64,
    /// The end of the bytes, clipped at the end of the file.
    pub(super) end: u64,
    /// The next page.
    pub(super) page: u64,
    /// No page from here on is read ahead: a cache above has it.
    pub(super) window_end: u64,
    /// Pages not cached, or only read ahead.
    pub(super) nr_missed: u64,
}

impl ReadPosition {
    /// Returns the first page and the last. The range is not empty.
    pub(super) fn first_and_last(&self) -> (u64, u64) {
        (self.offset >> PAGE_SHIFT, (self.end - 1) >> PAGE_SHIFT)
    }

    fn nr_pages(&self) -> u64 {
        let (first, last) = self.first_and_last();
        last - first + 1
    }

    /// Advances past an existing page.
    pub(super) fn pass(&mut self, was_used: bool) {
        self.page += 1;
        self.nr_missed += u64::from(!was_used);
    }

    /// Takes the pages of a fill.
    fn take(&mut self, filled: &Filled, mut push: impl FnMut(Segment)) {
        for &frame in &filled.frames {
            push(segment_of(self.page, self.offset, self.end, frame));
            self.page += 1;
        }
        self.nr_missed += filled.frames.len() as u64;
    }
}

/// The state of a read during a step, on a thread.
pub(super) struct ReadState<'f> {
    pub(super) at: ReadPosition,
    pub(super) pinned: PinnedPages<'f>,
    pub(super) claim: RequestClaim,
    /// The claim to begin a read of the store. Given back before this read waits for anything.
    pub(super) begun: Option<Claim>,
    /// Given up, too, before this read waits for anything.
    pub(super) turn: Option<Turn>,
    /// The store's error for the next page.
    pub(super) error: Option<io::Error>,
}

impl<'f> ReadState<'f> {
    pub(super) fn new(cache: &'f CacheCore, at: ReadPosition) -> Self {
        let nr_pages = at.nr_pages();
        let pinned = PinnedPages::new(cache, nr_pages as usize);
        Self { at, pinned, claim: RequestClaim::new(nr_pages), begun: None, turn: None, error: None }
    }

    /// Takes the pages of a fill.
    pub(super) fn take(&mut self, filled: Filled) {
        self.claim.put_back(filled.nr_new - filled.frames.len() as u64);
        self.at.take(&filled, |segment| self.pinned.push(segment));
        self.error = filled.error;
    }

    /// Returns the read without its thread.
    pub(super) fn keep(self, cache: &Arc<CacheCore>) -> KeptRead {
        let mut pages = self.pinned.keep(cache);
        pages.claim = self.claim.into_inner();
        KeptRead { at: self.at, pages, begun: None, turn: None, error: self.error }
    }
}

/// The state of a read between steps, without a thread.
pub(super) struct KeptRead {
    at: ReadPosition,
    pages: KeptPages,
    /// The claim to begin a read of the store, made while this read waited for it.
    begun: Option<Claim>,
    turn: Option<Turn>,
    error: Option<io::Error>,
}

impl KeptRead {
    fn take(&mut self, filled: Filled) {
        if let Some(claim) = &mut self.pages.claim {
            claim.put_back(filled.nr_new - filled.frames.len() as u64);
        }
        self.at.take(&filled, |segment| self.pages.push(segment));
        self.error = filled.error;
    }

    /// Returns the read for a thread that continues it.
    pub(super) fn resume(mut self, cache: &CacheCore) -> ReadState<'_> {
        let (pinned, claim) = self.pages.resume(cache);
        let claim = RequestClaim::resume(self.at.nr_pages(), claim);
        let (begun, turn) = (self.begun.take(), self.turn.take());
        ReadState { at: self.at, pinned, claim, begun, turn, error: self.error.take() }
    }
}

/// A read that can be continued on any thread that may sleep.
#[must_use = "the read is given up"]
pub struct StartedRead {
    file: u32,
    offset: u64,
    len: usize,
    window_end: u64,
    /// `None` before the first step.
    kept: Option<KeptRead>,
}

impl StartedRead {
    /// Returns the offset of its first byte.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Returns the number of requested bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether it requests no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Ends the readahead window of its next step at page `window_end`, the first page already in a
    /// cache above this one.
    pub fn within(self, window_end: u64) -> Self {
        Self { window_end, ..self }
    }

    pub(super) fn window_end(&self) -> u64 {
        self.window_end
    }

    /// Returns the read so far, for a step on its file.
    pub(super) fn into_kept(self, file: &File) -> Option<KeptRead> {
        assert_eq!(self.file, file.id, "a read of another file");
        self.kept
    }
}

impl fmt::Debug for StartedRead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StartedRead")
            .field("file", &self.file)
            .field("offset", &self.offset)
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}

/// The outcome of a step of a read.
#[derive(Debug)]
pub enum ReadStep<'f> {
    /// The bytes.
    Done(PinnedPages<'f>),
    /// The read has to wait: for pages being filled by the store, for this read or another, or
    /// until it may begin to have them filled.
    Waits(Box<WaitingRead>),
}

/// The cause of a read's wait.
pub(super) enum ReadWait {
    /// Its own fill by the store.
    Fill(Arc<StoreFill>),
    /// Another read's fill by the store.
    OtherFill(FillNumber),
    /// The end of a truncation or the like.
    Alone,
    /// Room among the pages in flight beyond limits.
    Overrun(Arc<Group>),
    /// The end of other reads begun by stores.
    BegunReads(Arc<Group>),
}

/// A read that cannot continue yet. When it is dropped, the read is given up; a fill begun by the
/// store continues by itself.
#[must_use = "the read is given up"]
pub struct WaitingRead {
    file: Arc<File>,
    offset: u64,
    len: usize,
    /// `None` once it has been handed over.
    kept: Option<(KeptRead, ReadWait)>,
}

impl WaitingRead {
    /// Calls `then` once, when the read can continue. That may be immediately, on a thread of the
    /// store, or on any other thread that ends the wait and may hold locks of the engine. So `then`
    /// must neither wait nor call the engine: it hands the read to a thread for its next step. When
    /// it panics, the read is given up.
    pub fn when_ready(mut self, then: impl FnOnce(StartedRead) + Send + 'static) {
        let Some((mut kept, wait)) = self.kept.take() else { return };
        let (file, offset, len) = (Arc::clone(&self.file), self.offset, self.len);
        let started = move |file: u32, kept: KeptRead| {
            let read = StartedRead { file, offset, len, window_end: u64::MAX, kept: Some(kept) };
            if let Err(panic) = contained(|| then(read)) {
                tracing::error!(%panic, "a callback of a read panicked");
            }
        };
        let id = file.id;
        match wait {
            ReadWait::Fill(fill) => fill.when_ended(Box::new(move |filled| {
                kept.take(filled);
                started(id, kept);
            })),
            ReadWait::OtherFill(number) => {
                if let Some(fills) = &file.store_fills {
                    fills.when_ended(number, Box::new(move || started(id, kept)));
                }
            }
            ReadWait::Alone => {
                if let Some(fills) = &file.store_fills {
                    fills.when_open(Box::new(move |turn| {
                        kept.turn = turn;
                        started(id, kept);
                    }));
                }
            }
            ReadWait::Overrun(group) => {
                let (overrun, nr_pages) = (Arc::clone(kept.pages.overrun()), kept.at.nr_pages());
                let take = move |claim: OverrunClaim| {
                    kept.pages.claim = Some(claim);
                    started(id, kept);
                };
                overrun.when_room(&group, nr_pages, Box::new(take));
            }
            ReadWait::BegunReads(group) => {
                let take = move |claim: Claim| {
                    kept.begun = Some(claim);
                    started(id, kept);
                };
                file.cache.begun_reads().when_room(&group, file.store.source_id(), Box::new(take));
            }
        }
    }
}

impl Drop for WaitingRead {
    fn drop(&mut self) {
        // The store is still filling pages beyond the limit.
        if let Some((kept, ReadWait::Fill(fill))) = &mut self.kept
            && let Some(claim) = kept.pages.claim.take()
        {
            fill.keep_claim(claim);
        }
    }
}

impl fmt::Debug for WaitingRead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WaitingRead")
            .field("file", &self.file.id)
            .field("offset", &self.offset)
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}

impl File {
    /// Returns whether its store begins reads, so that [`step_read`](Self::step_read) does not wait
    /// for it.
    pub fn begins_reads(&self) -> bool {
        self.store_fills.is_some()
    }

    /// Returns whether a read was started on this file.
    pub fn has_started(&self, read: &StartedRead) -> bool {
        read.file == self.id
    }

    /// Returns a read of `len` bytes at `offset` for its first [step](Self::step_read). Does
    /// nothing yet.
    pub fn start_read(&self, offset: u64, len: usize) -> StartedRead {
        StartedRead { file: self.id, offset, len, window_end: u64::MAX, kept: None }
    }

    /// Returns a read that has to wait.
    pub(super) fn waiting_read(
        self: &Arc<Self>,
        (offset, len): (u64, usize),
        state: ReadState<'_>,
        wait: ReadWait,
    ) -> WaitingRead {
        let kept = Some((state.keep(&self.cache), wait));
        WaitingRead { file: Arc::clone(self), offset, len, kept }
    }
}
