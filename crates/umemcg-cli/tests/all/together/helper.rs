//! Mapped and asynchronous reads and writes: `helper.c`, one process for each group, told what to
//! do by lines.
//!
//! A process of its own, because a mapping can give way under its user (SIGBUS), and no test here
//! may use unsafe code.

use std::fs;
use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Mutex, PoisonError};

use crate::harness::Mount;

/// The task of the helper on a part of a file.
#[derive(Debug, Clone, Copy)]
pub enum Task {
    ReadMapped,
    /// Makes all bytes this, and waits until they are durable.
    WriteMapped(u8),
    ReadAsynchronously,
    /// Makes all bytes this.
    WriteAsynchronously(u8),
}

/// The outcome of a task.
#[derive(Debug)]
pub enum Said {
    /// The bytes that were read; none after a write.
    Done(Vec<u8>),
    /// A call said this.
    Refused(i32),
}

#[derive(Debug)]
struct Pipes {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

/// One such process.
#[derive(Debug)]
pub struct Helper(Mutex<Pipes>);

/// Compiles the program.
pub fn build(program: &Path) {
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/all/together/helper.c");
    let status = Command::new("gcc").args(["-O1", "-o"]).arg(program).arg(source).status().unwrap();
    assert!(status.success(), "gcc: {status}");
}

impl Helper {
    /// Starts one in a group.
    pub fn start(mount: &Mount, program: &Path, group: &str) -> Self {
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "--"]).arg(program).current_dir("/");
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let tasks = mount.cg().join(group).join("tasks");
        fs::write(tasks, child.id().to_string()).unwrap();
        let (to, from) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        Self(Mutex::new(Pipes { child, to, from }))
    }

    /// Has `len` bytes of a file read or written.
    pub fn ask(&self, task: Task, file: &OwnedFd, offset: usize, len: usize) -> io::Result<Said> {
        let mut pipes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (what, value) = match task {
            Task::ReadMapped => ('r', 0),
            Task::WriteMapped(value) => ('w', value),
            Task::ReadAsynchronously => ('a', 0),
            Task::WriteAsynchronously(value) => ('A', value),
        };
        let (process, fd) = (std::process::id(), file.as_raw_fd());
        writeln!(pipes.to, "{what} /proc/{process}/fd/{fd} {offset} {len} {value}")?;
        let mut line = String::new();
        pipes.from.read_line(&mut line)?;
        let mut words = line.split_whitespace();
        Ok(match words.next() {
            Some("r") => Said::Done(words.flat_map(run).collect()),
            Some("w") => Said::Done(Vec::new()),
            Some("error") => Said::Refused(words.next().and_then(|errno| errno.parse().ok()).unwrap_or(5)),
            // Also that the mapping gave way.
            _ => return Err(io::Error::other(format!("the helper said {line:?}"))),
        })
    }
}

/// `VALUE*COUNT`.
fn run(word: &str) -> Vec<u8> {
    let (value, count) = word.split_once('*').unwrap();
    vec![value.parse().unwrap(); count.parse().unwrap()]
}

impl Drop for Helper {
    fn drop(&mut self) {
        let pipes = self.0.get_mut().unwrap_or_else(PoisonError::into_inner);
        let _ = pipes.child.kill();
        let _ = pipes.child.wait();
    }
}
