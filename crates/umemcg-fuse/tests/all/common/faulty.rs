//! A small file system whose store fails, stalls, is full, is short or hangs as a test says; it
//! remembers what was synced.

use std::ffi::OsStr;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use rustix::io::Errno;
use umemcg_fuse::wire::Op;
use umemcg_fuse::{Filesystem, Keys, QuickOutcome, Reply, Request};

use super::flat::{self, FlatFiles, file_of};

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

/// See the module text. Files are those that it is made with; all of them exist from the start,
/// empty.
#[derive(Default)]
pub struct Faulty {
    names: Vec<String>,
    files: Mutex<Vec<Contents>>,
    /// errno of all writes and of all syncs; 0 for none.
    pub write_errno: AtomicI32,
    pub sync_errno: AtomicI32,
    /// Only files whose name starts with `bad` fail.
    pub only_bad: AtomicBool,
    /// Bytes of all files together that fit; 0 for no bound. Beyond, writes are ENOSPC.
    pub capacity: AtomicU64,
    /// At most this many bytes of a write are taken; 0 for all.
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
        let files = Mutex::new(vec![Contents::default(); names.len()]);
        let names = names.iter().map(|&name| name.to_owned()).collect();
        Arc::new(Self { names, files, ..Default::default() })
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
        self.files.lock().unwrap()[at].clone()
    }

    pub fn live(&self, name: &str) -> Vec<u8> {
        self.contents(name).live
    }

    /// Returns the content of the file when it was last synced.
    pub fn synced(&self, name: &str) -> Vec<u8> {
        self.contents(name).synced
    }

    fn refuse(&self, file: usize, errno: &AtomicI32) -> Result<(), Errno> {
        let errno = errno.load(Ordering::SeqCst);
        let is_meant = !self.only_bad.load(Ordering::SeqCst) || self.names[file].starts_with("bad");
        if errno == 0 || !is_meant {
            return Ok(());
        }
        self.nr_refused.fetch_add(1, Ordering::SeqCst);
        Err(Errno::from_raw_os_error(errno))
    }

    fn write(&self, file: usize, offset: usize, data: &[u8]) -> Result<usize, Errno> {
        self.refuse(file, &self.write_errno)?;
        let short = self.short.load(Ordering::SeqCst);
        let data = if short > 0 { &data[..data.len().min(short)] } else { data };
        let end = offset + data.len();
        let mut files = self.files.lock().unwrap();
        let used: usize = files.iter().map(|file| file.live.len()).sum();
        let file = &mut files[file];
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

impl FlatFiles for Faulty {
    fn find(&self, name: &OsStr) -> Option<usize> {
        self.names.iter().position(|known| OsStr::new(known) == name)
    }
    fn len(&self, file: usize) -> u64 {
        self.files.lock().unwrap()[file].live.len() as u64
    }
    fn set_len(&self, file: usize, len: u64) {
        self.files.lock().unwrap()[file].live.resize(len as usize, 0);
    }
}

impl Filesystem for Faulty {
    fn quick(&self, request: &Request<'_>, reply: &mut Reply) -> QuickOutcome {
        match request.op {
            Op::Write { .. } | Op::Fsync(_) => {
                return QuickOutcome::MaySleep(Keys::single(request.header.nodeid, 1));
            }
            Op::Read(arg) => {
                let files = self.files.lock().unwrap();
                let live = &files[file_of(request)].live;
                let from = live.len().min(arg.offset as usize);
                let to = live.len().min(from + arg.size as usize);
                reply.bytes(&live[from..to]).ignore();
            }
            _ => return flat::answer(self, request, reply),
        }
        QuickOutcome::Answered
    }

    fn slow(&self, request: &Request<'_>, reply: &mut Reply) {
        let file = file_of(request);
        self.nr_waiting.fetch_add(1, Ordering::SeqCst);
        std::thread::sleep(Duration::from_millis(self.stall_ms.load(Ordering::SeqCst)));
        self.door.pass();
        self.nr_waiting.fetch_sub(1, Ordering::SeqCst);
        match request.op {
            Op::Write { arg, data } => match self.write(file, arg.offset as usize, data) {
                Ok(written) => reply.written(written).ignore(),
                Err(errno) => reply.error(errno).ignore(),
            },
            Op::Fsync(_) => match self.refuse(file, &self.sync_errno) {
                Ok(()) => {
                    let mut files = self.files.lock().unwrap();
                    let file = &mut files[file];
                    file.synced = file.live.clone();
                    reply.done().ignore();
                }
                Err(errno) => reply.error(errno).ignore(),
            },
            _ => unreachable!("nothing else is slow"),
        }
    }
}
