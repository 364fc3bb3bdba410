//! File handles: they identify an inode across renames without an open descriptor, so that cached
//! names pin nothing in the kernel.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::fs::{AtFlags, OFlags};

/// Most bytes in a handle.
const HANDLE_BYTES_MAX: usize = 128;

/// A file system's handle of one of its inodes.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct FileHandle {
    /// The file system's own kind of handle.
    pub kind: i32,
    /// Opaque; at most 128.
    pub bytes: Box<[u8]>,
}

/// The kernel's `struct file_handle` with room for the longest.
#[repr(C)]
struct RawHandle {
    nr_bytes: libc::c_uint,
    kind: libc::c_int,
    bytes: [u8; HANDLE_BYTES_MAX],
}

/// Returns the handle of the inode at `path` below `dir`, and the number of its mount (as in
/// `/proc/self/mountinfo`). With [`AtFlags::EMPTY_PATH`] and an empty path, of `dir` itself; with
/// [`AtFlags::SYMLINK_FOLLOW`] symbolic links are followed.
///
/// # Errors
/// `EOPNOTSUPP` where the file system has no handles; else as for opening.
pub fn name_to_handle(dir: BorrowedFd<'_>, path: &CStr, flags: AtFlags) -> io::Result<(FileHandle, i32)> {
    let mut raw =
        RawHandle { nr_bytes: HANDLE_BYTES_MAX as libc::c_uint, kind: 0, bytes: [0; HANDLE_BYTES_MAX] };
    let mut mount_id: libc::c_int = 0;
    // SAFETY: [7] The path ends with a zero; `raw` has the kernel's layout and says how much room
    // follows; both outputs are ours.
    let result = unsafe {
        libc::syscall(
            libc::SYS_name_to_handle_at,
            dir.as_raw_fd(),
            path.as_ptr(),
            &raw mut raw,
            &raw mut mount_id,
            flags.bits(),
        )
    };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    let bytes = raw.bytes.get(..raw.nr_bytes as usize).ok_or(io::ErrorKind::InvalidData)?;
    Ok((FileHandle { kind: raw.kind, bytes: bytes.into() }, mount_id))
}

/// Opens the inode of a handle, on the file system of `mount`. Needs `CAP_DAC_READ_SEARCH`.
///
/// # Errors
/// `ESTALE` when the inode is gone; `InvalidInput` for too long a handle; else as for opening.
pub fn open_by_handle(mount: BorrowedFd<'_>, handle: &FileHandle, flags: OFlags) -> io::Result<OwnedFd> {
    let mut raw = RawHandle { nr_bytes: 0, kind: handle.kind, bytes: [0; HANDLE_BYTES_MAX] };
    raw.bytes
        .get_mut(..handle.bytes.len())
        .ok_or(io::ErrorKind::InvalidInput)?
        .copy_from_slice(&handle.bytes);
    raw.nr_bytes = handle.bytes.len() as libc::c_uint;
    let flags = (flags | OFlags::CLOEXEC).bits();
    // SAFETY: [7] `raw` has the kernel's layout and says how many bytes follow.
    let fd = unsafe { libc::syscall(libc::SYS_open_by_handle_at, mount.as_raw_fd(), &raw mut raw, flags) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: [7] A descriptor that the kernel has just made for us.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as libc::c_int) })
}
