//! Finds the umemcg mount named by a path on the command line. Apart from resolving the path
//! itself, nothing here sends a request to a file system with a possibly hung or dead daemon.

use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};

use umemcg_fuse::mountinfo::{Mount, mount_at, parse};

/// Returns whether a mount belongs to umemcg: a data mount or a control mount.
pub fn is_umemcg(mount: &Mount) -> bool {
    mount.kind.strip_prefix("fuse.").is_some_and(|subtype| subtype.starts_with("umemcg"))
}

/// Returns whether a mount shows the control files of a daemon.
pub fn is_control(mount: &Mount) -> bool {
    mount.kind == "fuse.umemcg-control"
}

/// Returns the control mounts of daemons that serve this source, the topmost first.
pub fn control_mounts_of(source: &OsStr) -> Vec<Mount> {
    let table = std::fs::read("/proc/self/mountinfo").unwrap_or_default();
    parse(&table).rev().filter(|mount| is_control(mount) && mount.source == source).collect()
}

/// Returns the topmost file system mounted exactly at `path`, and the path as the mount table
/// spells it.
///
/// # Errors
/// When the path or `/proc` cannot be read. A mount whose daemon has died is not an error.
pub fn find_mount(path: &Path) -> io::Result<(PathBuf, Option<Mount>)> {
    // With a slash at the end, resolving the path may send the mount a request.
    let path = resolve(&path.components().collect::<PathBuf>())?;
    let mount = mount_at(&path)?;
    Ok((path, mount))
}

/// Returns the absolute path without symlinks. If the last component cannot be examined, it is
/// taken literally: it may be a mount of another user, or of a dead daemon.
fn resolve(path: &Path) -> io::Result<PathBuf> {
    match path.canonicalize() {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            let absolute = std::path::absolute(path)?;
            match (absolute.parent(), absolute.file_name()) {
                (Some(parent), Some(name)) => Ok(parent.canonicalize()?.join(name)),
                _ => Err(error),
            }
        }
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_root_is_mounted_and_not_by_us() {
        let (path, mount) = find_mount(Path::new("/proc/..")).unwrap();
        assert_eq!(path, Path::new("/"));
        assert!(mount.is_some_and(|mount| !is_umemcg(&mount)));
    }

    #[test]
    fn a_path_that_is_not_there_is_an_error() {
        assert_eq!(find_mount(Path::new("/no such path")).unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
