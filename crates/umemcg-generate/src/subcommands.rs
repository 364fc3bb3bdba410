//! The subcommands visible to users.

use clap::Command;

/// Returns the subcommands listed by the help.
pub fn visible(command: &Command) -> impl Iterator<Item = &Command> {
    command.get_subcommands().filter(|below| !below.is_hide_set())
}
