//! How fast one reader reads a file whose store is a round trip away: with windows that are begun
//! when a page is missing, and with windows that are begun before the reader comes to them.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};

use crate::common::{group, pool};
use parking_lot::Mutex;
use umemcg_arena::{Arena, Segment};
use umemcg_cache::{BackingStore, File, ReadStep, Readahead, StoreId, StoreRead};
use umemcg_group::Group;

const MIB: usize = 1 << 20;
const FILE_BYTES: usize = 256 * MIB;
const STEP: usize = 128 << 10;

/// Answers each read after the same time, and counts them.
struct FarStore {
    to_answer: Mutex<Sender<(Instant, StoreRead)>>,
    latency: Duration,
    nr_reads: Mutex<usize>,
}

impl fmt::Debug for FarStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FarStore")
    }
}

impl FarStore {
    fn new(latency: Duration) -> Arc<Self> {
        let (to_answer, reads) = channel::<(Instant, StoreRead)>();
        std::thread::spawn(move || {
            let bytes = vec![7; 64 << 10];
            for (due, mut read) in reads {
                std::thread::sleep(due.saturating_duration_since(Instant::now()));
                while read.nr_delivered() < read.len() {
                    read.deliver(&bytes);
                }
                read.finish(Ok(()));
            }
        });
        Arc::new(Self { to_answer: Mutex::new(to_answer), latency, nr_reads: Mutex::new(0) })
    }
}

impl BackingStore for FarStore {
    fn store_id(&self) -> StoreId {
        StoreId(1)
    }
    fn read_at(&self, _: &Arena, _: &[Segment], _: u64) -> io::Result<usize> {
        Err(io::ErrorKind::Unsupported.into())
    }
    fn begins_reads(&self) -> bool {
        true
    }
    fn begin_read(&self, read: StoreRead) {
        *self.nr_reads.lock() += 1;
        let _ = self.to_answer.lock().send((Instant::now() + self.latency, read));
    }
    fn write_at(&self, _: &Arena, _: &[Segment], _: u64) -> io::Result<usize> {
        Err(io::ErrorKind::Unsupported.into())
    }
    fn sync_range(&self, _: u64, _: u64) -> io::Result<()> {
        Ok(())
    }
    fn sync(&self, _: bool) -> io::Result<()> {
        Ok(())
    }
    fn set_len(&self, _: u64) -> io::Result<()> {
        Ok(())
    }
}

/// Reads the whole file, and works on each part of it for as long as `work` says.
fn read_all(file: &Arc<File>, group: &Arc<Group>, work: Duration) -> Duration {
    let (readahead, begun, mut at) = (Readahead::of_remote(), Instant::now(), 0);
    while at < FILE_BYTES {
        let pages = file.try_read(at as u64, STEP, &readahead).unwrap_or_else(|| {
            let mut read = file.start_read(at as u64, STEP);
            loop {
                match file.step_read(group, read, &readahead).unwrap() {
                    ReadStep::Done(pages) => return pages,
                    ReadStep::Waits(waiting) => {
                        let (sender, ready) = channel();
                        waiting.when_ready(move |read| drop(sender.send(read)));
                        read = ready.recv().unwrap();
                    }
                }
            }
        });
        at += std::hint::black_box(pages.to_vec()).len();
        let until = Instant::now() + work;
        while Instant::now() < until {
            std::hint::spin_loop();
        }
    }
    begun.elapsed()
}

#[test]
#[ignore = "a measurement, for release builds on a quiet machine"]
fn rates_of_one_sequential_reader() {
    println!("latency  group    work           waits for each window   windows begun ahead");
    for latency_ms in [20, 50, 100] {
        for (limit, work) in [(128, 0), (512, 0), (128, 640), (512, 640)] {
            let mut figures = String::new();
            for is_kept_above in [true, false] {
                let pool = pool(512 << 20);
                let tenant = group(&pool, "t", limit << 20);
                let store = FarStore::new(Duration::from_millis(latency_ms));
                let file = pool.open_file(store.clone(), FILE_BYTES as u64).unwrap();
                // Nothing is begun ahead for a cache above this one.
                file.set_kept_above(is_kept_above);
                let seconds = read_all(&file, &tenant, Duration::from_micros(work)).as_secs_f64();
                let rate = FILE_BYTES as f64 / 1e6 / seconds;
                figures += &format!("  {rate:6.0} MB/s {:3} reads", *store.nr_reads.lock());
            }
            println!("{latency_ms:4} ms  {limit:3} MiB  {work:3} us/128 KiB {figures}");
        }
    }
}
