//! The options of `neighbour`: rows, sides, length.

use std::time::Duration;

/// Its further options.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct Choice {
    /// Only rows with this work of B; may be given several times
    #[arg(long, value_enum)]
    only: Vec<Row>,
    /// Only the sides that targets compare: two groups with marks, and B without a cache
    #[arg(long)]
    pub compared: bool,
    /// Seconds of a sample, whatever the scale
    #[arg(long, value_name = "SECONDS")]
    sample: Option<f64>,
    /// Calls of A in a second, instead of half its rate alone
    #[arg(long, value_name = "CALLS")]
    pub rate: Option<f64>,
}

/// The work of B in a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Row {
    /// Reads a large file.
    Streams,
    /// Writes a large file.
    Writes,
    /// Looks names up.
    Walks,
    /// Writes to a slow store, over its dirty limits.
    Dirty,
}

impl Choice {
    /// Returns whether rows of this kind are wanted.
    pub fn has(&self, row: Row) -> bool {
        self.only.is_empty() || self.only.contains(&row)
    }

    /// Returns the length of a sample of this many seconds at scale 1.
    pub fn time(&self, seconds: f64, scale: f64) -> Duration {
        Duration::from_secs_f64(self.sample.unwrap_or(seconds * scale).clamp(0.3, 60.0))
    }
}
