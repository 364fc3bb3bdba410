//! `neighbour`: tenant A reads at random a file that fits its share, at half the rate it reaches
//! alone; tenant B streams through ten times the pool, or writes as fast as it can, or walks a tree
//! of names. The figures show the effect of B's use of *memory* on A.
//!
//! On a real mount, each tenant a process. B takes processor time whatever is done about memory. So
//! A is compared with A beside a B with the same requests and next to no cache, at a rate with the
//! same total processor time as with the measured B (each of its requests costs more). Beside that:
//! one group for both, and the kernel's own page cache with both in one of its memory cgroups and
//! in two, where it has version 1 of them.

use std::cell::Cell;
use std::collections::HashMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use umemcg::internal::collect_hits;
use umemcg::{Engine, EngineConfig, Group, StatItem};
use umemcg_fuse::{Classifier, Daemon, DaemonConfig};

use crate::fuse::Programs;
use crate::neighbour_choice::{Choice, Row};
use crate::neighbour_dirty;
use crate::neighbour_load::{Done, FILES_PER_DIRECTORY, STREAM_BYTES, Tempo, Work, file_name};
use crate::options::{Failure, Options};
use crate::progress::Progress;
use crate::report::{Report, Section, Target, Verdict};
use crate::stats::Samples;
use crate::store::{is_right, write_contents};
use crate::tenant::Tenant;
use crate::threads::process_time;

const MIB: u64 = 1 << 20;
const POOL_BYTES: u64 = 256 * MIB;
/// A's share, and its working set.
const A_BYTES: u64 = 96 * MIB;
const WORKING_SET: u64 = 64 * MIB;
/// B's share, and its marks when it has any.
const B_BYTES: u64 = 128 * MIB;
const HIGH_DISTANCE: u64 = 16 * MIB;
const LOW_DISTANCE: u64 = 12 * MIB;
/// B's file to stream through and to write; ten times the pool.
const STREAM_FILE: u64 = 10 * POOL_BYTES;
const WRITE_FILE: u64 = 2 * POOL_BYTES;
/// Names at scale 10, the size of the experiment's description.
const NR_FILES: f64 = 100_000.0;
/// Seconds of a sample at scale 1.
const SAMPLE_S: f64 = 5.0;
/// The limit of a B without a cache: one page of data, or the names of running requests.
const ONE_PAGE: u64 = 16 << 10;
const FEW_NAMES: u64 = 512 << 10;

/// Samples to find the pace of a B without a cache, at most as many as rounds.
const NR_CALIBRATIONS: usize = 3;
/// Samples of A alone, at most as many as rounds.
const NR_ALONE: usize = 5;

const KEPT_MIN: f64 = 0.97;
/// The same for a time.
const P99_MAX: f64 = 1.03;
const HIT_POINTS_MAX: f64 = 0.5;
/// The minimum percentage of A's reads found in the cache: below it, B has taken part of A's share.
const FOUND_PERCENT_MIN: f64 = 90.0;

const SIDES: [&str; 6] = [
    "two groups, B with marks",
    "two groups, no marks",
    "B with a cache of one page",
    "one group for both",
    "kernel, two cgroups",
    "kernel, one cgroup",
];
const NR_OURS: usize = 4;
/// The side to compare ours with.
const BASELINE: usize = 2;

/// The figures of a sample: A's calls a second, p50, p99, p99.9 and the longest, its hits, its lost
/// microseconds, its direct reclaims; B's calls a second, its latencies; how much of one processor
/// the mount and both tenants used, and B's own process.
const FIGURES: [(&str, &str); 15] = [
    ("A: calls", "/s"),
    ("A: p50", "us"),
    ("A: p99", "us"),
    ("A: p99.9", "us"),
    ("A: max", "us"),
    ("A: pages found", "%"),
    ("A: time stalled for memory", "us"),
    ("A: direct reclaims", ""),
    ("B: calls", "/s"),
    ("B: p50", "us"),
    ("B: p99", "us"),
    ("B: p99.9", "us"),
    ("B: max", "us"),
    ("processor time, mount and tenants", "%"),
    ("processor time, B's process", "%"),
];
/// Places in it.
const FOUND: usize = 5;
const STALLED: usize = 6;
const B_CALLS: usize = 8;
const CPU: usize = 13;
type Figures = [f64; FIGURES.len()];
/// The figures missing on the kernel's side.
const OURS_ONLY: std::ops::Range<usize> = 5..8;

/// Groups by process.
#[derive(Debug)]
struct ByProcess {
    others: Arc<Group>,
    groups: Mutex<HashMap<u32, Arc<Group>>>,
}

impl Classifier for ByProcess {
    fn classify(&self, tid: u32, _uid: u32, _gid: u32) -> Arc<Group> {
        let groups = self.groups.lock().unwrap_or_else(PoisonError::into_inner);
        groups.get(&tid).unwrap_or(&self.others).clone()
    }
}

/// Two memory cgroups of the kernel, version 1, below this process's own.
struct KernelGroups(PathBuf);

impl KernelGroups {
    fn make() -> Option<Self> {
        let cgroups = fs::read_to_string("/proc/self/cgroup").ok()?;
        let own = cgroups.lines().find_map(|line| line.split_once(":memory:"))?.1.trim_start_matches('/');
        let top = Path::new("/sys/fs/cgroup/memory").join(own);
        let groups = Self(top.join(format!("umemcg-neighbour-{}", std::process::id())));
        let limits = [("", A_BYTES + B_BYTES), ("a", A_BYTES), ("b", B_BYTES)];
        for (name, limit) in limits {
            let group = groups.0.join(name);
            fs::create_dir(&group).ok()?;
            let _ = fs::write(group.join("memory.use_hierarchy"), "1");
            // No writer is slowed there. When all memory of a tenant is under write-back, its call
            // must be refused, and the tenant must not be killed.
            let _ = fs::write(group.join("memory.oom_control"), "1");
            fs::write(group.join("memory.limit_in_bytes"), limit.to_string()).ok()?;
        }
        Some(groups)
    }

    /// Puts a process into `a` or `b`, or into the one above.
    fn place(&self, name: &str, pid: u32) -> Result<(), Failure> {
        let procs = self.0.join(name).join("cgroup.procs");
        fs::write(&procs, pid.to_string()).map_err(Failure::at("cannot place a process"))
    }

    /// Drops their cached pages.
    fn empty(&self) {
        ["a", "b", ""]
            .iter()
            .for_each(|name| _ = fs::write(self.0.join(name).join("memory.force_empty"), "0"));
    }
}

impl Drop for KernelGroups {
    fn drop(&mut self) {
        ["a", "b", ""].iter().for_each(|name| _ = fs::remove_dir(self.0.join(name)));
    }
}

/// The mount, its groups, the files behind it, and the kernel's groups if it has any.
struct World {
    engine: Arc<Engine>,
    by_process: Arc<ByProcess>,
    groups: [Arc<Group>; 3],
    daemon: Daemon,
    kernel: Option<KernelGroups>,
    data: tempfile::TempDir,
    mnt: tempfile::TempDir,
    nr_files: u64,
    time: Duration,
    /// Refused calls of B.
    nr_refused: Cell<u64>,
    /// A's rate on the mount, and on the host's file system.
    rates: [f64; 2],
    /// A's share of one processor at that rate on the mount, with the mount's part.
    cpu_alone: f64,
}

/// Places of the groups.
const A: usize = 0;
const B: usize = 1;
const BOTH: usize = 2;

impl World {
    fn new(options: &Options, choice: &Choice, progress: &Progress) -> Result<Self, Failure> {
        let directory =
            || tempfile::tempdir_in(options.directory()).map_err(Failure::at("cannot make a directory"));
        let (data, mnt) = (directory()?, directory()?);
        let nr_files = ((NR_FILES * options.scale) as u64).max(FILES_PER_DIRECTORY);
        progress.show(&format!("{nr_files} files are made"));
        make_files(data.path(), nr_files).map_err(Failure::at("cannot make the files"))?;
        let config = EngineConfig::new(POOL_BYTES);
        let engine = Engine::new(config).map_err(Failure::at("cannot make an engine"))?;
        let groups = ["a", "b", "both"].map(|name| engine.create_group(engine.root(), name.as_ref()));
        let [a, b, both] = groups;
        let group = |made: Result<_, _>| made.map_err(Failure::at("cannot create a group"));
        let groups = [group(a)?, group(b)?, group(both)?];
        let by_process = Arc::new(ByProcess { others: Arc::clone(engine.root()), groups: Mutex::default() });
        let classifier: Arc<dyn Classifier> = Arc::clone(&by_process) as _;
        let guard = Some(Programs::default().guard()?);
        let config = DaemonConfig { guard, ..DaemonConfig::new(data.path(), mnt.path()) };
        let daemon = Daemon::start(&engine, classifier, &config).map_err(Failure::at("cannot mount"))?;
        let kernel = if choice.compared { None } else { KernelGroups::make() };
        let mut world = Self {
            engine,
            by_process,
            groups,
            daemon,
            kernel,
            data,
            mnt,
            nr_files,
            time: choice.time(SAMPLE_S, options.scale),
            nr_refused: Cell::new(0),
            rates: [0.0; 2],
            cpu_alone: 0.0,
        };
        progress.show("A alone");
        // The scheduler's placement of a request's threads makes a factor of three, for as long as
        // a sample lasts: the median of some. Not of the first, before which the memory has not
        // been touched.
        for (at, side) in [(0, 1), (1, NR_OURS)] {
            let nr_alone = NR_ALONE.min(options.rounds as usize);
            let (mut rates, nr_samples) = (Vec::new(), if world.has(side) { 1 + nr_alone } else { 0 });
            for nr in 0..nr_samples {
                world.set_up(side)?;
                let mut alone = world.tenant(A, side, Work::Random, Tempo::Free)?;
                alone.tell()?;
                let done = alone.done()?;
                rates.extend((nr > 0).then_some(done.calls as f64 / done.seconds / 2.0));
            }
            if nr_samples > 0 {
                world.rates[at] = choice.rate.unwrap_or_else(|| Samples::new("", rates).median);
            }
        }
        world.set_up(1)?;
        let mut alone = world.tenant(A, 1, Work::Random, Tempo::Rate(world.rates[0]))?;
        let before = process_time();
        alone.tell()?;
        let done = alone.done()?;
        let cpu = (process_time() - before).as_secs_f64() + done.cpu_seconds;
        world.cpu_alone = 100.0 * cpu / done.seconds;
        Ok(world)
    }

    fn has(&self, side: usize) -> bool {
        side < NR_OURS || self.kernel.is_some()
    }

    /// Sets the limits and marks of a side, with no cached and no dirty pages.
    fn set_up(&self, side: usize) -> Result<(), Failure> {
        let engine = &self.engine;
        if !engine.sync_all(Duration::from_secs(60)).is_empty() {
            return Err(Failure::Wrong("what B wrote cannot be made durable".into()));
        }
        engine.drop_caches(umemcg::DropCaches::Both);
        let [a, b, both] = &self.groups;
        let marks = engine.reclaimer();
        let bytes = if side == 0 { [HIGH_DISTANCE, LOW_DISTANCE] } else { [0, 0] };
        let b_bytes = if side == BASELINE { ONE_PAGE } else { B_BYTES };
        let off = marks.set_low_wmark_distance(b, 0).and_then(|()| marks.set_high_wmark_distance(b, 0));
        for (group, bytes) in [(a, A_BYTES), (b, b_bytes), (both, A_BYTES + B_BYTES)] {
            engine.set_max(group, bytes);
        }
        off.and_then(|()| marks.set_high_wmark_distance(b, bytes[0]))
            .and_then(|()| marks.set_low_wmark_distance(b, bytes[1]))
            .map_err(Failure::at("cannot set marks"))?;
        if let Some(kernel) = &self.kernel {
            kernel.empty();
        }
        Ok(())
    }

    /// Starts a tenant where a side has it.
    fn tenant(&self, tenant: usize, side: usize, work: Work, tempo: Tempo) -> Result<Tenant, Failure> {
        let is_ours = side < NR_OURS;
        let top = if is_ours { self.mnt.path() } else { self.data.path() };
        let (name, size) = match work {
            Work::Random => ("set", WORKING_SET),
            Work::Stream => ("stream", STREAM_FILE),
            Work::Write => ("written", WRITE_FILE),
            Work::Walk => ("tree", self.nr_files),
            Work::Burn => ("", 0),
        };
        let is_shared = side == 3 || side == 5;
        Tenant::start((work, top.join(name), size), self.time, tempo, |pid| {
            if is_ours {
                let group = Arc::clone(&self.groups[if is_shared { BOTH } else { tenant }]);
                self.by_process.groups.lock().unwrap_or_else(PoisonError::into_inner).insert(pid, group);
                return Ok(());
            }
            match &self.kernel {
                Some(kernel) => kernel.place(if is_shared { "" } else { ["a", "b"][tenant] }, pid),
                None => Ok(()),
            }
        })
    }

    /// Checks B's written data: in each piece the same bytes. A refused call may leave a hole.
    fn check_written(&self, is_some: bool) -> Result<(), Failure> {
        let failed = "cannot read what B wrote";
        let bytes = fs::read(self.data.path().join("written")).map_err(Failure::at(failed))?;
        let is_hole = |piece: &[u8]| self.nr_refused.get() > 0 && piece.iter().all(|&byte| byte == 0);
        let wrong = bytes.chunks(STREAM_BYTES).position(|piece| !is_right(0, piece) && !is_hole(piece));
        if let Some(at) = wrong {
            return Err(Failure::Wrong(format!("piece {at} does not hold what B wrote")));
        }
        if is_some && bytes.is_empty() {
            return Err(Failure::Wrong("nothing that B wrote is in the directory".into()));
        }
        Ok(())
    }

    /// Takes one sample of a side; B makes this many calls a second at most. Returns the figures,
    /// and the sizes used.
    fn describe(&self) -> String {
        format!(
            "pool {} MiB; A reads pages of {} MiB at random within {} MiB, due {:.0} a second on the mount and {:.0} on the host's files, half \
         of what it does alone, {:.2} s a sample; B has {} MiB, streams through {} MiB, writes over {} MiB, looks at {} files; with marks they \
         are {} and {} MiB below its limit; with a cache of one page B has {} KiB, and {} KiB for names",
            POOL_BYTES / MIB,
            WORKING_SET / MIB,
            A_BYTES / MIB,
            self.rates[0],
            self.rates[1],
            self.time.as_secs_f64(),
            B_BYTES / MIB,
            STREAM_FILE / MIB,
            WRITE_FILE / MIB,
            self.nr_files,
            HIGH_DISTANCE / MIB,
            LOW_DISTANCE / MIB,
            ONE_PAGE >> 10,
            FEW_NAMES >> 10,
        )
    }

    fn sample(&self, side: usize, work: Work, pace: Option<f64>) -> Result<Figures, Failure> {
        self.set_up(side)?;
        if side == BASELINE && work == Work::Walk {
            self.engine.set_max(&self.groups[B], FEW_NAMES);
        }
        let mut a =
            self.tenant(A, side, Work::Random, Tempo::Rate(self.rates[usize::from(side >= NR_OURS)]))?;
        let mut b = self.tenant(B, side, work, pace.map_or(Tempo::Free, Tempo::AtMost))?;
        let group = &self.groups[if side == 3 { BOTH } else { A }];
        let (before, cpu) = (counts(group), process_time());
        b.tell()?;
        a.tell()?;
        let (a, b) = (a.done()?, b.done()?);
        let (after, cpu) = (counts(group), process_time() - cpu);
        let [found, missed, stalled, direct] = [0, 1, 2, 3].map(|at| after[at] - before[at]);
        let rate = |done: &Done| (done.calls - done.refused) as f64 / done.seconds;
        let [a50, a99, a999, a_max] = a.latency_us;
        let [b50, b99, b999, b_max] = b.latency_us;
        let b_cpu = 100.0 * b.cpu_seconds / b.seconds;
        let all_cpu = 100.0 * (cpu.as_secs_f64() + a.cpu_seconds) / a.seconds.max(b.seconds) + b_cpu;
        let hits = 100.0 * found / (found + missed).max(1.0);
        if a.refused > 0 && (side < NR_OURS || a.refused > a.calls / 100) {
            return Err(Failure::Wrong(format!("{} calls of A were refused, {}", a.refused, SIDES[side])));
        }
        if side < BASELINE && hits < FOUND_PERCENT_MIN {
            return Err(Failure::Wrong(format!("A finds {hits:.1} % of its pages, {}", SIDES[side])));
        }
        self.nr_refused.set(self.nr_refused.get() + b.refused);
        self.by_process.groups.lock().unwrap_or_else(PoisonError::into_inner).clear();
        let of_a = [rate(&a), a50, a99, a999, a_max, hits, stalled, direct];
        let of_b = [rate(&b), b50, b99, b999, b_max, all_cpu, b_cpu];
        let mut figures = [0.0; FIGURES.len()];
        figures.iter_mut().zip(of_a.into_iter().chain(of_b)).for_each(|(figure, value)| *figure = value);
        Ok(figures)
    }
}

/// Returns the pages found and missed, microseconds stalled, direct reclaims.
fn counts(group: &Arc<Group>) -> [f64; 4] {
    collect_hits();
    let stat = |item| group.stat_total(item) as f64;
    let stalled = umemcg::internal::pressure(group).some.total.as_micros() as f64;
    [stat(StatItem::CacheHit), stat(StatItem::CacheMiss), stalled, stat(StatItem::AllocStall)]
}

fn make_files(data: &Path, nr_files: u64) -> std::io::Result<()> {
    write_contents(&mut File::create(data.join("set"))?, WORKING_SET)?;
    File::create(data.join("stream"))?.set_len(STREAM_FILE)?;
    File::create(data.join("written"))?;
    for nr in 0..nr_files {
        let path = data.join("tree").join(file_name(nr));
        if nr % FILES_PER_DIRECTORY == 0
            && let Some(directory) = path.parent()
        {
            fs::create_dir_all(directory)?;
        }
        File::create(path)?;
    }
    Ok(())
}

/// Runs the experiment.
pub fn run(options: &Options, choice: &Choice) -> Result<Report, Failure> {
    let progress = Progress::new();
    let world = World::new(options, choice, &progress)?;
    let is_wanted = |side| world.has(side) && (!choice.compared || side == 0 || side == BASELINE);
    let sides: Vec<usize> = (0..SIDES.len()).filter(|&side| is_wanted(side)).collect();
    let mut report = Report::new("neighbour", options.scale, options.rounds as usize);
    let rows = [
        (Row::Streams, Work::Stream, "B streams"),
        (Row::Writes, Work::Write, "B writes"),
        (Row::Walks, Work::Walk, "B walks a tree of names"),
    ];
    for (_, work, what) in rows.into_iter().filter(|&(row, ..)| choice.has(row)) {
        let samples = measure(&world, options, &sides, (work, what), &progress)?;
        report.notes.extend(latency_notes(what, &sides, &samples));
        report.sections.extend(sections(what, &sides, &samples));
    }
    if choice.has(Row::Dirty) {
        neighbour_dirty::run(options, choice, &progress, &mut report)?;
    }
    let kernel = if world.kernel.is_some() {
        "the kernel's sides read the files themselves, in memory cgroups of version 1 with the same limits"
    } else {
        "this kernel gives no memory cgroups of version 1 here: its sides are left out"
    };
    report.notes.push(world.describe());
    report.notes.push(format!("{kernel}; latencies of A count from when a call was due"));
    let ended = world.daemon.shut_down(Instant::now() + Duration::from_secs(60));
    if !ended.is_empty() {
        return Err(Failure::Wrong(format!("not durable: {ended:?}")));
    }
    world.check_written(choice.has(Row::Writes))?;
    Ok(report)
}

/// Takes the samples of a row, by side.
fn measure(
    world: &World,
    options: &Options,
    sides: &[usize],
    (work, what): (Work, &str),
    progress: &Progress,
) -> Result<Vec<Vec<Figures>>, Failure> {
    let mut samples: Vec<Vec<Figures>> = vec![Vec::new(); SIDES.len()];
    let mut pace = Pace::new(world.cpu_alone);
    for round in 0..=options.rounds as usize {
        for at in 0..sides.len() {
            let side = sides[(round + at) % sides.len()];
            progress.show(&format!("{what}, round {round} of {}: {}", options.rounds, SIDES[side]));
            let figures = world.sample(side, work, pace.of(side))?;
            pace.learn(side, &figures);
            if round > 0 {
                samples[side].push(figures);
            }
        }
        for _ in 0..if round == 0 { NR_CALIBRATIONS.min(options.rounds as usize) } else { 0 } {
            progress.show(&format!("{what}, how fast B may be without a cache"));
            pace.learn(BASELINE, &world.sample(BASELINE, work, pace.of(BASELINE))?);
        }
    }
    Ok(samples)
}

fn latency_notes(what: &str, sides: &[usize], samples: &[Vec<Figures>]) -> [String; 2] {
    [("A", 1), ("B", B_CALLS + 1)].map(|(tenant, at)| {
        let row = |&side: &usize| {
            let median = |figure| {
                Samples::new("", samples[side].iter().map(|figures| figures[figure]).collect()).median
            };
            let medians: Vec<String> = (at..at + 4).map(|figure| format!("{:.0}", median(figure))).collect();
            format!("{}: {}", SIDES[side], medians.join(" / "))
        };
        let rows: Vec<String> = sides.iter().map(row).collect();
        format!("{what}; {tenant}'s latencies in us, p50 / p99 / p99.9 / max. {}", rows.join("; "))
    })
}

/// B's calls a second without a cache, at the same total processor time as with the measured B.
struct Pace {
    /// Without any B.
    cpu_alone: f64,
    /// Recent samples of the measured side.
    wanted: Option<f64>,
    calls: Option<f64>,
}

impl Pace {
    fn new(cpu_alone: f64) -> Self {
        Self { cpu_alone, wanted: None, calls: None }
    }

    fn of(&self, side: usize) -> Option<f64> {
        self.calls.filter(|_| side == BASELINE)
    }

    fn learn(&mut self, side: usize, figures: &Figures) {
        let cpu = figures[CPU];
        if side == 0 {
            self.wanted = Some(self.wanted.map_or(cpu, |before| (before + cpu) / 2.0));
        }
        if let Some(wanted) = self.wanted.filter(|_| side == BASELINE) {
            // The number of B's calls follows from the cost of one.
            let each = (cpu - self.cpu_alone).max(1.0) / figures[B_CALLS];
            let calls = (wanted - self.cpu_alone).max(1.0) / each;
            self.calls = Some(self.calls.map_or(calls, |before| (before + calls) / 2.0));
        }
    }
}

fn sections(what: &str, sides: &[usize], samples: &[Vec<Figures>]) -> Vec<Section> {
    let section = |(figure, &(name, unit)): (usize, &(&str, &'static str))| {
        let of = |side: usize| {
            let values = samples[side].iter().map(|figures| figures[figure]).collect();
            Samples::new(SIDES[side], values)
        };
        let shown = sides.iter().filter(|&&side| side < NR_OURS || !OURS_ONLY.contains(&figure));
        let verdicts = match figure {
            0 => vec![Verdict::new(
                "of that beside a B without a cache",
                of(0).ratio_to(&of(BASELINE)),
                Target::TimesAtLeast(KEPT_MIN),
            )],
            2 => vec![Verdict::new(
                "of that beside a B without a cache",
                of(0).ratio_to(&of(BASELINE)),
                Target::TimesAtMost(P99_MAX),
            )],
            FOUND => {
                vec![Verdict::new("points lost", 100.0 - of(0).median, Target::PercentAtMost(HIT_POINTS_MAX))]
            }
            STALLED => vec![Verdict::new("most of any round", 1e3 * of(0).max, Target::NsAtMost(0.0))],
            _ => Vec::new(),
        };
        let title = format!("{what}; {name}");
        Section { title, unit, sides: shown.map(|&side| of(side)).collect(), verdicts }
    };
    FIGURES.iter().enumerate().map(section).collect()
}
