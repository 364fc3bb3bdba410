//! Threads that change everything that users do not ask for. A round has some of them, as its seed
//! says: with all of them always on, what one breaks the next would hide.

use std::ffi::OsStr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use umemcg::internal::dirty::settings::{DirtyBound, DirtyThreshold};
use umemcg::{CreateError, DropCaches};
use umemcg_vfs::Volume;

use crate::object_together::dice::Dice;
use crate::object_together::lock;
use crate::object_together::versions;
use crate::object_together::world::{Doing, NR_GROUPS, NR_SHARED, Together};

type Act = fn(&Together, &Doing, &mut Dice);

/// A disturber: its name, what it does, and the longest pause between two turns.
#[derive(Clone, Copy)]
pub struct Disturber {
    pub name: &'static str,
    act: Act,
    pause_us: u64,
}

pub const ALL: [Disturber; 6] = [
    Disturber { name: "limits", act: change_limit, pause_us: 4_000 },
    Disturber { name: "groups", act: replace_group, pause_us: 8_000 },
    Disturber { name: "caches", act: drop_caches, pause_us: 8_000 },
    Disturber { name: "syncs", act: sync, pause_us: 3_000 },
    Disturber { name: "rival", act: be_rival, pause_us: 2_000 },
    Disturber { name: "faults", act: change_faults, pause_us: 20_000 },
];

/// The writer that stands for the rival.
const RIVAL: u32 = 1000;
const LIMITS: [u64; 6] = [64 << 10, 256 << 10, 1 << 20, 2 << 20, 4 << 20, u64::MAX];
/// What a group needs for the parts of its streams, or its writers wait for each other for a
/// minute.
const STREAMS_BYTES: u64 = 256 << 10;
/// What requests of one group have in flight beyond its limit, a MiB each: no more are made at a
/// time here.
const SLACK_BYTES: u64 = 16 << 20;

impl Disturber {
    /// Takes turns until the users have ended.
    pub fn run(self, together: &Together, doing: &Doing, mut dice: Dice) {
        while !together.is_over() {
            doing.begin(self.name);
            (self.act)(together, doing, &mut dice);
            std::thread::sleep(Duration::from_micros(dice.below(self.pause_us)));
        }
        doing.end();
    }
}

/// Returns any limit that a group may have.
fn any_limit(together: &Together, dice: &mut Dice) -> u64 {
    dice.of_these(&LIMITS).max(if together.streams { STREAMS_BYTES } else { 0 })
}

fn change_limit(together: &Together, doing: &Doing, dice: &mut Dice) {
    let (engine, group) = (&together.engine, together.group(dice.below(NR_GROUPS as u64) as usize));
    let limit = any_limit(together, dice);
    doing.begin(format!("limits a group to {limit}"));
    match dice.below(4) {
        0 => engine.set_high(&group, limit),
        1 => {
            let which = if dice.one_in(2) { DirtyThreshold::Foreground } else { DirtyThreshold::Background };
            let bound = match dice.one_in(2) {
                true => DirtyBound::Bytes(limit.min(1 << 20) / 4),
                false => DirtyBound::Percent(dice.below(101) as u8),
            };
            engine.cache().dirty_limits().set_bound(&group, which, bound);
        }
        _ => {
            engine.set_max(&group, limit);
            // What could not be reclaimed stays; nothing is added to it.
            let bound = limit.max(group.usage_bytes()).saturating_add(SLACK_BYTES);
            for _ in 0..5 {
                std::thread::sleep(Duration::from_micros(300));
                assert!(group.usage_bytes() <= bound, "{} of {bound}", group.usage_bytes());
            }
        }
    }
    let root = engine.root();
    // What the kernel keeps is not in the pool's memory.
    let beyond = if together.keeps_pages { SLACK_BYTES } else { 0 };
    assert!(root.usage_bytes() <= root.max_bytes() + beyond, "the pool holds {}", root.usage_bytes());
}

/// Removes a group that owns pages and drafts, and makes another of that name.
fn replace_group(together: &Together, doing: &Doing, dice: &mut Dice) {
    let at = dice.below(NR_GROUPS as u64) as usize;
    let (engine, old) = (&together.engine, together.group(at));
    doing.begin("removes a group");
    engine.remove_group(&old).unwrap();
    doing.begin("makes a group");
    let new = loop {
        match engine.create_group(engine.root(), OsStr::new(&*old.name())) {
            Ok(new) => break new,
            Err(CreateError::Refused(_)) => std::thread::sleep(Duration::from_millis(1)),
            Err(error) => panic!("{error}"),
        }
    };
    doing.begin("limits a new group");
    engine.set_max(&new, any_limit(together, dice));
    lock(&together.groups)[at] = new;
}

fn drop_caches(together: &Together, doing: &Doing, dice: &mut Dice) {
    let engine = &together.engine;
    let kind = dice.below(6);
    doing.begin(format!("drops caches, kind {kind}"));
    match kind {
        0 => engine.drop_caches(DropCaches::Pages),
        1 => engine.drop_caches(DropCaches::Objects),
        2 => engine.drop_caches(DropCaches::Both),
        3 => engine.trim(),
        4 => together.kernel().forget_all(),
        _ => {
            let group = together.group(dice.below(NR_GROUPS as u64) as usize);
            let _ = engine.force_empty_unless(&group, &|| together.is_over());
        }
    }
}

fn sync(together: &Together, doing: &Doing, dice: &mut Dice) {
    match dice.below(4) {
        0 => together.engine.cache().wake_flushers(),
        1 => {
            doing.begin("syncs the engine");
            drop(together.engine.sync_all(Duration::from_secs(1)));
        }
        _ => {
            doing.begin("syncs the volume");
            // What fails stays staged.
            drop(together.volume().syncfs());
        }
    }
}

/// Another program replaces and removes objects.
fn be_rival(together: &Together, _: &Doing, dice: &mut Dice) {
    let place = dice.of_these(&["swap", "lock"]);
    let key = format!("{place}/{}", dice.below(NR_SHARED as u64));
    match dice.below(5) {
        0 => together.bucket.remove(&key),
        _ => together.bucket.put(&key, versions::whole((RIVAL, together.next_serial()))),
    }
}

fn change_faults(together: &Together, _: &Doing, dice: &mut Dice) {
    let bucket = &together.bucket;
    bucket.nr_faults.store(dice.of_these(&[0, 0, 20, 100, 300]), Ordering::Relaxed);
    bucket.pause_us.store(dice.of_these(&[0, 100, 500, 2_000]), Ordering::Relaxed);
}

/// Ends what [`change_faults`] began.
pub fn end_faults(together: &Arc<Together>) {
    together.bucket.nr_faults.store(0, Ordering::Relaxed);
    together.bucket.is_down.store(false, Ordering::Relaxed);
}
