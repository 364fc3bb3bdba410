//! The cost of reclaiming pages, and of streaming through a group's room.
//!
//! The cost of a reclaimed page is compared with `posix_fadvise(POSIX_FADV_DONTNEED)` for as many
//! pages of a plain file. Where that file's system reads into large folios, hundreds of pages go at
//! once; a file of FUSE has a folio for each page. So the plain file is read page by page on a
//! second side; and on a third the same call is made for the mount's own file. A stream through the
//! kernel's cache has a cost for each page, whatever the daemon does: the kernel allocates the
//! page, enters it in the file's index and the lists of its reclaim, copies it twice, and drops it.
//! The *floor* of a stream is a sum: the cost with own pages, the program's additional time with
//! kernel pages (time of the kernel, since the program is the same), and the time of
//! `posix_fadvise` to drop as many pages of the mount's file. It leaves out the additional cost of
//! a copy to a new page over a copy to a warm buffer.

use std::fs::{self, File};
use std::io::{Read, Seek};
use std::num::NonZeroU64;
use std::path::Path;

use rustix::fs::{Advice, fadvise};
use umemcg_base::PAGE_SIZE_U64;

use crate::options::{Failure, Options};
use crate::progress::Progress;
use crate::report::{Report, Section, Target, Verdict};
use crate::stats::{Samples, thread_time};
use crate::threads::nanoseconds_in;

use super::ground::{A, B, FILLER, Ground, LITTLE, MIB, STREAM_FACTOR, STREAMER, Spent};

const TAKEN_MAX: f64 = 1.1;
const STREAM_MAX: f64 = 1.15;

const TAKERS: [&str; 4] = [
    "umemcg, the threads that ask the kernel",
    "posix_fadvise, a plain file",
    "posix_fadvise, a plain file in single pages",
    "posix_fadvise, the mount's file",
];

pub fn run(
    options: &Options,
    ground: &Ground,
    progress: &Progress,
    report: &mut Report,
) -> Result<(), Failure> {
    // Pages left by the first part would make the pool reclaim.
    [A, B, LITTLE].iter().try_for_each(|group| ground.kernel.force_empty(group))?;
    let ns_dropped = pages_taken_back(options, ground, progress, report)?;
    for (title, what) in [("files of 8 MiB", "stream"), ("one file larger than the room", "large")] {
        streams(options, ground, progress, report, (title, what), ns_dropped)?;
    }
    Ok(())
}

/// Returns the nanoseconds of advice for each page of the mount's file.
fn pages_taken_back(
    options: &Options,
    ground: &Ground,
    progress: &Progress,
    report: &mut Report,
) -> Result<f64, Failure> {
    let mut samples: [Vec<f64>; TAKERS.len()] = Default::default();
    let mut whole = Vec::new();
    for round in 0..=options.rounds as usize {
        for at in 0..TAKERS.len() {
            let side = (round + at) % TAKERS.len();
            progress.show(&format!("taken back, round {round} of {}: {}", options.rounds, TAKERS[side]));
            let [ns, ns_of_daemon] = match side {
                0 => taken_by_reclaim(ground)?,
                1 | 2 => {
                    let pattern = [Advice::Sequential, Advice::Random][side - 1];
                    [taken_by_advice(ground, &ground.plain.join("taken"), pattern)?, 0.0]
                }
                _ => {
                    ground.fill(FILLER, "taken")?;
                    let ns =
                        taken_by_advice(ground, &ground.kernel.seen().join("taken"), Advice::Sequential)?;
                    ground.kernel.force_empty(FILLER)?;
                    [ns, 0.0]
                }
            };
            if round > 0 {
                samples[side].push(ns);
                whole.extend((side == 0).then_some(ns_of_daemon));
            }
        }
    }
    let sides: Vec<Samples> =
        TAKERS.iter().zip(samples).map(|(name, samples)| Samples::new(*name, samples)).collect();
    let judge = |(what, side): (&str, usize)| {
        Verdict::new(what, sides[0].ratio_to(&sides[side]), Target::TimesAtMost(TAKEN_MAX))
    };
    let verdicts =
        [("of a plain file's", 1), ("of a plain file's in single pages", 2)].map(judge).into_iter().collect();
    let ns_of_advice = sides[TAKERS.len() - 1].median;
    report.sections.push(Section {
        title: "a page taken back, processor time".into(),
        unit: "ns",
        sides,
        verdicts,
    });
    report.sections.push(Section {
        title: "the same, of all threads of the daemon".into(),
        unit: "ns",
        sides: vec![Samples::new("umemcg, kernel pages", whole)],
        verdicts: Vec::new(),
    });
    Ok(ns_of_advice)
}

/// Fills the kernel's cache in a group and empties the group. Returns nanoseconds for each page: of
/// the threads sending requests to the kernel, and of all.
fn taken_by_reclaim(ground: &Ground) -> Result<[f64; 2], Failure> {
    let pages = ground.fill(FILLER, "taken")?;
    let daemon = ground.kernel.process_id();
    let spent = || ["umemcg-drop", ""].map(|threads| nanoseconds_in(daemon, threads));
    let before = spent();
    ground.kernel.force_empty(FILLER)?;
    let after = spent();
    let left = ground.view.count(&[ground.kernel.seen().join("taken")])?;
    if left > 0 {
        return Err(Failure::Wrong(format!("the kernel has {left} pages of an empty group")));
    }
    Ok([0, 1].map(|at| (after[at] - before[at]) as f64 / pages as f64))
}

/// Reads a file into the cache with this pattern, and drops it with advice. Returns nanoseconds for
/// each page.
fn taken_by_advice(ground: &Ground, path: &Path, pattern: Advice) -> Result<f64, Failure> {
    let failed = "cannot drop a file from the cache";
    let mut file = File::open(path).map_err(Failure::at(failed))?;
    fadvise(&file, 0, None, pattern).map_err(Failure::at(failed))?;
    let len = fs::metadata(path).map_err(Failure::at(failed))?.len();
    let pages = ground.read_until_cached(path, || {
        let mut piece = vec![0; 1 << 20];
        file.rewind().map_err(Failure::at(failed))?;
        while file.read(&mut piece).map_err(Failure::at(failed))? > 0 {}
        Ok(())
    })?;
    let start = thread_time();
    // In one call: advice for a piece leaves folios larger than the piece.
    fadvise(&file, 0, NonZeroU64::new(len), Advice::DontNeed).map_err(Failure::at(failed))?;
    let spent = thread_time() - start;
    match ground.view.count(&[path.to_owned()])? {
        0 => Ok(spent.as_nanos() as f64 / pages as f64),
        left => Err(Failure::Wrong(format!("{left} pages of {} were not dropped", path.display()))),
    }
}

/// The figures of a stream.
const FIGURES: [(&str, &str); 3] = [
    ("processor time of the program and the daemon", "ms/GiB"),
    ("processor time of the machine", "ms/GiB"),
    ("elapsed", "ms/GiB"),
];

fn streams(
    options: &Options,
    ground: &Ground,
    progress: &Progress,
    report: &mut Report,
    (title, what): (&str, &str),
    ns_dropped: f64,
) -> Result<(), Failure> {
    let mounts = [&ground.kernel, &ground.shared, &ground.own];
    let names = ["umemcg, kernel pages", "umemcg, kernel pages, not exclusive", "umemcg, own pages"];
    let own = names.len() - 1;
    let bytes = STREAM_FACTOR * ground.sizes.room;
    let mut samples: [Vec<Spent>; 3] = Default::default();
    for round in 0..=options.rounds as usize {
        for at in 0..mounts.len() {
            let side = (round + at) % mounts.len();
            progress.show(&format!("{title}, round {round} of {}: {}", options.rounds, names[side]));
            mounts[side].force_empty(STREAMER)?;
            let spent = ground.stream(mounts[side], STREAMER, what, bytes)?;
            if round > 0 {
                samples[side].push(spent);
            }
        }
    }
    let each_gib = 1e3 * (1024 * MIB) as f64 / bytes as f64;
    let dropped = 1e-9 * ns_dropped * (bytes / PAGE_SIZE_U64) as f64;
    report.sections.push(floor(title, &samples, (each_gib, dropped)));
    for (at, &(figure, unit)) in FIGURES.iter().enumerate() {
        let of = |spent: &Spent| [spent.processes, spent.machine, spent.elapsed][at] * each_gib;
        let sides: Vec<Samples> = names
            .iter()
            .zip(&samples)
            .map(|(name, samples)| Samples::new(*name, samples.iter().map(of).collect()))
            .collect();
        let judge = |side: usize| {
            let times = sides[side].ratio_to(&sides[own]);
            let what = format!("{}: of that with {}", names[side], names[own]);
            Verdict::new(what, times, Target::TimesAtMost(STREAM_MAX))
        };
        let verdicts = if at < 2 { (0..own).map(judge).collect() } else { Vec::new() };
        report.sections.push(Section {
            title: format!("a stream, {title}: {figure}"),
            unit,
            sides,
            verdicts,
        });
    }
    Ok(())
}

/// Compares a stream with its floor; see the module text. `dropped` are the seconds of advice to
/// drop its pages.
fn floor(title: &str, [kernel, _, own]: &[Vec<Spent>; 3], (each_gib, dropped): (f64, f64)) -> Section {
    let floor = |(kernel, own): (&Spent, &Spent)| own.processes + kernel.program - own.program + dropped;
    let of = |name, seconds: Vec<f64>| {
        Samples::new(name, seconds.into_iter().map(|seconds| seconds * each_gib).collect())
    };
    let sides = vec![
        of("umemcg, kernel pages", kernel.iter().map(|spent| spent.processes).collect()),
        of("the floor: own pages, and what the kernel does for its cache", {
            kernel.iter().zip(own).map(floor).collect()
        }),
        of("umemcg, own pages", own.iter().map(|spent| spent.processes).collect()),
    ];
    let title = format!("a stream, {title}: the floor of the processor time with silent opens");
    Section { title, unit: "ms/GiB", sides, verdicts: Vec::new() }
}
