//! The options of every benchmark, and the reasons for a missing report.

use std::path::PathBuf;
use std::time::Duration;

/// The options of every benchmark.
#[derive(Debug, Clone, clap::Args)]
pub struct Options {
    /// Print the report as JSON
    #[arg(long, global = true)]
    pub json: bool,
    /// The amount of work, as a part of the full size: 0.1 is a tenth
    #[arg(long, global = true, default_value_t = 1.0, value_parser = scale)]
    pub scale: f64,
    /// Samples of each side; fewer than five say little of costs, but show that the answers are
    /// right
    #[arg(long, global = true, default_value_t = 9, value_parser = clap::value_parser!(u32).range(1..))]
    pub rounds: u32,
    /// Fail when a target is missed, not only when a result is wrong
    #[arg(long, global = true)]
    pub enforce: bool,
    /// Directory for files to read and write (the system's directory for temporary files if not
    /// given)
    #[arg(long, global = true, value_name = "DIR")]
    pub dir: Option<PathBuf>,
}

/// The cache that keeps the file pages of a mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg(feature = "experiments")]
pub enum PageCache {
    /// The kernel's.
    Kernel,
    /// The daemon's.
    Own,
}

fn scale(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(scale) if scale > 0.0 && scale.is_finite() => Ok(scale),
        _ => Err("a number above 0, such as 0.1".into()),
    }
}

impl Options {
    /// Returns the number of samples of an experiment: `full` at full size, as its bound needs, and
    /// a part of them where there is less work.
    #[cfg(feature = "experiments")]
    pub fn rounds_for_bound(&self, full: usize) -> usize {
        let scaled = (full as f64 * self.scale.min(1.0)).ceil() as usize;
        scaled.max(self.rounds as usize)
    }

    /// Returns `full`, a time at full size, or a part of it where there is less work.
    pub fn scaled_time(&self, full: Duration) -> Duration {
        full.mul_f64(self.scale.min(1.0))
    }

    /// Returns the directory for files.
    pub fn directory(&self) -> PathBuf {
        self.dir.clone().unwrap_or_else(std::env::temp_dir)
    }
}

/// Why a benchmark has no report.
#[derive(Debug)]
pub enum Failure {
    /// It could not be set up.
    Setup(String),
    /// Something gave a wrong result.
    Wrong(String),
}

impl Failure {
    /// Returns the failure of a step of the set-up.
    pub fn at<E: std::fmt::Display>(what: &str) -> impl FnOnce(E) -> Self {
        let what = what.to_owned();
        move |error| Self::Setup(format!("{what}: {error}"))
    }
}
