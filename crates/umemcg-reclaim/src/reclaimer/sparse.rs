//! Evicting the pages of sparse blocks, wherever they are on their lists, so that whole blocks
//! become free.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use umemcg_arena::{FrameFlags as Flag, FrameId, SparseFrame};
use umemcg_base::assert_no_locks_held;
use umemcg_group::{Group, OwnerId, StatItem};

use super::Reclaimer;
use crate::group_reclaim::{GroupReclaim, advance_age, owner_from, with_lists};
use crate::isolation::Isolation;
use crate::lruvec::LruKind;
use crate::page_owner::Eviction;
use crate::shadow::Shadow;

/// Pages evicted together.
const BATCH_PAGES: usize = 256;

/// The fate of pages in sparse blocks.
#[derive(Debug, Default)]
pub struct SparseOutcome {
    /// Number of evicted pages.
    pub nr_evicted: usize,
    /// Pages to be written before eviction. The frames may be another page's by now.
    pub dirty: Vec<FrameId>,
    /// Unevictable pages, held by no store. The frames may be another page's by now.
    pub unevictable: Vec<FrameId>,
}

impl Reclaimer {
    /// Evicts the clean, unused pages among `frames`, in order. Groups within their protection keep
    /// their pages, and recently used pages stay as long as their block has many. Counts as
    /// proactive reclaim. May sleep briefly; no lock may be held.
    pub fn evict_sparse(&self, frames: &[SparseFrame]) -> SparseOutcome {
        assert_no_locks_held("emptying blocks");
        let mut outcome = SparseOutcome::default();
        let mut protection = self.protection_from(self.tree().root(), false);
        let mut of_owner: Option<(u32, bool)> = None;
        for batch in frames.chunks(BATCH_PAGES) {
            let mut taken = Vec::with_capacity(batch.len());
            let mut isolations = Vec::new();
            for sparse in batch {
                let record = self.arena().record(sparse.frame);
                if !record.try_pin() {
                    continue;
                }
                let raw = record.owner.load(Relaxed);
                let is_wanted = record.file.load(Relaxed) != 0 && self.may_leave(sparse, &mut outcome) && {
                    let is_protected = match of_owner {
                        Some((owner, is_protected)) if owner == raw => is_protected,
                        _ => owner_from(raw).with_group(|group| protection.protected_share(group).is_none()),
                    };
                    of_owner = Some((raw, is_protected));
                    !is_protected
                };
                let kind = if is_wanted {
                    self.isolate_one(owner_from(raw), sparse.frame, &mut isolations)
                } else {
                    None
                };
                match kind {
                    Some(kind) => taken.push((sparse.frame, kind)),
                    None => self.unpin(sparse.frame),
                }
            }
            outcome.nr_evicted += self.evict_isolated(&taken);
        }
        outcome
    }

    /// Returns whether a pinned page is clean and cold enough to be evicted; otherwise records the
    /// obstacle in `outcome`.
    fn may_leave(&self, sparse: &SparseFrame, outcome: &mut SparseOutcome) -> bool {
        let flags = self.arena().record(sparse.frame).flags();
        if flags.intersects(Flag::UNEVICTABLE) {
            outcome.unevictable.push(sparse.frame);
        } else if flags.intersects(Flag::DIRTY | Flag::UNSTABLE) {
            outcome.dirty.push(sparse.frame);
        } else {
            let is_hot = flags.intersects(Flag::ACTIVE | Flag::REFERENCED);
            return !flags.intersects(Flag::WRITEBACK | Flag::LOCKED) && (!is_hot || sparse.is_nearly_alone);
        }
        false
    }

    /// Takes a pinned page off its list; `None` if it is on none. Keeps an isolation for each run
    /// of pages of the same lists.
    fn isolate_one(
        &self,
        owner: OwnerId,
        frame: FrameId,
        isolations: &mut Vec<Isolation<Arc<Group>>>,
    ) -> Option<LruKind> {
        with_lists(owner, |lists, group| {
            if !isolations.last().is_some_and(|last| last.is_of(group)) {
                isolations.push(Isolation::begin(lists, Arc::clone(group)));
            }
            lists.remove(self.arena(), frame)
        })
    }

    /// Evicts isolated pages; busy pages go back to their lists. Returns the number evicted.
    fn evict_isolated(&self, taken: &[(FrameId, LruKind)]) -> usize {
        let Some(owner) = self.page_owner() else { return 0 };
        let root = Arc::clone(self.tree().root());
        let age = GroupReclaim::of(&root).age();
        let frames: Vec<FrameId> = taken.iter().map(|&(frame, _)| frame).collect();
        let shadow = |frame, nr_evicted| {
            Shadow::new(root.owner(), age + nr_evicted, self.arena().record(frame).test(Flag::WORKINGSET))
        };
        let mut fates = Vec::with_capacity(frames.len());
        owner.evict(&frames, &shadow, &mut fates);
        let mut freed = Vec::with_capacity(frames.len());
        for (&(frame, kind), fate) in taken.iter().zip(fates) {
            match fate {
                Eviction::Evicted => freed.push(frame),
                Eviction::Busy => self.put_back(&[frame], kind),
                Eviction::Gone => self.unpin(frame),
            }
        }
        for run in freed.chunk_by(|&a, &b| self.owner_of(a) == self.owner_of(b)) {
            owner_from(self.owner_of(run[0])).with_group(|group| {
                group.stat_add(StatItem::PgScanProactive, run.len() as i64);
                group.stat_add(StatItem::PgStealProactive, run.len() as i64);
            });
        }
        advance_age(&root, freed.len() as u64);
        self.free_frozen(&freed);
        freed.len()
    }
}
