//! The kernel's cached pages of A's files while A streams, the remaining pages of B's files, and
//! the latency of B's hits.
//!
//! Processor time is shared whatever is done about memory, and a sleeper is late beside a busy
//! neighbour on any file system. So B's hits are compared with hits beside two programs that read a
//! directory without a mount: together as often as A, and with as much processor time as A and the
//! daemon. The rest of a ratio is the mount's share. Also shown are hits beside a program that only
//! reads that directory as often, beside a program that only uses the processor time, beside an A
//! without cached pages, and of a B alone.
//!
//! A phase is short, and the sides take turns many times, so that other load of the machine affects
//! all sides alike. The verdict uses the median of the ratios of adjacent phases. A call counts
//! from when it was due, and in rows of their own from when it began: the first includes delays by
//! the scheduler and the machine's timers.

use std::path::Path;
use std::time::Duration;

use umemcg_base::PAGE_SIZE_U64;

use crate::neighbour_load::{BURN, Done, Tempo, Work};
use crate::options::{Failure, Options};
use crate::progress::Progress;
use crate::report::{Report, Section, Target, Verdict};
use crate::stats::Samples;
use crate::tenant::Tenant;
use crate::threads::time_of_process;

use super::ground::{A, B, Ground, LITTLE, MIB, STREAM_FACTOR};

/// The allowed excess over a limit: the pages of a reader's requests in flight, its read and its
/// read-ahead, and the stock of threads.
const SLACK_BYTES: u64 = 4 * MIB;
const LEFT_MIN: f64 = 0.99;
/// The bounds of a working limit, as divisors: A's excess is at most this part of its limit, and B
/// keeps at least this part of its pages.
const EXCESS_SHARE: u64 = 4;
const HELD_SHARE: u64 = 2;
const P99_MAX: f64 = 1.1;
/// Seconds of a phase at full size.
const PHASE_S: f64 = 1.0;
/// Phases of each side, for each round of the other sections.
const PHASES: usize = 2;
/// B's calls a second, whether or not the previous call has ended.
const B_RATE: f64 = 10_000.0;
const SIDES: [&str; 6] = [
    "A streams",
    "two read a plain directory, as often and as busy",
    "one reads a plain directory as often",
    "two that only use as much processor time",
    "A streams and keeps nothing",
    "B alone",
];
const AS_BUSY: usize = 1;
const AS_OFTEN: usize = 2;
const BURNERS: usize = 3;
const KEEPS_NOTHING: usize = 4;
const NR_BUSY: usize = 2;

/// The figures of B beside an A.
const FIGURES: [(&str, &str); 8] = [
    ("B's hits, p50 from when they were due", "us"),
    ("B's hits, p99 from when they were due", "us"),
    ("B's hits, p99.9 from when they were due", "us"),
    ("B's hits, p50 from when they began", "us"),
    ("B's hits, p99 from when they began", "us"),
    ("B's hits, p99.9 from when they began", "us"),
    ("A's reads of 128 KiB, or of what runs in its place", "/s"),
    ("processor time of A and the daemon, or of what runs in their place", "%"),
];
const P99: [usize; 2] = [1, 4];
const READS: usize = 6;
const CPU: usize = 7;
type Figures = [f64; FIGURES.len()];

pub fn run(
    options: &Options,
    ground: &Ground,
    progress: &Progress,
    report: &mut Report,
) -> Result<(), Failure> {
    what_the_kernel_has(options, ground, progress, report)?;
    hits_of_b(options, ground, progress, report)
}

/// Counts both tenants' pages while A streams through ten times the pool.
fn what_the_kernel_has(
    options: &Options,
    ground: &Ground,
    progress: &Progress,
    report: &mut Report,
) -> Result<(), Failure> {
    let set = [ground.kernel.seen().join("set")];
    let (mut most, mut left, mut nr_counts) = (Vec::new(), Vec::new(), 0);
    for round in 0..options.rounds {
        progress.show(&format!("what the kernel has, round {} of {}", round + 1, options.rounds));
        [A, B].iter().try_for_each(|group| ground.kernel.force_empty(group))?;
        let pages = ground.fill(B, "set")?;
        let (of_a, of_b) = (ground.view.watch(&ground.stream_files())?, ground.view.watch(&set)?);
        ground.stream(&ground.kernel, A, "stream", STREAM_FACTOR * ground.sizes.pool)?;
        let (of_a, of_b) = (of_a.end()?, of_b.end()?);
        let most_of_a = ground.sizes.a + ground.sizes.a / EXCESS_SHARE + SLACK_BYTES;
        if of_a.most * PAGE_SIZE_U64 > most_of_a || of_b.least < pages / HELD_SHARE {
            return Err(Failure::Wrong(format!(
                "the kernel had {} pages of A's files with a limit of {} bytes, and {} of B's {pages}",
                of_a.most, ground.sizes.a, of_b.least
            )));
        }
        most.push((of_a.most * PAGE_SIZE_U64) as f64);
        left.push(100.0 * of_b.least as f64 / pages as f64);
        nr_counts += of_a.nr;
    }
    let bound = (ground.sizes.a + SLACK_BYTES) as f64;
    let section = |title: &str, unit, samples, judge: &dyn Fn(&Samples) -> Verdict| {
        let sides = vec![Samples::new("umemcg, kernel pages", samples)];
        let verdicts = vec![judge(&sides[0])];
        Section { title: title.to_owned(), unit, sides, verdicts }
    };
    report.sections.push(section("the most that the kernel has of A's files", "bytes", most, &|side| {
        Verdict::new("A's limit and the slack, at most", side.max, Target::BytesAtMost(bound))
    }));
    report.sections.push(section("the least that the kernel has of B's file", "%", left, &|side| {
        Verdict::new("of B's pages, at least", side.min / 100.0, Target::TimesAtLeast(LEFT_MIN))
    }));
    report.notes.push(format!(
        "{nr_counts} counts with cachestat(2) while A streamed; A's limit is {} bytes, the slack {SLACK_BYTES}",
        ground.sizes.a
    ));
    Ok(())
}

fn hits_of_b(
    options: &Options,
    ground: &Ground,
    progress: &Progress,
    report: &mut Report,
) -> Result<(), Failure> {
    let time = Duration::from_secs_f64((PHASE_S * options.scale).clamp(0.3, 4.0));
    let nr_phases = PHASES * options.rounds as usize;
    let mut samples: Vec<Vec<Figures>> = vec![Vec::new(); SIDES.len()];
    let mut pace = Pace::default();
    for phase in 0..=nr_phases {
        for at in 0..SIDES.len() {
            // In the first turn in order: the other sides need the first one's pace.
            let side = (phase + at) % SIDES.len();
            progress.show(&format!("B's hits, phase {phase} of {nr_phases}: {}", SIDES[side]));
            let figures = sample(ground, side, time, pace)?;
            if side == 0 {
                pace = Pace { reads: figures[READS], percent: figures[CPU] };
            }
            if phase > 0 {
                samples[side].push(figures);
            }
        }
    }
    for (figure, &(title, unit)) in FIGURES.iter().enumerate() {
        let of = |side: usize| {
            Samples::new(SIDES[side], samples[side].iter().map(|figures| figures[figure]).collect())
        };
        let sides: Vec<Samples> = (0..SIDES.len()).map(of).collect();
        let is_p99 = P99.contains(&figure);
        let verdicts = if is_p99 { vec![judge(&sides)] } else { Vec::new() };
        if is_p99 {
            report.notes.extend(spread(title, &sides));
        }
        report.sections.push(Section { title: title.to_owned(), unit, sides, verdicts });
    }
    report.notes.push(format!(
        "B reads pages of its file at random, {B_RATE:.0} due in a second, in {nr_phases} phases of {:.1} s beside each neighbour; judged is A on the mount against two programs that read a directory without a mount, together as often as A and with as much processor time as A and the daemon",
        time.as_secs_f64()
    ));
    Ok(())
}

/// Judges B's hits beside a streaming A by its hits beside equally busy programs elsewhere.
fn judge(sides: &[Samples]) -> Verdict {
    let times = sides[0].ratio_to(&sides[AS_BUSY]);
    let what = format!("of that where {}", SIDES[AS_BUSY]);
    Verdict::new(what, times, Target::TimesAtMost(P99_MAX))
}

/// Reports the spread of the ratios of single phases, for the sides without a mount.
fn spread(title: &str, sides: &[Samples]) -> Vec<String> {
    let of = |other: &Samples| {
        let mut ratios = sides[0].ratios_to(other);
        ratios.sort_by(f64::total_cmp);
        let at = |part: usize| ratios[(ratios.len() * part / 4).min(ratios.len() - 1)];
        let (quarter, half, three) = (at(1), at(2), at(3));
        format!("{title}: {half:.2} ({quarter:.2} to {three:.2} for half of the phases) of {}", other.name)
    };
    (1..sides.len()).map(|side| of(&sides[side])).collect()
}

/// The pace of a streaming A, and its processor time with the daemon's.
#[derive(Debug, Clone, Copy, Default)]
struct Pace {
    /// In a second.
    reads: f64,
    /// Of one processor.
    percent: f64,
}

impl Pace {
    /// Returns the calls a second, and the processor time of each, for one of `nr` programs that
    /// are together as fast and as busy.
    fn shared_by(self, nr: usize) -> Tempo {
        let cpu = Duration::from_secs_f64(self.percent / 100.0 / self.reads.max(1.0));
        Tempo::Busy((self.reads / nr as f64).max(1.0), cpu)
    }
}

/// Takes a sample of B beside an A, or beside programs in its place.
fn sample(ground: &Ground, side: usize, time: Duration, pace: Pace) -> Result<Figures, Failure> {
    let (mount, sizes) = (&ground.kernel, ground.sizes);
    [A, B, LITTLE].iter().try_for_each(|group| mount.force_empty(group))?;
    let start = |group: &'static str, work, path, size, tempo| {
        Tenant::start((work, path, size), time, tempo, |process| mount.place(group, process))
    };
    let mut b = start(B, Work::Random, mount.seen().join("set"), sizes.set, Tempo::Rate(B_RATE))?;
    let stream = |group, top: &Path, tempo| {
        start(group, Work::Stream, top.join("stream"), STREAM_FACTOR * sizes.pool, tempo)
    };
    let burn = || {
        let rate = pace.percent / 100.0 / NR_BUSY as f64 / BURN.as_secs_f64();
        start(A, Work::Burn, ground.plain.clone(), 0, Tempo::AtMost(rate))
    };
    let mut others = match side {
        0 => vec![stream(A, mount.seen(), Tempo::Free)?],
        AS_BUSY => {
            let one = |_| stream(A, &ground.plain, pace.shared_by(NR_BUSY));
            (0..NR_BUSY).map(one).collect::<Result<_, _>>()?
        }
        AS_OFTEN => vec![stream(A, &ground.plain, Tempo::AtMost(pace.reads.max(1.0)))?],
        BURNERS => (0..NR_BUSY).map(|_| burn()).collect::<Result<_, _>>()?,
        KEEPS_NOTHING => vec![stream(LITTLE, mount.seen(), Tempo::Free)?],
        _ => Vec::new(),
    };
    let before = time_of_process(mount.process_id());
    others.iter_mut().try_for_each(Tenant::tell)?;
    b.tell()?;
    let b = b.done()?;
    let others: Vec<Done> = others.into_iter().map(Tenant::done).collect::<Result<_, _>>()?;
    let own: f64 = others.iter().map(|other| other.cpu_seconds).sum();
    let cpu = (time_of_process(mount.process_id()) - before).as_secs_f64() + own;
    let refused = others.iter().map(|other| other.refused).sum::<u64>() + b.refused;
    if refused > 0 {
        return Err(Failure::Wrong(format!("{refused} calls were refused")));
    }
    let ([due50, due99, due999, _], [call50, call99, call999, _]) = (b.latency_us, b.call_us);
    let calls = others.iter().fold(0.0, |sum, other| sum + other.calls as f64 / other.seconds);
    let reads = if side == BURNERS { 0.0 } else { calls };
    Ok([due50, due99, due999, call50, call99, call999, reads, 100.0 * cpu / b.seconds])
}
