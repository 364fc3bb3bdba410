//! The memory of thousands of requests on a store that hangs: charged, lent within a bound, and
//! given back.

use std::collections::HashSet;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use crate::harness::{Mount, Options, Stopped, needs_mount, until};

const MIB: u64 = 1 << 20;
const NR_WRITERS: u64 = 1500;
const NR_READERS: u64 = 1500;
const WRITE_BYTES: usize = MIB as usize;
const READ_BYTES: usize = 64 << 10;
/// A tenant that is alone is lent half of what a mount lends to writes that wait.
const LENT_BYTES_MAX: u64 = 128 * MIB;
/// Requests that run have a buffer of a write each, eight more are kept for readers.
const BUFFERS_BYTES_MAX: u64 = (64 + 8) * MIB;
/// The memory that the daemon may hold beside: stacks of its threads, the heap's unused pieces.
const UNCHARGED_BYTES_MAX: u64 = 24 * MIB;

/// Starts a thread with a small stack.
pub(super) fn start(work: impl FnOnce() + Send + 'static) -> JoinHandle<()> {
    thread::Builder::new().stack_size(128 << 10).spawn(work).unwrap()
}

/// The directories of this process's threads.
fn tasks() -> impl Iterator<Item = PathBuf> {
    fs::read_dir("/proc/self/task").unwrap().flatten().map(|task| task.path())
}

/// Whether a thread waits for an answer of a file system.
fn waits(task: &Path) -> bool {
    let place = fs::read_to_string(task.join("wchan"));
    place.is_ok_and(|place| place.contains("request_wait_answer"))
}

/// Threads of this process that wait for an answer of a file system.
pub(super) fn nr_waiting() -> usize {
    tasks().filter(|task| waits(task)).count()
}

/// Waits until all threads that have not been answered wait for an answer. A look at thousands of
/// threads takes the processors from the daemon: while they arrive, only those not seen waiting yet
/// are looked at.
fn until_all_wait(threads: &[JoinHandle<()>]) {
    let nr_left = || threads.iter().filter(|thread| !thread.is_finished()).count();
    let mut seen = HashSet::<PathBuf>::new();
    until("all wait that have not been answered", || {
        let new: Vec<PathBuf> = tasks().filter(|task| !seen.contains(task) && waits(task)).collect();
        seen.extend(new);
        seen.len() >= nr_left() && nr_left() == nr_waiting()
    });
}

/// Writes and reads with a thread for each; every request has a place of its own.
fn ask(file: &Arc<File>, nr_writers: u64, nr_readers: u64) -> Vec<JoinHandle<()>> {
    let data: Arc<[u8]> = vec![7; WRITE_BYTES].into();
    let writers = (0..nr_writers).map(|n| {
        let (file, data) = (Arc::clone(file), Arc::clone(&data));
        start(move || file.write_all_at(&data, n * MIB).unwrap())
    });
    let readers = (0..nr_readers).map(|n| {
        let file = Arc::clone(file);
        start(move || file.read_exact_at(&mut vec![0; READ_BYTES], (NR_WRITERS + n) * MIB).unwrap())
    });
    writers.chain(readers).collect()
}

#[test]
fn requests_that_wait_for_a_store_are_charged_or_bounded() {
    needs_mount!();
    let inner = Mount::start();
    let mut outer =
        Mount::start_with(&Options { data: Some(inner.mnt()), pool: "128M", ..Options::default() });
    outer.group("hostile", "32M");
    outer.sh(&format!("truncate -s {}M $DATA/f", NR_WRITERS + NR_READERS)).good();
    fs::write(outer.cg().join("hostile/tasks"), "0").unwrap();
    let file = Arc::new(File::options().read(true).write(true).open(outer.mnt().join("f")).unwrap());
    let forget = || fs::write(outer.cg().join("hostile/memory.force_empty"), "0").unwrap();
    // By now the heap has reached its working size.
    ask(&file, 20, 20).into_iter().for_each(|thread| thread.join().unwrap());
    forget();
    let resident = || outer.daemon_memory("VmRSS");
    let charged = || outer.number("hostile", "memory.usage_in_bytes");
    let before = resident().saturating_sub(charged());

    let stopped = Stopped::new(&inner);
    let threads = ask(&file, NR_WRITERS, NR_READERS);
    until_all_wait(&threads);
    let nr = nr_waiting();
    let (held, usage) = (resident().saturating_sub(before), charged());
    drop(stopped);
    eprintln!("{nr} requests wait: {} MiB resident, {} MiB charged", held / MIB, usage / MIB);
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    assert!(nr as u64 >= (NR_WRITERS + NR_READERS) * 9 / 10, "{nr}");
    let most = usage * 5 / 4 + LENT_BYTES_MAX + BUFFERS_BYTES_MAX + UNCHARGED_BYTES_MAX;
    assert!(held <= most, "{held} bytes are resident, {most} at most");
    forget();
    until("all is given back", || resident() <= before + charged() * 5 / 4 + UNCHARGED_BYTES_MAX);
    fs::write(outer.cg().join("tasks"), "0").unwrap();
    drop(file);
    outer.umount();
}
