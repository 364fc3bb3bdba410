//! One memory budget for each tenant of a DataFusion service.
//!
//! DataFusion bounds the memory of operators by a pool, each of its caches by a constant, and the
//! caches of object stores not at all. Here all of them are charged to one group of a [`umemcg`]
//! engine, so a tenant has one limit, and its queries and caches share it:
//!
//! - [`Tenant`] is the budget: the limit of a group. It creates all other objects.
//! - [`TenantPool`] is the memory pool of one query, a group below the tenant's. Spillable
//!   consumers get fair shares; a part is kept for unspillable ones.
//! - [`TenantCache`] holds file metadata, listings and statistics. Caches give way before a query
//!   fails, down to their guarantee; [`SpillPolicy`] says whether they also give way before it
//!   spills.
//! - [`CachedStore`] is an object store with a cache of blocks of objects, by version.
//!
//! The engine's rules isolate tenants from each other: limits, guarantees, protection. [`Tenant`]
//! has an example. Runs with DataFusion 55.

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
