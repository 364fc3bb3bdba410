//! Shrinkers in reclaim: which are asked for a group, and how often.

use std::sync::Arc;

use umemcg_base::{PAGE_SIZE_U64, assert_no_locks_held};
use umemcg_group::Group;

use super::bits::{UNIT_IDS, Unit};
use super::contract::{Count, Scan, ShrinkTarget, Usage};
use super::pressure::ScanPlan;
use super::registry::BorrowedShrinker;
use crate::group_reclaim::GroupReclaim;
use crate::mechanism;
use crate::reclaimer::Reclaimer;
use crate::scan_control::{DEF_PRIORITY, Pass, Progress, Reason};

/// Down to this priority, shrinkers that reported nothing to free are not asked again for a while,
/// as long as pages are easy to free.
const GENTLE: u32 = DEF_PRIORITY / 2;

/// The objects of a shrinker in a group, as a line of `memory.kmem.slabinfo`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlabUsage {
    /// The shrinker's name.
    pub name: String,
    /// Over all nodes.
    pub usage: Usage,
}

impl Reclaimer {
    /// Returns whether a visit with this progress need not ask the shrinkers: most scanned pages
    /// were freed, and all shrinkers have recently reported that nothing can be freed just now.
    #[inline]
    pub(crate) fn is_quiet(&self, part: &GroupReclaim, pass: &Pass, visit: &Progress) -> bool {
        visit.reclaimed > visit.scanned / 2
            && pass.priority >= GENTLE
            && pass.nodes(self.nr_nodes()).all(|node| part.shrinker_bits(node).is_quiet(part.age()))
    }

    /// Asks the shrinkers that may have objects of `group` to free their share at `priority`.
    /// Groups below are not asked.
    #[doc(alias = "shrink_slab_memcg")]
    pub(crate) fn shrink_slab(&self, group: &Arc<Group>, pass: &Pass) -> Progress {
        let mut progress = Progress::default();
        if let Some(progress) = mechanism::rounds::ask_otherwise(self, group, pass) {
            return progress;
        }
        let Some(part) = GroupReclaim::if_present(group) else { return progress };
        for node in pass.nodes(self.nr_nodes()) {
            let all = part.shrinker_bits(node);
            let (mut has_asked, mut is_quiet) = (false, true);
            for unit in all.units() {
                let mut bits = unit.bits();
                has_asked |= bits != 0;
                while bits != 0 {
                    let bit = bits.trailing_zeros();
                    bits &= bits - 1;
                    let (count, freed) = self.ask(group, node, (unit, bit), pass);
                    is_quiet &= !matches!(count, Count::Objects(_));
                    progress.add(freed);
                }
            }
            all.note_quiet(has_asked && is_quiet, part.age());
        }
        progress
    }

    /// Asks one shrinker, found by its bit.
    fn ask(
        &self,
        group: &Arc<Group>,
        node: usize,
        (unit, bit): (&Unit, u32),
        pass: &Pass,
    ) -> (Count, Progress) {
        let id = unit.base() + bit;
        let target = ShrinkTarget { group, node, reason: pass.reason };
        let asked = self.shrinkers().with(id, |shrinker| {
            let mut count = shrinker.count(&target);
            if count == Count::Empty {
                count = unit.clear_if_empty::<true>(bit, || shrinker.count(&target));
                if count == Count::Empty {
                    GroupReclaim::of(group, self.nr_nodes()).object_lists().prune(id, node);
                }
            }
            (count, scan_share(shrinker, &target, count, pass, Some((unit, bit))))
        });
        asked.unwrap_or_else(|| {
            // The bit of a shrinker that is gone. A new one with its number may be registering just
            // now.
            let registered =
                || if self.shrinkers().with(id, |_| ()).is_some() { Count::NothingNow } else { Count::Empty };
            if unit.clear_if_empty::<true>(bit, registered) == Count::Empty {
                GroupReclaim::of(group, self.nr_nodes()).object_lists().prune(id, node);
            }
            (Count::Empty, Progress::default())
        })
    }

    /// Says that a shrinker has objects of `group` on `node`. For shrinkers that keep their objects
    /// outside any [`ListLru`](crate::ListLru), after an object can be counted.
    pub fn note_objects(&self, group: &Arc<Group>, node: usize, shrinker: u32) {
        let mut at = group;
        loop {
            let part = GroupReclaim::of(at, self.nr_nodes());
            let set = part.bit_place(at, node, shrinker).and_then(|place| place.unit.set(place.bit));
            if set.is_ok() {
                part.note_present(at);
                return;
            }
            // Removed: its objects are the parent's.
            match at.parent() {
                Some(parent) => at = parent,
                None => return,
            }
        }
    }

    /// Returns the objects of every shrinker that has any in `group` itself.
    pub fn slab_usage(&self, group: &Arc<Group>) -> Vec<SlabUsage> {
        assert_no_locks_held("a table of objects");
        let Some(part) = GroupReclaim::if_present(group) else { return Vec::new() };
        let mut table: Vec<SlabUsage> = Vec::new();
        for node in 0..self.nr_nodes() {
            for unit in part.shrinker_bits(node).units() {
                for bit in (0..UNIT_IDS).filter(|bit| unit.bits() >> bit & 1 == 1) {
                    let target = ShrinkTarget { group, node, reason: Reason::Proactive };
                    let line = self.shrinkers().with(unit.base() + bit, |shrinker| shrinker.usage(&target));
                    let Some((name, usage)) = line.flatten() else { continue };
                    let line = SlabUsage { name, usage };
                    if line.usage == Usage::default() {
                        continue;
                    }
                    match table.iter_mut().find(|known| known.name == line.name) {
                        Some(known) => {
                            known.usage.objects += line.usage.objects;
                            known.usage.reclaimable += line.usage.reclaimable;
                            known.usage.bytes += line.usage.bytes;
                        }
                        None => table.push(line),
                    }
                }
            }
        }
        table
    }
}

/// Makes a shrinker free its share, but no more than is wanted. Its deferred work is kept in
/// `owed`, if that is given.
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
        match shrinker.scan(target, step) {
            Scan::Done(done) => {
                progress.slab_bytes += done.freed_bytes;
                progress.releasing_bytes += done.releasing_bytes;
                progress.slab_scanned += done.scanned;
                // A shrinker that scans nothing has nothing more; the loop must end.
                plan.note_scanned(if done.scanned == 0 { step } else { done.scanned });
                if done.scanned == 0 {
                    break;
                }
                if progress.slab_bytes + progress.releasing_bytes >= pass.goal.saturating_mul(PAGE_SIZE_U64) {
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
