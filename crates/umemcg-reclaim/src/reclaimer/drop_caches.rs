//! Dropping everything clean, on request: pages, objects, or both. Nothing is written for it.

use std::sync::Arc;

use umemcg_base::assert_no_locks_held;
use umemcg_group::Group;

use super::Reclaimer;
use crate::group_reclaim::GroupReclaim;
use crate::scan_control::{Pass, Progress, ProtectedShare, Reason, Round};
use crate::shrinker::slab::shrink_slab;
use crate::victim::Victim;
use crate::walk::OccupiedGroups;

const EVERYTHING: Pass = Pass {
    priority: 0,
    goal: u64::MAX,
    ahead: 0,
    reason: Reason::Proactive,
    round: Round::AllGroups,
    insists: false,
    kept: ProtectedShare::NOTHING,
};

impl Reclaimer {
    /// Drops the clean, currently unused pages of a subtree. Every page is visited once. May sleep
    /// briefly; no lock may be held.
    #[doc(alias = "drop_pagecache_sb")]
    pub fn drop_pages(&self, root: &Arc<Group>) -> Progress {
        self.drop_pages_unless(root, &|| false)
    }

    /// Like [`drop_pages`](Self::drop_pages), and ends early when `cancelled` returns `true`.
    pub fn drop_pages_unless(&self, root: &Arc<Group>, cancelled: &dyn Fn() -> bool) -> Progress {
        assert_no_locks_held("dropping pages");
        let mut progress = Progress::default();
        for group in OccupiedGroups::new(root) {
            let Some(victim) = Victim::of(self, root, &group) else { continue };
            progress.add(victim.drop_lists(cancelled));
            if cancelled() {
                break;
            }
        }
        progress
    }

    /// Asks all shrinkers of a subtree for everything, in passes, as long as a pass scans more
    /// objects than a threshold. The threshold doubles, so immediately recreated objects do not
    /// prolong it forever. No lock may be held.
    pub fn drop_slab(&self, root: &Arc<Group>) -> Progress {
        self.drop_slab_unless(root, &|| false)
    }

    /// Like [`drop_slab`](Self::drop_slab), and ends early when `cancelled` returns `true`.
    pub fn drop_slab_unless(&self, root: &Arc<Group>, cancelled: &dyn Fn() -> bool) -> Progress {
        assert_no_locks_held("dropping objects");
        let mut progress = Progress::default();
        let mut shift = 0;
        loop {
            let mut freed = Progress::default();
            let released_before = self.pending_releases().released_bytes();
            for group in OccupiedGroups::new(root) {
                freed.add(shrink_slab(self, &group, &EVERYTHING));
                if let Some(part) = GroupReclaim::if_present(&group) {
                    part.note_absent_if_empty(&group);
                }
                if cancelled() {
                    progress.add(freed);
                    return progress;
                }
            }
            if freed.releasing_bytes > 0 {
                // Bytes released now need not be requested again.
                freed.slab_bytes +=
                    self.pending_releases().wait(released_before, freed.releasing_bytes, u64::MAX);
            }
            progress.add(freed);
            if freed.slab_scanned >> shift <= 1 {
                return progress;
            }
            shift += 1;
        }
    }
}
