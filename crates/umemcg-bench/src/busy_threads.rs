//! `busy-threads`: the cost of one operation while another thread works, too: misses and writes of
//! new pages, and misses in full groups. Each thread has a group and a file of its own, so on a
//! processor of its own it may not be slowed by the other.
//!
//! The least samples are compared: other load of the machine can only make a sample longer.

use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use umemcg::files::{File, Readahead};
use umemcg::{Engine, EngineConfig, Group, StatItem};
use umemcg_base::{PAGE_SIZE, PAGE_SIZE_U64};

use crate::idle_threads::{create, flat, open};
use crate::options::{Failure, Options};
use crate::progress::Progress;
use crate::report::Report;
use crate::stats::{Side, alternate};
use crate::store::is_right;

/// Concurrent threads.
const NR_THREADS: [usize; 2] = [1, 2];
/// Operations of each thread in one sample, at full size.
const NR_OPERATIONS: usize = 20_000;
const POOL_BYTES: u64 = 1 << 30;
/// Limit of a full group: a part of the bytes read in one sample, and at most this.
const FULL_BYTES: u64 = 4 << 20;
const FULL_SHARE: u64 = 4;
const PAGES: [StatItem; 2] = [StatItem::ActiveFile, StatItem::InactiveFile];
/// The time limit of write-back of memory.
const SYNC_WITHIN: Duration = Duration::from_secs(30);

/// An operation of a busy thread.
#[derive(Debug, Clone, Copy)]
enum Operation {
    /// Reads a missing page.
    Miss,
    /// Writes a missing page.
    NewPage,
    /// Reads a missing page for a group at its limit, with reclaim.
    MissAtLimit,
}

const OPERATIONS: [(&str, Operation); 3] = [
    ("miss, 4 KiB", Operation::Miss),
    ("write of a new page", Operation::NewPage),
    ("miss in a full group, 4 KiB", Operation::MissAtLimit),
];

/// Runs the benchmark.
pub fn run(options: &Options) -> Result<Report, Failure> {
    let progress = Progress::new();
    let rounds = options.rounds as usize;
    let mut report = Report::new("busy-threads", options.scale, rounds);
    let busy = BusyThreads::new(options.scale.min(1.0))?;
    for (title, operation) in OPERATIONS {
        let busy = &busy;
        let side = |nr| Side::new(format!("{nr} threads"), move || busy.run(nr, operation));
        report.sections.push(flat(title, alternate(rounds, NR_THREADS.map(side).into(), &progress)));
    }
    busy.finish()?;
    report.notes.push("real time of one thread's operation".into());
    Ok(report)
}

/// The group and the file of one thread.
type Member = (Arc<Group>, Arc<File>);

/// Groups and files for concurrent threads.
struct BusyThreads {
    engine: Arc<Engine>,
    /// For each thread, without and with a limit.
    members: Vec<[Member; 2]>,
    nr_operations: usize,
}

impl BusyThreads {
    fn new(scale: f64) -> Result<Self, Failure> {
        let config = EngineConfig::new(POOL_BYTES);
        let engine = Engine::new(config).map_err(Failure::at("cannot make an engine"))?;
        let nr_operations = ((NR_OPERATIONS as f64 * scale) as usize).max(NR_OPERATIONS / 20);
        let full_bytes = FULL_BYTES.min(nr_operations as u64 * PAGE_SIZE_U64 / FULL_SHARE);
        let mut members = Vec::new();
        for at in 0..NR_THREADS[NR_THREADS.len() - 1] {
            let member = |name: &str| -> Result<Member, Failure> {
                Ok((create(&engine, &format!("{name}{at}"))?, open(&engine, nr_operations as u64)?))
            };
            let (free, full) = (member("free")?, member("full")?);
            engine.set_limit(&full.0, full_bytes).map_err(Failure::at("cannot set a limit"))?;
            members.push([free, full]);
        }
        Ok(Self { engine, members, nr_operations })
    }

    /// Lets `nr` threads work. Returns the nanoseconds of one operation of one thread.
    fn run(&self, nr: usize, operation: Operation) -> f64 {
        let members = &self.members[..nr];
        for (_, file) in members.iter().flatten() {
            file.invalidate_clean();
        }
        let start = Barrier::new(nr);
        let spent: Duration = thread::scope(|scope| {
            let start = &start;
            let begin = |member| scope.spawn(move || self.work(member, operation, start));
            let threads: Vec<_> = members.iter().map(begin).collect();
            threads.into_iter().map(|thread| thread.join().expect("a busy thread does not panic")).sum()
        });
        assert!(self.engine.sync_all(SYNC_WITHIN).is_empty(), "memory takes all writes");
        spent.as_secs_f64() * 1e9 / (nr * self.nr_operations) as f64
    }

    fn work(&self, [free, full]: &[Member; 2], operation: Operation, start: &Barrier) -> Duration {
        let (group, file) = if matches!(operation, Operation::MissAtLimit) { full } else { free };
        let (data, mut buffer) = (vec![7; PAGE_SIZE], [0; 8]);
        start.wait();
        let begun = Instant::now();
        // Backwards, so that nothing is read ahead.
        for page in (0..self.nr_operations as u64).rev() {
            let offset = page * PAGE_SIZE_U64;
            if matches!(operation, Operation::NewPage) {
                let nr_written = file.write(group, offset, &data).expect("there is room");
                assert_eq!(nr_written, PAGE_SIZE, "a page is written");
            } else {
                let pages = file.read(group, offset, 8, &Readahead::new()).expect("there is room");
                assert!(pages.copy_to(&mut buffer) == 8 && is_right(offset, &buffer), "a page is read");
            }
        }
        begun.elapsed()
    }

    /// Checks that full groups were full and not above their limit, and that no page is left.
    fn finish(self) -> Result<(), Failure> {
        let Self { engine, members, .. } = self;
        for [_, (full, _)] in &members {
            let (bytes, nr_pages) = (full.usage_bytes(), full.stat_total(StatItem::PgStealDirect));
            if bytes > full.max_bytes() || nr_pages == 0 {
                return Err(Failure::Wrong(format!(
                    "{full:?} has {bytes} bytes, and {nr_pages} pages were reclaimed"
                )));
            }
        }
        let lost = engine.shut_down(SYNC_WITHIN);
        drop(members);
        let bytes: i64 = PAGES.iter().map(|&item| engine.root().stat_total(item)).sum();
        if !lost.is_empty() || bytes != 0 {
            return Err(Failure::Wrong(format!("{} files unclean, {bytes} bytes of pages left", lost.len())));
        }
        Ok(())
    }
}
