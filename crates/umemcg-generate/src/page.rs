//! The man page of one command.
//!
//! `clap_mangen` renders name, synopsis, options and subcommands. The other sections come from the
//! long help and from [`crate::sections`].

use std::io;

use clap::Command;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};

use crate::help_text::{self, Example};
use crate::sections;
use crate::subcommands::visible;

/// Returns the name of a command's page, such as `umemcg-volume-add`.
pub fn name(command: &Command) -> &str {
    command.get_display_name().unwrap_or_else(|| command.get_name())
}

/// Renders the page of a built command of the program.
///
/// # Errors
/// Never: writing to memory does not fail. `clap_mangen` has the result in its signatures.
pub fn render(program: &Command, command: &Command) -> io::Result<String> {
    let version = program.get_version().unwrap_or_default();
    let man = Man::new(command.clone().disable_help_subcommand(true))
        // No date. Without quotes the next argument would take its place.
        .date("\"\"")
        .source(format!("umemcg {version}"))
        .manual("umemcg Manual");
    let mut text = Vec::new();
    man.render_title(&mut text)?;
    man.render_name_section(&mut text)?;
    man.render_synopsis_section(&mut text)?;
    describe(command).to_writer(&mut text)?;
    man.render_options_section(&mut text)?;
    if command.has_subcommands() {
        man.render_subcommands_section(&mut text)?;
    }
    written_sections(program, command).to_writer(&mut text)?;
    Ok(with_bold_code(&String::from_utf8_lossy(&text)))
}

/// Returns the section DESCRIPTION. Indented lines keep their form.
fn describe(command: &Command) -> Roff {
    let text = command.get_long_about().or_else(|| command.get_about()).map(ToString::to_string);
    let mut roff = Roff::new();
    roff.control("SH", ["DESCRIPTION"]);
    let text = text.unwrap_or_default();
    prose(&mut roff, &text.lines().collect::<Vec<_>>());
    roff
}

/// Adds paragraphs. Lines that begin with a space are shown as they are.
fn prose(roff: &mut Roff, lines: &[&str]) {
    for block in lines.chunk_by(|one, next| one.starts_with(' ') == next.starts_with(' ')) {
        let is_verbatim = block[0].starts_with(' ');
        if is_verbatim {
            roff.control("PP", []).control("nf", []);
        }
        for (at, line) in block.iter().enumerate() {
            match line.is_empty() {
                // groff warns of a paragraph at the end.
                true if at + 1 < block.len() => drop(roff.control("PP", [])),
                true => {}
                false => drop(roff.text([roman(*line)])),
            }
        }
        if is_verbatim {
            roff.control("fi", []);
        }
    }
}

/// Returns the sections after the options.
fn written_sections(program: &Command, command: &Command) -> Roff {
    let help = program.get_after_long_help().map(ToString::to_string).unwrap_or_default();
    let mut roff = Roff::new();
    let page = name(command);
    let codes = help_text::exit_codes(&help);
    table(&mut roff, "EXIT STATUS", codes.into_iter());
    table(&mut roff, "ENVIRONMENT", sections::environment(page));
    table(&mut roff, "FILES", sections::files(page));
    let spoken = page.replace('-', " ");
    let examples = help_text::examples(&help);
    let shown: Vec<_> = examples.iter().filter(|example| example.shows(&spoken)).collect();
    let shown = if page == name(program) { examples.iter().collect() } else { shown };
    show_examples(&mut roff, &shown);
    roff.control("SH", ["SEE ALSO"]);
    let related = see_also(program, command);
    for (at, (page, section)) in related.iter().enumerate() {
        let end = if at + 1 < related.len() { "," } else { "" };
        roff.text([bold(page), roman(format!("({section}){end}"))]);
    }
    roff
}

/// Adds a section of items with their meanings, if there are any.
fn table<'a>(roff: &mut Roff, heading: &str, rows: impl Iterator<Item = (&'a str, &'a str)>) {
    let mut rows = rows.peekable();
    if rows.peek().is_some() {
        roff.control("SH", [heading]);
    }
    for (item, meaning) in rows {
        roff.control("TP", []).text([bold(item)]).text([roman(meaning)]);
    }
}

fn show_examples(roff: &mut Roff, examples: &[&Example<'_>]) {
    if !examples.is_empty() {
        roff.control("SH", ["EXAMPLES"]);
    }
    for example in examples {
        roff.control("PP", []).control("nf", []).text([bold(example.command)]).control("fi", []);
        roff.control("RS", ["4"]);
        prose(roff, &example.explanation);
        roff.control("RE", []);
    }
}

/// Returns the pages of the program, the commands beside and below this one, and others.
fn see_also(program: &Command, command: &Command) -> Vec<(String, &'static str)> {
    let own = name(command);
    let mut pages = Vec::new();
    let mut add = |page: &Command| {
        let page = name(page);
        let is_near = own.starts_with(page) || page.starts_with(own) || sections::is_related(own, page);
        if page != own && is_near {
            pages.push((page.to_owned(), "1"));
        }
    };
    add(program);
    for below in visible(program) {
        add(below);
        visible(below).for_each(&mut add);
    }
    let others = sections::other_pages(own);
    pages.extend(others.map(|(page, section)| (page.to_owned(), section)));
    pages
}

/// Returns the text with the code between two backticks of a line in bold.
fn with_bold_code(text: &str) -> String {
    let mut lines = String::with_capacity(text.len());
    for line in text.lines() {
        let parts: Vec<&str> = line.split('`').collect();
        for (at, part) in parts.iter().enumerate() {
            let is_code = at % 2 == 1 && at + 1 < parts.len();
            match (is_code, at % 2) {
                (true, _) => lines.extend(["\\fB", part, "\\fR"]),
                // A backtick without a partner.
                (false, 1) => lines.extend(["\\(ga", part]),
                (false, _) => lines.push_str(part),
            }
        }
        lines.push('\n');
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_becomes_bold() {
        assert_eq!(with_bold_code("run `a b`, then `c`"), "run \\fBa b\\fR, then \\fBc\\fR\n");
        assert_eq!(with_bold_code("a ` alone"), "a \\(ga alone\n");
    }
}
