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

/// The pages of the configuration file and of the helper of mount(8), without the version.
const WRITTEN_PAGES: [(&str, &str); 2] = [
    ("umemcg.toml.5", include_str!("../pages/umemcg.toml.5")),
    ("mount.fuse.umemcg.8", include_str!("../pages/mount.fuse.umemcg.8")),
];

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
    let version = command.get_version().unwrap_or_default();
    for (name, text) in WRITTEN_PAGES {
        fs::write(man.join(name), text.replace("@VERSION@", version))?;
    }
    completions::write(&command, &directory.join("completions"))
}

/// Writes the page of a command, and those of the commands below it.
fn write_pages(program: &Command, command: &Command, directory: &Path) -> io::Result<()> {
    let page = page::render(program, command)?;
    fs::write(directory.join(format!("{}.1", page::name(command))), page)?;
    subcommands::visible(command).try_for_each(|below| write_pages(program, below, directory))
}
