//! Detachment of a daemon started by mount(8): it runs on its own once it serves.
//!
//! 1. It leaves the session of mount(8), so closing the terminal does not end it. If its helper is
//!    killed during the start, the daemon ends, too: nothing is left half mounted.
//! 2. Until its "serving" line, its errors go to the helper, and the helper shows them.
//! 3. Then its errors go to the journal, or to /dev/null on a machine without one.

use std::fs::File;
use std::io::{self, Write};
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;

use rustix::process::{Signal, set_parent_process_death_signal, setsid};

/// The socket of the systemd journal for the output of processes.
const JOURNAL: &str = "/run/systemd/journal/stdout";
/// The header of a stream to the journal: the name, no unit, the default priority of a line (6,
/// info), priority prefixes on (1), and three forwarding flags off.
const JOURNAL_HEADER: &str = "umemcg\n\n6\n1\n0\n0\n0\n";

/// Returns whether this machine has a journal.
pub fn has_journal() -> bool {
    Path::new(JOURNAL).exists()
}

/// Makes this process the leader of a session of its own. Until [`leave_stderr`] is called, the
/// process ends with its parent. Must be called by the main thread.
pub fn leave_session() {
    let left = setsid().and_then(|_| set_parent_process_death_signal(Some(Signal::TERM)));
    if let Err(error) = left {
        tracing::warn!(%error, "cannot leave the session");
    }
}

/// Directs stderr to the journal, and lets the process outlive its parent. Must be called by the
/// thread that called [`leave_session`].
pub fn leave_stderr() {
    let elsewhere = journal().or_else(|_| File::options().write(true).open("/dev/null").map(OwnedFd::from));
    let left = elsewhere
        .and_then(|elsewhere| Ok(rustix::stdio::dup2_stderr(&elsewhere)?))
        .and_then(|()| Ok(set_parent_process_death_signal(None)?));
    if let Err(error) = left {
        tracing::warn!(%error, "cannot go on without the program that started this one");
    }
}

fn journal() -> io::Result<OwnedFd> {
    let mut stream = UnixStream::connect(JOURNAL)?;
    stream.write_all(JOURNAL_HEADER.as_bytes())?;
    stream.shutdown(Shutdown::Read)?;
    Ok(stream.into())
}
