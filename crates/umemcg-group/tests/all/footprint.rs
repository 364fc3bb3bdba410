//! The cost of an empty group, and of its place in a queue. Looks at the memory of the whole
//! process, so each test runs in a process of its own.

use std::ffi::OsString;
use std::sync::Arc;

use umemcg_group::{GROUP_STATE_BYTES, Group, GroupPath, GroupTree, TurnQueue};

const NR_GROUPS: usize = 100_000;
/// Most bytes of a group in a queue, as listed in `docs/semantics/what-no-group-pays-for.md`.
const TURN_BYTES: u64 = 1024;

fn resident_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = statm.split(' ').nth(1).unwrap().parse().unwrap();
    pages * rustix::param::page_size() as u64
}

#[test]
fn an_empty_group_costs_no_more_than_is_charged_for_it() {
    let tree = GroupTree::new(1 << 40);
    let before = resident_bytes();
    let groups: Vec<Arc<Group>> = (0..NR_GROUPS)
        .map(|i| tree.create(tree.root(), &OsString::from(format!("group {i}"))).unwrap())
        .collect();
    let each = resident_bytes().saturating_sub(before) / NR_GROUPS as u64;
    println!("{each} bytes for an empty group");
    assert!(each <= GROUP_STATE_BYTES, "{each} bytes for an empty group");
    assert!(tree.root().usage_bytes() >= NR_GROUPS as u64 * GROUP_STATE_BYTES);
    drop(groups);
}

#[test]
fn a_group_with_a_turn_costs_no_more_than_is_listed() {
    let before = resident_bytes();
    // The turns of write-back have this size.
    let mut queue = TurnQueue::<[u64; 3]>::default();
    (0..NR_GROUPS as u64).for_each(|group| queue.push(GroupPath::new(&[1, 2 + group]), [group; 3]));
    let each = resident_bytes().saturating_sub(before) / NR_GROUPS as u64;
    println!("{each} bytes for a group with a turn");
    assert!(each <= TURN_BYTES, "{each} bytes for a group with a turn");
    assert_eq!(queue.len(), NR_GROUPS);
}
