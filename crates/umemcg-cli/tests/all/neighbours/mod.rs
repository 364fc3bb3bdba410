//! One tenant's trouble is no other tenant's: a store that hangs, with more writers held back and
//! readers stuck than the daemon has threads, and a third tenant that reads on as if nothing were.
//!
//! A program of its own: while the store hangs, whatever looks at all mounts of the machine hangs
//! with it, and cargo runs test programs one after the other.

mod killed;
mod many_groups;
mod queued;

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::FileExt;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Pid;

use crate::harness::{Mount, Options, Stopped, needs_mount, patiently, until};

const QUIET_BYTES: u64 = 4 << 20;
const NR_WRITERS: usize = 24;
const NR_READERS: usize = 24;

/// Reads cached pages at random; returns each read's time, sorted.
fn read_at_random(file: &File, times: usize) -> Vec<Duration> {
    let mut state = 88_172_645_463_325_252u64;
    let mut buffer = [0; 4096];
    let mut took: Vec<Duration> = (0..times)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            let page = state % (QUIET_BYTES / 4096);
            let started = Instant::now();
            file.read_exact_at(&mut buffer, page * 4096).unwrap();
            let took = started.elapsed();
            assert!(buffer.iter().all(|&byte| byte == b'q'));
            took
        })
        .collect();
    took.sort_unstable();
    took
}

/// Kills programs that wait for a daemon, and waits until they have ended.
fn finish(daemon: Pid, mut children: Vec<Child>) {
    for child in &mut children {
        child.kill().unwrap();
    }
    for child in &mut children {
        patiently(Some(daemon), child);
    }
}

#[test]
fn many_requests_to_a_hanging_store_cost_another_tenant_nothing() {
    needs_mount!();
    let inner = Mount::start();
    let mut outer =
        Mount::start_with(&Options { data: Some(inner.mnt()), pool: "64M", ..Options::default() });
    outer.group("loud", "48m");
    outer.group("stuck", "1m");
    // What is read while the store hangs must not need it for its names: everything is opened
    // before.
    outer.sh("head -c 4m /dev/zero | tr '\\0' q >\"$MNT/quiet\"").good();
    // Of this file, little stays cached.
    outer.sh_in("stuck", "head -c 64m /dev/zero >\"$MNT/cold\"; sync \"$MNT/cold\"").good();
    let quiet = File::open(outer.mnt().join("quiet")).unwrap();
    read_at_random(&quiet, 4096);
    let before = read_at_random(&quiet, 20_000);

    let start =
        |script: &str| outer.shell(script).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let ready = outer.outside().join("ready");
    std::fs::create_dir(&ready).unwrap();
    let go = outer.outside().join("go");
    let wait_for_go = format!("until [ -e {} ]; do sleep 0.05; done", go.display());
    let mut children = Vec::new();
    for i in 0..NR_WRITERS {
        let mark = ready.join(format!("w{i}"));
        children.push(start(&format!(
            "echo $$ >\"$CG/loud/tasks\"; exec 3>\"$MNT/w{i}\"; touch {}; {wait_for_go}; exec dd if=/dev/zero bs=64k >&3",
            mark.display()
        )));
    }
    for i in 0..NR_READERS {
        let mark = ready.join(format!("r{i}"));
        let skip = i * 2;
        children.push(start(&format!(
            "echo $$ >\"$CG/stuck/tasks\"; exec 3<\"$MNT/cold\"; touch {}; {wait_for_go}; exec dd bs=1M skip={skip} <&3",
            mark.display()
        )));
    }
    until("all have opened", || std::fs::read_dir(&ready).unwrap().count() == NR_WRITERS + NR_READERS);
    let stopped = Stopped::new(&inner);
    std::fs::write(&go, "").unwrap();
    // The readers wait for the store, the writers for it or for the dirty threshold: more of them
    // than there are threads.
    let waits = |child: &Child| {
        let place = std::fs::read_to_string(format!("/proc/{}/wchan", child.id()));
        place.is_ok_and(|place| place.contains("request_wait_answer"))
    };
    until("all wait for an answer", || children.iter().all(waits));
    let during = read_at_random(&quiet, 20_000);

    let at = |times: &[Duration], percent: usize| times[times.len() * percent / 100];
    println!(
        "4 KiB cached reads of the third tenant: p50 {:?} -> {:?}, p99 {:?} -> {:?} (before -> while the store hangs)",
        at(&before, 50),
        at(&during, 50),
        at(&before, 99),
        at(&during, 99),
    );
    for child in &mut children {
        assert!(child.try_wait().unwrap().is_none(), "no request got through a store that hangs");
    }
    // Not the mount itself: what it says about its root is the store's to say.
    outer.sh("ls \"$CG\"").good();
    // Killed, they go immediately, although the store still hangs.
    finish(outer.pid(), children);
    drop(stopped);
    drop(quiet);
    outer.umount();
}

/// Opens, reads asynchronously, closes, makes, removes: all that must not wait, again and again.
const WORK_OF_B: &str = "
echo $$ >$CG/b/tasks; cd $MNT/fast
for i in $(seq 40); do
    printf 'begin\\nread\\nend\\n' | $MNT/../aio cold 4 8 4096 | grep -qx 'read 32'
    for n in 1 2 3 4 5; do echo $n >f$n; cat f$n >/dev/null; done
    rm f*; ls >/dev/null
done";

#[test]
fn asynchronous_requests_wait_for_no_other_tenants_store() {
    needs_mount!();
    let inner = Mount::start();
    let mut outer = Mount::start_with(&Options { volumes: true, pool: "64M", ..Options::default() });
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/all/real_mount/aio_threads.c");
    outer.sh(&format!("gcc -O1 -pthread -o $MNT/../aio {source}")).good();
    outer.sh("truncate -s 1G $DATA/cold").good();
    inner.sh("truncate -s 1G $DATA/cold").good();
    let add = |name: &str, dir: &str| {
        outer.umemcg(&["volume", "add", name, "--dir", dir, "--mount", outer.mnt().to_str().unwrap()]).good();
    };
    add("slow", inner.mnt().to_str().unwrap());
    add("fast", outer.data().to_str().unwrap());
    outer.group("a", "16m");
    outer.group("b", "16m");
    outer.sh(WORK_OF_B).good();
    // More than the kernel's ordinary budget of asynchronous requests, and of what is closed
    // meanwhile.
    let a = "echo $$ >$CG/a/tasks; exec $MNT/../aio $MNT/slow/cold 100 4 65536";
    let mut a = outer.shell(a).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut orders = a.stdin.take().unwrap();
    let mut said = BufReader::new(a.stdout.take().unwrap()).lines().map(Result::unwrap);
    assert!(said.any(|line| line == "open"));
    let stopped = Stopped::new(&inner);
    orders.write_all(b"begin\nread\n").unwrap();
    assert!(said.any(|line| line == "submitted"));
    let nr_descriptors =
        || std::fs::read_dir(format!("/proc/{}/fd", outer.pid().as_raw_nonzero())).unwrap().count();
    let before = nr_descriptors();
    let worked = outer.sh(WORK_OF_B);
    until("no more descriptors are open than before", || nr_descriptors() <= before);
    let usage = outer.number("a", "memory.usage_in_bytes");
    drop(stopped);
    finish(outer.pid(), vec![a]);
    worked.good();
    assert!(usage <= (16 << 20) + (4 << 20), "{usage}");
    outer.umount();
}
