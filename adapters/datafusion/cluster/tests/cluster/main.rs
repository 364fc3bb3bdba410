//! Clusters of processes on this machine with two tenants. Every wait has a bound.

mod ended_processes;
mod killed_executor;
mod refusals;
mod setup;
#[path = "../../../tests/tenant/tables.rs"]
mod tables;
mod tenants;
