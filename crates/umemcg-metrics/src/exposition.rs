//! The text of a scrape.

use std::fmt;
use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit};
use umemcg::Engine;

use crate::families::{FAMILIES, Reading, SERIES_PER_GROUP, resident_bound};
use crate::labels;
use crate::stores::{self, StoreFigures};

/// The name prefix of all metrics except `process_*`.
const PREFIX: &str = "umemcg";
/// Longest label of a group with series of its own, in bytes. Each series repeats the label.
const LABEL_BYTES_MAX: usize = 1024;
/// Upper bound on the bytes of a series beside its label.
const SERIES_BYTES: usize = 96;
/// Upper bound on the text of one tenant: a child of the root and all groups below it.
const TENANT_BYTES_MAX: usize = 32 << 20;

/// The depth below the root down to which groups have series of their own. The figures of a group
/// include its descendants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GroupDepth(pub usize);

impl Default for GroupDepth {
    /// All groups.
    fn default() -> Self {
        Self(usize::MAX)
    }
}

/// A volume.
#[derive(Debug, Clone, PartialEq)]
pub struct VolumeFigures {
    /// Its name.
    pub name: String,
    /// The kind of its data, a word such as `directory` or `tmpfs`.
    pub kind: &'static str,
    /// Files and directories open on it.
    pub nr_open: u64,
    /// Bytes of data, where they are counted.
    pub used_bytes: Option<u64>,
    /// Figures of its object store; none for other kinds of volume.
    pub store: Option<StoreFigures>,
}

/// The source of the figures beside those of the groups. Called once for each scrape.
pub trait Surroundings: Send + Sync + fmt::Debug + 'static {
    /// Returns the volumes.
    fn volumes(&self) -> Vec<VolumeFigures>;
    /// Returns the version of the program.
    fn version(&self) -> &'static str;
}

/// Returns the figures of all groups of an engine down to a depth, of the volumes, and of this
/// process, as text. Groups to which nothing is charged, here or below, are only counted. Takes
/// some microseconds of processor time for each group. Takes no lock of the charge path.
pub fn exposition(engine: &Arc<Engine>, depth: GroupDepth, surroundings: &Arc<dyn Surroundings>) -> String {
    let mut registry = Registry::default();
    let (groups, surroundings) = (GroupRows::collect(engine, depth), Arc::clone(surroundings));
    registry.register_collector(Box::new(Scrape { groups, surroundings }));
    let mut scrape = String::new();
    // Writing to a string cannot fail.
    let _ = text::encode(&mut scrape, &registry);
    scrape
}

/// The figures of the groups, group by group; the format wants them metric by metric.
#[derive(Debug, Default)]
struct GroupRows {
    /// The label value of each group, with one figure for each series.
    rows: Vec<(String, Vec<f64>)>,
    nr_idle: u64,
    nr_deeper: u64,
    /// Bytes of text left to the tenant being collected.
    left_bytes: usize,
    /// Upper bound on the resident memory of the process, in bytes.
    resident_bound: f64,
}

impl GroupRows {
    fn collect(engine: &Engine, depth: GroupDepth) -> Self {
        let mut collected = Self::default();
        engine.snapshot(|snapshot| {
            let nr_components = snapshot.path.components().count();
            if nr_components <= 2 {
                // The root, or the first group of the next tenant.
                collected.left_bytes = TENANT_BYTES_MAX;
            }
            let label = labels::of_path(snapshot.path);
            let bytes = (label.len() + SERIES_BYTES) * SERIES_PER_GROUP;
            let is_deeper = nr_components > depth.0.saturating_add(1);
            if is_deeper || label.len() > LABEL_BYTES_MAX || bytes > collected.left_bytes {
                collected.nr_deeper += 1;
                return;
            }
            if snapshot.usage_bytes == 0 && !snapshot.group.is_root() {
                collected.nr_idle += 1;
                return;
            }
            collected.left_bytes -= bytes;
            let reading = Reading::of(snapshot);
            if snapshot.group.is_root() {
                collected.resident_bound = resident_bound(&reading);
            }
            let series = FAMILIES.iter().flat_map(|family| family.series);
            let figures = series.map(|series| (series.read)(&reading)).collect();
            collected.rows.push((label, figures));
        });
        collected
    }
}

/// One scrape.
#[derive(Debug)]
struct Scrape {
    groups: GroupRows,
    surroundings: Arc<dyn Surroundings>,
}

impl Collector for Scrape {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        self.encode_groups(&mut encoder)?;
        self.encode_volumes(&mut encoder)?;
        let version = labels::escaped(self.surroundings.version());
        // Not the info type: the older text format, and so promtool, does not know it.
        let mut info =
            encoder.encode_descriptor("umemcg_build_info", "The program", None, MetricType::Gauge)?;
        info.encode_family(&[("version", &*version)])?.encode_gauge(&1_u64)?;
        let (name, help) = ("umemcg_resident_memory_bound", "Most resident memory for what is charged");
        let mut bound = encoder.encode_descriptor(name, help, Some(&Unit::Bytes), MetricType::Gauge)?;
        bound.encode_gauge(&self.groups.resident_bound)?;
        crate::process::encode(&mut encoder)
    }
}

impl Scrape {
    fn encode_groups(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let mut place = 0;
        for family in FAMILIES {
            let (name, kind) = (format!("{PREFIX}_{}", family.name), family.kind);
            let mut metric =
                encoder.encode_descriptor(&name, family.help, family.unit.as_ref(), kind.metric_type())?;
            for (group, figures) in &self.groups.rows {
                for (series, figure) in family.series.iter().zip(&figures[place..]) {
                    let group = ("group", group.as_str());
                    match series.label {
                        None => kind.encode(&mut metric.encode_family(&[group])?, *figure)?,
                        Some(label) => kind.encode(&mut metric.encode_family(&[group, label])?, *figure)?,
                    }
                }
            }
            place += family.series.len();
        }
        let help = "Groups with series of their own, without memory, and too deep or too many for that";
        let mut metric = encoder.encode_descriptor("umemcg_groups", help, None, MetricType::Gauge)?;
        let GroupRows { rows, nr_idle, nr_deeper, .. } = &self.groups;
        for (state, nr) in [("shown", rows.len() as u64), ("idle", *nr_idle), ("deeper", *nr_deeper)] {
            metric.encode_family(&[("state", state)])?.encode_gauge(&nr)?;
        }
        Ok(())
    }

    fn encode_volumes(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let volumes = self.surroundings.volumes();
        let label = |volume: &VolumeFigures| labels::escaped(&volume.name).into_owned();
        let help = "Files and directories open on a volume";
        let mut metric = encoder.encode_descriptor("umemcg_volume_open", help, None, MetricType::Gauge)?;
        for volume in &volumes {
            let labels = [("volume", label(volume)), ("kind", volume.kind.to_owned())];
            metric.encode_family(&labels)?.encode_gauge(&volume.nr_open)?;
        }
        let (help, unit) = ("Data on a volume that counts it", Unit::Bytes);
        let mut metric =
            encoder.encode_descriptor("umemcg_volume_used", help, Some(&unit), MetricType::Gauge)?;
        for volume in &volumes {
            if let Some(bytes) = volume.used_bytes {
                metric.encode_family(&[("volume", label(volume))])?.encode_gauge(&bytes)?;
            }
        }
        let asked = volumes.iter().filter_map(|volume| Some((label(volume), volume.store.as_ref()?)));
        stores::encode(encoder, &asked.collect::<Vec<_>>())
    }
}
