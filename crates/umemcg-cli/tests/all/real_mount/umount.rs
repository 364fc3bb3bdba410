//! umount(8): with its helper it returns when the data is in the directory; without it, the next
//! daemon waits for the data.
//!
//! The helper has to be found in `/sbin`. So these tests run in a mount namespace in which that
//! directory has nothing else.

use std::fs;
use std::os::unix::fs::symlink;
use std::process::Command;

use rustix::process::Signal;

use crate::harness::{Ended, Mount, Options, PROGRAM, is_mounted, needs_mount, run, until};

/// Starts a daemon in a namespace of its own, with the helper or without, and runs a script beside
/// it.
fn in_namespace(with_helper: bool, script: &str) -> Ended {
    let directory = tempfile::tempdir().unwrap();
    for name in ["sbin", "data", "mnt", "tmp"] {
        fs::create_dir(directory.path().join(name)).unwrap();
    }
    if with_helper {
        symlink(PROGRAM, directory.path().join("sbin/umount.fuse.umemcg")).unwrap();
    }
    let script = format!(
        "mount --bind sbin \"$(realpath /sbin)\"
         [ ! -d /run/mount ] || mount -t tmpfs none /run/mount
         mkfifo ready; exec 3<> ready
         \"$UMEMCG\" mount data mnt --pool 256M >&3 2> said & daemon=$!
         read -r line <&3
         {script}"
    );
    let mut command = Command::new("unshare");
    command
        .args(["--mount", "--kill-child", "--fork", "bash", "-euo", "pipefail", "-c", &script])
        .current_dir(directory.path())
        .env("UMEMCG", PROGRAM);
    let mut ended = run(None, command);
    ended.stderr += &fs::read_to_string(directory.path().join("said")).unwrap_or_default();
    ended
}

#[test]
fn umount_returns_when_the_data_is_in_the_directory() {
    needs_mount!();
    in_namespace(
        true,
        "head -c 20M /dev/urandom | tee mnt/file > tmp/expected
         umount mnt
         cmp data/file tmp/expected
         wait $daemon",
    )
    .good();
}

#[test]
fn umount_of_a_mount_in_use_names_the_user_and_can_be_repeated() {
    needs_mount!();
    let ended = in_namespace(
        true,
        "exec 4> mnt/file; echo one >&4
         code=0; umount mnt || code=$?
         [ $code = 5 ]
         echo two >&4; exec 4>&-
         umount mnt
         [ \"$(cat data/file)\" = $'one\\ntwo' ]
         wait $daemon",
    );
    ended.good();
    assert!(ended.stderr.contains("in use by bash"), "{ended:?}");
}

#[test]
fn a_lazy_umount_lets_users_finish_and_a_dead_mount_goes() {
    needs_mount!();
    in_namespace(
        true,
        "exec 4> mnt/file; echo one >&4
         umount -l mnt
         [ \"$(cat data/file)\" = one ]
         not_mounted() { ! grep -q \" $PWD/mnt \" /proc/self/mountinfo; }
         not_mounted
         echo two >&4; exec 4>&-
         wait $daemon
         [ \"$(cat data/file)\" = $'one\\ntwo' ]
         \"$UMEMCG\" mount data mnt >&3 2> said & daemon=$!
         read -r line <&3
         kill -9 $daemon; wait $daemon || true
         # The message finds no room; the unmount succeeds nevertheless.
         umount mnt 2> /dev/full
         not_mounted",
    )
    .good();
}

#[test]
fn without_a_helper_the_next_daemon_waits_for_the_data() {
    needs_mount!();
    in_namespace(
        false,
        "head -c 20M /dev/urandom | tee mnt/file > tmp/expected
         umount mnt
         \"$UMEMCG\" mount data mnt >&3 2> said & next=$!
         read -r line <&3
         cmp mnt/file tmp/expected
         cmp data/file tmp/expected
         wait $daemon
         umount mnt
         wait $next",
    )
    .good();
}

#[test]
fn a_directory_that_a_daemon_serves_is_refused_to_another() {
    needs_mount!();
    let mut mount = Mount::start();
    let second = mount.outside().join("second");
    fs::create_dir(&second).unwrap();
    let (data, second) = (mount.data().to_str().unwrap().to_owned(), second.to_str().unwrap().to_owned());
    let refused = mount.umemcg(&["mount", &data, &second, "--pool", "64M", "--flush-timeout", "1ms"]);
    refused.bad("served, or still being written to, by another daemon");
    assert_eq!(refused.status.code(), Some(5), "{refused:?}");
    let mut volumes = Mount::start_with(&Options { volumes: true, ..Options::default() });
    let point = volumes.mnt().to_str().unwrap().to_owned();
    let add = ["volume", "add", "data", "--dir", &data, "--mount", &point];
    assert_eq!(volumes.umemcg(&add).status.code(), Some(5));
    // Killed, a daemon lets go of it immediately, whatever is still mounted.
    mount.kill_daemon();
    volumes.umemcg(&add).good();
    volumes.sh("echo x > $MNT/data/f").good();
    volumes.signal(Signal::TERM);
    assert!(volumes.wait().status.success());
    until("nothing is mounted", || !is_mounted(&volumes.mnt()));
    assert_eq!(fs::read(mount.data().join("f")).unwrap(), b"x\n");
}

#[test]
fn what_was_served_is_free_when_umemcg_umount_returns() {
    needs_mount!();
    in_namespace(
        false,
        "mkdir tmp/disk tmp/mnt
         for round in 1 2 3 4 5 6 7 8 9 10; do
             mount -t tmpfs none tmp/disk
             \"$UMEMCG\" mount tmp/disk tmp/mnt --pool 64M >&3 2>> said &
             read -r line <&3
             echo there > tmp/mnt/file
             \"$UMEMCG\" umount tmp/mnt
             umount tmp/disk
         done
         kill $daemon; wait $daemon",
    )
    .good();
}
