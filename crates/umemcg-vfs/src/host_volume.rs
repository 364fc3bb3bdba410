//! A volume of a host directory: one method per operation, in POSIX terms. The operations are
//! spread over the modules [`crate::lookup`], [`crate::create`], [`crate::names`], [`crate::open`],
//! [`crate::setattr`], [`crate::xattr`] and [`crate::dir_handle`].
//!
//! Every method may sleep for the host, unless it says otherwise. Names are single components; "",
//! ".", ".." and names with a slash or a zero byte are refused with `EINVAL`, longer than 255 bytes
//! with `ENAMETOOLONG`.
//!
//! Permissions are the caller's business (FUSE: `default_permissions`); what the host checks, it
//! checks against the daemon. What only the operation itself can do for the caller is done here:
//! ownership of new objects, set-id bits, access lists.

use std::path::PathBuf;
use std::sync::Arc;

use crate::attr::NodeId;
use crate::error::VolumeError;
use crate::host_directory::HostDirectory;
use crate::resolve::Shared;
use crate::volume_config::{IoMode, Resolve, VolumeConfig};
use umemcg::Engine;

/// A volume of a host directory.
#[derive(Debug)]
pub struct HostVolume {
    pub(crate) shared: Arc<Shared>,
}

impl HostVolume {
    /// Opens a directory as a volume.
    ///
    /// # Errors
    /// When the directory cannot be opened, or a forced mode is not available.
    pub fn new(engine: &Arc<Engine>, config: VolumeConfig) -> Result<Arc<Self>, VolumeError> {
        let host_dir = HostDirectory::open(&config)?;
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
        let eighth = limit.map_or(usize::MAX, |n| usize::try_from(n / 8).unwrap_or(usize::MAX));
        let max = config.max_idle_descriptors.min(eighth);
        Ok(Arc::new(Self {
            shared: Arc::new(Shared::new(
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
        self.shared.host_dir.io_mode()
    }

    /// Returns how inodes are found again here; never [`Resolve::Auto`].
    pub fn resolve(&self) -> Resolve {
        self.shared.host_dir.resolve
    }

    /// Returns the number of inodes with a reference.
    pub fn nr_inodes(&self) -> usize {
        self.shared.table.len()
    }

    /// Returns the number of host descriptors held for inodes that no process has open.
    pub fn nr_idle_descriptors(&self) -> usize {
        self.shared.descriptors.len()
    }

    /// Returns the path of an inode inside the volume by the name last used, for rules and
    /// messages; `None` when it has no name. The root's is empty. Never sleeps.
    pub fn path_of(&self, node: NodeId) -> Option<PathBuf> {
        use std::os::unix::ffi::OsStrExt;
        let components = self.shared.table.path(node, 0)?;
        Some(components.iter().map(|c| std::ffi::OsStr::from_bytes(c)).collect())
    }
}
