//! The cached store: saved requests, and no read mixing versions.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::TryStreamExt;
use futures::stream::BoxStream;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetRange, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    ObjectStoreExt, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};
use umemcg_datafusion::{CachedStore, Tenant};

use crate::{MIB, tenant_with};

const HOUR: Duration = Duration::from_secs(3600);

/// A store in memory with request counters, and optionally without ETags.
#[derive(Debug, Default)]
struct Counting {
    inner: InMemory,
    reads: AtomicU64,
    heads: AtomicU64,
    tells_no_versions: bool,
}

impl Counting {
    /// Returns the requests for content and for metadata since the last call.
    fn requests(&self) -> (u64, u64) {
        (self.reads.swap(0, Relaxed), self.heads.swap(0, Relaxed))
    }
}

impl fmt::Display for Counting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

#[async_trait]
impl ObjectStore for Counting {
    async fn put_opts(&self, location: &Path, payload: PutPayload, opts: PutOptions) -> Result<PutResult> {
        self.inner.put_opts(location, payload, opts).await
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        opts: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.inner.put_multipart_opts(location, opts).await
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        if options.head { &self.heads } else { &self.reads }.fetch_add(1, Relaxed);
        let mut answer = self.inner.get_opts(location, options).await?;
        if self.tells_no_versions {
            answer.meta.e_tag = None;
        }
        Ok(answer)
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        self.inner.delete_stream(locations)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.inner.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.inner.copy_opts(from, to, options).await
    }
}

/// Returns content different for each version and offset.
fn content(version: u8, len: usize) -> Vec<u8> {
    (0..len).map(|at| (at / 7) as u8 ^ version.wrapping_mul(31)).collect()
}

struct Fixture {
    tenant: Arc<Tenant>,
    origin: Arc<Counting>,
    store: CachedStore,
    path: Path,
}

/// Returns a store with one object of `len` bytes behind a cache of blocks of 4 KiB.
async fn fixture(len: usize, trusted_for: Duration) -> Fixture {
    fixture_of(Counting::default(), len, trusted_for).await
}

async fn fixture_of(origin: Counting, len: usize, trusted_for: Duration) -> Fixture {
    let tenant = tenant_with(8, |builder| builder.block_bytes(4096).version_trusted_for(trusted_for));
    let origin = Arc::new(origin);
    let store = tenant.cached_store("mem://", Arc::<Counting>::clone(&origin));
    let path = Path::from("table/part-0.parquet");
    origin.inner.put(&path, content(1, len).into()).await.expect("stored");
    Fixture { tenant, origin, store, path }
}

#[tokio::test]
async fn a_second_read_needs_no_request() {
    let Fixture { tenant, origin, store, path } = fixture(100_000, HOUR).await;
    let expected = content(1, 100_000);
    let ranges = [10..20, 5_000..70_000, 99_990..100_000];
    let read = store.get_ranges(&path, &ranges).await.expect("read");
    for (bytes, range) in read.iter().zip(&ranges) {
        assert_eq!(bytes, &expected[range.start as usize..range.end as usize]);
    }
    // Blocks 0 to 17, and the last one.
    assert_eq!(origin.requests(), (2, 1));
    assert_eq!(store.get_ranges(&path, &ranges).await.expect("read"), read);
    assert_eq!(store.get(&path).await.expect("opened").bytes().await.expect("read"), expected);
    // Only the blocks between them were missing.
    assert_eq!(origin.requests(), (1, 0));
    assert!(tenant.cache_group().usage_bytes() >= 100_000);
    let stats = tenant.ranges().stats();
    assert_eq!((stats.fetches, stats.version_checks), (3, 1));
    assert!(stats.charged_bytes >= 100_000 && stats.hits > 19);
}

#[tokio::test]
async fn every_kind_of_range_is_served() {
    let Fixture { origin, store, path, .. } = fixture(50_000, HOUR).await;
    let expected = content(1, 50_000);
    for (asked, range) in [
        (Some(GetRange::Bounded(4095..4097)), 4095..4097),
        (Some(GetRange::Bounded(49_000..60_000)), 49_000..50_000),
        (Some(GetRange::Offset(40_000)), 40_000..50_000),
        (Some(GetRange::Suffix(8)), 49_992..50_000),
        (None, 0..50_000_u64),
    ] {
        let answer = store.get_opts(&path, GetOptions::new().with_range(asked)).await.expect("opened");
        assert_eq!(answer.range, range);
        assert_eq!(answer.meta.size, 50_000);
        let bytes = answer.bytes().await.expect("read");
        assert_eq!(bytes, expected[range.start as usize..range.end as usize]);
    }
    origin.requests();
    // The store words its own refusals.
    let beyond = GetOptions::new().with_range(Some(GetRange::Bounded(50_000..50_001)));
    assert!(store.get_opts(&path, beyond).await.is_err());
    assert!(store.get(&Path::from("missing")).await.is_err());
    assert_eq!(store.get_ranges(&path, &[]).await.expect("nothing"), Vec::<Bytes>::new());
}

#[tokio::test]
async fn an_empty_object_is_read_as_such() {
    let Fixture { store, path, .. } = fixture(0, HOUR).await;
    assert!(store.get(&path).await.expect("opened").bytes().await.expect("read").is_empty());
    assert_eq!(store.head(&path).await.expect("told").size, 0);
}

#[tokio::test]
async fn a_replaced_object_is_never_mixed_with_the_old_one() {
    let Fixture { origin, store, path, .. } = fixture(40_000, HOUR).await;
    store.get_range(&path, 0..8192).await.expect("read");
    // From elsewhere, unknown to the cache.
    origin.inner.put(&path, content(2, 60_000).into()).await.expect("replaced");
    // The first block is cached, the others are not: the read notices, and begins again.
    let read = store.get_range(&path, 0..30_000).await.expect("read");
    assert_eq!(read, content(2, 60_000)[..30_000]);
    let read = store.get_range(&path, 50_000..60_000).await.expect("read");
    assert_eq!(read, content(2, 60_000)[50_000..]);
}

#[tokio::test]
async fn a_version_that_is_not_trusted_is_asked_for() {
    let Fixture { origin, store, path, .. } = fixture(10_000, Duration::ZERO).await;
    for version in 2..6 {
        origin.inner.put(&path, content(version, 10_000).into()).await.expect("replaced");
        origin.requests();
        let read = store.get_range(&path, 0..10_000).await.expect("read");
        assert_eq!(read, content(version, 10_000));
        assert_eq!(origin.requests().1, 1, "asked once");
    }
}

#[tokio::test]
async fn changes_through_the_store_are_seen_at_once() {
    let Fixture { store, path, .. } = fixture(10_000, HOUR).await;
    let other = Path::from("other");
    assert_eq!(store.get_range(&path, 0..9).await.expect("read"), content(1, 9));
    store.put(&path, content(2, 10_000).into()).await.expect("put");
    assert_eq!(store.get_range(&path, 0..9).await.expect("read"), content(2, 10_000)[..9]);
    let mut upload = store.put_multipart(&path).await.expect("begun");
    upload.put_part(content(3, 10_000).into()).await.expect("a part");
    assert_eq!(store.get_range(&path, 0..9).await.expect("read"), content(2, 10_000)[..9]);
    upload.complete().await.expect("completed");
    assert_eq!(store.get_range(&path, 0..9).await.expect("read"), content(3, 10_000)[..9]);
    store.copy(&path, &other).await.expect("copied");
    assert_eq!(store.get_range(&other, 0..9).await.expect("read"), content(3, 10_000)[..9]);
    store.rename(&other, &path).await.expect("renamed");
    assert!(store.get_range(&other, 0..9).await.is_err());
    store.delete(&path).await.expect("deleted");
    assert!(store.get_range(&path, 0..9).await.is_err());
}

#[tokio::test]
async fn a_listing_saves_the_questions() {
    let Fixture { origin, store, path, .. } = fixture(10_000, HOUR).await;
    let listed: Vec<ObjectMeta> = store.list(None).try_collect().await.expect("listed");
    assert_eq!(listed.len(), 1);
    store.get_range(&path, 0..100).await.expect("read");
    assert_eq!(origin.requests(), (1, 0));
}

#[tokio::test]
async fn objects_without_versions_are_not_cached() {
    let origin = Counting { tells_no_versions: true, ..Counting::default() };
    let Fixture { tenant, origin, store, path } = fixture_of(origin, 10_000, HOUR).await;
    for version in 2..4 {
        origin.inner.put(&path, content(version, 10_000).into()).await.expect("replaced");
        assert_eq!(store.get_range(&path, 5..50).await.expect("read"), content(version, 10_000)[5..50]);
    }
    assert_eq!(tenant.ranges().stats().charged_bytes, 0);
}

#[tokio::test]
async fn conditions_are_left_to_the_store() {
    let Fixture { store, path, .. } = fixture(10_000, HOUR).await;
    let e_tag = store.head(&path).await.expect("told").e_tag;
    store.put(&path, content(2, 10_000).into()).await.expect("replaced");
    let stale = store.get_opts(&path, GetOptions::new().with_if_match(e_tag)).await;
    assert!(matches!(stale, Err(object_store::Error::Precondition { .. })));
}

#[tokio::test]
async fn blocks_stay_within_the_budget() {
    let Fixture { tenant, store, path, .. } = fixture(20 << 20, HOUR).await;
    let expected = content(1, 20 << 20);
    for _ in 0..2 {
        let read = store.get(&path).await.expect("opened").bytes().await.expect("read");
        assert!(read == expected);
        let used = tenant.group().usage_bytes();
        assert!((6 * MIB..=8 * MIB).contains(&used), "{used}");
    }
    // A query takes them.
    let pool = tenant.start_query().expect("a query");
    let pool: Arc<dyn datafusion_execution::memory_pool::MemoryPool> = pool;
    let join = datafusion_execution::memory_pool::MemoryConsumer::new("join").register(&pool);
    join.try_grow(7 << 20).expect("blocks give way");
    assert!(tenant.group().usage_bytes() <= 8 * MIB);
}

#[tokio::test]
async fn a_stream_whose_object_is_replaced_ends_in_an_error() {
    // Longer than one step of a stream.
    let Fixture { origin, store, path, .. } = fixture(9 << 20, HOUR).await;
    let stream = store.get(&path).await.expect("opened").into_stream();
    origin.inner.put(&path, content(2, 9 << 20).into()).await.expect("replaced");
    let parts: Result<Vec<Bytes>> = stream.try_collect().await;
    assert!(matches!(parts, Err(object_store::Error::Precondition { .. })));
    let read = store.get(&path).await.expect("opened").bytes().await.expect("read");
    assert!(read == content(2, 9 << 20));
}

#[tokio::test]
async fn stores_with_the_same_paths_are_told_apart() {
    let Fixture { tenant, store, path, .. } = fixture(10_000, HOUR).await;
    let origin = Arc::new(Counting::default());
    origin.inner.put(&path, content(9, 10_000).into()).await.expect("stored");
    let other = tenant.cached_store("other://", origin);
    let range: Range<u64> = 0..10_000;
    assert_eq!(store.get_range(&path, range.clone()).await.expect("read"), content(1, 10_000));
    assert_eq!(other.get_range(&path, range).await.expect("read"), content(9, 10_000));
}
