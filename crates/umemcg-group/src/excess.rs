//! The groups over their soft limit, and the path to them from every group above (mail
//! soft-limit-rework, patches 5 to 7).
//!
//! A group *counts as in excess* by a flag at its counter. The flag is set when a change of the
//! usage finds it above the soft limit, and cleared when a change finds it [`EXCESS_LAG_BYTES`]
//! below. So a usage near its limit does not change the flag with every batch. A walk finding the
//! usage at or below the soft limit clears the flag without this lag
//! ([`Group::update_excess`](crate::Group::update_excess)). Only changes of the counter check the
//! flag: the refill of a stock, a spill from one, a drain. Charges from stock check nothing.
//!
//! Every group keeps the set of its children with a set flag in their subtrees. The same structure
//! records the groups with reclaimable memory ([`crate::subtree_marks`]). The kernel's series
//! counts descendants instead. With sets, a walk goes from one group in excess to the next without
//! visiting other groups, and the change of a flag is propagated only up to the first unchanged
//! set.
//!
//! Usage and flag are two words, written by different threads:
//!
//! ```text
//! a change of the usage              a change of the flag, under the group's lock
//! 1. read-modify-write of the word   1. writes the flag
//! 2. reads the flag                  2. looks at the word with a read-modify-write, and begins again if they differ
//! ```
//!
//! Whichever of the two comes second in the word's modification order sees the other's change.

use crate::counter::CounterNode;
pub use crate::counter::EXCESS_LAG_BYTES;
use crate::subtree_marks::{self, PathNode, SubtreeMarks};
use umemcg_base::{LeafMutex, Rank};

/// The excess state of one group. `C` is a parent's handle for a child.
#[derive(Debug)]
pub struct Excess<C> {
    /// Held while the flag changes.
    changing: LeafMutex<()>,
    /// The mark for the flag, and the set of children with a mark in their subtrees.
    subtree_marks: SubtreeMarks<C>,
}

impl<C> Default for Excess<C> {
    fn default() -> Self {
        Self { changing: LeafMutex::with_rank(Rank::GroupExcess, ()), subtree_marks: SubtreeMarks::default() }
    }
}

impl<C> Excess<C> {
    /// Returns the mark for the flag, and the set of children with a mark in their subtrees.
    pub fn subtree_marks(&self) -> &SubtreeMarks<C> {
        &self.subtree_marks
    }

    /// Corrects the flag by the usage. The flag may stay set until the usage is `lag` bytes below
    /// the soft limit. `path_to_root` leads from the group to the root. `HANDSHAKE` is false only
    /// in the model showing why it is needed.
    #[doc(alias = "mem_cgroup_update_soft_limit")]
    pub fn update<'a, const HANDSHAKE: bool, W>(
        &'a self,
        node: &CounterNode,
        lag: u64,
        path_to_root: impl Fn() -> W,
    ) where
        W: Iterator<Item = PathNode<'a, C>>,
        C: 'a,
    {
        let _changing = self.changing.lock();
        // This loop ends: each further iteration needs the usage to cross the limit and the lag
        // meanwhile.
        while let Some(in_excess) = node.excess_to_publish::<HANDSHAKE>(lag) {
            node.publish_excess(in_excess);
            if in_excess {
                subtree_marks::note_present(path_to_root());
            } else {
                subtree_marks::note_absent::<true, _>(path_to_root(), || false);
            }
        }
    }
}
