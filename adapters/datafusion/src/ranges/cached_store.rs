//! [`CachedStore`]: an object store with reads through a tenant's cached blocks.
//!
//! ```text
//!   read ─▶ version known and fresh? ──no──▶ ask the store (HEAD)
//!                     │
//!                     ▼
//!           blocks of that version ──missing──▶ fetch runs of blocks, if the object is still that version
//!                     │                                   │ it is not: forget the version, begin again
//!                     ▼                                   ▼
//!               slices or copies                  keep each block, charged to the tenant
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::{self, BoxStream, StreamExt, TryStreamExt};
use object_store::path::Path;
use object_store::{
    Attributes, CopyOptions, Error, GetOptions, GetRange, GetResult, GetResultPayload, ListResult,
    MultipartUpload, ObjectMeta, ObjectStore, PutMultipartOptions, PutOptions, PutPayload, PutResult,
    RenameOptions, Result,
};

use super::blocks::Blocks;
use super::forgetting_upload::ForgettingUpload;
use super::range_cache::{Known, RangeCache};

/// Attempts of a read to follow a replaced object before it bypasses the cache.
const VERSION_ATTEMPTS: usize = 3;
/// Concurrent requests of one read.
const FETCHES_AT_ONCE: usize = 8;

/// An object store behind a tenant's cache of blocks; created by
/// [`Tenant::cached_store`](crate::Tenant::cached_store).
///
/// All bytes of one read are of one version. After a change from elsewhere, a read may return the
/// previous version for as long as the tenant trusts a known version
/// ([`TenantBuilder::version_trusted_for`](crate::TenantBuilder::version_trusted_for)). After a
/// change through this store, a read returns the new version. Objects without ETag and version,
/// conditional requests, and requests for a given version bypass the cache. Attributes of objects
/// are not cached: results from the cache have none.
#[derive(Debug, Clone)]
pub struct CachedStore {
    name: Arc<str>,
    inner: Arc<dyn ObjectStore>,
    cache: Arc<RangeCache>,
}

impl CachedStore {
    pub(crate) fn new(name: &str, inner: Arc<dyn ObjectStore>, cache: Arc<RangeCache>) -> Self {
        Self { name: name.into(), inner, cache }
    }

    fn forget(&self, location: &Path) {
        self.cache.forget(&self.name, location);
    }

    /// Returns the present version of an object, from memory or from the store; `None` if the store
    /// reports no versions.
    async fn known(&self, location: &Path) -> Result<Option<Known>> {
        match self.cache.trusted(&self.name, location) {
            Some(known) => Ok(Some(known)),
            None => {
                let asked_at = Instant::now();
                self.cache.note_version_check();
                let head = self.inner.get_opts(location, GetOptions::new().with_head(true)).await?;
                Ok(self.cache.learn(&self.name, &head.meta, asked_at))
            }
        }
    }

    fn blocks_of(&self, known: &Known) -> Blocks {
        Blocks { block_bytes: self.cache.block_bytes(), object_bytes: known.meta.size }
    }

    /// Fetches one run of blocks and keeps them.
    async fn fetch(&self, known: &Known, run: Range<u64>) -> Result<Vec<(u64, Bytes)>> {
        let blocks = self.blocks_of(known);
        let range = blocks.bytes_of(&run);
        self.cache.note_fetch();
        let options = GetOptions::new()
            .with_range(Some(GetRange::Bounded(range.clone())))
            .with_version(known.file.version.clone())
            .with_if_match(known.file.e_tag.clone());
        let answer = self.inner.get_opts(&known.meta.location, options).await?;
        let is_whole = answer.range == range;
        let content = answer.bytes().await?;
        if !is_whole || content.len() as u64 != range.end - range.start {
            return Err(replaced(&known.meta.location));
        }
        let kept = run.map(|index| {
            let at = blocks.bytes_of(&(index..index + 1));
            let part = (at.start - range.start) as usize..(at.end - range.start) as usize;
            // A copy of its own, so that the charged memory is freed with the block.
            let block = Bytes::copy_from_slice(&content[part]);
            self.cache.keep_block(&known.file, index, block.clone());
            (index, block)
        });
        Ok(kept.collect())
    }

    /// Reads ranges of one version.
    async fn read(&self, known: &Known, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        let blocks = self.blocks_of(known);
        let mut found = BTreeMap::new();
        let mut missing = BTreeSet::new();
        for index in ranges.iter().flat_map(|range| blocks.touched(range)).collect::<BTreeSet<u64>>() {
            match self.cache.block(&known.file, index) {
                Some(block) => drop(found.insert(index, block)),
                None => drop(missing.insert(index)),
            }
        }
        let fetched: Vec<Vec<(u64, Bytes)>> = stream::iter(blocks.runs(&missing))
            .map(|run| self.fetch(known, run))
            .buffered(FETCHES_AT_ONCE)
            .try_collect()
            .await?;
        found.extend(fetched.into_iter().flatten());
        Ok(ranges.iter().map(|range| blocks.assemble(range, &found)).collect())
    }

    /// Returns a range of an object's content as a stream, with its first part already read.
    async fn open(&self, known: Known, range: Range<u64>) -> Result<GetResult> {
        let store = self.clone();
        let meta = ObjectMeta::clone(&known.meta);
        let step = move |rest: Range<u64>| {
            let (store, known) = (store.clone(), known.clone());
            async move {
                if rest.is_empty() {
                    return Ok(None);
                }
                let end = store.blocks_of(&known).step_end(&rest);
                let part = rest.start..end;
                let read = store.read(&known, std::slice::from_ref(&part)).await?;
                Ok::<_, Error>(read.into_iter().next().map(|bytes| (bytes, end..rest.end)))
            }
        };
        let payload = match step(range.clone()).await? {
            None => stream::empty().boxed(),
            Some((first, rest)) => {
                stream::once(async move { Ok(first) }).chain(stream::try_unfold(rest, step)).boxed()
            }
        };
        let payload = GetResultPayload::Stream(payload);
        Ok(GetResult { payload, meta, range, attributes: Attributes::default() })
    }
}

/// Returns the error for an object no longer at the requested version.
fn replaced(location: &Path) -> Error {
    Error::Precondition { path: location.to_string(), source: "the object was replaced".into() }
}

/// Returns whether an error means that the object was replaced or removed.
fn is_replaced(error: &Error) -> bool {
    matches!(error, Error::Precondition { .. } | Error::NotFound { .. } | Error::NotModified { .. })
}

/// Returns whether a request is for the present content, without conditions.
fn is_plain(options: &GetOptions) -> bool {
    options.if_match.is_none()
        && options.if_none_match.is_none()
        && options.if_modified_since.is_none()
        && options.if_unmodified_since.is_none()
        && options.version.is_none()
}

#[async_trait]
impl ObjectStore for CachedStore {
    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        if !is_plain(&options) {
            return self.inner.get_opts(location, options).await;
        }
        if options.head {
            let asked_at = Instant::now();
            let answer = self.inner.get_opts(location, options).await?;
            self.cache.learn(&self.name, &answer.meta, asked_at);
            return Ok(answer);
        }
        for _ in 0..VERSION_ATTEMPTS {
            let Some(known) = self.known(location).await? else { break };
            let range = match &options.range {
                None => Ok(0..known.meta.size),
                Some(range) => range.as_range(known.meta.size),
            };
            // The store itself returns the error for an invalid range.
            let Ok(range) = range else { break };
            match self.open(known, range).await {
                Err(error) if is_replaced(&error) => self.forget(location),
                answer => return answer,
            }
        }
        self.inner.get_opts(location, options).await
    }

    async fn get_ranges(&self, location: &Path, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        for _ in 0..VERSION_ATTEMPTS {
            let Some(known) = self.known(location).await? else { break };
            if ranges.iter().any(|range| range.is_empty() || range.end > known.meta.size) {
                break;
            }
            match self.read(&known, ranges).await {
                Err(error) if is_replaced(&error) => self.forget(location),
                answer => return answer,
            }
        }
        self.inner.get_ranges(location, ranges).await
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        let (store, asked_at) = (self.clone(), Instant::now());
        let listed = self.inner.list(prefix);
        listed.inspect_ok(move |meta| drop(store.cache.learn(&store.name, meta, asked_at))).boxed()
    }

    fn list_with_offset(
        &self,
        prefix: Option<&Path>,
        offset: &Path,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        let (store, asked_at) = (self.clone(), Instant::now());
        let listed = self.inner.list_with_offset(prefix, offset);
        listed.inspect_ok(move |meta| drop(store.cache.learn(&store.name, meta, asked_at))).boxed()
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        let asked_at = Instant::now();
        let listed = self.inner.list_with_delimiter(prefix).await?;
        for meta in &listed.objects {
            self.cache.learn(&self.name, meta, asked_at);
        }
        Ok(listed)
    }

    async fn put_opts(&self, location: &Path, payload: PutPayload, opts: PutOptions) -> Result<PutResult> {
        let result = self.inner.put_opts(location, payload, opts).await;
        self.forget(location);
        result
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        opts: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        let inner = self.inner.put_multipart_opts(location, opts).await?;
        let (store, location) = (self.clone(), location.clone());
        Ok(Box::new(ForgettingUpload { inner, forget: move || store.forget(&location) }))
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        let (before, after) = (self.clone(), self.clone());
        let locations = locations.inspect_ok(move |location| before.forget(location)).boxed();
        self.inner.delete_stream(locations).inspect_ok(move |location| after.forget(location)).boxed()
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        let result = self.inner.copy_opts(from, to, options).await;
        self.forget(to);
        result
    }

    async fn rename_opts(&self, from: &Path, to: &Path, options: RenameOptions) -> Result<()> {
        let result = self.inner.rename_opts(from, to, options).await;
        self.forget(from);
        self.forget(to);
        result
    }
}

impl fmt::Display for CachedStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cached({}, {})", self.name, self.inner)
    }
}
