//! A victim: a group being shrunk by a reclaim, by a share of its lists and a share of its objects.
//!
//! On the lists, active pages are balanced against inactive ones, recently used pages get a second
//! chance, and clean pages are evicted. [`slab`] asks the shrinkers for objects.

use std::sync::Arc;

use umemcg_arena::{FrameFlags as Flag, FrameId, prefetch_for_write};
use umemcg_base::{PAGE_SIZE_U64, RankedMutexGuard};
use umemcg_group::{Group, StatItem};

use crate::group_reclaim::{GroupReclaim, advance_age};
use crate::isolation::Isolation;
use crate::lruvec::{Lists, LruKind};
use crate::mechanism;
use crate::page_owner::Eviction;
use crate::protection::ReclaimProtection;
use crate::reclaimer::Reclaimer;
use crate::scan_control::{DEF_PRIORITY, Pass, Progress, Reason, Round, SWAP_CLUSTER_MAX};
use crate::shadow::Shadow;
use crate::shrinker::slab;

/// Most pages scanned on the list of a group in excess, beyond its share of the priority.
pub(crate) const IN_EXCESS_PAGES_MAX: u64 = 1024;

/// A group giving memory to a reclaim of `root`.
#[derive(Clone, Copy)]
pub(crate) struct Victim<'r> {
    reclaimer: &'r Reclaimer,
    root: &'r Arc<Group>,
    group: &'r Arc<Group>,
    part: &'r GroupReclaim,
}

impl<'r> Victim<'r> {
    /// Returns the group as a victim of a reclaim of `root`; `None` if it never had pages or
    /// objects.
    pub(crate) fn of(reclaimer: &'r Reclaimer, root: &'r Arc<Group>, group: &'r Arc<Group>) -> Option<Self> {
        GroupReclaim::if_present(group).map(|part| Self { reclaimer, root, group, part })
    }

    /// Shrinks the group's lists and asks its shrinkers, both for the share of this pass, as far as
    /// the group is not protected.
    pub(crate) fn shrink(self, pass: &Pass, protection: &mut ReclaimProtection<'_>) -> Progress {
        let Self { reclaimer, group, part, .. } = self;
        let Some(kept) = protection.protected_share(group) else { return Progress::default() };
        let pass = &Pass { kept, ..*pass };
        let (mut progress, has_pages) = self.shrink_lists(pass);
        mechanism::note_visit(pass.priority, &progress);
        if mechanism::takes_pages_only() {
            return progress;
        }
        // A group in excess without a page to free gives objects before all other groups.
        let pass = &Pass { insists: pass.round == Round::InExcess && progress.reclaimed == 0, ..*pass };
        mechanism::in_asking(group, |listed| {
            if !slab::is_quiet(part, pass, &progress) {
                progress.add(slab::shrink_slab(reclaimer, listed, pass));
            }
        });
        if !has_pages {
            part.note_absent_if_empty(group);
        }
        progress
    }

    /// Shrinks the lists; returns when the goal is reached or the share of this priority is
    /// scanned. Also returns whether there was any page.
    ///
    /// Lists scanned several times over without success are skipped, except at the gentlest
    /// priority, until one of their pages is freed (`kernel-semantics` §5.2).
    #[doc(alias = "shrink_lruvec")]
    fn shrink_lists(self, pass: &Pass) -> (Progress, bool) {
        let Pass { priority, reason, kept, .. } = *pass;
        let mut progress = Progress::default();
        let lruvec = self.part.lruvec();
        let (inactive, active) = {
            let lists = lruvec.lock();
            (lists.len(LruKind::Inactive), lists.len(LruKind::Active))
        };
        if inactive + active == 0 {
            return (progress, false);
        }
        if reason == Reason::Kswapd && priority < DEF_PRIORITY && lruvec.is_unreclaimable(inactive + active) {
            return (progress, true);
        }
        progress.reclaimable += inactive + active;
        if inactive_is_low(inactive, active) {
            let share = (kept.exposed(active) >> priority).max(SWAP_CLUSTER_MAX.min(active));
            self.shrink_active(mechanism::active_share(share));
        }
        let Share { mut share, extra, goal } = share_of(pass, self.group, inactive, active);
        while share > 0 && progress.reclaimed < goal {
            let batch = share.min(SWAP_CLUSTER_MAX);
            let taken = ListScan { kind: LruKind::Inactive, nr: batch, reason, second_chance: true };
            let step = self.shrink_list(taken);
            if step.reclaimed == 0 {
                lruvec.note_fruitless(step.scanned);
            }
            progress.add(step);
            share -= batch;
            if step.scanned == 0 || (step.reclaimed == 0 && share <= extra) {
                break;
            }
        }
        (progress, true)
    }

    /// Evicts every evictable page of the lists, recently used or not; scans every page once.
    pub(crate) fn drop_lists(self, cancelled: &dyn Fn() -> bool) -> Progress {
        let mut progress = Progress::default();
        for kind in [LruKind::Inactive, LruKind::Active] {
            let mut left = self.part.lruvec().lock().len(kind);
            while left > 0 && !cancelled() {
                let batch = left.min(SWAP_CLUSTER_MAX);
                let taken = ListScan { kind, nr: batch, reason: Reason::Proactive, second_chance: false };
                let step = self.shrink_list(taken);
                progress.add(step);
                left -= batch;
                if step.scanned == 0 {
                    break;
                }
            }
        }
        progress
    }

    /// Moves up to `nr` pages from the active tail to the inactive head. A page used since it came
    /// there is moved to the head once more.
    fn shrink_active(self, nr: u64) {
        let Self { reclaimer, group, part, .. } = self;
        let arena = reclaimer.arena();
        let (mut moved, mut scanned) = (0i64, 0i64);
        {
            let mut lists = part.lruvec().lock();
            for _ in 0..nr {
                let Some(frame) = lists.tail(LruKind::Active) else { break };
                scanned += 1;
                let record = arena.record(frame);
                // At most half of the share rotates: a fully referenced list still gives pages.
                if record.test(Flag::REFERENCED) && (scanned - moved) * 2 <= nr as i64 {
                    record.clear(Flag::REFERENCED);
                    lists.move_to_head(arena, frame, LruKind::Active);
                } else {
                    record.clear(Flag::REFERENCED);
                    record.set(Flag::WORKINGSET);
                    lists.move_to_head(arena, frame, LruKind::Inactive);
                    moved += 1;
                }
            }
        }
        group.stat_add(StatItem::PgRefill, scanned);
        if moved > 0 {
            let bytes = moved * PAGE_SIZE_U64 as i64;
            group.stat_add(StatItem::ActiveFile, -bytes);
            group.stat_add(StatItem::InactiveFile, bytes);
            group.stat_add(StatItem::PgDeactivate, moved);
        }
    }

    /// Isolates pages of a list's tail, and frees the evictable ones.
    #[doc(alias = "shrink_inactive_list")]
    fn shrink_list(self, ListScan { kind, nr, reason, second_chance }: ListScan) -> Progress {
        let Self { reclaimer, root, group, part } = self;
        let Some(owner) = reclaimer.page_owner() else { return Progress::default() };
        let arena = reclaimer.arena();
        let mut isolated = Vec::with_capacity(nr as usize);
        let _isolation = {
            let mut lists = part.lruvec().lock();
            isolate(&mut lists, reclaimer, kind, nr, &mut isolated);
            Isolation::begin(&mut lists, &**group)
        };
        if isolated.is_empty() {
            return Progress::default();
        }
        let mut progress = Progress { scanned: isolated.len() as u64, ..Progress::default() };
        let age = GroupReclaim::of(root).age();
        let mut freed = Vec::with_capacity(isolated.len());
        let Sorted { mut keep, activate, asked, nr_dirty } = sort(reclaimer, isolated, second_chance);
        progress.dirty = nr_dirty;
        let shadow = |frame, nr_evicted| {
            Shadow::new(root.owner(), age + nr_evicted, arena.record(frame).test(Flag::WORKINGSET))
        };
        let mut fates = Vec::with_capacity(asked.len());
        owner.evict(&asked, &shadow, &mut fates);
        debug_assert_eq!(fates.len(), asked.len(), "a page without a fate");
        for (&frame, fate) in asked.iter().zip(fates) {
            match fate {
                Eviction::Evicted => freed.push(frame),
                Eviction::Busy => keep.push(frame),
                Eviction::Gone => reclaimer.unpin(frame),
            }
        }
        progress.reclaimed = freed.len() as u64;
        reclaimer.put_back(&keep, kind);
        reclaimer.put_back(&activate, LruKind::Active);
        group.stat_add(reason.scan_item(), progress.scanned as i64);
        if !activate.is_empty() {
            let bytes = activate.len() as i64 * PAGE_SIZE_U64 as i64;
            group.stat_add(StatItem::InactiveFile, -bytes);
            group.stat_add(StatItem::ActiveFile, bytes);
            group.stat_add(StatItem::PgActivate, activate.len() as i64);
        }
        if !freed.is_empty() {
            group.stat_add(reason.steal_item(), freed.len() as i64);
            advance_age(root, freed.len() as u64);
            reclaimer.free_frozen(&freed);
        }
        progress
    }
}

/// Returns the ratio bounding how short the inactive list may get: `isqrt(10 × GiB)`, at least 1
/// (`kernel-semantics` §2.1).
fn inactive_ratio(total_pages: u64) -> u64 {
    let gib = total_pages >> (30 - umemcg_base::PAGE_SHIFT);
    if gib == 0 { 1 } else { (10 * gib).isqrt() }
}

/// Returns whether the inactive list is too short for pages to show whether they are used again.
fn inactive_is_low(inactive: u64, active: u64) -> bool {
    inactive * inactive_ratio(inactive + active) < active
}

/// The choice of pages to take.
struct ListScan {
    kind: LruKind,
    nr: u64,
    reason: Reason,
    /// True if a page used since it came here stays.
    second_chance: bool,
}

/// Isolated pages.
struct Sorted {
    /// Go back to their list.
    keep: Vec<FrameId>,
    /// Were used since they came there.
    activate: Vec<FrameId>,
    /// The page owner is asked to evict these.
    asked: Vec<FrameId>,
    /// Kept pages that are dirty or not durable yet.
    nr_dirty: u64,
}

/// The part of an inactive list to scan.
struct Share {
    share: u64,
    /// The part of `share` beyond the share of the priority; scanned only as long as it frees
    /// pages.
    extra: u64,
    /// The scan ends when this many pages are freed.
    goal: u64,
}

fn share_of(pass: &Pass, group: &Group, inactive: u64, active: u64) -> Share {
    let Pass { priority, round, kept, .. } = *pass;
    let mut share = kept.exposed(inactive) >> priority;
    if share == 0 && (priority == 0 || group.is_dead()) {
        share = SWAP_CLUSTER_MAX.min(inactive);
    }
    let round = mechanism::round_of_share(round);
    let goal = pass.goal.max(pass.ahead.min(inactive.saturating_sub(active)));
    let mut extra = 0;
    if round == Round::InExcess {
        // Even from a short list: a group over its soft limit is reclaimed before all others,
        // without going through the priorities first.
        let wanted = goal.clamp(SWAP_CLUSTER_MAX, IN_EXCESS_PAGES_MAX).min(kept.exposed(inactive));
        extra = wanted.saturating_sub(share.max(SWAP_CLUSTER_MAX));
        share = share.max(wanted);
    }
    Share { share, extra, goal }
}

/// Sorts isolated pages by the action to take.
fn sort(reclaimer: &Reclaimer, isolated: Vec<FrameId>, second_chance: bool) -> Sorted {
    let asked = Vec::with_capacity(isolated.len());
    let mut sorted = Sorted { keep: Vec::new(), activate: Vec::new(), asked, nr_dirty: 0 };
    for frame in isolated {
        let record = reclaimer.arena().record(frame);
        if second_chance && record.test(Flag::REFERENCED) {
            record.clear(Flag::REFERENCED);
            sorted.activate.push(frame);
        } else if record.test(Flag::DIRTY | Flag::WRITEBACK | Flag::UNSTABLE) {
            sorted.nr_dirty += 1;
            record.set(Flag::RECLAIM);
            sorted.keep.push(frame);
        } else {
            sorted.asked.push(frame);
        }
    }
    sorted
}

/// Records prefetched while [`isolate`] processes one.
const NR_FETCHED_AHEAD: u32 = 8;

/// Takes pages off a list's tail and pins them. If a page cannot be pinned, another thread is
/// freeing it and unlinks it itself.
///
/// Pages read together mostly have adjacent frames in ascending order, so the next records are
/// prefetched before the links lead to them.
fn isolate(
    lists: &mut RankedMutexGuard<'_, Lists>,
    reclaimer: &Reclaimer,
    kind: LruKind,
    nr: u64,
    out: &mut Vec<FrameId>,
) {
    let arena = reclaimer.arena();
    let fetch = |frame: FrameId, ahead: u32| {
        if let Some(next) = arena.find(FrameId::from_raw(frame.raw().wrapping_add(ahead))) {
            prefetch_for_write(next.record());
        }
    };
    let mut fetched = None;
    for at in 0..nr {
        let Some(frame) = lists.tail(kind) else { break };
        // Up to the list's final tail and not beyond: another reclaimer may be there already.
        let ahead = (nr - at).min(u64::from(NR_FETCHED_AHEAD)) as u32;
        if fetched == Some(frame) {
            if ahead == NR_FETCHED_AHEAD {
                fetch(frame, ahead);
            }
        } else {
            (1..=ahead).for_each(|ahead| fetch(frame, ahead));
        }
        fetched = Some(FrameId::from_raw(frame.raw().wrapping_add(1)));
        lists.remove(arena, frame);
        if arena.record(frame).try_pin() {
            out.push(frame);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_inactive_share_falls_with_size_as_in_the_kernel() {
        let pages = |gib: u64| gib << 18;
        for (gib, ratio) in [(0, 1), (1, 3), (10, 10), (100, 31), (1024, 101)] {
            assert_eq!(inactive_ratio(pages(gib)), ratio, "{gib} GiB");
        }
        assert!(inactive_is_low(10, 11));
        assert!(!inactive_is_low(11, 11));
    }
}
