//! Windows that are begun before their reader comes to them: when, how far, at whose cost, and what
//! becomes of them.

use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use crate::common::late_store::{Answer, Answerer, LateStore};
use crate::common::steps::{Steps, Wanted};
use crate::common::{MemStore, Pool, group, pattern, pool};
use umemcg_cache::{File, FileError, ReadStep, Readahead};
use umemcg_group::Group;

const MIB: usize = 1 << 20;
const PAGE: usize = 4096;
/// Bytes of each read, as of a program that copies a file.
const STEP: usize = 128 << 10;
const TIMEOUT: Duration = Duration::from_secs(60);

struct Ground {
    pool: Arc<Pool>,
    tenant: Arc<Group>,
    answerer: Arc<Answerer>,
    store: Arc<LateStore>,
    file: Arc<File>,
    data: Vec<u8>,
}

impl Ground {
    /// A file of this length whose store answers when it is let, and a group with this limit.
    fn new(len: usize, limit: u64) -> Self {
        let pool = pool(128 << 20);
        let tenant = group(&pool, "t", limit);
        let (answerer, data) = (Answerer::start(), pattern(7, 0, len));
        answerer.hold();
        let store = LateStore::with(data.clone(), &answerer);
        let file = pool.open_file(store.clone(), len as u64).unwrap();
        Self { pool, tenant, answerer, store, file, data }
    }

    fn reader(&self) -> Reader<'_> {
        Reader {
            ground: self,
            file: &self.file,
            group: &self.tenant,
            readahead: Readahead::of_remote(),
            at: 0,
        }
    }

    /// Lets the store answer until nothing is under way.
    fn answer_all(&self) {
        while self.answerer.answer(1) > 0 {}
    }

    /// Waits until nothing is left of what was in flight.
    fn check_end(&self) {
        self.answerer.release();
        let deadline = Instant::now() + TIMEOUT;
        loop {
            self.pool.drop_caches();
            self.tenant.drain_stocks();
            let (nr_pages, usage) = (self.file.nr_cached_pages(), self.tenant.usage_bytes());
            if nr_pages == 0 && usage < 64 << 10 {
                return;
            }
            assert!(Instant::now() < deadline, "{nr_pages} pages are left, {usage} bytes charged");
            std::thread::park_timeout(Duration::from_millis(1));
        }
    }
}

/// An open file that is read from its start on, as a daemon does it.
struct Reader<'g> {
    ground: &'g Ground,
    file: &'g Arc<File>,
    group: &'g Arc<Group>,
    readahead: Readahead,
    at: usize,
}

impl Reader<'_> {
    /// Reads the next bytes. Has the store answer one read after the other while it waits; returns
    /// how many these were.
    fn try_next(&mut self) -> Result<usize, FileError> {
        let mut nr_waits = 0;
        let bytes = match self.file.try_read(self.at as u64, STEP, &self.readahead) {
            Some(pages) => pages.to_vec(),
            None => {
                let mut read = self.file.start_read(self.at as u64, STEP);
                loop {
                    let waiting = match self.file.step_read(self.group, read, &self.readahead)? {
                        ReadStep::Done(pages) => break pages.to_vec(),
                        ReadStep::Waits(waiting) => waiting,
                    };
                    let (sender, ready) = channel();
                    waiting.when_ready(move |read| drop(sender.send(read)));
                    read = loop {
                        if let Ok(read) = ready.try_recv() {
                            break read;
                        }
                        assert_eq!(self.ground.answerer.answer(1), 1, "nothing is begun that it waits for");
                        nr_waits += 1;
                    };
                }
            }
        };
        let end = self.ground.data.len().min(self.at + STEP);
        assert!(bytes == self.ground.data[self.at..end.min(self.at + bytes.len())], "at {}", self.at);
        self.at += bytes.len();
        Ok(nr_waits)
    }

    fn next(&mut self) -> usize {
        self.try_next().unwrap()
    }

    fn read_to(&mut self, end: usize) -> usize {
        let mut nr_waits = 0;
        while self.at < end {
            nr_waits += self.next();
        }
        nr_waits
    }
}

#[test]
fn the_next_window_is_begun_before_its_reader_waits() {
    let ground = Ground::new(32 * MIB, 64 << 20);
    let mut reader = ground.reader();
    reader.next();
    assert_eq!(ground.store.asked_end(), MIB as u64, "the first read has no more to go by");
    reader.next();
    let asked_end = ground.store.asked_end();
    assert!(asked_end > MIB as u64, "the second is sequential");
    let nr_begun = ground.answerer.nr_begun();
    assert_eq!(reader.read_to(MIB), 0);
    assert_eq!(ground.answerer.nr_begun(), nr_begun, "one window at a time");
    ground.answer_all();
    assert_eq!(reader.next(), 0);
    assert!(ground.store.asked_end() > asked_end, "it has come to the next one");
    ground.check_end();
}

#[test]
fn a_reader_that_the_store_keeps_up_with_waits_once() {
    let ground = Ground::new(48 * MIB, 128 << 20);
    let mut reader = ground.reader();
    reader.next();
    while reader.at < ground.data.len() {
        assert_eq!(reader.next(), 0, "at {}", reader.at);
        ground.answer_all();
    }
    assert!(ground.answerer.nr_begun() <= 48, "{}", ground.answerer.nr_begun());
    let mut asked = ground.store.asked.lock().clone();
    asked.sort_by_key(|range| range.start);
    assert!(asked.windows(2).all(|two| two[0].end == two[1].start), "{asked:?}");
    ground.check_end();
}

#[test]
fn copies_out_of_the_cache_have_windows_begun_too() {
    let ground = Ground::new(8 * MIB, 64 << 20);
    let mut reader = ground.reader();
    reader.next();
    let mut bytes = vec![0; STEP];
    let into = |bytes: &mut [u8]| ground.file.try_read_into(STEP as u64, bytes, &reader.readahead);
    assert_eq!(into(&mut bytes), None, "it declines once");
    assert_eq!(into(&mut bytes), Some(STEP));
    ground.check_end();
}

#[test]
fn a_slow_reader_has_one_window_ahead_and_a_fast_one_more() {
    let ground = Ground::new(100 * MIB, 128 << 20);
    let mut slow = ground.reader();
    while slow.at < 20 * MIB {
        slow.next();
        ground.answer_all();
        let ahead = ground.store.asked_end() as usize - slow.at;
        assert!(ahead <= 2 * 8 * MIB, "at {}: {ahead} ahead", slow.at);
    }
    let fast_ground = Ground::new(100 * MIB, 128 << 20);
    let mut fast = fast_ground.reader();
    let mut most = 0;
    while fast.at < 60 * MIB {
        fast.next();
        most = most.max(fast_ground.store.asked_end() as usize - fast.at);
    }
    let longest = fast_ground.store.asked.lock().iter().map(|range| range.end - range.start).max();
    assert!(most as u64 > 3 * longest.unwrap(), "{most}, {longest:?}");
    [ground, fast_ground].iter().for_each(Ground::check_end);
}

#[test]
fn what_is_read_ahead_is_charged_within_a_quarter_of_a_limit() {
    let ground = Ground::new(64 * MIB, 16 << 20);
    let mut reader = ground.reader();
    while reader.at < 40 * MIB {
        reader.next();
        let ahead = (ground.store.asked_end() as usize).saturating_sub(reader.at);
        assert!(ahead <= 4 * MIB, "at {}: {ahead} ahead", reader.at);
        let usage = ground.tenant.usage_bytes();
        assert!((ahead as u64..=16 << 20).contains(&usage), "{usage} charged, {ahead} ahead");
    }
    ground.check_end();
}

#[test]
fn readers_of_a_group_share_what_may_be_under_way() {
    let ground = Ground::new(16 * MIB, 16 << 20);
    let files: Vec<_> = (0..8)
        .map(|_| ground.pool.open_file(ground.store.clone(), ground.data.len() as u64).unwrap())
        .collect();
    let mut readers: Vec<_> = files
        .iter()
        .map(|file| Reader { file, readahead: Readahead::of_remote(), ..ground.reader() })
        .collect();
    readers.iter_mut().for_each(|reader| assert!(reader.next() > 0));
    let nr_before = ground.store.asked.lock().len();
    readers.iter_mut().for_each(|reader| assert_eq!(reader.next(), 0));
    let asked = ground.store.asked.lock().clone();
    let under_way: u64 = asked[nr_before..].iter().map(|range| range.end - range.start).sum();
    assert!((2 << 20..=4 << 20).contains(&under_way), "{under_way}");
    drop(readers);
    ground.check_end();
}

#[test]
fn a_small_group_has_nothing_read_ahead() {
    let ground = Ground::new(16 * MIB, 4 << 20);
    let mut reader = ground.reader();
    while reader.at < 8 * MIB {
        reader.next();
        assert_eq!(ground.answerer.answer(1), 0, "at {}", reader.at);
    }
    ground.check_end();
}

/// Streams through a full group beside a file that is used twice. Returns how often the reader
/// waited, and how many pages of the other file are left.
fn stream_through_full_group(is_kept_above: bool) -> (usize, u64) {
    let ground = Ground::new(64 * MIB, 16 << 20);
    let kept = ground.pool.open_file(ground.store.clone(), 8 << 20).unwrap();
    for _ in 0..2 {
        let mut reader = Reader { file: &kept, ..ground.reader() };
        while reader.at < 8 * MIB {
            reader.next();
            ground.answer_all();
        }
    }
    ground.file.set_kept_above(is_kept_above);
    let (mut reader, mut nr_waits) = (ground.reader(), 0);
    while reader.at < 60 * MIB {
        nr_waits += usize::from(reader.next() > 0);
        ground.answer_all();
    }
    let nr_kept = kept.nr_cached_pages();
    drop((reader, kept));
    ground.check_end();
    (nr_waits, nr_kept)
}

#[test]
fn a_full_group_reads_ahead_over_what_it_has_used_once() {
    let (nr_waits, nr_kept) = stream_through_full_group(false);
    let (nr_waits_before, nr_kept_before) = stream_through_full_group(true);
    assert!(4 * nr_waits < nr_waits_before, "{nr_waits} waits, {nr_waits_before} without read-ahead");
    assert!(nr_kept + 128 >= nr_kept_before, "{nr_kept} pages are left, {nr_kept_before} without");
}

#[test]
fn nothing_is_read_ahead_over_memory_high() {
    let ground = Ground::new(16 * MIB, 64 << 20);
    ground.pool.reclaimer().set_high(&ground.tenant, 2 << 20);
    let mut reader = ground.reader();
    reader.next();
    // 2 MiB more would exceed it.
    reader.read_to(MIB);
    assert_eq!(ground.store.asked_end(), MIB as u64);
    ground.check_end();
}

#[test]
fn a_random_reader_has_nothing_read_ahead() {
    let ground = Ground::new(32 * MIB, 64 << 20);
    let mut reader = ground.reader();
    let mut bytes_read = MIB;
    for nr in 0..100 {
        reader.at = (nr * 7919 % 250) * STEP;
        reader.next();
        bytes_read += STEP;
        assert_eq!(ground.answerer.answer(1), 0, "read {nr}");
    }
    let asked: u64 = ground.store.asked.lock().iter().map(|range| range.end - range.start).sum();
    assert!(asked <= bytes_read as u64, "{asked}");
    ground.check_end();
}

#[test]
fn reads_that_are_waited_for_come_before_windows() {
    const NR: usize = 300;
    let ground = Ground::new(32 * MIB, 64 << 20);
    let mut reader = ground.reader();
    reader.next();
    let wanted = |nr| Wanted::new(&ground.file, &ground.tenant, (8 * MIB + 3 * nr * PAGE) as u64, 1);
    let flood = Steps::begin((0..NR).map(wanted).collect());
    let nr_begun = ground.answerer.nr_begun();
    assert!(nr_begun <= NR, "there is no room");
    assert_eq!(reader.next(), 0);
    assert_eq!(ground.answerer.nr_begun(), nr_begun);
    ground.answerer.release();
    flood.finish().into_iter().for_each(|result| assert!(result.is_ok()));
    ground.answerer.hold();
    reader.read_to(MIB);
    assert!(ground.answerer.nr_begun() > nr_begun, "later there is");
    ground.check_end();
}

#[test]
fn a_window_that_fails_is_no_error_of_its_reader() {
    for how in [Answer::Fail, Answer::Silence, Answer::Panic, Answer::Drop, Answer::PanicAtOnce] {
        let ground = Ground::new(16 * MIB, 64 << 20);
        let mut reader = ground.reader();
        reader.next();
        *ground.store.answer.lock() = how;
        reader.next();
        ground.answer_all();
        reader.read_to(MIB);
        let error = reader.try_next();
        assert!(matches!(error, Err(FileError::Store(_))), "{how:?}: {error:?}");
        *ground.store.answer.lock() = Answer::Whole;
        reader.read_to(16 * MIB);
        ground.check_end();
    }
}

#[test]
fn a_truncation_waits_for_windows_and_leaves_none_of_them() {
    let ground = Ground::new(16 * MIB, 64 << 20);
    let mut reader = ground.reader();
    reader.next();
    reader.next();
    assert_eq!(ground.answerer.nr_begun(), 2);
    let cut = 2 * MIB + 10;
    std::thread::scope(|scope| {
        let truncation = scope.spawn(|| ground.file.set_len(cut as u64).unwrap());
        // No more windows are begun from when it waits on, and no read is held up.
        while !truncation.is_finished() {
            reader.at = 0;
            assert!(
                reader.file.try_read(0, STEP, &Readahead::new()).is_some_and(|pages| pages.len() == STEP)
            );
            ground.answerer.answer(1);
        }
    });
    assert_eq!(ground.file.len(), cut as u64);
    ground.file.set_len(4 * MIB as u64).unwrap();
    let mut bytes = Vec::new();
    while bytes.len() < 4 * MIB {
        ground.answerer.release();
        let pages = ground.file.read(&ground.tenant, bytes.len() as u64, MIB, &reader.readahead).unwrap();
        bytes.extend(pages.to_vec());
    }
    assert!(bytes[..cut] == ground.data[..cut] && bytes[cut..].iter().all(|&byte| byte == 0));
    ground.check_end();
}

#[test]
fn a_group_that_is_removed_leaves_its_windows_to_its_parent() {
    let ground = Ground::new(16 * MIB, 64 << 20);
    let mut reader = ground.reader();
    reader.next();
    reader.next();
    ground.pool.remove_group(&ground.tenant).unwrap();
    reader.read_to(8 * MIB);
    ground.answer_all();
    assert!(ground.pool.root().usage_bytes() >= 8 << 20);
    ground.check_end();
    ground.pool.root().drain_stocks();
    assert!(ground.pool.root().usage_bytes() < MIB as u64);
}

#[test]
fn windows_that_are_evicted_are_read_again() {
    let ground = Ground::new(16 * MIB, 64 << 20);
    let mut reader = ground.reader();
    while reader.at < 16 * MIB {
        reader.next();
        ground.answer_all();
        ground.pool.drop_caches();
    }
    ground.check_end();
}

#[test]
fn a_file_that_is_closed_beside_a_window_goes_with_it() {
    let ground = Ground::new(16 * MIB, 64 << 20);
    let mut reader = ground.reader();
    reader.next();
    reader.next();
    let Ground { pool, tenant, answerer, store, file, .. } = ground;
    drop(file);
    assert!(Arc::strong_count(&store) > 1);
    while answerer.answer(1) > 0 {}
    assert_eq!(Arc::strong_count(&store), 1);
    tenant.drain_stocks();
    assert!(tenant.usage_bytes() < 64 << 10);
    drop(pool);
}

/// Pages beyond a request may have been handed over already.
#[test]
fn no_more_of_a_file_that_is_kept_above_is_read_than_asked() {
    let (pool, data) = (pool(128 << 20), pattern(7, 0, 4 * MIB));
    let tenant = group(&pool, "t", 64 << 20);
    let file = pool.open_file(MemStore::with(&data), data.len() as u64).unwrap();
    file.set_kept_above(true);
    let readahead = Readahead::new();
    for at in (0..data.len()).step_by(STEP) {
        let pages = file.read(&tenant, at as u64, STEP, &readahead).unwrap();
        assert!(pages.to_vec() == data[at..at + STEP]);
        drop(pages);
        assert_eq!(file.give_up_clean(at as u64, STEP as u64), (STEP / PAGE) as u64);
        assert_eq!(file.nr_cached_pages(), 0, "beyond {at}");
    }
}

#[test]
fn a_file_that_is_kept_above_has_no_windows_begun() {
    let ground = Ground::new(16 * MIB, 64 << 20);
    ground.file.set_kept_above(true);
    let mut reader = ground.reader();
    while reader.at < 16 * MIB {
        reader.next();
        assert_eq!(ground.answerer.answer(1), 0, "at {}", reader.at);
    }
    ground.check_end();
}
