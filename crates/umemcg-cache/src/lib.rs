//! The page cache: pages of files, from the first read to eviction and write-back.
//!
//! A [`File`] keeps an index from page number to frame. Readers walk it without a lock; every
//! change to it holds the file's index lock. Misses are filled in read-ahead windows charged to the
//! reader; dirty pages are written in long vectored writes and stay *unstable* (counted, not
//! evictable) until the store has confirmed their durability. A request whose group has no room for
//! a page takes a bounded number of pages beyond the limit and frees them when it ends (`overrun`):
//! data I/O never fails for lack of memory.
#![forbid(unsafe_code)]

mod ahead_room;
mod begun_reads;
mod cache_core;
pub mod dirty;
pub mod file;
mod file_table;
mod flush_pace;
mod flushers;
mod frame_run;
mod group_turn;
pub mod index;
mod index_node;
pub mod node_pool;
pub mod overrun;
pub mod page_cache;
mod page_lock;
pub mod pinned;
mod pool_writeback;
mod quota;
mod read_pace;
mod read_paces;
pub mod readahead;
mod shadow_leaves;
mod shared_room;
pub mod store;
mod store_read;
mod store_writeback;
mod zero_page;

pub use dirty::settings::{DirtyBound, DirtyBounds, DirtyThreshold};
pub use file::{File, FileError, ReadStep, StartedRead, WaitingRead, WritePause};
pub use page_cache::{LostData, PageCache};
pub use pinned::PinnedPages;
pub use quota::PageQuota;
pub use readahead::Readahead;
pub use store::{BackingStore, FILE_LEN_MAX, StoreId};
pub use store_read::StoreRead;
pub use umemcg_base::{ErrorCursor, ErrorSequence};
