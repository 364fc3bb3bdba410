//! A store that begins reads and answers them later, all from one thread, when a test lets it; well
//! or badly, as the test says.
#![allow(dead_code)]

use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::{Condvar, Mutex};
use umemcg_arena::{Arena, Segment};
use umemcg_cache::{BackingStore, StoreId, StoreRead};

/// The way in which a read ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    Whole,
    /// In pieces of odd sizes.
    Pieces,
    /// More than was asked for.
    TooMuch,
    /// A thousand bytes, and then success.
    Short,
    /// A thousand bytes, and then an error.
    Fail,
    /// A thousand bytes, and then no more in time.
    Silence,
    /// A thousand bytes, and then a panic.
    Panic,
    /// Not at all.
    Drop,
    /// Before the call that begins it returns.
    Immediately,
    /// The call that begins it panics.
    PanicAtOnce,
}

type Job = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct Jobs {
    queue: VecDeque<Job>,
    is_held: bool,
}

/// The thread that answers.
pub struct Answerer {
    jobs: Mutex<Jobs>,
    wake: Condvar,
    /// Reads that have been begun.
    pub nr_begun: AtomicUsize,
}

impl std::fmt::Debug for Answerer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Answerer")
    }
}

impl Answerer {
    pub fn start() -> Arc<Self> {
        let this =
            Arc::new(Self { jobs: Mutex::default(), wake: Condvar::new(), nr_begun: AtomicUsize::new(0) });
        let answerer = Arc::clone(&this);
        std::thread::spawn(move || answerer.run());
        this
    }

    fn run(&self) {
        let mut jobs = self.jobs.lock();
        loop {
            let job = if jobs.is_held { None } else { jobs.queue.pop_front() };
            let Some(job) = job else {
                self.wake.wait(&mut jobs);
                continue;
            };
            drop(jobs);
            let _ = catch_unwind(AssertUnwindSafe(job));
            jobs = self.jobs.lock();
        }
    }

    /// Answers nothing from now on.
    pub fn hold(&self) {
        self.jobs.lock().is_held = true;
    }

    pub fn release(&self) {
        self.jobs.lock().is_held = false;
        self.wake.notify_all();
    }

    /// Answers the oldest reads although all are held, on this thread. Returns how many there were.
    pub fn answer(&self, nr_max: usize) -> usize {
        let next = || self.jobs.lock().queue.pop_front();
        let answer = |job: Job| drop(catch_unwind(AssertUnwindSafe(job)));
        (0..nr_max).map_while(|_| next()).map(answer).count()
    }

    pub fn nr_begun(&self) -> usize {
        self.nr_begun.load(Ordering::Relaxed)
    }
}

/// One file of such a store.
#[derive(Debug)]
pub struct LateStore {
    pub id: StoreId,
    pub source: StoreId,
    pub bytes: Mutex<Vec<u8>>,
    pub answerer: Arc<Answerer>,
    pub answer: Mutex<Answer>,
    /// Bytes that no read may touch.
    pub bad: Arc<Mutex<Range<u64>>>,
    pub nr_blocking_reads: AtomicUsize,
    /// The bytes that were asked for in reads begun.
    pub asked: Mutex<Vec<Range<u64>>>,
}

impl LateStore {
    pub fn with(bytes: Vec<u8>, answerer: &Arc<Answerer>) -> Arc<Self> {
        Self::on_store(77, bytes, answerer)
    }

    pub fn on_store(id: u64, bytes: Vec<u8>, answerer: &Arc<Answerer>) -> Arc<Self> {
        Self::of_source((id, id), bytes, answerer)
    }

    /// A file of a store that others may share a source with.
    pub fn of_source((id, source): (u64, u64), bytes: Vec<u8>, answerer: &Arc<Answerer>) -> Arc<Self> {
        Arc::new(Self {
            id: StoreId(id),
            source: StoreId(source),
            bytes: Mutex::new(bytes),
            answerer: Arc::clone(answerer),
            answer: Mutex::new(Answer::Whole),
            bad: Arc::default(),
            nr_blocking_reads: AtomicUsize::new(0),
            asked: Mutex::default(),
        })
    }

    /// Returns the end of what was asked for.
    pub fn asked_end(&self) -> u64 {
        self.asked.lock().iter().map(|range| range.end).max().unwrap_or(0)
    }
}

/// Returns what a read gets that is begun now; with `TooMuch` all to the end of the file.
fn bytes_for(read: &StoreRead, bytes: &[u8], how: Answer) -> Vec<u8> {
    let start = read.offset() as usize;
    let end = if how == Answer::TooMuch { bytes.len() } else { bytes.len().min(start + read.len()) };
    bytes[start.min(end)..end].to_vec()
}

fn answer(mut read: StoreRead, wanted: &[u8], bad: &Mutex<Range<u64>>, how: Answer) {
    let (start, len) = (read.offset() as usize, read.len());
    let bad = bad.lock().clone();
    if bad.start < (start + len) as u64 && (start as u64) < bad.end {
        return read.finish(Err(io::Error::from_raw_os_error(5)));
    }
    match how {
        Answer::Whole | Answer::TooMuch | Answer::Immediately => read.deliver(wanted),
        Answer::Pieces => {
            let mut rest = wanted;
            for size in (1..).map(|n| n * 997 % 5003) {
                let (piece, more) = rest.split_at(rest.len().min(size));
                read.deliver(piece);
                if more.is_empty() {
                    break;
                }
                rest = more;
            }
        }
        _ => read.deliver(&wanted[..wanted.len().min(1000)]),
    }
    match how {
        Answer::Fail => read.finish(Err(io::Error::from_raw_os_error(5))),
        Answer::Silence => read.finish(Err(io::ErrorKind::TimedOut.into())),
        Answer::Panic => panic!("the store gives up"),
        Answer::Drop => {}
        _ => read.finish(Ok(())),
    }
}

impl BackingStore for LateStore {
    fn store_id(&self) -> StoreId {
        self.id
    }
    fn source_id(&self) -> StoreId {
        self.source
    }
    fn read_at(&self, arena: &Arena, segments: &[Segment], offset: u64) -> io::Result<usize> {
        self.nr_blocking_reads.fetch_add(1, Ordering::Relaxed);
        let bytes = self.bytes.lock();
        let mut rest = bytes.get(offset as usize..).unwrap_or(&[]);
        let before = rest.len();
        for segment in segments {
            let (here, more) = rest.split_at(rest.len().min(usize::from(segment.len)));
            arena.copy_in(segment.frame, usize::from(segment.offset), here);
            rest = more;
        }
        Ok(before - rest.len())
    }
    fn begins_reads(&self) -> bool {
        true
    }
    fn begin_read(&self, read: StoreRead) {
        self.answerer.nr_begun.fetch_add(1, Ordering::Relaxed);
        self.asked.lock().push(read.offset()..read.offset() + read.len() as u64);
        let how = *self.answer.lock();
        let (wanted, bad) = (bytes_for(&read, &self.bytes.lock(), how), Arc::clone(&self.bad));
        match how {
            Answer::Immediately => answer(read, &wanted, &bad, how),
            Answer::PanicAtOnce => panic!("the store does not even begin"),
            _ => {
                let job = Box::new(move || answer(read, &wanted, &bad, how));
                self.answerer.jobs.lock().queue.push_back(job);
                self.answerer.wake.notify_all();
            }
        }
    }
    fn write_at(&self, arena: &Arena, segments: &[Segment], offset: u64) -> io::Result<usize> {
        let mut bytes = self.bytes.lock();
        let mut at = offset as usize;
        for segment in segments {
            let end = at + usize::from(segment.len);
            let len = bytes.len().max(end);
            bytes.resize(len, 0);
            arena.copy_out(segment.frame, usize::from(segment.offset), &mut bytes[at..end]);
            at = end;
        }
        Ok(at - offset as usize)
    }
    fn sync_range(&self, _offset: u64, _len: u64) -> io::Result<()> {
        Ok(())
    }
    fn sync(&self, _data_only: bool) -> io::Result<()> {
        Ok(())
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        self.bytes.lock().resize(len as usize, 0);
        Ok(())
    }
}
