//! Files cached by an engine: their stores, reads and writes, and the bounds of dirty data.
//!
//! [`Engine::open_file`](crate::Engine::open_file) caches a file of a [`BackingStore`] of yours;
//! [`File`] reads and writes it, and makes it durable. The pages are frames of the engine's
//! [`Arena`]; a store gets [`Segment`]s of it to fill or to write out. A slow store [begins
//! reads](BackingStore::begin_read), and a [read in steps](File::step_read) blocks no thread for
//! them.

#[cfg(target_os = "linux")]
pub use umemcg_arena::IoFlags;
pub use umemcg_arena::{Arena, FrameId, Segment};
pub use umemcg_cache::{
    BackingStore, DirtyBound, DirtyBounds, DirtyThreshold, ErrorCursor, FILE_LEN_MAX, File, FileError,
    LostData, PageQuota, PinnedPages, ReadStep, Readahead, StartedRead, StoreId, StoreRead, WaitingRead,
};
