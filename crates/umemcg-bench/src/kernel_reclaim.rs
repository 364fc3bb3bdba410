//! `kernel-reclaim`: the experiments `background` and `soft-stream` on a mount with pages in the
//! kernel's cache, as programs in groups use it.
//!
//! Files of 8 MiB are written through a group of 500 MiB at full size and read back, with marks of
//! 50 and 40 MiB and without, in turns. Then A streams through four times the pool with a soft
//! limit of 0 while B holds the pool less an eighth: B's lost pages are counted with cachestat(2).
//! The mechanisms from before the mails are not in this daemon; `background`, `soft-stream` and
//! `soft-walk` compare with them, without a mount and so without this mode. `faults` and
//! `dirty-throttle` have none either: a hit of the kernel's pages and a dirty limit on a store of a
//! set rate are the same in both modes.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::Duration;

use umemcg_base::PAGE_SIZE_U64;

use crate::fuse::Programs;
use crate::grouped_mount::GroupedMount;
use crate::kernel_view::KernelView;
use crate::neighbour_load::{Done, EACH_FILE_BYTES, STREAM_BYTES, Tempo, Work};
use crate::options::{Failure, Options};
use crate::progress::Progress;
use crate::report::{Report, Section, Target, Verdict};
use crate::stats::Samples;
use crate::store::write_contents;
use crate::tenant::Tenant;
use crate::threads::time_of_process;

const MIB: u64 = 1 << 20;
/// At full size: the files, the group and its marks, as in `background`.
const FILE_BYTES: u64 = 2048 * MIB;
const LIMIT_BYTES: u64 = 500 * MIB;
const HIGH_DISTANCE: u64 = 50 * MIB;
const LOW_DISTANCE: u64 = 40 * MIB;
const POOL_BYTES: u64 = 768 * MIB;
/// The least part of it with room for marks.
const SCALE_MIN: f64 = 0.125;
/// A tenant ends within this.
const LONG: Duration = Duration::from_secs(120);

/// If B loses more than this part of its pages, A's soft limit has no effect.
const LOST_SHARE: u64 = 4;
const CALL_RATIO_MAX: f64 = 1.02;
const CPU_RATIO_MAX: f64 = 1.02;

const SIDES: [&str; 2] = ["marks", "no marks"];
const GROUPS: [&str; 2] = ["marked", "unmarked"];
/// Those of the stream beyond a soft limit.
const A: &str = "a";
const B: &str = "b";

const FIGURES: [(&str, &str); 8] = [
    ("throughput", "MiB/s"),
    ("processor time of the program and the daemon", "ms/GiB"),
    ("128 KiB call, p50", "us"),
    ("128 KiB call, p99", "us"),
    ("128 KiB call, p99.9", "us"),
    ("128 KiB call, max", "us"),
    ("direct reclaims (allocstall)", ""),
    ("pages taken back by the workers", ""),
];
type Figures = [f64; FIGURES.len()];
const P999: usize = 4;
const ALLOCSTALL: usize = 6;

/// A mount and the files behind it.
struct Ground {
    mount: GroupedMount,
    view: KernelView,
    pool: u64,
    /// Bytes to write and read, and to stream through.
    bytes: u64,
    _directory: tempfile::TempDir,
}

/// Runs the experiment.
pub fn run(options: &Options, programs: &Programs) -> Result<Report, Failure> {
    let progress = Progress::new();
    let rounds = options.rounds as usize;
    let mut report = Report::new("kernel-reclaim", options.scale, rounds);
    let scale = options.scale.clamp(SCALE_MIN, 10.0);
    let scaled = |full: u64| ((full as f64 * scale) as u64).next_multiple_of(EACH_FILE_BYTES);
    let ground = Ground::new(options, programs, scaled(POOL_BYTES), scaled(FILE_BYTES))?;
    let limit = scaled(LIMIT_BYTES);
    // Not rounded up to whole files: at a small scale both marks would be equal, and refused.
    let [high, low] = [HIGH_DISTANCE, LOW_DISTANCE].map(|full| limit * full / LIMIT_BYTES);
    for (group, is_marked) in GROUPS.into_iter().zip([true, false]) {
        ground.mount.add_group(group, Some(limit))?;
        if is_marked {
            ground.mount.set(group, "memory.high_wmark_distance", high)?;
            ground.mount.set(group, "memory.low_wmark_distance", low)?;
        }
    }
    let halves = [("write", Work::Write), ("read", Work::Stream)];
    let mut samples: [[Vec<Figures>; 2]; 2] = Default::default();
    for round in 0..=rounds {
        for at in 0..SIDES.len() {
            let side = (round + at) % SIDES.len();
            for (half, (what, work)) in halves.into_iter().enumerate() {
                progress.show(&format!("{what}, round {round} of {rounds}: {}", SIDES[side]));
                let figures = ground.half(GROUPS[side], work)?;
                if round > 0 {
                    samples[half][side].push(figures);
                }
            }
        }
    }
    for ((what, _), samples) in halves.iter().zip(&samples) {
        report.sections.extend((0..FIGURES.len()).map(|figure| section(what, figure, samples)));
    }
    ground.soft_stream(rounds, &progress, &mut report)?;
    report.notes.push(format!(
        "{} MiB in files of 8 MiB, a group of {} MiB with marks {} and {} KiB below its limit; pool {} MiB",
        ground.bytes / MIB,
        limit / MIB,
        high >> 10,
        low >> 10,
        ground.pool / MIB
    ));
    ground.mount.end()?;
    Ok(report)
}

fn section(what: &str, figure: usize, samples: &[Vec<Figures>; 2]) -> Section {
    let (title, unit) = FIGURES[figure];
    let sides: Vec<Samples> = SIDES
        .iter()
        .zip(samples)
        .map(|(name, samples)| Samples::new(*name, samples.iter().map(|of| of[figure]).collect()))
        .collect();
    let ratio = sides[0].ratio_to(&sides[1]);
    let of_other = |target| vec![Verdict::new("of that without marks", ratio, target)];
    let verdicts = match figure {
        0 => of_other(Target::TimesAtLeast(1.0)),
        1 => of_other(Target::TimesAtMost(CPU_RATIO_MAX)),
        P999 => of_other(Target::TimesAtMost(CALL_RATIO_MAX)),
        ALLOCSTALL => vec![Verdict::new("with marks, none", sides[0].max, Target::TimesAtMost(0.0))],
        _ => Vec::new(),
    };
    Section { title: format!("{what}: {title}"), unit, sides, verdicts }
}

impl Ground {
    fn new(options: &Options, programs: &Programs, pool: u64, bytes: u64) -> Result<Self, Failure> {
        let directory = tempfile::Builder::new()
            .prefix("umemcg-bench.")
            .tempdir_in(options.directory())
            .map_err(Failure::at("cannot make a directory"))?;
        let data = directory.path().join("data");
        fs::create_dir_all(data.join("files")).map_err(Failure::at("cannot make a directory"))?;
        let mut held = File::create(data.join("held")).map_err(Failure::at("cannot create a file"))?;
        write_contents(&mut held, pool / 8 * 7).map_err(Failure::at("cannot write a file"))?;
        fs::create_dir(data.join("stream")).map_err(Failure::at("cannot make a directory"))?;
        for at in 0..4 * pool / EACH_FILE_BYTES {
            let file = File::create(data.join(format!("stream/{at}")));
            let mut file = file.map_err(Failure::at("cannot create a file"))?;
            write_contents(&mut file, EACH_FILE_BYTES).map_err(Failure::at("cannot write a file"))?;
        }
        rustix::fs::sync();
        let (daemon, _) = programs.find()?;
        let size = format!("{}M", pool / MIB);
        let arguments = ["--pool", &size, "--page-cache", "kernel", "--exclusive"];
        let mount =
            GroupedMount::start("umemcg, kernel pages", &daemon, directory.path(), &data, &arguments)?;
        let view = KernelView::build(directory.path())?;
        Ok(Self { mount, view, pool, bytes, _directory: directory })
    }

    /// Runs a tenant to its end; returns its result and the processor time of it and the daemon.
    fn tenant(&self, group: &str, work: Work, what: &Path, bytes: u64) -> Result<(Done, f64), Failure> {
        let calls = bytes / STREAM_BYTES as u64;
        let load = (work, what.to_owned(), bytes);
        let mut tenant =
            Tenant::start(load, LONG, Tempo::Times(calls), |process| self.mount.place(group, process))?;
        let before = time_of_process(self.mount.process_id());
        tenant.tell()?;
        let done = tenant.done()?;
        if done.calls != calls || done.refused > 0 {
            return Err(Failure::Wrong(format!("{} of {calls} calls, {} refused", done.calls, done.refused)));
        }
        let daemon = time_of_process(self.mount.process_id()) - before;
        Ok((done, done.cpu_seconds + daemon.as_secs_f64()))
    }

    /// Writes or reads all files in an empty group.
    fn half(&self, group: &str, work: Work) -> Result<Figures, Failure> {
        self.mount.sync()?;
        rustix::fs::sync();
        self.mount.force_empty(group)?;
        let counts = || -> Result<[u64; 2], Failure> {
            Ok([self.mount.stat(group, "allocstall")?, self.mount.stat(group, "kswapd_steal")?])
        };
        let before = counts()?;
        let (done, cpu) = self.tenant(group, work, &self.mount.seen().join("files"), self.bytes)?;
        let after = counts()?;
        let mib = self.bytes as f64 / MIB as f64;
        let [p50, p99, p999, max] = done.latency_us;
        let [stalls, stolen] = [0, 1].map(|at| (after[at] - before[at]) as f64);
        Ok([mib / done.seconds, cpu * 1e3 / (mib / 1024.0), p50, p99, p999, max, stalls, stolen])
    }

    /// Has A stream beyond a soft limit of 0 while B holds nearly everything.
    fn soft_stream(&self, rounds: usize, progress: &Progress, report: &mut Report) -> Result<(), Failure> {
        [A, B].iter().try_for_each(|group| self.mount.add_group(group, None))?;
        self.mount.set(A, "memory.soft_limit_in_bytes", 0)?;
        GROUPS.iter().try_for_each(|group| self.mount.force_empty(group))?;
        let held: [PathBuf; 1] = [self.mount.seen().join("held")];
        let held_bytes = self.pool / 8 * 7;
        let (mut lost, mut spent, mut elapsed) = (Vec::new(), Vec::new(), Vec::new());
        for round in 0..=rounds {
            progress.show(&format!("soft limit, round {round} of {rounds}"));
            [A, B].iter().try_for_each(|group| self.mount.force_empty(group))?;
            self.tenant(B, Work::Stream, &held[0], held_bytes)?;
            let before = self.view.count(&held)?;
            if before < held_bytes / PAGE_SIZE_U64 * 9 / 10 {
                return Err(Failure::Wrong(format!("B holds {before} pages, not {held_bytes} bytes")));
            }
            let (done, cpu) =
                self.tenant(A, Work::Stream, &self.mount.seen().join("stream"), 4 * self.pool)?;
            let nr_lost = before.saturating_sub(self.view.count(&held)?);
            if nr_lost > before / LOST_SHARE {
                return Err(Failure::Wrong(format!("B lost {nr_lost} of {before} pages to A")));
            }
            if round > 0 {
                lost.push(nr_lost as f64);
                spent.push(cpu * 1e3);
                elapsed.push(done.seconds * 1e3);
            }
        }
        let mut section = |title: &str, unit, samples, judge: &dyn Fn(&Samples) -> Option<Verdict>| {
            let sides = vec![Samples::new("umemcg, kernel pages", samples)];
            let verdicts = judge(&sides[0]).into_iter().collect();
            report.sections.push(Section { title: format!("soft limit 0: {title}"), unit, sides, verdicts });
        };
        section("pages that B lost", "pages", lost, &|side| {
            Some(Verdict::new("most of a round", side.max, Target::TimesAtMost(0.0)))
        });
        section("processor time of A and the daemon", "ms", spent, &|_| None);
        section("elapsed", "ms", elapsed, &|_| None);
        Ok(())
    }
}
