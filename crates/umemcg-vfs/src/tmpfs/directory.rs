//! The entries of a tmpfs directory: by name for look-ups, by cookie for listings.
//!
//! Cookies increase and are never reused in a directory. So a position in a listing stays valid
//! when entries are added or removed, and a remaining entry is listed once.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use crate::attr::NodeId;
use crate::slab::Slab;

/// A name of an entry.
pub(super) type Name = Arc<[u8]>;

/// The cost of an entry beside the bytes of its name.
pub(super) const ENTRY_BYTES: u64 = 160;
/// Cookies of `.` and `..` are below this.
pub(super) const FIRST_COOKIE: u64 = 3;

/// A name in a directory.
#[derive(Debug)]
pub(super) struct DirEntry {
    pub(super) node: NodeId,
    cookie: u64,
    /// The charge of the name; moves with the entry at a rename.
    charge: Slab,
}

/// See the module text.
#[derive(Debug)]
pub(super) struct Directory {
    pub(super) parent: NodeId,
    by_name: HashMap<Name, DirEntry>,
    by_cookie: BTreeMap<u64, Name>,
    next_cookie: u64,
}

impl Directory {
    pub(super) fn new(parent: NodeId) -> Self {
        Self { parent, by_name: HashMap::new(), by_cookie: BTreeMap::new(), next_cookie: FIRST_COOKIE }
    }

    pub(super) fn len(&self) -> usize {
        self.by_name.len()
    }

    pub(super) fn get(&self, name: &[u8]) -> Option<NodeId> {
        self.by_name.get(name).map(|entry| entry.node)
    }

    /// Adds a new name.
    pub(super) fn insert(&mut self, name: Name, node: NodeId, charge: Slab) {
        let cookie = self.next_cookie;
        self.next_cookie += 1;
        self.by_cookie.insert(cookie, Arc::clone(&name));
        let old = self.by_name.insert(name, DirEntry { node, cookie, charge });
        debug_assert!(old.is_none(), "an entry was overwritten");
    }

    /// Removes a name; returns its charge, to be dropped with no lock held.
    pub(super) fn remove(&mut self, name: &[u8]) -> Option<(NodeId, Slab)> {
        let entry = self.by_name.remove(name)?;
        self.by_cookie.remove(&entry.cookie);
        if self.by_name.capacity() > 64 && self.by_name.len() * 8 < self.by_name.capacity() {
            self.by_name.shrink_to_fit();
        }
        Some((entry.node, entry.charge))
    }

    /// Makes a name lead to another inode.
    pub(super) fn redirect(&mut self, name: &[u8], node: NodeId) {
        if let Some(entry) = self.by_name.get_mut(name) {
            entry.node = node;
        }
    }

    /// Returns the entries after a cookie, in order.
    pub(super) fn after(&self, cookie: u64) -> impl Iterator<Item = (u64, &Name, NodeId)> {
        self.by_cookie
            .range(cookie.saturating_add(1)..)
            .filter_map(|(&cookie, name)| Some((cookie, name, self.by_name.get(name)?.node)))
    }
}
