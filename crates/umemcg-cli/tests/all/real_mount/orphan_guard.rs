//! The helper that ends the mount of a killed daemon, and the commands that do it where the helper
//! was killed, too.

use std::fs::{self, DirEntry, File};
use std::io::{Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};
use umemcg_fuse::mountinfo::mount_at;

use crate::harness::{
    Mount, Options, PROGRAM, TIMEOUT, is_mounted, lines, needs_mount, patiently, until, waits_in,
};
use crate::real_mount::outside_changes::FreezableStore;

/// Stands for a daemon: a thread of it ends first, then its main thread, and one stays, as one does
/// that waits in the kernel and cannot be killed.
const DAEMON: &str = "
import ctypes, platform, sys, threading, time
threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
other = threading.Thread(target=sys.stdin.read, args=(1,))
other.start()
other.join()
print(end='.', flush=True)
sys.stdin.read(1)
ctypes.CDLL(None).syscall({'x86_64': 60, 'aarch64': 93}[platform.machine()], 0)
";

/// The signals that end a service, as a mask.
const ENDING: u64 = mask_of(Signal::TERM) | mask_of(Signal::INT) | mask_of(Signal::HUP);

const fn mask_of(signal: Signal) -> u64 {
    1 << (signal.as_raw() - 1)
}

/// Returns a mask of signals of a process.
fn signals_of(process: Pid, mask: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", process.as_raw_nonzero())).unwrap();
    let mask = status.lines().find_map(|line| line.strip_prefix(mask)).unwrap();
    u64::from_str_radix(mask.trim(), 16).unwrap()
}

fn device_of(mount: &Mount) -> String {
    mount_at(&mount.mnt()).unwrap().unwrap().device
}

/// Starts the helper of a mount, with another process in the place of the daemon.
fn start_helper(mount: &Mount, daemon: &Child, abort: Stdio) -> Child {
    let mut helper = Command::new(PROGRAM);
    helper.arg("__orphan-guard").arg(mount.mnt()).arg(device_of(mount)).arg(daemon.id().to_string());
    helper.stdin(abort).spawn().unwrap()
}

#[test]
fn the_helper_waits_for_the_main_thread_alone() {
    needs_mount!();
    let mut mount = Mount::start();
    let mut daemon = Command::new("python3");
    daemon.args(["-c", DAEMON]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut daemon = daemon.spawn().unwrap();
    let device = device_of(&mount);
    let (_, minor) = device.split_once(':').unwrap();
    let abort = File::options().write(true).open(format!("/sys/fs/fuse/connections/{minor}/abort"));
    // Without that file system the helper unmounts.
    let abort = abort.map_or_else(|_| Stdio::null(), Stdio::from);
    let mut helper = start_helper(&mount, &daemon, abort);
    daemon.stdin.as_mut().unwrap().write_all(b".").unwrap();
    assert_eq!(daemon.stdout.as_mut().unwrap().read(&mut [0]).unwrap(), 1);
    std::thread::sleep(Duration::from_millis(300));
    assert!(helper.try_wait().unwrap().is_none(), "another thread has ended");
    let of_helper = Pid::from_child(&helper);
    until("it catches signals", || signals_of(of_helper, "SigCgt:") & ENDING == ENDING);
    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        kill_process(of_helper, signal).unwrap();
    }
    until("the signals have come", || signals_of(of_helper, "ShdPnd:") & ENDING == 0);
    assert!(helper.try_wait().unwrap().is_none(), "a signal for all processes of a service");
    mount.mnt().metadata().unwrap();
    daemon.stdin.as_mut().unwrap().write_all(b".").unwrap();
    assert!(patiently(None, &mut helper).success());
    assert!(daemon.try_wait().unwrap().is_none(), "a thread of it is left");
    let cut_off = [Errno::NOTCONN, Errno::CONNABORTED].map(|errno| Some(errno.raw_os_error()));
    until("programs get errors", || match mount.mnt().metadata() {
        Ok(_) => !is_mounted(&mount.mnt()),
        Err(error) => cut_off.contains(&error.raw_os_error()),
    });
    daemon.kill().unwrap();
    daemon.wait().unwrap();
    mount.wait();
}

#[test]
fn a_helper_that_comes_after_its_daemon_ends_no_mount() {
    needs_mount!();
    let mut mount = Mount::start();
    let device = device_of(&mount);
    let mut daemon = Command::new("true").spawn().unwrap();
    assert!(daemon.wait().unwrap().success());
    let (mnt, daemon) = (mount.mnt(), daemon.id().to_string());
    mount.umemcg(&["__orphan-guard", mnt.to_str().unwrap(), &device, &daemon]).good();
    mount.assert_alive();
    mount.umount();
}

#[test]
fn a_helper_ends_no_later_mount_with_the_number() {
    needs_mount!();
    let mut mount = Mount::start();
    let mut daemon = Command::new("sleep").arg("600").spawn().unwrap();
    let mut helper = start_helper(&mount, &daemon, Stdio::null());
    let place = || fs::read_to_string(format!("/proc/{}/wchan", helper.id()));
    until("it waits for the daemon's end", || place().is_ok_and(|place| place.contains("poll")));
    daemon.kill().unwrap();
    assert!(patiently(None, &mut helper).success());
    daemon.wait().unwrap();
    mount.assert_alive();
    mount.umount();
}

/// Returns the child of a process that has one.
fn child_of(parent: Pid) -> Pid {
    let line = format!("PPid:\t{}", parent.as_raw_nonzero());
    let is_child = |process: &DirEntry| {
        let status = fs::read_to_string(process.path().join("status"));
        status.is_ok_and(|status| status.lines().any(|of| of == line))
    };
    let child = fs::read_dir("/proc").unwrap().flatten().find(is_child).unwrap();
    Pid::from_raw(child.file_name().to_str().unwrap().parse().unwrap()).unwrap()
}

/// Kills a daemon and its helper while a thread of the daemon waits for its frozen store, which
/// cannot be killed. Returns the program that waits for the daemon.
fn kill_with_helper(mount: &Mount) -> Child {
    let program = Command::new("mkdir").arg(mount.mnt().join("new")).spawn().unwrap();
    let daemon = mount.pid().as_raw_nonzero().get().cast_unsigned();
    until("the daemon waits for the store", || {
        waits_in(program.id(), "request_wait_answer") && waits_in(daemon, "percpu_rwsem_wait")
    });
    for process in [child_of(mount.pid()), mount.pid()] {
        kill_process(process, Signal::KILL).unwrap();
    }
    until("its main thread has ended", || {
        fs::read_to_string(format!("/proc/{daemon}/status")).unwrap().contains("State:\tZ")
    });
    program
}

#[test]
fn an_umount_ends_a_mount_that_lost_daemon_and_helper() {
    needs_mount!();
    let Some(store) = FreezableStore::new() else { return };
    let mut mount = Mount::start_with(&Options { data: Some(store.path()), ..Options::default() });
    let frozen = store.freeze();
    let mut program = kill_with_helper(&mount);
    let mut umount = mount.shell("exec \"$UMEMCG\" umount \"$MNT/\"").spawn().unwrap();
    until("the program gets an error", || program.try_wait().unwrap().is_some());
    assert!(!program.wait().unwrap().success());
    drop(frozen);
    assert_eq!(patiently(None, &mut umount).code(), Some(4));
    assert!(!is_mounted(&mount.mnt()));
    assert_eq!(mount.wait().status.signal(), Some(9));
}

#[test]
fn a_mount_takes_over_from_a_daemon_that_cannot_end() {
    needs_mount!();
    let Some(store) = FreezableStore::new() else { return };
    let mut mount = Mount::start_with(&Options { data: Some(store.path()), ..Options::default() });
    let frozen = store.freeze();
    let mut program = kill_with_helper(&mount);
    let mut next = mount.shell("exec \"$UMEMCG\" mount \"$DATA\" \"$MNT\" --pool 64M");
    let mut next = next.stdout(Stdio::piped()).spawn().unwrap();
    until("the program gets an error", || program.try_wait().unwrap().is_some());
    assert!(!program.wait().unwrap().success());
    drop(frozen);
    let said = lines(next.stdout.take().unwrap()).recv_timeout(TIMEOUT).unwrap();
    assert!(said.contains("is served on"), "{said}");
    assert_eq!(mount.wait().status.signal(), Some(9));
    mount.umemcg(&["umount", mount.mnt().to_str().unwrap()]).good();
    assert!(patiently(None, &mut next).success());
}
