//! `umemcg mount --metrics` and `umemcg metrics`: the figures of a daemon in the OpenMetrics
//! format.

use std::sync::Arc;

use umemcg_fuse::Daemon;
use umemcg_metrics::{
    GroupDepth, MetricsListener, MetricsServer, RequestDurations, StoreFigures, Surroundings, TrafficFigures,
    VolumeFigures, WorkFigures, exposition,
};
use umemcg_vfs::VolumeKind;
use umemcg_vfs::bucket::{LATENCY_BOUNDS_MS, StoreState, StoreTraffic};

use crate::args::MetricsArguments;
use crate::client::{DaemonAddress, unexpected};
use crate::config::Config;
use crate::endpoint::{Reply, Request};
use crate::exit::Failure;
use crate::mount_arguments::MountArguments;

/// Runs `umemcg metrics MNT`.
///
/// # Errors
/// [`Failure`].
pub fn metrics(arguments: &MetricsArguments) -> Result<(), Failure> {
    let daemon = DaemonAddress::of(None, Some(&arguments.mountpoint))?;
    match daemon.last_reply(&Request::Metrics { depth: arguments.depth })? {
        Reply::Metrics { text } => crate::output::print(&text),
        other => Err(unexpected(&other)),
    }
}

/// Listens at the address of `--metrics`, else of the configuration.
pub(crate) fn listen(
    arguments: &MountArguments,
    config: &Config,
) -> Result<Option<MetricsListener>, Failure> {
    let configured = config.metrics()?;
    let Some(address) = arguments.metrics.as_ref().or(configured.as_ref()) else { return Ok(None) };
    let listener = MetricsListener::bind(address);
    listener.map(Some).map_err(|error| Failure::Failed(format!("cannot serve metrics at {address}: {error}")))
}

/// Serves the metrics of a daemon until the returned server is dropped.
pub(crate) fn serve(
    listener: MetricsListener,
    daemon: &Arc<Daemon>,
    depth: Option<usize>,
) -> Result<MetricsServer, Failure> {
    let daemon = Arc::clone(daemon);
    let server = listener.serve(move || text(&daemon, depth));
    let server = server.map_err(|error| Failure::Failed(format!("cannot serve metrics: {error}")))?;
    tracing::info!(address = %server.address(), "metrics are served");
    Ok(server)
}

/// Returns the metrics of a daemon.
pub(crate) fn text(daemon: &Arc<Daemon>, depth: Option<usize>) -> String {
    let surroundings: Arc<dyn Surroundings> = Arc::new(Shown(Arc::clone(daemon)));
    exposition(daemon.engine(), depth.map_or_else(GroupDepth::default, GroupDepth), &surroundings)
}

fn figures_of(state: &StoreState) -> StoreFigures {
    let figures = &state.figures;
    StoreFigures {
        requests: vec![
            ("get", figures.gets),
            ("head", figures.heads),
            ("list", figures.lists),
            ("put", figures.puts),
            ("copy", figures.copies),
            ("delete", figures.deletes),
        ],
        read_bytes: figures.read_bytes,
        written_bytes: figures.written_bytes,
        refusals: figures.refusals,
        throttles: figures.throttles,
        throttled: std::time::Duration::from_millis(figures.throttled_ms),
        failures: figures.failures,
        is_well: state.trouble.is_none(),
        traffic: state.traffic.as_ref().map(traffic_of),
        work: WorkFigures {
            nr_reads_begun: state.work.nr_reads_begun,
            nr_reads_waiting: state.work.nr_reads_waiting,
            nr_uploads_running: state.work.nr_uploads_running,
            nr_uploads_waiting: state.work.nr_uploads_waiting,
        },
    }
}

fn traffic_of(traffic: &StoreTraffic) -> TrafficFigures {
    let durations = traffic.latencies.iter().map(|latencies| {
        let (&nr_longer, within) = latencies.nr_within.split_last().unwrap_or((&0, &[]));
        let bounds = LATENCY_BOUNDS_MS.map(|bound_ms| bound_ms as f64 / 1e3);
        let nr_within = bounds.into_iter().zip(within.iter().copied()).collect();
        let sum_seconds = latencies.sum_us as f64 / 1e6;
        RequestDurations { kind: latencies.kind, nr_within, nr_longer, sum_seconds }
    });
    TrafficFigures {
        store: traffic.store.clone(),
        nr_waiting: traffic.nr_waiting,
        nr_under_way: traffic.nr_under_way,
        durations: durations.collect(),
    }
}

/// A daemon, for its metrics.
struct Shown(Arc<Daemon>);

impl std::fmt::Debug for Shown {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shown").finish_non_exhaustive()
    }
}

impl Surroundings for Shown {
    fn volumes(&self) -> Vec<VolumeFigures> {
        let volumes = self.0.list_volumes().into_iter().map(|volume| {
            let (kind, used_bytes, store) = match &volume.kind {
                VolumeKind::Directory { .. } => ("directory", None, None),
                VolumeKind::Tmpfs { used_bytes, .. } => ("tmpfs", Some(*used_bytes), None),
                VolumeKind::Objects(state) => ("objects", None, Some(figures_of(state))),
            };
            VolumeFigures { name: volume.name, kind, nr_open: volume.nr_open as u64, used_bytes, store }
        });
        volumes.collect()
    }

    fn version(&self) -> &'static str {
        env!("CARGO_PKG_VERSION")
    }
}
