//! The limits on the threads of a session. The number of processors determines those for readers
//! and for computing requests; sleeping requests have a limit of their own.

use std::time::Duration;

/// The numbers of threads by task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PoolLimits {
    /// With fewer readers than this, another thread becomes one.
    pub readers_min: usize,
    /// With this many readers, a free thread becomes a spare one.
    pub readers_max: usize,
    /// The most requests running at the same time, of all groups, in addition to one for each
    /// sleeping request. One tenant, and one store, has at most half of them.
    pub running_max: usize,
    /// The most requests running or sleeping at the same time, each on a thread.
    pub all_max: usize,
    /// The most running requests computing at the same time; the others wait for stores.
    pub computing_max: usize,
    /// A spare thread not needed for this long ends.
    pub spare_life: Duration,
}

/// The most readers, however many processors there are.
const READERS_MAX: usize = 64;
/// Requests that may run at the same time: for each processor, at least, and at most.
const RUNNING_PER_PROCESSOR: usize = 32;
const RUNNING_MIN: usize = 64;
const RUNNING_MAX: usize = 512;
/// The ratio of `all_max` to `running_max`. Each request takes a thread, and each received write a
/// buffer of a mebibyte.
const ALL_PER_RUNNING: usize = 4;

impl Default for PoolLimits {
    fn default() -> Self {
        let processors = std::thread::available_parallelism().map_or(2, usize::from);
        let running_max = (RUNNING_PER_PROCESSOR * processors).clamp(RUNNING_MIN, RUNNING_MAX);
        Self {
            readers_min: 1,
            readers_max: processors.clamp(2, READERS_MAX),
            running_max,
            all_max: ALL_PER_RUNNING * running_max,
            // Some wait for a moment without a report: for a lock, or for memory of the host.
            computing_max: 2 * processors,
            spare_life: Duration::from_secs(10),
        }
    }
}
