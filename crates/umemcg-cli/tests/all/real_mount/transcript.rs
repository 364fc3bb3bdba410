//! The transcript of the README, word for word, and the figures that it promises.

use std::fs;
use std::process::Command;

use crate::harness::{Mount, Options, PROGRAM, SLACK_BYTES, needs_mount, run};

const MIB: u64 = 1 << 20;

#[test]
fn a_shell_in_a_group_is_held_to_its_limit() {
    needs_mount!();
    let mut mount = Mount::start();
    mount.sh("mkdir $CG/A; echo 64m > $CG/A/memory.limit_in_bytes").good();
    assert_eq!(mount.number("A", "memory.limit_in_bytes"), 64 * MIB);

    let hash = mount.sh("echo $$ > $CG/A/tasks
         dd if=/dev/zero of=$MNT/big bs=1M count=1000
         sha256sum < $MNT/big");
    let expected = mount.sh("head -c 1000M /dev/zero | sha256sum");
    assert_eq!(hash.good(), expected.good());
    let peak = mount.number("A", "memory.max_usage_in_bytes");
    assert!((32 * MIB..=64 * MIB + SLACK_BYTES).contains(&peak), "max usage is {peak}");
    assert!(mount.number("A", "memory.failcnt") > 0);
    assert!(mount.value("A", "memory.stat", "total_pgpgin") >= 1000 * MIB / 4096);
    assert_eq!(mount.value("A", "memory.stat", "hierarchical_memory_limit"), 64 * MIB);

    mount.umount();
    assert_eq!(fs::metadata(mount.data().join("big")).unwrap().len(), 1000 * MIB);
    assert_eq!(mount.sh("sha256sum < $DATA/big").good(), expected.good());
}

#[test]
fn the_daemon_stays_within_its_pool_and_gives_memory_back() {
    needs_mount!();
    let pool = 192 * MIB;
    let mut mount = Mount::start_with(&Options { pool: "192M", ..Options::default() });
    mount.group("A", "64m");
    // The group fills its share, and the root group the rest.
    mount.sh_in("A", "head -c 300M /dev/urandom > $MNT/a").good();
    let hash = mount.sh("sha256sum < $MNT/a").good().to_owned();
    mount.sh("head -c 400M /dev/zero > $MNT/b; cat $MNT/b > /dev/null").good();
    assert!(mount.number("", "memory.usage_in_bytes") >= pool / 2);
    let peak = mount.daemon_memory("VmHWM");
    assert!(peak <= pool / 100 * 103 + 32 * MIB, "the daemon's memory was {} MiB", peak / MIB);

    mount.sh("echo 0 > $CG/A/memory.force_empty").good();
    mount.umount();
    assert_eq!(mount.sh("sha256sum < $DATA/a").good(), hash);
}

#[test]
fn what_one_group_streams_does_not_push_out_what_another_keeps() {
    needs_mount!();
    let mut mount = Mount::start_with(&Options { pool: "128M", ..Options::default() });
    mount.group("quiet", "48m");
    mount.group("busy", "24m");
    mount.sh("head -c 16M /dev/urandom > $DATA/kept; head -c 256M /dev/zero > $DATA/stream").good();
    let first = mount.sh_in("quiet", "sha256sum < $MNT/kept").good().to_owned();
    mount.sh_in("busy", "cat $MNT/stream > /dev/null; dd if=$MNT/stream of=$MNT/copy bs=1M").good();
    assert_eq!(mount.sh_in("quiet", "sha256sum < $MNT/kept").good(), first);
    // Of pages that it keeps, the host's kernel may reclaim some by itself: they are read again.
    for name in ["pgsteal_direct", "pgsteal_kswapd"] {
        assert_eq!(mount.value("quiet", "memory.stat", name), 0, "{name}: pages were reclaimed");
    }
    assert_eq!(mount.number("quiet", "memory.failcnt"), 0);
    assert!(mount.number("busy", "memory.failcnt") > 0);
    mount.umount();
}

#[test]
fn the_limit_of_a_parent_holds_its_children_together() {
    needs_mount!();
    let mut mount = Mount::start();
    mount.group("parent", "32m");
    mount.group("parent/a", "1g");
    mount.group("parent/b", "1g");
    mount
        .sh("(echo $BASHPID > $CG/parent/a/tasks; head -c 100M /dev/zero > $MNT/a) &
             (echo $BASHPID > $CG/parent/b/tasks; head -c 100M /dev/zero > $MNT/b) &
             wait")
        .good();
    let peak = mount.number("parent", "memory.max_usage_in_bytes");
    assert!(peak <= 32 * MIB + SLACK_BYTES, "max usage is {peak}");
    assert!(mount.number("parent", "memory.failcnt") > 0);
    assert_eq!(mount.value("parent/a", "memory.stat", "hierarchical_memory_limit"), 32 * MIB);
    mount.umount();
    for name in ["a", "b"] {
        assert_eq!(fs::metadata(mount.data().join(name)).unwrap().len(), 100 * MIB);
    }
}

#[test]
fn the_demo_passes_its_own_checks() {
    needs_mount!();
    let mut demo = Command::new(PROGRAM);
    demo.args(["demo", "--json"]);
    let ended = run(None, demo);
    let result: serde_json::Value = serde_json::from_str(ended.good()).unwrap();
    let checks = result["checks"].as_array().unwrap();
    assert!(checks.len() >= 8 && checks.iter().all(|check| check["holds"] == true), "{result}");
}
