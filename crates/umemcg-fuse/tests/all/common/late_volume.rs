//! A volume of a few files that are only read, in a store that begins reads and answers them from
//! one thread, when the test lets it.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex};

use rustix::io::Errno;
use umemcg::files::{
    Arena, BackingStore, File, PinnedPages, ReadStep, Readahead, Segment, StartedRead, StoreId, StoreRead,
};
use umemcg::{Engine, Group};
use umemcg_vfs::{
    Attr, Attributes, Caller, Create, Entry, FallocateFlags, Lookup, Names, NodeId, OFlags, Open,
    RenameFlags, SetAttr, StatFs, Timestamp, VfsError, Volume, VolumeDir, VolumeFile, VolumeKind, Whence,
    XattrFlags, Xattrs,
};

/// Node of the first file; the next has the next.
const FIRST: u64 = 2;

type Reads = VecDeque<(StoreRead, Arc<Vec<u8>>)>;

/// What has been begun, and the thread that answers it.
#[derive(Default)]
pub struct Answerer {
    reads: Mutex<(bool, Reads)>,
    changed: Condvar,
}

impl std::fmt::Debug for Answerer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Answerer")
    }
}

impl Answerer {
    fn start() -> Arc<Self> {
        let this = Arc::<Self>::default();
        let answerer = Arc::clone(&this);
        std::thread::spawn(move || {
            let mut reads = answerer.reads.lock().unwrap();
            loop {
                let next = if reads.0 { reads.1.pop_front() } else { None };
                let Some((mut read, bytes)) = next else {
                    reads = answerer.changed.wait(reads).unwrap();
                    continue;
                };
                drop(reads);
                let start = bytes.len().min(read.offset() as usize);
                read.deliver(&bytes[start..bytes.len().min(start + read.len())]);
                read.finish(Ok(()));
                reads = answerer.reads.lock().unwrap();
            }
        });
        this
    }

    /// Answers from now on.
    pub fn answer(&self) {
        self.reads.lock().unwrap().0 = true;
        self.changed.notify_all();
    }

    /// Returns how many reads wait for an answer.
    pub fn nr_begun(&self) -> usize {
        self.reads.lock().unwrap().1.len()
    }
}

#[derive(Debug)]
struct LateStore {
    bytes: Arc<Vec<u8>>,
    answerer: Arc<Answerer>,
}

impl BackingStore for LateStore {
    fn store_id(&self) -> StoreId {
        StoreId(1 << 20)
    }
    fn read_at(&self, _: &Arena, _: &[Segment], _: u64) -> io::Result<usize> {
        panic!("a thread waits for the store");
    }
    fn begins_reads(&self) -> bool {
        true
    }
    fn begin_read(&self, read: StoreRead) {
        self.answerer.reads.lock().unwrap().1.push_back((read, Arc::clone(&self.bytes)));
        self.answerer.changed.notify_all();
    }
    fn write_at(&self, _: &Arena, _: &[Segment], _: u64) -> io::Result<usize> {
        Err(io::ErrorKind::Unsupported.into())
    }
    fn sync_range(&self, _: u64, _: u64) -> io::Result<()> {
        Ok(())
    }
    fn sync(&self, _: bool) -> io::Result<()> {
        Ok(())
    }
    fn set_len(&self, _: u64) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

/// See the module text. Files are named `0`, `1` …
#[derive(Debug)]
pub struct LateVolume {
    pub files: Vec<Arc<File>>,
    pub answerer: Arc<Answerer>,
}

impl LateVolume {
    pub fn new(engine: &Engine, contents: Vec<Vec<u8>>) -> Arc<Self> {
        let answerer = Answerer::start();
        let open = |bytes: Vec<u8>| {
            let len = bytes.len() as u64;
            let store = LateStore { bytes: Arc::new(bytes), answerer: Arc::clone(&answerer) };
            engine.open_file(Arc::new(store), len).unwrap()
        };
        Arc::new(Self { files: contents.into_iter().map(open).collect(), answerer })
    }

    fn file(&self, node: NodeId) -> Result<&Arc<File>, VfsError> {
        let at = node.0.checked_sub(FIRST).ok_or(Errno::ISDIR)?;
        Ok(self.files.get(at as usize).ok_or(Errno::NOENT)?)
    }
}

fn attr(node: NodeId, mode: u32, size: u64) -> Attr {
    let time = Timestamp::default();
    Attr {
        ino: node.0,
        size,
        blocks: size / 512,
        mode,
        nlink: 1,
        uid: 0,
        gid: 0,
        rdev: 0,
        atime: time,
        mtime: time,
        ctime: time,
        btime: None,
        blksize: 4096,
    }
}

fn read_only<T>() -> Result<T, VfsError> {
    Err(Errno::ROFS.into())
}

impl Volume for LateVolume {
    fn kind(&self) -> VolumeKind {
        VolumeKind::Tmpfs { size_bytes: None, used_bytes: 0 }
    }
    fn store_id(&self) -> StoreId {
        StoreId(1 << 20)
    }
    fn path_of(&self, _: NodeId) -> Option<PathBuf> {
        None
    }
    fn path_of_content(&self, _: &Arc<File>) -> Option<PathBuf> {
        None
    }
    fn syncfs(&self) -> Result<(), VfsError> {
        Ok(())
    }
    fn nodes_end(&self) -> u64 {
        FIRST + self.files.len() as u64
    }
    fn abandon(&self) {}
}

impl Lookup for LateVolume {
    fn lookup(&self, _: &Caller, _: NodeId, name: &OsStr) -> Result<Entry, VfsError> {
        let number: u64 = name.to_str().and_then(|name| name.parse().ok()).ok_or(Errno::NOENT)?;
        let node = NodeId(FIRST + number);
        Ok(Entry { node, generation: 0, attr: self.getattr(node)? })
    }
    fn forget(&self, _: NodeId, _: u64) {}
}

impl Attributes for LateVolume {
    fn getattr(&self, node: NodeId) -> Result<Attr, VfsError> {
        match node {
            NodeId::ROOT => Ok(attr(node, 0o040_755, 0)),
            _ => Ok(attr(node, 0o100_644, self.file(node)?.len())),
        }
    }
    fn setattr(&self, _: &Caller, _: NodeId, _: &SetAttr) -> Result<Attr, VfsError> {
        read_only()
    }
    fn readlink(&self, _: NodeId) -> Result<OsString, VfsError> {
        Err(Errno::INVAL.into())
    }
    fn statfs(&self) -> Result<StatFs, VfsError> {
        Err(Errno::NOSYS.into())
    }
}

impl Create for LateVolume {
    fn symlink(&self, _: &Caller, _: NodeId, _: &OsStr, _: &OsStr) -> Result<Entry, VfsError> {
        read_only()
    }
    fn mknod(&self, _: &Caller, _: NodeId, _: &OsStr, _: u32, _: u64) -> Result<Entry, VfsError> {
        read_only()
    }
    fn mkdir(&self, _: &Caller, _: NodeId, _: &OsStr, _: u32) -> Result<Entry, VfsError> {
        read_only()
    }
    fn create(
        &self,
        _: &Caller,
        _: NodeId,
        _: &OsStr,
        _: u32,
        _: OFlags,
    ) -> Result<(Entry, Arc<dyn VolumeFile>), VfsError> {
        read_only()
    }
    fn tmpfile(
        &self,
        _: &Caller,
        _: NodeId,
        _: u32,
        _: OFlags,
    ) -> Result<(Entry, Arc<dyn VolumeFile>), VfsError> {
        read_only()
    }
}

impl Names for LateVolume {
    fn unlink(&self, _: &Caller, _: NodeId, _: &OsStr) -> Result<Option<NodeId>, VfsError> {
        read_only()
    }
    fn rmdir(&self, _: &Caller, _: NodeId, _: &OsStr) -> Result<(), VfsError> {
        read_only()
    }
    fn rename(
        &self,
        _: &Caller,
        _: NodeId,
        _: &OsStr,
        _: NodeId,
        _: &OsStr,
        _: RenameFlags,
    ) -> Result<[Option<NodeId>; 2], VfsError> {
        read_only()
    }
    fn link(&self, _: &Caller, _: NodeId, _: NodeId, _: &OsStr) -> Result<Entry, VfsError> {
        read_only()
    }
}

impl Open for LateVolume {
    fn open(&self, caller: &Caller, node: NodeId, _: OFlags) -> Result<Arc<dyn VolumeFile>, VfsError> {
        let (content, group) = (Arc::clone(self.file(node)?), Arc::clone(&caller.group));
        Ok(Arc::new(LateFile { node, content, group, readahead: Readahead::new() }))
    }
    fn opendir(&self, _: &Caller, _: NodeId) -> Result<Arc<dyn VolumeDir>, VfsError> {
        Err(Errno::NOSYS.into())
    }
}

impl Xattrs for LateVolume {
    fn getxattr(&self, _: NodeId, _: &OsStr) -> Result<Vec<u8>, VfsError> {
        Err(Errno::NODATA.into())
    }
    fn setxattr(
        &self,
        _: &Caller,
        _: NodeId,
        _: &OsStr,
        _: &[u8],
        _: XattrFlags,
        _: bool,
    ) -> Result<(), VfsError> {
        read_only()
    }
    fn listxattr(&self, _: &Caller, _: NodeId) -> Result<Vec<u8>, VfsError> {
        Ok(Vec::new())
    }
    fn removexattr(&self, _: &Caller, _: NodeId, _: &OsStr) -> Result<(), VfsError> {
        read_only()
    }
}

#[derive(Debug)]
struct LateFile {
    node: NodeId,
    content: Arc<File>,
    group: Arc<Group>,
    readahead: Readahead,
}

impl VolumeFile for LateFile {
    fn node(&self) -> NodeId {
        self.node
    }
    fn content(&self) -> &Arc<File> {
        &self.content
    }
    fn group(&self) -> &Arc<Group> {
        &self.group
    }
    fn is_writable(&self) -> bool {
        false
    }
    fn try_read(&self, offset: u64, len: usize) -> Option<PinnedPages<'_>> {
        self.content.try_read(offset, len, &self.readahead)
    }
    fn read(&self, group: &Arc<Group>, offset: u64, len: usize) -> Result<PinnedPages<'_>, VfsError> {
        Ok(self.content.read(group, offset, len, &self.readahead)?)
    }
    fn step_read(&self, group: &Arc<Group>, read: StartedRead) -> Result<ReadStep<'_>, VfsError> {
        Ok(self.content.step_read(group, read, &self.readahead)?)
    }
    fn try_write(&self, _: &Arc<Group>, _: u64, _: &[u8], _: bool) -> Option<usize> {
        None
    }
    fn write(&self, _: &Arc<Group>, _: u64, _: &[u8], _: bool) -> Result<usize, VfsError> {
        read_only()
    }
    fn write_mapped(&self, _: &Arc<Group>, _: u64, _: &[u8]) -> Result<usize, VfsError> {
        read_only()
    }
    fn flush(&self) -> Result<(), VfsError> {
        Ok(())
    }
    fn fsync(&self, _: bool) -> Result<(), VfsError> {
        Ok(())
    }
    fn fallocate(&self, _: &Arc<Group>, _: FallocateFlags, _: u64, _: u64, _: bool) -> Result<(), VfsError> {
        read_only()
    }
    fn lseek(&self, _: Whence, _: u64) -> Result<u64, VfsError> {
        Err(Errno::INVAL.into())
    }
    fn getattr(&self) -> Result<Attr, VfsError> {
        Ok(attr(self.node, 0o100_644, self.content.len()))
    }
    fn setattr(&self, _: &Caller, _: &SetAttr) -> Result<Attr, VfsError> {
        read_only()
    }
}
