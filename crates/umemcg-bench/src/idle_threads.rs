//! `threads`: the cost of one operation while 4, 16, 64, 256 and 1,024 threads are idle: a hit, a
//! miss, a charge, a refused charge, a first write to a clean file, a look at dirty bytes; the same
//! operations with 1, 100, 1,000 and 8,000 groups with dirty files. No cost may grow with the
//! number of idle threads or groups.
//!
//! The least samples are compared: other load of the machine can only make a sample longer.
//!
//! An idle thread has charged a group of its own twice and then sleeps, so it holds stock, and a
//! refused charge must not overlook that. The numbers of threads are measured in ascending order:
//! leftovers of an ended thread, such as its place in a table, would hide the difference.

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use umemcg::files::{File, Readahead};
use umemcg::{Charge, Engine, EngineConfig, Group};
use umemcg_base::{PAGE_SIZE, PAGE_SIZE_U64};

use crate::options::{Failure, Options};
use crate::progress::Progress;
use crate::report::{Report, Section, Target, Verdict};
use crate::stats::{Samples, Side, alternate, thread_time};
use crate::store::{Generated, is_right};

const NR_THREADS: [usize; 5] = [4, 16, 64, 256, 1024];
const NR_DIRTY_GROUPS: [usize; 4] = [1, 100, 1000, 8000];
/// The maximum cost of the dearest side, as a multiple of the cheapest.
const SPREAD_MAX: f64 = 1.2;
const POOL_BYTES: u64 = 1 << 30;
/// Pages of the file for hits.
const NR_CACHED: u64 = 1024;
/// Pages between two misses, so that none reads ahead for the next.
const MISS_STRIDE: u64 = 64;
/// Limit of the group whose charges are refused.
const FULL_BYTES: u64 = 1 << 20;
/// Operations in one sample, at full size.
const NR_HITS: usize = 100_000;
const NR_MISSES: usize = 1000;
const NR_CHARGES: usize = 1 << 20;
const NR_REFUSALS: usize = 1000;
const NR_LOOKS: usize = 1000;
/// Clean files written in one sample.
const NR_WRITES: usize = 200;
/// The time limit of write-back of memory.
const SYNC_WITHIN: Duration = Duration::from_secs(30);
/// Stack of an idle thread.
const STACK_BYTES: usize = 64 << 10;

/// The operations measured beside idle threads and beside groups.
const OPERATIONS: [&str; 6] = [
    "hit, 4 KiB copied",
    "miss, 4 KiB",
    "charge",
    "refused charge",
    "first write to a clean file, p90",
    "unclean bytes, read near a threshold",
];

/// Runs the benchmark.
pub fn run(options: &Options) -> Result<Report, Failure> {
    let progress = Progress::new();
    let rounds = options.rounds as usize;
    let mut report = Report::new("threads", options.scale, rounds);
    let ground = Ground::new(options.scale.min(1.0))?;
    // By operation, then by number of threads.
    let mut found: Vec<Vec<Samples>> = vec![Vec::new(); OPERATIONS.len()];
    let mut idle = IdleThreads::new(&ground.engine)?;
    // Not counted: the first operations touch memory for the first time.
    alternate(rounds, ground.sides("0 threads", &|| ()), &progress);
    for nr in NR_THREADS {
        idle.grow_to(nr)?;
        progress.show(&format!("{nr} idle threads"));
        let by_operation = alternate(rounds, ground.sides(&format!("{nr} threads"), &|| ()), &progress);
        found.iter_mut().zip(by_operation).for_each(|(of_operation, samples)| of_operation.push(samples));
    }
    idle.end();
    for (title, sides) in OPERATIONS.iter().zip(found) {
        report.sections.push(flat(title, sides));
    }
    let mut found: Vec<Vec<Samples>> = vec![Vec::new(); OPERATIONS.len()];
    let mut dirty = DirtyGroups::new(&ground.engine)?;
    for nr in NR_DIRTY_GROUPS {
        dirty.grow_to(nr)?;
        let make_dirty = || dirty.write_all();
        let by_operation = alternate(rounds, ground.sides(&format!("{nr} groups"), &make_dirty), &progress);
        found.iter_mut().zip(by_operation).for_each(|(of_operation, samples)| of_operation.push(samples));
    }
    for (title, sides) in OPERATIONS.iter().zip(found) {
        report.sections.push(flat(&format!("{title}, beside groups with dirty files"), sides));
    }
    drop(dirty);
    ground.finish()?;
    report.notes.push(
        "processor time of one thread; the first writes in real time, because they wait for the flusher, of which each sample's \
         90th percentile counts"
            .into(),
    );
    Ok(report)
}

/// A section that compares the dearest side with the cheapest.
pub(crate) fn flat(title: &str, sides: Vec<Samples>) -> Section {
    let least = sides.iter().map(|side| side.min);
    let spread = least.clone().fold(0.0, f64::max) / least.fold(f64::INFINITY, f64::min);
    let verdicts = vec![Verdict::new("dearest of cheapest", spread, Target::TimesAtMost(SPREAD_MAX))];
    Section { title: title.to_owned(), unit: "ns", sides, verdicts }
}

/// The groups and files of the measured thread.
struct Ground {
    engine: Arc<Engine>,
    group: Arc<Group>,
    /// A full group, and the charge that fills it.
    full: Arc<Group>,
    filling: Vec<Charge>,
    cached: Arc<File>,
    missed: Arc<File>,
    /// Files of one page each, clean between the samples.
    written: Vec<Arc<File>>,
    scale: f64,
}

impl Ground {
    fn new(scale: f64) -> Result<Self, Failure> {
        let config = EngineConfig::new(POOL_BYTES);
        let engine = Engine::new(config).map_err(Failure::at("cannot make an engine"))?;
        let group = create(&engine, "measured")?;
        let full = create(&engine, "full")?;
        engine.set_limit(&full, FULL_BYTES).map_err(Failure::at("cannot set a limit"))?;
        let filling: Vec<Charge> = std::iter::from_fn(|| full.try_charge(PAGE_SIZE_U64).ok()).collect();
        let open = |nr_pages| open(&engine, nr_pages);
        let written = (0..NR_WRITES).map(|_| open(1)).collect::<Result<Vec<_>, _>>()?;
        let (cached, missed) = (open(NR_CACHED)?, open(NR_MISSES as u64 * MISS_STRIDE)?);
        let readahead = Readahead::new();
        let files = written.iter().chain([&cached]);
        for file in files {
            for offset in (0..file.len()).step_by(PAGE_SIZE) {
                let read = file.read(&group, offset, PAGE_SIZE, &readahead);
                drop(read.map_err(Failure::at("cannot read"))?);
            }
        }
        Ok(Self { engine, group, full, filling, cached, missed, written, scale })
    }

    /// The operations, in the order of [`OPERATIONS`]. `prepare` is called before each sample of
    /// first writes, and leaves no dirty page.
    fn sides<'a>(&'a self, name: &str, prepare: &'a dyn Fn()) -> Vec<Side<'a>> {
        vec![
            Side::new(name, || self.hits()),
            Side::new(name, || self.misses()),
            Side::new(name, || self.charges()),
            Side::new(name, || self.refusals()),
            Side::new(name, || {
                prepare();
                self.first_writes()
            }),
            Side::new(name, || self.looks()),
        ]
    }

    fn scaled(&self, full: usize) -> usize {
        ((full as f64 * self.scale) as usize).max(full / 20)
    }

    fn hits(&self) -> f64 {
        let readahead = Readahead::new();
        let mut buffer = vec![0; PAGE_SIZE];
        timed(self.scaled(NR_HITS), |at| {
            let offset = at as u64 * 7919 % NR_CACHED * PAGE_SIZE_U64;
            let nr_read = self.cached.try_read_into(offset, &mut buffer, &readahead);
            assert!(nr_read == Some(PAGE_SIZE) && is_right(offset, &buffer[..8]), "a cached page is read");
        })
    }

    fn misses(&self) -> f64 {
        self.missed.invalidate_clean();
        let mut buffer = vec![0; PAGE_SIZE];
        timed(self.scaled(NR_MISSES), |at| {
            let offset = at as u64 * MISS_STRIDE * PAGE_SIZE_U64;
            let pages = self.missed.read(&self.group, offset, PAGE_SIZE, &Readahead::new());
            let nr_read = pages.expect("there is room").copy_to(&mut buffer);
            assert!(nr_read == PAGE_SIZE && is_right(offset, &buffer[..8]), "a page is read");
        })
    }

    fn charges(&self) -> f64 {
        timed(self.scaled(NR_CHARGES), |_| {
            drop(black_box(self.group.try_charge(black_box(PAGE_SIZE_U64)).expect("there is room")));
        })
    }

    fn refusals(&self) -> f64 {
        timed(self.scaled(NR_REFUSALS), |_| {
            assert!(black_box(self.full.try_charge(black_box(PAGE_SIZE_U64))).is_err(), "the group is full");
        })
    }

    /// Reads the dirty counts of a group and of the root, as a throttled writer does.
    fn looks(&self) -> f64 {
        let root = self.engine.root();
        timed(self.scaled(NR_LOOKS), |_| {
            black_box(root.unclean_bytes_about(1) + self.group.unclean_bytes_about(1));
        })
    }

    /// Writes every file once and has all written back after that. Returns the 90th percentile of a
    /// write's real time.
    fn first_writes(&self) -> f64 {
        let data = vec![7; PAGE_SIZE];
        let mut times: Vec<Duration> = Vec::with_capacity(self.written.len());
        for file in &self.written {
            let start = Instant::now();
            let nr_written = file.write(&self.group, 0, &data).expect("there is room");
            times.push(start.elapsed());
            assert_eq!(nr_written, PAGE_SIZE, "a page is written");
        }
        assert!(self.engine.sync_all(SYNC_WITHIN).is_empty(), "memory takes all writes");
        times.sort_unstable();
        times[times.len() * 9 / 10].as_nanos() as f64
    }

    /// Checks that no charge is left.
    fn finish(self) -> Result<(), Failure> {
        let Self { engine, full, filling, cached, missed, written, .. } = self;
        let lost = engine.shut_down(SYNC_WITHIN);
        drop((filling, written, cached, missed));
        engine.root().drain_stocks();
        let bytes = full.usage_bytes();
        if !lost.is_empty() || bytes != 0 {
            return Err(Failure::Wrong(format!("{} files unclean, {bytes} bytes left", lost.len())));
        }
        Ok(())
    }
}

/// Sleeping threads with stock.
struct IdleThreads {
    group: Arc<Group>,
    threads: Vec<thread::JoinHandle<()>>,
    may_end: Arc<AtomicBool>,
}

impl IdleThreads {
    fn new(engine: &Arc<Engine>) -> Result<Self, Failure> {
        Ok(Self { group: create(engine, "idle")?, threads: Vec::new(), may_end: Arc::default() })
    }

    /// Returns when all of them sleep.
    fn grow_to(&mut self, nr: usize) -> Result<(), Failure> {
        let charged = Arc::new(Barrier::new(nr - self.threads.len() + 1));
        while self.threads.len() < nr {
            let (group, may_end) = (Arc::clone(&self.group), Arc::clone(&self.may_end));
            let charged = Arc::clone(&charged);
            let idle = move || {
                // The first claims the slot, the second fills it.
                (0..2).for_each(|_| drop(group.try_charge(PAGE_SIZE_U64).expect("there is room")));
                charged.wait();
                while !may_end.load(Relaxed) {
                    thread::park();
                }
            };
            let spawned = thread::Builder::new().stack_size(STACK_BYTES).spawn(idle);
            self.threads.push(spawned.map_err(Failure::at("cannot start a thread"))?);
        }
        charged.wait();
        Ok(())
    }

    fn end(self) {
        self.may_end.store(true, Relaxed);
        for thread in self.threads {
            thread.thread().unpark();
            thread.join().expect("an idle thread does not panic");
        }
    }
}

/// Groups with a file each.
struct DirtyGroups {
    engine: Arc<Engine>,
    members: Vec<(Arc<Group>, Arc<File>)>,
}

impl DirtyGroups {
    fn new(engine: &Arc<Engine>) -> Result<Self, Failure> {
        Ok(Self { engine: Arc::clone(engine), members: Vec::new() })
    }

    fn grow_to(&mut self, nr: usize) -> Result<(), Failure> {
        for at in self.members.len()..nr {
            let group = create(&self.engine, &format!("dirty{at}"))?;
            self.members.push((group, open(&self.engine, 1)?));
        }
        Ok(())
    }

    /// Makes all files dirty.
    fn write_all(&self) {
        for (group, file) in &self.members {
            let nr_written = file.write(group, 0, &[7; 8]).expect("there is room");
            assert_eq!(nr_written, 8, "a word is written");
        }
    }
}

pub(crate) fn create(engine: &Arc<Engine>, name: &str) -> Result<Arc<Group>, Failure> {
    engine.create_group(engine.root(), name.as_ref()).map_err(Failure::at("cannot create a group"))
}

pub(crate) fn open(engine: &Arc<Engine>, nr_pages: u64) -> Result<Arc<File>, Failure> {
    engine.open_file(Arc::new(Generated), nr_pages * PAGE_SIZE_U64).map_err(Failure::at("cannot open a file"))
}

/// Nanoseconds of processor time of one of `nr` operations.
fn timed(nr: usize, mut operation: impl FnMut(usize)) -> f64 {
    let start = thread_time();
    (0..nr).for_each(&mut operation);
    (thread_time() - start).as_secs_f64() * 1e9 / nr as f64
}
