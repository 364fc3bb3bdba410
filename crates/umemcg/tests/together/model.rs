//! The sequential model: what each file may contain, cell by cell, while many threads change it.
//!
//! A change claims its range, so that no two changes of one range are under way at the same time;
//! the bytes of a claimed range are the old or the new ones until the change has returned, and the
//! new ones afterwards. Reads claim nothing. A read may see what was there at any moment between
//! its start and its end; a cut of the power may leave what was there at any moment since the start
//! of the last `fsync` that said yes.
//!
//! Nothing in here is a switch point.

use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::disk::{CELL, Disk};

/// Largest file.
pub const LEN_MAX: usize = 96 * 4096;
/// A value that is still there.
const STILL: u64 = u64::MAX;

/// A value and the ticks in which it was or may have been there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Past<T> {
    value: T,
    from: u64,
    to: u64,
}

impl<T> Past<T> {
    fn overlaps(&self, ticks: &Range<u64>) -> bool {
        self.from <= ticks.end && self.to >= ticks.start
    }
}

/// The values of one place, oldest first.
#[derive(Debug, Clone)]
struct History<T>(Vec<Past<T>>);

impl<T: Copy + PartialEq> History<T> {
    fn new(value: T) -> Self {
        Self(vec![Past { value, from: 0, to: STILL }])
    }

    /// `value` may be there from now on.
    fn may_be(&mut self, value: T, now: u64) {
        self.0.push(Past { value, from: now, to: STILL });
    }

    /// The newest value is there, no older one any more.
    fn is(&mut self, now: u64) {
        let last = self.0.len() - 1;
        for past in self.0[..last].iter_mut().filter(|past| past.to == STILL) {
            past.to = now;
        }
    }

    /// The newest value did not come.
    fn take_back(&mut self) {
        self.0.pop();
    }

    fn forget(&mut self, before: u64) {
        self.0.retain(|past| past.to >= before);
    }

    fn any(&self, ticks: &Range<u64>, is_meant: impl Fn(T) -> bool) -> bool {
        self.0.iter().any(|past| past.overlaps(ticks) && is_meant(past.value))
    }

    fn newest(&self) -> T {
        self.0[self.0.len() - 1].value
    }
}

#[derive(Debug)]
struct State {
    now: u64,
    cells: Vec<History<u8>>,
    len: History<usize>,
    claims: Vec<Range<usize>>,
    /// Starts of the reads that are under way.
    reads: Vec<u64>,
    /// The start of the last `fsync` that said yes.
    synced: u64,
    /// The same of each cell and of the length, where a synchronous write has made them durable.
    synced_cells: Vec<u64>,
    synced_len: u64,
}

/// See the module text.
#[derive(Debug)]
pub struct FileModel(Mutex<State>);

/// A range that no other change may touch; given back when dropped.
#[derive(Debug)]
pub struct Claim<'a> {
    model: &'a FileModel,
    range: Range<usize>,
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        let mut state = self.model.state();
        let at = state.claims.iter().position(|claim| *claim == self.range).unwrap();
        state.claims.swap_remove(at);
    }
}

fn cells(range: &Range<usize>) -> Range<usize> {
    range.start / CELL..range.end.min(LEN_MAX) / CELL
}

impl FileModel {
    pub fn new() -> Self {
        Self(Mutex::new(State {
            now: 1,
            cells: vec![History::new(0); LEN_MAX / CELL],
            len: History::new(0),
            claims: Vec::new(),
            reads: Vec::new(),
            synced: 0,
            synced_cells: vec![0; LEN_MAX / CELL],
            synced_len: 0,
        }))
    }

    /// A file that holds this, and has for ever.
    pub fn of(bytes: &[u8]) -> Self {
        let model = Self::new();
        {
            let mut state = model.state();
            state.len = History::new(bytes.len());
            for (cell, bytes) in state.cells.iter_mut().zip(bytes.chunks(CELL)) {
                // Longer than a cell only where another writer wrote it.
                *cell = History::new(bytes[0]);
                bytes[1..].iter().filter(|&&byte| byte != bytes[0]).for_each(|&byte| cell.may_be(byte, 0));
            }
        }
        model
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tick(&self) -> u64 {
        let mut state = self.state();
        state.now += 1;
        state.now
    }

    /// The length, if no change of it is under way.
    pub fn len(&self) -> usize {
        self.state().len.newest()
    }

    /// Claims a range, unless another change has a part of it.
    pub fn claim(&self, range: Range<usize>) -> Option<Claim<'_>> {
        let mut state = self.state();
        if state.claims.iter().any(|other| other.start < range.end && range.start < other.end) {
            return None;
        }
        state.claims.push(range.clone());
        Some(Claim { model: self, range })
    }

    /// A range becomes `value`, from now on or never.
    pub fn begin_fill(&self, range: &Range<usize>, value: u8) {
        let now = self.tick();
        self.state().cells[cells(range)].iter_mut().for_each(|cell| cell.may_be(value, now));
    }

    /// It has, as far as `done`. From `sure` on the rest kept its value; before, a part of it may
    /// have changed.
    pub fn end_fill(&self, range: &Range<usize>, done: usize, sure: usize) {
        let now = self.tick();
        let mut state = self.state();
        let reached = range.start..range.start + done / CELL * CELL;
        state.cells[cells(&reached)].iter_mut().for_each(|cell| cell.is(now));
        let kept = (range.start + done).max(sure).next_multiple_of(CELL).min(range.end)..range.end;
        state.cells[cells(&kept)].iter_mut().for_each(History::take_back);
    }

    /// The length becomes `len`, from now on or never.
    pub fn begin_len(&self, len: usize) {
        let now = self.tick();
        self.state().len.may_be(len, now);
    }

    /// The length is what was said last.
    pub fn end_len(&self) {
        let now = self.tick();
        self.state().len.is(now);
    }

    /// The length has become something else than was said last.
    pub fn end_len_as(&self, len: usize) {
        let now = self.tick();
        let mut state = self.state();
        state.len.may_be(len, now);
        state.len.is(now);
    }

    /// A read begins; to be ended by [`end_read`](Self::end_read).
    pub fn begin_read(&self) -> u64 {
        let now = self.tick();
        self.state().reads.push(now);
        now
    }

    /// Checks the bytes that a read of `asked` bytes at `offset` brought, if it brought any.
    pub fn end_read(
        &self,
        since: u64,
        offset: usize,
        asked: usize,
        got: Option<&[u8]>,
    ) -> Result<(), String> {
        let now = self.tick();
        let mut state = self.state();
        let at = state.reads.iter().position(|&read| read == since).unwrap();
        state.reads.swap_remove(at);
        got.map_or(Ok(()), |bytes| state.check(&(since..now), offset, Some(asked), bytes))
    }

    /// The end of a look at the length, which was this if the look went well.
    pub fn end_look(&self, since: u64, len: Option<usize>) -> Result<(), String> {
        self.end_read(since, 0, 0, None)?;
        let state = self.state();
        let ticks = since..state.now;
        let is = |len: usize| {
            // A write that makes the file longer may do so in steps.
            state.len.any(&ticks, |past| past <= len) && state.len.any(&ticks, |past| past >= len)
        };
        match len {
            Some(len) if !is(len) => {
                Err(format!("{len} bytes long in ticks {ticks:?}, not {:?}", state.len.0))
            }
            _ => Ok(()),
        }
    }

    /// An `fsync` begins.
    pub fn begin_sync(&self) -> u64 {
        self.tick()
    }

    /// It said yes.
    pub fn is_synced(&self, since: u64) {
        let mut state = self.state();
        state.synced = state.synced.max(since);
        let before = state.reads.iter().copied().fold(state.synced, u64::min);
        state.cells.iter_mut().for_each(|cell| cell.forget(before));
        state.len.forget(before);
    }

    /// A synchronous write of a claimed range said yes: what it left is durable, with the length if
    /// it has changed that.
    pub fn is_written_through(&self, range: &Range<usize>, has_changed_len: bool) {
        let now = self.tick();
        let mut state = self.state();
        state.synced_cells[cells(range)].fill(now);
        if has_changed_len {
            state.synced_len = now;
        }
    }

    /// Checks the bytes that a power cut left.
    pub fn check_cut(&self, bytes: &[u8]) -> Result<(), String> {
        let state = self.state();
        let ticks = state.synced.max(state.synced_len)..STILL;
        let past = state.len.0.iter().filter(|past| past.overlaps(&ticks));
        let (least, most) = past.fold((usize::MAX, 0), |(l, m), past| (l.min(past.value), m.max(past.value)));
        if !(least..=most).contains(&bytes.len()) {
            return Err(format!("{} bytes, promised {least} to {most}", bytes.len()));
        }
        let mut whole = bytes.to_vec();
        whole.resize(LEN_MAX, 0);
        state.check(&(state.synced..STILL), 0, None, &whole)
    }

    /// Checks the bytes when no operation is under way.
    pub fn check_end(&self, bytes: &[u8]) -> Result<(), String> {
        let state = self.state();
        let now = state.now;
        if !state.len.any(&(now..now), |len| len == bytes.len()) {
            return Err(format!("{} bytes long, not {:?}", bytes.len(), state.len.0));
        }
        state.check(&(now..now), 0, None, bytes)
    }
}

impl State {
    /// `asked` says that `bytes` end where the file ends, if there are fewer.
    fn check(
        &self,
        ticks: &Range<u64>,
        offset: usize,
        asked: Option<usize>,
        bytes: &[u8],
    ) -> Result<(), String> {
        if let Some(asked) = asked {
            let end = offset + bytes.len();
            let is_within = self.len.any(ticks, |len| len >= end);
            let is_end = bytes.len() == asked || self.len.any(ticks, |len| len <= end);
            // Beyond the end of the file there is nothing to read, wherever that is.
            if !(bytes.is_empty() || is_within) || !is_end {
                return Err(format!("{} of {asked} bytes at {offset}; length {:?}", bytes.len(), self.len.0));
            }
        }
        let mut good = (usize::MAX, 0);
        for (at, &byte) in bytes.iter().enumerate() {
            // Mostly the bytes of a cell are all the same.
            if std::mem::replace(&mut good, ((offset + at) / CELL, byte)) == ((offset + at) / CELL, byte) {
                continue;
            }
            let cell = &self.cells[(offset + at) / CELL];
            // After a cut, what was written through since the last sync must be there, too.
            let since = if ticks.end == STILL { self.synced_cells[(offset + at) / CELL] } else { 0 };
            let ticks = ticks.start.max(since)..ticks.end;
            if !cell.any(&ticks, |value| value == byte) {
                let (page, cell_nr) = ((offset + at) / 4096, (offset + at) / CELL);
                return Err(format!(
                    "byte {} (page {page}, cell {cell_nr}) is {byte} in ticks {ticks:?}; it was {:?}",
                    offset + at,
                    cell.0
                ));
            }
        }
        Ok(())
    }
}

/// Kinds of forgetfulness that are tried at every cut, the last few of them at random.
const NR_FATES: usize = 6;

/// Checks the bytes that a power cut left of all files against their models.
pub fn check_cut(
    disk: &Disk,
    models: &[FileModel],
    below: &mut dyn FnMut(usize) -> usize,
) -> Result<(), String> {
    for kind in 0..NR_FATES {
        let fate = |nr: usize| -> Vec<usize> {
            match kind {
                0 => Vec::new(),
                1 => (0..nr).collect(),
                2 => (nr.saturating_sub(1)..nr).collect(),
                _ => (0..nr).filter(|_| below(2) == 0).collect(),
            }
        };
        for (nr, (model, bytes)) in models.iter().zip(disk.after_cut(fate)).enumerate() {
            model
                .check_cut(&bytes)
                .map_err(|wrong| format!("file {nr} after a cut of the power, fate {kind}: {wrong}"))?;
        }
    }
    Ok(())
}
