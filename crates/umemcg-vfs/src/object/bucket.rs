//! The seam between a volume of objects and the store that holds them: keys in, bytes out. No
//! asynchronous type crosses it.

use std::fmt;
use std::io;
use std::ops::Range;
use std::sync::Arc;

use rustix::io::Errno;
use thiserror::Error;

use super::file_attributes::FileAttributes;
use super::latency::{StoreTraffic, StoreWork};
use super::part_bytes::PartBytes;
use super::staged_file::StagedFile;
use crate::attr::Timestamp;
use crate::volume::StoreId;

/// The facts about one object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectInfo {
    /// Length in bytes.
    pub size: u64,
    /// When it was stored.
    pub modified: Timestamp,
    /// The store's name for these very bytes; `None` from a store that has none.
    pub etag: Option<Arc<str>>,
    /// The user metadata; `None` in a listing, which does not tell them.
    pub metadata: Option<Arc<Metadata>>,
    /// What the metadata tell of mode, owner and times. A bucket leaves it to the volume.
    pub attributes: Option<FileAttributes>,
}

/// The user metadata of an object: names, in small letters and without the store's prefix, and
/// values (s3fs's keys: `mode`, `uid`, `gid`, `mtime`, `ctime`, `atime`). Names that begin with a
/// colon are a bucket's own: headers such as the type of the content, which stay as they are.
pub type Metadata = Vec<(String, String)>;

impl ObjectInfo {
    /// Returns what may be kept with a name: its charge has no room for metadata, of which another
    /// program may give an object kilobytes.
    pub(crate) fn without_metadata(&self) -> Self {
        let Self { size, modified, attributes, .. } = *self;
        Self { size, modified, etag: self.etag.clone(), metadata: None, attributes }
    }

    /// Returns the mark of the upload that stored it, as far as the metadata are known.
    pub(crate) fn mark(&self) -> Option<&str> {
        let metadata = self.metadata.as_ref()?;
        metadata.iter().find(|(name, _)| name == UPLOAD_MARK).map(|(_, value)| value.as_str())
    }

    /// Returns whether both are of the same bytes: of the same length, and by ETag, or where one is
    /// missing by the second of modification, which is all that some answers tell. A weak ETag and
    /// a strong one are compared by their values (RFC 9110, 8.8.3.2): a proxy that compresses makes
    /// strong ones weak.
    pub fn is_same(&self, other: &Self) -> bool {
        fn value(etag: &str) -> &str {
            etag.strip_prefix("W/").unwrap_or(etag)
        }
        let is_one_version = match (&self.etag, &other.etag) {
            (Some(ours), Some(theirs)) => value(ours) == value(theirs),
            _ => self.modified.seconds == other.modified.seconds,
        };
        is_one_version && self.size == other.size
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

/// The name, among the metadata, that says that the object has more, which cannot be read: storing
/// it anew would lose them.
pub const UNREADABLE: &str = "umemcgunreadable";

/// The name, among the metadata, of a text that no other upload has: one whose answer was lost is
/// known by it. A bucket adds one to metadata without. A caller that uploads the same bytes again,
/// since it does not know whether they are there, gives the same, and the upload succeeds if they
/// are. S3, Google and Azure allow the name.
pub const UPLOAD_MARK: &str = "umemcgupload";

/// An upload in parts whose id is not known: it may be beginning.
pub const UNKNOWN_UPLOAD: &str = "?";

/// The condition under which a change takes effect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Expected {
    /// There is no object of this key.
    Absent,
    /// The object is still this one.
    Same(ObjectInfo),
    /// Whatever is there.
    Anything,
}

impl Expected {
    /// Returns whether the condition holds of what is there.
    pub fn is_met_by(&self, there: Option<&ObjectInfo>) -> bool {
        match self {
            Self::Absent => there.is_none(),
            Self::Same(info) => there.is_some_and(|there| there.is_same(info)),
            Self::Anything => true,
        }
    }
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
    /// The answer makes no sense, or its bytes are not those of the object.
    #[error("{0}")]
    Corrupt(String),
    /// The bytes that were to be stored cannot be read, or an upload cannot be noted.
    #[error("{0}")]
    Source(String),
}

impl BucketError {
    /// Returns the error number that a POSIX caller expects.
    pub fn errno(&self) -> Errno {
        match self {
            Self::NotFound(_) => Errno::NOENT,
            Self::Changed(_) => Errno::STALE,
            Self::Denied(_) => Errno::ACCESS,
            Self::Unavailable(_) | Self::Corrupt(_) | Self::Source(_) => Errno::IO,
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
    /// Requests that store an object or a part of one, or that begin or end an upload in parts.
    pub puts: u64,
    /// Requests that copy an object.
    pub copies: u64,
    /// Requests that remove an object or give up an upload in parts.
    pub deletes: u64,
    /// Bytes of objects that came.
    pub read_bytes: u64,
    /// Bytes of objects that the store took.
    pub written_bytes: u64,
    /// Requests that the store refused or did not answer; most are sent again.
    pub refusals: u64,
    /// Those of them to which the store said that requests come too fast.
    pub throttles: u64,
    /// How long requests waited so that they would not, together, in milliseconds.
    pub throttled_ms: u64,
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
    /// What all volumes of the bucket ask it; none where that is not counted.
    pub traffic: Option<StoreTraffic>,
    /// What waits for it, and what goes on there.
    pub work: StoreWork,
    /// Keys that listings came across and that cannot be shown as paths.
    pub hidden_keys: Vec<String>,
    /// There are more of them.
    pub has_more_hidden: bool,
    /// Files that hold what is not in the store.
    pub staged: Vec<StagedFile>,
}

/// What becomes of the bytes of a read.
pub trait ObjectBody: Send + fmt::Debug {
    /// Takes the next bytes.
    fn take(&mut self, bytes: &[u8]);
    /// Ends the read. One that is dropped unended has failed.
    fn end(self: Box<Self>, result: Result<(), BucketError>);
}

/// The bytes of an object that is to be stored.
pub trait ObjectSource: Send + Sync + fmt::Debug {
    /// Returns their number.
    fn size(&self) -> u64;
    /// Fills `into` with the bytes from `offset` on.
    ///
    /// # Errors
    /// If not all of them can be read.
    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<()>;
    /// Notes an upload in parts, or (`None`) that it is over, so that one which a crash leaves
    /// behind can be ended: [`UNKNOWN_UPLOAD`] where it begins, then its id. The note is durable
    /// when this returns.
    ///
    /// # Errors
    /// If it cannot be made durable; the upload is given up.
    fn note_upload(&self, upload: Option<&str>) -> io::Result<()>;
    /// Returns all bytes, if they are in memory: they are not read into more of it then.
    fn whole(&self) -> Option<PartBytes> {
        None
    }
}

/// Where an upload in parts is noted whose bytes come while it goes on.
pub trait UploadNote: Send + Sync + fmt::Debug {
    /// Notes it, as [`ObjectSource::note_upload`] does.
    ///
    /// # Errors
    /// As there.
    fn note(&self, upload: Option<&str>) -> io::Result<()>;
}

/// Notes nothing: what a crash leaves behind is ended by a rule of the store, if at all.
#[derive(Debug)]
pub struct NoNote;

impl UploadNote for NoNote {
    fn note(&self, _: Option<&str>) -> io::Result<()> {
        Ok(())
    }
}

/// An upload in parts that was begun, and whose bytes come while it goes on. One that is dropped
/// before it is over is ended without an object, by a thread that serves no requests.
#[allow(clippy::missing_errors_doc)]
pub trait PartedUpload: Send + Sync + fmt::Debug {
    /// Begins to send the next part, and returns without waiting for the store. All but the last
    /// have [`Bucket::part_bytes`]. The end is told by a thread that serves no requests.
    fn begin_part(&self, bytes: PartBytes, end: PartEnd);
    /// Has the object appear, after all parts were sent, and returns the facts about it. Fails as
    /// [`Bucket::upload`] does, and the upload is over then.
    fn complete(&self) -> Result<ObjectInfo, BucketError>;
    /// Ends it without an object, after what is being sent.
    fn abort(&self) -> Result<(), BucketError>;
}

/// To be called with what became of a part.
type PartCallback = Box<dyn FnOnce(Result<(), BucketError>) + Send>;

/// How the end of a part is told. One that is dropped untold has failed.
pub struct PartEnd(Option<PartCallback>);

impl fmt::Debug for PartEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PartEnd").finish_non_exhaustive()
    }
}

impl PartEnd {
    /// Returns one that calls a function, which must not wait.
    pub fn new(callback: impl FnOnce(Result<(), BucketError>) + Send + 'static) -> Self {
        Self(Some(Box::new(callback)))
    }

    /// Tells the end.
    pub fn tell(mut self, result: Result<(), BucketError>) {
        if let Some(callback) = self.0.take() {
            callback(result);
        }
    }
}

impl Drop for PartEnd {
    fn drop(&mut self) {
        if let Some(callback) = self.0.take() {
            callback(Err(BucketError::Unavailable("a part was given up".into())));
        }
    }
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
    /// Returns whether an object that [`head`](Self::head) does not find is not there for sure, as
    /// where nothing stands between.
    fn knows_absence(&self) -> bool {
        false
    }
    /// Returns the facts about an object.
    fn head(&self, key: &str) -> Result<ObjectInfo, BucketError>;
    /// Returns the facts about an object, or `None` after a confirmation that it is absent: callers
    /// give up data for that.
    fn find(&self, key: &str) -> Result<Option<ObjectInfo>, BucketError> {
        match self.head(key) {
            Ok(info) => Ok(Some(info)),
            Err(BucketError::NotFound(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }
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
    /// Returns how many bytes of memory an upload of `size` bytes holds at once. Its caller has
    /// charged them.
    fn upload_bytes(&self, size: u64) -> u64;
    /// Stores an object, whole or not at all, and returns the facts about it.
    /// [`BucketError::Changed`] when `expected` does not hold. After
    /// [`BucketError::Unavailable`] the object may be there all the same: an answer can be lost.
    fn upload(
        &self,
        key: &str,
        source: &dyn ObjectSource,
        metadata: &Metadata,
        expected: &Expected,
    ) -> Result<ObjectInfo, BucketError>;
    /// Returns the length of a part of what [`begin_upload`](Self::begin_upload) begins.
    fn part_bytes(&self) -> u64;
    /// Begins an upload in parts, of an object that is stored under `expected` when it is
    /// completed. It is noted until it is over.
    fn begin_upload(
        &self,
        key: &str,
        metadata: &Metadata,
        expected: &Expected,
        note: Arc<dyn UploadNote>,
    ) -> Result<Arc<dyn PartedUpload>, BucketError>;
    /// Ends an upload in parts that a crash left behind, or for [`UNKNOWN_UPLOAD`] all of this key.
    /// One that is over is no error.
    fn abort_upload(&self, key: &str, upload: &str) -> Result<(), BucketError>;
    /// Removes an object. One that is not there is no error.
    fn delete(&self, key: &str) -> Result<(), BucketError>;
    /// Removes an object in this version. One that is not there is no error.
    /// [`BucketError::Changed`] when it has another one, which stays; a store without conditions
    /// for deletions removes that, too.
    fn delete_version(&self, key: &str, info: &ObjectInfo) -> Result<(), BucketError> {
        let _ = info;
        self.delete(key)
    }
    /// Copies an object in this version within the bucket, its metadata too.
    /// [`BucketError::Changed`] when it has another version, or `expected` does not hold of `to`.
    fn copy(
        &self,
        from: &str,
        info: &ObjectInfo,
        to: &str,
        expected: &Expected,
    ) -> Result<ObjectInfo, BucketError>;
    /// Returns whether objects have metadata.
    fn keeps_metadata(&self) -> bool;
    /// Returns whether [`replace_metadata`](Self::replace_metadata) can be called for an object of
    /// a length. Where it cannot, the object is stored anew.
    fn replaces_metadata(&self, size: u64) -> bool;
    /// Replaces the metadata of an object, whose bytes stay, and returns the facts about it.
    /// [`BucketError::Changed`] when it has another version than this.
    fn replace_metadata(
        &self,
        key: &str,
        info: &ObjectInfo,
        metadata: &Metadata,
    ) -> Result<ObjectInfo, BucketError>;
    /// Returns what it has been asked so far.
    fn figures(&self) -> BucketFigures;
    /// Returns a number that the volumes of the bucket share, whatever their prefixes; none where
    /// each is asked for itself.
    fn source_id(&self) -> Option<StoreId> {
        None
    }
    /// Returns what all volumes of the bucket ask it; none where that is not counted.
    fn traffic(&self) -> Option<StoreTraffic> {
        None
    }
    /// Returns the last failure, if the store has not answered since.
    fn trouble(&self) -> Option<String>;
}

/// Returns the name of a store: the bucket, and its server.
pub(super) fn store_of(bucket: &dyn Bucket) -> Arc<str> {
    let url = bucket.url();
    let name = url.split_once("://").and_then(|(kind, rest)| {
        let name = rest.split('/').next().filter(|name| !name.is_empty())?;
        Some(format!("{kind}://{name} {}", bucket.endpoint().unwrap_or_default()))
    });
    // A directory is one of its own.
    name.map_or_else(|| url.into(), Into::into)
}

/// Reads as [`Bucket::read`] does, once more if the bytes that came are not those of the object,
/// and tells `take` where they belong. Those that come again replace the ones before.
pub(super) fn read_placed(
    bucket: &dyn Bucket,
    (key, info): (&str, &ObjectInfo),
    range: Range<u64>,
    take: &mut (dyn FnMut(u64, &[u8]) + Send),
) -> Result<(), BucketError> {
    let mut read = || {
        let mut at = range.start;
        bucket.read(key, info, range.clone(), &mut |bytes| {
            take(at, bytes);
            at += bytes.len() as u64;
        })
    };
    match read() {
        Err(error @ BucketError::Corrupt(_)) => {
            tracing::warn!(%error, "bytes of an object came damaged, and are asked for again");
            read()
        }
        result => result,
    }
}
