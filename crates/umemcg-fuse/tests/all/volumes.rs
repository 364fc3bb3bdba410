//! Many volumes on one real mount: added, used, removed while it is served.

use std::fs;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use crate::common::can_mount;
use crate::object_pages::memory_bucket::{ChangeFault, MemoryBucket};
use crate::object_pages::staged;
use rustix::io::Errno;
use umemcg::{Engine, EngineConfig};
use umemcg_fuse::{AddVolumeError, Daemon, DaemonConfig, RemoveVolumeError, RootOnly};
use umemcg_vfs::bucket::BucketError;
use umemcg_vfs::object::StagingConfig;
use umemcg_vfs::volumes::{AddError, RemoveError, Syncing};
use umemcg_vfs::{TmpfsConfig, VolumeConfig, VolumeSpec};

struct Many {
    daemon: Daemon,
    engine: Arc<Engine>,
    mnt: tempfile::TempDir,
    dirs: tempfile::TempDir,
}

impl Many {
    fn new() -> Self {
        Self::with(64 << 20)
    }

    fn with(pool_bytes: u64) -> Self {
        let (mnt, dirs) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let engine = Engine::new(EngineConfig::new(pool_bytes)).unwrap();
        let everybody = Arc::new(RootOnly(Arc::clone(engine.root())));
        let daemon = Daemon::start(&engine, everybody, &DaemonConfig::many(mnt.path())).unwrap();
        Self { daemon, engine, mnt, dirs }
    }

    /// Adds a volume of a fresh directory.
    fn add(&self, name: &str) -> PathBuf {
        let dir = self.dirs.path().join(name);
        fs::create_dir(&dir).unwrap();
        self.daemon.add_volume(name, &VolumeSpec::Directory(VolumeConfig::one_of_many(&dir))).unwrap();
        dir
    }

    fn remove(&self, name: &str, force: bool) -> Result<umemcg_fuse::Removed, RemoveVolumeError> {
        self.daemon.remove_volume(name, force, Instant::now() + crate::common::TIMEOUT, &mut |_| {})
    }

    /// Removes a volume, without `force` when the kernel has told that its files are closed, which
    /// it does when it gets round to it.
    fn remove_closed(&self, name: &str, force: bool) {
        let is_gone = || match self.remove(name, force) {
            Ok(_) => true,
            Err(RemoveVolumeError::Refused(RemoveError::Busy { .. })) => false,
            Err(error) => panic!("{name}: {error}"),
        };
        assert!(crate::common::within(crate::common::TIMEOUT, is_gone).is_some(), "{name} stays busy");
    }

    fn path(&self, name: &str) -> PathBuf {
        self.mnt.path().join(name)
    }

    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(self.mnt.path()).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }
}

impl Drop for Many {
    fn drop(&mut self) {
        let lost = self.daemon.shut_down(Instant::now() + crate::common::TIMEOUT);
        assert!(lost.is_empty() || std::thread::panicking(), "{lost:?}");
    }
}

fn errno<T>(result: std::io::Result<T>) -> Option<Errno> {
    result.err().as_ref().and_then(Errno::from_io_error)
}

#[test]
fn volumes_are_directories_added_and_removed_while_served() {
    if !can_mount() {
        return;
    }
    let many = Many::new();
    assert!(many.names().is_empty());
    let (a, b) = (many.add("a"), many.add("b"));
    assert_eq!(many.names(), ["a", "b"], "in the order in which they came");
    fs::write(many.path("a/f"), "one").unwrap();
    fs::create_dir(many.path("b/d")).unwrap();
    fs::write(many.path("b/d/f"), "two").unwrap();
    assert_eq!(fs::read(many.path("a/f")).unwrap(), b"one");
    many.remove_closed("a", false);
    assert_eq!(many.names(), ["b"], "gone for every process at once");
    assert_eq!(errno(fs::read(many.path("a/f"))), Some(Errno::NOENT));
    assert_eq!(fs::read(a.join("f")).unwrap(), b"one", "what was accepted is in the directory");
    assert_eq!(fs::read(many.path("b/d/f")).unwrap(), b"two");
    drop(b);
    // The place of a removed volume is taken by another, which has nothing of it.
    many.add("c");
    assert!(!many.path("c/f").exists());
    fs::write(many.path("c/f"), "three").unwrap();
    assert_eq!(many.names(), ["b", "c"]);
}

#[test]
fn the_directory_of_volumes_cannot_be_changed_from_inside() {
    if !can_mount() {
        return;
    }
    let many = Many::new();
    many.add("a");
    assert_eq!(errno(fs::create_dir(many.path("new"))), Some(Errno::ROFS));
    assert_eq!(errno(fs::write(many.path("new"), "")), Some(Errno::ROFS));
    assert_eq!(errno(fs::rename(many.path("a"), many.path("b"))), Some(Errno::ROFS));
    assert!(fs::remove_dir(many.path("a")).is_err());
    assert_eq!(many.names(), ["a"]);
    assert!(rustix::fs::statvfs(many.mnt.path()).unwrap().f_blocks > 0);
}

#[test]
fn no_rename_or_link_or_inode_number_crosses_volumes() {
    if !can_mount() {
        return;
    }
    let many = Many::new();
    let dir = many.add("a");
    many.add("b");
    // The same directory once more: the same inodes on the host.
    let again = VolumeConfig { is_exclusive: false, ..VolumeConfig::one_of_many(&dir) };
    many.daemon.add_volume("again", &VolumeSpec::Directory(again)).unwrap();
    fs::write(many.path("a/f"), "x").unwrap();
    assert_eq!(errno(fs::rename(many.path("a/f"), many.path("b/f"))), Some(Errno::XDEV));
    assert_eq!(errno(fs::hard_link(many.path("a/f"), many.path("b/f"))), Some(Errno::XDEV));
    let inode = |name: &str| fs::metadata(many.path(name)).unwrap().ino();
    assert_ne!(inode("a/f"), inode("again/f"));
    let listed = fs::read_dir(many.path("a")).unwrap().next().unwrap().unwrap();
    assert_eq!(std::os::unix::fs::DirEntryExt::ino(&listed), inode("a/f"), "listings agree with stat");
}

#[test]
fn inode_numbers_of_tmpfs_volumes_fit_32_bits() {
    if !can_mount() {
        return;
    }
    let many = Many::new();
    for name in ["a", "b"] {
        many.daemon.add_volume(name, &VolumeSpec::Tmpfs(TmpfsConfig::default())).unwrap();
        fs::write(many.path(name).join("f"), "").unwrap();
    }
    let inode = |name: &str| fs::metadata(many.path(name)).unwrap().ino();
    let listed = fs::read_dir(many.path("b")).unwrap().next().unwrap().unwrap();
    assert_eq!(std::os::unix::fs::DirEntryExt::ino(&listed), inode("b/f"));
    assert!(inode("b/f") < 1 << 31 && inode("b") < 1 << 31);
    assert_ne!(inode("a/f"), inode("b/f"));
}

#[test]
fn each_staged_file_that_a_store_refuses_is_named() {
    if !can_mount() {
        return;
    }
    let many = Many::new();
    let (bucket, staging) = (Arc::<MemoryBucket>::default(), tempfile::tempdir().unwrap());
    let config = staged(&bucket, StagingConfig::new(staging.path().into(), 1 << 20));
    many.daemon.add_volume("o", &VolumeSpec::Objects(config)).unwrap();
    bucket.fail_changes(vec![ChangeFault::Refused(BucketError::Unavailable("it is closed".into())); 1000]);
    for (name, bytes) in [("a", "123"), ("b", "12345")] {
        // It does not report that the close fails.
        fs::write(many.path("o").join(name), bytes).unwrap();
    }
    let named = |mut lost: Vec<umemcg_fuse::Lost>| {
        lost.sort_by(|one, other| one.path.cmp(&other.path));
        lost.iter().map(|lost| (lost.path.to_str().unwrap().to_owned(), lost.bytes)).collect::<Vec<_>>()
    };
    let expected = [("o/a".to_owned(), 3), ("o/b".to_owned(), 5)];
    assert_eq!(named(many.daemon.flush(Instant::now() + crate::common::TIMEOUT, &mut |_| {})), expected);
    match many.remove("o", false) {
        Err(RemoveVolumeError::Lost(lost)) => assert_eq!(named(lost), expected),
        other => panic!("{other:?}"),
    }
    bucket.fail_no_changes();
}

#[test]
fn a_volume_in_use_stays_unless_it_is_removed_by_force() {
    if !can_mount() {
        return;
    }
    let many = Many::new();
    let dir = many.add("a");
    let mut open = fs::File::create(many.path("a/f")).unwrap();
    open.write_all(b"accepted").unwrap();
    match many.remove("a", false) {
        Err(RemoveVolumeError::Refused(RemoveError::Busy { nr_open: 1, example, .. })) => {
            assert_eq!(example.as_deref(), Some("\"f\""));
        }
        other => panic!("{other:?}"),
    }
    open.write_all(b" and more").unwrap();
    let removed = many.remove("a", true).unwrap();
    assert_eq!((removed.nr_closed, removed.lost.len()), (1, 0));
    assert_eq!(fs::read(dir.join("f")).unwrap(), b"accepted and more");
    assert_eq!(errno(open.write_all(b"late")), Some(Errno::NODEV));
    assert_eq!(errno(open.metadata()), Some(Errno::STALE));
    drop(open);
    let filesystem = many.daemon.filesystem();
    assert!(crate::common::within(crate::common::TIMEOUT, || filesystem.nr_open_files() == 0).is_some());
}

#[test]
fn what_cannot_be_a_volume_is_refused_and_nothing_changes() {
    if !can_mount() {
        return;
    }
    let many = Many::new();
    let dir = many.add("a");
    let spec = |dir: &std::path::Path| VolumeSpec::Directory(VolumeConfig::one_of_many(dir));
    for name in ["", ".", "..", "a/b", "new\nline", &"x".repeat(256)] {
        let refused = many.daemon.add_volume(name, &spec(&dir));
        assert!(matches!(refused, Err(AddVolumeError::Add(AddError::BadName(_)))), "{name:?}: {refused:?}");
    }
    assert!(matches!(
        many.daemon.add_volume("a", &spec(&dir)),
        Err(AddVolumeError::Add(AddError::Exists(_)))
    ));
    assert!(matches!(
        many.daemon.add_volume("b", &spec(&dir.join("none"))),
        Err(AddVolumeError::Directory { .. })
    ));
    for around in [many.mnt.path(), &many.path("a"), many.mnt.path().parent().unwrap()] {
        let refused = many.daemon.add_volume("b", &spec(around));
        assert!(matches!(refused, Err(AddVolumeError::Nested { .. })), "{}: {refused:?}", around.display());
    }
    assert!(matches!(many.remove("none", true), Err(RemoveVolumeError::Refused(RemoveError::NotFound(_)))));
    assert_eq!(many.names(), ["a"]);
}

#[test]
fn a_volume_that_is_gone_leaves_no_memory_behind() {
    if !can_mount() {
        return;
    }
    let many = Many::new();
    let before = many.engine.root().usage_bytes();
    for round in 0..20 {
        let name = format!("v{round}");
        many.add(&name);
        for file in 0..10 {
            fs::write(many.path(&format!("{name}/{file}")), vec![7; 20_000]).unwrap();
        }
        many.remove_closed(&name, false);
    }
    let left = || {
        // An empty list of a volume's names stays until the next round of the shrinkers, and the
        // kernel may forget the last of them late.
        many.engine.drop_caches(umemcg::DropCaches::Objects);
        many.engine.root().drain_stocks();
        many.engine.root().usage_bytes().saturating_sub(before)
    };
    assert!(crate::common::within(crate::common::TIMEOUT, || left() == 0).is_some(), "{} bytes", left());
}

/// Volumes, groups and files come and go from many threads in a pool that is much too small for
/// them.
#[test]
fn volumes_and_groups_removed_under_pressure_leave_nothing() {
    if !can_mount() {
        return;
    }
    let many = Many::with(8 << 20);
    let root = many.engine.root();
    // What is made once and stays: the page that holes read as, lists of the root.
    many.daemon.add_volume("first", &VolumeSpec::Tmpfs(TmpfsConfig::default())).unwrap();
    fs::write(many.path("first/f"), "x").unwrap();
    many.remove_closed("first", false);
    let kept = [umemcg::StatItem::Shmem, umemcg::StatItem::Unevictable, umemcg::StatItem::SlabUnreclaimable];
    let numbers = || kept.map(|item| root.stat_total(item));
    let settle = || {
        // An empty list of a volume's names stays until the next round of the shrinkers.
        many.engine.drop_caches(umemcg::DropCaches::Objects);
        root.drain_stocks();
        let [shmem, unevictable, slab] = numbers();
        (shmem, unevictable) == (0, 0) && root.usage_bytes() as i64 == slab
    };
    // The kernel closes the file when it gets round to it.
    assert!(crate::common::within(crate::common::TIMEOUT, settle).is_some(), "{:?}", numbers());
    // Beside that, the root's own lists may stay, empty; those of one volume only would be many
    // more.
    let most = numbers()[2] + 2 * 160;
    std::thread::scope(|scope| {
        for worker in 0..4 {
            let many = &many;
            scope.spawn(move || {
                for round in 0..12 {
                    let name = format!("w{worker}-{round}");
                    let group = many.engine.create_group(many.engine.root(), name.as_ref()).unwrap();
                    many.engine.set_max(&group, 2 << 20);
                    if round % 2 == 0 {
                        let config = TmpfsConfig { size_bytes: Some(1 << 20), ..TmpfsConfig::default() };
                        many.daemon.add_volume(&name, &VolumeSpec::Tmpfs(config)).unwrap();
                    } else {
                        many.add(&name);
                    }
                    for file in 0..5 {
                        let path = many.path(&format!("{name}/{file}"));
                        match fs::write(&path, vec![worker as u8; 300_000]) {
                            Ok(()) => assert_eq!(fs::read(&path).unwrap().len(), 300_000),
                            Err(error) => assert_eq!(errno::<()>(Err(error)), Some(Errno::NOSPC)),
                        }
                        let _ = fs::rename(&path, many.path(&format!("{name}/renamed-{file}")));
                    }
                    let _ = fs::read_dir(many.mnt.path()).unwrap().count();
                    many.engine.remove_group(&group).unwrap();
                    // An open file, now and then: the volume goes all the same.
                    let open = (round % 3 == 0).then(|| fs::File::create(many.path(&format!("{name}/open"))));
                    many.remove_closed(&name, open.is_some());
                    drop(open);
                }
            });
        }
        scope.spawn(|| {
            for _ in 0..200 {
                let _ = many.engine.reclaim(root, 1 << 20);
                for entry in fs::read_dir(many.mnt.path()).unwrap().flatten() {
                    let _ = fs::read_dir(entry.path()).map(|files| files.count());
                }
            }
        });
    });
    assert!(many.names().is_empty() && many.daemon.list_volumes().is_empty());
    let ended = crate::common::within(crate::common::TIMEOUT, || settle() && numbers()[2] <= most);
    assert!(ended.is_some(), "{} bytes, {:?}, at most {most} expected", root.usage_bytes(), numbers());
}

#[test]
fn later_changes_to_an_open_file_are_for_the_next_sync() {
    if !can_mount() {
        return;
    }
    let many = Many::new();
    many.add("a");
    let member = many.daemon.volumes().find("a".as_ref()).unwrap();
    let is_touched = || member.begin_sync().map(Syncing::finish).is_some();
    assert!(is_touched(), "it may have taken over what is to be stored");
    assert!(!is_touched());
    let mut open = fs::File::create(many.path("a/f")).unwrap();
    assert!(is_touched());
    for len in [5usize, 100_000] {
        open.write_all(&vec![1; len]).unwrap();
        assert!(is_touched(), "{len} bytes");
    }
    open.set_len(3).unwrap();
    assert!(is_touched());
    assert_eq!(fs::metadata(many.path("a/f")).unwrap().len(), 3);
    assert!(!is_touched(), "looking changes nothing");
}
