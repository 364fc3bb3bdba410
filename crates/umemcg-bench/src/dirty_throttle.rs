//! `dirty-throttle`: one writer in a group with a dirty limit, on a store of fixed bandwidth (mail
//! per-cgroup-dirty-limits). Beside it, in a group of its own, a second writer stays below its
//! limits.
//!
//! The expected result: the first has the store's rate, in short pauses and without bursts; the
//! amount of its dirty data stays below its limit; the second is never paused.

use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use umemcg::files::{Arena, BackingStore, DirtyBound, DirtyThreshold, File, Segment, StoreId};
use umemcg::internal::dirty::throttle::PAUSE_MAX;
use umemcg::{Engine, EngineConfig, Group, StatItem};

use crate::chart::{Chart, Line, charts};
use crate::options::{Failure, Options};
use crate::progress::Progress;
use crate::report::{Report, Section, Target, Verdict};
use crate::stats::Samples;

const MIB: u64 = 1 << 20;
/// The store's write bandwidth, in bytes a second.
const STORE_RATE: u64 = 16 * MIB;
const LIMIT_BYTES: u64 = 8 * MIB;
const BACKGROUND_BYTES: u64 = 4 * MIB;
/// More dirty data than this breaks the limit.
const DIRTY_BYTES_MAX: u64 = 2 * LIMIT_BYTES;
const CALL_BYTES: usize = 64 << 10;
/// The interval of the neighbour's writes of one block: a tenth of the store's bandwidth.
const NEIGHBOUR_INTERVAL: Duration = Duration::from_millis(40);
/// The length of a file before it starts again. The neighbour's file has no 8 MiB in sequence,
/// because these would start write-behind.
const FILE_BYTES: u64 = 32 * MIB;
const NEIGHBOUR_BYTES: u64 = 4 * MIB;
/// At scale 1.
const SECONDS: f64 = 8.0;
/// Until the writer is being paced and the store is known.
const RAMP: Duration = Duration::from_millis(1500);
const WINDOW: Duration = Duration::from_millis(100);

/// Its further options.
#[derive(Debug, Clone, clap::Args)]
pub struct Figure {
    /// Write the figure over time to this file
    #[arg(long, value_name = "FILE.svg")]
    figure: Option<PathBuf>,
}

/// A slow store without content.
#[derive(Debug)]
pub struct Slow {
    id: StoreId,
    bytes_per_second: f64,
    free_at: Mutex<Instant>,
    taken: AtomicU64,
}

impl Slow {
    /// Creates a store with this bandwidth, in bytes a second.
    pub fn new(id: u64, bytes_per_second: f64) -> Self {
        Self {
            id: StoreId(id),
            bytes_per_second,
            free_at: Mutex::new(Instant::now()),
            taken: AtomicU64::new(0),
        }
    }
}

impl BackingStore for Slow {
    fn store_id(&self) -> StoreId {
        self.id
    }
    fn read_at(&self, _: &Arena, _: &[Segment], _: u64) -> io::Result<usize> {
        Ok(0)
    }
    fn write_at(&self, _: &Arena, segments: &[Segment], _: u64) -> io::Result<usize> {
        let bytes: usize = segments.iter().map(|segment| usize::from(segment.len)).sum();
        let due = {
            let mut free_at = self.free_at.lock().unwrap_or_else(PoisonError::into_inner);
            *free_at = (*free_at).max(Instant::now())
                + Duration::from_secs_f64(bytes as f64 / self.bytes_per_second);
            *free_at
        };
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        self.taken.fetch_add(bytes as u64, Relaxed);
        Ok(bytes)
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

/// The result of one round.
struct Round {
    /// Seconds since the start, and how long each pause was, in milliseconds.
    pauses: Vec<(f64, f64)>,
    /// Seconds, bytes accepted from the paced writer and bytes taken by the store, each since the
    /// start; dirty bytes.
    windows: Vec<(f64, u64, u64, u64)>,
    most_dirty: u64,
    nr_neighbour_pauses: u64,
}

/// The least of several sums: bytes that change state meanwhile are counted twice.
fn unclean(group: &Group) -> u64 {
    let items = [StatItem::FileDirty, StatItem::FileWriteback, StatItem::FileUnstable];
    let sum = |_| items.iter().map(|&item| group.stat_total(item)).sum::<i64>();
    (0..5).map(sum).min().unwrap_or(0).max(0) as u64
}

/// Runs the experiment.
pub fn run(options: &Options, figure: &Figure) -> Result<Report, Failure> {
    let progress = Progress::new();
    let length = RAMP + Duration::from_secs_f64((SECONDS * options.scale).max(1.0));
    let mut rounds = Vec::new();
    for nr in 0..options.rounds {
        progress.show(&format!("round {nr} of {}", options.rounds));
        rounds.push(run_once(length)?);
    }
    let mut report = Report::new("dirty-throttle", options.scale, rounds.len());
    report.sections = sections(&rounds);
    report.notes.push(format!(
        "the store takes {} MiB/s; the group has a limit of {} MiB and a background threshold of {} MiB; calls of 64 KiB; what its \
         neighbour writes meanwhile stays below the pool's background threshold and is not written; the \
         first {} ms, until the store is known, are in the figure and in no number but the most dirty data",
        STORE_RATE / MIB,
        LIMIT_BYTES / MIB,
        BACKGROUND_BYTES / MIB,
        RAMP.as_millis()
    ));
    if let Some(last) = rounds.last() {
        report.charts = last.charts();
    }
    if let Some(path) = &figure.figure {
        let problem = format!("cannot write {}", path.display());
        std::fs::write(path, charts("a writer over its dirty limit", &report.charts))
            .map_err(Failure::at(&problem))?;
    }
    Ok(report)
}

fn sections(rounds: &[Round]) -> Vec<Section> {
    let each = |of: &dyn Fn(&Round) -> f64| rounds.iter().map(of).collect::<Vec<f64>>();
    let mut sections = Vec::new();
    let mut section =
        |title: &str, unit, side: &str, values: Vec<f64>, judge: &dyn Fn(&Samples) -> Vec<Verdict>| {
            let side = Samples::new(side, values);
            let verdicts = judge(&side);
            sections.push(Section { title: title.into(), unit, sides: vec![side], verdicts });
        };
    let store_rate = STORE_RATE as f64 / MIB as f64;
    section("accepted from the paced writer", "MiB/s", "umemcg", each(&|round| round.rate()), &|side| {
        let of_store = side.median / store_rate;
        vec![
            Verdict::new("of the store's rate", of_store, Target::TimesAtMost(1.03)),
            Verdict::new("of the store's rate", of_store, Target::TimesAtLeast(0.97)),
        ]
    });
    let spread = each(&|round| round.spread());
    section("spread of what is accepted in 100 ms, of its mean", "", "umemcg", spread, &|side| {
        vec![Verdict::new("no bursts", side.median, Target::TimesAtMost(0.25))]
    });
    section("longest pause", "ms", "umemcg", each(&|round| round.longest_ms()), &|side| {
        let of_max = side.median / (PAUSE_MAX.as_secs_f64() * 1e3);
        vec![Verdict::new("of 200 ms", of_max, Target::TimesAtMost(1.0))]
    });
    let most = each(&|round| round.most_dirty as f64 / MIB as f64);
    section("most dirty data of the paced group", "MiB", "umemcg", most, &|side| {
        // A write is accepted first and answered later.
        let bound = 1.0 + CALL_BYTES as f64 / LIMIT_BYTES as f64;
        vec![Verdict::new(
            "of its limit",
            side.max * MIB as f64 / LIMIT_BYTES as f64,
            Target::TimesAtMost(bound),
        )]
    });
    let neighbour = each(&|round| round.nr_neighbour_pauses as f64);
    section("pauses of the neighbour", "", "umemcg", neighbour, &|side| {
        vec![Verdict::new("none", side.max, Target::TimesAtMost(0.0))]
    });
    sections
}

fn run_once(length: Duration) -> Result<Round, Failure> {
    let engine = Engine::new(EngineConfig::new(256 * MIB)).map_err(Failure::at("cannot make an engine"))?;
    let group = |name: &str| {
        engine.create_group(engine.root(), name.as_ref()).map_err(Failure::at("cannot make a group"))
    };
    let (paced, neighbour) = (group("paced")?, group("neighbour")?);
    let limits = engine.cache().dirty_limits();
    limits.set_bound(&paced, DirtyThreshold::Foreground, DirtyBound::Bytes(LIMIT_BYTES));
    limits.set_bound(&paced, DirtyThreshold::Background, DirtyBound::Bytes(BACKGROUND_BYTES));
    let store = Arc::new(Slow::new(1, STORE_RATE as f64));
    let open =
        |bytes| engine.open_file(Arc::clone(&store) as _, bytes).map_err(Failure::at("cannot open a file"));
    let (file, other) = (open(FILE_BYTES)?, open(NEIGHBOUR_BYTES)?);
    let (accepted, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    let start = Instant::now();
    let mut round = Round { pauses: Vec::new(), windows: Vec::new(), most_dirty: 0, nr_neighbour_pauses: 0 };
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| write_paced(&file, &paced, &accepted, start, &stop));
        let beside = scope.spawn(|| write_beside(&other, &neighbour, &stop));
        let mut next = start;
        while start.elapsed() < length {
            next += WINDOW;
            std::thread::sleep(next.saturating_duration_since(Instant::now()));
            let at = start.elapsed().as_secs_f64();
            round.windows.push((at, accepted.load(Relaxed), store.taken.load(Relaxed), unclean(&paced)));
        }
        stop.store(true, Relaxed);
        (round.pauses, round.most_dirty) = writer.join().expect("the writer does not panic")?;
        round.nr_neighbour_pauses = beside.join().expect("the neighbour does not panic")?;
        Ok::<(), Failure>(())
    })?;
    if round.most_dirty > DIRTY_BYTES_MAX {
        return Err(Failure::Wrong(format!("{} bytes were dirty of {LIMIT_BYTES}", round.most_dirty)));
    }
    // The neighbour's written data goes to the store later.
    file.write_back().map_err(Failure::at("cannot write a file back"))?;
    // The limit is far below the file's length, so no byte is written again while it is dirty.
    let (accepted, taken) = (accepted.load(Relaxed), store.taken.load(Relaxed));
    if taken < accepted {
        return Err(Failure::Wrong(format!("{taken} bytes came to the store of {accepted} accepted ones")));
    }
    if !engine.sync_all(Duration::from_secs(60)).is_empty() || unclean(engine.root()) != 0 {
        return Err(Failure::Wrong("something stays dirty after a sync".into()));
    }
    Ok(round)
}

/// Writes as fast as it may until it is stopped. Returns its pauses, as a round keeps them, and its
/// most dirty bytes.
fn write_paced(
    file: &Arc<File>,
    group: &Arc<Group>,
    accepted: &AtomicU64,
    start: Instant,
    stop: &AtomicBool,
) -> Result<(Vec<(f64, f64)>, u64), Failure> {
    let piece = vec![7u8; CALL_BYTES];
    let (mut pauses, mut offset, mut most) = (Vec::new(), 0, 0);
    while !stop.load(Relaxed) {
        file.write(group, offset, &piece).map_err(Failure::at("cannot write"))?;
        accepted.fetch_add(CALL_BYTES as u64, Relaxed);
        offset = (offset + CALL_BYTES as u64) % FILE_BYTES;
        most = unclean(group).max(most);
        let begin = Instant::now();
        if let Some(mut pause) = file.write_pause(group, CALL_BYTES) {
            while let Some(remaining) = pause.remaining() {
                std::thread::sleep(remaining);
            }
            pauses.push(((begin - start).as_secs_f64(), begin.elapsed().as_secs_f64() * 1e3));
        }
    }
    Ok((pauses, most))
}

/// Writes now and then until it is stopped. Returns the number of its pauses.
fn write_beside(file: &Arc<File>, group: &Arc<Group>, stop: &AtomicBool) -> Result<u64, Failure> {
    let piece = vec![7u8; CALL_BYTES];
    let (mut nr_pauses, mut offset) = (0, 0);
    while !stop.load(Relaxed) {
        file.write(group, offset, &piece).map_err(Failure::at("cannot write"))?;
        offset = (offset + CALL_BYTES as u64) % NEIGHBOUR_BYTES;
        nr_pauses += u64::from(file.write_pause(group, CALL_BYTES).is_some());
        std::thread::sleep(NEIGHBOUR_INTERVAL);
    }
    Ok(nr_pauses)
}

impl Round {
    /// Returns the bytes accepted and taken in each window after the ramp, in MiB/s, with its time.
    fn rates(&self, from: Duration) -> Vec<(f64, f64, f64)> {
        let mib = |bytes: u64| bytes as f64 / MIB as f64;
        self.windows
            .windows(2)
            .filter(|pair| pair[0].0 >= from.as_secs_f64())
            .map(|pair| {
                let seconds = pair[1].0 - pair[0].0;
                (pair[1].0, mib(pair[1].1 - pair[0].1) / seconds, mib(pair[1].2 - pair[0].2) / seconds)
            })
            .collect()
    }

    fn rate(&self) -> f64 {
        let after: Vec<_> = self.windows.iter().filter(|window| window.0 >= RAMP.as_secs_f64()).collect();
        let (first, last) = (after[0], after[after.len() - 1]);
        (last.1 - first.1) as f64 / MIB as f64 / (last.0 - first.0)
    }

    fn spread(&self) -> f64 {
        let rates: Vec<f64> = self.rates(RAMP).iter().map(|rate| rate.1).collect();
        let mean = rates.iter().sum::<f64>() / rates.len() as f64;
        let variance = rates.iter().map(|rate| (rate - mean).powi(2)).sum::<f64>() / rates.len() as f64;
        variance.sqrt() / mean
    }

    fn longest_ms(&self) -> f64 {
        let late = self.pauses.iter().filter(|pause| pause.0 >= RAMP.as_secs_f64());
        late.map(|pause| pause.1).fold(0.0, f64::max)
    }

    fn charts(&self) -> Vec<Chart> {
        let line = |name: &str, dots, points| Line { name: name.into(), dots, points };
        let rates = self.rates(Duration::ZERO);
        let dirty = self.windows.iter().map(|window| (window.0, window.3 as f64 / MIB as f64)).collect();
        let end = rates.last().map_or(1.0, |rate| rate.0);
        let chart = |title: &str, unit: &str, lines| Chart { title: title.into(), unit: unit.into(), lines };
        let limit = LIMIT_BYTES as f64 / MIB as f64;
        vec![
            chart(
                "throughput in windows of 100 ms",
                "MiB/s",
                vec![
                    line("accepted", false, rates.iter().map(|rate| (rate.0, rate.1)).collect()),
                    line("taken by the store", false, rates.iter().map(|rate| (rate.0, rate.2)).collect()),
                ],
            ),
            chart("pauses of the paced writer", "ms", vec![line("each pause", true, self.pauses.clone())]),
            chart(
                "dirty data of the paced group",
                "MiB",
                vec![line("dirty", false, dirty), line("limit", false, vec![(0.0, limit), (end, limit)])],
            ),
        ]
    }
}
