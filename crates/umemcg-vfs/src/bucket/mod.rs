//! The seam between a volume of objects and its store: keys in, bytes out. No asynchronous type
//! crosses it.
//!
//! A store implements [`Bucket`]; the implementation of the product is `umemcg-object`.
//! `object_info` has the facts about an object, with mode, owner and times in `file_attributes`;
//! `error` the failures of requests. `part_bytes` are the bytes of a part on their way to the
//! store. `tenant_scope` is the tenant on whose behalf a thread sends requests. `store_state`,
//! `staged_file` and `latency` are for display. Nothing here depends on a kind of volume.

mod error;
pub(crate) mod file_attributes;
mod latency;
mod object_info;
mod part_bytes;
mod staged_file;
mod store_state;
mod tenant_scope;

use std::fmt;
use std::io;
use std::ops::Range;
use std::sync::Arc;

use umemcg::files::StoreId;

pub use error::BucketError;
pub use file_attributes::FileAttributes;
pub use latency::{LATENCY_BOUNDS_MS, LatencyFigures, StoreTraffic, StoreWork};
pub use object_info::{Expected, ListedName, ListedPart, Metadata, ObjectInfo, UNREADABLE, UPLOAD_MARK};
pub(crate) use part_bytes::ChunkCharge;
pub use part_bytes::{Chunk, PartBytes};
pub use staged_file::StagedFile;
pub use store_state::{BucketFigures, StoreState};
pub use tenant_scope::current_tenant;
pub(crate) use tenant_scope::{TenantScope, tenant_number};

/// A multipart upload of unknown id: it may be beginning.
pub const UNKNOWN_UPLOAD: &str = "?";

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
    /// Notes a multipart upload, for its abortion after a crash. The note is [`UNKNOWN_UPLOAD`]
    /// when the upload begins, then the id of the upload, and `None` when it is over. The note is
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
    /// Notes a multipart upload, as [`ObjectSource::note_upload`] does.
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
    /// Returns whether an object not found by [`head`](Self::head) is certainly absent, because no
    /// proxy stands in between.
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
    /// when the object has another version. That version stays, except in a store without
    /// conditional deletions.
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
pub(crate) fn store_of(bucket: &dyn Bucket) -> Arc<str> {
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
pub(crate) fn read_placed(
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
