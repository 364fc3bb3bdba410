//! The starts and the ends of threads in the product.

use crate::tidy::{shipped_files, without_tests};

/// Programs for a developer's machine, which may end when it has no thread for them.
const FREE: [&str; 4] =
    ["crates/umemcg-base/src/schedule/", "crates/umemcg-bench/", "crates/umemcg-cli/src/demo/", "fuzz/"];

/// The source of the type `Worker`, a thread that is joined when it is dropped.
const WORKER: &str = "crates/umemcg-base/src/clock.rs";

/// The ways to tell a thread to end.
const STOPS: [&str; 5] = ["stop()", "stop = true", "store(true", "notify_one()", "write(&self.stop"];

/// Returns the lines of the shipped part of a source, without comments.
fn code_of(text: &str) -> Vec<&str> {
    without_tests(text).map(|(_, line)| line).filter(|line| !line.trim_start().starts_with("//")).collect()
}

/// Returns whether a source has a field with a thread that is joined.
fn keeps_joined_thread(code: &[&str]) -> bool {
    let joins = code.iter().any(|line| line.contains(".join()"));
    let is_thread = |word: &str| word == "Worker" || joins && word == "JoinHandle";
    let mut fields = code.iter().filter_map(|line| line.trim().strip_suffix(',')?.split_once(": "));
    fields.any(|(_, kind)| kind.split(|at: char| !at.is_alphanumeric()).any(is_thread))
}

/// Returns whether the `Drop` of a type of a source tells a thread to end before it takes one out.
fn stops_when_dropped(code: &[&str]) -> bool {
    let is_drop = |line: &&str| line.starts_with("impl") && line.contains("Drop for ");
    let waits = |line: &str| line.contains(".take()") || line.contains(".join()");
    code.split(|line| *line == "}").any(|item| {
        let body = item.iter().skip_while(|line| !is_drop(line));
        body.take_while(|line| !waits(line)).any(|line| STOPS.iter().any(|stop| line.contains(stop)))
    })
}

/// `std::thread::spawn` panics when the system refuses a thread, and a tenant can use up the
/// threads of a machine. `umemcg_base::clock` and `std::thread::Builder` return the refusal.
/// Clippy's `disallowed-methods` would forbid it to tests, too.
#[test]
fn no_thread_of_the_product_panics_when_it_is_refused() {
    let mut wrong = Vec::new();
    for (name, text) in shipped_files(&FREE) {
        let code = without_tests(&text).filter(|(_, line)| !line.trim_start().starts_with("//"));
        for (at, line) in code.filter(|(_, line)| line.contains("thread::spawn")) {
            wrong.push(format!("{name}:{at}: {}", line.trim()));
        }
    }
    assert!(wrong.is_empty(), "start threads with umemcg_base::clock or a Builder: {wrong:#?}");
}

/// A thread that is joined and has not been told to end hangs the end of the daemon, or its start
/// when that fails halfway. The owner's `Drop` tells it, however the owner ends. This looks at
/// whole files: with two such owners in a file, one of them may lack it.
#[test]
fn each_thread_that_is_joined_is_told_to_end_first() {
    let mut nr_kept = 0;
    for (name, text) in shipped_files(&FREE).into_iter().filter(|(name, _)| name != WORKER) {
        let code = code_of(&text);
        if keeps_joined_thread(&code) {
            nr_kept += 1;
            assert!(stops_when_dropped(&code), "{name}: stop the thread in the `Drop` of its owner");
        }
    }
    assert!(nr_kept > 5, "the threads are not seen: {nr_kept}");
}

#[test]
fn a_join_without_a_stop_is_seen() {
    let is_right = |field: &str, drop: &str| {
        let text = format!("struct A {{\n    {field},\n}}\nimpl Drop for A {{\n{drop}\n}}\n");
        let code = code_of(&text);
        !keeps_joined_thread(&code) || stops_when_dropped(&code)
    };
    assert!(is_right("worker: Option<clock::Worker>", "self.stop();\nself.worker.take();"));
    assert!(!is_right("worker: Option<clock::Worker>", "self.worker.take();\nself.stop();"));
    assert!(!is_right("_worker: Worker", "// self.stop()"));
    assert!(!is_right("thread: JoinHandle<()>", "self.thread.join()"));
    assert!(is_right("thread: JoinHandle<()>", ""), "a detached thread");
    assert!(is_right("workers: Arc<GroupWorkers>", ""));
}
