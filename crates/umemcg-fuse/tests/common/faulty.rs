//! A small file system whose store fails, stalls, is full, is short or hangs as a test says; it remembers what was synced.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use rustix::io::Errno;
use umemcg_fuse::wire::reply::{Attr, AttrOut, EntryOut, OpenOut};
use umemcg_fuse::wire::{DirBuffer, Op, open_reply, setattr_valid};
use umemcg_fuse::{Asked, Filesystem, Keys, Reply, Step};

/// A door that can be shut again.
#[derive(Default)]
struct Door {
    is_shut: Mutex<bool>,
    moved: Condvar,
}

impl Door {
    fn set(&self, shut: bool) {
        *self.is_shut.lock().unwrap() = shut;
        self.moved.notify_all();
    }
    fn pass(&self) {
        let mut shut = self.is_shut.lock().unwrap();
        while *shut {
            shut = self.moved.wait(shut).unwrap();
        }
    }
}

#[derive(Default, Clone)]
struct Contents {
    live: Vec<u8>,
    synced: Vec<u8>,
}

/// See the file's head. Files are those that it is made with; all of them exist from the start, empty.
#[derive(Default)]
pub struct Faulty {
    names: Vec<String>,
    files: Mutex<HashMap<u64, Contents>>,
    /// errno of all writes and of all syncs; 0 for none.
    pub write_errno: AtomicI32,
    pub sync_errno: AtomicI32,
    /// Only files whose name starts with `bad` fail.
    pub only_bad: AtomicBool,
    /// Bytes of all files together that fit; 0 for no bound. Beyond, writes are ENOSPC.
    pub capacity: AtomicU64,
    /// At most so many bytes of a write are taken; 0 for all.
    pub short: AtomicUsize,
    /// Each write and sync takes so long, in milliseconds.
    pub stall_ms: AtomicU64,
    door: Door,
    /// Calls that were refused.
    pub nr_refused: AtomicU64,
    /// Calls that stand at the door or stall now.
    pub nr_waiting: AtomicU64,
}

impl Faulty {
    pub fn with(names: &[&str]) -> Arc<Self> {
        let files = (2..2 + names.len() as u64).map(|node| (node, Contents::default())).collect();
        let names = names.iter().map(|&name| name.to_owned()).collect();
        Arc::new(Self { names, files: Mutex::new(files), ..Default::default() })
    }

    /// From now on no write or sync returns.
    pub fn hang(&self) {
        self.door.set(true);
    }

    /// All is well again.
    pub fn heal(&self) {
        for errno in [&self.write_errno, &self.sync_errno] {
            errno.store(0, Ordering::SeqCst);
        }
        for number in [&self.capacity, &self.stall_ms] {
            number.store(0, Ordering::SeqCst);
        }
        self.short.store(0, Ordering::SeqCst);
        self.door.set(false);
    }

    fn contents(&self, name: &str) -> Contents {
        let at = self.names.iter().position(|known| known == name).unwrap();
        self.files.lock().unwrap()[&(at as u64 + 2)].clone()
    }

    pub fn live(&self, name: &str) -> Vec<u8> {
        self.contents(name).live
    }

    /// What the file was when it was last synced.
    pub fn synced(&self, name: &str) -> Vec<u8> {
        self.contents(name).synced
    }

    fn attr(&self, node: u64) -> Attr {
        let nlink = 1;
        if node == 1 {
            return Attr { ino: 1, mode: 0o040755, nlink, blksize: 4096, ..Default::default() };
        }
        let size = self.files.lock().unwrap()[&node].live.len() as u64;
        Attr { ino: node, mode: 0o100666, nlink, size, blksize: 4096, ..Default::default() }
    }

    fn refuse(&self, node: u64, errno: &AtomicI32) -> Result<(), Errno> {
        let errno = errno.load(Ordering::SeqCst);
        let is_meant =
            !self.only_bad.load(Ordering::SeqCst) || self.names[node as usize - 2].starts_with("bad");
        if errno == 0 || !is_meant {
            return Ok(());
        }
        self.nr_refused.fetch_add(1, Ordering::SeqCst);
        Err(Errno::from_raw_os_error(errno))
    }

    fn write(&self, node: u64, offset: usize, data: &[u8]) -> Result<usize, Errno> {
        self.refuse(node, &self.write_errno)?;
        let short = self.short.load(Ordering::SeqCst);
        let data = if short > 0 { &data[..data.len().min(short)] } else { data };
        let end = offset + data.len();
        let mut files = self.files.lock().unwrap();
        let used: usize = files.values().map(|file| file.live.len()).sum();
        let file = files.get_mut(&node).unwrap();
        let capacity = self.capacity.load(Ordering::SeqCst) as usize;
        if capacity > 0 && used + end.saturating_sub(file.live.len()) > capacity {
            self.nr_refused.fetch_add(1, Ordering::SeqCst);
            return Err(Errno::NOSPC);
        }
        file.live.resize(file.live.len().max(end), 0);
        file.live[offset..end].copy_from_slice(data);
        Ok(data.len())
    }
}

impl Filesystem for Faulty {
    fn quick(&self, asked: &Asked<'_>, reply: &mut Reply) -> Step {
        let node = asked.header.nodeid;
        match asked.op {
            Op::Write { .. } | Op::Fsync(_) => {
                return Step::MaySleep(Keys { group: node, store: 1 });
            }
            Op::Read(arg) => {
                let files = self.files.lock().unwrap();
                let live = &files[&node].live;
                let from = live.len().min(arg.offset as usize);
                let to = live.len().min(from + arg.size as usize);
                reply.bytes(&live[from..to]).ignore();
            }
            Op::Lookup { name } => match self.names.iter().position(|known| OsStr::new(known) == name) {
                Some(at) => {
                    let nodeid = at as u64 + 2;
                    reply.value(&EntryOut { nodeid, attr: self.attr(nodeid), ..Default::default() }).ignore();
                }
                None => reply.error(Errno::NOENT).ignore(),
            },
            Op::Getattr { .. } | Op::Setattr(_) => {
                if let Op::Setattr(arg) = asked.op
                    && arg.valid & setattr_valid::SIZE != 0
                {
                    self.files.lock().unwrap().get_mut(&node).unwrap().live.resize(arg.size as usize, 0);
                }
                reply.value(&AttrOut { attr: self.attr(node), ..Default::default() }).ignore();
            }
            Op::Open(_) => {
                let open = OpenOut { open_flags: open_reply::DIRECT_IO, ..Default::default() };
                reply.value(&open).ignore();
            }
            Op::Opendir(_) => reply.value(&OpenOut::default()).ignore(),
            Op::Readdir(_) => reply.bytes(DirBuffer::new(0).as_bytes()).ignore(),
            Op::Release(_) | Op::Releasedir(_) | Op::Flush(_) | Op::Fsyncdir(_) => reply.done().ignore(),
            Op::Forget { .. } | Op::BatchForget(_) => {}
            _ => reply.error(Errno::NOSYS).ignore(),
        }
        Step::Settled
    }

    fn slow(&self, asked: &Asked<'_>, reply: &mut Reply) {
        let node = asked.header.nodeid;
        self.nr_waiting.fetch_add(1, Ordering::SeqCst);
        std::thread::sleep(Duration::from_millis(self.stall_ms.load(Ordering::SeqCst)));
        self.door.pass();
        self.nr_waiting.fetch_sub(1, Ordering::SeqCst);
        match asked.op {
            Op::Write { arg, data } => match self.write(node, arg.offset as usize, data) {
                Ok(written) => reply.written(written).ignore(),
                Err(errno) => reply.error(errno).ignore(),
            },
            Op::Fsync(_) => match self.refuse(node, &self.sync_errno) {
                Ok(()) => {
                    let mut files = self.files.lock().unwrap();
                    let file = files.get_mut(&node).unwrap();
                    file.synced = file.live.clone();
                    reply.done().ignore();
                }
                Err(errno) => reply.error(errno).ignore(),
            },
            _ => unreachable!("nothing else is slow"),
        }
    }
}
