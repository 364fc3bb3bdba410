//! The page of results: the `--json` output of all benchmarks and experiments, as one Markdown file
//! with a picture for each.
//!
//! It knows no benchmark by name: a report's sections become tables, its verdicts the bars of the
//! picture.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::chart::{Chart, charts};
use crate::options::Failure;
use crate::origin::Origin;
use crate::plot::{self, Bar};

/// The contents of the page and its path.
#[derive(Debug, Clone, clap::Args)]
pub struct Page {
    /// The page to write; pictures go to a directory beside it with its name
    #[arg(value_name = "PAGE.md")]
    page: PathBuf,
    /// The command that made the reports, to be said on the page
    #[arg(long, default_value = "make experiments")]
    command: String,
    /// Reports, in the order of the page
    #[arg(value_name = "REPORT.json", required = true)]
    reports: Vec<PathBuf>,
}

/// A report as it is printed; see [`crate::report::WithOrigin`].
#[derive(Debug, Deserialize)]
struct Report {
    benchmark: String,
    #[serde(flatten)]
    origin: Origin,
    scale: f64,
    rounds: usize,
    sections: Vec<Section>,
    #[serde(default)]
    mail: Vec<MailFigure>,
    notes: Vec<String>,
    #[serde(default)]
    charts: Vec<Chart>,
}

#[derive(Debug, Deserialize)]
struct Section {
    title: String,
    unit: String,
    sides: Vec<Samples>,
    verdicts: Vec<Verdict>,
}

#[derive(Debug, Deserialize)]
struct Samples {
    name: String,
    median: f64,
    min: f64,
    max: f64,
}

#[derive(Debug, Deserialize)]
struct MailFigure {
    what: String,
    mail: String,
    ours: String,
}

#[derive(Debug, Deserialize)]
struct Verdict {
    what: String,
    value: f64,
    /// The kind of bound, with the ending `_at_most` or `_at_least`, and the bound.
    target: BTreeMap<String, f64>,
    reached: bool,
    figure: String,
    bound: String,
}

impl Verdict {
    /// Returns the figure as a part of its bound: up to 1 it is reached.
    fn of_bound(&self) -> f64 {
        let Some((kind, &bound)) = self.target.first_key_value() else { return 0.0 };
        let (part, whole) =
            if kind.ends_with("_at_least") { (bound, self.value) } else { (self.value, bound) };
        if part == 0.0 { 0.0 } else { part / whole }
    }
}

impl Page {
    /// Writes the page and its pictures.
    pub fn write(&self) -> Result<(), Failure> {
        let mut reports = Vec::new();
        for path in &self.reports {
            let text =
                fs::read_to_string(path).map_err(Failure::at(&format!("cannot read {}", path.display())))?;
            reports.push(read(&text).map_err(Failure::at(&path.display().to_string()))?);
        }
        let stem = self.page.file_stem().unwrap_or_default();
        let pictures = self.page.with_file_name(stem);
        fs::create_dir_all(&pictures).map_err(Failure::at(&format!("cannot make {}", pictures.display())))?;
        for report in reports.iter().filter(|report| report.nr_verdicts() > 0) {
            let path = pictures.join(format!("{}.svg", report.benchmark));
            fs::write(&path, report.picture())
                .map_err(Failure::at(&format!("cannot write {}", path.display())))?;
        }
        for report in reports.iter().filter(|report| !report.charts.is_empty()) {
            let path = pictures.join(format!("{}-time.svg", report.benchmark));
            fs::write(&path, charts(&report.benchmark, &report.charts))
                .map_err(Failure::at(&format!("cannot write {}", path.display())))?;
        }
        let text = page(&reports, &self.command, Path::new(stem));
        fs::write(&self.page, text).map_err(Failure::at(&format!("cannot write {}", self.page.display())))
    }
}

/// Reads a report.
fn read(text: &str) -> Result<Report, String> {
    serde_json::from_str(text).map_err(|error| {
        format!("no report of this version, which names commit, day and machine; measure it again ({error})")
    })
}

/// Returns the text of the page; pictures are in the directory `pictures` beside it.
fn page(reports: &[Report], command: &str, pictures: &Path) -> String {
    let mut out = format!(
        "# Results\n\nWritten by `{command}`; do not edit. Times differ from machine to machine, and with what else a machine does; \
         the ratios, taken in turns in one run, are what counts.\n\n## Missed targets\n\n"
    );
    let missed = reports.iter().flat_map(Report::verdicts).filter(|(_, verdict)| !verdict.reached);
    out.push_str(match missed.count() {
        0 => "None.\n",
        _ => "| experiment | figure | measured | target |\n|---|---|---:|---:|\n",
    });
    // Writing to a string cannot fail.
    for report in reports {
        for (section, verdict) in report.verdicts().filter(|(_, verdict)| !verdict.reached) {
            let (name, what) = (&report.benchmark, cell(&label(section, verdict)));
            let _ = writeln!(out, "| [{name}](#{name}) | {what} | {} | {} |", verdict.figure, verdict.bound);
        }
    }
    out.push_str(
        "\n## All experiments\n\n| experiment | targets reached | commit | day |\n|---|---:|---|---|\n",
    );
    for report in reports {
        let nr_reached = report.verdicts().filter(|(_, verdict)| verdict.reached).count();
        let (name, nr, origin) = (&report.benchmark, report.nr_verdicts(), &report.origin);
        let (commit, day) = (origin.commit(), &origin.day);
        let _ = writeln!(out, "| [{name}](#{name}) | {nr_reached} of {nr} | {commit} | {day} |");
    }
    for report in reports {
        report.write(&mut out, pictures);
    }
    out
}

/// Returns the name of a judged figure.
fn label(section: &Section, verdict: &Verdict) -> String {
    match verdict.what.as_str() {
        "" => section.title.clone(),
        what => format!("{}: {what}", section.title),
    }
}

impl Report {
    fn verdicts(&self) -> impl Iterator<Item = (&Section, &Verdict)> {
        self.sections
            .iter()
            .flat_map(|section| section.verdicts.iter().map(move |verdict| (section, verdict)))
    }

    fn nr_verdicts(&self) -> usize {
        self.verdicts().count()
    }

    fn picture(&self) -> String {
        let bars: Vec<Bar> = self
            .verdicts()
            .map(|(section, verdict)| Bar {
                label: label(section, verdict),
                of_bound: verdict.of_bound(),
                text: format!("{} ({})", verdict.figure, verdict.bound),
                reached: verdict.reached,
            })
            .collect();
        plot::bars(&format!("{}: figures as parts of their bounds", self.benchmark), &bars)
    }

    fn write(&self, out: &mut String, pictures: &Path) {
        let Origin { day, machine, .. } = &self.origin;
        let (name, scale, rounds) = (&self.benchmark, self.scale, self.rounds);
        // Writing to a string cannot fail.
        let _ = write!(
            out,
            "\n## {name}\n\n`umemcg-bench {name} --scale {scale} --rounds {rounds}` at commit {} on {day}; {machine} at the start.\n",
            self.origin.commit()
        );
        if self.nr_verdicts() > 0 {
            let _ = write!(out, "\n![{name}]({}/{name}.svg)\n", pictures.display());
        }
        if !self.charts.is_empty() {
            let _ = write!(out, "\n![{name} over time]({}/{name}-time.svg)\n", pictures.display());
        }
        let sides =
            |section: &Section| section.sides.iter().map(|side| side.name.clone()).collect::<Vec<_>>();
        let alike = self.sections.iter().all(|section| sides(section) == sides(&self.sections[0]));
        if alike && self.sections.len() > 1 {
            self.write_lines(out);
        } else {
            self.sections.iter().for_each(|section| section.write(out));
        }
        if !self.mail.is_empty() {
            out.push_str("\n| | the mail | here |\n|---|---:|---:|\n");
        }
        for figure in &self.mail {
            let _ =
                writeln!(out, "| {} | {} | {} |", cell(&figure.what), cell(&figure.mail), cell(&figure.ours));
        }
        for note in &self.notes {
            let _ = write!(out, "\nNote: {note}.\n");
        }
    }

    /// Writes one table for sections with the same sides.
    fn write_lines(&self, out: &mut String) {
        let Some(first) = self.sections.first() else { return };
        let _ = write!(out, "\n| {} |", first.unit);
        for side in &first.sides {
            let _ = write!(out, " {} |", cell(&side.name));
        }
        out.push_str(" min – max | |\n|---|");
        out.push_str(&"---:|".repeat(first.sides.len() + 1));
        out.push_str("---|\n");
        for section in &self.sections {
            let _ = write!(out, "| {} |", cell(&section.title));
            for side in &section.sides {
                let _ = write!(out, " {} |", number(side.median));
            }
            let ours = &section.sides[0];
            let said: Vec<String> = section.verdicts.iter().map(Verdict::in_a_line).collect();
            let _ =
                writeln!(out, " {} – {} | {} |", number(ours.min), number(ours.max), cell(&said.join("; ")));
        }
    }
}

impl Verdict {
    fn in_a_line(&self) -> String {
        let word = if self.reached { "reached" } else { "**missed**" };
        let space = if self.what.is_empty() { "" } else { " " };
        format!("{}{space}{} {} {word}", self.what, self.figure, self.bound)
    }
}

impl Section {
    fn write(&self, out: &mut String) {
        let _ = write!(
            out,
            "\n| {} ({}) | median | min | max |\n|---|---:|---:|---:|\n",
            cell(&self.title),
            self.unit
        );
        for side in &self.sides {
            let (median, min, max) = (number(side.median), number(side.min), number(side.max));
            let _ = writeln!(out, "| {} | {median} | {min} | {max} |", cell(&side.name));
        }
        if !self.verdicts.is_empty() {
            out.push('\n');
        }
        for verdict in &self.verdicts {
            let _ = writeln!(out, "* {}", verdict.in_a_line());
        }
    }
}

/// Returns the number with three digits or more, without meaningless ones.
fn number(value: f64) -> String {
    match value.abs() {
        size if size >= 1000.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

/// Returns text escaped for a table cell.
fn cell(text: &str) -> String {
    text.replace('|', "\\|")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Machine;
    use crate::report::{
        MailFigure, Report as Printed, Section as PrintedSection, Target, Verdict as Printing, WithOrigin,
    };
    use crate::stats::Samples as Taken;

    /// Returns a report as the page reads it from a benchmark's output.
    fn printed(benchmark: &'static str, sections: Vec<PrintedSection>) -> Report {
        let mut report = Printed::new(benchmark, 0.5, 5);
        report.sections = sections;
        report.notes.push("small files".into());
        report.mail.push(MailFigure { what: "elapsed".into(), mail: "601 s".into(), ours: "4 s".into() });
        let machine = Machine { kernel: "6.18".into(), nr_cores: 2, ..Machine::look() };
        let (commit, day) = ("5f10029a5c31".into(), "2026-11-28".into());
        let origin = Origin { commit, is_modified: benchmark == "charge", day, machine };
        read(&serde_json::to_string(&WithOrigin { origin: &origin, report: &report }).unwrap()).unwrap()
    }

    fn section(title: &str, names: [&str; 2], verdicts: Vec<Printing>) -> PrintedSection {
        let sides = names.map(|name| Taken::new(name, vec![1.0, 2.0, 1234.5])).into();
        PrintedSection { title: title.into(), unit: "ns", sides, verdicts }
    }

    #[test]
    fn the_page_says_what_was_measured_and_what_was_missed() {
        let reached = Printing::new("of a | copy", 0.9, Target::TimesAtMost(1.15));
        let missed = Printing::new("of pread", 1.5, Target::TimesAtLeast(2.0));
        let one = printed("hit", vec![section("copies", ["umemcg", "memcpy"], vec![reached, missed])]);
        let two = printed(
            "charge",
            vec![
                section(
                    "one thread",
                    ["umemcg", "atomics"],
                    vec![Printing::new("", 4.0, Target::NsAtMost(5.0))],
                ),
                section("two threads", ["umemcg", "atomics"], Vec::new()),
            ],
        );
        let text = page(&[one, two], "make experiments", Path::new("results"));
        for expected in [
            "## Missed targets\n\n| experiment | figure | measured | target |\n|---|---|---:|---:|\n\
             | [hit](#hit) | copies: of pread | 1.50× | ≥ 2× |\n\n## All",
            "| [hit](#hit) | 1 of 2 | `5f10029a5c31` | 2026-11-28 |",
            "| [charge](#charge) | 1 of 1 | `5f10029a5c31` (modified) | 2026-11-28 |",
            "`umemcg-bench hit --scale 0.5 --rounds 5` at commit `5f10029a5c31` on 2026-11-28; 2 × ",
            "`umemcg-bench charge --scale 0.5 --rounds 5` at commit `5f10029a5c31` (modified) on 2026-11-28; ",
            "![hit](results/hit.svg)",
            "| memcpy | 2.00 | 1.00 | 1234 |",
            "* of a | copy 0.90× ≤ 1.15× reached",
            "* of pread 1.50× ≥ 2× **missed**",
            "| one thread | 2.00 | 2.00 | 1.00 – 1234 | 4.0 ns ≤ 5 ns reached |",
            "| elapsed | 601 s | 4 s |",
            "Note: small files.",
        ] {
            assert!(text.contains(expected), "{expected:?} in\n{text}");
        }
    }

    #[test]
    fn a_page_without_misses_says_so() {
        let reached = Printing::new("", 4.0, Target::NsAtMost(5.0));
        let one = printed("hit", vec![section("copies", ["umemcg", "memcpy"], vec![reached])]);
        assert!(page(&[one], "", Path::new("results")).contains("## Missed targets\n\nNone.\n\n## All"));
    }

    #[test]
    fn a_report_without_a_commit_is_refused() {
        let report = serde_json::to_string(&Printed::new("hit", 0.5, 5)).unwrap();
        let error = read(&report).unwrap_err();
        assert!(error.contains("measure it again") && error.contains("`commit`"), "{error}");
    }

    #[test]
    fn a_figure_is_within_its_bound_exactly_when_it_is_reached() {
        let verdicts = [
            Printing::new("", 1.0, Target::TimesAtMost(1.15)),
            Printing::new("", 1.2, Target::TimesAtMost(1.15)),
            Printing::new("", 2.1, Target::TimesAtLeast(2.0)),
            Printing::new("", 1.9, Target::TimesAtLeast(2.0)),
            Printing::new("", 0.0, Target::TimesAtLeast(2.0)),
            Printing::new("", 0.0, Target::NsAtMost(3.0)),
        ];
        let report = printed("hit", vec![section("all", ["a", "b"], verdicts.into())]);
        for (_, verdict) in report.verdicts() {
            assert_eq!(verdict.of_bound() <= 1.0, verdict.reached, "{verdict:?}");
        }
    }
}
