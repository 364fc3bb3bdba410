//! Exit codes, formats of logs, and `umemcg doctor`.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::process::Command;

use serde_json::Value;

use crate::harness::{PROGRAM, needs_mount};
use crate::life::service::{Service, run};

fn umemcg(arguments: &[&str]) -> (Option<i32>, String) {
    run(Command::new(PROGRAM).args(arguments))
}

/// Code 3 is checked where data cannot be made durable: `real_mount/volumes.rs`, `durability.rs`.
#[test]
fn exit_codes_are_those_of_the_help() {
    needs_mount!();
    let (code, help) = umemcg(&["--help"]);
    assert_eq!(code, Some(0));
    let service = Service::start(None, &[]);
    let (mnt, directory) = (service.path("mnt"), service.path("one"));
    let (mnt, directory) = (mnt.to_str().unwrap(), directory.to_str().unwrap());
    for (arguments, expected, meaning) in [
        (&["mount", "/absent", directory][..], 1, "failure"),
        (&["mount", directory, mnt, "--pool", "lots"], 2, "invalid command line or configuration"),
        (&["mount", directory, mnt, "--pool", "99999G"], 2, "invalid command line or configuration"),
        (&["mount", "--config", "/absent", mnt], 2, "invalid command line or configuration"),
        (&["umount", directory], 4, "not a umemcg mount"),
        (&["mount", directory, mnt], 5, "already in use"),
    ] {
        let (code, said) = umemcg(arguments);
        assert_eq!(code, Some(expected), "{arguments:?}: {said}");
        let line = help.lines().find(|line| line.trim_start().starts_with(&format!("{expected}  ")));
        assert!(line.is_some_and(|line| line.contains(meaning)), "{expected}: {help}");
    }
}

#[test]
fn each_format_of_the_log_has_its_form() {
    let wrong = ["mount", "--config", "/absent/umemcg.toml", "/"];
    let (_, text) = umemcg(&[&["--log-format", "text"][..], &wrong].concat());
    assert!(text.starts_with("umemcg: cannot read /absent/umemcg.toml"), "{text}");
    let (_, journal) = umemcg(&[&["--log-format", "journald"][..], &wrong].concat());
    assert!(journal.starts_with("<3>cannot read /absent/umemcg.toml"), "{journal}");
    let (_, json) = umemcg(&[&["--log-format", "json"][..], &wrong].concat());
    let json: Value = serde_json::from_str(&json).unwrap();
    assert!(json["level"] == "ERROR" && json["timestamp"].is_string(), "{json}");
    // The format of the journal is the default where stderr is the journal's.
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("journal");
    let file = File::create(&path).unwrap();
    let metadata = file.metadata().unwrap();
    let stream = format!("{}:{}", metadata.dev(), metadata.ino());
    let status =
        Command::new(PROGRAM).args(wrong).env("JOURNAL_STREAM", stream).stderr(file).status().unwrap();
    assert_eq!(status.code(), Some(2));
    assert!(fs::read_to_string(&path).unwrap().starts_with("<3>cannot read"));
}

#[test]
fn events_of_a_daemon_are_lines_of_json() {
    needs_mount!();
    let service = Service::start(None, &["-v", "--log-format", "json"]);
    let (status, said) = service.end();
    assert!(status.success() && said.lines().count() > 0, "{said}");
    for line in said.lines() {
        let event: Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
        assert!(event["fields"]["message"].is_string(), "{line}");
    }
}

#[test]
fn the_doctor_looks_at_this_machine() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("umemcg.toml");
    let config = path.to_str().unwrap();
    let look = |text: &str| {
        fs::write(&path, text).unwrap();
        let (code, said) = umemcg(&["doctor", "--json", "--pool", "8M", "--config", config]);
        let findings: Vec<Value> = serde_json::from_str(said.lines().next().unwrap()).unwrap();
        (code, findings)
    };
    let severity = |findings: &[Value], check: &str| {
        let found = findings.iter().find(|finding| finding["check"] == check);
        found.unwrap_or_else(|| panic!("{check}: {findings:?}"))["severity"].as_str().unwrap().to_owned()
    };
    let (code, findings) = look("[volumes.here]\ndir = \".\"");
    let fails = findings.iter().any(|finding| finding["severity"] == "fail");
    assert_eq!(code, Some(i32::from(fails)), "{findings:?}");
    assert_eq!(severity(&findings, "configuration"), "ok");
    assert_eq!(severity(&findings, "directory"), "ok");
    let can_open = File::options().read(true).write(true).open("/dev/fuse").is_ok();
    assert_eq!(severity(&findings, "fuse device") == "ok", can_open);
    let (code, findings) = look("\n[volumes.here]\ndirr = \".\"");
    assert_eq!((code, severity(&findings, "configuration").as_str()), (Some(1), "fail"), "{findings:?}");
    // Without `anonymous` a machine without credentials would be asked for some, for a minute.
    let (code, findings) = look(
        "[volumes.here]\nstore = \"s3://no-such-bucket/p\"\nendpoint = \"http://127.0.0.1:1\"\nanonymous = true",
    );
    assert_eq!((code, severity(&findings, "store").as_str()), (Some(1), "fail"), "{findings:?}");
    let (code, said) = umemcg(&["doctor", "--pool", "99999G"]);
    assert_eq!(code, Some(1));
    assert!(said.contains("FAIL  memory") && said.contains("-> lower `pool`"), "{said}");
}
