//! mount(8) and `/etc/fstab`, through the helper `mount.fuse.umemcg`.
//!
//! The helper has to be found in `/sbin`. So each script runs in a mount namespace in which that
//! directory has the two helpers alone. A namespace of processes ends the daemons with it.

use std::fs;
use std::os::unix::fs::symlink;
use std::process::Command;

use crate::harness::{Ended, PROGRAM, needs_mount, run};

/// Runs a script in an empty directory, which has `data` and the mount points `mnt` and `cg`.
fn in_namespace(script: &str) -> Ended {
    let directory = tempfile::tempdir().unwrap();
    for name in ["sbin", "data", "mnt", "cg"] {
        fs::create_dir(directory.path().join(name)).unwrap();
    }
    for name in ["mount", "umount"] {
        symlink(PROGRAM, directory.path().join(format!("sbin/{name}.fuse.umemcg"))).unwrap();
    }
    let script = format!(
        "mount --bind sbin \"$(realpath /sbin)\"
         [ ! -d /run/mount ] || mount -t tmpfs none /run/mount
         # Mounts of other tests are in this namespace, too.
         mounts() {{ grep -c \" $PWD/.* fuse.umemcg \" /proc/self/mountinfo || :; }}
         ended() {{ while pgrep -x umemcg; do sleep 0.05; done; }}
         code() {{ local code=0; \"$@\" || code=$?; echo \"code $code\"; }}
         {script}"
    );
    let mut command = Command::new("unshare");
    command
        .args(["--mount", "--pid", "--mount-proc", "--kill-child", "--fork"])
        .args(["bash", "-euo", "pipefail", "-c", &script])
        .current_dir(directory.path())
        .env("UMEMCG", PROGRAM);
    run(None, command)
}

/// Runs a script with this `/etc/fstab`, in which `HERE` is the directory of the script.
fn with_fstab(fstab: &str, script: &str) -> Ended {
    let script = format!(
        "sed \"s|HERE|$PWD|g\" > fstab <<'END'\n{fstab}\nEND
         touch /etc/fstab; mount --bind fstab /etc/fstab
         {script}"
    );
    in_namespace(&script)
}

#[test]
fn a_mount_serves_when_mount_returns_and_outlives_it() {
    needs_mount!();
    let ended = in_namespace(
        "echo there > data/file
         # Its session ends with the command.
         setsid --wait mount -t fuse.umemcg \"$PWD/data\" \"$PWD/mnt\" -o pool=64M,control=\"$PWD/cg\",page_cache=own
         cat mnt/file cg/memory.limit_in_bytes
         findmnt --noheadings --output SOURCE,FSTYPE,OPTIONS mnt | tr -s ' '
         daemon=$(pgrep -x umemcg)
         [ \"$(ps -o sid= \"$daemon\" | tr -d ' ')\" = \"$daemon\" ]
         [ \"$(readlink /proc/\"$daemon\"/cwd)\" = / ]
         echo new > mnt/new
         umount mnt
         cat data/new",
    );
    let said: Vec<&str> = ended.good().lines().collect();
    assert_eq!((said[0], said[1], said[3]), ("there", "67108864", "new"), "{ended:?}");
    let (source, mount) = said[2].split_once(' ').unwrap();
    assert!(source.ends_with("/data"), "{ended:?}");
    assert!(mount.starts_with("fuse.umemcg rw,nosuid,nodev,"), "{ended:?}");
}

#[test]
fn the_line_of_the_guide_mounts_after_each_boot() {
    needs_mount!();
    let guide = include_str!("../../../../../docs/operating.md");
    let line = guide.lines().find(|line| line.starts_with("/srv/data ") && line.contains("control=/run/"));
    let line = line.unwrap().replace("/srv/data", "HERE/data").replace("/mnt/data", "HERE/mnt");
    let ended = with_fstab(
        &line.replace("/run/", "HERE/run/").replace("pool=1G", "pool=64M"),
        "echo there > data/file
         for boot in 1 2; do
             mount mnt
             cat mnt/file run/umemcg-control/data/memory.usage_in_bytes > /dev/null
             umount mnt; ended; rm -r run
         done
         # A crash leaves two mounts; without the helper, umount removes one of them.
         for how in '' --internal-only; do
             mount mnt
             kill -9 \"$(pgrep -x umemcg)\"; ended
             umount $how mnt
         done
         mount mnt
         cat mnt/file run/umemcg-control/data/memory.usage_in_bytes > /dev/null
         umount mnt",
    );
    ended.good();
}

#[test]
fn fstab_says_what_is_mounted_and_how() {
    needs_mount!();
    let ended = with_fstab(
        "HERE/data HERE/mnt fuse.umemcg defaults,ro,noexec,noauto,nofail,_netdev,x-any.thing,pool=64M 0 0",
        "echo there > data/file
         mount -a
         mountpoint --quiet mnt && exit 1
         mount mnt
         cat mnt/file
         findmnt --noheadings --output OPTIONS mnt
         touch mnt/new 2>&1 || :
         umount mnt
         [ \"$(ls data)\" = file ]",
    );
    let said: Vec<&str> = ended.good().lines().collect();
    assert_eq!(said[0], "there");
    assert!(said[1].starts_with("ro,nosuid,nodev,noexec,"), "{ended:?}");
    assert!(said[2].contains("Read-only file system"), "{ended:?}");
}

#[test]
fn mount_a_mounts_each_entry_once() {
    needs_mount!();
    let ended = with_fstab(
        "HERE/data HERE/mnt fuse.umemcg pool=64M 0 0\nvolumes HERE/cg fuse.umemcg config=HERE/umemcg.toml 0 0",
        "printf 'pool = \"64M\"\\n[volumes.memory]\\ntmpfs = true\\n' > umemcg.toml
         mount -a
         mount -a
         mounts
         findmnt --noheadings --output SOURCE,FSTYPE cg | tr -s ' '
         echo kept > mnt/file
         echo here > cg/memory/file
         umount mnt cg
         mounts
         cat data/file",
    );
    let said: Vec<&str> = ended.good().lines().collect();
    assert_eq!(said, ["2", "volumes fuse.umemcg", "0", "kept"], "{ended:?}");
}

#[test]
fn what_cannot_be_mounted_is_said_with_the_code_of_mount() {
    needs_mount!();
    let ended = in_namespace(
        "code mount -t fuse.umemcg \"$PWD/data\" \"$PWD/mnt\" -o colour=red
         code mount -t fuse.umemcg \"$PWD/data\" \"$PWD/mnt\" -o pool=lots
         code mount -t fuse.umemcg /absent \"$PWD/mnt\"
         code mount -t fuse.umemcg volumes \"$PWD/mnt\"
         printf 'pool = \"64M\"\\n[volumes.gone]\\ndir = \"gone\"\\n' > gone.toml
         code mount -t fuse.umemcg volumes \"$PWD/mnt\" -o config=\"$PWD/gone.toml\"
         code mount -f -t fuse.umemcg \"$PWD/data\" \"$PWD/mnt\"
         mounts
         code mount -s -t fuse.umemcg \"$PWD/data\" \"$PWD/mnt\" -o colour=red,pool=64M
         code mount -t fuse.umemcg \"$PWD/sbin\" \"$PWD/mnt\" -o pool=64M
         code mount -o remount,ro mnt
         umount mnt
         ended > ended",
    );
    let said: Vec<&str> = ended.good().lines().collect();
    let codes =
        ["code 1", "code 1", "code 32", "code 1", "code 32", "code 0", "0", "code 0", "code 32", "code 1"];
    assert_eq!(said, codes, "{ended:?}");
    let expected =
        ["unknown option `colour=red`", "--pool", "/absent", "DATA", "volume `gone`", "is busy", "mount -i"];
    for text in expected {
        assert!(ended.stderr.contains(text), "{text}: {ended:?}");
    }
    assert!(ended.stderr.contains("mount.fuse.umemcg: "), "{ended:?}");
}

#[test]
fn credentials_come_from_a_file_and_no_service_manager_is_told() {
    needs_mount!();
    let ended = in_namespace(
        "printf '# keys\\nUMEMCG_TEST_KEY=\"a b\"\\n' > env
         NOTIFY_SOCKET=/absent WATCHDOG_USEC=1000000 mount -t fuse.umemcg \"$PWD/data\" \"$PWD/mnt\" \\
             -o pool=64M,environment=\"$PWD/env\"
         daemon=$(pgrep -x umemcg)
         tr '\\0' '\\n' < /proc/\"$daemon\"/environ | grep -E 'UMEMCG_TEST_KEY|NOTIFY|WATCHDOG'
         umount mnt
         code mount -t fuse.umemcg \"$PWD/data\" \"$PWD/mnt\" -o environment=/absent",
    );
    let said: Vec<&str> = ended.good().lines().collect();
    assert_eq!(said, ["UMEMCG_TEST_KEY=a b", "code 32"], "{ended:?}");
}
