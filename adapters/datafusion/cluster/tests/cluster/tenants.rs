//! Two tenants at the same time.

use crate::setup::{AGGREGATE, JOIN, TENANTS, assert_within_budgets, cluster, expected, result_of, session};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tenants_share_executors_within_their_budgets() {
    let cluster = cluster(3, &TENANTS).await;
    let (a, b) = (session(&cluster, "a", "1").await, session(&cluster, "b", "1").await);
    let (of_a, of_b) = tokio::join!(result_of(&a, AGGREGATE), result_of(&b, JOIN));
    assert_eq!(of_a.expect("a's query succeeds"), expected(AGGREGATE).await);
    assert_eq!(of_b.expect("b's query succeeds"), expected(JOIN).await);
    assert_within_budgets(&cluster, 3);
    // Each was charged for its own queries.
    for tenant in ["/a", "/b"] {
        let held = cluster.held();
        let most = held.iter().filter(|((_, path), _)| path == tenant).map(|(_, held)| held.peak_bytes).max();
        assert!(most.is_some_and(|most| most > 1 << 20), "{tenant}: {held:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_limit_below_a_batch_fails_that_tenant_alone() {
    let cluster = cluster(2, &[("a", 1), ("b", 64)]).await;
    let (a, b) = (session(&cluster, "a", "1").await, session(&cluster, "b", "1").await);
    let (of_a, of_b) = tokio::join!(result_of(&a, AGGREGATE), result_of(&b, JOIN));
    let refused = of_a.expect_err("nothing fits in a MiB").to_string();
    assert!(refused.contains("/a"), "it names the group that is full: {refused}");
    assert_eq!(of_b.expect("b's query succeeds"), expected(JOIN).await);
    // Its failed queries have cost the cluster no executor.
    assert_eq!(result_of(&b, AGGREGATE).await.expect("b goes on"), expected(AGGREGATE).await);
    assert_within_budgets(&cluster, 2);
}
