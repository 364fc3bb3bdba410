//! The two tenants of `neighbour`, each a process of its own: it prepares, says so, waits for a
//! line, does its work for a fixed time and reports the latencies of its calls.
//!
//! With a rate, calls are made at fixed times whether or not the previous call has ended (an open
//! loop), and a latency counts from when the call was due: a delayed call makes all later ones late
//! as well.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, BufRead, Write};
use std::num::NonZeroU64;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::ValueEnum;
use rustix::thread::set_current_timer_slack;
use serde::{Deserialize, Serialize};

use crate::options::Failure;
use crate::stats::thread_time;
use crate::store::{fill, is_right};
use crate::threads::{Latencies, process_time};

/// Bytes of a random read.
pub const READ_BYTES: usize = 4096;
/// Bytes of a streaming call.
pub const STREAM_BYTES: usize = 128 << 10;
/// Bytes of each of the files read one after the other.
pub const EACH_FILE_BYTES: u64 = 8 << 20;
/// Processor time of a call without other work: about as much as a read of 128 KiB.
pub const BURN: Duration = Duration::from_micros(100);
/// Files in one directory of a walked tree.
pub const FILES_PER_DIRECTORY: u64 = 1000;

/// The work of a tenant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Work {
    /// Reads pages of a file at random.
    Random,
    /// Reads a file from the beginning to the end, again and again; or so the files of a directory,
    /// each opened anew.
    Stream,
    /// Writes a file, or files, so.
    Write,
    /// Looks at every file of a tree so.
    Walk,
    /// Uses a processor for [`BURN`] in each call, and nothing else.
    Burn,
}

/// The pace of a tenant's calls.
#[derive(Debug, Clone, Copy)]
pub enum Tempo {
    /// One after the other.
    Free,
    /// This many a second, whether or not the one before has ended.
    Rate(f64),
    /// One after the other, at most this many a second.
    AtMost(f64),
    /// The same, and each call uses this much processor time at least.
    Busy(f64, Duration),
    /// One after the other, this many in all.
    Times(u64),
}

/// A tenant's command line.
#[derive(Debug, clap::Args)]
pub struct Load {
    /// The work
    #[arg(value_enum)]
    work: Work,
    /// The file, or the directory of the files
    path: PathBuf,
    /// Bytes of the file, or number of the files
    #[arg(long)]
    size: u64,
    /// Milliseconds
    #[arg(long)]
    time_ms: u64,
    /// Calls in a second; without it one after the other
    #[arg(long)]
    rate: Option<f64>,
    /// One after the other, but at most this many in a second: sleeps when it is ahead
    #[arg(long, conflicts_with = "rate")]
    at_most: Option<f64>,
    /// Nanoseconds of processor time that each call uses at least
    #[arg(long, default_value_t = 0)]
    call_cpu_ns: u64,
    /// Ends after this many calls
    #[arg(long)]
    times: Option<u64>,
}

/// The result.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub struct Done {
    /// Calls made.
    pub calls: u64,
    /// Calls refused.
    pub refused: u64,
    /// Seconds until the last one had ended.
    pub seconds: f64,
    /// Microseconds: p50, p99, p99.9, the longest.
    pub latency_us: [f64; 4],
    /// The same, but from when a call began, not from when it was due.
    pub call_us: [f64; 4],
    /// Processor time of the tenant's own process meanwhile.
    pub cpu_seconds: f64,
}

/// A call of a tenant, by its number.
type Call<'a> = Box<dyn FnMut(u64) -> Result<bool, Failure> + 'a>;

impl Load {
    /// Arguments that make this program such a tenant.
    pub fn arguments(work: Work, path: PathBuf, size: u64, time: Duration, tempo: Tempo) -> Vec<OsString> {
        let work = work.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default();
        let mut arguments: Vec<OsString> = vec!["neighbour-load".into(), work.into(), path.into()];
        let numbers = [("--size", size.to_string()), ("--time-ms", time.as_millis().to_string())];
        numbers.into_iter().for_each(|(name, value)| arguments.extend([name.into(), value.into()]));
        match tempo {
            Tempo::Free => {}
            Tempo::Rate(rate) => arguments.extend(["--rate".into(), rate.to_string().into()]),
            Tempo::AtMost(rate) => arguments.extend(["--at-most".into(), rate.to_string().into()]),
            Tempo::Busy(rate, call) => {
                let numbers =
                    [("--at-most", rate.to_string()), ("--call-cpu-ns", call.as_nanos().to_string())];
                numbers.into_iter().for_each(|(name, value)| arguments.extend([name.into(), value.into()]));
            }
            Tempo::Times(times) => arguments.extend(["--times".into(), times.to_string().into()]),
        }
        arguments
    }

    /// Runs a tenant to its end.
    ///
    /// # Errors
    /// Errors of the file system, and wrong bytes.
    pub fn run(&self) -> Result<(), Failure> {
        let mut call = self.prepare().map_err(Failure::at("cannot prepare"))?;
        let said = writeln!(io::stdout(), "ready").and_then(|()| {
            let mut go = String::new();
            io::stdin().lock().read_line(&mut go)
        });
        said.map_err(Failure::at("cannot speak to the experiment"))?;
        // Sleeps end when they should, not fifty microseconds later.
        let _ = set_current_timer_slack(NonZeroU64::new(1));
        let mut done = Done::default();
        let (mut latencies, mut call_times) = (Latencies::new(), Latencies::new());
        let (start, cpu, time) = (Instant::now(), process_time(), Duration::from_millis(self.time_ms));
        let mut end = start;
        while end - start < time {
            let due = match self.rate {
                Some(rate) => start + Duration::from_secs_f64(done.calls as f64 / rate),
                None => {
                    let ahead = self.at_most.map(|rate| Duration::from_secs_f64(done.calls as f64 / rate));
                    std::thread::sleep(ahead.unwrap_or_default().saturating_sub(start.elapsed()));
                    Instant::now()
                }
            };
            if due - start >= time || self.times == Some(done.calls) {
                break;
            }
            wait_until(due);
            let begun = Instant::now();
            if !self.call(&mut call, done.calls)? {
                done.refused += 1;
            }
            done.calls += 1;
            end = Instant::now();
            latencies.note(end - due);
            call_times.note(end - begun);
        }
        done.seconds = (end - start).as_secs_f64();
        done.cpu_seconds = (process_time() - cpu).as_secs_f64();
        done.latency_us = latencies.quantiles([0.5, 0.99, 0.999, 1.0]);
        done.call_us = call_times.quantiles([0.5, 0.99, 0.999, 1.0]);
        let text = serde_json::to_string(&done).map_err(Failure::at("cannot say what came of it"))?;
        writeln!(io::stdout(), "{text}").map_err(Failure::at("cannot say what came of it"))
    }

    /// Makes a call, using its processor time; returns false if it was refused.
    fn call(&self, call: &mut Call<'_>, nr: u64) -> Result<bool, Failure> {
        if self.call_cpu_ns == 0 {
            return call(nr);
        }
        let until = thread_time() + Duration::from_nanos(self.call_cpu_ns);
        let done = call(nr)?;
        while thread_time() < until {
            std::hint::spin_loop();
        }
        Ok(done)
    }

    /// Returns false for a call refused for lack of memory.
    fn failed(&self, error: io::Error) -> Result<bool, Failure> {
        match error.raw_os_error() {
            Some(code) if code == rustix::io::Errno::NOMEM.raw_os_error() => Ok(false),
            _ => Err(Failure::Setup(format!("{}: {error}", self.path.display()))),
        }
    }

    /// Returns the call that reads or writes the files of a directory.
    fn stream_files(&self, mut buffer: Vec<u8>) -> Call<'_> {
        let (mut open, writes) = (None, self.work == Work::Write);
        Box::new(move |nr| {
            let offset = nr * STREAM_BYTES as u64 % self.size;
            let (at, offset) = (offset / EACH_FILE_BYTES, offset % EACH_FILE_BYTES);
            let file = match open.take() {
                Some(file) if offset > 0 => file,
                _ => File::options()
                    .read(!writes)
                    .write(writes)
                    .create(writes)
                    .open(self.path.join(at.to_string()))
                    .map_err(Failure::at("cannot open a file"))?,
            };
            let done = if writes {
                fill(offset, &mut buffer[..64]);
                file.write_all_at(&buffer, offset)
            } else {
                file.read_exact_at(&mut buffer, offset)
            };
            open = Some(file);
            if let Err(error) = done {
                return self.failed(error);
            }
            if is_right(offset, &buffer[..64]) {
                Ok(true)
            } else {
                Err(Failure::Wrong(format!("other bytes at {offset} of file {at}")))
            }
        })
    }

    /// Returns the call that reads one file: a hole, or contents to check.
    fn stream_file(&self, mut buffer: Vec<u8>) -> io::Result<Call<'_>> {
        let file = File::open(&self.path)?;
        let is_hole = file.metadata()?.blocks() == 0;
        Ok(Box::new(move |nr| {
            let offset = nr * STREAM_BYTES as u64 % self.size;
            if let Err(error) = file.read_exact_at(&mut buffer, offset) {
                return self.failed(error);
            }
            match &buffer[..64] {
                zeros if is_hole && zeros == [0; 64] => Ok(true),
                bytes if !is_hole && is_right(offset, bytes) => Ok(true),
                _ => Err(Failure::Wrong(format!("other bytes at {offset}"))),
            }
        }))
    }

    /// Returns the call to repeat; it returns false when it was refused for lack of memory.
    fn prepare(&self) -> io::Result<Call<'_>> {
        let failed = |error: io::Error| self.failed(error);
        let mut buffer = vec![0; STREAM_BYTES];
        Ok(match self.work {
            Work::Random => {
                let file = File::open(&self.path)?;
                for at in 0..self.size / STREAM_BYTES as u64 {
                    file.read_exact_at(&mut buffer, at * STREAM_BYTES as u64)?;
                }
                let mut state = 0x9e37_79b9_7f4a_7c15u64;
                Box::new(move |_| {
                    state ^= state << 13;
                    state ^= state >> 7;
                    state ^= state << 17;
                    let offset = state % (self.size / READ_BYTES as u64) * READ_BYTES as u64;
                    let bytes = &mut buffer[..READ_BYTES];
                    if let Err(error) = file.read_exact_at(bytes, offset) {
                        return failed(error);
                    }
                    if is_right(offset, &bytes[..64]) {
                        Ok(true)
                    } else {
                        Err(Failure::Wrong(format!("other bytes at {offset}")))
                    }
                })
            }
            Work::Stream | Work::Write if self.path.is_dir() => self.stream_files(buffer),
            Work::Stream => self.stream_file(buffer)?,
            Work::Write => {
                let file = File::options().write(true).create(true).truncate(false).open(&self.path)?;
                fill(0, &mut buffer);
                Box::new(move |nr| {
                    let offset = nr * STREAM_BYTES as u64 % self.size;
                    file.write_all_at(&buffer, offset).map(|()| true).or_else(failed)
                })
            }
            Work::Burn => Box::new(|_| {
                let until = thread_time() + BURN;
                while thread_time() < until {
                    std::hint::spin_loop();
                }
                Ok(true)
            }),
            Work::Walk => Box::new(move |nr| {
                let path = self.path.join(file_name(nr % self.size));
                fs::metadata(path).map(|_| true).or_else(failed)
            }),
        })
    }
}

/// Returns the name of a file of the walked tree.
pub fn file_name(nr: u64) -> String {
    format!("{}/{}", nr / FILES_PER_DIRECTORY, nr % FILES_PER_DIRECTORY)
}

/// Sleeps until then, like an idle program. Never yields: a yield puts a thread behind all others
/// by a time slice, so a yielding thread is late beside busy ones.
fn wait_until(due: Instant) {
    loop {
        let left = due.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return;
        }
        std::thread::sleep(left);
    }
}
