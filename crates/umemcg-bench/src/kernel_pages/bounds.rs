//! What the kernel has of A's files while A streams, what is left of B's, and what B's hits take.
//!
//! Processor time is shared whatever is done about memory. So B's hits are held against those
//! beside two programs that only use as much processor time as A and its requests, which two
//! threads at least use at a time. What they take beside an A that keeps nothing, alone, and on a
//! directory without a mount, where nothing bounds A, is shown.

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

/// What may be beyond a limit: the pages of a reader's requests in flight, its read and its
/// read-ahead, and the stock of threads.
const SLACK_BYTES: u64 = 4 * MIB;
const LEFT_MIN: f64 = 0.99;
const P99_MAX: f64 = 1.1;
/// Seconds of a sample at full size.
const SAMPLE_S: f64 = 2.0;
/// Calls that B makes in a second, whether or not the one before has ended.
const B_RATE: f64 = 10_000.0;
const SIDES: [&str; 5] = [
    "A streams",
    "two programs that use as much processor time",
    "A streams and keeps nothing",
    "B alone",
    "both on a plain directory",
];
const BURNERS: usize = 1;
const NR_BURNERS: usize = 2;
const KEEPS_NOTHING: usize = 2;
const PLAIN: usize = 4;

/// The figures of B beside an A.
const FIGURES: [(&str, &str); 6] = [
    ("B's hits, p50", "us"),
    ("B's hits, p99", "us"),
    ("B's hits, p99.9", "us"),
    ("B's hits, longest", "us"),
    ("A's reads of 128 KiB", "/s"),
    ("processor time of A and the daemon, or of what runs in their place", "%"),
];
const P99: usize = 1;
const CPU: usize = 5;
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
    let time = Duration::from_secs_f64((SAMPLE_S * options.scale).clamp(0.5, 10.0));
    let mut samples: Vec<Vec<Figures>> = vec![Vec::new(); SIDES.len()];
    let mut percent = 0.0;
    for round in 0..=options.rounds as usize {
        for at in 0..SIDES.len() {
            // In the first round in order: the second side needs the first one's processor time.
            let side = (round + at) % SIDES.len();
            progress.show(&format!("B's hits, round {round} of {}: {}", options.rounds, SIDES[side]));
            let figures = sample(ground, side, time, percent)?;
            if side == 0 {
                percent = figures[CPU];
            }
            if round > 0 {
                samples[side].push(figures);
            }
        }
    }
    for (figure, &(title, unit)) in FIGURES.iter().enumerate() {
        let of = |side: usize| {
            Samples::new(SIDES[side], samples[side].iter().map(|figures| figures[figure]).collect())
        };
        let sides: Vec<Samples> = (0..SIDES.len()).map(of).collect();
        let judge = || {
            let times = sides[0].ratio_to(&sides[1]);
            Verdict::new("of that beside such programs", times, Target::TimesAtMost(P99_MAX))
        };
        let verdicts = if figure == P99 { vec![judge()] } else { Vec::new() };
        report.sections.push(Section { title: title.to_owned(), unit, sides, verdicts });
    }
    report.notes.push(format!(
        "B reads pages of its file at random, {B_RATE:.0} due in a second, for {:.1} s a sample; latencies count from when a call was due",
        time.as_secs_f64()
    ));
    Ok(())
}

/// Takes a sample of B beside an A, or beside programs that burn this share of one processor.
fn sample(ground: &Ground, side: usize, time: Duration, percent: f64) -> Result<Figures, Failure> {
    let (mount, sizes) = (&ground.kernel, ground.sizes);
    [A, B, LITTLE].iter().try_for_each(|group| mount.force_empty(group))?;
    let place = if side == PLAIN { &ground.plain } else { mount.seen() };
    let start = |group: &'static str, work, what: &str, size, tempo| {
        Tenant::start((work, place.join(what), size), time, tempo, |process| mount.place(group, process))
    };
    let mut b = start(B, Work::Random, "set", sizes.set, Tempo::Rate(B_RATE))?;
    let stream = |group| start(group, Work::Stream, "stream", STREAM_FACTOR * sizes.pool, Tempo::Free);
    let burn = || {
        let rate = percent / 100.0 / NR_BURNERS as f64 / BURN.as_secs_f64();
        start(A, Work::Burn, "", 0, Tempo::AtMost(rate))
    };
    let mut others = match side {
        0 | PLAIN => vec![stream(A)?],
        BURNERS => (0..NR_BURNERS).map(|_| burn()).collect::<Result<_, _>>()?,
        KEEPS_NOTHING => vec![stream(LITTLE)?],
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
    let [p50, p99, p999, longest] = b.latency_us;
    let calls: f64 = others.iter().map(|other| other.calls as f64 / other.seconds).sum();
    let reads = if side == BURNERS { 0.0 } else { calls };
    Ok([p50, p99, p999, longest, reads, 100.0 * cpu / b.seconds])
}
