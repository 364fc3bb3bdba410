//! The control keys: settings and figures of a group by name, as numbers. Names and meanings are
//! those of the control files in `docs/semantics/control-files.md`; `u64::MAX` is "no limit".

use std::sync::Arc;

use umemcg::{DropCaches, Engine, EventKind, Group};

use crate::failure::{Code, Failure};

type Get = fn(&Engine, &Arc<Group>) -> u64;
type Set = fn(&Engine, &Arc<Group>, u64) -> Result<(), Failure>;

/// A control key.
#[derive(Debug, Clone, Copy)]
pub struct ControlKey {
    /// The name of the control file.
    pub name: &'static str,
    get: Option<Get>,
    set: Option<Set>,
}

impl ControlKey {
    /// Returns whether it can be read, and whether it can be written.
    pub fn modes(&self) -> (bool, bool) {
        (self.get.is_some(), self.set.is_some())
    }
}

const fn read(name: &'static str, get: Get) -> ControlKey {
    ControlKey { name, get: Some(get), set: None }
}

const fn write(name: &'static str, set: Set) -> ControlKey {
    ControlKey { name, get: None, set: Some(set) }
}

const fn both(name: &'static str, get: Get, set: Set) -> ControlKey {
    ControlKey { name, get: Some(get), set: Some(set) }
}

/// All control keys.
pub const CONTROL_KEYS: &[ControlKey] = &[
    both(
        "memory.max",
        |_, group| group.max_bytes(),
        |engine, group, bytes| not_root(group).map(|()| engine.set_max(group, bytes)),
    ),
    both(
        "memory.limit_in_bytes",
        |_, group| group.max_bytes(),
        |engine, group, bytes| Ok(engine.set_limit(group, bytes)?),
    ),
    both(
        "memory.high",
        |engine, group| engine.high_bytes(group),
        |engine, group, bytes| not_root(group).map(|()| engine.set_high(group, bytes)),
    ),
    both(
        "memory.min",
        |_, group| group.min_bytes(),
        |engine, group, bytes| not_root(group).map(|()| engine.set_min(group, bytes)),
    ),
    both(
        "memory.low",
        |_, group| group.low_bytes(),
        |engine, group, bytes| not_root(group).map(|()| engine.set_low(group, bytes)),
    ),
    both(
        "memory.soft_limit_in_bytes",
        |_, group| group.soft_limit_bytes(),
        |engine, group, bytes| {
            engine.set_soft_limit(group, bytes);
            Ok(())
        },
    ),
    both(
        "memory.high_wmark_distance",
        |engine, group| engine.high_wmark_distance(group),
        |engine, group, bytes| Ok(engine.set_high_wmark_distance(group, bytes)?),
    ),
    both(
        "memory.low_wmark_distance",
        |engine, group| engine.low_wmark_distance(group),
        |engine, group, bytes| Ok(engine.set_low_wmark_distance(group, bytes)?),
    ),
    read("memory.current", |_, group| group.usage_bytes()),
    both(
        "memory.peak",
        |_, group| group.peak_bytes(),
        |_, group, _| {
            group.reset_peak();
            Ok(())
        },
    ),
    both(
        "memory.failcnt",
        |_, group| group.failcnt(),
        |_, group, _| {
            group.reset_failcnt();
            Ok(())
        },
    ),
    read("memory.events.low", |_, group| group.event_count(EventKind::Low)),
    read("memory.events.high", |_, group| group.event_count(EventKind::High)),
    read("memory.events.max", |_, group| group.event_count(EventKind::Max)),
    read("memory.events.oom", |_, group| group.event_count(EventKind::Oom)),
    read("cgroup.nr_children", |_, group| group.nr_children() as u64),
    write("memory.reclaim", |engine, group, bytes| Ok(engine.reclaim(group, bytes)?)),
    write("memory.force_empty", |engine, group, _| Ok(engine.force_empty(group)?)),
    write("vm.drop_caches", drop_caches),
];

fn not_root(group: &Group) -> Result<(), Failure> {
    if group.is_root() {
        Err(Failure::new(Code::IsRoot, "not for the root group").at(&group.path()))
    } else {
        Ok(())
    }
}

/// 1, 2 and 3 as in Linux; of the whole pool, whatever the group.
fn drop_caches(engine: &Engine, _: &Arc<Group>, what: u64) -> Result<(), Failure> {
    let what = match what {
        1 => DropCaches::Pages,
        2 => DropCaches::Objects,
        3 => DropCaches::Both,
        _ => return Err(Failure::invalid("vm.drop_caches takes 1 (pages), 2 (objects) or 3 (both)")),
    };
    engine.drop_caches(what);
    Ok(())
}

fn find(name: &str) -> Result<&'static ControlKey, Failure> {
    let found = CONTROL_KEYS.iter().find(|key| key.name == name);
    found.ok_or_else(|| Failure::new(Code::NotFound, format!("there is no control key `{name}`")))
}

fn not_removed(group: &Group) -> Result<(), Failure> {
    if group.is_dead() {
        Err(Failure::new(Code::Gone, "the group has been removed").at(&group.path()))
    } else {
        Ok(())
    }
}

/// Reads a control key of a group. Never blocks.
///
/// # Errors
/// [`Code::NotFound`], [`Code::NotPermitted`] for a write-only key, [`Code::Gone`].
pub fn get(engine: &Engine, group: &Arc<Group>, name: &str) -> Result<u64, Failure> {
    let key = find(name)?;
    let get = key.get.ok_or_else(|| {
        Failure::new(Code::NotPermitted, format!("`{name}` can only be written")).at(&group.path())
    })?;
    not_removed(group)?;
    Ok(get(engine, group))
}

/// Writes a control key of a group. Limits and requests may reclaim, and so may sleep.
///
/// # Errors
/// [`Code::NotFound`], [`Code::NotPermitted`] for a read-only key, [`Code::Gone`], and the errors
/// of the key's own operation, with the group's path and numbers.
pub fn set(engine: &Engine, group: &Arc<Group>, name: &str, value: u64) -> Result<(), Failure> {
    let key = find(name)?;
    let set = key.set.ok_or_else(|| {
        Failure::new(Code::NotPermitted, format!("`{name}` can only be read")).at(&group.path())
    })?;
    not_removed(group)?;
    set(engine, group, value).map_err(|failure| failure.of(group, value, group.margin_bytes()))
}
