//! A fill without a waiting thread: the store reports the end of each read.
//!
//! The runs of a fill are read in parallel as far as they may be begun, and one after the other
//! beyond that: a run has a claim of [`BegunReads`](crate::begun_reads::BegunReads), and leaves it
//! to the next run. After a refused part, the thread that reports the refusal begins the next part.
//! The thread that ends the last run ends the fill, and hands its pages to the reader.
//!
//! A read-ahead fill has no reader: its pages stay in the cache, and its failure is no error. A
//! reader of a page still missing then requests it itself.

use std::fmt;
use std::io;
use std::ops::Range;
use std::sync::Arc;

use umemcg_base::{LeafMutex, Rank, assert_may_wait};
use umemcg_group::Group;
use umemcg_reclaim::Stalled;

use super::File;
use super::fill::{Fill, FillPage, Filled, RunFill};
use super::new_pages::NewPages;
use super::store_fills::{FillNumber, Turn};
use crate::ahead_room::AheadClaim;
use crate::overrun::OverrunClaim;
use crate::read_pace::ReadPace;
use crate::shared_room::Claim;
use crate::store_read::StoreRead;

/// Most pages requested from a store at once (2 MiB): it delivers several parts of a long run in
/// the time of one.
pub(super) const PART_PAGES: usize = 512;

/// A run that belongs to no thread.
type Run = RunFill<Vec<FillPage>>;
/// Callback that receives the result of a fill.
type TakeFilled = Box<dyn FnOnce(Filled) + Send>;

/// A fill under way in the store, or an ended fill waiting for its reader.
pub(super) struct StoreFill {
    file: Arc<File>,
    group: Arc<Group>,
    pace: Arc<ReadPace>,
    number: FillNumber,
    state: LeafMutex<FillState>,
}

#[derive(Default)]
struct FillState {
    /// Without its pages. `None` once all runs have ended.
    fill: Option<Fill>,
    /// Runs not yet begun.
    to_begin: std::vec::IntoIter<Run>,
    /// Ended runs.
    runs: Vec<Run>,
    /// The number of runs not yet ended.
    nr_left: usize,
    /// The store has failed a run as a whole: runs not yet begun are given up.
    store_failed: bool,
    /// For a page read again because it was evicted too soon.
    stalled: Option<Stalled>,
    filled: Option<Filled>,
    reader: Option<TakeFilled>,
    /// The claim of a reader that has given up; returned after the pages.
    claim: Option<OverrunClaim>,
    /// The claim of a read-ahead fill; returned after the pages are unlocked.
    ahead: Option<AheadClaim>,
}

/// One part of a run, read by the store. It may end before or after the call that began it returns.
#[derive(Default)]
struct PartRead(LeafMutex<PartState>);

#[derive(Default)]
enum PartState {
    #[default]
    Beginning,
    EndedEarly(io::Result<usize>),
    /// The call that began it has returned.
    Begun(Run, Claim),
    Over,
}

impl PartRead {
    /// Notes that the part has ended. Returns its run if the thread that began it has left it.
    fn ended(&self, result: io::Result<usize>) -> Option<(Run, Claim, io::Result<usize>)> {
        let mut state = self.0.lock();
        match std::mem::replace(&mut *state, PartState::Over) {
            PartState::Begun(run, claim) => Some((run, claim, result)),
            _ => {
                *state = PartState::EndedEarly(result);
                None
            }
        }
    }

    /// Leaves the run to the thread that ends the part. Returns it if the part has ended.
    fn leave(&self, run: Run, claim: Claim) -> Option<(Run, Claim, io::Result<usize>)> {
        let mut state = self.0.lock();
        match std::mem::replace(&mut *state, PartState::Over) {
            PartState::EndedEarly(result) => Some((run, claim, result)),
            _ => {
                *state = PartState::Begun(run, claim);
                None
            }
        }
    }
}

impl StoreFill {
    /// Begins to fill the missing pages of `wanted`, and the read-ahead behind them. `None` when an
    /// exclusive operation is under way or waiting, and it is not the reader's turn.
    pub(super) fn begin(
        file: &Arc<File>,
        group: &Arc<Group>,
        new: NewPages<'_>,
        wanted: Range<u64>,
        (claim, turn): (Claim, Option<Turn>),
    ) -> Option<Arc<Self>> {
        let this = Self::enter((file, group), new, wanted, turn, None)?;
        let mut claim = Some(claim);
        while let Some(begun) = claim.take() {
            this.read_runs(begun);
            if this.state.lock().to_begin.len() > 0 {
                claim = file.cache.begun_reads().try_claim(group, file.store.source_id());
            }
        }
        this.end_run(None);
        Some(this)
    }

    /// Begins to fill missing pages from `first` on, for a reader expected there. Its runs follow
    /// each other. Returns `false` while an exclusive operation is under way or waiting.
    pub(super) fn begin_ahead(
        of: (&Arc<File>, &Arc<Group>),
        new: NewPages<'_>,
        first: u64,
        (claim, ahead): (Claim, AheadClaim),
    ) -> bool {
        let Some(this) = Self::enter(of, new, first..first, None, Some(ahead)) else { return false };
        this.read_runs(claim);
        this.end_run(None);
        true
    }

    /// Lists a fill and puts its pages into the file.
    fn enter(
        (file, group): (&Arc<File>, &Arc<Group>),
        new: NewPages<'_>,
        wanted: Range<u64>,
        turn: Option<Turn>,
        ahead: Option<AheadClaim>,
    ) -> Option<Arc<Self>> {
        let pages = wanted.start..wanted.start + new.frames.len() as u64;
        let fills = file.store_fills.as_ref();
        let (Some(fills), Some(number)) = (fills, fills.and_then(|fills| fills.enter(pages, turn))) else {
            file.give_back(new, 0);
            return None;
        };
        let mut fill = file.insert_locked(group, new, wanted);
        let stalled = (ahead.is_none() && fill.is_refault()).then(|| Stalled::begin(group));
        let runs = fill.split(PART_PAGES);
        // One more, so that it does not end before all have begun.
        let nr_left = runs.len() + 1;
        let state = FillState {
            fill: Some(fill),
            runs: Vec::with_capacity(runs.len()),
            to_begin: runs.into_iter(),
            nr_left,
            stalled,
            ahead,
            ..FillState::default()
        };
        Some(Arc::new(Self {
            file: Arc::clone(file),
            group: Arc::clone(group),
            pace: Arc::clone(&fills.pace),
            number,
            state: LeafMutex::new(state),
        }))
    }

    /// Returns the result if the fill has ended.
    pub(super) fn try_take(&self) -> Option<Filled> {
        self.state.lock().filled.take()
    }

    /// Keeps the claim of a reader that gives up until the pages are free.
    pub(super) fn keep_claim(&self, claim: OverrunClaim) {
        self.state.lock().claim = Some(claim);
    }

    /// Calls `reader` when the fill has ended, on the thread that ends it.
    pub(super) fn when_ended(&self, reader: TakeFilled) {
        let filled = {
            let mut state = self.state.lock();
            let Some(filled) = state.filled.take() else {
                state.reader = Some(reader);
                return;
            };
            filled
        };
        reader(filled);
    }

    /// Has the store read the runs not yet begun, one after the other, until a run does not end
    /// immediately. The thread that ends this run continues.
    fn read_runs(self: &Arc<Self>, mut claim: Claim) {
        loop {
            let (next, store_failed) = {
                let mut state = self.state.lock();
                (state.to_begin.next(), state.store_failed)
            };
            let Some(mut run) = next else { return };
            if store_failed {
                run.give_up();
            }
            match self.read_run(run, claim) {
                Some(left) => claim = left,
                None => return,
            }
        }
    }

    /// Has the store read the rest of a run, one part after the other. Returns the claim if the run
    /// has ended.
    fn read_run(self: &Arc<Self>, mut run: Run, mut claim: Claim) -> Option<Claim> {
        while let Some((segments, offset)) = self.file.next_part(&mut run) {
            let part = Arc::new(PartRead::default());
            let end = {
                let (this, part) = (Arc::clone(self), Arc::clone(&part));
                move |result| {
                    if let Some((mut run, claim, result)) = part.ended(result) {
                        this.file.end_part(&mut run, result);
                        if let Some(claim) = this.read_run(run, claim) {
                            this.read_runs(claim);
                        }
                    }
                }
            };
            let of = (self.file.cache.arena(), &self.pace);
            assert_may_wait(Rank::StoreIo, "the begin of a read of the store");
            self.file.store.begin_read(StoreRead::new(of, segments, offset, Box::new(end)));
            let result;
            (run, claim, result) = part.leave(run, claim)?;
            self.file.end_part(&mut run, result);
        }
        self.end_run(Some(run));
        Some(claim)
    }

    /// Notes that a run is over, and with the last one ends the fill.
    fn end_run(&self, run: Option<Run>) {
        let (mut fill, runs, stalled, ahead) = {
            let mut state = self.state.lock();
            state.store_failed |= run.as_ref().is_some_and(RunFill::store_failed);
            state.runs.extend(run);
            state.nr_left -= 1;
            if state.nr_left > 0 {
                return;
            }
            let Some(fill) = state.fill.take() else { return };
            (fill, std::mem::take(&mut state.runs), state.stalled.take(), state.ahead.take())
        };
        drop(stalled);
        fill.join(runs);
        let filled = self.file.end_fill(&self.group, fill);
        drop(ahead);
        // Not before: waiters look at the pages.
        if let Some(fills) = &self.file.store_fills {
            fills.leave(self.number);
        }
        let reader = {
            let mut state = self.state.lock();
            let Some(reader) = state.reader.take() else {
                state.filled = Some(filled);
                return;
            };
            reader
        };
        reader(filled);
    }
}

impl Drop for StoreFill {
    fn drop(&mut self) {
        let filled = self.state.lock().filled.take();
        // Its reader has given up. An unpin may free the page, with nothing locked.
        if let Some(filled) = filled {
            filled.frames.iter().for_each(|&frame| self.file.cache.reclaimer().unpin(frame));
        }
    }
}

impl fmt::Debug for StoreFill {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoreFill").field("file", &self.file.id).field("number", &self.number).finish()
    }
}
