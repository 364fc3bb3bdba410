//! [`LocalCluster`]: a scheduler and executors as killable local processes.
//!
//! Each process has two pipes to this one. Its reports come through its standard output. Its
//! standard input ends with this process, and then the process exits; dropping the cluster kills
//! it.

use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use ballista::prelude::{SessionConfigExt, SessionContextExt};
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::SessionStateBuilder;
use datafusion::prelude::{ParquetReadOptions, SessionConfig, SessionContext};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep, timeout};

use crate::report::{Held, Line};
use crate::tenant_options::TenantOptions;
use crate::tenant_runtimes::TenantLimit;

/// Longest wait for the cluster to be ready.
const START_MAX: Duration = Duration::from_secs(60);
/// Longest wait for one response of the scheduler.
const ANSWER_MAX: Duration = Duration::from_secs(5);
const LOOK_AGAIN: Duration = Duration::from_millis(20);
/// Interval of the executors' reports.
const TELL_EVERY_MS: u64 = 20;
/// Partitions of a query.
const PARTITIONS: usize = 4;

/// The settings of a local cluster.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ClusterSettings {
    /// The program of this crate.
    pub program: PathBuf,
    /// The number of executors: `executor-0` and so on.
    pub nr_executors: usize,
    /// Bytes for all tenants together on an executor. Rounded down to a MiB.
    pub budget_bytes: u64,
    /// The tenants, with their limits on each executor, in whole MiB.
    pub tenants: Vec<TenantLimit>,
}

impl ClusterSettings {
    /// Returns the settings of three executors with a budget, in bytes, and no tenants yet.
    pub fn new(program: &Path, budget_bytes: u64) -> Self {
        Self { program: program.to_owned(), nr_executors: 3, budget_bytes, tenants: Vec::new() }
    }
}

/// The reports of the processes.
#[derive(Debug, Default)]
struct Told {
    scheduler: Option<SocketAddr>,
    /// By executor and path of the group.
    held: BTreeMap<(String, String), Held>,
}

/// A process of the cluster; killed when dropped.
#[derive(Debug)]
struct Process {
    name: String,
    child: Child,
    /// Reads its output until the process ends.
    reader: Option<JoinHandle<()>>,
}

impl Process {
    fn start(name: &str, command: &mut Command, told: &Arc<Mutex<Told>>) -> io::Result<Self> {
        let mut child = command
            .arg("--end-with-parent")
            // The errors of queries come to their clients.
            .args(["--log", "off"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| io::Error::other(format!("{name} cannot be started: {error}")))?;
        let output = child.stdout.take();
        let mut process = Self { name: name.to_owned(), child, reader: None };
        if let Some(output) = output {
            let told = Arc::clone(told);
            let read = move || {
                let lines = BufReader::new(output).lines().map_while(io::Result::ok);
                lines.for_each(|line| note(&told, &line));
            };
            process.reader = Some(thread::Builder::new().name(name.to_owned()).spawn(read)?);
        }
        Ok(process)
    }

    fn check_alive(&mut self) -> io::Result<()> {
        match self.child.try_wait()? {
            None => Ok(()),
            Some(status) => Err(io::Error::other(format!("{} has ended: {status}", self.name))),
        }
    }

    fn kill(&mut self) -> io::Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        match self.reader.take().map(JoinHandle::join) {
            Some(Err(_)) => Err(io::Error::other(format!("the reader of {} has panicked", self.name))),
            _ => Ok(()),
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // A process already dead has been waited for.
        let _ = self.kill();
    }
}

/// A scheduler and executors; killed when dropped.
#[derive(Debug)]
pub struct LocalCluster {
    executors: Vec<Process>,
    scheduler: Process,
    scheduler_address: SocketAddr,
    told: Arc<Mutex<Told>>,
    /// Work directories of the executors; removed after the processes have ended.
    _dirs: TempDir,
}

impl LocalCluster {
    /// Starts a scheduler and executors. Waits until all executors have reached the scheduler, a
    /// minute at most.
    ///
    /// # Errors
    /// When a process cannot be started, ends, or does not respond; its error messages are on the
    /// standard error stream.
    pub async fn start(settings: &ClusterSettings) -> io::Result<Self> {
        let give_up = Instant::now() + START_MAX;
        let dirs = tempfile::tempdir()?;
        let told = Arc::<Mutex<Told>>::default();
        let mut command = Command::new(&settings.program);
        command.args(["scheduler", "--bind", "127.0.0.1:0", "--executors"]);
        command.arg(settings.nr_executors.to_string());
        let mut scheduler = Process::start("the scheduler", &mut command, &told)?;
        let scheduler_address = loop {
            if let Some(address) = lock(&told).scheduler {
                break address;
            }
            wait_a_little(&mut [&mut scheduler], give_up).await?;
        };
        let mut cluster = Self { executors: Vec::new(), scheduler, scheduler_address, told, _dirs: dirs };
        for at in 0..settings.nr_executors {
            cluster.start_executor(&format!("executor-{at}"), settings)?;
        }
        while !is_ready(scheduler_address).await {
            let processes = cluster.executors.iter_mut().chain([&mut cluster.scheduler]);
            wait_a_little(&mut processes.collect::<Vec<_>>(), give_up).await?;
        }
        Ok(cluster)
    }

    fn start_executor(&mut self, id: &str, settings: &ClusterSettings) -> io::Result<()> {
        let work_dir = self._dirs.path().join(id);
        std::fs::create_dir(&work_dir)?;
        let mut command = Command::new(&settings.program);
        command.args(["executor", "--id", id, "--bind", "127.0.0.1:0", "--scheduler"]);
        command.arg(self.scheduler_address.to_string()).arg("--work-dir").arg(work_dir);
        command.arg("--budget-mib").arg((settings.budget_bytes >> 20).to_string());
        command.arg("--tell-every-ms").arg(TELL_EVERY_MS.to_string());
        for TenantLimit { name, limit_bytes } in &settings.tenants {
            command.arg("--tenant").arg(format!("{name}={}", limit_bytes >> 20));
        }
        self.executors.push(Process::start(id, &mut command, &self.told)?);
        Ok(())
    }

    /// Returns the memory held by each group on each executor, by executor and path of the group:
    /// `/` is the executor's whole engine. For a dead executor, returns its last report.
    pub fn held(&self) -> BTreeMap<(String, String), Held> {
        lock(&self.told).held.clone()
    }

    /// Kills an executor with SIGKILL, and waits for its end.
    ///
    /// # Errors
    /// When it is already dead.
    ///
    /// # Panics
    /// When the cluster has no executor of that number.
    pub fn kill_executor(&mut self, at: usize) -> io::Result<()> {
        self.executors[at].kill()
    }

    /// Returns a session of a client with the tables in `tables`: a directory of Parquet files for
    /// each. Without options the session belongs to no tenant.
    ///
    /// # Errors
    /// Ballista's and DataFusion's.
    pub async fn session(&self, options: Option<TenantOptions>, tables: &Path) -> Result<SessionContext> {
        let mut config = SessionConfig::new_with_ballista().with_target_partitions(PARTITIONS);
        if let Some(options) = options {
            config = config.with_option_extension(options);
        }
        let state = SessionStateBuilder::new().with_config(config).with_default_features().build();
        let url = format!("df://{}", self.scheduler_address);
        let context = SessionContext::remote_with_state(&url, state).await?;
        for table in std::fs::read_dir(tables).map_err(DataFusionError::IoError)? {
            let table = table.map_err(DataFusionError::IoError)?;
            let name = table.file_name().to_string_lossy().into_owned();
            let path = format!("{}/", table.path().display());
            context.register_parquet(name.as_str(), &path, ParquetReadOptions::default()).await?;
        }
        Ok(context)
    }
}

fn lock(told: &Mutex<Told>) -> std::sync::MutexGuard<'_, Told> {
    told.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Records a line of a process. Ignores other lines.
fn note(told: &Mutex<Told>, line: &str) {
    match line.parse() {
        Ok(Line::Scheduler(address)) => lock(told).scheduler = Some(address),
        Ok(Line::Held { executor, path, held }) => {
            lock(told).held.insert((executor, path), held);
        }
        Err(_) => {}
    }
}

async fn wait_a_little(processes: &mut [&mut Process], give_up: Instant) -> io::Result<()> {
    processes.iter_mut().try_for_each(|process| process.check_alive())?;
    if Instant::now() >= give_up {
        return Err(io::Error::other(format!("the cluster is not ready after {START_MAX:?}")));
    }
    sleep(LOOK_AGAIN).await;
    Ok(())
}

/// Returns whether the scheduler reports enough executors.
async fn is_ready(scheduler: SocketAddr) -> bool {
    let ask = async {
        let mut stream = TcpStream::connect(scheduler).await?;
        stream.write_all(b"GET /readyz HTTP/1.1\r\nHost: scheduler\r\nConnection: close\r\n\r\n").await?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await?;
        Ok::<_, io::Error>(answer.starts_with(b"HTTP/1.1 200"))
    };
    matches!(timeout(ANSWER_MAX, ask).await, Ok(Ok(true)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_line_of_each_group_is_kept() {
        let told = Mutex::default();
        for line in ["held e-1 10 20 30 1 /a", "held e-1 11 21 30 2 /a", "held e-1 x", "held e-1 1 2 3 0 /b"]
        {
            note(&told, line);
        }
        let held = told.into_inner().expect("no panic").held;
        let of_a = Held { usage_bytes: 11, peak_bytes: 21, limit_bytes: 30, nr_children: 2 };
        assert_eq!(held[&("e-1".to_owned(), "/a".to_owned())], of_a);
        assert_eq!(held.len(), 2);
    }
}
