//! The disturbers: threads that change everything that users do not ask for. A round has some of
//! them, as its seed says: with all of them always on, what one breaks the next would hide.

use std::sync::Arc;
use std::time::Duration;

use umemcg::files::{DirtyBound, DirtyThreshold, Readahead};
use umemcg::{CreateError, DropCaches, Group};
use umemcg_base::{clock, schedule};

use crate::accounts::use_accounts;
use crate::disk::{CELL, Random};
use crate::model::check_cut;
use crate::objects;
use crate::store::{FAULTS, Fault};
use crate::world::{World, limit};

/// One turn of a disturber.
type Act = fn(&World, &mut Random);

/// A disturber: its name, what it does, and the longest pause between two turns.
#[derive(Clone, Copy)]
pub struct Disturber {
    pub name: &'static str,
    act: Act,
    pause_us: usize,
}

pub const ALL: [Disturber; 14] = [
    Disturber { name: "limits", act: change_limit, pause_us: 20_000 },
    Disturber { name: "groups", act: replace_group, pause_us: 50_000 },
    Disturber { name: "ballast", act: fill_memory, pause_us: 20_000 },
    Disturber { name: "accounts", act: use_accounts, pause_us: 5_000 },
    Disturber { name: "holes", act: make_holes, pause_us: 300 },
    Disturber { name: "compaction", act: compact, pause_us: 500 },
    Disturber { name: "flushing", act: flush, pause_us: 10_000 },
    Disturber { name: "dropping", act: drop_caches, pause_us: 50_000 },
    Disturber { name: "outside", act: change_outside, pause_us: 30_000 },
    Disturber { name: "power", act: cut_power, pause_us: 30_000 },
    Disturber { name: "loads", act: objects::load, pause_us: 500 },
    Disturber { name: "more-loads", act: objects::load, pause_us: 500 },
    Disturber { name: "pins", act: objects::pin, pause_us: 2_000 },
    Disturber { name: "faults", act: change_fault, pause_us: 500_000 },
];

impl Disturber {
    /// Takes turns until the users have ended.
    pub fn run(self, world: &World, mut random: Random) {
        while !world.is_over() {
            schedule::begin(self.name);
            (self.act)(world, &mut random);
            schedule::end();
            let us = 1 + random.below(self.pause_us);
            schedule::sleep(Duration::from_micros(us as u64));
        }
    }
}

fn change_limit(world: &World, random: &mut Random) {
    let group = {
        let groups = world.groups.lock();
        Arc::clone(&groups[random.below(groups.len())])
    };
    if random.below(3) == 0 {
        return change_dirty_limit(world, &group, random);
    }
    let gives_up = random.below(4) == 0;
    world.engine.set_max_unless(&group, limit(random), &|| gives_up);
}

/// Mostly the least: then the group's writers, and those of others to its pages, are paced soon.
fn change_dirty_limit(world: &World, group: &Arc<Group>, random: &mut Random) {
    let which = [DirtyThreshold::Foreground, DirtyThreshold::Background][random.below(2)];
    let bytes = [0, 0, 0, 1 << 20][random.below(4)];
    world.engine.cache().dirty_limits().set_bound(group, which, DirtyBound::Bytes(bytes));
}

/// Removes a group while its users are at work, and makes another of that name.
fn replace_group(world: &World, random: &mut Random) {
    let at = random.below(world.groups.lock().len());
    let old = Arc::clone(&world.groups.lock()[at]);
    let name = old.name();
    world.engine.remove_group(&old).unwrap();
    let new = loop {
        match world.engine.create_group(world.engine.root(), &name) {
            Ok(new) => break new,
            // The pool is full of what the store does not take just now.
            Err(CreateError::Refused(_)) if world.is_over() => return,
            Err(CreateError::Refused(_)) => schedule::sleep(Duration::from_millis(1)),
            Err(error) => panic!("{error}"),
        }
    };
    world.engine.set_max(&new, limit(random));
    world.groups.lock()[at] = new;
}

/// Makes memory short, then gives some of it back, so that blocks are left half empty.
fn fill_memory(world: &World, random: &mut Random) {
    let len = world.ballast.len() as usize;
    let start = random.below(len / 4096) * 4096;
    let mut end = start;
    while end < len && end < start + (1 << 20) {
        // With the store's faults a read may fail: memory is full enough then.
        let read = world.ballast.read(&world.ballast_group, end as u64, 128 << 10, &Readahead::new());
        let Ok(pages) = read else { break };
        end += pages.len();
    }
    if random.below(2) == 0 {
        let _ = world.engine.force_empty(&world.ballast_group);
    }
}

/// Takes frames for a moment, so that pages that come back meanwhile land in another block, and
/// both blocks are sparse afterwards.
fn make_holes(world: &World, random: &mut Random) {
    let nr = 300 + random.below(400);
    let Ok(_charge) = world.engine.root().try_charge(nr as u64 * 4096) else { return };
    let (arena, mut frames) = (world.engine.arena(), Vec::new());
    arena.alloc(&mut frames, nr);
    let file = &world.files[random.below(world.files.len())];
    if random.below(2) == 0 {
        let _ = file.write_back();
    }
    file.invalidate_clean();
    schedule::sleep(Duration::from_micros(random.below(4_000) as u64));
    arena.free(&frames);
}

fn compact(world: &World, _random: &mut Random) {
    world.engine.trim();
}

fn flush(world: &World, random: &mut Random) {
    // At times the system refuses threads.
    clock::refuse_threads(random.below(3) as u32);
    match random.below(3) {
        0 => world.engine.cache().wake_flushers(),
        1 => drop(world.engine.sync_all(Duration::from_secs(1))),
        _ => drop(world.files[random.below(world.files.len())].write_back()),
    }
    clock::refuse_threads(0);
}

fn drop_caches(world: &World, random: &mut Random) {
    match random.below(3) {
        0 => world.engine.drop_caches(DropCaches::Both),
        1 => world.files[random.below(world.files.len())].invalidate_clean(),
        _ => {
            let group = {
                let groups = world.groups.lock();
                Arc::clone(&groups[random.below(groups.len())])
            };
            let _ = world.engine.force_empty(&group);
        }
    }
}

/// Another program writes whole pages of the file in the store, and the cache is told.
fn change_outside(world: &World, random: &mut Random) {
    let file = random.below(world.files.len());
    let (model, handle) = (&world.models[file], &world.files[file]);
    let nr_pages = model.len() / 4096;
    if nr_pages == 0 {
        return;
    }
    let first = random.below(nr_pages);
    let end = first + 1 + random.below(nr_pages - first);
    let range = first * 4096..end * 4096;
    let Some(_claim) = model.claim(range.clone()) else { return };
    // Ours first: what is dirty there would overwrite what the other program writes.
    let since = model.begin_sync();
    if handle.fsync(false, &handle.sample_error()).is_err() {
        return;
    }
    model.is_synced(since);
    let value = 1 + random.below(255) as u8;
    model.begin_fill(&range, value);
    world.store.disk.write(file, range.start, &vec![value; range.len()]);
    schedule::pause();
    handle.revalidate(|| Some(world.store.disk.len(file) as u64));
    model.end_fill(&range, range.len(), 0);
    assert_eq!(range.len() % CELL, 0);
}

fn cut_power(world: &World, random: &mut Random) {
    check_cut(&world.store.disk, &world.models, &mut |bound| random.below(bound)).unwrap();
}

/// A fault for a while, then none for a while.
fn change_fault(world: &World, random: &mut Random) {
    let fault = FAULTS[random.below(FAULTS.len())];
    world.store.set_fault(fault);
    schedule::sleep(Duration::from_micros(random.below(200_000) as u64));
    world.store.set_fault(Fault::None);
}
