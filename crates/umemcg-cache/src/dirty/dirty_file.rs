//! A file as write-back sees it: whether it is dirty, the group that owns its dirty data, and how
//! to write it.

use std::fmt;
use std::io;
use std::sync::Arc;

use crate::dirty::list_position::ListPosition;
use crate::dirty::owner::DirtyOwner;
use crate::dirty::queue_mark::QueueMark;
use crate::flush_pace::FlushPace;

/// The result of a turn of write-back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TurnWritten {
    pub(crate) pages: u64,
    /// The store has yet to confirm the written pages, in
    /// [`confirm_turn`](DirtyFile::confirm_turn).
    pub(crate) is_unconfirmed: bool,
}

/// See the module text.
pub(crate) trait DirtyFile: Send + Sync + fmt::Debug {
    /// Returns its number in the table of files.
    fn id(&self) -> u32;
    /// Returns whether everything written so far is durable in the store.
    fn is_stable(&self) -> bool;
    /// Returns its mark in its store's queue, with the time at which it became dirty.
    fn queue_mark(&self) -> &QueueMark;
    /// Returns its position in its store's lists.
    fn list_position(&self) -> &ListPosition;
    /// Returns the owner of its dirty data.
    fn dirty_owner(&self) -> &DirtyOwner;
    /// Writes for one turn. More pages may be dirty when the written pages reach the pace's budget.
    /// The caller has a small amount confirmed, together with other files. Sleeps.
    ///
    /// # Errors
    /// The store's error.
    fn flush_turn(self: Arc<Self>, pace: &FlushPace) -> io::Result<TurnWritten>;
    /// Has the store confirm the pages written by turns. Sleeps.
    ///
    /// # Errors
    /// As [`flush_turn`](Self::flush_turn).
    fn confirm_turn(self: Arc<Self>) -> io::Result<()>;
}
