//! Bad input gets the right message, changes nothing, loses nothing, and the daemon lives on.

use std::fs;

use crate::harness::{Mount, Options, cannot_run, needs_mount};

#[test]
fn a_limit_that_is_no_size_is_refused_and_the_old_one_stays() {
    needs_mount!();
    let mut mount = Mount::start();
    mount.group("g", "64m");
    let mut bad: Vec<String> = [
        "-2",
        "-64m",
        "1.5",
        "1.0",
        "1xx",
        "xx",
        "lots",
        "64mb",
        "0xg",
        "''",
        "99999999999999999999",
        "16e",
        "'1 m'",
        "64m64m",
        "--1",
    ]
    .map(str::to_owned)
    .to_vec();
    bad.push("\"$(head -c 3000 /dev/zero | tr '\\0' 9)\"".into());
    for text in bad {
        for file in ["memory.limit_in_bytes", "memory.max"] {
            mount.sh(&format!("echo {text} > $CG/g/{file}")).bad("Invalid argument");
            assert_eq!(mount.number("g", "memory.limit_in_bytes"), 64 << 20, "{text}");
        }
    }
    mount.sh("echo max > $CG/g/memory.limit_in_bytes").bad("Invalid argument");
    mount.sh("echo -1 > $CG/g/memory.max").bad("Invalid argument");
    mount.sh("echo 2 > $CG/g/memory.use_hierarchy").bad("Invalid argument");
    mount.sh("echo 1 > $CG/g/memory.usage_in_bytes").bad("");
    mount.assert_alive();
    mount.umount();
}

#[test]
fn a_process_that_does_not_exist_cannot_join() {
    needs_mount!();
    let mut mount = Mount::start();
    mount.sh("mkdir $CG/g").good();
    for file in ["tasks", "cgroup.procs"] {
        // Above the highest pid that this machine may give.
        mount
            .sh(&format!("echo $(($(cat /proc/sys/kernel/pid_max) + 1)) > $CG/g/{file}"))
            .bad("No such process");
        for text in ["-1", "x", "1.5", "99999999999999999999", "''", "'1 2'"] {
            mount.sh(&format!("echo {text} > $CG/g/{file}")).bad("Invalid argument");
        }
        assert_eq!(mount.sh(&format!("cat $CG/g/{file}")).good(), "");
    }
    mount.assert_alive();
    mount.umount();
}

#[test]
fn group_names_may_be_any_bytes_that_a_name_may_be() {
    needs_mount!();
    let mut mount = Mount::start();
    for name in [
        "$'\\xff\\xfe\\x01'",
        "' blank '",
        "..x",
        "-rf",
        "'*'",
        "\"$(printf 'ü%.0s' {1..127})\"",
        "'a:b=c{1}'",
    ] {
        mount
            .sh(&format!(
                "cd $CG; mkdir -- {name}; echo 1m > ./{name}/memory.max; [ \"$(cat ./{name}/memory.max)\" = 1048576 ]
                 (echo $BASHPID > ./{name}/tasks; head -c 100k /dev/zero > $MNT/f); rmdir -- {name}"
            ))
            .good();
    }
    mount.sh("mkdir $CG/$'two\\nlines'").bad("Invalid argument");
    mount.sh("mkdir $CG/$(printf '%0256d' 0)").bad("too long");
    mount.sh("mkdir $CG/$(printf '%0255d' 0); rmdir $CG/0*").good();
    mount.sh("[ -z \"$(find $CG -mindepth 1 -type d)\" ]").good();
    mount.assert_alive();
    mount.umount();
}

#[test]
fn a_control_write_of_a_mebibyte_is_refused() {
    needs_mount!();
    let mut mount = Mount::start();
    mount.group("g", "64m");
    for file in ["memory.limit_in_bytes", "memory.max", "tasks", "cgroup.procs", "memory.failcnt"] {
        let refused = mount
            .sh(&format!("head -c 1M /dev/zero | tr '\\0' 7 | dd bs=1M iflag=fullblock of=$CG/g/{file}"));
        assert!(!refused.status.success(), "{file}: {refused:?}");
        assert!(
            refused.stderr.contains("Argument list too long") || refused.stderr.contains("Invalid argument"),
            "{file}: {refused:?}"
        );
    }
    assert_eq!(mount.number("g", "memory.limit_in_bytes"), 64 << 20);
    mount.assert_alive();
    mount.umount();
}

#[test]
fn a_limit_of_zero_serves_data_uncached() {
    needs_mount!();
    let mut mount = Mount::start();
    // Not written through the mount: nothing of it is cached.
    mount.sh("head -c 4M /dev/urandom > $DATA/file").good();
    mount.sh("mkdir $CG/g; echo 0 > $CG/g/memory.limit_in_bytes").good();
    assert_eq!(mount.number("g", "memory.limit_in_bytes"), 0);
    mount.sh_in("g", "cmp $MNT/file $DATA/file").good();
    mount
        .sh_in(
            "g",
            "dd if=$DATA/file of=$MNT/file bs=64k conv=notrunc; sync $MNT/file; cmp $MNT/file $DATA/file",
        )
        .good();
    assert!(mount.number("g", "memory.usage_in_bytes") <= crate::harness::SLACK_BYTES);
    assert!(mount.number("g", "memory.failcnt") > 0);
    assert!(mount.value("g", "memory.stat", "uncached_io") > 0);
    mount.assert_alive();
    mount.umount();
}

#[test]
fn a_backing_directory_that_vanishes_is_an_error_and_no_end() {
    needs_mount!();
    // The kernel is told nothing that it may believe for longer than the moment.
    let mut mount =
        Mount::start_with(&Options { arguments: vec!["--attr-timeout", "0s"], ..Options::default() });
    mount.sh("mkdir $MNT/d; echo text > $MNT/d/f; sync $MNT/d/f").good();
    let kept = mount.sh("exec 3<> $MNT/d/f; rm -rf $DATA
         not 'ls $MNT/d/f'; not 'mkdir $MNT/new'; not 'echo x > $MNT/g'; not 'cat $MNT/d/f'; not 'ls $MNT/d'
         cat <&3");
    assert_eq!(kept.good(), "text", "what is open stays readable");
    mount.assert_alive();
    let mountpoint = mount.mnt();
    // Nothing was dirty, so nothing is lost.
    mount.umemcg(&["umount", mountpoint.to_str().unwrap(), "--flush-timeout", "1m"]).good();
    mount.wait();
}

#[test]
fn a_read_only_store_says_so() {
    needs_mount!();
    let directory = tempfile::tempdir().unwrap();
    let store = directory.path().join("store");
    fs::create_dir(&store).unwrap();
    fs::write(store.join("file"), "text").unwrap();
    let store_text = store.to_str().unwrap();
    let bind = format!("mount --bind {store_text} {store_text}; mount -o remount,bind,ro {store_text}");
    let made = std::process::Command::new("sh").args(["-ec", &bind]).status().unwrap();
    assert!(made.success());
    let mut mount = Mount::start_with(&Options { data: Some(store.clone()), ..Options::default() });
    assert_eq!(mount.sh("cat $MNT/file").good(), "text");
    let options = mount.sh("findmnt --noheadings --output OPTIONS $MNT");
    assert!(options.good().starts_with("ro,"), "{options:?}");
    for script in [
        "echo x > $MNT/file",
        "echo x >> $MNT/file",
        "touch $MNT/new",
        "mkdir $MNT/d",
        "rm $MNT/file",
        "mv $MNT/file $MNT/g",
        "chmod 600 $MNT/file",
    ] {
        mount.sh(script).bad("Read-only file system");
    }
    assert_eq!(mount.sh("cat $MNT/file").good(), "text");
    mount.assert_alive();
    mount.umount();
    let _ = rustix::mount::unmount(&store, rustix::mount::UnmountFlags::DETACH);
    assert_eq!(fs::read(store.join("file")).unwrap(), b"text");
}

#[test]
fn fsync_reports_an_error_once_and_the_daemon_lives_on() {
    needs_mount!();
    // A file system on a loop device whose image has no room: its writes end in EIO.
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().to_str().unwrap().to_owned();
    let made = std::process::Command::new("bash")
        .args(["-euo", "pipefail", "-c"])
        .arg(format!(
            "cd {root}; mkdir host store; mount -t tmpfs -o size=6M none host; truncate -s 64M host/image
             mkfs.ext2 -q -m 0 host/image; mount -o loop host/image store"
        ))
        .output()
        .unwrap();
    let unmake = || {
        let script = format!("cd {root}; umount -l store; umount -l host");
        std::process::Command::new("bash").args(["-c", &script]).output().unwrap()
    };
    if !made.status.success() {
        unmake();
        // Containers often have no loop devices; the faulty store of the cache's tests covers the
        // protocol.
        eprintln!("no loop device: {}", String::from_utf8_lossy(&made.stderr));
        if fs::metadata("/dev/loop-control").is_ok() {
            cannot_run("a loop device could not be set up");
        }
        return;
    }
    {
        let store = directory.path().join("store");
        let mut mount = Mount::start_with(&Options { data: Some(store), ..Options::default() });
        mount.sh("echo small > $MNT/small; sync $MNT/small").good();
        let refused = mount.sh("dd if=/dev/zero bs=1M count=32 of=$MNT/large conv=fsync");
        assert!(!refused.status.success(), "{refused:?}");
        assert!(
            refused.stderr.contains("Input/output error") || refused.stderr.contains("No space left"),
            "{refused:?}"
        );
        mount.sh("[ $(cat $MNT/small) = small ]; rm $MNT/large").good();
        mount.assert_alive();
        let mountpoint = mount.mnt();
        // Removed data need not be durable.
        mount.umemcg(&["umount", mountpoint.to_str().unwrap(), "--flush-timeout", "5s"]);
        mount.wait();
    }
    unmake();
}

#[test]
fn output_that_cannot_be_written_fails_the_command() {
    needs_mount!();
    let directory = tempfile::tempdir().unwrap();
    let config = directory.path().join("umemcg.toml");
    fs::write(&config, "").unwrap();
    let arguments = vec!["--config", config.to_str().unwrap()];
    let mut mount = Mount::start_with(&Options { volumes: true, arguments, ..Options::default() });
    mount.sh("$UMEMCG volume add t --tmpfs --mount $MNT").good();
    for command in [
        "volume add v$$ --tmpfs --mount $MNT",
        "volume add r$$ --tmpfs --mount $MNT > /dev/null; $UMEMCG volume remove r$$ --mount $MNT",
        "reload --mount $MNT",
        "top --once --interval 50ms --control $CG",
        "volume list --mount $MNT",
        "volume list --json --mount $MNT",
        "metrics $MNT",
        "trim --json --control $CG",
        "doctor",
        "doctor --json",
        "sync --json $MNT",
        "--help",
        "--version",
        "mount --help",
    ] {
        let ended = mount.sh(&format!("$UMEMCG {command} > /dev/full"));
        ended.bad("cannot print");
        assert_eq!(ended.status.code(), Some(1), "{command}");
        // As with other programs, the reader of a pipe may have seen enough.
        let ended = mount.sh(&format!("set +o pipefail; $UMEMCG {command} | : 2>&1"));
        assert_eq!((ended.status.code(), ended.stderr.as_str()), (Some(0), ""), "{command}");
    }
    mount.sh("$UMEMCG umount --json $MNT > /dev/full").bad("cannot print");
    assert!(mount.wait().status.success());
}
