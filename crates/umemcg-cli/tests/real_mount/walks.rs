//! A tenant that walks a tree far larger than what it may remember: it keeps to its limit, the
//! daemon's memory stays flat, its neighbour's names stay in the kernel's cache, and nothing that
//! is in use is lost.

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::harness::{Mount, Options, SLACK_BYTES, Stopped, memory_of, needs_mount};
use crate::names::make_files;

const MIB: u64 = 1 << 20;
/// The kernel does not ask again about what it has in its cache.
const FOR_LONG: [&str; 2] = ["--attr-timeout", "1h"];

/// The observations while a program ran.
#[derive(Debug)]
struct Seen {
    usage_max: u64,
    /// The daemon's resident memory, at most and at least since the group's usage came near its
    /// limit.
    resident: (u64, u64),
    nr_samples: u64,
    took: Duration,
}

/// Watches a group and the daemon while `work` runs.
fn watch(mount: &Mount, group: &str, work: impl FnOnce()) -> Seen {
    let ended = AtomicBool::new(false);
    let started = Instant::now();
    let (usage, limit) =
        (mount.cg().join(group).join("memory.usage_in_bytes"), mount.number(group, "memory.limit_in_bytes"));
    let pid = mount.pid();
    thread::scope(|scope| {
        let watching = scope.spawn(|| {
            let mut seen =
                Seen { usage_max: 0, resident: (0, u64::MAX), nr_samples: 0, took: Duration::ZERO };
            while !ended.load(Ordering::Relaxed) {
                let usage: u64 = fs::read_to_string(&usage).unwrap().trim().parse().unwrap();
                seen.usage_max = seen.usage_max.max(usage);
                if usage >= limit / 10 * 9 {
                    let resident = memory_of(pid, "VmRSS");
                    seen.resident = (seen.resident.0.max(resident), seen.resident.1.min(resident));
                }
                seen.nr_samples += 1;
                thread::park_timeout(Duration::from_millis(2));
            }
            seen
        });
        work();
        ended.store(true, Ordering::Relaxed);
        Seen { took: started.elapsed(), ..watching.join().unwrap() }
    })
}

/// Looks at every file of a directory of the mount; returns how many there are.
fn walk_in(mount: &Mount, group: &str, directory: &str) -> usize {
    mount.sh_in(group, &format!("find $MNT/{directory} -type f -links 1 | wc -l")).good().parse().unwrap()
}

fn names_charged(mount: &Mount, group: &str) -> u64 {
    mount.value(group, "memory.stat", "slab_reclaimable")
}

/// A neighbour's names are all answered by the kernel while the daemon is asleep.
fn are_all_in_the_kernels_cache(mount: &Mount, directory: &str, nr: usize) {
    let list = mount.outside().join("list");
    let walk = format!("find $MNT/{directory} -type f > {}", list.display());
    mount.sh(&walk).good();
    let stopped = Stopped::new(mount);
    let there = mount.sh(&format!("timeout -s KILL 60 xargs -a {} stat -c %h | wc -l", list.display()));
    drop(stopped);
    assert_eq!(there.good().parse::<usize>().unwrap(), nr);
}

/// A tenant walks `nr` files with room for a part of them; its neighbour has looked at some of its
/// own before.
fn a_walk(mount: &Mount, nr: usize, limit: u64) -> Seen {
    let nr_of_neighbour = 2_000;
    mount.group("neighbour", "-1");
    mount.group("walker", &limit.to_string());
    assert_eq!(walk_in(mount, "neighbour", "neighbour"), nr_of_neighbour);
    let charged = names_charged(mount, "neighbour");
    assert!(charged > 100 * nr_of_neighbour as u64);

    let seen = watch(mount, "walker", || assert_eq!(walk_in(mount, "walker", "tree"), nr));
    eprintln!("{nr} files in a group of {limit} bytes: {:?}, {seen:?}", seen.took);
    assert!(seen.nr_samples > 10, "{seen:?}");
    assert!(seen.usage_max <= limit + SLACK_BYTES && seen.usage_max >= limit / 2, "{seen:?}");
    assert!(mount.number("walker", "memory.failcnt") > 0);
    assert_eq!(mount.value("walker", "memory.events", "oom"), 0, "there was always something to let go of");
    assert!(names_charged(mount, "walker") <= limit);

    assert_eq!(names_charged(mount, "neighbour"), charged);
    are_all_in_the_kernels_cache(mount, "neighbour", nr_of_neighbour);
    seen
}

#[test]
fn a_group_without_room_walks_a_large_tree() {
    needs_mount!();
    let mut mount = Mount::start_with(&Options { arguments: FOR_LONG.to_vec(), ..Options::default() });
    make_files(&mount.data().join("tree"), 6_000);
    mount.group("walker", "0");
    for _ in 0..2 {
        assert_eq!(walk_in(&mount, "walker", "tree"), 6_000);
    }
    mount.assert_alive();
    mount.umount();
}

#[test]
fn a_walk_in_a_small_group_stays_in_limit_and_spares_others() {
    needs_mount!();
    let mut mount = Mount::start_with(&Options { arguments: FOR_LONG.to_vec(), ..Options::default() });
    make_files(&mount.data().join("tree"), 20_000);
    make_files(&mount.data().join("neighbour"), 2_000);
    a_walk(&mount, 20_000, 2 * MIB);
    // Its allocator and its tables take some walks to find their size. Then nothing more is kept
    // from one to the next. The allocator's drift may go on for a while: in four walks less than a
    // byte for each name that they look up.
    const DRIFT_BYTES: u64 = 64 << 10;
    let highest = |walks: &[Seen]| walks.iter().map(|seen| seen.resident.0).max();
    let is_level = |walks: &[Seen]| {
        let (before, last) = walks.split_at(walks.len().saturating_sub(4));
        highest(before).is_some_and(|before| highest(last) <= Some(before + DRIFT_BYTES))
    };
    let mut again: Vec<Seen> = Vec::new();
    while again.len() < 40 && !is_level(&again) {
        again.push(watch(&mount, "walker", || assert_eq!(walk_in(&mount, "walker", "tree"), 20_000)));
    }
    assert!(
        is_level(&again) && highest(&again) <= Some(48 * MIB),
        "the daemon's memory is not flat: {again:?}"
    );
    // All of it can be taken back.
    mount.sh("echo 0 > $CG/walker/memory.force_empty").good();
    assert!(names_charged(&mount, "walker") < 64 << 10, "{} bytes", names_charged(&mount, "walker"));
    mount.assert_alive();
    mount.umount();
}

#[test]
#[ignore = "takes minutes: make test-names"]
fn a_walk_of_half_a_million_files_from_a_group_of_16_mib() {
    needs_mount!();
    let host = tempfile::Builder::new().prefix("umemcg-walk-").tempdir().unwrap();
    make_files(&host.path().join("tree"), 500_000);
    make_files(&host.path().join("neighbour"), 2_000);
    let options = |pool| Options {
        arguments: FOR_LONG.to_vec(),
        pool,
        data: Some(host.path().to_owned()),
        ..Options::default()
    };
    let mount = Mount::start_with(&options("2G"));
    let seen = a_walk(&mount, 500_000, 16 * MIB);
    assert!(seen.resident.0 <= 64 * MIB, "the daemon's memory is not flat: {seen:?}");
    drop(mount);
    // The same without a limit, for the figures.
    let mount = Mount::start_with(&options("2G"));
    let started = Instant::now();
    mount.group("walker", "-1");
    assert_eq!(walk_in(&mount, "walker", "tree"), 500_000);
    let (took, resident) = (started.elapsed(), mount.daemon_memory("VmRSS") / MIB);
    let usage = mount.number("walker", "memory.usage_in_bytes") / MIB;
    eprintln!("without a limit: {took:?}, {resident} MiB resident, {usage} MiB charged");
}

#[test]
fn open_files_and_working_directories_survive() {
    needs_mount!();
    let mut mount = Mount::start();
    make_files(&mount.data().join("tree"), 10_000);
    mount.group("walker", "1m");
    let script = "
        mkdir -p $MNT/deep/er/still
        cd $MNT/deep/er/still
        echo opened > read; echo first > written; echo linked > one; ln one other
        exec 3< read 4>> written
        walk() { [ $(find $MNT/tree -type f -links 1 | wc -l) = 10000 ]; }
        walk; walk
        # What the kernel had in its cache for a while and nobody used is asked for after a second again.
        sleep 1.1
        walk
        [ \"$(cat <&3)\" = opened ]
        echo second >&4
        [ \"$(cat written)\" = $'first\\nsecond' ]
        [ $(stat -c %h one) = 2 ] && [ $(stat -c %i one) = $(stat -c %i other) ]
        rm one; [ \"$(cat other)\" = linked ]
        [ \"$(/bin/pwd)\" = $MNT/deep/er/still ]
        mv $MNT/deep/er $MNT/moved
        [ \"$(/bin/pwd)\" = $MNT/moved/still ]
        echo new > new; walk; [ \"$(cat ../still/new)\" = new ]
        rm read; exec 3<&-; rm written other new; echo third >&4; exec 4>&-
        [ -z \"$(ls)\" ]; cd $MNT; rmdir moved/still moved deep
        ls $MNT";
    assert_eq!(mount.sh_in("walker", script).good(), "tree");
    assert!(mount.number("walker", "memory.failcnt") > 0);
    mount.umount();
}

#[test]
fn files_are_made_renamed_and_removed_while_names_are_let_go_of() {
    needs_mount!();
    let mut mount = Mount::start();
    make_files(&mount.data().join("tree"), 5_000);
    mount.group("walker", "1m");
    let script = "
        (while [ ! -e $MNT/stop ]; do find $MNT/tree -type f -links 1 > /dev/null; done) & walker=$!
        for round in $(seq 300); do
            mkdir $MNT/work$round; echo $round > $MNT/work$round/a
            mv $MNT/work$round/a $MNT/work$round/b
            mv $MNT/work$round $MNT/kept$round
            [ $(cat $MNT/kept$round/b) = $round ]
            [ $((round % 3)) = 0 ] || rm -r $MNT/kept$round
        done
        touch $MNT/stop; wait $walker; rm $MNT/stop
        cat $MNT/kept*/b | sort -n | tr '\\n' ' '";
    let expected: Vec<_> = (1..=300).filter(|n| n % 3 == 0).map(|n: u32| n.to_string()).collect();
    assert_eq!(mount.sh_in("walker", script).good(), expected.join(" "));
    mount.umount();
    assert_eq!(fs::read_dir(mount.data()).unwrap().count(), 101);
}

#[test]
fn missing_names_cost_nothing_that_stays() {
    needs_mount!();
    let mount = Mount::start_with(&Options { arguments: FOR_LONG.to_vec(), ..Options::default() });
    mount.group("walker", "1m");
    let miss = |from: u32, to: u32| {
        mount.sh_in("walker", &format!("for n in $(seq {from} {to}); do [ ! -e $MNT/none$n ]; done")).good();
    };
    const NR: u32 = 40_000;
    let mut rounds = (0..5).map(|round| {
        let before = mount.daemon_memory("VmRSS");
        miss(round * NR + 1, (round + 1) * NR);
        assert_eq!(names_charged(&mount, "walker"), 0);
        mount.daemon_memory("VmRSS").saturating_sub(before)
    });
    // Threads and their buffers come when they are needed; what names keep is kept in every round.
    assert!(
        rounds.any(|grown| grown <= MIB),
        "26 bytes at least for each of {NR} names that do not exist, each time"
    );
    assert_eq!(mount.number("walker", "memory.failcnt"), 0);
}

#[test]
fn a_name_missing_in_all_directories_pins_none_of_them() {
    needs_mount!();
    let mount = Mount::start_with(&Options { arguments: FOR_LONG.to_vec(), ..Options::default() });
    const NR: usize = 10_000;
    (0..NR).for_each(|n| fs::create_dir(mount.data().join(n.to_string())).unwrap());
    mount.group("walker", "1m");
    let before = mount.number("", "memory.usage_in_bytes");
    mount.sh_in("walker", &format!("for n in $(seq 0 {}); do [ ! -e $MNT/$n/none ]; done", NR - 1)).good();
    assert!(mount.number("walker", "memory.failcnt") > 0);
    assert!(names_charged(&mount, "walker") <= MIB);
    assert_eq!(mount.value("walker", "memory.events", "oom"), 0);
    let grown = mount.number("", "memory.usage_in_bytes") - before;
    assert!(grown <= MIB + SLACK_BYTES, "{grown} bytes: other groups paid for the walker's directories");
}
