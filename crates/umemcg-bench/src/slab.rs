//! `slab` (mail memcg-aware-slab-shrinking): a real build with thousands of small files, on a real
//! mount, in one group at its limit all the time. Names and inodes are shrunk per group; or not at
//! all, as before the mail; or from one list shared by all groups.
//!
//! Each run has a pool, a daemon and a mount of its own in this process; its processor time is
//! counted with the build's. A neighbour with names in the kernel's cache does nothing meanwhile:
//! the number of its surviving names is reported, too. The build checks itself: its program prints
//! a sum, and git finds nothing changed.

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use umemcg::{Engine, EngineConfig, Group, StatItem};
use umemcg_base::PAGE_SIZE_U64;
use umemcg_fuse::{Classifier, Daemon, DaemonConfig, DaemonError};
use umemcg_reclaim::baseline;
use umemcg_vfs::VolumeError;

use crate::fuse::Programs;
use crate::options::{Failure, Options, PageCache};
use crate::progress::Progress;
use crate::report::{MailFigure, Report, Section, Target, Verdict};
use crate::served_mount::{bounded, once_free};
use crate::stats::Samples;

/// Directories of the tree at full size; in each, files of these kinds.
const NR_DIRECTORIES: usize = 24;
const NR_SOURCES: usize = 20;
const NR_HEADERS: usize = 120;
/// Headers included by each source.
const NR_INCLUDED: usize = 10;
/// Names of the neighbour.
const NR_NEIGHBOURS: usize = 2000;
const POOL_BYTES: u64 = 512 << 20;
/// The group's limit, in percent of its usage without a limit: enough for all names and inodes,
/// since reclaim of pages alone must be able to make room.
const LIMIT_PERCENT: u64 = 40;
/// The least limit when the kernel keeps the pages. It locks the pages of a read until the daemon's
/// reply, and locked pages cannot be dropped: two compilers, each with a read and the read-ahead
/// behind it, 1 MiB each. In less room a read would wait for its own locked pages.
const KERNEL_LIMIT_MIN: u64 = 4 << 20;
/// The most elapsed time, as a multiple of the time with pages only. The mail: 1.097.
const ELAPSED_MAX: f64 = 1.01;
/// Rounds from which on a bound is more useful than the median.
const ROUNDS_FOR_BOUND: usize = 15;
/// Processor time is counted in these parts of a second.
const TICKS_PER_S: f64 = 100.0;

/// The shrinkers beside pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    PerGroup,
    PagesOnly,
    OneList,
}

const MODES: [(Mode, &str); 3] = [
    (Mode::PerGroup, "umemcg, per group"),
    (Mode::PagesOnly, "only pages"),
    (Mode::OneList, "one list for all"),
];
const OURS: usize = 0;
const BASE: usize = 1;

impl Mode {
    fn set(self) {
        baseline::pages_only(self == Self::PagesOnly);
        baseline::one_global_list(self == Self::OneList);
    }
}

/// The figures of a run.
const FIGURES: [(&str, &str); 9] = [
    ("elapsed time", "s"),
    ("user time", "s"),
    ("system time", "s"),
    ("processors", "%"),
    ("context switches of the machine", ""),
    ("read from the store", "MiB"),
    ("pages read again", ""),
    ("names and inodes of the group at the end", "KiB"),
    ("names of the neighbour that are left", "%"),
];
const ELAPSED: usize = 0;
const USER: usize = 1;
const SYSTEM: usize = 2;
const NEIGHBOUR_LEFT: usize = 8;
/// The least percentage of the neighbour's names that is left where names are shrunk per group: the
/// kernel may forget some by itself.
const LEFT_PERCENT_MIN: f64 = 50.0;

/// The mail's rows: base, with one list, per group; with their standard deviations.
const MAIL: [[&str; 3]; 5] = [
    ["415.988 (8.38)", "424.486 (16.7)", "456.644 (15.4)"],
    ["4142 (760)", "4146.8 (764)", "4036.3 (645)"],
    ["418.483 (62.0)", "419.24 (62.5)", "438.134 (82.3)"],
    ["1030.7 (267)", "1012.1 (265)", "973 (169)"],
    ["391509 (268361)", "393363 (268899)", "350796 (229700)"],
];

/// The requesting process: the neighbour, as long as it is its turn, else the build.
#[derive(Debug)]
struct Turns {
    build: Arc<Group>,
    neighbour: Arc<Group>,
    is_neighbours: AtomicBool,
}

impl Turns {
    fn group(&self) -> &Arc<Group> {
        if self.is_neighbours.load(Relaxed) { &self.neighbour } else { &self.build }
    }
}

impl Classifier for Turns {
    fn classify(&self, _tid: u32, _uid: u32, _gid: u32) -> Arc<Group> {
        Arc::clone(self.group())
    }
}

/// Runs the experiment.
pub fn run(options: &Options, page_cache: PageCache) -> Result<Report, Failure> {
    let progress = Progress::new();
    let rounds = options.rounds as usize;
    let name = if page_cache == PageCache::Kernel { "kernel-slab" } else { "slab" };
    let mut report = Report::new(name, options.scale, rounds);
    let directory =
        tempfile::tempdir_in(options.directory()).map_err(Failure::at("cannot make a directory"))?;
    let tree = Tree::make(directory.path(), options.scale)?;
    progress.show("without a limit");
    let free = tree.build(page_cache, Mode::PerGroup, None)?;
    let least = if page_cache == PageCache::Kernel { KERNEL_LIMIT_MIN } else { 0 };
    let limit = (free.peak_bytes * LIMIT_PERCENT / 100).max(2 * free.metadata_peak_bytes).max(least);
    let mut runs: Runs = Default::default();
    for round in 0..=rounds {
        for at in 0..MODES.len() {
            let side = (round + at) % MODES.len();
            progress.show(&format!("round {round} of {rounds}: {}", MODES[side].1));
            let run = tree.build(page_cache, MODES[side].0, Some(limit));
            Mode::PerGroup.set();
            let run = run?;
            run.check(MODES[side].0, limit, free.peak_bytes)?;
            if round > 0 {
                runs[side].push(run.figures);
            }
        }
    }
    report.sections = sections(&runs);
    report.mail = mail_figures(&runs);
    report.notes.push(format!(
        "{} sources and {} headers, {} names with git's; make -j2, find, git status, touch, make, find in a group of {} MiB (without a \
         limit it takes {} MiB, of which names, inodes and bookkeeping {} KiB); means with standard deviations beside the mail's",
        tree.nr_sources(),
        tree.nr_headers(),
        tree.nr_names,
        limit >> 20,
        free.peak_bytes >> 20,
        free.metadata_peak_bytes >> 10
    ));
    report.notes.push(
        "elapsed, user and system time are of the build and of the daemon; context switches are those of the whole machine".into(),
    );
    Ok(report)
}

/// By mode: the figures of each run.
type Runs = [Vec<[f64; 9]>; 3];

fn sections(runs: &Runs) -> Vec<Section> {
    let mut sections = Vec::new();
    for (figure, (title, unit)) in FIGURES.iter().enumerate() {
        let sides: Vec<Samples> = MODES
            .iter()
            .zip(runs)
            .map(|((_, name), runs)| Samples::new(*name, runs.iter().map(|run| run[figure]).collect()))
            .collect();
        let verdicts = if figure == ELAPSED { vec![elapsed_verdict(&sides)] } else { Vec::new() };
        sections.push(Section { title: (*title).to_owned(), unit, sides, verdicts });
    }
    let cpu = |side: usize| {
        let times = runs[side].iter().map(|run| run[USER] + run[SYSTEM]).collect();
        Samples::new(MODES[side].1, times)
    };
    let sides: Vec<Samples> = (0..MODES.len()).map(cpu).collect();
    let verdicts = vec![Verdict::new(
        "of that with pages only",
        sides[OURS].ratio_to(&sides[BASE]),
        Target::TimesAtMost(ELAPSED_MAX),
    )];
    sections.push(Section { title: "user and system time".into(), unit: "s", sides, verdicts });
    sections
}

fn mail_figures(runs: &Runs) -> Vec<MailFigure> {
    let figure = |(figure, mail): (usize, &[&str; 3])| {
        let ours = [BASE, 2, OURS].map(|side| {
            let samples = runs[side].iter().map(|run| run[figure]).collect();
            let (mean, deviation) = Samples::new("", samples).mean_and_deviation();
            format!("{mean:.2} ({deviation:.2})")
        });
        MailFigure {
            what: format!("{}: pages only, one list, per group", FIGURES[figure].0),
            mail: mail.join(", "),
            ours: ours.join(", "),
        }
    };
    MAIL.iter().enumerate().map(figure).collect()
}

fn elapsed_verdict(sides: &[Samples]) -> Verdict {
    let (ours, base) = (&sides[OURS], &sides[BASE]);
    match ours.ratio_bound_above(base).filter(|_| ours.samples.len() >= ROUNDS_FOR_BOUND) {
        Some(bound) => {
            Verdict::new("of that with pages only, at most (95 %)", bound, Target::TimesAtMost(ELAPSED_MAX))
        }
        None => {
            Verdict::new("of that with pages only", ours.ratio_to(base), Target::TimesAtMost(ELAPSED_MAX))
        }
    }
}

/// The tree of sources, and its mount.
struct Tree {
    data: PathBuf,
    mount: PathBuf,
    nr_directories: usize,
    nr_names: usize,
    /// The output of the program.
    sum: u64,
}

/// The result of a build.
struct Built {
    figures: [f64; 9],
    usage_bytes: u64,
    peak_bytes: u64,
    metadata_peak_bytes: u64,
}

impl Built {
    /// Checks that the group stayed near its limit, if the limit is below its usage without one,
    /// and that reclaim has left the neighbour alone.
    fn check(&self, mode: Mode, limit: u64, free_bytes: u64) -> Result<(), Failure> {
        if limit < free_bytes && self.usage_bytes > limit.midpoint(free_bytes) {
            return Err(Failure::Wrong(format!("{} bytes are used, the limit is {limit}", self.usage_bytes)));
        }
        let left = self.figures[NEIGHBOUR_LEFT];
        if mode == Mode::PerGroup && left < LEFT_PERCENT_MIN {
            return Err(Failure::Wrong(format!("the neighbour has {left:.0} % of its names")));
        }
        Ok(())
    }
}

impl Tree {
    /// Makes the sources, as a repository of git.
    fn make(directory: &Path, scale: f64) -> Result<Self, Failure> {
        let nr_directories = ((NR_DIRECTORIES as f64 * scale) as usize).max(2);
        let (data, mount) = (directory.join("data"), directory.join("mount"));
        let failed = "cannot make the sources";
        fs::create_dir_all(&mount).map_err(Failure::at(failed))?;
        let mut declared = String::new();
        let mut summed = String::new();
        let mut sum = 0;
        for at in 0..nr_directories {
            let module = data.join(format!("tree/m{at}"));
            fs::create_dir_all(&module).map_err(Failure::at(failed))?;
            for header in 0..NR_HEADERS {
                let text = format!(
                    "#ifndef M{at}_H{header}\n#define M{at}_H{header}\n/* {} */\nstatic const unsigned m{at}_h{header} = {header};\n#endif\n",
                    "what this constant is good for; ".repeat(10)
                );
                fs::write(module.join(format!("h{header}.h")), text).map_err(Failure::at(failed))?;
            }
            for source in 0..NR_SOURCES {
                let included: Vec<(usize, usize)> = (0..NR_INCLUDED)
                    .map(|nr| ((at + nr) % nr_directories, (source * 7 + nr * 11 + at) % NR_HEADERS))
                    .collect();
                let mut text = String::new();
                let mut terms = String::from("0");
                for (module, header) in included {
                    let _ = writeln!(text, "#include \"m{module}/h{header}.h\"");
                    let _ = write!(terms, " + m{module}_h{header}");
                    sum += header as u64;
                }
                let _ = writeln!(text, "unsigned f{at}_{source}(void) {{ return {terms}; }}");
                fs::write(module.join(format!("s{source}.c")), text).map_err(Failure::at(failed))?;
                let _ = writeln!(declared, "unsigned f{at}_{source}(void);");
                let _ = write!(summed, " + f{at}_{source}()");
            }
        }
        let main = format!(
            "#include <stdio.h>\n{declared}int main(void) {{ printf(\"%u\\n\", 0u{summed}); return 0; }}\n"
        );
        let makefile = "SOURCES := $(wildcard m*/*.c) main.c\nOBJECTS := $(SOURCES:.c=.o)\n\
            program: $(OBJECTS)\n\t@gcc -o $@ $(OBJECTS)\n%.o: %.c\n\t@gcc -O0 -I. -MMD -c -o $@ $<\n-include $(OBJECTS:.o=.d)\n";
        let root = data.join("tree");
        fs::write(root.join("main.c"), main).map_err(Failure::at(failed))?;
        fs::write(root.join("Makefile"), makefile).map_err(Failure::at(failed))?;
        fs::write(root.join(".gitignore"), "*.o\n*.d\nprogram\n").map_err(Failure::at(failed))?;
        let neighbour = data.join("neighbour");
        fs::create_dir_all(&neighbour).map_err(Failure::at(failed))?;
        for at in 0..NR_NEIGHBOURS {
            fs::write(neighbour.join(format!("n{at}")), "").map_err(Failure::at(failed))?;
        }
        shell(
            &root,
            "git init -q . && git add -A && git -c user.name=n -c user.email=n@localhost commit -q -m tree && git gc -q",
        )?;
        let nr_names = shell(&root, "find . | wc -l")?.trim().parse().unwrap_or(0);
        Ok(Self { data, mount, nr_directories, nr_names, sum })
    }

    fn nr_sources(&self) -> usize {
        self.nr_directories * NR_SOURCES + 1
    }

    fn nr_headers(&self) -> usize {
        self.nr_directories * NR_HEADERS
    }

    /// Mounts the tree and builds in it.
    fn build(&self, page_cache: PageCache, mode: Mode, limit: Option<u64>) -> Result<Built, Failure> {
        shell(&self.data.join("tree"), "find . \\( -name '*.[od]' -o -name program \\) -delete")?;
        mode.set();
        let config = EngineConfig::new(POOL_BYTES).pool_marks(true);
        let engine = Engine::new(config).map_err(Failure::at("cannot make a pool"))?;
        let group = |name: &str| {
            engine.create_group(engine.root(), name.as_ref()).map_err(Failure::at("cannot make a group"))
        };
        let (build, neighbour) = (group("build")?, group("neighbour")?);
        if let Some(limit) = limit {
            engine.set_limit(&build, limit).map_err(Failure::at("cannot set the limit"))?;
        }
        let turns = Arc::new(Turns {
            build: Arc::clone(&build),
            neighbour: Arc::clone(&neighbour),
            is_neighbours: AtomicBool::new(true),
        });
        let mut config = DaemonConfig::new(&self.data, &self.mount);
        config.lifetimes.pages = page_cache == PageCache::Kernel;
        config.guard = Some(Programs::default().guard()?);
        let classifier: Arc<dyn Classifier> = Arc::clone(&turns) as _;
        let is_in_use = |error: &DaemonError| matches!(error, DaemonError::Volume(VolumeError::InUse { .. }));
        let daemon = once_free(|| Daemon::start(&engine, Arc::clone(&classifier), &config), is_in_use)
            .map_err(Failure::at("cannot mount"))?;
        let figures = bounded(&daemon, || self.watch(&turns));
        let (peak_bytes, metadata_peak_bytes) = (build.peak_bytes(), build.metadata_peak_bytes());
        let usage_bytes = build.usage_bytes();
        let lost = daemon.shut_down(Instant::now() + Duration::from_secs(60));
        drop(daemon);
        let figures = figures?;
        if !lost.is_empty() {
            return Err(Failure::Wrong("data of the build could not be written".into()));
        }
        Ok(Built { figures, usage_bytes, peak_bytes, metadata_peak_bytes })
    }

    fn watch(&self, turns: &Turns) -> Result<[f64; 9], Failure> {
        let at = self.mount.join("tree");
        // Counted by their charges: the mount's root is not the tenant's.
        let names = || turns.neighbour.stat_local(StatItem::SlabReclaimable) as f64;
        shell(&self.mount.join("neighbour"), "find . -size 0 | wc -l")?;
        let names_before = names();
        turns.is_neighbours.store(false, Relaxed);
        let before = Clocks::read();
        let start = Instant::now();
        for _ in 0..2 {
            shell(&at, "make -s -j2")?;
            shell(&at, "find . -name '*.h' -size +0 | wc -l")?;
            let changed = shell(&at, "git status --porcelain")?;
            if !changed.is_empty() {
                return Err(Failure::Wrong(format!("git says that something has changed: {changed}")));
            }
            shell(&at, "touch m0/h*.h")?;
        }
        let elapsed = start.elapsed().as_secs_f64();
        let after = Clocks::read();
        let sum = shell(&at, "./program")?;
        if sum.trim() != self.sum.to_string() {
            return Err(Failure::Wrong(format!("the program says {}, not {}", sum.trim(), self.sum)));
        }
        let (user, system) = (after.user - before.user, after.system - before.system);
        let of = |item| turns.build.stat_total(item) as f64;
        Ok([
            elapsed,
            user,
            system,
            100.0 * (user + system) / elapsed,
            after.switches - before.switches,
            of(StatItem::PgPgIn) * PAGE_SIZE_U64 as f64 / f64::from(1 << 20),
            of(StatItem::WorkingsetRefault),
            of(StatItem::SlabReclaimable) / 1024.0,
            100.0 * names() / names_before.max(1.0),
        ])
    }
}

/// Runs a line of shell in a directory; returns its output.
fn shell(directory: &Path, line: &str) -> Result<String, Failure> {
    let mut command = Command::new("sh");
    command.arg("-c").arg(format!("cd \"$0\" && {line}")).arg(directory).stdin(Stdio::null());
    // No file outside the mount, and no user settings.
    command.env("GIT_CONFIG_NOSYSTEM", "1").env("HOME", "/nonexistent").env("GIT_OPTIONAL_LOCKS", "0");
    let output = command.stderr(Stdio::inherit()).output().map_err(Failure::at("cannot start sh"))?;
    if !output.status.success() {
        return Err(Failure::Wrong(format!("`{line}` failed: {}", output.status)));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Readings before and after.
struct Clocks {
    /// Seconds of this process and of its children.
    user: f64,
    system: f64,
    switches: f64,
}

impl Clocks {
    fn read() -> Self {
        let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
        // After the name, which may contain anything but ends with the last bracket.
        let fields: Vec<f64> = stat
            .rsplit_once(')')
            .map_or("", |(_, rest)| rest)
            .split_whitespace()
            .map(|word| word.parse().unwrap_or(0.0))
            .collect();
        let time = |at: usize| fields.get(at).copied().unwrap_or(0.0) / TICKS_PER_S;
        let machine = fs::read_to_string("/proc/stat").unwrap_or_default();
        let switches = machine.lines().find_map(|line| line.strip_prefix("ctxt ")?.parse().ok());
        // utime, stime, cutime, cstime.
        Self { user: time(11) + time(13), system: time(12) + time(14), switches: switches.unwrap_or(0.0) }
    }
}
