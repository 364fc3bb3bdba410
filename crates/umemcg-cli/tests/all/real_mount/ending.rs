//! The start and the end of a mount: busy and missing places, Ctrl-C, umount from outside, a daemon
//! that died.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

use rustix::process::{Resource, Rlimit, Signal, getrlimit, prlimit};

use crate::harness::{Mount, Options, PROGRAM, is_mounted, needs_mount, patiently, until};
use crate::real_mount::kernel_group::KernelGroup;

/// Takes mounts whose daemon has died out of the tree.
pub fn detach(mount: &Mount) {
    for path in [mount.mnt(), mount.cg()] {
        rustix::mount::unmount(path.as_path(), rustix::mount::UnmountFlags::DETACH).unwrap();
    }
}

/// A way to end a mount.
type End = fn(&mut Mount);

#[test]
fn each_way_to_end_flushes_first_and_leaves_no_mount() {
    needs_mount!();
    let ways: [(&str, End); 4] = [
        ("SIGINT", |mount| mount.signal(Signal::INT)),
        ("SIGTERM", |mount| mount.signal(Signal::TERM)),
        ("umount", |mount| drop(mount.sh("umount $MNT").good().to_owned())),
        ("umemcg umount", |mount| drop(mount.sh("$UMEMCG umount $MNT").good().to_owned())),
    ];
    for (name, end) in ways {
        let mut mount = Mount::start();
        mount.sh("head -c 5M /dev/urandom | tee $MNT/file > $MNT/../expected").good();
        end(&mut mount);
        let ended = mount.wait();
        assert_eq!(ended.status.code(), Some(0), "{name}: {ended:?}");
        assert!(!is_mounted(&mount.mnt()) && !is_mounted(&mount.cg()), "{name}");
        mount.sh("cmp $DATA/file $DATA/../expected").good();
    }
}

#[test]
fn an_end_without_threads_to_give_flushes_first() {
    needs_mount!();
    for end in [Signal::TERM, Signal::INT] {
        let held = KernelGroup::of_threads("end").unwrap();
        let mut mount = Mount::start();
        mount.sh("head -c 5M /dev/urandom | tee $MNT/file > $MNT/../expected").good();
        held.add(mount.pid());
        held.limit(1);
        mount.signal(end);
        let ended = mount.wait();
        assert_eq!(ended.status.code(), Some(0), "{ended:?}");
        mount.sh("cmp $DATA/file $DATA/../expected").good();
    }
}

#[test]
fn the_control_mount_stands_for_the_mount() {
    needs_mount!();
    let mut mount = Mount::start();
    mount
        .sh("echo x > $MNT/file; $UMEMCG sync $CG; [ \"$(cat $DATA/file)\" = x ]; $UMEMCG umount $CG")
        .good();
    assert!(mount.wait().status.success());
    assert!(!is_mounted(&mount.mnt()) && !is_mounted(&mount.cg()));
}

#[test]
fn a_busy_mount_is_not_unmounted_and_its_user_is_named() {
    needs_mount!();
    let mut mount = Mount::start();
    let refused = mount.sh(
        "cd $MNT; exec 3> file; echo before >&3; $UMEMCG umount $MNT || code=$?; echo after >&3; exit $code",
    );
    assert_eq!(refused.status.code(), Some(5), "{refused:?}");
    assert!(refused.stderr.contains("bash ("), "{refused:?}");
    mount.umount();
    assert_eq!(fs::read(mount.data().join("file")).unwrap(), b"before\nafter\n");
}

/// Starts a shell that works in the mount until it is told to go on; returns when it is inside.
fn enter(mount: &Mount, first: &str, then: &str) -> (Child, PathBuf) {
    let (go, ready) = (mount.outside().join("go"), mount.outside().join("ready"));
    mount.sh("mkfifo $MNT/../go $MNT/../ready").good();
    let inside = mount
        .shell(&format!("exec 4<> $GO; cd $MNT; {first}; echo > $READY; read -r line <&4; {then}"))
        .env("GO", &go)
        .env("READY", &ready)
        .stdin(Stdio::null())
        .spawn()
        .unwrap();
    mount.sh("read -r line < $MNT/../ready").good();
    (inside, go)
}

#[test]
fn after_a_signal_users_of_the_mount_may_finish() {
    needs_mount!();
    let mut mount = Mount::start();
    let (mut inside, go) = enter(&mount, "exec 3> file; echo before >&3", "echo after >&3");
    mount.signal(Signal::TERM);
    // Detached: gone from the tree, though the shell is still in it.
    until("the mount is detached", || !is_mounted(&mount.mnt()));
    fs::write(go, "\n").unwrap();
    assert!(patiently(Some(mount.pid()), &mut inside).success());
    assert_eq!(mount.wait().status.code(), Some(0));
    assert_eq!(fs::read(mount.data().join("file")).unwrap(), b"before\nafter\n");
}

#[test]
fn a_second_signal_does_not_wait_for_users_of_the_mount() {
    needs_mount!();
    let mut mount =
        Mount::start_with(&Options { arguments: vec!["--flush-timeout", "1h"], ..Options::default() });
    let (mut inside, go) = enter(&mount, "true", "true");
    mount.signal(Signal::INT);
    until("the mount is detached", || !is_mounted(&mount.mnt()));
    mount.signal(Signal::INT);
    assert_eq!(mount.wait().status.code(), Some(0));
    fs::write(go, "\n").unwrap();
    patiently(None, &mut inside);
}

#[test]
fn places_that_cannot_be_mounted_are_refused_with_a_reason() {
    needs_mount!();
    let mut mount = Mount::start();
    let place = |name: &str| mount.outside().join(name).to_str().unwrap().to_owned();
    // One that no daemon serves.
    let data = place("other");
    fs::write(place("file"), "").unwrap();
    fs::create_dir(place("free")).unwrap();
    fs::create_dir(&data).unwrap();
    let check = |arguments: &[&str], code, reason: &str| {
        let mut words = vec!["mount"];
        words.extend(arguments);
        let ended = mount.umemcg(&words);
        assert_eq!(ended.status.code(), Some(code), "{arguments:?}: {ended:?}");
        assert!(ended.stderr.to_lowercase().contains(reason), "{arguments:?}: {ended:?}");
    };
    check(&[&data, &place("missing")], 1, "missing");
    check(&[&data, &place("file")], 1, "not a directory");
    check(&[&place("missing"), &place("free")], 1, "missing");
    check(&[&place("file"), &place("free")], 1, "not a directory");
    check(&[&data, &place("free"), "--control", &place("missing")], 1, "missing");
    check(&[&data, &place("free"), "--control", &place("free")], 2, "control");
    // What is served already is busy: its daemon is alive.
    check(&[&data, &place("mnt")], 5, "mnt");
    check(&[&data, &place("free"), "--rule", "nonsense"], 2, "rule");
    check(&[&data, &place("free"), "--pool", "900%"], 2, "100%");
    // Serving the mount point's own directory, or below it, would wait for itself.
    check(&[&data, &data], 1, "");
    assert!(!is_mounted(&mount.outside().join("free")));
    mount.assert_alive();
    mount.umount();
}

#[test]
fn what_is_no_mount_of_ours_is_said_to_be_none() {
    needs_mount!();
    let mount = Mount::start();
    for path in ["/proc", mount.outside().to_str().unwrap()] {
        for command in ["sync", "umount"] {
            let ended = mount.umemcg(&[command, path]);
            assert_eq!(ended.status.code(), Some(4), "{ended:?}");
        }
    }
    let missing = mount.outside().join("missing");
    assert_eq!(mount.umemcg(&["sync", missing.to_str().unwrap()]).status.code(), Some(1));
}

#[test]
fn the_mount_of_a_dead_daemon_is_taken_over() {
    needs_mount!();
    let mut mount = Mount::start();
    mount.sh("echo kept > $MNT/file; sync $MNT/file").good();
    mount.kill_daemon();
    assert!(is_mounted(&mount.mnt()), "a crash leaves the mount");
    mount.sh("ls $MNT").bad("not connected");
    mount.start_daemon(&["--pool", "64M"]);
    assert_eq!(mount.sh("cat $MNT/file; ls $CG/tasks > /dev/null").good(), "kept");
    mount.umount();
    assert!(!is_mounted(&mount.mnt()), "nothing is left below the new mount");
}

#[test]
fn umount_clears_away_what_a_dead_daemon_left() {
    needs_mount!();
    let mut mount = Mount::start();
    mount.kill_daemon();
    let ended = mount.umemcg(&["umount", mount.mnt().to_str().unwrap()]);
    assert_eq!(ended.status.code(), Some(4), "{ended:?}");
    assert!(ended.stderr.contains("died"), "{ended:?}");
    assert!(!is_mounted(&mount.mnt()) && !is_mounted(&mount.cg()));
}

#[test]
fn only_the_owner_may_talk_to_the_daemon() {
    needs_mount!();
    let mut mount = Mount::start();
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let mountpoint = mount.mnt();
    let line = mounts.lines().find(|line| line.contains(mountpoint.to_str().unwrap())).unwrap();
    let device = line.split(' ').nth(2).unwrap().replace(':', "-");
    let socket = PathBuf::from(format!("/run/umemcg/{device}.sock"));
    let identity = |path: &Path| {
        fs::metadata(path).map(|metadata| (metadata.ino(), metadata.ctime(), metadata.ctime_nsec())).ok()
    };
    let ours = identity(&socket);
    assert_eq!(fs::metadata(&socket).unwrap().mode() & 0o777, 0o600);
    assert_eq!(fs::metadata("/run/umemcg").unwrap().mode() & 0o777, 0o700);
    mount.sh("chmod 755 $MNT/..; cp $UMEMCG $MNT/../program").good();
    let refused = mount.sh("setpriv --reuid=65534 --regid=65534 --clear-groups $MNT/../program umount $MNT");
    assert!(!refused.status.success(), "{refused:?}");
    mount.assert_alive();
    mount.umount();
    // Another daemon may have the device number by now, and so the name.
    assert_ne!(identity(&socket), ours);
}

#[test]
fn the_help_teaches_and_the_version_is_told() {
    let run = |arguments: &[&str]| std::process::Command::new(PROGRAM).args(arguments).output().unwrap();
    let help = String::from_utf8(run(&["--help"]).stdout).unwrap();
    for word in
        ["Examples:", "mount ./data ./mnt --control ./cg --pool 1G", "tasks", "Exit status:", "umemcg demo"]
    {
        assert!(help.contains(word), "no `{word}` in:\n{help}");
    }
    let version = String::from_utf8(run(&["--version"]).stdout).unwrap();
    assert_eq!(version.trim(), format!("umemcg {}", env!("CARGO_PKG_VERSION")));
    assert_eq!(run(&["mount"]).status.code(), Some(2));
    assert_eq!(run(&["frobnicate"]).status.code(), Some(2));
    for command in ["mount", "umount", "sync", "demo"] {
        assert!(run(&[command, "--help"]).status.success(), "{command}");
    }
}

/// Waits until each thread that accepts connections has a descriptor for the next one; it gets
/// another one only after that.
pub fn until_sockets_accept(mount: &Mount) {
    let pid = mount.pid().as_raw_nonzero();
    until("the threads that accept wait for a connection", || {
        let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten();
        let stats = tasks.filter_map(|task| fs::read_to_string(task.path().join("stat")).ok());
        let mut accepting = stats.filter(|stat| stat.contains("(umemcg-endpoint)")).peekable();
        accepting.peek().is_some() && accepting.all(|stat| stat.contains(") S "))
    });
}

#[test]
fn the_socket_works_on_after_the_daemon_had_no_descriptors() {
    needs_mount!();
    let mut mount = Mount::start();
    mount.sh("echo x > $MNT/file").good();
    let maximum = getrlimit(Resource::Nofile).maximum;
    let limit = |current| {
        let limits = Rlimit { current, maximum };
        prlimit(Some(mount.pid()), Resource::Nofile, limits).unwrap().current
    };
    until_sockets_accept(&mount);
    // No number is left for another descriptor.
    let usual = limit(Some(3));
    mount.sh("$UMEMCG sync $MNT").good();
    limit(usual);
    mount.sh("echo y > $MNT/file; $UMEMCG sync $MNT; [ \"$(cat $DATA/file)\" = y ]").good();
    mount.umount();
}

#[test]
fn a_pool_beyond_the_kernels_limit_is_refused_with_its_name() {
    needs_mount!();
    let mut mount = Mount::start();
    let Some(group) = KernelGroup::of_memory("pool") else {
        eprintln!("no kernel cgroup for memory can be made here: only the unit tests of the pool's size ran");
        return;
    };
    group.limit(128 << 20);
    let directory = group.path().to_str().unwrap().to_owned();
    let inside = |pool: &str| {
        mount.sh(&format!(
            "cd $DATA/..; mkdir -p d2 m2; echo $BASHPID > {directory}/cgroup.procs; rm -f out
             $UMEMCG mount d2 m2 --pool {pool} > out & daemon=$!
             until grep -q served out || [ -z \"$(jobs -r)\" ]; do sleep 0.02; done
             if grep served out; then $UMEMCG umount m2; fi; wait $daemon"
        ))
    };
    let refused = inside("128M");
    refused.bad("does not fit: this process may use 128.0 MiB");
    refused.bad(&directory);
    assert!(inside("64M").good().contains("with a pool of 64.0 MiB"));
    drop(group);
    mount.umount();
}
