//! One memory budget for each tenant of a DataFusion service.
//!
//! DataFusion bounds the memory of operators by a pool, each of its caches by a constant, and what
//! an object store caches not at all. Here all of that is charged to one group of a [`umemcg`]
//! engine, so a tenant has one limit, and its queries and caches share it:
//!
//! - [`Tenant`] is the budget: the limit of a group. It makes everything else.
//! - [`TenantPool`] is the memory pool of one query, a group below the tenant's. Consumers that can
//!   spill get fair shares; a part is kept for those that cannot.
//! - [`TenantCache`] holds file metadata, listings and statistics. Caches give way before a query
//!   fails, down to what is guaranteed to them; [`SpillPolicy`] says whether also before it spills.
//! - [`CachedStore`] is an object store that caches blocks of objects by version.
//!
//! Tenants are apart from each other by the rules of the engine: limits, guarantees, protection.
//! [`Tenant`] has an example. Runs with DataFusion 55.

mod budget;
mod cache_group;
mod ranges;
mod shares;
mod tenant;
mod tenant_cache;
mod tenant_pool;

pub use ranges::{CachedStore, RangeCache, RangeStats};
pub use tenant::{SpillPolicy, Tenant, TenantBuilder, TenantError};
pub use tenant_cache::TenantCache;
pub use tenant_pool::TenantPool;
