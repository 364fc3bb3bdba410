//! The pools of DataFusion, behind the same four functions.

use std::sync::Arc;

use datafusion_execution::memory_pool::{
    FairSpillPool, GreedyMemoryPool, MemoryConsumer, MemoryPool, MemoryReservation,
};

use crate::sides::{POOL_BYTES, Side};

fn grow(holder: &MemoryReservation, bytes: usize) -> bool {
    holder.try_grow(bytes).is_ok()
}

fn is_refused(holder: &MemoryReservation) -> bool {
    holder.try_grow(2 * POOL_BYTES as usize).is_err()
}

/// The pool without shares: first come, first served.
pub struct Greedy(Arc<dyn MemoryPool>);

impl Greedy {
    pub fn new() -> Self {
        Self(Arc::new(GreedyMemoryPool::new(POOL_BYTES as usize)))
    }
}

impl Side for Greedy {
    type Holder = MemoryReservation;

    fn holder(&self) -> MemoryReservation {
        MemoryConsumer::new("sort").register(&self.0)
    }

    #[inline]
    fn grow(&self, holder: &MemoryReservation, bytes: usize) -> bool {
        grow(holder, bytes)
    }

    #[inline]
    fn shrink(&self, holder: &MemoryReservation, bytes: usize) {
        holder.shrink(bytes);
    }

    fn is_refused(&self, holder: &MemoryReservation, _at: usize) -> bool {
        is_refused(holder)
    }
}

/// The pool divided equally among spillable consumers.
pub struct Fair(Arc<dyn MemoryPool>);

impl Fair {
    pub fn new() -> Self {
        Self(Arc::new(FairSpillPool::new(POOL_BYTES as usize)))
    }
}

impl Side for Fair {
    type Holder = MemoryReservation;

    fn holder(&self) -> MemoryReservation {
        MemoryConsumer::new("sort").with_can_spill(true).register(&self.0)
    }

    #[inline]
    fn grow(&self, holder: &MemoryReservation, bytes: usize) -> bool {
        grow(holder, bytes)
    }

    #[inline]
    fn shrink(&self, holder: &MemoryReservation, bytes: usize) {
        holder.shrink(bytes);
    }

    fn is_refused(&self, holder: &MemoryReservation, _at: usize) -> bool {
        is_refused(holder)
    }
}
