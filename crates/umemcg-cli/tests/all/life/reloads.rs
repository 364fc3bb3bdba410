//! A configuration that is read again while the mount is served.

use std::fs::{self, File};

use rustix::process::Signal;

use crate::harness::needs_mount;
use crate::life::service::{Service, has};

const BEFORE: &str = r#"
    rules = ["uid:0=/root"]
    [groups."/a"]
    "memory.max" = "8M"
    "memory.low" = "1M"
    [groups."/c"]
    "memory.max" = "4M"
    "memory.limit_in_bytes" = "4M"
    [groups."/d"]
    "memory.max" = "8M"
    "memory.low" = "1M"
    [volumes.one]
    dir = "one"
    [volumes.memory]
    tmpfs = true
    size = "1M"
"#;

#[test]
fn a_reload_applies_what_differs_in_the_file() {
    needs_mount!();
    let service = Service::start(Some(BEFORE), &[]);
    fs::write(service.path("cg").join("a/memory.high"), "4M").unwrap();
    fs::write(service.path("cg").join("d/memory.max"), "4M").unwrap();
    fs::write(service.path("mnt").join("one/f"), "x").unwrap();
    let after = r#"
        log = "info"
        rules = ["uid:0=/other"]
        [groups."/a"]
        "memory.max" = "16M"
        [groups."/b"]
        "memory.max" = "2M"
        [groups."/c"]
        "memory.limit_in_bytes" = "4M"
        [groups."/d"]
        "memory.max" = "8M"
        [volumes.two]
        dir = "two"
        [volumes.memory]
        tmpfs = true
        size = "1M"
    "#;
    let status = service.reload(after);
    assert!(status.ends_with(&format!("STATUS=serving {}\n", service.path("mnt").display())), "{status}");
    assert_eq!(service.control("a/memory.max"), (16 << 20).to_string());
    assert_eq!(service.control("a/memory.low"), "0", "it is not in the file any more");
    assert_eq!(service.control("a/memory.high"), (4 << 20).to_string(), "it was set by hand");
    assert_eq!(service.control("d/memory.low"), "0", "it is not in the file any more");
    assert_eq!(service.control("d/memory.max"), (4 << 20).to_string(), "the file says of it what it said");
    assert_eq!(service.control("b/memory.max"), (2 << 20).to_string());
    assert_eq!(service.control("c/memory.max"), (4 << 20).to_string(), "another name of it is in the file");
    let mnt = service.path("mnt");
    assert!(!has(&mnt, "one") && has(&mnt, "two") && has(&mnt, "memory"));
    assert_eq!(fs::read(service.path("one").join("f")).unwrap(), b"x", "it was written back first");
    fs::write(mnt.join("two/f"), "x").unwrap();
    assert!(has(&service.path("cg"), "other"), "requests are charged by the new rule");
    let (code, said) = service.reload_by_command(&[]);
    assert_eq!((code, said.as_str()), (Some(0), "nothing has changed\n"));
    let (status, said) = service.end();
    assert!(status.success() && said.contains("volume `two` added"), "{said}");
}

#[test]
fn a_mistake_in_the_file_changes_nothing() {
    needs_mount!();
    let service = Service::start(Some(BEFORE), &[]);
    let start = "[groups.\"/a\"]\n\"memory.max\" = \"16M\"\n";
    for (mistake, what) in [
        ("[groups.\"/b\"]\n\"memory.maxx\" = 1", "umemcg.toml:4: /b: there is no limit `memory.maxx`"),
        ("[groups.\"/b\"]\n\"memory.max\" = \"much\"", "umemcg.toml:4: /b: cannot set `memory.max`"),
        ("[volumes.two]\ndir = \"absent\"", "umemcg.toml:3: volume `two`: cannot use the directory"),
        ("[volumes.two]\ndirr = \"two\"", "unknown field `dirr`"),
        ("[volumes", "line 3"),
    ] {
        let status = service.reload(&format!("{start}{mistake}"));
        assert!(status.contains("; nothing is reloaded: ") && status.contains(what), "{mistake}: {status}");
        let (code, said) = service.reload_by_command(&[]);
        assert_eq!(code, Some(1), "{said}");
        assert!(said.contains(what), "{mistake}: {said}");
        assert_eq!(service.control("a/memory.max"), (8 << 20).to_string(), "{mistake}");
        assert!(!has(&service.path("cg"), "b") && has(&service.path("mnt"), "one"), "{mistake}");
    }
    fs::remove_file(service.path("umemcg.toml")).unwrap();
    service.signal(Signal::HUP);
    assert!(service.told("READY=1").contains("cannot read"));
    let (status, said) = service.end();
    assert!(status.success() && said.contains("nothing is reloaded"), "{said}");
}

#[test]
fn a_volume_added_by_hand_is_not_that_of_the_file() {
    needs_mount!();
    let file = "[volumes.one]\ndir = \"one\"\n";
    let service = Service::start(Some(file), &[]);
    for arguments in [&["remove", "one"][..], &["add", "one", "--tmpfs"]] {
        let (code, said) = service.umemcg(&[&["volume"], arguments].concat());
        assert_eq!(code, Some(0), "{said}");
    }
    fs::write(service.path("mnt").join("one/f"), "by hand").unwrap();
    for (text, expected) in [(file, "was added with"), ("", "nothing has changed")] {
        fs::write(service.path("umemcg.toml"), text).unwrap();
        let (_, said) = service.reload_by_command(&[]);
        assert!(said.contains(expected), "{said}");
        assert_eq!(fs::read(service.path("mnt").join("one/f")).unwrap(), b"by hand");
    }
    assert!(service.end().0.success());
}

#[test]
fn what_cannot_change_is_said_and_left() {
    needs_mount!();
    let service = Service::start(Some(BEFORE), &[]);
    let open = File::create(service.path("mnt").join("one/open")).unwrap();
    let after = r#"
        pool = "32M"
        page_cache = "own"
        [groups."/a"]
        "memory.max" = "8M"
        [volumes.memory]
        tmpfs = true
        size = "2M"
    "#;
    fs::write(service.path("umemcg.toml"), after).unwrap();
    let (code, said) = service.reload_by_command(&["--json"]);
    assert_eq!(code, Some(1), "{said}");
    let json: serde_json::Value = serde_json::from_str(said.lines().next().unwrap()).unwrap();
    let left: Vec<&str> =
        json["left"].as_array().unwrap().iter().map(|line| line.as_str().unwrap()).collect();
    let expected = ["`pool`", "`page_cache`", "volume `memory` stays", "volume `one` stays"];
    assert_eq!(left.len(), expected.len(), "{left:?}");
    for (line, expected) in left.iter().zip(expected) {
        assert!(line.contains(expected), "{line}");
    }
    assert!(has(&service.path("mnt"), "one"));
    // It is tried again when it is not busy any more. The kernel tells of a close a moment later.
    drop(open);
    crate::harness::until("the volume is removed", || {
        service.reload_by_command(&[]);
        !has(&service.path("mnt"), "one")
    });
    // As it was.
    let (code, said) = service.reload_by_command(&[]);
    assert!(code == Some(1) && said.contains("`pool`"), "{said}");
    fs::write(service.path("umemcg.toml"), BEFORE).unwrap();
    let (code, said) = service.reload_by_command(&[]);
    assert_eq!(code, Some(0), "{said}");
    assert!(has(&service.path("mnt"), "one"));
    assert!(service.end().0.success());
}
