//! The plugin as a process: a gRPC server on a Unix socket, until a signal ends it.

use std::fs;
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::Server;

use crate::controller::Controller;
use crate::controller_service::ControllerService;
use crate::daemon::Daemon;
use crate::identity_service::IdentityService;
use crate::inline_policy::InlinePolicy;
use crate::node::Node;
use crate::node_service::NodeService;
use crate::records::Records;
use crate::requests::{NR_THREADS_MAX, Requests};
use crate::v1::controller_server::ControllerServer;
use crate::v1::identity_server::IdentityServer;
use crate::v1::node_server::NodeServer;

/// Most requests of one client that are in progress or wait for a place. It bounds the memory that
/// a client holds.
const NR_REQUESTS_MAX: usize = 256;

/// The time that requests in progress have to end.
const REQUESTS_END_WITHIN: Duration = Duration::from_secs(20);

/// How the plugin is run.
#[derive(Debug, Clone)]
pub struct PluginConfig {
    /// The socket on which it listens.
    pub socket: PathBuf,
    /// The name of the node.
    pub node_id: String,
    /// The daemon's mount of volumes.
    pub mount: PathBuf,
    /// The mount of its control files.
    pub control: PathBuf,
    /// The directory of the plugin's records.
    pub state: PathBuf,
    /// Prefixes of stores that ephemeral inline volumes may show.
    pub inline_stores: Vec<String>,
    /// Whether the controller is served, too.
    pub controller: bool,
}

/// Why the plugin does not serve.
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

/// Serves until `is_over` returns. Blocks. Calls `ready` when the socket accepts connections.
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
    let policy = InlinePolicy::new(config.inline_stores.clone());
    let node = Node::new(daemon, &config.mount, &config.control, Arc::clone(&records), policy);
    let node = Arc::new(node);
    // Before the first request, which would find volumes in use.
    node.recover();
    let of_server = |error: &dyn std::error::Error| PluginError::Server(chain(error));
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        // One more waits for the signal.
        .max_blocking_threads(NR_THREADS_MAX + 1)
        .enable_all()
        .build()
        .map_err(|error| of_server(&error))?;
    let controller = Arc::new(Controller::new(Arc::clone(&records)));
    let requests = Arc::<Requests>::default();
    let served = runtime.block_on(async {
        let listen = |error| PluginError::Listen { path: config.socket.clone(), error };
        let listener = listen_at(&config.socket).map_err(listen)?;
        let over = tokio::task::spawn_blocking(is_over);
        let identity = IdentityService {
            node: Arc::clone(&node),
            requests: Arc::clone(&requests),
            has_controller: config.controller,
        };
        let node_service =
            NodeService { node, records, requests: Arc::clone(&requests), node_id: config.node_id.clone() };
        let controller =
            config.controller.then(|| ControllerServer::new(ControllerService { controller, requests }));
        ready();
        Server::builder()
            .concurrency_limit_per_connection(NR_REQUESTS_MAX)
            .add_service(IdentityServer::new(identity))
            .add_service(NodeServer::new(node_service))
            .add_optional_service(controller)
            .serve_with_incoming_shutdown(UnixListenerStream::new(listener), async move {
                let _ = over.await;
            })
            .await
            .map_err(|error| of_server(&error))
    });
    let _ = fs::remove_file(&config.socket);
    // A request in progress goes on to its end: what it does has a record, but is better finished.
    runtime.shutdown_timeout(REQUESTS_END_WITHIN);
    served
}

/// Listens at a path. A socket that a plugin that has ended left there is replaced; the lock on the
/// records says that no other plugin of this node runs.
fn listen_at(path: &Path) -> io::Result<tokio::net::UnixListener> {
    match fs::symlink_metadata(path) {
        Ok(found) if found.file_type().is_socket() => fs::remove_file(path)?,
        Ok(_) => return Err(io::ErrorKind::AlreadyExists.into()),
        Err(_) => {}
    }
    tokio::net::UnixListener::bind(path)
}

/// Returns an error with what caused it.
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
