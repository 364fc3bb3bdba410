//! How an inode leaves the table: the kernel forgets it, is asked to forget it, or its cached
//! content is no longer needed.
//!
//! Pages are evicted before names. An inode with cached pages is kept for them even after the
//! kernel has forgotten it. So the kernel is not asked to forget it: this would free nothing, and
//! cost a lookup later. An inode without pages leaves the table when the kernel forgets it. Content
//! restorable with one `stat` of the host's file is dropped before the name.

use std::sync::Arc;

use super::{InodeEntry, InodeTable, Removed};
use crate::attr::NodeId;
use crate::host::content::Content;
use crate::metadata_charge::CONTENT_BYTES;
use crate::name_lists::Asking;
use crate::name_reclaim::LeaveOutcome;

impl InodeEntry {
    /// Returns the number of pins held by cached content, as opposed to users.
    fn pins_for_content(&self) -> u32 {
        u32::from(self.is_kept) + u32::from(self.lingers)
    }

    /// Returns whether the kernel refers to the inode and no process is known to use it: it is not
    /// open, and not a directory with known names.
    fn is_idle_name(&self) -> bool {
        self.nlookup > 0 && self.pins <= self.pins_for_content() + self.nr_silent
    }
}

impl InodeTable {
    /// Releases lookups of the kernel; an excess is ignored. With `keep`, an inode with cached
    /// pages is pinned when its last lookup is released; returns `true` if it was.
    pub(crate) fn forget(&self, node: NodeId, nr_lookups: u64, keep: bool) -> (Vec<Removed>, bool) {
        let content = self.with(node, |entry| {
            let is_last = entry.nlookup <= nr_lookups;
            entry.content.clone().filter(|_| is_last).map(|content| (content, keep && !entry.is_nameless))
        });
        let has_pages = content.flatten().is_some_and(|(content, may_keep)| {
            if let Some(pages) = content.kernel_pages() {
                // The pages went with the kernel's inode, unless it has been looked up again.
                let moment = pages.moment();
                if self.is_last_lookup(node, nr_lookups) {
                    pages.forget_before(moment);
                }
            }
            may_keep && content.has_cached_pages()
        });
        let mut is_newly_kept = false;
        let removed = self.release(node, |entry| {
            entry.nlookup = entry.nlookup.saturating_sub(nr_lookups);
            if entry.nlookup > 0 || entry.is_kept == has_pages {
                return;
            }
            entry.is_kept = has_pages;
            entry.pins = if has_pages { entry.pins + 1 } else { entry.pins - 1 };
            is_newly_kept = has_pages;
        });
        (removed, is_newly_kept)
    }

    /// Returns whether the kernel has no more than these lookups of an inode.
    pub(crate) fn is_last_lookup(&self, node: NodeId, nr_lookups: u64) -> bool {
        self.with(node, |entry| entry.nlookup <= nr_lookups) == Some(true)
    }

    /// Decides whether to ask the kernel to forget an inode. An inode looked up since the last call
    /// gets a second chance. So does an inode with content that can be dropped instead. Without
    /// `keep`, inodes are not kept for their pages.
    pub(crate) fn ask_to_leave(
        &self,
        node: NodeId,
        now_ms: u32,
        with_names: bool,
        keep: bool,
    ) -> LeaveOutcome {
        let content = self.with(node, |entry| {
            let is_idle = entry.is_idle_name() && !entry.place.take_used();
            is_idle.then(|| entry.content.clone())
        });
        let Some(Some(content)) = content else { return LeaveOutcome::Kept };
        if let Some(content) = content {
            if keep && content.has_cached_pages() {
                return LeaveOutcome::Kept;
            }
            if let Some(bytes) = self.drop_spare(node, &content) {
                return LeaveOutcome::ContentDropped(bytes);
            }
        }
        let leave = self.with(node, |entry| {
            if !entry.is_idle_name() {
                return LeaveOutcome::Kept;
            }
            let (bytes, asking) = (entry.bytes(), entry.place.ask(now_ms));
            self.update_list(node, entry);
            match asking {
                Asking::Expected => return LeaveOutcome::Requested(bytes),
                Asking::InVain => return LeaveOutcome::Kept,
                Asking::Now => {}
            }
            let names = entry.names.iter().filter(|_| with_names);
            let names = names.map(|name| (name.parent, name.name.clone())).collect();
            LeaveOutcome::Idle { kind: entry.kind, names, bytes }
        });
        leave.unwrap_or(LeaveOutcome::Kept)
    }

    /// Notes that the kernel did not take a request to forget an inode.
    pub(crate) fn not_asked(&self, node: NodeId) {
        let _ = self.with(node, |entry| entry.place.not_asked());
    }

    /// Drops content that the next open can recreate. Returns the bytes freed for the group paying
    /// for the entry.
    fn drop_spare(&self, node: NodeId, content: &Arc<Content>) -> Option<u64> {
        if !content.is_spare() {
            return None;
        }
        // An open pins the inode first. So no open file uses the content, and none is about to.
        let dropped = self.with(node, |entry| {
            let is_it = entry.content.as_ref().is_some_and(|here| Arc::ptr_eq(here, content));
            let is_payers = entry.charge.as_ref().is_some_and(|charge| charge.owner() == content.owner());
            (is_it && entry.pins <= u32::from(entry.is_kept)).then(|| (entry.content.take(), is_payers))
        });
        dropped.flatten().map(|(_, is_payers)| if is_payers { CONTENT_BYTES } else { 0 })
    }

    /// Removes an inode forgotten by the kernel and kept for cached pages, if no page is left.
    pub(crate) fn drop_if_unused(&self, node: NodeId) -> Vec<Removed> {
        let content =
            self.with(node, |entry| entry.content.clone().filter(|_| entry.is_kept && entry.nlookup == 0));
        if content.flatten().is_none_or(|content| content.has_cached_pages()) {
            return Vec::new();
        }
        let is_unused = self.with(node, |entry| entry.nlookup == 0 && std::mem::take(&mut entry.is_kept));
        if is_unused == Some(true) { self.unpin(node) } else { Vec::new() }
    }
}

/// The table alone: names, references, which inodes stay.
#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::Ordering;

    use crate::attr::{FileKind, NodeId};
    use crate::host::inode_names::NAMES_MAX;
    use crate::host::inode_table::{InodeTable, Loss};
    use crate::host::syscalls::InodeKey;
    use crate::volume_config::NR_SHARDS_MAX;

    const FILE: FileKind = FileKind::Regular;
    const DIR: FileKind = FileKind::Directory;

    fn key(ino: u64) -> InodeKey {
        InodeKey { ino, birth: 0 }
    }
    fn table() -> InodeTable {
        InodeTable::numbered(key(1), 0, NR_SHARDS_MAX)
    }
    fn add(table: &InodeTable, ino: u64, kind: FileKind, parent: NodeId, name: &str) -> NodeId {
        table.count(key(ino), kind, (None, None), parent, (name.as_bytes(), None)).unwrap().0
    }
    fn path(table: &InodeTable, node: NodeId) -> Option<String> {
        let parts = table.path(node, 0)?;
        Some(parts.iter().map(|p| String::from_utf8_lossy(p)).collect::<Vec<_>>().join("/"))
    }

    #[test]
    fn hard_links_are_one_inode() {
        let table = table();
        let a = add(&table, 10, FILE, NodeId::ROOT, "a");
        let b = add(&table, 10, FILE, NodeId::ROOT, "b");
        assert_eq!(a, b);
        assert_eq!(path(&table, a).as_deref(), Some("b"));
        drop(table.name_removed(a, NodeId::ROOT, b"b", Loss::OneName, 1));
        assert_eq!(path(&table, a).as_deref(), Some("a"));
        assert!(table.forget(a, 1, false).0.is_empty());
        assert_eq!(table.forget(a, 1, false).0.len(), 1);
        assert_eq!(table.len(), 1);
    }

    #[test]
    fn a_directory_stays_while_a_child_needs_it_for_its_path() {
        let table = table();
        let dir = add(&table, 10, DIR, NodeId::ROOT, "d");
        let file = add(&table, 11, FILE, dir, "f");
        assert!(table.forget(dir, 1, false).0.is_empty());
        assert_eq!(path(&table, file).as_deref(), Some("d/f"));
        assert_eq!(table.forget(file, 1, false).0.len(), 2);
        assert_eq!(table.len(), 1);
    }

    #[test]
    fn a_renamed_directory_takes_its_children_along() {
        let table = table();
        let a = add(&table, 10, DIR, NodeId::ROOT, "a");
        let b = add(&table, 11, DIR, NodeId::ROOT, "b");
        let file = add(&table, 12, FILE, a, "f");
        drop(table.name_added(a, Some((NodeId::ROOT, b"a")), b, (b"c", None)));
        assert_eq!(path(&table, file).as_deref(), Some("b/c/f"));
    }

    #[test]
    fn forgetting_too_much_is_harmless_and_the_root_stays() {
        let table = table();
        let pinned = add(&table, 10, FILE, NodeId::ROOT, "a");
        assert!(table.pin(pinned));
        assert!(table.forget(pinned, u64::MAX, false).0.is_empty());
        assert_eq!(table.unpin(pinned).len(), 1);
        assert!(table.forget(NodeId(999), 3, false).0.is_empty());
        assert!(table.forget(NodeId::ROOT, u64::MAX, false).0.is_empty());
        assert_eq!(table.len(), 1);
    }

    #[test]
    fn a_number_that_came_back_as_another_kind_is_another_inode() {
        let table = table();
        let old = add(&table, 10, FILE, NodeId::ROOT, "a");
        let new = add(&table, 10, DIR, NodeId::ROOT, "a");
        assert_ne!(old, new);
        assert_eq!(table.find(key(10)), Some(new));
        assert_eq!(table.forget(old, 1, false).0.len(), 1);
        assert_eq!(table.find(key(10)), Some(new));
    }

    #[test]
    fn an_inode_without_a_name_has_no_path() {
        let table = table();
        let node = add(&table, 10, FILE, NodeId::ROOT, "a");
        let fd =
            Arc::new(rustix::fs::open("/", rustix::fs::OFlags::PATH, rustix::fs::Mode::empty()).unwrap());
        let loss = Loss::LastName(Arc::clone(&fd));
        let (removed, handed_back) = table.name_removed(node, NodeId::ROOT, b"a", loss, 1);
        assert!(removed.is_empty() && handed_back.is_none());
        assert_eq!(path(&table, node), None);
        // There is a bound on such descriptors.
        let other = add(&table, 11, FILE, NodeId::ROOT, "b");
        let (_, handed_back) = table.name_removed(other, NodeId::ROOT, b"b", Loss::LastName(fd), 1);
        assert!(handed_back.is_some());
        assert_eq!(table.forget(other, 1, false).0.len(), 1);
        let removed = table.forget(node, 1, false).0;
        assert!(removed[0].is_nameless);
        assert_eq!(table.nr_orphans.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn names_of_one_inode_are_bounded() {
        let table = table();
        for n in 0..100 {
            add(&table, 10, FILE, NodeId::ROOT, &format!("n{n}"));
        }
        let node = table.find(key(10)).unwrap();
        assert!(table.path(node, NAMES_MAX - 1).is_some());
        assert!(table.path(node, NAMES_MAX).is_none());
        assert_eq!(table.forget(node, 100, false).0.len(), 1);
    }
}
