//! Logs to stderr through `tracing`: what `-v` shows.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;

/// Environment variable with a filter that overrides `-v`, for example `umemcg_fuse=trace,info`.
const FILTER_VARIABLE: &str = "UMEMCG_LOG";

/// Starts logging. Without `-v` only warnings and errors appear.
pub fn start(verbose: u8) {
    let level = match verbose {
        0 => "warn",
        1 => "info",
        2 => "debug",
        _ => "trace",
    };
    let filter = EnvFilter::try_from_env(FILTER_VARIABLE).unwrap_or_else(|_| EnvFilter::new(level));
    // Fails only if a subscriber is installed already; then that one logs.
    let _ = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(std::io::stderr)
        .try_init();
}
