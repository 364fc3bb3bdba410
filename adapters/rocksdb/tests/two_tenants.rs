//! Two tenants with a database each: their block caches keep to the limits of their groups, give
//! way to buffers of the same tenant, grow back, and leave nothing charged.

use std::ffi::OsStr;
use std::path::Path;
use std::sync::Arc;

use rocksdb::{DB, IteratorMode, WriteOptions};
use umemcg::{Engine, EngineConfig, Group, Lease, Resizable};
use umemcg_rocksdb::BlockCache;

const MIB: u64 = 1 << 20;
const LIMIT: u64 = 16 * MIB;
const VALUE: usize = 1024;
/// About 40 MiB of values.
const NR_VALUES: u64 = 40_000;

struct Tenant {
    engine: Arc<Engine>,
    group: Arc<Group>,
    blocks: Arc<BlockCache>,
    lease: Lease,
    db: DB,
}

fn value_of(tenant: u8, key: u64) -> Vec<u8> {
    let mut state = key.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ u64::from(tenant);
    std::iter::repeat_with(|| {
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        (state >> 33) as u8
    })
    .take(VALUE)
    .collect()
}

impl Tenant {
    fn new(engine: &Arc<Engine>, name: &str, dir: &Path) -> Self {
        let group = engine.create_group(engine.root(), OsStr::new(name)).unwrap();
        engine.set_max(&group, LIMIT);
        let blocks = Arc::new(BlockCache::new().unwrap());
        let lease = engine.lease(&group, &format!("blocks of {name}"), Arc::clone(&blocks) as _, 64 * MIB);
        let db = DB::open(&blocks.options(), dir.join(name)).unwrap();
        Self { engine: Arc::clone(engine), group, blocks, lease, db }
    }

    fn number(&self) -> u8 {
        *self.group.path().as_os_str().as_encoded_bytes().last().unwrap()
    }

    fn fill(&self) {
        let mut options = WriteOptions::default();
        options.disable_wal(true);
        for key in 0..NR_VALUES {
            self.db.put_opt(key.to_be_bytes(), value_of(self.number(), key), &options).unwrap();
        }
        self.db.flush().unwrap();
        self.db.compact_range(None::<&[u8]>, None::<&[u8]>);
    }

    /// Reads keys, and compares the values with the written ones.
    fn read(&self, keys: impl Iterator<Item = u64>) {
        for (nr, key) in keys.enumerate() {
            let value = self.db.get_pinned(key.to_be_bytes()).unwrap().expect("it was written");
            assert_eq!(*value, value_of(self.number(), key)[..], "the value of key {key}");
            drop(value);
            if nr % 100 == 0 {
                // The engine does this ten times a second; the test does not wait for it.
                self.lease.adjust();
                self.check();
            }
        }
    }

    fn check(&self) {
        let (used, charged) = (self.blocks.used_bytes(), self.lease.charged_bytes());
        assert!(
            used <= charged,
            "{used} bytes used, {charged} charged, {} pinned",
            self.blocks.pinned_bytes()
        );
        assert!(self.group.usage_bytes() <= LIMIT, "{} bytes", self.group.usage_bytes());
    }

    /// Reads each key once, in leaps.
    fn read_all(&self) {
        self.read((0..NR_VALUES).map(|nr| nr * 7919 % NR_VALUES));
    }
}

fn two_tenants(dir: &Path) -> (Arc<Engine>, Tenant, Tenant) {
    let engine = Engine::new(EngineConfig::new(256 * MIB).pages(false)).unwrap();
    let [a, b] = ["tenant-a", "tenant-b"].map(|name| Tenant::new(&engine, name, dir));
    [&a, &b].into_iter().for_each(Tenant::fill);
    (engine, a, b)
}

#[test]
fn a_block_cache_keeps_to_its_tenants_limit_and_gives_way() {
    let dir = tempfile::tempdir().unwrap();
    let (_engine, a, b) = two_tenants(dir.path());
    a.read_all();
    let full = a.blocks.used_bytes();
    assert!(full > LIMIT / 2, "{full} bytes: 40 MiB would be there without a limit");

    // A fitting working set stays cached, whatever the other tenant does.
    b.read(0..2000);
    let working_set = b.blocks.used_bytes();
    a.read_all();
    b.lease.adjust();
    assert_eq!(b.blocks.used_bytes(), working_set, "nothing of it was taken");

    // The tenant's own memory comes first.
    let buffer = a.engine.charge(&a.group, 8 * MIB).unwrap();
    assert!(a.blocks.used_bytes() <= LIMIT - 8 * MIB, "{} bytes", a.blocks.used_bytes());
    a.check();
    a.read_all();
    assert!(a.blocks.used_bytes() <= LIMIT - 8 * MIB);
    drop(buffer);
    a.read_all();
    assert!(a.blocks.used_bytes() * 10 >= full * 9, "{} bytes after {full}", a.blocks.used_bytes());
}

#[test]
fn a_lowered_limit_is_kept_while_iterators_hold_blocks() {
    let dir = tempfile::tempdir().unwrap();
    let (engine, a, _b) = two_tenants(dir.path());
    a.read_all();
    let mut iterator = a.db.iterator(IteratorMode::Start);
    let first = iterator.next().unwrap().unwrap();
    assert!(a.blocks.pinned_bytes() > 0);
    engine.set_max(&a.group, 2 * MIB);
    assert!(a.group.usage_bytes() <= 2 * MIB, "{} bytes", a.group.usage_bytes());
    assert!(a.blocks.used_bytes() <= 2 * MIB, "{} bytes", a.blocks.used_bytes());
    assert_eq!(*first.1, value_of(a.number(), 0)[..]);
    for (key, entry) in (1..1000).zip(iterator) {
        assert_eq!(*entry.unwrap().1, value_of(a.number(), key)[..]);
    }
    a.read(0..500);
}

#[test]
fn readers_and_limit_changes_meet() {
    let dir = tempfile::tempdir().unwrap();
    let (engine, a, b) = two_tenants(dir.path());
    std::thread::scope(|scope| {
        for tenant in [&a, &b] {
            for part in 0..2 {
                scope.spawn(move || {
                    for nr in 0..5000 {
                        let key = (nr * 7919 + part * 20_011) % NR_VALUES;
                        let value = tenant.db.get(key.to_be_bytes()).unwrap().expect("it was written");
                        assert_eq!(value, value_of(tenant.number(), key), "the value of key {key}");
                    }
                });
            }
        }
        for turn in 0..200 {
            engine.set_max(&a.group, [1, 4, 16, 8][turn % 4] * MIB);
            a.lease.adjust();
            let _ = a.engine.charge(&a.group, MIB / 2);
        }
    });
    engine.set_max(&a.group, LIMIT);
    for tenant in [&a, &b] {
        tenant.lease.adjust();
        tenant.check();
    }
    let groups = [Arc::clone(&a.group), Arc::clone(&b.group)];
    // A lease may end before its cache; the capacity is then zero.
    let Tenant { lease, db, blocks, .. } = a;
    drop(lease);
    assert!(blocks.used_bytes() <= blocks.pinned_bytes(), "{} bytes are left", blocks.used_bytes());
    assert_eq!(*db.get(5_u64.to_be_bytes()).unwrap().unwrap(), value_of(b'a', 5)[..]);
    drop(b);
    for group in groups {
        group.drain_stocks();
        assert_eq!(group.stat_total(umemcg::StatItem::SlabReclaimable), 0, "{group:?}");
    }
}
