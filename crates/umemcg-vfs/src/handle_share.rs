//! What the open handles of a group take: memory, and a share of the process's descriptors.
//!
//! Memory is charged to the opener's group. A group that has no room still opens a few files, at its parent's cost, so that
//! programs at their limit go on; after [`NR_BEYOND_MAX`] of them an open is refused.
//!
//! Descriptors are divided without a setting. Handles together may hold three eighths of what the process may open. A group may
//! take one more as long as the descriptors of its path, those of each level counted with all below it, are fewer than that. So a
//! tenant below the root gets half if it is alone, n greedy tenants get one part of n + 1 each, and one part is always left for
//! the next group. A tenant gains nothing by making groups below its own.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};
use umemcg::{ChargeError, Engine, Group};
use umemcg_base::sync::Mutex;

use crate::slab::Slab;

/// What an open file or directory costs with its place in the table of handles, in bytes.
pub const HANDLE_BYTES: u64 = 400;
/// Most handles that a level without room may have charged above it.
pub const NR_BEYOND_MAX: usize = 1024;

/// The shares of all groups.
static SHARES: LazyLock<Shares> = LazyLock::new(|| Shares::new(nr_descriptors_max()));

/// Most descriptors that handles of this process hold, as far as its limit was raised by the first open.
fn nr_descriptors_max() -> usize {
    let limit = getrlimit(Resource::Nofile).current;
    limit.map_or(usize::MAX, |limit| usize::try_from(limit / 8 * 3).unwrap_or(usize::MAX))
}

/// What a group and those below it hold.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Held {
    nr_descriptors: usize,
    /// Handles that it had no room for.
    nr_beyond: usize,
}

#[derive(Debug)]
struct Shares {
    /// (C)
    nr_max: usize,
    /// By address: each holder below keeps its group and so all groups above it. A leaf lock.
    held: Mutex<HashMap<usize, Held>>,
}

impl Shares {
    fn new(nr_max: usize) -> Self {
        Self { nr_max, held: Mutex::default() }
    }

    fn take(&self, group: &Arc<Group>, nr: usize) -> Result<(), Errno> {
        let mut held = self.held.lock();
        let of_path: usize = path(group).filter_map(|at| Some(held.get(&address(at))?.nr_descriptors)).sum();
        if of_path.saturating_add(nr) > self.nr_max {
            return Err(Errno::NFILE);
        }
        path(group).for_each(|at| held.entry(address(at)).or_default().nr_descriptors += nr);
        Ok(())
    }

    fn give(&self, group: &Arc<Group>, nr: usize) {
        let mut held = self.held.lock();
        path(group).for_each(|at| change(&mut held, at, |held| held.nr_descriptors -= nr));
    }

    fn go_beyond(&self, group: &Arc<Group>) -> Result<(), Errno> {
        let mut held = self.held.lock();
        let held = held.entry(address(group)).or_default();
        if held.nr_beyond >= NR_BEYOND_MAX {
            return Err(Errno::NOMEM);
        }
        held.nr_beyond += 1;
        Ok(())
    }

    fn come_back(&self, group: &Arc<Group>) {
        change(&mut self.held.lock(), group, |held| held.nr_beyond -= 1);
    }
}

/// A group and all above it.
fn path(group: &Arc<Group>) -> impl Iterator<Item = &Arc<Group>> {
    std::iter::successors(Some(group), |at| at.parent())
}

fn address(group: &Arc<Group>) -> usize {
    Arc::as_ptr(group).addr()
}

fn change(held: &mut HashMap<usize, Held>, group: &Arc<Group>, change: impl FnOnce(&mut Held)) {
    if let Some(of_group) = held.get_mut(&address(group)) {
        change(of_group);
        if *of_group == Held::default() {
            held.remove(&address(group));
        }
    }
}

/// Descriptors of one handle, counted; given back when dropped.
#[derive(Debug)]
pub(crate) struct DescriptorShare {
    shares: &'static Shares,
    group: Arc<Group>,
    nr: usize,
}

impl DescriptorShare {
    /// Counts `nr` descriptors for a group.
    ///
    /// # Errors
    /// `ENFILE` when its share is used up.
    pub(crate) fn take(group: &Arc<Group>, nr: usize) -> Result<Self, Errno> {
        Self::take_of(&SHARES, group, nr)
    }

    fn take_of(shares: &'static Shares, group: &Arc<Group>, nr: usize) -> Result<Self, Errno> {
        if nr > 0 {
            shares.take(group, nr)?;
        }
        Ok(Self { shares, group: Arc::clone(group), nr })
    }

    /// Who holds them.
    pub(crate) fn group(&self) -> &Arc<Group> {
        &self.group
    }
}

impl Drop for DescriptorShare {
    fn drop(&mut self) {
        if self.nr > 0 {
            self.shares.give(&self.group, self.nr);
        }
    }
}

/// The memory of one handle; given back when dropped, with no lock held.
#[derive(Debug)]
pub(crate) struct HandleCharge {
    _slab: Slab,
    _beyond: Vec<Beyond>,
}

/// One handle that a group has no room for.
#[derive(Debug)]
struct Beyond {
    shares: &'static Shares,
    group: Arc<Group>,
}

impl Drop for Beyond {
    fn drop(&mut self) {
        self.shares.come_back(&self.group);
    }
}

impl HandleCharge {
    /// Charges a handle and `more_bytes` that go with it to a group, or to one above it. May sleep for reclaim; no lock may be
    /// held.
    ///
    /// # Errors
    /// `ENOMEM`, see the file's head.
    pub(crate) fn take(engine: &Engine, group: &Arc<Group>, more_bytes: u64) -> Result<Self, Errno> {
        Self::take_of(&SHARES, engine, group, more_bytes)
    }

    fn take_of(
        shares: &'static Shares,
        engine: &Engine,
        group: &Arc<Group>,
        more_bytes: u64,
    ) -> Result<Self, Errno> {
        let mut beyond = Vec::new();
        let mut at = Arc::clone(group);
        // Bounded by the depth of the tree: each round goes up at least one level.
        loop {
            match engine.charge(&at, HANDLE_BYTES + more_bytes) {
                Ok(charge) => return Ok(Self { _slab: Slab::of(charge), _beyond: beyond }),
                Err(ChargeError::Limit(refused)) => {
                    let above = Arc::clone(refused.group.parent().ok_or(Errno::NOMEM)?);
                    shares.go_beyond(&refused.group)?;
                    beyond.push(Beyond { shares, group: refused.group });
                    at = above;
                }
                Err(_) => return Err(Errno::NOMEM),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use umemcg::EngineConfig;

    fn shares(nr_max: usize) -> &'static Shares {
        Box::leak(Box::new(Shares::new(nr_max)))
    }

    fn engine() -> Arc<Engine> {
        Engine::new(EngineConfig { pool_bytes: 16 << 20, ..EngineConfig::default() }).unwrap()
    }

    fn take_all(shares: &'static Shares, group: &Arc<Group>) -> Vec<DescriptorShare> {
        std::iter::from_fn(|| DescriptorShare::take_of(shares, group, 1).ok()).collect()
    }

    #[test]
    fn greedy_groups_leave_a_part_for_the_next() {
        let (shares, engine) = (shares(120), engine());
        let groups: Vec<_> =
            ["a", "b", "c"].map(|name| engine.create_group(engine.root(), name.as_ref()).unwrap()).into();
        let first = take_all(shares, &groups[0]);
        assert_eq!(first.len(), 60);
        let second = take_all(shares, &groups[1]);
        assert_eq!(second.len(), 30);
        assert_eq!(DescriptorShare::take_of(shares, &groups[0], 1).unwrap_err(), Errno::NFILE);
        assert_eq!(take_all(shares, &groups[2]).len(), 15);
        drop((first, second));
        assert!(shares.held.lock().is_empty());
    }

    #[test]
    fn groups_below_a_group_share_what_it_gets() {
        let (shares, engine) = (shares(120), engine());
        let tenant = engine.create_group(engine.root(), "t".as_ref()).unwrap();
        let mut taken = Vec::new();
        for n in 0..50 {
            let below = engine.create_group(&tenant, format!("{n}").as_ref()).unwrap();
            taken.extend(take_all(shares, &below));
        }
        taken.extend(take_all(shares, &tenant));
        assert_eq!(taken.len(), 60);
    }

    #[test]
    fn a_full_group_opens_so_many_handles_and_no_more() {
        let (shares, engine) = (shares(usize::MAX), engine());
        let tenant = engine.create_group(engine.root(), "t".as_ref()).unwrap();
        let below = engine.create_group(&tenant, "below".as_ref()).unwrap();
        engine.set_max(&tenant, 0, &|| false);
        let before = engine.root().usage_bytes();
        let mut taken: Vec<_> = (0..NR_BEYOND_MAX)
            .map(|n| {
                let group = if n % 2 == 0 { &tenant } else { &below };
                HandleCharge::take_of(shares, &engine, group, 0).unwrap()
            })
            .collect();
        assert!(engine.root().usage_bytes() - before >= NR_BEYOND_MAX as u64 * HANDLE_BYTES);
        for group in [&tenant, &below] {
            assert_eq!(HandleCharge::take_of(shares, &engine, group, 0).unwrap_err(), Errno::NOMEM);
        }
        taken.pop();
        assert!(HandleCharge::take_of(shares, &engine, &below, 0).is_ok());
        drop(taken);
        assert!(shares.held.lock().is_empty());
    }
}
