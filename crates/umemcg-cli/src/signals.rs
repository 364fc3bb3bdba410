//! The signals of a program in the foreground, turned into events. A mount reads its configuration
//! again on SIGHUP; other commands end, as on SIGINT and SIGTERM.

use std::io;
use std::sync::Arc;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

/// Calls `forward` for each SIGINT, SIGTERM and SIGHUP from now on, until it returns `false`. If
/// SIGHUP was ignored at the start of the program (nohup), it stays ignored.
///
/// # Errors
/// When the handlers cannot be installed or no thread can be started.
pub fn forward_signals(forward: impl Fn() -> bool + Send + 'static) -> io::Result<()> {
    forward_told(move |_| forward())
}

/// Like [`forward_signals`], with the meaning of the signal for a daemon.
///
/// # Errors
/// When the handlers cannot be installed or no thread can be started.
pub fn forward_told(forward: impl Fn(Told) -> bool + Send + 'static) -> io::Result<()> {
    let mut wanted = vec![SIGINT, SIGTERM];
    if !is_ignored(SIGHUP, &std::fs::read_to_string("/proc/self/status").unwrap_or_default()) {
        wanted.push(SIGHUP);
    }
    let mut signals = Signals::new(wanted)?;
    std::thread::Builder::new().name("umemcg-signals".into()).spawn(move || {
        for signal in signals.forever() {
            let told = if signal == SIGHUP { Told::Reload } else { Told::End(signal) };
            tracing::info!(signal, ?told, "received a signal");
            if !forward(told) {
                return;
            }
        }
    })?;
    Ok(())
}

/// Has SIGINT, SIGTERM and SIGHUP end this process no more.
///
/// # Errors
/// When a handler cannot be installed.
pub(crate) fn outlast() -> io::Result<()> {
    let ignored = |signal| signal_hook::flag::register(signal, Arc::default()).map(drop);
    [SIGINT, SIGTERM, SIGHUP].into_iter().try_for_each(ignored)
}

/// The meaning of a signal for a daemon.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Told {
    /// To end, by this signal.
    End(i32),
    /// To read the configuration again.
    Reload,
}

/// Returns whether `status`, the text of `/proc/self/status`, lists this signal as ignored.
pub(crate) fn is_ignored(signal: i32, status: &str) -> bool {
    status
        .lines()
        .find_map(|line| line.strip_prefix("SigIgn:"))
        .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .is_some_and(|mask| mask >> (signal - 1) & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ignored_hang_up_is_seen_in_the_mask() {
        assert!(is_ignored(SIGHUP, "Name:\tx\nSigIgn:\t0000000000001001\n"));
        assert!(!is_ignored(SIGHUP, "SigIgn:\t0000000000001000\n"));
        assert!(!is_ignored(SIGHUP, ""));
    }
}
