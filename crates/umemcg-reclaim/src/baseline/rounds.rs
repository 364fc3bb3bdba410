//! Soft limits as before the mail soft-limit-rework, and asking shrinkers as before the bits.

use std::sync::Arc;

use umemcg_base::PAGE_SIZE_U64;
use umemcg_group::Group;

use super::settings;
use crate::protection::ReclaimProtection;
use crate::reclaimer::Reclaimer;
use crate::rounds::shrink_round;
use crate::scan_control::{Pass, Progress, Round, SWAP_CLUSTER_MAX};
use crate::shrinker::slab::scan_share;
use crate::shrinker::{Count, ShrinkTarget};
use crate::victim::Victim;

/// Rounds over a victim's subtree before its progress is judged, and at most.
const JUDGED_AFTER_LOOPS: u32 = 2;
#[doc(alias = "MEM_CGROUP_MAX_RECLAIM_LOOPS")]
const LOOPS_MAX: u32 = 100;
/// Most victims without a freed page before reclaim gives up.
#[doc(alias = "MEM_CGROUP_MAX_SOFT_LIMIT_RECLAIM_LOOPS")]
const VICTIMS_MAX: usize = 2;

pub(crate) fn shrink_otherwise(
    reclaimer: &Reclaimer,
    root: &Arc<Group>,
    pass: &Pass,
    protection: &mut ReclaimProtection<'_>,
    enough: &dyn Fn(&Progress) -> bool,
) -> Option<(Progress, bool)> {
    if !settings::takes_largest_excess_first() {
        return None;
    }
    let mut progress = shrink_largest_excess(reclaimer, root, pass, protection);
    // Under pressure on the whole pool every group had to give its share; below a limit reclaim
    // ended once enough was freed.
    let enough_below = |now: &Progress| !root.is_root() && enough(now);
    shrink_round(reclaimer, root, pass, Round::AllGroups, protection, &mut progress, &enough_below);
    Some((progress, !enough(&progress)))
}

/// Asks every shrinker for the group, as before there was a map.
pub(crate) fn ask_otherwise(reclaimer: &Reclaimer, group: &Arc<Group>, pass: &Pass) -> Option<Progress> {
    if !settings::asks_every_shrinker() {
        return None;
    }
    let mut progress = Progress::default();
    let shrinkers = reclaimer.shrinkers();
    let wanted_bytes = pass.goal.saturating_mul(PAGE_SIZE_U64);
    let target = ShrinkTarget { group, reason: pass.reason, wanted_bytes };
    for id in 0..shrinkers.high() {
        shrinkers.with(id, |shrinker| {
            let count = shrinker.count(&target);
            if count != Count::Empty {
                progress.add(scan_share(shrinker, &target, count, pass, None));
            }
        });
    }
    Some(progress)
}

/// Reclaims as the kernel did before the mail: takes the group with the largest excess, at priority
/// 0, in steps of 32 pages, until it has no excess or has given a quarter of it. Whatever it gave,
/// the round over all groups follows. This happens at every priority, and only when the whole pool
/// is under pressure.
#[doc(alias = "mem_cgroup_soft_limit_reclaim")]
fn shrink_largest_excess(
    reclaimer: &Reclaimer,
    root: &Arc<Group>,
    pass: &Pass,
    protection: &mut ReclaimProtection<'_>,
) -> Progress {
    let mut progress = Progress::default();
    if !root.is_root() {
        return progress;
    }
    let mut victims = in_excess(root);
    victims.sort_by_key(|group| std::cmp::Reverse(group.excess_bytes()));
    for victim in victims.iter().take(VICTIMS_MAX) {
        progress.add(shrink_victim(reclaimer, root, victim, pass, protection));
        if progress.pages() > 0 {
            break;
        }
    }
    progress
}

fn shrink_victim(
    reclaimer: &Reclaimer,
    root: &Arc<Group>,
    victim: &Arc<Group>,
    pass: &Pass,
    protection: &mut ReclaimProtection<'_>,
) -> Progress {
    let mut progress = Progress::default();
    let excess = victim.excess_bytes() / umemcg_base::PAGE_SIZE_U64;
    for nr_loops in 1..=LOOPS_MAX {
        let mut at = None;
        while let Some(group) = Group::next_in_subtree(victim, at.as_ref()) {
            // Whole lists are the share; a group is done for this loop after giving 32 pages.
            // Objects were not included.
            let step = Pass { priority: 0, goal: SWAP_CLUSTER_MAX, round: Round::AllGroups, ..*pass };
            let given = Victim::of(reclaimer, root, &group)
                .map(|victim| settings::in_largest_excess(|| victim.shrink(&step, protection)));
            progress.add(given.unwrap_or_default());
            if victim.excess_bytes() == 0 {
                return progress;
            }
            at = Some(group);
        }
        let enough = progress.pages() == 0 || progress.pages() >= excess / 4;
        if nr_loops >= JUDGED_AFTER_LOOPS && enough {
            break;
        }
    }
    progress
}

/// Returns the groups in excess below `root`; the kernel kept them in a tree.
fn in_excess(root: &Arc<Group>) -> Vec<Arc<Group>> {
    let (mut found, mut above) = (Vec::new(), vec![Arc::clone(root)]);
    while let Some(group) = above.pop() {
        let mut child = group.next_child_in_excess(0);
        while let Some(at) = child {
            if at.excess_bytes() > 0 {
                found.push(Arc::clone(&at));
            }
            child = group.next_child_in_excess(at.id());
            above.push(at);
        }
    }
    found
}
