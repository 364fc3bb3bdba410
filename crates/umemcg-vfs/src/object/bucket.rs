//! The seam between a volume of objects and the store that holds them: keys in, bytes out. No
//! asynchronous type crosses it.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use rustix::io::Errno;
use thiserror::Error;

use crate::attr::Timestamp;

/// The facts about one object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectInfo {
    /// Length in bytes.
    pub size: u64,
    /// When it was stored.
    pub modified: Timestamp,
    /// The store's name for these very bytes; `None` from a store that has none.
    pub etag: Option<Arc<str>>,
}

impl ObjectInfo {
    /// Returns whether both are of the same bytes: by ETag, or where one is missing by length and
    /// second of modification, which is all that some answers tell.
    pub fn is_same(&self, other: &Self) -> bool {
        match (&self.etag, &other.etag) {
            (Some(ours), Some(theirs)) => ours == theirs,
            _ => self.size == other.size && self.modified.seconds == other.modified.seconds,
        }
    }
}

/// One name below a prefix.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedName {
    /// The name, without the prefix and without a slash.
    pub name: String,
    /// The object of this name; `None` for a prefix of further keys.
    pub object: Option<ObjectInfo>,
}

/// A part of a listing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ListedPart {
    /// The names, in the order of their keys.
    pub names: Vec<ListedName>,
    /// Keys that are no path: with an empty name in them, or `.` or `..`, or control characters.
    pub hidden: Vec<String>,
    /// Where the next part begins; `None` after the last.
    pub next: Option<String>,
}

/// Why a request to a store failed. The texts name the store and the key.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum BucketError {
    /// There is no such object.
    #[error("{0}")]
    NotFound(String),
    /// The object is not the one that was asked for any more.
    #[error("{0}")]
    Changed(String),
    /// The credentials are wrong or have expired, or do not allow this.
    #[error("{0}")]
    Denied(String),
    /// The store did not answer, or answered with errors until the time for it was over.
    #[error("{0}")]
    Unavailable(String),
    /// The answer makes no sense.
    #[error("{0}")]
    Corrupt(String),
}

impl BucketError {
    /// Returns the error number that a POSIX caller expects.
    pub fn errno(&self) -> Errno {
        match self {
            Self::NotFound(_) => Errno::NOENT,
            Self::Changed(_) => Errno::STALE,
            Self::Denied(_) => Errno::ACCESS,
            Self::Unavailable(_) | Self::Corrupt(_) => Errno::IO,
        }
    }
}

/// What a bucket has been asked so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct BucketFigures {
    /// Requests for bytes of an object.
    pub gets: u64,
    /// Requests for the facts about an object.
    pub heads: u64,
    /// Requests for a part of a listing.
    pub lists: u64,
    /// Bytes of objects that came.
    pub read_bytes: u64,
    /// Requests that the store refused or did not answer; most are sent again.
    pub refusals: u64,
    /// Operations that failed in the end, other than for what is not there or has changed.
    pub failures: u64,
}

/// What is known of a store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreState {
    /// Bucket and prefix, without credentials.
    pub url: String,
    /// The server; none for the usual one.
    pub endpoint: Option<String>,
    /// The last failure, if the store has not answered since.
    pub trouble: Option<String>,
    /// What the store has been asked so far.
    pub figures: BucketFigures,
    /// Keys that listings came across and that cannot be shown as paths.
    pub hidden_keys: Vec<String>,
    /// There are more of them.
    pub has_more_hidden: bool,
}

/// What becomes of the bytes of a read.
pub trait ObjectBody: Send + fmt::Debug {
    /// Takes the next bytes.
    fn take(&mut self, bytes: &[u8]);
    /// Ends the read. One that is dropped unended has failed.
    fn end(self: Box<Self>, result: Result<(), BucketError>);
}

/// A prefix of a bucket. Keys are relative to it. All calls but the figures and those that begin
/// something may sleep for as long as the store does, within its time limits; none is made with a
/// lock held.
#[allow(clippy::missing_errors_doc)]
pub trait Bucket: Send + Sync + fmt::Debug {
    /// Returns the place as a URL, without credentials.
    fn url(&self) -> &str;
    /// Returns the server that is asked; `None` for the default of the URL's kind.
    fn endpoint(&self) -> Option<&str>;
    /// Returns the facts about an object.
    fn head(&self, key: &str) -> Result<ObjectInfo, BucketError>;
    /// Lists the names that begin with what follows the last slash of a prefix, below that slash,
    /// in parts of at most `max` names, from the first or where a part before said. The object
    /// whose key is a prefix that ends with a slash has the empty name.
    fn list(&self, prefix: &str, from: Option<&str>, max: usize) -> Result<ListedPart, BucketError>;
    /// Feeds a range of an object to `take`, in order. [`BucketError::Changed`] when the object is
    /// not the one that `info` describes.
    fn read(
        &self,
        key: &str,
        info: &ObjectInfo,
        range: Range<u64>,
        take: &mut (dyn FnMut(&[u8]) + Send),
    ) -> Result<(), BucketError>;
    /// Begins a read as [`read`](Self::read) does, and returns without waiting for the store. The
    /// bytes are taken, and the end is told, by a thread that serves no requests.
    fn begin_read(&self, key: &str, info: &ObjectInfo, range: Range<u64>, body: Box<dyn ObjectBody>);
    /// Returns what it has been asked so far.
    fn figures(&self) -> BucketFigures;
    /// Returns the last failure, if the store has not answered since.
    fn trouble(&self) -> Option<String>;
}
