//! `ObjectCache` and alternative cache crates, in one process and in turns: all hits, and Zipf with
//! insert on miss, by one and two threads. Prints one JSON object; `umemcg-bench object-cache` runs
//! it and judges.

#[cfg(feature = "rivals")]
mod caches;
mod sides;
mod streams;

use std::ops::RangeInclusive;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;

#[cfg(feature = "rivals")]
use caches::{Foyer, MiniMoka, Moka, QuickCache};
use sides::{Side, Umemcg, Value};
use streams::{Zipf, uniform};

/// Capacity of each cache in values, at full size.
const CAPACITY: usize = 100_000;
/// Resident keys, in tenths of the capacity: room enough for caches with unevenly filled parts.
const RESIDENT_TENTHS: usize = 8;
/// Keys of Zipf's distribution, as a multiple of the capacity, and its exponent.
const ZIPF_KEYS: usize = 10;
const EXPONENT: f64 = 0.99;
/// Look-ups of a sample, at full size.
const LOOKUPS: usize = 1_000_000;
/// Look-ups before the first sample, as a multiple of the keys of the distribution.
const WARM_UP: usize = 4;
const THREADS_MAX: usize = 2;

/// Measure processor time in place of real time: for machines busy with other work.
static BY_PROCESSOR: AtomicBool = AtomicBool::new(false);

/// A reading of the chosen clock.
fn now(origin: Instant) -> Duration {
    if BY_PROCESSOR.load(Relaxed) {
        let time = clock_gettime(ClockId::ThreadCPUTime);
        Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
    } else {
        origin.elapsed()
    }
}

/// One comparison.
#[derive(Serialize)]
struct Row {
    title: String,
    /// Hit ratio of the counted look-ups, for each side. `None` for the rows of all hits.
    hit_ratios: Option<Vec<f64>>,
    /// Nanoseconds for each look-up of a thread.
    samples: Vec<Vec<f64>>,
}

#[derive(Serialize)]
struct Output {
    sides: Vec<String>,
    rows: Vec<Row>,
    notes: Vec<String>,
}

/// A cache with its counts.
struct Contender {
    name: String,
    cache: Box<dyn Runs>,
    samples: Vec<f64>,
    hits: u64,
    lookups: u64,
}

/// A side whose loops are compiled for it.
trait Runs: Sync {
    /// Looks up all keys and inserts missing ones. Returns the number of hits.
    fn run(&self, keys: &[u32]) -> u64;
    fn finish(&self) -> Option<String>;
}

impl<S: Side> Runs for S {
    fn run(&self, keys: &[u32]) -> u64 {
        let mut hits = 0;
        for &key in keys {
            let key = u64::from(key);
            match self.get(key) {
                Some(found) => {
                    assert_eq!(found, key, "the value of another key");
                    hits += 1;
                }
                None => self.insert(key, Value::make(key)),
            }
        }
        hits
    }

    fn finish(&self) -> Option<String> {
        self.settle();
        self.fault()
    }
}

fn contenders(capacity: usize, only: Option<&str>) -> Vec<Contender> {
    let of = |name: &str, cache: Box<dyn Runs>| Contender {
        name: name.to_owned(),
        cache,
        samples: Vec::new(),
        hits: 0,
        lookups: 0,
    };
    let mut all = Vec::from([
        of("umemcg, 1 group", Box::new(Umemcg::new(capacity, 1))),
        of("umemcg, 64 groups", Box::new(Umemcg::new(capacity, 64))),
        #[cfg(feature = "rivals")]
        of("quick_cache", Box::new(QuickCache::new(capacity))),
        #[cfg(feature = "rivals")]
        of("foyer", Box::new(Foyer::new(capacity))),
        #[cfg(feature = "rivals")]
        of("mini-moka", Box::new(MiniMoka::new(capacity))),
        #[cfg(feature = "rivals")]
        of("moka", Box::new(Moka::new(capacity))),
    ]);
    if let Some(only) = only {
        all.retain(|contender| only.split('+').any(|part| contender.name.contains(part)));
    }
    all
}

/// Runs the keys, each thread its own; returns nanoseconds for each look-up of a thread, and the
/// hits.
fn sample(cache: &dyn Runs, keys: &[&[u32]]) -> (f64, u64) {
    let start = Barrier::new(keys.len());
    let (times, hits): (Vec<f64>, Vec<u64>) = std::thread::scope(|scope| {
        let threads: Vec<_> = keys
            .iter()
            .map(|keys| {
                let start = &start;
                scope.spawn(move || {
                    start.wait();
                    let origin = Instant::now();
                    let began = now(origin);
                    let hits = cache.run(keys);
                    ((now(origin) - began).as_nanos() as f64 / keys.len() as f64, hits)
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("a thread of the benchmark")).unzip()
    });
    (times.iter().sum::<f64>() / times.len() as f64, hits.iter().sum())
}

/// Takes samples in turns. `keys` gives each round's keys of each thread; round 0 is not counted.
fn alternate(
    contenders: &mut [Contender],
    rounds: usize,
    nr_threads: usize,
    all_hits: bool,
    keys: impl Fn(usize, usize) -> Vec<u32>,
) -> Result<Row, String> {
    let nr = contenders.len();
    for contender in contenders.iter_mut() {
        (contender.samples, contender.hits, contender.lookups) = (Vec::new(), 0, 0);
    }
    for round in 0..=rounds {
        let keys: Vec<Vec<u32>> = (0..nr_threads).map(|thread| keys(round, thread)).collect();
        let keys: Vec<&[u32]> = keys.iter().map(Vec::as_slice).collect();
        let lookups: usize = keys.iter().map(|keys| keys.len()).sum();
        for at in 0..nr {
            let contender = &mut contenders[(round + at) % nr];
            let (time, hits) = sample(&*contender.cache, &keys);
            if round > 0 {
                contender.samples.push(time);
                contender.hits += hits;
                contender.lookups += lookups as u64;
                // Caches that weigh by chance may lose a handful.
                if all_hits && hits as f64 <= lookups as f64 * 0.999 {
                    return Err(format!(
                        "{} hit {hits} of {lookups} keys that are all there",
                        contender.name
                    ));
                }
            }
        }
    }
    let title = format!(
        "{}, {nr_threads} thread{}",
        if all_hits { "all hits, uniform" } else { "Zipf 0.99, insert on miss" },
        if nr_threads == 1 { "" } else { "s" }
    );
    let ratio = |contender: &Contender| contender.hits as f64 / contender.lookups as f64;
    Ok(Row {
        title,
        hit_ratios: (!all_hits).then(|| contenders.iter().map(ratio).collect()),
        samples: contenders.iter().map(|contender| contender.samples.clone()).collect(),
    })
}

fn run(
    scale: f64,
    rounds: usize,
    only: Option<&str>,
    what: Option<&str>,
    threads: RangeInclusive<usize>,
) -> Result<Output, String> {
    let capacity = ((CAPACITY as f64 * scale) as usize).clamp(6400, 4_000_000);
    let lookups = ((LOOKUPS as f64 * scale) as usize).max(50_000);
    let mut rows = Vec::new();
    let names = contenders(6400, only).iter().map(|contender| contender.name.clone()).collect();
    let sets_off = |contenders: &[Contender]| -> Result<(), String> {
        for contender in contenders {
            if let Some(fault) = contender.cache.finish() {
                return Err(format!("{}: {fault}", contender.name));
            }
        }
        Ok(())
    };

    if what != Some("zipf") {
        let mut contenders = contenders(capacity, only);
        let nr_keys = capacity * RESIDENT_TENTHS / 10;
        let every_key: Vec<u32> = (0..nr_keys as u32).collect();
        for contender in &contenders {
            contender.cache.run(&every_key);
        }
        sets_off(&contenders)?;
        for nr_threads in threads.clone() {
            eprintln!("object-cache-rivals: all hits, {nr_threads} of {THREADS_MAX} threads");
            rows.push(alternate(&mut contenders, rounds, nr_threads, true, |round, thread| {
                uniform(nr_keys, lookups, (round * THREADS_MAX + thread) as u64 + 1)
            })?);
        }
    }
    let nr_keys = capacity * ZIPF_KEYS;
    let zipf = Zipf::new(nr_keys, EXPONENT);
    for nr_threads in threads.filter(|_| what != Some("hits")) {
        eprintln!("object-cache-rivals: Zipf, {nr_threads} of {THREADS_MAX} threads");
        // From the start each time, so that both have the same past.
        let mut contenders = contenders(capacity, only);
        let warm_up = zipf.keys(nr_keys * WARM_UP, 1000);
        for contender in &contenders {
            contender.cache.run(&warm_up);
        }
        rows.push(alternate(&mut contenders, rounds, nr_threads, false, |round, thread| {
            zipf.keys(lookups, (2000 + round * THREADS_MAX + thread) as u64)
        })?);
        sets_off(&contenders)?;
    }
    let notes = vec![
        format!(
            "Every cache has room for {capacity} values of 4 KiB in an Arc (ours: as many charged bytes as that many objects \
             cost), hashes with foldhash, and is otherwise as its builder makes it; foyer with S3-FIFO."
        ),
        format!(
            "All hits: {} keys. Zipf: {nr_keys} keys, {} look-ups before the first that counts. A miss makes and fills a \
             new value.",
            capacity * RESIDENT_TENTHS / 10,
            nr_keys * WARM_UP
        ),
    ];
    Ok(Output { sides: names, rows, notes })
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let (mut scale, mut rounds, mut only, mut what) = (1.0, 9, None, None);
    let mut threads = 1..=THREADS_MAX;
    while let Some(argument) = arguments.next() {
        if argument == "--cpu" {
            BY_PROCESSOR.store(true, Relaxed);
            continue;
        }
        let value = arguments.next();
        match (argument.as_str(), value) {
            ("--scale", Some(value)) => scale = value.parse().unwrap_or(1.0),
            ("--rounds", Some(value)) => rounds = value.parse().unwrap_or(9),
            ("--only", Some(value)) => only = Some(value),
            ("--rows", Some(value)) if value == "hits" || value == "zipf" => what = Some(value),
            ("--threads", Some(value)) => {
                let nr = value.parse().unwrap_or(1).clamp(1, THREADS_MAX);
                threads = nr..=nr;
            }
            _ => {
                eprintln!(
                    "usage: object-cache-rivals [--scale S] [--rounds N] [--only NAME+NAME] [--rows hits|zipf] [--threads N] [--cpu]"
                );
                std::process::exit(2);
            }
        }
    }
    match run(scale, rounds, only.as_deref(), what.as_deref(), threads) {
        Ok(output) => println!("{}", serde_json::to_string(&output).expect("numbers and names")),
        Err(error) => {
            eprintln!("object-cache-rivals: {error}");
            std::process::exit(1);
        }
    }
}
