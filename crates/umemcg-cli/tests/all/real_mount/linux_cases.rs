//! The checks of the Linux Test Project for version 1 memory control groups, on files of the mount
//! in place of a process' memory.

use crate::harness::{Mount, Options, SLACK_BYTES, needs_mount, until};

const PAGE: u64 = 4096;
/// The usage that the project tolerates after a case has freed everything.
const ALLOWANCE: u64 = 65 * PAGE;

fn version_one() -> Mount {
    // What has been written counts once: until it is durable, the kernel's copy counts, too.
    let arguments = vec!["--control-style", "v1", "--page-cache", "own"];
    let mount = Mount::start_with(&Options { arguments, ..Options::default() });
    mount.sh("mkdir $CG/g").good();
    mount
}

/// memcg_usage_in_bytes, memcg_max_usage_in_bytes, memcg_failcnt, memcg_stat
#[test]
fn usage_and_its_peak_are_what_a_process_holds() {
    needs_mount!();
    let mut mount = version_one();
    mount.sh_in("g", "head -c 16M /dev/urandom > $MNT/file; sync $MNT/file").good();
    let held = (4096 * PAGE)..=(4096 * PAGE + SLACK_BYTES);
    for name in ["usage", "max_usage", "memsw.usage", "memsw.max_usage"] {
        let bytes = mount.number("g", &format!("memory.{name}_in_bytes"));
        assert!(held.contains(&bytes), "{name}: {bytes}");
    }
    mount.sh("cd $CG/g; echo 1 > memory.force_empty; for f in max_usage memsw.max_usage; do echo 0 > memory.${f}_in_bytes; done").good();
    for name in ["max_usage", "memsw.max_usage"] {
        let bytes = mount.number("g", &format!("memory.{name}_in_bytes"));
        assert!(bytes <= ALLOWANCE, "{name}: {bytes}");
    }
    assert_eq!(mount.number("g", "memory.failcnt"), 0);
    mount.sh("echo 4096 > $CG/g/memory.limit_in_bytes").good();
    mount
        .sh_in("g", "head -c 8192 /dev/urandom > $MNT/file; sync $MNT/file; cat $MNT/file > /dev/null")
        .good();
    assert!(mount.number("g", "memory.failcnt") > 0);
    mount.sh("mkdir $CG/g/below; echo 8192 > $CG/g/below/memory.limit_in_bytes").good();
    assert_eq!(mount.value("g/below", "memory.stat", "hierarchical_memory_limit"), PAGE);
    mount.umount();
}

/// memcg_subgroup_charge, memcg_control, memcg_regression_test 1 and 3
#[test]
fn a_task_moves_and_what_it_held_stays() {
    needs_mount!();
    let mut mount = version_one();
    mount.sh("mkdir $CG/g/below").good();
    mount.sh_in(
        "g",
        "head -c 266240 /dev/urandom > $MNT/file; sync $MNT/file; echo $$ > $CG/g/below/tasks; \
         [ $(cat $CG/g/below/memory.usage_in_bytes) = 0 ] && [ $(cat $CG/g/memory.usage_in_bytes) -ge 266240 ]",
    )
    .good();
    // Ids in ten bytes with NULs behind them, from many processes through one descriptor.
    mount
        .sh("mkdir $CG/h; echo 0 > $CG/h/memory.limit_in_bytes; python3 -c '
import os
fd = os.open(os.environ[\"CG\"] + \"/h/tasks\", os.O_WRONLY)
for n in range(40):
    for m in range(10):
        if os.fork() == 0:
            os.write(fd, str(os.getpid()).encode().ljust(10, b\"\\0\"))
            open(os.environ[\"MNT\"] + f\"/file{m}\", \"w\").write(\"text\")
            os._exit(0)
    assert all(os.wait()[1] == 0 for _ in range(10))
' && rmdir $CG/h")
        .good();
    mount
        .sh("for n in 1 2 3 4 5 6 7 8; do sleep 600 & done; \
             for n in 1 2 3 4 5; do for to in g g/below .; do for id in $(jobs -p); do echo $id > $CG/$to/tasks; done; done; done; \
             kill $(jobs -p); wait; rmdir $CG/g/below $CG/g")
        .good();
    mount.assert_alive();
    mount.umount();
}

/// memcg_force_empty, memcg_test_3, cgroup_fj_function
#[test]
fn groups_are_emptied_renamed_and_removed_as_in_linux() {
    needs_mount!();
    let mut mount = version_one();
    mount.sh_in("g", "head -c 1M /dev/urandom > $MNT/file").good();
    for text in ["1", "0", "1.0", "1xx", "xx"] {
        mount.sh(&format!("echo {text} > $CG/g/memory.force_empty")).good();
    }
    mount.sh("echo 1 > $CG/memory.force_empty").bad("Invalid argument");
    // Pages that the kernel keeps may be on their way out for longer than that waits.
    until("it is empty", || mount.number("g", "memory.usage_in_bytes") <= ALLOWANCE);
    for text in ["1.0", "1xx", "xx"] {
        mount.sh(&format!("echo {text} > $CG/g/memory.limit_in_bytes")).bad("Invalid argument");
    }
    mount
        .sh("mv -T $CG/g $CG/h; mkdir $CG/g; ! mv -T $CG/g $CG/h; ! rm -f $CG/h/tasks; [ -e $CG/h/tasks ]")
        .good();
    mount.sh("echo 1 > $CG/notify_on_release; mkdir $CG/n; [ $(cat $CG/n/notify_on_release) = 1 ]; rmdir $CG/n").good();
    mount.sh("sleep 600 & echo $! > $CG/h/tasks; ! rmdir $CG/h; kill $!; wait; rmdir $CG/h").good();
    // Groups are made and removed while a signal arrives every millisecond.
    mount
        .sh("python3 -c '
import os, signal
signal.signal(signal.SIGALRM, lambda *_: None)
signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
for n in range(1000):
    os.mkdir(os.environ[\"CG\"] + \"/s\")
    os.rmdir(os.environ[\"CG\"] + \"/s\")
signal.setitimer(signal.ITIMER_REAL, 0)
'")
        .good();
    mount.assert_alive();
    mount.umount();
}
