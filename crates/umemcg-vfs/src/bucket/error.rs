//! The failures of requests to a store, and their errno values.

use rustix::io::Errno;
use thiserror::Error;

/// Why a request to a store failed. The texts name the store and the key.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum BucketError {
    /// There is no such object.
    #[error("{0}")]
    NotFound(String),
    /// The object is no longer the requested version.
    #[error("{0}")]
    Changed(String),
    /// The credentials are wrong or have expired, or do not allow this.
    #[error("{0}")]
    Denied(String),
    /// The store did not answer, or answered with errors until the time for it was over.
    #[error("{0}")]
    Unavailable(String),
    /// The answer makes no sense, or its bytes are not those of the object.
    #[error("{0}")]
    Corrupt(String),
    /// The bytes to store cannot be read, or an upload cannot be noted.
    #[error("{0}")]
    Source(String),
}

impl BucketError {
    /// Returns the error number expected by a POSIX caller.
    pub fn errno(&self) -> Errno {
        match self {
            Self::NotFound(_) => Errno::NOENT,
            Self::Changed(_) => Errno::STALE,
            Self::Denied(_) => Errno::ACCESS,
            Self::Unavailable(_) | Self::Corrupt(_) | Self::Source(_) => Errno::IO,
        }
    }
}
