//! Writes the man pages and shell completions of the program `umemcg` from the definition of its
//! command line. The program does not contain this crate.
//!
//! The output depends on the sources only: it has no date and no path, so two runs write the same
//! bytes.
#![forbid(unsafe_code)]

mod completions;
mod help_text;
mod page;
mod sections;
mod subcommands;

use std::path::Path;
use std::{fs, io};

use clap::Command;

/// The page of the configuration file, without the version.
const CONFIGURATION_PAGE: &str = include_str!("../pages/umemcg.toml.5");

/// Writes `man/` and `completions/` below a directory.
///
/// # Errors
/// A file or directory cannot be written.
pub fn generate(directory: &Path) -> io::Result<()> {
    let command = umemcg_cli::definitions::command();
    let man = directory.join("man");
    fs::create_dir_all(&man)?;
    let mut built = command.clone().disable_help_subcommand(true);
    built.build();
    write_pages(&built, &built, &man)?;
    fs::write(
        man.join("umemcg.toml.5"),
        CONFIGURATION_PAGE.replace("@VERSION@", command.get_version().unwrap_or_default()),
    )?;
    completions::write(&command, &directory.join("completions"))
}

/// Writes the page of a command, and those of the commands below it.
fn write_pages(program: &Command, command: &Command, directory: &Path) -> io::Result<()> {
    let page = page::render(program, command)?;
    fs::write(directory.join(format!("{}.1", page::name(command))), page)?;
    subcommands::visible(command).try_for_each(|below| write_pages(program, below, directory))
}
