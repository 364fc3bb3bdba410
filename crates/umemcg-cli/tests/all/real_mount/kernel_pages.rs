//! Pages that the kernel keeps (`--page-cache kernel`): charged, bounded, coherent, and released
//! when the daemon is killed.

use std::process::Stdio;
use std::time::Duration;

use crate::harness::{Mount, Options, SLACK_BYTES, needs_mount, patiently, until};

const MIB: u64 = 1 << 20;

fn start() -> Mount {
    Mount::start_with(&Options { arguments: vec!["--page-cache", "kernel"], ..Options::default() })
}

/// Bytes of files below the mount that are in the kernel's page cache.
fn in_kernel(mount: &Mount) -> u64 {
    let listed = mount.sh("find $MNT -type f | xargs -r fincore --bytes --noheadings --output res");
    listed.good().lines().map(|line| line.trim().parse::<u64>().unwrap()).sum()
}

fn kept(mount: &Mount, group: &str) -> u64 {
    mount.value(group, "memory.stat", "file_kernel")
}

#[test]
fn what_the_kernel_keeps_is_charged_and_bounded() {
    needs_mount!();
    let mount = start();
    mount.sh("for f in 1 2 3 4; do head -c 12M /dev/urandom > $DATA/$f; done").good();
    mount.group("tenant", "16m");
    // Read again each time: another test may have the host drop its caches.
    until("all that the kernel has is charged", || {
        mount.sh_in("tenant", "for f in 1 2 3 4; do cmp $MNT/$f $DATA/$f; done").good();
        // Pages that the kernel has not dropped yet are still charged.
        let (kept, there) = (kept(&mount, "tenant"), in_kernel(&mount));
        there <= kept && kept <= there + 2 * MIB && there >= 4 * MIB
    });
    let peak = mount.number("tenant", "memory.max_usage_in_bytes");
    assert!(peak <= 16 * MIB + SLACK_BYTES, "{peak}");
    mount.sh("echo 0 > $CG/tenant/memory.force_empty").good();
    until("the kernel has given all back", || kept(&mount, "tenant") == 0);
    assert_eq!(in_kernel(&mount), 0);
}

#[test]
fn a_writer_larger_than_its_group_loses_nothing() {
    needs_mount!();
    let mut mount = start();
    mount.group("tenant", "16m");
    mount.sh_in("tenant", "head -c 48M /dev/urandom | tee $MNT/f | sha1sum > $MNT/../sum").good();
    mount.sh_in("tenant", "sha1sum < $MNT/f | cmp - $MNT/../sum").good();
    let peak = mount.number("tenant", "memory.max_usage_in_bytes");
    assert!(peak <= 16 * MIB + SLACK_BYTES, "{peak}");
    mount.umount();
    mount.sh("sha1sum < $DATA/f | cmp - $MNT/../sum").good();
}

#[test]
fn writes_and_mappings_of_one_page_see_each_other() {
    needs_mount!();
    let mount = start();
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/all/real_mount/map_beside_write.c");
    mount.sh(&format!("gcc -O1 -pthread -o $MNT/../map {source}")).good();
    mount.group("tenant", "4m");
    let said = mount.sh_in("tenant", "for n in {1..40}; do $MNT/../map $MNT/f; done");
    assert!(said.good().lines().all(|line| line == "missing 0 0 0"), "{said:?}");
}

#[test]
fn a_direct_write_leaves_no_old_page_behind() {
    needs_mount!();
    let mount = start();
    mount.sh("head -c 1M /dev/zero > $MNT/f").good();
    until("the kernel has the file", || {
        mount.sh("cat $MNT/f > /dev/null").good();
        in_kernel(&mount) > 0
    });
    mount
        .sh("head -c 1M /dev/urandom > $DATA/new; dd if=$DATA/new of=$MNT/f bs=64k oflag=direct conv=notrunc")
        .good();
    mount.sh("cmp $MNT/f $DATA/new").good();
}

#[test]
fn an_open_sees_a_change_from_outside() {
    needs_mount!();
    let mount = start();
    // A read beside which a change is told may end where the file ended before, as
    // `docs/semantics/outside-changes.md` says, but never with what was there before.
    mount
        .sh("is_seen() { cmp $MNT/f $DATA/f 2> $MNT/../said || { grep EOF $MNT/../said; cmp $MNT/f $DATA/f; }; }
             for n in {1..200}; do echo \"old $n\" > $DATA/f; cat $MNT/f > /dev/null
             seq $n $((n + 2000)) > $DATA/f; is_seen; done")
        .good();
}

/// Runs alone (`.config/nextest.toml`): other tests count on names and pages that the host keeps.
#[test]
fn what_the_host_drops_by_itself_is_given_back() {
    needs_mount!();
    let mut mount = start();
    mount.group("tenant", "64m");
    mount.sh("head -c 24M /dev/urandom > $DATA/f").good();
    until("the tenant pays for the file", || {
        mount.sh_in("tenant", "cat $MNT/f > /dev/null").good();
        kept(&mount, "tenant") >= 20 * MIB
    });
    mount.sh("echo 3 > /proc/sys/vm/drop_caches").good();
    until("usage follows", || {
        kept(&mount, "tenant") == 0 && mount.number("tenant", "memory.usage_in_bytes") < 2 * MIB
    });
    assert_eq!(in_kernel(&mount), 0);
    until("what is read again is charged again", || {
        mount.sh_in("tenant", "cmp $MNT/f $DATA/f").good();
        kept(&mount, "tenant") >= 20 * MIB
    });
    mount.umount();
}

#[test]
fn a_killed_daemon_leaves_no_program_waiting() {
    needs_mount!();
    for is_in_sight in [true, false] {
        let arguments = vec!["--page-cache", "kernel", "--attr-timeout", "0s"];
        let mut mount = Mount::start_with(&Options { arguments, ..Options::default() });
        mount.sh("head -c 8M /dev/urandom > $DATA/f").good();
        // Reads above the mark are answered late, with their pages locked; a change from outside
        // has the kernel drop these meanwhile.
        mount.group("slow", "64m");
        mount.sh("echo 256k > $CG/slow/memory.high").good();
        let spawn = |script: &str| {
            let mut command = mount.shell(script);
            command.stdout(Stdio::null()).stderr(Stdio::null()).stdin(Stdio::null()).spawn().unwrap()
        };
        let reader = "echo $$ > $CG/slow/tasks; cat $MNT/f; cat $MNT/f";
        let changer = "for n in {1..10000}; do echo >> $DATA/f; stat $MNT/f; sleep 0.01; done";
        let mut programs: Vec<_> = [reader, reader, changer].map(spawn).into();
        until("reads wait for their answers", || mount.number("slow", "memory.current") > MIB);
        std::thread::sleep(Duration::from_millis(300));
        if !is_in_sight {
            mount.sh("umount -l $MNT").good();
        }
        mount.kill_daemon();
        for program in &mut programs {
            patiently(None, program);
        }
    }
}
