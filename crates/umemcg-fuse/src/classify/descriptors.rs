//! The descriptors passed by a process to request events: the control file behind one, and a copy
//! of the other, its eventfd.
//!
//! A control file is found without a copy of its descriptor. `fdinfo` has the inode number, equal
//! to the node's, and the mount, whose device is in the process's own mount table. None of this
//! sends a request to a file system, and none of these files of `/proc` takes the thread's mmap
//! lock.

use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::process::{PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};
use umemcg_control::{DescriptorError, Descriptors, EventSink, NodeId, parse_decimal};

use super::eventfd_writer::{Eventfd, EventfdWriter};
use super::proc_files::{open_pidfd, read_status};
use crate::mountinfo;

/// The text of an eventfd's link in `/proc`.
const EVENTFD: &str = "anon_inode:[eventfd]";

/// The descriptors of processes using the control files mounted from one device.
#[derive(Debug)]
pub struct ProcessDescriptors {
    /// `major:minor`.
    device: String,
    writer: Arc<EventfdWriter>,
}

impl ProcessDescriptors {
    /// Serves control files mounted from `device`, in the spelling of the mount table.
    pub fn new(device: &str) -> Self {
        Self { device: device.to_owned(), writer: Arc::default() }
    }
}

impl Descriptors for ProcessDescriptors {
    fn eventfd(&self, tid: u32, fd: u32) -> Result<Box<dyn EventSink>, DescriptorError> {
        let process = read_status(tid).ok_or(DescriptorError::System(Errno::SRCH))?.tgid;
        if !is_eventfd(tid, fd)? {
            return Err(DescriptorError::WrongKind);
        }
        let copy = copy_descriptor(tid, process, fd).map_err(refusal)?;
        let own = std::process::id();
        let own_fd = copy.as_raw_fd() as u32;
        if !is_eventfd(own, own_fd)? {
            // The descriptor was replaced meanwhile. The copy may be a file on one of the daemon's
            // own mounts; closing it would send a request to this daemon.
            let _ = std::thread::Builder::new().spawn(move || drop(copy));
            return Err(DescriptorError::WrongKind);
        }
        let id = eventfd_id(own, own_fd);
        let pidfd = i32::try_from(process).ok().and_then(rustix::process::Pid::from_raw);
        let pidfd = pidfd.ok_or(Errno::SRCH).and_then(|pid| pidfd_open(pid, PidfdFlags::empty()));
        let life = pidfd.map_err(|errno| refusal(errno.into()))?;
        let (target, writer) = (Arc::new(Eventfd::new(copy)), Arc::clone(&self.writer));
        Ok(Box::new(EventFd { target, writer, id, tid, process, fd, life }))
    }

    fn control_file(&self, tid: u32, fd: u32) -> Result<NodeId, DescriptorError> {
        let info = read_fdinfo(tid, fd)?;
        let flags = field(&info, "flags").and_then(|octal| u32::from_str_radix(octal, 8).ok());
        if flags.is_some_and(|flags| OFlags::from_bits_retain(flags).contains(OFlags::PATH)) {
            return Err(DescriptorError::NotOpen);
        }
        let number = |name| field(&info, name).and_then(|value| parse_decimal(value.as_bytes()));
        let (Some(mount), Some(inode)) = (number("mnt_id"), number("ino")) else {
            return Err(DescriptorError::WrongKind);
        };
        let mounts = fs::read(format!("/proc/{tid}/mountinfo")).map_err(refusal)?;
        let is_ours = mountinfo::parse(&mounts).any(|known| known.id == mount && known.device == self.device);
        if is_ours { Ok(NodeId::from_raw(inode)) } else { Err(DescriptorError::WrongKind) }
    }
}

/// Distinguishes a closed descriptor from a process that may not be inspected.
fn refusal(error: io::Error) -> DescriptorError {
    match Errno::from_io_error(&error).unwrap_or(Errno::IO) {
        Errno::NOENT | Errno::BADF => DescriptorError::NotOpen,
        // The daemon may not inspect the process. The descriptor may be valid.
        Errno::ACCESS => DescriptorError::System(Errno::PERM),
        errno => DescriptorError::System(errno),
    }
}

fn is_eventfd(tid: u32, fd: u32) -> Result<bool, DescriptorError> {
    let link = fs::read_link(format!("/proc/{tid}/fd/{fd}")).map_err(refusal)?;
    Ok(link.as_os_str() == EVENTFD)
}

fn copy_descriptor(tid: u32, process: u32, fd: u32) -> io::Result<OwnedFd> {
    // The thread's own table of descriptors, which may differ from its process's. Before Linux 6.9
    // only a process can be asked.
    let pidfd = open_pidfd(tid).or_else(|_| open_pidfd(process))?;
    let fd = i32::try_from(fd).map_err(|_| Errno::BADF)?;
    Ok(pidfd_getfd(pidfd, fd, PidfdGetfdFlags::empty())?)
}

fn read_fdinfo(tid: u32, fd: u32) -> Result<String, DescriptorError> {
    fs::read_to_string(format!("/proc/{tid}/fdinfo/{fd}")).map_err(refusal)
}

/// Returns the value of a line `name:<white space>value`.
pub(crate) fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().find_map(|line| Some(line.strip_prefix(name)?.strip_prefix(':')?.trim()))
}

/// Returns the id of an eventfd, common to all its copies (Linux 5.2).
fn eventfd_id(tid: u32, fd: u32) -> Option<u64> {
    let info = read_fdinfo(tid, fd).ok()?;
    parse_decimal(field(&info, "eventfd-id")?.as_bytes())
}

/// An eventfd of a process.
#[derive(Debug)]
struct EventFd {
    /// Our copy.
    target: Arc<Eventfd>,
    writer: Arc<EventfdWriter>,
    id: Option<u64>,
    tid: u32,
    process: u32,
    /// Its number in the process at the time of the registration.
    fd: u32,
    /// The process.
    life: OwnedFd,
}

impl EventFd {
    /// Returns whether a descriptor of the process is this eventfd. Without ids, any eventfd
    /// counts.
    fn is_at(&self, tid: u32, fd: u32) -> bool {
        is_eventfd(tid, fd).unwrap_or(false) && (self.id.is_none() || eventfd_id(tid, fd) == self.id)
    }
}

fn is_ready(fd: &OwnedFd, events: PollFlags) -> bool {
    let mut fds = [PollFd::new(fd, events)];
    poll(&mut fds, Some(&Timespec::default())).is_ok_and(|nr| nr > 0)
}

impl EventSink for EventFd {
    #[doc(alias = "eventfd_signal")]
    fn signal(&self, nr_events: u64) {
        // A write to a full eventfd would block. Its process has enough events.
        if is_ready(&self.target.copy, PollFlags::OUT) {
            self.writer.signal(&self.target, nr_events);
        }
    }

    fn is_open(&self) -> bool {
        if is_ready(&self.life, PollFlags::IN) {
            return false;
        }
        if self.is_at(self.tid, self.fd) || self.is_at(self.process, self.fd) {
            return true;
        }
        // It may be open under another number.
        let Ok(entries) = fs::read_dir(format!("/proc/{}/fd", self.process)) else { return false };
        let numbers = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        self.id.is_some() && numbers.into_iter().any(|fd| self.is_at(self.process, fd))
    }
}

impl Drop for EventFd {
    fn drop(&mut self) {
        self.writer.start_release(&self.target);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{EventfdFlags, eventfd};

    fn me() -> u32 {
        rustix::thread::gettid().as_raw_nonzero().get() as u32
    }

    fn descriptors() -> ProcessDescriptors {
        ProcessDescriptors::new("no device")
    }

    #[test]
    fn an_eventfd_is_copied_and_seen_open_under_any_number() {
        let theirs = eventfd(0, EventfdFlags::NONBLOCK).unwrap();
        let sink = descriptors().eventfd(me(), theirs.as_raw_fd() as u32).unwrap();
        sink.signal(2);
        sink.signal(1);
        let mut nr_events = 0;
        while nr_events < 3 {
            poll(&mut [PollFd::new(&theirs, PollFlags::IN)], None).unwrap();
            nr_events += count(&theirs);
        }
        assert_eq!(nr_events, 3);
        assert!(sink.is_open());
        let moved = rustix::io::dup(&theirs).unwrap();
        drop(theirs);
        assert!(sink.is_open(), "it lives on under another number");
        drop(moved);
        // Our own copy stands in the same table here, where the process is ourselves.
        assert!(sink.is_open());
    }

    #[test]
    fn a_full_eventfd_makes_no_thread_wait() {
        let theirs = eventfd(0, EventfdFlags::empty()).unwrap();
        let sink = descriptors().eventfd(me(), theirs.as_raw_fd() as u32).unwrap();
        rustix::io::write(&theirs, &(u64::MAX - 1).to_ne_bytes()).unwrap();
        sink.signal(1);
    }

    fn count(eventfd: &OwnedFd) -> u64 {
        let mut count = [0; 8];
        rustix::io::read(eventfd, &mut count).unwrap();
        u64::from_ne_bytes(count)
    }

    #[test]
    fn an_eventfd_without_room_holds_up_its_own_events_alone() {
        let descriptors = descriptors();
        let [full, other] = [(); 2].map(|()| eventfd(0, EventfdFlags::empty()).unwrap());
        let [to_full, to_other] =
            [&full, &other].map(|theirs| descriptors.eventfd(me(), theirs.as_raw_fd() as u32).unwrap());
        // Room for one event, so it looks ready; two make a writer wait.
        rustix::io::write(&full, &(u64::MAX - 2).to_ne_bytes()).unwrap();
        for round in 1..=3 {
            to_full.signal(2);
            to_other.signal(round);
            assert_eq!(count(&other), round);
        }
        // Nothing was lost for the first either, once it reads.
        assert_eq!(count(&full), u64::MAX - 2);
        let mut nr_events = 0;
        while nr_events < 6 {
            nr_events += count(&full);
        }
        assert_eq!(nr_events, 6);
    }

    #[test]
    fn many_full_eventfds_hold_up_no_other_and_are_dropped() {
        let descriptors = descriptors();
        let new = || eventfd(0, EventfdFlags::empty()).unwrap();
        let sink = |theirs: &OwnedFd| descriptors.eventfd(me(), theirs.as_raw_fd() as u32).unwrap();
        let (full, other): (Vec<_>, _) = ((0..64).map(|_| new()).collect(), new());
        let (to_full, to_other): (Vec<_>, _) = (full.iter().map(sink).collect(), sink(&other));
        for (theirs, to_full) in full.iter().zip(&to_full) {
            rustix::io::write(theirs, &(u64::MAX - 2).to_ne_bytes()).unwrap();
            to_full.signal(2);
        }
        to_other.signal(1);
        // Ends while all the others have no room.
        assert_eq!(count(&other), 1);
        drop(to_full);
        for theirs in &full {
            // Two of them are ours; before them come the events that filled it, perhaps read by the
            // writer.
            let mut events = count(theirs);
            if events == u64::MAX - 2 {
                events = count(theirs);
            }
            assert_eq!(events, 2);
        }
    }

    #[test]
    fn events_queued_when_a_registration_ends_still_arrive() {
        let descriptors = descriptors();
        let theirs = eventfd(0, EventfdFlags::empty()).unwrap();
        for round in 1..=100 {
            let sink = descriptors.eventfd(me(), theirs.as_raw_fd() as u32).unwrap();
            sink.signal(round);
            drop(sink);
            assert_eq!(count(&theirs), round);
        }
    }

    #[test]
    fn a_write_that_is_stuck_ends_with_its_registration() {
        let descriptors = descriptors();
        let theirs = eventfd(0, EventfdFlags::empty()).unwrap();
        let copy = rustix::io::dup(&theirs).unwrap();
        let target = Arc::new(Eventfd::new(copy));
        rustix::io::write(&theirs, &(u64::MAX - 2).to_ne_bytes()).unwrap();
        descriptors.writer.signal(&target, 2);
        assert_eq!(Arc::strong_count(&target), 2, "a writer waits for room");
        descriptors.writer.release(&target);
        // The writer drops it.
        while Arc::strong_count(&target) > 1 {
            std::thread::yield_now();
        }
    }

    #[test]
    fn other_files_are_told_from_closed_descriptors() {
        let file = tempfile::tempfile().unwrap();
        let fd = file.as_raw_fd() as u32;
        let kind = |result: Result<Box<dyn EventSink>, _>| result.map(|_| ()).unwrap_err();
        assert_eq!(kind(descriptors().eventfd(me(), fd)), DescriptorError::WrongKind);
        assert_eq!(kind(descriptors().eventfd(me(), 1_000_000)), DescriptorError::NotOpen);
        assert_eq!(kind(descriptors().eventfd(me(), u32::MAX)), DescriptorError::NotOpen);
        assert_eq!(descriptors().control_file(me(), fd), Err(DescriptorError::WrongKind));
        assert_eq!(descriptors().control_file(me(), 1_000_000), Err(DescriptorError::NotOpen));
        let path = rustix::fs::open("/", OFlags::PATH, rustix::fs::Mode::empty()).unwrap();
        let path = path.as_raw_fd() as u32;
        assert_eq!(descriptors().control_file(me(), path), Err(DescriptorError::NotOpen));
    }
}
