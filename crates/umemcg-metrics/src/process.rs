//! The figures of this process, under the standard `process_*` names of Prometheus exporters.

use std::fmt;
use std::fs;

use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Unit;
use rustix::process::{Resource, getrlimit};

/// Positions of fields of `/proc/self/stat`, counted after the program name (`proc(5)`).
const USER_TICKS: usize = 11;
const SYSTEM_TICKS: usize = 12;
const NR_THREADS: usize = 17;
const START_TICKS: usize = 19;
const RESIDENT_PAGES: usize = 21;

/// Figures of a process. A figure that cannot be read is `None`.
#[derive(Debug, Default, PartialEq)]
struct ProcessFigures {
    cpu_seconds: Option<f64>,
    start_seconds: Option<f64>,
    threads: Option<u64>,
    resident_bytes: Option<u64>,
    open_descriptors: Option<u64>,
    max_descriptors: Option<f64>,
}

impl ProcessFigures {
    fn parse(stat: &str, ticks_per_second: f64, page_size: u64, boot_seconds: Option<f64>) -> Self {
        // The name may contain any byte, also parentheses.
        let after_name = stat.rsplit_once(") ").map_or("", |(_, rest)| rest);
        let fields: Vec<&str> = after_name.split_ascii_whitespace().collect();
        let number = |at: usize| fields.get(at)?.parse::<u64>().ok();
        let seconds = |ticks: u64| ticks as f64 / ticks_per_second;
        Self {
            cpu_seconds: number(USER_TICKS)
                .zip(number(SYSTEM_TICKS))
                .map(|(one, other)| seconds(one + other)),
            start_seconds: number(START_TICKS).zip(boot_seconds).map(|(ticks, boot)| boot + seconds(ticks)),
            threads: number(NR_THREADS),
            resident_bytes: number(RESIDENT_PAGES).map(|pages| pages * page_size),
            ..Self::default()
        }
    }

    fn read() -> Self {
        let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
        let boot = fs::read_to_string("/proc/stat").unwrap_or_default();
        let boot = boot.lines().find_map(|line| line.strip_prefix("btime ")?.parse().ok());
        let ticks_per_second = rustix::param::clock_ticks_per_second() as f64;
        Self {
            open_descriptors: fs::read_dir("/proc/self/fd").ok().map(|entries| entries.count() as u64),
            max_descriptors: Some(getrlimit(Resource::Nofile).current.map_or(f64::INFINITY, |nr| nr as f64)),
            ..Self::parse(&stat, ticks_per_second, rustix::param::page_size() as u64, boot)
        }
    }
}

/// Encodes the figures of this process.
pub(crate) fn encode(encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let figures = ProcessFigures::read();
    if let Some(seconds) = figures.cpu_seconds {
        let (help, unit) = ("Processor time used", Unit::Seconds);
        let mut metric = encoder.encode_descriptor("process_cpu", help, Some(&unit), MetricType::Counter)?;
        metric.encode_counter::<[(&str, &str); 0], f64, f64>(&seconds, None)?;
    }
    let bytes = |nr: Option<u64>| nr.map(|nr| nr as f64);
    for (name, help, unit, figure) in [
        ("process_start_time", "When it was started, since 1970", Some(Unit::Seconds), figures.start_seconds),
        ("process_resident_memory", "Resident memory", Some(Unit::Bytes), bytes(figures.resident_bytes)),
        ("process_threads", "Threads", None, bytes(figures.threads)),
        ("process_open_fds", "Open file descriptors", None, bytes(figures.open_descriptors)),
        ("process_max_fds", "The most file descriptors that it may open", None, figures.max_descriptors),
    ] {
        if let Some(figure) = figure {
            encoder.encode_descriptor(name, help, unit.as_ref(), MetricType::Gauge)?.encode_gauge(&figure)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_parentheses_moves_no_field() {
        let stat = "7 (a) b (c) S 1 2 3 4 5 6 7 8 9 10 150 50 13 14 20 0 33 0 1200 99 256 0";
        let figures = ProcessFigures::parse(stat, 100.0, 4096, Some(1000.0));
        assert_eq!(
            figures,
            ProcessFigures {
                cpu_seconds: Some(2.0),
                start_seconds: Some(1012.0),
                threads: Some(33),
                resident_bytes: Some(1 << 20),
                ..Default::default()
            }
        );
        assert_eq!(ProcessFigures::parse("", 100.0, 4096, None), ProcessFigures::default());
    }

    #[test]
    fn this_process_has_all_figures() {
        let figures = ProcessFigures::read();
        assert!(figures.threads >= Some(1) && figures.open_descriptors >= Some(3), "{figures:?}");
        assert!(figures.resident_bytes > Some(1 << 20) && figures.cpu_seconds.is_some(), "{figures:?}");
        assert!(figures.start_seconds > Some(1.6e9) && figures.max_descriptors > Some(3.0), "{figures:?}");
    }
}
