//! The inodes and names to invalidate in the kernel after other programs' changes.

use super::InodeTable;
use crate::attr::NodeId;

impl InodeTable {
    /// Returns the names of an inode, each with its directory; `None` if the kernel does not refer
    /// to it.
    pub(crate) fn names_in_kernel(&self, node: NodeId) -> Option<Vec<(NodeId, Box<[u8]>)>> {
        let names = self.with(node, |entry| {
            let names = entry.names.iter().map(|name| (name.parent, name.name.clone()));
            entry.is_looked_up().then(|| names.collect())
        });
        names.flatten()
    }

    /// Calls `tell` with each inode referenced by the kernel, with nothing locked.
    pub(crate) fn for_each_in_kernel(&self, mut tell: impl FnMut(NodeId)) {
        for shard in &self.shards {
            let nodes: Vec<u64> = {
                let shard = shard.lock();
                let known = shard.by_node.iter().filter(|(_, entry)| entry.is_looked_up());
                known.map(|(&node, _)| node).collect()
            };
            nodes.into_iter().for_each(|node| tell(NodeId(node)));
        }
        // The kernel refers to the root without a lookup.
        tell(NodeId::ROOT);
    }
}
