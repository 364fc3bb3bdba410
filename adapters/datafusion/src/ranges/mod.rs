//! Cached ranges of objects: [`RangeCache`] keeps blocks of a tenant's objects by version,
//! [`CachedStore`] reads through it.

mod blocks;
mod cached_store;
mod forgetting_upload;
mod range_cache;

pub use cached_store::CachedStore;
pub use range_cache::{RangeCache, RangeStats};
