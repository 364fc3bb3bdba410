//! The figures of object stores.

use std::fmt;
use std::time::Duration;

use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Unit;

use crate::traffic::{self, TrafficFigures, WorkFigures};

/// Figures of the requests of a volume to its store.
#[derive(Debug, Clone, PartialEq)]
pub struct StoreFigures {
    /// The number of requests on the wire of each kind, by the method's name in small letters.
    pub requests: Vec<(&'static str, u64)>,
    /// Bytes of objects received.
    pub read_bytes: u64,
    /// Bytes of objects that the store has accepted.
    pub written_bytes: u64,
    /// Requests refused or not answered by the store; most are retried.
    pub refusals: u64,
    /// Requests that the store throttled, among the refusals.
    pub throttles: u64,
    /// Total time that requests were delayed to avoid throttling.
    pub throttled: Duration,
    /// Operations that failed after all retries.
    pub failures: u64,
    /// The last response of the store was not a failure.
    pub is_well: bool,
    /// Requests of all volumes of the store, if they are counted.
    pub traffic: Option<TrafficFigures>,
    /// Reads and uploads waiting or in progress.
    pub work: WorkFigures,
}

/// Encodes the figures of stores, each with the label of its volume.
pub(crate) fn encode(encoder: &mut DescriptorEncoder<'_>, stores: &[(String, &StoreFigures)]) -> fmt::Result {
    if stores.is_empty() {
        return Ok(());
    }
    let help = "Requests to the store of a volume, those that are sent again included";
    let mut metric = encoder.encode_descriptor("umemcg_store_requests", help, None, MetricType::Counter)?;
    for (volume, store) in stores {
        for (kind, nr) in &store.requests {
            let labels = [("volume", volume.as_str()), ("kind", *kind)];
            metric.encode_family(&labels)?.encode_counter::<[(&str, &str); 0], u64, u64>(nr, None)?;
        }
    }
    type Figure = fn(&StoreFigures) -> u64;
    let counters: [(&str, &str, Option<Unit>, Figure); 5] = [
        ("umemcg_store_read", "Bytes that came from a store", Some(Unit::Bytes), |store| store.read_bytes),
        ("umemcg_store_written", "Bytes that a store took", Some(Unit::Bytes), |store| store.written_bytes),
        ("umemcg_store_refusals", "Requests that a store refused or did not answer", None, |store| {
            store.refusals
        }),
        (
            "umemcg_store_throttles",
            "Requests that a store refused because they came too fast",
            None,
            |store| store.throttles,
        ),
        ("umemcg_store_failures", "Operations on a store that failed in the end", None, |store| {
            store.failures
        }),
    ];
    for (name, help, unit, figure) in counters {
        let mut metric = encoder.encode_descriptor(name, help, unit.as_ref(), MetricType::Counter)?;
        for (volume, store) in stores {
            let labels = [("volume", volume.as_str())];
            metric
                .encode_family(&labels)?
                .encode_counter::<[(&str, &str); 0], u64, u64>(&figure(store), None)?;
        }
    }
    let help = "Time that requests waited because a store throttles";
    let unit = Some(Unit::Seconds);
    let mut metric =
        encoder.encode_descriptor("umemcg_store_throttled", help, unit.as_ref(), MetricType::Counter)?;
    for (volume, store) in stores {
        let seconds = store.throttled.as_secs_f64();
        metric
            .encode_family(&[("volume", volume.as_str())])?
            .encode_counter::<[(&str, &str); 0], f64, u64>(&seconds, None)?;
    }
    let help = "1 if the store answered last as one that works does, else 0";
    let mut metric = encoder.encode_descriptor("umemcg_store_up", help, None, MetricType::Gauge)?;
    for (volume, store) in stores {
        metric.encode_family(&[("volume", volume.as_str())])?.encode_gauge(&u64::from(store.is_well))?;
    }
    traffic::encode(
        encoder,
        stores.iter().filter_map(|(_, store)| Some((store.traffic.as_ref()?, store.work))),
    )
}
