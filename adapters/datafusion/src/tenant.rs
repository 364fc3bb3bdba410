//! [`Tenant`]: one budget for all queries and caches of a tenant.
//!
//! ```text
//!   tenant's group ── its limit bounds the sum of everything below
//!     ├── caches    file metadata, listings, statistics, ranges of objects: given back when needed
//!     ├── query-0   consumers of one query (TenantPool): spilled or given up when refused
//!     └── query-1   …
//! ```

use std::ffi::OsString;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use datafusion_execution::cache::TableScopedPath;
use datafusion_execution::cache::cache_manager::{
    CacheManagerConfig, CachedFileList, CachedFileMetadata, CachedFileMetadataEntry,
};
use datafusion_execution::runtime_env::RuntimeEnvBuilder;
use object_store::ObjectStore;
use object_store::path::Path;
use umemcg::{CreateError, Engine, Group};

use crate::budget::{Budget, GuaranteedToOthers};
use crate::cache_group::CacheGroup;
use crate::ranges::{CachedStore, RangeCache};
use crate::shares::{KEPT_PERCENT, Shares};
use crate::tenant_cache::TenantCache;
use crate::tenant_pool::TenantPool;

/// Default time to live of a listing.
const LISTING_TIME_TO_LIVE: Duration = Duration::from_secs(60);
/// Default time of trusting an object's known version without a request to its store.
const VERSION_TRUSTED_FOR: Duration = Duration::from_secs(10);
/// Default size of a cached block, in bytes.
const BLOCK_BYTES: u64 = 1 << 20;

/// Whether the caches or the queries of a tenant give way first at its limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum SpillPolicy {
    /// The caches are emptied, down to their guarantee, before a query spills.
    #[default]
    CachesFirst,
    /// Queries spill before the caches have less than `cache_percent` of the tenant's limit. The
    /// caches shrink further only when a query would fail otherwise.
    QueriesFirst {
        /// In percent of the limit.
        cache_percent: u8,
    },
}

/// Why a tenant or a query could not be set up.
#[derive(Debug)]
#[non_exhaustive]
pub enum TenantError {
    /// A group could not be created.
    Group(CreateError),
    /// DataFusion refused the runtime.
    Runtime(datafusion_common::DataFusionError),
}

impl fmt::Display for TenantError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Group(error) => write!(f, "cannot create a group for the tenant or its query: {error}"),
            Self::Runtime(error) => write!(f, "cannot set up the query's runtime: {error}"),
        }
    }
}

impl std::error::Error for TenantError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Group(error) => Some(error),
            Self::Runtime(error) => Some(error),
        }
    }
}

impl From<CreateError> for TenantError {
    fn from(error: CreateError) -> Self {
        Self::Group(error)
    }
}

impl From<datafusion_common::DataFusionError> for TenantError {
    fn from(error: datafusion_common::DataFusionError) -> Self {
        Self::Runtime(error)
    }
}

/// Builds a [`Tenant`]; see [`Tenant::builder`].
#[derive(Debug, Clone)]
#[must_use = "a tenant is made by `build`"]
pub struct TenantBuilder {
    engine: Arc<Engine>,
    group: Arc<Group>,
    policy: SpillPolicy,
    kept_percent: u8,
    cache_guarantee_bytes: u64,
    listing_time_to_live: Option<Duration>,
    version_trusted_for: Duration,
    block_bytes: u64,
}

impl TenantBuilder {
    /// Sets whether caches or queries give way first at the limit. The default is the caches.
    pub fn policy(mut self, policy: SpillPolicy) -> Self {
        self.policy = policy;
        self
    }

    /// Sets the part of the budget left by spillable consumers to unspillable ones, in percent; 20
    /// unless set.
    pub fn kept_percent(mut self, percent: u8) -> Self {
        self.kept_percent = percent.min(100);
        self
    }

    /// Sets the bytes left by queries to the tenant's caches, as far as the caches use them. None
    /// unless set.
    pub fn cache_guarantee_bytes(mut self, bytes: u64) -> Self {
        self.cache_guarantee_bytes = bytes;
        self
    }

    /// Sets how long a listing of files is used before the store is asked again; `None` means
    /// forever. A minute unless set.
    pub fn listing_time_to_live(mut self, time: Option<Duration>) -> Self {
        self.listing_time_to_live = time;
        self
    }

    /// Sets how long the version of an object last reported by its store counts as the present one.
    /// Ten seconds unless set; zero asks the store before each read.
    pub fn version_trusted_for(mut self, time: Duration) -> Self {
        self.version_trusted_for = time;
        self
    }

    /// Sets the size of cached blocks, in bytes, at least 4096; 1 MiB unless set. A read fetches
    /// whole blocks.
    pub fn block_bytes(mut self, bytes: u64) -> Self {
        self.block_bytes = bytes.max(4096);
        self
    }

    /// Creates the tenant's caches in a group `caches` below the tenant's. May sleep for reclaim.
    ///
    /// # Errors
    /// [`TenantError::Group`], also when that group already exists.
    pub fn build(self) -> Result<Arc<Tenant>, TenantError> {
        let Self { engine, group, .. } = &self;
        let caches = CacheGroup::new(engine, group)?;
        engine.set_min(caches.group(), self.cache_guarantee_bytes);
        let cache_percent = match self.policy {
            SpillPolicy::CachesFirst => 0,
            SpillPolicy::QueriesFirst { cache_percent } => u64::from(cache_percent.min(100)),
        };
        Ok(Arc::new(Tenant {
            metadata: Arc::new(TenantCache::new(engine, &caches, "file-metadata", None)),
            listings: Arc::new(TenantCache::new(engine, &caches, "listings", self.listing_time_to_live)),
            statistics: Arc::new(TenantCache::new(engine, &caches, "statistics", None)),
            ranges: Arc::new(RangeCache::new(engine, &caches, self.block_bytes, self.version_trusted_for)),
            next_query: AtomicU64::new(0),
            budget: Arc::new(Budget {
                caches,
                shares: Shares::new(self.kept_percent),
                cache_guarantee_bytes: self.cache_guarantee_bytes,
                cache_percent,
                reserved_bytes: AtomicU64::new(0),
                guaranteed_to_others: GuaranteedToOthers::new(&self.group),
                group: self.group,
                engine: self.engine,
            }),
        }))
    }
}

/// One budget for all queries and caches of a tenant: the limit of the tenant's group.
///
/// ```
/// use std::sync::Arc;
/// use umemcg::{Engine, EngineConfig};
/// use umemcg_datafusion::Tenant;
///
/// let engine = Engine::new(EngineConfig::new(256 << 20))?;
/// let group = engine.create_group(engine.root(), "acme".as_ref())?;
/// engine.set_max(&group, 64 << 20);
/// let tenant = Tenant::builder(&engine, &group).cache_guarantee_bytes(4 << 20).build()?;
///
/// // For each query, or each session.
/// let runtime = Arc::new(tenant.runtime_builder()?.build()?);
/// assert_eq!(group.nr_children(), 2); // the caches and the query
/// drop(runtime);
/// assert_eq!(group.nr_children(), 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Tenant {
    metadata: Arc<TenantCache<Path, CachedFileMetadataEntry>>,
    listings: Arc<TenantCache<TableScopedPath, CachedFileList>>,
    statistics: Arc<TenantCache<TableScopedPath, CachedFileMetadata>>,
    ranges: Arc<RangeCache>,
    /// The number in the next query's name.
    next_query: AtomicU64,
    budget: Arc<Budget>,
}

impl Tenant {
    /// Returns a builder for a tenant limited by `group`, with the limit set by
    /// [`Engine::set_max`](umemcg::Engine::set_max), and by the groups above it.
    pub fn builder(engine: &Arc<Engine>, group: &Arc<Group>) -> TenantBuilder {
        TenantBuilder {
            engine: Arc::clone(engine),
            group: Arc::clone(group),
            policy: SpillPolicy::default(),
            kept_percent: KEPT_PERCENT,
            cache_guarantee_bytes: 0,
            listing_time_to_live: Some(LISTING_TIME_TO_LIVE),
            version_trusted_for: VERSION_TRUSTED_FOR,
            block_bytes: BLOCK_BYTES,
        }
    }

    /// Returns the engine.
    pub fn engine(&self) -> &Arc<Engine> {
        &self.budget.engine
    }

    /// Returns the tenant's group.
    pub fn group(&self) -> &Arc<Group> {
        &self.budget.group
    }

    /// Returns the group charged for the tenant's caches.
    pub fn cache_group(&self) -> &Arc<Group> {
        self.budget.caches.group()
    }

    /// Returns the tenant's cache of byte ranges.
    pub fn ranges(&self) -> &Arc<RangeCache> {
        &self.ranges
    }

    /// Returns the pool of a new query: a group below the tenant's, removed with the last handle.
    /// May sleep for reclaim.
    ///
    /// # Errors
    /// [`TenantError::Group`].
    pub fn start_query(&self) -> Result<Arc<TenantPool>, TenantError> {
        let number = self.next_query.fetch_add(1, Relaxed);
        Ok(TenantPool::new(&self.budget, OsString::from(format!("query-{number}")))?)
    }

    /// Returns the configuration of DataFusion's caches: file metadata, listings and statistics,
    /// charged to this tenant and shared by its queries.
    pub fn cache_manager_config(&self) -> CacheManagerConfig {
        // The limit of the caches is the tenant's. DataFusion passes these numbers to the caches.
        let limit = self.group().ancestors().map(Group::max_bytes).min().unwrap_or(u64::MAX);
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        CacheManagerConfig::default()
            .with_file_metadata_cache(Some(Arc::<TenantCache<_, _>>::clone(&self.metadata)))
            .with_metadata_cache_limit(limit)
            .with_list_files_cache(Some(Arc::<TenantCache<_, _>>::clone(&self.listings)))
            .with_list_files_cache_limit(limit)
            .with_file_statistics_cache(Some(Arc::<TenantCache<_, _>>::clone(&self.statistics)))
            .with_file_statistics_cache_limit(limit)
    }

    /// Returns a builder of DataFusion's runtime for a new query, with the query's pool and the
    /// tenant's caches. Add a disk manager and object stores as you like. May sleep for reclaim.
    ///
    /// # Errors
    /// [`TenantError::Group`].
    pub fn runtime_builder(&self) -> Result<RuntimeEnvBuilder, TenantError> {
        let pool = self.start_query()?;
        Ok(RuntimeEnvBuilder::new().with_memory_pool(pool).with_cache_manager(self.cache_manager_config()))
    }

    /// Returns `store` with the tenant's cache in front of it. `name` distinguishes stores with the
    /// same paths, for instance the URL of the store's registration.
    pub fn cached_store(&self, name: &str, store: Arc<dyn ObjectStore>) -> CachedStore {
        CachedStore::new(name, store, Arc::clone(&self.ranges))
    }

    /// Returns the most bytes the tenant's queries may hold: the lowest of its own limit and each
    /// ancestor's limit less the guarantees of other groups.
    pub fn limit_bytes(&self) -> u64 {
        self.budget.limit_bytes()
    }
}

impl fmt::Debug for Tenant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tenant")
            .field("group", &self.group().path())
            .field("budget", &self.budget)
            .finish_non_exhaustive()
    }
}
