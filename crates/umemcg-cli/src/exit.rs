//! The failures of a command, and their exit codes.

use std::fmt::Write;
use std::io;
use std::path::Path;
use std::process::ExitCode;

use serde::{Deserialize, Serialize};
use thiserror::Error;
use tracing::Level;
use umemcg_fuse::Lost;

use crate::log::tell;
use crate::plain_text::one_line;

/// A file with data not made durable.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LostFile {
    /// The path in the volume. Bytes that are not UTF-8 are shown as replacement characters.
    pub path: String,
    /// The number of bytes not durable.
    pub bytes: u64,
    /// The reason.
    pub error: String,
}

impl From<Lost> for LostFile {
    fn from(lost: Lost) -> Self {
        Self { path: format!("/{}", lost.path.display()), bytes: lost.bytes, error: lost.error }
    }
}

/// The failure of a command.
#[derive(Debug, Error)]
pub enum Failure {
    /// The command failed. The message names the request, the failed step, and the remedy.
    #[error("{0}")]
    Failed(String),
    /// The arguments are invalid, beyond the checks of the parser.
    #[error("{0}")]
    Usage(String),
    /// Some written data is not durable.
    #[error("{} could not be made durable", files_and_bytes(.0))]
    Lost(Vec<LostFile>),
    /// The path is not a umemcg mount, or its daemon does not answer.
    #[error("{0}")]
    NotServed(String),
    /// The mount or the directory is in use.
    #[error("{0}")]
    Busy(String),
}

impl Failure {
    /// Returns the failure of an operation on a path.
    pub fn at(what: &str, path: &Path, error: &io::Error) -> Self {
        Self::Failed(format!("{what} {}: {error}", path.display()))
    }

    /// Returns the documented exit code.
    pub fn code(&self) -> u8 {
        match self {
            Self::Failed(_) => 1,
            Self::Usage(_) => 2,
            Self::Lost(_) => 3,
            Self::NotServed(_) => 4,
            Self::Busy(_) => 5,
        }
    }

    /// Prints the failure to stderr, and returns its exit code.
    pub fn report(&self) -> ExitCode {
        let mut text = self.to_string();
        if let Self::Lost(files) = self {
            for file in files {
                // Writing to a string does not fail.
                let (path, error) = (one_line(&file.path), one_line(&file.error));
                let _ = write!(text, "\n  {path}: {} bytes: {error}", file.bytes);
            }
        }
        tell(Level::ERROR, text);
        ExitCode::from(self.code())
    }
}

fn files_and_bytes(files: &[LostFile]) -> String {
    let bytes: u64 = files.iter().map(|file| file.bytes).sum();
    let plural = if files.len() == 1 { "" } else { "s" };
    format!("{bytes} bytes of {} file{plural}", files.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loss_says_how_much_of_how_many() {
        let file = |bytes| LostFile { path: "a".into(), bytes, error: "no space".into() };
        assert_eq!(
            Failure::Lost(vec![file(5), file(7)]).to_string(),
            "12 bytes of 2 files could not be made durable"
        );
        assert_eq!(Failure::Lost(vec![file(5)]).code(), 3);
    }
}
