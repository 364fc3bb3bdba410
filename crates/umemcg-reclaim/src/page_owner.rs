//! The trait used by reclaim to make the page cache evict pages and write dirty ones.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use umemcg_arena::FrameId;
use umemcg_group::Group;

use crate::shadow::Shadow;

/// The fate of a page requested by reclaim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Eviction {
    /// It left its file; the frame is frozen and belongs to the caller.
    Evicted,
    /// It is in use, or it became dirty: it stays.
    Busy,
    /// It had left its file already; the caller's pin may be the last one.
    Gone,
}

/// Implemented by the page cache. Called with no lock held.
pub trait PageOwner: Send + Sync + fmt::Debug {
    /// Tries to take pages out of their files. The caller holds one pin of each. Each evicted page
    /// is replaced by the result of `shadow`, called with its frame and the number of pages evicted
    /// before it. The fate of every page is added to `fates`. Neighbours in a file cost least.
    #[doc(alias = "__remove_mapping")]
    fn evict(&self, frames: &[FrameId], shadow: &dyn Fn(FrameId, u64) -> Shadow, fates: &mut Vec<Eviction>);

    /// Wakes the flusher: reclaim on behalf of `group` finds only dirty pages. Never blocks.
    fn start_writeback(&self, group: &Arc<Group>);

    /// Sleeps until some write-back has finished, or the timeout. Returns `true` if some finished.
    #[doc(alias = "reclaim_throttle")]
    fn wait_for_writeback(&self, timeout: Duration) -> bool;

    /// Returns a number changing whenever some write-back finishes. Never blocks for long.
    fn writeback_progress(&self) -> u64;
}
