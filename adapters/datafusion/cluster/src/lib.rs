//! Tenants in a Ballista cluster: executors with one engine each, and a group for each tenant and
//! session.
//!
//! - [`TenantOptions`] carries the tenant from the client to the executors.
//! - [`TenantRuntimes`] gives an executor its runtimes: all memory of a session, and the caches of
//!   its tenant, are charged to groups of the executor's engine.
//! - [`run_scheduler`] and [`run_executor`] are the processes; [`LocalCluster`] starts them on one
//!   machine.
//!
//! `docs/cluster.md` describes a cluster of several machines.

mod executor;
mod local_cluster;
mod report;
mod scheduler;
mod signals;
mod tenant_options;
mod tenant_runtimes;

pub use executor::{ExecutorSettings, run_executor};
pub use local_cluster::{ClusterSettings, LocalCluster};
pub use report::Held;
pub use scheduler::{SchedulerSettings, run_scheduler};
pub use signals::{asked_to_end, end_with_parent};
pub use tenant_options::{TenantOptions, config_producer};
pub use tenant_runtimes::{SetUpError, TenantLimit, TenantRuntimes};
