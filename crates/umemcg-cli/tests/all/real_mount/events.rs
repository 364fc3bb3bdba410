//! `cgroup.event_control` with a program that has real eventfds.

use crate::harness::{Mount, needs_mount, until};

/// The start of every program: `listen(group, file, arguments)` gives an eventfd, `wait(fd)` waits
/// for it and says how many events there were.
const HEAD: &str = "
import errno, os, select, sys
CG, MNT = os.environ['CG'], os.environ['MNT']
def put(group, line):
    fd = os.open(f'{CG}/{group}/cgroup.event_control', os.O_WRONLY)
    try: os.write(fd, line.encode())
    finally: os.close(fd)
def listen(group, name, arguments=''):
    event, control = os.eventfd(0, os.EFD_CLOEXEC), os.open(f'{CG}/{group}/{name}', os.O_RDONLY)
    put(group, f'{event} {control} {arguments}')
    os.close(control)
    return event
def wait(event):
    return os.eventfd_read(event)
def is_silent(event):
    return not select.select([event], [], [], 0)[0]
def refused(group, line):
    try: put(group, line)
    except OSError as error: return errno.errorcode[error.errno]
";

fn python(mount: &Mount, group: &str, program: &str) -> String {
    mount.sh_in(group, &format!("python3 - <<'END'\n{HEAD}{program}\nEND")).good().to_owned()
}

#[test]
fn a_program_gets_threshold_pressure_and_removal_events() {
    needs_mount!();
    let mut mount = Mount::start();
    mount.sh("mkdir -p $CG/a/b $CG/reader; echo 8m > $CG/a/memory.limit_in_bytes").good();
    mount.sh("head -c 6000000 /dev/zero > $MNT/f; sync $MNT/f; echo 3 > $CG/vm.drop_caches").good();
    let said = python(
        &mount,
        "a",
        "
usage, never = listen('a', 'memory.usage_in_bytes', '4M'), listen('a', 'memory.usage_in_bytes', '-1')
level = listen('a', 'memory.pressure_level', 'low,hierarchy')
oom = listen('a', 'memory.oom_control')
def read(name):
    with open(f'{MNT}/{name}', 'rb', buffering=0) as file:
        while file.read(1 << 17): pass
read('f')
print(wait(usage))
open(f'{CG}/a/memory.force_empty', 'w').write('0')
print(wait(usage))
print(is_silent(never), is_silent(oom))
# Three times through a limit that is too small: somebody has to scan.
open(f'{CG}/a/memory.limit_in_bytes', 'w').write('4M')
while is_silent(level): read('f')
print(wait(level) > 0)
below = listen('a/b', 'memory.usage_in_bytes', '1M')
os.rmdir(f'{CG}/a/b')
print(wait(below))
",
    );
    assert_eq!(said, "1\n1\nTrue True\nTrue\n1");
    // The program has ended, and its eventfds with it.
    mount.sh("echo $$ > $CG/tasks; echo 1 > $CG/a/memory.force_empty; rmdir $CG/a").good();
    let tasks = format!("/proc/{}/task", mount.pid().as_raw_nonzero());
    until("no listener, so no thread looks", || {
        let names = std::fs::read_dir(&tasks).unwrap().flatten();
        let names = names.map(|task| std::fs::read_to_string(task.path().join("comm")).unwrap_or_default());
        !names.into_iter().any(|name| name.trim() == "umemcg-events")
    });
    mount.assert_alive();
    mount.umount();
}

#[test]
fn malformed_registrations_are_refused_as_the_kernel_does() {
    needs_mount!();
    let mut mount = Mount::start();
    mount.sh("mkdir -p $CG/a $CG/c").good();
    let said = python(
        &mount,
        "a",
        "
event, file = os.eventfd(0), os.open('/dev/null', os.O_RDONLY)
usage, other = (os.open(f'{CG}/{group}/memory.usage_in_bytes', os.O_RDONLY) for group in ('a', 'c'))
level, stat = (os.open(f'{CG}/a/memory.{name}', os.O_RDONLY) for name in ('pressure_level', 'stat'))
path = os.open(f'{CG}/a/memory.usage_in_bytes', os.O_PATH)
data = os.open(f'{MNT}/.', os.O_RDONLY)
for line in [' ', 'x', f'{event}', f'{event} {usage} lots', f'{event} {other} 1M', f'{event} {stat}', f'{event} {file} 1M',
             f'{event} {data} 1M', f'{event} {level} high', f'{file} {usage} 1M', f'{usage} {usage} 1M']:
    print(refused('a', line), end=' ')
print()
for line in [f'999 {usage} 1M', f'{event} 999 1M', f'{event} {path} 1M']:
    print(refused('a', line), end=' ')
print()
print(refused('a', f'{event} {usage} 1M'), refused('a', f'{event} {level} medium,local'))
",
    );
    let nonsense = ["EINVAL"; 11].join(" ");
    assert_eq!(said, format!("{nonsense} \nEBADF EBADF EBADF \nNone None"));
    mount.assert_alive();
    mount.umount();
}
