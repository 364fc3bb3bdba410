//! The scheduler's process.
//!
//! Executors poll the scheduler for tasks; it opens no connection to them. A task that an executor
//! cannot prepare, for example of a session without a tenant, fails with the reason. (With a
//! scheduler pushing tasks, the reason would stay in the executor's log.)

use std::net::SocketAddr;
use std::sync::Arc;

use ballista_core::config::TaskSchedulingPolicy;
use ballista_core::error::{BallistaError, Result};
use ballista_scheduler::cluster::{BallistaCluster, ClusterStateEvent, ClusterStateEventStream};
use ballista_scheduler::config::SchedulerConfig;
use ballista_scheduler::scheduler_process::{create_scheduler, start_grpc_service_with_listener};
use ballista_scheduler::scheduler_server::SchedulerServer;
use datafusion_proto::protobuf::{LogicalPlanNode, PhysicalPlanNode};
use futures::StreamExt;
use tokio::net::TcpListener;

use crate::report::Line;
use crate::tenant_options::config_producer;

/// Silence after which the scheduler considers an executor dead. A busy executor polls for tasks
/// every five seconds.
const EXECUTOR_TIMEOUT_SECONDS: u64 = 15;
/// How often the scheduler checks for dead executors.
const LOOK_FOR_DEAD_SECONDS: u64 = 1;

type Scheduler = SchedulerServer<LogicalPlanNode, PhysicalPlanNode>;

/// The settings of a scheduler.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct SchedulerSettings {
    /// Where it listens. Port 0 takes a free one.
    pub bind: SocketAddr,
    /// The number of executors needed for `/readyz` to report a ready cluster.
    pub nr_executors: usize,
}

impl SchedulerSettings {
    /// Returns the settings of a scheduler listening at `bind` and ready with `nr_executors`.
    pub fn new(bind: SocketAddr, nr_executors: usize) -> Self {
        Self { bind, nr_executors }
    }
}

/// Runs a scheduler until the process is killed, and reports its address on standard output.
///
/// # Errors
/// [`BallistaError::General`] when the address is taken, and Ballista's.
pub async fn run_scheduler(settings: SchedulerSettings) -> Result<()> {
    let SchedulerSettings { bind, nr_executors } = settings;
    let cannot = |error| BallistaError::General(format!("cannot listen at {bind}: {error}"));
    let listener = TcpListener::bind(bind).await.map_err(cannot)?;
    let address = listener.local_addr().map_err(cannot)?;
    let config = SchedulerConfig {
        bind_host: address.ip().to_string(),
        bind_port: address.port(),
        scheduling_policy: TaskSchedulingPolicy::PullStaged,
        min_ready_executors: nr_executors,
        executor_timeout_seconds: EXECUTOR_TIMEOUT_SECONDS,
        expire_dead_executor_interval_seconds: LOOK_FOR_DEAD_SECONDS,
        no_executors_grace_period_seconds: EXECUTOR_TIMEOUT_SECONDS,
        // Rerunning a finished stage, to restore output lost with a dead executor, hangs or loses
        // rows.
        stage_max_failures: 1,
        override_config_producer: Some(config_producer()),
        ..SchedulerConfig::default()
    };
    let cluster = BallistaCluster::new_from_config(&config).await?;
    let scheduler = create_scheduler::<LogicalPlanNode, PhysicalPlanNode>(cluster, Arc::new(config)).await?;
    let lost = scheduler.cluster_state_events().await?;
    tokio::spawn(cancel_when_lost(scheduler.clone(), lost));
    println!("{}", Line::Scheduler(address));
    start_grpc_service_with_listener(listener, scheduler).await
}

/// Cancels the running queries when an executor is lost. Ballista would rerun finished stages whose
/// output is gone, and may then hang or lose rows.
async fn cancel_when_lost(scheduler: Scheduler, mut events: ClusterStateEventStream) {
    while let Some(event) = events.next().await {
        let ClusterStateEvent::RemovedExecutor { executor_id } = event else { continue };
        for job in scheduler.state.task_manager.get_running_job_cache().keys() {
            log::warn!("cancelling job {job}: executor {executor_id} is lost");
            if let Err(error) = scheduler.cancel_job(job.clone()).await {
                log::error!("job {job} is not cancelled: {error}");
            }
        }
    }
}
