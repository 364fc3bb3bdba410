//! Real queries of tenants with limits: they spill, end as with unlimited memory, and leave
//! nothing.

use std::sync::Arc;
use std::time::{Duration, Instant};

use datafusion::execution::memory_pool::{FairSpillPool, MemoryPool};
use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use futures::StreamExt;
use umemcg_datafusion::Tenant;

use crate::tpch::{AGGREGATE, JOIN, MIXED, Outcome, SORT, expected, run, session, store};
use crate::{MIB, engine_of, group_of, usage_of};

/// Longest wait in these tests.
const WAIT_MAX: Duration = Duration::from_secs(120);

/// Runs a query of a tenant, through its caches.
async fn run_of(tenant: &Tenant, query: &str) -> datafusion::error::Result<Outcome> {
    let runtime = Arc::new(tenant.runtime_builder().expect("a query").build()?);
    let store = Arc::new(tenant.cached_store("tpch://tables", store()));
    let session = session(runtime, store).await?;
    tokio::time::timeout(WAIT_MAX, run(&session, query)).await.expect("a query ends in time")
}

/// Runs a query with a pool of DataFusion's.
async fn run_with(pool: Arc<dyn MemoryPool>, query: &str) -> datafusion::error::Result<Outcome> {
    let runtime = Arc::new(RuntimeEnvBuilder::new().with_memory_pool(pool).build()?);
    let session = session(runtime, store()).await?;
    tokio::time::timeout(WAIT_MAX, run(&session, query)).await.expect("a query ends in time")
}

/// Waits until a tenant has no query.
async fn no_query_left(tenant: &Tenant) {
    let give_up = Instant::now() + WAIT_MAX;
    while tenant.group().nr_children() > 1 {
        assert!(Instant::now() < give_up, "queries are left: {:?}", tenant.group().children());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Returns the bytes charged to a tenant's group besides its caches.
fn beside_caches(tenant: &Tenant) -> u64 {
    usage_of(tenant.group()) - usage_of(tenant.cache_group())
}

/// Waits until a tenant is charged that much besides its caches. The reads of a dropped query may
/// come into them between the two looks at the usage, for a moment.
async fn comes_back_to(tenant: &Tenant, before: u64, after: &str) {
    let give_up = Instant::now() + WAIT_MAX;
    while beside_caches(tenant) != before {
        assert!(Instant::now() < give_up, "after {after}: {} and not {before}", beside_caches(tenant));
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_tenants_spill_within_their_limits() {
    let engine = engine_of(192);
    let tenants = ["a", "b"]
        .map(|name| Tenant::builder(&engine, &group_of(&engine, name, 80)).build().expect("a tenant"));
    let before = tenants.each_ref().map(|tenant| beside_caches(tenant));
    let mut spills = 0;
    for (first, second) in [(SORT, AGGREGATE), (JOIN, SORT), (MIXED, JOIN), (AGGREGATE, MIXED)] {
        let (a, b) = tokio::join!(run_of(&tenants[0], first), run_of(&tenants[1], second));
        let (a, b) = (a.expect("a's query succeeds"), b.expect("b's query succeeds"));
        assert_eq!(a.result, expected(first).await);
        assert_eq!(b.result, expected(second).await);
        spills += a.spills + b.spills;
    }
    assert!(spills > 0);
    for (tenant, before) in tenants.iter().zip(before) {
        no_query_left(tenant).await;
        comes_back_to(tenant, before, "all queries").await;
        let peak = tenant.group().peak_bytes();
        assert!(peak <= 80 * MIB, "{peak}");
        assert!(tenant.ranges().stats().hits > 0);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_succeeds_where_a_fair_pool_does() {
    let mut nr_compared = 0;
    // A sort of whole rows needs 20 MiB for its merges alone.
    for (query, sizes) in [(SORT, [80, 96]), (AGGREGATE, [32, 48]), (JOIN, [32, 48]), (MIXED, [48, 64])] {
        let expected = expected(query).await;
        for mib in sizes {
            let fair = run_with(Arc::new(FairSpillPool::new((mib * MIB) as usize)), query).await;
            let engine = engine_of(2 * mib);
            let tenant = Tenant::builder(&engine, &group_of(&engine, "a", mib)).build().expect("a tenant");
            let ours = run_of(&tenant, query).await;
            println!("{mib} MiB: fair pool {fair:?}, tenant {ours:?}");
            if fair.is_ok() {
                let ours = ours.expect("no failure that a fair pool would not have");
                assert_eq!(ours.result, expected);
                nr_compared += 1;
            }
        }
    }
    assert!(nr_compared >= 6, "the fair pool failed too often to be a yardstick: {nr_compared}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dropped_query_leaves_nothing_charged() {
    let engine = engine_of(128);
    let tenant = Tenant::builder(&engine, &group_of(&engine, "a", 48)).build().expect("a tenant");
    let before = beside_caches(&tenant);
    for query in [SORT, AGGREGATE, JOIN, MIXED] {
        for patience_ms in [0, 3, 30, 100] {
            let runtime = Arc::new(tenant.runtime_builder().expect("a query").build().expect("a runtime"));
            let store = Arc::new(tenant.cached_store("tpch://tables", store()));
            let session = session(runtime, store).await.expect("a session");
            let mut stream = session.sql(query).await.expect("a plan").execute_stream().await.expect("begun");
            // Dropped in the middle, wherever that is.
            let _ = tokio::time::timeout(Duration::from_millis(patience_ms), stream.next()).await;
        }
        no_query_left(&tenant).await;
        comes_back_to(&tenant, before, query).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn queries_of_one_tenant_share_its_budget() {
    let engine = engine_of(128);
    let tenant = Tenant::builder(&engine, &group_of(&engine, "a", 96)).build().expect("a tenant");
    let results =
        futures::future::join_all([JOIN, MIXED, AGGREGATE].map(|query| run_of(&tenant, query))).await;
    for (query, result) in [JOIN, MIXED, AGGREGATE].into_iter().zip(results) {
        assert_eq!(result.expect("it succeeds").result, expected(query).await);
    }
    assert!(tenant.group().peak_bytes() <= 96 * MIB);
}

#[tokio::test]
async fn metadata_is_read_once_for_all_queries_of_a_tenant() {
    let engine = engine_of(128);
    let tenant = Tenant::builder(&engine, &group_of(&engine, "a", 64)).build().expect("a tenant");
    run_of(&tenant, JOIN).await.expect("it succeeds");
    let first = tenant.ranges().stats();
    run_of(&tenant, JOIN).await.expect("it succeeds");
    let second = tenant.ranges().stats();
    assert_eq!(second.fetches, first.fetches, "all from memory");
    assert!(second.hits > first.hits);
}
