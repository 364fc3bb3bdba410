//! Directories of a daemon alone: for drafts, records, notes and sockets.
//!
//! Their names can be foreseen. If others may write to the directory above, such as `/tmp`, another
//! user may make such a name first, as a directory or a link. The daemon would then read and write
//! files of that user's choice. In a directory that passes the check no other user makes a name, so
//! the files in it need none.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::Path;

/// Permission to write for others than the owner.
const OTHERS_WRITE: u32 = 0o022;

/// Makes a directory of the user `me`, unless it is there, and checks it.
///
/// # Errors
/// The system's; `PermissionDenied` if it is another user's, a link, or writable for others.
pub fn make_own(dir: &Path, me: u32) -> io::Result<()> {
    make(DirBuilder::new().mode(0o700), dir, me)
}

/// Makes a directory like [`make_own`], with the directories above it.
///
/// # Errors
/// As [`make_own`].
pub fn make_own_with_parents(dir: &Path, me: u32) -> io::Result<()> {
    make(DirBuilder::new().recursive(true).mode(0o700), dir, me)
}

fn make(builder: &DirBuilder, dir: &Path, me: u32) -> io::Result<()> {
    match builder.create(dir) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => check_own(dir, me),
    }
}

/// Checks that a directory is the user's, and that no other user may write to it.
///
/// # Errors
/// As [`make_own`].
pub fn check_own(dir: &Path, me: u32) -> io::Result<()> {
    let found = fs::symlink_metadata(dir)?;
    if found.is_dir() && found.uid() == me && found.mode() & OTHERS_WRITE == 0 {
        return Ok(());
    }
    let problem = format!(
        "{} is not a directory of user {me} that no other user may write to: it is of user {}, with mode {:o}",
        dir.display(),
        found.uid(),
        found.mode() & 0o7777
    );
    Err(io::Error::new(io::ErrorKind::PermissionDenied, problem))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn only_a_directory_of_ones_own_is_one() {
        let above = std::env::temp_dir().join(format!("umemcg-own-{}", std::process::id()));
        fs::create_dir(&above).unwrap();
        let me = fs::metadata(&above).unwrap().uid();
        let (dir, link) = (above.join("dir"), above.join("link"));
        let is_refused = |made: io::Result<()>| made.unwrap_err().kind() == io::ErrorKind::PermissionDenied;
        for _ in 0..2 {
            make_own(&dir, me).unwrap();
            make_own_with_parents(&dir, me).unwrap();
        }
        std::os::unix::fs::symlink(&dir, &link).unwrap();
        assert!(is_refused(make_own(&link, me)), "a link");
        assert!(is_refused(make_own_with_parents(&link, me)), "a link");
        assert!(is_refused(make_own(&dir, me + 1)), "of another user");
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o770)).unwrap();
        assert!(is_refused(make_own(&dir, me)));
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o755)).unwrap();
        make_own(&dir, me).unwrap();
        fs::write(above.join("file"), "").unwrap();
        assert!(is_refused(make_own_with_parents(&above.join("file"), me)));
        assert_eq!(make_own(&above.join("none/dir"), me).unwrap_err().kind(), io::ErrorKind::NotFound);
        make_own_with_parents(&above.join("some/dir"), me).unwrap();
        fs::remove_dir_all(&above).unwrap();
    }
}
