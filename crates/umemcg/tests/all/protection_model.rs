//! Effective protection against a plain model of it, on random trees, with random settings and
//! usage, and reclaim that starts anywhere. The model may be read as the specification.

use std::sync::Arc;

use proptest::prelude::*;
use umemcg::{Charge, Engine, EngineConfig, Group, Protection};

const MIB: u64 = 1 << 20;

/// One group: the number of its parent in the list (modulo what is there), its settings, and what
/// it holds.
#[derive(Debug, Clone)]
struct Plan {
    parent: usize,
    min: u64,
    low: u64,
    held: u64,
    is_removed: bool,
}

fn setting() -> impl Strategy<Value = u64> {
    prop_oneof![4 => Just(0), 4 => 0..4 * MIB, 1 => 0..64 * MIB, 1 => Just(u64::MAX)]
}

fn plan() -> impl Strategy<Value = Plan> {
    let held = prop_oneof![1 => Just(0), 3 => 0..2 * MIB];
    (0..100usize, setting(), setting(), held, prop::bool::weighted(0.1))
        .prop_map(|(parent, min, low, held, is_removed)| Plan { parent, min, low, held, is_removed })
}

/// A group as the model sees it; the root is number 0.
struct ModelGroup {
    parent: Option<usize>,
    usage: u64,
    setting: u64,
}

/// The rule, written down with no thought of cost.
fn effective(groups: &[ModelGroup], target: usize, of: usize, recursive: bool) -> u64 {
    let group = &groups[of];
    if of == target {
        return 0; // Not protected from its own reclaim.
    }
    let parent = group.parent.expect("below the target");
    if parent == target {
        return group.setting; // Nobody above to share with.
    }
    let claim = |group: &ModelGroup| u128::from(group.usage.min(group.setting));
    let siblings = groups.iter().filter(|sibling| sibling.parent == Some(parent));
    let claimed: u128 = siblings.map(claim).sum();
    let available = u128::from(effective(groups, target, parent, recursive));
    let (usage, parent_usage) = (u128::from(group.usage), u128::from(groups[parent].usage));
    let own = claim(group);
    let share = if claimed > available {
        own * available / claimed
    } else if recursive && usage > own && parent_usage > claimed {
        own + (available - claimed) * (usage - own) / (parent_usage - claimed)
    } else {
        own
    };
    u64::try_from(share).unwrap_or(u64::MAX)
}

fn is_below(groups: &[ModelGroup], group: usize, target: usize) -> bool {
    std::iter::successors(Some(group), |&at| groups[at].parent).any(|at| at == target)
}

fn build(engine: &Arc<Engine>, plans: &[Plan]) -> (Vec<(Arc<Group>, usize)>, Vec<Charge>) {
    let mut groups = vec![(Arc::clone(engine.root()), 0)];
    let mut held = Vec::new();
    for (number, plan) in plans.iter().enumerate() {
        let parent = plan.parent % groups.len();
        let group = engine.create_group(&groups[parent].0, format!("g{number}").as_ref()).unwrap();
        group.set_min(plan.min);
        group.set_low(plan.low);
        held.push(engine.charge(&group, plan.held).unwrap());
        groups.push((group, parent));
    }
    (groups, held)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn every_group_is_protected_as_the_rule_says(
        plans in prop::collection::vec(plan(), 1..24),
        recursive in any::<bool>(),
    ) {
        let engine = Engine::new(EngineConfig::new(256 * MIB).recursive_protection(recursive)).unwrap();
        let (groups, held) = build(&engine, &plans);
        for ((group, _), plan) in groups[1..].iter().zip(&plans) {
            // Those with groups below stay; what the others hold becomes the parent's, and their
            // promises end.
            if plan.is_removed {
                let _ = engine.remove_group(group);
            }
        }
        let model = |settings: fn(Protection) -> u64| -> Vec<ModelGroup> {
            groups.iter().enumerate().map(|(number, (group, parent))| ModelGroup {
                parent: (number > 0).then_some(*parent),
                usage: group.usage_bytes(),
                setting: if group.is_dead() { 0 } else { settings(group.protection()) },
            }).collect()
        };
        let (min, low) = (model(|protection| protection.min), model(|protection| protection.low));
        for target in 0..groups.len() {
            for of in (0..groups.len()).filter(|&of| is_below(&min, of, target)) {
                if groups[of].0.is_dead() || groups[target].0.is_dead() {
                    continue;
                }
                let expected = Protection {
                    min: effective(&min, target, of, recursive),
                    low: effective(&low, target, of, recursive),
                };
                let found = engine.effective_protection(&groups[target].0, &groups[of].0);
                prop_assert_eq!(found, expected, "group {} from {}", of, target);
            }
        }
        // One walk over everything, which remembers the levels above, finds the same, in whatever
        // order it comes by.
        let mut walk = umemcg::internal::EffectiveProtection::new(engine.root(), recursive);
        for of in (0..groups.len()).chain((0..groups.len()).rev()).filter(|&of| !groups[of].0.is_dead()) {
            prop_assert_eq!(walk.of(&groups[of].0).min, effective(&min, 0, of, recursive));
        }
        drop(held);
    }
}

#[test]
fn of_very_many_that_claim_the_sum_follows_what_they_use() {
    let engine = crate::common::engine(1 << 30);
    let parent = crate::common::group(&engine, "parent", u64::MAX);
    parent.set_min(64 * MIB);
    let nr = 64 * umemcg::internal::CLAIMS_EXACT as u64;
    let children: Vec<_> = (0..nr)
        .map(|i| engine.create_group(&parent, i.to_string().as_ref()).unwrap())
        .inspect(|child| child.set_min(1 << 16))
        .collect();
    let sum = || parent.claimed_below_bytes().min;
    let exact = || children.iter().map(|child| child.claimed_bytes().min).sum::<u64>();
    assert_eq!(sum(), exact());
    // A change that the parent's usage shows is seen immediately…
    let held: Vec<_> = children.iter().map(|child| engine.charge(child, 1 << 16).unwrap()).collect();
    assert_eq!((sum(), exact()), (nr << 16, nr << 16));
    // … one that it does not show, after this many questions as one new sum is worth.
    let smallest = &children[0];
    smallest.set_min(4096);
    assert_eq!(sum(), exact(), "a setting is seen at once");
    drop(held);
    parent.drain_stocks();
    assert_eq!(sum(), exact());
    let one = engine.charge(&children[1], 8192).unwrap();
    let lag = (0..=nr / umemcg::internal::CLAIMS_EXACT as u64).position(|_| sum() == exact());
    assert!(lag.is_some(), "{} against {}", sum(), exact());
    drop(one);
}
