//! Counts of cache hits. Each thread counts for itself, so two hits on different files write no
//! common cache line. The counts are added to the groups' statistics when the statistics are read.
//!
//! A thread has a small table of counts, by group. It alone writes the counts; the collecting
//! thread records the part of each count collected already. A thread takes its table's lock only to
//! give a slot to another group.

use std::cell::OnceCell;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Weak};

use umemcg_base::{LeafMutex, const_static};

use crate::group::Group;
use crate::stats::StatItem;

/// Groups counted by a thread at one time. A further group replaces another, after the count of the
/// other is collected.
const NR_SLOTS: usize = 64;

/// The count of one group.
#[derive(Debug, Default)]
struct Slot {
    /// Id of the group; 0 for none. Written by the thread, under the lock. (A)
    group: AtomicU64,
    /// Pages found since the slot was created; only the thread writes it. (A)
    nr: AtomicU64,
}

/// The part of a slot's count already collected.
#[derive(Debug, Default)]
struct Collected {
    group: Weak<Group>,
    /// The part of the count already added to the group's statistic.
    nr_passed: u64,
}

#[derive(Debug)]
struct HitCounters {
    slots: [Slot; NR_SLOTS],
    collected: LeafMutex<Vec<Collected>>,
}

impl HitCounters {
    fn new() -> Self {
        let collected = (0..NR_SLOTS).map(|_| Collected::default()).collect();
        Self { slots: std::array::from_fn(|_| Slot::default()), collected: LeafMutex::new(collected) }
    }

    /// Counts hits. Called by the owning thread.
    #[inline]
    fn add(&self, group: &Arc<Group>, nr: u64) {
        let at = group.id() as usize % NR_SLOTS;
        let slot = &self.slots[at];
        if slot.group.load(Relaxed) != group.id() {
            self.take_slot(at, group);
        }
        // No other thread writes it.
        slot.nr.store(slot.nr.load(Relaxed) + nr, Relaxed);
    }

    #[cold]
    fn take_slot(&self, at: usize, group: &Arc<Group>) {
        let collected = &mut self.collected.lock()[at];
        pass_on(&self.slots[at], collected);
        collected.group = Arc::downgrade(group);
        self.slots[at].group.store(group.id(), Relaxed);
    }

    fn collect(&self) {
        let mut collected = self.collected.lock();
        self.slots.iter().zip(&mut *collected).for_each(|(slot, collected)| pass_on(slot, collected));
    }
}

/// Adds new counts to the group's statistic. Counts of a freed group are lost with it.
fn pass_on(slot: &Slot, collected: &mut Collected) {
    let nr = slot.nr.load(Relaxed);
    let delta = nr - std::mem::replace(&mut collected.nr_passed, nr);
    if delta > 0
        && let Some(group) = collected.group.upgrade()
    {
        group.stat_add(StatItem::CacheHit, delta as i64);
    }
}

const_static! {
    static ALL_COUNTERS: LeafMutex<Vec<Arc<HitCounters>>> = LeafMutex::new(Vec::new());
}

/// A thread's own counters; they leave the list when the thread ends.
struct OwnCounters(Arc<HitCounters>);

impl Drop for OwnCounters {
    fn drop(&mut self) {
        // First: a collector finds them in the list, or collected.
        self.0.collect();
        ALL_COUNTERS.lock().retain(|counters| !Arc::ptr_eq(counters, &self.0));
    }
}

thread_local! {
    static OWN: OnceCell<OwnCounters> = const { OnceCell::new() };
}

#[cold]
fn register() -> OwnCounters {
    let counters = Arc::new(HitCounters::new());
    ALL_COUNTERS.lock().push(Arc::clone(&counters));
    OwnCounters(counters)
}

/// Counts `nr` pages found by a read for `group`. Writes only a cache line of the thread's own;
/// [`collect_hits`] adds the counts to the groups' statistics.
#[inline]
pub fn count_hits(group: &Arc<Group>, nr: u64) {
    // An ending thread no longer counts.
    let _ = OWN.try_with(|own| own.get_or_init(register).0.add(group, nr));
}

/// Adds the counts of all threads to the groups' statistics. Takes about a microsecond for each
/// reading thread.
pub fn collect_hits() {
    let all = ALL_COUNTERS.lock().clone();
    all.iter().for_each(|counters| counters.collect());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::GroupTree;

    #[test]
    fn hits_of_all_threads_are_counted_once_and_above() {
        let tree = GroupTree::new(1 << 30);
        let groups: Vec<_> =
            (0..3 * NR_SLOTS).map(|n| tree.create(tree.root(), format!("{n}").as_ref()).unwrap()).collect();
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for _ in 0..10 {
                        groups.iter().for_each(|group| count_hits(group, 2));
                    }
                });
            }
            collect_hits();
        });
        collect_hits();
        collect_hits();
        assert!(groups.iter().all(|group| group.stat_local(StatItem::CacheHit) == 60));
        assert_eq!(tree.root().stat_total(StatItem::CacheHit), 60 * groups.len() as i64);
    }

    #[test]
    fn hits_for_a_removed_group_are_its_parents() {
        let tree = GroupTree::new(1 << 30);
        let group = tree.create(tree.root(), "g".as_ref()).unwrap();
        count_hits(&group, 5);
        tree.remove(&group, |_, _| ()).unwrap();
        count_hits(&group, 7);
        collect_hits();
        assert_eq!(tree.root().stat_local(StatItem::CacheHit), 12);
        let weak = Arc::downgrade(&group);
        drop(group);
        assert_eq!(weak.strong_count(), 0, "a count keeps no group");
    }
}
