//! A tenant that walks a tree far larger than what it may remember: it keeps to its limit, the
//! daemon's memory stays flat, its neighbour's names stay in the kernel's cache, and nothing that
//! is in use is lost.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::harness::{Mount, Options, SLACK_BYTES, Stopped, needs_mount, until};
use crate::real_mount::names::make_files;

const MIB: u64 = 1 << 20;
/// The kernel does not ask again about what it has in its cache.
const FOR_LONG: [&str; 2] = ["--attr-timeout", "1h"];

/// The cost of a walk.
#[derive(Debug)]
struct Seen {
    usage_max: u64,
    /// The daemon's resident memory at the end, when the group is full of names.
    resident: u64,
    took: Duration,
}

/// Runs `work`; returns its cost to a group and to the daemon.
fn watch(mount: &Mount, group: &str, work: impl FnOnce()) -> Seen {
    let peak = "memory.max_usage_in_bytes";
    fs::write(mount.cg().join(group).join(peak), "0").unwrap();
    let started = Instant::now();
    work();
    let took = started.elapsed();
    Seen { usage_max: mount.number(group, peak), resident: mount.daemon_memory("VmRSS"), took }
}

/// Looks at every file of a directory of the mount; returns how many there are.
fn walk_in(mount: &Mount, group: &str, directory: &str) -> usize {
    mount.sh_in(group, &format!("find $MNT/{directory} -type f -links 1 | wc -l")).good().parse().unwrap()
}

fn names_charged(mount: &Mount, group: &str) -> u64 {
    mount.value(group, "memory.stat", "slab_reclaimable")
}

/// Returns how many of a neighbour's names the kernel answers while the daemon is asleep, up to the
/// first that it does not.
fn nr_in_the_kernels_cache(mount: &Mount, directory: &str) -> usize {
    let list = mount.outside().join("list");
    let walk = format!("find $MNT/{directory} -type f > {}", list.display());
    mount.sh(&walk).good();
    let _stopped = Stopped::new(mount);
    let stat = format!("timeout -s KILL 10 xargs -a {} stat -c %h", list.display());
    mount.sh(&format!("{{ {stat} || true; }} | wc -l")).good().parse().unwrap()
}

/// A tenant walks `nr` files with room for a part of them; its neighbour has looked at some of its
/// own before.
fn a_walk(mount: &Mount, nr: usize, limit: u64) -> Seen {
    let nr_of_neighbour = 2_000;
    mount.group("neighbour", "-1");
    mount.group("walker", &limit.to_string());
    // An answer that a change may have overtaken is believed for a second only, and the daemon may
    // not have been told yet of all files that were just made.
    until("the kernel has the names of the neighbour", || {
        assert_eq!(walk_in(mount, "neighbour", "neighbour"), nr_of_neighbour);
        std::thread::sleep(Duration::from_millis(1100));
        nr_in_the_kernels_cache(mount, "neighbour") == nr_of_neighbour
    });
    let charged = names_charged(mount, "neighbour");
    assert!(charged > 100 * nr_of_neighbour as u64);

    let seen = watch(mount, "walker", || assert_eq!(walk_in(mount, "walker", "tree"), nr));
    eprintln!("{nr} files in a group of {limit} bytes: {:?}, {seen:?}", seen.took);
    assert!(seen.usage_max <= limit + SLACK_BYTES && seen.usage_max >= limit / 2, "{seen:?}");
    assert!(mount.number("walker", "memory.failcnt") > 0);
    assert_eq!(mount.value("walker", "memory.events", "oom"), 0, "there was always something to let go of");
    assert!(names_charged(mount, "walker") <= limit);

    assert_eq!(names_charged(mount, "neighbour"), charged);
    assert_eq!(nr_in_the_kernels_cache(mount, "neighbour"), nr_of_neighbour);
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

/// Makes a tree of directories, `fanout` in each, down to `depth`; returns how many.
fn make_directories(at: &Path, fanout: usize, depth: usize) -> usize {
    fs::create_dir(at).unwrap();
    let below = if depth == 0 { 0 } else { fanout };
    1 + (0..below).map(|n| make_directories(&at.join(format!("d{n}")), fanout, depth - 1)).sum::<usize>()
}

#[test]
fn a_group_without_room_walks_many_directories() {
    needs_mount!();
    let mut mount = Mount::start_with(&Options { arguments: FOR_LONG.to_vec(), ..Options::default() });
    // 7 + 7² + 7³ + 7⁴ below the top: more than a group may have beyond its limit.
    let nr = make_directories(&mount.data().join("tree"), 7, 4);
    assert_eq!(nr, 2801);
    mount.group("walker", "0");
    for _ in 0..2 {
        let found = mount.sh_in("walker", "find $MNT/tree -type d -printf '%i\\n' | sort -u | wc -l");
        assert_eq!(found.good(), nr.to_string());
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
    // from one to the next. The allocator's drift may go on for a while: in four walks less than
    // seven bytes for each name that they look up, of which the smallest allocation is sixteen.
    const DRIFT_BYTES: u64 = 512 << 10;
    let highest = |walks: &[Seen]| walks.iter().map(|seen| seen.resident).max();
    let is_level = |walks: &[Seen]| {
        let (before, last) = walks.split_at(walks.len().saturating_sub(4));
        highest(before).is_some_and(|before| highest(last) <= Some(before + DRIFT_BYTES))
    };
    let mut again: Vec<Seen> = Vec::new();
    while again.len() < 40 && !is_level(&again) {
        again.push(watch(&mount, "walker", || assert_eq!(walk_in(&mount, "walker", "tree"), 20_000)));
    }
    let most = mount.daemon_memory("VmHWM");
    assert!(is_level(&again) && most <= 48 * MIB, "the daemon's memory is not flat: {most}, {again:?}");
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
    let most = mount.daemon_memory("VmHWM");
    assert!(most <= 64 * MIB, "the daemon's memory is not flat: {most}, {seen:?}");
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
    let before = mount.named_bytes("");
    mount.sh_in("walker", &format!("for n in $(seq 0 {}); do [ ! -e $MNT/$n/none ]; done", NR - 1)).good();
    assert!(mount.number("walker", "memory.failcnt") > 0);
    assert!(names_charged(&mount, "walker") <= MIB);
    assert_eq!(mount.value("walker", "memory.events", "oom"), 0);
    let grown = mount.named_bytes("").saturating_sub(before);
    assert!(grown <= MIB + SLACK_BYTES, "{grown} bytes: other groups paid for the walker's directories");
}
