//! A store of `object_store`, with its capabilities beyond reading and storing.

use std::sync::Arc;

use object_store::ObjectStore;
use object_store::aws::AmazonS3;
use object_store::azure::MicrosoftAzure;
use object_store::gcp::GoogleCloudStorage;
use object_store::list::PaginatedListStore;
use object_store::local::LocalFileSystem;
use object_store::multipart::MultipartStore;

/// See the module text.
#[derive(Clone)]
pub(crate) struct Store {
    pub(crate) objects: Arc<dyn ObjectStore>,
    /// Lists in pages; `None`: all at once.
    pub(crate) lists: Option<Arc<dyn PaginatedListStore>>,
    /// Multipart uploads with an id to record; `None`: without an id.
    pub(crate) parts: Option<Arc<dyn MultipartStore>>,
    /// The precondition of a PUT.
    pub(crate) condition: PutCondition,
    /// Requests can be patched where `object_store` lacks a feature (`request_patch`):
    /// preconditions of copies and of completing a multipart upload.
    pub(crate) takes_conditions: bool,
    /// A local file system, whose directories stand for keys ending with a slash.
    pub(crate) local: Option<Arc<LocalFileSystem>>,
    /// The text of a key's trailing slash; `None`: the store has no such keys.
    pub(crate) last_slash: Option<&'static str>,
    /// `object_store` deletes only in batches, with the keys in the body.
    pub(crate) deletes_in_batches: bool,
    /// Objects have metadata.
    pub(crate) keeps_metadata: bool,
}

/// The precondition of a PUT replacing an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PutCondition {
    /// The object's ETag.
    Etag,
    /// The object's generation, known from a HEAD.
    Generation,
    /// Nothing: a HEAD comes before.
    None,
}

impl Store {
    pub(crate) fn s3(store: AmazonS3) -> Self {
        let store = Arc::new(store);
        Self {
            lists: Some(Arc::clone(&store) as _),
            parts: Some(Arc::clone(&store) as _),
            takes_conditions: true,
            last_slash: Some("/"),
            ..Self::plain(store)
        }
    }

    pub(crate) fn google(store: GoogleCloudStorage) -> Self {
        let store = Arc::new(store);
        Self {
            lists: Some(Arc::clone(&store) as _),
            parts: Some(Arc::clone(&store) as _),
            condition: PutCondition::Generation,
            last_slash: Some("%2F"),
            ..Self::plain(store)
        }
    }

    /// Azure's multipart uploads have no id, and take metadata only as streams.
    pub(crate) fn azure(store: MicrosoftAzure) -> Self {
        let store = Arc::new(store);
        Self {
            lists: Some(Arc::clone(&store) as _),
            last_slash: Some("/"),
            deletes_in_batches: true,
            ..Self::plain(store)
        }
    }

    /// Each stored file is synced.
    pub(crate) fn directory() -> Self {
        let store = Arc::new(LocalFileSystem::new().with_fsync(true));
        Self {
            local: Some(Arc::clone(&store)),
            condition: PutCondition::None,
            keeps_metadata: false,
            ..Self::plain(store)
        }
    }

    /// A store known only by the interface of `object_store`.
    pub(crate) fn plain(objects: Arc<dyn ObjectStore>) -> Self {
        Self {
            objects,
            lists: None,
            parts: None,
            condition: PutCondition::Etag,
            takes_conditions: false,
            local: None,
            last_slash: None,
            deletes_in_batches: false,
            keeps_metadata: true,
        }
    }
}
