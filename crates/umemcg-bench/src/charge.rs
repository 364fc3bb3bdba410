//! `charge`: the cost of charging memory to a group and all groups above it, and of uncharging it.
//!
//! A thread cycles over 1, 8, 64 and 1,024 groups, like a server of many tenants; one thread, and
//! two on the same groups. Beside it the obvious way, an atomic counter at every level, and the
//! loop with no accounting at all.

use std::ffi::OsString;
use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Barrier};

use umemcg_group::{Group, GroupTree};

use crate::options::{Failure, Options};
use crate::progress::Progress;
use crate::report::{Report, Section, Target, Verdict};
use crate::stats::{Side, alternate, thread_time};

/// Charges of one thread in one sample, at full size.
const NR_CHARGES: u64 = 1 << 20;
/// Bytes of a charge checked while it is held.
const HELD_BYTES: u64 = 4096;
/// Limit of everything: never reached.
const CAPACITY_BYTES: u64 = 64 << 30;

/// Groups in a thread's cycle, and the maximum nanoseconds of a charge and its uncharge.
const CYCLES: [(usize, f64); 4] = [(1, 5.0), (8, 15.0), (64, 15.0), (1024, 30.0)];
/// The maximum cost of an operation with two threads, as a multiple of its cost with one.
const TWO_THREADS_RATIO_MAX: f64 = 1.3;

/// Runs the benchmark.
pub fn run(options: &Options) -> Result<Report, Failure> {
    let progress = Progress::new();
    let rounds = options.rounds as usize;
    let nr = ((NR_CHARGES as f64 * options.scale.min(1.0)) as u64).max(NR_CHARGES / 16);
    let mut report = Report::new("charge", options.scale, rounds);
    report.compact = true;
    for depth in [1, 4] {
        for (nr_groups, ns_max) in CYCLES {
            let ground = Ground::new(depth, nr_groups)?;
            for bytes in [4096, 100] {
                let mut sides = ground.sides(bytes, 1, nr);
                sides.extend(ground.sides(bytes, 2, nr));
                let mut one = alternate(rounds, sides, &progress);
                let two = one.split_off(one.len() / 2);
                let of_one = two[0].ratio_to(&one[0]);
                for (threads, sides) in [(1, one), (2, two)] {
                    let mut verdicts = vec![Verdict::new("", sides[0].median, Target::NsAtMost(ns_max))];
                    if threads == 2 {
                        let target = Target::TimesAtMost(TWO_THREADS_RATIO_MAX);
                        verdicts.push(Verdict::new("of one thread", of_one, target));
                    }
                    report.sections.push(Section {
                        title: format!(
                            "depth {depth}, {bytes:>4} B, groups {nr_groups:>4}, threads {threads}"
                        ),
                        unit: "ns",
                        sides,
                        verdicts,
                    });
                }
            }
            ground.finish()?;
        }
    }
    report.notes.push(format!(
        "a charge and its uncharge together, processor time of the slower thread, {nr} a sample; depth counts the levels below \
         the root, which is charged too"
    ));
    Ok(report)
}

/// The same tree twice: as groups, and as bare counters.
struct Ground {
    tree: Arc<GroupTree>,
    groups: Vec<Arc<Group>>,
    counters: Vec<Counter>,
    /// The counters of the groups' leaves.
    leaves: Vec<usize>,
}

/// One level of the obvious way, on a line of its own.
#[repr(align(128))]
struct Counter {
    usage: AtomicU64,
    max: u64,
    parent: Option<usize>,
}

impl Ground {
    /// Creates groups `depth` levels below the root, all with the same parent.
    fn new(depth: usize, nr_groups: usize) -> Result<Self, Failure> {
        let tree = GroupTree::new(CAPACITY_BYTES);
        let mut parent = Arc::clone(tree.root());
        let counter = |parent| Counter { usage: AtomicU64::new(0), max: CAPACITY_BYTES, parent };
        let mut counters = vec![counter(None)];
        let refused = || Failure::at("cannot create a group");
        for level in 1..depth {
            parent = tree.create(&parent, &OsString::from(format!("level{level}"))).map_err(refused())?;
            counters.push(counter(Some(counters.len() - 1)));
        }
        let above = counters.len() - 1;
        let mut groups = Vec::with_capacity(nr_groups);
        for at in 0..nr_groups {
            groups.push(tree.create(&parent, &OsString::from(format!("g{at}"))).map_err(refused())?);
            counters.push(counter(Some(above)));
        }
        Ok(Self { tree, groups, counters, leaves: (above + 1..above + 1 + nr_groups).collect() })
    }

    /// Ours first.
    fn sides(&self, bytes: u64, threads: usize, nr: u64) -> Vec<Side<'_>> {
        vec![
            Side::new("umemcg", move || {
                cycle(&self.groups, threads, nr, |group| {
                    drop(black_box(group.try_charge(black_box(bytes)).expect("there is room")));
                })
            }),
            Side::new("atomics", move || {
                cycle(&self.leaves, threads, nr, |&leaf| {
                    let bytes = black_box(bytes);
                    assert!(self.count(black_box(leaf), bytes), "there is room");
                    self.uncount(black_box(leaf), bytes);
                })
            }),
            Side::new("nothing", move || {
                cycle(&self.leaves, threads, nr, |&leaf| {
                    black_box((leaf, bytes));
                })
            }),
        ]
    }

    /// Counts at every level, and reverts the counts when one is full.
    fn count(&self, leaf: usize, bytes: u64) -> bool {
        let mut at = Some(leaf);
        while let Some(level) = at {
            let counter = &self.counters[level];
            if counter.usage.fetch_add(bytes, Ordering::Relaxed) + bytes > counter.max {
                self.uncount_below(leaf, counter.parent, bytes);
                return false;
            }
            at = counter.parent;
        }
        true
    }

    fn uncount(&self, leaf: usize, bytes: u64) {
        self.uncount_below(leaf, None, bytes);
    }

    fn uncount_below(&self, leaf: usize, end: Option<usize>, bytes: u64) {
        let mut at = Some(leaf);
        while at != end
            && let Some(level) = at
        {
            self.counters[level].usage.fetch_sub(bytes, Ordering::Relaxed);
            at = self.counters[level].parent;
        }
    }

    /// Checks that all charges have been given back, and that a held charge is counted at its group
    /// and at the root.
    fn finish(self) -> Result<(), Failure> {
        let Self { tree, groups, counters, .. } = self;
        // Of all groups together, and of the root with the state of all groups.
        let usage = || {
            tree.root().drain_stocks();
            let held: u64 = groups.iter().map(|group| group.usage_bytes()).sum();
            (held, tree.root().usage_bytes())
        };
        let (held, of_root) = usage();
        let counted: u64 = counters.iter().map(|counter| counter.usage.load(Ordering::Relaxed)).sum();
        if held != 0 || counted != 0 {
            return Err(Failure::Wrong(format!("{held} bytes still charged, {counted} still counted")));
        }
        let charges: Result<Vec<_>, _> = groups.iter().map(|group| group.try_charge(HELD_BYTES)).collect();
        let charges = charges.map_err(Failure::at("cannot charge a group"))?;
        let while_held = usage();
        drop(charges);
        let bytes = HELD_BYTES * groups.len() as u64;
        if (while_held, usage()) != ((bytes, of_root + bytes), (0, of_root)) {
            return Err(Failure::Wrong(format!("charges of {bytes} bytes count as {while_held:?}")));
        }
        Ok(())
    }
}

/// Nanoseconds of processor time of one operation, in the slower of the threads, which go round the
/// same items from different starts.
fn cycle<T: Sync>(items: &[T], threads: usize, nr: u64, operation: impl Fn(&T) + Sync) -> f64 {
    let barrier = Barrier::new(threads);
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..threads)
            .map(|thread| {
                let (barrier, operation) = (&barrier, &operation);
                let start_at = items.len() * thread / threads;
                scope.spawn(move || {
                    let round = || items[start_at..].iter().chain(&items[..start_at]);
                    round().for_each(operation);
                    barrier.wait();
                    let start = thread_time();
                    let mut left = nr;
                    while left > 0 {
                        let here = left.min(items.len() as u64);
                        round().take(here as usize).for_each(operation);
                        left -= here;
                    }
                    thread_time() - start
                })
            })
            .collect();
        let slowest = threads.into_iter().map(|thread| thread.join().expect("a charge was refused")).max();
        slowest.unwrap_or_default().as_secs_f64() * 1e9 / nr as f64
    })
}
