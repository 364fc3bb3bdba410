//! The sources of man pages and shell completions, for the crate `umemcg-generate`. Not part of the
//! interface.

use std::path::Path;

use clap::CommandFactory;

use crate::args::Arguments;
use crate::config::Config;

/// Returns the definition of the command line.
pub fn command() -> clap::Command {
    Arguments::command()
}

/// Parses a configuration file.
///
/// # Errors
/// The message for the user.
pub fn check_config(text: &str) -> Result<(), String> {
    Config::parse(Path::new("umemcg.toml"), text.to_owned()).map(drop).map_err(|failure| failure.to_string())
}
