//! Tables, clusters and queries of the tests.

use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::time::Duration;

use datafusion::arrow::util::pretty::pretty_format_batches;
use datafusion::error::Result;
use datafusion::prelude::{ParquetReadOptions, SessionContext};
use umemcg_ballista::{ClusterSettings, LocalCluster, TenantLimit, TenantOptions};

use crate::tables;

pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_umemcg-ballista");
/// Longest wait for a query, a process or a state.
pub(crate) const WAIT_MAX: Duration = Duration::from_secs(180);
/// How often a state is looked at.
pub(crate) const LOOK_AGAIN: Duration = Duration::from_millis(5);

pub(crate) const BUDGET_MIB: u64 = 96;
/// Together more than the budget.
pub(crate) const TENANTS: [(&str, u64); 2] = [("a", 64), ("b", 48)];

pub(crate) const AGGREGATE: &str = "SELECT count(*), sum(n), max(m) FROM (
    SELECT l_orderkey, l_partkey, count(*) AS n, min(l_comment) AS m FROM lineitem GROUP BY l_orderkey, l_partkey)";
pub(crate) const JOIN: &str = "SELECT o_orderpriority, count(*) AS n, max(l_comment) AS c
    FROM lineitem JOIN orders ON l_orderkey = o_orderkey GROUP BY o_orderpriority ORDER BY o_orderpriority";

/// The tables are written once and kept in the build directory.
static TABLES: LazyLock<PathBuf> = LazyLock::new(|| {
    let place = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let tables = place.join("cluster-tables");
    if !tables.exists() {
        let dir = tempfile::tempdir_in(place).expect("a directory");
        tables::generate(dir.path(), 0.02);
        // A faster process has written the same tables.
        let moved = std::fs::rename(dir.path(), &tables);
        assert!(moved.is_ok() || tables.exists(), "{moved:?}");
    }
    tables
});

/// Starts a cluster with two executors unless a test needs more.
pub(crate) async fn cluster(nr_executors: usize, tenants: &[(&str, u64)]) -> LocalCluster {
    let mut settings = ClusterSettings::new(Path::new(PROGRAM), BUDGET_MIB << 20);
    settings.nr_executors = nr_executors;
    settings.tenants = tenants.iter().map(|(name, mib)| TenantLimit::new(name, mib << 20)).collect();
    LocalCluster::start(&settings).await.expect("a cluster")
}

/// Returns a session of a tenant, with the tables.
pub(crate) async fn session(cluster: &LocalCluster, tenant: &str, name: &str) -> SessionContext {
    let options = Some(TenantOptions::new(tenant, name));
    cluster.session(options, &TABLES).await.expect("a session")
}

/// Returns a session without a tenant, with the tables.
pub(crate) async fn session_of_no_tenant(cluster: &LocalCluster) -> SessionContext {
    cluster.session(None, &TABLES).await.expect("a session")
}

/// Runs a query, and returns its rows as text.
pub(crate) async fn result_of(session: &SessionContext, query: &str) -> Result<String> {
    let rows = async { session.sql(query).await?.collect().await };
    let batches = tokio::time::timeout(WAIT_MAX, rows).await.expect("a query ends in time")?;
    Ok(pretty_format_batches(&batches)?.to_string())
}

/// Returns the result of a query in this process.
pub(crate) async fn expected(query: &str) -> String {
    let session = SessionContext::new();
    for table in ["lineitem", "orders"] {
        let path = format!("{}/", TABLES.join(table).display());
        session.register_parquet(table, &path, ParquetReadOptions::default()).await.expect("a table");
    }
    result_of(&session, query).await.expect("a result")
}

/// Checks that no executor has held more than its budget and no tenant more than its limit, from
/// the start until now: executors report the peak usage with each sample.
#[track_caller]
pub(crate) fn assert_within_budgets(cluster: &LocalCluster, nr_executors: usize) {
    let held = cluster.held();
    assert_eq!(held.len(), nr_executors * 3, "each executor tells of itself and two tenants: {held:?}");
    for (whose, held) in &held {
        assert!(held.is_within_limit(), "{whose:?}: {held:?}");
    }
    let limit_of = |path: &str| {
        let mut limits = held.iter().filter(|((_, of), _)| of == path).map(|(_, held)| held.limit_bytes);
        limits.next().filter(|&limit| limits.all(|other| other == limit))
    };
    assert_eq!(limit_of("/"), Some(BUDGET_MIB << 20), "the root is the whole engine");
}
