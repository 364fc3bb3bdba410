//! A cache of descriptors of inodes not open in any process: the next operation on the same
//! directory or file need not look it up again. The cache is bounded, because each descriptor pins
//! a dentry of the host charged to no group. The second-chance algorithm chooses the descriptor to
//! close.
//!
//! The caches of all volumes together are bounded as well. At that bound a volume caches a new
//! descriptor only in place of one of its own.

use std::collections::{HashMap, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use umemcg_base::{Rank, RankedMutex};

use crate::attr::NodeId;

/// The number of independently locked parts.
const NR_SHARDS: usize = 8;

/// (A) Descriptors in the caches of all volumes. Relaxed: a count, exceeded by operations in flight
/// at most.
static NR_IN_ALL: AtomicUsize = AtomicUsize::new(0);

/// A descriptor, counted in [`NR_IN_ALL`] until it is dropped.
#[derive(Debug)]
struct CachedDescriptor {
    fd: Arc<OwnedFd>,
    used: bool,
}

impl CachedDescriptor {
    fn new(fd: Arc<OwnedFd>) -> Self {
        NR_IN_ALL.fetch_add(1, Ordering::Relaxed);
        Self { fd, used: false }
    }
}

impl Drop for CachedDescriptor {
    fn drop(&mut self) {
        NR_IN_ALL.fetch_sub(1, Ordering::Relaxed);
    }
}

#[derive(Debug, Default)]
struct Shard {
    by_node: HashMap<u64, CachedDescriptor>,
    /// The cached nodes. Eviction looks at them in this order.
    order: VecDeque<u64>,
}

impl Shard {
    /// Takes out the first descriptor not used since it was last looked at.
    fn evict(&mut self) -> Option<CachedDescriptor> {
        // At most two rounds: the first clears every `used` flag.
        loop {
            let node = self.order.pop_front()?;
            if std::mem::take(&mut self.by_node.get_mut(&node)?.used) {
                self.order.push_back(node);
            } else {
                return self.by_node.remove(&node);
            }
        }
    }
}

/// See the module text.
#[derive(Debug)]
pub(crate) struct DescriptorCache {
    shards: [RankedMutex<Shard>; NR_SHARDS],
    /// (C) The most places per shard.
    per_shard: usize,
    /// (C) The most descriptors in the caches of all volumes.
    all_max: usize,
}

impl DescriptorCache {
    /// Creates a cache of at most `max` descriptors (at least one for each shard), and of fewer
    /// while all volumes together hold `all_max`.
    pub(crate) fn new(max: usize, all_max: usize) -> Self {
        Self {
            all_max,
            shards: std::array::from_fn(|_| RankedMutex::new(Rank::ObjectOwner, Shard::default())),
            per_shard: (max / NR_SHARDS).max(1),
        }
    }

    fn shard(&self, node: NodeId) -> &RankedMutex<Shard> {
        // The low bits of a node id are its shard in the inode table and spread well.
        &self.shards[node.0 as usize % NR_SHARDS]
    }

    /// Returns the descriptor of an inode, if cached.
    pub(crate) fn get(&self, node: NodeId) -> Option<Arc<OwnedFd>> {
        let mut shard = self.shard(node).lock();
        let place = shard.by_node.get_mut(&node.0)?;
        place.used = true;
        Some(Arc::clone(&place.fd))
    }

    /// Keeps a descriptor. Closes the replaced descriptor, if any, outside the lock.
    pub(crate) fn put(&self, node: NodeId, fd: Arc<OwnedFd>) {
        let mut shard = self.shard(node).lock();
        if let Some(known) = shard.by_node.get_mut(&node.0) {
            let replaced = std::mem::replace(&mut known.fd, fd);
            drop(shard);
            return drop(replaced);
        }
        let has_room = shard.order.len() < self.per_shard && NR_IN_ALL.load(Ordering::Relaxed) < self.all_max;
        let evicted = if has_room { None } else { shard.evict() };
        // Otherwise the descriptor would take the place of another volume's.
        if has_room || evicted.is_some() {
            shard.order.push_back(node.0);
            shard.by_node.insert(node.0, CachedDescriptor::new(fd));
        }
        drop(shard);
        drop(evicted);
    }

    /// Forgets the descriptor of an inode.
    pub(crate) fn remove(&self, node: NodeId) {
        let mut shard = self.shard(node).lock();
        let removed = shard.by_node.remove(&node.0);
        if removed.is_some() {
            // Not many: a shard has its bound.
            shard.order.retain(|&other| other != node.0);
        }
        drop(shard);
        drop(removed);
    }

    /// Closes all cached descriptors, because the process has none left.
    pub(crate) fn clear(&self) {
        for shard in &self.shards {
            let all = std::mem::take(&mut *shard.lock());
            drop(all);
        }
    }

    /// Returns the number of cached descriptors.
    pub(crate) fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().order.len()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fd() -> Arc<OwnedFd> {
        Arc::new(rustix::fs::open("/", rustix::fs::OFlags::PATH, rustix::fs::Mode::empty()).unwrap())
    }

    #[test]
    fn the_bound_holds_whatever_is_put() {
        let cache = DescriptorCache::new(16, usize::MAX);
        let one = fd();
        for node in 0..1000 {
            cache.put(NodeId(node), Arc::clone(&one));
            assert!(cache.len() <= 16);
        }
        assert_eq!(cache.len(), 16);
        for node in 0..1000 {
            cache.remove(NodeId(node));
        }
        assert_eq!((cache.len(), Arc::strong_count(&one)), (0, 1));
    }

    #[test]
    fn what_is_used_stays_longer() {
        let cache = DescriptorCache::new(2 * NR_SHARDS, usize::MAX);
        let step = NR_SHARDS as u64;
        cache.put(NodeId(0), fd());
        cache.put(NodeId(step), fd());
        assert!(cache.get(NodeId(0)).is_some());
        cache.put(NodeId(2 * step), fd());
        assert!(cache.get(NodeId(0)).is_some());
        assert!(cache.get(NodeId(step)).is_none());
    }

    #[test]
    fn removal_keeps_the_others() {
        let cache = DescriptorCache::new(8 * NR_SHARDS, usize::MAX);
        let step = NR_SHARDS as u64;
        for n in 0..5 {
            cache.put(NodeId(n * step), fd());
        }
        cache.remove(NodeId(step));
        for n in [0, 2, 3, 4] {
            assert!(cache.get(NodeId(n * step)).is_some(), "{n}");
        }
        cache.clear();
        assert_eq!(cache.len(), 0);
    }
}
