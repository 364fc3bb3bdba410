//! The objects of the world: loads that are waited for, given up and overtaken, and readers that
//! hold what they found.

use std::hash::{BuildHasherDefault, DefaultHasher};
use std::sync::Arc;
use std::time::Duration;

use umemcg::objects::Lookup;
use umemcg::{DropCaches, Engine, Group, ObjectCache};
use umemcg_base::schedule;

use crate::disk::Random;
use crate::world::World;

/// So few keys that loads of one key meet.
const NR_KEYS: usize = 12;
/// Values that a turn holds at most.
const NR_HELD: usize = 4;
/// Looks at figures that may be on their way.
const NR_LOOKS: usize = 100;

/// The same order in every run of a seed. A value names its key: it is the key plus a multiple of
/// [`NR_KEYS`].
pub type Objects = ObjectCache<usize, Arc<usize>, BuildHasherDefault<DefaultHasher>>;

pub fn new(engine: &Arc<Engine>) -> Objects {
    ObjectCache::builder(engine, "objects").weigher(|_, _| 4096).hasher(BuildHasherDefault::default()).build()
}

fn any_group(world: &World, random: &mut Random) -> Arc<Group> {
    let groups = world.groups.lock();
    Arc::clone(&groups[random.below(groups.len())])
}

fn pause(random: &mut Random) {
    schedule::sleep(Duration::from_micros(random.below(2_000) as u64));
}

/// One load, or something that overtakes loads.
pub fn load(world: &World, random: &mut Random) {
    let (objects, group, key) = (&world.objects, any_group(world, random), random.below(NR_KEYS));
    let value = Arc::new(key + NR_KEYS * random.below(1000));
    let found = match random.below(8) {
        0 => objects.remove(&key),
        1 => {
            let _ = objects.insert(&group, key, value);
            None
        }
        2 => {
            let _ = objects.insert_soon(&group, key, value);
            objects.get(&key)
        }
        3 => match objects.lookup(&group, key) {
            Lookup::Value(value) => Some(value),
            Lookup::Load(guard) if random.below(2) == 0 => {
                pause(random);
                drop(guard);
                None
            }
            Lookup::Load(guard) => {
                pause(random);
                Some(guard.insert_soon(value))
            }
            // Goes again without having looked.
            Lookup::Wait(wait) => {
                pause(random);
                drop(wait);
                None
            }
        },
        4 => objects
            .get_or_try_insert_with(&group, key, || {
                pause(random);
                Err::<Arc<usize>, ()>(())
            })
            .ok(),
        _ => Some(objects.get_or_insert_with(&group, key, || {
            pause(random);
            value
        })),
    };
    if let Some(found) = found {
        assert_eq!(*found % NR_KEYS, key, "the value of another key");
        schedule::note(*found as u64);
    }
}

/// Holds some values for a while, which must stay what they are and charged.
pub fn pin(world: &World, random: &mut Random) {
    let mut held = Vec::new();
    for _ in 0..1 + random.below(NR_HELD) {
        let key = random.below(NR_KEYS);
        held.extend(world.objects.get_pinned(&key).map(|pinned| (key, **pinned, pinned)));
        pause(random);
    }
    let left = held.iter().filter(|(.., pinned)| pinned.has_left()).count() as u64;
    // The figures of a group that is being removed are on their way to its parent for a moment.
    let are_charged = || {
        (0..NR_LOOKS).any(|_| {
            schedule::sleep(Duration::from_millis(1));
            world.objects.stats().pinned_bytes >= 4096
        })
    };
    assert!(left == 0 || are_charged(), "{left} have left, and none is charged");
    if random.below(2) == 0 {
        held.reverse();
    }
    for (key, before, pinned) in held {
        assert_eq!((**pinned, **pinned % NR_KEYS), (before, key));
    }
}

/// No load is under way, and no value is held: everything can go.
pub fn check_end(world: &World) {
    world.objects.wait_for_workers();
    let stats = world.objects.stats();
    assert_eq!((stats.objects, stats.pinned_bytes), (world.objects.len() as u64, 0), "{stats:?}");
    // An object that was used goes round the list once more.
    for _ in 0..20 {
        world.engine.drop_caches(DropCaches::Objects);
    }
    assert_eq!(world.objects.len(), 0, "an object that reclaim does not find: {:?}", world.objects.stats());
    assert_eq!(world.objects.stats().bytes, 0);
}
