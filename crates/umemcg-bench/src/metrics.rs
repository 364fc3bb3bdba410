//! `metrics`: the cost of reading the figures of all tenants, as a scrape of metrics does: all
//! statistics and events of every group in one snapshot, beside reading them group by group, and
//! the text of a scrape.

use std::sync::Arc;
use std::time::Instant;

use umemcg::{Account, Engine, EngineConfig, EventKind, Group, Limits, StatItem};
use umemcg_metrics::{GroupDepth, Surroundings, VolumeFigures, exposition};

use crate::options::{Failure, Options};
use crate::progress::Progress;
use crate::report::{Report, Section, Target, Verdict};
use crate::stats::{Side, alternate};

/// Tenants, at every scale.
const NR_TENANTS: usize = 10_000;
/// Bytes charged to each of them.
const HELD_BYTES: u64 = 5000;
/// The start of the rows of a scrape with these bytes.
const HELD_ROW: &str = "umemcg_memory_reserved_bytes{group=\"/tenants/tenant";
/// Nanoseconds for a snapshot of all of them.
const SNAPSHOT_NS_MAX: f64 = 50e6;
/// Nanoseconds for the text of a scrape of all of them.
const SCRAPE_NS_MAX: f64 = 1e9;

/// A daemon without volumes.
#[derive(Debug)]
struct NoVolumes;

impl Surroundings for NoVolumes {
    fn volumes(&self) -> Vec<VolumeFigures> {
        Vec::new()
    }

    fn version(&self) -> &'static str {
        "0"
    }
}

/// Makes the tenants, each with a charge.
fn make_tenants(engine: &Arc<Engine>) -> Result<Vec<Account>, Failure> {
    let none = Limits::new();
    let tenants = engine.get_or_create(engine.root(), "tenants", &none);
    let tenants = tenants.map_err(Failure::at("cannot make a group"))?;
    let mut accounts = Vec::with_capacity(NR_TENANTS);
    for at in 0..NR_TENANTS {
        let group = engine.get_or_create(&tenants, format!("tenant{at}"), &none);
        let account = engine.account(&group.map_err(Failure::at("cannot make a group"))?);
        account.try_grow(HELD_BYTES).map_err(Failure::at("cannot hold memory"))?;
        accounts.push(account);
    }
    Ok(accounts)
}

/// Returns the sum of the tenants' bytes in the text of a scrape.
fn shown_bytes(text: &str) -> f64 {
    let rows = text.lines().filter_map(|line| line.strip_prefix(HELD_ROW)?.rsplit(' ').next());
    rows.filter_map(|value| value.parse::<f64>().ok()).sum()
}

fn check_text(text: &str) {
    assert!(text.matches("umemcg_memory_usage_bytes{").count() > NR_TENANTS, "every tenant is shown");
    assert_eq!(shown_bytes(text), (HELD_BYTES * NR_TENANTS as u64) as f64, "with what it holds");
}

/// Runs the benchmark.
pub fn run(options: &Options) -> Result<Report, Failure> {
    let progress = Progress::new();
    let engine = Engine::new(EngineConfig::new(1 << 30)).map_err(Failure::at("cannot make an engine"))?;
    let accounts = make_tenants(&engine)?;
    let groups: Vec<&Arc<Group>> = accounts.iter().map(|account| account.group()).collect();
    let surroundings: Arc<dyn Surroundings> = Arc::new(NoVolumes);
    let sides = vec![
        Side::new("snapshot", || {
            let start = Instant::now();
            let (mut held, mut all) = (0, 0);
            engine.snapshot(|figures| {
                let of_all = StatItem::ALL.iter().map(|&item| figures.stat_total(item)).sum::<u64>();
                let events = EventKind::ALL.iter().map(|&kind| figures.event_count(kind)).sum::<u64>();
                held += figures.stat_local(StatItem::Reserved);
                all += of_all + events;
            });
            assert_eq!(held, HELD_BYTES * NR_TENANTS as u64, "every tenant is seen once");
            std::hint::black_box(all);
            start.elapsed().as_nanos() as f64
        }),
        Side::new("text of a scrape", || {
            let start = Instant::now();
            let text = exposition(&engine, GroupDepth::default(), &surroundings);
            let elapsed = start.elapsed().as_nanos() as f64;
            check_text(&text);
            elapsed
        }),
        Side::new("group by group", || {
            let start = Instant::now();
            let (mut held, mut all) = (0, 0);
            for group in &groups {
                held += group.stat_local(StatItem::Reserved);
                all += StatItem::ALL.iter().map(|&item| group.stat_total(item)).sum::<i64>();
                all += EventKind::ALL.iter().map(|&kind| group.event_count(kind) as i64).sum::<i64>();
            }
            assert_eq!(held as u64, HELD_BYTES * NR_TENANTS as u64, "every tenant is seen once");
            std::hint::black_box(all);
            start.elapsed().as_nanos() as f64
        }),
    ];
    let sides = alternate(options.rounds as usize, sides, &progress);
    let mut report = Report::new("metrics", options.scale, options.rounds as usize);
    let verdicts = vec![
        Verdict::new("snapshot", sides[0].median, Target::NsAtMost(SNAPSHOT_NS_MAX)),
        Verdict::new("text of a scrape", sides[1].median, Target::NsAtMost(SCRAPE_NS_MAX)),
    ];
    report.sections.push(Section {
        title: "all statistics and events of 10,000 tenants".into(),
        unit: "ns",
        sides,
        verdicts,
    });
    report.notes.push(format!(
        "a snapshot reads {} statistics and {} events of each group, and its exact usage and its path; group by group, only the \
         statistics and events",
        StatItem::ALL.len(),
        EventKind::ALL.len()
    ));
    Ok(report)
}
