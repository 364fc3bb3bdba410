//! Events of a file system: changes made by other programs, by file handle and name.
//!
//! One mark covers a whole file system, whichever path a program takes. An event names the inode by
//! its handle and, for a change of a name, the directory and the name. The kernel keeps a bounded
//! number of events; when there are more, one event reports the loss.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use crate::handle::FileHandle;

/// Bytes of the buffer, enough for many events at a time.
const BUFFER_BYTES: usize = 16 << 10;
/// Bytes of the start of an event: `struct fanotify_event_metadata`.
const EVENT_BYTES: usize = 24;
/// Bytes before a handle in a record: `struct fanotify_event_info_fid` with the start of `struct
/// file_handle`.
const RECORD_BYTES: usize = 20;

/// Changes of names: their events have the directory and the name.
const NAMES: u64 = libc::FAN_CREATE | libc::FAN_DELETE | libc::FAN_MOVED_FROM | libc::FAN_MOVED_TO;
/// Changes of inodes. A store through a mapping makes no event before the close of the mapped file.
const INODES: u64 = libc::FAN_MODIFY | libc::FAN_ATTRIB | libc::FAN_MOVE_SELF | libc::FAN_CLOSE_WRITE;

/// A change made by a process.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct FsEvent {
    /// The process; 0 if it is not visible from here.
    pub pid: i32,
    /// The change.
    pub change: FsChange,
}

/// The subject of an event.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FsChange {
    /// A directory entry was created, replaced or removed.
    Name {
        /// The directory.
        directory: FileHandle,
        /// The name.
        name: Box<[u8]>,
    },
    /// The data of a file, or the attributes of an inode.
    Inode(FileHandle),
    /// A file open for writing was closed. Its data may have changed without a change of its
    /// attributes, through a mapping.
    Written(FileHandle),
    /// Unknown: the kernel's queue of events overflowed.
    Lost,
}

/// Listens to the changes of one file system.
#[derive(Debug)]
pub struct Fanotify {
    group: OwnedFd,
    buffer: Box<[u8]>,
}

impl Fanotify {
    /// Listens to the file system of a directory. Needs `CAP_SYS_ADMIN`.
    ///
    /// # Errors
    /// `EPERM` without the privilege; `EOPNOTSUPP`, `ENODEV`, `EXDEV` or `EINVAL` where file system
    /// or kernel do not support it.
    pub fn of_file_system(directory: BorrowedFd<'_>) -> io::Result<Self> {
        let flags = libc::FAN_CLASS_NOTIF
            | libc::FAN_CLOEXEC
            | libc::FAN_NONBLOCK
            | libc::FAN_REPORT_FID
            | libc::FAN_REPORT_DIR_FID
            | libc::FAN_REPORT_NAME;
        // SAFETY: [7] No addresses.
        let group = unsafe { libc::fanotify_init(flags, libc::O_RDONLY as u32) };
        if group < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: [7] A descriptor that the kernel has just made for us.
        let group = unsafe { OwnedFd::from_raw_fd(group) };
        let what = libc::FAN_MARK_ADD | libc::FAN_MARK_FILESYSTEM;
        let mask = NAMES | INODES | libc::FAN_ONDIR;
        // SAFETY: [7] Without a path the call reads nothing: it marks what `directory` is on.
        let result = unsafe {
            libc::fanotify_mark(group.as_raw_fd(), what, mask, directory.as_raw_fd(), std::ptr::null())
        };
        if result < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Self { group, buffer: vec![0; BUFFER_BYTES].into() })
    }

    /// Passes the pending events to `sink`, at most one buffer of them. Returns whether there were
    /// any. Does not wait.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn read(&mut self, mut sink: impl FnMut(FsEvent)) -> io::Result<bool> {
        let nr = match rustix::io::read(&self.group, &mut *self.buffer) {
            Ok(nr) => nr,
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => return Ok(false),
            Err(errno) => return Err(errno.into()),
        };
        let mut rest = &self.buffer[..nr];
        while let Some((event, behind)) = split_event(rest) {
            parse_event(event, &mut sink);
            rest = behind;
        }
        Ok(nr > 0)
    }
}

impl AsFd for Fanotify {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.group.as_fd()
    }
}

/// Splits off the first event; returns it and the rest.
fn split_event(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let len = u32::from_ne_bytes(*bytes.first_chunk()?) as usize;
    if len < EVENT_BYTES { None } else { bytes.split_at_checked(len) }
}

fn parse_event(event: &[u8], sink: &mut impl FnMut(FsEvent)) {
    let word = |at: usize| event.get(at..).and_then(|rest| rest.first_chunk::<8>());
    let (Some(mask), Some(pid)) = (word(8).copied(), event.get(20..24).and_then(|pid| pid.first_chunk()))
    else {
        return;
    };
    let (mask, pid) = (u64::from_ne_bytes(mask), i32::from_ne_bytes(*pid));
    if mask & libc::FAN_Q_OVERFLOW != 0 {
        return sink(FsEvent { pid, change: FsChange::Lost });
    }
    let header = usize::from(u16::from_ne_bytes([event[6], event[7]]));
    let mut records = event.get(header..).unwrap_or_default();
    // For a changed name, the inode is not reported; for an inode, the directory does not matter.
    while let Some((record, behind)) = split_record(records) {
        records = behind;
        let Some((handle, name)) = parse_record(record) else { continue };
        match record[0] {
            libc::FAN_EVENT_INFO_TYPE_DFID_NAME if mask & NAMES != 0 => {
                sink(FsEvent { pid, change: FsChange::Name { directory: handle, name: name.into() } });
            }
            libc::FAN_EVENT_INFO_TYPE_FID | libc::FAN_EVENT_INFO_TYPE_DFID if mask & INODES != 0 => {
                let is_written = mask & libc::FAN_CLOSE_WRITE != 0;
                let change = if is_written { FsChange::Written(handle) } else { FsChange::Inode(handle) };
                sink(FsEvent { pid, change });
            }
            // A directory names itself by the name ".".
            libc::FAN_EVENT_INFO_TYPE_DFID_NAME if mask & INODES != 0 && name == b"." => {
                sink(FsEvent { pid, change: FsChange::Inode(handle) });
            }
            _ => {}
        }
    }
}

/// Splits off the first record of an event; returns it and the rest.
fn split_record(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let len = usize::from(u16::from_ne_bytes([*bytes.get(2)?, *bytes.get(3)?]));
    if len < RECORD_BYTES { None } else { bytes.split_at_checked(len) }
}

/// Returns the handle of a record, and the name behind it.
fn parse_record(record: &[u8]) -> Option<(FileHandle, &[u8])> {
    let nr_bytes = u32::from_ne_bytes(*record.get(12..)?.first_chunk()?) as usize;
    let kind = i32::from_ne_bytes(*record.get(16..)?.first_chunk()?);
    let (bytes, rest) = record.get(RECORD_BYTES..)?.split_at_checked(nr_bytes)?;
    let name = rest.split(|&byte| byte == 0).next().unwrap_or_default();
    Some((FileHandle { kind, bytes: bytes.into() }, name))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use rustix::fs::AtFlags;

    use super::*;
    use crate::handle::name_to_handle;

    fn event(mask: u64, records: &[(u8, &[u8], &[u8])]) -> Vec<u8> {
        let mut event = vec![0; EVENT_BYTES];
        event[6] = EVENT_BYTES as u8;
        event[8..16].copy_from_slice(&mask.to_ne_bytes());
        event[20..24].copy_from_slice(&77i32.to_ne_bytes());
        for (kind, handle, name) in records {
            let mut record = vec![*kind, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2];
            record.extend((handle.len() as u32).to_ne_bytes());
            record.extend(5i32.to_ne_bytes());
            record.extend_from_slice(handle);
            record.extend_from_slice(name);
            record.resize(record.len().next_multiple_of(4), 0);
            let len = (record.len() as u16).to_ne_bytes();
            record[2..4].copy_from_slice(&len);
            event.extend(record);
        }
        let len = (event.len() as u32).to_ne_bytes();
        event[..4].copy_from_slice(&len);
        event
    }

    fn changes(bytes: &[u8]) -> Vec<FsChange> {
        let (mut found, mut rest) = (Vec::new(), bytes);
        while let Some((event, behind)) = split_event(rest) {
            parse_event(event, &mut |event| found.push(event.change));
            rest = behind;
        }
        found
    }

    #[test]
    fn events_say_what_has_changed() {
        let handle = |byte| FileHandle { kind: 5, bytes: [byte; 8].into() };
        let mut bytes = event(libc::FAN_CREATE | libc::FAN_ONDIR, &[(2, &[1; 8], b"new\0")]);
        bytes.extend(event(libc::FAN_MODIFY, &[(2, &[1; 8], b"file\0"), (1, &[2; 8], b"")]));
        bytes.extend(event(libc::FAN_ATTRIB | libc::FAN_ONDIR, &[(2, &[3; 8], b".\0")]));
        let mask = libc::FAN_MODIFY | libc::FAN_CLOSE_WRITE;
        bytes.extend(event(mask, &[(2, &[1; 8], b"file\0"), (1, &[2; 8], b"")]));
        bytes.extend(event(libc::FAN_Q_OVERFLOW, &[]));
        assert_eq!(
            changes(&bytes),
            [
                FsChange::Name { directory: handle(1), name: b"new".as_slice().into() },
                FsChange::Inode(handle(2)),
                FsChange::Inode(handle(3)),
                FsChange::Written(handle(2)),
                FsChange::Lost
            ]
        );
    }

    #[test]
    fn no_prefix_of_an_event_and_no_length_is_fatal() {
        let bytes = event(libc::FAN_CREATE, &[(2, &[1; 8], b"new\0"), (1, &[2; 8], b"")]);
        for len in 0..bytes.len() {
            changes(&bytes[..len]);
            let mut event = bytes[..len].to_vec();
            if let Some(start) = event.first_chunk_mut::<4>() {
                *start = (len as u32).to_ne_bytes();
            }
            changes(&event);
        }
        for at in 0..bytes.len() {
            for byte in [0, 1, 127, 255] {
                let mut changed = bytes.clone();
                changed[at] = byte;
                changes(&changed);
            }
        }
    }

    #[test]
    fn what_a_process_changes_is_heard() {
        let dir = tempfile::tempdir().unwrap();
        let fd = fs::File::open(dir.path()).unwrap();
        let Ok(mut fanotify) = Fanotify::of_file_system(fd.as_fd()) else {
            eprintln!("SKIPPED: no permission, or not on this file system");
            return;
        };
        fs::write(dir.path().join("f"), "text").unwrap();
        fs::set_permissions(dir.path(), fs::metadata(dir.path()).unwrap().permissions()).unwrap();
        let handle = |name| name_to_handle(fd.as_fd(), name, AtFlags::EMPTY_PATH).unwrap().0;
        let mut heard = Vec::new();
        // Other processes change the file system, too.
        while fanotify
            .read(|event| heard.extend((event.pid as u32 == std::process::id()).then_some(event.change)))
            .unwrap()
        {}
        let name = FsChange::Name { directory: handle(c""), name: b"f".as_slice().into() };
        for expected in [name, FsChange::Written(handle(c"f")), FsChange::Inode(handle(c""))] {
            assert!(heard.contains(&expected), "{expected:?} in {heard:?}");
        }
    }
}
