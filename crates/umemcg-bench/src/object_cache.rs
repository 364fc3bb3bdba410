//! `object-cache`: `ObjectCache` against other cache crates.
//!
//! All sides are in one program of its own, `object-cache-rivals`, so that they take turns in one
//! process and ordinary builds never compile the crates. It measures; here its figures are judged.

use std::path::PathBuf;

use serde::Deserialize;

use crate::options::{Failure, Options};
use crate::report::{Report, Section, Target, Verdict};
use crate::rivals;
use crate::stats::Samples;

/// The prefix of the names of our sides.
const OURS: &str = "umemcg";
/// Throughput reaches this part of the fastest crate's.
const OF_FASTEST_MIN: f64 = 1.0;
/// The allowed distance of the hit ratio from the best crate's.
const HIT_RATIO_SLACK: f64 = 0.005;

/// The path of the program.
#[derive(Debug, Clone, clap::Args)]
pub struct Program {
    /// The program object-cache-rivals, built by bench-rivals/build.sh
    /// (../rivals/object-cache-rivals from this program if not given)
    #[arg(long, value_name = "FILE")]
    pub rivals: Option<PathBuf>,
    /// Measure processor time in place of real time, on a machine that is busy with something else
    #[arg(long)]
    pub cpu: bool,
}

/// The output of the program.
#[derive(Debug, Deserialize)]
struct Output {
    sides: Vec<String>,
    rows: Vec<Row>,
    notes: Vec<String>,
}

#[derive(Debug, Deserialize)]
struct Row {
    title: String,
    /// By side, where not everything hits.
    hit_ratios: Option<Vec<f64>>,
    /// By side: nanoseconds for a look-up.
    samples: Vec<Vec<f64>>,
}

/// Runs the benchmark.
pub fn run(options: &Options, program: &Program) -> Result<Report, Failure> {
    let cpu: &[&str] = if program.cpu { &["--cpu"] } else { &[] };
    let output: Output = rivals::figures(program.rivals.as_ref(), "object-cache-rivals", options, cpu)?;
    let mut report = Report::new("object-cache", options.scale, options.rounds as usize);
    for row in &output.rows {
        report.sections.push(judge(&output.sides, row)?);
    }
    report.notes = output.notes;
    if program.cpu {
        report.notes.push("Times are processor time of the threads.".into());
    }
    Ok(report)
}

/// Returns a row as a section: each side of ours against the fastest crate and the best hit ratio.
fn judge(names: &[String], row: &Row) -> Result<Section, Failure> {
    let well_formed = row.samples.len() == names.len()
        && row.samples.iter().all(|samples| !samples.is_empty())
        && row.hit_ratios.as_ref().is_none_or(|ratios| ratios.len() == names.len());
    if !well_formed {
        return Err(Failure::Wrong(format!("{}: figures of some sides are missing", row.title)));
    }
    let ratio_of = |at: usize| row.hit_ratios.as_ref().map(|ratios| ratios[at]);
    let named = |at: usize| match ratio_of(at) {
        Some(ratio) => format!("{}, {:.2} % hits", names[at], ratio * 100.0),
        None => names[at].clone(),
    };
    let sides: Vec<Samples> =
        (0..names.len()).map(|at| Samples::new(named(at), row.samples[at].clone())).collect();
    let is_ours = |at: &usize| names[*at].starts_with(OURS);
    let rivals: Vec<usize> = (0..names.len()).filter(|at| !is_ours(at)).collect();
    let fastest = rivals.iter().copied().min_by(|&a, &b| sides[a].median.total_cmp(&sides[b].median));
    let best = rivals.iter().filter_map(|&at| ratio_of(at)).max_by(f64::total_cmp);
    let mut verdicts = Vec::new();
    for at in (0..names.len()).filter(is_ours) {
        if let Some(fastest) = fastest {
            let what = format!("{}, throughput of {}", names[at], names[fastest]);
            let times = sides[fastest].ratio_to(&sides[at]);
            verdicts.push(Verdict::new(what, times, Target::TimesAtLeast(OF_FASTEST_MIN)));
        }
        if let (Some(ours), Some(best)) = (ratio_of(at), best) {
            let what = format!("{}, hits of the best less 0.5 points", names[at]);
            let times = ours / (best - HIT_RATIO_SLACK);
            verdicts.push(Verdict::new(what, times, Target::TimesAtLeast(1.0)));
        }
    }
    Ok(Section { title: row.title.clone(), unit: "ns a look-up", sides, verdicts })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names() -> Vec<String> {
        ["umemcg, 1 group", "quick", "slow"].map(str::to_owned).into()
    }

    #[test]
    fn ours_is_held_against_the_fastest_and_the_best() {
        let row = Row {
            title: "Zipf".into(),
            hit_ratios: Some(vec![0.80, 0.79, 0.81]),
            samples: vec![vec![10.0, 11.0], vec![9.0, 9.0], vec![20.0, 20.0]],
        };
        let section = judge(&names(), &row).unwrap();
        let [throughput, hits] = section.verdicts.as_slice() else { panic!("{:?}", section.verdicts) };
        assert!(throughput.what.ends_with("throughput of quick") && !throughput.reached);
        assert!((0.8..0.9).contains(&throughput.value));
        // 0.80 of 0.805.
        assert!(!hits.reached && (0.99..1.0).contains(&hits.value));
    }

    #[test]
    fn missing_figures_are_a_wrong_result() {
        let row =
            Row { title: "all hits".into(), hit_ratios: None, samples: vec![vec![1.0], vec![], vec![1.0]] };
        assert!(matches!(judge(&names(), &row), Err(Failure::Wrong(_))));
    }
}
