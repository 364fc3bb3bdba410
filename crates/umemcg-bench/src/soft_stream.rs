//! `soft-stream` (mail soft-limit-rework): A streams four times the pool with a soft limit of 0, B
//! holds the pool less an eighth. The mail's own patches made this case dearer: 130.77 s of system
//! time before, 300.43 s after. Four sides: soft limits as they are here; the largest excess first
//! at priority 0; patches 1 to 3; and patches 1 to 8 to the letter, to show the cause of the cost.

use umemcg_reclaim::baseline::SoftLimits;

use crate::options::{Failure, Options};
use crate::progress::Progress;
use crate::report::{MailFigure, Report, Section, Target, Verdict};
use crate::soft_pool::{Access, Pool, StreamResult};
use crate::stats::Samples;

const SIDES: [(SoftLimits, &str); 4] = [
    (SoftLimits::TwoRounds, "umemcg"),
    (SoftLimits::LargestFirst, "largest excess first, priority 0"),
    (SoftLimits::NoSkipping, "patches 1 to 3"),
    (SoftLimits::AsMailed, "patches 1 to 8 to the letter"),
];
const LARGEST_FIRST: usize = 1;
/// Processor time of reclaim, as a part of that of the largest excess first.
const CPU_RATIO_MAX: f64 = 1.0;
/// Seconds of the mail for base, rework and reworkoptim: system, elapsed.
const MAIL: [(&str, [&str; 3]); 2] =
    [("system s", ["130.77", "174.18", "300.43"]), ("elapsed s", ["407.62", "440.92", "399.26"])];

/// Runs the experiment.
pub fn run(options: &Options) -> Result<Report, Failure> {
    let progress = Progress::new();
    let rounds = options.rounds as usize;
    let mut report = Report::new("soft-stream", options.scale, rounds);
    for marks in [false, true] {
        let pool = Pool::new(options, 0, marks)?;
        for access in [Access::Write, Access::Read] {
            let what = match (access, marks) {
                (Access::Write, false) => "a writer",
                (Access::Write, true) => "a writer, background reclaim",
                (Access::Read, false) => "a reader",
                (Access::Read, true) => "a reader, background reclaim",
            };
            let mut found: [Vec<StreamResult>; SIDES.len()] = Default::default();
            for round in 0..=rounds {
                for at in 0..SIDES.len() {
                    let side = (round + at) % SIDES.len();
                    progress.show(&format!("{what}, round {round} of {rounds}: {}", SIDES[side].1));
                    let one = pool.run(SIDES[side].0, access, true)?;
                    if round > 0 {
                        found[side].push(one);
                    }
                }
            }
            sections(&mut report, what, &found);
            if !marks && access == Access::Write {
                beside_the_mail(&mut report, &found);
            }
        }
    }
    report.notes.push(
        "processor time of reclaim is that of the streaming thread in reclaim and of the workers of background reclaim; what B had to read \
         again is counted after the stream, when A is gone"
            .into(),
    );
    report.compact = false;
    Ok(report)
}

fn sections(report: &mut Report, what: &str, found: &[Vec<StreamResult>; SIDES.len()]) {
    let sides = |read: &dyn Fn(&StreamResult) -> f64| -> Vec<Samples> {
        let column = |all: &Vec<StreamResult>, name: &str| Samples::new(name, all.iter().map(read).collect());
        found.iter().zip(SIDES).map(|(all, (_, name))| column(all, name)).collect()
    };
    let mut add = |figure: &str, unit: &'static str, sides: Vec<Samples>, verdicts: Vec<Verdict>| {
        report.sections.push(Section { title: format!("{what}: {figure}"), unit, sides, verdicts });
    };
    let reclaim = sides(&|found| found.reclaim.as_secs_f64() * 1e3);
    let ratio = reclaim[0].ratio_to(&reclaim[LARGEST_FIRST]);
    let verdict = Verdict::new("of the largest excess first", ratio, Target::TimesAtMost(CPU_RATIO_MAX));
    add("processor time of reclaim", "ms", reclaim, vec![verdict]);
    let refaults = sides(&|found| found.refaults as f64);
    let verdict = Verdict::new("most of a round", refaults[0].max, Target::PagesAtMost(0.0));
    add("pages that B had to read again", "pages", refaults, vec![verdict]);
    add("elapsed", "ms", sides(&|found| found.elapsed.as_secs_f64() * 1e3), Vec::new());
    add("processor time of all threads", "ms", sides(&|found| found.cpu.as_secs_f64() * 1e3), Vec::new());
    let looked_at = |found: &StreamResult| found.scanned as f64 / found.reclaimed.max(1) as f64;
    add("pages looked at for one that is freed", "pages", sides(&looked_at), Vec::new());
    for (all, (_, name)) in found.iter().zip(SIDES) {
        let Some(last) = all.last() else { continue };
        let rows = last.visits.iter().enumerate().rev().filter(|(_, at)| at.visits > 0);
        let said: Vec<String> = rows
            .map(|(priority, at)| {
                let (visits, scanned, dirty) = (at.visits, at.scanned, at.dirty);
                format!("{priority}: {visits} visits, {scanned} pages, {dirty} dirty, {} freed", at.reclaimed)
            })
            .collect();
        report.notes.push(format!("{what}, {name}, by priority: {}", said.join("; ")));
    }
}

fn beside_the_mail(report: &mut Report, found: &[Vec<StreamResult>; SIDES.len()]) {
    let reads: [&dyn Fn(&StreamResult) -> f64; 2] =
        [&|found| found.reclaim.as_secs_f64(), &|found| found.elapsed.as_secs_f64()];
    for ((name, mail), read) in MAIL.iter().zip(reads) {
        let median = |side: usize| Samples::new("", found[side].iter().map(read).collect()).median;
        let ours = [LARGEST_FIRST, 2, 0].map(|side| format!("{:.3}", median(side)));
        let name = if *name == "system s" { "system s (here: of reclaim)" } else { name };
        report.mail.push(MailFigure {
            what: format!("{name}: base / 1–3 / all"),
            mail: mail.join(" / "),
            ours: ours.join(" / "),
        });
    }
}
