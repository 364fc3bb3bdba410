//! The payer of a request whose thread has ended: asynchronous reads of threads that end
//! immediately.

use std::io::Write;
use std::process::{Child, ChildStdin, Stdio};
use std::sync::mpsc;

use rustix::process::Pid;

use crate::harness::{Mount, Stopped, TIMEOUT, lines, needs_mount, patiently};

const MIB: u64 = 1 << 20;

/// A program in a group that says lines and is told when to go on. Killed when dropped, and the
/// daemon with it if that does not end it: a process with asynchronous reads under way ends with
/// the last of them.
struct Talker {
    process: Child,
    input: ChildStdin,
    output: mpsc::Receiver<String>,
    daemon: Pid,
}

impl Talker {
    fn start(mount: &Mount, group: &str, script: &str) -> Self {
        let script = format!("echo $$ > $CG/{group}/tasks\n{script}");
        let mut process = mount.shell(&script).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (input, output) = (process.stdin.take().unwrap(), lines(process.stdout.take().unwrap()));
        Self { process, input, output, daemon: mount.pid() }
    }

    fn tell(&mut self, line: &str) {
        writeln!(self.input, "{line}").unwrap();
    }

    #[track_caller]
    fn line(&mut self) -> String {
        self.output.recv_timeout(TIMEOUT).expect("it ended or said nothing for too long")
    }

    #[track_caller]
    fn expect(&mut self, line: &str) {
        assert_eq!(self.line(), line);
    }

    /// The id of the next thread that it starts.
    #[track_caller]
    fn thread(&mut self) -> u32 {
        self.line().strip_prefix("thread ").unwrap().parse().unwrap()
    }
}

impl Drop for Talker {
    fn drop(&mut self) {
        let _ = self.process.kill();
        patiently(Some(self.daemon), &mut self.process);
    }
}

/// A mount with a file of 32 MiB and the program that reads it. Where the kernel keeps the pages,
/// submitting buffered reads waits for them, so that no thread could end before its reads.
fn prepared() -> Mount {
    let mount = Mount::start_with_own_pages();
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/all/real_mount/aio_threads.c");
    mount.sh(&format!("gcc -O1 -pthread -o $MNT/../aio {source}")).good();
    mount.sh("head -c 32M /dev/urandom > $DATA/file").good();
    mount
}

fn usage(mount: &Mount, group: &str) -> u64 {
    mount.number(group, "memory.usage_in_bytes")
}

/// Returns the bytes that are the root's and no group's.
fn usage_of_root_alone(mount: &Mount) -> u64 {
    mount.value("", "memory.stat", "cache")
}

#[test]
fn reads_of_threads_that_have_ended_are_their_groups() {
    needs_mount!();
    let mount = prepared();
    mount.group("tenant", "64m");
    let before = usage_of_root_alone(&mount);
    let mut tenant = Talker::start(&mount, "tenant", "exec $MNT/../aio $MNT/file 8 4");
    tenant.expect("open");
    let stopped = Stopped::new(&mount);
    tenant.tell("begin");
    for _ in 0..8 {
        tenant.thread();
    }
    tenant.expect("submitted");
    drop(stopped);
    tenant.tell("read");
    tenant.expect("read 32");
    let (tenants, roots) = (usage(&mount, "tenant"), usage_of_root_alone(&mount) - before);
    assert!(tenants >= 30 * MIB && roots < MIB, "tenant: {tenants}, root: {roots} bytes");
}

#[test]
fn a_thread_id_that_is_used_again_does_not_charge_a_stranger() {
    needs_mount!();
    let mount = prepared();
    mount.group("tenant", "64m");
    mount.group("stranger", "64m");
    // Other programs start threads, too: tried again until the id is had.
    let (mut tenant, mut stranger, stopped) = an_id_used_again(&mount);
    drop(stopped);
    tenant.tell("read");
    tenant.expect("read 16");
    let (tenants, strangers) = (usage(&mount, "tenant"), usage(&mount, "stranger"));
    assert!(tenants >= 15 * MIB && strangers < MIB, "tenant: {tenants}, stranger: {strangers} bytes");
    stranger.tell("end");
}

/// A thread of the tenant that has ended with requests under way, and a process of the stranger
/// that has its id. Programs beside this one start threads, too, which may get that id first and
/// keep it: then there is another thread.
fn an_id_used_again(mount: &Mount) -> (Talker, Talker, Stopped) {
    for _ in 0..20 {
        mount.sh("for group in tenant stranger; do echo 0 > $CG/$group/memory.force_empty; done").good();
        let mut stranger = Talker::start(
            mount,
            "stranger",
            "echo ready; read id
             for ((n = 0; n < 100; n++)); do
                 echo $((id - 1)) > /proc/sys/kernel/ns_last_pid; setpriv --pdeathsig KILL sleep 1000 2> /dev/null &
                 [ $! = $id ] && break; kill $!
             done
             echo $!; read end; kill $!",
        );
        stranger.expect("ready");
        let mut tenant = Talker::start(mount, "tenant", "exec $MNT/../aio $MNT/file 1 16");
        tenant.expect("open");
        let stopped = Stopped::new(mount);
        tenant.tell("begin");
        let id = tenant.thread().to_string();
        tenant.expect("submitted");
        stranger.tell(&id);
        if stranger.line() == id {
            return (tenant, stranger, stopped);
        }
    }
    panic!("twenty ids were taken by other programs");
}

#[test]
fn for_an_opener_that_was_removed_its_parent_pays() {
    needs_mount!();
    let mount = prepared();
    mount.sh("mkdir $CG/parent $CG/parent/opener $CG/later").good();
    let mut tenant = Talker::start(&mount, "parent/opener", "exec $MNT/../aio $MNT/file 4 4");
    tenant.expect("open");
    mount
        .sh(&format!("echo {} > $CG/later/cgroup.procs; rmdir $CG/parent/opener", tenant.process.id()))
        .good();
    let stopped = Stopped::new(&mount);
    tenant.tell("begin");
    for _ in 0..4 {
        tenant.thread();
    }
    tenant.expect("submitted");
    drop(stopped);
    tenant.tell("read");
    tenant.expect("read 16");
    let (parents, laters) = (usage(&mount, "parent"), usage(&mount, "later"));
    assert!(parents >= 15 * MIB && laters < MIB, "parent: {parents}, later: {laters} bytes");
}
