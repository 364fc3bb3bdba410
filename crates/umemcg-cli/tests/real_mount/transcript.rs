//! The transcript of the README, word for word, and the figures that it promises.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use crate::harness::{Mount, Options, SLACK_BYTES, needs_mount};

const MIB: u64 = 1 << 20;

/// Reads a control file again and again until stopped; gives the largest number and how often it
/// was read.
fn sample(mount: &Mount, group: &str, file: &str) -> impl FnOnce() -> (u64, u64) + use<> {
    let path = mount.cg().join(group).join(file);
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = Arc::clone(&stop);
    let sampler = thread::spawn(move || {
        let (mut largest, mut nr_samples) = (0, 0);
        while !stopped.load(Ordering::Relaxed) {
            let text = fs::read_to_string(&path).unwrap();
            largest = largest.max(text.trim().parse::<u64>().unwrap());
            nr_samples += 1;
            thread::park_timeout(Duration::from_millis(1));
        }
        (largest, nr_samples)
    });
    move || {
        stop.store(true, Ordering::Relaxed);
        sampler.join().unwrap()
    }
}

#[test]
fn a_shell_in_a_group_is_held_to_its_limit() {
    needs_mount!();
    let mut mount = Mount::start();
    mount.sh("mkdir $CG/A; echo 64m > $CG/A/memory.limit_in_bytes").good();
    assert_eq!(mount.number("A", "memory.limit_in_bytes"), 64 * MIB);

    let finish = sample(&mount, "A", "memory.usage_in_bytes");
    let hash = mount.sh("echo $$ > $CG/A/tasks
         dd if=/dev/zero of=$MNT/big bs=1M count=1000
         sha256sum < $MNT/big");
    let (largest, nr_samples) = finish();
    let expected = mount.sh("head -c 1000M /dev/zero | sha256sum");
    assert_eq!(hash.good(), expected.good());
    assert!(nr_samples >= 100, "only {nr_samples} samples");
    assert!(largest <= 64 * MIB + SLACK_BYTES, "usage was {largest}");
    assert!(largest >= 32 * MIB, "the group never used what it may: {largest}");

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
    let before = mount.value("quiet", "memory.stat", "total_pgpgin");
    mount.sh_in("busy", "cat $MNT/stream > /dev/null; dd if=$MNT/stream of=$MNT/copy bs=1M").good();
    assert_eq!(mount.sh_in("quiet", "sha256sum < $MNT/kept").good(), first);
    assert_eq!(mount.value("quiet", "memory.stat", "total_pgpgin"), before, "pages were read again");
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
    let finish = sample(&mount, "parent", "memory.usage_in_bytes");
    mount
        .sh("(echo $BASHPID > $CG/parent/a/tasks; head -c 100M /dev/zero > $MNT/a) &
             (echo $BASHPID > $CG/parent/b/tasks; head -c 100M /dev/zero > $MNT/b) &
             wait")
        .good();
    let (largest, _) = finish();
    assert!(largest <= 32 * MIB + SLACK_BYTES, "usage was {largest}");
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
    let output =
        std::process::Command::new(crate::harness::PROGRAM).args(["demo", "--json"]).output().unwrap();
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{printed}\n{}", String::from_utf8_lossy(&output.stderr));
    let result: serde_json::Value = serde_json::from_str(&printed).unwrap();
    let checks = result["checks"].as_array().unwrap();
    assert!(checks.len() >= 8 && checks.iter().all(|check| check["holds"] == true), "{printed}");
}
