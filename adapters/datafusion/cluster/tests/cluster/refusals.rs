//! Refused settings and queries, with their error messages.

use std::io::Read;
use std::net::TcpListener;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::Instant;

use crate::setup::{
    AGGREGATE, JOIN, LOOK_AGAIN, PROGRAM, TENANTS, WAIT_MAX, assert_within_budgets, cluster, expected,
    result_of, session, session_of_no_tenant,
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_query_of_no_known_tenant_fails_alone() {
    let cluster = cluster(2, &TENANTS).await;
    let a = session(&cluster, "a", "1").await;
    let sessions = [
        (session(&cluster, "stranger", "1").await, "no tenant `stranger`"),
        (session_of_no_tenant(&cluster).await, "names no tenant"),
    ];
    for (session, why) in sessions {
        let (refused, of_a) = tokio::join!(result_of(&session, JOIN), result_of(&a, AGGREGATE));
        let refused = refused.expect_err("it is refused").to_string();
        assert!(refused.contains(why) && refused.contains("umemcg.tenant"), "{refused}");
        assert_eq!(of_a.expect("a's query succeeds"), expected(AGGREGATE).await);
    }
    assert_within_budgets(&cluster, 2);
}

/// Runs the program, expects it to fail, and returns its output.
#[track_caller]
fn refusal(arguments: &[&str]) -> String {
    let mut command = Command::new(PROGRAM);
    let mut process = command
        .args(arguments)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it can be started");
    // A few lines: the pipe has room for them.
    let give_up = Instant::now() + WAIT_MAX;
    let status = loop {
        if let Some(status) = process.try_wait().expect("it is a child") {
            break status;
        }
        if Instant::now() >= give_up {
            process.kill().and_then(|()| process.wait()).expect("it can be killed");
            panic!("{arguments:?}: it has not ended after {WAIT_MAX:?}");
        }
        sleep(LOOK_AGAIN);
    };
    let mut said = String::new();
    process.stderr.take().expect("a pipe").read_to_string(&mut said).expect("text");
    // Neither a success, nor a signal, nor a panic.
    assert!(matches!(status.code(), Some(1 | 2)), "{status}: {said}");
    said
}

/// The options of an executor, valid except for the missing scheduler.
fn executor<'a>(work_dir: &'a str, changed: &[(&'a str, &'a str)]) -> Vec<&'a str> {
    let mut options = vec![
        ("--id", "e-1"),
        ("--scheduler", "127.0.0.1:9"),
        ("--bind", "127.0.0.1:0"),
        ("--work-dir", work_dir),
        ("--budget-mib", "64"),
        ("--tenant", "a=16"),
        ("--connect-seconds", "1"),
    ];
    for (option, value) in changed {
        options.retain(|(other, _)| option != other || *option == "--tenant");
        options.push((option, value));
    }
    ["executor"].into_iter().chain(options.into_iter().flat_map(|(option, value)| [option, value])).collect()
}

#[test]
fn an_executor_without_an_option_names_it() {
    let said = refusal(&["executor"]);
    for option in ["--id", "--scheduler", "--work-dir", "--budget-mib", "--tenant"] {
        assert!(said.contains(option), "{option}: {said}");
    }
}

#[test]
fn an_executor_says_what_is_wrong_with_its_options() {
    let dir = tempfile::tempdir().expect("a directory");
    let work_dir = dir.path().to_str().expect("UTF-8");
    let file = dir.path().join("file");
    std::fs::write(&file, "").expect("written");
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let taken = taken.local_addr().expect("an address").to_string();
    let wrong: [(&[(&str, &str)], &str); 9] = [
        (&[("--tenant", "a=32")], "a group of that name exists"),
        (&[("--tenant", "b/c=16")], "not a name for a group"),
        (&[("--tenant", "b=0")], "no number of MiB"),
        (&[("--tenant", "b")], "it has no limit"),
        (&[("--budget-mib", "1")], "too small"),
        (&[("--bind", &taken)], "cannot listen"),
        (&[("--bind", "0.0.0.0:0")], "an external host must be named"),
        (&[("--work-dir", file.to_str().expect("UTF-8"))], "cannot be created"),
        // Nothing listens on the port, and the executor waits for a second.
        (&[], "cannot reach the scheduler 127.0.0.1:9"),
    ];
    for (changed, why) in wrong {
        let said = refusal(&executor(work_dir, changed));
        assert!(said.contains(why), "{changed:?}: {said}");
    }
}

#[test]
fn a_scheduler_says_that_its_address_is_taken() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("an address").to_string();
    let said = refusal(&["scheduler", "--bind", &address]);
    assert!(said.contains("cannot listen") && said.contains(&address), "{said}");
}
