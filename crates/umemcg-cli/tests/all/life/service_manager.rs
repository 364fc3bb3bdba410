//! What the service manager is told.

use std::fs;
use std::time::Duration;

use rustix::process::Signal;

use crate::harness::{needs_mount, until};
use crate::life::service::Service;

#[test]
fn the_service_manager_is_told_of_each_step() {
    needs_mount!();
    for service in [Service::start(None, &[]), Service::start_abstractly()] {
        // An idle daemon is alive.
        service.told("WATCHDOG=1");
        service.told("WATCHDOG=1");
        service.signal(Signal::TERM);
        let stopping = service.told("STOPPING=1");
        assert!(stopping.contains("EXTEND_TIMEOUT_USEC="), "{stopping}");
    }
}

/// The store is a mount whose daemon is stopped.
#[test]
fn a_store_that_hangs_is_no_reason_for_a_restart() {
    needs_mount!();
    let store = Service::start(None, &[]);
    let (code, said) = store.umemcg(&["volume", "add", "data", "--tmpfs"]);
    assert_eq!(code, Some(0), "{said}");
    let dir = store.path("mnt").join("data");
    fs::write(dir.join("file"), "here").unwrap();
    let service = Service::start(None, &[]);
    let (code, said) = service.umemcg(&["volume", "add", "slow", "--dir", dir.to_str().unwrap()]);
    assert_eq!(code, Some(0), "{said}");
    store.signal(Signal::STOP);
    let file = service.path("mnt").join("slow/file");
    let (sender, begun) = std::sync::mpsc::channel();
    let reader = std::thread::spawn(move || {
        sender.send(rustix::thread::gettid()).unwrap();
        fs::read(file).unwrap()
    });
    let state = format!("/proc/self/task/{}/stat", begun.recv().unwrap().as_raw_nonzero());
    until("the reader waits for the mount", || {
        let text = fs::read_to_string(&state).unwrap();
        text.rsplit_once(") ").is_some_and(|(_, fields)| fields.starts_with(['S', 'D']))
    });
    service.drop_messages();
    // Each look finds the request longer under way than a stuck reader may be.
    for _ in 0..10 {
        service.told("WATCHDOG=1");
    }
    assert!(!reader.is_finished(), "it waits for the store");
    store.signal(Signal::CONT);
    assert_eq!(reader.join().unwrap(), b"here");
    assert!(service.end().0.success());
}

/// With it, the threads that receive requests stand still.
#[test]
fn a_daemon_that_is_stopped_gives_no_sign_of_life() {
    needs_mount!();
    let service = Service::start(None, &[]);
    service.told("WATCHDOG=1");
    service.signal(Signal::STOP);
    // Ten times as long as its watchdog waits. What it had said before comes first.
    until("it says nothing", || service.is_silent_for(Duration::from_secs(1)));
    service.signal(Signal::CONT);
    service.told("WATCHDOG=1");
    assert!(service.end().0.success());
}

#[test]
fn a_hang_up_without_a_configuration_changes_nothing() {
    needs_mount!();
    let mut service = Service::start(None, &[]);
    service.close_stderr();
    service.signal(Signal::HUP);
    service.told("RELOADING=1");
    let ready = service.told("READY=1");
    assert!(ready.contains("without --config"), "{ready}");
    // Nothing reads what it logs any more.
    service.told("WATCHDOG=1");
    fs::create_dir(service.path("cg").join("a")).unwrap();
    let (code, said) = service.reload_by_command(&[]);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("without --config"), "{said}");
    let (status, _) = service.end();
    assert!(status.success(), "{status}");
}
