//! Dirty limits on a real mount over a slow store: a writer beyond its group's threshold gets the
//! store's rate, in short rests; no other writer is slowed.

use std::ffi::OsStr;
use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::common::flat::{self, FlatFiles, file_of};
use crate::common::{TestMount, can_mount, within};
use rustix::process::{Pid, Signal, kill_process};
use umemcg::files::{DirtyBound, DirtyThreshold};
use umemcg::{Engine, EngineConfig, Group, StatItem};
use umemcg_fuse::wire::Op;
use umemcg_fuse::{
    Classifier, Daemon, DaemonConfig, Filesystem, Keys, QuickOutcome, Reply, Request, SessionConfig, Unmount,
};
use umemcg_vfs::{Resolve, VolumeSpec};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const SOON: Duration = crate::common::TIMEOUT;
/// Files of the store: `0`, `1`.
const NR_FILES: usize = 2;

/// A store that takes this many bytes a second and keeps none of them.
#[derive(Debug)]
struct Slow {
    rate: u64,
    free_at: Mutex<Instant>,
    lens: [AtomicU64; NR_FILES],
    taken: [AtomicU64; NR_FILES],
}

impl Slow {
    fn new(rate: u64) -> Arc<Self> {
        let free_at = Mutex::new(Instant::now());
        Arc::new(Self { rate, free_at, lens: Default::default(), taken: Default::default() })
    }

    fn taken(&self, file: usize) -> u64 {
        self.taken[file].load(Ordering::Relaxed)
    }
}

impl FlatFiles for Slow {
    fn find(&self, name: &OsStr) -> Option<usize> {
        (0..NR_FILES).find(|file| name == OsStr::new(&file.to_string()))
    }
    fn len(&self, file: usize) -> u64 {
        self.lens[file].load(Ordering::Relaxed)
    }
    fn set_len(&self, _file: usize, _len: u64) {}
}

impl Filesystem for Slow {
    fn quick(&self, request: &Request<'_>, reply: &mut Reply) -> QuickOutcome {
        match request.op {
            Op::Read(arg) => reply.bytes(&vec![0; arg.size as usize]).ignore(),
            Op::Write { .. } => {
                return QuickOutcome::MaySleep(Keys::single(request.header.nodeid, 0));
            }
            _ => return flat::answer(self, request, reply),
        }
        QuickOutcome::Answered
    }

    fn slow(&self, request: &Request<'_>, reply: &mut Reply) {
        let Op::Write { arg, data } = request.op else { unreachable!("nothing else is put off") };
        let cost = Duration::from_secs_f64(data.len() as f64 / self.rate as f64);
        let due = {
            let mut free_at = self.free_at.lock().unwrap();
            *free_at = (*free_at).max(Instant::now()) + cost;
            *free_at
        };
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        let file = file_of(request);
        self.lens[file].fetch_max(arg.offset + data.len() as u64, Ordering::Relaxed);
        self.taken[file].fetch_add(data.len() as u64, Ordering::Relaxed);
        reply.written(data.len()).ignore();
    }
}

/// Each process is in the group that its environment names; this one in the root.
#[derive(Debug)]
struct ByEnvironment(Arc<Group>, [(String, Arc<Group>); 2]);

impl Classifier for ByEnvironment {
    fn classify(&self, tid: u32, _uid: u32, _gid: u32) -> Arc<Group> {
        // Not of a process that waits for us: `dd` has done nothing but ask when it is classified
        // first.
        let comm = fs::read_to_string(format!("/proc/{tid}/comm")).unwrap_or_default();
        let found = self.1.iter().find(|(name, _)| comm.trim() == name);
        found.map_or_else(|| self.0.clone(), |(_, group)| group.clone())
    }
}

struct Ground {
    daemon: Daemon,
    engine: Arc<Engine>,
    limited: Arc<Group>,
    free: Arc<Group>,
    store: Arc<Slow>,
    mnt: tempfile::TempDir,
    below: TestMount,
    bin: tempfile::TempDir,
}

impl Ground {
    fn new(rate: u64) -> Self {
        let store = Slow::new(rate);
        let below = TestMount::with(store.clone(), SessionConfig::default());
        let (mnt, bin) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let engine = Engine::new(EngineConfig::new(256 * MIB)).unwrap();
        let [limited, free] =
            ["limited", "free"].map(|name| engine.create_group(engine.root(), name.as_ref()).unwrap());
        let limits = engine.cache().dirty_limits();
        limits.set_bound(&limited, DirtyThreshold::Foreground, DirtyBound::Bytes(4 * MIB));
        limits.set_bound(&limited, DirtyThreshold::Background, DirtyBound::Bytes(2 * MIB));
        // A process is told by the name that its program goes by.
        let dd = which("dd");
        let groups = [("limited", &limited), ("free", &free)].map(|(name, group)| {
            std::os::unix::fs::symlink(&dd, bin.path().join(format!("dd-{name}"))).unwrap();
            (format!("dd-{name}"), Arc::clone(group))
        });
        let classifier = Arc::new(ByEnvironment(Arc::clone(engine.root()), groups));
        let mut config = DaemonConfig::new(below.point(), mnt.path());
        let Some(VolumeSpec::Directory(volume)) = &mut config.volume else { unreachable!() };
        volume.resolve = Resolve::Names;
        let daemon = Daemon::start(&engine, classifier, &config).unwrap();
        Self { daemon, engine, limited, free, store, mnt, below, bin }
    }

    fn dd(&self, group: &str, file: usize, nr_pieces: usize) -> Child {
        Command::new(self.bin.path().join(format!("dd-{group}")))
            .arg("if=/dev/zero")
            .arg(format!("of={}", self.mnt.path().join(file.to_string()).display()))
            .args(["bs=64k", "conv=notrunc", &format!("count={nr_pieces}")])
            .stderr(Stdio::null())
            .spawn()
            .unwrap()
    }
}

fn which(program: &str) -> std::path::PathBuf {
    let path = std::env::var_os("PATH").unwrap();
    std::env::split_paths(&path).map(|dir| dir.join(program)).find(|file| Path::exists(file)).unwrap()
}

/// The least of several sums: what moves from one state to the next meanwhile is counted twice.
fn unclean(group: &Group) -> u64 {
    let items = [StatItem::FileDirty, StatItem::FileWriteback, StatItem::FileUnstable];
    let sum = |_| items.iter().map(|&item| group.stat_total(item)).sum::<i64>();
    (0..5).map(sum).min().unwrap() as u64
}

fn stalled(group: &Group) -> Duration {
    umemcg::internal::pressure(group).some.total
}

#[test]
fn a_writer_over_its_limit_gets_the_stores_rate_alone() {
    if !can_mount() {
        return;
    }
    let ground = Ground::new(4 * MIB);
    let mut limited = ground.dd("limited", 0, 256);
    let most = Mutex::new(0);
    let mut free = None;
    let ended = within(SOON, || {
        let mut most = most.lock().unwrap();
        *most = unclean(&ground.limited).max(*most);
        // When the first is being paced.
        if free.is_none() && stalled(&ground.limited) > Duration::ZERO {
            free = Some(ground.dd("free", 1, 128));
        }
        limited.try_wait().unwrap().is_some()
    });
    let most = most.into_inner().unwrap();
    // What it was ahead of the store when it ended.
    let (ahead, taken) = (unclean(&ground.limited), ground.store.taken(0));
    assert!(ended.is_some() && free.unwrap().wait().unwrap().success());
    println!("{:?}, at most {} KiB dirty, {} KiB ahead", ended, most / KIB, ahead / KIB);
    // The limit, and one write of the writer.
    assert!(most <= 4 * MIB + 64 * KIB, "{most}");
    assert!(most >= 3 * MIB, "{most}: held too early");
    assert!(taken + ahead + 64 * KIB >= 16 * MIB && ahead <= 4 * MIB + 64 * KIB, "{taken} and {ahead}");
    assert!(stalled(&ground.limited) > Duration::ZERO);
    assert_eq!(stalled(&ground.free), Duration::ZERO, "8 MiB of a pool of 256 are no reason to wait");
    let lost = ground.daemon.shut_down(Instant::now() + SOON);
    assert_eq!(lost, []);
    assert_eq!([unclean(&ground.limited), unclean(ground.engine.root())], [0, 0]);
    assert_eq!([ground.store.taken(0) >= 16 * MIB, ground.store.taken(1) >= 8 * MIB], [true, true]);
    let _ = ground.below.unmount(Unmount::ByForce);
}

#[test]
fn a_writer_that_is_slowed_dies_at_once_when_it_is_killed() {
    if !can_mount() {
        return;
    }
    // So slow that it would be at it for hours.
    let ground = Ground::new(16 * KIB);
    let mut writer = ground.dd("limited", 0, 100_000);
    let parked = within(SOON, || ground.daemon.filesystem().nr_delayed() > 0);
    assert!(parked.is_some());
    kill_process(Pid::from_child(&writer), Signal::KILL).unwrap();
    let gone = within(SOON, || writer.try_wait().unwrap().is_some());
    assert!(gone.is_some());
    println!("gone after {gone:?}");
    drop(ground.daemon);
    let _ = ground.below.unmount(Unmount::ByForce);
}
