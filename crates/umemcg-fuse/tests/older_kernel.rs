//! Names on a kernel that cannot be told to let go of inodes: those of files are made stale,
//! directories stay.

mod common;

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::time::Instant;

use common::can_mount;
use umemcg::{Engine, EngineConfig, StatItem};
use umemcg_fuse::{Daemon, DaemonConfig, RootOnly, SessionConfig};

/// The last minor number before inodes can be pruned.
const OLDER: u32 = 44;
const LIMIT: u64 = 512 << 10;
const NR_FILES: usize = 3_000;

#[test]
fn names_of_files_are_made_stale_and_what_is_in_use_survives() {
    if !can_mount() {
        return;
    }
    let (data, mnt) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let engine = Engine::new(EngineConfig::default()).unwrap();
    let group = engine.create_group(engine.root(), OsStr::new("all")).unwrap();
    engine.set_max(&group, LIMIT, &|| false);
    for directory in ["d", "d/stand"] {
        fs::create_dir(data.path().join(directory)).unwrap();
    }
    (0..NR_FILES).for_each(|n| fs::write(data.path().join(format!("d/{n}")), n.to_string()).unwrap());
    let config = DaemonConfig {
        session: SessionConfig { minor_max: Some(OLDER), ..SessionConfig::default() },
        ..DaemonConfig::new(data.path(), mnt.path())
    };
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
    assert_eq!(daemon.shut_down(Instant::now() + common::TIMEOUT), []);
}
