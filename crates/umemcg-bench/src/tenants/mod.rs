//! `tenants`: the effect on tenant B of a tenant A pressing in one of ten ways. B makes its calls
//! one at a time: alone, beside processors that spin, and beside A.
//!
//! One daemon serves all sides. On the side of the spinning processors as many threads spin as A
//! has, at most one for each processor: the processors are as busy, and the daemon has no other
//! work. The figures are the latencies of B's calls. Each call is checked, and so is A's written
//! data.

mod asking;
mod event_file;
mod ground;
mod pressing;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::{Duration, Instant};

use crate::footprint::Program;
use crate::options::{Failure, Options};
use crate::progress::Progress;
use crate::report::{Report, Section, Target, Verdict};
use crate::stats::Samples;
use crate::threads::Latencies;

use asking::{Ask, Asker};
use ground::{Ground, MIB, SHARED_FILE};
use pressing::{Held, Press};

/// Seconds of a sample at full size.
const SAMPLE_S: f64 = 2.0;
const SAMPLE_S_MIN: f64 = 0.5;
/// A's threads come up to speed.
const WARM: Duration = Duration::from_millis(500);
/// B has an answer of each kind by then, however it is pressed.
const ANSWERED_WITHIN: Duration = Duration::from_secs(60);
const P99_MAX: f64 = 3.0;
const QUANTILES: [(f64, &str); 2] = [(0.5, "p50"), (0.99, "p99")];

const ROWS: [(Press, Ask); 10] = [
    (Press::OneGroup, Ask::Attributes),
    (Press::ManyGroups, Ask::Attributes),
    (Press::ByRule, Ask::Attributes),
    (Press::Syncs, Ask::Attributes),
    (Press::Reads, Ask::Attributes),
    (Press::Pins, Ask::Walk),
    (Press::Renames, Ask::Moves),
    (Press::High, Ask::Names),
    (Press::Events, Ask::Hears),
    (Press::Rewrites, Ask::Writes),
];

/// The load beside B.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Beside {
    A,
    Spinning,
    Nothing,
}

/// In the order of the report, and their names.
const SIDES: [(Beside, &str); 3] =
    [(Beside::A, "beside A"), (Beside::Spinning, "beside spinning"), (Beside::Nothing, "alone")];

/// The latencies of a sample: of each call the quantiles.
type Figures = Vec<[f64; 2]>;

/// Runs the experiment.
pub fn run(options: &Options, program: &Program) -> Result<Report, Failure> {
    let progress = Progress::new();
    progress.show("files are made");
    let ground = Ground::new(options, program)?;
    let time = Duration::from_secs_f64((SAMPLE_S * options.scale).max(SAMPLE_S_MIN));
    // By row, call, quantile and side.
    let mut samples = BTreeMap::<[usize; 4], Vec<f64>>::new();
    for round in 1..=options.rounds {
        for (at, (press, ask)) in ROWS.into_iter().enumerate() {
            progress.show(&format!("round {round} of {}: {}", options.rounds, press.title()));
            for (side, (beside, _)) in SIDES.into_iter().enumerate().rev() {
                let figures = sample(&ground, (press, ask), beside, time)?;
                for (call, quantiles) in figures.into_iter().enumerate() {
                    for (quantile, figure) in quantiles.into_iter().enumerate() {
                        samples.entry([at, call, quantile, side]).or_default().push(figure);
                    }
                }
            }
        }
    }
    let mut report = Report::new("tenants", options.scale, options.rounds as usize);
    report.compact = true;
    report.notes.push(format!(
        "{} names are pinned and {} are walked, {} reads wait for the store; the file that A rewrites has {} MiB; the slow store \
         stands still for {} ms at a time",
        ground.nr_pinned,
        ground.nr_walked,
        ground.nr_reads,
        SHARED_FILE / MIB,
        ground.stands_still.as_millis()
    ));
    ground.end()?;
    report.sections = sections(&samples);
    Ok(report)
}

fn sections(samples: &BTreeMap<[usize; 4], Vec<f64>>) -> Vec<Section> {
    let mut sections = Vec::new();
    for (at, (press, ask)) in ROWS.into_iter().enumerate() {
        for (call, name) in ask.calls().iter().enumerate() {
            for (quantile, (_, quantile_name)) in QUANTILES.into_iter().enumerate() {
                let side = |(side, (_, name)): (usize, (Beside, &str))| {
                    let figures = samples.get(&[at, call, quantile, side]).cloned();
                    Samples::new(name, figures.unwrap_or_else(|| vec![0.0]))
                };
                let sides: Vec<Samples> = SIDES.into_iter().enumerate().map(side).collect();
                let verdict = (quantile_name == "p99").then(|| {
                    let ratio = sides[0].ratio_to(&sides[1]);
                    Verdict::new("of that beside spinning, at most", ratio, Target::TimesAtMost(P99_MAX))
                });
                let title = format!("{}: {name}, {quantile_name}", press.title());
                sections.push(Section { title, unit: "us", sides, verdicts: verdict.into_iter().collect() });
            }
        }
    }
    sections
}

/// Takes a sample of B's latencies.
fn sample(
    ground: &Ground,
    (press, ask): (Press, Ask),
    beside: Beside,
    time: Duration,
) -> Result<Figures, Failure> {
    let ends = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let ends = &ends;
        let ((ready, is_ready), (go, may_go)) = (mpsc::channel(), mpsc::channel());
        let asking = scope.spawn(move || asked(ground, ask, (ready, may_go), time));
        // If B fails before, its thread says so.
        let _ = is_ready.recv();
        let held = if beside == Beside::A { press.begin(ground) } else { Ok(Held::default()) };
        let nr = if held.is_ok() { nr_beside(press, beside) } else { 0 };
        let load: Vec<_> = (0..nr)
            .map(|at| {
                scope.spawn(move || match beside {
                    Beside::A => press.run(ground, at, ends),
                    _ => Ok(spin(ends)),
                })
            })
            .collect();
        if held.is_ok() {
            let _ = go.send(());
        }
        drop(go);
        let figures = asking.join();
        ends.store(true, Relaxed);
        let ended = held.and_then(Held::end);
        let calls: Vec<_> = load.into_iter().map(|thread| thread.join()).collect();
        let figures = figures.map_err(|_| Failure::Setup("the thread of B ended".into()))??;
        ended?;
        let mut nr_calls = 0;
        for calls in calls {
            nr_calls += calls.map_err(|_| Failure::Setup("a thread of A ended".into()))??;
        }
        if nr > 0 && nr_calls == 0 {
            return Err(Failure::Wrong(format!("nothing was done beside B: {}", press.title())));
        }
        Ok(figures)
    })
}

/// Returns how many threads run beside B.
fn nr_beside(press: Press, beside: Beside) -> usize {
    let nr_processors = std::thread::available_parallelism().map_or(2, usize::from);
    match beside {
        Beside::A => press.nr_threads(),
        Beside::Spinning => press.nr_threads().clamp(1, nr_processors),
        Beside::Nothing => 0,
    }
}

/// Uses a processor until the end.
fn spin(ends: &AtomicBool) -> u64 {
    while !ends.load(Relaxed) {
        std::hint::spin_loop();
    }
    1
}

/// Has B ask once it may, and for so long.
fn asked(
    ground: &Ground,
    ask: Ask,
    (ready, may_go): (Sender<()>, Receiver<()>),
    time: Duration,
) -> Result<Figures, Failure> {
    ground.join(ask.group())?;
    let mut asker = Asker::new(ground, ask)?;
    let mut latencies: Vec<Latencies> = ask.calls().iter().map(|_| Latencies::new()).collect();
    let _ = ready.send(());
    let mut may_ask = may_go.recv().is_ok();
    let started = Instant::now();
    while may_ask {
        // Also counts a call begun in the warm-up, if it ends after the warm-up.
        asker.turn(&mut |call, took| {
            if started.elapsed() >= WARM {
                latencies[call].note(took);
            }
        })?;
        let is_mute = latencies.iter().any(Latencies::is_empty);
        may_ask = started.elapsed() < if is_mute { ANSWERED_WITHIN } else { WARM + time };
    }
    if latencies.iter().any(Latencies::is_empty) {
        return Err(Failure::Wrong(format!("B has no answer within {ANSWERED_WITHIN:?}")));
    }
    let quantiles = |latencies: Latencies| latencies.quantiles(QUANTILES.map(|(part, _)| part));
    Ok(latencies.into_iter().map(quantiles).collect())
}
