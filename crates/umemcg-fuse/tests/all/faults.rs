//! Stores that fail, stall, are full, short or hang, under one real mount of several volumes: the
//! daemon continues, what was accepted is kept and tried again, each open file is told once, and no
//! other volume notices.
//!
//! "Goes on" is a condition, never a time: this many operations of the others are done while the
//! store is ill.

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::common::by_thread::ByThread;
use crate::common::faulty::Faulty;
use crate::common::{TestMount, can_mount, within};
use umemcg::{Engine, EngineConfig, Group};
use umemcg_fuse::{Daemon, DaemonConfig};
use umemcg_vfs::{VolumeConfig, VolumeSpec};

const EIO: i32 = 5;
const ENOSPC: i32 = 28;
const SOON: Duration = crate::common::TIMEOUT;
/// Operations of the others while a store is ill.
const NR_OPERATIONS: usize = 60;
/// The limit of a group; less than is written.
const LIMIT: u64 = 2 << 20;

/// A mount of three volumes: `ill`, over a store that does what the test says, `well` and `fine`
/// over directories.
struct Ground {
    daemon: Option<Daemon>,
    engine: Arc<Engine>,
    classifier: Arc<ByThread>,
    store: Arc<Faulty>,
    below: TestMount,
    mnt: tempfile::TempDir,
    dirs: tempfile::TempDir,
}

impl Ground {
    fn new(names: &[&str]) -> Self {
        let store = Faulty::with(names);
        let below = TestMount::new(Arc::clone(&store) as _);
        let (mnt, dirs) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let engine = Engine::new(EngineConfig::new(32 << 20)).unwrap();
        let classifier = ByThread::new(engine.root());
        let daemon = Daemon::start(&engine, classifier.clone(), &DaemonConfig::many(mnt.path())).unwrap();
        let add = |name: &str, dir: PathBuf| {
            daemon.add_volume(name, &VolumeSpec::Directory(VolumeConfig::one_of_many(&dir))).unwrap();
        };
        add("ill", below.point().to_owned());
        for name in ["well", "fine"] {
            let dir = dirs.path().join(name);
            fs::create_dir(&dir).unwrap();
            add(name, dir);
        }
        Self { daemon: Some(daemon), engine, classifier, store, below, mnt, dirs }
    }

    fn group(&self, name: &str, limit: u64) -> Arc<Group> {
        let group = self.engine.create_group(self.engine.root(), OsStr::new(name)).unwrap();
        self.engine.set_max(&group, limit);
        group
    }

    fn path(&self, volume: &str, name: &str) -> PathBuf {
        self.mnt.path().join(volume).join(name)
    }

    fn open(&self, name: &str) -> File {
        OpenOptions::new().read(true).write(true).open(self.path("ill", name)).unwrap()
    }

    /// A tenant on another volume writes, syncs, reads back and removes; returns when all of that
    /// is done.
    fn others_go_on(&self, volume: &str, group: &Arc<Group>) {
        self.classifier.run(group, || {
            for nr in 0..NR_OPERATIONS {
                let path = self.path(volume, &format!("file{}", nr % 7));
                fs::write(&path, vec![nr as u8; 128 << 10]).unwrap();
                if nr % 3 == 0 {
                    File::open(&path).unwrap().sync_all().unwrap();
                }
                assert!(fs::read(&path).unwrap().iter().all(|&byte| byte == nr as u8));
                if nr % 5 == 0 {
                    fs::remove_file(&path).unwrap();
                }
            }
        });
    }

    /// From now on write-back comes soon after the last write, not after half a minute.
    fn write_soon(&self) {
        let limits = self.engine.cache().dirty_limits();
        limits.set_interval(Duration::from_millis(20));
        limits.set_expire(Duration::from_millis(20));
        self.engine.cache().wake_flushers();
    }

    fn flush(&self) -> Vec<umemcg_fuse::Lost> {
        self.daemon.as_ref().unwrap().flush(Instant::now() + SOON, &mut |_| {})
    }

    /// Everything is well now: all that was accepted becomes durable, and the daemon ends in order.
    fn end(mut self, accepted: &[(&str, &[u8])]) {
        assert_eq!(self.flush(), []);
        for (name, bytes) in accepted {
            assert!(self.store.synced(name) == *bytes, "{name} is durable in the store");
        }
        assert_eq!(self.daemon.take().unwrap().shut_down(Instant::now() + SOON), []);
        for (name, bytes) in accepted {
            assert!(self.store.live(name) == *bytes, "{name} is in the store at the end");
        }
    }
}

impl Drop for Ground {
    fn drop(&mut self) {
        self.store.heal();
        drop(self.daemon.take());
        let _ = self.below.unmount(umemcg_fuse::Unmount::ByForce);
        let _ = &self.dirs;
    }
}

/// Makes a store well when it is dropped.
struct Healer<'a>(&'a Faulty);

impl Drop for Healer<'_> {
    fn drop(&mut self) {
        self.0.heal();
    }
}

fn errno(result: io::Result<()>) -> Option<i32> {
    result.err().and_then(|error| error.raw_os_error())
}

fn bytes_of(seed: u8, len: usize) -> Vec<u8> {
    (0..len).map(|at| (at / 512) as u8 ^ (at as u8).wrapping_mul(seed | 1)).collect()
}

/// A fault of a store.
type Fault = fn(&Faulty);

const FAULTS: [(&str, Fault); 6] = [
    ("EIO", |store| store.write_errno.store(EIO, Ordering::SeqCst)),
    ("EIO of syncs", |store| store.sync_errno.store(EIO, Ordering::SeqCst)),
    ("full", |store| store.capacity.store(256 << 10, Ordering::SeqCst)),
    ("stalls of 5 s", |store| store.stall_ms.store(5000, Ordering::SeqCst)),
    ("short writes", |store| store.short.store(1000, Ordering::SeqCst)),
    ("hangs", Faulty::hang),
];

/// A writer that writes more than its group may hold to a store that is ill. Others work on other
/// volumes, one of them in the same group; when they are done the store gets well.
fn others_notice_nothing_and_nothing_is_lost(fault: &str, make_ill: Fault) {
    if !can_mount() {
        return;
    }
    let ground = Ground::new(&["a", "b"]);
    let (writer, other) = (ground.group("writer", LIMIT), ground.group("other", LIMIT));
    let synced = bytes_of(3, 300_000);
    let file = ground.open("a");
    file.write_all_at(&synced, 0).unwrap();
    file.sync_all().unwrap();
    assert!(ground.store.synced("a") == synced, "{fault}");
    make_ill(&ground.store);
    let accepted_end = AtomicU64::new(0);
    let others_are_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            ground.classifier.run(&writer, || {
                let file = ground.open("b");
                // Until it is refused: what was accepted is kept whatever the store does.
                for at in 0..64u64 {
                    let bytes = bytes_of(at as u8, 64 << 10);
                    match file.write_at(&bytes, at << 16) {
                        Ok(written) => accepted_end.store((at << 16) + written as u64, Ordering::SeqCst),
                        Err(error) => {
                            let errno = error.raw_os_error().unwrap();
                            assert!([EIO, ENOSPC].contains(&errno), "{fault}: {error}");
                            return;
                        }
                    }
                    if others_are_done.load(Ordering::SeqCst) {
                        return;
                    }
                }
            });
        });
        scope.spawn(|| {
            // Whatever becomes of this test, no thread waits for an ill store for ever.
            let _healer = Healer(&ground.store);
            // No more than one write: dirty limits hold a writer to a store that takes nothing.
            assert!(within(SOON, || accepted_end.load(Ordering::SeqCst) > 0).is_some(), "{fault}");
            ground.others_go_on("well", &other);
            ground.others_go_on("fine", &ground.engine.root().clone());
            // What of the ill store is in the cache can be read, too.
            let mut part = vec![0; 4096];
            file.read_exact_at(&mut part, 0).unwrap();
            assert!(part == synced[..4096], "{fault}");
            others_are_done.store(true, Ordering::SeqCst);
        });
    });
    let end = accepted_end.load(Ordering::SeqCst) as usize;
    let accepted: Vec<u8> =
        (0..64u64).flat_map(|at| bytes_of(at as u8, 64 << 10)).take(end.next_multiple_of(1)).collect();
    assert!(fs::read(ground.path("ill", "b")).unwrap() == accepted, "{fault}: what was accepted is read");
    ground.end(&[("a", &synced), ("b", &accepted)]);
}

macro_rules! faults {
    ($($name:ident: $at:literal,)*) => {
        $(#[test]
        fn $name() {
            let (fault, make_ill) = FAULTS[$at];
            others_notice_nothing_and_nothing_is_lost(fault, make_ill);
        })*
    };
}

faults! {
    a_store_that_fails_loses_nothing_and_nobody_else_notices: 0,
    a_store_that_refuses_durability_loses_nothing_and_nobody_else_notices: 1,
    a_full_store_loses_nothing_and_nobody_else_notices: 2,
    a_store_with_stalls_of_five_seconds_loses_nothing_and_nobody_else_notices: 3,
    a_store_that_takes_a_little_at_a_time_loses_nothing_and_nobody_else_notices: 4,
    a_store_that_hangs_loses_nothing_and_nobody_else_notices: 5,
}

#[test]
fn fsync_reports_an_error_once_to_each_open_file_or_the_next() {
    if !can_mount() {
        return;
    }
    let ground = Ground::new(&["a"]);
    let (first, second) = (ground.open("a"), ground.open("a"));
    let bytes = bytes_of(5, 100_000);
    ground.store.write_errno.store(EIO, Ordering::SeqCst);
    first.write_all_at(&bytes, 0).unwrap();
    assert_eq!(errno(first.sync_all()), Some(EIO));
    // The data is kept: it cannot be synced yet, and says so as long as that is true.
    assert_eq!(errno(first.sync_data()), Some(EIO));
    ground.store.heal();
    assert_eq!(ground.flush(), []);
    // Background write-back may have failed once more before the store was well, and then this is
    // told.
    let _ = first.sync_all();
    assert_eq!(errno(first.sync_all()), None, "told before");
    let late = ground.open("a");
    assert_eq!(errno(second.sync_all()), Some(EIO), "not told before, though all is durable now");
    assert_eq!(errno(second.sync_all()), None);
    assert_eq!(errno(late.sync_all()), None, "opened when the first had been told");
    assert!(ground.store.synced("a") == bytes);
    drop((first, second, late));

    // No process has it open when write-back fails.
    ground.store.write_errno.store(ENOSPC, Ordering::SeqCst);
    let refused = ground.store.nr_refused.load(Ordering::SeqCst);
    let writer = ground.open("a");
    writer.write_all_at(b"again", 0).unwrap();
    drop(writer);
    ground.write_soon();
    let failed = || ground.store.nr_refused.load(Ordering::SeqCst) > refused;
    assert!(within(SOON, failed).is_some(), "write-back was tried");
    // The next open is the first to hear. Write-back may be told of the refusal a little after the
    // store has said it.
    ground.store.heal();
    let durable = || ground.store.synced("a")[..5] == *b"again";
    assert!(within(SOON, durable).is_some(), "and it was tried again");
    let opener = ground.open("a");
    assert_eq!(errno(opener.sync_all()), Some(ENOSPC));
    assert_eq!(errno(opener.sync_all()), None);
    assert_eq!(errno(ground.open("a").sync_all()), None, "an open file has heard");
    let mut expected = bytes;
    expected[..5].copy_from_slice(b"again");
    ground.end(&[("a", &expected)]);
}

/// The work of a `syncfs` request, should a kernel send one (see `power_cut.rs`), and the second
/// half of `umemcg sync`.
#[test]
fn a_sync_of_all_volumes_is_durable_or_reports_each_error_once() {
    if !can_mount() {
        return;
    }
    let ground = Ground::new(&["a", "b"]);
    let (first, second, other) = (ground.open("a"), ground.open("a"), ground.open("b"));
    let sync = || ground.daemon.as_ref().unwrap().filesystem().sync_volumes();
    let mut bytes = bytes_of(7, 100_000);
    first.write_all_at(&bytes, 0).unwrap();
    other.write_all_at(&bytes, 0).unwrap();
    sync().unwrap();
    for name in ["a", "b"] {
        assert!(ground.store.live(name) == bytes && ground.store.synced(name) == bytes, "{name} was synced");
    }
    // It is written, but not durable.
    ground.store.sync_errno.store(EIO, Ordering::SeqCst);
    bytes[..4].copy_from_slice(b"more");
    first.write_all_at(b"more", 0).unwrap();
    for _ in 0..2 {
        assert_eq!(sync().unwrap_err().errno(), rustix::io::Errno::IO, "told as long as it is true");
    }
    assert!(ground.store.synced("a") != bytes);
    ground.store.heal();
    sync().unwrap();
    assert!(ground.store.synced("a") == bytes);
    for open in [&first, &second] {
        assert_eq!(errno(open.sync_all()), Some(EIO), "not told before, though all is durable now");
        assert_eq!(errno(open.sync_all()), None);
    }
    assert_eq!(errno(other.sync_all()), None, "of another file");
    assert_eq!(errno(ground.open("a").sync_all()), None, "an open file has heard");
    drop((first, second, other));
    bytes[..4].copy_from_slice(&bytes_of(7, 4));
    let b = bytes.clone();
    bytes[..4].copy_from_slice(b"more");
    ground.end(&[("a", &bytes), ("b", &b)]);
}

#[test]
fn a_close_reports_an_error_new_to_its_open_file() {
    let python = Command::new("python3").arg("-V").output().is_ok_and(|output| output.status.success());
    if !can_mount() || !python {
        eprintln!("SKIPPED: needs /dev/fuse and python3, which says how a close went");
        return;
    }
    let ground = Ground::new(&["a"]);
    let script = "import os,sys\n\
        fds=[os.open(sys.argv[1],os.O_RDWR) for _ in range(3)]\n\
        os.write(fds[0],b'x'*9000)\n\
        def tell(what,call):\n\
        \x20 try: call(); print(what,0)\n\
        \x20 except OSError as e: print(what,e.errno)\n\
        tell('fsync',lambda:os.fsync(fds[0]))\n\
        tell('close',lambda:os.close(fds[0]))\n\
        tell('close',lambda:os.close(fds[1]))\n\
        d=os.dup(fds[2])\n\
        tell('close',lambda:os.close(d))\n\
        tell('close',lambda:os.close(fds[2]))\n";
    ground.store.write_errno.store(EIO, Ordering::SeqCst);
    let path = ground.path("ill", "a");
    let output = Command::new("python3").args(["-c", script]).arg(path).stderr(Stdio::inherit()).output();
    let told = String::from_utf8(output.unwrap().stdout).unwrap();
    let told: Vec<&str> = told.lines().collect();
    // The one that was told at fsync is not told at its close; each of the others at its first
    // close.
    assert_eq!(told, ["fsync 5", "close 0", "close 5", "close 5", "close 0"]);
    ground.store.heal();
    ground.end(&[("a", &[b'x'; 9000])]);
}

#[test]
fn a_failing_file_keeps_no_other_from_being_written() {
    if !can_mount() {
        return;
    }
    let ground = Ground::new(&["bad", "good", "bad2", "good2"]);
    ground.store.only_bad.store(true, Ordering::SeqCst);
    ground.store.write_errno.store(EIO, Ordering::SeqCst);
    let bytes = bytes_of(9, 50_000);
    // The bad ones come first.
    ground.write_soon();
    for name in ["bad", "bad2", "good", "good2"] {
        fs::write(ground.path("ill", name), &bytes).unwrap();
    }
    let refused = || ground.store.nr_refused.load(Ordering::SeqCst) >= 2;
    assert!(within(SOON, refused).is_some());
    fs::write(ground.path("ill", "good"), &bytes).unwrap();
    let written = || ["good", "good2"].iter().all(|name| ground.store.live(name) == bytes);
    assert!(within(SOON, written).is_some(), "the good ones are written in the background");
    ground.store.heal();
    ground.end(&[("bad", &bytes), ("bad2", &bytes), ("good", &bytes), ("good2", &bytes)]);
}

#[test]
fn an_end_with_a_failing_store_lists_exactly_what_is_lost() {
    if !can_mount() {
        return;
    }
    let mut ground = Ground::new(&["bad", "good"]);
    ground.store.only_bad.store(true, Ordering::SeqCst);
    ground.store.write_errno.store(EIO, Ordering::SeqCst);
    let bytes = bytes_of(11, 30_000);
    for (volume, name) in [("ill", "bad"), ("ill", "good"), ("well", "w"), ("fine", "f")] {
        fs::write(ground.path(volume, name), &bytes).unwrap();
    }
    // Long enough for what does not fail, however busy the machine is; what fails takes all of it.
    let lost = ground.daemon.take().unwrap().shut_down(Instant::now() + Duration::from_secs(60));
    assert_eq!(lost.len(), 1, "{lost:?}");
    assert!(
        lost[0].path.ends_with("bad") && lost[0].bytes >= 30_000 && !lost[0].error.is_empty(),
        "{lost:?}"
    );
    assert!(ground.store.synced("good") == bytes);
    assert!(fs::read(ground.dirs.path().join("well/w")).unwrap() == bytes);
    assert!(fs::read(ground.dirs.path().join("fine/f")).unwrap() == bytes);
}
