//! The report of a benchmark: sections of sides with their samples, verdicts on the targets, notes;
//! as a table or as JSON.

use std::io::{self, Write};

use serde::ser::SerializeStruct;
use serde::{Serialize, Serializer};

use crate::chart::Chart;
use crate::origin::Origin;
use crate::stats::Samples;

/// The results of one benchmark.
#[derive(Debug, Serialize)]
pub struct Report {
    /// The subcommand.
    pub benchmark: &'static str,
    /// The amount of work, as a part of the full size.
    pub scale: f64,
    /// Samples of each side.
    pub rounds: usize,
    /// The comparisons.
    pub sections: Vec<Section>,
    /// Notes for the reader.
    pub notes: Vec<String>,
    /// The figures of the repeated mail, beside those measured here.
    pub mail: Vec<MailFigure>,
    /// Figures over time.
    pub charts: Vec<Chart>,
    /// Print a line for each section; all of them must have the same sides.
    #[serde(skip)]
    pub compact: bool,
}

/// A figure of a mail and ours, as they are written.
#[derive(Debug, Serialize)]
pub struct MailFigure {
    /// The name of the figure.
    pub what: String,
    /// The mail's.
    pub mail: String,
    /// Ours.
    pub ours: String,
}

/// Sides measured in turns.
#[derive(Debug, Serialize)]
pub struct Section {
    /// The title of the measurement.
    pub title: String,
    /// Unit of the samples.
    pub unit: &'static str,
    /// The sides; ours first.
    pub sides: Vec<Samples>,
    /// Targets, and whether they are reached.
    pub verdicts: Vec<Verdict>,
}

/// A figure held against a target.
#[derive(Debug)]
pub struct Verdict {
    /// The name of the figure.
    pub what: String,
    /// The figure.
    pub value: f64,
    /// The target.
    pub target: Target,
    /// True if it is reached.
    pub reached: bool,
}

/// A bound, and how the figure is written.
#[derive(Debug, Clone, Copy, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Target {
    /// No more than this many times.
    TimesAtMost(f64),
    /// No less than this many times.
    TimesAtLeast(f64),
    /// No more than this many nanoseconds.
    NsAtMost(f64),
    /// No more than this many bytes.
    BytesAtMost(f64),
    /// No more than this many percent.
    PercentAtMost(f64),
    /// No more than this many pages.
    #[cfg_attr(
        not(feature = "experiments"),
        expect(dead_code, reason = "only experiments have such a bound")
    )]
    PagesAtMost(f64),
}

/// A report as it is printed with `--json`.
#[derive(Debug, Serialize)]
pub struct WithOrigin<'r> {
    /// Commit, day and machine.
    #[serde(flatten)]
    pub origin: &'r Origin,
    /// The rest.
    #[serde(flatten)]
    pub report: &'r Report,
}

impl Verdict {
    /// Judges a figure.
    pub fn new(what: impl Into<String>, value: f64, target: Target) -> Self {
        let reached = match target {
            Target::TimesAtMost(bound)
            | Target::NsAtMost(bound)
            | Target::BytesAtMost(bound)
            | Target::PercentAtMost(bound)
            | Target::PagesAtMost(bound) => value <= bound,
            Target::TimesAtLeast(bound) => value >= bound,
        };
        Self { what: what.into(), value, target, reached }
    }

    /// Judges the ratio of two sides by the worse end of its 95 % interval: the upper one for a
    /// maximum, the lower one for a minimum. For targets as near as the scatter of the samples.
    /// With too few rounds for an interval the target is missed.
    #[cfg_attr(not(feature = "experiments"), allow(dead_code, reason = "only experiments ask for it"))]
    pub fn of_bound(what: impl Into<String>, ours: &Samples, theirs: &Samples, target: Target) -> Self {
        let value = match target {
            Target::TimesAtLeast(_) => ours.ratio_bound_below(theirs).unwrap_or(0.0),
            _ => ours.ratio_bound_above(theirs).unwrap_or(f64::INFINITY),
        };
        Self::new(what, value, target)
    }

    /// Returns the figure and the bound, as they are written.
    fn figures(&self) -> (String, String) {
        match self.target {
            Target::TimesAtMost(bound) => (format!("{:.2}×", self.value), format!("≤ {bound}×")),
            Target::TimesAtLeast(bound) => (format!("{:.2}×", self.value), format!("≥ {bound}×")),
            Target::NsAtMost(bound) => (format!("{:.1} ns", self.value), format!("≤ {bound} ns")),
            Target::PercentAtMost(bound) => (format!("{:.2} %", self.value), format!("≤ {bound} %")),
            Target::BytesAtMost(bound) => (format!("{:.0} B", self.value), format!("≤ {bound} B")),
            Target::PagesAtMost(bound) => (format!("{:.0} pages", self.value), format!("≤ {bound} pages")),
        }
    }

    fn word(&self) -> &'static str {
        if self.reached { "reached" } else { "MISSED" }
    }

    /// Returns the text for a line with times already shown.
    fn short(&self) -> String {
        let (value, bound) = self.figures();
        match self.target {
            Target::NsAtMost(_) => format!("{bound} {}", self.word()),
            _ => format!("{value} {bound} {}", self.word()),
        }
    }
}

/// As the results page wants it: with its figures as they are written.
impl Serialize for Verdict {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let (figure, bound) = self.figures();
        let mut fields = serializer.serialize_struct("Verdict", 6)?;
        fields.serialize_field("what", &self.what)?;
        fields.serialize_field("value", &self.value)?;
        fields.serialize_field("target", &self.target)?;
        fields.serialize_field("reached", &self.reached)?;
        fields.serialize_field("figure", &figure)?;
        fields.serialize_field("bound", &bound)?;
        fields.end()
    }
}

impl Report {
    /// Creates an empty report of a benchmark.
    pub fn new(benchmark: &'static str, scale: f64, rounds: usize) -> Self {
        Self {
            benchmark,
            scale,
            rounds,
            sections: Vec::new(),
            notes: Vec::new(),
            mail: Vec::new(),
            charts: Vec::new(),
            compact: false,
        }
    }

    /// Returns whether every target is reached.
    pub fn all_reached(&self) -> bool {
        self.sections.iter().flat_map(|section| &section.verdicts).all(|verdict| verdict.reached)
    }

    /// Writes the report to standard output.
    ///
    /// # Errors
    /// When it is not read.
    pub fn print(&self, json: bool, origin: &Origin) -> io::Result<()> {
        let mut out = io::stdout().lock();
        if json {
            serde_json::to_writer_pretty(&mut out, &WithOrigin { origin, report: self })?;
            return writeln!(out);
        }
        writeln!(
            out,
            "{}: {}; {} rounds in turns, scale {}",
            self.benchmark, origin.machine, self.rounds, self.scale
        )?;
        if self.compact {
            self.print_lines(&mut out)?;
        } else {
            for section in &self.sections {
                writeln!(out)?;
                section.print(&mut out)?;
            }
        }
        if !self.mail.is_empty() {
            writeln!(out, "\n{:<46} {:>18} {:>18}", "beside the mail", "mail", "here")?;
        }
        for figure in &self.mail {
            writeln!(out, "  {:<44} {:>18} {:>18}", figure.what, figure.mail, figure.ours)?;
        }
        if !self.notes.is_empty() {
            writeln!(out)?;
        }
        for note in &self.notes {
            writeln!(out, "note: {note}")?;
        }
        Ok(())
    }

    /// Prints a line for each section: our side with its range, the medians of the others, the
    /// verdicts.
    fn print_lines(&self, out: &mut impl Write) -> io::Result<()> {
        let Some(first) = self.sections.first() else { return Ok(()) };
        let others: String = first.sides[1..].iter().map(|side| format!("{:>9}", side.name)).collect();
        writeln!(out, "\n{:<42}{:>9} {:>17}{others}", first.unit, first.sides[0].name, "min – max")?;
        for section in &self.sections {
            let ours = &section.sides[0];
            let range = format!("{:.1} – {:.1}", ours.min, ours.max);
            let others: String =
                section.sides[1..].iter().map(|side| format!("{:>9.1}", side.median)).collect();
            write!(out, "{:<42}{:>9.1} {range:>17}{others}", section.title, ours.median)?;
            for (at, verdict) in section.verdicts.iter().enumerate() {
                let comma = if at == 0 { "  " } else { "; " };
                let space = if verdict.what.is_empty() { "" } else { " " };
                write!(out, "{comma}{}{space}{}", verdict.what, verdict.short())?;
            }
            writeln!(out)?;
        }
        Ok(())
    }
}

impl Section {
    fn print(&self, out: &mut impl Write) -> io::Result<()> {
        let columns = format!("{:>12} {:>12} {:>12} {:>8}", "median", "min", "max", "ratio");
        writeln!(out, "{:<46} {columns}", format!("{} ({})", self.title, self.unit))?;
        let most = self.sides.iter().map(|side| side.max).fold(0.0, f64::max);
        let width = [(10.0, 3), (100.0, 2), (10_000.0, 1)].iter().find(|(below, _)| most < *below);
        let width = width.map_or(0, |(_, digits)| *digits);
        for side in &self.sides {
            let ratio = side.ratio_to(&self.sides[0]);
            // Nothing can be compared with nothing.
            let ratio = if ratio.is_finite() { format!("{ratio:.2}×") } else { "-".to_owned() };
            writeln!(
                out,
                "  {:<44} {:>12.width$} {:>12.width$} {:>12.width$} {ratio:>8}",
                side.name, side.median, side.min, side.max
            )?;
        }
        for verdict in &self.verdicts {
            let (value, bound) = verdict.figures();
            writeln!(out, "  → {:<42} {value:>12}, target {bound:<10} {}", verdict.what, verdict.word())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns two sides; ours scatters about the other by this much.
    fn pair(scatter: f64) -> (Samples, Samples) {
        let ours = (0..15).map(|at| 1.0 + scatter * f64::from(at - 7) / 7.0).collect();
        (Samples::new("ours", ours), Samples::new("theirs", vec![1.0; 15]))
    }

    #[test]
    fn a_bound_is_judged_by_its_worse_end() {
        let reached = |scatter, target| {
            let (ours, theirs) = pair(scatter);
            Verdict::of_bound("", &ours, &theirs, target).reached
        };
        for target in [Target::TimesAtLeast(0.98), Target::TimesAtMost(1.02)] {
            assert!(reached(0.02, target), "{target:?}");
            assert!(!reached(0.1, target), "the median is 1, but that is not certain: {target:?}");
        }
    }

    #[test]
    fn too_few_rounds_reach_no_bound() {
        let few = Samples::new("", vec![1.0; 4]);
        for target in [Target::TimesAtLeast(0.5), Target::TimesAtMost(2.0)] {
            assert!(!Verdict::of_bound("", &few, &few, target).reached);
        }
    }
}
