//! No process of a cluster outlives its parent.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::Instant;

use crate::setup::{LOOK_AGAIN, PROGRAM, WAIT_MAX};

/// A scheduler and three executors.
const NR_CHILDREN: usize = 4;

/// Waits for a state, and names it if it does not come.
#[track_caller]
fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let give_up = Instant::now() + WAIT_MAX;
    while !is_so() {
        assert!(Instant::now() < give_up, "{what}: not after {WAIT_MAX:?}");
        sleep(LOOK_AGAIN);
    }
}

/// A local cluster with its children, started with its own directory for temporary files.
struct Run {
    process: Child,
    children: Vec<u32>,
}

impl Run {
    fn start(temporary: &Path) -> Self {
        let process = Command::new(PROGRAM)
            .arg("run")
            .env("TMPDIR", temporary)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("it can be started");
        let mut run = Self { process, children: Vec::new() };
        wait_until("the processes of the cluster start", || {
            assert!(run.process.try_wait().expect("it is a child").is_none(), "it has ended early");
            run.children = children_of(run.process.id());
            run.children.len() == NR_CHILDREN
        });
        run
    }

    /// Sends a signal, and waits for the end of the process and its children.
    fn end(&mut self, signal: &str) {
        let kill = format!("kill -{signal} {}", self.process.id());
        let status = Command::new("sh").args(["-c", &kill]).status().expect("a shell");
        assert!(status.success(), "{kill}: {status}");
        wait_until("it ends", || self.process.try_wait().expect("it is a child").is_some());
        wait_until("its children end", || self.children.iter().all(|&child| !is_alive(child)));
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        // When a check has failed; the children end with it.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Returns the state and the parent of a process, from `/proc/PID/stat`.
fn state_and_parent(pid: u32) -> Option<(char, u32)> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name, in brackets, may have spaces.
    let mut fields = stat.rsplit_once(") ")?.1.split(' ');
    Some((fields.next()?.chars().next()?, fields.next()?.parse().ok()?))
}

fn children_of(parent: u32) -> Vec<u32> {
    let processes = fs::read_dir("/proc").expect("proc").filter_map(Result::ok);
    let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(|&pid| state_and_parent(pid).is_some_and(|(_, of)| of == parent)).collect()
}

/// A zombie waits for its parent alone.
fn is_alive(pid: u32) -> bool {
    state_and_parent(pid).is_some_and(|(state, _)| state != 'Z' && state != 'X')
}

fn nr_entries(dir: &Path) -> usize {
    fs::read_dir(dir).expect("a directory").count()
}

#[test]
fn a_cluster_that_is_told_to_end_leaves_nothing_behind() {
    for signal in ["INT", "TERM"] {
        let temporary = tempfile::tempdir().expect("a directory");
        Run::start(temporary.path()).end(signal);
        assert_eq!(nr_entries(temporary.path()), 0, "tables and work directories are removed");
    }
}

#[test]
fn the_processes_of_a_killed_cluster_end_with_it() {
    let temporary = tempfile::tempdir().expect("a directory");
    Run::start(temporary.path()).end("KILL");
}
