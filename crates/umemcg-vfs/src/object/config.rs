//! The configuration of a volume of objects.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::upload_room::WAIT;
use crate::bucket::Bucket;

/// How long an answer of the store is believed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Freshness {
    /// An open asks again, so it shows every version stored before it. Names and attributes are
    /// believed for a second.
    #[default]
    CloseToOpen,
    /// Names, attributes and content are believed for this long.
    Ttl(Duration),
    /// Objects never change: known facts are never requested again.
    Immutable,
}

/// The first pause after a failed upload, unless the configuration says otherwise.
pub(super) const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// Most bytes on the staging disk, unless the configuration says otherwise.
pub const STAGING_BYTES: u64 = 16 << 30;

/// Where written data is held until it is in the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StagingConfig {
    /// A directory on a local disk. Volumes may share it: each has a subdirectory of its own.
    pub dir: PathBuf,
    /// Most bytes of one volume there.
    pub max_bytes: u64,
    /// The pause before the first retry of a failed upload; later pauses are longer.
    pub retry_pause: Duration,
    /// How long a close, a sync or another operation waits until its group has room for uploads.
    pub room_wait: Duration,
}

impl StagingConfig {
    /// Returns the configuration of a directory with the usual pauses.
    pub fn new(dir: PathBuf, max_bytes: u64) -> Self {
        Self { dir, max_bytes, retry_pause: RETRY_PAUSE, room_wait: WAIT }
    }
}

/// The configuration of a volume of objects.
#[derive(Debug, Clone)]
pub struct ObjectConfig {
    /// Where the objects are.
    pub bucket: Arc<dyn Bucket>,
    /// How long an answer of the bucket is believed.
    pub freshness: Freshness,
    /// Mode, owner, times, extended attributes and symbolic links are stored with the objects, as
    /// s3fs does, if the store keeps metadata. A listing does not include them, so each object is
    /// requested on its own. Otherwise all files have the same attributes.
    pub stores_attributes: bool,
    /// The owner of objects without a stored one.
    pub uid: u32,
    /// The group of objects without a stored one.
    pub gid: u32,
    /// Where written data is held. Without it the volume is read-only, or its files are streams.
    pub staging: Option<StagingConfig>,
    /// New files and whole replacements go to the store while they are written, from memory.
    /// Ignored with a staging directory.
    pub streams: bool,
    /// A directory on a local disk for notes about the multipart uploads of streams and about the
    /// staging directory. The next volume of the same URL aborts the uploads of a killed daemon,
    /// and logs the files left in another staging directory. Volumes and daemons may share the
    /// directory. Without it such uploads stay until a lifecycle rule of the store aborts them.
    pub notes: Option<PathBuf>,
}
