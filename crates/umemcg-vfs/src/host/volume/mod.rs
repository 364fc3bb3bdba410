//! A volume of a host directory. Its operations are in one file for each trait: `lookup`,
//! `attributes`, `create`, `names`, `open` and `xattrs`.
//!
//! Every method may sleep for the host, unless it says otherwise. Names are single components; "",
//! ".", ".." and names with a slash or a zero byte are refused with `EINVAL`, longer than 255 bytes
//! with `ENAMETOOLONG`.
//!
//! The caller checks permissions (FUSE: `default_permissions`); the host's own checks concern the
//! daemon. This crate does the rest, possible only in the operation itself: ownership of new
//! objects, set-id bits, access lists.

mod attributes;
mod create;
mod lookup;
mod names;
mod open;
mod watched;
mod xattrs;

use std::ffi::OsStr;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::Arc;

use rustix::fs::OFlags;
use rustix::io::Errno;

use crate::attr::NodeId;
use crate::error::{VfsError, VolumeError};
use crate::host::directory::HostDirectory;
use crate::host::inodes::HostInodes;
use crate::host::outside_watch::OutsideWatch;
use crate::host::recent_changes::RecentChanges;
use crate::host::syscalls;
use crate::kernel_cache::KernelCache;
use crate::kernel_io::{KernelIo, Subject};
use crate::kernel_page_lists::KernelPageLists;
use crate::volume::{Volume, VolumeKind};
use crate::volume_config::{IoMode, Resolve, VolumeConfig};
use umemcg::files::{File, StoreId};
use umemcg::{Engine, Group};

/// A volume of a host directory.
#[derive(Debug)]
pub struct HostVolume {
    pub(crate) inodes: Arc<HostInodes>,
}

impl HostVolume {
    /// Opens a directory as a volume.
    ///
    /// # Errors
    /// If the directory cannot be opened, or a forced mode is not available.
    pub fn new(engine: &Arc<Engine>, config: VolumeConfig) -> Result<Arc<Self>, VolumeError> {
        let host_dir = HostDirectory::open(&config)?;
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
        let eighth = limit.map_or(usize::MAX, |n| usize::try_from(n / 8).unwrap_or(usize::MAX));
        let max = config.max_idle_descriptors.min(eighth);
        Ok(Arc::new(Self {
            inodes: Arc::new(HostInodes::new(
                Arc::clone(engine),
                host_dir,
                (max, eighth.saturating_mul(2)),
                config.max_kept_files,
                (config.node_base, config.nr_shards),
            )),
        }))
    }

    /// Returns how content is read and written here; never [`IoMode::Auto`].
    pub fn io_mode(&self) -> IoMode {
        self.inodes.host_dir.io_mode()
    }

    /// Returns how inodes are found again here; never [`Resolve::Auto`].
    pub fn resolve(&self) -> Resolve {
        self.inodes.host_dir.resolve
    }

    /// Returns the number of inodes with a reference.
    pub fn nr_inodes(&self) -> usize {
        self.inodes.table.len()
    }

    /// Returns the number of host descriptors held for inodes not open in any process.
    pub fn nr_idle_descriptors(&self) -> usize {
        self.inodes.descriptors.len()
    }
}

impl Volume for HostVolume {
    fn kind(&self) -> VolumeKind {
        VolumeKind::Directory { dir: self.inodes.host_dir.dir.clone(), io_mode: self.io_mode() }
    }

    fn store_id(&self) -> StoreId {
        self.inodes.host_dir.store_id
    }

    /// Returns the path of an inode inside the volume by the name last used, for rules and
    /// messages; `None` if it has no name. The root's is empty. Never sleeps.
    fn path_of(&self, node: NodeId) -> Option<PathBuf> {
        use std::os::unix::ffi::OsStrExt;
        let components = self.inodes.table.path(node, 0)?;
        Some(components.iter().map(|c| std::ffi::OsStr::from_bytes(c)).collect())
    }

    fn path_of_content(&self, file: &Arc<File>) -> Option<PathBuf> {
        let contents = self.inodes.table.contents();
        let found = contents.into_iter().find(|(_, content)| Arc::ptr_eq(&content.file, file));
        found.and_then(|(node, _)| self.path_of(node))
    }

    fn set_kernel(&self, kernel: Arc<dyn KernelCache>) {
        let inodes = &self.inodes;
        if kernel.keeps_pages() {
            inodes
                .kernel_page_lists
                .get_or_init(|| KernelPageLists::new(Arc::clone(&kernel), inodes.engine.reclaimer()));
        }
        if kernel.can_be_told() {
            let started = match inodes.host_dir.may_be_watched {
                true => {
                    let changes = inodes.host_dir.changes.get_or_init(|| Arc::new(RecentChanges::new()));
                    let (root, watched) = (inodes.host_dir.root.as_fd(), Arc::downgrade(inodes));
                    OutsideWatch::start(root, watched as _, &kernel, changes)
                }
                false => Err(std::io::ErrorKind::Unsupported.into()),
            };
            match started {
                Ok(watch) => _ = inodes.watch.set(watch),
                Err(error) => {
                    let dir = inodes.host_dir.dir.display();
                    tracing::info!(%dir, %error, "cannot watch for other programs' changes; the kernel asks often");
                }
            }
        }
        // Later calls have no effect.
        let _ = inodes.kernel.set(kernel);
    }

    fn drop_changed(&self, node: NodeId) {
        let content = self.inodes.find(node).ok().and_then(|found| found.content);
        if let Some(pages) = content.as_ref().and_then(|content| content.kernel_pages()) {
            pages.drop_if_changed();
        }
    }

    fn moment(&self) -> Option<u64> {
        self.inodes.watch.get().filter(|watch| watch.is_watching())?;
        Some(self.inodes.host_dir.changes.get()?.moment())
    }

    fn is_unchanged(&self, ino: u64, since: u64) -> bool {
        let is_watching = self.inodes.watch.get().is_some_and(OutsideWatch::is_watching);
        let changes = self.inodes.host_dir.changes.get();
        is_watching && changes.is_some_and(|changes| changes.is_unchanged(ino, since))
    }

    fn begin_kernel_io(
        &self,
        node: NodeId,
        range: (u64, u64),
        is_write: bool,
        payer: &Arc<Group>,
    ) -> Option<KernelIo> {
        let content = self.inodes.find(node).ok()?.content?;
        let pages = Arc::clone(content.kernel_pages()?);
        let subject = Subject::File(Arc::clone(&content.file));
        Some(KernelIo::begin(pages, subject, range, is_write, payer))
    }

    fn make_kernel_forget(&self, node: NodeId, offset: u64, len: u64) {
        // An answer under way may be from before the change.
        if let Some(changes) = self.inodes.host_dir.changes.get()
            && let Some(key) = self.inodes.table.with(node, |entry| entry.key)
        {
            changes.note(key.ino);
        }
        if let Some(kernel) = self.inodes.kernel.get() {
            kernel.attributes_changed(node);
        }
        let content = self.inodes.find(node).ok().and_then(|inode| inode.content);
        if let Some(content) = content.filter(|_| len > 0) {
            content.drop_from_kernel(offset, len, || {});
        }
    }

    fn make_kernel_forget_name(&self, directory: NodeId, name: &OsStr) -> bool {
        let Some(watch) = self.inodes.watch.get().filter(|watch| watch.is_watching()) else { return false };
        if !watch.invalidate_name(directory, name)
            && let Some(kernel) = self.inodes.kernel.get()
        {
            kernel.all_names_changed();
        }
        true
    }

    /// Makes all data and metadata accepted before the call durable. Goes on after an error and
    /// reports the first.
    ///
    /// # Errors
    /// Write-back errors, and the host's.
    fn syncfs(&self) -> Result<(), VfsError> {
        let mut result = Ok(());
        for (node, content) in self.inodes.table.contents() {
            if content.fds().is_none() || (content.file.is_stable() && content.store.times.is_restored()) {
                continue;
            }
            let cursor = content.file.sample_error();
            let synced = content.file.fsync(false, &cursor);
            // If the data of a failed write-back has been written since, the error is reported to
            // the open files, not here.
            if let Err(error) = synced
                && !content.file.is_stable()
            {
                tracing::warn!(?node, path = ?self.path_of(node), %error, "cannot write back");
                result = result.and(Err(error.into()));
            }
        }
        self.inodes.reap_lingering(usize::MAX);
        // The root's descriptor may not be able to do I/O.
        let synced = match rustix::fs::syncfs(&self.inodes.host_dir.root) {
            Err(Errno::BADF) => {
                let flags = OFlags::RDONLY | OFlags::DIRECTORY;
                syscalls::reopen(self.inodes.host_dir.root.as_fd(), flags).and_then(rustix::fs::syncfs)
            }
            synced => synced,
        };
        result.and(synced.map_err(VfsError::from))
    }

    fn nodes_end(&self) -> u64 {
        self.inodes.table.nodes_end()
    }

    fn abandon(&self) {
        for (_, content) in self.inodes.table.contents() {
            content.file.discard();
        }
        self.inodes.reap_lingering(usize::MAX);
    }
}
