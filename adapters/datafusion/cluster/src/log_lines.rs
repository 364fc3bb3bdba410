//! Writes Ballista's log as lines to the standard error stream.

use std::io::{self, Write};

use log::{LevelFilter, Log, Metadata, Record};

/// Writes records up to the maximum level.
struct LogLines;

impl Log for LogLines {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.level() <= log::max_level()
    }

    fn log(&self, record: &Record<'_>) {
        if self.enabled(record.metadata()) {
            // A failed write to the log is no reason to exit.
            let _ = writeln!(io::stderr(), "{} {}: {}", record.level(), record.target(), record.args());
        }
    }

    fn flush(&self) {}
}

/// Logs records of `level` and graver from now on.
pub(crate) fn log_to_stderr(level: LevelFilter) {
    // Fails only if a logger exists already; that one then decides.
    if log::set_logger(&LogLines).is_ok() {
        log::set_max_level(level);
    }
}
