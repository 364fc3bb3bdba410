//! A kernel above a volume, with names in its cache.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, Weak};

use umemcg_vfs::{Caller, Entry, HostVolume, IdleInode, KernelCache, Lookup, NodeId, Volume};

use super::{Fixture, name};

/// Refers to what it has looked up, and lets go of what it is asked for, immediately, but for what
/// it uses.
#[derive(Debug)]
pub struct FakeKernel {
    vfs: Weak<HostVolume>,
    by_name: bool,
    refs: Mutex<HashMap<NodeId, u64>>,
    uses: Mutex<HashSet<NodeId>>,
    pub asked: Mutex<Vec<IdleInode>>,
}

impl FakeKernel {
    pub fn above(v: &Fixture, by_name: bool) -> Arc<Self> {
        let kernel = Arc::new(Self {
            vfs: Arc::downgrade(&v.vfs),
            by_name,
            refs: Mutex::default(),
            uses: Mutex::default(),
            asked: Mutex::default(),
        });
        v.vfs.set_kernel(Arc::<Self>::clone(&kernel));
        kernel
    }

    pub fn lookup(&self, caller: &Caller, parent: NodeId, n: &str) -> Entry {
        self.has(self.vfs.upgrade().unwrap().lookup(caller, parent, name(n)).unwrap())
    }

    /// Notes an entry that was handed out.
    pub fn has(&self, entry: Entry) -> Entry {
        *self.refs.lock().unwrap().entry(entry.node).or_default() += 1;
        entry
    }

    /// Does not let go of an inode.
    pub fn uses(&self, node: NodeId) -> NodeId {
        self.uses.lock().unwrap().insert(node);
        node
    }

    pub fn no_longer_uses(&self, node: NodeId) {
        self.uses.lock().unwrap().remove(&node);
    }

    pub fn knows(&self, node: NodeId) -> bool {
        self.refs.lock().unwrap().contains_key(&node)
    }

    pub fn asked(&self) -> Vec<NodeId> {
        self.asked.lock().unwrap().iter().map(|idle| idle.node).collect()
    }

    pub fn forget_all(&self) {
        let all: Vec<_> = self.refs.lock().unwrap().drain().collect();
        let vfs = self.vfs.upgrade().unwrap();
        all.into_iter().for_each(|(node, nr)| vfs.forget(node, nr));
    }
}

impl KernelCache for FakeKernel {
    fn asks_by_name(&self) -> bool {
        self.by_name
    }

    fn let_go(&self, idle: Vec<IdleInode>) -> bool {
        for idle in &idle {
            if self.uses.lock().unwrap().contains(&idle.node) {
                continue;
            }
            let known = self.refs.lock().unwrap().remove(&idle.node);
            if let (Some(nr), Some(vfs)) = (known, self.vfs.upgrade()) {
                vfs.forget(idle.node, nr);
            }
        }
        self.asked.lock().unwrap().extend(idle);
        true
    }
}
