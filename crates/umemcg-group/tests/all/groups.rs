//! Groups as the layers above see them.

use std::ffi::OsStr;
use std::path::Path;
use std::sync::Arc;

use umemcg_group::{
    CreateError, EventKind, GROUP_STATE_BYTES, Group, GroupTree, OwnerId, RemoveError, RenameError, StatItem,
    UNLIMITED,
};

const MIB: u64 = 1 << 20;

fn create(tree: &GroupTree, parent: &Arc<Group>, name: &str) -> Arc<Group> {
    tree.create(parent, OsStr::new(name)).unwrap()
}

fn nothing(_: &Arc<Group>, _: &Arc<Group>) {}

#[test]
fn a_charge_is_counted_at_every_level_and_gives_itself_back() {
    let tree = GroupTree::new(64 * MIB);
    let a = create(&tree, tree.root(), "a");
    let b = create(&tree, &a, "b");
    let charge = b.try_charge(5 * MIB).unwrap();
    tree.root().drain_stocks();
    assert_eq!(b.usage_bytes(), 5 * MIB);
    assert_eq!(a.usage_bytes(), 5 * MIB + GROUP_STATE_BYTES);
    assert_eq!(tree.root().usage_bytes(), 5 * MIB + 2 * GROUP_STATE_BYTES);
    drop(charge);
    b.drain_stocks();
    assert_eq!(b.usage_bytes(), 0);
    assert_eq!(b.peak_bytes(), 5 * MIB);
}

#[test]
fn a_charge_stops_at_the_first_full_ancestor() {
    let tree = GroupTree::new(64 * MIB);
    let a = create(&tree, tree.root(), "a");
    let b = create(&tree, &a, "b");
    a.store_max(MIB);
    b.store_max(2 * MIB);
    let refused = b.try_charge(MIB + 1).unwrap_err();
    assert!(Arc::ptr_eq(&refused.group, &a));
    assert_eq!(refused.wanted_bytes, MIB + 1);
    assert_eq!((a.failcnt(), b.failcnt(), b.usage_bytes()), (1, 0, 0));
    let refused = b.try_charge(3 * MIB).unwrap_err();
    assert!(Arc::ptr_eq(&refused.group, &b));
    assert!(Arc::ptr_eq(&b.try_charge(u64::MAX).unwrap_err().group, &b));
    assert!(Arc::ptr_eq(&tree.root().try_charge(u64::MAX).unwrap_err().group, tree.root()));
}

#[test]
fn a_v1_limit_is_refused_below_usage_and_a_v2_limit_is_not() {
    let tree = GroupTree::new(64 * MIB);
    let a = create(&tree, tree.root(), "a");
    assert_eq!(a.max_bytes(), UNLIMITED);
    let charge = a.try_charge(2 * MIB).unwrap();
    assert_eq!(a.try_set_max(MIB).unwrap_err().usage_bytes, 2 * MIB);
    assert_eq!(a.max_bytes(), UNLIMITED);
    a.try_set_max(2 * MIB).unwrap();
    a.store_max(MIB);
    assert_eq!((a.max_bytes(), a.margin_bytes()), (MIB, 0));
    assert!(a.try_charge(1).is_err());
    assert_eq!(a.charge_forced(1).bytes(), 1);
    drop(charge);
}

#[test]
fn a_removed_groups_charges_belong_to_the_next_living_group() {
    let tree = GroupTree::new(64 * MIB);
    let a = create(&tree, tree.root(), "a");
    let b = create(&tree, &a, "b");
    let charge = b.try_charge(MIB).unwrap();
    b.stat_add(StatItem::ActiveFile, 4096);
    let mut handed = None;
    tree.remove(&b, |dying, parent| handed = Some((dying.id(), parent.id()))).unwrap();
    assert_eq!(handed, Some((b.id(), a.id())));
    assert!(Arc::ptr_eq(&charge.owner().resolve(), &a));
    tree.remove(&a, nothing).unwrap();
    assert!(Arc::ptr_eq(&charge.owner().resolve(), tree.root()));
    assert_eq!(tree.root().stat_local(StatItem::ActiveFile), 4096);
    b.stat_add(StatItem::ActiveFile, -4096);
    assert_eq!(tree.root().stat_local(StatItem::ActiveFile), 0);
    assert_eq!(tree.root().stat_total(StatItem::ActiveFile), 0);
    drop((a, b));
    assert!(tree.root().usage_bytes() >= MIB);
    drop(charge);
    tree.root().drain_stocks();
    assert_eq!(tree.root().usage_bytes(), 0);
}

#[test]
fn what_a_group_inherited_is_its_own_until_it_hands_over() {
    let tree = GroupTree::new(64 * MIB);
    let a = create(&tree, tree.root(), "a");
    let b = create(&tree, &a, "b");
    let charge = b.try_charge(MIB).unwrap();
    tree.remove(&b, nothing).unwrap();
    let whose = |owner: OwnerId| (owner.resolve().id(), owner.try_resolve().map(|group| group.id()));
    let mut during = None;
    tree.remove(&a, |_, _| {
        // What is charged now is the root's; the look-up must not lead past `a` afterwards either.
        assert!(Arc::ptr_eq(&b.try_charge(4096).unwrap().owner().resolve(), tree.root()));
        during = Some(whose(charge.owner()));
    })
    .unwrap();
    assert_eq!(during, Some((a.id(), Some(a.id()))));
    assert_eq!(whose(charge.owner()), (tree.root().id(), Some(tree.root().id())));
}

#[test]
fn a_removed_group_charges_its_parent() {
    let tree = GroupTree::new(64 * MIB);
    let a = create(&tree, tree.root(), "a");
    a.store_max(MIB);
    let b = create(&tree, &a, "b");
    tree.remove(&b, nothing).unwrap();
    let charge = b.try_charge(4096).unwrap();
    assert!(Arc::ptr_eq(&charge.owner().resolve(), &a));
    assert!(Arc::ptr_eq(&b.try_charge(2 * MIB).unwrap_err().group, &a));
}

#[test]
fn names_are_unique_below_a_parent_and_nothing_but_names() {
    let tree = GroupTree::new(64 * MIB);
    let a = create(&tree, tree.root(), "a");
    let b = create(&tree, tree.root(), "b");
    assert!(matches!(tree.create(tree.root(), OsStr::new("a")), Err(CreateError::Exists)));
    for name in ["", ".", "..", "x/y", "x\ny", "x\0y", &"x".repeat(256)] {
        assert!(matches!(tree.create(&a, OsStr::new(name)), Err(CreateError::BadName)), "{name:?}");
    }
    create(&tree, &a, &"x".repeat(255));
    assert_eq!(tree.rename(&b, OsStr::new("a")), Err(RenameError::Exists));
    assert_eq!(tree.rename(&b, OsStr::new("c")), Ok(()));
    assert_eq!(tree.rename(&b, OsStr::new("c")), Ok(()));
    assert_eq!(tree.rename(tree.root(), OsStr::new("c")), Err(RenameError::IsRoot));
    assert_eq!(b.path(), Path::new("/c"));
    assert!(tree.lookup(Path::new("/b")).is_none());
    assert!(Arc::ptr_eq(&tree.lookup(Path::new("/c")).unwrap(), &b));
    assert!(Arc::ptr_eq(&tree.lookup(Path::new("/")).unwrap(), tree.root()));
    assert!(tree.lookup(Path::new("/c/../a")).is_none());
}

#[test]
fn a_group_is_removed_once_and_only_when_empty() {
    let tree = GroupTree::new(64 * MIB);
    let a = create(&tree, tree.root(), "a");
    let b = create(&tree, &a, "b");
    assert_eq!(tree.remove(tree.root(), nothing), Err(RemoveError::IsRoot));
    assert_eq!(tree.remove(&a, nothing), Err(RemoveError::HasChildren));
    // While the child hands over, the parent stays.
    tree.remove(&b, |_, parent| assert_eq!(tree.remove(parent, nothing), Err(RemoveError::HasChildren)))
        .unwrap();
    assert_eq!(tree.remove(&b, nothing), Err(RemoveError::Gone));
    assert_eq!(tree.rename(&b, OsStr::new("z")), Err(RenameError::Gone));
    tree.remove(&a, nothing).unwrap();
    assert!(matches!(tree.create(&a, OsStr::new("b")), Err(CreateError::ParentGone)));
    assert!(a.is_dead() && !tree.root().is_dead());
}

#[test]
fn the_state_of_a_group_is_charged_to_its_parent() {
    let tree = GroupTree::new(64 * MIB);
    let a = create(&tree, tree.root(), "a");
    a.store_max(2 * GROUP_STATE_BYTES);
    let b = create(&tree, &a, "b");
    create(&tree, &a, "c");
    let Err(CreateError::Refused(refused)) = tree.create(&a, OsStr::new("d")) else {
        panic!("no room for a third")
    };
    assert!(Arc::ptr_eq(&refused.group, &a));
    tree.remove(&b, nothing).unwrap();
    drop(b);
    create(&tree, &a, "d");
}

#[test]
fn the_state_of_groups_is_named_until_its_last_byte_goes() {
    let tree = GroupTree::new(64 * MIB);
    let agree = |group: &Arc<Group>, what: &str| {
        group.drain_stocks();
        assert_eq!(group.named_bytes(), group.usage_bytes(), "{what}");
    };
    let top = create(&tree, tree.root(), "top");
    let deep = (0..100).fold(Arc::clone(&top), |at, _| create(&tree, &at, "below"));
    for n in 0..100 {
        create(&tree, &top, &n.to_string());
    }
    assert_eq!(top.metadata_bytes(), 200 * GROUP_STATE_BYTES);
    agree(&top, "made");
    // A byte that stays charged keeps the counter of the lowest group, and with it those above.
    let held = deep.try_charge(4096).unwrap();
    deep.stat_add(StatItem::Reserved, 4096);
    let mut at = Some(deep);
    while let Some(group) = at.filter(|group| !Arc::ptr_eq(group, &top)) {
        tree.remove(&group, nothing).unwrap();
        at = group.parent().cloned();
    }
    agree(&top, "removed");
    assert!(top.stat_local(StatItem::GroupState) > 100 * GROUP_STATE_BYTES as i64, "counters are left");
    top.stat_add(StatItem::Reserved, -4096);
    drop(held);
    agree(&top, "empty");
    assert_eq!(top.stat_local(StatItem::GroupState), 100 * GROUP_STATE_BYTES as i64);
    agree(tree.root(), "all");
}

#[test]
fn a_walk_visits_parents_first_and_survives_removals() {
    let tree = GroupTree::new(64 * MIB);
    let a = create(&tree, tree.root(), "a");
    let b = create(&tree, tree.root(), "b");
    let c = create(&tree, &a, "c");
    let mut seen = Vec::new();
    let mut at = Group::next_in_subtree(tree.root(), None);
    while let Some(group) = at {
        at = Group::next_in_subtree(tree.root(), Some(&group));
        seen.push(group.path().display().to_string());
    }
    assert_eq!(seen, ["/", "/a", "/a/c", "/b"]);
    assert!(Arc::ptr_eq(&Group::next_after_subtree(tree.root(), &a).unwrap(), &b));
    assert!(Group::next_after_subtree(&a, &a).is_none());
    tree.remove(&c, nothing).unwrap();
    tree.remove(&a, nothing).unwrap();
    assert!(Arc::ptr_eq(&Group::next_in_subtree(tree.root(), Some(&c)).unwrap(), &b));
    assert!(Group::next_in_subtree(&a, Some(&c)).is_none());
    assert!(Group::next_in_subtree(&b, Some(&b)).is_none());
}

#[test]
fn events_count_here_and_above_and_ring() {
    let tree = GroupTree::new(64 * MIB);
    let a = create(&tree, tree.root(), "a");
    let wake_signal = Arc::new(umemcg_base::WakeSignal::new());
    tree.root().listen_for_events(Arc::clone(&wake_signal));
    a.event(EventKind::Max);
    assert_eq!((a.event_count(EventKind::Max), a.event_count_local(EventKind::Max)), (1, 1));
    assert_eq!(
        (tree.root().event_count(EventKind::Max), tree.root().event_count_local(EventKind::Max)),
        (1, 0)
    );
    assert!(wake_signal.take());
}

#[test]
fn charges_split_and_merge() {
    let tree = GroupTree::new(64 * MIB);
    let a = create(&tree, tree.root(), "a");
    let mut charge = a.try_charge(10_000).unwrap();
    let part = charge.split(4_000);
    assert_eq!((charge.bytes(), part.bytes()), (6_000, 4_000));
    charge.merge(part);
    let (owner, bytes) = charge.into_raw();
    assert_eq!(OwnerId::from_raw(owner.into_raw()), Some(owner));
    assert_eq!(OwnerId::from_raw(0), None);
    umemcg_group::uncharge_raw(owner, 4_000);
    drop(umemcg_group::Charge::from_raw(owner, bytes - 4_000));
    a.drain_stocks();
    assert_eq!(a.usage_bytes(), 0);
}

#[test]
#[should_panic(expected = "uncharge of")]
fn giving_back_more_than_was_charged_is_a_crash() {
    let tree = GroupTree::new(64 * MIB);
    umemcg_group::uncharge_raw(tree.root().owner(), MIB);
}

#[test]
fn a_deep_tree_neither_charges_nor_dies_by_recursion() {
    let tree = GroupTree::new(1024 * MIB);
    let mut at = Arc::clone(tree.root());
    for _ in 0..5_000 {
        at = create(&tree, &at, "x");
    }
    let charge = at.try_charge(4096).unwrap();
    assert!(at.is_descendant_of(tree.root()) && !tree.root().is_descendant_of(&at));
    drop(charge);
    drop(tree);
    drop(at);
}
