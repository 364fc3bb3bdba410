//! Files opened by processes without an OPEN request.
//!
//! On an exclusive mount with file pages in the kernel, an open has nothing to find out: the kernel
//! checks permissions against its cached attributes. The first OPEN is answered with ENOSYS. From
//! then on the kernel sends neither OPEN nor RELEASE, also for files it has created. Reads, writes
//! and the other requests on a file then come with handle 0. The first of them opens the file here.
//! The most recent of these open files are kept, because an open file knows its readers' readahead;
//! any of them may be closed at any time.
//!
//! A process may have a file open without an open file here. A file without a name is therefore
//! kept as long as the kernel refers to it.

use std::collections::{HashMap, VecDeque};

use rustix::fs::OFlags;
use umemcg_base::LeafMutex;

/// The most open files kept. Each costs its group a handle, and pins its name.
const NR_KEPT_MAX: usize = 64;

/// An inode, and the flags of an open with an effect on later requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct SilentOpen {
    /// The inode, by the kernel's number.
    pub(super) id: u64,
    flags: u32,
}

impl SilentOpen {
    /// Returns the open for a read, or for any other request without a change, with the flags of
    /// its descriptor. It is never opened for writing, which the host may refuse.
    pub(super) fn reading(id: u64, flags: u32) -> Self {
        Self { id, flags: flags & OFlags::NOATIME.bits() }
    }

    /// Returns the open for a write, with the flags of its descriptor.
    pub(super) fn writing(id: u64, flags: u32) -> Self {
        let kept = OFlags::APPEND | OFlags::DSYNC | OFlags::SYNC;
        Self { id, flags: (flags & kept.bits()) | OFlags::RDWR.bits() }
    }

    /// Returns the open for a file created with these flags.
    pub(super) fn of_new(id: u64, flags: u32) -> Self {
        match flags & OFlags::RWMODE.bits() == OFlags::RDONLY.bits() {
            true => Self::reading(id, flags),
            false => Self::writing(id, flags),
        }
    }

    /// Returns the flags to open it with.
    pub(super) fn flags(self) -> OFlags {
        OFlags::from_bits_retain(self.flags)
    }
}

/// The handles of silent opens.
#[derive(Debug, Default)]
struct Handles {
    by_open: HashMap<SilentOpen, u64>,
    /// Oldest first; some may have been closed.
    in_order: VecDeque<SilentOpen>,
}

/// See the module text.
#[derive(Debug, Default)]
pub(super) struct SilentOpens(LeafMutex<Handles>);

impl SilentOpens {
    /// Returns the handle of an open file, or 0 if there is none.
    pub(super) fn handle(&self, open: SilentOpen) -> u64 {
        self.0.lock().by_open.get(&open).copied().unwrap_or(0)
    }

    /// Adds the handle of a newly opened file. Returns the handles to close instead.
    #[must_use]
    pub(super) fn add(&self, open: SilentOpen, handle: u64) -> Vec<u64> {
        let mut handles = self.0.lock();
        let mut to_close = Vec::new();
        match handles.by_open.insert(open, handle) {
            // Another thread has opened it meanwhile.
            Some(other) => to_close.push(other),
            None => handles.in_order.push_back(open),
        }
        while handles.in_order.len() > NR_KEPT_MAX {
            let oldest = handles.in_order.pop_front();
            to_close.extend(oldest.and_then(|oldest| handles.by_open.remove(&oldest)));
        }
        to_close
    }

    /// Takes out all opens. Returns the handles to close.
    #[must_use]
    pub(super) fn take_all(&self) -> Vec<u64> {
        let mut handles = self.0.lock();
        handles.in_order.clear();
        handles.by_open.drain().map(|(_, handle)| handle).collect()
    }

    /// Takes out all opens of a forgotten inode. Returns the handles to close.
    #[must_use]
    pub(super) fn take_all_of(&self, id: u64) -> Vec<u64> {
        let mut handles = self.0.lock();
        if !handles.in_order.iter().any(|open| open.id == id) {
            return Vec::new();
        }
        handles.in_order.retain(|open| open.id != id);
        handles.by_open.extract_if(|open, _| open.id == id).map(|(_, handle)| handle).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reading(id: u64) -> SilentOpen {
        SilentOpen::reading(id, OFlags::RDWR.bits())
    }

    #[test]
    fn the_oldest_open_makes_room_for_a_new_one() {
        let opens = SilentOpens::default();
        for id in 0..NR_KEPT_MAX as u64 {
            assert!(opens.add(reading(id), 100 + id).is_empty());
        }
        assert_eq!(opens.add(reading(1000), 1), [100]);
        assert_eq!((opens.handle(reading(0)), opens.handle(reading(1))), (0, 101));
    }

    #[test]
    fn of_two_threads_that_open_a_file_one_handle_is_closed() {
        let opens = SilentOpens::default();
        assert!(opens.add(reading(1), 5).is_empty());
        assert_eq!(opens.add(reading(1), 6), [5]);
        assert_eq!(opens.handle(reading(1)), 6);
    }

    #[test]
    fn a_forgotten_inode_takes_its_opens_along() {
        let opens = SilentOpens::default();
        let writing = SilentOpen::writing(1, (OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE).bits());
        assert_eq!((writing.flags(), reading(1).flags()), (OFlags::RDWR | OFlags::APPEND, OFlags::RDONLY));
        assert!(opens.add(reading(1), 5).is_empty() && opens.add(writing, 6).is_empty());
        assert!(opens.add(reading(2), 7).is_empty());
        let mut closed = opens.take_all_of(1);
        closed.sort_unstable();
        assert_eq!(closed, [5, 6]);
        assert_eq!((opens.handle(reading(1)), opens.handle(reading(2))), (0, 7));
        assert!(opens.take_all_of(1).is_empty());
    }
}
