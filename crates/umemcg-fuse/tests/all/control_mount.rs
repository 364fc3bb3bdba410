//! The guarantees of the mounted control tree to shells and programs.

use std::io::{Read, Seek, Write};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use crate::common::hanging::Hanging;
use crate::common::{TIMEOUT, TestMount, can_mount, end_of, within};
use umemcg::{Engine, EngineConfig, Group};
use umemcg_control::{ControlTree, Membership};
use umemcg_fuse::{Classifier, ControlFs, ProcessClassifier, Tracking, Unmount};

const MIB: u64 = 1 << 20;

/// A mounted control tree over a small engine.
struct Mount {
    engine: Arc<Engine>,
    classifier: Arc<ProcessClassifier>,
    files: Arc<ControlFs>,
    mount: TestMount,
}

impl Mount {
    fn new() -> Option<Self> {
        if !can_mount() {
            return None;
        }
        let engine = Engine::new(EngineConfig::new(64 * MIB)).unwrap();
        let classifier = Arc::new(ProcessClassifier::new(Arc::clone(&engine), Vec::new()).unwrap());
        let tree = ControlTree::new(Arc::clone(&engine), Arc::clone(&classifier) as Arc<dyn Membership>);
        let files = ControlFs::new(Arc::new(tree), Arc::clone(&classifier) as _);
        let mount = TestMount::new(Arc::clone(&files) as _);
        Some(Self { engine, classifier, files, mount })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.mount.path(name)
    }

    fn command(&self, script: &str) -> Command {
        // Its `echo` says which error it met; that of other shells only says that there was one.
        let mut command = Command::new("bash");
        command.args(["-c", script]).current_dir(self.mount.point()).env("LC_ALL", "C");
        command
    }

    /// Runs a script in the top directory; what it printed, errors included.
    fn sh(&self, script: &str) -> String {
        let output = self.command(&format!("exec 2>&1\n{script}")).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    }

    /// Runs a script that must succeed.
    fn ok(&self, script: &str) -> String {
        let output = self.command(script).output().unwrap();
        assert!(output.status.success(), "{script}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    /// A shell that runs until its input ends, and its process id.
    fn shell(&self, script: &str) -> (Child, u32) {
        let child = self.command(script).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let id = child.id();
        (child, id)
    }

    fn group(&self, path: &str) -> Arc<Group> {
        self.engine.tree().lookup(path.as_ref()).unwrap()
    }
}

fn finish(mut child: Child) {
    drop(child.stdin.take());
    end_of(&mut child);
}

#[test]
fn the_transcript_of_a_limited_shell() {
    let Some(mount) = Mount::new() else { return };
    let shown = mount.ok("mkdir A\n\
         echo 64m > A/memory.limit_in_bytes\n\
         echo $$ > A/tasks\n\
         cat A/memory.limit_in_bytes A/memory.usage_in_bytes A/memory.failcnt\n\
         grep -c ^total_ A/memory.stat\n\
         grep -qx $$ A/cgroup.procs && echo member\n\
         cat A/memory.use_hierarchy");
    let lines: Vec<&str> = shown.lines().collect();
    assert_eq!(lines[..3], ["67108864", "0", "0"]);
    assert!(lines[3].parse::<u32>().unwrap() > 10);
    assert_eq!(lines[4..], ["member", "1"]);
}

#[test]
fn errors_are_those_of_the_kernels_own_tree() {
    let Some(mount) = Mount::new() else { return };
    mount.ok("mkdir A A/B");
    for (script, message) in [
        ("echo xx > A/memory.limit_in_bytes", "Invalid argument"),
        ("echo -5 > A/memory.limit_in_bytes", "Invalid argument"),
        ("echo 1.5 > A/memory.max", "Invalid argument"),
        ("echo 99999999999999999999 > A/memory.max", "Invalid argument"),
        ("echo 1g > memory.limit_in_bytes", "Invalid argument"),
        ("echo 1 > memory.force_empty", "Invalid argument"),
        ("cat A/memory.force_empty", "Invalid argument"),
        ("echo 1 > A/memory.stat", "Invalid argument"),
        ("echo 2147483647 > A/tasks", "No such process"),
        ("echo -1 > A/cgroup.procs", "Invalid argument"),
        ("echo 0 > A/memory.use_hierarchy", "Invalid argument"),
        ("echo 1m > A/memory.reclaim", "Resource temporarily unavailable"),
        (
            "head -c 1048576 /dev/zero | tr '\\0' 1 | dd bs=1M iflag=fullblock of=A/memory.max",
            "Argument list too long",
        ),
        ("echo 1 > A/no.such.file", "Permission denied"),
        ("cat A/no.such.file", "No such file"),
        ("cat memory.max", "No such file"),
        ("rm A/tasks", "Operation not permitted"),
        ("ln A/tasks A/x", "Operation not permitted"),
        ("ln -s A/tasks x", "Operation not permitted"),
        ("mkfifo A/x", "Operation not permitted"),
        ("python3 -c 'import os; os.mknod(\"A/x\", 0o100644)'", "Permission denied"),
        ("python3 -c 'import os; os.setxattr(\"A/tasks\", \"system.a\", b\"b\")'", "Operation not supported"),
        ("python3 -c 'import os; os.getxattr(\"A\", \"trusted.a\")'", "No data available"),
        ("echo 1g > memory.kmem.limit_in_bytes", "Invalid argument"),
        ("echo 1g > memory.kmem.tcp.limit_in_bytes", "Invalid argument"),
        ("mkdir A/tasks", "File exists"),
        ("mkdir A/B", "File exists"),
        ("mkdir \"A/$(printf 'new\\nline')\"", "Invalid argument"),
        ("mkdir A/$(printf %0256d 0)", "File name too long"),
        ("rmdir A", "Device or resource busy"),
        ("rmdir A/tasks", "Not a directory"),
        ("mv A/B B", "Input/output error"),
        ("mv -T A/tasks A/jobs", "Not a directory"),
    ] {
        let shown = mount.sh(script);
        assert!(shown.contains(message), "{script}: {shown}");
    }
    assert_eq!(mount.ok("cat A/memory.limit_in_bytes A/memory.max"), "9223372036854771712\nmax\n");
}

#[test]
fn a_failed_write_fails_in_write_and_not_in_close() {
    let Some(mount) = Mount::new() else { return };
    mount.ok("mkdir A");
    let mut file = std::fs::OpenOptions::new().append(true).open(mount.path("A/memory.max")).unwrap();
    assert_eq!(file.write(b"x").unwrap_err().raw_os_error(), Some(22));
    assert_eq!(file.write(b"1m\n").unwrap(), 3, "the file still works, wherever its position is");
    assert_eq!(file.write(b"2m\0\0\0").unwrap(), 5);
    assert_eq!(mount.ok("cat A/memory.max"), "2097152\n");
    drop(file);
    assert!(within(TIMEOUT, || mount.files.nr_open_files() == 0).is_some());
}

#[test]
fn a_listing_shows_modes_owners_and_sizes_of_pages() {
    let Some(mount) = Mount::new() else { return };
    mount.ok("mkdir A A/B");
    let long = mount.ok("ls -l A");
    let line = |name: &str| long.lines().find(|line| line.ends_with(&format!(" {name}"))).unwrap().to_owned();
    // As in sysfs: a page, of which a part is there. What cannot be read has none.
    assert!(line("memory.limit_in_bytes").starts_with("-rw-r--r-- 1 root root 4096 "), "{long}");
    assert!(line("memory.force_empty").contains(" root root    0 "), "{long}");
    assert!(line("memory.stat").starts_with("-r--r--r-- 1 "), "{long}");
    assert!(line("memory.force_empty").starts_with("--w------- 1 "), "{long}");
    assert!(line("B").starts_with("drwxr-xr-x 2 "), "{long}");
    assert_eq!(std::fs::metadata(mount.path("A")).unwrap().nlink(), 3);
    let names = mount.ok("ls -a A");
    for row in ControlTree::rows().iter().filter(|row| row.is_in(false)) {
        assert!(names.lines().any(|name| name == row.name), "{}", row.name);
    }
    assert_eq!(mount.ok("mkdir -m 700 C; stat -c %a C"), "700\n");
}

#[test]
fn a_set_gid_directory_hands_its_owning_group_on() {
    let Some(mount) = Mount::new() else { return };
    mount.ok("mkdir A; chgrp 5 A; chmod g+s A; mkdir A/B A/B/C");
    assert_eq!(mount.ok("stat -c '%g %A' A/B A/B/C"), "5 drwxr-sr-x\n5 drwxr-sr-x\n");
    assert_eq!(mount.ok("stat -c %g A/B/C/memory.max"), "5\n");
}

/// Compares with the output of Linux 6.18 on cgroupfs, but that a value may be replaced by one that
/// fits only without it.
#[test]
fn extended_attributes_are_as_on_cgroupfs() {
    let Some(mount) = Mount::new() else { return };
    mount.ok("mkdir A; chmod 755 .");
    let script = r#"
import errno, os, sys
def tried(act, *args):
    try:
        return act(*args)
    except OSError as error:
        return errno.errorcode[error.errno]
def as_user(act, *args):
    sys.stdout.flush()
    if os.fork() == 0:
        os.setgid(1000)
        os.setuid(1000)
        print(tried(act, *args), flush=True)
        os._exit(0)
    os.wait()
for at in ['A', 'A/cgroup.procs']:
    for name in ['user.oomd_omit', 'trusted.delegate', 'user.', 'security.a', 'system.a', 'a.b']:
        print(tried(os.setxattr, at, name, b'1'), end=' ')
    print(sorted(os.listxattr(at)), os.getxattr(at, 'trusted.delegate'))
    print(tried(os.setxattr, at, 'user.oomd_omit', b'2', os.XATTR_CREATE),
          tried(os.setxattr, at, 'user.none', b'2', os.XATTR_REPLACE), tried(os.removexattr, at, 'user.none'),
          tried(os.getxattr, at, 'user.none'), tried(os.getxattr, at, 'system.a'))
    print([tried(os.setxattr, at, f'user.{n}', bytes(65535)) for n in range(3)])
    os.removexattr(at, 'user.1')
    print([tried(os.setxattr, at, f'user.n{n}', b'') for n in range(200)].index('ENOSPC'))
    for name in ['user.oomd_omit', 'trusted.delegate']:
        as_user(os.getxattr, at, name)
        as_user(os.setxattr, at, name, b'3')
    as_user(lambda: [name for name in os.listxattr(at) if not name.startswith('user.n')])
    os.chown(at, 1000, 1000)
    as_user(os.setxattr, at, 'user.oomd_omit', b'3')
"#;
    let output =
        Command::new("python3").args(["-c", script]).current_dir(mount.mount.point()).output().unwrap();
    let shown = String::from_utf8(output.stdout).unwrap();
    let expected = "\
None None EINVAL ENOTSUP ENOTSUP ENOTSUP ['trusted.delegate', 'user.oomd_omit'] b'1'
EEXIST ENODATA ENODATA ENODATA ENOTSUP
[None, None, 'ENOSPC']
126
b'1'
EACCES
ENODATA
EPERM
['user.0', 'user.oomd_omit']
None
";
    assert_eq!(shown, expected.repeat(2), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn times_move_with_what_they_are_times_of() {
    let Some(mount) = Mount::new() else { return };
    mount.ok("mkdir A");
    let times = |path: &str| {
        let found = std::fs::metadata(mount.path(path)).unwrap();
        ((found.mtime(), found.mtime_nsec()), (found.ctime(), found.ctime_nsec()))
    };
    let [mut last, file] = ["A", "A/tasks"].map(times);
    for change in ["mkdir A/B", "mv -T A/B A/C", "rmdir A/C"] {
        mount.ok(change);
        let now = times("A");
        assert!(now.0 > last.0 && now.1 > last.1, "{change}: {last:?} {now:?}");
        last = now;
    }
    mount.ok("chmod 700 A; chmod 600 A/tasks");
    assert!(times("A").0 == last.0 && times("A").1 > last.1, "the mode bits are no content");
    assert!(times("A/tasks").0 == file.0 && times("A/tasks").1 > file.1);
}

#[test]
fn find_removes_a_tree_although_files_are_in_it() {
    let Some(mount) = Mount::new() else { return };
    mount.ok("mkdir -p a/b/c a/b/d a/e; for n in $(seq 300); do mkdir a/e/$n; done");
    assert_eq!(mount.ok("ls -d a/e/*/ | wc -l").trim(), "300");
    mount.ok("find a -depth -type d -delete");
    assert!(!mount.path("a").exists());
    assert_eq!(mount.ok("cat cgroup.stat"), "nr_descendants 0\nnr_dying_descendants 0\n");
}

#[test]
fn a_group_that_is_somebodys_working_directory_can_go() {
    let Some(mount) = Mount::new() else { return };
    assert_eq!(mount.ok("mkdir A; cd A; rmdir ../A; ls | wc -l").trim(), "0");
    let mut file = {
        mount.ok("mkdir A");
        let file = std::fs::File::open(mount.path("A/memory.max")).unwrap();
        mount.ok("rmdir A");
        file
    };
    assert_eq!(file.read(&mut [0; 10]).unwrap_err().raw_os_error(), Some(19), "ENODEV");
}

#[test]
fn small_reads_see_one_content_and_a_rewind_a_new_one() {
    let Some(mount) = Mount::new() else { return };
    mount.ok("mkdir A; echo 64m > A/memory.max");
    assert_eq!(mount.ok("dd if=A/memory.max bs=1 2>/dev/null"), "67108864\n");
    let mut file = std::fs::File::open(mount.path("A/memory.max")).unwrap();
    let mut start = [0; 2];
    file.read_exact(&mut start).unwrap();
    mount.ok("echo 1m > A/memory.max");
    let mut text = String::new();
    file.read_to_string(&mut text).unwrap();
    assert_eq!((&start, &*text), (b"67", "108864\n"));
    file.rewind().unwrap();
    text.clear();
    file.read_to_string(&mut text).unwrap();
    assert_eq!(text, "1048576\n");
}

/// Tools that let the kernel copy, and those that look at the size first.
#[test]
fn every_tool_reads_what_is_there_and_nothing_else() {
    let Some(mount) = Mount::new() else { return };
    mount.ok("mkdir A; echo 64m > A/memory.max");
    let directory = tempfile::tempdir().unwrap();
    let copy = directory.path().join("copy");
    let stat = mount.ok("while read -r line; do echo \"$line\"; done < A/memory.stat");
    for (file, text) in [("A/memory.max", "67108864\n"), ("A/memory.stat", &*stat)] {
        for tool in [
            "cat $F > $C",
            "cat $F | cat > $C",
            "cp $F $C",
            "dd if=$F of=$C 2>/dev/null",
            "busybox cat $F > $C",
            "busybox cat $F | cat > $C",
            "busybox cp $F $C",
            "tail -n +1 $F > $C",
            "tail -n 1000 $F > $C",
            "head -n 1000 $F > $C",
            "grep '' $F > $C",
            "python3 -c 'import shutil, sys; shutil.copyfile(*sys.argv[1:])' $F $C",
            "python3 -c 'import sys; sys.stdout.write(open(sys.argv[1]).read())' $F > $C",
        ] {
            let shown = mount.sh(&format!("F={file} C={}; {tool}", copy.display()));
            let copied = std::fs::read_to_string(&copy).unwrap_or_default();
            assert_eq!(copied, text, "{tool}: {shown}");
            let _ = std::fs::remove_file(&copy);
        }
        // The standard library asks the kernel for it in several ways.
        let mut open = std::fs::File::open(mount.path(file)).unwrap();
        std::io::copy(&mut open, &mut std::fs::File::create(&copy).unwrap()).unwrap();
        assert_eq!(std::fs::read_to_string(&copy).unwrap(), text);
        let (mut near, mut far) = std::os::unix::net::UnixStream::pair().unwrap();
        open.rewind().unwrap();
        assert_eq!(std::io::copy(&mut open, &mut near).unwrap(), text.len() as u64);
        drop(near);
        let mut received = String::new();
        far.read_to_string(&mut received).unwrap();
        assert_eq!(received, text);
        assert_eq!(mount.ok(&format!("wc -c < {file}")).trim(), text.len().to_string());
    }
}

#[test]
fn a_peak_is_reset_for_one_open_file() {
    let Some(mount) = Mount::new() else { return };
    mount.ok("mkdir A");
    drop(mount.group("/A").try_charge(20 * MIB).unwrap());
    let own = mount.ok("exec 3<>A/memory.peak; echo 1 >&3; dd bs=100 count=1 <&3 iflag=nonblock 2>/dev/null; cat A/memory.peak");
    let mib: Vec<u64> = own.lines().map(|line| line.parse::<u64>().unwrap() / MIB).collect();
    assert_eq!(mib.last(), Some(&20));
    assert!(mib.len() == 1 || mib[0] <= 1, "{mib:?}");
}

#[test]
fn children_of_a_member_are_members_whatever_they_do() {
    let Some(mount) = Mount::new() else { return };
    mount.ok("mkdir A");
    let (mut child, shell) = mount.shell(
        "exec 3<&0; echo 0 > A/cgroup.procs; (setsid sh -c 'echo $$; read end' <&3 &); sh -c 'echo $$; read end' <&3",
    );
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(child.stdout.take().unwrap()));
    let pids: Vec<u32> = lines.by_ref().take(2).map(|line| line.unwrap().parse().unwrap()).collect();
    let exact = mount.classifier.tracking() == Tracking::Hierarchy;
    for pid in [shell].iter().chain(pids.iter().filter(|_| exact)) {
        assert_eq!(mount.classifier.classify(*pid, 0, 0).path(), PathBuf::from("/A"), "{pid}");
    }
    if exact {
        let mut all: Vec<u32> =
            mount.ok("cat A/cgroup.procs").lines().map(|line| line.parse().unwrap()).collect();
        all.sort_unstable();
        let mut expected = [&[shell][..], &pids].concat();
        expected.sort_unstable();
        assert_eq!(all, expected);
    }
    assert!(mount.sh("rmdir A").contains("Device or resource busy"));
    assert_eq!(mount.ok("cat A/cgroup.events"), "populated 1\nfrozen 0\n");
    mount.ok("for p in $(cat A/cgroup.procs); do echo $p > cgroup.procs; done; rmdir A");
    finish(child);
}

#[test]
fn a_subtree_is_delegated_with_chown() {
    let Some(mount) = Mount::new() else { return };
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED: delegation to another user needs root");
        return;
    }
    mount.ok("mkdir A A/in other; chown -R 65534:65534 A; chown root A/memory.max A/memory.limit_in_bytes");
    let user = |script: &str| {
        let mut command = Command::new("setpriv");
        command.args([
            "--reuid=65534",
            "--regid=65534",
            "--clear-groups",
            "bash",
            "-c",
            &format!("exec 2>&1\n{script}"),
        ]);
        let output = command.current_dir(mount.mount.point()).env("LC_ALL", "C").output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    assert_eq!(user("mkdir A/mine && echo 8m > A/mine/memory.max && cat A/mine/memory.max"), "8388608\n");
    assert_eq!(user("stat -c %u A/mine A/mine/tasks"), "65534\n65534\n");
    for (script, message) in [
        ("echo 1g > A/memory.max", "Permission denied"),
        ("echo $$ > A/cgroup.procs", "Permission denied"),
        ("echo 0 > A/tasks", "Permission denied"),
        ("echo $$ > other/cgroup.procs", "Permission denied"),
        ("mkdir other/x", "Permission denied"),
        ("rmdir other", "Permission denied"),
        ("chown 0 A/mine", "Operation not permitted"),
        ("chmod 700 other", "Operation not permitted"),
    ] {
        let shown = user(script);
        assert!(shown.contains(message), "{script}: {shown}");
    }
    // Root puts the process in; from there it moves freely within, and not out.
    let inside = "read go; echo $$ > A/mine/tasks && echo in; echo $$ > A/in/cgroup.procs && echo across; \
                  echo $$ > cgroup.procs || echo not out";
    let mut child = Command::new("setpriv")
        .args(["--reuid=65534", "--regid=65534", "--clear-groups", "sh", "-c", inside])
        .current_dir(mount.mount.point())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    mount.ok(&format!("echo {} > A/cgroup.procs", child.id()));
    child.stdin.as_mut().unwrap().write_all(b"go\n").unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "in\nacross\nnot out\n");
}

#[test]
fn many_writers_share_one_descriptor() {
    let Some(mount) = Mount::new() else { return };
    mount.ok("mkdir A");
    // Positions move on with every write; only what is written counts.
    mount.ok("exec 3>A/tasks; for n in 1 2 3 4 5 6 7 8; do sh -c 'echo $$ >&3; exec sleep 0'; done; echo 0 > tasks");
    assert!(within(TIMEOUT, || mount.command("rmdir A").status().unwrap().success()).is_some());
}

#[test]
fn groups_come_and_go_under_many_hands_and_nothing_is_left() {
    let Some(mount) = Mount::new() else { return };
    let round = "mkdir g$1 && mkdir g$1/x && echo 8m > g$1/memory.max && echo 0 > g$1/x/tasks && \
                 cat g$1/x/cgroup.procs g$1/memory.stat > /dev/null && ! rmdir g$1/x 2> /dev/null && \
                 echo 0 > cgroup.procs && mv g$1/x g$1/y && rmdir g$1/y g$1";
    let script = format!(
        "for n in 1 2 3 4; do (set -- $n; for r in $(seq 25); do {round} || exit 1; done) & pids=\"$pids $!\"; done; \
                          for p in $pids; do wait $p || exit 1; done"
    );
    mount.ok(&script);
    assert_eq!(mount.ok("cat cgroup.stat"), "nr_descendants 0\nnr_dying_descendants 0\n");
    assert_eq!(mount.engine.root().nr_children(), 0);
}

#[test]
fn any_signal_ends_the_wait_of_a_writer_that_reclaims() {
    if !can_mount() {
        return;
    }
    let engine = Engine::new(EngineConfig::new(64 * MIB)).unwrap();
    let classifier = Arc::new(ProcessClassifier::new(Arc::clone(&engine), Vec::new()).unwrap());
    let (gate, (send, arrived)) = (Arc::new(std::sync::Barrier::new(2)), std::sync::mpsc::sync_channel(1));
    let barrier = Arc::clone(&gate);
    let hanging = Hanging::new(&classifier, move || {
        send.send(()).unwrap();
        barrier.wait();
    });
    let files = ControlFs::new(Arc::new(ControlTree::new(engine, hanging)), classifier);
    let mount = TestMount::new(files as _);
    std::fs::create_dir(mount.path("A")).unwrap();
    let mut writer =
        Command::new("sh").args(["-c", "echo 0 > A/tasks"]).current_dir(mount.point()).spawn().unwrap();
    arrived.recv_timeout(TIMEOUT).expect("the write arrives");
    assert_eq!(std::fs::read_to_string(mount.path("A/memory.max")).unwrap(), "max\n");
    let pid = rustix::process::Pid::from_child(&writer);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    // It is gone although the work for it still hangs.
    end_of(&mut writer);
    gate.wait();
    drop(writer);
    assert!(within(TIMEOUT, || mount.session.nr_inflight() == 0).is_some());
    assert!(mount.unmount(Unmount::IfIdle).is_ok());
}

#[test]
fn users_have_so_many_control_files_open_and_root_has_more() {
    let Some(m) = Mount::new() else { return };
    let greedy = "ulimit -n 9000; n=10; while { exec {fd}<memory.stat; } 2>/dev/null; do n=$((n + 1)); done; \
                  exec {fd}<memory.stat || :; echo $((n - 10))";
    let as_user = |user: u32, then: &str| {
        format!("setpriv --reuid={user} --regid={user} --clear-groups bash -c '{greedy}{then}'")
    };
    let (first, second) = (as_user(65534, "; read -r"), as_user(65533, ""));
    let said = m.sh(&format!(
        "coproc {first}; read -r nr <&${{COPROC[0]}}; echo first $nr
         echo second $({second}); exec {{fd}}<memory.stat; echo root $?
         kill $COPROC_PID"
    ));
    assert!(said.contains("Too many open files"), "{said}");
    for line in ["first 5120\n", "second 1706\n", "root 0\n"] {
        assert!(said.contains(line), "no {line:?}: {said}");
    }
    // What processes had open is given back when they end.
    assert!(within(TIMEOUT, || m.files.nr_open_files() == 0).is_some());
}
