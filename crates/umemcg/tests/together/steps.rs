//! Reads in steps: a user waits for each with nothing of the engine, and gives some up.

use std::sync::Arc;

use umemcg::Group;
use umemcg::files::{File, FileError, PinnedPages, ReadStep, Readahead, StartedRead};
use umemcg_base::{Condvar, LeafMutex};

/// A read that its user waits for.
#[derive(Default)]
struct Slot {
    read: LeafMutex<Option<StartedRead>>,
    filled: Condvar,
}

impl Slot {
    fn put(&self, read: StartedRead) {
        let before = self.read.lock().replace(read);
        assert!(before.is_none(), "a read goes on twice");
        self.filled.notify_one();
    }

    fn take(&self) -> StartedRead {
        let mut read = self.read.lock();
        loop {
            if let Some(read) = read.take() {
                return read;
            }
            self.filled.wait(&mut read);
        }
    }
}

/// Reads as [`File::read`] does. After `nr_steps_max` steps the read is given up, and made anew by
/// a thread that waits.
pub fn read_in_steps<'f>(
    file: &'f Arc<File>,
    group: &Arc<Group>,
    (offset, len): (u64, usize),
    readahead: &Readahead,
    nr_steps_max: usize,
) -> Result<PinnedPages<'f>, FileError> {
    let mut read = file.start_read(offset, len);
    for _ in 0..nr_steps_max {
        let waiting = match file.step_read(group, read, readahead)? {
            ReadStep::Done(pages) => return Ok(pages),
            ReadStep::Waits(waiting) => waiting,
        };
        let slot = Arc::<Slot>::default();
        let to_fill = Arc::clone(&slot);
        waiting.when_ready(move |read| to_fill.put(read));
        read = slot.take();
    }
    drop(read);
    file.read(group, offset, len, readahead)
}
