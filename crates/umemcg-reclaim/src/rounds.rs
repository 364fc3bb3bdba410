//! Two rounds over a subtree at one priority: first the groups in excess of a soft limit, then all
//! groups (mail soft-limit-rework).
//!
//! The first round is made only if a group below the root is in excess, found with one load. If the
//! root itself is in excess, all groups are eligible anyway. A walker whose first round hands out
//! no group, because others in the same walk were faster, makes it once more. This table shows
//! whether the second round follows at the same priority:
//!
//! | the first round | then |
//! |---|---|
//! | freed anything | no |
//! | had nothing to look at | yes |
//! | saw pages that are in use | no: they are looked at harder first, down to the last priority |
//! | saw nothing but dirty pages | it is made again when some have been written (a worker backs off meanwhile); yes when nothing is being written |
//!
//! The last two lines differ from the mail, whose second round follows only when the first scanned
//! nothing. Under the mail's rule, the dirty pages of a group in excess are scanned at every
//! priority down to the last, and found dirty each time: this made a streaming writer 2.3 times as
//! expensive. And when they cannot be written at all, reclaim fails beside the clean pages of all
//! other groups.

use std::sync::Arc;

use umemcg_base::sync::Instant;
use umemcg_group::Group;

use crate::mechanism;
use crate::protection::ReclaimProtection;
use crate::reclaimer::Reclaimer;
use crate::scan_control::{Pass, Progress, Round, WRITEBACK_WAIT};
use crate::victim::{IN_EXCESS_PAGES_MAX, Victim};
use crate::walk::{SharedWalk, excess_pages};

/// The number of first rounds allowed to hand out no group.
const FIRST_ROUNDS_MAX: u32 = 2;
/// First rounds repeated in one reclaim after finding only dirty pages.
const DIRTY_ROUNDS_MAX: u32 = 8;
/// The number of [`WRITEBACK_WAIT`] periods without any write before the second round.
const WAITS_MAX: u32 = 5;

/// Divisor for the part of its excess given by a group in one step.
const AHEAD_SHARE: u64 = 8;

/// The step after a first round without enough progress.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FollowUp {
    /// The next priority; no other group is asked.
    NextPriority,
    /// The same round again, as soon as something has been written.
    AfterWriteback,
    /// The second round.
    SecondRound,
}

/// A reclaim's record of its first rounds, kept from priority to priority.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct FirstRounds {
    nr_dirty_rounds: u32,
    /// The caller itself waits for dirty pages, and has not waited in vain.
    waits_elsewhere: bool,
    /// The caller waits for nothing: dirty pages stay, and other groups are asked.
    pub(crate) never_waits: bool,
    /// Deadline of the last wait for leaving bytes.
    pub(crate) leaving_until: Option<Instant>,
    /// Nothing has been freed, and there is no lower priority to try.
    pub(crate) is_last_chance: bool,
    /// All groups are asked from the beginning.
    ignores_soft_limits: bool,
}

impl FirstRounds {
    /// Creates the rounds of a reclaim without regard to soft limits.
    pub(crate) fn ignoring_soft_limits() -> Self {
        Self { ignores_soft_limits: true, ..Self::default() }
    }

    /// Creates the rounds of a worker. A worker backs off instead of waiting here, and gives up on
    /// dirty pages after backing off in vain.
    pub(crate) fn of_worker(has_backed_off_in_vain: bool) -> Self {
        let nr_dirty_rounds = if has_backed_off_in_vain { DIRTY_ROUNDS_MAX } else { 0 };
        Self { nr_dirty_rounds, waits_elsewhere: !has_backed_off_in_vain, ..Self::default() }
    }

    /// Creates the rounds of a caller not allowed to wait.
    pub(crate) fn without_waiting() -> Self {
        Self { never_waits: true, ..Self::default() }
    }

    /// Creates the rounds of a caller waiting for leaving bytes until `end` at the latest, however
    /// often it reclaims.
    pub(crate) fn with_leaving_until(end: Instant) -> Self {
        Self { leaving_until: Some(end), ..Self::default() }
    }

    /// Decides the step after a first round with this progress.
    fn follow_up(&mut self, first: &Progress) -> FollowUp {
        if let Some(follows) = mechanism::follows_first_round(first) {
            return if follows { FollowUp::SecondRound } else { FollowUp::NextPriority };
        }
        if first.pages() > 0 || first.releasing_bytes > 0 {
            self.nr_dirty_rounds = 0;
            return FollowUp::NextPriority;
        }
        // A worker backs off before it tries for the last time.
        if first.scanned > 0 && first.dirty == first.scanned && (self.waits_elsewhere || !self.is_last_chance)
        {
            self.nr_dirty_rounds += 1;
            return match self.nr_dirty_rounds {
                _ if self.waits_elsewhere => FollowUp::NextPriority,
                _ if self.never_waits => FollowUp::SecondRound,
                1..=DIRTY_ROUNDS_MAX => FollowUp::AfterWriteback,
                _ => FollowUp::SecondRound,
            };
        }
        let saw_nothing = first.scanned == 0 && first.slab_scanned == 0;
        if saw_nothing || self.is_last_chance { FollowUp::SecondRound } else { FollowUp::NextPriority }
    }
}

/// Shrinks groups of a subtree at the priority of `pass` in two rounds, until `enough` returns
/// `true` for the progress so far. Also returns whether the rounds ended without that.
#[doc(alias = "shrink_zone")]
pub(crate) fn shrink_in_rounds(
    reclaimer: &Reclaimer,
    root: &Arc<Group>,
    pass: &Pass,
    protection: &mut ReclaimProtection<'_>,
    first_rounds: &mut FirstRounds,
    enough: &dyn Fn(&Progress) -> bool,
) -> (Progress, bool) {
    if let Some(result) = mechanism::rounds::shrink_otherwise(reclaimer, root, pass, protection, enough) {
        return result;
    }
    let mut progress = Progress::default();
    let mut nr_empty_rounds = 0;
    while !first_rounds.ignores_soft_limits && has_first_round(root) {
        match shrink_round(reclaimer, root, pass, Round::InExcess, protection, &mut progress, enough) {
            Ended::Enough => return (progress, false),
            Ended::Over { nr_visited: 0 } => {
                nr_empty_rounds += 1;
                if nr_empty_rounds == FIRST_ROUNDS_MAX {
                    break;
                }
            }
            Ended::Over { .. } => match first_rounds.follow_up(&progress) {
                FollowUp::NextPriority => return (progress, true),
                FollowUp::AfterWriteback if wait_for_some_written(reclaimer, root, &|| enough(&progress)) => {
                }
                FollowUp::AfterWriteback | FollowUp::SecondRound => break,
            },
        }
    }
    let ended = shrink_round(reclaimer, root, pass, Round::AllGroups, protection, &mut progress, enough);
    (progress, !matches!(ended, Ended::Enough))
}

/// Waits until a page is written, for groups in excess with only dirty pages; returns whether one
/// was. After a wait in vain, no reclaim waits again until a page is written, so a hanging store
/// delays one reclaim, not all of them.
fn wait_for_some_written(reclaimer: &Reclaimer, root: &Arc<Group>, enough: &dyn Fn() -> bool) -> bool {
    let Some(owner) = reclaimer.page_owner() else { return false };
    owner.start_writeback(root);
    let before = owner.writeback_progress();
    if reclaimer.writeback_hung_at(before) {
        return false;
    }
    for _ in 0..WAITS_MAX {
        if owner.wait_for_writeback(WRITEBACK_WAIT) || owner.writeback_progress() != before {
            return true;
        }
        if enough() {
            break;
        }
    }
    reclaimer.note_writeback_hangs(before);
    false
}

/// Shrinks the groups of one round, until `enough` returns `true` for the progress so far.
pub(crate) fn shrink_round(
    reclaimer: &Reclaimer,
    root: &Arc<Group>,
    pass: &Pass,
    round: Round,
    protection: &mut ReclaimProtection<'_>,
    progress: &mut Progress,
    enough: &dyn Fn(&Progress) -> bool,
) -> Ended {
    let mut nr_visited = 0;
    for group in SharedWalk::new(root, round) {
        nr_visited += 1;
        let goal = pass.goal.saturating_sub(progress.pages());
        let ahead = match round {
            Round::InExcess => surplus_goal(excess_pages(root, &group)),
            Round::AllGroups => 0,
        };
        let pass = Pass { goal, ahead, round, ..*pass };
        if let Some(victim) = Victim::of(reclaimer, root, &group) {
            progress.add(victim.shrink(&pass, protection));
        }
        if enough(progress) {
            return Ended::Enough;
        }
    }
    Ended::Over { nr_visited }
}

/// Returns the number of pages to take from a group in excess even when fewer are wanted, so a
/// streaming writer does not reclaim a few pages at a time. They come only from the surplus of its
/// inactive over its active list: a group reusing its pages would otherwise have to read them
/// again.
fn surplus_goal(excess_pages: u64) -> u64 {
    (excess_pages / AHEAD_SHARE).min(IN_EXCESS_PAGES_MAX)
}

/// The outcome of a round.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Ended {
    /// Enough was freed.
    Enough,
    /// No group was left in the walk.
    Over { nr_visited: u64 },
}

/// Returns whether there is a group in excess to visit before all others.
#[doc(alias = "mem_cgroup_should_soft_reclaim")]
fn has_first_round(root: &Arc<Group>) -> bool {
    mechanism::skips_no_subtree() || root.nr_children_in_excess() > 0 && root.excess_bytes() == 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scan_control::Reason;
    use crate::shrinker::{Count, Registration, Scan, Scanned, ShrinkTarget, Shrinker, Usage};
    use crate::walk::is_eligible;
    use umemcg_arena::Arena;
    use umemcg_base::LeafMutex;
    use umemcg_group::{Charge, GroupTree, UNLIMITED};

    const POOL: u64 = 16 << 20;

    /// Gives a page for each object, and notes of which group.
    #[derive(Debug, Default)]
    struct Plenty(LeafMutex<Vec<u64>>);

    impl Shrinker for Plenty {
        fn name(&self) -> String {
            "plenty".into()
        }
        fn count(&self, _target: &ShrinkTarget<'_>) -> Count {
            Count::Objects(10_000)
        }
        fn scan(&self, target: &ShrinkTarget<'_>, nr: u64) -> Scan {
            self.0.lock().push(target.group.id());
            Scan::Done(Scanned { scanned: nr, freed_bytes: nr * 4096, releasing_bytes: 0 })
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
        charges: LeafMutex<Vec<Charge>>,
        _registered: Registration,
    }

    impl Pool {
        fn new() -> Self {
            let tree = GroupTree::new(POOL);
            let reclaimer = Reclaimer::new(Arena::new(POOL).unwrap(), Arc::clone(&tree)).unwrap();
            let id = reclaimer.reserve_shrinker();
            let (plenty, shrinker) = (Arc::new(Plenty::default()), id.get());
            let _registered = reclaimer.register_shrinker(id, Arc::<Plenty>::clone(&plenty));
            Self { tree, reclaimer, plenty, shrinker, charges: LeafMutex::default(), _registered }
        }

        fn group(&self, parent: &Arc<Group>, name: &str, soft_limit: u64) -> Arc<Group> {
            let group = self.tree.create(parent, name.as_ref()).unwrap();
            self.charges.lock().push(group.charge_forced(4096));
            self.reclaimer.note_objects(&group, self.shrinker);
            group.set_soft_limit(soft_limit);
            group
        }

        /// Returns the groups giving to a reclaim of `root`, each once.
        fn givers(&self, root: &Arc<Group>) -> Vec<u64> {
            self.plenty.0.lock().clear();
            // More than one group gives.
            self.reclaimer.reclaim(root, 100_000, Reason::Direct);
            let mut givers = std::mem::take(&mut *self.plenty.0.lock());
            givers.sort_unstable();
            givers.dedup();
            givers
        }

        /// Returns the group giving to a small reclaim of `root`.
        fn first_giver(&self, root: &Arc<Group>) -> u64 {
            self.plenty.0.lock().clear();
            self.reclaimer.reclaim(root, 1, Reason::Direct);
            self.plenty.0.lock()[0]
        }
    }

    /// The mail's example: A is over its soft limit, and B below it hits its hard one.
    #[test]
    fn excess_above_the_root_of_a_reclaim_does_not_count() {
        let pool = Pool::new();
        let root = Arc::clone(pool.tree.root());
        let outsider = pool.group(&root, "outsider", UNLIMITED);
        let a = pool.group(&root, "A", 0);
        let b = pool.group(&a, "B", UNLIMITED);
        let [c, d] = ["C", "D"].map(|name| pool.group(&b, name, UNLIMITED));
        let all = |groups: &[&Arc<Group>]| groups.iter().map(|group| group.id()).collect::<Vec<_>>();
        assert!([&b, &c, &d].iter().all(|group| !is_eligible(&b, group) && is_eligible(&a, group)));
        assert_eq!(pool.givers(&b), all(&[&b, &c, &d]), "A's excess is none of their business");
        // From above, all of A's subtree is reclaimed before all others.
        assert_eq!(pool.givers(&root), all(&[&a, &b, &c, &d]));
        // C on its own.
        c.set_soft_limit(0);
        assert_eq!(pool.givers(&b), all(&[&c]));
        assert_eq!(pool.givers(&root), all(&[&a, &b, &c, &d]));
        a.set_soft_limit(UNLIMITED);
        assert_eq!(pool.givers(&root), all(&[&c]));
        // The root of the reclaim itself: all groups.
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
        assert_eq!(SharedWalk::new(&root, Round::InExcess).next().unwrap().id(), a.id());
        let begun = SharedWalk::new(&root, Round::InExcess).next();
        assert_eq!(begun.unwrap().id(), a.id(), "where the other left it there is no group: it begins again");
        // Each of these leaves the walk at its only group.
        for _ in 0..3 {
            assert_eq!(pool.first_giver(&root), a.id());
        }
    }

    #[test]
    fn a_walk_passes_a_group_that_is_about_to_hand_over() {
        let pool = Pool::new();
        let root = Arc::clone(pool.tree.root());
        let [a, b, c] = ["A", "B", "C"].map(|name| pool.group(&root, name, UNLIMITED));
        let mut seen = Vec::new();
        let splice = |dying: &Arc<Group>, parent: &Arc<Group>| {
            let walk = SharedWalk::new(&root, Round::AllGroups);
            seen.extend(walk.take(8).map(|group| group.id()));
            pool.reclaimer.splice_to_parent(dying, parent);
        };
        pool.tree.remove(&b, splice).unwrap();
        assert_eq!(seen, [&root, &a, &b, &c].map(|group| group.id()));
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
    fn emptying_a_group_asks_all_groups() {
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
    fn a_group_gives_ahead_a_bounded_part_of_its_excess() {
        assert_eq!([0, 7, 800, u64::MAX].map(surplus_goal), [0, 0, 100, IN_EXCESS_PAGES_MAX]);
    }

    #[test]
    fn all_groups_have_their_turn_when_nothing_was_looked_at() {
        assert_eq!(FirstRounds::default().follow_up(&seen(0, 0, 0)), FollowUp::SecondRound);
        let objects = Progress { slab_scanned: 1, ..Progress::default() };
        let requested = Progress { releasing_bytes: 1, ..Progress::default() };
        assert!(
            [objects, requested]
                .iter()
                .all(|first| FirstRounds::default().follow_up(first) == FollowUp::NextPriority)
        );
    }

    #[test]
    fn pages_in_use_delay_the_second_round_to_the_last_priority() {
        let mut first_rounds = FirstRounds::default();
        assert!((0..100).all(|_| first_rounds.follow_up(&seen(32, 31, 0)) == FollowUp::NextPriority));
        first_rounds.is_last_chance = true;
        assert_eq!(first_rounds.follow_up(&seen(32, 31, 0)), FollowUp::SecondRound);
        assert_eq!(first_rounds.follow_up(&seen(32, 0, 1)), FollowUp::NextPriority);
    }

    #[test]
    fn dirty_pages_get_their_chances_to_be_written() {
        let mut first_rounds = FirstRounds::default();
        assert_eq!(first_rounds.follow_up(&seen(32, 32, 0)), FollowUp::AfterWriteback);
        assert_eq!(first_rounds.follow_up(&seen(32, 0, 32)), FollowUp::NextPriority, "they were");
        assert!(
            (0..DIRTY_ROUNDS_MAX)
                .all(|_| first_rounds.follow_up(&seen(32, 32, 0)) == FollowUp::AfterWriteback)
        );
        assert_eq!(first_rounds.follow_up(&seen(32, 32, 0)), FollowUp::SecondRound);
        let mut worker = FirstRounds::of_worker(false);
        assert!((0..100).all(|_| worker.follow_up(&seen(32, 32, 0)) == FollowUp::NextPriority));
        worker.is_last_chance = true;
        assert_eq!(worker.follow_up(&seen(32, 32, 0)), FollowUp::NextPriority, "it backs off first");
        assert_eq!(FirstRounds::of_worker(true).follow_up(&seen(32, 32, 0)), FollowUp::SecondRound);
    }
}
