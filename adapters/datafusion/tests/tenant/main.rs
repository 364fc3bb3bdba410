//! Tests of a tenant: its pool with consumers made by hand, its caches, its cached store, and real
//! queries over Parquet.

mod caches;
mod consumers;
mod guarantees;
mod queries;
mod ranges;
mod starting;
mod tpch;

use std::sync::Arc;

use umemcg::{Engine, EngineConfig, Group};
use umemcg_datafusion::{Tenant, TenantBuilder};

const MIB: u64 = 1 << 20;

/// Returns an engine of `mib` MiB.
fn engine_of(mib: u64) -> Arc<Engine> {
    Engine::new(EngineConfig::new(mib * MIB)).expect("an engine")
}

/// Returns a group below the root with a limit.
fn group_of(engine: &Arc<Engine>, name: &str, mib: u64) -> Arc<Group> {
    let group = engine.create_group(engine.root(), name.as_ref()).expect("a group");
    engine.set_max(&group, mib * MIB);
    group
}

/// Returns a tenant with a limit of `mib` MiB, in an engine with twice that.
fn tenant_of(mib: u64) -> Arc<Tenant> {
    tenant_with(mib, |builder| builder)
}

fn tenant_with(mib: u64, change: impl FnOnce(TenantBuilder) -> TenantBuilder) -> Arc<Tenant> {
    let engine = engine_of(2 * mib);
    let group = group_of(&engine, "tenant", mib);
    change(Tenant::builder(&engine, &group)).build().expect("a tenant")
}

/// Returns the bytes charged to a group, without the stocks of threads.
fn usage_of(group: &Group) -> u64 {
    group.drain_stocks();
    group.usage_bytes()
}
