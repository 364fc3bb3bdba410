//! ProtectionSettings that hold while many threads charge, give back, change limits and drain.

use std::ffi::OsStr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;

use umemcg_group::{Charge, GROUP_STATE_BYTES, Group, GroupTree};

const MIB: u64 = 1 << 20;
const NR_THREADS: u64 = 4;
const LARGEST_CHARGE: u64 = 64 << 10;
/// The largest stock of one thread, in bytes.
const STOCK_BYTES_MAX: u64 = MIB;

/// A small generator, so that every run is the same as far as threads allow.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }
}

/// A root, `/a`, and groups below that; `/a` first.
fn tree(capacity: u64, nr_leaves: usize) -> (Arc<GroupTree>, Vec<Arc<Group>>) {
    let tree = GroupTree::new(capacity);
    let a = tree.create(tree.root(), OsStr::new("a")).unwrap();
    let leaf = |i| tree.create(&a, OsStr::new(&format!("leaf{i}"))).unwrap();
    let leaves: Vec<_> = (0..nr_leaves).map(leaf).collect();
    (tree, std::iter::once(a).chain(leaves).collect())
}

/// Charges and gives back at random, and returns what it holds in the end.
fn churn(groups: &[Arc<Group>], seed: u64, nr_steps: u32) -> Vec<Charge> {
    let mut random = Random(seed * 0x9E37_79B9 + 1);
    let mut held: Vec<Charge> = Vec::new();
    for _ in 0..nr_steps {
        if !held.is_empty() && random.below(100) < 48 {
            drop(held.swap_remove(random.below(held.len() as u64) as usize));
        } else {
            let group = &groups[random.below(groups.len() as u64) as usize];
            let bytes = if random.below(4) == 0 { random.below(LARGEST_CHARGE) } else { 4096 };
            held.extend(group.try_charge(bytes));
        }
    }
    held
}

/// Runs `watch` until all the other threads have ended.
fn while_churning(groups: &[Arc<Group>], nr_steps: u32, mut watch: impl FnMut()) {
    let nr_running = AtomicU64::new(NR_THREADS);
    thread::scope(|scope| {
        for seed in 0..NR_THREADS {
            let nr_running = &nr_running;
            scope.spawn(move || {
                churn(groups, seed, nr_steps);
                nr_running.fetch_sub(1, Ordering::Relaxed);
            });
        }
        while nr_running.load(Ordering::Relaxed) != 0 {
            watch();
        }
    });
}

#[test]
fn usage_is_never_above_a_limit() {
    let (tree, groups) = tree(3 * MIB, 3);
    groups[0].store_max(2 * MIB);
    groups[1].store_max(MIB);
    groups[2].store_max(100 << 10);
    while_churning(&groups, 200_000, || {
        for group in &groups {
            assert!(group.usage_bytes() <= group.max_bytes());
        }
        assert!(tree.root().usage_bytes() <= 3 * MIB);
    });
    for group in &groups {
        assert!(group.peak_bytes() <= group.max_bytes());
    }
    assert!(groups[2].failcnt() > 0);
}

#[test]
fn a_new_limit_holds_except_for_charges_in_flight() {
    let (_tree, groups) = tree(64 * MIB, 2);
    let mut random = Random(7);
    let mut nr_set = 0;
    while_churning(&groups, 200_000, || {
        let limit = random.below(4 * MIB);
        if groups[0].try_set_max(limit).is_ok() {
            nr_set += 1;
            for _ in 0..50 {
                assert!(groups[0].usage_bytes() <= limit + NR_THREADS * LARGEST_CHARGE);
            }
        }
        // At once, whatever is in use: charges are refused until usage has fallen.
        groups[1].store_max(random.below(MIB));
        groups[0].store_max(4 * MIB);
    });
    assert!(nr_set > 0);
}

#[test]
fn usage_is_what_is_held_and_at_most_1_mib_of_stock_a_thread() {
    const NR_ROUNDS: u32 = 30;
    let (tree, groups) = tree(512 * MIB, 150);
    let held_bytes = AtomicU64::new(0);
    let barrier = Barrier::new(NR_THREADS as usize);
    let state = groups.len() as u64 * GROUP_STATE_BYTES;
    thread::scope(|scope| {
        for seed in 0..NR_THREADS {
            let (tree, groups, held_bytes, barrier) = (&tree, &groups, &held_bytes, &barrier);
            scope.spawn(move || {
                for round in 0..NR_ROUNDS {
                    let held = churn(groups, seed + u64::from(round) * NR_THREADS, 20_000);
                    held_bytes.fetch_add(held.iter().map(Charge::bytes).sum(), Ordering::Relaxed);
                    if barrier.wait().is_leader() {
                        let held = held_bytes.swap(0, Ordering::Relaxed) + state;
                        let over =
                            tree.root().usage_bytes().checked_sub(held).expect("what is held is counted");
                        assert!(over <= NR_THREADS * STOCK_BYTES_MAX, "{over} bytes in stock");
                        // The others' stocks, while they sleep.
                        tree.root().drain_stocks();
                        assert_eq!(tree.root().usage_bytes(), held);
                    }
                    barrier.wait();
                }
            });
        }
    });
    tree.root().drain_stocks();
    assert_eq!(tree.root().usage_bytes(), state);
}

#[test]
fn a_stock_elsewhere_is_no_reason_to_refuse() {
    let (_tree, groups) = tree(64 * MIB, 1);
    groups[0].store_max(MIB);
    let group = &groups[1];
    // Refusals of the other tests may empty the thread's stock, since it sleeps.
    let had_stock = (0..100).any(|_| {
        let (has_stock, done) = (Barrier::new(2), Barrier::new(2));
        thread::scope(|scope| {
            scope.spawn(|| {
                // A second miss fills the stock.
                let _held = [group.try_charge(4096).unwrap(), group.try_charge(4096).unwrap()];
                has_stock.wait();
                done.wait();
            });
            has_stock.wait();
            let free = MIB - GROUP_STATE_BYTES - 2 * 4096;
            let margin = groups[0].margin_bytes();
            let granted = group.try_charge(free);
            done.wait();
            assert!(granted.is_ok());
            margin < free
        })
    });
    assert!(had_stock, "the other thread never had anything in stock");
}

#[test]
fn draining_all_the_time_loses_nothing() {
    let (tree, groups) = tree(64 * MIB, 8);
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        for top in [&groups[0], &groups[1], tree.root()] {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    top.drain_stocks();
                }
            });
        }
        let churners: Vec<_> = (0..NR_THREADS)
            .map(|seed| {
                scope.spawn({
                    let groups = &groups;
                    move || churn(groups, seed, 50_000).len()
                })
            })
            .collect();
        assert!(churners.into_iter().map(|churner| churner.join().unwrap()).sum::<usize>() > 0);
        is_over.store(true, Ordering::Relaxed);
    });
    assert_eq!(tree.root().usage_bytes(), groups.len() as u64 * GROUP_STATE_BYTES);
}
