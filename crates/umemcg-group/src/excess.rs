//! The groups over their soft limit, and the path to them from every group above (mail
//! soft-limit-rework, patches 5 to 7).
//!
//! A group *counts as in excess* by a flag at its counter. The flag goes up when a change of the
//! usage finds it above the soft limit, and down when one finds it [`EXCESS_LAG_BYTES`] below, so
//! that a usage near its limit does not change it with every batch. A walk that visits the group
//! clears it immediately ([`Group::update_excess`](crate::Group::update_excess)). Only changes that
//! reach the counter check it: the refill of a stock, a spill from one, a drain. Charges from stock
//! check nothing.
//!
//! Every group keeps the set of its children in whose subtrees a flag is set, in the same structure
//! that records where there is reclaimable memory ([`crate::subtree_marks`]). The kernel's series
//! counts descendants instead. With sets, a walk goes from one group in excess to the next without
//! visiting those between, and the change of a flag is propagated only up to the first set that
//! does not change.
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

/// The excess state of one group. `C` is the handle that a parent keeps for a child.
#[derive(Debug)]
pub struct Excess<C> {
    /// Held while the flag changes.
    changing: LeafMutex<()>,
    /// The flag, and the children in whose subtrees one is set.
    subtree_marks: SubtreeMarks<C>,
}

impl<C> Default for Excess<C> {
    fn default() -> Self {
        Self { changing: LeafMutex::with_rank(Rank::GroupExcess, ()), subtree_marks: SubtreeMarks::default() }
    }
}

impl<C> Excess<C> {
    /// Returns the flag, and the children in whose subtrees one is set.
    pub fn subtree_marks(&self) -> &SubtreeMarks<C> {
        &self.subtree_marks
    }

    /// Corrects the flag by the usage. `lag` is the number of bytes below the soft limit down to
    /// which it may stay set. `path_to_root` leads from the group to the root. `HANDSHAKE` is false
    /// only in the model that shows why it is needed.
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
        // This loop ends: each further iteration needs a usage that crossed the limit and the lag
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
