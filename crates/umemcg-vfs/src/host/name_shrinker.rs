//! Names and inodes of a volume as two shrinkers.
//!
//! The daemon cannot free a name by itself, because the kernel refers to the inode. So the shrinker
//! of names picks the oldest inodes not known to be in use and asks the kernel to forget them
//! ([`KernelCache`](crate::KernelCache)). It reports the bytes to be released; reclaim waits a
//! short time for the release. If the kernel does not forget an inode (a working directory, a file
//! opened unseen by the daemon), it is requested again only after a while. Directories are
//! requested after their entries, because a name pins its directory here as in the kernel.
//!
//! An inode with cached pages is kept for them, so its name is not asked for either: pages are
//! evicted first. A file without pages loses its content, most of its cost, before its name: this
//! needs no help from the kernel. The shrinker of inodes immediately frees inodes forgotten by the
//! kernel and kept for pages, once no page is left.

use std::sync::{Arc, Weak};

use umemcg::shrinker::{Count, DEFAULT_SEEKS, Scan, Scanned, ShrinkTarget, Shrinker, Usage};

use crate::host::inode_table::NODE_BYTES;
use crate::host::inodes::HostInodes;
use crate::name_lists::{Listed, NameLists};
use crate::name_reclaim;

/// The cost of recreating a name. To make room for one page, a dozen names must be forgotten, and
/// each takes a request to forget it, the kernel's answer and a later lookup. A page's cost is
/// [`DEFAULT_SEEKS`].
const NAME_SEEKS: u32 = 16;

/// One of a volume's two shrinkers: of names in the kernel's cache, each with its inode, or of
/// inodes kept only by the daemon, each with its names.
#[derive(Debug)]
struct NameShrinker {
    inodes: Weak<HostInodes>,
    on: Listed,
}

/// Registers the shrinkers of a volume.
pub(crate) fn register(inodes: &Arc<HostInodes>) -> NameLists {
    let shrinker = |on| Arc::new(NameShrinker { inodes: Arc::downgrade(inodes), on });
    NameLists::new(inodes.engine.reclaimer(), shrinker(Listed::Names), shrinker(Listed::Inodes))
}

impl NameShrinker {
    /// Calls `look` with the inodes of the volume and their lists.
    fn with_lists<R>(&self, look: impl FnOnce(&HostInodes, &NameLists) -> R) -> Option<R> {
        let inodes = self.inodes.upgrade()?;
        let lists = inodes.table.lists()?;
        Some(look(&inodes, lists))
    }
}

impl Shrinker for NameShrinker {
    fn name(&self) -> String {
        if self.on == Listed::Names { "dentry".into() } else { "inode".into() }
    }

    fn seeks(&self) -> u32 {
        if self.on == Listed::Names { NAME_SEEKS } else { DEFAULT_SEEKS }
    }

    #[doc(alias = "super_cache_count")]
    fn count(&self, target: &ShrinkTarget<'_>) -> Count {
        self.with_lists(|_, lists| lists.count(self.on, target)).unwrap_or(Count::Empty)
    }

    fn scan(&self, target: &ShrinkTarget<'_>, nr: u64) -> Scan {
        let scan = if self.on == Listed::Names { ask_for_names } else { drop_inodes };
        self.with_lists(|inodes, lists| scan(inodes, lists, target, nr)).unwrap_or(Scan::Stop)
    }

    fn usage(&self, target: &ShrinkTarget<'_>) -> Usage {
        self.with_lists(|_, lists| lists.usage(self.on, target, NODE_BYTES)).unwrap_or_default()
    }
}

/// Asks the kernel to forget the oldest names of a group.
#[doc(alias = "prune_dcache_sb")]
fn ask_for_names(inodes: &HostInodes, lists: &NameLists, target: &ShrinkTarget<'_>, nr: u64) -> Scan {
    let Some(kernel) = inodes.kernel.get() else { return Scan::Stop };
    let (now_ms, by_name, keep) = (lists.now_ms(), kernel.asks_by_name(), inodes.max_kept > 0);
    let leave = |node| inodes.table.ask_to_leave(node, now_ms, by_name, keep);
    let not_asked = |node| inodes.table.not_asked(node);
    name_reclaim::ask_for_names(lists, &**kernel, (target.group, nr), leave, not_asked)
}

/// Drops the oldest inodes of a group kept only by the daemon, if no page of them is left.
#[doc(alias = "prune_icache_sb")]
fn drop_inodes(inodes: &HostInodes, lists: &NameLists, target: &ShrinkTarget<'_>, nr: u64) -> Scan {
    let nodes = lists.oldest(Listed::Inodes, target.group, nr);
    let mut done = Scanned { scanned: nodes.len() as u64, ..Scanned::default() };
    for node in nodes {
        let removed = inodes.table.drop_if_unused(node);
        done.freed_bytes += removed.iter().map(|removed| removed.bytes).sum::<u64>();
        inodes.dispose(removed);
    }
    Scan::Done(done)
}
