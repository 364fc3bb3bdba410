//! Mounts that succeed, mounts that are refused, and the messages of a refusal.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Instant;

use crate::common::{Memory, TIMEOUT, TestMount, can_mount};
use rustix::io::Errno;
use umemcg::{Engine, EngineConfig};
use umemcg_fuse::mountinfo::mount_at;
use umemcg_fuse::{
    Daemon, DaemonConfig, GuardProgram, MountError, MountOptions, Mounted, RootOnly, Session, SessionConfig,
    Unmount,
};

fn options() -> MountOptions {
    MountOptions::new("umemcg-test", "some, \\source")
}

fn refusal(point: &Path, options: &MountOptions) -> MountError {
    match Mounted::mount(point, options) {
        Err(error) => error,
        Ok(_) => panic!("mounted at {}", point.display()),
    }
}

#[test]
fn a_mount_point_must_be_an_existing_directory() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    fs::write(&file, "").unwrap();
    for missing in [dir.path().join("a"), dir.path().join("a/b")] {
        let error = refusal(&missing, &options());
        assert!(matches!(error, MountError::Missing(_)), "{error}");
        assert!(error.to_string().contains("does not exist"));
    }
    for no_directory in [file.clone(), file.join("x")] {
        let error = refusal(&no_directory, &options());
        assert!(matches!(error, MountError::NotDirectory(_)), "{error}");
    }
}

#[test]
fn a_taken_mount_point_is_busy_through_links() {
    if !can_mount() {
        return;
    }
    let mount = TestMount::new(Memory::with(&[]));
    let links = tempfile::tempdir().unwrap();
    let link = links.path().join("link");
    std::os::unix::fs::symlink(mount.point(), &link).unwrap();
    for point in [mount.point(), &link] {
        match refusal(point, &options()) {
            MountError::Busy { kind, .. } => assert_eq!(kind, "fuse.umemcg-test"),
            other => panic!("{other}"),
        }
    }
}

#[test]
fn a_mount_whose_daemon_died_is_taken_over_by_its_like() {
    if !can_mount() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (dead, device) = Mounted::mount(dir.path(), &options()).unwrap();
    drop(device);
    let error = refusal(dir.path(), &MountOptions::new("umemcg-other", "source"));
    assert!(matches!(error, MountError::Stale(_)), "{error}");

    let (mounted, device) = Mounted::mount(dir.path(), &options()).unwrap();
    let session = Session::start(device, Memory::with(&[("f", b"x")]), SessionConfig::default()).unwrap();
    assert!(!dead.is_mounted(), "the old mount does not take the new one for itself");
    drop(dead);
    assert_eq!(fs::read(mounted.point().join("f")).unwrap(), b"x");
    mounted.unmount(Unmount::ByForce).unwrap();
    assert!(session.wait(Some(TIMEOUT)));
    assert!(mount_at(mounted.point()).unwrap().is_none());
}

#[test]
fn a_mount_point_and_its_directory_do_not_contain_each_other() {
    let dir = tempfile::tempdir().unwrap();
    let (outer, inner) = (dir.path().join("outer"), dir.path().join("outer/inner"));
    fs::create_dir_all(&inner).unwrap();
    for (point, backing) in [(&inner, &outer), (&outer, &inner), (&outer, &outer)] {
        let error = refusal(point, &MountOptions { backing: Some(backing.clone()), ..options() });
        assert!(matches!(error, MountError::Nested { .. }), "{error}");
    }
}

#[test]
fn a_mount_in_use_is_unmounted_by_force_only() {
    if !can_mount() {
        return;
    }
    let mount = TestMount::new(Memory::with(&[("f", b"x")]));
    assert_eq!(mount_at(mount.point()).unwrap().unwrap().source, "memory");
    let file = fs::File::open(mount.path("f")).unwrap();
    let error = mount.unmount(Unmount::IfIdle).unwrap_err();
    assert_eq!(Errno::from_io_error(&error), Some(Errno::BUSY));
    mount.unmount(Unmount::ByForce).unwrap();
    assert!(std::io::Read::read(&mut &file, &mut [0]).is_err());
    mount.unmount(Unmount::IfIdle).unwrap();
    assert!(mount.session.wait(Some(TIMEOUT)));
}

#[test]
fn a_mount_that_is_dropped_goes_away() {
    if !can_mount() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (mounted, device) = Mounted::mount(dir.path(), &options()).unwrap();
    let point = mounted.point().to_owned();
    drop(mounted);
    assert!(mount_at(&point).unwrap().is_none());
    drop(device);
}

/// The part of the next test that an ordinary user's process runs: it mounts with the helper,
/// serves and unmounts.
#[test]
#[ignore = "started as another user by an_ordinary_user_mounts_with_the_helper"]
fn as_ordinary_user() {
    let point = std::env::var_os("UMEMCG_TEST_POINT").expect("started by the other test");
    assert!(!rustix::process::geteuid().is_root());
    let (mounted, device) = Mounted::mount(point.as_ref(), &options()).unwrap();
    let session = Session::start(device, Memory::with(&[("f", b"x")]), SessionConfig::default()).unwrap();
    let mount = mount_at(mounted.point()).unwrap().unwrap();
    assert_eq!((mount.kind.as_str(), mount.source.to_str()), ("fuse.umemcg-test", Some("some, \\source")));
    assert_eq!(fs::read(mounted.point().join("f")).unwrap(), b"x");
    let file = fs::File::open(mounted.point().join("f")).unwrap();
    let error = mounted.unmount(Unmount::IfIdle).unwrap_err();
    assert_eq!(Errno::from_io_error(&error), Some(Errno::BUSY), "{error}");
    let error = refusal(point.as_ref(), &options());
    assert!(matches!(error, MountError::Busy { .. }), "{error}");
    drop(file);
    mounted.unmount(Unmount::IfIdle).unwrap();
    assert!(session.wait(Some(TIMEOUT)));
    let error = refusal(point.as_ref(), &MountOptions { allow_other: Some(true), ..options() });
    assert!(error.to_string().contains("user_allow_other"), "{error}");
}

#[test]
fn an_ordinary_user_mounts_with_the_helper() {
    let helper = Command::new("fusermount3").arg("-V").output().is_ok_and(|output| output.status.success());
    if !can_mount() || !rustix::process::geteuid().is_root() || !helper {
        eprintln!("SKIPPED: needs root and fusermount3");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("test");
    // By a process of its own: a child that another thread forks would keep a file that this
    // process writes open, and then it cannot be run.
    assert!(
        Command::new("cp").arg(std::env::current_exe().unwrap()).arg(&program).status().unwrap().success()
    );
    let point = dir.path().join("mnt");
    fs::create_dir(&point).unwrap();
    std::os::unix::fs::chown(&point, Some(65534), Some(65534)).unwrap();
    fs::set_permissions(dir.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let output = Command::new("setpriv")
        .args(["--reuid=65534", "--regid=65534", "--clear-groups", "--"])
        .arg(&program)
        .args(["--ignored", "--exact", "mounting::as_ordinary_user", "--nocapture"])
        .env("UMEMCG_TEST_POINT", &point)
        .output()
        .unwrap();
    let _ = umemcg_fuse::mount::unmount(&point, Unmount::ByForce);
    let text =
        [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}

#[test]
fn a_helper_of_a_daemon_goes_with_its_mount() {
    if !can_mount() {
        return;
    }
    let (data, mnt) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let said = data.path().join("said");
    let script = format!("echo $$ \"$@\" >{0}.new; mv {0}.new {0}; exec sleep 600", said.display());
    let engine = Engine::new(EngineConfig::new(16 << 20)).unwrap();
    let everybody = Arc::new(RootOnly(Arc::clone(engine.root())));
    let mut config = DaemonConfig::new(data.path(), mnt.path());
    let arguments = ["-c", &script, "sh", "helper"].map(Into::into).to_vec();
    config.guard = Some(GuardProgram { name: "sh".into(), path: "/bin/sh".into(), arguments });
    let daemon = Daemon::start(&engine, everybody, &config).unwrap();
    let deadline = Instant::now() + TIMEOUT;
    while !said.exists() {
        assert!(Instant::now() < deadline, "no helper was started");
        std::thread::yield_now();
    }
    let (said, device) = (fs::read_to_string(said).unwrap(), daemon.mounted().device_number());
    let (helper, told) = said.split_once(' ').unwrap();
    let own = std::process::id();
    assert_eq!(told, format!("helper {} {device} {own}\n", daemon.mounted().point().display()));
    assert!(Path::new("/proc").join(helper).exists());
    assert_eq!(daemon.shut_down(Instant::now() + TIMEOUT), []);
    drop(daemon);
    assert!(!Path::new("/proc").join(helper).exists());
}
