//! The parts of `/proc/<tid>` that identify a thread: `status` and `cgroup`.
//!
//! A thread may hold a lock of the kernel while it waits for the daemon: its mmap lock, or the exec
//! lock during `execve`, which closes files. Reading `status` and `cgroup` takes neither. `maps`,
//! `cmdline` and `environ` take the first, `stat`, `fd` and `ns` the second. No thread of the data
//! mount opens those. Threads of the control files open `ns`; an `execve` does not wait for these
//! threads.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::sync::{Arc, LazyLock};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags};
use umemcg_control::{Credentials, parse_decimal};

/// Longer than any of these files; a cgroup path has at most 4 KiB per hierarchy.
const PROC_FILE_BYTES_MAX: u64 = 1 << 20;

/// The fields of `/proc/<tid>/status` in use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Status {
    /// The process of the thread.
    pub tgid: u32,
    /// The parent process; 0 if it is outside the daemon's pid namespace.
    pub ppid: u32,
    /// The session's id; 0 if its leader is outside the daemon's pid namespace, so two processes
    /// with 0 may be in different sessions.
    pub session: u32,
    /// True if it is dead and waits for its parent to notice.
    pub is_zombie: bool,
    /// True if it is dead or about to be: it has no memory any more. The kernel then shows it in
    /// the root of every version 1 hierarchy.
    pub is_ending: bool,
    /// True if it is a thread of the kernel, which works for others.
    pub is_of_kernel: bool,
    /// The user of its accesses to files.
    pub user: Option<u32>,
    /// Supplementary group ids.
    pub groups: Vec<u32>,
    /// Its own ids, from the daemon's pid namespace down to its own.
    pub ids_of_thread: Vec<u32>,
}

/// A process or thread, with its identity.
#[derive(Debug, Clone)]
pub struct Identified {
    /// Its fields.
    pub status: Status,
    /// Its identity.
    pub identity: Identity,
}

/// Distinguishes a process or thread from a later one with the same id.
#[derive(Debug, Clone)]
pub enum Identity {
    /// The inode of its pidfd: unique until the next boot since Linux 6.9.
    Inode(u64),
    /// On older kernels: the id of the process, and an open pidfd, which shows when the process
    /// ends.
    Held(u32, Arc<OwnedFd>),
}

impl Identity {
    /// Returns the identity of the thread of a pidfd. `process` is the id of its process.
    fn of(pidfd: OwnedFd, process: u32) -> Result<Self, Errno> {
        Ok(if *PIDFDS_HAVE_INODES {
            Self::Inode(rustix::fs::fstat(&pidfd)?.st_ino)
        } else {
            Self::Held(process, Arc::new(pidfd))
        })
    }

    /// Returns whether this identity and `now`, found later for the same id, are of one thread.
    pub fn is_still(&self, now: &Identity) -> bool {
        match (self, now) {
            (Self::Inode(known), Self::Inode(now)) => known == now,
            // The kernel does not reuse the id of a zombie.
            (Self::Held(process, known), Self::Held(process_now, now)) => {
                process == process_now && (!has_ended(known) || has_ended(now))
            }
            _ => false,
        }
    }
}

/// Whether each pidfd has an inode of its own. The file system of pidfds has this magic number.
static PIDFDS_HAVE_INODES: LazyLock<bool> = LazyLock::new(|| {
    const PIDFS_MAGIC: u64 = 0x5049_4446;
    let own = rustix::process::pidfd_open(rustix::process::getpid(), PidfdFlags::empty());
    let system = own.and_then(rustix::fs::fstatfs);
    system.is_ok_and(|system| system.f_type as u64 == PIDFS_MAGIC)
});

/// Returns whether the thread or process of a pidfd has ended.
pub fn has_ended(pidfd: &impl AsFd) -> bool {
    let mut fds = [PollFd::new(pidfd, PollFlags::IN)];
    poll(&mut fds, Some(&Timespec::default())).is_ok_and(|nr| nr > 0)
}

/// Watch a thread, not a process (Linux 6.9). Has the value of `O_EXCL`.
const PIDFD_THREAD: PidfdFlags = PidfdFlags::from_bits_retain(0x80);

/// Returns a pidfd of a thread, or of its process where the kernel has no others.
pub fn open_pidfd(tid: u32) -> Result<OwnedFd, Errno> {
    let pid = i32::try_from(tid).ok().and_then(Pid::from_raw).ok_or(Errno::SRCH)?;
    match rustix::process::pidfd_open(pid, PIDFD_THREAD) {
        Err(Errno::INVAL) => rustix::process::pidfd_open(pid, PidfdFlags::empty()),
        opened => opened,
    }
}

/// Reads a file of `/proc` whole.
fn read(path: String) -> io::Result<Vec<u8>> {
    let mut text = Vec::with_capacity(2048);
    File::open(path)?.take(PROC_FILE_BYTES_MAX).read_to_end(&mut text)?;
    Ok(text)
}

/// Reads a thread's status; none when there is no such thread.
pub fn read_status(tid: u32) -> Option<Status> {
    parse_status(&read(format!("/proc/{tid}/status")).ok()?)
}

/// Reads the status of a process or thread with its identity; none when there is no such thread.
pub fn identify(tid: u32) -> Option<Identified> {
    let pidfd = open_pidfd(tid);
    let status = read_status(tid)?;
    // Before Linux 6.9 a thread has no pidfd of its own.
    let pidfd = pidfd.or_else(|_| open_pidfd(status.tgid)).ok()?;
    if !status.is_zombie && has_ended(&pidfd) {
        // Another thread may have the id by now.
        return None;
    }
    Some(Identified { identity: Identity::of(pidfd, status.tgid).ok()?, status })
}

/// Returns whether a thread is dead or about to be; `false` if unknown.
pub fn is_ending(tid: u32) -> bool {
    read_status(tid).is_some_and(|status| status.is_ending)
}

/// Returns the user of a thread's accesses to files; none when there is no such thread.
pub fn user_of(tid: u32) -> Option<u32> {
    read_status(tid)?.user
}

/// Reads the cgroups of a thread; none when there is no such thread.
pub fn read_cgroups(tid: u32) -> Option<Vec<u8>> {
    read(format!("/proc/{tid}/cgroup")).ok()
}

/// Returns the credentials of a thread with the ids reported by the kernel. Its supplementary
/// groups are read only if they can matter: root needs none.
pub fn credentials_of(tid: u32, uid: u32, gid: u32) -> Credentials {
    let supplementary = if uid == 0 || tid == 0 {
        Vec::new()
    } else {
        read_status(tid).map(|s| s.groups).unwrap_or_default()
    };
    Credentials { uid, gid, supplementary }
}

/// Returns the identity of a thread's pid namespace. Needs the right to trace the process.
pub fn pid_namespace(tid: u32) -> Option<(u64, u64)> {
    let namespace = std::fs::metadata(format!("/proc/{tid}/ns/pid")).ok()?;
    Some((namespace.dev(), namespace.ino()))
}

/// Returns the ids of all processes in the daemon's pid namespace. Walks `/proc`.
pub fn walk_processes() -> Vec<u32> {
    read_ids("/proc")
}

/// Returns the threads of a process.
pub fn read_threads(pid: u32) -> Vec<u32> {
    read_ids(&format!("/proc/{pid}/task"))
}

fn read_ids(directory: &str) -> Vec<u32> {
    let Ok(entries) = std::fs::read_dir(directory) else { return Vec::new() };
    let mut ids: Vec<u32> =
        entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    ids.sort_unstable();
    ids
}

pub(crate) fn parse_status(text: &[u8]) -> Option<Status> {
    let mut status = Status {
        tgid: 0,
        ppid: 0,
        session: 0,
        is_zombie: false,
        is_ending: false,
        is_of_kernel: false,
        user: None,
        groups: Vec::new(),
        ids_of_thread: Vec::new(),
    };
    let (mut has_memory, mut is_of_kernel) = (false, None);
    // The first line is the name, chosen by the process; a newline in it is shown escaped.
    for line in text.split(|&byte| byte == b'\n') {
        let Some(colon) = line.iter().position(|&byte| byte == b':') else { continue };
        let value = line[colon + 1..].trim_ascii();
        match &line[..colon] {
            b"Tgid" => status.tgid = parse_decimal(value)? as u32,
            b"PPid" => status.ppid = parse_decimal(value)? as u32,
            b"State" => status.is_zombie = matches!(value.first(), Some(b'Z' | b'X')),
            // Real, effective, saved, and for files.
            b"Uid" => status.user = numbers(value).get(3).copied(),
            b"Groups" => status.groups = numbers(value),
            b"NSpid" => status.ids_of_thread = numbers(value),
            b"NSsid" => status.session = numbers(value).first().copied().unwrap_or(0),
            b"Kthread" => is_of_kernel = Some(value == b"1"),
            b"VmSize" => has_memory = true,
            _ => {}
        }
    }
    // Threads of the kernel have no memory of their own; on older kernels that and their parent
    // identify them. In a container any process may have that id, and children.
    status.is_of_kernel = is_of_kernel.unwrap_or(status.ppid == KTHREADD && !has_memory);
    status.is_ending = status.is_zombie || !has_memory && !status.is_of_kernel;
    (status.tgid != 0).then_some(status)
}

/// The parent of all threads of the kernel, where these are visible.
const KTHREADD: u32 = 2;

fn numbers(text: &[u8]) -> Vec<u32> {
    text.split(u8::is_ascii_whitespace).filter_map(|word| parse_decimal(word)?.try_into().ok()).collect()
}

/// Returns the lines of a `cgroup` file as (controllers, path). The unified hierarchy has no
/// controllers and comes first.
pub fn cgroup_lines(text: &[u8]) -> impl Iterator<Item = (&[u8], &[u8])> {
    let lines = text.split(|&byte| byte == b'\n').filter_map(|line| {
        let mut parts = line.splitn(3, |&byte| byte == b':');
        let _hierarchy = parts.next()?;
        Some((parts.next()?, parts.next()?))
    });
    let (unified, others): (Vec<_>, Vec<_>) = lines.partition(|(controllers, _)| controllers.is_empty());
    unified.into_iter().chain(others)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_very_process_is_identified() {
        let pid = std::process::id();
        let found = identify(pid).unwrap();
        assert_eq!(found.status.tgid, pid);
        assert!(!found.status.is_zombie && !found.status.is_ending);
        assert_eq!(found.status.ppid, std::os::unix::process::parent_id());
        assert!(found.identity.is_still(&identify(pid).unwrap().identity));
        assert!(read_threads(pid).contains(&pid));
        assert!(walk_processes().contains(&pid));
        assert_eq!(read_status(0), None);
        assert!(identify(u32::MAX).is_none());
    }

    #[test]
    fn an_identity_ends_with_its_process_on_any_kernel() {
        use crate::classify::testing::Child;
        let held = |pid| Identity::Held(7, Arc::new(open_pidfd(pid).unwrap()));
        let (mut first, second) = (Child::shell("read go"), Child::shell("read go"));
        let known = [identify(first.id()).unwrap().identity, held(first.id())];
        assert!(known[1].is_still(&held(first.id())));
        first.tell("go");
        first.wait_until_zombie();
        let zombie = identify(first.id()).unwrap();
        assert!(zombie.status.is_zombie && zombie.status.is_ending);
        assert!(known[0].is_still(&zombie.identity) && known[1].is_still(&held(first.id())));
        first.reap();
        // As if the other had the id by now.
        assert!(!known[0].is_still(&identify(second.id()).unwrap().identity));
        assert!(!known[1].is_still(&held(second.id())));
    }

    #[test]
    fn a_thread_belongs_to_its_process() {
        let tid = std::thread::spawn(|| rustix::thread::gettid().as_raw_nonzero().get() as u32);
        // The thread may be gone by now; the test is about living threads of the process.
        drop(tid);
        for tid in read_threads(std::process::id()) {
            if let Some(status) = read_status(tid) {
                assert_eq!(status.tgid, std::process::id());
            }
        }
    }

    #[test]
    fn status_fields_are_found_by_name() {
        let text = b"Name:\tsh: Tgid: 9\nState:\tZ (zombie)\nTgid:\t71\nPPid:\t5\n\
                     Uid:\t1\t2\t3\t4\nGroups:\t4 27 1000 \nNStgid:\t71\t3\nNSpid:\t72\t4\nNSsid:\t70\t0\n";
        let status = parse_status(text).unwrap();
        assert_eq!((status.tgid, status.ppid, status.session), (71, 5, 70));
        assert!(status.is_zombie && status.is_ending && !status.is_of_kernel);
        assert_eq!((status.user, &*status.groups), (Some(4), &[4, 27, 1000][..]));
        assert_eq!(status.ids_of_thread, [72, 4]);
        assert_eq!(parse_status(b""), None);
        assert_eq!(parse_status(b"Tgid:\tx\n"), None);
    }

    #[test]
    fn what_has_no_memory_is_ending_unless_it_is_the_kernels() {
        let is_ending = |lines: &str| {
            parse_status(format!("State:\tS (sleeping)\nTgid:\t71\n{lines}").as_bytes()).unwrap().is_ending
        };
        assert!(!is_ending("PPid:\t5\nKthread:\t0\nVmSize:\t 12 kB\n"));
        assert!(is_ending("PPid:\t5\nKthread:\t0\n"));
        assert!(is_ending("PPid:\t2\nKthread:\t0\n"), "in a container any process may have this id");
        assert!(!is_ending("PPid:\t0\nKthread:\t1\n"));
        assert!(is_ending("PPid:\t5\n"));
        assert!(!is_ending("PPid:\t2\n"));
    }

    #[test]
    fn a_thread_of_the_kernel_has_no_memory() {
        let is_of_kernel =
            |lines: &str| parse_status(format!("Tgid:\t71\n{lines}").as_bytes()).unwrap().is_of_kernel;
        assert!(is_of_kernel("PPid:\t0\nKthread:\t1\n"));
        assert!(!is_of_kernel("PPid:\t2\nKthread:\t0\nVmSize:\t 12 kB\n"));
        assert!(is_of_kernel("PPid:\t2\n"), "on older kernels");
        assert!(!is_of_kernel("PPid:\t2\nVmSize:\t 12 kB\n"), "in a container any process may have this id");
    }

    #[test]
    fn cgroup_paths_may_have_colons_and_the_unified_one_is_first() {
        let text = b"10:name=umemcg:/17\n4:cpu,cpuacct:/a:b/c\n0::/kubepods/pod7\n";
        let lines: Vec<_> = cgroup_lines(text).collect();
        assert_eq!(
            lines,
            [(&b""[..], &b"/kubepods/pod7"[..]), (b"name=umemcg", b"/17"), (b"cpu,cpuacct", b"/a:b/c")]
        );
    }
}
