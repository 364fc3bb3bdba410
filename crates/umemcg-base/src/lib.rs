//! Foundations of every layer: units, sizes in text, the sync facade with lock ranks, wake signals,
//! tables that never move, batches of free items, time and threads, directories of a daemon's own.
//! Nothing here depends on groups or pages.
#![forbid(unsafe_code)]

pub mod batches;
pub mod clock;
pub mod errseq;
pub mod held;
pub mod idle;
pub mod locks;
#[cfg(unix)]
pub mod own_directory;
pub mod panics;
pub mod rank;
pub mod rate_limit;
#[cfg(schedule)]
pub mod schedule;
pub mod size;
pub mod sync;
pub mod table;
pub mod units;
pub mod wake_signal;

pub use batches::{BATCH_LEN_MAX, Batches, LockedBatch, REFILL_LEN};
pub use errseq::{ErrorCursor, ErrorSequence};
pub use held::{Waiting, assert_may_wait, assert_may_wait_among, assert_no_locks_held};
pub use idle::{Idle, IdleObserver, Wait, observe_idle};
pub use locks::{
    Condvar, LeafMutex, LeafMutexGuard, LeafRwLock, RankedMutex, RankedMutexGuard, RankedReadGuard,
    RankedRwLock, RankedWriteGuard,
};
pub use panics::{Panicked, contained};
pub use rank::Rank;
pub use rate_limit::RateLimit;
pub use size::{ParseSizeError, parse_size};
pub use table::Table;
pub use units::{PAGE_SHIFT, PAGE_SIZE, PAGE_SIZE_U64, pages_for};
pub use wake_signal::WakeSignal;
