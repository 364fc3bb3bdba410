//! Soft limits as they were before the mail soft-limit-rework, and as single patches of it leave them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

use umemcg_group::Group;

use crate::reclaim::{Pass, Progress, Reclaimer, SWAP_CLUSTER_MAX};
use crate::rounds::Round;
use crate::shield::Shield;

/// How soft limits are honoured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum SoftLimits {
    /// As they are: two rounds, and only who is in excess is looked at in the first (the mail's patches 1 to 8).
    TwoRounds,
    /// Two rounds, of which the first looks at every group there is, and is always made (patches 1 to 3).
    NoSkipping,
    /// Two rounds with subtrees skipped, to the letter of patches 1 to 8: a list gives its share of the priority, however little that is; the
    /// second round follows only when the first has looked at no page; nobody waits for dirty pages.
    AsMailed,
    /// Before everybody's round, the group with the largest excess at priority 0 (before the mail; `kernel-semantics` §3.1).
    LargestFirst,
}

static SOFT_LIMITS: AtomicU8 = AtomicU8::new(SoftLimits::TwoRounds as u8);

/// Says how soft limits are honoured from now on.
pub fn honour_soft_limits(how: SoftLimits) {
    SOFT_LIMITS.store(how as u8, Relaxed);
}

pub(crate) fn skips_no_subtree() -> bool {
    SOFT_LIMITS.load(Relaxed) == SoftLimits::NoSkipping as u8
}

pub(crate) fn is_as_mailed() -> bool {
    matches!(SOFT_LIMITS.load(Relaxed), how if how == SoftLimits::AsMailed as u8 || how == SoftLimits::NoSkipping as u8)
}

pub(crate) fn takes_largest_excess_first() -> bool {
    SOFT_LIMITS.load(Relaxed) == SoftLimits::LargestFirst as u8
}

/// Rounds over a victim's subtree before its progress is judged, and at most.
const JUDGED_AFTER_LOOPS: u32 = 2;
#[doc(alias = "MEM_CGROUP_MAX_RECLAIM_LOOPS")]
const LOOPS_MAX: u32 = 100;
/// Victims that gave nothing, before it is left at that.
#[doc(alias = "MEM_CGROUP_MAX_SOFT_LIMIT_RECLAIM_LOOPS")]
const VICTIMS_MAX: usize = 2;

impl Reclaimer {
    /// What the kernel did before the mail: of all groups the one with the largest excess, at priority 0, in steps of 32 pages until it
    /// has no excess or has given a quarter of it, and whatever it gave, everybody's round follows. At every priority anew, and only
    /// when the whole pool is under pressure.
    #[doc(alias = "mem_cgroup_soft_limit_reclaim")]
    pub(crate) fn shrink_largest_excess(
        &self,
        root: &Arc<Group>,
        pass: &Pass,
        shield: &mut Shield<'_>,
    ) -> Progress {
        let mut progress = Progress::default();
        if !root.is_root() {
            return progress;
        }
        let mut victims = in_excess(root);
        victims.sort_by_key(|group| std::cmp::Reverse(group.excess_bytes()));
        for victim in victims.iter().take(VICTIMS_MAX) {
            progress.add(self.shrink_victim(root, victim, pass, shield));
            if progress.pages() > 0 {
                break;
            }
        }
        progress
    }

    fn shrink_victim(
        &self,
        root: &Arc<Group>,
        victim: &Arc<Group>,
        pass: &Pass,
        shield: &mut Shield<'_>,
    ) -> Progress {
        let mut progress = Progress::default();
        let excess = victim.excess_bytes() / umemcg_base::PAGE_SIZE_U64;
        for nr_loops in 1..=LOOPS_MAX {
            let mut at = None;
            while let Some(group) = Group::next_in_subtree(victim, at.as_ref()) {
                // Whole lists are the share; who has given 32 is done for this loop. Objects were no part of it.
                let step = Pass {
                    priority: 0,
                    goal: SWAP_CLUSTER_MAX,
                    round: Round::Everybody,
                    is_of_largest_excess: true,
                    ..*pass
                };
                progress.add(self.shrink_group(root, &group, &step, shield));
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
}

/// The groups below `root` that count as in excess: what the kernel kept a tree of.
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
