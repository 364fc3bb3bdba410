//! Files that an engine caches: their stores, reads and writes, and what may be dirty.
//!
//! [`Engine::open_file`](crate::Engine::open_file) caches a file of a [`BackingStore`] of yours;
//! [`File`] reads and writes it, and makes it durable. The pages are frames of the engine's
//! [`Arena`], of which a store is given [`Segment`]s to fill or to write out. A store whose answers
//! take long [begins reads](BackingStore::begin_read), and a [read in steps](File::step_read) holds
//! no thread for them.

#[cfg(target_os = "linux")]
pub use umemcg_arena::IoFlags;
pub use umemcg_arena::{Arena, FrameId, Segment};
pub use umemcg_cache::{
    BackingStore, DirtyBound, DirtyBounds, DirtyThreshold, ErrorCursor, FILE_LEN_MAX, File, FileError,
    LostData, PageQuota, PinnedPages, ReadStep, Readahead, StartedRead, StoreId, StoreRead, WaitingRead,
};
