//! A volume of any kind, used as the kernel uses one.

use std::collections::BTreeMap;
use std::sync::Arc;

use rustix::io::Errno;
use umemcg_vfs::{
    Caller, Entry, FileKind, NodeId, OFlags, SetAttr, SetTime, Timestamp, Volume, VolumeFile, XattrFlags,
};

use super::{Answer, NR_SLOTS, Op, PathParts, describe};
use crate::common::{ROOT, name};

/// The volume and what the kernel holds of it.
pub struct Mounted {
    pub volume: Arc<dyn Volume>,
    pub caller: Caller,
    pub slots: [Option<Arc<dyn VolumeFile>>; NR_SLOTS],
    /// Lookups that the "kernel" still holds.
    pub held: BTreeMap<NodeId, u64>,
}

impl Mounted {
    pub fn new(volume: Arc<dyn Volume>, caller: Caller) -> Self {
        Self { volume, caller, slots: Default::default(), held: BTreeMap::new() }
    }

    fn hold(&mut self, entry: Entry) -> Entry {
        *self.held.entry(entry.node).or_default() += 1;
        entry
    }

    pub fn forget_all(&mut self) {
        for (node, count) in std::mem::take(&mut self.held) {
            self.volume.forget(node, count);
        }
    }

    fn parent(&mut self, path: &[&str]) -> Result<NodeId, Errno> {
        let mut at = ROOT;
        for part in &path[..path.len() - 1] {
            let entry = self.volume.lookup(&self.caller, at, name(part)).map_err(|e| e.errno())?;
            at = self.hold(entry).node;
            if FileKind::from_mode(entry.attr.mode) != Some(FileKind::Directory) {
                return Err(Errno::NOTDIR);
            }
        }
        Ok(at)
    }

    fn find(&mut self, path: &[&str]) -> Result<Entry, Errno> {
        let parent = self.parent(path)?;
        let last = name(path[path.len() - 1]);
        let entry = self.volume.lookup(&self.caller, parent, last).map_err(|e| e.errno())?;
        Ok(self.hold(entry))
    }

    fn describe(attr: &umemcg_vfs::Attr) -> String {
        let kind = FileKind::from_mode(attr.mode).unwrap();
        describe(kind, attr.mode, u64::from(attr.nlink), attr.uid, attr.gid, attr.size)
    }

    fn set(&mut self, path: &[&str], change: SetAttr) -> Result<umemcg_vfs::Attr, Errno> {
        let node = self.find(path)?.node;
        self.volume.setattr(&self.caller, node, &change).map_err(|e| e.errno())
    }

    pub fn apply(&mut self, op: &Op) -> Answer {
        let no = |error: umemcg_vfs::VfsError| error.errno();
        let done = |(): ()| String::new();
        let last = |p: &PathParts| name(p[p.len() - 1]);
        let caller = self.caller.clone();
        let vfs = Arc::clone(&self.volume);
        match op {
            Op::Mkdir(p, mode) => {
                let parent = self.parent(p)?;
                let made = vfs.mkdir(&caller, parent, last(p), *mode).map_err(no)?;
                self.hold(made);
            }
            Op::Create(p, mode, exclusive, flags, slot) => {
                let parent = self.parent(p)?;
                let flags = *flags | if *exclusive { OFlags::EXCL } else { OFlags::empty() };
                let (entry, file) = vfs.create(&caller, parent, last(p), *mode, flags).map_err(no)?;
                self.hold(entry);
                self.slots[*slot] = Some(file);
                return Ok(Self::describe(&entry.attr));
            }
            Op::Fifo(p) => {
                let parent = self.parent(p)?;
                let made = vfs.mknod(&caller, parent, last(p), 0o010_644, 0).map_err(no)?;
                self.hold(made);
            }
            Op::Symlink(p) => {
                let parent = self.parent(p)?;
                let made = vfs.symlink(&caller, parent, last(p), name("a/b")).map_err(no)?;
                self.hold(made);
            }
            Op::Unlink(p) => {
                return vfs.unlink(&caller, self.parent(p)?, last(p)).map(|_| done(())).map_err(no);
            }
            Op::Rmdir(p) => return vfs.rmdir(&caller, self.parent(p)?, last(p)).map(done).map_err(no),
            Op::Rename(a, b, flags) => {
                let (from, to) = (self.parent(a)?, self.parent(b)?);
                return vfs.rename(&caller, from, last(a), to, last(b), *flags).map(|_| done(())).map_err(no);
            }
            Op::Link(a, b) => {
                let node = self.find(a)?.node;
                let parent = self.parent(b)?;
                let made = vfs.link(&caller, node, parent, last(b)).map_err(no)?;
                self.hold(made);
            }
            Op::Chmod(p, mode) => {
                if let FileKind::Symlink = FileKind::from_mode(self.find(p)?.attr.mode).unwrap() {
                    // The kernel does not ask.
                    return Err(Errno::OPNOTSUPP);
                }
                self.set(p, SetAttr { mode: Some(*mode), ..SetAttr::default() })?;
            }
            Op::Chown(p, uid, gid) => {
                self.set(p, SetAttr { uid: Some(*uid), gid: Some(*gid), ..SetAttr::default() })?;
            }
            Op::Truncate(p, len) => {
                self.set(p, SetAttr { size: Some(*len), ..SetAttr::default() })?;
            }
            Op::Times(p, time) => {
                let time = Some(SetTime::At(Timestamp { seconds: *time, nanoseconds: 17 }));
                let attr = self.set(p, SetAttr { atime: time, mtime: time, ..SetAttr::default() })?;
                return Ok(attr.mtime.seconds.to_string());
            }
            Op::SetXattr(p, byte) => {
                let node = self.find(p)?.node;
                let set =
                    vfs.setxattr(&caller, node, name("user.test"), &[*byte], XattrFlags::empty(), false);
                return set.map(done).map_err(no);
            }
            Op::RemoveXattr(p) => {
                let node = self.find(p)?.node;
                let value = vfs.getxattr(node, name("user.test")).map_err(no)?;
                vfs.removexattr(&caller, node, name("user.test")).map_err(no)?;
                return Ok(format!("{value:?}"));
            }
            Op::Stat(p) => return Ok(Self::describe(&self.find(p)?.attr)),
            Op::List(p) => {
                let node = self.find(p)?.node;
                let handle = vfs.opendir(&caller, node).map_err(no)?;
                let mut names = Vec::new();
                let mut seen = Vec::new();
                handle
                    .readdirplus(&caller, 0, &mut |entry| {
                        names.push(entry.name.to_string_lossy().into_owned());
                        seen.extend(entry.entry);
                        true
                    })
                    .map_err(no)?;
                for entry in seen {
                    self.hold(entry);
                }
                names.sort();
                return Ok(names.join(" "));
            }
            Op::Open(p, flags, slot) => {
                let node = self.find(p)?.node;
                let file = vfs.open(&caller, node, *flags).map_err(no)?;
                let answer = Self::describe(&file.getattr().map_err(no)?);
                self.slots[*slot] = Some(file);
                return Ok(answer);
            }
            Op::Close(slot) => self.slots[*slot] = None,
            Op::SyncAll => {
                vfs.syncfs().map_err(no)?;
                self.forget_all();
            }
            Op::DropClean(slot) => {
                if let Some(file) = &self.slots[*slot] {
                    // What lives in memory alone has nothing that could be dropped.
                    file.content().invalidate_clean();
                }
            }
            Op::Write(slot, offset, len, byte) => {
                let Some(file) = &self.slots[*slot] else { return Ok(String::new()) };
                let data = vec![*byte; *len];
                let group = &caller.group;
                let written = match file.try_write(group, *offset, &data, false) {
                    Some(written) => written,
                    None => file.write(group, *offset, &data, false).map_err(no)?,
                };
                return Ok(written.to_string());
            }
            Op::Read(slot, offset, len) => {
                let Some(file) = &self.slots[*slot] else { return Ok(String::new()) };
                let pages = match file.try_read(*offset, *len) {
                    Some(pages) => pages,
                    None => file.read(&caller.group, *offset, *len).map_err(no)?,
                };
                return Ok(format!("{:?}", pages.to_vec()));
            }
            Op::Cut(slot, len) => {
                let Some(file) = self.slots[*slot].clone().filter(|f| f.is_writable()) else {
                    return Ok(String::new());
                };
                let change = SetAttr { size: Some(*len), ..SetAttr::default() };
                file.setattr(&caller, &change).map_err(no)?;
            }
            Op::Allocate(slot, mode, offset, len) => {
                let Some(file) = &self.slots[*slot] else { return Ok(String::new()) };
                return file.fallocate(&caller.group, *mode, *offset, *len, false).map(done).map_err(no);
            }
            Op::Sync(slot) => {
                let Some(file) = &self.slots[*slot] else { return Ok(String::new()) };
                file.fsync(false).map_err(no)?;
                return Ok(Self::describe(&file.getattr().map_err(no)?));
            }
        }
        Ok(String::new())
    }

    /// The tree as the volume shows it: path to attributes and content.
    pub fn tree(&mut self) -> BTreeMap<String, String> {
        let mut all = BTreeMap::new();
        let mut left = vec![(ROOT, String::new())];
        while let Some((node, path)) = left.pop() {
            let mut found = Vec::new();
            let directory = self.volume.opendir(&self.caller, node).unwrap();
            let mut take = |entry: &umemcg_vfs::DirEntry<'_>| {
                let Some(found_entry) = entry.entry else { return true };
                found.push((entry.name.to_string_lossy().into_owned(), found_entry));
                true
            };
            directory.readdirplus(&self.caller, 0, &mut take).unwrap();
            for (name, entry) in found {
                let node = self.hold(entry).node;
                let below = if path.is_empty() { name } else { format!("{path}/{name}") };
                let mut text = Self::describe(&entry.attr);
                match FileKind::from_mode(entry.attr.mode) {
                    Some(FileKind::Directory) => left.push((node, below.clone())),
                    Some(FileKind::Regular) if entry.attr.size < 1 << 20 => {
                        let file = self.volume.open(&self.caller, node, OFlags::RDONLY).unwrap();
                        let bytes = file.read(&self.caller.group, 0, 1 << 20).unwrap().to_vec();
                        text += &format!(" {bytes:?}");
                    }
                    _ => {}
                }
                all.insert(below, text);
            }
        }
        self.forget_all();
        all
    }
}
