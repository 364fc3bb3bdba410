//! Operations on the data of open files, beside those of others on the same files.

use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::fs::{FallocateFlags, OFlags};
use rustix::io::Errno;

use crate::together::disk::CELL;
use crate::together::helper::{Said, Task};
use crate::together::inode::Inode;
use crate::together::model::LEN_MAX;
use crate::together::tree::NR_DIRECTORIES;
use crate::together::user::User;
use crate::together::world::{Stop, World, reopen};

const PAGE: usize = 4096;
/// Each page is a request of its own, which `memory.high` may slow by tenths of a second, and the
/// users of a group take turns.
const NR_MAPPED_MAX: usize = 16;

/// An operation that changes a claimed range, and perhaps the length.
struct Change {
    /// The range that is filled.
    fill: Range<usize>,
    /// The length before, and afterwards.
    old: usize,
    new: usize,
}

impl Change {
    /// The model's side of the beginning.
    fn begin(&self, inode: &Inode, value: u8) {
        inode.data.begin_fill(&self.fill, value);
        if self.new != self.old {
            inode.data.begin_len(self.new);
        }
    }

    /// It has happened up to `done` bytes, and made the file `new` long.
    fn end(&self, inode: &Inode, done: usize, new: usize) {
        inode.data.end_fill(&self.fill, done, self.old.min(self.fill.end));
        match (self.new != self.old, new == self.new) {
            (false, _) => {}
            (true, true) => inode.data.end_len(),
            (true, false) => inode.data.end_len_as(new),
        }
    }

    /// Nothing has happened.
    fn refuse(&self, inode: &Inode) {
        inode.data.end_fill(&self.fill, 0, 0);
        if self.new != self.old {
            inode.data.end_len_as(self.old);
        }
    }
}

impl User {
    /// An open file, and a further descriptor of it.
    fn file(&mut self) -> Option<(Arc<Inode>, OwnedFd)> {
        let at = self.some_file()?;
        let (inode, fd) = &self.open[at];
        Some((Arc::clone(inode), fd.try_clone().expect("a descriptor")))
    }

    /// Some cells; few of them mostly, and sometimes many.
    fn range(&mut self) -> Range<usize> {
        let nr_cells = self.world.len_max / CELL;
        let start = self.random.below(nr_cells);
        let most = [3, 3, 20, 20, 20, nr_cells][self.random.below(6)];
        let len = 1 + self.random.below((nr_cells - start).min(most));
        start * CELL..(start + len) * CELL
    }

    fn value(&mut self) -> u8 {
        1 + self.random.below(255) as u8
    }

    pub fn write(&mut self) -> Result<(), Stop> {
        let Some((inode, mut fd)) = self.file() else { return Ok(()) };
        let (world, range, value) = (Arc::clone(&self.world), self.range(), self.value());
        // Some are durable immediately.
        let is_synchronous = self.random.below(12) == 0;
        if is_synchronous {
            self.begin(format!("open for synchronous writes of inode {}", inode.nr));
            let how = if self.random.below(2) == 0 { OFlags::DSYNC } else { OFlags::SYNC };
            match world.settle(reopen(&fd, OFlags::WRONLY | how))? {
                Ok(other) => fd = other,
                Err(errno) => return self.wrong(&inode, errno),
            }
        }
        let _beside = inode.beside_others();
        // Beyond the end of the file a write changes the length, which is one change at a time.
        let len = inode.data.len();
        let reach = if range.end > len { range.start.min(len)..usize::MAX } else { range.clone() };
        let Some(_claim) = inode.data.claim(reach) else { return Ok(()) };
        let old = inode.data.len();
        if (range.end > len) != (range.end > old) {
            return Ok(());
        }
        let change = Change { fill: range.clone(), old, new: old.max(range.end) };
        let _changing = inode.change();
        self.begin(format!("write of {range:?} = {value} to inode {}, {old} long", inode.nr));
        change.begin(&inode, value);
        let result = world.settle(rustix::io::pwrite(&fd, &vec![value; range.len()], range.start as u64))?;
        // The kernel may send it in two parts, and returns the length of the first if the second
        // fails.
        let is_cut = |nr| world.may_be_full && nr < range.len();
        if is_synchronous && result.map_or_else(|errno| world.is_excused(errno), is_cut) {
            // It was accepted, or not, and could not be made durable.
            if change.new == change.old {
                return Ok(());
            }
            // The kernel does not know the new length, beyond which a mapped read is SIGBUS. It
            // learns it from `fstat`, except beside another change of the attributes, and always
            // from `ftruncate`.
            let len = world.settle(rustix::fs::fstat(&fd).map(|stat| stat.st_size as usize))?;
            let set = len.and_then(|len| rustix::fs::ftruncate(&fd, len as u64).map(|()| len));
            self.tell(&inode, &set);
            return match world.settle(set)? {
                Ok(len) => {
                    inode.data.end_len_as(len);
                    Ok(())
                }
                Err(errno) => self.wrong(&inode, errno),
            };
        }
        if is_synchronous && let Ok(nr) = result {
            self.end_write(&inode, &change, result)?;
            let done = range.start..range.start + nr / CELL * CELL;
            inode.data.is_written_through(&done, change.new != change.old);
            return Ok(());
        }
        self.end_write(&inode, &change, result)
    }

    pub fn append(&mut self) -> Result<(), Stop> {
        let Some((inode, fd)) = self.file() else { return Ok(()) };
        let (world, more) = (Arc::clone(&self.world), CELL * (1 + self.random.below(24)));
        self.begin(format!("open for appending of inode {}", inode.nr));
        let fd = match world.settle(reopen(&fd, OFlags::WRONLY | OFlags::APPEND))? {
            Ok(fd) => fd,
            Err(errno) => return self.wrong(&inode, errno),
        };
        let _beside = inode.beside_others();
        let len = inode.data.len();
        let Some(_claim) = inode.data.claim(len..usize::MAX) else { return Ok(()) };
        if inode.data.len() != len || len + more > world.len_max {
            return Ok(());
        }
        let (range, value) = (len..len + more, self.value());
        let change = Change { fill: range.clone(), old: len, new: range.end };
        let _changing = inode.change();
        self.begin(format!("append of {range:?} = {value} to inode {}", inode.nr));
        change.begin(&inode, value);
        let result = world.settle(rustix::io::write(&fd, &vec![value; more]))?;
        self.end_write(&inode, &change, result)
    }

    fn end_write(
        &mut self,
        inode: &Inode,
        change: &Change,
        result: Result<usize, Errno>,
    ) -> Result<(), Stop> {
        let line =
            result.map(|nr| if nr == change.fill.len() { "whole".into() } else { format!("{nr} bytes") });
        self.what += &format!(" ({line:?})");
        self.tell(inode, &result);
        match result {
            // What went on to the daemon after that is written or not.
            Ok(nr) if nr < change.fill.len() && self.world.may_be_cut() => Err(Stop::Over),
            Ok(nr) => {
                change.end(inode, nr, change.old.max(change.fill.start + nr));
                Ok(())
            }
            Err(errno) if self.world.is_excused(errno) => {
                // The store may have taken a part before it refused the rest: either value from now
                // on.
                change.end(inode, 0, change.old);
                Ok(())
            }
            Err(errno) => self.wrong(inode, errno),
        }
    }

    pub fn truncate(&mut self) -> Result<(), Stop> {
        let Some((inode, fd)) = self.file() else { return Ok(()) };
        let (world, new) = (Arc::clone(&self.world), CELL * self.random.below(self.world.len_max / CELL + 1));
        let _beside = inode.beside_others();
        let before = inode.data.len();
        let Some(_claim) = inode.data.claim(new.min(before)..usize::MAX) else { return Ok(()) };
        let old = inode.data.len();
        if old < before.min(new) {
            return Ok(());
        }
        let (is_open, _changing) = (self.random.below(8) == 0 && new == 0, inode.change());
        self.begin(format!("truncation of inode {} from {old} to {new}", inode.nr));
        let change = Change { fill: new..LEN_MAX, old, new };
        change.begin(&inode, 0);
        let result = if is_open {
            reopen(&fd, OFlags::WRONLY | OFlags::TRUNC).map(drop)
        } else {
            rustix::fs::ftruncate(&fd, new as u64)
        };
        self.end_change(&world, &inode, &change, result)
    }

    /// All or nothing.
    fn end_change(
        &mut self,
        world: &World,
        inode: &Inode,
        change: &Change,
        result: Result<(), Errno>,
    ) -> Result<(), Stop> {
        let result = world.settle(result)?;
        self.tell(inode, &result);
        match result {
            Ok(()) => {
                change.end(inode, change.fill.len(), change.new);
                Ok(())
            }
            Err(errno) if world.is_excused(errno) => {
                change.refuse(inode);
                Ok(())
            }
            Err(errno) => self.wrong(inode, errno),
        }
    }

    pub fn punch(&mut self) -> Result<(), Stop> {
        let Some((inode, fd)) = self.file() else { return Ok(()) };
        let (world, range) = (Arc::clone(&self.world), self.range());
        let _beside = inode.beside_others();
        let Some(_claim) = inode.data.claim(range.clone()) else { return Ok(()) };
        let (old, _changing) = (inode.data.len(), inode.change());
        self.begin(format!("hole {range:?} in inode {}", inode.nr));
        let change = Change { fill: range.clone(), old, new: old };
        change.begin(&inode, 0);
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let result = rustix::fs::fallocate(&fd, flags, range.start as u64, range.len() as u64);
        self.end_change(&world, &inode, &change, result)
    }

    /// `FALLOC_FL_ZERO_RANGE`, which may extend the file.
    pub fn zero(&mut self) -> Result<(), Stop> {
        let Some((inode, fd)) = self.file() else { return Ok(()) };
        let (world, range, keeps) = (Arc::clone(&self.world), self.range(), self.random.below(2) == 0);
        let _beside = inode.beside_others();
        let Some(_claim) = inode.data.claim(range.start.min(inode.data.len())..usize::MAX) else {
            return Ok(());
        };
        let (old, _changing) = (inode.data.len(), inode.change());
        if old < range.start {
            return Ok(());
        }
        let new = if keeps { old } else { old.max(range.end) };
        self.begin(format!("zeroes at {range:?} of inode {}, then {new} long", inode.nr));
        let change = Change { fill: range.clone(), old, new };
        change.begin(&inode, 0);
        let flags = if keeps { FallocateFlags::KEEP_SIZE } else { FallocateFlags::empty() };
        let flags = flags | FallocateFlags::ZERO_RANGE;
        let result = rustix::fs::fallocate(&fd, flags, range.start as u64, range.len() as u64);
        match (world.zero_range, result) {
            (Err(should), Err(is)) if is == should => {
                change.refuse(&inode);
                Ok(())
            }
            (_, result) => self.end_change(&world, &inode, &change, result),
        }
    }

    /// `fallocate` that may extend the file.
    pub fn allocate(&mut self) -> Result<(), Stop> {
        let Some((inode, fd)) = self.file() else { return Ok(()) };
        let (world, range) = (Arc::clone(&self.world), self.range());
        let _beside = inode.beside_others();
        let len = inode.data.len();
        let Some(_claim) = inode.data.claim(len..usize::MAX) else { return Ok(()) };
        let (old, _changing) = (inode.data.len(), inode.change());
        self.begin(format!("allocation of {range:?} of inode {}, {old} long", inode.nr));
        let change = Change { fill: old..old, old, new: old.max(range.end) };
        change.begin(&inode, 0);
        let flags = FallocateFlags::empty();
        let result = rustix::fs::fallocate(&fd, flags, range.start as u64, range.len() as u64);
        self.end_change(&world, &inode, &change, result)
    }

    pub fn sync(&mut self) -> Result<(), Stop> {
        let Some((inode, fd)) = self.file() else { return Ok(()) };
        let (world, data_only) = (Arc::clone(&self.world), self.random.below(2) == 0);
        self.begin(format!("{} of inode {}", if data_only { "fdatasync" } else { "fsync" }, inode.nr));
        let since = inode.data.begin_sync();
        let result = if data_only { rustix::fs::fdatasync(&fd) } else { rustix::fs::fsync(&fd) };
        let result = world.settle(result)?;
        self.tell(&inode, &result);
        match result {
            Ok(()) => {
                inode.data.is_synced(since);
                Ok(())
            }
            Err(errno) if world.is_excused(errno) => Ok(()),
            Err(errno) => self.wrong(&inode, errno),
        }
    }

    /// A directory made durable; names are as soon as they are made.
    pub fn sync_directory(&mut self) -> Result<(), Stop> {
        let (world, directory) = (Arc::clone(&self.world), self.random.below(NR_DIRECTORIES));
        self.begin(format!("fsync of d{directory}"));
        let open = world.open(&format!("d{directory}"), OFlags::RDONLY | OFlags::DIRECTORY);
        match world.settle(open.and_then(rustix::fs::fsync))? {
            Err(errno) if !world.is_excused(errno) => Stop::wrong(errno.to_string()),
            _ => Ok(()),
        }
    }

    /// A part of a file written in pieces that are under way together.
    pub fn write_asynchronously(&mut self) -> Result<(), Stop> {
        let Some((inode, fd)) = self.file() else { return Ok(()) };
        let (world, range, value) = (Arc::clone(&self.world), self.range(), self.value());
        let _beside = inode.beside_others();
        let Some(_claim) = inode.data.claim(range.clone()) else { return Ok(()) };
        let old = inode.data.len();
        if range.end > old {
            return Ok(());
        }
        let (change, _changing) = (Change { fill: range.clone(), old, new: old }, inode.change());
        self.begin(format!("asynchronous write of {range:?} = {value} to inode {}", inode.nr));
        change.begin(&inode, value);
        let written =
            world.helpers[self.group()].ask(Task::WriteAsynchronously(value), &fd, range.start, range.len());
        self.what += &format!(" ({written:?})");
        self.tell(&inode, &Ok(()));
        match written {
            Ok(Said::Done(_)) => {
                change.end(&inode, range.len(), old);
                Ok(())
            }
            _ if world.is_dying() => Err(Stop::Over),
            // Of a write that a full store has taken in part the kernel says EIO.
            Ok(Said::Refused(errno)) if world.may_be_full && errno == Errno::IO.raw_os_error() => Ok(()),
            Ok(Said::Refused(errno)) if world.is_excused(Errno::from_raw_os_error(errno)) => Ok(()),
            other => self.wrong(&inode, format_args!("{other:?}")),
        }
    }

    /// Read in pieces that are under way together.
    pub fn read_asynchronously(&mut self) -> Result<(), Stop> {
        let Some((inode, fd)) = self.file() else { return Ok(()) };
        let (world, range) = (Arc::clone(&self.world), self.range());
        let _beside = inode.beside_others();
        // The file becomes no shorter meanwhile, so that no piece is.
        let Some(_claim) = inode.data.claim(range.clone()) else { return Ok(()) };
        if range.end > inode.data.len() {
            return Ok(());
        }
        self.begin(format!("asynchronous read of {range:?} of inode {}", inode.nr));
        self.read_by_helper(&world, &inode, &fd, Task::ReadAsynchronously, range)
    }

    fn read_by_helper(
        &mut self,
        world: &World,
        inode: &Inode,
        fd: &OwnedFd,
        task: Task,
        range: Range<usize>,
    ) -> Result<(), Stop> {
        let since = inode.data.begin_read();
        let said = world.helpers[self.group()].ask(task, fd, range.start, range.len());
        let got = match &said {
            Ok(Said::Done(bytes)) => Some(&bytes[..]),
            _ => None,
        };
        let checked = inode.data.end_read(since, range.start, range.len(), got);
        match said {
            Ok(Said::Done(_)) => checked.or_else(|why| self.wrong(inode, why)),
            _ if world.is_dying() => Err(Stop::Over),
            // The kernel writes mapped pages back before it reads past its cache.
            Ok(Said::Refused(errno)) if world.is_excused(Errno::from_raw_os_error(errno)) => Ok(()),
            other => self.wrong(inode, format_args!("{other:?}")),
        }
    }

    pub fn read(&mut self) -> Result<(), Stop> {
        let mut range = self.range();
        // Not only whole cells.
        range.start += self.random.below(CELL);
        self.read_range(range.start..range.end.max(range.start + 1))
    }

    pub fn read_all(&mut self) -> Result<(), Stop> {
        self.read_range(0..LEN_MAX)
    }

    fn read_range(&mut self, range: Range<usize>) -> Result<(), Stop> {
        let Some((inode, fd)) = self.file() else { return Ok(()) };
        let (world, mut bytes) = (Arc::clone(&self.world), vec![0xee; range.len()]);
        let _beside = inode.beside_others();
        self.begin(format!("read of {range:?} of inode {}", inode.nr));
        let since = inode.data.begin_read();
        let result = world.settle(rustix::io::pread(&fd, &mut bytes[..], range.start as u64));
        let got = result.as_ref().ok().and_then(|result| result.ok()).map(|nr| &bytes[..nr]);
        let len = if world.may_be_cut() { got.map_or(0, <[u8]>::len) } else { range.len() };
        let checked = inode.data.end_read(since, range.start, len, got);
        match result? {
            Ok(_) => checked.or_else(|why| self.wrong(&inode, why)),
            // The kernel writes mapped pages back before it reads past its cache.
            Err(errno) if world.is_excused(errno) => Ok(()),
            Err(errno) => self.wrong(&inode, errno),
        }
    }

    /// Whole pages that lie in the file: what is mapped is written back by the page.
    fn mapped_range(&mut self, inode: &Inode) -> Option<Range<usize>> {
        let (range, nr_pages) = (self.range(), inode.data.len() / PAGE);
        let first = range.start / PAGE;
        let range = first..range.end.div_ceil(PAGE).min(nr_pages).min(first + NR_MAPPED_MAX);
        (!range.is_empty()).then_some(range.start * PAGE..range.end * PAGE)
    }

    pub fn map_read(&mut self) -> Result<(), Stop> {
        let Some((inode, fd)) = self.file() else { return Ok(()) };
        let world = Arc::clone(&self.world);
        let _beside = inode.beside_others();
        let Some(range) = self.mapped_range(&inode) else { return Ok(()) };
        // While it is being changed a page may come into the kernel's cache as it was, and stay so.
        let Some(_claim) = inode.data.claim(range.clone()) else { return Ok(()) };
        if range.end > inode.data.len() {
            return Ok(());
        }
        self.begin(format!("mapped read of {range:?} of inode {}", inode.nr));
        self.read_by_helper(&world, &inode, &fd, Task::ReadMapped, range)
    }

    pub fn map_write(&mut self) -> Result<(), Stop> {
        let Some((inode, fd)) = self.file() else { return Ok(()) };
        let (world, value) = (Arc::clone(&self.world), self.value());
        let _beside = inode.beside_others();
        let Some(range) = self.mapped_range(&inode) else { return Ok(()) };
        let Some(_claim) = inode.data.claim(range.clone()) else { return Ok(()) };
        let old = inode.data.len();
        if range.end > old {
            return Ok(());
        }
        let (change, _changing) = (Change { fill: range.clone(), old, new: old }, inode.change());
        self.begin(format!("mapped write of {range:?} = {value} to inode {}", inode.nr));
        change.begin(&inode, value);
        let since = inode.data.begin_sync();
        let mapped = world.helpers[self.group()].ask(Task::WriteMapped(value), &fd, range.start, range.len());
        self.what += &format!(" ({mapped:?})");
        self.tell(&inode, &Ok(()));
        match mapped {
            Ok(Said::Done(_)) => {
                change.end(&inode, range.len(), old);
                // It has gone through msync, which makes all of the file durable.
                inode.data.is_synced(since);
                Ok(())
            }
            _ if world.is_dying() => Err(Stop::Over),
            // What the kernel could not write it shows all the same, as long as it has the page:
            // either value.
            Ok(Said::Refused(errno)) if world.is_excused(Errno::from_raw_os_error(errno)) => Ok(()),
            other => self.wrong(&inode, format_args!("{other:?}")),
        }
    }
}
