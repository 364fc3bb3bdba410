//! Directories of a daemon alone: for drafts, records, notes and sockets.
//!
//! Their names can be foreseen. If others may write to the directory above, such as `/tmp`, another
//! user may make such a name first, as a directory or a link. The daemon would then read and write
//! files of that user's choice. In a directory that passes the check no other user makes a name, so
//! the files in it need none.
//!
//! Nor may another user rename it, or a directory above it: the next use of the path would lead to
//! another directory. So the whole path from `/` is checked, links included, each part after the
//! one above it. A sticky directory passes: only the owner of a name changes it there.

use std::ffi::OsString;
use std::fs::{self, DirBuilder, Metadata};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Component, Path, PathBuf};

/// Permission to write for others than the owner.
const OTHERS_WRITE: u32 = 0o022;
/// The part of it for the group.
const GROUP_WRITES: u32 = 0o020;
/// Names of a directory are changed by their owners only.
const STICKY: u32 = 0o1000;
/// The most links on a path, as in the kernel.
const NR_LINKS_MAX: u32 = 40;

/// Makes a directory of the user `me`, unless it is there, and checks it.
///
/// # Errors
/// The system's; `PermissionDenied` if it is another user's, a link, or writable for others, or if
/// [`check_above`] refuses its path.
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
    check_above(dir, me)?;
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
    // A missing directory needs no check.
    fs::symlink_metadata(dir)?;
    check_above(dir, me)?;
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

/// Checks that no other user can replace a directory above `path`, as far as these exist. Each
/// directory and link on the path belongs to the user `me`, to root, or to the owner of `/`. A
/// directory is writable for its owner only, or for a group of the owner's number, which counts as
/// private; or it is sticky.
///
/// # Errors
/// The system's; `PermissionDenied` if another user may change the path.
pub fn check_above(path: &Path, me: u32) -> io::Result<()> {
    let mut at = PathBuf::from("/");
    let top = fs::symlink_metadata(&at)?;
    let owners = [me, 0, top.uid()];
    check_part(&at, &top, &owners)?;
    let (mut left, mut nr_links) = (Vec::new(), 0);
    let path = std::path::absolute(path)?;
    push_names(&mut left, path.parent().unwrap_or(&at));
    while let Some(name) = left.pop() {
        if name == ".." {
            at.pop();
            continue;
        }
        at.push(name);
        let found = match fs::symlink_metadata(&at) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            found => found?,
        };
        check_part(&at, &found, &owners)?;
        if found.is_symlink() {
            nr_links += 1;
            if nr_links > NR_LINKS_MAX {
                return Err(io::Error::other(format!("too many links on the path {}", path.display())));
            }
            let target = fs::read_link(&at)?;
            at.pop();
            if target.is_absolute() {
                at = PathBuf::from("/");
            }
            push_names(&mut left, &target);
        }
    }
    Ok(())
}

/// Adds the names of a path, the first of them on top.
fn push_names(left: &mut Vec<OsString>, path: &Path) {
    left.extend(path.components().rev().filter_map(|part| match part {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        _ => None,
    }));
}

/// Checks one part of a path: a directory or a link.
fn check_part(at: &Path, found: &Metadata, owners: &[u32]) -> io::Result<()> {
    let private = if found.gid() == found.uid() { GROUP_WRITES } else { 0 };
    let is_shared = found.mode() & OTHERS_WRITE & !private != 0 && found.mode() & STICKY == 0;
    if owners.contains(&found.uid()) && (found.is_symlink() || !is_shared) {
        return Ok(());
    }
    let remedy = match owners.contains(&found.uid()) {
        true => "take write permission from them, or make it sticky",
        false => "it has to be of the daemon's user or of root",
    };
    let problem = format!(
        "other users may change names in {}, which is of user {}, with mode {:o}: {remedy}",
        at.display(),
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

    #[test]
    fn a_path_that_others_may_change_is_refused() {
        let top = std::env::temp_dir().join(format!("umemcg-path-{}", std::process::id()));
        let above = top.join("above");
        fs::create_dir_all(&above).unwrap();
        // With any umask.
        fs::set_permissions(&top, fs::Permissions::from_mode(0o700)).unwrap();
        let me = fs::metadata(&above).unwrap().uid();
        let set = |mode| fs::set_permissions(&above, fs::Permissions::from_mode(mode)).unwrap();
        let is_refused = |made: io::Result<()>| made.unwrap_err().kind() == io::ErrorKind::PermissionDenied;
        let dir = above.join("of/daemon");
        set(0o777);
        assert!(is_refused(make_own_with_parents(&dir, me)));
        assert!(!above.join("of").exists(), "nothing is made there");
        set(0o1777);
        make_own_with_parents(&dir, me).unwrap();
        set(0o757);
        assert!(is_refused(make_own_with_parents(&dir, me)));
        assert!(is_refused(check_own(&dir, me)));
        set(0o755);
        check_own(&dir, me).unwrap();
        // Links, absolute and relative ones, are followed.
        let links =
            [(top.join("absolute"), above.clone()), (top.join("relative"), "absolute/../above".into())];
        for (link, target) in &links {
            std::os::unix::fs::symlink(target, link).unwrap();
            make_own(&link.join("of/daemon"), me).unwrap();
            set(0o777);
            assert!(is_refused(make_own(&link.join("of/daemon"), me)));
            set(0o755);
        }
        std::os::unix::fs::symlink("loop", top.join("loop")).unwrap();
        assert!(check_above(&top.join("loop/dir"), me).is_err());
        fs::remove_dir_all(&top).unwrap();
    }

    #[test]
    fn a_part_of_a_path_is_of_the_user_or_of_root() {
        let dir = std::env::temp_dir().join(format!("umemcg-part-{}", std::process::id()));
        fs::create_dir(&dir).unwrap();
        let found = fs::metadata(&dir).unwrap();
        check_part(&dir, &found, &[found.uid()]).unwrap();
        let refused = check_part(&dir, &found, &[found.uid() + 1]).unwrap_err();
        assert!(refused.to_string().contains("has to be of the daemon's user"), "{refused}");
        fs::remove_dir(&dir).unwrap();
    }
}
