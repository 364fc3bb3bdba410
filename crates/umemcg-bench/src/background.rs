//! `background`: the two halves of the mail per-memcg-background-reclaim, a file written and read
//! in a group of 500 MiB, with marks of 50 and 40 MiB and without, in turns. It runs against the
//! library, on a file of the host read and written past the kernel's page cache: below a mount the
//! kernel's share of each request, ten times that of reclaim, would hide the effect.
//!
//! The time from charge to frame starts before the pages of a request are charged, includes reclaim
//! for them, and ends when the request has their frames. The store also records the time of a
//! request for data: by then the pages are in the file's index and locked as well, the same work on
//! both sides. Times count after the group has been full once; until then neither side reclaims,
//! and both touch memory for the first time.

use std::cell::Cell;
use std::fs::File as HostOpenFile;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use umemcg::files::{Arena, BackingStore, File, IoFlags, Readahead, Segment, StoreId};
use umemcg::{Engine, EngineConfig, Group, StatItem};
#[cfg(feature = "experiments")]
use umemcg_reclaim::baseline::take_charge_latencies;

use crate::options::{Failure, Options};
use crate::progress::Progress;
use crate::report::{MailFigure, Report, Section, Target, Verdict};
use crate::stats::{Samples, thread_time};
use crate::store::{fill, word_at};
use crate::threads::{Latencies, nanoseconds_of, process_time};

const MIB: u64 = 1 << 20;
/// The file at scale 1; the mail's is ten times as large.
const FILE_BYTES: u64 = 2 << 30;
const LIMIT_BYTES: u64 = 500 * MIB;
const HIGH_DISTANCE: u64 = 50 * MIB;
const LOW_DISTANCE: u64 = 40 * MIB;
const POOL_BYTES: u64 = 768 * MIB;
const CALL_BYTES: usize = 128 << 10;
const NR_IDLE_GROUPS: usize = 8;
/// From here on the group has been full.
const RAMP_BYTES: u64 = 512 * MIB;

const CHARGE_RATIO_MAX: f64 = 0.5;
const CALL_RATIO_MAX: f64 = 1.02;
const CPU_RATIO_MAX: f64 = 1.02;

/// The mail's rows and figures: writing only directly, with background reclaim; reading so.
const MAIL: [(&str, [&str; 4]); 9] = [
    ("pgpgin", ["5243222", "5243267", "5242937", "5242935"]),
    ("pgpgout", ["5115252", "5127978", "5114971", "5125504"]),
    ("kswapd_steal", ["0", "2699807", "0", "5125470"]),
    ("pg_pgsteal", ["5115229", "2428102", "5114941", "0"]),
    ("kswapd_pgscan", ["0", "10527319", "0", "5125472"]),
    ("pg_scan", ["5918875", "15533740", "5114944", "0"]),
    ("pgrefill", ["264761", "294801", "0", "0"]),
    ("pgoutrun", ["0", "81097", "0", "160184"]),
    ("allocstall", ["158406", "73799", "159840", "0"]),
];
const COUNTERS: [&[StatItem]; 9] = [
    &[StatItem::PgPgIn],
    &[StatItem::PgPgOut],
    &[StatItem::PgStealKswapd],
    &[StatItem::PgStealDirect],
    &[StatItem::PgScanKswapd],
    &[StatItem::PgScanDirect],
    &[StatItem::PgRefill],
    &[StatItem::KswapdRun],
    &[StatItem::AllocStall],
];
const KSWAPD_STEAL: usize = 2;
const ALLOCSTALL: usize = 8;

/// The figures of a half, with the unit of each.
const FIGURES: [(&str, &str); 16] = [
    ("throughput", "MiB/s"),
    ("processor time of all threads", "ms/GiB"),
    ("processor time of readers and writers", "ms/GiB"),
    ("processor time of the workers", "ms/GiB"),
    ("128 KiB call, p50", "us"),
    ("128 KiB call, p99", "us"),
    ("128 KiB call, p99.9", "us"),
    ("128 KiB call, max", "us"),
    ("charge to frame, p50", "us"),
    ("charge to frame, p99", "us"),
    ("charge to frame, p99.9", "us"),
    ("charge to frame, altogether", "us/MiB"),
    ("charge to frame, processor time, p50", "us"),
    ("charge to frame, processor time, p99.9", "us"),
    ("call to store, p50", "us"),
    ("call to store, p99.9", "us"),
];

/// The work of the halves of a run.
const WHAT: [&str; 2] = ["write", "read"];

/// One half of one run.
struct Half {
    counters: [i64; 9],
    figures: [f64; 16],
}

thread_local! {
    /// The start of this thread's pending call to the store; the duration of each call.
    static CALLED: Cell<Option<Instant>> = const { Cell::new(None) };
    static TO_STORE: Cell<Latencies> = const { Cell::new(Latencies::new()) };
}

/// A file of the host without a copy in the kernel's page cache. It records the time of each
/// request for data.
#[derive(Debug)]
struct Uncached {
    file: HostOpenFile,
    refuses: AtomicBool,
}

impl Uncached {
    fn transfer(&self, call: impl Fn(IoFlags) -> io::Result<usize>) -> io::Result<usize> {
        if !self.refuses.load(Relaxed) {
            match call(IoFlags::DONTCACHE) {
                Err(error) if error.raw_os_error() == Some(rustix::io::Errno::OPNOTSUPP.raw_os_error()) => {
                    self.refuses.store(true, Relaxed);
                }
                result => return result,
            }
        }
        call(IoFlags::NONE)
    }
}

impl BackingStore for Uncached {
    fn store_id(&self) -> StoreId {
        StoreId(1)
    }
    fn read_at(&self, arena: &Arena, segments: &[Segment], offset: u64) -> io::Result<usize> {
        if let Some(start) = CALLED.take() {
            let mut to_store = TO_STORE.take();
            to_store.note(start.elapsed());
            TO_STORE.set(to_store);
        }
        self.transfer(|flags| umemcg_arena::io::read_at(arena, segments, self.file.as_fd(), offset, flags))
    }
    fn write_at(&self, arena: &Arena, segments: &[Segment], offset: u64) -> io::Result<usize> {
        self.transfer(|flags| umemcg_arena::io::write_at(arena, segments, self.file.as_fd(), offset, flags))
    }
    fn sync_range(&self, offset: u64, len: u64) -> io::Result<()> {
        umemcg_arena::io::sync_file_range_wait(self.file.as_fd(), offset, len)
    }
    fn sync(&self, data_only: bool) -> io::Result<()> {
        if data_only { self.file.sync_data() } else { self.file.sync_all() }
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        self.file.set_len(len)
    }
}

/// Runs the experiment.
pub fn run(options: &Options) -> Result<Report, Failure> {
    let progress = Progress::new();
    let nr_gaps = gaps_each_second();
    let bytes = ((FILE_BYTES as f64 * options.scale) as u64).max(2 * RAMP_BYTES) / MIB * MIB;
    let engine = Engine::new(EngineConfig::new(POOL_BYTES)).map_err(Failure::at("cannot make an engine"))?;
    for at in 0..NR_IDLE_GROUPS {
        let name = format!("idle{at}");
        engine.create_group(engine.root(), name.as_ref()).map_err(Failure::at("cannot make a group"))?;
    }
    let [with, without] = measure(options, &progress, &engine, bytes)?;
    let mut report = Report::new("background", options.scale, options.rounds as usize);
    for (half, what) in WHAT.into_iter().enumerate() {
        report.sections.extend(sections(what, half, &with, &without));
    }
    for (half, what) in WHAT.into_iter().enumerate() {
        report.mail.extend(mail_figures(what, half, &with, &without));
    }
    report.notes = WHAT.iter().enumerate().map(|(half, what)| stalls_note(what, half, &with)).collect();
    report.notes.push(
        "write: the default dirty limits pace both sides, in pauses of 10 ms, and marks lower them: calls above p99 are such pauses, throughput and \
         processor time are mostly the store's and write-back's"
            .into(),
    );
    report.notes.push(format!(
        "before the run a thread that did nothing but look at the clock was off its processor for more than 40 us {nr_gaps:.0} times a second: times \
         above p99 are not below that"
    ));
    report.notes.push(format!(
        "file of {} MiB in a group of 500 MiB, {NR_IDLE_GROUPS} idle groups beside it; a call is 128 KiB; --scale 10 is the \
         mail's size",
        bytes / MIB
    ));
    Ok(report)
}

/// Takes the rounds in turns. Returns the rounds with marks and without.
fn measure(
    options: &Options,
    progress: &Progress,
    engine: &Arc<Engine>,
    bytes: u64,
) -> Result<[Vec<[Half; 2]>; 2], Failure> {
    let mut halves = [Vec::new(), Vec::new()];
    for round in 0..=options.rounds as usize {
        for at in 0..2 {
            let side = (round + at) % 2;
            progress.show(&format!("round {round} of {}, marks {}", options.rounds, ["set", "0"][side]));
            let both = run_once(options, engine, side == 0, bytes)?;
            if round > 0 {
                halves[side].push(both);
            }
        }
        let pages = [StatItem::ActiveFile, StatItem::InactiveFile].map(|item| engine.root().stat_total(item));
        let nr_nodes = engine.cache().nr_index_nodes();
        if pages != [0, 0] || nr_nodes != 0 {
            return Err(Failure::Wrong(format!(
                "{pages:?} bytes of pages and {nr_nodes} index nodes are left"
            )));
        }
    }
    Ok(halves)
}

fn sections(what: &str, half: usize, with: &[[Half; 2]], without: &[[Half; 2]]) -> Vec<Section> {
    let section = |(at, &(figure, unit)): (usize, &(&str, &'static str))| {
        let side = |name: &str, all: &[[Half; 2]]| {
            Samples::new(name, all.iter().map(|halves| halves[half].figures[at]).collect())
        };
        let sides = vec![side("marks 50 and 40 MiB", with), side("marks 0", without)];
        // A write needs no data from the store; nor does a figure without a recording.
        let is_there = sides.iter().any(|side| side.max != 0.0);
        let verdicts = verdicts(what, at, &sides);
        is_there.then(|| Section { title: format!("{what}: {figure}"), unit, sides, verdicts })
    };
    FIGURES.iter().enumerate().filter_map(section).collect()
}

fn mail_figures(what: &str, half: usize, with: &[[Half; 2]], without: &[[Half; 2]]) -> Vec<MailFigure> {
    let figure = |(at, (name, mail)): (usize, &(&str, [&str; 4]))| {
        let ours = [without, with].map(|all| last(all, half).counters[at]);
        MailFigure {
            what: format!("{what}: {name}, direct → background"),
            mail: format!("{} → {}", mail[2 * half], mail[2 * half + 1]),
            ours: format!("{} → {}", ours[0], ours[1]),
        }
    };
    MAIL.iter().enumerate().map(figure).collect()
}

fn stalls_note(what: &str, half: usize, with: &[[Half; 2]]) -> String {
    let stalls = || with.iter().map(|halves| halves[half].counters[ALLOCSTALL]);
    format!(
        "{what}: allocstall with marks is {} at most, above 0 in {} of {} rounds; where it is 0, the foreground \
         spent no time in reclaim",
        stalls().max().unwrap_or(0),
        stalls().filter(|&nr| nr > 0).count(),
        with.len()
    )
}

/// Returns how often a second the machine visibly withholds a processor from a runnable thread.
fn gaps_each_second() -> f64 {
    const LOOK: Duration = Duration::from_millis(500);
    const GAP: Duration = Duration::from_micros(40);
    let start = Instant::now();
    let (mut before, mut nr) = (start, 0u32);
    while before - start < LOOK {
        let now = Instant::now();
        nr += u32::from(now - before > GAP);
        before = now;
    }
    f64::from(nr) / LOOK.as_secs_f64()
}

fn last(all: &[[Half; 2]], half: usize) -> &Half {
    &all[all.len() - 1][half]
}

fn verdicts(half: &str, figure: usize, sides: &[Samples]) -> Vec<Verdict> {
    let ratio = sides[0].ratio_to(&sides[1]);
    let target = match FIGURES[figure].0 {
        "throughput" => Target::TimesAtLeast(1.0),
        "processor time of all threads" => Target::TimesAtMost(CPU_RATIO_MAX),
        "128 KiB call, p99.9" => Target::TimesAtMost(CALL_RATIO_MAX),
        "charge to frame, p99.9" => Target::TimesAtMost(CHARGE_RATIO_MAX),
        // A writer that is slowed for its dirty pages does not spend its time on a processor.
        "charge to frame, processor time, p99.9" if half == "read" => Target::TimesAtMost(CHARGE_RATIO_MAX),
        _ => return Vec::new(),
    };
    vec![Verdict::new("of that without marks", ratio, target)]
}

/// Steps 1 to 5 of the mail.
fn run_once(options: &Options, engine: &Arc<Engine>, marks: bool, bytes: u64) -> Result<[Half; 2], Failure> {
    let host = tempfile::tempfile_in(options.directory()).map_err(Failure::at("cannot make a file"))?;
    let store = Uncached { file: host, refuses: AtomicBool::new(false) };
    let file = engine.open_file(Arc::new(store), 0).map_err(Failure::at("cannot open a file"))?;
    let group = make_group(engine, marks)?;
    let write = half(engine, &group, bytes, |offset, buffer| write_call(&file, &group, offset, buffer))?;
    clean_up(engine, &group)?;
    let lost = engine.sync_all(Duration::from_secs(120));
    if !lost.is_empty() {
        return Err(Failure::Wrong("data could not be written".into()));
    }
    file.invalidate_clean();
    let group = make_group(engine, marks)?;
    let readahead = Readahead::new();
    let read =
        half(engine, &group, bytes, |offset, buffer| read_call(&file, &group, &readahead, offset, buffer))?;
    clean_up(engine, &group)?;
    let both = [write, read];
    for (half, what) in both.iter().zip(WHAT) {
        let nr_pages = half.counters[KSWAPD_STEAL];
        if (nr_pages > 0) != marks {
            let marks = if marks { "marks" } else { "no marks" };
            return Err(Failure::Wrong(format!("{what}, {marks}: the workers took {nr_pages} pages")));
        }
    }
    Ok(both)
}

fn make_group(engine: &Arc<Engine>, marks: bool) -> Result<Arc<Group>, Failure> {
    let group =
        engine.create_group(engine.root(), "A".as_ref()).map_err(Failure::at("cannot make a group"))?;
    engine.set_limit(&group, LIMIT_BYTES).map_err(Failure::at("cannot set the limit"))?;
    if marks {
        let reclaimer = engine.reclaimer();
        let set = reclaimer.set_high_wmark_distance(&group, HIGH_DISTANCE);
        set.and_then(|()| reclaimer.set_low_wmark_distance(&group, LOW_DISTANCE))
            .map_err(Failure::at("cannot set the marks"))?;
    }
    Ok(group)
}

fn clean_up(engine: &Arc<Engine>, group: &Arc<Group>) -> Result<(), Failure> {
    // Dirty pages are freed once they are written.
    let _ = engine.force_empty(group);
    engine.remove_group(group).map_err(Failure::at("cannot remove the group"))
}

fn write_call(file: &Arc<File>, group: &Arc<Group>, offset: u64, buffer: &mut [u8]) -> Result<(), Failure> {
    let written = file.write(group, offset, buffer).map_err(Failure::at("cannot write"))?;
    if written != buffer.len() {
        return Err(Failure::Wrong(format!("{written} bytes written at {offset}")));
    }
    file.throttle(group, written);
    Ok(())
}

fn read_call(
    file: &Arc<File>,
    group: &Arc<Group>,
    readahead: &Readahead,
    offset: u64,
    buffer: &mut [u8],
) -> Result<(), Failure> {
    // Old bytes must not pass for newly read ones.
    buffer[..8].fill(0);
    CALLED.set(Some(Instant::now()));
    let pages = file.read(group, offset, buffer.len(), readahead).map_err(Failure::at("cannot read"))?;
    CALLED.set(None);
    if pages.copy_to(buffer) != buffer.len() {
        return Err(Failure::Wrong(format!("too few bytes at {offset}")));
    }
    Ok(())
}

/// One way from charge to frame; without the feature they are not recorded.
#[cfg(not(feature = "experiments"))]
struct ChargeLatency {
    real: Duration,
    cpu: Duration,
}

#[cfg(not(feature = "experiments"))]
fn take_charge_latencies() -> Vec<ChargeLatency> {
    Vec::new()
}

/// Drops the charge latencies measured so far.
fn forget_charge_latencies() {
    take_charge_latencies();
    TO_STORE.take();
}

/// The start of a measurement, by the clocks that it uses.
struct Start {
    real: Instant,
    cpu: Duration,
    own: Duration,
    workers_ns: u64,
}

impl Start {
    /// Begins to measure; earlier work is not counted.
    fn now() -> Self {
        forget_charge_latencies();
        Self {
            real: Instant::now(),
            cpu: process_time(),
            own: thread_time(),
            workers_ns: nanoseconds_of("kswapd/"),
        }
    }

    /// Returns the figures of the work since then: this many bytes, in these calls.
    fn figures(&self, bytes: u64, calls: Latencies) -> [f64; 16] {
        let real = self.real.elapsed().as_secs_f64();
        let (cpu, own) = (process_time() - self.cpu, thread_time() - self.own);
        let workers = Duration::from_nanos(nanoseconds_of("kswapd/") - self.workers_ns);
        let mib = bytes as f64 / MIB as f64;
        let each_gib = |time: Duration| time.as_secs_f64() * 1e3 / (mib / 1024.0);
        let (mut real_latencies, mut cpu_latencies) = (Latencies::new(), Latencies::new());
        for latency in take_charge_latencies() {
            real_latencies.note(latency.real);
            cpu_latencies.note(latency.cpu);
        }
        let charging_each = real_latencies.sum() / mib;
        let [p50, p99, p999, max] = calls.quantiles([0.5, 0.99, 0.999, 1.0]);
        let [way_p50, way_p99, way_p999] = real_latencies.quantiles([0.5, 0.99, 0.999]);
        let [cpu_p50, cpu_p999] = cpu_latencies.quantiles([0.5, 0.999]);
        let [store_p50, store_p999] = TO_STORE.take().quantiles([0.5, 0.999]);
        [
            mib / real,
            each_gib(cpu),
            each_gib(own),
            each_gib(workers),
            p50,
            p99,
            p999,
            max,
            way_p50,
            way_p99,
            way_p999,
            charging_each,
            cpu_p50,
            cpu_p999,
            store_p50,
            store_p999,
        ]
    }
}

/// Writes or reads the whole file in calls.
fn half(
    engine: &Arc<Engine>,
    group: &Arc<Group>,
    bytes: u64,
    mut call: impl FnMut(u64, &mut [u8]) -> Result<(), Failure>,
) -> Result<Half, Failure> {
    let mut buffer = vec![0u8; CALL_BYTES];
    fill(0, &mut buffer);
    let (mut calls, mut start) = (Latencies::new(), Start::now());
    for offset in (0..bytes).step_by(CALL_BYTES) {
        if offset == RAMP_BYTES {
            (calls, start) = (Latencies::new(), Start::now());
        }
        // The first word encodes the offset; a read is checked against it.
        let word = word_at(offset).to_le_bytes();
        buffer[..8].copy_from_slice(&word);
        let begin = Instant::now();
        call(offset, &mut buffer)?;
        calls.note(begin.elapsed());
        if buffer[..8] != word {
            return Err(Failure::Wrong(format!("other bytes at {offset} than were written")));
        }
    }
    let figures = start.figures(bytes - RAMP_BYTES, calls);
    let counters = COUNTERS.map(|items| items.iter().map(|&item| group.stat_total(item)).sum());
    if engine.root().usage_bytes() > POOL_BYTES || group.usage_bytes() > LIMIT_BYTES {
        return Err(Failure::Wrong("more is charged than the limit allows".into()));
    }
    Ok(Half { counters, figures })
}
