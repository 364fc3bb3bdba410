//! The row `dirty-neighbour` of `neighbour`: B writes as fast as it can to a slow store and is over
//! its dirty limits; A writes to the same store, well below its own. The row shows the effect on A.
//!
//! Against the library, with a store of a fixed rate. A is compared with A beside a B with the same
//! calls on an immediate store, as many as cost the same processor time. Beside that: one group,
//! and so one limit, for both.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use umemcg::files::{DirtyBound, DirtyThreshold, File};
use umemcg::{Engine, EngineConfig, Group};

use crate::dirty_throttle::Slow;
use crate::neighbour_choice::Choice;
use crate::options::{Failure, Options};
use crate::progress::Progress;
use crate::report::{Report, Section, Target, Verdict};
use crate::stats::Samples;
use crate::threads::{Latencies, process_time};

const MIB: u64 = 1 << 20;
/// The slow store's write bandwidth, in bytes a second.
const STORE_RATE: f64 = 16.0 * MIB as f64;
const LIMIT_BYTES: u64 = 8 * MIB;
const BACKGROUND_BYTES: u64 = 4 * MIB;
/// A's file; all of it may be dirty without being written back.
const A_FILE: u64 = 2 * MIB;
const A_BYTES: usize = 4 << 10;
/// A's calls in a second.
const A_RATE: f64 = 2000.0;
const B_FILE: u64 = 32 * MIB;
const B_BYTES: usize = 64 << 10;
/// Until B is over its limit and the store is known.
const RAMP: Duration = Duration::from_millis(1500);
/// Seconds of a sample at scale 1.
const SAMPLE_S: f64 = 7.5;

const KEPT_MIN: f64 = 0.97;
const P99_MAX: f64 = 1.03;

const SIDES: [&str; 3] =
    ["two groups, each its limits", "B on a store that is not slow", "one group for both"];
const BASELINE: usize = 1;
const FIGURES: [(&str, &str); 11] = [
    ("A: calls", "/s"),
    ("A: p50", "us"),
    ("A: p99", "us"),
    ("A: p99.9", "us"),
    ("A: max", "us"),
    ("A: pauses", ""),
    ("A: time paused", "ms"),
    ("B: written", "MiB/s"),
    ("B: pauses", ""),
    ("B: longest pause", "ms"),
    ("processor time of all threads", "%"),
];
const CPU: usize = 10;
type Figures = [f64; FIGURES.len()];

/// A writer: a file, a group, and the number and the length of its pauses.
struct Writer {
    file: Arc<File>,
    group: Arc<Group>,
    piece: Vec<u8>,
    len: u64,
    calls: u64,
    pauses: Latencies,
    nr_pauses: u64,
}

impl Writer {
    fn new(file: Arc<File>, group: &Arc<Group>, bytes: usize, len: u64) -> Self {
        let (group, piece) = (Arc::clone(group), vec![7; bytes]);
        Self { file, group, piece, len, calls: 0, pauses: Latencies::new(), nr_pauses: 0 }
    }

    fn write(&mut self) -> Result<(), Failure> {
        let offset = self.calls * self.piece.len() as u64 % self.len;
        self.calls += 1;
        self.file.write(&self.group, offset, &self.piece).map_err(Failure::at("cannot write"))?;
        let begin = Instant::now();
        if let Some(mut pause) = self.file.write_pause(&self.group, self.piece.len()) {
            while let Some(remaining) = pause.remaining() {
                std::thread::sleep(remaining);
            }
            self.pauses.note(begin.elapsed());
            self.nr_pauses += 1;
        }
        Ok(())
    }

    fn forget(&mut self) {
        (self.calls, self.pauses, self.nr_pauses) = (0, Latencies::new(), 0);
    }
}

/// Adds the row to the report.
pub fn run(
    options: &Options,
    choice: &Choice,
    progress: &Progress,
    report: &mut Report,
) -> Result<(), Failure> {
    let time = choice.time(SAMPLE_S, options.scale);
    let nr_sides = if choice.compared { BASELINE + 1 } else { SIDES.len() };
    let mut samples: [Vec<Figures>; SIDES.len()] = Default::default();
    let mut wanted_cpu = 0.0;
    for round in 0..=options.rounds as usize {
        // The baseline follows the side it is to be equal to.
        for (side, samples) in samples.iter_mut().enumerate().take(nr_sides) {
            progress.show(&format!("B is over its dirty limits, round {round}: {}", SIDES[side]));
            let figures = sample(side, time, wanted_cpu)?;
            if side == 0 {
                wanted_cpu = figures[CPU];
            }
            if round > 0 {
                samples.push(figures);
            }
        }
    }
    for (figure, &(name, unit)) in FIGURES.iter().enumerate() {
        let of = |side: usize| {
            Samples::new(SIDES[side], samples[side].iter().map(|figures| figures[figure]).collect())
        };
        let ratio = of(0).ratio_to(&of(BASELINE));
        let against = "of that beside a B that is not slowed";
        let verdicts = match name {
            "A: calls" => vec![Verdict::new(against, ratio, Target::TimesAtLeast(KEPT_MIN))],
            "A: p99" => vec![Verdict::new(against, ratio, Target::TimesAtMost(P99_MAX))],
            "A: pauses" => vec![Verdict::new("most of any round", of(0).max, Target::TimesAtMost(0.0))],
            _ => Vec::new(),
        };
        let sides = (0..nr_sides).map(of).collect();
        report.sections.push(Section {
            title: format!("B is over its dirty limits; {name}"),
            unit,
            sides,
            verdicts,
        });
    }
    report.notes.push(format!(
        "dirty-neighbour: the store takes {} MiB/s; limits of {} MiB, background {} MiB; A writes 4 KiB {A_RATE} times a second within {} MiB, B 64 KiB \
         as fast as it can within {} MiB; latencies of A count from when a call was due and include pauses; a published case without limits per \
         group went from 0.6 to 152 ms",
        STORE_RATE / MIB as f64,
        LIMIT_BYTES / MIB,
        BACKGROUND_BYTES / MIB,
        A_FILE / MIB,
        B_FILE / MIB
    ));
    Ok(())
}

fn sample(side: usize, time: Duration, wanted_cpu: f64) -> Result<Figures, Failure> {
    let engine = Engine::new(EngineConfig::new(256 * MIB)).map_err(Failure::at("cannot make an engine"))?;
    let limits = engine.cache().dirty_limits();
    let group = |name: &str| -> Result<Arc<Group>, Failure> {
        let group =
            engine.create_group(engine.root(), name.as_ref()).map_err(Failure::at("cannot make a group"))?;
        limits.set_bound(&group, DirtyThreshold::Foreground, DirtyBound::Bytes(LIMIT_BYTES));
        limits.set_bound(&group, DirtyThreshold::Background, DirtyBound::Bytes(BACKGROUND_BYTES));
        Ok(group)
    };
    let group_a = group("a")?;
    let group_b = if side == 2 { Arc::clone(&group_a) } else { group("b")? };
    let slow = Arc::new(Slow::new(1, STORE_RATE));
    let of_b = if side == BASELINE { Arc::new(Slow::new(2, f64::INFINITY)) } else { Arc::clone(&slow) };
    let open =
        |store: Arc<Slow>, len| engine.open_file(store, len).map_err(Failure::at("cannot open a file"));
    let mut a = Writer::new(open(slow, A_FILE)?, &group_a, A_BYTES, A_FILE);
    let b = Writer::new(open(of_b, B_FILE)?, &group_b, B_BYTES, B_FILE);
    // Touches the memory, and completes the file.
    for _ in 0..A_FILE / A_BYTES as u64 {
        a.write()?;
    }
    a.forget();
    let (stop, measures) = (AtomicBool::new(false), AtomicBool::new(false));
    let bound = (side == BASELINE).then_some(wanted_cpu);
    let figures = std::thread::scope(|scope| {
        let writer = scope.spawn(|| write_all_the_time(b, bound, &measures, &stop));
        std::thread::sleep(RAMP);
        measures.store(true, Relaxed);
        let (start, cpu) = (Instant::now(), process_time());
        let latencies = write_at_rate(&mut a, start, time);
        let (seconds, cpu) = (start.elapsed().as_secs_f64(), process_time() - cpu);
        stop.store(true, Relaxed);
        let b = writer.join().map_err(|_| Failure::Wrong("B panicked".into()))??;
        let [p50, p99, p999, max] = latencies?.quantiles([0.5, 0.99, 0.999, 1.0]);
        let [longest] = b.pauses.quantiles([1.0]);
        Ok::<Figures, Failure>([
            a.calls as f64 / seconds,
            p50,
            p99,
            p999,
            max,
            a.nr_pauses as f64,
            a.pauses.sum() / 1e3,
            b.calls as f64 * B_BYTES as f64 / MIB as f64 / seconds,
            b.nr_pauses as f64,
            longest / 1e3,
            100.0 * cpu.as_secs_f64() / seconds,
        ])
    })?;
    if !engine.sync_all(Duration::from_secs(60)).is_empty() {
        return Err(Failure::Wrong("something stays dirty after a sync".into()));
    }
    Ok(figures)
}

/// Writes until it is stopped, as fast as it may, and with `cpu_max` no faster than costs so many
/// percent of processor time. Only calls after `measures` count.
fn write_all_the_time(
    mut writer: Writer,
    cpu_max: Option<f64>,
    measures: &AtomicBool,
    stop: &AtomicBool,
) -> Result<Writer, Failure> {
    let (mut start, mut cpu, mut is_measured) = (Instant::now(), process_time(), false);
    while !stop.load(Relaxed) {
        if !is_measured && measures.load(Relaxed) {
            (start, cpu, is_measured) = (Instant::now(), process_time(), true);
            writer.forget();
        }
        writer.write()?;
        while let Some(cpu_max) = cpu_max
            && !stop.load(Relaxed)
            && 100.0 * (process_time() - cpu).as_secs_f64() > cpu_max * start.elapsed().as_secs_f64()
        {
            std::thread::sleep(Duration::from_micros(500));
        }
    }
    Ok(writer)
}

/// Makes A's calls when they are due. Returns how long after that each had its answer.
fn write_at_rate(writer: &mut Writer, start: Instant, time: Duration) -> Result<Latencies, Failure> {
    let mut latencies = Latencies::new();
    while start.elapsed() < time {
        let due = start + Duration::from_secs_f64(writer.calls as f64 / A_RATE);
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        writer.write()?;
        latencies.note(due.elapsed());
    }
    Ok(latencies)
}
