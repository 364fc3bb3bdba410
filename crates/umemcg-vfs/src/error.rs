//! Errors of volumes, and their errno values.

use std::path::PathBuf;

use rustix::io::Errno;
use thiserror::Error;

use crate::bucket::BucketError;
use crate::volume_config::IoMode;
use umemcg::files::FileError;

/// Why an operation on a volume failed.
#[derive(Debug, Error)]
pub enum VfsError {
    /// The host refused, or a rule of the host applied here.
    #[error("{0}")]
    Host(#[from] Errno),
    /// The content of a file could not be read, written or made durable.
    #[error("file content: {0}")]
    Content(#[from] FileError),
}

impl VfsError {
    /// Returns the error number expected by a POSIX caller.
    pub fn errno(&self) -> Errno {
        match self {
            Self::Host(errno) => *errno,
            Self::Content(FileError::Store(error)) => Errno::from_io_error(error).unwrap_or(Errno::IO),
            Self::Content(FileError::Writeback(errno)) => Errno::from_raw_os_error(*errno),
            Self::Content(FileError::NoSpace) => Errno::NOSPC,
            Self::Content(FileError::TooLarge) => Errno::FBIG,
            Self::Content(FileError::NoMemory(_)) => Errno::NOMEM,
            Self::Content(FileError::ShutDown) => Errno::IO,
        }
    }
}

/// Why a directory cannot become a volume.
#[derive(Debug, Error)]
pub enum VolumeError {
    /// The directory cannot be opened.
    #[error("cannot open the directory {}: {errno}", dir.display())]
    Open {
        /// The requested directory.
        dir: PathBuf,
        /// The host's error number.
        errno: Errno,
    },
    /// Another volume, of this process or another, has been writing to the directory for a second.
    #[error("the directory {} is served, or still being written to, by another daemon", dir.display())]
    InUse {
        /// The requested directory.
        dir: PathBuf,
    },
    /// File handles were required but cannot be used.
    #[error(
        "file handles do not work on {}: {errno}; they need CAP_DAC_READ_SEARCH and a file system that has them",
        dir.display()
    )]
    NoHandles {
        /// The requested directory.
        dir: PathBuf,
        /// The host's error number.
        errno: Errno,
    },
    /// The store of an object volume does not serve it.
    #[error("{url} cannot be served: {error}")]
    Bucket {
        /// The requested place.
        url: String,
        /// The store's error.
        error: BucketError,
    },
    /// The staging directory of an object volume cannot be used.
    #[error("cannot stage what is written to {url} in {}: {errno}", dir.display())]
    Staging {
        /// The place of the objects.
        url: String,
        /// The directory.
        dir: PathBuf,
        /// The host's error number.
        errno: Errno,
    },
    /// The file system does not support the required I/O mode.
    #[error("the file system of {} does not support the I/O mode {mode:?}", dir.display())]
    IoMode {
        /// The requested directory.
        dir: PathBuf,
        /// The mode.
        mode: IoMode,
    },
}
