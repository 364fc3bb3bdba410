//! The specification of a volume to be opened.

use std::sync::Arc;

use rustix::fs::{StatVfsMountFlags, statvfs};

use crate::error::VolumeError;
use crate::host::HostVolume;
use crate::object::{ObjectConfig, ObjectVolume};
use crate::tmpfs::{Tmpfs, TmpfsConfig};
use crate::volume::Volume;
use crate::volume_config::VolumeConfig;
use umemcg::Engine;

/// The specification of a volume to be opened.
#[derive(Debug, Clone)]
pub enum VolumeSpec {
    /// A directory of the host.
    Directory(VolumeConfig),
    /// The pool alone.
    Tmpfs(TmpfsConfig),
    /// A prefix of a bucket.
    Objects(ObjectConfig),
}

impl VolumeSpec {
    /// Returns whether the volume is read-only: a directory while its file system or mount is. May
    /// sleep for the host.
    pub fn is_read_only(&self) -> bool {
        match self {
            Self::Directory(config) => {
                statvfs(&config.dir).is_ok_and(|found| found.f_flag.contains(StatVfsMountFlags::RDONLY))
            }
            Self::Tmpfs(_) => false,
            Self::Objects(config) => config.staging.is_none() && !config.streams,
        }
    }

    /// Opens the volume; its node ids are above `node_base`. May sleep for the host.
    ///
    /// # Errors
    /// [`VolumeError`].
    pub fn open(&self, engine: &Arc<Engine>, node_base: u64) -> Result<Arc<dyn Volume>, VolumeError> {
        match self {
            Self::Directory(config) => {
                let config = VolumeConfig { node_base, ..config.clone() };
                Ok(HostVolume::new(engine, config)?)
            }
            Self::Tmpfs(config) => Ok(Tmpfs::new(engine, config, node_base)),
            Self::Objects(config) => Ok(ObjectVolume::open(engine, config, node_base)?),
        }
    }
}
