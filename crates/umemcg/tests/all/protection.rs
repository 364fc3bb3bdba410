//! The groups that give memory and those that do not: the selection tests of the kernel's own
//! suite, restated for page cache, and what else `memory.min` and `memory.low` promise.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use umemcg::files::{Arena, BackingStore, File, Readahead, Segment, StoreId};
use umemcg::{Account, Engine, EventKind, Group, Refusal};

const MIB: u64 = 1 << 20;

/// A file of any length that reads as zeros and takes no writes.
#[derive(Debug)]
struct Zeros;

impl BackingStore for Zeros {
    fn store_id(&self) -> StoreId {
        StoreId(7)
    }
    fn read_at(&self, arena: &Arena, segments: &[Segment], _offset: u64) -> io::Result<usize> {
        let mut nr_read = 0;
        for segment in segments {
            let len = usize::from(segment.len);
            arena.copy_in(segment.frame, usize::from(segment.offset), &vec![0; len]);
            nr_read += len;
        }
        Ok(nr_read)
    }
    fn write_at(&self, _: &Arena, _: &[Segment], _: u64) -> io::Result<usize> {
        Err(io::ErrorKind::ReadOnlyFilesystem.into())
    }
    fn sync_range(&self, _: u64, _: u64) -> io::Result<()> {
        Ok(())
    }
    fn sync(&self, _: bool) -> io::Result<()> {
        Ok(())
    }
    fn set_len(&self, _: u64) -> io::Result<()> {
        Err(io::ErrorKind::ReadOnlyFilesystem.into())
    }
}

/// Brings a file of this many bytes into the cache, at the expense of `group`.
fn cache(engine: &Engine, group: &Arc<Group>, bytes: u64) -> Arc<File> {
    let file = engine.open_file(Arc::new(Zeros), bytes).unwrap();
    let readahead = Readahead::new();
    let mut offset = 0;
    while offset < bytes {
        offset += file.read(group, offset, 1 << 20, &readahead).unwrap().len() as u64;
    }
    file
}

fn child(engine: &Engine, parent: &Arc<Group>, name: &str) -> Arc<Group> {
    engine.create_group(parent, name.as_ref()).unwrap()
}

/// The kernel tests' measure: the difference in percent of the sum.
fn is_close(a: u64, b: u64, percent: u64) -> bool {
    a.abs_diff(b) * 100 <= (a + b) * percent
}

/// Usage in MiB, to the nearest.
fn mib(group: &Group) -> u64 {
    group.drain_stocks();
    (group.usage_bytes() + MIB / 2) / MIB
}

/// A with a limit of 200 MiB; in it B, which is promised 50, and G, which holds memory that cannot
/// go. In B four that are promised 75, 25, nothing and 500 (the last holds nothing); the others
/// have 50 MiB of cache each.
struct Tree {
    engine: Arc<Engine>,
    b: Arc<Group>,
    leaves: [Arc<Group>; 4],
    g: Arc<Group>,
    _files: Vec<Arc<File>>,
}

impl Tree {
    fn new(promise: fn(&Engine, &Arc<Group>, u64)) -> Self {
        let engine = crate::common::engine(512 * MIB);
        let a = crate::common::group(&engine, "A", 200 * MIB);
        let (b, g) = (child(&engine, &a, "B"), child(&engine, &a, "G"));
        let leaves = ["C", "D", "E", "F"].map(|name| child(&engine, &b, name));
        promise(&engine, &b, 50 * MIB);
        for (leaf, mib) in leaves.iter().zip([75, 25, 0, 500]) {
            promise(&engine, leaf, mib * MIB);
        }
        let files = leaves[..3].iter().map(|leaf| cache(&engine, leaf, 50 * MIB)).collect();
        Self { engine, b, leaves, g, _files: files }
    }

    fn hold(&self, mib: u64) -> Result<Account, Refusal> {
        self.engine.reserve(&self.g, mib * MIB)
    }

    fn assert_shares(&self) {
        let [c, d, e, f] = [0, 1, 2, 3].map(|leaf| mib(&self.leaves[leaf]));
        // Both suites are right: the end state depends on how much is scanned at a time, and lies
        // between theirs.
        assert!((29..=33).contains(&c) || is_close(c, 29, 15) && is_close(c, 33, 20), "C {c}");
        assert!((17..=21).contains(&d) || is_close(d, 21, 20) && is_close(d, 17, 20), "D {d}");
        assert!(e <= 2 && f == 0, "E {e}, F {f}");
    }
}

#[test]
fn min_is_kept_in_shares_and_a_charge_for_it_is_refused() {
    let tree = Tree::new(Engine::set_min);
    let held = tree.hold(148).unwrap();
    assert!(is_close(mib(&tree.b), 50, 3), "B {}", mib(&tree.b));
    tree.assert_shares();
    drop(held);
    let refused = tree.hold(170).unwrap_err();
    assert!(matches!(refused, Refusal::NotNow { .. }), "{refused}");
    assert_eq!(mib(&tree.g), 0, "nothing is kept of a reservation that was refused");
    assert!(is_close(mib(&tree.b), 50, 3), "B {}", mib(&tree.b));
    let a = tree.b.parent().unwrap();
    assert!(a.event_count(EventKind::Max) > 0 && a.event_count(EventKind::Oom) == 0);
    assert_eq!(a.event_count(EventKind::Low), 0);
    // A group is not protected from itself.
    let c = &tree.leaves[0];
    tree.engine.reclaim(c, c.usage_bytes() - 10 * MIB).unwrap();
    assert!(is_close(mib(c), 10, 10), "C {}", mib(c));
}

#[test]
fn low_is_kept_in_shares_until_nothing_else_is_left() {
    let tree = Tree::new(Engine::set_low);
    let held = tree.hold(148).unwrap();
    assert!(is_close(mib(&tree.b), 50, 3), "B {}", mib(&tree.b));
    tree.assert_shares();
    let events = |leaf: usize| tree.leaves[leaf].event_count(EventKind::Low);
    assert_eq!([0, 1, 2, 3].map(events), [0; 4], "no protected group was touched");
    drop(held);
    let held = tree.hold(170).unwrap();
    assert!(is_close(mib(&tree.b), 30, 3), "B {}", mib(&tree.b));
    assert!(events(0) > 0 && events(1) > 0 && events(3) == 0);
    assert_eq!(tree.b.parent().unwrap().event_count(EventKind::Oom), 0);
    assert!(tree.b.event_count(EventKind::Low) >= events(0) + events(1), "counted above, too");
    drop(held);
    let c = &tree.leaves[0];
    tree.engine.reclaim(c, c.usage_bytes().saturating_sub(10 * MIB)).unwrap();
    assert!(mib(c) <= 10);
}

#[test]
fn unprotected_groups_give_all_before_protected_ones_give() {
    let engine = crate::common::engine(64 * MIB);
    let [kept, other] = ["kept", "other"].map(|name| child(&engine, engine.root(), name));
    engine.set_low(&kept, 32 * MIB);
    let _files = [cache(&engine, &kept, 24 * MIB), cache(&engine, &other, 200 * MIB)];
    let before = mib(&kept);
    assert!(before >= 24, "{before}");
    let held = engine.reserve(engine.root(), 36 * MIB).unwrap();
    assert_eq!((mib(&kept), kept.event_count(EventKind::Low)), (before, 0));
    assert!(mib(&other) <= 4, "{}", mib(&other));
    drop(held);
}

#[test]
fn background_reclaim_leaves_min_alone_and_takes_low_last() {
    let engine = crate::common::engine(256 * MIB);
    let parent = crate::common::group(&engine, "parent", 64 * MIB);
    let [kept, other] = ["kept", "other"].map(|name| child(&engine, &parent, name));
    engine.set_low(&parent, 64 * MIB);
    engine.set_low(&kept, 40 * MIB);
    let _kept = cache(&engine, &kept, 30 * MIB);
    let _other = cache(&engine, &other, 24 * MIB);
    // Usage 54: start at 50, stop at 44. What is not protected suffices.
    engine.set_high_wmark_distance(&parent, 20 * MIB).unwrap();
    engine.set_low_wmark_distance(&parent, 14 * MIB).unwrap();
    let wait_until_below = |bytes: u64| {
        let give_up = Instant::now() + Duration::from_secs(60);
        while parent.usage_bytes() >= bytes {
            assert!(Instant::now() < give_up, "{} bytes are still used", parent.usage_bytes());
            std::thread::yield_now();
        }
    };
    wait_until_below(44 * MIB);
    assert!(mib(&kept) >= 30 && kept.event_count(EventKind::Low) == 0, "{}", mib(&kept));
    // Stop at 20: now it does not.
    engine.set_high_wmark_distance(&parent, 44 * MIB).unwrap();
    engine.set_low_wmark_distance(&parent, 40 * MIB).unwrap();
    wait_until_below(20 * MIB);
    assert!(kept.event_count(EventKind::Low) > 0 && mib(&other) <= 1, "{}", mib(&other));
}

#[test]
fn objects_are_protected_with_the_pages_beside_them() {
    let engine = crate::common::engine(64 * MIB);
    let parent = crate::common::group(&engine, "parent", 16 * MIB);
    let [kept, other] = ["kept", "other"].map(|name| child(&engine, &parent, name));
    let objects = umemcg::ObjectCache::builder(&engine, "objects").weigher(|_: &u64, _: &()| 4000).build();
    engine.set_min(&kept, 8 * MIB);
    (0..1000).for_each(|key| objects.insert(&kept, key, ()).unwrap());
    let before = kept.usage_bytes();
    assert!(before > 4 * MIB && before < 8 * MIB, "{before}");
    for key in 10_000..20_000 {
        let _ = objects.insert(&other, key, ());
    }
    assert!(engine.reserve(&other, 14 * MIB).is_err());
    assert!((0..1000).all(|key| objects.get(&key).is_some()), "what is protected is still there");
    engine.set_min(&kept, 0);
    drop(engine.reserve(&other, 14 * MIB).unwrap());
    assert!((0..1000).any(|key| objects.get(&key).is_none()), "what is not gives way");
}

#[test]
fn protection_ends_with_its_group() {
    let engine = crate::common::engine(64 * MIB);
    let parent = child(&engine, engine.root(), "parent");
    let leaf = child(&engine, &parent, "leaf");
    engine.set_min(&leaf, MIB);
    engine.set_low(&leaf, u64::MAX);
    let held = engine.charge(&leaf, 2 * MIB).unwrap();
    assert_eq!(parent.claimed_below_bytes().min, MIB);
    assert_eq!(parent.claimed_below_bytes().low, leaf.usage_bytes());
    engine.remove_group(&leaf).unwrap();
    assert!(parent.claimed_below_bytes().is_none() && leaf.protection().is_none());
    engine.set_min(&leaf, MIB);
    assert!(parent.claimed_below_bytes().is_none(), "a removed group has no claims");
    drop(held);
    engine.set_min(engine.root(), MIB);
    assert!(engine.root().protection().is_none(), "nothing is above the root");
}
