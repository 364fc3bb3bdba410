//! The programs of bench-rivals: each measures ours and the alternatives, in one process and in
//! turns, so that ordinary builds never compile the rivals. They print figures as JSON; the
//! benchmarks judge them.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use serde::de::DeserializeOwned;

use crate::options::{Failure, Options};

/// Runs the program of that name and returns its figures. It is `file` if given, else in the
/// directory of rivals beside this program.
pub fn figures<T: DeserializeOwned>(
    file: Option<&PathBuf>,
    name: &str,
    options: &Options,
    arguments: &[&str],
) -> Result<T, Failure> {
    let file = match file {
        Some(file) => file.clone(),
        None => std::env::current_exe()
            .map_err(Failure::at("this program"))?
            .with_file_name(format!("../rivals/{name}")),
    };
    let mut command = Command::new(&file);
    command.args(["--scale", &options.scale.to_string(), "--rounds", &options.rounds.to_string()]);
    command.args(arguments);
    let what = format!("{} (bench-rivals/build.sh builds it)", file.display());
    let ended = command.stderr(Stdio::inherit()).output().map_err(Failure::at(&what))?;
    if !ended.status.success() {
        return Err(Failure::Wrong(format!("{}: {}", file.display(), ended.status)));
    }
    serde_json::from_slice(&ended.stdout).map_err(Failure::at("its figures"))
}
