//! `eviction`: hit ratios with pages in the kernel's cache, where hits are invisible to the daemon,
//! against the daemon's own pages, least recently used, and S3-FIFO.
//!
//! Five made-up traces are replayed, each with its pages scattered over a file and with each page
//! in a window of its own, and recorded reads of programs. All sides have room for as many pages of
//! data: a group's limit follows its bookkeeping. The kernel is simulated: it keeps pages until it
//! gets a request to drop them. S3-FIFO and LRU are libCacheSim's where it is installed, and
//! otherwise ours; ours are compared with it here.
//!
//! Recorded opens are replayed as well, and the reads once more without them, since opens do not
//! reach the daemon on an exclusive mount. With opens, a file larger than the room is served with
//! own pages; that side is printed and not judged.
//!
//! Hits do not reach the daemon, so the policy costs time only at misses: their processor time is
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
use replay::Opens;
use traces::{Placement, Trace};

/// The allowed distance of the kernel's pages from the best of the others, in points of hit ratio.
const POINTS_BEHIND_MAX: f64 = 3.0;

/// The traces, and the reference for LRU and S3-FIFO.
#[derive(Debug, Clone, clap::Args)]
pub struct Yardstick {
    /// A Python interpreter with the package libcachesim (by default ../oracle/bin/python from this
    /// program, if it exists)
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
    traces.extend(recorded::record(place.path(), options.scale.min(1.0), &mut report.notes)?);
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
    let mut kernels = Vec::new();
    if !trace.opens.is_empty() {
        kernels.push(("pages that the kernel keeps", replay::kernel(trace, place, Opens::Told)?));
    }
    let name = if trace.opens.is_empty() { "pages that the kernel keeps" } else { "the same, silent opens" };
    kernels.push((name, replay::kernel(trace, place, Opens::Silent)?));
    let own = replay::own(trace)?;
    let (lru, s3_fifo) = oracle.hit_ratios(trace, place)?;
    let best = own.hit_percent.max(lru).max(s3_fifo);
    notes.push(format!(
        "{}: {} requests for {} pages, {} opens, room for {}",
        trace.name,
        trace.requests.len(),
        trace.places.len(),
        trace.opens.len(),
        trace.room,
    ));
    let others = [("own pages", own.hit_percent), ("LRU", lru), ("S3-FIFO", s3_fifo)];
    for (name, outcome) in kernels.iter().chain([&("own pages", own)]) {
        notes.push(format!(
            "{}, {name}: {:.0} pages kept in the mean, a miss takes {:.1} µs of processor time",
            trace.name, outcome.mean_kept, outcome.miss_us
        ));
    }
    let of_kernel = kernels.iter().map(|(name, outcome)| (*name, outcome.hit_percent));
    let side = |(name, value): (&str, f64)| Samples::new(name, vec![value]);
    let judged = kernels.iter().filter(|(_, outcome)| outcome.is_kept_by_kernel);
    let verdict = |(name, outcome): &(&str, replay::Outcome)| {
        let what = format!("{name}: points behind the best of the others");
        Verdict::new(&what, best - outcome.hit_percent, Target::PercentAtMost(POINTS_BEHIND_MAX))
    };
    Ok(Section {
        title: trace.name.clone(),
        unit: "%",
        sides: of_kernel.chain(others).map(side).collect(),
        verdicts: judged.map(verdict).collect(),
    })
}
