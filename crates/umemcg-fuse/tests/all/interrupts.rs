//! A killed process ends immediately, whatever its request waits for; one that is merely signalled
//! does not notice.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::common::{Memory, TIMEOUT, TestMount, can_mount, end_of, within};
use rustix::process::{Pid, Signal, kill_process};

fn reader_of(path: &Path) -> Child {
    // A shell that runs the tests in the background may have them ignore what a keyboard sends, and
    // that is inherited.
    let mut command = Command::new("env");
    command.args(["--default-signal", "cat"]).arg(path);
    command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

fn send(child: &Child, signal: Signal) {
    kill_process(Pid::from_child(child), signal).unwrap();
}

fn hanging() -> (Arc<Memory>, TestMount) {
    let memory = Memory::with(&[("hang", b"x"), ("parked", b"")]);
    let mount = TestMount::new(memory.clone());
    (memory, mount)
}

#[test]
fn a_killed_reader_is_gone_while_the_store_hangs() {
    if !can_mount() {
        return;
    }
    for signal in [Signal::KILL, Signal::TERM, Signal::INT, Signal::QUIT] {
        let (memory, mount) = hanging();
        let mut child = reader_of(&mount.path("hang"));
        assert!(within(TIMEOUT, || mount.session.pool_counts().nr_running == 1).is_some());
        send(&child, signal);
        end_of(&mut child);
        assert_eq!(mount.session.pool_counts().nr_running, 1, "the store still hangs");
        memory.gate.open();
        assert!(
            within(TIMEOUT, || memory.late.load(Ordering::Relaxed) == 1).is_some(),
            "its answer came too late"
        );
    }
}

#[test]
fn a_killed_reader_is_gone_even_if_its_turn_has_not_come() {
    if !can_mount() {
        return;
    }
    let (memory, mount) = hanging();
    let mut children: Vec<Child> = (0..40).map(|_| reader_of(&mount.path("hang"))).collect();
    let pool_counts = || mount.session.pool_counts();
    assert!(within(TIMEOUT, || pool_counts().nr_running + pool_counts().nr_waiting == 40).is_some());
    assert!(pool_counts().nr_waiting > 0);
    children.iter().for_each(|child| send(child, Signal::KILL));
    for child in &mut children {
        end_of(child);
    }
    assert!(within(TIMEOUT, || mount.session.nr_inflight() <= 40).is_some());
    let nr_running = pool_counts().nr_running;
    memory.gate.open();
    assert!(within(TIMEOUT, || pool_counts().nr_running + pool_counts().nr_waiting == 0).is_some());
    let nr_run = memory.nr_reads.load(Ordering::Relaxed) as usize;
    // A running request may be answered before it reads.
    assert!(nr_run <= nr_running && nr_run < 40, "what waited was run in vain: {nr_run} of {nr_running}");
    assert!(within(TIMEOUT, || mount.session.nr_inflight() == 0).is_some());
}

#[test]
fn an_alarm_does_not_end_a_read() {
    if !can_mount() {
        return;
    }
    let (memory, mount) = hanging();
    let script = r#"$SIG{ALRM} = sub {}; open(F, "<", $ARGV[0]);
        $n = sysread(F, $b, 10); print defined $n ? "read $n" : "failed: $!";"#;
    let child =
        Command::new("perl").args(["-e", script]).arg(mount.path("hang")).stdout(Stdio::piped()).spawn();
    let child = child.unwrap();
    assert!(within(TIMEOUT, || mount.session.pool_counts().nr_running == 1).is_some());
    send(&child, Signal::ALARM);
    // The alarm has gone off when the watcher has looked at the thread a few times and found it
    // alive.
    assert!(within(TIMEOUT, || mount.session.nr_watched() == 1).is_some());
    assert!(within(Duration::from_millis(300), || mount.session.nr_inflight() == 0).is_none());
    memory.gate.open();
    let output = child.wait_with_output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "read 1");
}

#[test]
fn a_kill_after_an_alarm_is_noticed_without_another_interrupt() {
    if !can_mount() {
        return;
    }
    let (_memory, mount) = hanging();
    let script = r#"$SIG{ALRM} = sub {}; open(F, "<", $ARGV[0]); sysread(F, $b, 10);"#;
    let mut child = Command::new("perl").args(["-e", script]).arg(mount.path("hang")).spawn().unwrap();
    assert!(within(TIMEOUT, || mount.session.pool_counts().nr_running == 1).is_some());
    send(&child, Signal::ALARM);
    assert!(within(TIMEOUT, || mount.session.nr_watched() == 1).is_some());
    send(&child, Signal::KILL);
    end_of(&mut child);
}

#[test]
fn a_delayed_write_keeps_its_writer_waiting_until_its_answer() {
    if !can_mount() {
        return;
    }
    let (memory, mount) = hanging();
    let path = mount.path("parked");
    let writer = std::thread::spawn(move || std::fs::write(path, "four"));
    assert!(within(TIMEOUT, || !memory.parked.lock().unwrap().is_empty()).is_some());
    assert!(!writer.is_finished());
    let pool_counts = || mount.session.pool_counts();
    let is_idle = within(TIMEOUT, || pool_counts().nr_running + pool_counts().nr_waiting == 0);
    assert!(is_idle.is_some(), "no thread waits with the writer");
    let (mut reply, written) = memory.parked.lock().unwrap().remove(0);
    reply.written(written as usize).ignore();
    writer.join().unwrap().unwrap();
}

#[test]
fn a_killed_writer_is_gone_before_its_delayed_answer() {
    if !can_mount() {
        return;
    }
    let (memory, mount) = hanging();
    let mut child =
        Command::new("sh").args(["-c", "echo text > \"$0\""]).arg(mount.path("parked")).spawn().unwrap();
    assert!(within(TIMEOUT, || !memory.parked.lock().unwrap().is_empty()).is_some());
    send(&child, Signal::KILL);
    end_of(&mut child);
    let (mut reply, written) = memory.parked.lock().unwrap().remove(0);
    assert!(reply.is_cancelled());
    assert!(reply.written(written as usize).is_gone());
    assert!(within(TIMEOUT, || mount.session.nr_inflight() == 0).is_some());
}

#[test]
fn an_unanswered_request_fails_instead_of_hanging() {
    if !can_mount() {
        return;
    }
    let (memory, mount) = hanging();
    let path = mount.path("parked");
    let writer = std::thread::spawn(move || std::fs::write(path, "four"));
    assert!(within(TIMEOUT, || !memory.parked.lock().unwrap().is_empty()).is_some());
    memory.parked.lock().unwrap().clear();
    assert_eq!(writer.join().unwrap().unwrap_err().raw_os_error(), Some(5));
}
