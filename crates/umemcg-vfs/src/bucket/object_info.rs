//! Facts about objects: one version of an object, the names in a part of a listing, and the
//! condition for changing an object.

use std::sync::Arc;

use super::file_attributes::FileAttributes;
use crate::attr::Timestamp;

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
