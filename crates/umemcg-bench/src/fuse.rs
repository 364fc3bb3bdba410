//! `fuse`: the mount as programs see it, against libfuse's `passthrough_hp` on the same directory
//! and against the crate `fuser` serving two files from memory.
//!
//! The files are warm everywhere: in our pool, and in the kernel's page cache below
//! `passthrough_hp`. Every block is read once in a run, so that the kernel's page cache *above*
//! `passthrough_hp` (which fio empties first) never answers in its place. Each mount's files are
//! compared with their contents before the first sample, and data written through ours is compared
//! with the backing directory after unmounting.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use umemcg_fuse::GuardProgram;

use crate::fio::{self, Engine, Job};
use crate::mounts::Mount;
use crate::options::{Failure, Options};
use crate::progress::Progress;
use crate::report::{Report, Section, Target, Verdict};
use crate::stats::{Side, alternate};
use crate::store::{is_right, write_contents};

/// Bytes of each file to read, at full size.
const READ_BYTES: u64 = 256 << 20;
/// Bytes of the file to write, at full size: below the thresholds of either side's writers.
const WRITE_BYTES: u64 = 256 << 20;
/// Files created, looked at and removed.
const NR_FILES: u64 = 10_000;
/// Our pool, as a multiple of the files' size.
const POOL_FACTOR: u64 = 4;
/// Threads of the limit.
const LIMIT_THREADS: usize = 2;

/// Warm reads reach this part of the limit.
const OF_LIMIT_MIN: f64 = 0.9;
/// Every row reaches this part of `passthrough_hp`.
const OF_RIVAL_MIN: f64 = 1.0;

const OURS: &str = "umemcg";
const RIVAL: &str = "passthrough_hp --nocache";
const LIMIT: &str = "fuser from memory (limit)";

/// The paths of the programs.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct Programs {
    /// The daemon to measure (beside this program if not given)
    #[arg(long, value_name = "FILE")]
    pub umemcg: Option<PathBuf>,
    /// Directory of passthrough_hp and fuser-memory, built by bench-rivals/build.sh (../rivals from
    /// this program if not given)
    #[arg(long, value_name = "DIR")]
    pub rivals: Option<PathBuf>,
}

impl Programs {
    /// Returns the daemon, and the directory of the rivals.
    pub fn find(&self) -> Result<(PathBuf, PathBuf), Failure> {
        let beside = std::env::current_exe().map_err(Failure::at("cannot find this program"))?;
        let beside = beside.parent().unwrap_or(Path::new("."));
        let umemcg = self.umemcg.clone().unwrap_or_else(|| beside.join("umemcg"));
        let rivals = self.rivals.clone().unwrap_or_else(|| beside.join("../rivals"));
        if umemcg.exists() {
            return Ok((umemcg, rivals));
        }
        Err(Failure::Setup(format!(
            "there is no daemon at {}: build it (cargo build --release -p umemcg-cli) or name it with --umemcg",
            umemcg.display()
        )))
    }

    /// Returns the helper that ends the mount of a daemon in this process if it is killed.
    pub fn guard(&self) -> Result<GuardProgram, Failure> {
        let (path, _) = self.find()?;
        Ok(GuardProgram { name: "umemcg".into(), path, arguments: vec!["__orphan-guard".into()] })
    }
}

/// The directory, its mounts, and how much is moved.
struct Ground {
    /// Unmounted before the directory is removed: fields are dropped in this order.
    mounts: Vec<Mount>,
    umemcg: PathBuf,
    data: PathBuf,
    read_bytes: u64,
    write_bytes: u64,
    nr_files: u64,
    directory: tempfile::TempDir,
}

/// Runs the benchmark.
pub fn run(options: &Options, programs: &Programs) -> Result<Report, Failure> {
    fio::check()?;
    let progress = Progress::new();
    let rounds = options.rounds as usize;
    let mut report = Report::new("fuse", options.scale, rounds);
    let ground = Ground::new(options, programs, &progress, &mut report.notes)?;
    let mut measure = |title: &str, unit, nr_jobs: usize, kind: Kind| -> Result<(), Failure> {
        let failure = std::cell::RefCell::new(None);
        let sides: Vec<Side<'_>> = ground
            .mounts
            .iter()
            .filter(|mount| matches!(kind, Kind::Read(..)) || mount.name != LIMIT)
            .map(|mount| {
                let (ground, failure, progress) = (&ground, &failure, &progress);
                Side::new(mount.name, move || {
                    if failure.borrow().is_some() {
                        return 1.0;
                    }
                    progress.show(&format!("{title}: {}", mount.name));
                    ground.sample(mount, kind, nr_jobs).unwrap_or_else(|error| {
                        *failure.borrow_mut() = Some(error);
                        1.0
                    })
                })
            })
            .collect();
        let sides = alternate(rounds, sides, &Progress::off());
        if let Some(failure) = failure.into_inner() {
            return Err(failure);
        }
        let mut verdicts = Vec::new();
        for other in &sides[1..] {
            let least = if other.name == LIMIT { OF_LIMIT_MIN } else { OF_RIVAL_MIN };
            let times = sides[0].ratio_to(other);
            verdicts.push(Verdict::new(format!("of {}", other.name), times, Target::TimesAtLeast(least)));
        }
        report.sections.push(Section { title: title.to_owned(), unit, sides, verdicts });
        Ok(())
    };
    measure("random reads of 4 KiB, 1 job", "calls/s", 1, Kind::Read("randread", 4 << 10))?;
    measure("random reads of 4 KiB, 2 jobs", "calls/s", 2, Kind::Read("randread", 4 << 10))?;
    measure("sequential reads of 128 KiB", "MiB/s", 1, Kind::Read("read", 128 << 10))?;
    measure("sequential reads of 1 MiB", "MiB/s", 1, Kind::Read("read", 1 << 20))?;
    measure("writes of 128 KiB", "MiB/s", 1, Kind::Write(128 << 10))?;
    measure("files created", "files/s", 1, Kind::Create)?;
    measure("files looked at (stat)", "files/s", 1, Kind::Stat)?;
    measure("files removed", "files/s", 1, Kind::Unlink)?;
    ground.finish()?;
    Ok(report)
}

/// The work of one sample.
#[derive(Debug, Clone, Copy)]
enum Kind {
    /// Reads with fio's pattern, by calls of this many bytes.
    Read(&'static str, u64),
    Write(u64),
    Create,
    Stat,
    Unlink,
}

impl Ground {
    fn new(
        options: &Options,
        programs: &Programs,
        progress: &Progress,
        notes: &mut Vec<String>,
    ) -> Result<Self, Failure> {
        let (umemcg, rivals) = programs.find()?;
        let scaled =
            |full: u64| ((full as f64 * options.scale) as u64).max(full / 16).next_multiple_of(1 << 20);
        let (read_bytes, write_bytes) = (scaled(READ_BYTES), scaled(WRITE_BYTES));
        let nr_files = ((NR_FILES as f64 * options.scale) as u64).max(NR_FILES / 20);
        let directory = tempfile::Builder::new()
            .prefix("umemcg-bench.")
            .tempdir_in(options.directory())
            .map_err(Failure::at("cannot make a directory"))?;
        let data = directory.path().join("data");
        let mut ground =
            Self { mounts: Vec::new(), umemcg, data, read_bytes, write_bytes, nr_files, directory };
        fs::create_dir(&ground.data).map_err(Failure::at("cannot make a directory"))?;
        for file in ground.read_files(&ground.data, 2) {
            progress.show(&format!("writing {}", file.display()));
            let mut open = File::create(&file).map_err(Failure::at("cannot create a file"))?;
            write_contents(&mut open, read_bytes).map_err(Failure::at("cannot write a file"))?;
        }
        rustix::fs::sync();

        progress.show("mounting");
        let pool_mib = (POOL_FACTOR * (2 * read_bytes + write_bytes)) >> 20;
        ground.mount(&rivals, pool_mib, notes)?;
        for mount in &ground.mounts {
            for file in ground.read_files(&mount.path, 2) {
                progress.show(&format!("checking {}", file.display()));
                check_contents(&file, read_bytes)?;
            }
        }
        notes.push(format!(
            "files of {} MiB read and {} MiB written, {nr_files} files created, looked at and removed; pool of {pool_mib} MiB; \
             {LIMIT_THREADS} threads for the limit",
            read_bytes >> 20,
            write_bytes >> 20
        ));
        Ok(ground)
    }

    /// Mounts all available sides.
    fn mount(&mut self, rivals: &Path, pool_mib: u64, notes: &mut Vec<String>) -> Result<(), Failure> {
        let top = self.directory.path().to_owned();
        let mut ours = Command::new(&self.umemcg);
        ours.arg("mount").arg(&self.data).arg(top.join("ours")).args(["--pool", &format!("{pool_mib}M")]);
        ours.args(["--page-cache", "own"]);
        let program = self.umemcg.display().to_string();
        self.mounts.push(Mount::start(OURS, top.join("ours"), &mut ours, &[&program, "umount", "{}"])?);
        let mut rival = Command::new(rivals.join("passthrough_hp"));
        rival.args(["--foreground", "--nocache"]).arg(&self.data).arg(top.join("rival"));
        let mut limit = Command::new(rivals.join("fuser-memory"));
        limit.arg(top.join("limit")).arg(self.read_bytes.to_string()).arg(LIMIT_THREADS.to_string());
        for (name, place, command) in [(RIVAL, "rival", &mut rival), (LIMIT, "limit", &mut limit)] {
            if Path::new(command.get_program()).exists() {
                let mount = Mount::start(name, top.join(place), command, &["fusermount3", "-u", "{}"])?;
                self.mounts.push(mount);
            } else {
                notes.push(format!("{name} is missing: bench-rivals/build.sh builds it"));
            }
        }
        Ok(())
    }

    fn read_files(&self, mount: &Path, nr: usize) -> Vec<PathBuf> {
        (0..nr).map(|at| mount.join(format!("read{at}.bin"))).collect()
    }

    /// Takes one sample on a mount.
    fn sample(&self, mount: &Mount, kind: Kind, nr_jobs: usize) -> Result<f64, Failure> {
        match kind {
            Kind::Read(pattern, block_bytes) => {
                let files = self.read_files(&mount.path, nr_jobs);
                if mount.name == RIVAL {
                    for file in self.read_files(&self.data, nr_jobs) {
                        fs::read(file).map_err(Failure::at("cannot read a file"))?;
                    }
                }
                let file_bytes = self.read_bytes;
                let engine = Engine::CallsUncached;
                let rate = fio::run(&Job { pattern, block_bytes, file_bytes, files, engine, loops: 1 })?;
                Ok(if pattern == "read" { rate * block_bytes as f64 / f64::from(1 << 20) } else { rate })
            }
            Kind::Write(block_bytes) => {
                let file = mount.path.join("written.bin");
                self.settle()?;
                let job = Job {
                    pattern: "write",
                    block_bytes,
                    file_bytes: self.write_bytes,
                    files: vec![file.clone()],
                    engine: Engine::CallsUncached,
                    loops: 1,
                };
                let rate = fio::run(&job)?;
                fs::remove_file(file).map_err(Failure::at("cannot remove a file"))?;
                Ok(rate * block_bytes as f64 / f64::from(1 << 20))
            }
            Kind::Create | Kind::Stat | Kind::Unlink => self.sample_names(&mount.path, kind),
        }
    }

    /// Creates, looks at and removes files; the clock runs for one of them.
    fn sample_names(&self, mount: &Path, kind: Kind) -> Result<f64, Failure> {
        let directory = mount.join("names");
        let problem = || Failure::at("a file cannot be made, looked at or removed");
        fs::create_dir(&directory).map_err(problem())?;
        let names: Vec<PathBuf> = (0..self.nr_files).map(|at| directory.join(format!("file{at}"))).collect();
        self.settle()?;
        let mut start = Instant::now();
        for name in &names {
            drop(File::create_new(name).map_err(problem())?);
        }
        let mut seconds = start.elapsed().as_secs_f64();
        if !matches!(kind, Kind::Create) {
            start = Instant::now();
            for name in &names {
                // As C programs do. The standard library requests the birth time, too, and no other
                // reply has it: one request for each file, whatever the kernel has cached.
                if rustix::fs::stat(name).map_err(io::Error::from).map_err(problem())?.st_size != 0 {
                    return Err(Failure::Wrong(format!("{} is not empty", name.display())));
                }
            }
            seconds = start.elapsed().as_secs_f64();
        }
        start = Instant::now();
        for name in &names {
            fs::remove_file(name).map_err(problem())?;
        }
        if matches!(kind, Kind::Unlink) {
            seconds = start.elapsed().as_secs_f64();
        }
        let left = fs::read_dir(&directory).map_err(problem())?.count();
        fs::remove_dir(&directory).map_err(problem())?;
        if left != 0 {
            return Err(Failure::Wrong(format!("{left} files are left in {}", directory.display())));
        }
        Ok(self.nr_files as f64 / seconds)
    }

    /// Waits until write-back of earlier samples has ended.
    fn settle(&self) -> Result<(), Failure> {
        if let Some(mount) = self.mounts.iter().find(|mount| mount.name == OURS) {
            let synced = Command::new(&self.umemcg).arg("sync").arg(&mount.path).output();
            let synced = synced.map_err(Failure::at("cannot run umemcg sync"))?;
            if !synced.status.success() {
                let said = String::from_utf8_lossy(&synced.stderr);
                return Err(Failure::Wrong(format!("umemcg sync: {}: {said}", synced.status)));
            }
        }
        rustix::fs::sync();
        Ok(())
    }

    /// Writes through our mount, unmounts everything, and compares the backing directory.
    fn finish(mut self) -> Result<(), Failure> {
        let written = self.mounts[0].path.join("checked.bin");
        let mut open = File::create(&written).map_err(Failure::at("cannot create a file"))?;
        write_contents(&mut open, self.read_bytes).map_err(Failure::at("cannot write a file"))?;
        drop(open);
        for mount in self.mounts.drain(..) {
            mount.end()?;
        }
        check_contents(&self.data.join("checked.bin"), self.read_bytes)
    }
}

/// Reads a whole file and compares it with the expected contents.
fn check_contents(path: &Path, len: u64) -> Result<(), Failure> {
    const PIECE: usize = 1 << 20;
    let mut file = File::open(path).map_err(Failure::at(&format!("cannot open {}", path.display())))?;
    let mut piece = vec![0; PIECE];
    for offset in (0..len).step_by(PIECE) {
        let wrong = || Failure::Wrong(format!("{} holds other bytes at {offset}", path.display()));
        file.read_exact(&mut piece).map_err(|_| wrong())?;
        if !is_right(offset, &piece) {
            return Err(wrong());
        }
    }
    match file.read(&mut piece) {
        Ok(0) => Ok(()),
        _ => Err(Failure::Wrong(format!("{} is longer than {len} bytes", path.display()))),
    }
}
