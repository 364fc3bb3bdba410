//! `umemcg-ballista`: runs a node of a cluster, or a whole cluster on this machine.

mod demo;
mod log_lines;

use std::error::Error;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use log::LevelFilter;
use umemcg_ballista::{
    ExecutorSettings, SchedulerSettings, TenantLimit, end_with_parent, run_executor, run_scheduler,
};

/// A Ballista cluster whose executors give each tenant a memory budget.
#[derive(Debug, Parser)]
#[command(name = "umemcg-ballista", version)]
struct Program {
    /// The level of Ballista's log: off, error, warn, info, debug or trace. By default errors; for
    /// `run`, which shows the errors of queries itself, off.
    #[arg(long, value_name = "LEVEL", value_parser = level, global = true)]
    log: Option<LevelFilter>,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Runs a scheduler.
    Scheduler(SchedulerArguments),
    /// Runs an executor.
    Executor(ExecutorArguments),
    /// Runs a cluster on this machine with queries of two tenants, and shows the memory of each
    /// tenant.
    Run,
}

#[derive(Debug, Args)]
struct SchedulerArguments {
    /// The address to listen at: an address of this host and a port, 0 for a free port.
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:50050")]
    bind: SocketAddr,
    /// The number of executors needed for `/readyz` to answer that the cluster is ready.
    #[arg(long, value_name = "N", default_value_t = 1)]
    executors: usize,
    /// Ends when its standard input does.
    #[arg(long)]
    end_with_parent: bool,
}

#[derive(Debug, Args)]
struct ExecutorArguments {
    /// Its name in the cluster.
    #[arg(long, value_name = "NAME")]
    id: String,
    /// Where the scheduler listens.
    #[arg(long, value_name = "HOST:PORT", value_parser = host_and_port)]
    scheduler: (String, u16),
    /// The address for serving shuffled data: an address of this host and a port, 0 for a free
    /// port.
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:50051")]
    bind: SocketAddr,
    /// The host name for clients and other executors, if it differs from the address.
    #[arg(long, value_name = "HOST")]
    external_host: Option<String>,
    /// A directory for spilled and shuffled data. Created if missing.
    #[arg(long, value_name = "DIRECTORY")]
    work_dir: PathBuf,
    /// Memory for all tenants together, in MiB.
    #[arg(long, value_name = "MIB", value_parser = mib)]
    budget_mib: u64,
    /// A tenant and its limit on this executor, in MiB. Once for each tenant.
    #[arg(long = "tenant", value_name = "NAME=MIB", value_parser = tenant_limit, required = true)]
    tenants: Vec<TenantLimit>,
    /// Tasks that it runs at the same time.
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = at_least_one)]
    vcores: usize,
    /// The interval of reports of each tenant's memory on standard output.
    #[arg(long, value_name = "MILLISECONDS", value_parser = clap::value_parser!(u64).range(1..))]
    tell_every_ms: Option<u64>,
    /// The time limit for reaching the scheduler at startup.
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = clap::value_parser!(u16).range(1..))]
    connect_seconds: u16,
    /// Ends when its standard input does.
    #[arg(long)]
    end_with_parent: bool,
}

fn level(argument: &str) -> Result<LevelFilter, String> {
    argument.parse().map_err(|_| format!("`{argument}` is no level"))
}

fn host_and_port(argument: &str) -> Result<(String, u16), String> {
    let (host, port) = argument.rsplit_once(':').ok_or("it has no port")?;
    if host.is_empty() {
        return Err("it has no host".to_owned());
    }
    Ok((host.to_owned(), port.parse().map_err(|_| format!("`{port}` is no port"))?))
}

/// Parses a number of MiB, and returns bytes.
fn mib(argument: &str) -> Result<u64, String> {
    match argument.parse::<u64>().ok().and_then(|mib| mib.checked_mul(1 << 20)) {
        Some(bytes @ 1..) => Ok(bytes),
        _ => Err(format!("`{argument}` is no number of MiB from 1 on")),
    }
}

fn tenant_limit(argument: &str) -> Result<TenantLimit, String> {
    let (name, limit) = argument.rsplit_once('=').ok_or("it has no limit: NAME=MIB")?;
    Ok(TenantLimit::new(name, mib(limit)?))
}

fn at_least_one(argument: &str) -> Result<usize, String> {
    argument.parse().ok().filter(|&n| n > 0).ok_or_else(|| format!("`{argument}` is no number from 1 on"))
}

#[tokio::main]
async fn main() -> ExitCode {
    let program = Program::parse();
    let unset = if matches!(program.command, Command::Run) { LevelFilter::Off } else { LevelFilter::Error };
    log_lines::log_to_stderr(program.log.unwrap_or(unset));
    let result = match program.command {
        Command::Scheduler(arguments) => scheduler(arguments).await,
        Command::Executor(arguments) => executor(arguments).await,
        Command::Run => demo::run().await,
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("umemcg-ballista: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn scheduler(arguments: SchedulerArguments) -> Result<(), Box<dyn Error>> {
    if arguments.end_with_parent {
        end_with_parent()?;
    }
    Ok(run_scheduler(SchedulerSettings::new(arguments.bind, arguments.executors)).await?)
}

async fn executor(arguments: ExecutorArguments) -> Result<(), Box<dyn Error>> {
    if arguments.end_with_parent {
        end_with_parent()?;
    }
    let work_dir = arguments.work_dir.to_str().ok_or("the name of the work directory is not UTF-8")?;
    std::fs::create_dir_all(work_dir).map_err(|error| format!("{work_dir} cannot be created: {error}"))?;
    let (host, port) = &arguments.scheduler;
    let mut settings = ExecutorSettings::new(&arguments.id, (host, *port), arguments.budget_mib, work_dir);
    settings.bind = arguments.bind;
    settings.external_host = arguments.external_host;
    settings.tenants = arguments.tenants;
    settings.vcores = arguments.vcores;
    settings.tell_every = arguments.tell_every_ms.map(Duration::from_millis);
    settings.connect_seconds = arguments.connect_seconds;
    Ok(run_executor(settings).await?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tenants_and_places_are_read_as_they_are_written() {
        assert_eq!(tenant_limit("acme=2"), Ok(TenantLimit::new("acme", 2 << 20)));
        assert_eq!(tenant_limit("a=b=1"), Ok(TenantLimit::new("a=b", 1 << 20)));
        assert_eq!(host_and_port("node-1:50050"), Ok(("node-1".to_owned(), 50050)));
        assert_eq!(host_and_port("[::1]:1"), Ok(("[::1]".to_owned(), 1)));
    }

    #[test]
    fn what_is_no_tenant_and_no_place_is_refused() {
        for wrong in ["acme", "acme=", "acme=0", "acme=-1", "acme=x", "acme=99999999999999999999"] {
            assert!(tenant_limit(wrong).is_err(), "{wrong}");
        }
        for wrong in ["node-1", ":1", "node-1:", "node-1:99999"] {
            assert!(host_and_port(wrong).is_err(), "{wrong}");
        }
        assert!(at_least_one("0").is_err() && at_least_one("x").is_err());
    }
}
