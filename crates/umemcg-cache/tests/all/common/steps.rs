//! Reads in steps, as a server of requests has them: a thread that has begun one goes on with
//! others, and takes up again what can go on.
#![allow(dead_code)]

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use umemcg_cache::{File, FileError, ReadStep, Readahead, StartedRead};
use umemcg_group::Group;

/// Longest that a read may take; a bound for tests that fail.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A range of a file that is read for a group.
pub struct Wanted {
    pub file: Arc<File>,
    pub group: Arc<Group>,
    pub offset: u64,
    pub len: usize,
    pub readahead: Arc<Readahead>,
}

impl Wanted {
    pub fn new(file: &Arc<File>, group: &Arc<Group>, offset: u64, len: usize) -> Self {
        let readahead = Arc::default();
        Self { file: Arc::clone(file), group: Arc::clone(group), offset, len, readahead }
    }
}

/// Reads that one thread is about.
pub struct Steps {
    wanted: Vec<Wanted>,
    now_ready: Sender<(usize, StartedRead)>,
    ready: Receiver<(usize, StartedRead)>,
    /// By read, what it got.
    pub results: Vec<Option<Result<Vec<u8>, FileError>>>,
}

impl Steps {
    /// Takes the first step of each read.
    pub fn begin(wanted: Vec<Wanted>) -> Self {
        let results = wanted.iter().map(|_| None).collect();
        let (now_ready, ready) = channel();
        let mut this = Self { wanted, now_ready, ready, results };
        for nr in 0..this.wanted.len() {
            let of = &this.wanted[nr];
            let read = of.file.start_read(of.offset, of.len);
            this.step(nr, read);
        }
        this
    }

    fn step(&mut self, nr: usize, read: StartedRead) {
        let of = &self.wanted[nr];
        let result = match of.file.step_read(&of.group, read, &of.readahead) {
            Ok(ReadStep::Done(pages)) => Ok(pages.to_vec()),
            Err(error) => Err(error),
            Ok(ReadStep::Waits(waiting)) => {
                let sender = self.now_ready.clone();
                // The receiver is gone when a test ends early.
                return waiting.when_ready(move |read| drop(sender.send((nr, read))));
            }
        };
        assert!(self.results[nr].replace(result).is_none(), "read {nr} ended twice");
    }

    pub fn nr_done(&self) -> usize {
        self.results.iter().flatten().count()
    }

    /// Goes on with what can go on now.
    pub fn go_on(&mut self) {
        while let Ok((nr, read)) = self.ready.try_recv() {
            self.step(nr, read);
        }
    }

    /// Goes on until all are done.
    pub fn finish(mut self) -> Vec<Result<Vec<u8>, FileError>> {
        while self.nr_done() < self.wanted.len() {
            let (nr, read) = self.ready.recv_timeout(TIMEOUT).expect("a read is lost");
            self.step(nr, read);
        }
        self.results.into_iter().flatten().collect()
    }
}

/// Reads one range in steps.
pub fn read_in_steps(
    file: &Arc<File>,
    group: &Arc<Group>,
    offset: u64,
    len: usize,
) -> Result<Vec<u8>, FileError> {
    Steps::begin(vec![Wanted::new(file, group, offset, len)]).finish().remove(0)
}
