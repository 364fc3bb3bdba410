//! How a process of the cluster is asked to exit.

use std::io::{self, Read};
use std::thread;

use tokio::signal::unix::{SignalKind, signal};

/// Waits for Ctrl-C or SIGTERM. From the first call on, neither ends the process by itself.
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

/// Exits this process when its standard input ends: a pipe to the parent ends with the parent, even
/// if the parent is killed.
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
