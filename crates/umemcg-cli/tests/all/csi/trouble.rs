//! A daemon that is not there, hangs, or has lost what it served: the plugin starts, answers and
//! ends in bounded time, and goes on once the daemon does.

use std::fs;
use std::io::Read;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use umemcg_csi::client::Client;

use crate::csi::GROUP_LIMITS;
use crate::csi::node::{Code, Node, Pod, code, until_not_aborted};
use crate::csi::slow_daemon::Way;
use crate::harness::{Stopped, needs_mount, until};

/// Longest that the plugin takes to start, and to end: 20 seconds, and something for a busy
/// machine.
const START_WITHIN: Duration = Duration::from_secs(10);
const END_WITHIN: Duration = Duration::from_secs(35);
/// The time that an impatient client waits. The plugin answers a tenth of it before, which has to
/// be enough on a busy machine, and is more than the five seconds that a request waits for a place.
const HASTE: Duration = Duration::from_secs(20);
const TMPFS: [(&str, &str); 1] = [("type", "tmpfs")];

fn until_ready(client: &Client) {
    until("the plugin is ready", || client.probe().is_ok_and(|is_ready| is_ready));
}

#[test]
fn a_plugin_started_before_its_daemon_becomes_ready() {
    needs_mount!();
    let mut node = Node::start();
    let (client, pod) = (node.connect(), Pod::new("shop", "web-0"));
    client.stage(node.staged("data", &GROUP_LIMITS)).unwrap();
    client.publish(node.published("data", Some(&pod), &GROUP_LIMITS)).unwrap();
    node.kill_plugin();
    node.mount.kill_daemon();
    node.start_plugin();
    let client = node.connect();
    assert!(!client.probe().unwrap());
    let refused = client.stage(node.staged("other", &TMPFS)).unwrap_err();
    assert_eq!(refused.code(), Code::Unavailable);
    assert!(refused.message().contains("not ready"), "{refused}");
    node.mount.start_daemon(&["--pool", "256M"]);
    until_ready(&client);
    // Without a request of kubelet's.
    assert_eq!(node.mount.number("shop/web-0", "memory.max"), 64 << 20);
    fs::write(node.target(&pod).join("f"), "x").unwrap();
    assert_eq!(fs::read(node.mount.mnt().join("data/f")).unwrap(), b"x");
    node.unpublish_until_done(&client, "data", &pod);
    node.unstage_until_done(&client, "data");
    node.assert_nothing_left();
}

#[test]
fn a_hung_daemon_delays_neither_start_nor_end() {
    needs_mount!();
    let mut node = Node::start();
    for number in 0..8 {
        node.connect().stage(node.staged(&format!("v{number}"), &TMPFS)).unwrap();
    }
    node.kill_plugin();
    let stopped = Stopped::new(&node.mount);
    let began = Instant::now();
    node.start_plugin();
    assert!(began.elapsed() < START_WITHIN, "{:?}", began.elapsed());
    let client = node.connect();
    assert!(!client.probe().unwrap());
    assert_eq!(code(client.stage(node.staged("other", &TMPFS))), Code::Unavailable);
    assert_eq!(code(client.unstage("v0", "/staging")), Code::Unavailable);
    // Amid recovery, which waits for the daemon.
    let (status, took) = node.end_plugin();
    assert!(status.success() && took < END_WITHIN, "{status} after {took:?}");
    drop(stopped);
    node.start_plugin();
    let client = node.connect();
    for number in 0..8 {
        node.unstage_until_done(&client, &format!("v{number}"));
    }
    node.assert_nothing_left();
}

#[test]
fn a_plugin_ends_though_its_clients_stay() {
    needs_mount!();
    let (mut node, slow) = Node::start_behind_slow_daemon();
    // One says nothing, one is idle, and one waits for a daemon that never answers.
    let silent = UnixStream::connect(node.socket()).unwrap();
    let (idle, asking) = (node.connect(), node.connect());
    until_ready(&idle);
    slow.set(Way::Held("volume_add"));
    let request = node.staged("data", &TMPFS);
    let asked = std::thread::spawn(move || asking.stage(request));
    until("the request is begun", || node.nr_staged() == 1);
    let (status, took) = node.end_plugin();
    assert!(status.success() && took < END_WITHIN, "{status} after {took:?}");
    assert!(!node.socket().exists());
    assert!(asked.join().unwrap().is_err());
    drop((silent, idle));
    // The record says what was begun.
    slow.set(Way::Open);
    node.start_plugin();
    let client = node.connect();
    until_not_aborted(|| client.stage(node.staged("data", &TMPFS)));
    node.unstage_until_done(&client, "data");
    node.assert_nothing_left();
}

#[test]
fn a_request_that_hangs_is_answered_and_repeated() {
    needs_mount!();
    let (node, slow) = Node::start_behind_slow_daemon();
    let (client, pod) = (node.connect(), Pod::new("shop", "web-0"));
    until_ready(&client);
    slow.set(Way::Held("volume_add"));
    let request = node.ephemeral("inline", &pod, &GROUP_LIMITS);
    let hasty = node.connect().waiting(HASTE);
    let late = hasty.publish(request.clone()).unwrap_err();
    assert_eq!(late.code(), Code::DeadlineExceeded);
    assert!(late.message().contains("has not answered"), "{late}");
    assert_eq!(node.nr_records(), 1);
    assert_eq!(code(client.publish(request.clone())), Code::Aborted);
    slow.set(Way::Open);
    until_not_aborted(|| client.publish(request.clone()));
    assert_eq!(node.mount.number("shop/web-0", "memory.max"), 64 << 20);
    node.unpublish_until_done(&client, "inline", &pod);
    node.assert_nothing_left();
}

#[test]
fn control_files_that_hang_are_left_in_time() {
    needs_mount!();
    let (node, slow) = Node::start_behind_slow_daemon();
    let (client, pod) = (node.connect(), Pod::new("shop", "web-0"));
    until_ready(&client);
    // Its socket answers, and its files do not.
    slow.set(Way::Made);
    let stopped = Stopped::new(&node.mount);
    let request = node.ephemeral("inline", &pod, &GROUP_LIMITS);
    let hasty = node.connect().waiting(HASTE);
    assert_eq!(code(hasty.publish(request.clone())), Code::DeadlineExceeded);
    assert!(client.probe().unwrap());
    drop(stopped);
    // What the request still does, it does with the daemon.
    slow.set(Way::Open);
    until("the request has ended", || client.publish(request.clone()).is_ok());
    node.unpublish_until_done(&client, "inline", &pod);
    node.assert_nothing_left();
}

#[test]
fn requests_that_hang_leave_room_for_a_probe() {
    needs_mount!();
    let (node, slow) = Node::start_behind_slow_daemon();
    let client = node.connect();
    until_ready(&client);
    let calm = Pod::new("bank", "calm");
    client.publish(node.ephemeral("calm", &calm, &TMPFS)).unwrap();
    let target = node.target(&calm).display().to_string();
    client.stats("calm", &target).unwrap();
    slow.set(Way::Held("volume_add"));
    let pods: Vec<Pod> = (0..12).map(|number| Pod::new("shop", &format!("web-{number}"))).collect();
    let hasty = node.connect().waiting(HASTE);
    std::thread::scope(|scope| {
        let asked = pods.iter().map(|pod| {
            let (request, hasty) = (node.ephemeral(&pod.name, pod, &TMPFS), &hasty);
            scope.spawn(move || code(hasty.publish(request)))
        });
        let asked: Vec<_> = asked.collect();
        let codes: Vec<Code> = asked.into_iter().map(|asked| asked.join().unwrap()).collect();
        let nr = |code| codes.iter().filter(|found| **found == code).count();
        // Those of one namespace have six threads.
        assert_eq!((nr(Code::DeadlineExceeded), nr(Code::Unavailable)), (6, 6), "{codes:?}");
    });
    assert!(client.probe().unwrap());
    let stopped = Stopped::new(&node.mount);
    for _ in 0..3 {
        let unwell = client.probe().unwrap_err();
        assert_eq!(unwell.code(), Code::FailedPrecondition);
        assert!(unwell.message().contains("has not answered within"), "{unwell}");
    }
    assert!(client.stats("calm", &target).is_err());
    drop(stopped);
    client.stats("calm", &target).unwrap();
    slow.set(Way::Open);
    node.unpublish_until_done(&client, "calm", &calm);
    for pod in &pods {
        until_not_aborted(|| client.publish(node.ephemeral(&pod.name, pod, &TMPFS)));
        node.unpublish_until_done(&client, &pod.name, pod);
    }
    node.assert_nothing_left();
}

#[test]
fn one_connection_too_many_is_refused() {
    needs_mount!();
    let node = Node::start();
    let connect = |_| UnixStream::connect(node.socket()).unwrap();
    let mut open: Vec<UnixStream> = (0..64).map(connect).collect();
    // Whether the plugin has come to each of them is seen by the one that it closes.
    assert_eq!(connect(64).read(&mut [0]).unwrap(), 0);
    open.truncate(60);
    until("there is room again", || {
        Client::connect(&node.socket()).is_ok_and(|client| client.probe().is_ok())
    });
}

#[test]
fn what_a_killed_daemon_left_is_taken_down() {
    needs_mount!();
    // With its successor, which has no volumes, and without one.
    for is_started in [true, false] {
        let mut node = Node::start();
        let client = node.connect();
        let pods = ["web-0", "inline-0", "lost-0"].map(|name| Pod::new("shop", name));
        client.stage(node.staged("data", &GROUP_LIMITS)).unwrap();
        client.publish(node.published("data", Some(&pods[0]), &GROUP_LIMITS)).unwrap();
        client.publish(node.ephemeral("inline", &pods[1], &GROUP_LIMITS)).unwrap();
        client.publish(node.ephemeral("lost", &pods[2], &GROUP_LIMITS)).unwrap();
        node.mount.kill_daemon();
        for pod in &pods {
            let dead = fs::read_dir(node.target(pod)).unwrap_err();
            assert_eq!(dead.kind(), std::io::ErrorKind::NotConnected);
        }
        if is_started {
            node.mount.start_daemon(&["--pool", "256M"]);
        } else {
            node.kill_plugin();
            node.start_plugin();
        }
        // A target whose record is lost is one that shows a mount of the daemon.
        node.lose_record_of(&pods[2]);
        let client = node.connect();
        for _ in 0..2 {
            node.unpublish_until_done(&client, "data", &pods[0]);
            node.unpublish_until_done(&client, "inline", &pods[1]);
            node.unpublish_until_done(&client, "lost", &pods[2]);
            node.unstage_until_done(&client, "data");
        }
        if !is_started {
            node.mount.start_daemon(&["--pool", "256M"]);
        }
        node.assert_nothing_left();
        assert!(!crate::harness::is_mounted(&node.target(&pods[2])));
    }
}
