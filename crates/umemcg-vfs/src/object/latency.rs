//! How long a store takes to answer, counted by kind of request, and what waits for it.

/// What the volumes of one store ask it together, a store being a bucket of a server.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StoreTraffic {
    /// The bucket and its server, without prefix and credentials.
    pub store: String,
    /// Requests that wait for their turn, because the store throttles.
    pub nr_waiting: u64,
    /// Requests that the store has not answered.
    pub nr_under_way: u64,
    /// How long answers took, of kinds that there were.
    pub latencies: Vec<LatencyFigures>,
}

/// What waits for a store, and what goes on there.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StoreWork {
    /// Reads of all volumes of the bucket that are begun and have not ended.
    pub nr_reads_begun: u64,
    /// Reads of all volumes of the bucket that wait to be begun.
    pub nr_reads_waiting: u64,
    /// Uploads of this volume in the background that are under way.
    pub nr_uploads_running: u64,
    /// Files of this volume that wait for such an upload.
    pub nr_uploads_waiting: u64,
}

/// How long the answers to requests of one kind took: until they began for what is read as it
/// comes, until they were complete for others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LatencyFigures {
    /// The kind, in small letters.
    pub kind: &'static str,
    /// How many took no longer than each of [`LATENCY_BOUNDS_MS`] and longer than the one before,
    /// then how many took longer than all.
    pub nr_within: [u64; LATENCY_BOUNDS_MS.len() + 1],
    /// What they took together, in microseconds.
    pub sum_us: u64,
}

/// The times to which latencies are compared, in milliseconds.
pub const LATENCY_BOUNDS_MS: [u64; 11] = [5, 10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000];
