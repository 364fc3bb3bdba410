//! Processor time of this process and of its threads, selected by name.

use std::fs;
use std::path::Path;
use std::time::Duration;

use hdrhistogram::Histogram;
use rustix::time::{ClockId, clock_gettime};

/// Returns the processor time of this process, with all its threads.
pub fn process_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Returns the processor time of another process, with ended threads: in hundredths of a second.
pub fn time_of_process(process: u32) -> Duration {
    ticks(&format!("/proc/{process}/stat"), 14..=15)
}

/// Returns the processor time of reaped children, in hundredths of a second.
pub fn time_of_children() -> Duration {
    ticks("/proc/self/stat", 16..=17)
}

/// Returns the sum of fields of such a file, counted from 1.
fn ticks(path: &str, fields: std::ops::RangeInclusive<usize>) -> Duration {
    let text = fs::read_to_string(path).unwrap_or_default();
    // The name may contain anything but ends with the last bracket; the state, field 3, is next.
    let values: Vec<&str> = text.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace().collect();
    let value = |field: usize| values.get(field - 3).and_then(|word| word.parse::<u64>().ok()).unwrap_or(0);
    let nr_ticks: u64 = fields.map(value).sum();
    Duration::from_secs_f64(nr_ticks as f64 / rustix::param::clock_ticks_per_second() as f64)
}

/// Returns the busy time of all processors of the machine, in hundredths of a second.
pub fn time_of_machine() -> Duration {
    let text = fs::read_to_string("/proc/stat").unwrap_or_default();
    let values = text.lines().next().unwrap_or_default().split_whitespace().skip(1);
    let values: Vec<u64> = values.filter_map(|word| word.parse().ok()).collect();
    // User, nice, system; then idle, waiting for a device; interrupts, deferred ones. The rest
    // belongs to other machines or is counted already.
    let busy = |at: &usize| values.get(*at).copied().unwrap_or(0);
    let nr_ticks: u64 = [0, 1, 2, 5, 6].iter().map(busy).sum();
    Duration::from_secs_f64(nr_ticks as f64 / rustix::param::clock_ticks_per_second() as f64)
}

/// Total running time in nanoseconds of the live threads with names that start so.
pub fn nanoseconds_of(names: &str) -> u64 {
    of_threads("self", names).map(|task| ran(&task)).sum()
}

/// The same of another process.
pub fn nanoseconds_in(process: u32, names: &str) -> u64 {
    of_threads(&process.to_string(), names).map(|task| ran(&task)).sum()
}

/// Number of threads with names that start so; all threads for an empty start.
pub fn nr(names: &str) -> usize {
    of_threads("self", names).count()
}

fn of_threads<'a>(process: &str, names: &'a str) -> impl Iterator<Item = std::path::PathBuf> + use<'a> {
    let tasks = fs::read_dir(format!("/proc/{process}/task"));
    let tasks = tasks.into_iter().flatten().flatten().map(|entry| entry.path());
    tasks.filter(move |task| fs::read_to_string(task.join("comm")).is_ok_and(|name| name.starts_with(names)))
}

/// Returns the first number of `schedstat`, the time on a processor in nanoseconds.
fn ran(task: &Path) -> u64 {
    let text = fs::read_to_string(task.join("schedstat")).unwrap_or_default();
    text.split(' ').next().and_then(|word| word.parse().ok()).unwrap_or(0)
}

/// The latencies of calls, to three digits.
#[derive(Debug, Default)]
pub struct Latencies {
    /// In nanoseconds. `None` before the first.
    counts: Option<Histogram<u64>>,
    sum_ns: u64,
}

impl Latencies {
    /// Creates an empty set.
    pub const fn new() -> Self {
        Self { counts: None, sum_ns: 0 }
    }

    /// Returns whether there are none.
    pub fn is_empty(&self) -> bool {
        self.counts.is_none()
    }

    /// Takes note of one.
    pub fn note(&mut self, time: Duration) {
        let ns = time.as_nanos() as u64;
        self.sum_ns += ns;
        let counts = self.counts.get_or_insert_with(|| Histogram::new(3).expect("three digits"));
        counts.record(ns).expect("it grows");
    }

    /// Quantiles of all calls in microseconds; 1 gives the longest.
    pub fn quantiles<const N: usize>(self, parts: [f64; N]) -> [f64; N] {
        let counts = self.counts.as_ref();
        parts.map(|part| counts.map_or(0.0, |counts| counts.value_at_quantile(part) as f64 / 1e3))
    }

    /// Returns all of them together, in microseconds.
    pub fn sum(&self) -> f64 {
        self.sum_ns as f64 / 1e3
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_exact_to_a_thousandth() {
        let mut latencies = Latencies::default();
        (1..=1000).rev().for_each(|us| latencies.note(Duration::from_micros(us)));
        assert_eq!(latencies.sum(), 500_500.0);
        let quantiles = latencies.quantiles([0.0, 0.5, 0.999, 1.0]);
        for (quantile, exact) in quantiles.into_iter().zip([1.0, 500.0, 999.0, 1000.0]) {
            assert!((quantile / exact - 1.0).abs() < 1e-3, "{quantile}, not {exact}");
        }
        assert_eq!(Latencies::default().quantiles([0.5]), [0.0]);
    }

    #[test]
    fn a_thread_that_works_is_found_by_its_name() {
        let (told, heard) = std::sync::mpsc::channel::<()>();
        // A thread gives itself its name, so it has one only from when it runs.
        let (runs, running) = std::sync::mpsc::channel();
        let thread = std::thread::Builder::new().name("counted-one".into()).spawn(move || {
            let _ = runs.send(());
            heard.recv()
        });
        let thread = thread.unwrap();
        running.recv().unwrap();
        assert_eq!(nr("counted-"), 1);
        assert!(process_time() > Duration::ZERO);
        drop(told);
        let _ = thread.join();
    }
}
