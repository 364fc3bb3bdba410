//! A store as the library has it, with what it can do beside reading and storing.

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
    /// Lists in parts; `None`: all at once.
    pub(crate) lists: Option<Arc<dyn PaginatedListStore>>,
    /// Uploads in parts, with an id that can be noted; `None`: without.
    pub(crate) parts: Option<Arc<dyn MultipartStore>>,
    /// What a PUT can be made to depend on.
    pub(crate) condition: PutCondition,
    /// Requests can be given what the library does not know (`amendment`): conditions of copies and
    /// of the end of an upload in parts.
    pub(crate) takes_conditions: bool,
    /// A directory of this machine, whose directories stand for keys that end with a slash.
    pub(crate) local: Option<Arc<LocalFileSystem>>,
    /// How a slash at the end of a key is written; `None`: it has no such keys.
    pub(crate) last_slash: Option<&'static str>,
    /// The library has no request that removes one object: the keys are in its body.
    pub(crate) deletes_in_batches: bool,
    /// Objects have metadata.
    pub(crate) keeps_metadata: bool,
}

/// What a PUT in place of an object can be made to depend on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PutCondition {
    /// Its ETag.
    Etag,
    /// Its generation, which a HEAD tells.
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

    /// Azure's uploads in parts have no id, and take metadata as streams only.
    pub(crate) fn azure(store: MicrosoftAzure) -> Self {
        let store = Arc::new(store);
        Self {
            lists: Some(Arc::clone(&store) as _),
            last_slash: Some("/"),
            deletes_in_batches: true,
            ..Self::plain(store)
        }
    }

    /// What is stored is synced.
    pub(crate) fn directory() -> Self {
        let store = Arc::new(LocalFileSystem::new().with_fsync(true));
        Self {
            local: Some(Arc::clone(&store)),
            condition: PutCondition::None,
            keeps_metadata: false,
            ..Self::plain(store)
        }
    }

    /// A store of which no more is known than the library's interface.
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
