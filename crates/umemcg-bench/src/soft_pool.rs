//! A pool with two tenants (mail soft-limit-rework): A streams a file of four times the pool
//! through a soft limit of 0, and B holds the pool less an eighth. Any number of empty groups is
//! beside them.

use std::ffi::OsStr;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use umemcg::files::{File, Readahead};
use umemcg::{Engine, EngineConfig, Group, StatItem};
use umemcg_base::PAGE_SIZE_U64;
use umemcg_group::GROUP_STATE_BYTES;
use umemcg_reclaim::baseline::{SoftLimits, Spent, VisitCounts, honour_soft_limits, take_visit_counts};

use crate::options::{Failure, Options};
use crate::store::{HostFile, first_word, make_file, word_at};
use crate::threads::{nanoseconds_of, process_time};

/// The pool at full size; the mail's had 8 GiB.
const POOL_BYTES: u64 = 512 << 20;
/// The smallest pool with enough room for A.
const POOL_BYTES_MIN: u64 = 32 << 20;
const CALL_BYTES: usize = 128 << 10;
/// If B loses more than this part of its pages to an A over its soft limit, the limit has no
/// effect.
const LOST_SHARE: u64 = 8;
/// The byte written by A.
const WRITTEN: u8 = 7;

/// A's use of its file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Writes it.
    Write,
    /// Reads it.
    Read,
}

/// The result of one stream.
#[derive(Debug, Clone, Copy)]
pub struct StreamResult {
    /// Processor time of reclaim: A's own and the workers'.
    pub reclaim: Duration,
    /// On the wall.
    pub elapsed: Duration,
    /// Processor time of all threads.
    pub cpu: Duration,
    /// Pages read again by B.
    pub refaults: u64,
    /// Pages looked at, and pages freed.
    pub scanned: u64,
    /// See there.
    pub reclaimed: u64,
    /// The counts of each priority.
    pub visits: [VisitCounts; 13],
}

/// The pool.
pub struct Pool {
    engine: Arc<Engine>,
    /// The bytes shared by A and B: the pool less the state of idle groups.
    bytes: u64,
    /// A file of B's, as long as its share.
    held: Arc<File>,
    options: Options,
}

impl Pool {
    /// Creates a pool with idle groups, and with background reclaim of the pool or without.
    ///
    /// # Errors
    /// When a step of the set-up fails.
    pub fn new(options: &Options, nr_idle: u64, marks: bool) -> Result<Self, Failure> {
        let bytes = ((POOL_BYTES as f64 * options.scale) as u64).max(POOL_BYTES_MIN) / (1 << 20) * (1 << 20);
        let pool_bytes = bytes + nr_idle * GROUP_STATE_BYTES;
        let engine = Engine::new(EngineConfig::new(pool_bytes).pool_marks(marks))
            .map_err(Failure::at("cannot make an engine"))?;
        for at in 0..nr_idle {
            let name = format!("idle{at}");
            drop(
                engine
                    .create_group(engine.root(), name.as_ref())
                    .map_err(Failure::at("cannot make a group"))?,
            );
        }
        let held_bytes = bytes / 8 * 7;
        let host = make_file(&options.directory(), held_bytes).map_err(Failure::at("cannot make a file"))?;
        let held = engine
            .open_file(Arc::new(HostFile(host)), held_bytes)
            .map_err(Failure::at("cannot open a file"))?;
        Ok(Self { engine, bytes, held, options: options.clone() })
    }

    /// Returns the bytes of the stream.
    pub fn stream_bytes(&self) -> u64 {
        4 * self.bytes
    }

    fn group(&self, name: &str) -> Result<Arc<Group>, Failure> {
        self.engine
            .create_group(self.engine.root(), OsStr::new(name))
            .map_err(Failure::at("cannot make a group"))
    }

    fn hold(&self, group: &Arc<Group>) -> Result<(), Failure> {
        let readahead = Readahead::new();
        let mut at = 0;
        while at < self.bytes / 8 * 7 {
            let pages =
                self.held.read(group, at, CALL_BYTES, &readahead).map_err(Failure::at("cannot read"))?;
            if first_word(&self.engine, &pages) != word_at(at) {
                return Err(Failure::Wrong(format!("other bytes at {at} of B's file")));
            }
            at += pages.len() as u64;
        }
        Ok(())
    }

    /// Fills B, streams through A, and counts B's lost pages. `limited`: whether A has its soft
    /// limit.
    ///
    /// # Errors
    /// When a step fails, or gives a wrong result.
    pub fn run(&self, how: SoftLimits, access: Access, limited: bool) -> Result<StreamResult, Failure> {
        let (a, b) = (self.group("A")?, self.group("B")?);
        if limited {
            self.engine.set_soft_limit(&a, 0);
        }
        self.hold(&b)?;
        let host =
            tempfile::tempfile_in(self.options.directory()).map_err(Failure::at("cannot make a file"))?;
        let len = match access {
            Access::Write => 0,
            Access::Read => self.stream_bytes(),
        };
        host.set_len(len).map_err(Failure::at("cannot make a file"))?;
        let written = host.try_clone().map_err(Failure::at("cannot open a file again"))?;
        let file = self
            .engine
            .open_file(Arc::new(HostFile(host)), len)
            .map_err(Failure::at("cannot open a file"))?;
        honour_soft_limits(how);
        take_visit_counts();
        let workers = nanoseconds_of("kswapd/");
        let (start, cpu) = (Instant::now(), process_time());
        Spent::start();
        let streamed = self.stream(&a, &file, access);
        let spent = Spent::take();
        let found = StreamResult {
            reclaim: spent.reclaim + Duration::from_nanos(nanoseconds_of("kswapd/") - workers),
            elapsed: start.elapsed(),
            cpu: process_time() - cpu,
            refaults: 0,
            scanned: count(SCANNED, &[&a, &b]),
            reclaimed: count(STOLEN, &[&a, &b]),
            visits: take_visit_counts(),
        };
        honour_soft_limits(SoftLimits::TwoRounds);
        streamed?;
        // When the workers are done, and A is not in the way: pages missing in B then are the cost
        // of the stream.
        wait_for_workers();
        drop(file);
        self.empty(&a)?;
        if access == Access::Write {
            self.check_written(&written)?;
        }
        let nr_held = self.bytes / 8 * 7 / PAGE_SIZE_U64;
        let missing = nr_held.saturating_sub(self.held.nr_cached_pages());
        if limited && how == SoftLimits::TwoRounds && missing > nr_held / LOST_SHARE {
            return Err(Failure::Wrong(format!("B lost {missing} of {nr_held} pages to A's excess")));
        }
        let before = b.stat_total(StatItem::WorkingsetRefault);
        self.hold(&b)?;
        let refaults = (b.stat_total(StatItem::WorkingsetRefault) - before).max(0) as u64;
        if (refaults == 0) != (missing == 0) {
            return Err(Failure::Wrong(format!(
                "{refaults} pages were read again of {missing} missing ones"
            )));
        }
        self.empty(&b)?;
        Ok(StreamResult { refaults, ..found })
    }

    fn stream(&self, group: &Arc<Group>, file: &Arc<File>, access: Access) -> Result<(), Failure> {
        let readahead = Readahead::new();
        let buffer = vec![WRITTEN; CALL_BYTES];
        for at in (0..self.stream_bytes()).step_by(CALL_BYTES) {
            match access {
                Access::Read => {
                    let pages =
                        file.read(group, at, CALL_BYTES, &readahead).map_err(Failure::at("cannot read"))?;
                    if pages.len() != CALL_BYTES || first_word(&self.engine, &pages) != 0 {
                        return Err(Failure::Wrong(format!("{} bytes of a hole at {at}", pages.len())));
                    }
                }
                Access::Write => {
                    let written = file.write(group, at, &buffer).map_err(Failure::at("cannot write"))?;
                    if written != buffer.len() {
                        return Err(Failure::Wrong(format!("{written} bytes written at {at}")));
                    }
                    file.throttle(group, written);
                }
            }
        }
        Ok(())
    }

    /// Checks that A's written data has reached the host: the first bytes of each call.
    fn check_written(&self, host: &std::fs::File) -> Result<(), Failure> {
        for at in (0..self.stream_bytes()).step_by(CALL_BYTES) {
            let mut word = [0; 8];
            host.read_exact_at(&mut word, at).map_err(Failure::at("cannot read what A wrote"))?;
            if word != [WRITTEN; 8] {
                return Err(Failure::Wrong(format!("the host has {word:?} at {at} of what A wrote")));
            }
        }
        Ok(())
    }

    fn empty(&self, group: &Arc<Group>) -> Result<(), Failure> {
        if !self.engine.sync_all(Duration::from_secs(120)).is_empty() {
            return Err(Failure::Wrong("data could not be written".into()));
        }
        self.engine.force_empty(group).map_err(Failure::at("cannot empty a group"))?;
        self.engine.remove_group(group).map_err(Failure::at("cannot remove a group"))
    }
}

/// Waits, for a bounded time, until the workers of background reclaim are idle.
fn wait_for_workers() {
    let mut before = u64::MAX;
    for _ in 0..100 {
        let now = nanoseconds_of("kswapd/");
        if now == before {
            return;
        }
        before = now;
        std::thread::sleep(Duration::from_millis(20));
    }
}

const SCANNED: [StatItem; 2] = [StatItem::PgScanDirect, StatItem::PgScanKswapd];
const STOLEN: [StatItem; 2] = [StatItem::PgStealDirect, StatItem::PgStealKswapd];

fn count(items: [StatItem; 2], groups: &[&Arc<Group>]) -> u64 {
    let all = groups.iter().flat_map(|group| items.iter().map(|&item| group.stat_total(item)));
    all.sum::<i64>().max(0) as u64
}
