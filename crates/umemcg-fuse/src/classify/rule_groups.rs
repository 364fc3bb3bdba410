//! Groups created by rules: their bound, and their removal.
//!
//! A tenant chooses the names matched by a wildcard, as many as it likes. The state of each group
//! is charged to the group above it, and the number of groups has a bound, divided as descriptors
//! are. A rule may make one more group below another if the groups below each level of its path add
//! up to less than the bound. So the tenants of one level can take half of it, and those of another
//! still find some. Beyond the bound, the group above is used.
//!
//! A group is removed when it has been idle for a while, holds nothing, has no members by hand and
//! no groups below, and nothing was set on it. The next matching request creates it again.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::sync::{Arc, Weak};
use std::time::Duration;

use umemcg::{CreateError, Engine, Group, UNLIMITED};
use umemcg_base::LeafMutex;
use umemcg_base::clock::{Clock, SystemClock};

/// The most groups created by rules at a time, by default.
pub const RULE_GROUPS_MAX: usize = 4096;

/// The interval between checks for quiet groups.
pub(super) const TICK: Duration = Duration::from_secs(5);
/// The time until a group with an unchanged usage is removed.
pub(super) const QUIET_FOR: Duration = Duration::from_secs(30);
/// The most bytes of a group without pages and names: the bookkeeping of its lists.
const EMPTY_BYTES: u64 = 4096;
/// The most groups with stocks drained in one tick, since that disturbs all threads.
const DRAINED_PER_TICK: usize = 64;
/// The least time between two counts of the groups on a refusal: some may have been removed by
/// hand.
const COUNTED_FOR: Duration = Duration::from_secs(1);

/// The reason why a rule did not make a group.
#[derive(Debug)]
pub(super) enum RuleGroupError {
    /// The bound is reached.
    TooMany,
    /// The tree refused to create it.
    Refused(CreateError),
}

/// A group made by a rule.
#[derive(Debug)]
struct RuleGroup {
    group: Weak<Group>,
    usage_bytes: u64,
    /// The time of the last change of its usage.
    quiet_since: Duration,
}

/// The groups made by rules, and their number below each group.
#[derive(Debug, Default)]
struct MadeGroups {
    made: Vec<RuleGroup>,
    /// The number of them below each group, by its id.
    below: HashMap<u64, usize>,
    counted_at: Duration,
}

/// See the module text.
#[derive(Debug)]
pub(super) struct RuleGroups {
    /// (C)
    nr_max: usize,
    clock: Box<dyn Clock>,
    state: LeafMutex<MadeGroups>,
}

impl MadeGroups {
    /// Returns the number of groups made by rules below a group, added up over it and its
    /// ancestors.
    fn nr_on_path(&self, group: &Arc<Group>) -> usize {
        path(group).filter_map(|at| self.below.get(&at.id())).sum()
    }

    fn note(&mut self, group: &Arc<Group>) {
        path(group).skip(1).for_each(|at| *self.below.entry(at.id()).or_default() += 1);
    }

    /// Forgets groups that are gone.
    fn count_again(&mut self, now: Duration) {
        self.counted_at = now;
        self.below.clear();
        let mut made = std::mem::take(&mut self.made);
        made.retain(|made| {
            made.group.upgrade().filter(|group| !group.is_dead()).is_some_and(|group| {
                self.note(&group);
                true
            })
        });
        self.made = made;
    }
}

/// Returns a group and all above it.
fn path(group: &Arc<Group>) -> impl Iterator<Item = &Arc<Group>> {
    std::iter::successors(Some(group), |at| at.parent())
}

impl RuleGroups {
    pub(super) fn new(nr_max: usize) -> Self {
        Self::with_clock(nr_max, Box::new(SystemClock::new()))
    }

    fn with_clock(nr_max: usize, clock: Box<dyn Clock>) -> Self {
        Self { nr_max, clock, state: LeafMutex::default() }
    }

    /// Makes a group. May sleep for room in the group above.
    pub(super) fn make(
        &self,
        engine: &Engine,
        above: &Arc<Group>,
        name: &OsStr,
    ) -> Result<Arc<Group>, RuleGroupError> {
        let now = self.clock.now();
        let (is_full, is_news) = {
            let mut state = self.state.lock();
            let is_news = state.nr_on_path(above) >= self.nr_max && now >= state.counted_at + COUNTED_FOR;
            if is_news {
                state.count_again(now);
            }
            (state.nr_on_path(above) >= self.nr_max, is_news)
        };
        if is_full {
            if is_news {
                let (above, max) = (above.path(), self.nr_max);
                tracing::warn!(above = %above.display(), max, "rules have made as many groups as they may");
            }
            return Err(RuleGroupError::TooMany);
        }
        let group = engine.create_group(above, name).map_err(RuleGroupError::Refused)?;
        let mut state = self.state.lock();
        state.note(&group);
        state.made.push(RuleGroup { group: Arc::downgrade(&group), usage_bytes: 0, quiet_since: now });
        Ok(group)
    }

    /// Passes idle groups to `remove`, which makes the remaining checks.
    pub(super) fn sweep(&self, engine: &Engine, remove: &dyn Fn(&Arc<Group>)) {
        let now = self.clock.now();
        let quiet = {
            let mut state = self.state.lock();
            state.count_again(now);
            let mut quiet = Vec::new();
            for made in &mut state.made {
                let Some(group) = made.group.upgrade() else { continue };
                if group.usage_bytes() != made.usage_bytes {
                    (made.usage_bytes, made.quiet_since) = (group.usage_bytes(), now);
                } else if now >= made.quiet_since + QUIET_FOR && quiet.len() < DRAINED_PER_TICK {
                    // A group not removed is checked again after the same time.
                    made.quiet_since = now;
                    quiet.push(group);
                }
            }
            quiet
        };
        for group in quiet.into_iter().filter(|group| !is_configured(engine, group)) {
            group.drain_stocks();
            if group.nr_children() == 0 && group.usage_bytes() <= EMPTY_BYTES {
                remove(&group);
            }
        }
    }
}

/// Returns whether a limit or a protection was set on a group.
fn is_configured(engine: &Engine, group: &Arc<Group>) -> bool {
    group.max_bytes() != UNLIMITED
        || engine.reclaimer().high(group) != UNLIMITED
        || group.soft_limit_bytes() != UNLIMITED
        || group.min_bytes() > 0
        || group.low_bytes() > 0
        || group.guaranteed_bytes() > 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use umemcg::EngineConfig;
    use umemcg_base::clock::ManualClock;

    /// A clock moved by the test.
    #[derive(Debug, Clone, Default)]
    struct Shared(Arc<ManualClock>);

    impl Clock for Shared {
        fn now(&self) -> Duration {
            self.0.now()
        }
    }

    fn start(nr_max: usize) -> (Arc<Engine>, RuleGroups, Shared) {
        let engine = Engine::new(EngineConfig::new(64 << 20)).unwrap();
        let clock = Shared::default();
        (engine, RuleGroups::with_clock(nr_max, Box::new(clock.clone())), clock)
    }

    /// Makes groups up to the bound. Returns their number.
    fn fill(engine: &Engine, groups: &RuleGroups, above: &Arc<Group>) -> usize {
        (0..).take_while(|n| groups.make(engine, above, format!("{n}").as_ref()).is_ok()).count()
    }

    fn sweep(engine: &Engine, groups: &RuleGroups) {
        groups.sweep(engine, &|group| engine.remove_group(group).unwrap());
    }

    #[test]
    fn a_full_bound_is_told_with_no_lock_held() {
        let (engine, groups, clock) = start(8);
        let top = engine.create_group(engine.root(), "pods".as_ref()).unwrap();
        let nr = fill(&engine, &groups, &top);
        clock.0.advance(COUNTED_FOR);
        // The warning has the path, and no leaf lock is held: names of groups are behind leaf
        // locks.
        assert_eq!((nr > 0, fill(&engine, &groups, &top)), (true, 0));
    }

    #[test]
    fn rules_make_groups_up_to_a_bound_that_is_shared() {
        let (engine, groups, clock) = start(120);
        let [pods, users] =
            ["pods", "users"].map(|name| engine.create_group(engine.root(), name.as_ref()).unwrap());
        assert_eq!(fill(&engine, &groups, &pods), 60);
        assert_eq!(fill(&engine, &groups, &users), 30);
        // A group removed by hand makes room again.
        for group in pods.children() {
            engine.remove_group(&group).unwrap();
        }
        clock.0.advance(COUNTED_FOR);
        assert_eq!(groups.make(&engine, &pods, "new".as_ref()).unwrap().name().as_ref(), "new");
    }

    #[test]
    fn quiet_groups_that_hold_nothing_go() {
        let (engine, groups, clock) = start(RULE_GROUPS_MAX);
        let root = engine.root();
        for name in ["empty", "limited", "above", "holds"] {
            groups.make(&engine, root, name.as_ref()).unwrap();
        }
        engine.create_group(&root.child("above".as_ref()).unwrap(), "by-hand".as_ref()).unwrap();
        engine.set_max(&root.child("limited".as_ref()).unwrap(), 1 << 20);
        let holds = root.child("holds".as_ref()).unwrap();
        let held = engine.charge(&holds, 8192).unwrap();
        let names = || {
            let mut names: Vec<_> = root.children().iter().map(|group| group.name()).collect();
            names.sort();
            names.iter().map(|name| name.to_string_lossy().into_owned()).collect::<Vec<_>>()
        };
        sweep(&engine, &groups);
        clock.0.advance(QUIET_FOR - Duration::from_millis(1));
        sweep(&engine, &groups);
        assert_eq!(names(), ["above", "empty", "holds", "limited"], "not quiet for long enough");
        clock.0.advance(QUIET_FOR);
        sweep(&engine, &groups);
        assert_eq!(names(), ["above", "holds", "limited"]);
        drop(held);
        for _ in 0..3 {
            clock.0.advance(QUIET_FOR);
            sweep(&engine, &groups);
        }
        assert_eq!(names(), ["above", "limited"]);
    }
}
