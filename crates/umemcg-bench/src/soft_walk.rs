//! `soft-walk` (mail soft-limit-rework): `soft-stream` with 0, 1,000 and 8,000 idle groups beside
//! it, with subtrees skipped and without; and the cost of 100,000 groups for a reclaim when no
//! group has a soft limit.
//!
//! Idle groups have no reclaimable memory and no soft limit. The reader is measured, because no
//! disk disturbs it.

use umemcg_reclaim::baseline::SoftLimits;

use crate::options::{Failure, Options};
use crate::progress::Progress;
use crate::report::{MailFigure, Report, Section, Target, Verdict};
use crate::soft_pool::{Access, Pool, StreamResult};
use crate::stats::Samples;

const NR_IDLE: [u64; 3] = [0, 1000, 8000];
const NR_IDLE_WITHOUT_LIMIT: [u64; 2] = [0, 100_000];
/// The largest ratio of the cost with idle groups to that without.
const RATIO_MAX: f64 = 1.02;
/// A bound within two percent is judged by at least this many pairs: single pairs differ by five
/// percent, and the bound of the median of this many lies about one percent above it.
const PAIRS_MIN: usize = 61;
/// Many short streams say more than few long ones: the pool, as a part of that of `soft-stream`.
const POOL_SHARE: f64 = 0.25;
/// Rounds with a measurement of the baseline as well; it is nowhere near a bound.
const BASELINE_ROUNDS: usize = 3;

/// One number of a stream.
type Figure = fn(&StreamResult) -> f64;

/// Runs the experiment.
pub fn run(options: &Options) -> Result<Report, Failure> {
    let progress = Progress::new();
    let rounds = options.rounds_for_bound(PAIRS_MIN);
    let mut report = Report::new("soft-walk", options.scale, rounds);
    let scaled = |nr: u64| (nr as f64 * options.scale.min(1.0)) as u64;
    let (nr_idle, nr_idle_without_limit) = (NR_IDLE.map(scaled), NR_IDLE_WITHOUT_LIMIT.map(scaled));
    let ours = measure(options, &progress, &nr_idle, rounds, SoftLimits::TwoRounds, true)?;
    let baseline =
        measure(options, &progress, &nr_idle, rounds.min(BASELINE_ROUNDS), SoftLimits::NoSkipping, true)?;
    add(&mut report, "soft limit 0", &nr_idle, &ours, true);
    add(&mut report, "patches 1 to 3 (no subtree is skipped)", &nr_idle, &baseline, false);
    let none = measure(options, &progress, &nr_idle_without_limit, rounds, SoftLimits::TwoRounds, false)?;
    add(&mut report, "no group in excess", &nr_idle_without_limit, &none, true);
    let seconds = |found: &[Vec<StreamResult>], at: usize| {
        Samples::new("", found[at].iter().map(|found| found.reclaim.as_secs_f64()).collect()).median
    };
    for (what, mail, at) in [
        ("8,000 idle groups: system s, 1–3 / all", "241.8 / 54.4", 2),
        ("none: system s (base), 1–3 / all", "41", 0),
    ] {
        report.mail.push(MailFigure {
            what: what.into(),
            mail: mail.into(),
            ours: format!("{:.3} / {:.3}", seconds(&baseline, at), seconds(&ours, at)),
        });
    }
    report.notes.push(
        "each round has one sample of every number of groups, in turns; processor time of reclaim is that of the streaming thread inside \
         reclaim; no pair is left out; verdicts are the upper 95 % bounds of the median of the rounds' \
         ratios to no idle groups; idle groups' own state is not taken from the room that A and B share"
            .into(),
    );
    Ok(report)
}

/// Returns the rounds by number of idle groups.
fn measure(
    options: &Options,
    progress: &Progress,
    numbers: &[u64],
    rounds: usize,
    how: SoftLimits,
    limited: bool,
) -> Result<Vec<Vec<StreamResult>>, Failure> {
    let options = &Options { scale: options.scale * POOL_SHARE, ..options.clone() };
    let pools =
        numbers.iter().map(|&nr_idle| Pool::new(options, nr_idle, false)).collect::<Result<Vec<_>, _>>()?;
    let mut found = vec![Vec::new(); numbers.len()];
    for round in 0..=rounds {
        for at in 0..numbers.len() {
            let side = (round + at) % numbers.len();
            progress.show(&format!("{how:?}, round {round} of {rounds}: {} idle groups", numbers[side]));
            let one = pools[side].run(how, Access::Read, limited)?;
            if round > 0 {
                found[side].push(one);
            }
        }
    }
    Ok(found)
}

fn add(report: &mut Report, what: &str, numbers: &[u64], found: &[Vec<StreamResult>], judged: bool) {
    let figures: [(&str, Figure); 2] = [
        ("processor time of reclaim", |found| found.reclaim.as_secs_f64() * 1e3),
        ("elapsed", |found| found.elapsed.as_secs_f64() * 1e3),
    ];
    for (figure, read) in figures {
        // The most groups first: the verdict is about that side.
        let sides: Vec<Samples> = numbers
            .iter()
            .zip(found)
            .rev()
            .map(|(nr, all)| Samples::new(format!("{nr} idle groups"), all.iter().map(read).collect()))
            .collect();
        let mut verdicts = Vec::new();
        if judged && let [most, .., none] = &sides[..] {
            let bound = most.ratio_bound_above(none).unwrap_or(f64::INFINITY);
            verdicts.push(Verdict::new("of none, at most", bound, Target::TimesAtMost(RATIO_MAX)));
        }
        report.sections.push(Section { title: format!("{what}: {figure}"), unit: "ms", sides, verdicts });
    }
}
