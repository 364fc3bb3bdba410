//! What Ballista logs, as lines on the standard error stream.

use std::io::{self, Write};

use log::{LevelFilter, Log, Metadata, Record};

/// Writes what the level lets through.
struct LogLines;

impl Log for LogLines {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.level() <= log::max_level()
    }

    fn log(&self, record: &Record<'_>) {
        if self.enabled(record.metadata()) {
            // A log that cannot be written is no reason to end.
            let _ = writeln!(io::stderr(), "{} {}: {}", record.level(), record.target(), record.args());
        }
    }

    fn flush(&self) {}
}

/// Lets `level` and what is graver through, from now on.
pub(crate) fn log_to_stderr(level: LevelFilter) {
    // Fails only if there is a logger already, which then decides.
    if log::set_logger(&LogLines).is_ok() {
        log::set_max_level(level);
    }
}
