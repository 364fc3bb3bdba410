//! Privileges of a file: set-id bits and capabilities (`security.capability`).
//!
//! A write clears them at the moment it is accepted. The host clears them again at write-back,
//! perhaps after they were set anew. Write-back is not a new write, so it restores the privileges
//! it found. The host clears capabilities on every write, and set-id bits if the daemon lacks
//! `CAP_FSETID`.

use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::XattrFlags;
use rustix::io::Errno;

use crate::host::syscalls;
use crate::privileges::{CAPABILITIES, SET_GID, SET_UID, ShownCapabilities, mode_without_set_id};

/// An upper bound on the length of a value accepted by the kernel, in bytes.
const CAPABILITIES_BYTES_MAX: usize = 64;

/// A hint at the privileges of a file. Set to true at any time, and to false only with exclusive
/// access to the file.
#[derive(Debug)]
pub(crate) struct Privileges {
    /// (A) Relaxed: a write concurrent with the `chmod` setting it may be ordered before or after
    /// it.
    may_be_there: AtomicBool,
    /// (A) There may be capabilities among them. Relaxed, for the same reason.
    may_have_capabilities: AtomicBool,
    pub(crate) shown: ShownCapabilities,
}

impl Default for Privileges {
    /// Creates the state of an unknown file.
    fn default() -> Self {
        Self {
            may_be_there: AtomicBool::new(true),
            may_have_capabilities: AtomicBool::new(true),
            shown: ShownCapabilities::default(),
        }
    }
}

impl Privileges {
    /// Returns whether a write must first look for privileges to clear.
    pub(crate) fn may_be_there(&self) -> bool {
        self.may_be_there.load(Ordering::Relaxed)
    }

    /// Returns whether the file may have capabilities.
    pub(crate) fn may_have_capabilities(&self) -> bool {
        self.may_have_capabilities.load(Ordering::Relaxed)
    }

    /// Notes a new file with this mode.
    pub(crate) fn are_of_new(&self, mode: u32) {
        self.may_have_capabilities.store(false, Ordering::Relaxed);
        self.may_be_there.store(mode & (SET_UID | SET_GID) != 0, Ordering::Relaxed);
    }

    /// Notes a change of extended attributes, or any change from outside.
    pub(crate) fn note(&self) {
        self.may_have_capabilities.store(true, Ordering::Relaxed);
        self.may_be_there.store(true, Ordering::Relaxed);
    }

    /// Notes a possible change of the mode.
    pub(crate) fn note_mode(&self) {
        self.may_be_there.store(true, Ordering::Relaxed);
    }

    /// Clears the capabilities of a file of this mode and, with `set_id`, its set-id bits. The
    /// caller has exclusive access to the file.
    pub(crate) fn clear(&self, fd: BorrowedFd<'_>, mode: u32, set_id: bool) -> Result<(), Errno> {
        if self.may_have_capabilities() {
            match rustix::fs::fremovexattr(fd, CAPABILITIES) {
                Ok(()) | Err(Errno::NODATA) => self.may_have_capabilities.store(false, Ordering::Relaxed),
                Err(_) => {}
            }
        }
        let cleared = mode_without_set_id(mode);
        if cleared != mode && !set_id {
            // The next writer may not be allowed to keep the bits kept by this one.
            return Ok(());
        }
        if cleared != mode {
            syscalls::chmod(fd, cleared)?;
        }
        self.may_be_there.store(false, Ordering::Relaxed);
        Ok(())
    }

    /// Returns the privileges of a file of this mode that a write to the host could clear.
    pub(crate) fn held(&self, fd: BorrowedFd<'_>, mode: u32) -> SavedPrivileges {
        if !self.may_be_there() {
            return SavedPrivileges::default();
        }
        let mut value = vec![0; CAPABILITIES_BYTES_MAX];
        let found = self.may_have_capabilities().then(|| rustix::fs::fgetxattr(fd, CAPABILITIES, &mut value));
        let capabilities = found.and_then(Result::ok).map(|len| {
            value.truncate(len);
            value
        });
        SavedPrivileges { mode: (mode & (SET_UID | SET_GID) != 0).then_some(mode), capabilities }
    }
}

/// Privileges to be restored after write-back.
#[must_use]
#[derive(Debug, Default)]
pub(crate) struct SavedPrivileges {
    mode: Option<u32>,
    capabilities: Option<Vec<u8>>,
}

impl SavedPrivileges {
    /// Restores the privileges cleared by the host, as far as the daemon may.
    pub(crate) fn put_back(&self, fd: BorrowedFd<'_>) {
        let mode_now = self.mode.and_then(|_| Some(syscalls::stat_fd(fd).ok()?.attr.mode));
        let lost = self.mode.zip(mode_now).filter(|(mode, now)| mode != now);
        let modes = lost.map_or(Ok(()), |(mode, _)| syscalls::chmod(fd, mode));
        let capabilities = self.capabilities.as_ref().map_or(Ok(()), |value| {
            match rustix::fs::fsetxattr(fd, CAPABILITIES, value, XattrFlags::CREATE) {
                Err(Errno::EXIST) => Ok(()),
                result => result,
            }
        });
        if let Err(errno) = modes.and(capabilities) {
            tracing::warn!(%errno, "write-back took privileges of a file that the daemon may not give back");
        }
    }
}
