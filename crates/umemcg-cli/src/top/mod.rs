//! `umemcg top`: the groups of a control tree and their activity, refreshed at an interval.
//!
//! It uses the control files, so every user with read access to them can run it. The page of
//! volumes asks the daemon; the daemon answers only its owner and root. Rates are differences
//! between two samples.
//!
//! On a terminal it is a program of pages (`live`); elsewhere it prints tables (`plain`). The live
//! view has four parts. `model` is the state: the known groups, the selection, the folding.
//! `requests` chooses the next reads. `view` draws a state. `sampler` reads on a thread of its own,
//! so keys work even if the daemon does not answer.

mod columns;
mod detail;
mod detail_page;
mod group_page;
mod groups;
mod help_page;
mod history;
mod live;
mod model;
mod plain;
mod requests;
mod row;
mod sampler;
mod screen;
mod selection_table;
mod text;
mod theme;
mod view;
mod volume_page;
mod volume_rates;

use std::io::IsTerminal;
use std::path::{Path, PathBuf};

use umemcg_fuse::mountinfo;

use crate::args::TopArguments;
use crate::exit::Failure;
use crate::mounts::is_control;

/// Returns the control tree to use: the given tree, else the only mounted one.
pub fn control_tree(given: Option<&Path>) -> Result<PathBuf, Failure> {
    if let Some(path) = given {
        return Ok(path.to_owned());
    }
    let text = std::fs::read("/proc/self/mountinfo")
        .map_err(|error| Failure::Failed(format!("cannot read the mount table: {error}")))?;
    let mut points: Vec<PathBuf> =
        mountinfo::parse(&text).filter(is_control).map(|mount| mount.point).collect();
    match points.len() {
        0 => Err(Failure::NotServed(
            "no control files are mounted; serve a mount with `umemcg mount DIR MNT --control CG`".into(),
        )),
        1 => Ok(points.remove(0)),
        _ => {
            let names: Vec<String> = points.iter().map(|point| point.display().to_string()).collect();
            Err(Failure::Usage(format!(
                "several control trees are mounted; choose one with --control: {}",
                names.join(", ")
            )))
        }
    }
}

/// Runs `umemcg top`.
///
/// # Errors
/// [`Failure`].
pub fn top(arguments: &TopArguments) -> Result<(), Failure> {
    let control = control_tree(arguments.control.as_deref())?;
    let is_plain = arguments.json || arguments.once || !std::io::stdout().is_terminal();
    if is_plain || !screen::can_draw() {
        return plain::run(arguments, &control);
    }
    live::run(arguments, &control)
}
