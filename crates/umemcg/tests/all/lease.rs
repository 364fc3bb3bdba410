//! Leases: caches of other makers under the limit of a group.

#[path = "../../examples/leased_quick_cache.rs"]
mod leased_quick_cache;

use std::collections::VecDeque;
use std::ffi::OsStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use umemcg::{Engine, EngineConfig, Group, Lease, ObjectCache, Resizable, StatItem};

const MIB: u64 = 1 << 20;
/// Bytes of a block.
const BLOCK: u64 = 4096;

/// A cache of blocks that go in the order in which they came.
#[derive(Default)]
struct Blocks {
    state: Mutex<(VecDeque<u64>, u64)>,
    panics: AtomicBool,
    /// Ignores its capacity.
    is_stubborn: AtomicBool,
}

impl Blocks {
    fn add(&self, nr: u64) {
        let (blocks, capacity) = &mut *self.state.lock();
        for block in 0..nr {
            blocks.push_back(block);
            while !self.is_stubborn.load(Relaxed) && blocks.len() as u64 * BLOCK > *capacity {
                blocks.pop_front();
            }
        }
    }
}

impl Resizable for Blocks {
    fn used_bytes(&self) -> u64 {
        self.state.lock().0.len() as u64 * BLOCK
    }

    fn set_capacity(&self, bytes: u64) {
        assert!(!self.panics.load(Relaxed), "a cache panics, as it should");
        self.state.lock().1 = bytes;
        let (blocks, capacity) = &mut *self.state.lock();
        while !self.is_stubborn.load(Relaxed) && blocks.len() as u64 * BLOCK > *capacity {
            blocks.pop_front();
        }
    }
}

struct Ground {
    engine: Arc<Engine>,
    tenant: Arc<Group>,
    blocks: Arc<Blocks>,
    lease: Lease,
}

impl Ground {
    fn new(limit: u64) -> Self {
        let engine = Engine::new(EngineConfig::new(64 << 20)).unwrap();
        let tenant = engine.create_group(engine.root(), OsStr::new("tenant")).unwrap();
        engine.set_max(&tenant, limit);
        let blocks = Arc::new(Blocks::default());
        let lease = engine.lease(&tenant, "blocks of others", Arc::clone(&blocks) as _, 32 * MIB);
        Self { engine, tenant, blocks, lease }
    }

    /// Fills the cache until it does not grow any more.
    fn fill(&self) {
        for _ in 0..1000 {
            let before = self.lease.charged_bytes();
            self.blocks.add(64);
            self.lease.adjust();
            if self.lease.charged_bytes() == before && self.blocks.used_bytes() + 64 * BLOCK > before {
                return;
            }
        }
        panic!("still growing: {}", self.lease.charged_bytes());
    }

    /// Checks the accounts. The engine adjusts the lease meanwhile, so they are right between two
    /// adjustments.
    fn check(&self) {
        let figures = || {
            let (used, charged) = (self.blocks.used_bytes(), self.lease.charged_bytes());
            (used, charged, self.tenant.stat_total(StatItem::SlabReclaimable) as u64)
        };
        for _ in 0..12_000 {
            let (used, charged, counted) = figures();
            if used <= charged && counted == charged {
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        panic!("used, charged and counted: {:?}", figures());
    }
}

#[test]
fn the_example_of_quick_cache_does_what_it_says() {
    leased_quick_cache::main().unwrap();
}

#[test]
fn a_leased_cache_grows_to_its_groups_limit_and_no_further() {
    let ground = Ground::new(8 * MIB);
    ground.fill();
    ground.check();
    assert!(ground.blocks.used_bytes() > 6 * MIB, "{}", ground.blocks.used_bytes());
    assert!(ground.tenant.usage_bytes() <= 8 * MIB);
}

#[test]
fn pressure_takes_from_a_leased_cache_and_it_grows_back() {
    let ground = Ground::new(8 * MIB);
    ground.fill();
    let before = ground.blocks.used_bytes();
    let buffer = ground.engine.charge(&ground.tenant, 4 * MIB).expect("the leased cache gives way");
    ground.check();
    assert!(ground.blocks.used_bytes() <= 4 * MIB);
    drop(buffer);
    ground.fill();
    ground.check();
    assert!(ground.blocks.used_bytes() * 10 >= before * 9, "{} of {before}", ground.blocks.used_bytes());
}

#[test]
fn a_lease_that_releases_a_part_keeps_the_rest_in_sight() {
    let ground = Ground::new(8 * MIB);
    std::thread::scope(|threads| {
        let releasing = threads.spawn(|| {
            for _ in 0..2000 {
                ground.fill();
                let half = ground.lease.charged_bytes() / 2;
                let _ = ground.engine.reclaim(&ground.tenant, half);
            }
        });
        while !releasing.is_finished() {
            assert!(ground.lease.charged_bytes() > 0, "reclaim would find nothing");
        }
    });
}

#[test]
fn reclaim_in_the_midst_of_a_removal_keeps_the_lease_in_sight() {
    let ground = Ground::new(8 * MIB);
    ground.fill();
    let engine = &ground.engine;
    let before = ground.lease.charged_bytes();
    let splice = |dying: &Arc<Group>, parent: &Arc<Group>| {
        engine.reclaimer().splice_to_parent(dying, parent);
        let _ = engine.reclaim(parent, MIB);
    };
    engine.tree().remove(&ground.tenant, splice).unwrap();
    let _ = engine.reclaim(engine.root(), 4 * MIB);
    let after = ground.lease.charged_bytes();
    // The engine adjusts the lease meanwhile, by an eighth of what is used.
    assert!(after < before - MIB, "{after} of {before} bytes are left");
}

#[test]
fn a_leased_cache_shares_its_group_with_others() {
    let ground = Ground::new(8 * MIB);
    ground.fill();
    let objects: ObjectCache<u64, u64> =
        ObjectCache::builder(&ground.engine, "objects").weigher(|_, _| 4096).build();
    for key in 0..4000 {
        objects.insert(&ground.tenant, key, key).unwrap();
        assert!(ground.tenant.usage_bytes() <= 8 * MIB);
    }
    assert!(objects.stats().bytes > MIB);
    ground.fill();
    assert!(ground.tenant.usage_bytes() <= 8 * MIB);
    assert!(ground.lease.charged_bytes() < 8 * MIB);
    drop(objects);
    ground.check();
}

#[test]
fn a_cache_that_panics_or_ignores_its_capacity_stays_charged() {
    let ground = Ground::new(8 * MIB);
    ground.blocks.add(10);
    ground.lease.adjust();
    ground.blocks.panics.store(true, Relaxed);
    let used = ground.blocks.used_bytes();
    let progress = ground.engine.reclaimer().reclaim(&ground.tenant, 32, umemcg::internal::Reason::Direct);
    assert_eq!((progress.slab_bytes, ground.blocks.used_bytes()), (0, used));
    ground.check();
    ground.blocks.panics.store(false, Relaxed);
    ground.blocks.is_stubborn.store(true, Relaxed);
    ground.blocks.add(3000);
    ground.lease.adjust();
    ground.check();
    assert!(ground.lease.charged_bytes() >= 3000 * BLOCK, "above the limit, because it is used");
}

#[test]
fn nothing_stays_charged_when_a_lease_ends() {
    let ground = Ground::new(8 * MIB);
    ground.fill();
    ground.engine.remove_group(&ground.tenant).unwrap();
    ground.lease.adjust();
    let root = Arc::clone(ground.engine.root());
    assert!(root.stat_total(StatItem::SlabReclaimable) > 0 && ground.lease.charged_bytes() > 0);
    let table = ground.engine.reclaimer().slab_usage(&root);
    assert!(table.iter().any(|line| line.name == "blocks-of-others" && line.usage.bytes > 0), "{table:?}");
    assert!(ground.engine.reclaimer().reclaim(&root, 32, umemcg::internal::Reason::Direct).slab_bytes > 0);
    drop(ground.lease);
    // A worker may be calling the cache.
    let deadline = Instant::now() + Duration::from_secs(60);
    while (ground.blocks.used_bytes(), root.stat_total(StatItem::SlabReclaimable)) != (0, 0) {
        assert!(Instant::now() < deadline, "still {} bytes", ground.blocks.used_bytes());
        std::thread::yield_now();
    }
}

#[test]
fn a_leased_cache_grows_without_being_asked_to() {
    let ground = Ground::new(8 * MIB);
    let deadline = Instant::now() + Duration::from_secs(60);
    while ground.blocks.used_bytes() < 4 * MIB {
        assert!(Instant::now() < deadline, "still {} bytes", ground.blocks.used_bytes());
        ground.blocks.add(64);
        std::thread::sleep(Duration::from_millis(1));
    }
}
