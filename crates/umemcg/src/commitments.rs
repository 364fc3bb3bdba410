//! Commitments: guarantees and reservations, added up at every level, so that no level commits more
//! than it may hold.
//!
//! A group is *committed* to the greater of two numbers: what is guaranteed to it, and what is
//! reserved in it plus what the groups below it are committed to. Nothing here is charged and
//! nothing is reclaimed; it is arithmetic under one lock, which is released before anything is
//! charged.

use std::collections::HashMap;
use std::sync::Arc;

use umemcg_base::{Rank, RankedMutex};
use umemcg_group::Group;

/// A commitment would exceed what a level may hold.
#[derive(Debug, Clone)]
pub(crate) struct Overcommitted {
    /// The lowest level with too little left.
    pub(crate) group: Arc<Group>,
    /// The bytes that it could still commit.
    pub(crate) available_bytes: u64,
}

/// One group's commitments, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Level {
    guaranteed: u64,
    reserved: u64,
    /// The bytes that the groups directly below are committed to.
    committed_below: u64,
    /// The bytes guaranteed to those groups and the groups below them.
    guaranteed_below: u64,
}

impl Level {
    fn committed(self) -> u64 {
        self.guaranteed.max(self.reserved + self.committed_below)
    }

    /// Returns the bytes that pressure from above must leave here, so that the guarantees here and
    /// below hold.
    fn guaranteed_here(self) -> u64 {
        self.guaranteed.max(self.guaranteed_below)
    }
}

/// The kind of a commitment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Protected from others, as far as it is used.
    Guarantee,
    /// Held.
    Reservation,
}

/// All commitments of an engine.
#[derive(Debug)]
pub(crate) struct Commitments {
    /// By the group's serial; groups without any have no entry. Before the limit locks of groups.
    levels: RankedMutex<HashMap<u64, Level>>,
}

impl Default for Commitments {
    fn default() -> Self {
        Self { levels: RankedMutex::new(Rank::Commitments, HashMap::new()) }
    }
}

impl Commitments {
    /// Commits `bytes` more.
    ///
    /// # Errors
    /// [`Overcommitted`]; nothing is committed then.
    pub(crate) fn commit(&self, group: &Arc<Group>, kind: Kind, bytes: u64) -> Result<(), Overcommitted> {
        let mut levels = self.levels.lock();
        let changed = climb(&levels, group, kind, |committed| committed.saturating_add(bytes));
        let too_much = changed.iter().find(|(at, before, now)| {
            now.committed() > before.committed() && now.committed() > at.max_bytes()
        });
        if let Some((at, before, _)) = too_much {
            let available_bytes = at.max_bytes().saturating_sub(before.committed());
            return Err(Overcommitted { group: Arc::clone(at), available_bytes });
        }
        store(&mut levels, &changed);
        Ok(())
    }

    /// Releases a commitment.
    pub(crate) fn release(&self, group: &Arc<Group>, kind: Kind, bytes: u64) {
        let mut levels = self.levels.lock();
        let changed = climb(&levels, group, kind, |committed| {
            committed.checked_sub(bytes).expect("what is withdrawn was committed")
        });
        store(&mut levels, &changed);
    }

    /// Returns the number of levels with any commitment.
    #[cfg(test)]
    fn nr_levels(&self) -> usize {
        self.levels.lock().len()
    }
}

/// Returns the levels from `group` to the root as they are and as they become.
fn climb<'g>(
    levels: &HashMap<u64, Level>,
    group: &'g Arc<Group>,
    kind: Kind,
    change: impl FnOnce(u64) -> u64,
) -> Vec<(&'g Arc<Group>, Level, Level)> {
    let mut change = Some(change);
    let mut changed: Vec<(&Arc<Group>, Level, Level)> = Vec::new();
    for at in std::iter::successors(Some(group), |at| at.parent()) {
        let before = levels.get(&at.id()).copied().unwrap_or_default();
        let mut now = before;
        if let Some(change) = change.take() {
            let committed = match kind {
                Kind::Guarantee => &mut now.guaranteed,
                Kind::Reservation => &mut now.reserved,
            };
            *committed = change(*committed);
        }
        if let Some((_, child_before, child_now)) = changed.last() {
            let moved = |sum: u64, before: u64, now: u64| (sum - before).saturating_add(now);
            now.committed_below = moved(now.committed_below, child_before.committed(), child_now.committed());
            now.guaranteed_below =
                moved(now.guaranteed_below, child_before.guaranteed_here(), child_now.guaranteed_here());
        }
        changed.push((at, before, now));
    }
    changed
}

fn store(levels: &mut HashMap<u64, Level>, changed: &[(&Arc<Group>, Level, Level)]) {
    for (group, before, now) in changed {
        if *now == Level::default() {
            levels.remove(&group.id());
        } else {
            levels.insert(group.id(), *now);
        }
        if now.guaranteed_here() != before.guaranteed_here() && !group.is_root() {
            group.set_guaranteed(now.guaranteed_here());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use umemcg_group::GroupTree;

    #[test]
    fn a_level_is_committed_to_its_guarantee_or_the_sum_below() {
        const UNIT: u64 = 1 << 16;
        let tree = GroupTree::new(100 * UNIT);
        let child = |of: &Arc<Group>, name: &str| tree.create(of, name.as_ref()).unwrap();
        let a = child(tree.root(), "a");
        let (b, c) = (child(&a, "b"), child(&a, "c"));
        a.set_max(100 * UNIT);
        let all = Commitments::default();
        let commit = |group: &Arc<Group>, kind, units: u64| {
            all.commit(group, kind, units * UNIT)
                .map_err(|refused| (refused.group, refused.available_bytes / UNIT))
        };
        commit(&b, Kind::Guarantee, 30).unwrap();
        commit(&c, Kind::Reservation, 50).unwrap();
        assert_eq!([&a, &b, &c].map(|group| group.guaranteed_bytes() / UNIT), [30, 30, 0]);
        // Within what b is guaranteed, a reservation takes nothing more.
        commit(&b, Kind::Reservation, 30).unwrap();
        let (level, available) = commit(&c, Kind::Reservation, 21).unwrap_err();
        assert!(Arc::ptr_eq(&level, &a) && available == 20);
        // Within what a is guaranteed altogether, those below take nothing more from the root.
        commit(&a, Kind::Guarantee, 100).unwrap();
        commit(&c, Kind::Reservation, 20).unwrap();
        assert!(commit(tree.root(), Kind::Reservation, 1).is_err());
        a.set_max(1000 * UNIT);
        let (level, available) = commit(&c, Kind::Reservation, 1).unwrap_err();
        assert!(level.is_root() && available == 0);
        let committed = [
            (&a, Kind::Guarantee, 100),
            (&b, Kind::Guarantee, 30),
            (&b, Kind::Reservation, 30),
            (&c, Kind::Reservation, 70),
        ];
        for (group, kind, units) in committed {
            all.release(group, kind, units * UNIT);
        }
        assert_eq!((all.nr_levels(), a.guaranteed_bytes(), b.guaranteed_bytes()), (0, 0, 0));
    }
}
