//! The number of objects requested from a shrinker: in proportion to the pressure on the pages
//! beside them (`kernel-semantics` §4.1).
//!
//! At priority p the share of the objects is their number divided by 2^p, times four, divided by
//! `seeks`: the share of objects expensive to recreate is smaller, except at priority 0, where it
//! is at least all of them. Less than a batch is not scanned but deferred, and added later.

/// Cost of recreating an object, in seeks, unless the shrinker overrides it.
pub const DEFAULT_SEEKS: u32 = 2;
/// At this cost the share of objects equals the share of pages.
const SEEKS_OF_ALL: u32 = 4;
/// Objects scanned at once, unless the shrinker overrides it.
#[doc(alias = "SHRINK_BATCH")]
pub const DEFAULT_BATCH: u64 = 128;

/// The work of one call on one shrinker, for one group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScanPlan {
    /// Freeable objects.
    freeable: u64,
    batch: u64,
    /// Objects owed when the call began.
    owed: u64,
    /// The share of this call.
    delta: u64,
    /// To be scanned still.
    left: u64,
    scanned: u64,
}

impl ScanPlan {
    /// Creates a plan for `freeable` objects at `priority` (12 gentle … 0 all), with `owed` objects
    /// due from earlier calls.
    #[doc(alias = "do_shrink_slab")]
    pub fn new(freeable: u64, owed: u64, priority: u32, seeks: u32, batch: u64) -> Self {
        let delta = if seeks == 0 {
            // Objects free to recreate: half of them, at every priority.
            freeable / 2
        } else {
            let seeks = if priority == 0 { seeks.min(SEEKS_OF_ALL) } else { seeks };
            (freeable >> priority).saturating_mul(u64::from(SEEKS_OF_ALL)) / u64::from(seeks)
        };
        let left = (owed >> priority).saturating_add(delta).min(freeable.saturating_mul(2));
        Self { freeable, batch: batch.max(1), owed, delta, left, scanned: 0 }
    }

    /// Scans at least a batch, or all objects if there are fewer, however small the share of this
    /// call.
    #[must_use]
    pub fn with_a_batch_at_least(mut self) -> Self {
        self.left = self.left.max(self.batch.min(self.freeable));
        self
    }

    /// Returns the number of objects to scan next; `None` when the rest is too little.
    pub fn next_step(&self) -> Option<u64> {
        let enough = self.left >= self.batch || self.left >= self.freeable;
        (enough && self.left > 0).then(|| self.batch.min(self.left))
    }

    /// Notes that the shrinker looked at `nr` objects for the last step.
    pub fn note_scanned(&mut self, nr: u64) {
        self.left = self.left.saturating_sub(nr);
        self.scanned += nr;
    }

    /// Ends the call, because no more is wanted: no part of its share is deferred.
    pub fn end(&mut self) {
        self.delta = self.delta.min(self.scanned);
    }

    /// Returns the number of objects owed by the shrinker after this call.
    pub fn deferred(&self) -> u64 {
        let due = self.owed.saturating_add(self.delta).saturating_sub(self.scanned);
        due.min(self.freeable.saturating_mul(2))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs a plan with a shrinker that scans all requested objects; returns the steps and the
    /// objects then owed.
    fn run(mut plan: ScanPlan) -> (Vec<u64>, u64) {
        let mut steps = Vec::new();
        while let Some(step) = plan.next_step() {
            steps.push(step);
            plan.note_scanned(step);
        }
        (steps, plan.deferred())
    }

    #[test]
    fn the_published_vectors_hold() {
        assert_eq!(run(ScanPlan::new(8192, 0, 12, 2, 128)), (vec![], 4));
        assert_eq!(run(ScanPlan::new(8192, 0, 6, 2, 128)), (vec![128, 128], 0));
        assert_eq!(run(ScanPlan::new(100, 0, 0, 2, 128)), (vec![128], 72));
    }

    #[test]
    fn a_debt_is_paid_in_proportion_to_the_priority_and_never_twice() {
        // 4 owed and 4 new each time: nothing is scanned until a batch has come together at a
        // pressing priority.
        let (steps, owed) = run(ScanPlan::new(8192, 1000, 12, 2, 128));
        assert_eq!((steps, owed), (vec![], 1004));
        let (steps, owed) = run(ScanPlan::new(8192, 1000, 2, 2, 128));
        assert_eq!(steps.iter().sum::<u64>(), (250u64 + 4096) / 128 * 128);
        assert_eq!(owed, 1000 + 4096 - steps.iter().sum::<u64>());
    }

    #[test]
    fn never_more_than_twice_what_is_there() {
        let (steps, owed) = run(ScanPlan::new(10, u64::MAX, 0, 2, 128));
        assert_eq!(steps, [20]);
        assert_eq!(owed, 20);
    }

    #[test]
    fn objects_that_cost_nothing_to_make_again_are_halved_each_time() {
        assert_eq!(run(ScanPlan::new(1000, 0, 12, 0, 100)), (vec![100; 5], 0));
    }

    #[test]
    fn costly_objects_are_shrunk_less_until_the_last_priority() {
        assert_eq!(run(ScanPlan::new(8192, 0, 4, 16, 128)), (vec![128], 0));
        assert_eq!(run(ScanPlan::new(8192, 0, 4, 2, 128)).0.len(), 8);
        assert_eq!(run(ScanPlan::new(100, 0, 1, 16, 128)), (vec![], 12));
        assert_eq!(run(ScanPlan::new(100, 0, 0, 16, 128)), (vec![100], 0));
    }

    #[test]
    fn a_cache_that_gave_enough_owes_no_more_than_before() {
        let mut plan = ScanPlan::new(8192, 100, 0, 2, 128);
        plan.note_scanned(plan.next_step().unwrap());
        plan.end();
        assert_eq!(plan.deferred(), 100);
    }

    #[test]
    fn a_cache_that_must_give_gives_a_batch() {
        assert_eq!(run(ScanPlan::new(8192, 0, 12, 2, 128).with_a_batch_at_least()), (vec![128], 0));
        assert_eq!(run(ScanPlan::new(100, 0, 12, 2, 128).with_a_batch_at_least()), (vec![100], 0));
        assert_eq!(run(ScanPlan::new(0, 0, 12, 2, 128).with_a_batch_at_least()), (vec![], 0));
    }

    #[test]
    fn nothing_there_means_nothing_to_do() {
        assert_eq!(run(ScanPlan::new(0, 500, 0, 2, 128)), (vec![], 0));
    }
}
