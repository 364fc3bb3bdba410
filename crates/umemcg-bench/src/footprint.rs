//! `footprint`: resident memory of a real daemon with a full pool: of pages; half of pages, half of
//! names and inodes; and after everything was dropped. One daemon for all rounds, so that leaks
//! show.
//!
//! This process reads and looks up through the mount, and moves itself to the group to charge.

use std::fs::{self, File};
use std::io::Read;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::machine::resident_bytes_of;
use crate::mounts::Mount;
use crate::options::{Failure, Options};
use crate::progress::Progress;
use crate::report::{Report, Section, Target, Verdict};
use crate::stats::Samples;

const MIB: u64 = 1 << 20;
/// At full size.
const POOL_BYTES: u64 = 512 * MIB;
/// Names take up half of the pool at less than this each: an inode with a long name, opened once.
const NAME_BYTES: u64 = 1280;
const FILES_PER_DIRECTORY: u64 = 1000;
const READ_BYTES: usize = 1 << 20;
/// Of the pool's size, beside [`FIXED_BYTES`].
const PAGES_MAX: f64 = 1.03;
const FIXED_BYTES: u64 = 32 * MIB;
/// Of the pool's size.
const HALF_MAX: f64 = 1.10;
const EMPTY_BYTES_MAX: f64 = 64.0 * MIB as f64;
/// The time limit for dropped memory to be back, at full size.
const BACK_WITHIN: Duration = Duration::from_secs(10);
/// A pool this full is full: background reclaim keeps some room.
const FULL_PERCENT: u64 = 90;
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// The path of the program.
#[derive(Debug, Clone, clap::Args)]
pub struct Program {
    /// The daemon to measure (beside this program if not given)
    #[arg(long, value_name = "FILE")]
    pub umemcg: Option<PathBuf>,
}

impl Program {
    /// Returns the daemon to measure.
    pub fn path(&self) -> Result<PathBuf, Failure> {
        match &self.umemcg {
            Some(file) => Ok(file.clone()),
            None => {
                Ok(std::env::current_exe().map_err(Failure::at("this program"))?.with_file_name("umemcg"))
            }
        }
    }
}

/// A daemon, and the directories behind its mount.
struct Ground {
    /// Unmounted before the directories are removed.
    mount: Option<Mount>,
    control: PathBuf,
    pool_bytes: u64,
    nr_files: u64,
    _directory: tempfile::TempDir,
}

/// Runs the benchmark.
pub fn run(options: &Options, program: &Program) -> Result<Report, Failure> {
    let progress = Progress::new();
    let mut report = Report::new("footprint", options.scale, options.rounds as usize);
    progress.show("files are made");
    let mut ground = Ground::new(options, program)?;
    let started = ground.resident();
    let back_within = options.scaled_time(BACK_WITHIN);
    let (mut pages, mut halves, mut backs, mut times) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for round in 1..=options.rounds {
        progress.show(&format!("round {round} of {}: pages", options.rounds));
        ground.fill_with_pages("pages", ground.pool_bytes * 5 / 4)?;
        ground.expect_full("of pages")?;
        pages.push(ground.resident() as f64);
        ground.drop_everything(back_within)?;
        progress.show(&format!("round {round} of {}: half names", options.rounds));
        // Each its half, or the pages would take room from the names: the pool has marks below its
        // end.
        ground.limit("names", Some(ground.pool_bytes / 2))?;
        ground.limit("pages", Some(ground.pool_bytes * 9 / 20))?;
        ground.fill_with_names()?;
        ground.fill_with_pages("pages", ground.pool_bytes)?;
        ground.expect_full("of pages and names")?;
        ground.expect_names()?;
        halves.push(ground.resident() as f64);
        ground.limit("names", None)?;
        ground.limit("pages", None)?;
        let (bytes, seconds) = ground.drop_everything(back_within)?;
        backs.push(bytes);
        times.push(seconds);
    }
    ground.join("")?;
    ground.mount.take().map_or(Ok(()), Mount::end)?;
    let pool = ground.pool_bytes as f64;
    let mut section =
        |title: &str, unit, samples: Vec<f64>, verdict: &dyn Fn(&Samples) -> Option<Verdict>| {
            let sides = vec![Samples::new("the daemon", samples)];
            let verdicts = verdict(&sides[0]).into_iter().collect();
            report.sections.push(Section { title: title.to_owned(), unit, sides, verdicts });
        };
    section("resident, the pool full of pages", "bytes", pages, &|side| {
        let beside = (side.max - FIXED_BYTES as f64) / pool;
        Some(Verdict::new("of the pool, less 32 MiB, at most", beside, Target::TimesAtMost(PAGES_MAX)))
    });
    section("resident, half pages, half names and inodes", "bytes", halves, &|side| {
        Some(Verdict::new("of the pool, at most", side.max / pool, Target::TimesAtMost(HALF_MAX)))
    });
    let back = format!("resident, {} s after everything was dropped", back_within.as_secs_f64());
    section(&back, "bytes", backs, &|side| {
        Some(Verdict::new("at most", side.max, Target::BytesAtMost(EMPTY_BYTES_MAX)))
    });
    section("until it is below 64 MiB again", "s", times, &|_| None);
    report.notes.push(format!(
        "pool of {} MiB; {} files with names of 48 bytes, each opened once, half of the pool at the most; {} MiB resident at the start",
        ground.pool_bytes / MIB,
        ground.nr_files,
        started / MIB
    ));
    Ok(report)
}

impl Ground {
    fn new(options: &Options, program: &Program) -> Result<Self, Failure> {
        let pool_bytes = ((POOL_BYTES as f64 * options.scale) as u64).max(64 * MIB) / MIB * MIB;
        let directory =
            tempfile::tempdir_in(options.directory()).map_err(Failure::at("cannot make a directory"))?;
        let (data, control) = (directory.path().join("data"), directory.path().join("control"));
        let failed = "cannot make the files";
        let nr_files = pool_bytes / 2 / NAME_BYTES * 5 / 4;
        for at in 0..nr_files {
            let place = data.join(format!("names/d{}", at / FILES_PER_DIRECTORY));
            if at.is_multiple_of(FILES_PER_DIRECTORY) {
                fs::create_dir_all(&place).map_err(Failure::at(failed))?;
            }
            File::create(place.join(file_name(at))).map_err(Failure::at(failed))?;
        }
        // Holes read like data, and take no room on the host.
        let pages = File::create(data.join("pages")).map_err(Failure::at(failed))?;
        pages.set_len(pool_bytes * 5 / 4).map_err(Failure::at(failed))?;
        fs::create_dir_all(&control).map_err(Failure::at(failed))?;
        let mut command = Command::new(program.path()?);
        command.arg("mount").arg(&data).arg(directory.path().join("mount"));
        command.arg("--control").arg(&control).args(["--pool", &format!("{}M", pool_bytes / MIB)]);
        command.args(["--page-cache", "own"]);
        let mount = Mount::start(
            "umemcg",
            directory.path().join("mount"),
            &mut command,
            &["fusermount3", "-u", "--", "{}"],
        )?;
        let deadline = Instant::now() + BACK_WITHIN;
        while !control.join("memory.stat").exists() {
            if Instant::now() > deadline {
                return Err(Failure::Setup("the control files do not appear".into()));
            }
            std::thread::sleep(LOOK_EVERY);
        }
        let ground = Self { mount: Some(mount), control, pool_bytes, nr_files, _directory: directory };
        for group in ["pages", "names"] {
            fs::create_dir(ground.control.join(group)).map_err(Failure::at("cannot make a group"))?;
        }
        Ok(ground)
    }

    fn mount(&self) -> &Mount {
        self.mount.as_ref().expect("there until the end")
    }

    fn resident(&self) -> u64 {
        resident_bytes_of(self.mount().process_id())
    }

    fn write(&self, file: &str, text: &str) -> Result<(), Failure> {
        fs::write(self.control.join(file), text).map_err(Failure::at(&format!("cannot write to {file}")))
    }

    fn read(&self, file: &str) -> Result<u64, Failure> {
        let failed = format!("cannot read {file}");
        let text = fs::read_to_string(self.control.join(file)).map_err(Failure::at(&failed))?;
        text.trim().parse().map_err(Failure::at(&failed))
    }

    /// Moves this process to the group to charge from now on; the root for an empty name.
    fn join(&self, group: &str) -> Result<(), Failure> {
        self.write(&format!("{group}/cgroup.procs"), &std::process::id().to_string())
    }

    fn limit(&self, group: &str, bytes: Option<u64>) -> Result<(), Failure> {
        let limit = bytes.map_or_else(|| "-1".into(), |bytes| bytes.to_string());
        self.write(&format!("{group}/memory.limit_in_bytes"), &limit)
    }

    fn fill_with_pages(&self, group: &str, bytes: u64) -> Result<(), Failure> {
        self.join(group)?;
        let mut file =
            File::open(self.mount().path.join("pages")).map_err(Failure::at("cannot open the pages"))?;
        let mut buffer = vec![1u8; READ_BYTES];
        for _ in 0..bytes / READ_BYTES as u64 {
            file.read_exact(&mut buffer).map_err(Failure::at("cannot read the pages"))?;
            if buffer.iter().any(|&byte| byte != 0) {
                return Err(Failure::Wrong("a hole that is not empty".into()));
            }
        }
        Ok(())
    }

    fn fill_with_names(&self) -> Result<(), Failure> {
        self.join("names")?;
        let names = self.mount().path.join("names");
        for at in 0..self.nr_files {
            let file = names.join(format!("d{}", at / FILES_PER_DIRECTORY)).join(file_name(at));
            File::open(&file).map_err(Failure::at("cannot open a file"))?;
        }
        Ok(())
    }

    fn expect_full(&self, what: &str) -> Result<(), Failure> {
        let bytes = self.read("memory.usage_in_bytes")?;
        if bytes * 100 < self.pool_bytes * FULL_PERCENT {
            return Err(Failure::Wrong(format!("{} MiB {what} are no full pool", bytes / MIB)));
        }
        Ok(())
    }

    /// Checks that names use half of the pool, or nearly: requests to forget names are sent early,
    /// since the kernel is slow.
    fn expect_names(&self) -> Result<(), Failure> {
        let bytes = self.read("memory.kmem.usage_in_bytes")?;
        if bytes < self.pool_bytes * 2 / 5 {
            return Err(Failure::Wrong(format!("{} MiB of names are not half a pool", bytes / MIB)));
        }
        Ok(())
    }

    /// Checks that hardly any pages are left. Names leave when the kernel forgets them.
    fn expect_no_pages(&self) -> Result<(), Failure> {
        let failed = Failure::at("cannot read memory.stat");
        let text = fs::read_to_string(self.control.join("memory.stat")).map_err(failed)?;
        let pages = text.lines().find_map(|line| line.strip_prefix("total_cache ")?.parse::<u64>().ok());
        match pages {
            Some(bytes) if bytes <= self.pool_bytes / 10 => Ok(()),
            left => Err(Failure::Wrong(format!("bytes of pages after a drop: {left:?}"))),
        }
    }

    /// Drops all pages, names and inodes. Returns resident bytes after the allowed time, and the
    /// seconds it took to get below the bound.
    fn drop_everything(&self, back_within: Duration) -> Result<(f64, f64), Failure> {
        self.join("")?;
        let start = Instant::now();
        self.write("vm.drop_caches", "3")?;
        let mut below = back_within.as_secs_f64();
        while start.elapsed() < back_within {
            if self.resident() as f64 <= EMPTY_BYTES_MAX {
                below = start.elapsed().as_secs_f64();
                break;
            }
            std::thread::sleep(LOOK_EVERY);
        }
        std::thread::sleep(back_within.saturating_sub(start.elapsed()));
        self.expect_no_pages()?;
        Ok((self.resident() as f64, below))
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

/// Returns a name too long to be kept in an inode.
fn file_name(at: u64) -> String {
    format!("a-name-that-is-longer-than-forty-bytes-{at:09}")
}
