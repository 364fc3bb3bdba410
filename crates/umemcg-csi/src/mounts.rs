//! The mounts of the plugin: bind mounts of each volume's directory, from the daemon's mount to the
//! target paths of pods. Look-ups read the mount table first, never the path: an access to the path
//! could block on a hung daemon.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags, mount_bind, mount_remount, unmount};
use tonic::Status;
use umemcg_fuse::mountinfo::{Mount, mount_at, parse};

/// The type of the daemon's data mount in the mount table.
const DATA: &str = "fuse.umemcg";
/// The type of the mount of its control files.
const CONTROL: &str = "fuse.umemcg-control";
/// The most mounts to remove at one target, stacked on top of each other.
const NR_STACKED_MAX: usize = 16;
/// Mount options allowed in a StorageClass or volume.
const FLAGS: [(&str, MountFlags); 7] = [
    ("ro", MountFlags::RDONLY),
    ("noexec", MountFlags::NOEXEC),
    ("nosuid", MountFlags::NOSUID),
    ("nodev", MountFlags::NODEV),
    ("noatime", MountFlags::NOATIME),
    ("nodiratime", MountFlags::NODIRATIME),
    ("rw", MountFlags::empty()),
];

/// Checks the names of mount options.
///
/// # Errors
/// `InvalidArgument` if one is unknown.
pub fn check_flags(flags: &[String]) -> Result<(), Status> {
    match flags.iter().find(|flag| flag_of(flag).is_none()) {
        None => Ok(()),
        Some(flag) => Err(Status::invalid_argument(format!(
            "there is no mount option `{flag}` here; these are: ro, rw, noexec, nosuid, nodev, noatime, nodiratime"
        ))),
    }
}

fn flag_of(name: &str) -> Option<MountFlags> {
    FLAGS.iter().find(|(known, _)| *known == name).map(|(_, flag)| *flag)
}

/// Returns the daemon's mount at a path.
///
/// # Errors
/// `Unavailable` if it is not there.
pub fn data_mount(point: &Path) -> Result<Mount, Status> {
    mount_of(point, DATA)
}

/// Returns the mount of the daemon's control files at a path. Without it, groups would be ordinary
/// directories and limit nothing.
///
/// # Errors
/// `Unavailable` if it is not there.
pub fn control_mount(point: &Path) -> Result<Mount, Status> {
    mount_of(point, CONTROL)
}

fn mount_of(point: &Path, kind: &str) -> Result<Mount, Status> {
    find(&mount_at, point, kind)?.ok_or_else(|| {
        let point = point.display();
        Status::unavailable(format!("nothing of type {kind} is mounted at {point}; does the daemon run?"))
    })
}

/// Reads the topmost mount at a path from the mount table.
type ReadTable = dyn Fn(&Path) -> io::Result<Option<Mount>>;

fn find(table: &ReadTable, point: &Path, kind: &str) -> Result<Option<Mount>, Status> {
    let point = &in_mount_table(point);
    let found = table(point).map_err(|error| failed("read the mount table for", point, &error))?;
    Ok(found.filter(|mount| mount.kind == kind))
}

/// Mounts a volume at a target. Keeps an existing mount of the volume with these options, and
/// replaces any other mount of the daemon.
///
/// # Errors
/// `Aborted` while the mount to replace is in use; `Internal` with the failed step.
pub fn show(
    root: &Path,
    volume: &str,
    target: &Path,
    flags: &[String],
    read_only: bool,
) -> Result<(), Status> {
    data_mount(root)?;
    match fs::create_dir(target) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists && !is_dead(&error) => {
            return Err(failed("create", target, &error));
        }
        _ => {}
    }
    let asked = flags.iter().filter_map(|flag| flag_of(flag));
    // The options of the daemon's own mount. A remount without them would clear them.
    let always = MountFlags::NOSUID | MountFlags::NODEV;
    let flags = asked.fold(always, |all, flag| all | flag);
    let flags = if read_only { flags | MountFlags::RDONLY } else { flags };
    if is_shown(root, volume, target) && has_flags(target, flags) {
        return Ok(());
    }
    hide(target)?;
    let mount = |errno: Errno| failed("show the volume at", target, &errno.into());
    mount_bind(root.join(volume), target).map_err(mount)?;
    mount_remount(target, flags | MountFlags::BIND, c"")
        .map_err(|errno| failed("set the options of", target, &errno.into()))?;
    // Options set by a remount stay in the plugin's own mount namespace. A bind mount of the
    // remounted one carries the options along, also to the node and its pods. `hide` removes both
    // mounts.
    mount_bind(target, target).map_err(mount)
}

/// Returns whether both mounts of a target exist and have these options: the plugin may have been
/// killed between the two.
fn has_flags(target: &Path, flags: MountFlags) -> bool {
    let point = in_mount_table(target);
    let Ok(text) = fs::read("/proc/self/mountinfo") else { return false };
    let wanted = FLAGS.iter().filter(|(_, flag)| !flag.is_empty() && flags.contains(*flag));
    let wanted: Vec<&str> = wanted.map(|(name, _)| *name).collect();
    let mounts = parse(&text).filter(|mount| mount.point == point && mount.kind == DATA);
    let has_all = |mount: &Mount| wanted.iter().all(|name| mount.options.split(',').any(|has| has == *name));
    let mounts: Vec<Mount> = mounts.collect();
    mounts.len() == 2 && mounts.iter().all(has_all)
}

/// Returns whether a target shows a volume and the daemon answers. Blocks while the daemon hangs.
pub fn is_shown(root: &Path, volume: &str, target: &Path) -> bool {
    let (Ok(served), Ok(shown)) = (data_mount(root), mount_of(target, DATA)) else { return false };
    let is_same = shown.device == served.device && shown.root == Path::new("/").join(volume);
    is_same && rustix::fs::stat(target).is_ok()
}

/// Returns whether an error means a mount without its daemon or volume.
fn is_dead(error: &io::Error) -> bool {
    let dead = [Errno::NOTCONN, Errno::STALE, Errno::NODEV, Errno::IO];
    error.raw_os_error().is_some_and(|code| dead.iter().any(|errno| errno.raw_os_error() == code))
}

/// Removes the daemon's mounts at a target. Leaves a path without such a mount unchanged.
///
/// # Errors
/// `Aborted` while it is in use; `Internal`, also if the mount table cannot be read.
pub fn hide(target: &Path) -> Result<(), Status> {
    hide_by(&mount_at, target)
}

fn hide_by(table: &ReadTable, target: &Path) -> Result<(), Status> {
    for _ in 0..NR_STACKED_MAX {
        if find(table, target, DATA)?.is_none() {
            return Ok(());
        }
        match unmount(target, UnmountFlags::NOFOLLOW) {
            Ok(()) => {}
            Err(Errno::BUSY) => {
                return Err(Status::aborted(format!("{} is in use", target.display())));
            }
            Err(errno) => return Err(failed("unmount", target, &errno.into())),
        }
    }
    Err(Status::internal(format!("{} is mounted again and again", target.display())))
}

/// Removes the directory of a target.
///
/// # Errors
/// `Internal`, also if it is not empty: its content is not the plugin's.
pub fn remove_target(target: &Path) -> Result<(), Status> {
    match fs::remove_dir(target) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed("remove", target, &error)),
        _ => Ok(()),
    }
}

/// Returns a path as the mount table shows it, with symlinks resolved except in the last component:
/// it may be the mount point of a hung daemon.
fn in_mount_table(path: &Path) -> PathBuf {
    match (path.parent().map(Path::canonicalize), path.file_name()) {
        (Some(Ok(parent)), Some(name)) => parent.join(name),
        _ => path.to_owned(),
    }
}

fn failed(what: &str, path: &Path, error: &io::Error) -> Status {
    Status::internal(format!("cannot {what} {}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_of_the_daemon_is_neither_used_nor_removed() {
        let dir = tempfile::tempdir().unwrap();
        let code = |result: Result<Mount, Status>| result.unwrap_err().code();
        assert_eq!(code(data_mount(dir.path())), tonic::Code::Unavailable);
        assert_eq!(code(control_mount(Path::new("/proc"))), tonic::Code::Unavailable);
        hide(dir.path()).unwrap();
        fs::write(dir.path().join("f"), "").unwrap();
        assert_eq!(remove_target(dir.path()).unwrap_err().code(), tonic::Code::Internal);
        assert!(dir.path().join("f").exists());
        remove_target(&dir.path().join("none")).unwrap();
    }

    #[test]
    fn an_unreadable_mount_table_is_not_an_empty_one() {
        let unreadable = |_: &Path| Err(io::Error::from(Errno::MFILE));
        let refused = hide_by(&unreadable, Path::new("/target")).unwrap_err();
        assert_eq!(refused.code(), tonic::Code::Internal);
    }

    #[test]
    fn unknown_mount_options_are_refused() {
        check_flags(&["ro".into(), "noexec".into()]).unwrap();
        assert_eq!(check_flags(&["suid".into()]).unwrap_err().code(), tonic::Code::InvalidArgument);
    }
}
