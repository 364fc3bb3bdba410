//! Id-mapped mounts, and the requests in which the kernel then names no user.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::{Command, Output};
use std::sync::Arc;
use std::time::Instant;

use crate::common::can_mount;
use umemcg::{Engine, EngineConfig};
use umemcg_fuse::wire::InitFlags;
use umemcg_fuse::{Classifier, Daemon, DaemonConfig, ProcessClassifier, RootOnly};

/// A directory with a file of root's, and its mount.
struct Served {
    daemon: Daemon,
    data: tempfile::TempDir,
    mnt: tempfile::TempDir,
}

impl Served {
    fn new(engine: &Arc<Engine>, classifier: Arc<dyn Classifier>) -> Self {
        let (data, mnt) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        fs::set_permissions(data.path(), fs::Permissions::from_mode(0o755)).unwrap();
        fs::write(data.path().join("f"), "1").unwrap();
        let daemon = Daemon::start(engine, classifier, &DaemonConfig::new(data.path(), mnt.path())).unwrap();
        Self { daemon, data, mnt }
    }

    /// Returns a mount that may be id-mapped, where this process and the kernel can make one.
    fn mappable() -> Option<Self> {
        if !can_mount() {
            return None;
        }
        let engine = Engine::new(EngineConfig::new(64 << 20)).unwrap();
        let served = Self::new(&engine, Arc::new(RootOnly(Arc::clone(engine.root()))));
        let can = rustix::process::geteuid().is_root() && served.maps();
        if !can {
            eprintln!("SKIPPED: only root maps ids, from Linux 6.12 on; nothing was tested");
        }
        can.then_some(served)
    }

    fn maps(&self) -> bool {
        self.daemon.session().negotiated().has(InitFlags::ALLOW_IDMAP)
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let lost = self.daemon.shut_down(Instant::now() + crate::common::TIMEOUT);
        assert!(lost.is_empty() || std::thread::panicking(), "{lost:?}");
    }
}

fn python(script: &str, paths: &[&Path]) -> Output {
    Command::new("python3").args(["-c", script]).args(paths).output().unwrap()
}

fn lines(output: &Output) -> Vec<String> {
    let (said, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{said}{errors}");
    said.lines().map(str::to_owned).collect()
}

#[test]
fn an_id_mapped_mount_shows_and_stores_mapped_owners() {
    let Some(served) = Served::mappable() else { return };
    let elsewhere = tempfile::tempdir().unwrap();
    let script = "
import ctypes, os, subprocess, sys
OPEN_TREE, MOVE_MOUNT, MOUNT_SETATTR = 428, 429, 442
source, target = sys.argv[1:]
libc = ctypes.CDLL(None, use_errno=True)
def call(*arguments):
    result = libc.syscall(*arguments)
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(arguments[0]))
    return result
pipe = subprocess.PIPE
with subprocess.Popen(['unshare', '-U', 'sh', '-c', 'echo; read end'], stdin=pipe, stdout=pipe) as inside:
    inside.stdout.readline()
    for name in 'uid_map', 'gid_map':
        with open(f'/proc/{inside.pid}/{name}', 'w') as file:
            file.write('0 100000 65536')
    namespace = os.open(f'/proc/{inside.pid}/ns/user', os.O_RDONLY)
    inside.stdin.close()
tree = call(OPEN_TREE, -100, source.encode(), 1)
mapping = (ctypes.c_uint64 * 4)(0x100000, 0, 0, namespace)
call(MOUNT_SETATTR, tree, b'', 0x1000, mapping, ctypes.sizeof(mapping))
call(MOVE_MOUNT, tree, b'', -100, target.encode(), 4)
try:
    print(os.stat(target + '/f').st_uid)
    child = os.fork()
    if child == 0:
        os.setgroups([]), os.setresgid(*[100007] * 3), os.setresuid(*[100000] * 3)
        os.mkdir(target + '/made')
        os._exit(0)
    print(os.waitpid(child, 0)[1], os.stat(target + '/made').st_uid)
finally:
    libc.umount2(target.encode(), 2)
";
    let said = lines(&python(script, &[served.mnt.path(), elsewhere.path()]));
    assert_eq!(said, ["100000", "0 100000"]);
    let made = fs::metadata(served.data.path().join("made")).unwrap();
    assert_eq!((made.uid(), made.gid()), (0, 7));
}

#[test]
fn privileges_follow_the_caller_whose_user_is_not_named() {
    let Some(served) = Served::mappable() else { return };
    let script = "
import os, stat, sys
path = sys.argv[1]
def cut():
    os.close(os.open(path, os.O_WRONLY | os.O_TRUNC))
def grow():
    with open(path, 'r+') as file:
        os.posix_fallocate(file.fileno(), 0, 8192)
def check(change):
    print('trusted.t' in os.listxattr(path))
    change()
    print(oct(stat.S_IMODE(os.stat(path).st_mode)), flush=True)
os.setxattr(path, 'trusted.t', b'')
for change in cut, grow:
    os.chmod(path, 0o4777)
    check(change)
    if os.fork() == 0:
        os.setresuid(1000, 1000, 1000)
        check(change)
        os._exit(0)
    os.wait()
";
    let file = served.mnt.path().join("f");
    let expected = ["True", "0o4777", "False", "0o777"].repeat(2);
    assert_eq!(lines(&python(script, &[file.as_path()])), expected);
}

#[test]
fn a_rule_by_user_keeps_its_mount_from_mapping_ids() {
    if !can_mount() {
        return;
    }
    let engine = Engine::new(EngineConfig::new(64 << 20)).unwrap();
    let rules = vec!["uid:7=/seven".parse().unwrap()];
    let classifier = Arc::new(ProcessClassifier::new(Arc::clone(&engine), rules).unwrap());
    let served = Served::new(&engine, Arc::clone(&classifier) as _);
    assert!(!served.maps());
    classifier.set_rules(vec!["uid:8=/eight".parse().unwrap()]).unwrap();
}
