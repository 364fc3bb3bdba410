//! Shrinkers in reclaim: the choice of shrinkers to ask for a group, and how often.

use std::sync::Arc;

use umemcg_base::PAGE_SIZE_U64;
use umemcg_group::Group;

use super::bits::Unit;
use super::contract::{Count, Scan, ShrinkTarget};
use super::pressure::ScanPlan;
use super::registry::BorrowedShrinker;
use crate::group_reclaim::GroupReclaim;
use crate::mechanism;
use crate::reclaimer::Reclaimer;
use crate::scan_control::{DEF_PRIORITY, Pass, Progress};

/// Down to this priority, shrinkers with nothing to free at the last visit are not asked again for
/// a while, as long as pages are easy to free.
const GENTLE: u32 = DEF_PRIORITY / 2;

/// Returns whether a visit with this progress need not ask the shrinkers: most scanned pages
/// were freed, and all shrinkers have recently reported that nothing can be freed just now.
#[inline]
pub(crate) fn is_quiet(part: &GroupReclaim, pass: &Pass, visit: &Progress) -> bool {
    visit.reclaimed > visit.scanned / 2
        && pass.priority >= GENTLE
        && part.shrinker_bits().is_quiet(part.age())
}

/// Asks the shrinkers with possible objects of `group` to free their share at the priority of
/// `pass`. Groups below are not asked.
#[doc(alias = "shrink_slab_memcg")]
pub(crate) fn shrink_slab(reclaimer: &Reclaimer, group: &Arc<Group>, pass: &Pass) -> Progress {
    let mut progress = Progress::default();
    if let Some(progress) = mechanism::rounds::ask_otherwise(reclaimer, group, pass) {
        return progress;
    }
    let Some(part) = GroupReclaim::if_present(group) else { return progress };
    let all = part.shrinker_bits();
    let (mut has_asked, mut is_quiet) = (false, true);
    for unit in all.units() {
        let mut bits = unit.bits();
        has_asked |= bits != 0;
        while bits != 0 {
            let bit = bits.trailing_zeros();
            bits &= bits - 1;
            let (count, freed) = ask(reclaimer, (group, part), (unit, bit), pass);
            is_quiet &= !matches!(count, Count::Objects(_));
            progress.add(freed);
        }
    }
    all.note_quiet(has_asked && is_quiet, part.age());
    progress
}

/// Asks one shrinker, found by its bit.
fn ask(
    reclaimer: &Reclaimer,
    (group, part): (&Arc<Group>, &GroupReclaim),
    (unit, bit): (&Unit, u32),
    pass: &Pass,
) -> (Count, Progress) {
    let id = unit.base() + bit;
    let wanted_bytes = pass.goal.saturating_mul(PAGE_SIZE_U64);
    let target = ShrinkTarget { group, reason: pass.reason, wanted_bytes };
    let asked = reclaimer.shrinkers().with(id, |shrinker| {
        let mut count = shrinker.count(&target);
        if count == Count::Empty {
            count = unit.clear_if_empty::<true>(bit, || shrinker.count(&target));
            if count == Count::Empty {
                part.object_lists().prune(id);
            }
        }
        (count, scan_share(shrinker, &target, count, pass, Some((unit, bit))))
    });
    asked.unwrap_or_else(|| {
        // The shrinker of this bit is gone. A new shrinker with its number may be registering just
        // now.
        let registered = || {
            if reclaimer.shrinkers().with(id, |_| ()).is_some() { Count::NothingNow } else { Count::Empty }
        };
        if unit.clear_if_empty::<true>(bit, registered) == Count::Empty {
            part.object_lists().prune(id);
        }
        (Count::Empty, Progress::default())
    })
}

/// Makes a shrinker free its share, but no more than `target` wants. Its deferred work is kept in
/// `owed`, if given.
pub(crate) fn scan_share(
    shrinker: BorrowedShrinker<'_>,
    target: &ShrinkTarget<'_>,
    count: Count,
    pass: &Pass,
    owed: Option<(&Unit, u32)>,
) -> Progress {
    let mut progress = Progress::default();
    let Count::Objects(freeable @ 1..) = count else { return progress };
    // Objects are as protected as the pages beside them.
    let exposed = pass.kept.exposed(freeable);
    let before = owed.map_or(0, |(unit, bit)| unit.take_deferred(bit));
    let (seeks, batch) = shrinker.measures();
    let mut plan = ScanPlan::new(exposed, before, pass.priority, seeks, batch);
    if pass.insists {
        plan = plan.with_a_batch_at_least();
    }
    while let Some(step) = plan.next_step() {
        let wanted_bytes = target.wanted_bytes.saturating_sub(progress.slab_bytes + progress.releasing_bytes);
        match shrinker.scan(&ShrinkTarget { wanted_bytes, ..*target }, step) {
            Scan::Done(done) => {
                progress.slab_bytes += done.freed_bytes;
                progress.releasing_bytes += done.releasing_bytes;
                progress.slab_scanned += done.scanned;
                // A scan of nothing means that nothing is left; the loop must end.
                plan.note_scanned(if done.scanned == 0 { step } else { done.scanned });
                if done.scanned == 0 {
                    break;
                }
                if progress.slab_bytes + progress.releasing_bytes >= target.wanted_bytes {
                    plan.end();
                    break;
                }
            }
            Scan::Stop => break,
        }
    }
    if let Some((unit, bit)) = owed
        && plan.deferred() > 0
    {
        unit.add_deferred(bit, plan.deferred());
    }
    progress
}
