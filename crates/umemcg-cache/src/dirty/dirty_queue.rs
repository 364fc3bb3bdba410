//! The queue of one store's write-back: its dirty files by group, and the files that the flusher is
//! writing. A queued file keeps its store, the queue and the pool in memory, so the queue is closed
//! when the engine ends.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use umemcg_group::Group;

use crate::dirty::dirty_file::DirtyFile;
use crate::dirty::list_position::NO_POSITION;
use crate::dirty::lists::DirtyLists;

/// The dirty files of a store, and the files that its flusher is writing.
#[derive(Debug, Default)]
pub(crate) struct DirtyQueue {
    pub(crate) dirty: DirtyLists,
    /// Files taken off their lists by the flusher to write: the files to be confirmed together, and
    /// one more.
    pub(crate) taken: Vec<Arc<dyn DirtyFile>>,
    /// A thread writes, or will in its turn. The caller that sets it starts a thread.
    pub(crate) is_served: bool,
    /// The engine is gone: no file is queued any more.
    is_closed: bool,
}

impl DirtyQueue {
    /// Puts a file on the list of its group. Returns the file if the queue is closed; the caller
    /// drops it without the lock.
    pub(crate) fn push(
        &mut self,
        group: &Arc<Group>,
        file: Arc<dyn DirtyFile>,
    ) -> Option<Arc<dyn DirtyFile>> {
        if self.is_closed {
            return Some(file);
        }
        self.dirty.push(group, file);
        None
    }

    /// Ends the work on a taken file. The caller drops the returned reference without the lock.
    pub(crate) fn put_away(&mut self, file: &dyn DirtyFile) -> Option<Arc<dyn DirtyFile>> {
        let at = self.taken.iter().position(|taken| taken.id() == file.id())?;
        Some(self.taken.swap_remove(at))
    }

    /// Ends the queue. Returns its files; the caller drops them without the lock.
    pub(crate) fn close(&mut self) -> DirtyLists {
        self.is_closed = true;
        self.dirty.files().for_each(|file| file.list_position().0.store(NO_POSITION, Ordering::Relaxed));
        std::mem::take(&mut self.dirty)
    }
}

/// The outcome of a push, for the caller after it has released the lock.
pub(crate) struct Pushed {
    /// A thread writes already, or none has to.
    pub(crate) is_served: bool,
    /// The file if the queue is closed: this may be the last reference to it.
    _refused: Option<Arc<dyn DirtyFile>>,
}

impl Pushed {
    pub(crate) fn to(queue: &mut DirtyQueue, group: &Arc<Group>, file: Arc<dyn DirtyFile>) -> Self {
        let refused = queue.push(group, file);
        let is_served = refused.is_some() || std::mem::replace(&mut queue.is_served, true);
        Self { is_served, _refused: refused }
    }
}
