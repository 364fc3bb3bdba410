//! `umemcg csi`: the CSI plugin of a node. The plugin is in the crate `umemcg-csi`; this module
//! connects it to the daemon's admin socket and to signals.

#[cfg(feature = "csi")]
mod daemon_socket;

use crate::csi_arguments::CsiArguments;
use crate::exit::Failure;

/// Runs `umemcg csi`. Blocks until a signal ends it.
///
/// # Errors
/// [`Failure`].
#[cfg(feature = "csi")]
pub fn csi(arguments: &CsiArguments) -> Result<(), Failure> {
    use std::io::Write;
    use std::sync::Arc;

    use signal_hook::consts::{SIGINT, SIGTERM};
    use signal_hook::iterator::Signals;
    use umemcg_csi::{PluginConfig, PluginError, serve, socket_of};

    let failure = |error: PluginError| match error {
        PluginError::Endpoint(_) => Failure::Usage(error.to_string()),
        error => Failure::Failed(error.to_string()),
    };
    let config = PluginConfig {
        socket: socket_of(&arguments.endpoint).map_err(failure)?,
        node_id: arguments.node_id.clone(),
        mount: arguments.mount.clone(),
        control: arguments.control.clone(),
        state: arguments.state.clone(),
        inline_stores: arguments.inline_stores.clone(),
        inline_memory_bytes: arguments.inline_memory,
        controller: arguments.controller,
    };
    if config.node_id.is_empty() {
        return Err(Failure::Usage("--node-id is empty; write the name of the node".into()));
    }
    let mut signals = Signals::new([SIGINT, SIGTERM])
        .map_err(|error| Failure::Failed(format!("cannot receive signals: {error}")))?;
    let daemon = Arc::new(daemon_socket::DaemonSocket {
        socket: arguments.socket.clone(),
        mount: arguments.mount.clone(),
    });
    // The parent process may have closed the pipe.
    let ready = || {
        let line = format!("the CSI plugin {} serves on {}", umemcg_csi::DRIVER, config.socket.display());
        let _ = writeln!(std::io::stdout(), "{line}");
    };
    serve(&config, daemon, ready, move || {
        let _ = signals.forever().next();
    })
    .map_err(failure)
}

/// Fails: this program was built without the plugin.
///
/// # Errors
/// [`Failure::Failed`], always.
#[cfg(not(feature = "csi"))]
pub fn csi(_: &CsiArguments) -> Result<(), Failure> {
    Err(Failure::Failed(
        "this program was built without the CSI plugin; build umemcg-cli with --features csi,object".into(),
    ))
}
