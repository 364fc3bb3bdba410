//! `storm`: tenant A reads and writes mebibytes with two hundred threads at its limit; tenant B, on
//! the same volume, requests attributes and reads cold pages one at a time. The figures show the
//! effect of A's requests on B, compared with equally busy processors.
//!
//! Both sides run on one daemon. On the other side A's threads rest, and one thread for each
//! processor spins: the processors are as busy, and the mount's queues are empty.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, CWD, StatxFlags, statx};
use rustix::thread::gettid;

use crate::footprint::Program;
use crate::mounts::Mount;
use crate::options::{Failure, Options};
use crate::progress::Progress;
use crate::report::{Report, Section, Target, Verdict};
use crate::stats::Samples;
use crate::threads::Latencies;

const POOL: &str = "256M";
const A_LIMIT: &str = "64M";
/// Half of them read, half of them write.
const NR_THREADS: usize = 200;
const CALL_BYTES: usize = 1 << 20;
/// The size of the files of A's readers and writers; sparse, so that the device behind matters
/// little.
const READ_FILE: u64 = 4 << 30;
const WRITE_FILE: u64 = 256 << 20;
/// Far more than the pool, so that hardly any page of it is cached.
const COLD_FILE: u64 = 1 << 40;
const PAGE: u64 = 4096;
/// Seconds of a sample at full size.
const SAMPLE_S: f64 = 5.0;
/// A's threads come up to speed.
const WARM: Duration = Duration::from_millis(500);
const P99_MAX: f64 = 3.0;
const FIGURES: [&str; 6] =
    ["attributes, p50", "attributes, p99", "cold read, p50", "cold read, p99", "B's calls", "A's calls"];

struct Ground {
    mount: Option<Mount>,
    data: PathBuf,
    control: PathBuf,
    /// The pieces written by A, by place.
    written: Vec<AtomicBool>,
    directory: tempfile::TempDir,
}

/// Runs the benchmark.
pub fn run(options: &Options, program: &Program) -> Result<Report, Failure> {
    let progress = Progress::new();
    let mut report = Report::new("storm", options.scale, options.rounds as usize);
    let mut ground = Ground::new(options, program)?;
    let time = Duration::from_secs_f64((SAMPLE_S * options.scale).max(0.5));
    let mut sides: [Vec<[f64; 6]>; 2] = [Vec::new(), Vec::new()];
    for round in 1..=options.rounds {
        progress.show(&format!("round {round} of {}", options.rounds));
        sides[0].push(ground.sample(time, true)?);
        sides[1].push(ground.sample(time, false)?);
    }
    ground.mount.take().map_or(Ok(()), Mount::end)?;
    ground.check_written()?;
    for (at, figure) in FIGURES.into_iter().enumerate() {
        let samples = |side: &[[f64; 6]]| side.iter().map(|figures| figures[at]).collect::<Vec<f64>>();
        let sides = vec![
            Samples::new("beside A's 200 threads", samples(&sides[0])),
            Samples::new("beside processors that spin", samples(&sides[1])),
        ];
        let is_judged = figure.ends_with("p99");
        let verdicts = is_judged.then(|| {
            let ratio = sides[0].ratio_to(&sides[1]);
            Verdict::new("of a busy processor, at most", ratio, Target::TimesAtMost(P99_MAX))
        });
        let unit = if figure.ends_with("calls") { "/s" } else { "us" };
        let verdicts = verdicts.into_iter().collect();
        report.sections.push(Section { title: figure.to_owned(), unit, sides, verdicts });
    }
    Ok(report)
}

/// The shared state of the threads of a sample.
struct Run<'a> {
    ground: &'a Ground,
    ends: &'a AtomicBool,
    /// Only work from here on counts.
    counts: &'a AtomicBool,
}

impl Ground {
    fn new(options: &Options, program: &Program) -> Result<Self, Failure> {
        let directory =
            tempfile::tempdir_in(options.directory()).map_err(Failure::at("cannot make a directory"))?;
        let [data, control] = ["data", "control"].map(|name| directory.path().join(name));
        for path in [&data, &control] {
            fs::create_dir(path).map_err(Failure::at("cannot make a directory"))?;
        }
        for (name, len) in [("read", READ_FILE), ("written", WRITE_FILE), ("cold", COLD_FILE)] {
            let file = File::create(data.join(name)).map_err(Failure::at("cannot make a file"))?;
            file.set_len(len).map_err(Failure::at("cannot make a sparse file"))?;
        }
        let point = directory.path().join("mount");
        let mut command = Command::new(program.path()?);
        command.arg("mount").arg(&data).arg(&point).arg("--control").arg(&control);
        command.args(["--pool", POOL, "--page-cache", "own"]);
        let unmount = ["fusermount3", "-u", "--", "{}"];
        let mount = Mount::start("umemcg", point, &mut command, &unmount)?;
        let deadline = Instant::now() + Duration::from_secs(10);
        while !control.join("memory.stat").exists() {
            if Instant::now() > deadline {
                return Err(Failure::Setup("the control files do not appear".into()));
            }
            std::thread::yield_now();
        }
        for group in ["a", "b"] {
            fs::create_dir(control.join(group)).map_err(Failure::at("cannot make a group"))?;
        }
        fs::write(control.join("a/memory.limit_in_bytes"), A_LIMIT)
            .map_err(Failure::at("cannot set a limit"))?;
        let written = (0..WRITE_FILE / CALL_BYTES as u64).map(|_| AtomicBool::new(false)).collect();
        let data = directory.path().join("mount");
        Ok(Self { mount: Some(mount), data, control, written, directory })
    }

    /// Checks that A's written data is in the directory, and nothing else.
    fn check_written(&self) -> Result<(), Failure> {
        let failed = "cannot read what A wrote";
        let file = File::open(self.directory.path().join("data/written")).map_err(Failure::at(failed))?;
        let mut piece = vec![2; CALL_BYTES];
        for (at, is_written) in self.written.iter().enumerate() {
            file.read_exact_at(&mut piece, (at * CALL_BYTES) as u64).map_err(Failure::at(failed))?;
            let expected = u8::from(is_written.load(Relaxed));
            if piece.iter().any(|&byte| byte != expected) {
                return Err(Failure::Wrong(format!("MiB {at} of what A wrote is not all {expected}")));
            }
        }
        Ok(())
    }

    fn open(&self, name: &str) -> Result<File, Failure> {
        let mut options = fs::OpenOptions::new();
        options.read(true).write(name == "written");
        options.open(self.data.join(name)).map_err(Failure::at("cannot open a file"))
    }

    /// Moves this thread to the group to charge from now on.
    fn join(&self, group: &str) -> Result<(), Failure> {
        let tid = gettid().as_raw_nonzero().to_string();
        fs::write(self.control.join(group).join("tasks"), tid).map_err(Failure::at("cannot join a group"))
    }

    /// Takes one sample: see [`FIGURES`].
    fn sample(&self, time: Duration, is_storm: bool) -> Result<[f64; 6], Failure> {
        let (ends, counts) = (AtomicBool::new(false), AtomicBool::new(false));
        let run = Run { ground: self, ends: &ends, counts: &counts };
        std::thread::scope(|scope| {
            let run = &run;
            let nr_spinning = std::thread::available_parallelism().map_or(2, usize::from);
            let nr = if is_storm { NR_THREADS } else { nr_spinning };
            let load: Vec<_> = (0..nr)
                .map(|at| scope.spawn(move || if is_storm { run.storm(at as u64) } else { Ok(run.spin()) }))
                .collect();
            let measured = scope.spawn(move || run.measure(time));
            let measured = measured.join();
            ends.store(true, Relaxed);
            let mut calls = 0;
            for thread in load {
                calls += thread.join().map_err(|_| Failure::Setup("a thread of A ended".into()))??;
            }
            let measured = measured.map_err(|_| Failure::Setup("the thread of B ended".into()))??;
            let [attributes, reads] = measured.0.map(|latencies| latencies.quantiles([0.5, 0.99]));
            let per_second = |calls: u64| calls as f64 / time.as_secs_f64();
            let figures = [attributes[0], attributes[1], reads[0], reads[1]];
            let rates = [per_second(measured.1), per_second(calls)];
            Ok([figures[0], figures[1], figures[2], figures[3], rates[0], rates[1]])
        })
    }

    fn attributes(&self, path: &Path) -> Result<(), Failure> {
        // The kernel is to ask the daemon each time.
        let found = statx(CWD, path, AtFlags::STATX_FORCE_SYNC, StatxFlags::BASIC_STATS);
        let found = found.map_err(|error| Failure::at("cannot look at a file")(error))?;
        if found.stx_size != COLD_FILE {
            return Err(Failure::Wrong("a length that is not the file's".into()));
        }
        Ok(())
    }
}

impl Run<'_> {
    fn spin(&self) -> u64 {
        while !self.ends.load(Relaxed) {
            std::hint::spin_loop();
        }
        0
    }

    /// Reads or writes mebibytes at random places; returns their number.
    fn storm(&self, at: u64) -> Result<u64, Failure> {
        self.ground.join("a")?;
        let reads = at.is_multiple_of(2);
        let file = self.ground.open(if reads { "read" } else { "written" })?;
        let len = if reads { READ_FILE } else { WRITE_FILE };
        let mut buffer = vec![1_u8; CALL_BYTES];
        let mut random = Random(at + 1);
        let mut calls = 0;
        while !self.ends.load(Relaxed) {
            let offset = random.below(len / CALL_BYTES as u64) * CALL_BYTES as u64;
            let done = match reads {
                true => file.read_exact_at(&mut buffer, offset),
                false => file.write_all_at(&buffer, offset),
            };
            done.map_err(Failure::at("A cannot read or write"))?;
            if reads && (buffer[0], buffer[CALL_BYTES - 1]) != (0, 0) {
                return Err(Failure::Wrong("a hole that is not empty".into()));
            }
            if !reads {
                self.ground.written[offset as usize / CALL_BYTES].store(true, Relaxed);
            }
            calls += u64::from(self.counts.load(Relaxed));
        }
        Ok(calls)
    }

    /// Requests attributes and reads cold pages in turn; returns the latencies of each, and their
    /// number.
    fn measure(&self, time: Duration) -> Result<([Latencies; 2], u64), Failure> {
        self.ground.join("b")?;
        let file = self.ground.open("cold")?;
        let path = self.ground.data.join("cold");
        let mut page = [1_u8; PAGE as usize];
        let mut random = Random(12_345);
        let mut latencies = [Latencies::new(), Latencies::new()];
        let mut calls = 0;
        let started = Instant::now();
        while started.elapsed() < WARM + time {
            let counts = started.elapsed() >= WARM;
            self.counts.store(counts, Relaxed);
            let before = Instant::now();
            self.ground.attributes(&path)?;
            let between = Instant::now();
            let offset = random.below(COLD_FILE / PAGE) * PAGE;
            file.read_exact_at(&mut page, offset).map_err(Failure::at("B cannot read"))?;
            if counts {
                latencies[0].note(between - before);
                latencies[1].note(between.elapsed());
                calls += 2;
            }
            if page.iter().any(|&byte| byte != 0) {
                return Err(Failure::Wrong("a hole that is not empty".into()));
            }
        }
        Ok((latencies, calls))
    }
}

struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 20) % bound
    }
}

impl Drop for Ground {
    fn drop(&mut self) {
        // After a failed run: a killed daemon leaves the mount of its control files.
        if self.mount.take().is_some() {
            let _ = Command::new("fusermount3").args(["-uz", "--"]).arg(&self.control).status();
        }
    }
}
