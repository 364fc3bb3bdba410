//! Several tenants share one mount: which one pays for what, and which one waits for another. The
//! volume's directory is itself a mount, of a small file system that hangs when it is told to.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::common::by_thread::ByThread;
use crate::common::{Memory, TestMount, can_mount, end_of, within};
use rustix::process::{Pid, Signal, kill_process};
use umemcg::{Engine, EngineConfig, Group};
use umemcg_fuse::{Classifier, Daemon, DaemonConfig, RootOnly};

const SOON: Duration = crate::common::TIMEOUT;

fn group(engine: &Engine, name: &str) -> Arc<Group> {
    engine.create_group(engine.root(), OsStr::new(name)).unwrap()
}

fn engine(pool_bytes: u64) -> Arc<Engine> {
    Engine::new(EngineConfig::new(pool_bytes)).unwrap()
}

#[test]
fn readers_and_writers_pay_and_stay_below_their_limit() {
    if !can_mount() {
        return;
    }
    let (data, mnt) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let engine = engine(64 << 20);
    let (a, b) = (group(&engine, "a"), group(&engine, "b"));
    engine.set_max(&a, 4 << 20);
    let classifier = ByThread::new(engine.root());
    let daemon =
        Daemon::start(&engine, classifier.clone(), &DaemonConfig::new(data.path(), mnt.path())).unwrap();

    let path = mnt.path().join("of-a");
    classifier.run(&a, || fs::write(&path, vec![1; 16 << 20]).unwrap());
    assert!(a.usage_bytes() > 1 << 20, "{}", a.usage_bytes());
    assert!(a.usage_bytes() <= 4 << 20, "{}", a.usage_bytes());
    let before = b.usage_bytes();
    assert!(before < 1 << 20, "{before}");
    classifier.run(&b, || assert_eq!(fs::read(&path).unwrap().len(), 16 << 20));
    assert!(b.usage_bytes() > 8 << 20, "what b read and was not there is b's: {}", b.usage_bytes());
    assert!(a.usage_bytes() <= 4 << 20);
    assert_eq!(daemon.shut_down(Instant::now() + SOON), []);
}

#[test]
fn late_write_back_of_a_mapping_is_charged_to_the_opener() {
    let python = Command::new("python3").arg("-V").output().is_ok_and(|output| output.status.success());
    if !can_mount() || !python {
        eprintln!("SKIPPED: needs /dev/fuse and python3, which can map a file");
        return;
    }
    let (data, mnt) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let engine = engine(64 << 20);
    let mapper = group(&engine, "mapper");
    fs::write(data.path().join("f"), vec![0; 4 << 20]).unwrap();
    /// All processes but this one are in one group.
    #[derive(Debug)]
    struct Others(Arc<Group>, Arc<Group>);
    impl Classifier for Others {
        fn classify(&self, tid: u32, _uid: u32, _gid: u32) -> Arc<Group> {
            let known = tid == 0 || fs::exists(format!("/proc/self/task/{tid}")).unwrap();
            if known { self.0.clone() } else { self.1.clone() }
        }
    }
    let classifier = Arc::new(Others(Arc::clone(engine.root()), Arc::clone(&mapper)));
    let daemon = Daemon::start(&engine, classifier, &DaemonConfig::new(data.path(), mnt.path())).unwrap();
    let script = "import mmap,sys\nf=open(sys.argv[1],'r+b')\nm=mmap.mmap(f.fileno(),0)\nm[:]=b'm'*len(m)\n";
    let status = Command::new("python3").args(["-c", script]).arg(mnt.path().join("f")).status().unwrap();
    assert!(status.success());
    let usage = mapper.usage_bytes();
    assert!(usage >= 4 << 20, "{usage}");
    assert_eq!(fs::read(mnt.path().join("f")).unwrap(), vec![b'm'; 4 << 20]);
    assert_eq!(daemon.shut_down(Instant::now() + SOON), []);
    assert_eq!(fs::read(data.path().join("f")).unwrap(), vec![b'm'; 4 << 20]);
}

/// A volume whose directory hangs for names that start with `hang` until the gate is opened.
struct Hanging {
    daemon: Option<Daemon>,
    memory: Arc<Memory>,
    mnt: tempfile::TempDir,
    below: TestMount,
}

impl Hanging {
    fn new(files: &[(&str, &[u8])], pool_bytes: u64) -> Self {
        let memory = Memory::with(files);
        let below = TestMount::new(memory.clone());
        let engine = engine(pool_bytes);
        let mnt = tempfile::tempdir().unwrap();
        let everybody = Arc::new(RootOnly(Arc::clone(engine.root())));
        let daemon =
            Daemon::start(&engine, everybody, &DaemonConfig::new(below.point(), mnt.path())).unwrap();
        Self { daemon: Some(daemon), memory, mnt, below }
    }
    fn path(&self, name: &str) -> PathBuf {
        self.mnt.path().join(name)
    }
    fn daemon(&self) -> &Daemon {
        self.daemon.as_ref().unwrap()
    }
}

impl Drop for Hanging {
    fn drop(&mut self) {
        self.memory.gate.open();
        drop(self.daemon.take());
        let _ = self.below.unmount(umemcg_fuse::Unmount::ByForce);
    }
}

#[test]
fn a_killed_reader_is_gone_while_the_volume_hangs() {
    if !can_mount() {
        return;
    }
    let volume = Hanging::new(&[("hang", &[b'x'; 9000]), ("calm", b"y")], 16 << 20);
    let mut reader = Command::new("cat").arg(volume.path("hang")).stdout(Stdio::null()).spawn().unwrap();
    assert!(within(SOON, || volume.daemon().session().nr_inflight() == 1).is_some());
    assert_eq!(fs::read(volume.path("calm")).unwrap(), b"y");
    kill_process(Pid::from_child(&reader), Signal::KILL).unwrap();
    end_of(&mut reader);
    volume.memory.gate.open();
    assert_eq!(fs::read(volume.path("hang")).unwrap(), [b'x'; 9000]);
}

#[test]
fn slowed_writers_and_a_hanging_store_leave_readers_alone() {
    if !can_mount() {
        return;
    }
    const NR_WRITERS: usize = 40;
    let names: Vec<String> = (0..NR_WRITERS).map(|n| format!("hang{n}")).collect();
    let mut files: Vec<(&str, &[u8])> = names.iter().map(|name| (name.as_str(), &b""[..])).collect();
    files.push(("calm", &[b'y'; 4096]));
    files.push(("other", &[b'z'; 4096]));
    let volume = Hanging::new(&files, 32 << 20);
    assert_eq!(fs::read(volume.path("calm")).unwrap().len(), 4096);
    let calm = fs::File::open(volume.path("calm")).unwrap();
    std::thread::scope(|scope| {
        for name in &names {
            let path = volume.path(name);
            // Their data stays in the pool: nothing gets into the store.
            scope.spawn(move || {
                fs::File::options().write(true).open(path).unwrap().write_all_at(&[1; 300_000], 0).unwrap()
            });
        }
        let filesystem = volume.daemon().filesystem();
        // Half of the data fits below the dirty limit, give or take some writers. Those that are
        // slowed hold no thread, but others may still be at work.
        let nr_running = || volume.daemon().session().pool_counts().nr_running;
        let slowed = within(SOON, || {
            let nr_delayed = filesystem.nr_delayed();
            nr_delayed >= NR_WRITERS / 4 && nr_running() < nr_delayed
        });
        let nr_delayed = filesystem.nr_delayed();
        let pool_counts = volume.daemon().session().pool_counts();
        for _ in 0..200 {
            calm.read_exact_at(&mut [0; 4096], 0).unwrap();
        }
        let uncached = fs::read(volume.path("other"));
        volume.memory.gate.open();
        assert!(slowed.is_some(), "{nr_delayed} of {NR_WRITERS} writers are slowed; {pool_counts:?}");
        assert_eq!(uncached.unwrap().len(), 4096);
    });
    assert!(volume.memory.largest_write.load(Ordering::Relaxed) > 0);
}

#[test]
fn an_end_with_a_hanging_store_comes_and_names_losses() {
    if !can_mount() {
        return;
    }
    let mut volume = Hanging::new(&[("hang", b""), ("calm", b"")], 16 << 20);
    fs::write(volume.path("hang"), vec![1; 10_000]).unwrap();
    fs::write(volume.path("calm"), vec![2; 10_000]).unwrap();
    let deadline = Instant::now() + Duration::from_secs(1);
    // It returns, although the store continues hanging.
    let lost = volume.daemon.take().unwrap().shut_down(deadline);
    assert!(lost.iter().any(|lost| lost.path.as_os_str() == "hang" && lost.bytes >= 10_000), "{lost:?}");
    assert!(!lost.iter().any(|lost| lost.error.is_empty()), "{lost:?}");
    assert!(!volume.path("hang").exists(), "it is unmounted all the same");
    volume.memory.gate.open();
}
