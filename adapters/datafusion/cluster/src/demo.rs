//! `umemcg-ballista run`: a local cluster, concurrent queries of two tenants, and the memory held
//! by each tenant.

#[path = "../../tests/tenant/tables.rs"]
mod tables;

use std::collections::BTreeMap;
use std::error::Error;
use std::path::Path;
use std::time::Duration;

use datafusion::prelude::SessionContext;
use tempfile::TempDir;
use tokio::time::{Instant, sleep, timeout};
use umemcg_ballista::{ClusterSettings, Held, LocalCluster, TenantLimit, TenantOptions, asked_to_end};

/// The budget of each executor, and the tenants' limits, in MiB. The limits add up to more than the
/// budget.
const BUDGET_MIB: u64 = 160;
const TENANTS: [(&str, u64); 2] = [("acme", 96), ("globex", 80)];
/// The scale of the tables; 1 is six million lines.
const SCALE: f64 = 0.1;
/// Longest wait for a query.
const QUERY_MAX: Duration = Duration::from_secs(300);
const SHOW_EVERY: Duration = Duration::from_millis(500);

const AGGREGATE: (&str, &str) = (
    "aggregation",
    "SELECT count(*), sum(n), max(m) FROM (
        SELECT l_orderkey, l_partkey, count(*) AS n, min(l_comment) AS m
        FROM lineitem GROUP BY l_orderkey, l_partkey)",
);
/// Sorts a narrow table: Ballista's tasks keep their part of a sort in memory.
const SORT: (&str, &str) = ("sort", "SELECT o_orderkey, o_clerk FROM orders ORDER BY o_clerk, o_orderkey");
const JOIN: (&str, &str) = (
    "join",
    "SELECT o_orderpriority, count(*) AS n, max(l_comment) AS c
        FROM lineitem JOIN orders ON l_orderkey = o_orderkey
        GROUP BY o_orderpriority ORDER BY o_orderpriority",
);

/// Starts a cluster, runs the queries, shows the memory held, and stops the cluster; earlier on
/// Ctrl-C or SIGTERM.
pub(crate) async fn run() -> Result<(), Box<dyn Error>> {
    tokio::select! {
        result = queries() => result,
        () = asked_to_end() => Err("told to end; the cluster has ended".into()),
    }
}

async fn queries() -> Result<(), Box<dyn Error>> {
    // On a thread of its own, so that Ctrl-C works meanwhile.
    let tables = tokio::task::spawn_blocking(|| {
        let dir = tempfile::tempdir()?;
        tables::generate(dir.path(), SCALE);
        Ok::<TempDir, std::io::Error>(dir)
    });
    let tables = tables.await??;
    let mut settings = ClusterSettings::new(&std::env::current_exe()?, BUDGET_MIB << 20);
    settings.tenants = TENANTS.map(|(name, mib)| TenantLimit::new(name, mib << 20)).to_vec();
    let cluster = LocalCluster::start(&settings).await?;
    let [(acme, acme_mib), (globex, globex_mib)] = TENANTS;
    println!(
        "a scheduler and {} executors of {BUDGET_MIB} MiB; {acme} may have {acme_mib} MiB on each, {globex} {globex_mib}",
        settings.nr_executors
    );
    let started = Instant::now();
    let mut nr_failed = 0;
    let tenants = async {
        tokio::try_join!(
            one_tenant(&cluster, acme, tables.path(), &[AGGREGATE, SORT, JOIN]),
            one_tenant(&cluster, globex, tables.path(), &[SORT, JOIN, AGGREGATE]),
        )
    };
    let show = async {
        loop {
            sleep(SHOW_EVERY).await;
            println!("{:6.1} s  {}", started.elapsed().as_secs_f64(), holding(&cluster.held()));
        }
    };
    tokio::select! {
        ended = tenants => {
            let (of_acme, of_globex) = ended?;
            nr_failed = of_acme + of_globex;
        }
        () = show => {}
    }
    println!("most that was held, in MiB:");
    for ((executor, path), held) in cluster.held() {
        let Held { peak_bytes, limit_bytes, .. } = held;
        let name = if path == "/" { "all together" } else { path.trim_start_matches('/') };
        println!("  {executor}  {name:<12} {:>4} of {:>4}", peak_bytes >> 20, limit_bytes >> 20);
    }
    if nr_failed > 0 { Err(format!("{nr_failed} queries have failed").into()) } else { Ok(()) }
}

/// Runs the queries of a tenant, one after the other, and returns how many failed.
async fn one_tenant(
    cluster: &LocalCluster,
    tenant: &str,
    tables: &Path,
    queries: &[(&str, &str)],
) -> Result<usize, Box<dyn Error>> {
    let mut nr_failed = 0;
    let session = cluster.session(Some(TenantOptions::new(tenant, "demo")), tables).await?;
    for (what, query) in queries {
        let started = Instant::now();
        let ended = timeout(QUERY_MAX, nr_rows(&session, query))
            .await
            .map_err(|_| format!("the {what} of {tenant} has not ended after {QUERY_MAX:?}"))?;
        let seconds = started.elapsed().as_secs_f64();
        match ended {
            Ok(rows) => println!("{tenant}: {what}, {rows} rows after {seconds:.1} s"),
            Err(error) => {
                println!("{tenant}: {what}, failed after {seconds:.1} s: {error}");
                nr_failed += 1;
            }
        }
    }
    Ok(nr_failed)
}

async fn nr_rows(session: &SessionContext, query: &str) -> datafusion::error::Result<usize> {
    let batches = session.sql(query).await?.collect().await?;
    Ok(batches.iter().map(|batch| batch.num_rows()).sum())
}

/// Formats the memory held by each tenant on each executor as one line.
fn holding(held: &BTreeMap<(String, String), Held>) -> String {
    let mut line = String::new();
    for ((executor, path), held) in held {
        let mib = held.usage_bytes >> 20;
        match path.trim_start_matches('/') {
            "" => line += &format!("  {executor} {mib:>3} MiB:"),
            tenant => line += &format!(" {tenant} {mib:>3}"),
        }
    }
    line
}
