//! The machine of a measurement: without it a time means nothing.

use std::fmt;
use std::fs;

use serde::{Deserialize, Serialize};

/// The facts about the machine needed to read a figure.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Machine {
    /// Processors available to this process.
    pub nr_cores: usize,
    /// The processor's name.
    pub processor: String,
    /// Memory of the machine in bytes.
    pub memory_bytes: u64,
    /// Release of the kernel.
    pub kernel: String,
    /// Load average of the last minute when the run started: other work makes figures worse.
    pub load: f64,
    /// A thread of the kernel's DAMON runs. It may page out memory idle for a while, and no counter
    /// of `/proc/vmstat` shows it.
    #[serde(default)]
    pub has_damon: bool,
}

impl Machine {
    /// Asks the operating system.
    pub fn look() -> Self {
        Self {
            nr_cores: std::thread::available_parallelism().map_or(1, usize::from),
            processor: field("/proc/cpuinfo", "model name")
                .unwrap_or_else(|| std::env::consts::ARCH.to_owned()),
            memory_bytes: field("/proc/meminfo", "MemTotal")
                .and_then(|value| value.split_whitespace().next()?.parse::<u64>().ok())
                .unwrap_or(0)
                << 10,
            kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
            load: fs::read_to_string("/proc/loadavg")
                .ok()
                .and_then(|text| text.split_whitespace().next()?.parse().ok())
                .unwrap_or(0.0),
            has_damon: fs::read_dir("/proc").into_iter().flatten().flatten().any(|process| {
                let comm = fs::read_to_string(process.path().join("comm"));
                comm.is_ok_and(|comm| comm.starts_with("kdamond"))
            }),
        }
    }
}

/// Returns the resident bytes of this process, as the kernel counts them.
pub fn resident_bytes() -> u64 {
    resident_bytes_of(std::process::id())
}

/// Returns the resident bytes of a process.
pub fn resident_bytes_of(process: u32) -> u64 {
    let kib = field(&format!("/proc/{process}/status"), "VmRSS")
        .and_then(|value| value.split_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or(0) << 10
}

/// Returns the value of `name : value` in a file of such lines.
fn field(path: &str, name: &str) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    let line = text.lines().find(|line| line.starts_with(name))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} × {}, {:.1} GiB, Linux {}, load {:.1}{}",
            self.nr_cores,
            self.processor,
            self.memory_bytes as f64 / f64::from(1 << 30),
            self.kernel,
            self.load,
            if self.has_damon { ", with DAMON" } else { "" }
        )
    }
}
