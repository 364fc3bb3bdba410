//! The nodes of all indexes: words in type-stable memory, handed out by number.
//!
//! Type-stable means: a node recycled under a reader is still a node, and its content fails the
//! check made by every reader anyway. Nodes are taken, and charged, before the index lock, as a
//! [`NodeReserve`]. Free nodes are kept in [batches](umemcg_base::batches) of threads first, so
//! that misses of different files meet at no common lock.

use umemcg_arena::ZeroTable;
use umemcg_base::sync::atomic::{AtomicU64, Ordering};
use umemcg_base::{BATCH_LEN_MAX, Batches, LeafMutex, LockedBatch, REFILL_LEN};
use umemcg_group::{Charge, OwnerId, StatItem, uncharge_raw};

pub use crate::index_node::NODE_BYTES;
use crate::index_node::{NODE_WORDS, NR_NODES_MAX, WORD_FILE_PLACE, WORD_FIRST_PAGE, WORD_OWNER};
use crate::overrun::OVERRUN_PAGES_MAX;
use crate::shadow_leaves::ShadowLeaves;

/// All index nodes of a pool.
#[derive(Debug)]
pub struct NodePool {
    pub(crate) words: ZeroTable,
    shadow_leaves: ShadowLeaves,
    nr_max: u32,
    /// Free nodes in batches of threads; in `free` they count as in use.
    batches: Batches<u32>,
    free: LeafMutex<FreeNodes>,
}

/// Nodes for pages in flight beyond limits, if each page is alone in a tree of its own.
const NR_OVERRUN_NODES: u64 = OVERRUN_PAGES_MAX * 18;

/// The nodes neither in use nor in a batch. On cache lines of its own, because every lookup reads
/// the fields beside it.
#[derive(Debug, Default)]
#[repr(align(64))]
struct FreeNodes {
    numbers: Vec<u32>,
    /// Nodes below this number have been handed out at least once.
    high: u32,
}

impl FreeNodes {
    /// Moves up to `wanted` nodes to `out`. Returns how many.
    fn take(&mut self, nr_max: u32, wanted: usize, out: &mut Vec<u32>) -> usize {
        let nr_known = wanted.min(self.numbers.len());
        out.extend(self.numbers.drain(self.numbers.len() - nr_known..));
        let nr_fresh = (nr_max - self.high).min((wanted - nr_known) as u32);
        out.extend(self.high..self.high + nr_fresh);
        self.high += nr_fresh;
        nr_known + nr_fresh as usize
    }
}

impl NodePool {
    /// Creates a pool with room for as many nodes as can be charged to `pool_bytes`, and for the
    /// nodes of pages in flight beyond limits.
    ///
    /// # Errors
    /// When the address space cannot be reserved.
    pub(crate) fn new(pool_bytes: u64, shadow_leaves: ShadowLeaves) -> std::io::Result<Self> {
        let nr_max =
            u32::try_from(pool_bytes / NODE_BYTES + NR_OVERRUN_NODES).unwrap_or(u32::MAX).min(NR_NODES_MAX);
        Ok(Self {
            words: ZeroTable::new_dense((u64::from(nr_max) * NODE_WORDS) as usize)?,
            shadow_leaves,
            batches: Batches::new(),
            free: LeafMutex::default(),
            nr_max,
        })
    }

    pub(crate) fn word(&self, node: u32, word: u64) -> &AtomicU64 {
        self.words.get((u64::from(node) * NODE_WORDS + word) as usize)
    }

    /// Returns the leaves with shadows only.
    pub(crate) fn shadow_leaves(&self) -> &ShadowLeaves {
        &self.shadow_leaves
    }

    /// Returns the file's number and the first page of a leaf among the shadow leaves, whose list
    /// is locked.
    pub(crate) fn place_of_leaf(&self, leaf: u32) -> (u32, u64) {
        let load = |word| self.word(leaf, word).load(Ordering::Relaxed);
        (load(WORD_FILE_PLACE) as u32, load(WORD_FIRST_PAGE))
    }

    /// Nodes in use.
    pub fn nr_in_use(&self) -> u32 {
        let free = self.free.lock();
        (free.high - free.numbers.len() as u32).saturating_sub(self.batches.len() as u32)
    }

    /// Gives memory of free nodes back to the operating system, from the top down.
    pub fn trim(&self) {
        let batches = self.batches.lock_all();
        let mut free = self.free.lock();
        give_back(batches, &mut free);
        free.numbers.sort_unstable_by(|a, b| b.cmp(a));
        let mut cut = 0;
        while cut < free.numbers.len() && free.numbers[cut] + 1 == free.high - cut as u32 {
            cut += 1;
        }
        if cut > 0 {
            let old_high = free.high;
            free.high -= cut as u32;
            free.numbers.drain(..cut);
            let first = (u64::from(free.high) * NODE_WORDS) as usize;
            let end = (u64::from(old_high) * NODE_WORDS) as usize;
            self.words.discard(first..end);
        }
    }

    /// Takes `nr` nodes: from the calling thread's batch, which is refilled when it has too few,
    /// else from all batches. Returns `false` if there are fewer nodes; the nodes found are then in
    /// `out`.
    fn take(&self, nr: usize, out: &mut Vec<u32>) -> bool {
        let nr_missing = {
            let mut own = self.batches.lock_own();
            if own.items.len() < nr {
                // Straight to the caller, because a batch is bounded.
                let nr_known = own.items.len();
                out.append(&mut own.items);
                let mut free = self.free.lock();
                let nr_taken = free.take(self.nr_max, nr - nr_known, out);
                free.take(self.nr_max, REFILL_LEN, &mut own.items);
                nr - nr_known - nr_taken
            } else {
                let at = own.items.len() - nr;
                out.extend(own.items.drain(at..));
                0
            }
        };
        nr_missing == 0 || {
            let batches = self.batches.lock_all();
            let mut free = self.free.lock();
            give_back(batches, &mut free);
            free.take(self.nr_max, nr_missing, out) == nr_missing
        }
    }

    /// Takes back a node that was charged to `owner`.
    pub(crate) fn give_charged(&self, node: u32, owner: OwnerId) {
        self.give(&[node]);
        owner.with_group(|group| group.stat_add(StatItem::IndexNodes, -(NODE_BYTES as i64)));
        uncharge_raw(owner, NODE_BYTES);
    }

    /// Takes free nodes back into the calling thread's batch. A batch with too many gives its
    /// oldest nodes to the pool.
    fn give(&self, nodes: &[u32]) {
        let mut own = self.batches.lock_own();
        own.items.extend(nodes);
        if own.items.len() > BATCH_LEN_MAX {
            let nr_given = own.items.len() - BATCH_LEN_MAX / 2;
            self.free.lock().numbers.extend(own.items.drain(..nr_given));
        }
    }
}

/// Gives the nodes of batches back to the pool.
fn give_back(batches: Vec<LockedBatch<'_, u32>>, free: &mut FreeNodes) {
    for mut batch in batches {
        free.numbers.append(&mut batch.items);
    }
}

/// Nodes taken and charged before the index lock, for a change that may need them.
#[derive(Debug)]
pub struct NodeReserve<'p> {
    pool: &'p NodePool,
    nodes: Vec<u32>,
    charge: Option<Charge>,
}

impl<'p> NodeReserve<'p> {
    /// Takes `nr` nodes, paid for by `charge` (`nr × NODE_BYTES`). `None` when the pool has no more
    /// nodes.
    pub fn new(pool: &'p NodePool, nr: usize, charge: Charge) -> Option<Self> {
        debug_assert_eq!(charge.bytes(), nr as u64 * NODE_BYTES);
        let mut reserve = Self { pool, nodes: Vec::new(), charge: Some(charge) };
        (nr == 0 || pool.take(nr, &mut reserve.nodes)).then_some(reserve)
    }

    pub(crate) fn pop(&mut self) -> Option<u32> {
        let node = self.nodes.pop()?;
        let charge = self.charge.as_mut()?;
        let (owner, _) = charge.split(NODE_BYTES).into_raw();
        owner.with_group(|group| group.stat_add(StatItem::IndexNodes, NODE_BYTES as i64));
        self.pool.word(node, WORD_OWNER).store(u64::from(owner.into_raw()), Ordering::Relaxed);
        Some(node)
    }
}

impl Drop for NodeReserve<'_> {
    fn drop(&mut self) {
        if !self.nodes.is_empty() {
            self.pool.give(&self.nodes);
        }
    }
}
