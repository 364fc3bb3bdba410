//! A pool without files.
#![allow(dead_code)]

pub mod numbers;

use std::ffi::OsStr;
use std::sync::Arc;

use umemcg_arena::Arena;
use umemcg_group::{Group, GroupTree};
use umemcg_reclaim::Reclaimer;

pub fn reclaimer(pool_bytes: u64) -> (Arc<GroupTree>, Arc<Reclaimer>) {
    let tree = GroupTree::new(pool_bytes);
    let arena = Arena::new(pool_bytes).unwrap();
    let reclaimer = Reclaimer::new(arena, Arc::clone(&tree)).unwrap();
    (tree, Arc::new(reclaimer))
}

pub fn create(tree: &GroupTree, parent: &Arc<Group>, name: &str) -> Arc<Group> {
    tree.create(parent, OsStr::new(name)).unwrap()
}

pub fn remove(tree: &GroupTree, reclaimer: &Reclaimer, group: &Arc<Group>) {
    tree.remove(group, |dying, parent| reclaimer.splice_to_parent(dying, parent)).unwrap();
}
