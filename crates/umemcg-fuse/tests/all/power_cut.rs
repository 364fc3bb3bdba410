//! Power cuts under a whole mount: below the volume lies a file system that forgets and reorders
//! whatever was not synced, every request to it is a cut, and programs' system calls say what was
//! promised. That engine and cache keep the promise is shown in more depth in
//! `umemcg-cache/tests/all/crash.rs`; this shows that all the ways of asking for it lead there.

#[path = "../../../umemcg-cache/tests/all/common/disk.rs"]
mod disk;

use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::ops::Range;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use crate::common::flat::{self, FlatFiles, file_of};
use crate::common::{TestMount, can_mount, within};
use disk::{CELL, Disk, Promises, Random, seeds};
use rustix::fs::FallocateFlags;
use umemcg::{Engine, EngineConfig};
use umemcg_fuse::wire::Op;
use umemcg_fuse::{Daemon, DaemonConfig, Filesystem, QuickOutcome, Reply, Request, RootOnly};
use umemcg_vfs::{Resolve, VolumeSpec};

const NR_FILES: usize = 2;
const LEN_MAX: usize = 24 * 4096;
const O_DSYNC: i32 = 0o10_000;
const O_SYNC: i32 = 0o4_010_000;

/// The disk as a file system: files `0`, `1` … in one directory.
#[derive(Debug)]
struct Forgetful {
    disk: Arc<Disk>,
    nr_syncs: [AtomicUsize; NR_FILES],
    nr_directory_syncs: AtomicUsize,
}

impl Forgetful {
    fn nr_syncs(&self, file: usize) -> usize {
        self.nr_syncs[file].load(Ordering::SeqCst)
    }
}

impl FlatFiles for Forgetful {
    fn find(&self, name: &OsStr) -> Option<usize> {
        (0..NR_FILES).find(|file| name == OsStr::new(&file.to_string()))
    }
    fn len(&self, file: usize) -> u64 {
        self.disk.len(file) as u64
    }
    fn set_len(&self, file: usize, len: u64) {
        self.disk.set_len(file, len as usize);
    }
}

impl Filesystem for Forgetful {
    fn quick(&self, request: &Request<'_>, reply: &mut Reply) -> QuickOutcome {
        match request.op {
            Op::Read(arg) => {
                reply
                    .bytes(&self.disk.read(file_of(request), arg.offset as usize, arg.size as usize))
                    .ignore();
            }
            Op::Write { arg, data } => {
                self.disk.write(file_of(request), arg.offset as usize, data);
                reply.written(data.len()).ignore();
            }
            Op::Fallocate(arg)
                if FallocateFlags::from_bits_retain(arg.mode).contains(FallocateFlags::PUNCH_HOLE) =>
            {
                self.disk.zero(file_of(request), arg.offset as usize..(arg.offset + arg.length) as usize);
                reply.done().ignore();
            }
            Op::Fsync(_) => {
                self.disk.sync(file_of(request));
                self.nr_syncs[file_of(request)].fetch_add(1, Ordering::SeqCst);
                reply.done().ignore();
            }
            Op::Fsyncdir(_) => {
                self.nr_directory_syncs.fetch_add(1, Ordering::SeqCst);
                reply.done().ignore();
            }
            _ => return flat::answer(self, request, reply),
        }
        QuickOutcome::Answered
    }

    fn slow(&self, _: &Request<'_>, _: &mut Reply) {
        unreachable!("nothing is put off");
    }
}

/// A mount over a mount of the disk. Fields go in this order.
struct Ground {
    daemon: Option<Daemon>,
    engine: Arc<Engine>,
    mnt: tempfile::TempDir,
    _below: TestMount,
    store: Arc<Forgetful>,
    promises: Arc<Mutex<Promises>>,
}

impl Ground {
    fn new(seed: u64) -> Self {
        let disk = Disk::new(NR_FILES);
        let promises = Promises::new(NR_FILES, LEN_MAX, seed);
        let watched = Arc::clone(&promises);
        disk.on_call(move |disk| watched.lock().unwrap().check(disk));
        let (nr_syncs, nr_directory_syncs) = (Default::default(), AtomicUsize::new(0));
        let store = Arc::new(Forgetful { disk, nr_syncs, nr_directory_syncs });
        let below = TestMount::new(Arc::clone(&store) as _);
        let mnt = tempfile::tempdir().unwrap();
        let engine = Engine::new(EngineConfig::new(16 << 20)).unwrap();
        let everybody = Arc::new(RootOnly(Arc::clone(engine.root())));
        let mut config = DaemonConfig::new(below.point(), mnt.path());
        let Some(VolumeSpec::Directory(volume)) = &mut config.volume else { unreachable!() };
        volume.resolve = Resolve::Names;
        let daemon = Daemon::start(&engine, everybody, &config).unwrap();
        Self { daemon: Some(daemon), engine, mnt, _below: below, store, promises }
    }

    fn path(&self, file: usize) -> PathBuf {
        self.mnt.path().join(file.to_string())
    }

    fn open(&self, file: usize, flags: i32) -> File {
        OpenOptions::new().read(true).write(true).custom_flags(flags).open(self.path(file)).unwrap()
    }

    fn promises(&self) -> MutexGuard<'_, Promises> {
        self.promises.lock().unwrap()
    }

    /// Writes and says so before.
    fn write(&self, file: usize, open: &File, range: Range<usize>, value: u8) {
        self.promises().will_write(file, range.clone(), value);
        open.write_all_at(&vec![value; range.len()], range.start as u64).unwrap();
    }

    fn shut_down(&mut self) {
        let lost = self.daemon.take().unwrap().shut_down(Instant::now() + crate::common::TIMEOUT);
        assert_eq!(lost, []);
    }

    /// Nothing was broken so far.
    fn check(&self) {
        self.store.disk.pass();
        assert_eq!(self.promises().broken, None);
    }
}

#[test]
fn every_kind_of_sync_reaches_the_store_before_it_returns() {
    if !can_mount() {
        return;
    }
    let mut ground = Ground::new(1);
    type Ask<'a> = &'a dyn Fn(&Ground, &File);
    let by_open_flags: Ask<'_> = &|_, _| {};
    // Not among them: sync and syncfs, of which the kernel says nothing to a mount of this kind.
    let ways: [(&str, i32, Ask<'_>); 6] = [
        ("fsync", 0, &|_, open| open.sync_all().unwrap()),
        ("fdatasync", 0, &|_, open| open.sync_data().unwrap()),
        ("O_SYNC", O_SYNC, by_open_flags),
        ("O_DSYNC", O_DSYNC, by_open_flags),
        ("fsync of another descriptor", 0, &|ground, _| {
            File::open(ground.path(0)).unwrap().sync_all().unwrap()
        }),
        ("umemcg sync", 0, &|ground, _| {
            let deadline = Instant::now() + crate::common::TIMEOUT;
            assert_eq!(ground.daemon.as_ref().unwrap().flush(deadline, &mut |_| {}), []);
        }),
    ];
    for (nr, (name, flags, ask)) in ways.into_iter().enumerate() {
        let open = ground.open(0, flags);
        let before = ground.store.nr_syncs(0);
        // It grows, and a part is written again.
        ground.write(0, &open, nr * 4096..(nr + 2) * 4096, nr as u8 + 1);
        ask(&ground, &open);
        assert!(ground.store.nr_syncs(0) > before, "{name} did not reach the store");
        ground.promises().is_synced(0);
        ground.check();
    }
    let before = ground.store.nr_directory_syncs.load(Ordering::SeqCst);
    File::open(ground.mnt.path()).unwrap().sync_all().unwrap();
    assert!(ground.store.nr_directory_syncs.load(Ordering::SeqCst) > before, "fsync of the directory");

    // The end, with data that was never synced.
    let open = ground.open(1, 0);
    ground.write(1, &open, 0..5 * 4096, 9);
    drop(open);
    ground.shut_down();
    ground.promises().is_synced(1);
    ground.check();
}

/// `docs/semantics/durability.md` says that `syncfs` is none of them, because the kernel does not
/// pass it on. Should one do so, it has to hold.
#[test]
fn a_syncfs_that_the_kernel_passes_on_is_durable() {
    if !can_mount() {
        return;
    }
    let mut ground = Ground::new(3);
    let open = ground.open(0, 0);
    let before = ground.store.nr_syncs(0);
    ground.write(0, &open, 0..4096, 4);
    rustix::fs::syncfs(&open).unwrap();
    let passed_on = ground.store.nr_syncs(0) > before;
    eprintln!("syncfs reaches a mount of ours here: {passed_on}");
    if passed_on {
        ground.promises().is_synced(0);
    }
    ground.check();
    // What takes its place.
    let deadline = Instant::now() + crate::common::TIMEOUT;
    assert_eq!(ground.daemon.as_ref().unwrap().flush(deadline, &mut |_| {}), []);
    ground.promises().is_synced(0);
    ground.check();
    drop(open);
    ground.shut_down();
}

#[test]
fn a_closed_file_reaches_the_store_when_it_is_old_enough() {
    if !can_mount() {
        return;
    }
    let ground = Ground::new(2);
    let open = ground.open(0, 0);
    ground.write(0, &open, 0..4096, 7);
    drop(open);
    let limits = ground.engine.cache().dirty_limits();
    limits.set_interval(Duration::from_millis(20));
    limits.set_expire(Duration::from_millis(20));
    ground.engine.cache().wake_flushers();
    let written = || ground.store.disk.read(0, 0, 4096) == [7; 4096];
    assert!(within(crate::common::TIMEOUT, written).is_some(), "not request for, but it is old");
    ground.check();
}

#[test]
fn a_cut_at_any_request_leaves_the_synced_state_or_a_newer_one() {
    if !can_mount() {
        return;
    }
    let mut nr_cuts = 0;
    for seed in seeds(3) {
        let mut ground = Ground::new(seed);
        let mut random = Random(seed);
        let open: Vec<[File; 2]> =
            (0..NR_FILES).map(|file| [ground.open(file, 0), ground.open(file, O_DSYNC)]).collect();
        for step in 0..120u8 {
            let file = random.below(NR_FILES);
            let [plain, synced] = &open[file];
            let start = random.below(LEN_MAX / CELL - 40);
            let range = start * CELL..(start + 1 + random.below(40)) * CELL;
            match random.below(12) {
                0..=3 => ground.write(file, plain, range, step + 1),
                4 => {
                    ground.write(file, synced, range.clone(), step + 1);
                    // It owes what it wrote. That the rest is durable as well is more than it says.
                    synced.sync_data().unwrap();
                    ground.promises().is_synced(file);
                }
                5 => {
                    ground.promises().will_set_len(file, range.end);
                    plain.set_len(range.end as u64).unwrap();
                }
                6 => {
                    ground.promises().will_zero(file, range.clone());
                    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                    let (from, len) = (range.start as u64, range.len() as u64);
                    rustix::fs::fallocate(plain.as_fd(), punch, from, len).unwrap();
                }
                7 | 8 => {
                    if step % 2 == 0 {
                        plain.sync_all().unwrap();
                    } else {
                        plain.sync_data().unwrap();
                    }
                    ground.promises().is_synced(file);
                }
                9 => drop(ground.open(file, 0)),
                _ => {
                    let expected = ground.promises().expected(file);
                    let mut seen = vec![0; expected.len()];
                    plain.read_exact_at(&mut seen, 0).unwrap();
                    assert!(seen == expected, "file {file} reads as it was written");
                }
            }
        }
        for (file, [plain, _]) in open.iter().enumerate() {
            plain.sync_all().unwrap();
            ground.promises().is_synced(file);
        }
        drop(open);
        ground.shut_down();
        assert_eq!(ground.promises().broken, None, "UMEMCG_CRASH_SEED={seed}");
        ground.check();
        assert!(ground.promises().nr_cuts > 120, "{} cuts", ground.promises().nr_cuts);
        nr_cuts += ground.promises().nr_cuts;
    }
    eprintln!("{nr_cuts} cuts below a mount, every promise kept");
}
