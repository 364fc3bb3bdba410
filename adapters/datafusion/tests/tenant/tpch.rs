//! Queries over TPC-H tables, generated once for all tests.

#[path = "tables.rs"]
mod tables;

use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};

use datafusion::arrow::util::pretty::pretty_format_batches;
use datafusion::error::Result;
use datafusion::execution::runtime_env::{RuntimeEnv, RuntimeEnvBuilder};
use datafusion::physical_plan::{ExecutionPlan, execute_stream};
use datafusion::prelude::{ParquetReadOptions, SessionConfig, SessionContext};
use futures::StreamExt;
use object_store::ObjectStore;
use object_store::local::LocalFileSystem;
use url::Url;

/// 300,000 lines of 75,000 orders; as batches, 70 MB.
const SCALE: f64 = 0.05;

/// All lines in the order of an unindexed text.
pub(crate) const SORT: &str = "SELECT * FROM lineitem ORDER BY l_comment, l_orderkey, l_linenumber";
/// As many groups as there are lines, each with a text.
pub(crate) const AGGREGATE: &str = "SELECT count(*), sum(n), min(m), max(m), sum(q) FROM (
    SELECT l_orderkey, l_partkey, count(*) AS n, min(l_comment) AS m, sum(l_quantity) AS q
    FROM lineitem GROUP BY l_orderkey, l_partkey)";
/// The orders on one side, the lines on the other.
pub(crate) const JOIN: &str =
    "SELECT o_orderpriority, count(*) AS n, sum(l_extendedprice) AS total, max(o_comment) AS last
    FROM lineitem JOIN orders ON l_orderkey = o_orderkey GROUP BY o_orderpriority ORDER BY o_orderpriority";
/// All of it at once: a join, many groups, and a sort of them.
pub(crate) const MIXED: &str = "SELECT o_orderkey, o_orderdate, max(l_comment) AS c, sum(l_quantity) AS q
    FROM lineitem JOIN orders ON l_orderkey = o_orderkey GROUP BY o_orderkey, o_orderdate ORDER BY c, o_orderkey";

/// The tables are written once, and kept in the build directory.
static TABLES: LazyLock<PathBuf> = LazyLock::new(|| {
    // Examples have no directory of their own.
    let place = option_env!("CARGO_TARGET_TMPDIR").map_or_else(std::env::temp_dir, PathBuf::from);
    let tables = place.join(format!("umemcg-tpch-{SCALE}"));
    if !tables.exists() {
        let dir = tempfile::tempdir_in(&place).expect("a directory");
        tables::generate(dir.path(), SCALE);
        // Another process may have been first.
        let moved = std::fs::rename(dir.path(), &tables);
        assert!(moved.is_ok() || tables.exists(), "{moved:?}");
    }
    tables
});

/// Returns where the tables are.
pub(crate) fn tables() -> &'static Path {
    &TABLES
}

/// Returns a store of the tables.
pub(crate) fn store() -> Arc<dyn ObjectStore> {
    Arc::new(LocalFileSystem::new_with_prefix(tables()).expect("a store"))
}

/// Returns a session with the tables. Two partitions, whatever the machine has.
pub(crate) async fn session(runtime: Arc<RuntimeEnv>, store: Arc<dyn ObjectStore>) -> Result<SessionContext> {
    let config = SessionConfig::new().with_target_partitions(2).with_batch_size(2048);
    let session = SessionContext::new_with_config_rt(config, runtime);
    session.register_object_store(&Url::parse("tpch://tables").expect("a URL"), store);
    for table in ["lineitem", "orders"] {
        let url = format!("tpch://tables/{table}/");
        session.register_parquet(table, &url, ParquetReadOptions::default()).await?;
    }
    Ok(session)
}

/// The outcome of a query.
#[derive(Debug)]
pub(crate) struct Outcome {
    /// The rows, if they are few; otherwise their number and a hash of their order.
    pub(crate) result: String,
    pub(crate) spills: usize,
}

/// Runs a query to its end, keeping no more than one batch of its result.
pub(crate) async fn run(session: &SessionContext, query: &str) -> Result<Outcome> {
    let plan = session.sql(query).await?.create_physical_plan().await?;
    let mut stream = execute_stream(Arc::clone(&plan), session.task_ctx())?;
    let (mut rows, mut text, mut order) = (0, String::new(), 0_u64);
    while let Some(batch) = stream.next().await {
        let batch = batch?;
        rows += batch.num_rows();
        if rows <= 10 {
            text = pretty_format_batches(std::slice::from_ref(&batch))?.to_string();
        }
        // The rows one by one, since batches may be cut otherwise.
        for row in 0..batch.num_rows() {
            let key = pretty_key(&batch, row)?;
            order = order.wrapping_mul(0x9E37_79B9_7F4A_7C15).wrapping_add(key);
        }
    }
    drop(stream);
    Ok(Outcome { result: format!("{rows} rows, {order:x}\n{text}"), spills: spills_of(&*plan) })
}

/// Returns a number made of the row's first column.
fn pretty_key(batch: &datafusion::arrow::array::RecordBatch, row: usize) -> Result<u64> {
    let text = datafusion::arrow::util::display::array_value_to_string(batch.column(0), row)?;
    Ok(text
        .bytes()
        .fold(1469598103934665603, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(1099511628211)))
}

fn spills_of(plan: &dyn ExecutionPlan) -> usize {
    let own = plan.metrics().and_then(|metrics| metrics.spill_count()).unwrap_or(0);
    own + plan.children().into_iter().map(|child| spills_of(&**child)).sum::<usize>()
}

/// Returns the result of a query with as much memory as it wants.
pub(crate) async fn expected(query: &str) -> String {
    let runtime = Arc::new(RuntimeEnvBuilder::new().build().expect("a runtime"));
    let session = session(runtime, store()).await.expect("a session");
    let outcome = run(&session, query).await.expect("a result");
    assert_eq!(outcome.spills, 0);
    outcome.result
}
