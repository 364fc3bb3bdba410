//! The subcommands that users see.

use clap::Command;

/// Returns the subcommands that the help lists.
pub fn visible(command: &Command) -> impl Iterator<Item = &Command> {
    command.get_subcommands().filter(|below| !below.is_hide_set())
}
