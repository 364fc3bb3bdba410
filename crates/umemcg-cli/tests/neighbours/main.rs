//! One tenant's trouble is nobody else's: a store that hangs, with more writers held back and readers stuck than the daemon has
//! threads, and a third tenant that reads on as if nothing were.
//!
//! A program of its own: while the store hangs, whatever looks at all mounts of the machine hangs with it, and cargo runs
//! test programs one after the other.

#[path = "../real_mount/harness.rs"]
#[allow(dead_code)]
mod harness;

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::harness::{Mount, Options, needs_mount, until};

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

fn finish(mut children: Vec<Child>) {
    for child in &mut children {
        child.kill().unwrap();
    }
    for child in &mut children {
        child.wait().unwrap();
    }
}

#[test]
fn a_store_that_hangs_with_many_writers_and_readers_waiting_costs_a_third_tenant_nothing() {
    needs_mount!();
    let inner = Mount::start();
    let mut outer =
        Mount::start_with(&Options { data: Some(inner.mnt()), pool: "64M", ..Options::default() });
    outer.group("loud", "48m");
    outer.group("stuck", "1m");
    // What is read while the store hangs must not need it for its names: everything is opened before.
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
    until("everybody has opened", || std::fs::read_dir(&ready).unwrap().count() == NR_WRITERS + NR_READERS);
    inner.signal(Signal::STOP);
    std::fs::write(&go, "").unwrap();
    // The readers wait for the store, the writers for it or for the dirty threshold: more of them than there are threads.
    let waits = |child: &Child| {
        let place = std::fs::read_to_string(format!("/proc/{}/wchan", child.id()));
        place.is_ok_and(|place| place.contains("request_wait_answer"))
    };
    until("everybody waits for an answer", || children.iter().all(waits));
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
        assert!(child.try_wait().unwrap().is_none(), "nobody got through a store that hangs");
    }
    // Not the mount itself: what it says about its root is the store's to say.
    outer.sh("ls \"$CG\"").good();
    // Killed, they go at once, although the store still hangs.
    finish(children);
    inner.signal(Signal::CONT);
    drop(quiet);
    outer.umount();
}
