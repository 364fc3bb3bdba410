//! Completions for bash, zsh and fish.

use std::path::Path;
use std::{fs, io};

use clap::Command;
use clap_complete::Shell;

use crate::subcommands::visible;

/// Writes the completions of each shell to a directory, by the names expected by the shells.
pub fn write(command: &Command, directory: &Path) -> io::Result<()> {
    fs::create_dir_all(directory)?;
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        clap_complete::generate_to(shell, &mut without_hidden(command), "umemcg", directory)?;
    }
    Ok(())
}

/// Returns the same command without its hidden subcommands: the generators would show them.
fn without_hidden(command: &Command) -> Command {
    let shown = Command::new("umemcg")
        .version(env!("CARGO_PKG_VERSION"))
        .about(command.get_about().cloned().unwrap_or_default())
        .args(command.get_arguments().cloned());
    shown.subcommands(visible(command).cloned())
}
