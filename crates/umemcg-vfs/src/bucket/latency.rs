//! The response times of a store by kind of request, and the amount of work waiting for the store.

/// The requests of all volumes to one store, a store being a bucket of a server.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StoreTraffic {
    /// The bucket and its server, without prefix and credentials.
    pub store: String,
    /// Requests waiting for their turn, because the store throttles.
    pub nr_waiting: u64,
    /// Requests not yet answered by the store.
    pub nr_under_way: u64,
    /// How long answers took, for each kind of request made so far.
    pub latencies: Vec<LatencyFigures>,
}

/// Reads and uploads waiting for a store or under way.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StoreWork {
    /// Reads of all volumes of the bucket under way.
    pub nr_reads_begun: u64,
    /// Reads of all volumes of the bucket waiting to begin.
    pub nr_reads_waiting: u64,
    /// Retries of failed uploads of this volume under way.
    pub nr_uploads_running: u64,
    /// Files of this volume whose upload failed, waiting for a retry.
    pub nr_uploads_waiting: u64,
}

/// How long the answers to requests of one kind took: until they began for streamed reads, until
/// they were complete for others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LatencyFigures {
    /// The kind, in small letters.
    pub kind: &'static str,
    /// A histogram: for each of [`LATENCY_BOUNDS_MS`] the number of answers up to this bound and
    /// above the bound before, then the number of answers above all bounds.
    pub nr_within: [u64; LATENCY_BOUNDS_MS.len() + 1],
    /// Their total time, in microseconds.
    pub sum_us: u64,
}

/// The bounds of the latency counts, in milliseconds.
pub const LATENCY_BOUNDS_MS: [u64; 11] = [5, 10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000];
