//! The exit codes, in one place.

use std::io;
use std::path::Path;
use std::process::ExitCode;

use serde::{Deserialize, Serialize};
use thiserror::Error;
use umemcg_fuse::Lost;

/// A file of which something could not be made durable.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LostFile {
    /// The path below the volume; names that are no UTF-8 are shown with replacement characters.
    pub path: String,
    /// The number of bytes that are not durable.
    pub bytes: u64,
    /// Why.
    pub error: String,
}

impl From<Lost> for LostFile {
    fn from(lost: Lost) -> Self {
        Self { path: format!("/{}", lost.path.display()), bytes: lost.bytes, error: lost.error }
    }
}

/// Why a command did not succeed.
#[derive(Debug, Error)]
pub enum Failure {
    /// It failed; the sentence says what was asked, what failed and what to do.
    #[error("{0}")]
    Failed(String),
    /// The command line makes no sense in a way that only shows when it is carried out.
    #[error("{0}")]
    Usage(String),
    /// Written data is not durable.
    #[error("{} could not be made durable", files_and_bytes(.0))]
    Lost(Vec<LostFile>),
    /// The path is no mount of ours, or no daemon answers behind it.
    #[error("{0}")]
    NotServed(String),
    /// In use.
    #[error("{0}")]
    Busy(String),
}

impl Failure {
    /// Returns a failed system call with the path it was about.
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

    /// Says on stderr what happened.
    pub fn report(&self) -> ExitCode {
        eprintln!("umemcg: {self}");
        if let Self::Lost(files) = self {
            for file in files {
                eprintln!("  {}: {} bytes: {}", file.path, file.bytes, file.error);
            }
        }
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
