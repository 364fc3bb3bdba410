//! Reads that found their pages: counted by each thread for itself, so that two hits on different
//! files write no common cache line, and added to the groups' numbers when they are read.
//!
//! A thread has a small table of counts, by group. It alone writes the counts; the collecting
//! thread remembers how much of each it has passed on already. Only when a place changes hands to
//! another group does its thread take the table's lock.

use std::cell::OnceCell;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Weak};

use umemcg_base::LeafMutex;

use crate::group::Group;
use crate::stats::StatItem;

/// Groups that a thread counts for at one time; a further one takes the place of another, whose
/// count is passed on.
const NR_PLACES: usize = 64;

/// The count of one group.
#[derive(Debug, Default)]
struct Place {
    /// Id of the group; 0 for none. Written by the thread, under the lock. (A)
    group: AtomicU64,
    /// Pages found, ever; only the thread writes it. (A)
    nr: AtomicU64,
}

/// What stands behind a place.
#[derive(Debug, Default)]
struct Behind {
    group: Weak<Group>,
    /// How much of the count has been passed on.
    nr_passed: u64,
}

#[derive(Debug)]
struct HitCounters {
    places: [Place; NR_PLACES],
    behind: LeafMutex<Vec<Behind>>,
}

impl HitCounters {
    fn new() -> Self {
        let behind = (0..NR_PLACES).map(|_| Behind::default()).collect();
        Self { places: std::array::from_fn(|_| Place::default()), behind: LeafMutex::new(behind) }
    }

    /// By the counters's own thread.
    #[inline]
    fn add(&self, group: &Arc<Group>, nr: u64) {
        let at = group.id() as usize % NR_PLACES;
        let place = &self.places[at];
        if place.group.load(Relaxed) != group.id() {
            self.take_place(at, group);
        }
        // No other thread writes it.
        place.nr.store(place.nr.load(Relaxed) + nr, Relaxed);
    }

    #[cold]
    fn take_place(&self, at: usize, group: &Arc<Group>) {
        let behind = &mut self.behind.lock()[at];
        pass_on(&self.places[at], behind);
        behind.group = Arc::downgrade(group);
        self.places[at].group.store(group.id(), Relaxed);
    }

    fn collect(&self) {
        let mut behind = self.behind.lock();
        self.places.iter().zip(&mut *behind).for_each(|(place, behind)| pass_on(place, behind));
    }
}

/// Adds what is new to the group's number. What is counted for a group that is gone altogether is
/// gone with it.
fn pass_on(place: &Place, behind: &mut Behind) {
    let nr = place.nr.load(Relaxed);
    let delta = nr - std::mem::replace(&mut behind.nr_passed, nr);
    if delta > 0
        && let Some(group) = behind.group.upgrade()
    {
        group.stat_add(StatItem::CacheHit, delta as i64);
    }
}

static ALL_COUNTERS: LeafMutex<Vec<Arc<HitCounters>>> = LeafMutex::new(Vec::new());

/// A thread's own; leaves the list with it.
struct Own(Arc<HitCounters>);

impl Drop for Own {
    fn drop(&mut self) {
        ALL_COUNTERS.lock().retain(|counters| !Arc::ptr_eq(counters, &self.0));
        self.0.collect();
    }
}

thread_local! {
    static OWN: OnceCell<Own> = const { OnceCell::new() };
}

#[cold]
fn enroll() -> Own {
    let counters = Arc::new(HitCounters::new());
    ALL_COUNTERS.lock().push(Arc::clone(&counters));
    Own(counters)
}

/// Counts `nr` pages that a read for `group` found. Costs no more than writing a line of the
/// thread's own; [`collect_hits`] makes it a number of the group.
#[inline]
pub fn count_hits(group: &Arc<Group>, nr: u64) {
    // A thread that is ending counts no more.
    let _ = OWN.try_with(|own| own.get_or_init(enroll).0.add(group, nr));
}

/// Adds what all threads have counted to the numbers of the groups. Takes a microsecond for each
/// thread that reads.
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
            (0..3 * NR_PLACES).map(|n| tree.create(tree.root(), format!("{n}").as_ref()).unwrap()).collect();
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
