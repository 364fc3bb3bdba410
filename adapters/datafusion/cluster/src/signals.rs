//! How a process of the cluster is told to end.

use std::io::{self, Read};
use std::thread;

use tokio::signal::unix::{SignalKind, signal};

/// Waits until the process is told to end: Ctrl-C or SIGTERM. From the first call on, neither ends
/// the process by itself.
pub async fn asked_to_end() {
    let mut terminated = match signal(SignalKind::terminate()) {
        Ok(terminated) => terminated,
        // Without a handler the signal ends the process by itself.
        Err(_) => return std::future::pending().await,
    };
    tokio::select! {
        _ = tokio::signal::ctrl_c() => {}
        _ = terminated.recv() => {}
    }
}

/// Ends this process when its standard input ends: a pipe to the parent does with the parent, also
/// when that is killed.
///
/// # Errors
/// When no thread can be started.
pub fn end_with_parent() -> io::Result<()> {
    let wait = || {
        let mut input = io::stdin().lock();
        let mut unread = [0; 64];
        while matches!(input.read(&mut unread), Ok(1..)) {}
        std::process::exit(1);
    };
    thread::Builder::new().name("parent".to_owned()).spawn(wait).map(drop)
}
