//! The figures quoted by documents, compared with the page of results.
//!
//! A figure of the page is a link whose definition gives its place:
//!
//! ```text
//! A hit takes [316 ns][hit].
//!
//! [hit]: results.md#hit "4 KiB copied, 1 thread > umemcg"
//! ```
//!
//! The title is a path below the section. Each part of it is the beginning of a line, searched for
//! after the line of the part before; `#` stands for any number. The figure follows the last part.
//! A document may leave digits out, all but two, and sets thousands apart.
//!
//! Any other figure that looks measured needs a commit and a day in its section: "at commit
//! `5f10029` on 2026-11-28".

use std::collections::BTreeSet;

/// Units of figures.
const UNITS: [&str; 14] =
    ["points", "ns", "µs", "us", "ms", "s", "%", "×", "times", "a second", "MiB", "GiB", "MB", "GB"];

/// Units of measured figures only.
const UNITS_MEASURED: [&str; 3] = ["ns", "µs", "us"];

/// Words of paragraphs with only measured figures.
const NAMES_A_MEASUREMENT: [&str; 3] = ["Measured", "`umemcg-bench", "`make bench"];

/// The digits of a figure written into a document.
const NR_DIGITS: i32 = 3;

/// A link to a figure of the page.
struct Definition<'d> {
    name: &'d str,
    section: &'d str,
    path: &'d str,
}

impl<'d> Definition<'d> {
    /// Reads a line such as `[hit]: results.md#hit "4 KiB copied, 1 thread > umemcg"`.
    fn read(line: &'d str) -> Option<Self> {
        let (name, target) = line.strip_prefix('[')?.split_once("]: ")?;
        let (_, target) = target.split_once("results.md#")?;
        let (section, path) = target.strip_suffix('"')?.split_once(" \"")?;
        Some(Self { name, section, path })
    }

    fn read_all(document: &'d str) -> Vec<Self> {
        document.lines().filter_map(Self::read).collect()
    }

    /// Returns the figure as the page writes it.
    fn find<'p>(&self, page: &'p str) -> Option<&'p str> {
        let (_, rest) = page.split_once(&format!("\n## {}\n", self.section))?;
        let mut lines = rest.split("\n## ").next()?.lines();
        let mut parts = self.path.split(" > ").peekable();
        while let Some(part) = parts.next() {
            let mut after = lines.by_ref().filter_map(|line| after(line, part));
            if parts.peek().is_some() {
                after.next()?;
            } else {
                return after.find_map(|rest| Some(figure(rest.trim_start_matches([' ', '|', ':']))?.0));
            }
        }
        None
    }
}

/// Returns the text behind the beginning of a line.
fn after<'l>(line: &'l str, beginning: &str) -> Option<&'l str> {
    let mut rest = line.trim_start_matches("Note: ").trim_start_matches(['|', '*', ' ']);
    for (at, part) in beginning.split('#').enumerate() {
        if at > 0 {
            rest = figure(rest)?.1;
        }
        rest = rest.strip_prefix(part)?;
    }
    Some(rest)
}

/// Divides a text into the figure at its beginning and the rest.
fn figure(text: &str) -> Option<(&str, &str)> {
    let is_part = |at: usize, letter: char| {
        let is_before_digit = || text[at + 1..].starts_with(|next: char| next.is_ascii_digit());
        letter.is_ascii_digit() || (at > 0 && [',', '.'].contains(&letter) && is_before_digit())
    };
    let end = text.char_indices().find(|&(at, letter)| !is_part(at, letter)).map_or(text.len(), |(at, _)| at);
    (end > 0).then(|| text.split_at(end))
}

/// Returns a figure of the page with so many digits, if it has them, and its thousands apart.
fn rounded(said: &str, nr_digits: i32) -> String {
    let figure: f64 = said.parse().unwrap_or(f64::NAN);
    let exponent = if figure == 0.0 { 0 } else { figure.abs().log10().floor() as i32 };
    let last_digit = 10f64.powi(exponent + 1 - nr_digits);
    let decimals_said = said.split_once('.').map_or(0, |(_, decimals)| decimals.len());
    let decimals = usize::try_from(nr_digits - 1 - exponent).unwrap_or(0).min(decimals_said);
    let text = format!("{:.decimals$}", (figure / last_digit).round() * last_digit);
    let whole = text.split('.').next().unwrap_or_default().len();
    let with_commas = text.char_indices().map(|(at, digit)| match at {
        1.. if at < whole && (whole - at).is_multiple_of(3) => format!(",{digit}"),
        _ => digit.to_string(),
    });
    with_commas.collect()
}

/// Compares the links of a document with the page. Returns the document with the figures of the
/// page, and the problems found, by line.
pub fn with_figures_of(page: &str, document: &str) -> (String, Vec<String>) {
    let (mut corrected, mut problems) = (document.to_owned(), Vec::new());
    for definition in Definition::read_all(document) {
        let Definition { name, section, path } = definition;
        let link = format!("][{name}]");
        let ends: Vec<usize> = corrected.match_indices(&link).map(|(at, _)| at).collect();
        if ends.is_empty() {
            problems.push(format!("[{name}] is not used"));
        }
        let Some(said) = definition.find(page) else {
            problems.push(format!("[{name}]: the page has no figure at {section} > {path}"));
            continue;
        };
        // From the last one, so that places before it stay where they are.
        for end in ends.into_iter().rev() {
            let start = corrected[..end].rfind('[').map_or(end, |at| at + 1);
            let Some((quoted, _)) = figure(&corrected[start..end]) else {
                problems.push(format!("[{name}] is a link that does not begin with a figure"));
                continue;
            };
            if (2..=9).any(|nr_digits| rounded(said, nr_digits) == quoted) {
                continue;
            }
            let (expected, line) = (rounded(said, NR_DIGITS), line_at(&corrected, start));
            problems.push(format!("line {line}: {quoted} should be {expected} ({section} > {path}: {said})"));
            corrected.replace_range(start..start + quoted.len(), &expected);
        }
    }
    (corrected, problems)
}

/// Returns the apparently measured figures without a source, with their lines: no link to the page,
/// and neither commit nor day in their section.
pub fn figures_without_source(document: &str) -> Vec<(usize, String)> {
    let linked: BTreeSet<&str> = Definition::read_all(document).iter().map(|link| link.name).collect();
    let (mut found, mut line) = (Vec::new(), 1);
    for section in sections(document) {
        if !names_commit_and_day(&section) {
            for (before, paragraph) in paragraphs(&section) {
                let prose = prose(paragraph, &linked);
                let is_measured = NAMES_A_MEASUREMENT.iter().any(|words| paragraph.contains(words));
                let on_one_line = prose.replace('\n', " ");
                let figures = figures_in(&on_one_line, is_measured);
                found.extend(figures.map(|(at, text)| (line + before + line_at(&prose, at) - 1, text)));
            }
        }
        line += section.lines().count();
    }
    found
}

fn line_at(text: &str, at: usize) -> usize {
    text[..at].matches('\n').count() + 1
}

/// Returns the parts of a document from one heading to the next, with empty lines in place of code
/// and of definitions.
fn sections(document: &str) -> Vec<String> {
    let (mut sections, mut is_code) = (vec![String::new()], false);
    for line in document.lines() {
        let is_fence = line.trim_start().starts_with("```");
        is_code ^= is_fence;
        if line.starts_with('#') && !is_code {
            sections.push(String::new());
        }
        let section = sections.last_mut().expect("there is one from the start");
        if !is_code && !is_fence && Definition::read(line).is_none() {
            section.push_str(line);
        }
        section.push('\n');
    }
    sections
}

/// Returns whether a text says "commit `5f10029` on 2026-11-28".
fn names_commit_and_day(section: &str) -> bool {
    let words = section.split_whitespace().collect::<Vec<_>>().join(" ");
    words.split("commit `").skip(1).any(|rest| {
        let Some((commit, rest)) = rest.split_once('`') else { return false };
        let day = rest.strip_prefix(" on ").and_then(|rest| rest.get(..10)).unwrap_or_default();
        let is_day = day.bytes().zip(b"dddd-dd-dd").all(|(letter, &kind)| match kind {
            b'd' => letter.is_ascii_digit(),
            _ => letter == kind,
        });
        commit.len() >= 7
            && commit.bytes().all(|digit| digit.is_ascii_hexdigit())
            && day.len() == 10
            && is_day
    })
}

/// Returns the paragraphs, tables and items of lists, each with the number of lines before it.
fn paragraphs(section: &str) -> Vec<(usize, &str)> {
    let mut starts = vec![0];
    let mut at = 0;
    for line in section.split_inclusive('\n') {
        if line.trim().is_empty() || line.trim_start().starts_with("- ") {
            starts.push(at);
        }
        at += line.len();
    }
    starts.push(at);
    let pieces = starts.windows(2).map(|ends| (section[..ends[0]].matches('\n').count(), ends[0]..ends[1]));
    pieces.map(|(before, piece)| (before, &section[piece])).collect()
}

/// Returns a text of the same lines without code and without links to the page.
fn prose(paragraph: &str, linked: &BTreeSet<&str>) -> String {
    let without_code: String = paragraph
        .split('`')
        .enumerate()
        .map(|(at, part)| if at % 2 == 0 { part.to_owned() } else { "\n".repeat(part.matches('\n').count()) })
        .collect();
    let mut prose = without_code;
    for name in linked {
        while let Some(end) = prose.find(&format!("][{name}]")) {
            let start = prose[..end].rfind('[').unwrap_or(end);
            let gone = prose[start..end].matches('\n').count();
            prose.replace_range(start..end + name.len() + 3, &"\n".repeat(gone));
        }
    }
    prose
}

/// Returns the apparently measured figures with a unit, by their places: figures with decimals,
/// figures in nanoseconds or microseconds, and all figures if `is_measured`.
fn figures_in(prose: &str, is_measured: bool) -> impl Iterator<Item = (usize, String)> {
    let is_start = |at: usize| {
        let before = prose[..at].chars().next_back();
        !before.is_some_and(|letter| letter.is_alphanumeric() || ['.', ',', '_', '-', '–'].contains(&letter))
    };
    let starts = prose.char_indices().filter(move |&(at, letter)| letter.is_ascii_digit() && is_start(at));
    let mut end_of_range = 0;
    starts.filter_map(move |(at, _)| {
        let (number, mut rest) = figure(&prose[at..]).filter(|_| at >= end_of_range)?;
        let mut has_decimals = number.contains('.');
        for to in [" to ", "–"] {
            if let Some((upper, behind)) = rest.strip_prefix(to).and_then(figure) {
                has_decimals |= upper.contains('.');
                rest = behind;
                end_of_range = prose.len() - rest.len();
            }
        }
        let behind = rest.trim_start();
        let is_word = |rest: &str| rest.starts_with(|letter: char| letter.is_alphanumeric());
        let is_unit = |unit: &&&str| behind.strip_prefix(**unit).is_some_and(|rest| !is_word(rest));
        let unit = UNITS.iter().find(is_unit)?;
        let looks_measured = is_measured || has_decimals || UNITS_MEASURED.contains(unit);
        let text = &prose[at..prose.len() - behind.len() + unit.len()];
        looks_measured.then(|| (at, text.to_owned()))
    })
}
