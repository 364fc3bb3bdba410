//! Real processes for the tests of this module.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child as StdChild, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Mutex;

use super::mirror::Mirror;
use super::proc_files;

/// A shell with its standard input and output held by the test. Killed when dropped; readers of its
/// input see its end.
#[derive(Debug)]
pub struct Child {
    process: StdChild,
    input: Mutex<Option<ChildStdin>>,
    output: Mutex<BufReader<ChildStdout>>,
}

impl Child {
    /// Starts `sh -c script`.
    pub fn shell(script: &str) -> Self {
        Self::start(Command::new("sh").args(["-c", script]))
    }

    /// Starts a command.
    pub fn start(command: &mut Command) -> Self {
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let input = Mutex::new(process.stdin.take());
        let output = Mutex::new(BufReader::new(process.stdout.take().unwrap()));
        Self { process, input, output }
    }

    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// Returns its session; 0 if the session's leader is outside our pid namespace.
    pub fn session(&self) -> u32 {
        proc_files::read_status(self.id()).unwrap().session
    }

    /// Writes a line to its input.
    pub fn tell(&self, line: &str) {
        writeln!(self.input.lock().unwrap().as_mut().unwrap(), "{line}").unwrap();
    }

    /// Reads a line of its output.
    pub fn read_line(&self) -> String {
        let mut line = String::new();
        self.output.lock().unwrap().read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    pub fn read_number(&self) -> u32 {
        self.read_line().parse().unwrap()
    }

    /// Waits for its death without reaping it.
    pub fn wait_until_zombie(&self) {
        use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};
        let pid = Pid::from_raw(self.id() as i32).unwrap();
        waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT).unwrap();
        assert!(proc_files::read_status(self.id()).unwrap().is_zombie);
    }

    pub fn reap(&mut self) {
        self.process.wait().unwrap();
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        drop(self.input.lock().unwrap().take());
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Returns the calling thread's id.
pub fn own_tid() -> u32 {
    rustix::thread::gettid().as_raw_nonzero().get() as u32
}

/// Returns a hierarchy of the kernel, where one can be mounted.
pub fn mirror_or_skip() -> Option<Mirror> {
    match Mirror::mount() {
        Ok(mirror) => Some(mirror),
        Err(error) => {
            eprintln!("SKIPPED: cannot mount a process hierarchy ({error}); this needs root");
            None
        }
    }
}

/// Waits for a condition that becomes true by itself, soon.
pub fn wait_until(is_so: impl Fn() -> bool) {
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while !is_so() {
        assert!(std::time::Instant::now() < deadline, "it never happened");
        std::thread::yield_now();
    }
}

/// Starts a process with this id, which must be free: the id of a dead process used again. None if
/// that is impossible.
pub fn process_with_id(id: u32) -> Option<Child> {
    for _ in 0..20 {
        if std::fs::write("/proc/sys/kernel/ns_last_pid", (id - 1).to_string()).is_err() {
            break;
        }
        let child = Child::shell("read go");
        if child.id() == id {
            return Some(child);
        }
    }
    eprintln!("SKIPPED: cannot choose the id of a new process; this needs root");
    None
}
