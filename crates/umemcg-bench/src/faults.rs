//! `faults`: the loop of the mail per-cgroup-dirty-limits, one page of a file of each thread
//! touched again and again, with the controller, with dirty limits, and without any controller. A
//! touch finds the page in the cache, pins it, reads or writes in it and unpins it, like a mapping,
//! a fault and an unmapping in the kernel. It also does the mount's work for the controller at each
//! read and write: hits are counted for the group, and a writer checks whether to slow down. No
//! writer is slowed here: dirty data stays below every limit. A further mode dirties a clean page
//! with each write, so that the counts of dirty pages move each time; the pages are cleaned
//! between, off the clock, by a store that accepts everything and does nothing.
//!
//! "No controller" is the same code with the counting of pages by group and pool left out, no check
//! of limits, and hits counted for no group. The needs of a page cache without any groups stay:
//! dirty pages are marked in the index and counted in their file and in their store, and the file
//! stands in the store's list, so that write-back finds them and knows when to begin. The kernel's
//! own loop of `mmap`, touch and `munmap` runs beside it, on the file system of the directory; a
//! fault differs from a touch, so it is not compared.

use std::io;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Barrier};
use std::time::Duration;

use umemcg::files::{Arena, BackingStore, DirtyBound, DirtyThreshold, File, Readahead, Segment, StoreId};
use umemcg::internal::{collect_hits, count_hits};
use umemcg::{Engine, EngineConfig, Group, StatItem};
use umemcg_base::PAGE_SIZE_U64;
use umemcg_reclaim::baseline;

use crate::options::{Failure, Options};
use crate::progress::Progress;
use crate::report::{MailFigure, Report, Section, Target, Verdict};
use crate::stats::{Samples, Side, alternate, thread_time};

/// Samples of each side: a bound of 2 % is judged by the lower end of the ratio's 95 % interval.
const ROUNDS_MIN: usize = 15;
/// Processor time of one thread in one sample at full size.
const SAMPLE: Duration = Duration::from_millis(60);
/// Time of one sample of the kernel's own loop, and the most samples.
const KERNEL_SAMPLE: Duration = Duration::from_millis(200);
const KERNEL_ROUNDS: usize = 5;
/// Touches between two looks at the clock.
const BATCH: u64 = 256;
/// Of no controller.
const RATIO_MIN: f64 = 0.98;
/// A dirty limit never reached.
const DIRTY_LIMIT_BYTES: u64 = 64 << 20;
const POOL_BYTES: u64 = 512 << 20;

/// The mail's rows, millions of faults a second: without memcg, a child group with memcg, with all
/// patches.
const MAIL: [(&str, f64, f64, f64); 4] = [
    ("s_read", 0.424, 0.413, 0.418),
    ("s_write", 0.400, 0.385, 0.380),
    ("p_read", 0.420, 0.385, 0.396),
    ("p_write", 0.395, 0.361, 0.360),
];

/// Takes everything and keeps nothing.
#[derive(Debug)]
struct Nothing;

impl BackingStore for Nothing {
    fn store_id(&self) -> StoreId {
        StoreId(1)
    }
    fn read_at(&self, arena: &Arena, segments: &[Segment], _offset: u64) -> io::Result<usize> {
        segments.iter().for_each(|segment| arena.zero(segment.frame, 0, usize::from(segment.len)));
        Ok(segments.iter().map(|segment| usize::from(segment.len)).sum())
    }
    fn write_at(&self, _arena: &Arena, segments: &[Segment], _offset: u64) -> io::Result<usize> {
        Ok(segments.iter().map(|segment| usize::from(segment.len)).sum())
    }
    fn sync_range(&self, _offset: u64, _len: u64) -> io::Result<()> {
        Ok(())
    }
    fn sync(&self, _data_only: bool) -> io::Result<()> {
        Ok(())
    }
    fn set_len(&self, _len: u64) -> io::Result<()> {
        Ok(())
    }
}

/// The access to a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Touch {
    Read,
    Write,
    /// Writes to clean pages each time.
    Dirty,
}

/// One side: the touching thread and its rules.
struct Toucher {
    engine: Arc<Engine>,
    group: Arc<Group>,
    files: Vec<Arc<File>>,
    with_controller: bool,
    /// Of all samples.
    nr_touches: AtomicU64,
}

impl Toucher {
    fn new(
        engine: &Arc<Engine>,
        group: &Arc<Group>,
        threads: usize,
        with_controller: bool,
    ) -> Result<Self, Failure> {
        let open = || engine.open_file(Arc::new(Nothing), BATCH * PAGE_SIZE_U64);
        let files: Result<Vec<_>, _> = (0..threads).map(|_| open()).collect();
        let files = files.map_err(Failure::at("cannot open a file in the engine"))?;
        for file in &files {
            // Pages in the cache, clean and touched once.
            let page = [7; 4096];
            for at in 0..BATCH {
                file.write(group, at * PAGE_SIZE_U64, &page).map_err(Failure::at("cannot write a file"))?;
            }
            file.write_back().map_err(Failure::at("cannot clean a file"))?;
        }
        let (engine, group, nr_touches) = (Arc::clone(engine), Arc::clone(group), AtomicU64::new(0));
        Ok(Self { engine, group, files, with_controller, nr_touches })
    }

    /// Checks that the controller, if there is one, has counted a hit for each touch since
    /// `before`.
    fn check_hits(&self, mode: &str, before: u64) -> Result<(), Failure> {
        let (nr, nr_touches) = (self.hits() - before, self.nr_touches.load(Relaxed));
        if self.with_controller && nr != nr_touches {
            return Err(Failure::Wrong(format!("{mode}: {nr} hits are counted of {nr_touches}")));
        }
        Ok(())
    }

    /// Checks that the controller counts dirty pages for the group, and that no group has dirty
    /// pages without the controller.
    fn check_dirty(&self) -> Result<(), Failure> {
        baseline::without_controller(!self.with_controller);
        let is_written = (0..BATCH).all(|page| self.write(&self.files[0], page));
        let dirty = self.group.stat_total(StatItem::FileDirty);
        let is_clean = self.files[0].write_back().is_ok();
        baseline::without_controller(false);
        let expected = if self.with_controller { BATCH * PAGE_SIZE_U64 } else { 0 };
        if !is_written || !is_clean || dirty != expected as i64 {
            return Err(Failure::Wrong(format!("{dirty} bytes count as dirty, not {expected}")));
        }
        Ok(())
    }

    fn hits(&self) -> u64 {
        collect_hits();
        self.group.stat_local(StatItem::CacheHit) as u64
    }

    fn read(&self, file: &Arc<File>, readahead: &Readahead) -> u64 {
        let Some(pages) = file.try_read(0, 8, readahead) else { return 0 };
        if self.with_controller {
            count_hits(&self.group, 1);
        }
        let segment = pages.segments()[0];
        self.engine.arena().load_u64(segment.frame, usize::from(segment.offset))
    }

    fn write(&self, file: &Arc<File>, page: u64) -> bool {
        let at = page * PAGE_SIZE_U64;
        // A page alone in its block of memory may be evicted, so that the block goes back.
        let written =
            file.try_write(&self.group, at, &[7]).or_else(|| file.write(&self.group, at, &[7]).ok());
        if self.with_controller && file.write_pause(&self.group, 1).is_some() {
            return false;
        }
        written == Some(1)
    }

    /// Touches of one thread for `time` of the processor; returns their rate a second, 0 after an
    /// error.
    fn touch(&self, touch: Touch, thread: usize, time: Duration) -> f64 {
        let (file, readahead) = (&self.files[thread], Readahead::new());
        let (mut touches, mut used, mut good) = (0, Duration::ZERO, true);
        while used < time && good {
            let start = thread_time();
            for page in 0..BATCH {
                good &= match touch {
                    Touch::Read => self.read(file, &readahead) == 0x0707_0707_0707_0707,
                    Touch::Write => self.write(file, 0),
                    Touch::Dirty => self.write(file, page),
                };
            }
            used += thread_time() - start;
            touches += BATCH;
            if touch == Touch::Dirty {
                good &= file.nr_dirty() == BATCH && file.write_back().is_ok();
            }
        }
        self.nr_touches.fetch_add(touches, Relaxed);
        if good { touches as f64 / used.as_secs_f64() } else { 0.0 }
    }

    /// Millions of touches a second of all threads.
    fn sample(&self, touch: Touch, threads: usize, time: Duration) -> f64 {
        baseline::without_controller(!self.with_controller);
        let begin = Barrier::new(threads);
        let rate: f64 = std::thread::scope(|scope| {
            let run = |thread| {
                let begin = &begin;
                scope.spawn(move || {
                    begin.wait();
                    self.touch(touch, thread, time)
                })
            };
            let threads: Vec<_> = (0..threads).map(run).collect();
            threads.into_iter().map(|thread| thread.join().unwrap_or(0.0)).sum()
        });
        // Counted under the same rules as it was dirtied.
        let clean = self.files.iter().all(|file| file.write_back().is_ok() && file.is_stable());
        baseline::without_controller(false);
        if clean { rate / 1e6 } else { 0.0 }
    }
}

/// Runs the experiment.
pub fn run(options: &Options) -> Result<Report, Failure> {
    let progress = Progress::new();
    let rounds = options.rounds_for_bound(ROUNDS_MIN);
    let threads = std::thread::available_parallelism().map_or(2, |nr| nr.get().max(2));
    let time = SAMPLE.mul_f64(options.scale.clamp(0.1, 10.0));
    let config = EngineConfig::new(POOL_BYTES);
    let engine = Engine::new(config).map_err(Failure::at("cannot make an engine"))?;
    let group = |name: &str| {
        engine.create_group(engine.root(), name.as_ref()).map_err(Failure::at("cannot make a group"))
    };
    let (limited, child) = (group("limited")?, group("child")?);
    let limits = engine.cache().dirty_limits();
    limits.set_bound(&limited, DirtyThreshold::Foreground, DirtyBound::Bytes(DIRTY_LIMIT_BYTES));
    limits.set_bound(&limited, DirtyThreshold::Background, DirtyBound::Bytes(DIRTY_LIMIT_BYTES / 2));
    let sides = [
        ("child group, dirty limits", &limited, true),
        ("child group", &child, true),
        ("root group", engine.root(), true),
        ("no controller", engine.root(), false),
    ];
    let mut report = Report::new("faults", options.scale, rounds);
    let modes = [
        ("s_read", Touch::Read, 1),
        ("s_write", Touch::Write, 1),
        ("s_dirty", Touch::Dirty, 1),
        ("p_read", Touch::Read, threads),
        ("p_write", Touch::Write, threads),
        ("p_dirty", Touch::Dirty, threads),
    ];
    for (mode, touch, threads) in modes {
        progress.show(mode);
        let touchers: Result<Vec<_>, _> =
            sides.iter().map(|&(_, group, on)| Toucher::new(&engine, group, threads, on)).collect();
        let touchers = touchers?;
        touchers.iter().try_for_each(Toucher::check_dirty)?;
        let hits_before: Vec<u64> = touchers.iter().map(Toucher::hits).collect();
        let taken = sides
            .iter()
            .zip(&touchers)
            .map(|(&(name, ..), toucher)| Side::new(name, move || toucher.sample(touch, threads, time)))
            .collect();
        let samples = alternate(rounds, taken, &progress);
        if samples.iter().any(|side| side.min == 0.0) {
            return Err(Failure::Wrong(format!("{mode}: a page was not what was written, or not clean")));
        }
        for (toucher, before) in touchers.iter().zip(hits_before).filter(|_| touch == Touch::Read) {
            toucher.check_hits(mode, before)?;
        }
        report.sections.push(section(mode, samples));
    }
    compare_with_mail(&mut report);
    kernel(options, threads, &mut report, &progress)?;
    finish(&engine, [limited, child])?;
    report.notes.push(format!(
        "{:.0} ms of processor time a thread and sample, {threads} threads in p_*; a ratio is judged by its lower bound at 95 %; \
         *_dirty dirties a clean page with every write",
        time.as_secs_f64() * 1e3
    ));
    Ok(report)
}

fn section(mode: &str, samples: Vec<Samples>) -> Section {
    let ratio = |side: usize| samples[side].ratio_to(&samples[3]);
    let verdict = Verdict::of_bound(
        format!(
            "with dirty limits of no controller, lower bound (median {:.3}; without limits {:.3}, root {:.3})",
            ratio(0),
            ratio(1),
            ratio(2)
        ),
        &samples[0],
        &samples[3],
        Target::TimesAtLeast(RATIO_MIN),
    );
    Section { title: mode.to_owned(), unit: "M/s", sides: samples, verdicts: vec![verdict] }
}

fn compare_with_mail(report: &mut Report) {
    for (mode, without, with, all) in MAIL {
        let Some(section) = report.sections.iter().find(|section| section.title == mode) else { continue };
        let ratio = |side: usize| section.sides[side].ratio_to(&section.sides[3]);
        for (what, mail, side) in [("controller", with, 1), ("controller and dirty limits", all, 0)] {
            report.mail.push(MailFigure {
                what: format!("{mode} in a child group, {what}, of no controller"),
                mail: format!("{:.3} ({mail} of {without})", mail / without),
                ours: format!("{:.3}", ratio(side)),
            });
        }
    }
}

/// Runs the kernel's loop, if there is a compiler.
fn kernel(
    options: &Options,
    threads: usize,
    report: &mut Report,
    progress: &Progress,
) -> Result<(), Failure> {
    let directory =
        tempfile::tempdir_in(options.directory()).map_err(Failure::at("cannot make a directory"))?;
    let (source, program) = (directory.path().join("touch_loop.c"), directory.path().join("touch_loop"));
    std::fs::write(&source, include_str!("touch_loop.c")).map_err(Failure::at("cannot write a program"))?;
    let built = Command::new("cc").arg("-O2").arg("-o").arg(&program).arg(&source).status();
    if !built.is_ok_and(|status| status.success()) {
        report.notes.push("no C compiler: the kernel's own loop was not run".into());
        return Ok(());
    }
    let seconds = options.scaled_time(KERNEL_SAMPLE).as_secs_f64().to_string();
    let side = |name: &'static str, touch: &'static str, threads: usize| {
        let (program, directory, seconds) = (&program, directory.path(), &seconds);
        Side::new(name, move || loop_of_kernel(program, directory, (touch, seconds), threads))
    };
    let sides = vec![
        side("s_read", "r", 1),
        side("s_write", "w", 1),
        side("p_read", "r", threads),
        side("p_write", "w", threads),
    ];
    let samples = alternate((options.rounds as usize).min(KERNEL_ROUNDS), sides, progress);
    if samples.iter().any(|side| side.min == 0.0) {
        return Err(Failure::Wrong("the kernel's loop failed".into()));
    }
    report.sections.push(Section {
        title: "the kernel's mmap, touch, munmap".into(),
        unit: "M/s",
        sides: samples,
        verdicts: Vec::new(),
    });
    Ok(())
}

fn loop_of_kernel(program: &Path, directory: &Path, (touch, seconds): (&str, &str), threads: usize) -> f64 {
    let start = |thread: usize| {
        let file = directory.join(format!("file.{thread}"));
        Command::new(program).arg(file).args([touch, seconds]).stdout(Stdio::piped()).spawn()
    };
    let loops: Vec<_> = (0..threads).map(start).collect();
    let rates = loops.into_iter().map(|started| -> Option<f64> {
        let output = started.ok()?.wait_with_output().ok()?;
        String::from_utf8(output.stdout).ok()?.trim().parse().ok()
    });
    rates.sum::<Option<f64>>().unwrap_or(0.0) / 1e6
}

/// Checks that everything is given back.
fn finish(engine: &Arc<Engine>, groups: [Arc<Group>; 2]) -> Result<(), Failure> {
    for item in [StatItem::FileDirty, StatItem::FileWriteback, StatItem::FileUnstable] {
        let left = engine.root().stat_total(item);
        if left != 0 {
            return Err(Failure::Wrong(format!("{left} bytes left in {item:?}")));
        }
    }
    for group in groups {
        engine.remove_group(&group).map_err(Failure::at("cannot remove a group"))?;
    }
    Ok(())
}
