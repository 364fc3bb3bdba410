//! The way from a node id to the object on the host.
//!
//! Two ways, see [`Resolve`]: by handle, or by the names that led to the inode, resolved beneath
//! the volume's directory without following any link, and checked to be the inode that was meant. A
//! mismatch is `ESTALE`. Both result in a descriptor, which goes to a bounded cache. Only
//! directories found by handle have a descriptor that can do I/O.

use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, OnceLock};

use rustix::fs::{Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use umemcg_arena::handle::{FileHandle, name_to_handle, open_by_handle};
use umemcg_base::{Rank, RankedMutex};

use crate::allowance::ReclaimEffort;
use crate::attr::{FileKind, NodeId};
use crate::content::{Content, Opening};
use crate::descriptor_cache::DescriptorCache;
use crate::descriptor_share::{DescriptorShare, Purpose};
use crate::error::VfsError;
use crate::host::{self, InodeKey};
use crate::host_directory::HostDirectory;
use crate::host_store::InUse;
use crate::inode_table::{InodeCharges, InodeEntry, InodeTable, Removed};
use crate::kernel_cache::KernelCache;
use crate::kernel_page_lists::KernelPageLists;
use crate::volume_config::{IoMode, Resolve};
use umemcg::{Engine, Group};

/// Longest path that one resolution takes, in bytes (`PATH_MAX` less the zero).
const PATH_BYTES_MAX: usize = 4095;

/// Most closed files that are checked when a group has used up its share of descriptors.
const REAPED_FOR_SHARE: usize = 64;

/// The state that all operations on a volume share, open files included.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) host_dir: Arc<HostDirectory>,
    pub(crate) table: InodeTable,
    pub(crate) descriptors: DescriptorCache,
    /// Nodes whose content is written back after the last close, oldest first.
    pub(crate) lingering: RankedMutex<Lingering>,
    /// (C) Most lingering nodes, and most orphan descriptors.
    pub(crate) max_held: usize,
    /// Nodes kept for their cached content, oldest first; some may be in use again or gone.
    kept: RankedMutex<VecDeque<NodeId>>,
    /// (C) Most kept nodes.
    pub(crate) max_kept: usize,
    /// The kernel's cache of inodes, once it is set.
    pub(crate) kernel: OnceLock<Arc<dyn KernelCache>>,
    /// The pages that it keeps, if it keeps any.
    pub(crate) kernel_page_lists: OnceLock<Arc<KernelPageLists>>,
    /// Last, because everything above gives memory back to it.
    pub(crate) engine: Arc<Engine>,
}

/// Nodes of closed files whose host file is open because they have data to write back. Some may be
/// in use again, or gone.
#[derive(Debug, Default)]
pub(crate) struct Lingering {
    /// Their data waits until it is old enough. In the order of their closing.
    waiting: VecDeque<NodeId>,
    /// The flusher was asked for their data.
    asked: VecDeque<NodeId>,
}

impl Lingering {
    /// Notes that a file was closed.
    pub(crate) fn push(&mut self, node: NodeId) {
        self.waiting.push_back(node);
    }

    fn len(&self) -> usize {
        self.waiting.len() + self.asked.len()
    }

    /// Takes up to `max` nodes of each kind, to be checked.
    fn take_oldest(&mut self, max: usize) -> (Vec<NodeId>, Vec<NodeId>) {
        let take = |from: &mut VecDeque<NodeId>| from.drain(..max.min(from.len())).collect();
        (take(&mut self.waiting), take(&mut self.asked))
    }

    /// Puts back the nodes that still linger: waiting ones at the front, in their old order;
    /// requested ones at the end, so that a file that fails does not hide the others.
    fn put_back(&mut self, waiting: Vec<NodeId>, asked: Vec<NodeId>) {
        waiting.into_iter().rev().for_each(|node| self.waiting.push_front(node));
        self.asked.extend(asked);
    }

    /// Returns the nodes closed longest ago, to be written, if more than half of `max` wait.
    /// Several at a time, so that the flusher scans its files once for all of them.
    fn ask_for_oldest(&mut self, max: usize) -> Vec<NodeId> {
        if self.waiting.len() <= max / 2 {
            return Vec::new();
        }
        let nr = (max / 8).clamp(1, self.waiting.len());
        let due: Vec<NodeId> = self.waiting.drain(..nr).collect();
        self.asked.extend(&due);
        due
    }

    /// Returns the node that was requested first, if more than `max` linger in all.
    fn take_beyond(&mut self, max: usize) -> Option<NodeId> {
        if self.len() <= max {
            return None;
        }
        self.asked.pop_front().or_else(|| self.waiting.pop_front())
    }
}

/// The facts about an inode that an operation needs, copied out of the table.
#[derive(Debug, Clone)]
pub(crate) struct Found {
    pub(crate) kind: FileKind,
    pub(crate) content: Option<Arc<Content>>,
}

impl Shared {
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
            kernel_page_lists: OnceLock::new(),
        }
    }

    /// Returns the entry of a node.
    ///
    /// # Errors
    /// `ESTALE` for a node that is not known.
    pub(crate) fn find(&self, node: NodeId) -> Result<Found, Errno> {
        self.table
            .with(node, |entry| Found { kind: entry.kind, content: entry.content.clone() })
            .ok_or(Errno::STALE)
    }

    /// Returns a descriptor of an inode, in general without I/O rights.
    pub(crate) fn descriptor(&self, node: NodeId) -> Result<Arc<OwnedFd>, Errno> {
        if node == NodeId::ROOT {
            return Ok(Arc::clone(&self.host_dir.root));
        }
        if let Some(fd) = self.descriptors.get(node) {
            return Ok(fd);
        }
        let (key, kind, handle, orphan, content) = self
            .table
            .with(node, |entry| {
                let content = entry.content.clone().filter(|_| entry.is_nameless);
                (entry.key, entry.kind, entry.handle.clone(), entry.orphan.clone(), content)
            })
            .ok_or(Errno::STALE)?;
        if let Some(fd) = orphan {
            return Ok(fd);
        }
        if let Some(fds) = content.and_then(|content| content.fds()) {
            let again = self.with_descriptors(|| rustix::io::fcntl_dupfd_cloexec(&fds.buffered, 0))?;
            return Ok(Arc::new(again));
        }
        // A directory that is open for reading needs no path through /proc for its attributes.
        let access =
            if kind == FileKind::Directory { OFlags::RDONLY | OFlags::DIRECTORY } else { OFlags::PATH };
        let fd = match handle {
            Some(handle) => self.open_handle(key, &handle, access).or_else(|_| self.open_names(node, key))?,
            None => self.open_names(node, key)?,
        };
        let fd = Arc::new(fd);
        self.descriptors.put(node, Arc::clone(&fd));
        Ok(fd)
    }

    fn open_handle(&self, key: InodeKey, handle: &FileHandle, access: OFlags) -> Result<OwnedFd, Errno> {
        let fd = self.with_descriptors(|| {
            open_by_handle(self.host_dir.root.as_fd(), handle, access | OFlags::NOFOLLOW)
                .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))
        })?;
        // The handle was found by name after the inode was looked up; it may be another inode's.
        if host::stat_fd(&fd)?.key() == key { Ok(fd) } else { Err(Errno::STALE) }
    }

    fn open_names(&self, node: NodeId, key: InodeKey) -> Result<OwnedFd, Errno> {
        let mut nth = 0;
        while let Some(components) = self.table.path(node, nth) {
            nth += 1;
            match self.with_descriptors(|| self.resolve(&components)) {
                Ok(fd) if host::stat_fd(&fd)?.key() == key => return Ok(fd),
                // The name leads to another inode, or to none.
                Ok(_)
                | Err(
                    Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::XDEV | Errno::STALE | Errno::INVAL,
                ) => {}
                Err(errno) => return Err(errno),
            }
        }
        Err(Errno::STALE)
    }

    /// Opens a path beneath the root without following links; in steps when it is longer than the
    /// kernel takes.
    fn resolve(&self, components: &[Box<[u8]>]) -> Result<OwnedFd, Errno> {
        let resolve = ResolveFlags::BENEATH
            | ResolveFlags::NO_SYMLINKS
            | ResolveFlags::NO_MAGICLINKS
            | ResolveFlags::NO_XDEV;
        let mut from: Option<OwnedFd> = None;
        let mut rest = components;
        loop {
            let mut path: Vec<u8> = Vec::new();
            let mut nr_taken = 0;
            for component in rest {
                let separator = usize::from(!path.is_empty());
                if path.len() + separator + component.len() > PATH_BYTES_MAX {
                    break;
                }
                if separator == 1 {
                    path.push(b'/');
                }
                path.extend_from_slice(component);
                nr_taken += 1;
            }
            if nr_taken == 0 {
                return Err(Errno::STALE);
            }
            // The last component may itself be a symbolic link, which is opened and not followed.
            let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let base = from.as_ref().map_or(self.host_dir.root.as_fd(), |fd| fd.as_fd());
            let fd = openat2_retrying(base, &path, flags, resolve)?;
            rest = &rest[nr_taken..];
            if rest.is_empty() {
                return Ok(fd);
            }
            from = Some(fd);
        }
    }

    /// Runs a call that opens a descriptor. If the process has none left, closes the cached ones
    /// and tries again.
    pub(crate) fn with_descriptors<T>(&self, call: impl Fn() -> Result<T, Errno>) -> Result<T, Errno> {
        match call() {
            Err(Errno::MFILE | Errno::NFILE) => {
                self.descriptors.clear();
                self.reap_lingering(usize::MAX);
                call()
            }
            result => result,
        }
    }

    /// Opens a regular file for I/O: for reading or, with `for_writing`, for both.
    pub(crate) fn open_for_io(&self, node: NodeId, for_writing: bool) -> Result<OwnedFd, Errno> {
        let access = if for_writing { OFlags::RDWR } else { OFlags::RDONLY };
        // A handle opens the file in one step, and so does a descriptor that is held already.
        let handle = match self.descriptors.get(node) {
            None => self.table.with(node, |entry| (entry.key, entry.handle.clone())),
            Some(_) => None,
        };
        if let Some((key, Some(handle))) = handle
            && let Ok(fd) = self.open_handle(key, &handle, access)
        {
            return Ok(fd);
        }
        let held = self.descriptor(node)?;
        self.with_descriptors(|| host::reopen(held.as_fd(), access))
    }

    /// Returns whether an inode's host file can be opened again after changes of its mode and
    /// names, as long as it has a name.
    pub(crate) fn can_reopen(&self, node: NodeId) -> bool {
        let has_handle = |entry: &mut InodeEntry| entry.handle.is_some() && !entry.is_nameless;
        self.host_dir.reopens && self.table.with(node, has_handle) == Some(true)
    }

    /// Reserves the descriptors of one file in a group's share. May sleep if it `can_wait`; no lock
    /// may be held.
    pub(crate) fn room_for_fds(
        &self,
        group: &Arc<Group>,
        want: Purpose,
        can_wait: bool,
    ) -> Result<DescriptorShare, Errno> {
        let nr = if self.host_dir.io_mode() == IoMode::Direct { 2 } else { 1 };
        let store = can_wait.then_some(self.host_dir.store_id);
        DescriptorShare::take(group, nr, want, store).or_else(|_| {
            // Some descriptors may belong to closed files that have been written back meanwhile.
            self.reap_lingering(REAPED_FOR_SHARE);
            DescriptorShare::take(group, nr, want, store)
        })
    }

    /// Calls `then` with the means to open a regular file.
    pub(crate) fn opening<R>(
        &self,
        node: NodeId,
        group: &Arc<Group>,
        for_writing: bool,
        (want, can_wait): (Purpose, bool),
        then: impl FnOnce(&Opening<'_>) -> R,
    ) -> R {
        then(&Opening {
            for_writing,
            can_reopen: self.can_reopen(node),
            room: &|| self.room_for_fds(group, want, can_wait),
            open: &|writable| self.open_for_io(node, writable),
        })
    }

    /// Keeps the host file of open content open. Waits for data of other files to be written only
    /// if it `can_wait`.
    pub(crate) fn in_use<'a>(
        &self,
        node: NodeId,
        content: &'a Arc<Content>,
        group: &Arc<Group>,
        for_writing: bool,
        can_wait: bool,
    ) -> Result<InUse<'a>, Errno> {
        match content.store.try_use(for_writing) {
            Some(in_use) => Ok(in_use),
            None => {
                self.opening(node, group, for_writing, (Purpose::Reopen, can_wait), |how| content.in_use(how))
            }
        }
    }

    /// Returns the reclaim that a request waits for when there is no room for a name, for content
    /// or for a handle. The thread that tells an older kernel of stale names may wait for the
    /// request.
    pub(crate) fn reclaim_effort(&self) -> ReclaimEffort {
        match self.kernel.get().is_some_and(|kernel| kernel.asks_by_name()) {
            true => ReclaimEffort::OneRound,
            false => ReclaimEffort::Full,
        }
    }

    /// Returns the file handle of a name in a directory, if the volume resolves inodes by handle.
    pub(crate) fn handle_of(&self, dir: &OwnedFd, name: &std::ffi::CStr) -> Option<Box<FileHandle>> {
        if self.host_dir.resolve != Resolve::Handle {
            return None;
        }
        let (handle, _) = name_to_handle(dir.as_fd(), name, rustix::fs::AtFlags::empty()).ok()?;
        Some(Box::new(handle))
    }

    /// Returns the content of a regular file. The first open creates it, and the group then pays
    /// for the inode, too.
    pub(crate) fn content(&self, node: NodeId, group: &Arc<Group>) -> Result<Arc<Content>, VfsError> {
        if let Some(content) = self.find(node)?.content {
            return Ok(content);
        }
        let stat = host::stat_fd(&self.descriptor(node)?)?;
        let effort = self.reclaim_effort();
        let fresh = Content::new(effort, &self.engine, &self.host_dir, &stat, group)?;
        let mut charges = match self.table.nr_names_of_another(node, fresh.lister()) {
            Some(nr_names) => Some(InodeCharges::take(effort, &self.engine, group, nr_names)?),
            None => None,
        };
        let content = self.table.set_content(node, &fresh, charges.as_mut());
        Ok(content.ok_or(Errno::STALE)?)
    }

    /// Releases the remains of entries that were removed from the table.
    pub(crate) fn dispose(&self, removed: Vec<Removed>) {
        let mut released_bytes = 0;
        for gone in removed {
            self.descriptors.remove(gone.node);
            if let (Some(content), true) = (&gone.content, gone.is_nameless) {
                content.discard();
            }
            released_bytes += if gone.was_asked { gone.bytes } else { 0 };
        }
        // After the charges are released: reclaim may wait for the release of inodes that the
        // kernel was asked to forget.
        if released_bytes > 0 {
            self.engine.reclaimer().note_released(released_bytes);
        }
    }

    /// Closes the host files of lingering content that has been written back. Checks at most `max`
    /// of each kind.
    pub(crate) fn reap_lingering(&self, max: usize) {
        let (waiting, asked) = self.lingering.lock().take_oldest(max);
        let still_waiting = waiting.into_iter().filter(|&node| !self.reap(node, false)).collect();
        let still_asked = asked.into_iter().filter(|&node| !self.reap(node, false)).collect();
        self.lingering.lock().put_back(still_waiting, still_asked);
    }

    /// Enforces the bound on lingering content. From half of the bound on, the flusher is asked to
    /// write the files closed longest ago, so that a close seldom reaches the bound; one that does
    /// writes the oldest back itself. While a store fails, the bound is exceeded, because accepted
    /// data is not dropped.
    pub(crate) fn bound_lingering(&self) {
        let due = self.lingering.lock().ask_for_oldest(self.max_held);
        for node in due {
            if let Some(content) = self.lingering_content(node) {
                content.file.start_writeback();
            }
        }
        loop {
            let oldest = self.lingering.lock().take_beyond(self.max_held);
            let Some(node) = oldest else { return };
            if !self.reap(node, true) {
                self.lingering.lock().asked.push_back(node);
                return;
            }
        }
    }

    /// Returns the content of a lingering node; `None` when the node is gone or does not linger any
    /// more.
    fn lingering_content(&self, node: NodeId) -> Option<Arc<Content>> {
        self.table.with(node, |entry| entry.content.clone().filter(|_| entry.lingers)).flatten()
    }

    /// Releases a lingering node if it is clean, with `write_back` after writing it. Returns
    /// `false` if it still lingers.
    fn reap(&self, node: NodeId, write_back: bool) -> bool {
        let Some(content) = self.lingering_content(node) else { return true };
        let is_closed =
            content.try_close() || (write_back && content.file.write_back().is_ok() && content.try_close());
        if is_closed {
            self.stop_lingering(node);
        }
        is_closed
    }

    /// Keeps an inode that the kernel has just forgotten. If there are too many, the one kept
    /// longest is released.
    pub(crate) fn keep(&self, node: NodeId) {
        let oldest = {
            let mut kept = self.kept.lock();
            kept.push_back(node);
            if kept.len() > self.max_kept { kept.pop_front() } else { None }
        };
        let Some(oldest) = oldest else { return };
        if self.table.with(oldest, |entry| std::mem::take(&mut entry.is_kept)) == Some(true) {
            self.dispose(self.table.unpin(oldest));
        }
    }

    pub(crate) fn stop_lingering(&self, node: NodeId) {
        let lingered = self.table.with(node, |entry| std::mem::take(&mut entry.lingers));
        if lingered == Some(true) {
            self.dispose(self.table.unpin(node));
        }
    }
}

/// Calls `openat2`. Retries when a rename on the host kept the kernel from telling whether the path
/// stays beneath the directory.
fn openat2_retrying(
    base: std::os::fd::BorrowedFd<'_>,
    path: &[u8],
    flags: OFlags,
    resolve: ResolveFlags,
) -> Result<OwnedFd, Errno> {
    const TRIES_MAX: u32 = 16;
    let mut tries = 0;
    loop {
        tries += 1;
        match rustix::fs::openat2(base, path, flags, Mode::empty(), resolve) {
            Err(Errno::AGAIN) if tries < TRIES_MAX => {}
            result => return result,
        }
    }
}
