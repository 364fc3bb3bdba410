//! The users: threads that do one random operation after another and compare each with the model.

use std::cell::Cell;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use umemcg::Group;
use umemcg::files::{ErrorCursor, FileError, Readahead};
use umemcg_base::{clock, schedule};

use crate::disk::{CELL, Random};
use crate::model::LEN_MAX;
use crate::steps::read_in_steps;
use crate::world::World;

/// An operation of a user.
#[derive(Debug, Clone, Copy)]
enum Operation {
    Write,
    Append,
    Truncate,
    Punch,
    Allocate,
    Sync,
    StartWriteback,
    ReadAll,
    Read,
}

/// The frequency of each operation, in shares.
#[derive(Debug)]
pub struct Mix(Vec<Operation>);

impl Mix {
    /// Any: what most rounds do seldom, some do all the time.
    pub fn new(random: &mut Random) -> Self {
        use Operation::*;
        let mut operations = vec![Write, Read];
        for operation in
            [Write, Write, Append, Truncate, Punch, Allocate, Sync, StartWriteback, ReadAll, Read, Read]
        {
            operations.extend(vec![operation; [0, 1, 1, 2, 6][random.below(5)]]);
        }
        Self(operations)
    }

    fn choose(&self, random: &mut Random) -> Operation {
        self.0[random.below(self.0.len())]
    }
}

/// One thread's state.
pub struct User {
    world: Arc<World>,
    random: Random,
    cursors: Vec<ErrorCursor>,
    /// Of each file, and where its last read ended.
    readaheads: Vec<(Arc<Readahead>, usize)>,
}

impl User {
    pub fn new(world: &Arc<World>, random: Random) -> Self {
        let cursors = world.files.iter().map(|file| file.sample_error()).collect();
        let readaheads = world.files.iter().map(|_| (Arc::default(), 0)).collect();
        Self { world: Arc::clone(world), random, cursors, readaheads }
    }

    /// Does `nr` operations.
    pub fn run(mut self, nr: usize) {
        for _ in 0..nr {
            let file = self.random.below(self.world.files.len());
            self.act(file);
            if self.random.below(8) == 0 {
                let us = self.random.below(5_000);
                schedule::sleep(Duration::from_micros(us as u64));
            }
        }
    }

    fn act(&mut self, file: usize) {
        let world = Arc::clone(&self.world);
        // At times the system refuses threads.
        clock::refuse_threads([0, 0, 0, 2][self.random.below(4)]);
        match world.mix.choose(&mut self.random) {
            Operation::Write => self.write(file),
            Operation::Append => self.append(file),
            Operation::Truncate => self.set_len(file),
            Operation::Punch => self.punch(file),
            Operation::Allocate => self.allocate(file),
            Operation::Sync => self.fsync(file),
            Operation::StartWriteback => self.world.files[file].start_writeback(),
            Operation::ReadAll => self.read_range(file, 0..LEN_MAX),
            Operation::Read => self.read(file),
        }
        clock::refuse_threads(0);
    }

    /// Some cells; few of them mostly, and sometimes many.
    fn range(&mut self) -> Range<usize> {
        let nr_cells = self.world.len_max / CELL;
        let start = self.random.below(nr_cells);
        let most = [3, 3, 20, 20, 20, nr_cells][self.random.below(6)];
        let len = 1 + self.random.below((nr_cells - start).min(most));
        start * CELL..(start + len) * CELL
    }

    fn value(&mut self) -> u8 {
        1 + self.random.below(255) as u8
    }

    /// An error is one of the store's, and the store did refuse something: perhaps to a flush that
    /// was under way before, and that this operation waited for.
    fn must_be_refused(&self, what: &str, _refused_before: u64, error: &FileError) {
        schedule::note(1);
        let is_stores = matches!(error, FileError::Store(_) | FileError::Writeback(_));
        let has_refused = self.world.store.nr_refused() > 0;
        assert!(is_stores && has_refused, "{what}: {error}, though the store refused nothing");
    }

    fn write(&mut self, file: usize) {
        let world = Arc::clone(&self.world);
        let (model, range, value) = (&world.models[file], self.range(), self.value());
        let group = self.group();
        // Beyond the end of the file a write changes the length, which is one change at a time.
        let grows = range.end > model.len();
        let reach = if grows { range.start.min(model.len())..usize::MAX } else { range.clone() };
        let Some(_claim) = model.claim(reach) else { return };
        let old = model.len();
        model.begin_fill(&range, value);
        if grows {
            model.begin_len(range.end);
        }
        let refused_before = world.store.nr_refused();
        schedule::begin(format!("write of {range:?} to file {file}"));
        let bytes = vec![value; range.len()];
        let quick = if self.random.below(4) == 0 {
            world.files[file].try_write(&group, range.start as u64, &bytes)
        } else {
            None
        };
        let result = match quick {
            Some(nr) => Ok(nr),
            None => world.files[file].write(&group, range.start as u64, &bytes),
        };
        schedule::end();
        self.end_write(file, old, &range, refused_before, result);
        if self.random.below(4) == 0 {
            self.pause(file, &group, range.len());
        }
    }

    /// Waits as the dirty limits say. Some writers are killed meanwhile, and wait no longer.
    fn pause(&mut self, file: usize, group: &Arc<Group>, written: usize) {
        let nr_pauses = Cell::new([usize::MAX, self.random.below(4)][self.random.below(2)]);
        let is_killed = || nr_pauses.replace(nr_pauses.get().saturating_sub(1)) == 0;
        schedule::begin(format!("throttle of file {file}"));
        self.world.files[file].throttle_unless(group, written, &is_killed);
        schedule::end();
    }

    /// Ends a write: the new bytes of a claimed range, and of the length if the range ends beyond
    /// `old`.
    fn end_write(
        &mut self,
        file: usize,
        old: usize,
        range: &Range<usize>,
        refused_before: u64,
        result: Result<usize, FileError>,
    ) {
        let (model, handle) = (&self.world.models[file], &self.world.files[file]);
        let grows = range.end > old;
        match result {
            Ok(nr) if nr == range.len() => {
                model.end_fill(range, nr, 0);
                if grows {
                    model.end_len();
                }
            }
            Ok(nr) => {
                assert!(self.world.store.nr_refused() > 0, "a write took {nr} of {range:?}");
                model.end_fill(range, nr, old);
                if grows {
                    let end = (range.start + nr).max(old);
                    assert_eq!(handle.len() as usize, end, "the length after {nr} of {range:?}, from {old}");
                    model.end_len_as(end);
                }
            }
            Err(error) => {
                self.must_be_refused("a write", refused_before, &error);
                assert!(!grows || handle.len() as usize == old, "a refused write of {range:?} grew {old}");
                // The store may have taken a part before it refused the rest: either value from now
                // on.
                model.end_fill(range, 0, old);
                if grows {
                    model.end_len_as(old);
                }
            }
        }
    }

    fn append(&mut self, file: usize) {
        let world = Arc::clone(&self.world);
        let model = &world.models[file];
        let len = model.len();
        let Some(_claim) = model.claim(len..usize::MAX) else { return };
        let (len, more, value, group) =
            (model.len(), CELL * (1 + self.random.below(24)), self.value(), self.group());
        if len + more > world.len_max {
            return;
        }
        let range = len..len + more;
        model.begin_fill(&range, value);
        model.begin_len(range.end);
        let refused_before = world.store.nr_refused();
        schedule::begin(format!("append of {range:?} to file {file}"));
        let result = world.files[file].append(&group, &vec![value; more]);
        schedule::end();
        let result = result.map(|(at, nr)| {
            assert_eq!(at as usize, len, "an append goes to the end");
            nr
        });
        self.end_write(file, len, &range, refused_before, result);
    }

    fn set_len(&mut self, file: usize) {
        let world = Arc::clone(&self.world);
        let model = &world.models[file];
        let len = CELL * self.random.below(world.len_max / CELL + 1);
        let Some(_claim) = model.claim(len.min(model.len())..usize::MAX) else { return };
        let zeroes = len..LEN_MAX;
        model.begin_fill(&zeroes, 0);
        model.begin_len(len);
        let refused_before = world.store.nr_refused();
        let old = world.files[file].len() as usize;
        schedule::begin(format!("truncation of file {file} from {old} to {len}"));
        let result = world.files[file].set_len(len as u64);
        schedule::end();
        match result {
            Ok(()) => {
                model.end_fill(&zeroes, zeroes.len(), 0);
                model.end_len();
            }
            Err(error) => {
                self.must_be_refused("a truncation", refused_before, &error);
                assert_eq!(world.files[file].len() as usize, old, "a refused truncation changes nothing");
                model.end_fill(&zeroes, 0, 0);
                model.end_len_as(old);
            }
        }
    }

    fn punch(&mut self, file: usize) {
        let world = Arc::clone(&self.world);
        let (model, range, group) = (&world.models[file], self.range(), self.group());
        if range.end > model.len() {
            return;
        }
        let Some(_claim) = model.claim(range.clone()) else { return };
        model.begin_fill(&range, 0);
        let refused_before = world.store.nr_refused();
        schedule::begin(format!("hole {range:?} in file {file}"));
        let handle = &world.files[file];
        let punch = || {
            // The cache forgets dirty pages there, and with them growth that only they would have
            // brought.
            if world.store.disk.len(file) < handle.len() as usize {
                world.store.set_len(file, handle.len() as usize)?;
            }
            world.store.punch(file, range.start, range.len())
        };
        let result = handle.zero_range(&group, range.start as u64, range.len() as u64, punch);
        schedule::end();
        match result {
            Ok(()) => model.end_fill(&range, range.len(), 0),
            Err(error) => {
                self.must_be_refused("a hole", refused_before, &error);
                model.end_fill(&range, 0, 0);
            }
        }
    }

    /// `fallocate` that may extend the file.
    fn allocate(&mut self, file: usize) {
        let world = Arc::clone(&self.world);
        let model = &world.models[file];
        let old = model.len();
        let Some(_claim) = model.claim(old..usize::MAX) else { return };
        let old = model.len();
        let len = (old + CELL * self.random.below(24)).min(world.len_max);
        model.begin_len(len);
        let refused_before = world.store.nr_refused();
        schedule::begin(format!("allocation of file {file} from {old} to {len}"));
        let result = world.files[file].allocate(Some(len as u64), || match world.store.disk.len(file) {
            there if there < len => world.store.set_len(file, len),
            _ => Ok(()),
        });
        schedule::end();
        match result {
            Ok(()) => model.end_len(),
            Err(error) => {
                self.must_be_refused("an allocation", refused_before, &error);
                model.end_len_as(old);
            }
        }
    }

    fn fsync(&mut self, file: usize) {
        let world = Arc::clone(&self.world);
        let model = &world.models[file];
        let since = model.begin_sync();
        schedule::begin(format!("fsync of file {file}"));
        let result = world.files[file].fsync(self.random.below(2) == 0, &self.cursors[file]);
        schedule::end();
        match result {
            Ok(()) => model.is_synced(since),
            // Perhaps an error of long ago, which this user has not heard of yet.
            Err(error) => self.must_be_refused("an fsync", 0, &error),
        }
    }

    fn read(&mut self, file: usize) {
        let mut range = self.range();
        if self.random.below(2) == 0 {
            // On from the last one, so that there is something to read ahead.
            let start = self.readaheads[file].1 % self.world.len_max;
            range = start..(start + range.len()).min(LEN_MAX);
        } else {
            // Not only whole cells.
            range.start += self.random.below(CELL);
        }
        self.read_range(file, range.start..range.end.max(range.start + 1));
    }

    fn read_range(&mut self, file: usize, range: Range<usize>) {
        let world = Arc::clone(&self.world);
        let (model, group, readahead) =
            (&world.models[file], self.group(), Arc::clone(&self.readaheads[file].0));
        let refused_before = world.store.nr_refused();
        schedule::begin(format!("read of {range:?} of file {file}"));
        let since = model.begin_read();
        let pages = world.files[file].try_read(range.start as u64, range.len(), &readahead);
        let nr_steps_max = [0, 1, 20, 20][self.random.below(4)];
        let pages = match pages {
            Some(pages) => Ok(pages),
            None if nr_steps_max > 0 => {
                let range = (range.start as u64, range.len());
                read_in_steps(&world.files[file], &group, range, &readahead, nr_steps_max)
            }
            None => world.files[file].read(&group, range.start as u64, range.len(), &readahead),
        };
        match pages {
            Ok(pages) => {
                // A reader takes its time.
                schedule::pause();
                let bytes = pages.to_vec();
                self.readaheads[file].1 = range.start + bytes.len();
                let asked = if bytes.is_empty() { range.len() } else { asked(&range, bytes.len()) };
                let seen = model.end_read(since, range.start, asked, Some(&bytes));
                schedule::pause();
                drop(pages);
                schedule::note(bytes.iter().fold(0, |sum, &byte| sum * 31 + u64::from(byte)));
                if let Err(wrong) = seen {
                    panic!("a read of {range:?} of file {file}: {wrong}");
                }
            }
            Err(error) => {
                model.end_read(since, range.start, range.len(), None).unwrap();
                self.must_be_refused("a read", refused_before, &error);
            }
        }
        schedule::end();
    }

    fn group(&mut self) -> Arc<Group> {
        let groups = self.world.groups.lock();
        Arc::clone(&groups[self.random.below(groups.len())])
    }
}

/// Returns the number of bytes that a read looked at: before the end of the file it may bring less
/// than asked, whole pages and not nothing.
fn asked(range: &Range<usize>, got: usize) -> usize {
    if (range.start + got).is_multiple_of(4096) { got } else { range.len() }
}
