//! The plain directory, used with the calls that a program makes.

use std::os::fd::OwnedFd;

use rustix::fs::{AtFlags, CWD, Mode, Timespec, Timestamps};
use rustix::io::Errno;
use umemcg_vfs::{FileKind, OFlags, XattrFlags};

use super::{Answer, NR_SLOTS, Op, PathParts, describe};

/// The plain directory.
pub struct Plain {
    pub root: OwnedFd,
    pub slots: [Option<(OwnedFd, bool)>; NR_SLOTS],
}

impl Plain {
    fn parent(&self, path: &[&str]) -> Result<OwnedFd, Errno> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::DIRECTORY;
        let mut at = rustix::fs::openat(&self.root, ".", flags, Mode::empty())?;
        for part in &path[..path.len() - 1] {
            at = rustix::fs::openat(&at, *part, flags, Mode::empty())?;
        }
        Ok(at)
    }

    fn held(&self, path: &[&str]) -> Result<OwnedFd, Errno> {
        rustix::fs::openat(
            self.parent(path)?,
            path[path.len() - 1],
            OFlags::PATH | OFlags::NOFOLLOW,
            Mode::empty(),
        )
    }

    fn stat(&self, fd: &OwnedFd) -> Answer {
        let stat = rustix::fs::statat(fd, "", AtFlags::EMPTY_PATH)?;
        let kind = FileKind::from_mode(stat.st_mode).unwrap();
        Ok(describe(kind, stat.st_mode, stat.st_nlink as u64, stat.st_uid, stat.st_gid, stat.st_size as u64))
    }

    fn open(&mut self, path: &[&str], flags: OFlags, mode: u32, slot: usize) -> Answer {
        let parent = self.parent(path)?;
        let last = path[path.len() - 1];
        if let Ok(stat) = rustix::fs::statat(&parent, last, AtFlags::SYMLINK_NOFOLLOW)
            && !flags.contains(OFlags::EXCL)
        {
            // What the kernel would not send to a file system.
            match FileKind::from_mode(stat.st_mode).unwrap() {
                FileKind::Regular => {}
                FileKind::Directory => return Err(Errno::ISDIR),
                FileKind::Symlink => return Err(Errno::LOOP),
                _ => return Err(Errno::NXIO),
            }
        }
        let fd = rustix::fs::openat(&parent, last, flags | OFlags::NOFOLLOW, Mode::from_raw_mode(mode))?;
        let answer = self.stat(&fd);
        self.slots[slot] = Some((fd, flags.intersects(OFlags::WRONLY | OFlags::RDWR)));
        answer
    }

    pub fn apply(&mut self, op: &Op) -> Answer {
        let done = |(): ()| String::new();
        let last = |p: &PathParts| p[p.len() - 1];
        let path_of = |fd: &OwnedFd| format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(fd));
        match op {
            Op::Mkdir(p, mode) => {
                let mode = Mode::from_raw_mode(*mode & 0o1777);
                rustix::fs::mkdirat(self.parent(p)?, last(p), mode).map(done)
            }
            Op::Create(p, mode, exclusive, flags, slot) => {
                let exclusive = if *exclusive { OFlags::EXCL } else { OFlags::empty() };
                self.open(p, *flags | OFlags::CREATE | exclusive, *mode, *slot)
            }
            Op::Fifo(p) => {
                let mode = Mode::from_raw_mode(0o644);
                rustix::fs::mknodat(self.parent(p)?, last(p), rustix::fs::FileType::Fifo, mode, 0).map(done)
            }
            Op::Symlink(p) => rustix::fs::symlinkat("a/b", self.parent(p)?, last(p)).map(done),
            Op::Unlink(p) => rustix::fs::unlinkat(self.parent(p)?, last(p), AtFlags::empty()).map(done),
            Op::Rmdir(p) => rustix::fs::unlinkat(self.parent(p)?, last(p), AtFlags::REMOVEDIR).map(done),
            Op::Rename(a, b, flags) => {
                rustix::fs::renameat_with(self.parent(a)?, last(a), self.parent(b)?, last(b), *flags)
                    .map(done)
            }
            Op::Link(a, b) => {
                let held = self.held(a)?;
                let parent = self.parent(b)?;
                rustix::fs::linkat(CWD, path_of(&held), parent, last(b), AtFlags::SYMLINK_FOLLOW).map(done)
            }
            Op::Chmod(p, mode) => {
                rustix::fs::chmod(path_of(&self.held(p)?), Mode::from_raw_mode(*mode)).map(done)
            }
            Op::Chown(p, uid, gid) => {
                let (uid, gid) = (rustix::fs::Uid::from_raw(*uid), rustix::fs::Gid::from_raw(*gid));
                rustix::fs::chownat(self.held(p)?, "", Some(uid), Some(gid), AtFlags::EMPTY_PATH).map(done)
            }
            Op::Truncate(p, len) => {
                let held = self.held(p)?;
                match FileKind::from_mode(rustix::fs::fstat(&held)?.st_mode).unwrap() {
                    FileKind::Regular => {}
                    FileKind::Directory => return Err(Errno::ISDIR),
                    _ => return Err(Errno::INVAL),
                }
                let fd = rustix::fs::open(path_of(&held), OFlags::WRONLY, Mode::empty())?;
                rustix::fs::ftruncate(&fd, *len).map(done)
            }
            Op::Times(p, time) => {
                let time = Timespec { tv_sec: *time, tv_nsec: 17 };
                let times = Timestamps { last_access: time, last_modification: time };
                let held = self.held(p)?;
                rustix::fs::utimensat(&held, "", &times, AtFlags::EMPTY_PATH)?;
                Ok(rustix::fs::fstat(&held)?.st_mtime.to_string())
            }
            Op::SetXattr(p, byte) => {
                rustix::fs::setxattr(path_of(&self.held(p)?), "user.test", &[*byte], XattrFlags::empty())
                    .map(done)
            }
            Op::RemoveXattr(p) => {
                let held = self.held(p)?;
                let path = path_of(&held);
                let mut value = [0u8; 16];
                let len = rustix::fs::getxattr(&path, "user.test", &mut value[..])?;
                rustix::fs::removexattr(&path, "user.test")?;
                Ok(format!("{:?}", &value[..len]))
            }
            Op::Stat(p) => self.stat(&self.held(p)?),
            Op::List(p) => {
                let held = self.held(p)?;
                let flags = OFlags::RDONLY | OFlags::DIRECTORY;
                let fd = rustix::fs::openat(&held, ".", flags, Mode::empty())?;
                let mut names: Vec<String> = rustix::fs::Dir::new(fd)?
                    .map(|e| e.unwrap().file_name().to_string_lossy().into_owned())
                    .collect();
                names.sort();
                Ok(names.join(" "))
            }
            Op::Open(p, flags, slot) => self.open(p, *flags, 0, *slot),
            Op::Close(slot) => {
                self.slots[*slot] = None;
                Ok(String::new())
            }
            Op::SyncAll | Op::DropClean(_) => Ok(String::new()),
            Op::Write(slot, offset, len, byte) => {
                let Some((fd, is_writable)) = &self.slots[*slot] else { return Ok(String::new()) };
                if !is_writable {
                    return Err(Errno::BADF);
                }
                Ok(rustix::io::pwrite(fd, &vec![*byte; *len], *offset)?.to_string())
            }
            Op::Read(slot, offset, len) => {
                let Some((fd, _)) = &self.slots[*slot] else { return Ok(String::new()) };
                // Also of those open for writing only: whether they may, the kernel decides.
                let fd = rustix::fs::open(path_of(fd), OFlags::RDONLY, Mode::empty())?;
                let mut bytes = vec![0; *len];
                let nr_read = rustix::io::pread(&fd, &mut bytes[..], *offset)?;
                Ok(format!("{:?}", &bytes[..nr_read]))
            }
            Op::Cut(slot, len) => {
                let Some((fd, is_writable)) = &self.slots[*slot] else { return Ok(String::new()) };
                if *is_writable { rustix::fs::ftruncate(fd, *len).map(done) } else { Ok(String::new()) }
            }
            Op::Allocate(slot, mode, offset, len) => {
                let Some((fd, is_writable)) = &self.slots[*slot] else { return Ok(String::new()) };
                if !is_writable {
                    return Err(Errno::BADF);
                }
                rustix::fs::fallocate(fd, *mode, *offset, *len).map(done)
            }
            Op::Sync(slot) => {
                let Some((fd, _)) = &self.slots[*slot] else { return Ok(String::new()) };
                self.stat(fd)
            }
        }
    }
}
