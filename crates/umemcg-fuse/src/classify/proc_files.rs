//! The parts of `/proc/<tid>` that identify a thread: `status`, `stat` and `cgroup`. None of them
//! takes the thread's mmap lock, which it may hold while it waits for us; `cmdline`, `maps` and
//! `environ` would, and are never read.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;

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
    /// The parent process.
    pub ppid: u32,
    /// True if it is dead and waits for its parent to notice.
    pub is_zombie: bool,
    /// Supplementary group ids.
    pub groups: Vec<u32>,
    /// Its process's ids, from the daemon's pid namespace down to its own.
    pub ids_of_process: Vec<u32>,
    /// Its own ids, from the daemon's pid namespace down to its own.
    pub ids_of_thread: Vec<u32>,
}

/// The fields of `/proc/<pid>/stat` in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stat {
    /// The parent process; 0 for one outside the daemon's pid namespace.
    pub ppid: u32,
    /// The session's id; 0 if its leader is outside the daemon's pid namespace, so two processes
    /// with 0 may be in different sessions.
    pub session: u32,
    /// Its identity.
    pub identity: Identity,
    /// True if it is dead and waits for its parent to notice.
    pub is_zombie: bool,
    /// True if it is dead or about to be. The kernel then shows it in the root of every version 1
    /// hierarchy.
    pub is_ending: bool,
}

/// Distinguishes a process or thread from a later one with the same id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Identity {
    /// The time at which it started, in clock ticks after boot. Two processes can start within one
    /// tick.
    start_ticks: u64,
    /// The inode of its pidfd: unique until the next boot since Linux 6.9, the same for all before.
    pidfd_inode: u64,
}

impl Identity {
    /// Returns whether it started before this time, in nanoseconds since boot.
    pub(crate) fn has_begun_by(self, time_ns: u64) -> bool {
        // The tick is rounded down.
        let tick_ns = 1_000_000_000 / rustix::param::clock_ticks_per_second();
        self.start_ticks.saturating_add(1).saturating_mul(tick_ns) <= time_ns
    }
}

/// A thread that has begun to end, as `stat` says among its flags.
const PF_EXITING: u64 = 0x4;

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
fn read(tid: u32, name: &str) -> io::Result<Vec<u8>> {
    let mut text = Vec::with_capacity(2048);
    File::open(format!("/proc/{tid}/{name}"))?.take(PROC_FILE_BYTES_MAX).read_to_end(&mut text)?;
    Ok(text)
}

/// Reads a thread's status; none when there is no such thread.
pub fn read_status(tid: u32) -> Option<Status> {
    parse_status(&read(tid, "status").ok()?)
}

/// Reads a process' stat line; none when there is no such process.
pub fn read_stat(pid: u32) -> Option<Stat> {
    // In this order: if the id is reused in between, the two parts do not match.
    let pidfd = open_pidfd(pid).and_then(rustix::fs::fstat);
    parse_stat(&read(pid, "stat").ok()?, pidfd.map_or(0, |stat| stat.st_ino))
}

/// Returns whether a thread is dead or about to be; `false` if that cannot be seen.
pub fn is_ending(tid: u32) -> bool {
    read(tid, "stat").is_ok_and(|text| parse_stat(&text, 0).is_some_and(|stat| stat.is_ending))
}

/// Returns whether the thread that has this id now has had it since this time, in nanoseconds since
/// boot.
pub fn has_begun_by(tid: u32, time_ns: u64) -> bool {
    let stat = read(tid, "stat").ok().and_then(|text| parse_stat(&text, 0));
    stat.is_some_and(|stat| stat.identity.has_begun_by(time_ns))
}

/// Reads the cgroups of a thread; none when there is no such thread.
pub fn read_cgroups(tid: u32) -> Option<Vec<u8>> {
    read(tid, "cgroup").ok()
}

/// Returns the credentials of a thread that the kernel reported with these ids. Its supplementary
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
        is_zombie: false,
        groups: Vec::new(),
        ids_of_process: Vec::new(),
        ids_of_thread: Vec::new(),
    };
    // The first line is the name, which the process chose; a newline in it is shown escaped.
    for line in text.split(|&byte| byte == b'\n') {
        let Some(colon) = line.iter().position(|&byte| byte == b':') else { continue };
        let value = line[colon + 1..].trim_ascii();
        match &line[..colon] {
            b"Tgid" => status.tgid = parse_decimal(value)? as u32,
            b"PPid" => status.ppid = parse_decimal(value)? as u32,
            b"State" => status.is_zombie = matches!(value.first(), Some(b'Z' | b'X')),
            b"Groups" => status.groups = numbers(value),
            b"NStgid" => status.ids_of_process = numbers(value),
            b"NSpid" => status.ids_of_thread = numbers(value),
            _ => {}
        }
    }
    (status.tgid != 0).then_some(status)
}

fn numbers(text: &[u8]) -> Vec<u32> {
    text.split(u8::is_ascii_whitespace).filter_map(|word| parse_decimal(word)?.try_into().ok()).collect()
}

pub(crate) fn parse_stat(text: &[u8], pidfd_inode: u64) -> Option<Stat> {
    // The name stands in parentheses and may itself contain spaces and parentheses: look for the
    // last one.
    let after_name = text.iter().rposition(|&byte| byte == b')')? + 1;
    let fields: Vec<&[u8]> =
        text[after_name..].split(u8::is_ascii_whitespace).filter(|field| !field.is_empty()).collect();
    let number = |at: usize| parse_decimal(fields.get(at)?);
    let is_zombie = matches!(fields.first()?.first(), Some(b'Z' | b'X'));
    Some(Stat {
        is_zombie,
        is_ending: is_zombie || number(6)? & PF_EXITING != 0,
        ppid: number(1)? as u32,
        session: number(3).unwrap_or(0) as u32,
        identity: Identity { start_ticks: number(19)?, pidfd_inode },
    })
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
    fn the_status_of_this_very_thread_reads() {
        let pid = std::process::id();
        let status = read_status(pid).unwrap();
        assert_eq!(status.tgid, pid);
        assert!(!status.is_zombie);
        let stat = read_stat(pid).unwrap();
        assert_eq!(stat.ppid, status.ppid);
        assert!(stat.identity.start_ticks > 0);
        assert_eq!(read_stat(pid), Some(stat), "it stays the same");
        assert!(read_threads(pid).contains(&pid));
        assert!(walk_processes().contains(&pid));
        assert_eq!(read_status(0), None);
        assert_eq!(read_stat(u32::MAX), None);
    }

    #[test]
    fn a_thread_belongs_to_its_process() {
        let tid = std::thread::spawn(|| rustix::thread::gettid().as_raw_nonzero().get() as u32);
        // The thread may be gone by now; what counts is that a living one maps to its process.
        drop(tid);
        for tid in read_threads(std::process::id()) {
            if let Some(status) = read_status(tid) {
                assert_eq!(status.tgid, std::process::id());
            }
        }
    }

    #[test]
    fn status_fields_are_found_by_name() {
        let text =
            b"Name:\tsh: Tgid: 9\nState:\tZ (zombie)\nTgid:\t71\nPid:\t72\nPPid:\t5\nGroups:\t4 27 1000 \n\
                     NStgid:\t71\t3\nNSpid:\t72\t4\n";
        let status = parse_status(text).unwrap();
        assert_eq!((status.tgid, status.ppid, status.is_zombie), (71, 5, true));
        assert_eq!(status.groups, [4, 27, 1000]);
        assert_eq!((status.ids_of_process, status.ids_of_thread), (vec![71, 3], vec![72, 4]));
        assert_eq!(parse_status(b""), None);
        assert_eq!(parse_status(b"Tgid:\tx\n"), None);
    }

    #[test]
    fn a_process_name_cannot_forge_a_stat_line() {
        let tail = "S 5 6 7 0 -1 4194304 1 2 3 4 5 6 7 8 20 0 1 0 12345 99";
        for name in ["sh", "a) R 1 1 1 1", "((", ") ) )"] {
            let stat = parse_stat(format!("71 ({name}) {tail}\n").as_bytes(), 9).unwrap();
            let identity = Identity { start_ticks: 12345, pidfd_inode: 9 };
            let expected = Stat { ppid: 5, session: 7, identity, is_zombie: false, is_ending: false };
            assert_eq!(stat, expected, "{name}");
        }
        assert_eq!(parse_stat(b"71 (sh) S", 0), None);
    }

    #[test]
    fn a_start_beyond_all_time_has_not_come() {
        let text = format!("71 (sh) S 5 6 7 0 -1 4 1 2 3 4 5 6 7 8 20 0 1 0 {} 99\n", u64::MAX);
        let stat = parse_stat(text.as_bytes(), 0).unwrap();
        assert!(!stat.identity.has_begun_by(1 << 62));
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
