//! An executor is killed while two tenants' queries run on it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

use datafusion::prelude::SessionContext;
use tokio::time::{Instant, sleep};

use crate::setup::{
    AGGREGATE, JOIN, LOOK_AGAIN, TENANTS, WAIT_MAX, assert_within_budgets, cluster, expected, result_of,
    session,
};

/// The most queries of a tenant while the test waits for the executor to be at work.
const QUERIES_MAX: usize = 1000;

/// Runs a query again and again until `is_enough`, and once more. Returns the errors; results have
/// to be right.
async fn run_until(
    is_enough: Arc<AtomicBool>,
    nr_at_work: Arc<AtomicUsize>,
    session: SessionContext,
    query: &str,
    right: String,
) -> Vec<String> {
    let mut errors = Vec::new();
    for _ in 0..QUERIES_MAX {
        let is_last = is_enough.load(Relaxed);
        nr_at_work.fetch_add(1, Relaxed);
        let ended = result_of(&session, query).await;
        nr_at_work.fetch_sub(1, Relaxed);
        match ended {
            Ok(result) => assert_eq!(result, right),
            Err(error) => errors.push(error.to_string()),
        }
        if is_last {
            return errors;
        }
    }
    panic!("the executor has not been killed after {QUERIES_MAX} queries");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_executor_takes_no_tenant_with_it() {
    let mut cluster = cluster(3, &TENANTS).await;
    let (is_killed, nr_at_work) = (Arc::<AtomicBool>::default(), Arc::<AtomicUsize>::default());
    let mut running = Vec::new();
    for (tenant, query) in [("a", AGGREGATE), ("b", JOIN)] {
        let (session, right) = (session(&cluster, tenant, "1").await, expected(query).await);
        let run = run_until(Arc::clone(&is_killed), Arc::clone(&nr_at_work), session, query, right);
        running.push(tokio::spawn(run));
    }
    // In the middle: both tenants' queries run, and the executor has a session of a tenant at work.
    let give_up = Instant::now() + WAIT_MAX;
    loop {
        let has_session = |((executor, path), held): (&(String, String), &umemcg_ballista::Held)| {
            // A tenant's first child is the group of its caches.
            executor == "executor-1" && path != "/" && held.nr_children > 1
        };
        if nr_at_work.load(Relaxed) == 2 && cluster.held().iter().any(has_session) {
            break;
        }
        assert!(Instant::now() < give_up, "executor-1 gets no task: {:?}", cluster.held());
        assert!(running.iter().all(|run| !run.is_finished()), "a tenant has stopped");
        sleep(LOOK_AGAIN).await;
    }
    cluster.kill_executor(1).expect("it was alive");
    is_killed.store(true, Relaxed);
    for run in running {
        // Those in the middle end with their result or with Ballista's error.
        let errors = run.await.expect("right results, and no panic");
        errors.iter().for_each(|error| println!("failed with Ballista's error: {error}"));
        assert!(errors.len() <= 2, "only what ran or began when the executor died may fail: {errors:?}");
    }
    assert_within_budgets(&cluster, 3);
    // Both tenants go on with the remaining executors.
    for (tenant, query) in [("a", JOIN), ("b", AGGREGATE)] {
        let later = session(&cluster, tenant, "later").await;
        assert_eq!(result_of(&later, query).await.expect("it succeeds"), expected(query).await);
    }
    assert_within_budgets(&cluster, 3);
}
