//! The configuration of a volume of objects.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::bucket::Bucket;
use super::upload_room::WAIT;

/// How long what a store has told is believed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Freshness {
    /// An open asks again, so that it shows what was stored before it. Names and attributes are
    /// believed for a second.
    #[default]
    CloseToOpen,
    /// Names, attributes and content are believed for this long.
    Ttl(Duration),
    /// Objects never change: what is known is never asked again.
    Immutable,
}

/// The first pause after an upload that has failed, unless the configuration says otherwise.
pub(super) const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// Most bytes on the staging disk, unless the configuration says otherwise.
pub const STAGING_BYTES: u64 = 16 << 30;

/// Where what is written is held until it is in the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StagingConfig {
    /// A directory on a local disk. Volumes may share it: each has a subdirectory of its own.
    pub dir: PathBuf,
    /// Most bytes of one volume there.
    pub max_bytes: u64,
    /// A close and an fsync return when what was written is durable there; it is stored later, if
    /// need be by the next daemon.
    pub writes_back: bool,
    /// How long the first pause is after an upload that has failed, before it is tried again; the
    /// next ones are longer.
    pub retry_pause: Duration,
    /// How long a close, a sync or another operation waits until its group has room for uploads.
    pub room_wait: Duration,
}

impl StagingConfig {
    /// Returns the configuration of a directory without write-back.
    pub fn new(dir: PathBuf, max_bytes: u64) -> Self {
        Self { dir, max_bytes, writes_back: false, retry_pause: RETRY_PAUSE, room_wait: WAIT }
    }
}

/// The configuration of a volume of objects.
#[derive(Debug, Clone)]
pub struct ObjectConfig {
    /// Where the objects are.
    pub bucket: Arc<dyn Bucket>,
    /// How long what it has told is believed.
    pub freshness: Freshness,
    /// Mode, owner, times, extended attributes and symbolic links are stored with the objects, as
    /// s3fs does, if the store keeps metadata. A listing does not tell them, so each object is
    /// asked for. Otherwise all files have the same.
    pub stores_attributes: bool,
    /// The owner of objects that tell none.
    pub uid: u32,
    /// The group of objects that tell none.
    pub gid: u32,
    /// Where what is written is held; without it the volume is read only, or its files are streams.
    pub staging: Option<StagingConfig>,
    /// New files and whole replacements are written to the store as they come, from memory. Of no
    /// meaning with a staging directory.
    pub streams: bool,
    /// A directory on a local disk where the uploads in parts of streams are noted while they go
    /// on: the next volume of the same URL ends those of a daemon that was killed. Volumes and
    /// daemons may share it. Without it they stay until a rule of the store ends them.
    pub upload_notes: Option<PathBuf>,
}
