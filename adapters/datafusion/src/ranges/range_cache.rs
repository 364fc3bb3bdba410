//! [`RangeCache`]: a tenant's blocks of objects by version, and the known versions.
//!
//! The key of a block has the store, the path, the ETag or version, and the block number. So
//! content of different versions is never mixed, and blocks of a replaced object are not found
//! again. The store reports an object's version in listings, in responses, and on request when the
//! known version is too old.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use bytes::Bytes;
use object_store::ObjectMeta;
use object_store::path::Path;
use umemcg::{Engine, ObjectCache};

use crate::cache_group::CacheGroup;

/// Most bytes of a tenant's budget for known versions: a listing of a million objects must not
/// evict the rest.
const VERSIONS_BYTES_MAX: u64 = 4 << 20;

/// A tenant's cached blocks of objects, and the known versions of its objects.
#[derive(Debug)]
pub struct RangeCache {
    blocks: ObjectCache<BlockKey, Bytes>,
    versions: ObjectCache<(Arc<str>, Path), Known>,
    group: Arc<CacheGroup>,
    block_bytes: u64,
    trusted_for: Duration,
    nr_fetches: AtomicU64,
    nr_version_checks: AtomicU64,
}

/// Figures of a [`RangeCache`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RangeStats {
    /// Bytes charged for cached blocks.
    pub charged_bytes: u64,
    /// Blocks found by reads.
    pub hits: u64,
    /// Blocks not found by reads.
    pub misses: u64,
    /// Requests to stores for content.
    pub fetches: u64,
    /// Requests to stores for the version of an object.
    pub version_checks: u64,
}

/// One version of an object, by content.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(super) struct FileVersion {
    store: Arc<str>,
    path: Path,
    pub(super) e_tag: Option<String>,
    pub(super) version: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct BlockKey {
    file: Arc<FileVersion>,
    index: u64,
}

/// The version of an object last reported by its store.
#[derive(Debug, Clone)]
pub(super) struct Known {
    pub(super) meta: Arc<ObjectMeta>,
    pub(super) file: Arc<FileVersion>,
    /// When the request to the store was sent.
    asked_at: Instant,
}

impl RangeCache {
    pub(crate) fn new(
        engine: &Arc<Engine>,
        group: &Arc<CacheGroup>,
        block_bytes: u64,
        trusted_for: Duration,
    ) -> Self {
        let blocks = ObjectCache::builder(engine, "ranges")
            .weigher(|key: &BlockKey, block: &Bytes| block.len() as u64 + version_bytes(&key.file))
            .build();
        let versions = ObjectCache::builder(engine, "object-versions")
            .weigher(|key: &(Arc<str>, Path), known: &Known| {
                // The path is kept in the key, in the metadata and in the version.
                2 * key.1.as_ref().len() as u64 + size_of::<ObjectMeta>() as u64 + version_bytes(&known.file)
            })
            .bytes_max(VERSIONS_BYTES_MAX)
            .build();
        Self {
            blocks,
            versions,
            group: Arc::clone(group),
            block_bytes,
            trusted_for,
            nr_fetches: AtomicU64::new(0),
            nr_version_checks: AtomicU64::new(0),
        }
    }

    /// Returns the cache's figures.
    pub fn stats(&self) -> RangeStats {
        let blocks = self.blocks.stats();
        RangeStats {
            charged_bytes: blocks.bytes,
            hits: blocks.hits,
            misses: blocks.misses,
            fetches: self.nr_fetches.load(Relaxed),
            version_checks: self.nr_version_checks.load(Relaxed),
        }
    }

    pub(super) fn block_bytes(&self) -> u64 {
        self.block_bytes
    }

    /// Counts a request for content.
    pub(super) fn note_fetch(&self) {
        self.nr_fetches.fetch_add(1, Relaxed);
    }

    /// Counts a request for a version.
    pub(super) fn note_version_check(&self) {
        self.nr_version_checks.fetch_add(1, Relaxed);
    }

    /// Records a version reported by a store, for a request sent at `asked_at`. Returns `None` if
    /// the report has no strong ETag and no version, so that versions cannot be distinguished; such
    /// an object is not cached.
    pub(super) fn learn(&self, store: &Arc<str>, meta: &ObjectMeta, asked_at: Instant) -> Option<Known> {
        // A weak ETag promises equivalent content, not identical bytes.
        let e_tag = meta.e_tag.clone().filter(|tag| !tag.starts_with("W/"));
        if e_tag.is_none() && meta.version.is_none() {
            self.forget(store, &meta.location);
            return None;
        }
        let path = meta.location.clone();
        let file = FileVersion { store: Arc::clone(store), path, e_tag, version: meta.version.clone() };
        let known = Known { meta: Arc::new(meta.clone()), file: Arc::new(file), asked_at };
        let key = (Arc::clone(store), meta.location.clone());
        // If the cache declines it, the next read asks the store again.
        let _ = self.versions.insert(self.group.group(), key, known.clone());
        Some(known)
    }

    /// Returns the known version of an object, unless it is too old.
    pub(super) fn trusted(&self, store: &Arc<str>, path: &Path) -> Option<Known> {
        let known = self.versions.get(&(Arc::clone(store), path.clone()))?;
        (known.asked_at.elapsed() <= self.trusted_for).then_some(known)
    }

    pub(super) fn forget(&self, store: &Arc<str>, path: &Path) {
        self.versions.remove(&(Arc::clone(store), path.clone()));
    }

    pub(super) fn block(&self, file: &Arc<FileVersion>, index: u64) -> Option<Bytes> {
        self.blocks.get_for(self.group.group(), &BlockKey { file: Arc::clone(file), index })
    }

    pub(super) fn keep_block(&self, file: &Arc<FileVersion>, index: u64, block: Bytes) {
        // A declined block is not cached.
        let _ = self.blocks.insert(self.group.group(), BlockKey { file: Arc::clone(file), index }, block);
    }
}

/// Returns the heap bytes of a version. Blocks share it; each is charged for all of it, since the
/// others may be gone.
fn version_bytes(file: &FileVersion) -> u64 {
    let strings = file.path.as_ref().len()
        + file.e_tag.as_ref().map_or(0, String::len)
        + file.version.as_ref().map_or(0, String::len);
    (size_of::<FileVersion>() + strings) as u64
}
