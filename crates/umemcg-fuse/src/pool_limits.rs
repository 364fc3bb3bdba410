//! How many threads of a session do what: readers and computing requests by the number of
//! processors, sleeping requests by what sleeps.

use std::time::Duration;

/// The numbers of threads by task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PoolLimits {
    /// Fewer readers than this and another thread becomes one.
    pub readers_min: usize,
    /// With this many readers a thread that has become free rests instead.
    pub readers_max: usize,
    /// Requests that may run at the same time, of all groups, beside those that sleep.
    pub running_max: usize,
    /// Requests that may run or sleep at the same time: the most threads that run any.
    pub all_max: usize,
    /// This many of those that run may compute at the same time; the others wait for stores.
    pub computing_max: usize,
    /// A spare thread that was not needed for this long ends.
    pub spare_life: Duration,
}

/// The most readers, however many processors there are.
const READERS_MAX: usize = 64;
/// Requests that may run at the same time for each processor, at least, and at most.
const RUNNING_PER_PROCESSOR: usize = 32;
const RUNNING_MIN: usize = 64;
const RUNNING_MAX: usize = 512;
/// Requests that may run or sleep, for each that may run. Each takes a thread, and a write that it
/// has received a buffer of a mebibyte.
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
            // Some wait for a moment without saying so: for a lock, or for memory of the host.
            computing_max: 2 * processors,
            spare_life: Duration::from_secs(10),
        }
    }
}
