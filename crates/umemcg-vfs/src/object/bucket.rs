//! The seam between a volume of objects and its store: keys in, bytes out. No asynchronous type
//! crosses it.

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
    /// The ETag of this version; `None` from a store without ETags.
    pub etag: Option<Arc<str>>,
    /// The user metadata; `None` in a listing, which does not include them.
    pub metadata: Option<Arc<Metadata>>,
    /// Mode, owner and times from the metadata. Filled in by the volume, not by a bucket.
    pub attributes: Option<FileAttributes>,
}

/// The user metadata of an object: names, in small letters and without the store's prefix, and
/// values (s3fs's keys: `mode`, `uid`, `gid`, `mtime`, `ctime`, `atime`). Names beginning with a
/// colon are a bucket's own: headers such as the type of the content, which stay as they are.
pub type Metadata = Vec<(String, String)>;

impl ObjectInfo {
    /// Returns a copy to keep with a name, without metadata. The charge of a name has no room for
    /// them: another program may give an object kilobytes.
    pub(crate) fn without_metadata(&self) -> Self {
        let Self { size, modified, attributes, .. } = *self;
        Self { size, modified, etag: self.etag.clone(), metadata: None, attributes }
    }

    /// Returns the mark of the upload that stored it, if the metadata are known.
    pub(crate) fn mark(&self) -> Option<&str> {
        let metadata = self.metadata.as_ref()?;
        metadata.iter().find(|(name, _)| name == UPLOAD_MARK).map(|(_, value)| value.as_str())
    }

    /// Returns whether both describe the same bytes: the same length and the same ETag. If an ETag
    /// is missing, the second of modification is compared, since some answers have nothing else. A
    /// weak ETag and a strong one are compared by their values (RFC 9110, 8.8.3.2): a compressing
    /// proxy makes strong ones weak.
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

    /// Returns whether an object in a listing without ETags may be this version, although its time
    /// is another: a version stored from here has the time of this machine's clock until the store
    /// has reported its own.
    pub(crate) fn may_be(&self, listed: &Self) -> bool {
        let lacks_etag = self.etag.is_some() && listed.etag.is_none();
        lacks_etag && self.size == listed.size && self.modified.seconds != listed.modified.seconds
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
    /// Keys that are no path: they contain an empty name, `.`, `..` or control characters.
    pub hidden: Vec<String>,
    /// Where the next part begins; `None` after the last.
    pub next: Option<String>,
}

/// The name, among the metadata, of a marker: the object has further metadata that cannot be read.
/// Storing the object anew would lose them.
pub const UNREADABLE: &str = "umemcgunreadable";

/// The name, among the metadata, of a text unique to one upload. It identifies an upload whose
/// answer was lost. A bucket adds one to metadata without. A caller that uploads the same bytes
/// again, unsure whether they are there, passes the same text, and the upload succeeds if they are.
/// S3, Google and Azure allow the name.
pub const UPLOAD_MARK: &str = "umemcgupload";

/// A multipart upload of unknown id: it may be beginning.
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
    /// Returns whether the condition holds for the present object, `there`.
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
    /// The object is no longer the requested version.
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
    /// The bytes to store cannot be read, or an upload cannot be noted.
    #[error("{0}")]
    Source(String),
}

impl BucketError {
    /// Returns the error number expected by a POSIX caller.
    pub fn errno(&self) -> Errno {
        match self {
            Self::NotFound(_) => Errno::NOENT,
            Self::Changed(_) => Errno::STALE,
            Self::Denied(_) => Errno::ACCESS,
            Self::Unavailable(_) | Self::Corrupt(_) | Self::Source(_) => Errno::IO,
        }
    }
}

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

/// The receiver of the bytes of a read.
pub trait ObjectBody: Send + fmt::Debug {
    /// Takes the next bytes.
    fn take(&mut self, bytes: &[u8]);
    /// Ends the read. A body dropped without this call has failed.
    fn end(self: Box<Self>, result: Result<(), BucketError>);
}

/// The bytes of an object to store.
pub trait ObjectSource: Send + Sync + fmt::Debug {
    /// Returns their number.
    fn size(&self) -> u64;
    /// Fills `into` with the bytes from `offset` on.
    ///
    /// # Errors
    /// If not all of them can be read.
    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<()>;
    /// Notes a multipart upload, or (`None`) that it is over, so that it can be aborted after a
    /// crash. It is noted as [`UNKNOWN_UPLOAD`] where it begins, then by its id. The note is
    /// durable when this returns.
    ///
    /// # Errors
    /// If it cannot be made durable; the upload is given up.
    fn note_upload(&self, upload: Option<&str>) -> io::Result<()>;
    /// Returns all bytes, if they are in memory. They are then not copied into more memory.
    fn whole(&self) -> Option<PartBytes> {
        None
    }
}

/// The note of a multipart upload whose bytes arrive while it is under way.
pub trait UploadNote: Send + Sync + fmt::Debug {
    /// Notes it, as [`ObjectSource::note_upload`] does.
    ///
    /// # Errors
    /// As there.
    fn note(&self, upload: Option<&str>) -> io::Result<()>;
}

/// Notes nothing: after a crash a lifecycle rule of the store aborts the upload, if at all.
#[derive(Debug)]
pub struct NoNote;

impl UploadNote for NoNote {
    fn note(&self, _: Option<&str>) -> io::Result<()> {
        Ok(())
    }
}

/// A multipart upload that was begun, and whose bytes arrive while it is under way. If dropped
/// before it is over, it is aborted by a thread that serves no requests.
#[allow(clippy::missing_errors_doc)]
pub trait PartedUpload: Send + Sync + fmt::Debug {
    /// Begins to send the next part, and returns without waiting for the store. All but the last
    /// have [`Bucket::part_bytes`]. A thread that serves no requests reports the end.
    fn begin_part(&self, bytes: PartBytes, end: PartEnd);
    /// Makes the object appear, after all parts were sent, and returns the facts about it. Fails as
    /// [`Bucket::upload`] does; the upload is then over.
    fn complete(&self) -> Result<ObjectInfo, BucketError>;
    /// Aborts it, after the parts under way have ended.
    fn abort(&self) -> Result<(), BucketError>;
}

/// Called with the result of a part.
type PartCallback = Box<dyn FnOnce(Result<(), BucketError>) + Send>;

/// Reports the end of a part. If dropped without a report, the part has failed.
pub struct PartEnd(Option<PartCallback>);

impl fmt::Debug for PartEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PartEnd").finish_non_exhaustive()
    }
}

impl PartEnd {
    /// Creates one from a callback, which must not wait.
    pub fn new(callback: impl FnOnce(Result<(), BucketError>) + Send + 'static) -> Self {
        Self(Some(Box::new(callback)))
    }

    /// Reports the result of the part.
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

/// A prefix of a bucket. Keys are relative to it. All calls may sleep for as long as the store
/// does, within its time limits, except the figures, `knows_absence` and `begin_read`. No lock is
/// held during a call that may sleep.
#[allow(clippy::missing_errors_doc)]
pub trait Bucket: Send + Sync + fmt::Debug {
    /// Returns the place as a URL, without credentials.
    fn url(&self) -> &str;
    /// Returns the server in use; `None` for the default of the URL's kind.
    fn endpoint(&self) -> Option<&str>;
    /// Returns whether an object not found by [`head`](Self::head) is certainly absent, as where no
    /// proxy stands between.
    fn knows_absence(&self) -> bool {
        false
    }
    /// Returns the facts about an object.
    fn head(&self, key: &str) -> Result<ObjectInfo, BucketError>;
    /// Returns the facts about an object, or `None` when its absence is confirmed: callers give up
    /// data on a `None`.
    fn find(&self, key: &str) -> Result<Option<ObjectInfo>, BucketError> {
        match self.head(key) {
            Ok(info) => Ok(Some(info)),
            Err(BucketError::NotFound(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }
    /// As [`find`](Self::find), with the version of an object confirmed, too: callers give up data
    /// for another version.
    fn find_confirmed(&self, key: &str) -> Result<Option<ObjectInfo>, BucketError> {
        self.find(key)
    }
    /// Lists names in parts of at most `max`, from the first name or from the `next` of an earlier
    /// part. It lists the names below the last slash of the prefix that begin with the text after
    /// this slash. An object whose key is the prefix itself, with a slash at its end, has the empty
    /// name.
    fn list(&self, prefix: &str, from: Option<&str>, max: usize) -> Result<ListedPart, BucketError>;
    /// Feeds a range of an object to `take`, in order. [`BucketError::Changed`] when the object is
    /// not the version described by `info`.
    fn read(
        &self,
        key: &str,
        info: &ObjectInfo,
        range: Range<u64>,
        take: &mut (dyn FnMut(&[u8]) + Send),
    ) -> Result<(), BucketError>;
    /// Begins a read as [`read`](Self::read) does, and returns without waiting for the store. A
    /// thread that serves no requests passes the bytes and the end to `body`.
    fn begin_read(&self, key: &str, info: &ObjectInfo, range: Range<u64>, body: Box<dyn ObjectBody>);
    /// Returns the bytes of memory held at once by an upload of `size` bytes. Its caller has
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
    /// Returns the length of a part of an upload begun by [`begin_upload`](Self::begin_upload).
    fn part_bytes(&self) -> u64;
    /// Begins a multipart upload. Its object is stored under `expected` when the upload is
    /// completed. The upload is noted until it is over.
    fn begin_upload(
        &self,
        key: &str,
        metadata: &Metadata,
        expected: &Expected,
        note: Arc<dyn UploadNote>,
    ) -> Result<Arc<dyn PartedUpload>, BucketError>;
    /// Aborts a multipart upload left behind by a crash, or for [`UNKNOWN_UPLOAD`] all uploads of
    /// this key. An upload already over is no error.
    fn abort_upload(&self, key: &str, upload: &str) -> Result<(), BucketError>;
    /// Removes an object. A missing object is no error.
    fn delete(&self, key: &str) -> Result<(), BucketError>;
    /// Removes an object in this version. A missing object is no error. [`BucketError::Changed`]
    /// when it has another version, which stays; a store without conditional deletions removes
    /// that, too.
    fn delete_version(&self, key: &str, info: &ObjectInfo) -> Result<(), BucketError> {
        let _ = info;
        self.delete(key)
    }
    /// Copies an object in this version within the bucket, its metadata too.
    /// [`BucketError::Changed`] when it has another version, or `expected` does not hold for `to`.
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
    /// this size. Where it cannot, the object is stored anew.
    fn replaces_metadata(&self, size: u64) -> bool;
    /// Replaces the metadata of an object, whose bytes stay, and returns the facts about it.
    /// [`BucketError::Changed`] when it has another version than this.
    fn replace_metadata(
        &self,
        key: &str,
        info: &ObjectInfo,
        metadata: &Metadata,
    ) -> Result<ObjectInfo, BucketError>;
    /// Returns the counts of requests so far.
    fn figures(&self) -> BucketFigures;
    /// Returns a number shared by the volumes of the bucket, whatever their prefixes; `None` where
    /// each volume is a source of its own.
    fn source_id(&self) -> Option<StoreId> {
        None
    }
    /// Returns the requests of all volumes of the bucket; `None` where they are not counted.
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
    // A bucket in a directory is a store of its own.
    name.map_or_else(|| url.into(), Into::into)
}

/// Reads as [`Bucket::read`] does, and once more if the bytes came damaged. Passes `take` the
/// offset of the bytes, too; bytes of the second read replace those of the first.
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
