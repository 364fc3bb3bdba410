//! Processor time of this process and of its threads, told by their names.

use std::fs;
use std::path::Path;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Returns the processor time that this process has used, with all its threads.
pub fn process_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Nanoseconds that the threads whose names start so have run, altogether; those that live.
pub fn nanoseconds_of(names: &str) -> u64 {
    of_threads(names).map(|task| ran(&task)).sum()
}

/// Threads whose names start so; all of them for an empty start.
pub fn nr(names: &str) -> usize {
    of_threads(names).count()
}

fn of_threads(names: &str) -> impl Iterator<Item = std::path::PathBuf> {
    let tasks = fs::read_dir("/proc/self/task").into_iter().flatten().flatten().map(|entry| entry.path());
    tasks.filter(move |task| fs::read_to_string(task.join("comm")).is_ok_and(|name| name.starts_with(names)))
}

/// Returns the first number of `schedstat`, the time on a processor in nanoseconds.
fn ran(task: &Path) -> u64 {
    let text = fs::read_to_string(task.join("schedstat")).unwrap_or_default();
    text.split(' ').next().and_then(|word| word.parse().ok()).unwrap_or(0)
}

/// The latencies of calls.
#[derive(Debug, Default)]
pub struct Latencies(Vec<u64>);

impl Latencies {
    /// Creates an empty set.
    pub const fn new() -> Self {
        Self(Vec::new())
    }

    /// Takes note of one, in nanoseconds.
    pub fn note(&mut self, time: Duration) {
        self.0.push(time.as_nanos() as u64);
    }

    /// Microseconds below which these parts of all calls stayed; 1 gives the longest.
    pub fn quantiles<const N: usize>(mut self, parts: [f64; N]) -> [f64; N] {
        self.0.sort_unstable();
        let last = self.0.len().saturating_sub(1);
        parts.map(|part| {
            let at = ((self.0.len() as f64 * part) as usize).min(last);
            self.0.get(at).map_or(0.0, |ns| *ns as f64 / 1e3)
        })
    }

    /// Returns all of them together, in microseconds.
    pub fn sum(&self) -> f64 {
        self.0.iter().sum::<u64>() as f64 / 1e3
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_those_of_the_sorted_times() {
        let mut latencies = Latencies::default();
        (1..=1000).rev().for_each(|us| latencies.note(Duration::from_micros(us)));
        assert_eq!(latencies.sum(), 500_500.0);
        assert_eq!(latencies.quantiles([0.0, 0.5, 0.999, 1.0]), [1.0, 501.0, 1000.0, 1000.0]);
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
