//! The page cache: pages of files, hit, miss, dirty, flush.
//!
//! A [`File`] keeps an index from page number to frame that readers walk without a lock; everything that changes the
//! index holds the file's index lock. Misses are filled in read-ahead windows charged to the reader; dirty pages are
//! written in long vectored writes and stay *unstable* (counted, not evictable) until the store has confirmed that they
//! are durable. A request whose group has no room for a page has a few in flight beyond the limit, and keeps none
//! (`overrun`): data I/O never fails for lack of memory.
#![forbid(unsafe_code)]

pub mod cache;
pub mod dirty;
pub mod domain;
pub mod evict;
pub mod file;
pub mod flush;
mod flushers;
mod hit;
pub mod index;
pub mod memory;
pub mod node_pool;
pub mod overrun;
mod page_lock;
pub mod pinned;
pub mod read;
pub mod readahead;
mod run;
mod shadow_leaves;
pub mod sparse;
pub mod store;
pub mod truncate;
pub mod write;

pub use cache::PageCache;
pub use dirty::pause::WritePause;
pub use dirty::settings::{DirtyBound, DirtyBounds, DirtyThreshold};
pub use domain::LostData;
pub use file::{File, FileError};
pub use memory::PageQuota;
pub use pinned::PinnedPages;
pub use readahead::Readahead;
pub use store::{BackingStore, StoreId};
pub use umemcg_base::{ErrorCursor, ErrorSequence};
