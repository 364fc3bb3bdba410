//! The build of a small Linux kernel (`tinyconfig`), from Debian's `linux-source`: on a mount in a
//! group of 64 MiB, on another without a limit, and in a plain directory.
//!
//! Each side has a copy of the sources of its own and builds into a new directory beside it, with
//! `make -j2`. The scale chooses the target: the configuration, some directories, or the whole
//! kernel. A side's objects are compared with the plain directory's by name and size.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use crate::grouped_mount::GroupedMount;
use crate::options::{Failure, Options};
use crate::progress::Progress;
use crate::report::{Report, Section, Target, Verdict};
use crate::stats::Samples;
use crate::threads::{time_of_children, time_of_process};

/// The directory of Debian's archives of sources.
const SOURCES: &str = "/usr/src";
const LIMIT_BYTES: u64 = 64 << 20;
const POOL: &str = "4G";
/// The target of the whole kernel.
const WHOLE: &str = "vmlinux";
/// The target of the configuration, and of the programs that make it.
const CONFIGURATION: &str = "tinyconfig";
const GROUP: &str = "build";
/// Rounds at most: each takes minutes.
const ROUNDS_MAX: usize = 5;

/// Parts not read by a tinyconfig build for the machine's architecture: together two thirds of the
/// sources.
const LEFT_OUT: [&str; 13] = [
    "*/Documentation/*/*",
    "*/tools/testing/*",
    "*/arch/*/boot/dts/*",
    "*/sound/*.[chS]",
    "*/drivers/crypto/*.[ch]",
    "*/drivers/gpu/*.[ch]",
    "*/drivers/iio/*.[ch]",
    "*/drivers/infiniband/*.[ch]",
    "*/drivers/media/*.[ch]",
    "*/drivers/net/*.[ch]",
    "*/drivers/scsi/*.[ch]",
    "*/drivers/staging/*.[ch]",
    "*/drivers/usb/*.[ch]",
];

/// The sources for a configuration: nothing else is unpacked for it.
const PARTS_OF_CONFIGURATION: [&str; 5] =
    ["*/Makefile*", "*/Kbuild*", "*/Kconfig*", "*/scripts/*", "*/configs/*"];

/// The additional sources for the whole kernel only.
const LEFT_OUT_OF_PARTS: [&str; 4] = ["*/drivers/*.[chS]", "*/fs/*.c", "*/net/*.c", "*/crypto/*.c"];

const SIDES: [&str; 3] = ["umemcg, group of 64 MiB", "umemcg, no limit", "plain directory"];
const PLAIN: usize = 2;
/// Of the plain directory, by side.
const TIMES_MAX: [f64; 2] = [1.25, 1.10];

/// A build's processor time, with the daemon's, and real time, in seconds.
type Figures = [f64; 2];
const FIGURES: [&str; 2] = ["processor time", "elapsed"];

/// A copy of the sources and its mount.
struct Tree {
    /// Where the build runs.
    seen: PathBuf,
    mount: Option<GroupedMount>,
}

/// Runs the builds, unless there are no sources: then a note says so.
pub fn run(
    options: &Options,
    daemon: &Path,
    archive: Option<&Path>,
    progress: &Progress,
    report: &mut Report,
) -> Result<(), Failure> {
    let Some(archive) = archive.map(Path::to_owned).or_else(find_archive) else {
        report.notes.push(format!(
            "no kernel build: there is no linux-source-*.tar.xz in {SOURCES} (scripts/deps.sh --bench installs it)"
        ));
        return Ok(());
    };
    let directory = tempfile::Builder::new()
        .prefix("umemcg-bench.")
        .tempdir_in(options.directory())
        .map_err(Failure::at("cannot make a directory"))?;
    progress.show("unpacking the kernel's sources");
    let target = target(options.scale);
    let trees = Tree::make_all(directory.path(), daemon, &archive, target)?;
    let rounds = (options.rounds as usize).min(ROUNDS_MAX);
    let mut samples: [Vec<Figures>; SIDES.len()] = Default::default();
    for round in 0..rounds {
        let mut objects: [Vec<(String, u64)>; SIDES.len()] = Default::default();
        for at in 0..SIDES.len() {
            let side = (round + at) % SIDES.len();
            progress.show(&format!("kernel build, round {} of {rounds}: {}", round + 1, SIDES[side]));
            samples[side].push(trees[side].build(target)?);
            objects[side] = trees[side].objects()?;
            trees[side].clean()?;
        }
        for side in 0..PLAIN {
            if objects[side].is_empty() || objects[side] != objects[PLAIN] {
                let numbers = [side, PLAIN].map(|side| objects[side].len());
                return Err(Failure::Wrong(format!("{}: objects are {numbers:?}", SIDES[side])));
            }
        }
    }
    report.sections.extend((0..FIGURES.len()).map(|figure| section(figure, &samples)));
    report.notes.push(format!(
        "kernel build: {}, make -j2 O=DIRECTORY tinyconfig, then {target}; {rounds} rounds; processor time is that of the build and of the daemon",
        archive.display()
    ));
    trees.into_iter().filter_map(|tree| tree.mount).try_for_each(GroupedMount::end)
}

/// Returns the target for `make`.
fn target(scale: f64) -> &'static str {
    match scale {
        tiny if tiny < 0.1 => CONFIGURATION,
        small if small < 0.5 => "prepare init/ ipc/",
        middle if middle < 4.0 => "prepare mm/",
        _ => WHOLE,
    }
}

fn find_archive() -> Option<PathBuf> {
    let entries = fs::read_dir(SOURCES).ok()?.flatten().map(|entry| entry.path());
    let is_archive = |path: &PathBuf| {
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        name.starts_with("linux-source-") && name.ends_with(".tar.xz")
    };
    entries.filter(is_archive).max()
}

fn section(figure: usize, samples: &[Vec<Figures>; SIDES.len()]) -> Section {
    let of = |side: usize| {
        Samples::new(SIDES[side], samples[side].iter().map(|figures| figures[figure]).collect())
    };
    let sides: Vec<Samples> = (0..SIDES.len()).map(of).collect();
    let judge = |side: usize| {
        let times = sides[side].ratio_to(&sides[PLAIN]);
        Verdict::new(format!("{}, of plain", SIDES[side]), times, Target::TimesAtMost(TIMES_MAX[side]))
    };
    let verdicts = (0..PLAIN).map(judge).collect();
    Section { title: format!("kernel build: {}", FIGURES[figure]), unit: "s", sides, verdicts }
}

impl Tree {
    /// Unpacks the sources for each side, and mounts ours.
    fn make_all(top: &Path, daemon: &Path, archive: &Path, target: &str) -> Result<Vec<Self>, Failure> {
        // Of one length: paths are in some objects.
        let places = ["limited", "endless", "regular"].map(|name| top.join(name));
        let source = places[PLAIN].join("mnt/linux");
        fs::create_dir_all(&source).map_err(Failure::at("cannot make a directory"))?;
        let mut unpack = Command::new("tar");
        unpack.arg("xf").arg(archive).arg("-C").arg(&source).arg("--strip-components=1");
        if target == CONFIGURATION {
            unpack.arg("--wildcards").args(PARTS_OF_CONFIGURATION);
        } else {
            unpack.args(LEFT_OUT.map(|part| format!("--exclude={part}")));
            if std::env::consts::ARCH == "x86_64" {
                unpack.arg("--exclude=*/arch/[!x]*/*.[chS]");
            }
        }
        if target != WHOLE && target != CONFIGURATION {
            unpack.args(LEFT_OUT_OF_PARTS.map(|part| format!("--exclude={part}")));
        }
        finish("tar", unpack)?;
        for place in &places[..PLAIN] {
            let data = place.join("data");
            fs::create_dir_all(&data).map_err(Failure::at("cannot make a directory"))?;
            let mut copy = Command::new("cp");
            copy.arg("-a").arg(&source).arg(&data);
            finish("cp", copy)?;
        }
        rustix::fs::sync();
        let limits = [Some(LIMIT_BYTES), None];
        let ours = places.iter().zip(limits).zip(SIDES).map(|((place, limit), name)| {
            let options = ["--page-cache", "kernel", "--exclusive", "--pool", POOL];
            let mount = GroupedMount::start(name, daemon, place, &place.join("data"), &options)?;
            mount.add_group(GROUP, limit)?;
            Ok(Self { seen: mount.seen().to_owned(), mount: Some(mount) })
        });
        let mut trees: Vec<Self> = ours.collect::<Result<_, Failure>>()?;
        trees.push(Self { seen: places[PLAIN].join("mnt"), mount: None });
        Ok(trees)
    }

    /// Builds from nothing.
    fn build(&self, target: &str) -> Result<Figures, Failure> {
        let enter = self.mount.as_ref().map_or_else(|| ":".to_owned(), |mount| mount.enter(GROUP));
        let make = match target {
            CONFIGURATION => String::new(),
            target => format!(" && exec make -s -j2 O=../out {target}"),
        };
        let script =
            format!("{enter} && cd \"$0/linux\" && mkdir ../out && make -s O=../out {CONFIGURATION}{make}");
        let daemon = || self.mount.as_ref().map(|mount| time_of_process(mount.process_id()));
        let before = (Instant::now(), time_of_children(), daemon().unwrap_or_default());
        let mut build = Command::new("sh");
        build.arg("-c").arg(script).arg(&self.seen).env_remove("MAKEFLAGS").env("KBUILD_BUILD_USER", "bench");
        finish("the kernel build", build)?;
        let elapsed = before.0.elapsed().as_secs_f64();
        let cpu = time_of_children() - before.1 + (daemon().unwrap_or_default() - before.2);
        Ok([cpu.as_secs_f64(), elapsed])
    }

    /// Returns the built objects, with their sizes.
    fn objects(&self) -> Result<Vec<(String, u64)>, Failure> {
        let mut list = Command::new("find");
        list.args([".", "-name", "*.o", "-printf", "%p %s\\n"]).current_dir(self.seen.join("out"));
        let output = list.output().map_err(Failure::at("cannot run find"))?;
        let text = String::from_utf8_lossy(&output.stdout);
        let object = |line: &str| {
            let (name, size) = line.rsplit_once(' ')?;
            Some((name.to_owned(), size.parse().ok()?))
        };
        let mut objects: Vec<(String, u64)> = text.lines().filter_map(object).collect();
        objects.sort();
        Ok(objects)
    }

    /// Removes the build output, and makes everything durable.
    fn clean(&self) -> Result<(), Failure> {
        fs::remove_dir_all(self.seen.join("out")).map_err(Failure::at("cannot remove a directory"))?;
        self.mount.as_ref().map_or(Ok(()), GroupedMount::sync)?;
        rustix::fs::sync();
        Ok(())
    }
}

/// Runs a program to its end.
fn finish(name: &str, mut command: Command) -> Result<(), Failure> {
    let output = command.stdin(Stdio::null()).stdout(Stdio::null()).output();
    let output = output.map_err(Failure::at(&format!("cannot run {name}")))?;
    if output.status.success() {
        return Ok(());
    }
    Err(Failure::Wrong(format!("{name}: {}: {}", output.status, String::from_utf8_lossy(&output.stderr))))
}
