//! The origin of a report: commit, day and machine, taken when the run starts. A figure says
//! nothing without them. The commit is that of the program's sources, as long as they stay where
//! they are.

use std::process::Command;

use serde::{Deserialize, Serialize};

use crate::machine::Machine;

const SOURCES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// The commit, the day and the machine of a run.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Origin {
    /// The commit of the sources; `unknown` without git.
    pub commit: String,
    /// Files under version control differ from the commit, other than the results themselves.
    pub is_modified: bool,
    /// The day in UTC, such as `2026-11-28`.
    pub day: String,
    /// The machine, with its load at the start.
    pub machine: Machine,
}

impl Origin {
    /// Asks git and the operating system.
    pub fn look() -> Self {
        let unknown = || "unknown".to_owned();
        let results = [":(exclude)docs/results", ":(exclude)docs/results.md"];
        let compared = [&["diff", "--quiet", "HEAD", "--", "."][..], &results].concat();
        Self {
            machine: Machine::look(),
            commit: output_of(&mut git(&["rev-parse", "--short=12", "HEAD"])).unwrap_or_else(unknown),
            is_modified: git(&compared).status().is_ok_and(|status| status.code() == Some(1)),
            day: output_of(Command::new("date").args(["-u", "+%F"])).unwrap_or_else(unknown),
        }
    }

    /// Returns the commit as a page names it.
    pub fn commit(&self) -> String {
        let mark = if self.is_modified { " (modified)" } else { "" };
        format!("`{}`{mark}", self.commit)
    }
}

fn git(arguments: &[&str]) -> Command {
    let mut command = Command::new("git");
    command.args(["-C", SOURCES]).args(arguments);
    command
}

/// Returns the output of a command, without the end of its line.
fn output_of(command: &mut Command) -> Option<String> {
    let output = command.output().ok().filter(|output| output.status.success())?;
    Some(String::from_utf8(output.stdout).ok()?.trim().to_owned())
}
