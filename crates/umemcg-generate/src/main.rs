//! Writes man pages and shell completions below a directory: `umemcg-generate DIR`.
#![forbid(unsafe_code)]

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;

/// Write the man pages and the shell completions of umemcg to DIR/man and DIR/completions.
#[derive(Debug, Parser)]
#[command(name = "umemcg-generate")]
struct Arguments {
    /// Directory to write to; it is created if it does not exist
    dir: PathBuf,
}

fn main() -> ExitCode {
    let Arguments { dir } = Arguments::parse();
    match umemcg_generate::generate(&dir) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("umemcg-generate: cannot write below {}: {error}", dir.display());
            ExitCode::FAILURE
        }
    }
}
