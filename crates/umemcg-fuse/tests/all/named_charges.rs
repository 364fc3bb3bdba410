//! Everything charged has a name in `memory.stat`: beside a busy daemon the sum of the names is the
//! usage, in every group. Whatever a new kind of charge leaves behind here without a statistic
//! makes this fail.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::common::by_thread::ByThread;
use crate::common::{can_mount, within};
use umemcg::{Engine, EngineConfig, Group};
use umemcg_fuse::{Daemon, DaemonConfig};
use umemcg_vfs::{TmpfsConfig, VolumeConfig, VolumeSpec};

const SOON: Duration = crate::common::TIMEOUT;

fn make(engine: &Engine, parent: &Arc<Group>, name: &str) -> Arc<Group> {
    engine.create_group(parent, OsStr::new(name)).unwrap()
}

/// Does the work of a tenant that the daemon remembers for it: data, dirty data, names long and
/// short, links, listings, locks, open files and attributes.
fn work_in(directory: &Path) {
    fs::create_dir_all(directory).unwrap();
    for n in 0..40 {
        let path = directory.join(format!("file-{n}"));
        fs::write(&path, vec![n; 30_000]).unwrap();
        assert_eq!(fs::read(&path).unwrap().len(), 30_000);
        fs::hard_link(&path, directory.join(format!("{}-{n}", "long".repeat(50)))).unwrap();
        symlink("file-0", directory.join(format!("link-{n}"))).unwrap();
        assert!(!directory.join(format!("absent-{n}")).exists());
    }
    assert!(fs::read_dir(directory).unwrap().count() > 100);
    fs::remove_file(directory.join("file-7")).unwrap();
}

/// All groups, the root first.
fn groups(engine: &Engine) -> Vec<Arc<Group>> {
    let mut all = Vec::new();
    let mut at = Group::next_in_subtree(engine.root(), None);
    while let Some(group) = at {
        at = Group::next_in_subtree(engine.root(), Some(&group));
        all.push(group);
    }
    all
}

/// Waits until the names add up in every group: requests that were answered may still be giving
/// back what they took.
fn assert_all_named(engine: &Engine, when: &str) {
    let differing = || -> Vec<String> {
        engine.root().drain_stocks();
        let groups = groups(engine);
        let differing = groups.iter().filter(|group| group.named_bytes() != group.usage_bytes());
        differing
            .map(|group| format!("{group:?}: {} of {} named", group.named_bytes(), group.usage_bytes()))
            .collect()
    };
    assert!(within(SOON, || differing().is_empty()).is_some(), "{when}: {:#?}", differing());
}

#[test]
fn every_charged_byte_of_a_busy_tree_has_a_name() {
    if !can_mount() {
        return;
    }
    let (data, mnt) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let engine = Engine::new(EngineConfig::new(64 << 20)).unwrap();
    let classifier = ByThread::new(engine.root());
    let daemon = Daemon::start(&engine, classifier.clone(), &DaemonConfig::many(mnt.path())).unwrap();
    daemon.add_volume("data", &VolumeSpec::Directory(VolumeConfig::new(data.path()))).unwrap();
    daemon.add_volume("memory", &VolumeSpec::Tmpfs(TmpfsConfig::default())).unwrap();
    let (a, b) = (make(&engine, engine.root(), "a"), make(&engine, engine.root(), "b"));
    let (a1, a2) = (make(&engine, &a, "a1"), make(&engine, &a, "a2"));
    engine.set_max(&b, 2 << 20);
    assert_all_named(&engine, "at the start");

    for (group, name) in [(&a1, "of-a1"), (&a2, "of-a2"), (&b, "of-b")] {
        classifier.run(group, || {
            for volume in ["data", "memory"] {
                work_in(&mnt.path().join(volume).join(name));
            }
        });
    }
    let mut open = Vec::new();
    classifier.run(&a1, || {
        open.extend(
            (0..20).map(|n| fs::File::open(mnt.path().join(format!("data/of-a1/file-{}", n % 5))).unwrap()),
        );
        fs::File::open(mnt.path().join("data/of-a1/file-0")).unwrap().lock().unwrap();
    });
    let held = classifier.run(&a2, || fs::read_dir(mnt.path().join("data/of-a2")).unwrap());
    let _reserved = engine.reserve(&a2, 1 << 20).unwrap();
    assert!(a.usage_bytes() > 2 << 20 && b.usage_bytes() > 1 << 20);
    assert_all_named(&engine, "at work");

    engine.remove_group(&a1).unwrap();
    drop(a1);
    for n in 0..50 {
        make(&engine, &a, &format!("empty-{n}"));
    }
    engine.force_empty(&b).unwrap();
    assert_all_named(&engine, "when groups came and went");
    assert!(a.metadata_bytes() > 50 * umemcg::internal::GROUP_STATE_BYTES);

    drop((open, held));
    fs::remove_dir_all(mnt.path().join("memory/of-a1")).unwrap();
    assert_all_named(&engine, "when files were closed and removed");
    assert_eq!(daemon.shut_down(Instant::now() + SOON), []);
    assert_all_named(&engine, "at the end");
}
