//! Two rounds over a subtree at one priority: first those in excess of a soft limit, then everybody (mail soft-limit-rework).
//!
//! The first round is made only if somebody below the root is in excess, which one load says; if the root itself is, everybody's turn
//! has come anyway. A walker whose first round hands out nobody, because others in the same walk were faster, makes it once more.
//! Then the question is whether the second follows at the same priority:
//!
//! | the first round | then |
//! |---|---|
//! | freed anything | no |
//! | had nothing to look at | yes |
//! | saw pages that are in use | no: they are looked at harder first, down to the last priority |
//! | saw nothing but dirty pages | once no, so that they can be written; then yes |
//!
//! The last two lines are not the mail's, whose second round follows only when the first looked at nothing: a group in excess whose
//! pages cannot be written would keep a reclaim from all others, and a charge would fail for it.

use std::sync::Arc;

use umemcg_group::Group;

use crate::reclaim::{Pass, Progress, Reclaimer};
use crate::shield::Shield;
use crate::walk::{SharedWalk, is_eligible};

/// Whose turn it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Round {
    /// Groups over their soft limit, and those below such a group.
    InExcess,
    /// All.
    Everybody,
}

/// How often a first round is made that hands out nobody.
const FIRST_ROUNDS_MAX: u32 = 2;
/// First rounds with nothing but dirty pages in them, one after the other, before everybody's turn comes.
const DIRTY_ROUNDS_MAX: u32 = 2;

/// What a reclaim remembers of its first rounds from priority to priority.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Patience {
    nr_dirty_rounds: u32,
    /// Nothing has been freed, and it will not be tried harder.
    pub(crate) is_last_chance: bool,
    /// Everybody is asked from the beginning.
    ignores_soft_limits: bool,
}

impl Patience {
    /// For a reclaim that has waited for dirty pages before, to no avail.
    pub(crate) fn used_up() -> Self {
        Self { nr_dirty_rounds: DIRTY_ROUNDS_MAX, ..Self::default() }
    }

    /// For a reclaim that does not care who is in excess.
    pub(crate) fn ignoring_soft_limits() -> Self {
        Self { ignores_soft_limits: true, ..Self::default() }
    }

    /// Whether everybody's turn has come after a first round that brought this.
    fn is_over(&mut self, first: &Progress) -> bool {
        if first.pages() > 0 || first.promised_bytes > 0 {
            self.nr_dirty_rounds = 0;
            return false;
        }
        if first.scanned > 0 && first.dirty == first.scanned {
            self.nr_dirty_rounds += 1;
        }
        let saw_nothing = first.scanned == 0 && first.slab_scanned == 0;
        saw_nothing || self.is_last_chance || self.nr_dirty_rounds >= DIRTY_ROUNDS_MAX
    }
}

impl Reclaimer {
    /// Shrinks groups of a subtree at the priority of `pass` in two rounds, until `enough` says so of what came of it so far. Also
    /// says whether the rounds came to their end instead.
    #[doc(alias = "shrink_zone")]
    pub(crate) fn shrink_in_rounds(
        &self,
        root: &Arc<Group>,
        pass: &Pass,
        shield: &mut Shield<'_>,
        patience: &mut Patience,
        enough: &dyn Fn(&Progress) -> bool,
    ) -> (Progress, bool) {
        let mut progress = Progress::default();
        #[cfg(feature = "baseline")]
        if crate::baseline::takes_largest_excess_first() {
            progress.add(self.shrink_largest_excess(root, pass, shield));
            self.shrink_round(root, pass, Round::Everybody, shield, &mut progress, &|_| false);
            return (progress, !enough(&progress));
        }
        for _ in 0..FIRST_ROUNDS_MAX {
            if patience.ignores_soft_limits || !has_first_round(root) {
                break;
            }
            match self.shrink_round(root, pass, Round::InExcess, shield, &mut progress, enough) {
                Ended::Enough => return (progress, false),
                Ended::Over { nr_visited: 0 } => {}
                Ended::Over { .. } if patience.is_over(&progress) => break,
                Ended::Over { .. } => return (progress, true),
            }
        }
        let ended = self.shrink_round(root, pass, Round::Everybody, shield, &mut progress, enough);
        (progress, !matches!(ended, Ended::Enough))
    }

    fn shrink_round(
        &self,
        root: &Arc<Group>,
        pass: &Pass,
        round: Round,
        shield: &mut Shield<'_>,
        progress: &mut Progress,
        enough: &dyn Fn(&Progress) -> bool,
    ) -> Ended {
        let mut nr_visited = 0;
        for group in SharedWalk::new(root, self.nr_nodes(), round) {
            nr_visited += 1;
            let goal = pass.goal.saturating_sub(progress.pages());
            progress.add(self.shrink_group(root, &group, &Pass { goal, round, ..*pass }, shield));
            if enough(progress) {
                return Ended::Enough;
            }
        }
        Ended::Over { nr_visited }
    }
}

/// How a round ended.
#[derive(Debug, Clone, Copy)]
enum Ended {
    /// There is enough.
    Enough,
    /// Nobody was left in the walk.
    Over { nr_visited: u64 },
}

/// Whether there is anybody in excess to visit before all others.
#[doc(alias = "mem_cgroup_should_soft_reclaim")]
fn has_first_round(root: &Arc<Group>) -> bool {
    #[cfg(feature = "baseline")]
    if crate::baseline::skips_no_subtree() {
        return true;
    }
    root.nr_children_in_excess() > 0 && !is_eligible(root, root)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reclaim::Reason;
    use crate::shrinker::{Count, Registration, Scan, Scanned, ShrinkTarget, Shrinker, Usage};
    use parking_lot::Mutex;
    use umemcg_arena::Arena;
    use umemcg_group::{Charge, GroupTree, UNLIMITED};

    const POOL: u64 = 16 << 20;

    /// Gives a page for each object, and notes of whom.
    #[derive(Debug, Default)]
    struct Plenty(Mutex<Vec<u64>>);

    impl Shrinker for Plenty {
        fn name(&self) -> String {
            "plenty".into()
        }
        fn count(&self, _target: &ShrinkTarget<'_>) -> Count {
            Count::Objects(10_000)
        }
        fn scan(&self, target: &ShrinkTarget<'_>, nr: u64) -> Scan {
            self.0.lock().push(target.group.id());
            Scan::Done(Scanned { scanned: nr, freed_bytes: nr * 4096, promised_bytes: 0 })
        }
        fn usage(&self, _target: &ShrinkTarget<'_>) -> Usage {
            Usage::default()
        }
    }

    /// A pool with groups that have plenty.
    struct Pool {
        tree: Arc<GroupTree>,
        reclaimer: Reclaimer,
        plenty: Arc<Plenty>,
        shrinker: u32,
        charges: Mutex<Vec<Charge>>,
        _registered: Registration,
    }

    impl Pool {
        fn new() -> Self {
            let tree = GroupTree::new(POOL);
            let reclaimer = Reclaimer::new(Arena::new(POOL, 1).unwrap(), Arc::clone(&tree), 1).unwrap();
            let id = reclaimer.reserve_shrinker();
            let (plenty, shrinker) = (Arc::new(Plenty::default()), id.get());
            let _registered = reclaimer.register_shrinker(id, Arc::<Plenty>::clone(&plenty));
            Self { tree, reclaimer, plenty, shrinker, charges: Mutex::default(), _registered }
        }

        fn group(&self, parent: &Arc<Group>, name: &str, soft_limit: u64) -> Arc<Group> {
            let group = self.tree.create(parent, name.as_ref()).unwrap();
            self.charges.lock().push(group.charge_forced(4096));
            self.reclaimer.note_objects(&group, 0, self.shrinker);
            group.set_soft_limit(soft_limit);
            group
        }

        /// Who gives to a reclaim of `root`, each once.
        fn givers(&self, root: &Arc<Group>) -> Vec<u64> {
            self.plenty.0.lock().clear();
            // More than one group gives.
            self.reclaimer.reclaim(root, 100_000, Reason::Direct, &|| false);
            let mut givers = std::mem::take(&mut *self.plenty.0.lock());
            givers.sort_unstable();
            givers.dedup();
            givers
        }

        /// Who gives to a reclaim of `root` that wants little.
        fn first_giver(&self, root: &Arc<Group>) -> u64 {
            self.plenty.0.lock().clear();
            self.reclaimer.reclaim(root, 1, Reason::Direct, &|| false);
            self.plenty.0.lock()[0]
        }
    }

    /// The mail's example: A is over its soft limit, and B below it hits its hard one.
    #[test]
    fn excess_above_the_root_of_a_reclaim_makes_nobody_eligible() {
        let pool = Pool::new();
        let root = Arc::clone(pool.tree.root());
        let outsider = pool.group(&root, "outsider", UNLIMITED);
        let a = pool.group(&root, "A", 0);
        let b = pool.group(&a, "B", UNLIMITED);
        let [c, d] = ["C", "D"].map(|name| pool.group(&b, name, UNLIMITED));
        let all = |groups: &[&Arc<Group>]| groups.iter().map(|group| group.id()).collect::<Vec<_>>();
        assert!([&b, &c, &d].iter().all(|group| !is_eligible(&b, group) && is_eligible(&a, group)));
        assert_eq!(pool.givers(&b), all(&[&b, &c, &d]), "A's excess is none of their business");
        // From above, all of A's subtree goes before all others.
        assert_eq!(pool.givers(&root), all(&[&a, &b, &c, &d]));
        // C on its own.
        c.set_soft_limit(0);
        assert_eq!(pool.givers(&b), all(&[&c]));
        assert_eq!(pool.givers(&root), all(&[&a, &b, &c, &d]));
        a.set_soft_limit(UNLIMITED);
        assert_eq!(pool.givers(&root), all(&[&c]));
        // The root of the reclaim itself: everybody.
        b.set_soft_limit(0);
        assert_eq!(pool.givers(&b), all(&[&b, &c, &d]));
        [&b, &c].iter().for_each(|group| group.set_soft_limit(UNLIMITED));
        assert_eq!(pool.givers(&root), all(&[&outsider, &a, &b, &c, &d]));
    }

    #[test]
    fn a_walk_that_others_left_at_its_end_is_made_once_more() {
        let pool = Pool::new();
        let root = Arc::clone(pool.tree.root());
        let _outsider = pool.group(&root, "outsider", UNLIMITED);
        let a = pool.group(&root, "A", 0);
        assert_eq!(SharedWalk::new(&root, 1, Round::InExcess).next().unwrap().id(), a.id());
        assert!(
            SharedWalk::new(&root, 1, Round::InExcess).next().is_none(),
            "where the other left it there is nobody"
        );
        // Each of these leaves the walk at its only group.
        for _ in 0..3 {
            assert_eq!(pool.first_giver(&root), a.id());
        }
    }

    #[test]
    fn a_group_that_is_no_longer_in_excess_is_found_out_by_the_walk() {
        let pool = Pool::new();
        let root = Arc::clone(pool.tree.root());
        let [a, b] = ["A", "B"].map(|name| pool.group(&root, name, 4096));
        let more = [&a, &b].map(|group| group.charge_forced(1));
        assert_eq!(root.nr_children_in_excess(), 2);
        // Below the limit by less than the lag.
        drop(more);
        root.drain_stocks();
        assert!(a.is_in_excess() && b.is_in_excess() && a.excess_bytes() == 0);
        assert_eq!(pool.givers(&root), [a.id(), b.id()]);
        assert_eq!(root.nr_children_in_excess(), 0);
    }

    #[test]
    fn who_empties_a_group_asks_everybody() {
        let pool = Pool::new();
        let root = Arc::clone(pool.tree.root());
        let [_a, b] = [0, UNLIMITED].map(|limit| pool.group(&root, &limit.to_string(), limit));
        assert!(!pool.givers(&root).contains(&b.id()));
        pool.plenty.0.lock().clear();
        pool.reclaimer.reclaim_from_all(&root, 100_000, &|| false);
        assert!(pool.plenty.0.lock().contains(&b.id()));
    }

    fn seen(scanned: u64, dirty: u64, reclaimed: u64) -> Progress {
        Progress { scanned, dirty, reclaimed, ..Progress::default() }
    }

    #[test]
    fn everybodys_turn_comes_when_there_was_nothing_to_look_at() {
        assert!(Patience::default().is_over(&seen(0, 0, 0)));
        assert!(!Patience::default().is_over(&Progress { slab_scanned: 1, ..Progress::default() }));
        assert!(!Patience::default().is_over(&Progress { promised_bytes: 1, ..Progress::default() }));
    }

    #[test]
    fn pages_in_use_keep_everybody_waiting_until_the_last_priority() {
        let mut patience = Patience::default();
        assert!((0..100).all(|_| !patience.is_over(&seen(32, 31, 0))));
        patience.is_last_chance = true;
        assert!(patience.is_over(&seen(32, 31, 0)) && !patience.is_over(&seen(32, 0, 1)));
    }

    #[test]
    fn dirty_pages_get_one_chance_to_be_written() {
        let mut patience = Patience::default();
        assert!(!patience.is_over(&seen(32, 32, 0)));
        assert!(!patience.is_over(&seen(32, 0, 32)), "they were");
        assert!(!patience.is_over(&seen(32, 32, 0)) && patience.is_over(&seen(64, 64, 0)));
        assert!(Patience::used_up().is_over(&seen(32, 32, 0)));
    }
}
