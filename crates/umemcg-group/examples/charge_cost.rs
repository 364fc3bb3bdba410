//! The cost of a charge and its uncharge together: 4 KiB and 100 B, by depth, by the number of
//! groups that a thread cycles over, and by threads. The least of many rounds, in nanoseconds,
//! since the machine has other work.
//!
//! `cargo run --release -p umemcg-group --example charge_cost [filter]`

use std::ffi::OsString;
use std::hint::black_box;
use std::sync::{Arc, Barrier};
use std::time::Instant;

use rustix::thread::{CpuSet, sched_setaffinity};
use umemcg_group::{Group, GroupTree, StatItem};

const OPS_PER_ROUND: u32 = 1 << 17;
const NR_ROUNDS: u32 = 100;

/// Groups at `depth` levels below the root, all below the same parent.
fn groups(tree: &GroupTree, depth: u32, nr: usize) -> Vec<Arc<Group>> {
    let mut parent = Arc::clone(tree.root());
    for level in 1..depth {
        parent = tree.create(&parent, &OsString::from(format!("level{level}"))).unwrap();
    }
    (0..nr).map(|i| tree.create(&parent, &OsString::from(format!("g{i}"))).unwrap()).collect()
}

/// The start and the end of a round.
type Round = (Instant, Instant);

fn round(groups: &[Arc<Group>], bytes: u64) -> Round {
    let start = Instant::now();
    let mut left = OPS_PER_ROUND;
    while left > 0 {
        for group in groups.iter().take(left as usize) {
            drop(black_box(group.try_charge(black_box(bytes)).unwrap()));
        }
        left = left.saturating_sub(groups.len() as u32);
    }
    (start, Instant::now())
}

/// Keeps this thread from being put where another of ours runs.
fn stay_on(cpu: usize) {
    let mut cpus = CpuSet::new();
    cpus.set(cpu);
    // Where that is not allowed, the figures for two threads are worth less.
    let _ = sched_setaffinity(None, &cpus);
}

/// Least nanoseconds per charge and uncharge, from the first thread's start to the last one's end.
fn cost(groups: &[Arc<Group>], bytes: u64, nr_threads: usize) -> f64 {
    let barrier = Barrier::new(nr_threads);
    let rounds: Vec<Vec<Round>> = std::thread::scope(|scope| {
        let run = |cpu| {
            stay_on(cpu);
            round(groups, bytes);
            let mut rounds = Vec::new();
            for _ in 0..NR_ROUNDS {
                barrier.wait();
                rounds.push(round(groups, bytes));
            }
            rounds
        };
        let threads: Vec<_> = (0..nr_threads).map(|cpu| scope.spawn(move || run(cpu))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let whole = |at: usize| {
        let start = rounds.iter().map(|thread| thread[at].0).min().unwrap();
        rounds.iter().map(|thread| thread[at].1).max().unwrap() - start
    };
    let least = (0..NR_ROUNDS as usize).map(whole).min().unwrap();
    least.as_secs_f64() * 1e9 / f64::from(OPS_PER_ROUND)
}

fn print_cost<R>(what: &str, mut op: impl FnMut() -> R) {
    let mut least = f64::MAX;
    for _ in 0..NR_ROUNDS {
        let start = Instant::now();
        for _ in 0..10_000 {
            black_box(op());
        }
        least = least.min(start.elapsed().as_secs_f64() * 1e5);
    }
    println!("{what:<28} {least:>6.1} ns");
}

fn main() {
    let filter = std::env::args().nth(1).unwrap_or_default();
    println!("{:<28} {:>9} {:>9}", "charge + uncharge", "1 thread", "2 threads");
    for (depth, nr) in [(1, 1), (4, 1), (1, 8), (1, 64), (4, 64), (1, 1024), (4, 1024)] {
        for bytes in [4096, 100] {
            let name = format!("depth {depth}, {nr} groups, {bytes} B");
            if name.contains(&filter) {
                let tree = GroupTree::new(64 << 30);
                let groups = groups(&tree, depth, nr);
                println!(
                    "{name:<28} {:>6.1} ns {:>6.1} ns",
                    cost(&groups, bytes, 1),
                    cost(&groups, bytes, 2)
                );
            }
        }
    }
    if "other".contains(&filter) {
        let tree = GroupTree::new(64 << 30);
        let group = &groups(&tree, 4, 1)[0];
        print_cost("owner to group, lent", || group.owner().with_group(|group| group.id()));
        print_cost("read hit counted", || umemcg_group::hit_counters::count_hits(group, 1));
        print_cost("statistic at depth 4", || group.stat_add(StatItem::PgFault, 1));
        group.store_max(4096);
        let held = group.try_charge(4096).unwrap();
        print_cost("refused charge", || group.try_charge(4096).is_err());
        drop(held);
    }
    if "create".contains(&filter) {
        let tree = GroupTree::new(64 << 30);
        let start = Instant::now();
        let groups = groups(&tree, 1, 100_000);
        println!("create 100,000 groups        {:>9.3} s", start.elapsed().as_secs_f64());
        let start = Instant::now();
        let charges: Vec<_> = groups.iter().map(|group| group.try_charge(4096).unwrap()).collect();
        println!("cold charge of each          {:>6.1} ns", start.elapsed().as_secs_f64() * 1e4);
        let start = Instant::now();
        drop(charges);
        println!("cold uncharge of each        {:>6.1} ns", start.elapsed().as_secs_f64() * 1e4);
        let start = Instant::now();
        for group in &groups {
            tree.remove(group, |_, _| ()).unwrap();
        }
        drop(groups);
        println!("remove each                  {:>6.1} ns", start.elapsed().as_secs_f64() * 1e4);
    }
}
