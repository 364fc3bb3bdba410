//! `guarantee`: the time to get back a lent share, by the borrower's use of it: none, clean pages,
//! objects of its own, or dirty data.
//!
//! The first three are judged by the page, the bound in the documentation of reservations. The last
//! depends on the store, so the amount of dirty data is printed beside it.

use std::cell::RefCell;
use std::fs::File as HostOpenFile;
use std::sync::Arc;
use std::time::{Duration, Instant};

use umemcg::files::{File, Readahead};
use umemcg::{Engine, EngineConfig, Group, Guarantee, ObjectCache, StatItem};

use crate::options::{Failure, Options};
use crate::progress::Progress;
use crate::report::{Report, Section, Target, Verdict};
use crate::stats::{Side, alternate};
use crate::store::{HostFile, fill};

const MIB: u64 = 1 << 20;
/// The pool at scale 1.
const POOL_BYTES: u64 = 512 * MIB;
/// The time limit to get a borrowed page back.
const PAGE_NS_MAX: f64 = 1000.0;
const PAGE_BYTES: u64 = 4096;
/// The weight of one object of the borrower.
const OBJECT_BYTES: u64 = 4000;
const PIECE_BYTES: usize = 1 << 20;
/// The time limit of the last write-back.
const SYNC_WITHIN: Duration = Duration::from_secs(120);

struct Bench {
    engine: Arc<Engine>,
    borrower: Arc<Group>,
    share: Guarantee,
    pool_bytes: u64,
    objects: ObjectCache<u64, ()>,
    /// Reads as zeros, however long.
    clean: Arc<File>,
}

/// Runs the benchmark.
pub fn run(options: &Options) -> Result<Report, Failure> {
    let progress = Progress::new();
    let pool_bytes = ((POOL_BYTES as f64 * options.scale) as u64).max(32 * MIB) / MIB * MIB;
    let bench = Bench::new(pool_bytes)?;
    let nr_pages = bench.share.bytes() / PAGE_BYTES;
    let problem = RefCell::new(None);
    let ns_each = |fill_pool: &dyn Fn(&Bench) -> Result<(), Failure>| {
        let taken = fill_pool(&bench).and_then(|()| bench.take_back());
        let taken = taken.map_err(|failure| *problem.borrow_mut() = Some(failure)).unwrap_or_default();
        taken.as_nanos() as f64 / nr_pages as f64
    };
    let sides = vec![
        Side::new("clean pages", || ns_each(&Bench::read_through)),
        Side::new("objects of 4,000 bytes", || ns_each(&Bench::insert_objects)),
        Side::new("nothing", || ns_each(&|_| Ok(()))),
    ];
    let sides = alternate(options.rounds as usize, sides, &progress);
    let mut dirty_bytes = 0;
    let dirty = Side::new("dirty data", || {
        let taken = bench.dirty(options).and_then(|bytes| {
            dirty_bytes = bytes;
            bench.take_back()
        });
        let taken = taken.map_err(|failure| *problem.borrow_mut() = Some(failure)).unwrap_or_default();
        taken.as_secs_f64() * 1e3
    });
    let dirty = alternate(options.rounds as usize, vec![dirty], &progress);
    if let Some(failure) = problem.take() {
        return Err(failure);
    }
    bench.expect_nothing_left()?;
    let mut report = Report::new("guarantee", options.scale, options.rounds as usize);
    let judge = |side: usize| Verdict::new(&sides[side].name, sides[side].max, Target::NsAtMost(PAGE_NS_MAX));
    let verdicts = vec![judge(0), judge(1)];
    let title = "taking back a share, each page, by what was there".into();
    report.sections.push(Section { title, unit: "ns", sides, verdicts });
    let title = format!("taking back {} MiB with dirty data", bench.share.bytes() / MIB);
    report.sections.push(Section { title, unit: "ms", sides: dirty, verdicts: Vec::new() });
    report.notes.push(format!(
        "pool of {} MiB, of which {} are guaranteed; the borrower has all of it; the slowest round is judged; of the dirty rounds the \
         last had {} MiB to write to a file of the host",
        pool_bytes / MIB,
        bench.share.bytes() / MIB,
        dirty_bytes / MIB
    ));
    Ok(report)
}

impl Bench {
    fn new(pool_bytes: u64) -> Result<Self, Failure> {
        let engine =
            Engine::new(EngineConfig::new(pool_bytes)).map_err(Failure::at("cannot make an engine"))?;
        let group = |name: &str| {
            engine.create_group(engine.root(), name.as_ref()).map_err(Failure::at("cannot make a group"))
        };
        let (owner, borrower) = (group("owner")?, group("borrower")?);
        let share = engine.guarantee(&owner, pool_bytes / 2).map_err(Failure::at("cannot guarantee"))?;
        let objects =
            ObjectCache::builder(&engine, "objects").weigher(|_: &u64, _: &()| OBJECT_BYTES).build();
        let zeros = HostOpenFile::open("/dev/zero").map_err(Failure::at("cannot open /dev/zero"))?;
        let clean = engine.open_file(Arc::new(HostFile(zeros)), 1 << 40);
        let clean = clean.map_err(Failure::at("cannot open a file"))?;
        Ok(Self { engine, borrower, share, pool_bytes, objects, clean })
    }

    /// Fills the pool with clean pages.
    fn read_through(&self) -> Result<(), Failure> {
        let readahead = Readahead::new();
        for offset in (0..self.pool_bytes).step_by(PIECE_BYTES) {
            self.clean
                .read(&self.borrower, offset, PIECE_BYTES, &readahead)
                .map_err(Failure::at("cannot read"))?;
        }
        self.expect_borrowed()
    }

    /// Fills the pool with objects.
    fn insert_objects(&self) -> Result<(), Failure> {
        for key in 0..self.pool_bytes / OBJECT_BYTES {
            // An insert without room at the moment is no loss.
            let _ = self.objects.insert(&self.borrower, key, ());
        }
        self.expect_borrowed()
    }

    /// Checks that the borrower uses most of the share: otherwise nothing is taken back.
    fn expect_borrowed(&self) -> Result<(), Failure> {
        let (usage, least) = (self.borrower.usage_bytes(), self.pool_bytes - self.share.bytes() / 2);
        if usage < least {
            return Err(Failure::Wrong(format!("the borrower uses {usage} of {} bytes", self.pool_bytes)));
        }
        Ok(())
    }

    /// Writes as much as the pool holds; returns the bytes not in the store yet.
    fn dirty(&self, options: &Options) -> Result<u64, Failure> {
        let host = tempfile::tempfile_in(options.directory()).map_err(Failure::at("cannot make a file"))?;
        let file = self.engine.open_file(Arc::new(HostFile(host)), 0);
        let file = file.map_err(Failure::at("cannot open a file"))?;
        let mut piece = vec![0; PIECE_BYTES];
        for offset in (0..self.pool_bytes).step_by(PIECE_BYTES) {
            fill(offset, &mut piece);
            file.write(&self.borrower, offset, &piece).map_err(Failure::at("cannot write"))?;
            file.throttle(&self.borrower, PIECE_BYTES);
        }
        let items = [StatItem::FileDirty, StatItem::FileWriteback, StatItem::FileUnstable];
        Ok(items.iter().map(|&item| self.engine.root().stat_total(item).max(0) as u64).sum())
    }

    /// Checks that the borrower has given everything back.
    fn expect_nothing_left(&self) -> Result<(), Failure> {
        if !self.engine.sync_all(SYNC_WITHIN).is_empty() {
            return Err(Failure::Wrong("something stays dirty after a sync".into()));
        }
        self.engine.force_empty(&self.borrower).map_err(Failure::at("cannot empty a group"))?;
        // The tables of an empty cache stay charged.
        let pages = [StatItem::ActiveFile, StatItem::InactiveFile];
        let left: i64 = pages.iter().map(|&item| self.borrower.stat_total(item)).sum();
        match (left, self.objects.len()) {
            (0, 0) => Ok(()),
            left => Err(Failure::Wrong(format!("bytes and objects of the borrower are left: {left:?}"))),
        }
    }

    /// Reserves the whole share, and gives it up again.
    fn take_back(&self) -> Result<Duration, Failure> {
        let start = Instant::now();
        let held = self.share.reserve(self.share.bytes()).map_err(Failure::at("cannot take a share back"))?;
        let taken = start.elapsed();
        let (usage, least) = (self.share.group().usage_bytes(), self.share.bytes());
        if usage < least {
            return Err(Failure::Wrong(format!("{usage} bytes are used of a share of {least}")));
        }
        drop(held);
        self.objects.clear();
        self.engine.force_empty(&self.borrower).map_err(Failure::at("cannot empty a group"))?;
        Ok(taken)
    }
}
