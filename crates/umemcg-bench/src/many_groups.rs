//! `many-groups`: two thousand groups with marks, all streaming at once, served by a pool of a few
//! workers; then the same groups with nothing to do.
//!
//! It shows that every group progresses, none at the cost of another, with no thread of its own;
//! and that idle workers take no processor time. The data is `/dev/zero`, so that little but
//! charging and reclaim is measured. Requests are served as a daemon serves them: each group has
//! one under way, two threads for each processor take the request that has waited longest, and the
//! group's next one goes to the end. A thread for each group instead would leave the workers two
//! parts in two thousand of the processors.

use std::collections::VecDeque;
use std::fs::File as HostOpenFile;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use umemcg::files::{File, Readahead};
use umemcg::{Engine, EngineConfig, Group, StatItem};

use crate::options::{Failure, Options};
use crate::progress::Progress;
use crate::report::{Report, Section, Target, Verdict};
use crate::stats::Samples;
use crate::store::{HostFile, first_word};
use crate::threads::{nanoseconds_of, nr, process_time};

const NR_GROUPS: usize = 2000;
const LIMIT_BYTES: u64 = 512 << 10;
const HIGH_DISTANCE: u64 = 224 << 10;
const LOW_DISTANCE: u64 = 160 << 10;
const PIECE_BYTES: usize = 32 << 10;
const FILE_BYTES: u64 = 1 << 40;
/// Seconds of a round at full size.
const ROUND_S: f64 = 6.0;
/// The time of watching idle workers, at full size.
const IDLE: Duration = Duration::from_secs(10);
/// The time limit for them to become idle.
const QUIET_WITHIN: Duration = Duration::from_secs(30);
/// The most bytes of the fastest group, as a multiple of the slowest one's.
const SPREAD_MAX: f64 = 2.0;
/// Readers for each processor.
const READERS: usize = 2;

/// One group and its streamed file.
struct Member {
    group: Arc<Group>,
    file: Arc<File>,
    readahead: Readahead,
    /// Pieces read so far.
    pieces: AtomicU64,
}

/// Runs the experiment.
pub fn run(options: &Options) -> Result<Report, Failure> {
    let progress = Progress::new();
    let round_time = Duration::from_secs_f64((ROUND_S * options.scale).max(1.0));
    let pool_bytes = NR_GROUPS as u64 * LIMIT_BYTES + (64 << 20);
    let engine = Engine::new(EngineConfig::new(pool_bytes)).map_err(Failure::at("cannot make an engine"))?;
    let threads_before = nr("");
    let members = (0..NR_GROUPS).map(|at| join(&engine, at)).collect::<Result<Vec<_>, _>>()?;
    let nr_more_threads = nr("").saturating_sub(threads_before);
    let mut rounds = Vec::new();
    for round in 0..=options.rounds {
        progress.show(&format!("round {round} of {}: {NR_GROUPS} groups stream", options.rounds));
        let found = run_once(&engine, &members, round_time)?;
        if round > 0 {
            rounds.push(found);
        }
    }
    if let Some(beyond) = members.iter().find(|member| member.group.usage_bytes() > LIMIT_BYTES) {
        return Err(Failure::Wrong(format!("{:?} is beyond its limit", beyond.group)));
    }
    let served: Vec<i64> =
        members.iter().map(|member| member.group.stat_total(StatItem::PgStealKswapd)).collect();
    if served.contains(&0) {
        return Err(Failure::Wrong("a group was never served by the workers".into()));
    }
    progress.show("all groups idle");
    let idle = options.scaled_time(IDLE);
    let idle_ns = watch_idle(idle)?;

    let mut report = Report::new("many-groups", options.scale, options.rounds as usize);
    report.sections = sections(&rounds, nr_more_threads, (idle, idle_ns));
    let (least, most) = (served.iter().min().copied(), served.iter().max().copied());
    report.notes.push(format!(
        "limit 512 KiB, marks 160 and 224 KiB below it, pieces of 32 KiB; {} workers; pages that they took of a group: {} to {}",
        engine.kswapd().nr_workers(),
        least.unwrap_or(0),
        most.unwrap_or(0)
    ));
    Ok(report)
}

/// The result of one round.
struct Round {
    /// The bytes read by the fastest group, as a multiple of the slowest one's.
    spread: f64,
    mib_per_second: f64,
    /// Percent of all processor time.
    workers: f64,
    /// Direct reclaims for a million pages.
    stalls: f64,
}

/// Has all groups stream for a while.
fn run_once(engine: &Arc<Engine>, members: &[Member], how_long: Duration) -> Result<Round, Failure> {
    let stalled_before = engine.root().stat_total(StatItem::AllocStall);
    let (start, cpu, workers) = (Instant::now(), process_time(), nanoseconds_of("kswapd/"));
    let read = stream(engine, members, how_long)?;
    let real = start.elapsed().as_secs_f64();
    let workers = (nanoseconds_of("kswapd/") - workers) as f64 / 1e9;
    let stalled = engine.root().stat_total(StatItem::AllocStall) - stalled_before;
    let pages = (read.iter().sum::<u64>() * PIECE_BYTES as u64) as f64 / 4096.0;
    let (least, most) = (read.iter().min().copied(), read.iter().max().copied());
    Ok(Round {
        spread: most.unwrap_or(0) as f64 / least.unwrap_or(0) as f64,
        mib_per_second: pages * 4096.0 / real / f64::from(1 << 20),
        workers: 100.0 * workers / (process_time() - cpu).as_secs_f64(),
        stalls: stalled as f64 / pages * 1e6,
    })
}

fn sections(rounds: &[Round], nr_more_threads: usize, (idle, idle_ns): (Duration, u64)) -> Vec<Section> {
    let all = |of: fn(&Round) -> f64| rounds.iter().map(of).collect::<Vec<f64>>();
    let section = |title: &str, unit, name: &str, samples, verdict: Option<(&str, Target)>| {
        let sides = vec![Samples::new(name, samples)];
        let median = sides[0].median;
        let verdicts = verdict.map(|(what, target)| Verdict::new(what, median, target)).into_iter().collect();
        Section { title: title.to_owned(), unit, sides, verdicts }
    };
    let at_once = "2,000 groups at once";
    vec![
        section(
            "read by the group that got most, of the one that got least",
            "×",
            at_once,
            all(|round| round.spread),
            Some(("fastest of slowest", Target::TimesAtMost(SPREAD_MAX))),
        ),
        section("read by all of them", "MiB/s", at_once, all(|round| round.mib_per_second), None),
        section("workers, of all processor time", "%", at_once, all(|round| round.workers), None),
        section("direct reclaims for a million pages", "", at_once, all(|round| round.stalls), None),
        section(
            "threads more than without the groups",
            "threads",
            "2,000 groups",
            vec![nr_more_threads as f64],
            Some(("no thread for a group", Target::TimesAtMost(0.0))),
        ),
        section(
            &format!("workers while nothing is to do, {} s", idle.as_secs_f64()),
            "ns",
            "2,000 groups with marks",
            vec![idle_ns as f64],
            Some(("processor time", Target::NsAtMost(0.0))),
        ),
    ]
}

fn join(engine: &Arc<Engine>, at: usize) -> Result<Member, Failure> {
    let name = format!("g{at}");
    let group =
        engine.create_group(engine.root(), name.as_ref()).map_err(Failure::at("cannot make a group"))?;
    engine.set_limit(&group, LIMIT_BYTES).map_err(Failure::at("cannot set a limit"))?;
    let reclaimer = engine.reclaimer();
    let set = reclaimer.set_high_wmark_distance(&group, HIGH_DISTANCE);
    set.and_then(|()| reclaimer.set_low_wmark_distance(&group, LOW_DISTANCE))
        .map_err(Failure::at("cannot set marks"))?;
    let zeros = HostOpenFile::open("/dev/zero").map_err(Failure::at("cannot open /dev/zero"))?;
    let file =
        engine.open_file(Arc::new(HostFile(zeros)), FILE_BYTES).map_err(Failure::at("cannot open a file"))?;
    Ok(Member { group, file, readahead: Readahead::new(), pieces: AtomicU64::new(0) })
}

/// Has all groups read for a while; returns the number of pieces read by each.
fn stream(engine: &Engine, members: &[Member], how_long: Duration) -> Result<Vec<u64>, Failure> {
    let before: Vec<u64> = members.iter().map(|member| member.pieces.load(Relaxed)).collect();
    let stop = AtomicBool::new(false);
    let waiting = Mutex::new((0..members.len()).collect::<VecDeque<usize>>());
    let nr_readers = READERS * std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        let reader = || {
            while !stop.load(Relaxed) {
                let next = lock(&waiting).pop_front();
                let Some(next) = next else { continue };
                read_piece(engine, &members[next])?;
                lock(&waiting).push_back(next);
            }
            Ok(())
        };
        let readers: Vec<_> = (0..nr_readers).map(|_| scope.spawn(reader)).collect();
        std::thread::sleep(how_long);
        stop.store(true, Relaxed);
        readers.into_iter().try_for_each(|reader| reader.join().expect("a reader does not panic"))
    })?;
    Ok(members.iter().zip(before).map(|(member, before)| member.pieces.load(Relaxed) - before).collect())
}

fn lock(waiting: &Mutex<VecDeque<usize>>) -> MutexGuard<'_, VecDeque<usize>> {
    waiting.lock().unwrap_or_else(PoisonError::into_inner)
}

fn read_piece(engine: &Engine, member: &Member) -> Result<(), Failure> {
    let offset = member.pieces.load(Relaxed) * PIECE_BYTES as u64 % FILE_BYTES;
    let read = member.file.read(&member.group, offset, PIECE_BYTES, &member.readahead);
    let pages = read.map_err(Failure::at("cannot read"))?;
    if pages.len() != PIECE_BYTES || first_word(engine, &pages) != 0 {
        return Err(Failure::Wrong(format!("{} bytes read of {PIECE_BYTES} zeros", pages.len())));
    }
    member.pieces.fetch_add(1, Relaxed);
    Ok(())
}

/// Waits until the workers are idle; returns the nanoseconds they run from then on without work.
fn watch_idle(idle: Duration) -> Result<u64, Failure> {
    let deadline = Instant::now() + QUIET_WITHIN;
    let mut before = nanoseconds_of("kswapd/");
    loop {
        std::thread::sleep(Duration::from_millis(500));
        let now = nanoseconds_of("kswapd/");
        if now == before {
            break;
        }
        if Instant::now() > deadline {
            return Err(Failure::Wrong(format!(
                "the workers still run after {QUIET_WITHIN:?} without any work"
            )));
        }
        before = now;
    }
    std::thread::sleep(idle);
    Ok(nanoseconds_of("kswapd/") - before)
}
