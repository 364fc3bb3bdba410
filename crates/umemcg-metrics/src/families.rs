//! The metrics of a group: the name, unit, kind and read function of each.
//!
//! Where cAdvisor has the same figure, suffix and type follow its `container_*` metric, so queries
//! carry over. All figures include the groups below.

use std::fmt;

use prometheus_client::encoding::MetricEncoder;
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Unit;
use umemcg::internal::{Pressure, pressure};
use umemcg::{EventKind, GroupSnapshot, StatItem, UNLIMITED};

use StatItem::*;

/// The source of a group's figures.
pub(crate) struct Reading<'a> {
    snapshot: &'a GroupSnapshot<'a>,
    pressure: Pressure,
}

impl<'a> Reading<'a> {
    pub(crate) fn of(snapshot: &'a GroupSnapshot<'a>) -> Self {
        Self { snapshot, pressure: pressure(snapshot.group) }
    }

    fn sum(&self, items: &[StatItem]) -> f64 {
        items.iter().map(|&item| self.snapshot.stat_total(item)).sum::<u64>() as f64
    }

    fn events(&self, kind: EventKind) -> f64 {
        self.snapshot.event_count(kind) as f64
    }
}

/// The type of a metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Gauge,
    /// Only rises.
    Counter,
}

impl Kind {
    pub(crate) fn metric_type(self) -> MetricType {
        match self {
            Self::Gauge => MetricType::Gauge,
            Self::Counter => MetricType::Counter,
        }
    }

    pub(crate) fn encode(self, metric: &mut MetricEncoder<'_>, figure: f64) -> fmt::Result {
        match self {
            Self::Gauge => metric.encode_gauge(&figure),
            Self::Counter => metric.encode_counter::<[(&str, &str); 0], f64, f64>(&figure, None),
        }
    }
}

/// One series of a family, with the label that distinguishes it; none if it is the only one.
pub(crate) struct Series {
    pub(crate) label: Option<(&'static str, &'static str)>,
    pub(crate) read: fn(&Reading<'_>) -> f64,
}

/// A metric.
pub(crate) struct Family {
    /// Without prefix, unit and `_total`: the encoder adds these.
    pub(crate) name: &'static str,
    /// Without a full stop: the encoder adds it.
    pub(crate) help: &'static str,
    pub(crate) unit: Option<Unit>,
    pub(crate) kind: Kind,
    pub(crate) series: &'static [Series],
}

const fn one(read: fn(&Reading<'_>) -> f64) -> Series {
    Series { label: None, read }
}

const fn labelled(key: &'static str, value: &'static str, read: fn(&Reading<'_>) -> f64) -> Series {
    Series { label: Some((key, value)), read }
}

/// File and swap-backed pages.
const PAGES: &[StatItem] = &[InactiveFile, ActiveFile, InactiveAnon, ActiveAnon, Unevictable, FileKernel];
const METADATA: &[StatItem] = &[SlabReclaimable, SlabUnreclaimable, IndexNodes, GroupState];

/// "No limit" is infinity, so a ratio of usage to it is zero.
fn limit(bytes: u64) -> f64 {
    if bytes == UNLIMITED { f64::INFINITY } else { bytes as f64 }
}

fn pages(nr: f64) -> f64 {
    nr * 4096.0
}

/// The unit of a figure in bytes, and of one in seconds.
const BYTES: Option<Unit> = Some(Unit::Bytes);
const SECONDS: Option<Unit> = Some(Unit::Seconds);

macro_rules! families {
    ($($kind:ident $name:literal, $unit:expr, $help:literal, [$($series:expr),+];)+) => {
        /// All of them.
        pub(crate) const FAMILIES: &[Family] = &[$(
            Family { name: $name, help: $help, unit: $unit, kind: Kind::$kind, series: &[$($series),+] },
        )+];
    };
}

families! {
    Gauge "memory_usage", BYTES, "Memory charged", [one(|of| of.snapshot.usage_bytes as f64)];
    Gauge "memory_working_set", BYTES, "Memory charged, without inactive file pages",
        [one(|of| (of.snapshot.usage_bytes as f64 - of.sum(&[InactiveFile, FileKernel])).max(0.0))];
    Gauge "memory_max_usage", BYTES, "The most memory charged so far",
        [one(|of| of.snapshot.peak_bytes as f64)];
    Gauge "spec_memory_limit", BYTES, "Its own limit; +Inf for none",
        [one(|of| limit(of.snapshot.max_bytes))];
    Gauge "spec_memory_reservation_limit", BYTES, "Its soft limit; +Inf for none",
        [one(|of| limit(of.snapshot.group.soft_limit_bytes()))];
    Gauge "memory_guaranteed", BYTES, "What is guaranteed to it or those below it",
        [one(|of| of.snapshot.guaranteed_bytes as f64)];
    Gauge "memory_cache", BYTES, "File pages, those that the kernel keeps included",
        [one(|of| of.sum(PAGES))];
    Gauge "memory_kernel_held", BYTES, "File pages that the kernel keeps", [one(|of| of.sum(&[FileKernel]))];
    Gauge "memory_dirty", BYTES, "Accepted data that is not durable",
        [one(|of| of.sum(&[FileDirty, FileWriteback, FileUnstable]))];
    Gauge "memory_metadata", BYTES, "Names, indexes, cached objects and the state of groups",
        [one(|of| of.sum(METADATA))];
    Gauge "memory_reserved", BYTES, "Memory of embedding programs", [one(|of| of.sum(&[Reserved]))];
    Counter "memory_failcnt", None, "Charges that found the group at its limit",
        [one(|of| of.events(EventKind::Max))];
    Counter "memory_events", None, "Events of memory.events", [
        labelled("event", "low", |of| of.events(EventKind::Low)),
        labelled("event", "high", |of| of.events(EventKind::High)),
        labelled("event", "oom", |of| of.events(EventKind::Oom))
    ];
    Counter "memory_failures", None, "Reads and writes of pages, and those that waited for the store", [
        labelled("failure_type", "pgfault", |of| of.sum(&[PgFault])),
        labelled("failure_type", "pgmajfault", |of| of.sum(&[PgMajFault]))
    ];
    Counter "cache_hits", None, "Pages that were read and found", [one(|of| of.sum(&[CacheHit]))];
    Counter "cache_misses", None, "Pages that were read and had to be fetched",
        [one(|of| of.sum(&[CacheMiss]))];
    Counter "cache_refaults", None, "Pages that were fetched again after they were evicted",
        [one(|of| of.sum(&[WorkingsetRefault]))];
    Counter "memory_reclaimed", BYTES, "Pages freed by reclaim", [
        labelled("by", "direct", |of| pages(of.sum(&[PgStealDirect]))),
        labelled("by", "background", |of| pages(of.sum(&[PgStealKswapd]))),
        labelled("by", "request", |of| pages(of.sum(&[PgStealProactive])))
    ];
    Counter "pressure_memory_waiting", SECONDS, "Time in which a request waited for memory",
        [one(|of| of.pressure.some.total.as_secs_f64())];
    Counter "pressure_memory_stalled", SECONDS,
        "Time in which requests waited for memory and none was worked on",
        [one(|of| of.pressure.full.total.as_secs_f64())];
}

/// Resident memory not charged, in bytes: the program, its threads, and recently freed frames.
const RESIDENT_FIXED_BYTES: f64 = (64 << 20) as f64;
/// Resident bytes for each charged byte of pages and of embedding programs.
const RESIDENT_OF_PAGES: f64 = 1.03;
/// Resident bytes for each charged byte of names, indexes and objects, with the allocator's
/// overhead.
const RESIDENT_OF_METADATA: f64 = 1.2;

/// Returns the upper bound on the resident memory of the process, in bytes, given the charges of
/// the root. Excludes pages in the kernel's page cache. `umemcg-bench footprint` checks the bound.
pub(crate) fn resident_bound(root: &Reading<'_>) -> f64 {
    let metadata = root.sum(METADATA);
    let usage = root.snapshot.usage_bytes as f64;
    let pages = (usage - metadata - root.sum(&[FileKernel])).max(0.0);
    RESIDENT_FIXED_BYTES + RESIDENT_OF_PAGES * pages + RESIDENT_OF_METADATA * metadata
}

/// The number of series of a group.
pub const SERIES_PER_GROUP: usize = {
    let (mut nr, mut at) = (0, 0);
    while at < FAMILIES.len() {
        nr += FAMILIES[at].series.len();
        at += 1;
    }
    nr
};

const _: () = assert!(SERIES_PER_GROUP <= 25, "a scrape of many groups must stay small");
