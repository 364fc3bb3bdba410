//! An executor's process: one engine, and a group for each tenant and session.

use std::fmt;
use std::io::{self, Write};
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use ballista_core::config::TaskSchedulingPolicy;
use ballista_core::error::{BallistaError, Result};
use ballista_executor::executor_process::{ExecutorProcessConfig, start_executor_process};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep, timeout_at};
use umemcg::{Engine, EngineConfig, Group};

use crate::report::{Held, Line};
use crate::signals::asked_to_end;
use crate::tenant_options::config_producer;
use crate::tenant_runtimes::{TenantLimit, TenantRuntimes};

/// Interval of an executor's attempts to reach its scheduler.
const TRY_AGAIN: Duration = Duration::from_millis(200);

/// The settings of an executor.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ExecutorSettings {
    /// Its name, without spaces.
    pub id: String,
    /// The scheduler's host and port.
    pub scheduler: (String, u16),
    /// Where it serves shuffled data. Port 0 takes a free one.
    pub bind: SocketAddr,
    /// The name under which others reach it; the address of `bind` unless set.
    pub external_host: Option<String>,
    /// Bytes that all tenants together may hold: the engine's pool.
    pub budget_bytes: u64,
    /// The tenants.
    pub tenants: Vec<TenantLimit>,
    /// An existing directory, where it spills and keeps shuffled data.
    pub work_dir: String,
    /// Tasks that it runs at the same time.
    pub vcores: usize,
    /// How often it reports the memory held by each tenant; never unless set.
    pub tell_every: Option<Duration>,
    /// How long it tries to reach the scheduler at startup, in seconds.
    pub connect_seconds: u16,
}

impl ExecutorSettings {
    /// Returns the settings of an executor on loopback, with two tasks at the same time and no
    /// tenants yet.
    pub fn new(id: &str, scheduler: (&str, u16), budget_bytes: u64, work_dir: &str) -> Self {
        Self {
            id: id.to_owned(),
            scheduler: (scheduler.0.to_owned(), scheduler.1),
            bind: ([127, 0, 0, 1], 0).into(),
            external_host: None,
            budget_bytes,
            tenants: Vec::new(),
            work_dir: work_dir.to_owned(),
            vcores: 2,
            tell_every: None,
            connect_seconds: 30,
        }
    }

    /// Returns the address for serving shuffled data, with a port free at present.
    fn address(&self) -> io::Result<SocketAddr> {
        TcpListener::bind(self.bind)?.local_addr()
    }

    fn check(&self) -> Result<()> {
        let Self { id, tenants, external_host, bind, work_dir, .. } = self;
        if id.is_empty() || id.contains(char::is_whitespace) {
            return Err(general(format!("`{id}` is no name for an executor: it has spaces or is empty")));
        }
        if tenants.is_empty() {
            return Err(general("an executor needs a tenant"));
        }
        if bind.ip().is_unspecified() && external_host.is_none() {
            return Err(general(format!("others cannot reach {bind}: an external host must be named")));
        }
        if !std::path::Path::new(work_dir).is_dir() {
            return Err(general(format!("the work directory {work_dir} is no directory")));
        }
        Ok(())
    }
}

/// Runs an executor until Ctrl-C or SIGTERM.
///
/// # Errors
/// [`BallistaError::General`] when a setting is wrong, the engine or a tenant cannot be set up, the
/// address is taken, or a service of the executor ends by itself. Ballista's errors.
pub async fn run_executor(settings: ExecutorSettings) -> Result<()> {
    settings.check()?;
    let engine = Engine::new(EngineConfig::new(settings.budget_bytes).pages(false)).map_err(general)?;
    let runtimes = TenantRuntimes::new(&engine, &settings.tenants, &settings.work_dir).map_err(general)?;
    let address = settings
        .address()
        .map_err(|error| general(format!("cannot listen at {}: {error}", settings.bind)))?;
    reach(&settings.scheduler, settings.connect_seconds).await?;
    let (scheduler_host, scheduler_port) = settings.scheduler;
    let host = host_of(address.ip());
    let config = ExecutorProcessConfig {
        executor_id: settings.id.clone(),
        external_host: Some(settings.external_host.unwrap_or_else(|| host.clone())),
        bind_host: host,
        port: address.port(),
        scheduler_host,
        scheduler_port,
        task_scheduling_policy: TaskSchedulingPolicy::PullStaged,
        vcores: settings.vcores,
        work_dir: Some(settings.work_dir),
        // Keeps the pool of the runtime; with a size, Ballista would replace it by its own.
        memory_pool_size: Some(0),
        // `runtimes` keeps the active runtimes, by tenant: Ballista's cache is by session only, and
        // would keep a session's group long after its last query.
        session_runtime_cache_capacity: 0,
        override_runtime_producer: Some(runtimes.producer()),
        override_config_producer: Some(config_producer()),
        ..ExecutorProcessConfig::default()
    };
    if let Some(every) = settings.tell_every {
        tokio::spawn(tell(settings.id, engine, runtimes, every));
    }
    let is_asked = Arc::new(AtomicBool::new(false));
    let asked = Arc::clone(&is_asked);
    tokio::spawn(async move {
        asked_to_end().await;
        asked.store(true, Relaxed);
    });
    start_executor_process(Arc::new(config)).await?;
    // Ballista returns the same result when one of its services has failed.
    if is_asked.load(Relaxed) { Ok(()) } else { Err(general("a service of the executor has ended")) }
}

/// Waits until the scheduler listens. (Ballista's own wait never reaches its bound.)
async fn reach(scheduler: &(String, u16), seconds: u16) -> Result<()> {
    let (host, port) = scheduler;
    // Without the brackets of an IPv6 address.
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    let give_up = Instant::now() + Duration::from_secs(seconds.into());
    loop {
        let error = match timeout_at(give_up, TcpStream::connect((bare, *port))).await {
            Ok(Ok(_)) => return Ok(()),
            Ok(Err(error)) => error.to_string(),
            Err(_) => "it does not answer".to_owned(),
        };
        if Instant::now() + TRY_AGAIN >= give_up {
            let after = format!("after {seconds} s");
            return Err(general(format!("cannot reach the scheduler {host}:{port} {after}: {error}")));
        }
        sleep(TRY_AGAIN).await;
    }
}

fn general(error: impl fmt::Display) -> BallistaError {
    BallistaError::General(error.to_string())
}

/// Formats an IP address for use before `:PORT`.
fn host_of(ip: IpAddr) -> String {
    match ip {
        IpAddr::V4(ip) => ip.to_string(),
        IpAddr::V6(ip) => format!("[{ip}]"),
    }
}

/// Reports the memory held by the engine and each tenant at an interval, until the reader is gone.
async fn tell(executor: String, engine: Arc<Engine>, runtimes: Arc<TenantRuntimes>, every: Duration) {
    let line = |group: &Group| {
        let held = Held {
            usage_bytes: group.usage_bytes(),
            peak_bytes: group.peak_bytes(),
            limit_bytes: group.max_bytes(),
            nr_children: group.nr_children(),
        };
        Line::Held { executor: executor.clone(), path: group.path().display().to_string(), held }.to_string()
    };
    loop {
        let groups = runtimes.tenants().values().map(|tenant| tenant.group());
        let lines: Vec<String> = [engine.root()].into_iter().chain(groups).map(|group| line(group)).collect();
        if io::stdout().write_all(format!("{}\n", lines.join("\n")).as_bytes()).is_err() {
            return;
        }
        sleep(every).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings() -> ExecutorSettings {
        let mut settings = ExecutorSettings::new("e-1", ("127.0.0.1", 1), 64 << 20, "/");
        settings.tenants = vec![TenantLimit::new("a", 16 << 20)];
        settings
    }

    #[track_caller]
    fn assert_refused(settings: &ExecutorSettings, why: &str) {
        let refused = settings.check().expect_err(why).to_string();
        assert!(refused.contains(why), "{refused}");
    }

    #[test]
    fn settings_that_cannot_work_are_refused() {
        settings().check().expect("these can");
        assert_refused(&ExecutorSettings { id: "e 1".into(), ..settings() }, "no name");
        assert_refused(&ExecutorSettings { tenants: Vec::new(), ..settings() }, "needs a tenant");
        assert_refused(&ExecutorSettings { work_dir: "/none".into(), ..settings() }, "no directory");
        let bind = ([0, 0, 0, 0], 0).into();
        assert_refused(&ExecutorSettings { bind, ..settings() }, "external host");
    }

    #[test]
    fn addresses_of_both_families_take_a_port() {
        for ip in [IpAddr::from([127, 0, 0, 1]), IpAddr::from([0, 0, 0, 0, 0, 0, 0, 1])] {
            let address: SocketAddr = format!("{}:1", host_of(ip)).parse().expect("an address");
            assert_eq!(address.ip(), ip);
        }
    }
}
