//! `programs`: the time of everyday programs on the mount, beside the plain directory and libfuse's
//! `passthrough_hp` with the kernel's caching on.
//!
//! Each side has a directory of its own, so that no side caches files changed by another. A round
//! does the same work on each side: a source tree is unpacked, searched, committed with git and
//! removed; files are read through calls and through mappings, and written. Files for warm reads
//! are read once before the clock starts. Trees are compared by their checksum on every side, and
//! data written through a mount is compared with its backing directory at the end.
//!
//! A mapping is read twice: the first time, each page with its share of a page fault, and then
//! again and again without faults. The build of a kernel stands in `kernel_build`.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use umemcg_base::PAGE_SIZE;

use crate::fio::{self, Engine, Job};
use crate::fuse::Programs;
use crate::kernel_build;
use crate::kernel_view::KernelView;
use crate::mounts::Mount;
use crate::options::{Failure, Options};
use crate::progress::Progress;
use crate::report::{Report, Section, Target, Verdict};
use crate::source_tree::SourceTree;
use crate::stats::Samples;
use crate::store::{word_at, write_contents};

/// Bytes of each file to read, and of the file written at random, at full size.
const FILE_BYTES: u64 = 256 << 20;
/// Bytes that `dd` writes, at full size.
const DD_BYTES: u64 = 512 << 20;
/// Passes over the blocks of a cached file in a sample, at full size.
const NR_LOOPS: f64 = 8.0;
/// The pool of our mounts: larger than all measured data.
const POOL: &str = "4G";

const OURS: &str = "umemcg, kernel pages, exclusive";
const OWN: &str = "umemcg, own pages";
const BEFORE: &str = "umemcg before";
const PLAIN: &str = "plain directory";
const RIVAL: &str = "passthrough_hp";

/// The compared sides, and the chosen work.
#[derive(Debug, Clone, clap::Args)]
pub struct Choice {
    #[command(flatten)]
    programs: Programs,
    /// An earlier build of the daemon to compare with, mounted with its default options
    #[arg(long, value_name = "FILE")]
    before: Option<PathBuf>,
    /// Archive of a source tree to unpack (a made-up tree of 10,000 files if not given)
    #[arg(long, value_name = "TAR")]
    tree: Option<PathBuf>,
    /// Archive of the Linux sources to build (Debian's linux-source in /usr/src if not given)
    #[arg(long, value_name = "TAR")]
    linux: Option<PathBuf>,
    /// Only this part of the work
    #[arg(long, value_enum)]
    only: Option<Part>,
}

/// A part of the work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Part {
    /// The rows of everyday programs
    Rows,
    /// The build of a kernel
    Build,
}

/// A figure of the table.
struct Row {
    title: &'static str,
    unit: &'static str,
    /// The bound against the plain directory, if there is one.
    of_plain: Option<Target>,
    /// Ours has to be ahead of `passthrough_hp`.
    is_race: bool,
}

const fn rate(title: &'static str, unit: &'static str, least: f64) -> Row {
    Row { title, unit, of_plain: Some(Target::TimesAtLeast(least)), is_race: false }
}

const fn shown(title: &'static str, unit: &'static str) -> Row {
    Row { title, unit, of_plain: None, is_race: false }
}

const fn time(title: &'static str, most: f64) -> Row {
    Row { title, unit: "ms", of_plain: Some(Target::TimesAtMost(most)), is_race: true }
}

/// The rows of a round, in the order of the figures of [`Side::round`]. Rows without a bound
/// against the plain directory are shown only.
const ROWS: [Row; 12] = [
    rate("4 KiB reads that hit, 1 job", "calls/s", 0.75),
    rate("4 KiB reads that hit, 2 jobs", "calls/s", 0.6),
    shown("128 KiB reads that hit", "calls/s"),
    rate("4 KiB read through a mapping", "reads/s", 0.95),
    shown("4 KiB read through a mapping for the first time", "ns"),
    rate("dd with fsync", "MiB/s", 0.8),
    shown("4 KiB random writes", "calls/s"),
    time("tar x", 2.5),
    time("grep -r, warm", 3.0),
    time("git add -A and commit", 2.5),
    time("git status, warm", 1.5),
    time("rm -rf", 2.5),
];

/// A directory to work in, and its mount.
struct Side {
    name: &'static str,
    /// Where programs work.
    seen: PathBuf,
    /// Where the data is in the end.
    backing: PathBuf,
    mount: Option<Mount>,
    /// The program to flush the mount.
    daemon: Option<PathBuf>,
}

/// The input of every sample.
struct Work {
    archive: PathBuf,
    tree: SourceTree,
    view: KernelView,
    /// The sum of the first words of all pages of a file to read.
    page_sum: u64,
    file_bytes: u64,
    dd_bytes: u64,
    nr_loops: u32,
}

/// Runs the experiment.
pub fn run(options: &Options, choice: &Choice) -> Result<Report, Failure> {
    let progress = Progress::new();
    let mut report = Report::new("programs", options.scale, options.rounds as usize);
    if choice.only != Some(Part::Build) {
        rows(options, choice, &progress, &mut report)?;
    }
    if choice.only != Some(Part::Rows) {
        let (daemon, _) = choice.programs.find()?;
        kernel_build::run(options, &daemon, choice.linux.as_deref(), &progress, &mut report)?;
    }
    Ok(report)
}

/// Takes the samples of [`ROWS`].
fn rows(options: &Options, choice: &Choice, progress: &Progress, report: &mut Report) -> Result<(), Failure> {
    fio::check()?;
    let rounds = options.rounds as usize;
    let directory = tempfile::Builder::new()
        .prefix("umemcg-bench.")
        .tempdir_in(options.directory())
        .map_err(Failure::at("cannot make a directory"))?;
    progress.show("making the source tree");
    let work = Work::prepare(directory.path(), options.scale, choice.tree.as_deref())?;
    report.notes.push(format!(
        "a tree of {} files, {} MiB; files of {} MiB read, of {} MiB written with dd; pool {POOL}",
        work.tree.nr_files,
        work.tree.bytes >> 20,
        work.file_bytes >> 20,
        work.dd_bytes >> 20
    ));
    let sides = mount_sides(directory.path(), choice, &mut report.notes)?;
    for side in &sides {
        side.write_read_files(work.file_bytes)?;
    }
    let mut figures: Vec<Vec<Vec<f64>>> = vec![vec![Vec::new(); sides.len()]; ROWS.len()];
    for round in 0..=rounds {
        for at in 0..sides.len() {
            let at = (round + at) % sides.len();
            progress.show(&format!("round {round} of {rounds}: {}", sides[at].name));
            let sample = sides[at].round(&work)?;
            // The first round warms up.
            if round > 0 {
                sample.iter().enumerate().for_each(|(row, &figure)| figures[row][at].push(figure));
            }
        }
    }
    for (row, figures) in ROWS.iter().zip(figures) {
        let sides = sides.iter().zip(figures).map(|(side, samples)| Samples::new(side.name, samples));
        report.sections.push(row.judge(sides.collect()));
    }
    sides.into_iter().try_for_each(Side::end)
}

impl Row {
    /// Makes the section of this row; ours is the first side, the plain directory the second.
    fn judge(&self, sides: Vec<Samples>) -> Section {
        let of_plain = |target| Verdict::new(format!("of {PLAIN}"), sides[0].ratio_to(&sides[1]), target);
        let mut verdicts: Vec<Verdict> = self.of_plain.map(of_plain).into_iter().collect();
        if let Some(rival) = sides.iter().find(|side| side.name == RIVAL).filter(|_| self.is_race) {
            let times = sides[0].ratio_to(rival);
            verdicts.push(Verdict::new(format!("of {RIVAL}"), times, Target::TimesAtMost(1.0)));
        }
        Section { title: self.title.to_owned(), unit: self.unit, sides, verdicts }
    }
}

impl Work {
    fn prepare(directory: &Path, scale: f64, tree: Option<&Path>) -> Result<Self, Failure> {
        let scaled = |full: u64| ((full as f64 * scale) as u64).max(full / 16).next_multiple_of(1 << 20);
        let archive = directory.join("tree.tar");
        let made = directory.join("tree");
        fs::create_dir(&made).map_err(Failure::at("cannot make a directory"))?;
        match tree {
            Some(tree) => command("tar", &["xf", &text(tree), "-C", &text(&made)], directory)?,
            None => SourceTree::write(&made, scale)?,
        }
        let tree = SourceTree::read(&made)?;
        command("tar", &["cf", &text(&archive), "-C", &text(&made), "."], directory)?;
        fs::remove_dir_all(&made).map_err(Failure::at("cannot remove a directory"))?;
        let (file_bytes, dd_bytes) = (scaled(FILE_BYTES), scaled(DD_BYTES));
        let page_sum =
            (0..file_bytes).step_by(PAGE_SIZE).fold(0, |sum: u64, at| sum.wrapping_add(word_at(at)));
        let view = KernelView::build(directory)?;
        let nr_loops = (NR_LOOPS * scale.min(1.0)).ceil() as u32;
        Ok(Self { archive, tree, view, page_sum, file_bytes, dd_bytes, nr_loops })
    }
}

/// Mounts all available sides; ours first, then the plain directory.
fn mount_sides(top: &Path, choice: &Choice, notes: &mut Vec<String>) -> Result<Vec<Side>, Failure> {
    let (umemcg, rivals) = choice.programs.find()?;
    let kernel = ["--page-cache", "kernel", "--exclusive"];
    let mut sides = vec![
        Side::of_daemon(OURS, &top.join("ours"), &umemcg, &kernel)?,
        Side::plain(&top.join("plain"))?,
        Side::of_daemon(OWN, &top.join("own"), &umemcg, &["--page-cache", "own"])?,
    ];
    let rival = rivals.join("passthrough_hp");
    if rival.exists() {
        sides.push(Side::of_rival(&top.join("rival"), &rival)?);
    } else {
        notes.push(format!("{RIVAL} is missing: bench-rivals/build.sh builds it"));
    }
    if let Some(before) = &choice.before {
        sides.push(Side::of_daemon(BEFORE, &top.join("before"), before, &[])?);
    }
    Ok(sides)
}

impl Side {
    fn directories(place: &Path) -> Result<(PathBuf, PathBuf), Failure> {
        let (seen, backing) = (place.join("mnt"), place.join("data"));
        fs::create_dir_all(&backing).map_err(Failure::at("cannot make a directory"))?;
        Ok((seen, backing))
    }

    fn plain(place: &Path) -> Result<Self, Failure> {
        let (_, backing) = Self::directories(place)?;
        Ok(Self { name: PLAIN, seen: backing.clone(), backing, mount: None, daemon: None })
    }

    fn of_daemon(name: &'static str, place: &Path, daemon: &Path, options: &[&str]) -> Result<Self, Failure> {
        let (seen, backing) = Self::directories(place)?;
        let mut program = Command::new(daemon);
        program.arg("mount").args(options).args(["--pool", POOL]).arg(&backing).arg(&seen);
        let mount = Mount::start(name, seen.clone(), &mut program, &[&text(daemon), "umount", "{}"])?;
        Ok(Self { name, seen, backing, mount: Some(mount), daemon: Some(daemon.to_owned()) })
    }

    fn of_rival(place: &Path, program: &Path) -> Result<Self, Failure> {
        let (seen, backing) = Self::directories(place)?;
        let mut rival = Command::new("sh");
        // It keeps a descriptor for each inode known to the kernel.
        rival.args(["-c", "ulimit -n $(ulimit -Hn); exec \"$0\" --foreground \"$1\" \"$2\""]);
        rival.arg(program).arg(&backing).arg(&seen);
        let mount = Mount::start(RIVAL, seen.clone(), &mut rival, &["fusermount3", "-u", "{}"])?;
        Ok(Self { name: RIVAL, seen, backing, mount: Some(mount), daemon: None })
    }

    fn read_files(&self, nr: usize) -> Vec<PathBuf> {
        (0..nr).map(|at| self.seen.join(format!("read{at}.bin"))).collect()
    }

    fn write_read_files(&self, len: u64) -> Result<(), Failure> {
        for file in self.read_files(2) {
            let mut open = File::create(&file).map_err(Failure::at("cannot create a file"))?;
            write_contents(&mut open, len).map_err(Failure::at("cannot write a file"))?;
            open.sync_all().map_err(Failure::at("cannot sync a file"))?;
        }
        Ok(())
    }

    /// Does all of the work once. Returns a figure for each of [`ROWS`].
    fn round(&self, work: &Work) -> Result<[f64; ROWS.len()], Failure> {
        let hits =
            |nr_jobs, block_bytes, pattern, engine| self.reads(work, nr_jobs, block_bytes, pattern, engine);
        let random = hits(1, 4 << 10, "randread", Engine::Calls)?;
        let random_by_two = hits(2, 4 << 10, "randread", Engine::Calls)?;
        let sequential = hits(1, 128 << 10, "read", Engine::Calls)?;
        let (mapped, first_ns) = self.mapped(work)?;
        let dd = self.dd(work)?;
        let writes = self.random_writes(work)?;
        let [tar, grep, add, status, rm] = self.tree(work)?;
        Ok([random, random_by_two, sequential, mapped, first_ns, dd, writes, tar, grep, add, status, rm])
    }

    /// Reads cached files. Returns the calls per second.
    fn reads(
        &self,
        work: &Work,
        nr_jobs: usize,
        block_bytes: u64,
        pattern: &'static str,
        engine: Engine,
    ) -> Result<f64, Failure> {
        let files = self.read_files(nr_jobs);
        files.iter().try_for_each(|file| read_whole(file))?;
        let loops = if block_bytes > 4 << 10 { work.nr_loops * 4 } else { work.nr_loops };
        fio::run(&Job { pattern, block_bytes, file_bytes: work.file_bytes, files, engine, loops })
    }

    /// Reads a cached file through a mapping at random. Returns reads per second without faults,
    /// and nanoseconds of a first touch of a page.
    fn mapped(&self, work: &Work) -> Result<(f64, f64), Failure> {
        let file = self.seen.join("read0.bin");
        read_whole(&file)?;
        let mapped = work.view.map(&file, work.nr_loops)?;
        if mapped.sum != work.page_sum {
            return Err(Failure::Wrong(format!("{}: a mapping has other contents", self.name)));
        }
        Ok((1e9 / mapped.later_ns, mapped.first_ns))
    }

    fn dd(&self, work: &Work) -> Result<f64, Failure> {
        self.settle()?;
        let count = format!("count={}", work.dd_bytes >> 20);
        let arguments = ["if=/dev/zero", "of=written.bin", "bs=1M", &count, "conv=fsync"];
        let milliseconds = timed("dd", &arguments, &self.seen)?;
        fs::remove_file(self.seen.join("written.bin")).map_err(Failure::at("cannot remove a file"))?;
        Ok((work.dd_bytes >> 20) as f64 * 1e3 / milliseconds)
    }

    fn random_writes(&self, work: &Work) -> Result<f64, Failure> {
        self.settle()?;
        let file = self.seen.join("random.bin");
        let mut open = File::create(&file).map_err(Failure::at("cannot create a file"))?;
        write_contents(&mut open, work.file_bytes).map_err(Failure::at("cannot write a file"))?;
        open.sync_all().map_err(Failure::at("cannot sync a file"))?;
        drop(open);
        let (files, file_bytes) = (vec![file.clone()], work.file_bytes);
        let job = Job {
            pattern: "randwrite",
            block_bytes: 4 << 10,
            file_bytes,
            files,
            engine: Engine::Calls,
            loops: 1,
        };
        let figure = fio::run(&job)?;
        fs::remove_file(file).map_err(Failure::at("cannot remove a file"))?;
        Ok(figure)
    }

    /// Unpacks the tree, searches it, commits it, gets its status and removes it. Returns the
    /// milliseconds of each.
    fn tree(&self, work: &Work) -> Result<[f64; 5], Failure> {
        self.settle()?;
        let tree = self.seen.join("tree");
        fs::create_dir(&tree).map_err(Failure::at("cannot make a directory"))?;
        // The rival cannot set times: tar says so at each file and goes on.
        let unpack = format!("tar xf {} 2>/dev/null || test $? = {}", text(&work.archive), self.tar_status());
        let tar = timed("sh", &["-c", &unpack], &tree)?;
        let found = SourceTree::read(&tree)?;
        if found != work.tree {
            return Err(Failure::Wrong(format!("{}: the tree is {found:?}, not {:?}", self.name, work.tree)));
        }
        // Without a match, grep reads everything. It runs once before, so that the files are warm.
        let grep = ["-c", "grep -r no-such-words-anywhere . ; test $? = 1"];
        command("sh", &grep, &tree)?;
        let grep = timed("sh", &grep, &tree)?;
        self.settle()?;
        command("git", &["init", "-q", "."], &tree)?;
        let commit = "git add -A && git -c user.name=bench -c user.email=bench@localhost -c gc.auto=0 \
                      commit -q -m all";
        let add = timed("sh", &["-c", commit], &tree)?;
        let status = ["-c", "test -z \"$(git status --porcelain)\""];
        command("sh", &status, &tree)?;
        let status = timed("sh", &status, &tree)?;
        self.settle()?;
        let rm = timed("rm", &["-rf", "tree"], &self.seen)?;
        Ok([tar, grep, add, status, rm])
    }

    /// Returns the exit status of `tar` after it has unpacked everything.
    fn tar_status(&self) -> i32 {
        if self.name == RIVAL { 2 } else { 0 }
    }

    /// Waits until write-back of earlier work has ended.
    fn settle(&self) -> Result<(), Failure> {
        if let Some(daemon) = &self.daemon {
            command(&text(daemon), &["sync", &text(&self.seen)], Path::new("/"))?;
        }
        rustix::fs::sync();
        Ok(())
    }

    /// Writes through the mount, unmounts, and compares the backing directory.
    fn end(self) -> Result<(), Failure> {
        let contents = b"written last\n";
        let mut last = File::create(self.seen.join("last")).map_err(Failure::at("cannot create a file"))?;
        last.write_all(contents).map_err(Failure::at("cannot write a file"))?;
        drop(last);
        if let Some(mount) = self.mount {
            mount.end()?;
        }
        let found = fs::read(self.backing.join("last")).map_err(Failure::at("cannot read a file"))?;
        if found != contents {
            return Err(Failure::Wrong(format!(
                "{}: {} bytes reached the directory",
                self.name,
                found.len()
            )));
        }
        Ok(())
    }
}

fn text(path: &Path) -> String {
    path.display().to_string()
}

/// Runs a program to its end.
///
/// # Errors
/// [`Failure::Wrong`] when it fails.
fn command(program: &str, arguments: &[&str], directory: &Path) -> Result<(), Failure> {
    let output = Command::new(program)
        .args(arguments)
        .current_dir(directory)
        .stdin(Stdio::null())
        .output()
        .map_err(Failure::at(&format!("cannot run {program}")))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(Failure::Wrong(format!(
        "{program} {arguments:?} in {}: {}: {said}",
        directory.display(),
        output.status
    )))
}

/// The same; returns its milliseconds.
fn timed(program: &str, arguments: &[&str], directory: &Path) -> Result<f64, Failure> {
    let start = Instant::now();
    command(program, arguments, directory)?;
    Ok(start.elapsed().as_secs_f64() * 1e3)
}

/// Reads a file to its end.
fn read_whole(file: &Path) -> Result<(), Failure> {
    let mut piece = vec![0; 1 << 20];
    let mut file = File::open(file).map_err(Failure::at("cannot open a file"))?;
    while file.read(&mut piece).map_err(Failure::at("cannot read a file"))? != 0 {}
    Ok(())
}
