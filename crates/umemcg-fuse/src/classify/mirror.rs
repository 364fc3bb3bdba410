//! Membership kept by the kernel: a named cgroup hierarchy without controllers, with a directory
//! for each of our groups. A process moved into one stays there, and so do all processes forked by
//! it, even after double forks and in new sessions. Nothing is polled, and no process is missed.
//!
//! The hierarchy is mounted detached: it is reachable through a descriptor of this daemon and
//! appears in no mount table. A user mounting it in another namespace sees the root directory,
//! which only the daemon's user may enter. Its directories are flat and named by the serial id of
//! the group, so that a group may have any name and be renamed; a directory appears when the first
//! process is moved into its group.
//!
//! Every daemon has a hierarchy of its own, with a unique name, and holds a lock on its root
//! directory. If the daemon is killed, a hierarchy with directories stays. If another daemon can
//! take the lock, the owner is gone, and the daemon removes the hierarchy.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags};

use super::proc_files;

/// The prefix of our hierarchies' names.
const NAME_PREFIX: &str = "umemcg.";
/// The most names tried for a new hierarchy.
const NAME_TRIES_MAX: u32 = 16;
/// The longest time for the removal of a hierarchy. The kernel frees removed directories after a
/// grace period.
const TEARDOWN_MAX: Duration = Duration::from_secs(3);
/// The longest wait for a directory still busy after its last process has left its list.
const REMOVE_MAX: Duration = Duration::from_millis(200);
/// Rounds of moving processes out of a directory: they may fork while they are moved.
const EVICT_ROUNDS_MAX: u32 = 100;
/// The interval between polls of the kernel's state.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// A named hierarchy, and the lock as the sign of a living owner.
#[derive(Debug)]
pub struct Mirror {
    name: String,
    /// `None` only during the drop.
    root: Option<OwnedFd>,
}

impl Mirror {
    /// Mounts a new hierarchy, and removes the hierarchies of dead daemons. Needs root in the
    /// initial cgroup namespace and a kernel with version 1 hierarchies.
    pub fn mount() -> io::Result<Self> {
        static NR_MADE: AtomicU32 = AtomicU32::new(0);
        clean_stale();
        for _ in 0..NAME_TRIES_MAX {
            let nonce = NR_MADE.fetch_add(1, Ordering::Relaxed);
            let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
            let name =
                format!("{NAME_PREFIX}{}.{nonce}.{:x}{:08x}", std::process::id(), now.tv_sec, now.tv_nsec);
            let root = mount_detached(&name)?;
            // Another daemon's cleanup may have taken the lock first; then another name is tried.
            if rustix::fs::flock(&root, FlockOperation::NonBlockingLockExclusive).is_ok() {
                return Ok(Self { name, root: Some(root) });
            }
        }
        Err(io::Error::from(Errno::BUSY))
    }

    fn root(&self) -> BorrowedFd<'_> {
        self.root.as_ref().expect("the root is open until the mirror is dropped").as_fd()
    }

    /// Returns the serial id of a thread's group, from the text of its `cgroup` file; 0 if it is in
    /// none.
    pub fn serial_in(&self, cgroups: &[u8]) -> u64 {
        proc_files::cgroup_lines(cgroups)
            .find(|(controllers, _)| {
                controllers.strip_prefix(b"name=").is_some_and(|name| name == self.name.as_bytes())
            })
            .and_then(|(_, path)| umemcg_control::parse_decimal(path.strip_prefix(b"/")?))
            .unwrap_or(0)
    }

    /// Moves a process, or one thread of it. Creates the directory if it is missing.
    pub fn attach(&self, serial: u64, id: u32, whole_process: bool) -> Result<(), Errno> {
        let file = if whole_process { "cgroup.procs" } else { "tasks" };
        let path = if serial == 0 {
            file.to_owned()
        } else {
            match rustix::fs::mkdirat(self.root(), serial.to_string(), Mode::RWXU) {
                Ok(()) | Err(Errno::EXIST) => format!("{serial}/{file}"),
                Err(errno) => return Err(errno),
            }
        };
        let file = rustix::fs::openat(self.root(), path, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
        rustix::io::write(file, id.to_string().as_bytes()).map(drop)
    }

    /// Returns the ids of a group's processes or threads in ascending order, without duplicates.
    pub fn list(&self, serial: u64, whole_processes: bool) -> Vec<u32> {
        let file = if whole_processes { "cgroup.procs" } else { "tasks" };
        let path = if serial == 0 { file.to_owned() } else { format!("{serial}/{file}") };
        list_at(self.root(), &path)
    }

    /// Removes a group's directory. [`Errno::BUSY`] while a living process is in it; a missing
    /// directory is no error.
    pub fn remove(&self, serial: u64) -> Result<(), Errno> {
        let deadline = Instant::now() + REMOVE_MAX;
        loop {
            match rustix::fs::unlinkat(self.root(), serial.to_string(), AtFlags::REMOVEDIR) {
                Ok(()) | Err(Errno::NOENT) => return Ok(()),
                // A dying process may leave the list a moment before it leaves the kernel's count.
                Err(Errno::BUSY) if self.list(serial, false).is_empty() && Instant::now() < deadline => {
                    std::thread::sleep(POLL_INTERVAL);
                }
                Err(errno) => return Err(errno),
            }
        }
    }
}

impl Drop for Mirror {
    fn drop(&mut self) {
        if let Some(root) = self.root.take() {
            tear_down(&self.name, root);
        }
    }
}

/// Mounts the hierarchy of this name without attaching it anywhere; the descriptor is its root
/// directory. An existing hierarchy of that name is mounted.
fn mount_detached(name: &str) -> Result<OwnedFd, Errno> {
    let context = rustix::mount::fsopen("cgroup", FsOpenFlags::FSOPEN_CLOEXEC)?;
    rustix::mount::fsconfig_set_flag(context.as_fd(), "none")?;
    rustix::mount::fsconfig_set_string(context.as_fd(), "name", name)?;
    rustix::mount::fsconfig_create(context.as_fd())?;
    let flags = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
    let mount = rustix::mount::fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, flags)?;
    // Unlike the mount's own descriptor, this one can list and be locked.
    let root =
        rustix::fs::openat(&mount, ".", OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    // The hierarchy can be mounted by its name in any cgroup namespace.
    rustix::fs::fchmod(&root, Mode::RWXU)?;
    Ok(root)
}

fn list_at(root: BorrowedFd<'_>, path: &str) -> Vec<u32> {
    let open = rustix::fs::openat(root, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
    let Ok(file) = open else { return Vec::new() };
    let mut text = Vec::new();
    if io::Read::read_to_end(&mut std::fs::File::from(file), &mut text).is_err() {
        return Vec::new();
    }
    let mut ids: Vec<u32> = text
        .split(|&byte| byte == b'\n')
        .filter_map(|line| umemcg_control::parse_decimal(line)?.try_into().ok())
        .collect();
    ids.sort_unstable();
    ids.dedup();
    ids
}

/// Returns whether a line of a `cgroup` file is about a hierarchy of a daemon; rules ignore such
/// lines.
pub fn is_ours(controllers: &[u8]) -> bool {
    controllers.strip_prefix(b"name=").is_some_and(|name| name.starts_with(NAME_PREFIX.as_bytes()))
}

/// Returns the names of all hierarchies of daemons, dead or alive.
fn existing_names() -> Vec<String> {
    let Some(cgroups) = proc_files::read_cgroups(std::process::id()) else { return Vec::new() };
    proc_files::cgroup_lines(&cgroups)
        .filter_map(|(controllers, _)| {
            let name = std::str::from_utf8(controllers).ok()?.strip_prefix("name=")?;
            name.starts_with(NAME_PREFIX).then(|| name.to_owned())
        })
        .collect()
}

/// Removes the hierarchies of dead daemons.
fn clean_stale() {
    for name in existing_names() {
        let Ok(root) = mount_detached(&name) else { continue };
        if rustix::fs::flock(&root, FlockOperation::NonBlockingLockExclusive).is_ok() {
            tracing::info!(name, "removing the process hierarchy of a daemon that is gone");
            tear_down(&name, root);
        }
    }
}

/// Moves all processes out, removes all directories, and closes the root, which should end the
/// hierarchy. But the kernel frees a removed directory only after a grace period. If the last mount
/// ends earlier, the hierarchy stays, and is mounted again to end it.
fn tear_down(name: &str, root: OwnedFd) {
    for directory in directories(root.as_fd()) {
        let Some(path) = directory.to_str() else { continue };
        for _ in 0..EVICT_ROUNDS_MAX {
            for tid in list_at(root.as_fd(), &format!("{path}/tasks")) {
                let file =
                    rustix::fs::openat(&root, "tasks", OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty());
                // A thread that has ended need not be moved.
                let _ = file.and_then(|file| rustix::io::write(file, tid.to_string().as_bytes()));
            }
            if !matches!(rustix::fs::unlinkat(&root, path, AtFlags::REMOVEDIR), Err(Errno::BUSY)) {
                break;
            }
        }
    }
    drop(root);
    let deadline = Instant::now() + TEARDOWN_MAX;
    let exists = || existing_names().iter().any(|existing| existing == name);
    while exists() && Instant::now() < deadline {
        std::thread::sleep(POLL_INTERVAL);
        if exists() {
            drop(mount_detached(name));
        }
    }
}

fn directories(root: BorrowedFd<'_>) -> Vec<OsString> {
    let Ok(entries) = rustix::fs::Dir::read_from(root) else { return Vec::new() };
    entries
        .flatten()
        .filter(|entry| entry.file_type() == rustix::fs::FileType::Directory)
        .filter_map(|entry| {
            let name = entry.file_name().to_str().ok()?;
            (name != "." && name != "..").then(|| OsString::from(name))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::classify::testing::{Child, mirror_or_skip, wait_until};

    #[test]
    fn double_forks_and_new_sessions_stay_in_the_group() {
        let Some(mirror) = mirror_or_skip() else { return };
        // The child puts itself in by waiting until it has been put in, then forks twice with a new
        // session.
        let child = Child::shell("exec 3<&0; read go; (setsid sh -c 'echo $$; read end' <&3 &); exit 0");
        mirror.attach(7, child.id(), true).unwrap();
        child.tell("go");
        let grandchild = child.read_number();
        let cgroups = proc_files::read_cgroups(grandchild).unwrap();
        assert_eq!(mirror.serial_in(&cgroups), 7);
        assert!(mirror.list(7, true).contains(&grandchild));
        assert_ne!(proc_files::read_status(grandchild).unwrap().session, child.session());
        assert_eq!(mirror.remove(7), Err(Errno::BUSY));
        child.tell("end");
        wait_until(|| mirror.remove(7).is_ok());
        assert_eq!(mirror.remove(7), Ok(()), "a directory that is gone is fine");
    }

    #[test]
    fn zombies_do_not_keep_a_group() {
        let Some(mirror) = mirror_or_skip() else { return };
        let mut child = Child::shell("read go");
        mirror.attach(3, child.id(), true).unwrap();
        child.tell("go");
        child.wait_until_zombie();
        assert_eq!(mirror.list(3, true), Vec::<u32>::new());
        assert_eq!(mirror.remove(3), Ok(()));
        child.reap();
    }

    #[test]
    fn one_thread_can_be_elsewhere() {
        let Some(mirror) = mirror_or_skip() else { return };
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let tid = super::super::testing::own_tid();
                mirror.attach(5, tid, false).unwrap();
                assert_eq!(mirror.serial_in(&proc_files::read_cgroups(tid).unwrap()), 5);
                assert_eq!(mirror.serial_in(&proc_files::read_cgroups(std::process::id()).unwrap()), 0);
                assert_eq!(mirror.list(5, false), [tid]);
                mirror.attach(0, tid, false).unwrap();
            });
        });
        assert_eq!(mirror.remove(5), Ok(()));
    }

    #[test]
    fn another_user_sees_no_processes_of_the_hierarchy() {
        let Some(mirror) = mirror_or_skip() else { return };
        let child = Child::shell("read go");
        mirror.attach(4, child.id(), true).unwrap();
        let run = |script: &str| {
            let mut command = std::process::Command::new("setpriv");
            command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "unshare", "-UrmC"]);
            command.args(["sh", "-c", script, &mirror.name]);
            let output = command.output().unwrap();
            (output.status.success(), String::from_utf8_lossy(&output.stdout).into_owned())
        };
        let mount = "d=/tmp/umemcg-cg.$$; mkdir $d && mount -t cgroup -o none,name=\"$0\" cgroup $d";
        let (is_mounted, _) = run(&format!("{mount}; was=$?; umount $d; rmdir $d; exit $was"));
        if !is_mounted {
            eprintln!("SKIPPED: this kernel lets no user mount a hierarchy in a namespace of its own");
            return;
        }
        let look = "ls $d; cat $d/tasks $d/cgroup.procs $d/4/tasks $d/4/cgroup.procs";
        let (_, seen) = run(&format!("{mount}; {look}; umount $d; rmdir $d"));
        assert_eq!(seen, "");
    }

    #[test]
    fn a_missing_process_is_no_such_process() {
        let Some(mirror) = mirror_or_skip() else { return };
        assert_eq!(mirror.attach(9, i32::MAX as u32, true), Err(Errno::SRCH));
        assert_eq!(mirror.list(9, true), Vec::<u32>::new());
    }

    #[test]
    fn two_daemons_have_two_hierarchies_and_both_end() {
        let (Some(one), Some(two)) = (mirror_or_skip(), mirror_or_skip()) else { return };
        let child = Child::shell("read go");
        one.attach(4, child.id(), true).unwrap();
        two.attach(6, child.id(), true).unwrap();
        let cgroups = proc_files::read_cgroups(child.id()).unwrap();
        assert_eq!((one.serial_in(&cgroups), two.serial_in(&cgroups)), (4, 6));
        let names = [one.name.clone(), two.name.clone()];
        assert!(names.iter().all(|name| existing_names().contains(name)));
        drop((one, two));
        // Other daemons look for abandoned hierarchies, and keep an ending one for a moment.
        // Processes inside do not prevent the end.
        wait_until(|| !names.iter().any(|name| existing_names().contains(name)));
    }

    #[test]
    fn only_the_hierarchy_of_a_killed_daemon_is_cleaned_up() {
        let Some(mut dead) = mirror_or_skip() else { return };
        let Some(alive) = mirror_or_skip() else { return };
        let child = Child::shell("read go");
        dead.attach(4, child.id(), true).unwrap();
        alive.attach(4, child.id(), true).unwrap();
        // The remains of a kill: the descriptor is closed, the directories and the process in them
        // stay.
        drop(dead.root.take());
        clean_stale();
        // Another daemon started at the same time may have been first to clean up.
        wait_until(|| !existing_names().contains(&dead.name));
        let cgroups = proc_files::read_cgroups(child.id()).unwrap();
        assert_eq!(alive.serial_in(&cgroups), 4);
    }
}
