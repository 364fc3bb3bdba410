//! `eviction`: which pages stay, by hit ratio, when the kernel keeps them and does not tell of
//! hits, against the daemon's own pages, least recently used, and S3-FIFO.
//!
//! Five made-up traces are replayed, each with its pages scattered over a file and with each page
//! in a window of its own, and what programs were seen to read. All sides have room for as many
//! pages of data: a group's limit follows its bookkeeping. The kernel is played: it keeps what it
//! has read until it is asked to drop it. S3-FIFO and LRU are libCacheSim's where it is installed,
//! and otherwise ours, which are held against it here.
//!
//! Hits do not come to the daemon, so the policy costs only the misses: their processor time is
//! printed.

mod oracle;
mod recorded;
mod replay;
mod traces;

use std::path::PathBuf;

use crate::options::{Failure, Options};
use crate::progress::Progress;
use crate::report::{Report, Section, Target, Verdict};
use crate::stats::Samples;

use oracle::Oracle;
use traces::{Placement, Trace};

/// Points of hit ratio by which the kernel's pages may be behind the best of the others.
const POINTS_BEHIND_MAX: f64 = 3.0;

/// What is compared, and with what.
#[derive(Debug, Clone, clap::Args)]
pub struct Yardstick {
    /// A Python interpreter that has the package libcachesim (../oracle/bin/python from this
    /// program if that is there)
    #[arg(long, value_name = "FILE")]
    pub oracle: Option<PathBuf>,
    /// Replay only traces whose names contain this
    #[arg(long, value_name = "TEXT")]
    pub only: Option<String>,
}

/// Runs the experiment.
pub fn run(options: &Options, yardstick: &Yardstick) -> Result<Report, Failure> {
    let progress = Progress::new();
    let mut report = Report::new("eviction", options.scale, 1);
    let oracle = Oracle::find(yardstick.oracle.clone());
    report.notes.push(oracle.describe().into());
    let place = tempfile::tempdir_in(options.directory()).map_err(Failure::at("cannot make a directory"))?;
    let mut traces = Vec::new();
    for placement in [Placement::Scattered, Placement::Windows] {
        traces.extend(traces::synthetic(options.scale, placement));
    }
    progress.show("recording programs");
    traces.extend(recorded::record(place.path(), &mut report.notes)?);
    let only = yardstick.only.as_deref().unwrap_or_default();
    for trace in traces.into_iter().filter(|trace| trace.name.contains(only)) {
        progress.show(&trace.name);
        let section = compare(&trace, &oracle, place.path(), &mut report.notes)?;
        report.sections.push(section);
    }
    Ok(report)
}

fn compare(
    trace: &Trace,
    oracle: &Oracle,
    place: &std::path::Path,
    notes: &mut Vec<String>,
) -> Result<Section, Failure> {
    let kernel = replay::kernel(trace, place)?;
    let own = replay::own(trace)?;
    let (lru, s3_fifo) = oracle.hit_ratios(trace, place)?;
    let best = own.hit_percent.max(lru).max(s3_fifo);
    notes.push(format!(
        "{}: {} requests for {} pages, room for {}; pages kept, mean: {:.0} by the kernel, {:.0} of our own; a miss takes {:.1} and {:.1} µs \
         of processor time",
        trace.name,
        trace.requests.len(),
        trace.places.len(),
        trace.room,
        kernel.mean_kept,
        own.mean_kept,
        kernel.miss_us,
        own.miss_us,
    ));
    let side = |name: &str, value: f64| Samples::new(name, vec![value]);
    Ok(Section {
        title: trace.name.clone(),
        unit: "%",
        sides: vec![
            side("pages that the kernel keeps", kernel.hit_percent),
            side("own pages", own.hit_percent),
            side("LRU", lru),
            side("S3-FIFO", s3_fifo),
        ],
        verdicts: vec![Verdict::new(
            "points behind the best of the others",
            best - kernel.hit_percent,
            Target::PercentAtMost(POINTS_BEHIND_MAX),
        )],
    })
}
