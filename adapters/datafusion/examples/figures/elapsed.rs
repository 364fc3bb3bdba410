//! Runs queries alternately with a tenant's pool and with a `FairSpillPool` of the same size.
//!
//! A busy machine makes all times longer, elapsed time more than processor time. Both queries of a
//! pair run under about the same load, so the figure is the median of the pairs' ratios.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cpu_time::ProcessTime;
use datafusion::execution::memory_pool::{FairSpillPool, MemoryPool};
use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use umemcg::{Engine, EngineConfig};
use umemcg_datafusion::Tenant;

use crate::tpch::{AGGREGATE, JOIN, MIXED, SORT, run, session, store};

/// The target: at most this ratio.
const RATIO_MAX: f64 = 1.02;

/// One run of a query.
#[derive(Debug, Clone, Copy)]
struct Run {
    elapsed: Duration,
    /// Of all threads, user and system.
    processor: Duration,
    /// `None` if it failed.
    spills: Option<usize>,
}

/// Runs each query `rounds` times with each pool and prints the medians and their ratios.
pub(crate) async fn print(mib: u64, rounds: u64) -> ExitCode {
    let engine = Engine::new(EngineConfig::new(mib << 21)).expect("an engine");
    let group = engine.create_group(engine.root(), "tenant".as_ref()).expect("a group");
    engine.set_max(&group, mib << 20);
    let tenant = Tenant::builder(&engine, &group).build().expect("a tenant");
    println!("{mib} MiB, {rounds} pairs; medians in ms, elapsed / processor; spills in brackets");
    let mut of_all: Vec<(Run, Run)> = Vec::new();
    for (name, query) in [("sort", SORT), ("aggregate", AGGREGATE), ("join", JOIN), ("mixed", MIXED)] {
        let mut pairs = Vec::new();
        for round in 0..=rounds {
            let mut fair: Option<Run> = None;
            let mut ours: Option<Run> = None;
            // The two alternate in running first.
            for turn in 0..2 {
                let is_ours = (round + turn) % 2 == 0;
                let pool: Arc<dyn MemoryPool> = match is_ours {
                    true => tenant.start_query().expect("a query"),
                    false => Arc::new(FairSpillPool::new((mib << 20) as usize)),
                };
                *if is_ours { &mut ours } else { &mut fair } = Some(timed(pool, query).await);
            }
            // The first round warms up.
            if round > 0 {
                pairs.extend(fair.zip(ours));
            }
        }
        println!("{name:<10} {}", told(&pairs));
        // Failed queries are not compared.
        of_all.extend(pairs.iter().filter(|(fair, ours)| fair.spills.is_some() && ours.spills.is_some()));
    }
    let elapsed = ratio(&of_all, |run| run.elapsed);
    let processor = ratio(&of_all, |run| run.processor);
    let reached = if elapsed <= RATIO_MAX { "reached" } else { "missed" };
    println!("all: ratio {elapsed:.3} / {processor:.3}, target {RATIO_MAX}: {reached}");
    ExitCode::SUCCESS
}

async fn timed(pool: Arc<dyn MemoryPool>, query: &str) -> Run {
    let runtime = RuntimeEnvBuilder::new().with_memory_pool(pool).build().expect("a runtime");
    let session = session(Arc::new(runtime), store()).await.expect("a session");
    let (started, used) = (Instant::now(), ProcessTime::now());
    let outcome = run(&session, query).await;
    Run {
        elapsed: started.elapsed(),
        processor: used.elapsed(),
        spills: outcome.ok().map(|outcome| outcome.spills),
    }
}

/// Formats the line of one query.
fn told(pairs: &[(Run, Run)]) -> String {
    let side = |name: &str, runs: Vec<Run>| {
        let in_ms = |time: fn(&Run) -> Duration| median(runs.iter().map(|run| time(run).as_secs_f64() * 1e3));
        let spills = runs.last().and_then(|run| run.spills);
        let spills = spills.map_or("fails".to_owned(), |spills| spills.to_string());
        format!("{name} {:>7.1} / {:>7.1} [{spills}]", in_ms(|run| run.elapsed), in_ms(|run| run.processor))
    };
    format!(
        "{}   {}   ratio {:.3} / {:.3}",
        side("fair", pairs.iter().map(|pair| pair.0).collect()),
        side("tenant", pairs.iter().map(|pair| pair.1).collect()),
        ratio(pairs, |run| run.elapsed),
        ratio(pairs, |run| run.processor)
    )
}

/// Returns the median of the pairs' ratios, the tenant's run to the fair pool's.
fn ratio(pairs: &[(Run, Run)], time: fn(&Run) -> Duration) -> f64 {
    median(pairs.iter().map(|(fair, ours)| time(ours).as_secs_f64() / time(fair).as_secs_f64()))
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_unstable_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}
