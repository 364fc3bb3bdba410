//! [`TenantRuntimes`]: an executor's runtimes, one for each tenant and session, in one engine.
//!
//! Ballista requests a runtime for each task. The concurrent tasks of one session share a runtime,
//! so a session is one group below its tenant's. The runtime and its group are dropped with the
//! last task: clients may invent any number of session names, so a session is kept only while the
//! executor works for it.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use ballista_core::RuntimeProducer;
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::runtime_env::RuntimeEnv;
use datafusion::prelude::SessionConfig;
use object_store::local::LocalFileSystem;
use umemcg::Engine;
use umemcg_datafusion::{Tenant, TenantError};
use url::Url;

use crate::tenant_options::TenantOptions;

/// A tenant and its limit on one executor.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct TenantLimit {
    /// The name of its group, and the value of the option `umemcg.tenant`.
    pub name: String,
    /// Bytes for its queries and caches together.
    pub limit_bytes: u64,
}

impl TenantLimit {
    /// Returns a tenant with a limit in bytes.
    pub fn new(name: &str, limit_bytes: u64) -> Self {
        Self { name: name.to_owned(), limit_bytes }
    }
}

/// A tenant could not be set up.
#[derive(Debug)]
#[non_exhaustive]
pub struct SetUpError {
    /// The tenant's name.
    pub tenant: String,
    /// The reason.
    pub error: TenantError,
}

impl fmt::Display for SetUpError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "tenant `{}`: {}", self.tenant, self.error)
    }
}

impl std::error::Error for SetUpError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
}

/// The tenants of an executor and the runtimes of their sessions.
#[derive(Debug)]
pub struct TenantRuntimes {
    tenants: BTreeMap<String, Arc<Tenant>>,
    /// By tenant and session. Held for lookups only, never while a group is created.
    sessions: Mutex<HashMap<(String, String), Weak<RuntimeEnv>>>,
    /// Where queries spill.
    spill_dir: String,
}

impl TenantRuntimes {
    /// Creates the tenants as groups below the root of `engine`. Queries spill to `spill_dir`. May
    /// sleep for reclaim.
    ///
    /// # Errors
    /// [`SetUpError`] when a name is given twice or is not valid for a group.
    pub fn new(
        engine: &Arc<Engine>,
        limits: &[TenantLimit],
        spill_dir: &str,
    ) -> Result<Arc<Self>, SetUpError> {
        let mut tenants = BTreeMap::new();
        for limit in limits {
            let tenant = Self::set_up(engine, limit)
                .map_err(|error| SetUpError { tenant: limit.name.clone(), error })?;
            tenants.insert(limit.name.clone(), tenant);
        }
        Ok(Arc::new(Self { tenants, sessions: Mutex::default(), spill_dir: spill_dir.to_owned() }))
    }

    fn set_up(engine: &Arc<Engine>, limit: &TenantLimit) -> Result<Arc<Tenant>, TenantError> {
        let group = engine.create_group(engine.root(), limit.name.as_ref())?;
        engine.set_max(&group, limit.limit_bytes);
        Tenant::builder(engine, &group).build()
    }

    /// Returns the tenants by name.
    pub fn tenants(&self) -> &BTreeMap<String, Arc<Tenant>> {
        &self.tenants
    }

    /// Returns the `override_runtime_producer` for an executor's configuration. Also set
    /// `memory_pool_size` to `Some(0)`; otherwise Ballista replaces the pool for each task.
    pub fn producer(self: &Arc<Self>) -> RuntimeProducer {
        let runtimes = Arc::clone(self);
        Arc::new(move |config| runtimes.runtime_of(config))
    }

    /// Returns the runtime of a session, from its configuration. May sleep for reclaim.
    ///
    /// # Errors
    /// When the configuration names no tenant of this executor, or the session's group cannot be
    /// created.
    pub fn runtime_of(&self, config: &SessionConfig) -> Result<Arc<RuntimeEnv>> {
        let options = config.options().extensions.get::<TenantOptions>().cloned().unwrap_or_default();
        let tenant = self.tenants.get(&options.tenant).ok_or_else(|| {
            DataFusionError::Configuration(match &*options.tenant {
                "" => "the session names no tenant: set its option umemcg.tenant".to_owned(),
                name => format!("this executor has no tenant `{name}` (option umemcg.tenant)"),
            })
        })?;
        let key = (options.tenant, options.session);
        if let Some(runtime) = self.sessions().get(&key).and_then(Weak::upgrade) {
            return Ok(runtime);
        }
        let made = self.make(tenant).map_err(|error| DataFusionError::External(Box::new(error)))?;
        let mut sessions = self.sessions();
        // Another task may have been faster.
        if let Some(runtime) = sessions.get(&key).and_then(Weak::upgrade) {
            drop(sessions);
            return Ok(runtime);
        }
        sessions.retain(|_, runtime| runtime.strong_count() > 0);
        sessions.insert(key, Arc::downgrade(&made));
        Ok(made)
    }

    fn make(&self, tenant: &Tenant) -> Result<Arc<RuntimeEnv>, TenantError> {
        let runtime = tenant.runtime_builder()?.with_temp_file_path(&self.spill_dir).build()?;
        // The default store, through the tenant's cache. Register your own stores the same way.
        let files = Url::parse("file:///").expect("a URL");
        let store = tenant.cached_store("file:///", Arc::new(LocalFileSystem::new()));
        runtime.register_object_store(&files, Arc::new(store));
        Ok(Arc::new(runtime))
    }

    fn sessions(&self) -> std::sync::MutexGuard<'_, HashMap<(String, String), Weak<RuntimeEnv>>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tenant_options::config_producer;
    use umemcg::EngineConfig;

    fn runtimes_of(tenants: &[&str]) -> Result<Arc<TenantRuntimes>, SetUpError> {
        let engine = Engine::new(EngineConfig::new(64 << 20).pages(false)).expect("an engine");
        let limits: Vec<_> = tenants.iter().map(|name| TenantLimit::new(name, 16 << 20)).collect();
        TenantRuntimes::new(&engine, &limits, &std::env::temp_dir().display().to_string())
    }

    fn config_of(tenant: &str, session: &str) -> SessionConfig {
        config_producer()().with_option_extension(TenantOptions::new(tenant, session))
    }

    #[test]
    fn a_session_has_one_runtime_and_one_group() {
        let runtimes = runtimes_of(&["a", "b"]).expect("two tenants");
        let group = Arc::clone(runtimes.tenants()["a"].group());
        let of = |session| runtimes.runtime_of(&config_of("a", session)).expect("a runtime");
        let (first, again, other) = (of("1"), of("1"), of("2"));
        assert!(Arc::ptr_eq(&first, &again) && !Arc::ptr_eq(&first, &other));
        assert_eq!(group.nr_children(), 3, "the caches and two sessions");
        drop((first, again));
        assert_eq!(group.nr_children(), 2);
        drop(other);
        assert_eq!(group.nr_children(), 1);
        assert_eq!(runtimes.tenants()["b"].group().nr_children(), 1);
    }

    #[test]
    fn sessions_of_one_name_are_each_tenants_own() {
        let runtimes = runtimes_of(&["a", "b"]).expect("two tenants");
        let [a, b] = ["a", "b"].map(|t| runtimes.runtime_of(&config_of(t, "1")).expect("a runtime"));
        assert!(!Arc::ptr_eq(&a, &b));
    }

    #[test]
    fn sessions_that_have_ended_are_not_kept() {
        let runtimes = runtimes_of(&["a"]).expect("a tenant");
        for session in 0..100 {
            runtimes.runtime_of(&config_of("a", &session.to_string())).expect("a runtime");
        }
        assert_eq!(runtimes.sessions().len(), 1, "only the last, until the next comes");
        assert_eq!(runtimes.tenants()["a"].group().nr_children(), 1);
    }

    #[test]
    fn tasks_at_the_same_time_share_a_runtime() {
        let runtimes = runtimes_of(&["a"]).expect("a tenant");
        let together = std::sync::Barrier::new(4);
        let of = || {
            together.wait();
            runtimes.runtime_of(&config_of("a", "1")).expect("a runtime")
        };
        let made: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(of)).collect();
            threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
        });
        assert!(made.iter().all(|runtime| Arc::ptr_eq(runtime, &made[0])));
        assert_eq!(runtimes.tenants()["a"].group().nr_children(), 2, "the caches and the session");
    }

    #[test]
    fn a_query_without_a_known_tenant_is_refused() {
        let runtimes = runtimes_of(&["a"]).expect("a tenant");
        let refusals = [
            (config_of("c", "1"), "no tenant `c`"),
            (config_of("", ""), "names no tenant"),
            (SessionConfig::new(), "names no tenant"),
        ];
        for (config, why) in refusals {
            let refused = runtimes.runtime_of(&config).expect_err("no such tenant").to_string();
            assert!(refused.contains(why) && refused.contains("umemcg.tenant"), "{refused}");
        }
    }

    #[test]
    fn tenants_that_cannot_be_told_apart_are_refused() {
        for (tenants, why) in [(["a", "a"], "of that name exists"), (["a", "b/c"], "not a name")] {
            let refused = runtimes_of(&tenants).expect_err(why).to_string();
            assert!(refused.contains(why) && refused.contains(tenants[1]), "{refused}");
        }
    }
}
