//! Errors of operations on the control tree. The errno of each error is chosen in the code for
//! replies to the kernel, not here.

use thiserror::Error;

/// A refused operation on a directory or file of the control tree. Nothing was changed, unless the
/// variant says so.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum ControlError {
    /// No group and no file of this name.
    #[error("no such group or file")]
    NotFound,
    /// The name is taken, by a group or by a control file.
    #[error("the name is taken")]
    Exists,
    /// The operation needs a directory, not a file.
    #[error("not a group")]
    NotDirectory,
    /// The operation needs a file, not a directory.
    #[error("is a group")]
    IsDirectory,
    /// The text is invalid for the file, or the file cannot be read or written at all.
    #[error("invalid value")]
    Invalid,
    /// The text is longer than the maximum of any control file.
    #[error("value too long")]
    TooLong,
    /// The name has more than 255 bytes.
    #[error("name too long")]
    NameTooLong,
    /// The group has child groups or living processes; or its usage cannot be brought under the new
    /// limit.
    #[error("busy")]
    Busy,
    /// The opener's credentials do not allow the operation.
    #[error("permission denied")]
    Denied,
    /// No user may do this to a control file.
    #[error("operation not permitted")]
    NotPermitted,
    /// A group can be renamed within its parent only.
    #[error("a group cannot move to another parent")]
    OtherParent,
    /// The writer was interrupted while it waited.
    #[error("interrupted")]
    Interrupted,
    /// Less was reclaimed than asked for. All reclaimable memory has been reclaimed.
    #[error("less was reclaimed than asked for")]
    Again,
    /// The group was removed while the file was open.
    #[error("the group was removed")]
    Gone,
    /// No process or thread has this id.
    #[error("no such process")]
    NoSuchProcess,
    /// The group's own state does not fit under the limits above it.
    #[error("not enough memory under the limits for another group")]
    NoMemory,
    /// The directory or file has no attribute of this name.
    #[error("no such attribute")]
    NoAttribute,
    /// The directory or file has reached its bound on the number or size of attributes.
    #[error("no space for the attribute")]
    NoSpace,
    /// No attribute has a name of this kind.
    #[error("not supported")]
    NotSupported,
    /// The system refused.
    #[error("{0}")]
    System(rustix::io::Errno),
}
