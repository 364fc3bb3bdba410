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

use umemcg::shrinker::{Count, Scan, Scanned, ShrinkTarget, Shrinker, Usage};

use crate::host::inode_table::NODE_BYTES;
use crate::host::inodes::HostInodes;
use crate::name_lists::{Listed, NameLists};
use crate::name_reclaim;

/// The cost of recreating a name. To make room for one page, a dozen names must be forgotten, and
/// each takes a request to forget it, the kernel's answer and a later lookup. A page's cost is
/// [`DEFAULT_SEEKS`](umemcg::shrinker::DEFAULT_SEEKS).
const NAME_SEEKS: u32 = 16;

/// Names in the kernel's cache, each with its inode.
#[derive(Debug)]
struct DentryShrinker(Weak<HostInodes>);

/// Inodes kept only by the daemon, each with its names.
#[derive(Debug)]
struct InodeShrinker(Weak<HostInodes>);

/// Registers the shrinkers of a volume.
pub(crate) fn register(inodes: &Arc<HostInodes>) -> NameLists {
    let [dentry, inode] = [Arc::downgrade(inodes), Arc::downgrade(inodes)];
    let (dentry, inode) = (Arc::new(DentryShrinker(dentry)), Arc::new(InodeShrinker(inode)));
    NameLists::new(inodes.engine.reclaimer(), dentry, inode)
}

/// Calls `look` with the inodes of a volume and their lists.
fn lists_of<R>(inodes: &Weak<HostInodes>, look: impl FnOnce(&Arc<HostInodes>, &NameLists) -> R) -> Option<R> {
    let inodes = inodes.upgrade()?;
    let lists = inodes.table.lists()?;
    Some(look(&inodes, lists))
}

fn count(inodes: &Weak<HostInodes>, target: &ShrinkTarget<'_>, on: Listed) -> Count {
    lists_of(inodes, |_, lists| lists.count(on, target)).unwrap_or(Count::Empty)
}

fn usage(inodes: &Weak<HostInodes>, target: &ShrinkTarget<'_>, on: Listed) -> Usage {
    lists_of(inodes, |_, lists| lists.usage(on, target, NODE_BYTES)).unwrap_or_default()
}

impl Shrinker for DentryShrinker {
    fn name(&self) -> String {
        "dentry".into()
    }

    fn seeks(&self) -> u32 {
        NAME_SEEKS
    }

    #[doc(alias = "super_cache_count")]
    fn count(&self, target: &ShrinkTarget<'_>) -> Count {
        count(&self.0, target, Listed::Names)
    }

    #[doc(alias = "prune_dcache_sb")]
    fn scan(&self, target: &ShrinkTarget<'_>, nr: u64) -> Scan {
        lists_of(&self.0, |inodes, lists| ask_for_names(inodes, lists, target, nr)).unwrap_or(Scan::Stop)
    }

    fn usage(&self, target: &ShrinkTarget<'_>) -> Usage {
        usage(&self.0, target, Listed::Names)
    }
}

impl Shrinker for InodeShrinker {
    fn name(&self) -> String {
        "inode".into()
    }

    fn count(&self, target: &ShrinkTarget<'_>) -> Count {
        count(&self.0, target, Listed::Inodes)
    }

    #[doc(alias = "prune_icache_sb")]
    fn scan(&self, target: &ShrinkTarget<'_>, nr: u64) -> Scan {
        lists_of(&self.0, |inodes, lists| drop_inodes(inodes, lists, target, nr)).unwrap_or(Scan::Stop)
    }

    fn usage(&self, target: &ShrinkTarget<'_>) -> Usage {
        usage(&self.0, target, Listed::Inodes)
    }
}

/// Asks the kernel to forget the oldest names of a group.
fn ask_for_names(inodes: &HostInodes, lists: &NameLists, target: &ShrinkTarget<'_>, nr: u64) -> Scan {
    let Some(kernel) = inodes.kernel.get() else { return Scan::Stop };
    let (now_ms, by_name, keep) = (lists.now_ms(), kernel.asks_by_name(), inodes.max_kept > 0);
    let leave = |node| inodes.table.ask_to_leave(node, now_ms, by_name, keep);
    let not_asked = |node| inodes.table.not_asked(node);
    name_reclaim::ask_for_names(lists, &**kernel, (target.group, nr), leave, not_asked)
}

/// Drops the oldest inodes of a group kept only by the daemon, if no page of them is left.
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
