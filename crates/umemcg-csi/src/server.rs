//! The plugin as a process: a gRPC server on a Unix socket, until a signal ends it.

use std::fs;
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use thiserror::Error;
use tokio::net::UnixListener;
use tokio::sync::watch;
use tonic::transport::Server;
use tonic::transport::server::Router;

use crate::connections::accepted;
use crate::controller::Controller;
use crate::controller_service::ControllerService;
use crate::daemon::Daemon;
use crate::identity_service::IdentityService;
use crate::inline_policy::InlinePolicy;
use crate::node::Node;
use crate::node_service::NodeService;
use crate::readiness::Readiness;
use crate::records::Records;
use crate::requests::{NR_THREADS_MAX, Requests};
use crate::v1::controller_server::ControllerServer;
use crate::v1::identity_server::IdentityServer;
use crate::v1::node_server::NodeServer;

/// Most requests of one client in progress or waiting for a place. Bounds the memory of a client.
const NR_REQUESTS_MAX: usize = 256;

/// The time for connections and requests in progress to end after the signal. Less than the
/// 30-second grace period of Kubernetes.
const END_WITHIN: Duration = Duration::from_secs(20);

/// The configuration of the plugin.
#[derive(Debug, Clone)]
pub struct PluginConfig {
    /// The socket of the gRPC server.
    pub socket: PathBuf,
    /// The name of the node.
    pub node_id: String,
    /// The daemon's mount of volumes.
    pub mount: PathBuf,
    /// The mount of its control files.
    pub control: PathBuf,
    /// The directory of the plugin's records.
    pub state: PathBuf,
    /// Prefixes of stores allowed in ephemeral inline volumes.
    pub inline_stores: Vec<String>,
    /// The limit of a namespace with ephemeral inline volumes of memory and without a limit of its
    /// own; if absent, half of what the limits of others leave.
    pub inline_memory_bytes: Option<u64>,
    /// Whether the controller is served, too.
    pub controller: bool,
}

/// The reason why the plugin does not serve.
#[derive(Debug, Error)]
pub enum PluginError {
    /// The endpoint is not a Unix socket.
    #[error("the endpoint `{0}` is not a Unix socket: write unix:///PATH")]
    Endpoint(String),
    /// The records cannot be used.
    #[error("cannot use the directory {} for records: {error}", path.display())]
    Records {
        /// The directory.
        path: PathBuf,
        /// The reason.
        error: io::Error,
    },
    /// The socket cannot be listened on.
    #[error("cannot listen on {}: {error}", path.display())]
    Listen {
        /// The socket.
        path: PathBuf,
        /// The reason.
        error: io::Error,
    },
    /// The server ended.
    #[error("the server ended: {0}")]
    Server(String),
}

/// Returns the path of an endpoint: `unix:///PATH`, or a path alone.
///
/// # Errors
/// [`PluginError::Endpoint`].
pub fn socket_of(endpoint: &str) -> Result<PathBuf, PluginError> {
    let path =
        endpoint.strip_prefix("unix://").or_else(|| endpoint.strip_prefix("unix:")).unwrap_or(endpoint);
    match path.starts_with('/') {
        true => Ok(path.into()),
        false => Err(PluginError::Endpoint(endpoint.into())),
    }
}

/// Serves until `is_over` returns, then waits up to 20 seconds for requests in progress to end.
/// Blocks. Calls `ready` when the socket accepts connections.
///
/// # Errors
/// [`PluginError`].
pub fn serve(
    config: &PluginConfig,
    daemon: Arc<dyn Daemon>,
    ready: impl FnOnce(),
    is_over: impl FnOnce() + Send + 'static,
) -> Result<(), PluginError> {
    let of_records = |error| PluginError::Records { path: config.state.clone(), error };
    let records = Arc::new(Records::open(&config.state).map_err(of_records)?);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        // One more thread waits for the signal.
        .max_blocking_threads(NR_THREADS_MAX + 1)
        .enable_all()
        .build()
        .map_err(|error| PluginError::Server(chain(&error)))?;
    let (signal, signalled) = watch::channel(None);
    let served = runtime.block_on(async {
        let listen = |error| PluginError::Listen { path: config.socket.clone(), error };
        let listener = listen_at(&config.socket).map_err(listen)?;
        let router = router(config, daemon, records);
        tokio::spawn(async move {
            let _ = tokio::task::spawn_blocking(is_over).await;
            signal.send_replace(Some(Instant::now()));
        });
        ready();
        let served = serve_connections(router, listener, signalled.clone()).await;
        let _ = fs::remove_file(&config.socket);
        served
    });
    // Let requests in progress finish. Their work has a record, but finishing now is better.
    let since_signal = signalled.borrow().map_or(Duration::ZERO, |at| at.elapsed());
    runtime.shutdown_timeout(END_WITHIN.saturating_sub(since_signal));
    served
}

/// Returns the services, and begins recovery.
fn router(config: &PluginConfig, daemon: Arc<dyn Daemon>, records: Arc<Records>) -> Router {
    let policy = InlinePolicy::new(config.inline_stores.clone(), config.inline_memory_bytes);
    let node = Arc::new(Node::new(daemon, &config.mount, &config.control, Arc::clone(&records), policy));
    let requests = Arc::<Requests>::default();
    let readiness = Readiness::new(Arc::clone(&node), Arc::clone(&records), Arc::clone(&requests));
    let readiness = Arc::new(readiness);
    let recovering = Arc::clone(&readiness);
    tokio::spawn(async move { recovering.recover().await });
    let identity = IdentityService { readiness: Arc::clone(&readiness), has_controller: config.controller };
    let controller = config.controller.then(|| {
        let controller = Arc::new(Controller::new(Arc::clone(&records)));
        ControllerServer::new(ControllerService { controller, requests: Arc::clone(&requests) })
    });
    let node_id = config.node_id.clone();
    Server::builder()
        .concurrency_limit_per_connection(NR_REQUESTS_MAX)
        .add_service(IdentityServer::new(identity))
        .add_service(NodeServer::new(NodeService { node, records, requests, readiness, node_id }))
        .add_optional_service(controller)
}

/// Serves connections until the signal, then only connections with requests in progress, for at
/// most [`END_WITHIN`].
async fn serve_connections(
    router: Router,
    listener: UnixListener,
    signalled: watch::Receiver<Option<Instant>>,
) -> Result<(), PluginError> {
    let (mut end, mut end_late) = (signalled.clone(), signalled);
    let serving = tokio::spawn(router.serve_with_incoming_shutdown(accepted(listener), async move {
        let _ = end.wait_for(Option::is_some).await;
    }));
    let breaking_off = serving.abort_handle();
    tokio::spawn(async move {
        let _ = end_late.wait_for(Option::is_some).await;
        tokio::time::sleep(END_WITHIN).await;
        breaking_off.abort();
    });
    match serving.await {
        Ok(served) => served.map_err(|error| PluginError::Server(chain(&error))),
        Err(error) if error.is_cancelled() => {
            tracing::warn!("connections stay open, and are closed; the records say what was begun");
            Ok(())
        }
        Err(error) => Err(PluginError::Server(chain(&error))),
    }
}

/// Listens at a path. Replaces a socket left by an earlier plugin. The lock on the records ensures
/// that no other plugin of this node runs.
fn listen_at(path: &Path) -> io::Result<UnixListener> {
    match fs::symlink_metadata(path) {
        Ok(found) if found.file_type().is_socket() => fs::remove_file(path)?,
        Ok(_) => return Err(io::ErrorKind::AlreadyExists.into()),
        Err(_) => {}
    }
    UnixListener::bind(path)
}

/// Returns the text of an error with its causes.
fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_is_a_path_in_one_of_three_forms() {
        for endpoint in ["unix:///csi/csi.sock", "unix:/csi/csi.sock", "/csi/csi.sock"] {
            assert_eq!(socket_of(endpoint).unwrap(), Path::new("/csi/csi.sock"));
        }
        for endpoint in ["", "tcp://127.0.0.1:1", "csi.sock", "unix://csi.sock"] {
            assert!(socket_of(endpoint).is_err(), "{endpoint}");
        }
    }
}
