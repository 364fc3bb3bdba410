//! Inodes that change hands with their content, while the kernel forgets them, groups go and limits
//! move: no charge is lost, and none is left over.

use std::ffi::OsStr;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, RwLock};
use std::thread;

use crate::common::fake_kernel::FakeKernel;
use crate::common::{Fixture, ROOT, name};
use rustix::io::Errno;
use umemcg::{DropCaches, Group, StatItem};
use umemcg_vfs::{Caller, Lookup, Names, OFlags, Open, VolumeFile};

const NR_FILES: usize = 48;
const NR_OPENS: usize = 1_500;
const NR_CHANGES: usize = 1_000;
/// The cost of the files, each with three names and content.
const ALL_BYTES: usize = NR_FILES * (344 + 2 * 256 + 928);

/// xorshift64*.
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) as usize % end
    }
}

/// A volume of files with three names each, the kernel above it, and groups of which each may be
/// replaced at any time: a parent, its child, and another.
struct World {
    v: Fixture,
    kernel: Arc<FakeKernel>,
    tenants: [RwLock<Caller>; 3],
}

fn group(v: &Fixture, parent: &Arc<Group>, n: &str) -> Caller {
    Caller { group: v.engine.create_group(parent, OsStr::new(n)).unwrap(), ..v.root.clone() }
}

fn bytes_of(group: &Arc<Group>, item: StatItem) -> u64 {
    u64::try_from(group.stat_local(item)).unwrap()
}

/// Names of a file: a short one, a long one, and a further one.
fn names_of(n: usize) -> [String; 3] {
    [format!("f{n}"), format!("{}-{n}", "long".repeat(20)), format!("g{n}")]
}

impl World {
    fn new() -> Self {
        let v = Fixture::with(|config| config.max_kept_files = 8);
        for n in 0..NR_FILES {
            let [first, others @ ..] = names_of(n);
            std::fs::write(v.host(&first), "content").unwrap();
            others.iter().for_each(|other| std::fs::hard_link(v.host(&first), v.host(other)).unwrap());
        }
        let kernel = FakeKernel::above(&v, false);
        let parent = group(&v, v.engine.root(), "parent");
        let child = group(&v, &parent.group, "child");
        let other = group(&v, v.engine.root(), "other");
        Self { kernel, tenants: [parent, child, other].map(RwLock::new), v }
    }

    fn caller(&self, random: &mut Random) -> Caller {
        self.tenants[random.below(3)].read().unwrap().clone()
    }

    /// Looks a file up for one group and opens it for another; keeps some of the files open.
    fn work(&self, seed: u64) {
        let (mut random, mut open) = (Random(seed), Vec::<Arc<dyn VolumeFile>>::new());
        for _ in 0..NR_OPENS {
            let (finder, opener) = (self.caller(&mut random), self.caller(&mut random));
            let n = &names_of(random.below(NR_FILES))[random.below(3)];
            let entry = match self.v.vfs.lookup(&finder, ROOT, name(n)) {
                Ok(entry) => entry,
                Err(error) => {
                    assert_eq!(error.errno(), Errno::NOMEM);
                    continue;
                }
            };
            let opened = self.v.vfs.open(&opener, entry.node, OFlags::RDONLY);
            // From here on the kernel may be asked for it.
            self.kernel.has(entry);
            match opened {
                Ok(file) => {
                    if random.below(4) == 0 {
                        assert_eq!(file.read(&opener.group, 0, 7).unwrap().to_vec(), b"content");
                    }
                    open.push(file);
                }
                Err(error) => assert_eq!(error.errno(), Errno::NOMEM),
            }
            if open.len() > 6 {
                drop(open.swap_remove(random.below(open.len())));
            }
        }
    }

    /// Moves limits, and removes groups and makes them again.
    fn disturb(&self, seed: u64) {
        let (mut random, v) = (Random(seed), &self.v);
        for _ in 0..NR_CHANGES {
            match random.below(8) {
                0 => {
                    let mut other = self.tenants[2].write().unwrap();
                    v.engine.remove_group(&other.group).unwrap();
                    *other = group(v, v.engine.root(), "other");
                }
                1 => {
                    let mut child = self.tenants[1].write().unwrap();
                    let parent = self.tenants[0].read().unwrap();
                    v.engine.remove_group(&child.group).unwrap();
                    v.engine.set_max(&parent.group, u64::MAX);
                    *child = group(v, &parent.group, "child");
                }
                2 => {
                    // The lower one first.
                    let mut child = self.tenants[1].write().unwrap();
                    v.engine.remove_group(&child.group).unwrap();
                    let mut parent = self.tenants[0].write().unwrap();
                    v.engine.remove_group(&parent.group).unwrap();
                    *parent = group(v, v.engine.root(), "parent");
                    *child = group(v, &parent.group, "child");
                }
                _ => {
                    let limit = random.below(ALL_BYTES / 2) as u64;
                    v.engine.set_max(&self.caller(&mut random).group, limit);
                }
            }
            // A group's own state takes room.
            if random.below(8) == 0 {
                self.lift_limits();
            }
        }
    }

    /// Asks the kernel for names, and drops pages and what the kernel has forgotten.
    fn prune(&self, stop: &AtomicBool) {
        while !stop.load(Relaxed) {
            self.v.engine.drop_caches_unless(DropCaches::Both, &|| stop.load(Relaxed));
            thread::yield_now();
        }
    }

    fn lift_limits(&self) {
        for tenant in &self.tenants {
            let group = Arc::clone(&tenant.read().unwrap().group);
            self.v.engine.set_max(&group, u64::MAX);
        }
    }

    /// Each group pays for what is on its lists, and everything charged has a name.
    fn is_exact(&self, seed: u64) {
        self.lift_limits();
        // One more name in each group takes back what is beyond its limit.
        for tenant in &self.tenants {
            std::fs::write(self.v.host("new"), "").unwrap();
            let new = self.v.vfs.lookup(&tenant.read().unwrap(), ROOT, name("new")).unwrap();
            self.kernel.has(new);
            self.v.vfs.unlink(&self.v.root, ROOT, name("new")).unwrap();
        }
        let groups = self.tenants.iter().map(|tenant| Arc::clone(&tenant.read().unwrap().group));
        for group in groups.chain([Arc::clone(self.v.engine.root())]) {
            group.drain_stocks();
            assert_eq!(group.named_bytes(), group.usage_bytes(), "{group:?}, seed {seed}");
            let table = self.v.engine.reclaimer().slab_usage(&group);
            let entries = table.iter().filter(|line| ["dentry", "inode"].contains(&line.name.as_str()));
            let listed: u64 = entries.map(|line| line.usage.bytes).sum();
            let with_entries =
                bytes_of(&group, StatItem::SlabNames) + bytes_of(&group, StatItem::SlabContents);
            assert_eq!(
                listed + with_entries,
                bytes_of(&group, StatItem::SlabReclaimable),
                "{group:?}, seed {seed}: {table:?}"
            );
        }
    }
}

#[test]
fn accounts_stay_exact_while_inodes_change_hands() {
    let world = World::new();
    let v = &world.v;
    for seed in 1..=3 {
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            let pruning = scope.spawn(|| world.prune(&stop));
            let disturbing = scope.spawn(|| world.disturb(seed));
            let working: Vec<_> = (1..=3)
                .map(|n| {
                    let world = &world;
                    scope.spawn(move || world.work(seed * 1_000_003 + n))
                })
                .collect();
            let ended: Vec<_> = working.into_iter().chain([disturbing]).map(|thread| thread.join()).collect();
            stop.store(true, Relaxed);
            pruning.join().unwrap();
            ended.into_iter().for_each(|ended| ended.unwrap());
        });
        world.is_exact(seed);
        world.kernel.forget_all();
        // A list that the first empties is dropped by the second.
        (0..2).for_each(|_| v.engine.drop_caches(DropCaches::Both));
        assert_eq!(v.vfs.nr_inodes(), 1);
        let root = v.engine.root();
        root.drain_stocks();
        assert_eq!(root.usage_bytes(), root.stat_total(StatItem::GroupState) as u64, "seed {seed}");
        for item in [
            StatItem::SlabReclaimable,
            StatItem::SlabNames,
            StatItem::SlabContents,
            StatItem::SlabUnreclaimable,
        ] {
            assert_eq!(root.stat_total(item), 0, "{item:?}, seed {seed}");
        }
    }
}
