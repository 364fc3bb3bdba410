//! Commitments: the guarantees of groups and the bytes held by accounts, added up at every level,
//! so that no level commits more than its limit.
//!
//! A group is *committed* to the greater of two numbers: its guarantee, and the bytes of its
//! accounts plus the commitments of its children. Only guarantees are kept here; the bytes of
//! accounts are the statistic [`Reserved`](StatItem::Reserved). Nothing is charged and nothing is
//! reclaimed: it is arithmetic.
//!
//! Without guarantees, limits alone are enough, and a growing account reads one flag. A thread
//! raising the flag and a concurrently growing account see each other (see [`Attention`]): the
//! account adds its bytes and then reads the flag, a guarantee raises the flag and then reads the
//! bytes.
//!
//! With guarantees, a growing account first adds up upper bounds, without a lock: the bytes held in
//! a level and the guarantees below it. The growth is fine if these fit, or are within the level's
//! own guarantee. If not, the levels are added up exactly, under the lock, in time proportional to
//! the guarantees of the engine.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use umemcg_base::{Rank, RankedMutex};
use umemcg_group::{Attention, ExtensionSlot, Group, StatItem, apply_pending, pending_bytes_max};

/// A commitment would exceed the limit of a level.
#[derive(Debug, Clone)]
pub(crate) struct Overcommitted {
    /// The lowest level with too little left.
    pub(crate) group: Arc<Group>,
    /// The bytes it could still commit.
    pub(crate) available_bytes: u64,
}

/// The guarantees of a group and its descendants, in bytes. Written under the lock of the table.
#[derive(Debug, Default)]
struct Share {
    own: AtomicU64,
    /// The sum over the children. A child counts as the greater of its own guarantee and the sum
    /// below it.
    below: AtomicU64,
}

impl Share {
    fn of(group: &Group) -> &Self {
        group.extension(ExtensionSlot::Engine, Self::default)
    }

    /// Returns the bytes guaranteed to the group itself, and to its descendants.
    fn read(group: &Group) -> (u64, u64) {
        let share: Option<&Self> = group.extension_if_present(ExtensionSlot::Engine);
        share.map_or((0, 0), |share| (share.own.load(Relaxed), share.below.load(Relaxed)))
    }
}

/// One group with a guarantee, or above one.
#[derive(Debug)]
struct Level {
    group: Arc<Group>,
    /// Levels above it.
    depth: usize,
}

/// A change of a group's commitment, in bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Change {
    /// An account will hold this much more.
    Held(u64),
    /// An account holds this much more, already counted.
    HeldAndCounted(u64),
    /// This much more is to be guaranteed.
    Guaranteed(u64),
}

/// All commitments of an engine.
#[derive(Debug)]
pub(crate) struct Commitments {
    /// Raised for each guarantee.
    guarantees: Attention,
    /// By the group's serial. Before the limit locks of groups, and the stocks.
    levels: RankedMutex<HashMap<u64, Level>>,
}

impl Default for Commitments {
    fn default() -> Self {
        let levels = RankedMutex::new(Rank::Commitments, HashMap::new());
        Self { guarantees: Attention::default(), levels }
    }
}

impl Commitments {
    /// Returns whether anything is guaranteed, after a growth.
    #[inline]
    pub(crate) fn is_any(&self) -> bool {
        self.guarantees.is_raised()
    }

    /// Guarantees `bytes` more.
    ///
    /// # Errors
    /// [`Overcommitted`]; nothing is guaranteed then.
    pub(crate) fn guarantee(&self, group: &Arc<Group>, bytes: u64) -> Result<(), Overcommitted> {
        let mut levels = self.levels.lock();
        let (before, _) = Share::read(group);
        let now = before.saturating_add(bytes);
        // Accounts leave the room from here on; growth that missed this change is counted. The
        // group's own accounts may use it once it is certain.
        change_sums_above(group, before, now);
        self.guarantees.raise();
        let result = check_exactly(&levels, group, Change::Guaranteed(bytes));
        if result.is_ok() {
            Share::of(group).own.store(now, Relaxed);
            settle(&mut levels, group);
        } else {
            change_sums_above(group, now, before);
            self.guarantees.lower();
        }
        result
    }

    /// Ends a guarantee.
    pub(crate) fn end_guarantee(&self, group: &Arc<Group>, bytes: u64) {
        let mut levels = self.levels.lock();
        let (before, _) = Share::read(group);
        let now = before.checked_sub(bytes).expect("what ends was guaranteed");
        Share::of(group).own.store(now, Relaxed);
        change_sums_above(group, before, now);
        settle(&mut levels, group);
        self.guarantees.lower();
    }

    /// Checks that accounts leave room for the guarantees of other groups.
    ///
    /// # Errors
    /// [`Overcommitted`] if the change brings a level above its limit.
    pub(crate) fn check(&self, group: &Arc<Group>, change: Change) -> Result<(), Overcommitted> {
        if fits_roughly(group, change) {
            return Ok(());
        }
        check_exactly(&self.levels.lock(), group, change)
    }

    /// Returns the number of levels with any guarantee, here or below.
    #[cfg(test)]
    fn nr_levels(&self) -> usize {
        self.levels.lock().len()
    }
}

fn levels_above(group: &Arc<Group>) -> impl Iterator<Item = &Arc<Group>> {
    std::iter::successors(Some(group), |at| at.parent())
}

/// Returns the bytes held by accounts in a group and below. Accounts of a removed group are counted
/// in its parent.
fn held_bytes(group: &Group) -> u64 {
    if group.is_dead() { 0 } else { group.stat_total_applied(StatItem::Reserved).max(0) as u64 }
}

/// Returns whether the change fits by upper bounds.
fn fits_roughly(group: &Arc<Group>, change: Change) -> bool {
    let more = match change {
        Change::Held(bytes) => bytes,
        Change::HeldAndCounted(_) => 0,
        Change::Guaranteed(_) => return false,
    };
    let pending = pending_bytes_max();
    for at in levels_above(group) {
        let (own, below) = Share::read(at);
        let inside = held_bytes(at).saturating_add(pending).saturating_add(more).saturating_add(below);
        // Nothing changes above this level, except for a removed group: its accounts' bytes are the
        // parent's.
        if inside <= own && !at.is_dead() {
            return true;
        }
        if inside > at.max_bytes() {
            return false;
        }
    }
    true
}

/// Checks a change against the commitments of all levels.
fn check_exactly(
    levels: &HashMap<u64, Level>,
    group: &Arc<Group>,
    change: Change,
) -> Result<(), Overcommitted> {
    apply_pending();
    let path: Vec<&Arc<Group>> = levels_above(group).collect();
    let mut beside = committed_beside(levels, &path);
    // The commitment of the level below, less the bytes held there.
    let (mut extra_before, mut extra_now) = (0, 0);
    for (at, is_first) in path.iter().zip(std::iter::once(true).chain(std::iter::repeat(false))) {
        let (held_before, held_now) = match change {
            Change::Held(bytes) if !at.is_dead() => (held_bytes(at), held_bytes(at).saturating_add(bytes)),
            Change::HeldAndCounted(bytes) => (held_bytes(at).saturating_sub(bytes), held_bytes(at)),
            Change::Held(_) | Change::Guaranteed(_) => (held_bytes(at), held_bytes(at)),
        };
        let (own_before, _) = Share::read(at);
        let own_now = match change {
            Change::Guaranteed(bytes) if is_first => own_before.saturating_add(bytes),
            _ => own_before,
        };
        let beside = beside.remove(&at.id()).unwrap_or(0);
        let committed =
            |own: u64, held: u64, extra: u64| own.max(held.saturating_add(beside).saturating_add(extra));
        let before = committed(own_before, held_before, extra_before);
        let now = committed(own_now, held_now, extra_now);
        if now > before && now > at.max_bytes() {
            let available_bytes = at.max_bytes().saturating_sub(before);
            return Err(Overcommitted { group: Arc::clone(at), available_bytes });
        }
        (extra_before, extra_now) = (before - held_before, now - held_now);
    }
    Ok(())
}

/// Returns, for each level, the sum over its children of the child's commitment less the bytes held
/// there, without the groups of the path.
fn committed_beside(levels: &HashMap<u64, Level>, path: &[&Arc<Group>]) -> HashMap<u64, u64> {
    let mut order: Vec<&Level> = levels.values().collect();
    order.sort_unstable_by_key(|level| std::cmp::Reverse(level.depth));
    let mut beside: HashMap<u64, u64> = HashMap::new();
    for Level { group, .. } in order {
        let Some(parent) = group.parent() else { continue };
        if path.iter().any(|at| Arc::ptr_eq(at, group)) {
            continue;
        }
        let held = held_bytes(group);
        let inside = held.saturating_add(beside.get(&group.id()).copied().unwrap_or(0));
        let extra = Share::read(group).0.max(inside) - held;
        let sum = beside.entry(parent.id()).or_default();
        *sum = sum.saturating_add(extra);
    }
    beside
}

/// Changes the sums above a group whose own guarantee changes. The caller holds the lock.
fn change_sums_above(group: &Arc<Group>, own_before: u64, own_now: u64) {
    let (_, below) = Share::read(group);
    // The contribution of the level below, before and now.
    let (mut before, mut now) = (own_before.max(below), own_now.max(below));
    for at in levels_above(group).skip(1) {
        let (own, below_before) = Share::read(at);
        let below = (below_before - before).saturating_add(now);
        Share::of(at).below.store(below, Relaxed);
        (before, now) = (own.max(below_before), own.max(below));
    }
}

/// Sets the protection of a group and its ancestors to their guarantees, and keeps the table of
/// levels with a guarantee, here or below.
fn settle(levels: &mut HashMap<u64, Level>, group: &Arc<Group>) {
    let nr_levels = levels_above(group).count();
    for (at, depth) in levels_above(group).zip((0..nr_levels).rev()) {
        let (own, below) = Share::read(at);
        let bytes = own.max(below);
        if bytes == 0 {
            levels.remove(&at.id());
        } else {
            levels.entry(at.id()).or_insert_with(|| Level { group: Arc::clone(at), depth });
        }
        if bytes != at.guaranteed_bytes() && !at.is_root() {
            at.set_guaranteed(bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use umemcg_group::{GroupTree, Holding};

    const UNIT: u64 = 1 << 16;

    struct Tree {
        tree: Arc<GroupTree>,
        commitments: Commitments,
    }

    impl Tree {
        fn child(&self, of: &Arc<Group>, name: &str) -> Arc<Group> {
            self.tree.create(of, name.as_ref()).unwrap()
        }

        /// Guarantees some units, or returns the level at fault and its remaining units.
        fn guarantee(&self, group: &Arc<Group>, units: u64) -> Result<(), (u64, u64)> {
            let result = self.commitments.guarantee(group, units * UNIT);
            result.map_err(|refused| (refused.group.id(), refused.available_bytes / UNIT))
        }

        /// Holds some units if they leave room.
        fn hold(&self, held: &Holding, units: u64) -> Result<(), (u64, u64)> {
            let check = |change| {
                let result = self.commitments.check(held.group(), change);
                result.map_err(|refused: Overcommitted| (refused.group.id(), refused.available_bytes / UNIT))
            };
            check(Change::Held(units * UNIT))?;
            held.grow_forced(units * UNIT);
            check(Change::HeldAndCounted(units * UNIT))
        }
    }

    #[test]
    fn a_level_is_committed_to_its_guarantee_or_the_sum_below() {
        let tree = Tree { tree: GroupTree::new(100 * UNIT), commitments: Commitments::default() };
        let root = Arc::clone(tree.tree.root());
        let a = tree.child(&root, "a");
        let (b, c) = (tree.child(&a, "b"), tree.child(&a, "c"));
        a.store_max(100 * UNIT);
        let [of_b, of_c, of_root] = [&b, &c, &root].map(|group| Holding::new(Arc::clone(group)));
        tree.guarantee(&b, 30).unwrap();
        tree.hold(&of_c, 50).unwrap();
        assert_eq!([&a, &b, &c].map(|group| group.guaranteed_bytes() / UNIT), [30, 30, 0]);
        // Within b's guarantee, an account takes nothing more.
        tree.hold(&of_b, 30).unwrap();
        assert_eq!(tree.hold(&of_c, 21), Err((a.id(), 20)));
        // Within a's whole guarantee, the groups below take nothing more from the root.
        tree.guarantee(&a, 100).unwrap();
        tree.hold(&of_c, 20).unwrap();
        assert_eq!(tree.hold(&of_root, 1), Err((root.id(), 0)));
        a.store_max(1000 * UNIT);
        assert_eq!(tree.hold(&of_c, 1), Err((root.id(), 0)));
        assert_eq!(tree.guarantee(&c, 71), Err((root.id(), 0)));
        tree.guarantee(&c, 70).unwrap();
        for (group, units) in [(&c, 70), (&a, 100), (&b, 30)] {
            tree.commitments.end_guarantee(group, units * UNIT);
        }
        assert_eq!((tree.commitments.nr_levels(), a.guaranteed_bytes(), b.guaranteed_bytes()), (0, 0, 0));
        assert!(!tree.commitments.is_any());
    }

    #[test]
    fn accounts_of_a_removed_group_leave_what_others_are_guaranteed() {
        let tree = Tree { tree: GroupTree::new(100 * UNIT), commitments: Commitments::default() };
        let root = Arc::clone(tree.tree.root());
        let (a, b) = (tree.child(&root, "a"), tree.child(&root, "b"));
        let of_a = Holding::new(Arc::clone(&a));
        tree.guarantee(&a, 30).unwrap();
        tree.guarantee(&b, 50).unwrap();
        tree.tree.remove(&a, |_, _| {}).unwrap();
        // The guarantee of `a` stays until it ends.
        tree.hold(&of_a, 20).unwrap();
        assert_eq!(tree.hold(&of_a, 1), Err((root.id(), 0)));
        tree.commitments.end_guarantee(&a, 30 * UNIT);
        tree.hold(&of_a, 30).unwrap();
        assert_eq!(tree.hold(&of_a, 1), Err((root.id(), 0)));
        tree.commitments.end_guarantee(&b, 50 * UNIT);
    }
}
