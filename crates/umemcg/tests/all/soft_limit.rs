//! Soft limits in every kind of reclaim: a group in excess gives, and its neighbour keeps what it
//! has.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::common::{MemStore, group, read_all};
use umemcg::files::{File, Readahead};
use umemcg::{Engine, EngineConfig, Group, StatItem};

const MIB: u64 = 1 << 20;
const POOL: u64 = 32 * MIB;

fn stolen(group: &Group) -> i64 {
    let items = [StatItem::PgStealDirect, StatItem::PgStealKswapd, StatItem::PgStealProactive];
    items.into_iter().map(|item| group.stat_total(item)).sum()
}

/// A file of which a group has cached everything.
fn fill(engine: &Engine, group: &Arc<Group>, bytes: u64) -> Arc<File> {
    let file = engine.open_file(MemStore::with(&vec![1; bytes as usize]), bytes).unwrap();
    assert_eq!(read_all(&file, group).len() as u64, bytes);
    file
}

/// `hog` is 6 MiB over its soft limit, `neighbour` has none; both are below `top`.
struct World {
    engine: Arc<Engine>,
    top: Arc<Group>,
    hog: Arc<Group>,
    neighbour: Arc<Group>,
    files: Vec<Arc<File>>,
}

impl World {
    fn new() -> Self {
        let engine = Engine::new(EngineConfig::new(POOL)).unwrap();
        let top = group(&engine, "top", u64::MAX);
        let [hog, neighbour] =
            ["hog", "neighbour"].map(|name| engine.create_group(&top, name.as_ref()).unwrap());
        let files = [&hog, &neighbour].map(|group| fill(&engine, group, 8 * MIB)).into();
        engine.set_soft_limit(&hog, 2 * MIB);
        Self { engine, top, hog, neighbour, files }
    }

    fn check(&self, what: &str) {
        assert!(stolen(&self.hog) >= (MIB / 4096) as i64, "{what}: a group in excess gives");
        assert_eq!(stolen(&self.neighbour), 0, "{what}: its neighbour does not");
    }
}

#[test]
fn a_refused_charge_takes_from_groups_in_excess() {
    let world = World::new();
    world.top.store_max(world.top.usage_bytes());
    let _held = world.engine.charge(&world.neighbour, 2 * MIB).unwrap();
    world.check("a charge");
}

#[test]
fn a_limit_write_takes_from_groups_in_excess() {
    let world = World::new();
    world.engine.set_limit(&world.top, world.top.usage_bytes() - 2 * MIB).unwrap();
    world.check("v1");
    let world = World::new();
    world.engine.set_max(&world.top, world.top.usage_bytes() - 2 * MIB);
    world.check("v2");
    let world = World::new();
    world.engine.set_high(&world.top, world.top.usage_bytes() - 2 * MIB);
    world.check("memory.high");
}

#[test]
fn reclaim_on_request_takes_from_groups_in_excess_first() {
    let world = World::new();
    world.engine.reclaim(&world.top, 2 * MIB).unwrap();
    world.check("memory.reclaim");
    // More than the excess: then all groups give.
    world.engine.reclaim(&world.top, 8 * MIB).unwrap();
    assert!(stolen(&world.neighbour) > 0);
    assert_eq!(world.hog.excess_bytes(), 0);
}

#[test]
fn background_reclaim_takes_from_groups_in_excess() {
    let world = World::new();
    let (engine, top) = (&world.engine, &world.top);
    let limit = top.usage_bytes() + MIB;
    engine.set_limit(top, limit).unwrap();
    engine.set_high_wmark_distance(top, 4 * MIB).unwrap();
    engine.set_low_wmark_distance(top, 3 * MIB).unwrap();
    let deadline = Instant::now() + Duration::from_secs(30);
    while top.usage_bytes() >= limit - 4 * MIB {
        assert!(Instant::now() < deadline, "the workers do not come");
        std::thread::yield_now();
    }
    assert!(world.hog.stat_total(StatItem::PgStealKswapd) > 0);
    world.check("background reclaim");
}

#[test]
fn emptying_and_dropping_ignore_soft_limits() {
    let world = World::new();
    let _ = world.engine.force_empty(&world.top);
    assert!(world.files.iter().all(|file| file.nr_cached_pages() == 0), "force_empty");
    let world = World::new();
    world.engine.drop_caches(umemcg::DropCaches::Pages);
    assert!(world.files.iter().all(|file| file.nr_cached_pages() == 0), "drop_caches");
}

#[test]
fn a_reader_over_its_soft_limit_costs_others_nothing() {
    let engine = Engine::new(EngineConfig::new(POOL)).unwrap();
    let [reader, holder] = ["a", "b"].map(|name| group(&engine, name, u64::MAX));
    engine.set_soft_limit(&reader, 0);
    let held = fill(&engine, &holder, 24 * MIB);
    let reads = MemStore::with(&vec![1; 64 << 20]);
    let file = engine.open_file(reads, 64 * MIB).unwrap();
    let readahead = Readahead::new();
    for at in (0..64 * MIB).step_by(128 << 10) {
        drop(file.read(&reader, at, 128 << 10, &readahead).unwrap());
    }
    assert!(stolen(&reader) > (32 * MIB / 4096) as i64);
    // The janitor comes every two seconds, and may take pages that fill no block.
    let by_janitor = holder.stat_total(StatItem::PgStealProactive);
    assert_eq!(stolen(&holder), by_janitor);
    assert_eq!(held.nr_cached_pages() + by_janitor as u64, 24 * MIB / 4096);
    read_all(&held, &holder);
    assert!(holder.stat_total(StatItem::WorkingsetRefault) <= by_janitor);
}

/// A group in excess whose pages cannot be freed: not in use, but dirty on a store that hangs.
#[test]
fn unwritable_dirty_pages_in_excess_block_no_other_group() {
    let engine = Engine::new(EngineConfig::new(POOL)).unwrap();
    let [hog, other] = ["hog", "other"].map(|name| group(&engine, name, u64::MAX));
    let store = MemStore::on_store(7);
    store.hang();
    let dirty = engine.open_file(Arc::clone(&store) as _, 0).unwrap();
    dirty.write(&hog, 0, &vec![1; 4 << 20]).unwrap();
    engine.set_soft_limit(&hog, 0);
    let clean = fill(&engine, &other, 8 * MIB);
    engine.reclaim(engine.root(), 4 * MIB).unwrap();
    assert!(stolen(&other) >= (4 * MIB / 4096) as i64 && stolen(&hog) == 0);
    store.release();
    drop((clean, dirty));
    assert!(engine.shut_down(Duration::from_secs(30)).is_empty());
}

/// Pages of files without a store are on no list: their group has nothing to give, however far it
/// is over its limit.
#[test]
fn excess_that_cannot_be_reclaimed_sends_reclaim_to_all() {
    let world = World::new();
    world.engine.set_soft_limit(&world.hog, u64::MAX);
    let pinned = group(&world.engine, "pinned", u64::MAX);
    let _held = world.engine.charge(&pinned, 4 * MIB).unwrap();
    world.engine.set_soft_limit(&pinned, 0);
    world.engine.reclaim(world.engine.root(), 2 * MIB).unwrap();
    assert!(stolen(&world.hog) + stolen(&world.neighbour) >= (2 * MIB / 4096) as i64);
}
