//! `account`: the cost of giving memory to a query, taking it back, and refusing it, beside the
//! memory pools of DataFusion.
//!
//! All sides are in one program of its own, `account-rivals`. It measures; here its figures are
//! judged.

use std::path::PathBuf;

use serde::Deserialize;

use crate::options::{Failure, Options};
use crate::report::{Report, Section, Target, Verdict};
use crate::rivals;
use crate::stats::Samples;

/// The prefix of the names of our sides.
const OURS: &str = "umemcg";
/// The most that a growth and a shrink may cost, as a multiple of their cost in the greedy pool.
const OF_GREEDY_MAX: f64 = 1.2;
/// And no more than in the fair pool.
const OF_FAIR_MAX: f64 = 1.0;
/// Nanoseconds of a refusal.
const REFUSAL_NS_MAX: f64 = 1000.0;

/// The path of the program.
#[derive(Debug, Clone, clap::Args)]
pub struct Program {
    /// The program account-rivals, built by bench-rivals/build.sh (../rivals/account-rivals from
    /// this program if not given)
    #[arg(long, value_name = "FILE")]
    pub rivals: Option<PathBuf>,
}

/// The output of the program.
#[derive(Debug, Deserialize)]
struct Output {
    rows: Vec<Row>,
    notes: Vec<String>,
}

#[derive(Debug, Deserialize)]
struct Row {
    title: String,
    is_refusal: bool,
    sides: Vec<String>,
    /// By side: nanoseconds.
    samples: Vec<Vec<f64>>,
}

/// Runs the benchmark.
pub fn run(options: &Options, program: &Program) -> Result<Report, Failure> {
    let output: Output = rivals::figures(program.rivals.as_ref(), "account-rivals", options, &[])?;
    let mut report = Report::new("account", options.scale, options.rounds as usize);
    report.sections = output.rows.into_iter().map(judge).collect::<Result<_, _>>()?;
    report.notes = output.notes;
    Ok(report)
}

/// Returns a row as a section with its targets.
fn judge(row: Row) -> Result<Section, Failure> {
    if row.samples.len() != row.sides.len() || row.samples.iter().any(Vec::is_empty) {
        return Err(Failure::Wrong(format!("{}: figures of some sides are missing", row.title)));
    }
    let named = row.sides.iter().zip(row.samples);
    let sides: Vec<Samples> = named.map(|(name, samples)| Samples::new(name.clone(), samples)).collect();
    let is_ours = |at: &usize| row.sides[*at].starts_with(OURS);
    let mut verdicts = Vec::new();
    for at in (0..sides.len()).filter(is_ours) {
        let name = &row.sides[at];
        if row.is_refusal {
            verdicts.push(Verdict::new(name, sides[at].median, Target::NsAtMost(REFUSAL_NS_MAX)));
            continue;
        }
        // Built without the pools, the program only checks our side.
        if (0..sides.len()).all(|at| is_ours(&at)) {
            continue;
        }
        for (rival, bound) in [("greedy", OF_GREEDY_MAX), ("fair", OF_FAIR_MAX)] {
            let Some(other) = row.sides.iter().position(|side| side == rival) else {
                return Err(Failure::Wrong(format!("{}: there is no side {rival}", row.title)));
            };
            let ratio = sides[at].ratio_to(&sides[other]);
            verdicts.push(Verdict::new(format!("{name}, of {rival}"), ratio, Target::TimesAtMost(bound)));
        }
    }
    Ok(Section { title: row.title, unit: "ns", sides, verdicts })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(is_refusal: bool, samples: &[f64]) -> Row {
        let sides = ["umemcg", "greedy", "fair"].map(str::to_owned).into();
        let samples = samples.iter().map(|&sample| vec![sample; 3]).collect();
        Row { title: "a row".into(), is_refusal, sides, samples }
    }

    #[test]
    fn ours_is_held_against_both_pools() {
        let section = judge(row(false, &[11.0, 10.0, 9.0])).unwrap();
        let [greedy, fair] = section.verdicts.as_slice() else { panic!("{:?}", section.verdicts) };
        assert!(greedy.reached && (1.09..1.11).contains(&greedy.value));
        assert!(!fair.reached && fair.what.ends_with("of fair"));
    }

    #[test]
    fn a_refusal_has_a_bound_in_nanoseconds() {
        let section = judge(row(true, &[1001.0, 2000.0, 2000.0])).unwrap();
        let [refusal] = section.verdicts.as_slice() else { panic!("{:?}", section.verdicts) };
        assert!(!refusal.reached);
    }

    #[test]
    fn missing_figures_are_a_wrong_result() {
        assert!(matches!(judge(row(false, &[1.0, 2.0])), Err(Failure::Wrong(_))));
    }
}
