//! The events that inotify reports of control files, with programs that watch them.

use std::fs;

use rustix::process::{Pid, Signal, kill_process};

use crate::harness::{Mount, Options, needs_mount, until};
use crate::real_mount::user::start_as_ordinary_user_with;

/// The start of every program: `watch(file)` gives a descriptor, `wait(fd)` waits for an event and
/// is true for `IN_MODIFY` alone, `is_silent(fd)` says that there is none. `charge(group,
/// megabytes)` is a program that writes so much.
const HEAD: &str = "
import ctypes, os, select, struct, subprocess
CG, MNT, UMEMCG = os.environ['CG'], os.environ['MNT'], os.environ['UMEMCG']
libc = ctypes.CDLL(None, use_errno=True)
MODIFY, ALL = 2, 0xfff & ~(0x1 | 0x10 | 0x20)
def watch(name):
    fd = libc.inotify_init1(os.O_CLOEXEC)
    assert libc.inotify_add_watch(fd, f'{CG}/{name}'.encode(), ALL) > 0
    return fd
def wait(fd):
    assert select.select([fd], [], [], 200)[0], 'no event came'
    events = os.read(fd, 4096)
    return all(mask == MODIFY for _, mask, _, _ in struct.iter_unpack('iIII', events))
def is_silent(fd):
    return not select.select([fd], [], [], 0)[0]
def read(name):
    with open(f'{CG}/{name}') as file: return dict(line.split() for line in file)
def charge(group, megabytes):
    script = f'echo $$ > {CG}/{group}/cgroup.procs; head -c {megabytes}M /dev/zero > {MNT}/{group}'
    return subprocess.Popen(['sh', '-ec', script])
";

fn python(mount: &Mount, program: &str) -> String {
    mount.sh(&format!("python3 - <<'END'\n{HEAD}{program}\nEND")).good().to_owned()
}

/// The processes that touch files for this daemon.
fn helpers(mount: &Mount) -> Vec<Pid> {
    let words = format!("__touch-control\0{}\0", mount.cg().display());
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let ids = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    ids.filter(|id| fs::read_to_string(format!("/proc/{id}/cmdline")).is_ok_and(|line| line.contains(&words)))
        .filter_map(Pid::from_raw)
        .collect()
}

/// Makes an event and waits until a watcher has heard of it.
fn hear(mount: &Mount) {
    let said = python(
        mount,
        "
event = watch('a/memory.events.local')
charge('a', 8).wait()
print(wait(event))
",
    );
    assert_eq!(said, "True");
}

#[test]
fn a_limit_that_was_met_is_heard_of_to_the_last_event() {
    needs_mount!();
    let mut mount = Mount::start();
    mount.sh("mkdir -p $CG/a/below $CG/idle; echo 4m > $CG/a/memory.max").good();
    let said = python(
        &mount,
        "
names = ['a/memory.events', 'a/memory.events.local']
heard = {name: watch(name) for name in names}
idle = [watch(f'{group}/{name}') for group in ('idle', 'a/below')
        for name in ('memory.events.local', 'cgroup.events', 'memory.current')]
writer = charge('a', 32)
seen, events = {}, {name: 0 for name in names}
while writer.poll() is None:
    for name, fd in heard.items():
        if not is_silent(fd):
            assert wait(fd)
            seen[name], events[name] = read(name)['max'], events[name] + 1
# What happened last is heard of, too.
for name, fd in heard.items():
    while seen.get(name) != read(name)['max']:
        assert wait(fd)
        seen[name] = read(name)['max']
    assert int(seen[name]) > 0
# Touches come in the order of passes: idle files would have been touched by now.
print(all(is_silent(fd) for fd in idle))
",
    );
    assert_eq!(said, "True");
    mount.assert_alive();
    mount.umount();
}

#[test]
fn the_first_and_the_last_process_of_a_group_are_heard_of() {
    needs_mount!();
    let mut mount = Mount::start();
    mount.sh("mkdir -p $CG/a/b").good();
    let said = python(
        &mount,
        "
files = ['a/cgroup.events', 'a/b/cgroup.events']
heard = [watch(file) for file in files]
quiet = watch('a/memory.events')
process = subprocess.Popen(['sleep', '1000'])
def change(do):
    do()
    return [(wait(fd), read(file)['populated']) for fd, file in zip(heard, files)]
def move():
    with open(f'{CG}/a/b/cgroup.procs', 'w') as procs: procs.write(str(process.pid))
def kill():
    process.kill(); process.wait()
print(change(move), change(kill), is_silent(quiet))
",
    );
    assert_eq!(said, "[(True, '1'), (True, '1')] [(True, '0'), (True, '0')] True");
    mount.umount();
}

#[test]
fn a_touch_by_hand_changes_nothing() {
    needs_mount!();
    let mut mount = Mount::start();
    mount.sh("mkdir $CG/a").good();
    let before = mount.sh("stat -c '%X %Y %Z' $CG/a/memory.events").good().to_owned();
    mount.sh("touch -m $CG/a/memory.events").good();
    assert_eq!(mount.sh("stat -c '%X %Y %Z' $CG/a/memory.events").good(), before);
    mount.umount();
}

#[test]
fn an_ordinary_user_hears_of_events_too() {
    needs_mount!();
    let options = Options { pool: "64M", ..Options::default() };
    let Some(mut mount) = start_as_ordinary_user_with(options) else { return };
    mount.group("a", "4m");
    hear(&mount);
    mount.umount();
}

#[test]
fn the_process_that_touches_files_ends_with_the_daemon() {
    needs_mount!();
    let endings: [fn(&mut Mount); 3] = [
        |mount| mount.umount(),
        |mount| {
            mount.signal(Signal::TERM);
            assert!(mount.wait().status.success());
        },
        |mount| mount.kill_daemon(),
    ];
    for end in endings {
        let mut mount = Mount::start();
        mount.group("a", "4m");
        assert_eq!(helpers(&mount), [], "started with the first event only");
        hear(&mount);
        assert_eq!(helpers(&mount).len(), 1);
        end(&mut mount);
        until("the process has ended", || helpers(&mount).is_empty());
    }
}

#[test]
fn a_killed_process_that_touches_files_is_started_again() {
    needs_mount!();
    let mut mount = Mount::start();
    mount.group("a", "4m");
    hear(&mount);
    let killed = helpers(&mount);
    kill_process(killed[0], Signal::KILL).unwrap();
    hear(&mount);
    assert_ne!(helpers(&mount), killed);
    assert_eq!(helpers(&mount).len(), 1);
    mount.assert_alive();
    // It holds the control mount only while it touches a file.
    until("the control mount is idle", || mount.sh("umount -i $CG").status.success());
    mount.sh("ls $MNT").good();
    mount.umount();
}
