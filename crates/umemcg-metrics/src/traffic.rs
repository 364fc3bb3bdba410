//! What stores take to answer, and what waits for them: of each store once, however many volumes it
//! has.

use std::collections::BTreeMap;
use std::fmt;

use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Unit;

use crate::labels;

/// What the volumes of one store ask it together.
#[derive(Debug, Clone, PartialEq)]
pub struct TrafficFigures {
    /// The bucket and its server.
    pub store: String,
    /// Requests that wait for their turn.
    pub nr_waiting: u64,
    /// Requests that the store has not answered.
    pub nr_under_way: u64,
    /// How long answers took.
    pub durations: Vec<RequestDurations>,
}

/// How long the answers to requests of one kind took.
#[derive(Debug, Clone, PartialEq)]
pub struct RequestDurations {
    /// The kind, in small letters.
    pub kind: &'static str,
    /// Upper bounds in seconds, and how many took no longer, but longer than the bound before.
    pub nr_within: Vec<(f64, u64)>,
    /// How many took longer than all of these.
    pub nr_longer: u64,
    /// What they took together, in seconds.
    pub sum_seconds: f64,
}

/// Encodes the traffic of stores. Of two with one name the first is shown: they are the same.
pub(crate) fn encode<'a>(
    encoder: &mut DescriptorEncoder<'_>,
    traffic: impl Iterator<Item = &'a TrafficFigures>,
) -> fmt::Result {
    let mut stores = BTreeMap::new();
    for figures in traffic {
        stores.entry(labels::escaped(&figures.store).into_owned()).or_insert(figures);
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
    for (store, figures) in &stores {
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
    type Figure = fn(&TrafficFigures) -> u64;
    let gauges: [(&str, &str, Figure); 2] = [
        ("umemcg_store_requests_waiting", "Requests that wait because a store throttles", |store| {
            store.nr_waiting
        }),
        ("umemcg_store_requests_under_way", "Requests that a store has not answered", |store| {
            store.nr_under_way
        }),
    ];
    for (name, help, figure) in gauges {
        let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for (store, figures) in &stores {
            metric.encode_family(&[("store", store.as_str())])?.encode_gauge(&figure(figures))?;
        }
    }
    Ok(())
}
