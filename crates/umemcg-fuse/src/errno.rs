//! The errno of each error of the layers below. This is the only place where errno values are
//! chosen.

use rustix::io::Errno;
use umemcg::files::FileError;
use umemcg_control::ControlError;
use umemcg_vfs::VfsError;

/// Has an error number.
pub trait ToErrno {
    /// Returns the errno seen by the process.
    fn to_errno(&self) -> Errno;
}

impl ToErrno for std::io::Error {
    fn to_errno(&self) -> Errno {
        Errno::from_io_error(self).unwrap_or(Errno::IO)
    }
}

impl ToErrno for FileError {
    fn to_errno(&self) -> Errno {
        match self {
            Self::Store(error) => error.to_errno(),
            Self::Writeback(errno) => Errno::from_raw_os_error(*errno),
            Self::NoSpace => Errno::NOSPC,
            Self::TooLarge => Errno::FBIG,
            Self::NoMemory(_) => Errno::NOMEM,
            Self::ShutDown => Errno::IO,
        }
    }
}

impl ToErrno for VfsError {
    fn to_errno(&self) -> Errno {
        match self {
            Self::Host(errno) => *errno,
            Self::Content(error) => error.to_errno(),
        }
    }
}

impl ToErrno for ControlError {
    fn to_errno(&self) -> Errno {
        match self {
            Self::NotFound => Errno::NOENT,
            Self::Exists => Errno::EXIST,
            Self::NotDirectory => Errno::NOTDIR,
            Self::IsDirectory => Errno::ISDIR,
            Self::Invalid => Errno::INVAL,
            Self::TooLong => Errno::TOOBIG,
            Self::NameTooLong => Errno::NAMETOOLONG,
            Self::Busy => Errno::BUSY,
            Self::Denied => Errno::ACCESS,
            Self::NotPermitted => Errno::PERM,
            Self::OtherParent => Errno::IO,
            Self::Interrupted => Errno::INTR,
            Self::Again => Errno::AGAIN,
            Self::Gone => Errno::NODEV,
            Self::NoSuchProcess => Errno::SRCH,
            Self::NoMemory => Errno::NOMEM,
            Self::NoAttribute => Errno::NODATA,
            Self::NoSpace => Errno::NOSPC,
            Self::NotSupported => Errno::OPNOTSUPP,
            Self::System(errno) => *errno,
        }
    }
}
