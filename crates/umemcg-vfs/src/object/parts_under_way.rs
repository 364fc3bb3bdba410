//! The parts of a stream on their way to the store: how many there are, and whether one has failed.
//! Threads of the store report their ends, and writers wait for these.

use std::sync::Arc;

use umemcg_base::{Condvar, LeafMutex};

use crate::bucket::{BucketError, PartEnd};

/// See the module text.
#[derive(Debug, Default)]
pub(super) struct PartsUnderWay {
    parts: LeafMutex<Counted>,
    ended: Condvar,
}

#[derive(Debug, Default)]
struct Counted {
    nr: usize,
    failure: Option<BucketError>,
}

impl PartsUnderWay {
    /// Counts a part about to be sent.
    pub(super) fn begin(self: &Arc<Self>) -> PartEnd {
        self.parts.lock().nr += 1;
        let me = Arc::clone(self);
        PartEnd::new(move |result| {
            {
                let mut parts = me.parts.lock();
                parts.nr -= 1;
                parts.failure = parts.failure.take().or(result.err());
            }
            me.ended.notify_all();
        })
    }

    /// Waits until fewer than `nr` parts are under way.
    ///
    /// # Errors
    /// Why one has failed.
    pub(super) fn wait_below(&self, nr: usize) -> Result<(), BucketError> {
        let mut parts = self.parts.lock();
        while parts.nr >= nr && parts.failure.is_none() {
            self.ended.wait(&mut parts);
        }
        parts.failure.clone().map_or(Ok(()), Err)
    }

    /// Waits until one has ended. Returns `false` if none is under way.
    pub(super) fn wait_for_one(&self) -> bool {
        let nr = self.parts.lock().nr;
        nr > 0 && {
            let mut parts = self.parts.lock();
            while parts.nr >= nr {
                self.ended.wait(&mut parts);
            }
            true
        }
    }
}
