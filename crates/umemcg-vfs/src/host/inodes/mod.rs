//! The referenced inodes of a host volume, and the state kept on the host for each.
//!
//! `resolve` finds an inode again on the host, and `files` opens its file for I/O. `closed` decides
//! about the state after the last close: host files with data to write back, cached content
//! forgotten by the kernel.

mod closed;
mod files;
mod lingering;
mod resolve;

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, OnceLock};

use rustix::io::Errno;
use umemcg_base::{LeafMutex, Rank, RankedMutex};

use self::lingering::Lingering;
use crate::attr::{FileKind, NodeId};
use crate::error::VfsError;
use crate::host::content::Content;
use crate::host::descriptor_cache::DescriptorCache;
use crate::host::descriptor_share::DescriptorShare;
use crate::host::directory::HostDirectory;
use crate::host::inode_table::take_over::InodeCharges;
use crate::host::inode_table::{InodeTable, Removed};
use crate::host::outside_watch::OutsideWatch;
use crate::host::syscalls;
use crate::kernel_cache::KernelCache;
use crate::kernel_listing::KernelListing;
use crate::kernel_page_lists::KernelPageLists;
use crate::kernel_pages::KernelPages;
use umemcg::OwnerId;
use umemcg::{ChargeEffort, Engine, Group};

/// See the module text. One for each volume, shared with its open files.
#[derive(Debug)]
pub(crate) struct HostInodes {
    pub(crate) host_dir: Arc<HostDirectory>,
    pub(crate) table: InodeTable,
    pub(crate) descriptors: DescriptorCache,
    /// Nodes with content to write back after the last close, oldest first.
    lingering: RankedMutex<Lingering>,
    /// (C) The most lingering nodes, and the most orphan descriptors.
    pub(crate) max_held: usize,
    /// Nodes kept for their cached content, oldest first; some may be in use again or gone.
    kept: RankedMutex<VecDeque<NodeId>>,
    /// (C) The most kept nodes.
    pub(crate) max_kept: usize,
    /// The kernel's cache of inodes, once it is set.
    pub(crate) kernel: OnceLock<Arc<dyn KernelCache>>,
    /// The watch for changes by other programs, if there is one.
    pub(crate) watch: OnceLock<OutsideWatch>,
    /// The shares of descriptors held for inodes without a name that may be open without an open
    /// here.
    pub(crate) orphan_shares: LeafMutex<HashMap<NodeId, DescriptorShare>>,
    listings: Listings,
    /// The kernel's pages, if it keeps any.
    pub(crate) kernel_page_lists: OnceLock<Arc<KernelPageLists>>,
    /// Last, because everything above gives memory back to it.
    pub(crate) engine: Arc<Engine>,
}

/// The kernel's listings of directories: of each from its first listing on until the kernel forgets
/// the inode.
#[derive(Debug, Default)]
struct Listings(LeafMutex<HashMap<NodeId, Arc<KernelListing>>>);

impl Listings {
    fn get(&self, node: NodeId) -> Option<Arc<KernelListing>> {
        self.0.lock().get(&node).cloned()
    }

    /// Adds the first listing of a directory. Returns the listing of another thread, if it was
    /// first.
    fn add(&self, node: NodeId, fresh: Arc<KernelListing>) -> Arc<KernelListing> {
        // Dropped after the lock is released: the drop of a listing takes other locks.
        let kept = Arc::clone(self.0.lock().entry(node).or_insert_with(|| Arc::clone(&fresh)));
        drop(fresh);
        kept
    }

    fn remove(&self, node: NodeId) -> Option<Arc<KernelListing>> {
        let mut listings = self.0.lock();
        let removed = listings.remove(&node);
        if listings.capacity() > 64 && listings.len() < listings.capacity() / 8 {
            listings.shrink_to_fit();
        }
        removed
    }
}

/// The kind and content of an inode, copied out of the table.
#[derive(Debug, Clone)]
pub(crate) struct Found {
    pub(crate) kind: FileKind,
    pub(crate) content: Option<Arc<Content>>,
}

impl HostInodes {
    pub(crate) fn new(
        engine: Arc<Engine>,
        host_dir: Arc<HostDirectory>,
        (max_idle_descriptors, max_in_all): (usize, usize),
        max_kept: usize,
        (base, nr_shards): (u64, usize),
    ) -> Self {
        Self {
            engine,
            table: InodeTable::numbered(host_dir.root_stat.key(), base, nr_shards),
            host_dir,
            descriptors: DescriptorCache::new(max_idle_descriptors, max_in_all),
            lingering: RankedMutex::new(Rank::ObjectOwner, Lingering::default()),
            max_held: max_idle_descriptors.max(1),
            kept: RankedMutex::new(Rank::ObjectOwner, VecDeque::new()),
            max_kept,
            kernel: OnceLock::new(),
            watch: OnceLock::new(),
            orphan_shares: LeafMutex::default(),
            listings: Listings::default(),
            kernel_page_lists: OnceLock::new(),
        }
    }

    /// Returns whether processes open files of the volume without a request.
    pub(crate) fn opens_silently(&self) -> bool {
        self.kernel.get().is_some_and(|kernel| kernel.opens_silently())
    }

    /// Returns the entry of a node.
    ///
    /// # Errors
    /// `ESTALE` for an unknown node.
    pub(crate) fn find(&self, node: NodeId) -> Result<Found, Errno> {
        self.table
            .with(node, |entry| Found { kind: entry.kind, content: entry.content.clone() })
            .ok_or(Errno::STALE)
    }

    /// Returns the content of a regular file. The first open creates it, and the group then pays
    /// for the inode, too.
    pub(crate) fn content(&self, node: NodeId, group: &Arc<Group>) -> Result<Arc<Content>, VfsError> {
        if let Some(content) = self.find(node)?.content {
            return Ok(content);
        }
        let stat = syscalls::stat_fd(&self.descriptor(node)?)?;
        let effort = self.charge_effort();
        let fresh = Content::new(effort, &self.engine, &self.host_dir, &stat, group)?;
        fresh.store.times.took_content(self.host_dir.clock.now());
        let mut charges = match self.table.nr_names_of_another(node, fresh.list_owner()) {
            Some(nr_names) => Some(InodeCharges::take(effort, &self.engine, group, nr_names)?),
            None => None,
        };
        let content = self.table.set_content(node, &fresh, charges.as_mut());
        Ok(content.ok_or(Errno::STALE)?)
    }

    /// Returns the kernel's pages of a file, if it may keep any on this volume.
    pub(crate) fn kernel_pages<'c>(
        &self,
        node: NodeId,
        content: &'c Content,
        group: &Group,
    ) -> Option<&'c Arc<KernelPages>> {
        let lists = self.kernel_page_lists.get()?;
        Some(content.kernel_pages_or(|| KernelPages::new(lists, (node, FileKind::Regular), group)))
    }

    /// Returns the listing of a directory, if the kernel may keep one on this volume.
    pub(crate) fn listing(&self, node: NodeId, group: &Group) -> Option<Arc<KernelListing>> {
        let lists = self.kernel_page_lists.get()?;
        let known = self.listings.get(node);
        // Made with nothing locked: it is charged.
        Some(known.unwrap_or_else(|| {
            let pages = KernelPages::new(lists, (node, FileKind::Directory), group);
            self.listings.add(node, Arc::new(KernelListing::new(pages)))
        }))
    }

    /// Returns the charge effort of a request that finds no room for a name, for content or for a
    /// handle. The thread notifying an older kernel of stale names may wait for the request.
    pub(crate) fn charge_effort(&self) -> ChargeEffort {
        match self.kernel.get().is_some_and(|kernel| kernel.asks_by_name()) {
            true => ChargeEffort::Opportunistic,
            false => ChargeEffort::Full,
        }
    }

    /// Releases the remains of entries removed from the table.
    pub(crate) fn dispose(&self, removed: Vec<Removed>) {
        let mut released: Vec<(OwnerId, u64)> = Vec::new();
        for gone in removed {
            self.descriptors.remove(gone.node);
            if let (Some(content), true) = (&gone.content, gone.is_nameless) {
                content.discard();
            }
            if gone.is_nameless {
                let share = self.orphan_shares.lock().remove(&gone.node);
                drop(share);
            }
            match (gone.owner.filter(|_| gone.was_asked), released.last_mut()) {
                (Some(owner), Some(last)) if last.0 == owner => last.1 += gone.bytes,
                (Some(owner), _) => released.push((owner, gone.bytes)),
                (None, _) => {}
            }
        }
        // After the charges are released: reclaim may wait for the release of inodes that the
        // kernel was asked to forget.
        for (owner, bytes) in released {
            owner.with_group(|group| self.engine.reclaimer().note_released(group, bytes));
        }
    }
}
