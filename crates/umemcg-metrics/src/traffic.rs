//! Response times of stores, and the requests waiting for them. Each store is shown once, however
//! many volumes it has.

use std::collections::BTreeMap;
use std::fmt;

use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Unit;

use crate::labels;

/// Requests of all volumes of one store.
#[derive(Debug, Clone, PartialEq)]
pub struct TrafficFigures {
    /// The bucket and its server.
    pub store: String,
    /// Requests delayed by throttling.
    pub nr_waiting: u64,
    /// Requests sent and not answered yet.
    pub nr_under_way: u64,
    /// Response times, by kind of request.
    pub durations: Vec<RequestDurations>,
}

/// Reads and uploads of a store, waiting or in progress.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WorkFigures {
    /// Reads in progress, of all volumes of the store.
    pub nr_reads_begun: u64,
    /// Reads waiting to begin, of all volumes of the store.
    pub nr_reads_waiting: u64,
    /// Retries of the volume's failed uploads in progress.
    pub nr_uploads_running: u64,
    /// Files of the volume whose upload failed, waiting for a retry.
    pub nr_uploads_waiting: u64,
}

/// The response times of one kind of request.
#[derive(Debug, Clone, PartialEq)]
pub struct RequestDurations {
    /// The kind, in small letters.
    pub kind: &'static str,
    /// Buckets: the upper bound in seconds, and the number of responses within it but above the
    /// bound before.
    pub nr_within: Vec<(f64, u64)>,
    /// The number of responses above all bounds.
    pub nr_longer: u64,
    /// The sum of the response times, in seconds.
    pub sum_seconds: f64,
}

/// Encodes the traffic of stores. Entries of one name are the same store: the first is shown, with
/// the uploads of all.
pub(crate) fn encode<'a>(
    encoder: &mut DescriptorEncoder<'_>,
    traffic: impl Iterator<Item = (&'a TrafficFigures, WorkFigures)>,
) -> fmt::Result {
    let mut stores = BTreeMap::new();
    for (figures, of_volume) in traffic {
        let name = labels::escaped(&figures.store).into_owned();
        let none = WorkFigures { nr_uploads_running: 0, nr_uploads_waiting: 0, ..of_volume };
        let (_, work) = stores.entry(name).or_insert((figures, none));
        work.nr_uploads_running += of_volume.nr_uploads_running;
        work.nr_uploads_waiting += of_volume.nr_uploads_waiting;
    }
    if stores.is_empty() {
        return Ok(());
    }
    let help = "Time until a store answered a request";
    let unit = Some(Unit::Seconds);
    let mut metric = encoder.encode_descriptor(
        "umemcg_store_request_duration",
        help,
        unit.as_ref(),
        MetricType::Histogram,
    )?;
    for (store, (figures, _)) in &stores {
        for durations in &figures.durations {
            let labels = [("store", store.as_str()), ("kind", durations.kind)];
            let mut buckets = durations.nr_within.clone();
            // The encoder's infinity.
            buckets.push((f64::MAX, durations.nr_longer));
            let nr = buckets.iter().map(|(_, nr)| nr).sum();
            metric.encode_family(&labels)?.encode_histogram::<[(&str, &str); 0]>(
                durations.sum_seconds,
                nr,
                &buckets,
                None,
            )?;
        }
    }
    for (name, help, figure) in GAUGES {
        let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for (store, (figures, work)) in &stores {
            metric.encode_family(&[("store", store.as_str())])?.encode_gauge(&figure(figures, work))?;
        }
    }
    Ok(())
}

type Gauge = fn(&TrafficFigures, &WorkFigures) -> u64;

/// Gauges with one series for each store: name, help text, and the figure.
const GAUGES: [(&str, &str, Gauge); 6] = [
    ("umemcg_store_requests_waiting", "Requests that wait because a store throttles", |store, _| {
        store.nr_waiting
    }),
    ("umemcg_store_requests_under_way", "Requests that a store has not answered", |store, _| {
        store.nr_under_way
    }),
    ("umemcg_store_reads_begun", "Reads that a store has begun and not ended", |_, work| work.nr_reads_begun),
    ("umemcg_store_reads_waiting", "Reads that wait to be begun, without a thread", |_, work| {
        work.nr_reads_waiting
    }),
    ("umemcg_store_uploads_running", "Failed uploads that are being retried", |_, work| {
        work.nr_uploads_running
    }),
    ("umemcg_store_uploads_waiting", "Files whose upload failed and waits to be retried", |_, work| {
        work.nr_uploads_waiting
    }),
];
