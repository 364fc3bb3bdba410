//! Names on a kernel that cannot be told to let go of inodes: those of files are made stale,
//! directories stay.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use crate::common::by_thread::ByThread;
use crate::common::{can_mount, within};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use umemcg::{Engine, EngineConfig, StatItem};
use umemcg_fuse::{Daemon, DaemonConfig, RootOnly, SessionConfig};

/// The last minor number before inodes can be pruned.
const OLDER: u32 = 44;
const LIMIT: u64 = 512 << 10;
const NR_FILES: usize = 3_000;
/// More than fit in [`LIMIT`], at 344 bytes each, and the 2,048 that a group may have beyond it.
const NR_DIRECTORIES: usize = 4_000;
const NR_BEYOND_MAX: usize = 2_048;
const NAME_BYTES: u64 = 344;

fn on_older_kernel(data: &Path, mnt: &Path) -> DaemonConfig {
    DaemonConfig {
        session: SessionConfig { minor_max: Some(OLDER), ..SessionConfig::default() },
        ..DaemonConfig::new(data, mnt)
    }
}

#[test]
fn names_of_files_are_made_stale_and_what_is_in_use_survives() {
    if !can_mount() {
        return;
    }
    let (data, mnt) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let engine = Engine::new(EngineConfig::default()).unwrap();
    let group = engine.create_group(engine.root(), OsStr::new("all")).unwrap();
    engine.set_max(&group, LIMIT);
    for directory in ["d", "d/stand"] {
        fs::create_dir(data.path().join(directory)).unwrap();
    }
    (0..NR_FILES).for_each(|n| fs::write(data.path().join(format!("d/{n}")), n.to_string()).unwrap());
    let config = on_older_kernel(data.path(), mnt.path());
    let daemon = Daemon::start(&engine, Arc::new(RootOnly(Arc::clone(&group))), &config).unwrap();
    assert_eq!(daemon.session().negotiated().minor, OLDER);
    let notifier = daemon.session().notifier();
    assert!(!notifier.can_prune() && !notifier.prune(vec![2]));

    let path = |n: &str| mnt.path().join("d").join(n);
    let mut standing = std::process::Command::new("sh")
        .args(["-c", "read go; pwd -P; cat ../17"])
        .current_dir(path("stand"))
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut open = fs::File::open(path("3")).unwrap();
    for round in 0..2 {
        for n in 0..NR_FILES {
            assert!(fs::metadata(path(&n.to_string())).unwrap().ino() > 0, "{round} {n}");
        }
        assert!(group.stat_total(StatItem::SlabReclaimable) <= LIMIT as i64);
    }
    assert!(engine.root().stat_total(StatItem::SlabReclaimable) as u64 <= 2 * LIMIT, "few at others' cost");
    assert_eq!(std::io::read_to_string(&mut open).unwrap(), "3");
    drop(standing.stdin.take());
    let said = standing.wait_with_output().unwrap();
    let expected = format!("{}\n17", path("stand").display());
    assert_eq!(String::from_utf8(said.stdout).unwrap().trim(), expected);
    drop(open);
    assert_eq!(daemon.shut_down(Instant::now() + crate::common::TIMEOUT), []);
}

/// Holds directories, so that the kernel does not drop one by itself, until one is refused.
fn pin_all(parent: &Path) -> (Vec<OwnedFd>, Errno) {
    let mut pins = Vec::new();
    for n in 0..NR_DIRECTORIES {
        match rustix::fs::open(parent.join(n.to_string()), OFlags::PATH | OFlags::CLOEXEC, Mode::empty()) {
            Ok(pin) => pins.push(pin),
            Err(refused) => return (pins, refused),
        }
    }
    panic!("a group had room for {NR_DIRECTORIES} directories");
}

/// Returns how many names a listing has.
fn list(directory: &Path) -> io::Result<usize> {
    fs::read_dir(directory)?.try_fold(0, |nr, entry| entry.map(|_| nr + 1))
}

#[test]
fn a_group_full_of_directories_is_refused_more_alone() {
    if !can_mount() {
        return;
    }
    let maximum = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).unwrap();
    let (data, mnt) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let engine = Engine::new(EngineConfig::default()).unwrap();
    let full = engine.create_group(engine.root(), OsStr::new("full")).unwrap();
    let other = engine.create_group(engine.root(), OsStr::new("other")).unwrap();
    engine.set_max(&full, LIMIT);
    for n in 0..NR_DIRECTORIES {
        fs::create_dir_all(data.path().join(format!("d/{n}/below"))).unwrap();
    }
    let classifier = ByThread::new(engine.root());
    let config = on_older_kernel(data.path(), mnt.path());
    let daemon = Daemon::start(&engine, classifier.clone(), &config).unwrap();
    let parent = mnt.path().join("d");
    let path = |n: usize| parent.join(n.to_string());
    let last = NR_DIRECTORIES - 1;

    let pins = classifier.run(&full, || {
        let (pins, refused) = pin_all(&parent);
        assert_eq!(refused, Errno::NOMEM);
        assert!(pins.len() >= NR_BEYOND_MAX, "{}", pins.len());
        let no_room = fs::create_dir(parent.join("new")).unwrap_err();
        assert_eq!(no_room.raw_os_error(), Some(Errno::NOMEM.raw_os_error()));
        // What is known goes on, and listings need no room for what they list.
        assert_eq!(list(&parent).unwrap(), NR_DIRECTORIES);
        assert_eq!(list(&path(0)).unwrap(), 1);
        assert!(fs::metadata(path(1)).unwrap().is_dir());
        pins
    });
    let most = LIMIT + NR_BEYOND_MAX as u64 * NAME_BYTES;
    let kept = engine.root().stat_total(StatItem::SlabReclaimable) as u64;
    assert!(
        kept <= most,
        "{kept} bytes of names are kept, of {most} at most; the group uses {}",
        full.usage_bytes()
    );
    classifier.run(&other, || {
        assert_eq!(list(&path(last)).unwrap(), 1);
        fs::create_dir(parent.join("new")).unwrap();
        assert_eq!(list(&parent).unwrap(), NR_DIRECTORIES + 1);
    });

    // The kernel drops directories that have gone.
    drop(pins);
    classifier.run(&full, || {
        for n in 0..NR_BEYOND_MAX {
            fs::remove_dir(data.path().join(format!("d/{n}/below"))).unwrap();
            fs::remove_dir(path(n)).unwrap();
        }
        let has_room = || fs::metadata(path(last - 1)).is_ok();
        assert!(within(crate::common::TIMEOUT, has_room).is_some(), "no room though directories have gone");
    });
    assert_eq!(daemon.shut_down(Instant::now() + crate::common::TIMEOUT), []);
}
