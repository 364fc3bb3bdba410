//! Directories of this daemon alone: drafts, records, notes.
//!
//! Their names can be foreseen. If others may write to the directory above, such as `/tmp`, another
//! user may make such a name first, as a directory or a link. The daemon would then read and write
//! files of that user's choice.

use std::fs::{DirBuilder, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

use rustix::fs::OFlags;
use rustix::io::Errno;

/// Permission to write for others than the owner.
const OTHERS_WRITE: u32 = 0o022;

/// Makes a directory, unless it is there, and checks it.
///
/// # Errors
/// The host's; `PermissionDenied` if it is another user's, a link, or writable for others.
pub(super) fn make_own(dir: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(dir) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => check_own(dir),
    }
}

/// Checks that a directory is this user's, and that no other user may write to it.
///
/// # Errors
/// As [`make_own`].
pub(super) fn check_own(dir: &Path) -> io::Result<()> {
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW;
    let opened = OpenOptions::new().read(true).custom_flags(flags.bits().cast_signed()).open(dir);
    // A link is ELOOP or ENOTDIR.
    let found = opened?.metadata()?;
    let is_own = found.uid() == rustix::process::geteuid().as_raw();
    if is_own && found.permissions().mode() & OTHERS_WRITE == 0 {
        return Ok(());
    }
    tracing::error!(
        dir = %dir.display(), owner = found.uid(), mode = %format_args!("{:o}", found.mode() & 0o7777),
        "a directory of the daemon's own is another's, or others may write to it"
    );
    Err(Errno::ACCESS.into())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn only_a_directory_of_ones_own_is_one() {
        let above = tempfile::tempdir().unwrap();
        let (dir, link) = (above.path().join("dir"), above.path().join("link"));
        for _ in 0..2 {
            make_own(&dir).unwrap();
        }
        std::os::unix::fs::symlink(&dir, &link).unwrap();
        assert!(make_own(&link).is_err(), "a link");
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o770)).unwrap();
        assert_eq!(make_own(&dir).unwrap_err().kind(), io::ErrorKind::PermissionDenied);
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o755)).unwrap();
        make_own(&dir).unwrap();
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(&dir, Some(12345), None).unwrap();
            assert_eq!(make_own(&dir).unwrap_err().kind(), io::ErrorKind::PermissionDenied);
        }
        assert!(make_own(&above.path().join("none/dir")).is_err());
    }
}
