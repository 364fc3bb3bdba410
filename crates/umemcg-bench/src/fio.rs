//! One run of `fio`, and its measured rate.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde::Deserialize;

use crate::options::Failure;

/// How a job reads and writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Engine {
    /// Through calls, after fio has dropped the file's pages in the kernel's cache.
    CallsUncached,
    /// Through calls, with pages in the kernel's cache.
    Calls,
}

/// A run: each file by a job of its own, all at the same time, every block once in each loop.
#[derive(Debug, Clone)]
pub struct Job<'a> {
    /// `read`, `randread`, `write` or `randwrite`.
    pub pattern: &'a str,
    /// Bytes of one call.
    pub block_bytes: u64,
    /// Bytes of each file.
    pub file_bytes: u64,
    /// The files.
    pub files: Vec<PathBuf>,
    /// The way of reading and writing.
    pub engine: Engine,
    /// Passes over all blocks.
    pub loops: u32,
}

#[derive(Debug, Deserialize)]
struct Output {
    jobs: Vec<JobOutput>,
}

#[derive(Debug, Deserialize)]
struct JobOutput {
    error: i32,
    read: Direction,
    write: Direction,
}

#[derive(Debug, Deserialize)]
struct Direction {
    iops: f64,
    io_bytes: u64,
}

/// Returns whether there is an fio to run.
///
/// # Errors
/// Says how to get it.
pub fn check() -> Result<(), Failure> {
    match Command::new("fio").arg("--version").output() {
        Ok(output) if output.status.success() => Ok(()),
        _ => Err(Failure::Setup("`umemcg-bench fuse` needs fio (apt-get install fio)".into())),
    }
}

/// Runs the job and returns the calls per second of all its files together.
///
/// # Errors
/// [`Failure::Wrong`] when a call failed or bytes are missing.
pub fn run(job: &Job<'_>) -> Result<f64, Failure> {
    let mut command = Command::new("fio");
    command.args([
        "--ioengine=psync",
        "--output-format=json",
        "--thread",
        "--fallocate=none",
        "--refill_buffers=0",
    ]);
    command.arg(format!("--invalidate={}", u8::from(job.engine == Engine::CallsUncached)));
    command.arg(format!("--loops={}", job.loops));
    let writes = job.pattern.ends_with("write");
    command.arg(format!("--bs={}", job.block_bytes)).arg(format!("--rw={}", job.pattern));
    command.arg(format!("--size={}", job.file_bytes));
    if !writes {
        command.arg("--readonly");
    }
    for (at, file) in job.files.iter().enumerate() {
        command.arg(format!("--name=job{at}")).arg(format!("--filename={}", escaped(file)));
    }
    let output = command.output().map_err(Failure::at("cannot run fio"))?;
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    let wrong =
        |what: String| Failure::Wrong(format!("fio {} on {}: {what}", job.pattern, job.files[0].display()));
    if !output.status.success() {
        return Err(wrong(format!("{}; {said}", output.status)));
    }
    // Remarks may stand before the JSON.
    let start = output.stdout.iter().position(|&byte| byte == b'{').unwrap_or(0);
    let parsed: Output = serde_json::from_slice(&output.stdout[start..])
        .map_err(|error| wrong(format!("output that is not understood: {error}; {said}")))?;
    let mut rate = 0.0;
    for outcome in &parsed.jobs {
        let direction = if writes { &outcome.write } else { &outcome.read };
        if outcome.error != 0 || direction.io_bytes != job.file_bytes * u64::from(job.loops) {
            return Err(wrong(format!("error {}, {} bytes moved", outcome.error, direction.io_bytes)));
        }
        rate += direction.iops;
    }
    Ok(rate)
}

/// Escapes `:`, fio's separator of file names.
fn escaped(path: &Path) -> String {
    path.display().to_string().replace(':', "\\:")
}
