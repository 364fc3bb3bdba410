//! Usage without the stocks of threads.

use std::collections::HashMap;

use super::{Group, LEDGER};
use crate::counter::NO_NODE;

/// The stocks of all threads at one moment, by group: bytes charged, and not handed out. For a
/// reader of many groups.
#[derive(Debug, Default)]
pub struct IdleStock {
    /// Bytes by node, including the nodes below.
    by_node: HashMap<u32, u64>,
}

impl IdleStock {
    /// Reads it. Takes time for each stock of each thread, and disturbs no thread.
    pub fn read() -> Self {
        let mut by_node: HashMap<u32, u64> = HashMap::new();
        LEDGER.for_each_stocked(|slot| *by_node.entry(slot.node).or_default() += slot.bytes);
        let mut all = HashMap::with_capacity(by_node.len());
        for (node, bytes) in by_node {
            let mut at = node;
            // Bounded by the depth of the tree, whatever has become of the node.
            let mut left = LEDGER.node(node).depth() + 1;
            while at != NO_NODE && left > 0 {
                *all.entry(at).or_default() += bytes;
                (at, left) = (LEDGER.node(at).parent(), left - 1);
            }
        }
        Self { by_node: all }
    }

    /// Returns the bytes in stock for a group and its descendants.
    pub fn of(&self, group: &Group) -> u64 {
        self.by_node.get(&group.owner().into_raw()).copied().unwrap_or(0)
    }
}

impl Group {
    /// Returns the bytes charged here and below without the stocks of threads;
    /// [`usage_bytes`](Self::usage_bytes) includes them. Exact when nothing changes. Takes some
    /// microseconds; disturbs no thread.
    pub fn usage_exact(&self) -> u64 {
        let mut stocked = 0;
        LEDGER.for_each_stocked(|slot| {
            if LEDGER.is_below(slot.node, self.owner().into_raw()) {
                stocked += slot.bytes;
            }
        });
        self.usage_bytes().saturating_sub(stocked)
    }

    /// Returns the lowest limit of the group and its ancestors: a larger charge never fits.
    /// [`UNLIMITED`](crate::UNLIMITED) if there is none.
    pub fn effective_max_bytes(&self) -> u64 {
        self.ancestors().map(Group::max_bytes).min().unwrap_or(u64::MAX)
    }

    /// Returns the bytes chargeable to the group now without reclaim: the least room left at the
    /// group or any ancestor. Takes some microseconds.
    pub fn available_bytes(&self) -> u64 {
        let idle = IdleStock::read();
        let left = |at: &Group| {
            let usage = at.usage_bytes().saturating_sub(idle.of(at));
            at.max_bytes().saturating_sub(usage)
        };
        self.ancestors().map(left).min().unwrap_or(0)
    }
}
