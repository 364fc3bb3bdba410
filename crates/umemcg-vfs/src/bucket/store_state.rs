//! The state of a store for lists and metrics: its counts of requests, its last failure, and the
//! files not stored yet.

use super::latency::{StoreTraffic, StoreWork};
use super::staged_file::StagedFile;

/// Counts of the requests to a bucket so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct BucketFigures {
    /// Requests for bytes of an object.
    pub gets: u64,
    /// Requests for the facts about an object.
    pub heads: u64,
    /// Requests for a part of a listing.
    pub lists: u64,
    /// Requests to store an object or a part of one, and to begin or complete a multipart upload.
    pub puts: u64,
    /// Requests to copy an object.
    pub copies: u64,
    /// Requests to remove an object or to abort a multipart upload.
    pub deletes: u64,
    /// Bytes of objects received from the store.
    pub read_bytes: u64,
    /// Bytes of objects accepted by the store.
    pub written_bytes: u64,
    /// Requests refused or not answered by the store; most are sent again.
    pub refusals: u64,
    /// Requests refused because they came too fast.
    pub throttles: u64,
    /// How long requests were held back so as not to come too fast, in total, in milliseconds.
    pub throttled_ms: u64,
    /// Operations that failed in the end, except because an object was missing or had changed.
    pub failures: u64,
}

/// The state of a store as far as it is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreState {
    /// Bucket and prefix, without credentials.
    pub url: String,
    /// The server; none for the usual one.
    pub endpoint: Option<String>,
    /// The last failure, if the store has not answered since.
    pub trouble: Option<String>,
    /// The requests to the store so far.
    pub figures: BucketFigures,
    /// Requests of all volumes of the bucket; `None` where they are not counted.
    pub traffic: Option<StoreTraffic>,
    /// Reads and uploads waiting for the store or under way.
    pub work: StoreWork,
    /// Keys found in listings that cannot be shown as paths.
    pub hidden_keys: Vec<String>,
    /// There are more hidden keys.
    pub has_more_hidden: bool,
    /// Files on the staging disk whose content is not in the store.
    pub staged: Vec<StagedFile>,
}
