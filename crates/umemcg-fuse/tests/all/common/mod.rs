//! A small file system in memory that can be told to hang, and mounts of it that always go away.

#![allow(dead_code)]

pub mod by_thread;
pub mod faulty;
pub mod flat;
pub mod hanging;
pub mod late_volume;

use std::collections::HashMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock, mpsc};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use umemcg::Group;
use umemcg_fuse::wire::reply::{Attr, AttrOut, EntryOut, OpenOut};
use umemcg_fuse::wire::{DirBuffer, Op, open_reply};
use umemcg_fuse::{
    Device, Filesystem, Keys, MountOptions, Mounted, Payer, QuickOutcome, Reply, Request, Session,
    SessionConfig, Unmount,
};

/// Returns whether real mounts can be made here; says so loudly when not.
pub fn can_mount() -> bool {
    let device = std::fs::OpenOptions::new().read(true).write(true).open("/dev/fuse").is_ok();
    if !device {
        eprintln!("SKIPPED: /dev/fuse cannot be opened here, nothing was tested");
    }
    device
}

/// Something that threads wait for until it is opened.
#[derive(Default)]
pub struct Gate {
    open: Mutex<bool>,
    bell: Condvar,
}

impl Gate {
    pub fn open(&self) {
        *self.open.lock().unwrap() = true;
        self.bell.notify_all();
    }
    pub fn pass(&self) {
        let mut open = self.open.lock().unwrap();
        while !*open {
            open = self.bell.wait(open).unwrap();
        }
    }
}

/// Files by node, from 2 on, each a group of its own. A read or write of a name that starts with
/// `hang` waits for the gate of store 1; the name `same` is on that store, too, and does not wait.
#[derive(Default)]
pub struct Memory {
    pub files: Mutex<HashMap<u64, (OsString, Vec<u8>)>>,
    pub gate: Gate,
    pub nr_reads: AtomicU64,
    pub largest_write: AtomicU64,
    pub largest_read: AtomicU64,
    pub late: AtomicU64,
    /// The group that pays for reads and writes, if it matters.
    pub payer: OnceLock<Arc<Group>>,
    /// Replies to writes of the name `parked`, kept until a test takes them.
    pub parked: Mutex<Vec<(Reply, u32)>>,
}

impl Memory {
    pub fn with(files: &[(&str, &[u8])]) -> Arc<Self> {
        let memory = Self::default();
        for (at, (name, bytes)) in files.iter().enumerate() {
            memory.files.lock().unwrap().insert(at as u64 + 2, (name.into(), bytes.to_vec()));
        }
        Arc::new(memory)
    }

    fn attr(&self, node: u64) -> Option<Attr> {
        if node == 1 {
            return Some(Attr { ino: 1, mode: 0o040755, nlink: 2, blksize: 4096, ..Default::default() });
        }
        let files = self.files.lock().unwrap();
        let (_, bytes) = files.get(&node)?;
        let size = bytes.len() as u64;
        Some(Attr { ino: node, mode: 0o100666, nlink: 1, size, blksize: 4096, ..Default::default() })
    }

    fn name(&self, node: u64) -> String {
        self.files.lock().unwrap().get(&node).map(|f| f.0.to_string_lossy().into_owned()).unwrap_or_default()
    }
}

impl Filesystem for Memory {
    fn quick(&self, request: &Request<'_>, reply: &mut Reply) -> QuickOutcome {
        let node = request.header.nodeid;
        match request.op {
            Op::Read(_) | Op::Write { .. } => {
                let name = self.name(node);
                let store = u64::from(name.starts_with("hang") || name == "same");
                let keys = Keys::single(node, store);
                return match self.payer.get() {
                    Some(group) => {
                        let keys = Keys::of(group, keys.store);
                        QuickOutcome::MaySleepAt(keys, Payer::Group(Arc::clone(group)))
                    }
                    None => QuickOutcome::MaySleep(keys),
                };
            }
            Op::Lookup { name } => {
                let found =
                    self.files.lock().unwrap().iter().find(|(_, f)| f.0 == name).map(|(node, _)| *node);
                match found.and_then(|node| Some((node, self.attr(node)?))) {
                    Some((nodeid, attr)) => {
                        reply.value(&EntryOut { nodeid, attr_valid: 0, attr, ..Default::default() }).ignore()
                    }
                    None => reply.error(Errno::NOENT).ignore(),
                }
            }
            Op::Getattr { .. } | Op::Setattr(_) => match self.attr(node) {
                Some(attr) => reply.value(&AttrOut { attr, ..Default::default() }).ignore(),
                None => reply.error(Errno::NOENT).ignore(),
            },
            Op::Open(_) => {
                reply.value(&OpenOut { open_flags: open_reply::DIRECT_IO, ..Default::default() }).ignore()
            }
            Op::Opendir(_) => reply.value(&OpenOut::default()).ignore(),
            Op::Readdir(arg) => {
                let mut list = DirBuffer::new(arg.size as usize);
                let files = self.files.lock().unwrap();
                let mut nodes: Vec<u64> = files.keys().copied().collect();
                nodes.sort_unstable();
                for node in nodes.into_iter().filter(|&node| node > arg.offset) {
                    if !list.push(node, node, 8, files[&node].0.as_encoded_bytes()) {
                        break;
                    }
                }
                reply.bytes(list.as_bytes()).ignore();
            }
            Op::Release(_) | Op::Releasedir(_) | Op::Flush(_) => reply.done().ignore(),
            Op::Forget { .. } | Op::BatchForget(_) => {}
            _ => reply.error(Errno::NOSYS).ignore(),
        }
        QuickOutcome::Answered
    }

    fn slow(&self, request: &Request<'_>, reply: &mut Reply) {
        let node = request.header.nodeid;
        let name = self.name(node);
        if name.starts_with("hang") {
            let _idle = umemcg_base::Idle::begin(umemcg_base::Wait::Sure);
            self.gate.pass();
        }
        if name == "panic" {
            panic!("as the test wants");
        }
        match request.op {
            Op::Read(arg) => {
                self.nr_reads.fetch_add(1, Ordering::Relaxed);
                self.largest_read.fetch_max(arg.size.into(), Ordering::Relaxed);
                let files = self.files.lock().unwrap();
                let bytes = &files[&node].1;
                let from = bytes.len().min(arg.offset as usize);
                let to = bytes.len().min(from + arg.size as usize);
                if reply.bytes(&bytes[from..to]).is_gone() {
                    self.late.fetch_add(1, Ordering::Relaxed);
                }
            }
            Op::Write { arg, data } => {
                self.largest_write.fetch_max(data.len() as u64, Ordering::Relaxed);
                let mut files = self.files.lock().unwrap();
                let bytes = &mut files.get_mut(&node).unwrap().1;
                let end = arg.offset as usize + data.len();
                bytes.resize(bytes.len().max(end), 0);
                bytes[arg.offset as usize..end].copy_from_slice(data);
                drop(files);
                if name == "parked" {
                    reply.accepted_write(data.len() as u32);
                    self.parked.lock().unwrap().push((reply.take(), data.len() as u32));
                } else {
                    reply.written(data.len()).ignore();
                }
            }
            _ => unreachable!(),
        }
    }
}

/// A served mount in a directory of its own. Dropping it unmounts by force, also in a panic.
pub struct TestMount {
    pub session: Session,
    mounted: Arc<Mounted>,
    point: PathBuf,
    was_taken: Arc<AtomicBool>,
    _done: mpsc::Sender<()>,
    _dir: tempfile::TempDir,
}

/// A test that takes longer than this has its mount taken away, so that it fails instead of
/// hanging.
const TEST_SECONDS_MAX: u64 = 300;

/// Longest that a test waits for something. No test asserts how long anything took: what must not
/// wait for a store is shown by its end while the store hangs.
pub const TIMEOUT: Duration = Duration::from_secs(60);

impl TestMount {
    pub fn new(filesystem: Arc<dyn Filesystem>) -> Self {
        Self::with(filesystem, SessionConfig::default())
    }

    pub fn with(filesystem: Arc<dyn Filesystem>, config: SessionConfig) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (mounted, device): (Mounted, Device) =
            Mounted::mount(dir.path(), &MountOptions::new("umemcg-test", "memory")).unwrap();
        let point = mounted.point().to_owned();
        let session = Session::start(device, filesystem, config).unwrap();
        let mounted = Arc::new(mounted);
        let (done, waiting) = mpsc::channel::<()>();
        let watched = Arc::downgrade(&mounted);
        let was_taken = Arc::new(AtomicBool::new(false));
        let taken = Arc::clone(&was_taken);
        std::thread::spawn(move || {
            let waited = waiting.recv_timeout(Duration::from_secs(TEST_SECONDS_MAX));
            if let (Err(mpsc::RecvTimeoutError::Timeout), Some(mounted)) = (waited, watched.upgrade()) {
                taken.store(true, Ordering::SeqCst);
                eprintln!("the test takes too long, its mount goes");
                let _ = mounted.unmount(Unmount::ByForce);
            }
        });
        Self { session, mounted, point, was_taken, _done: done, _dir: dir }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.point.join(name)
    }

    pub fn point(&self) -> &Path {
        &self.point
    }

    pub fn unmount(&self, how: Unmount) -> std::io::Result<()> {
        self.mounted.unmount(how)
    }
}

impl Drop for TestMount {
    fn drop(&mut self) {
        let _ = self.mounted.unmount(Unmount::ByForce);
        let was_taken = self.was_taken.load(Ordering::SeqCst);
        assert!(!was_taken || std::thread::panicking(), "the mount was taken after {TEST_SECONDS_MAX} s");
    }
}

/// Waits until a program has ended. One that does not is killed, and the test fails.
#[track_caller]
pub fn end_of(child: &mut Child) -> ExitStatus {
    let mut status = None;
    if within(TIMEOUT, || {
        status = child.try_wait().unwrap();
        status.is_some()
    })
    .is_none()
    {
        let _ = child.kill();
    }
    status.unwrap_or_else(|| panic!("the program did not end within {TIMEOUT:?}"))
}

/// Waits until `done`, for at most `limit`; says how long it took.
pub fn within(limit: Duration, mut done: impl FnMut() -> bool) -> Option<Duration> {
    let start = Instant::now();
    loop {
        // The clock first: a thread that was not run for long looks once more.
        let is_late = start.elapsed() >= limit;
        if done() {
            return Some(start.elapsed());
        }
        if is_late {
            return None;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}
