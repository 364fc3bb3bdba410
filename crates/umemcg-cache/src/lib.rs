//! The page cache: pages of files, hit, miss, dirty, flush.
//!
//! A [`File`] keeps an index from page number to frame that readers walk without a lock; everything
//! that changes the index holds the file's index lock. Misses are filled in read-ahead windows
//! charged to the reader; dirty pages are written in long vectored writes and stay *unstable*
//! (counted, not evictable) until the store has confirmed that they are durable. A request whose
//! group has no room for a page has a few in flight beyond the limit, and keeps none (`overrun`):
//! data I/O never fails for lack of memory.
#![forbid(unsafe_code)]

pub mod cache;
mod cache_core;
pub mod dirty;
pub mod evict;
pub mod file;
mod file_table;
pub mod flush;
mod flush_pace;
mod flushers;
mod hit;
pub mod index;
mod index_node;
pub mod memory;
pub mod node_pool;
pub mod overrun;
mod page_lock;
pub mod pinned;
mod pool_writeback;
mod quota;
pub mod read;
pub mod readahead;
mod run;
mod shadow_leaves;
mod shadow_shrinker;
pub mod sparse;
pub mod store;
mod store_writeback;
pub mod truncate;
pub mod write;
mod zero_page;

pub use cache::{LostData, PageCache};
pub use dirty::pause::WritePause;
pub use dirty::settings::{DirtyBound, DirtyBounds, DirtyThreshold};
pub use file::{File, FileError};
pub use pinned::PinnedPages;
pub use quota::PageQuota;
pub use readahead::Readahead;
pub use store::{BackingStore, StoreId};
pub use umemcg_base::{ErrorCursor, ErrorSequence};
