//! A directory behind a mount, with real files.

use std::fs::{self, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::common::can_mount;
use rustix::fs::{AtFlags, CWD, Mode, OFlags, RenameFlags, StatxFlags, linkat, openat, renameat_with, statx};
use umemcg::{Engine, EngineConfig};
use umemcg_fuse::{Daemon, DaemonConfig, Lifetimes, RootOnly};
use umemcg_vfs::{Caller, NodeId};

/// A mounted volume; everything goes away with it.
struct Volume {
    daemon: Option<Daemon>,
    engine: Arc<Engine>,
    data: tempfile::TempDir,
    mnt: tempfile::TempDir,
}

impl Volume {
    fn new(pool_bytes: u64) -> Self {
        Self::with(pool_bytes, Lifetimes::default())
    }

    fn with(pool_bytes: u64, lifetimes: Lifetimes) -> Self {
        let (data, mnt) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let engine = Engine::new(EngineConfig::new(pool_bytes)).unwrap();
        let everybody = Arc::new(RootOnly(Arc::clone(engine.root())));
        let config = DaemonConfig { lifetimes, ..DaemonConfig::new(data.path(), mnt.path()) };
        let daemon = Daemon::start(&engine, everybody, &config).unwrap();
        Self { daemon: Some(daemon), engine, data, mnt }
    }

    fn path(&self, name: impl AsRef<Path>) -> PathBuf {
        self.mnt.path().join(name)
    }

    fn behind(&self, name: impl AsRef<Path>) -> PathBuf {
        self.data.path().join(name)
    }

    fn daemon(&self) -> &Daemon {
        self.daemon.as_ref().unwrap()
    }

    fn shut_down(&mut self) {
        let lost = self.daemon.take().unwrap().shut_down(Instant::now() + crate::common::TIMEOUT);
        assert_eq!(lost, []);
    }
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len as u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect()
}

#[test]
fn written_data_is_read_back_and_in_the_directory_at_the_end() {
    if !can_mount() {
        return;
    }
    let mut volume = Volume::new(64 << 20);
    let bytes = pattern(5 << 20);
    fs::write(volume.path("big"), &bytes).unwrap();
    assert!(fs::read(volume.path("big")).unwrap() == bytes);
    volume.shut_down();
    assert!(fs::read(volume.behind("big")).unwrap() == bytes);
    assert!(!volume.path("big").exists(), "nothing is mounted any more");
}

#[test]
fn a_directory_can_be_served_again_in_the_same_process() {
    if !can_mount() {
        return;
    }
    let mut volume = Volume::new(64 << 20);
    for round in 0..3 {
        fs::write(volume.path("f"), pattern(5000 + round)).unwrap();
        volume.shut_down();
        let everybody = Arc::new(RootOnly(Arc::clone(volume.engine.root())));
        let config = DaemonConfig::new(volume.data.path(), volume.mnt.path());
        volume.daemon = Some(Daemon::start(&volume.engine, everybody, &config).unwrap());
        assert!(fs::read(volume.path("f")).unwrap() == pattern(5000 + round));
    }
}

#[test]
fn a_file_larger_than_the_pool_goes_through_it() {
    if !can_mount() {
        return;
    }
    let mut volume = Volume::new(8 << 20);
    let bytes = pattern(1 << 20);
    let mut file = fs::File::create(volume.path("big")).unwrap();
    for _ in 0..40 {
        file.write_all(&bytes).unwrap();
    }
    drop(file);
    let mut file = fs::File::open(volume.path("big")).unwrap();
    let mut back = vec![0; 1 << 20];
    for mebibyte in 0..40 {
        file.read_exact(&mut back).unwrap();
        let wrong = (0..bytes.len()).find(|&at| bytes[at] != back[at]);
        assert_eq!(wrong, None, "in MiB {mebibyte}");
    }
    assert!(volume.engine.root().usage_bytes() <= 8 << 20);
    volume.shut_down();
    assert_eq!(fs::metadata(volume.behind("big")).unwrap().len(), 40 << 20);
}

#[test]
fn the_usual_operations_do_what_they_do_everywhere() {
    if !can_mount() {
        return;
    }
    let volume = Volume::new(64 << 20);
    let p = |name: &str| volume.path(name);
    fs::create_dir_all(p("a/b/c")).unwrap();
    fs::write(p("a/f"), "one").unwrap();
    OpenOptions::new().append(true).open(p("a/f")).unwrap().write_all(b" two").unwrap();
    assert_eq!(fs::read(p("a/f")).unwrap(), b"one two");
    fs::hard_link(p("a/f"), p("a/g")).unwrap();
    assert_eq!(fs::metadata(p("a/g")).unwrap().nlink(), 2);
    fs::rename(p("a/g"), p("a/b/h")).unwrap();
    symlink("b/h", p("a/s")).unwrap();
    assert_eq!(fs::read_link(p("a/s")).unwrap(), Path::new("b/h"));
    assert_eq!(fs::read(p("a/s")).unwrap(), b"one two");
    fs::set_permissions(p("a/f"), fs::Permissions::from_mode(0o600)).unwrap();
    assert_eq!(fs::metadata(p("a/b/h")).unwrap().mode() & 0o7777, 0o600);
    assert_eq!(fs::remove_dir(p("a")).unwrap_err().raw_os_error(), Some(39));
    let mut names: Vec<_> = fs::read_dir(p("a")).unwrap().map(|e| e.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["b", "f", "s"]);
    let file = OpenOptions::new().read(true).write(true).open(p("a/f")).unwrap();
    fs::remove_file(p("a/f")).unwrap();
    file.write_all_at(b"still", 0).unwrap();
    let mut open = &file;
    open.seek(SeekFrom::Start(0)).unwrap();
    let mut text = String::new();
    open.read_to_string(&mut text).unwrap();
    assert_eq!(text, "stilltwo".replace("stilltwo", "stillwo"));
    file.set_len(3).unwrap();
    assert_eq!(file.metadata().unwrap().len(), 3);
    fs::remove_dir_all(p("a")).unwrap();
    assert_eq!(fs::read_dir(p("")).unwrap().count(), 0);
}

#[test]
fn a_directory_of_many_names_is_listed_whole() {
    if !can_mount() {
        return;
    }
    let volume = Volume::new(64 << 20);
    for n in 0..3000 {
        fs::write(volume.path(format!("file-{n:05}")), []).unwrap();
    }
    let mut names: Vec<_> = fs::read_dir(volume.path(""))
        .unwrap()
        .map(|e| e.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert_eq!(names, (0..3000).map(|n| format!("file-{n:05}")).collect::<Vec<_>>());
    let output = Command::new("ls").arg("-l").arg(volume.path("")).output().unwrap();
    assert_eq!(output.stdout.iter().filter(|&&b| b == b'\n').count(), 3001);
}

#[test]
fn files_leave_no_handles_behind() {
    if !can_mount() {
        return;
    }
    let volume = Volume::new(64 << 20);
    for n in 0..100 {
        fs::write(volume.path(format!("{n}")), "x").unwrap();
        assert_eq!(fs::read(volume.path(format!("{n}"))).unwrap(), b"x");
    }
    let filesystem = volume.daemon().filesystem();
    assert!(crate::common::within(crate::common::TIMEOUT, || filesystem.nr_open_files() == 0).is_some());
    assert!(
        crate::common::within(crate::common::TIMEOUT, || volume.daemon().session().nr_inflight() == 0)
            .is_some()
    );
}

#[test]
fn what_the_kernel_remembers_it_forgets_on_notice() {
    if !can_mount() {
        return;
    }
    let hour = Duration::from_secs(3600);
    let volume = Volume::with(64 << 20, Lifetimes { entry: hour, attr: hour, ..Default::default() });
    fs::write(volume.behind("f"), "x").unwrap();
    let mode = || fs::metadata(volume.path("f")).unwrap().mode() & 0o777;
    fs::set_permissions(volume.behind("f"), fs::Permissions::from_mode(0o600)).unwrap();
    assert_eq!(mode(), 0o600);
    fs::set_permissions(volume.behind("f"), fs::Permissions::from_mode(0o640)).unwrap();
    assert_eq!(mode(), 0o600, "a warm stat does not reach us");

    let vfs = volume.daemon().volumes().whole().unwrap().volume();
    let group = Arc::clone(volume.engine.root());
    let me = Caller { uid: 0, gid: 0, supplementary_gid: None, group, umask: 0, thread: 0 };
    let node = vfs.lookup(&me, NodeId::ROOT, "f".as_ref()).unwrap().node;
    let notifier = volume.daemon().session().notifier();
    assert!(notifier.inval_attributes_now(node.0));
    assert_eq!(mode(), 0o640);
    vfs.forget(node, 1);

    fs::rename(volume.behind("f"), volume.behind("g")).unwrap();
    assert_eq!(mode(), 0o640, "so does a warm lookup");
    assert!(notifier.inval_entry_within(1, "f".as_ref(), crate::common::TIMEOUT));
    assert!(!volume.path("f").exists());
    assert_eq!(notifier.nr_dropped(), 0);
}

#[test]
fn a_write_by_another_user_takes_set_id_bits() {
    if !can_mount() || !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED: needs root");
        return;
    }
    let volume = Volume::new(64 << 20);
    fs::set_permissions(volume.path(""), fs::Permissions::from_mode(0o755)).unwrap();
    fs::set_permissions(volume.mnt.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let path = volume.path("f");
    for script in ["echo x >> \"$0\"", "echo x 1<> \"$0\"", ": > \"$0\""] {
        fs::write(&path, "text").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o6777)).unwrap();
        let mut shell = Command::new("setpriv");
        shell.args(["--reuid=65534", "--regid=65534", "--clear-groups", "sh", "-c", script]);
        assert!(shell.arg(&path).status().unwrap().success(), "{script}");
        // A process that asks for nothing else is answered by what the kernel believes, while it
        // does.
        let stat = statx(CWD, &path, AtFlags::empty(), StatxFlags::MODE).unwrap();
        assert_eq!(stat.stx_mode & 0o7777, 0o777, "{script}");
    }
}

#[test]
fn a_new_file_has_its_makers_umask_and_the_directorys_group() {
    if !can_mount() || !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED: needs root");
        return;
    }
    let volume = Volume::new(64 << 20);
    let dir = volume.path("shared");
    fs::create_dir(&dir).unwrap();
    std::os::unix::fs::chown(&dir, Some(0), Some(4711)).unwrap();
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o2775)).unwrap();
    fs::set_permissions(volume.path(""), fs::Permissions::from_mode(0o755)).unwrap();
    let mut shell = Command::new("setpriv");
    shell.args(["--reuid=1234", "--regid=1235", "--groups=4711", "sh", "-c"]);
    shell.arg("umask 026; cd \"$0\" && echo x > f && mkdir d").arg(&dir);
    assert!(shell.status().unwrap().success());
    let file = fs::metadata(dir.join("f")).unwrap();
    assert_eq!((file.uid(), file.gid(), file.mode() & 0o7777), (1234, 4711, 0o640));
    let made = fs::metadata(dir.join("d")).unwrap();
    assert_eq!((made.uid(), made.gid(), made.mode() & 0o7777), (1234, 4711, 0o2751));
}

#[test]
fn the_time_when_a_file_was_made_is_shown() {
    if !can_mount() {
        return;
    }
    let volume = Volume::new(64 << 20);
    fs::write(volume.path("f"), "text").unwrap();
    let made = |path: PathBuf| fs::metadata(path).unwrap().created().ok();
    let Some(on_host) = made(volume.behind("f")) else {
        eprintln!("SKIPPED: the directory's file system does not keep it");
        return;
    };
    assert_eq!(made(volume.path("f")), Some(on_host));
    let stat = fs::metadata(volume.path("f")).unwrap();
    assert_eq!((stat.len(), stat.mode(), stat.nlink()), (4, 0o100_644, 1));
}

#[test]
fn a_file_without_a_name_can_be_made_and_linked() {
    if !can_mount() {
        return;
    }
    let mut volume = Volume::new(64 << 20);
    let mode = Mode::from_raw_mode(0o640);
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let mut file = fs::File::from(openat(CWD, volume.path(""), flags, mode).unwrap());
    file.write_all(b"content").unwrap();
    assert_eq!(file.metadata().unwrap().nlink(), 0);
    assert_eq!(fs::read_dir(volume.path("")).unwrap().count(), 0);
    let fd = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file));
    linkat(CWD, fd, CWD, volume.path("f"), AtFlags::SYMLINK_FOLLOW).unwrap();
    drop(file);
    let meta = fs::metadata(volume.path("f")).unwrap();
    assert_eq!((meta.nlink(), meta.mode() & 0o7777), (1, 0o640));
    assert_eq!(fs::read(volume.path("f")).unwrap(), b"content");
    volume.shut_down();
    assert_eq!(fs::read(volume.behind("f")).unwrap(), b"content");
}

#[test]
fn a_rename_on_the_mount_may_leave_a_whiteout() {
    if !can_mount() {
        return;
    }
    let volume = Volume::new(64 << 20);
    fs::write(volume.path("a"), "text").unwrap();
    renameat_with(CWD, volume.path("a"), CWD, volume.path("b"), RenameFlags::WHITEOUT).unwrap();
    let whiteout = fs::symlink_metadata(volume.path("a")).unwrap();
    assert_eq!((whiteout.mode() & 0o170_000, whiteout.rdev()), (0o020_000, 0));
    assert_eq!(fs::read(volume.path("b")).unwrap(), b"text");
}
