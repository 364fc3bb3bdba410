//! A real daemon on a real mount for one test, and shells to work on it.
//!
//! Whatever happens to the test, nothing stays: dropping [`Mount`] ends the daemon, takes the
//! mounts out of the tree and removes the directories. No program may run for longer than
//! [`TIMEOUT`]: then the daemon is killed first, which frees the processes that wait for it in the
//! kernel, and the test fails instead of hanging.

use std::ffi::OsStr;
use std::fmt;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::mount::{UnmountFlags, unmount};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use tempfile::TempDir;

/// Longest that one program of a test may run.
pub const TIMEOUT: Duration = Duration::from_secs(240);

/// The program under test.
pub const PROGRAM: &str = env!("CARGO_BIN_EXE_umemcg");

/// The slack that usage may exceed a limit by: the charges in flight, at most 1 MiB for each of a
/// few threads.
pub const SLACK_BYTES: u64 = 4 << 20;

/// Reports that a test cannot run here. With CI=true that is a failure.
pub fn cannot_run(why: &str) {
    let message = format!("SKIPPED {}: {why}", thread::current().name().unwrap_or("test"));
    assert!(std::env::var_os("CI").is_none_or(|value| value != "true"), "{message}");
    eprintln!("\n{message}\n");
}

/// Returns whether a mount can be made here; reports it if not.
pub fn can_mount() -> bool {
    let opened = fs::OpenOptions::new().read(true).write(true).open("/dev/fuse");
    match opened {
        Ok(_) if rustix::process::geteuid().is_root() => true,
        Ok(_) => {
            cannot_run("needs root");
            false
        }
        Err(error) => {
            cannot_run(&format!("/dev/fuse: {error}"));
            false
        }
    }
}

/// Ends the test early where no mount can be made.
macro_rules! needs_mount {
    () => {
        if !crate::harness::can_mount() {
            return;
        }
    };
}
pub(crate) use needs_mount;

/// The output of a program and the way in which it ended.
pub struct Ended {
    pub status: ExitStatus,
    pub stdout: String,
    pub stderr: String,
}

impl fmt::Debug for Ended {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}\nstdout: {}\nstderr: {}", self.status, self.stdout, self.stderr)
    }
}

impl Ended {
    /// Panics unless it succeeded; returns what it printed, without white space around it.
    #[track_caller]
    pub fn good(&self) -> &str {
        assert!(self.status.success(), "{self:?}");
        self.stdout.trim()
    }

    /// Panics unless it failed with this text on stderr.
    #[track_caller]
    pub fn bad(&self, text: &str) {
        assert!(!self.status.success(), "expected to fail with `{text}`: {self:?}");
        assert!(self.stderr.contains(text), "expected `{text}`: {self:?}");
    }
}

/// The options of a daemon.
pub struct Options<'a> {
    pub arguments: Vec<&'a str>,
    pub pool: &'a str,
    /// Run daemon and shells as this user and group.
    pub user: Option<u32>,
    /// Use this directory as the backing directory instead of a fresh one.
    pub data: Option<PathBuf>,
    /// A mount of many volumes, without a backing directory.
    pub volumes: bool,
}

impl Default for Options<'_> {
    fn default() -> Self {
        Self { arguments: Vec::new(), pool: "256M", user: None, data: None, volumes: false }
    }
}

/// A daemon that serves a mount and a control mount.
pub struct Mount {
    directory: TempDir,
    data: PathBuf,
    program: PathBuf,
    user: Option<u32>,
    volumes: bool,
    daemon: Option<Child>,
    stderr: mpsc::Receiver<String>,
}

impl Mount {
    /// Starts a daemon with a pool of 256 MiB and default options.
    pub fn start() -> Self {
        Self::start_with(&Options::default())
    }

    /// Starts one whose own cache keeps the file pages, for tests of what only that shows: it sees
    /// every read.
    pub fn start_with_own_pages() -> Self {
        Self::start_with(&Options { arguments: vec!["--page-cache", "own"], ..Options::default() })
    }

    /// Starts a daemon and waits until it says that it serves.
    #[track_caller]
    pub fn start_with(options: &Options<'_>) -> Self {
        let directory = tempfile::Builder::new().prefix("umemcg-test-").tempdir().unwrap();
        let data = options.data.clone().unwrap_or_else(|| directory.path().join("data"));
        let mut program = PathBuf::from(PROGRAM);
        for name in ["data", "mnt", "cg"] {
            fs::create_dir(directory.path().join(name)).unwrap();
        }
        if let Some(user) = options.user {
            for name in ["", "data", "mnt", "cg"] {
                std::os::unix::fs::chown(directory.path().join(name), Some(user), Some(user)).unwrap();
            }
            // The build directory may be closed to other users. Copied by a process of its own: a
            // child that another thread forks meanwhile would keep a file that this one writes
            // open until it runs its program, and a file that is open for writing cannot be run.
            program = directory.path().join("umemcg");
            let copied = Command::new("cp").arg(PROGRAM).arg(&program).status().unwrap();
            assert!(copied.success(), "cp: {copied}");
        }
        let (_, stderr) = mpsc::channel();
        let mut mount = Self {
            directory,
            data,
            program,
            user: options.user,
            volumes: options.volumes,
            daemon: None,
            stderr,
        };
        let mut arguments = vec!["--pool", options.pool];
        arguments.extend(&options.arguments);
        mount.start_daemon(&arguments);
        mount
    }

    /// Starts a daemon again on the same directories, after the one before has ended or was killed.
    #[track_caller]
    pub fn start_daemon(&mut self, arguments: &[&str]) {
        if let Some(ended) = self.try_daemon("", arguments) {
            panic!("the daemon did not start: {ended:?}");
        }
    }

    /// The same after a command of a shell, which the daemon's process runs first; returns how the
    /// process ended if it does not serve.
    #[track_caller]
    pub fn try_daemon(&mut self, before: &str, arguments: &[&str]) -> Option<Ended> {
        assert!(self.daemon.is_none(), "one daemon at a time");
        let mut command = self.daemon_command(before, arguments);
        let mut daemon =
            command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let (stdout, stderr) = (daemon.stdout.take().unwrap(), daemon.stderr.take().unwrap());
        self.daemon = Some(daemon);
        self.stderr = collect(stderr);
        match lines(stdout).recv_timeout(TIMEOUT) {
            Ok(_) => None,
            Err(RecvTimeoutError::Disconnected) => Some(self.wait()),
            Err(RecvTimeoutError::Timeout) => panic!("the daemon said nothing for {TIMEOUT:?}"),
        }
    }

    /// Returns the stderr of a daemon that has ended.
    fn said(&self) -> String {
        self.stderr.recv_timeout(TIMEOUT).unwrap_or_else(|error| format!("(its stderr: {error})"))
    }

    fn daemon_command(&self, before: &str, arguments: &[&str]) -> Command {
        // If the test is killed, its daemon is killed too.
        let with_test = ["--pdeathsig", "TERM"];
        let mut command = if before.is_empty() {
            self.with_setpriv(&with_test, self.program.as_os_str())
        } else {
            let mut shell = self.with_setpriv(&with_test, "sh".as_ref());
            shell.args(["-c", &format!("{before} && exec \"$0\" \"$@\"")]).arg(&self.program);
            shell
        };
        command.arg("mount");
        if self.volumes {
            command.arg("--volumes");
        } else {
            command.arg(self.data());
        }
        command.arg(self.mnt()).arg("--control").arg(self.cg()).args(arguments);
        // The tests are run in both modes: `make test` takes own pages, `make test-kernel-pages`
        // the kernel's.
        if !arguments.contains(&"--page-cache") {
            let whose = std::env::var("UMEMCG_TEST_PAGE_CACHE").unwrap_or_else(|_| "own".into());
            match whose == "exclusive" {
                true => command.args(["--page-cache", "kernel", "--exclusive"]),
                false => command.arg("--page-cache").arg(whose),
            };
        }
        command.current_dir("/").env("STATE_DIRECTORY", self.directory.path().join("state"));
        // A sandbox may hide the root directory of its first process.
        command.env("UMEMCG_NODE_ROOT", "/");
        command
    }

    /// A command that runs as the test's user.
    fn as_user(&self, program: impl AsRef<OsStr>) -> Command {
        self.with_setpriv(&[], program.as_ref())
    }

    fn with_setpriv(&self, options: &[&str], program: &OsStr) -> Command {
        if self.user.is_none() && options.is_empty() {
            return Command::new(program);
        }
        let mut command = Command::new("setpriv");
        command.args(options);
        if let Some(user) = self.user {
            command.args([&format!("--reuid={user}"), &format!("--regid={user}"), "--clear-groups"]);
            command.env_remove("XDG_RUNTIME_DIR");
        }
        command.arg("--").arg(program);
        command
    }

    /// The directory that is served.
    pub fn data(&self) -> &Path {
        &self.data
    }

    /// Returns the mount point.
    pub fn mnt(&self) -> PathBuf {
        self.directory.path().join("mnt")
    }

    /// Returns the directory of the control files.
    pub fn cg(&self) -> PathBuf {
        self.directory.path().join("cg")
    }

    /// A directory for whatever the test needs outside of the mount.
    pub fn outside(&self) -> &Path {
        self.directory.path()
    }

    /// The daemon's process id.
    pub fn pid(&self) -> Pid {
        Pid::from_raw(self.daemon.as_ref().expect("a daemon runs").id().cast_signed()).unwrap()
    }

    /// Sends the daemon a signal.
    pub fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).unwrap();
    }

    /// Waits for the daemon to end by itself.
    #[track_caller]
    pub fn wait(&mut self) -> Ended {
        let mut daemon = self.daemon.take().expect("a daemon runs");
        let status = patiently(None, &mut daemon);
        Ended { status, stdout: String::new(), stderr: self.said() }
    }

    /// Kills the daemon as a crash would; the mounts stay, with no daemon behind them.
    pub fn kill_daemon(&mut self) {
        self.signal(Signal::KILL);
        assert_eq!(self.wait().status.signal(), Some(9));
    }

    /// Unmounts with `umemcg umount`, and checks that nothing is lost.
    #[track_caller]
    pub fn umount(&mut self) {
        self.umemcg(&["umount", self.mnt().to_str().unwrap()]).good();
        let ended = self.wait();
        assert!(ended.status.success(), "{ended:?}");
    }

    /// Runs the program under test with these arguments.
    pub fn umemcg(&self, arguments: &[&str]) -> Ended {
        let mut command = self.as_user(&self.program);
        command.args(arguments);
        self.run(command)
    }

    /// Runs a script in a shell that stops at the first error, with `$MNT`, `$CG` and `$DATA` set.
    /// `not '...'` expects its script to fail (a plain `!` would be passed over by `set -e`).
    pub fn sh(&self, script: &str) -> Ended {
        self.run(self.shell(script))
    }

    /// The same in a group: the shell joins it through `tasks` first.
    pub fn sh_in(&self, group: &str, script: &str) -> Ended {
        self.sh(&format!("echo $$ > \"$CG/{group}/tasks\"\n{script}"))
    }

    /// A shell command that has not been started, for a test that watches it run.
    pub fn shell(&self, script: &str) -> Command {
        // One that a failed test leaves behind is killed when the test's thread ends.
        let mut command = self.with_setpriv(&["--pdeathsig", "KILL"], "bash".as_ref());
        let script =
            format!("not() {{ if (eval \"$1\"); then echo \"went well: $1\" >&2; exit 99; fi; }}\n{script}");
        command.args(["-euo", "pipefail", "-c", &script]);
        command
            .env("MNT", self.mnt())
            .env("CG", self.cg())
            .env("DATA", self.data())
            .env("UMEMCG", &self.program);
        command.current_dir("/");
        command
    }

    fn run(&self, command: Command) -> Ended {
        run(self.daemon.as_ref().map(|_| self.pid()), command)
    }

    /// Makes a group and sets its limit.
    #[track_caller]
    pub fn group(&self, name: &str, limit: &str) {
        self.sh(&format!("mkdir \"$CG/{name}\"; echo {limit} > \"$CG/{name}/memory.limit_in_bytes\"")).good();
    }

    /// A number from a group's control file.
    #[track_caller]
    pub fn number(&self, group: &str, file: &str) -> u64 {
        let path = self.cg().join(group).join(file);
        let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        text.trim().parse().unwrap_or_else(|_| panic!("{}: {text}", path.display()))
    }

    /// A number from a group's control file, read by the test's user: root may not look into a
    /// user's mount.
    #[track_caller]
    pub fn number_as_user(&self, group: &str, file: &str) -> u64 {
        let ended = self.sh(&format!("cat \"$CG/{group}/{file}\""));
        ended.good().parse().unwrap_or_else(|_| panic!("{ended:?}"))
    }

    /// A value from a group's `memory.stat`, `memory.events` or the like.
    #[track_caller]
    pub fn value(&self, group: &str, file: &str, key: &str) -> u64 {
        let path = self.cg().join(group).join(file);
        let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        text.lines()
            .find_map(|line| line.strip_prefix(key)?.strip_prefix(' ')?.parse().ok())
            .unwrap_or_else(|| panic!("no {key} in {}:\n{text}", path.display()))
    }

    /// Returns the charges of a group that have a name: its usage without the stocks of threads.
    #[track_caller]
    pub fn named_bytes(&self, group: &str) -> u64 {
        ["anon", "file", "kernel"].iter().map(|kind| self.value(group, "umemcg.stat", kind)).sum()
    }

    /// The daemon's resident memory in bytes: now (`VmRSS`) or the most it ever was (`VmHWM`).
    pub fn daemon_memory(&self, which: &str) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid().as_raw_nonzero())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix(which)?.strip_prefix(':')).unwrap();
        line.split_whitespace().next().unwrap().parse::<u64>().unwrap() * 1024
    }

    /// Panics unless the daemon is alive and serves.
    #[track_caller]
    pub fn assert_alive(&mut self) {
        let ended = self.daemon.as_mut().expect("a daemon runs").try_wait().unwrap();
        assert!(ended.is_none(), "the daemon has ended: {}", self.said());
        self.sh("ls \"$CG\" && stat \"$MNT\"").good();
    }
}

impl Mount {
    /// Ends the daemon if it runs, with this signal; returns whether that took too long.
    ///
    /// The signal is sent again until the daemon has ended: its second does not wait for users of
    /// the mount, but counts as one with the first while the daemon has not taken that.
    fn end_daemon(&mut self, signal: Signal) -> bool {
        let Some(mut daemon) = self.daemon.take() else { return false };
        let pid = Pid::from_raw(daemon.id().cast_signed()).unwrap();
        let has_ended = holds_in_time(|| {
            let _ = kill_process(pid, signal);
            daemon.try_wait().is_ok_and(|status| status.is_some())
        });
        if thread::panicking() {
            eprintln!("the daemon said: {}", if has_ended { self.said() } else { String::new() });
        }
        let _ = daemon.kill();
        !has_ended
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let is_panic = thread::panicking();
        let hangs = self.end_daemon(if is_panic { Signal::KILL } else { Signal::TERM });
        for path in [self.mnt(), self.cg()] {
            // More than one mount may be left on one place.
            while is_mounted(&path) && unmount(path.as_path(), UnmountFlags::DETACH).is_ok() {}
        }
        assert!(!hangs || is_panic, "a daemon did not end within {TIMEOUT:?}");
    }
}

/// A daemon that is stopped, and continues however the test ends. Made after the processes that
/// wait for it, so that it continues before they are waited for.
pub struct Stopped(Pid);

impl Stopped {
    /// Stops the daemon of a mount, and waits until none of its threads can take a request: a
    /// process that waits for one that was taken cannot be killed.
    pub fn new(mount: &Mount) -> Self {
        mount.signal(Signal::STOP);
        let stopped = Self(mount.pid());
        until_all_stand_still(stopped.0);
        stopped
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        let _ = kill_process(self.0, Signal::CONT);
    }
}

/// Waits until all threads of a stopped process stand still.
pub fn until_all_stand_still(pid: Pid) {
    let tasks = format!("/proc/{}/task", pid.as_raw_nonzero());
    let stands = |stat: String| stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['R', 'S']));
    until("all threads of the daemon stand still", || {
        let stats = fs::read_dir(&tasks).unwrap().flatten().map(|task| task.path().join("stat"));
        stats.filter_map(|stat| fs::read_to_string(stat).ok()).all(stands)
    });
}

/// Returns whether a thread of a process waits in that function of the kernel.
pub fn waits_in(pid: u32, function: &str) -> bool {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    tasks.into_iter().any(|task| fs::read_to_string(task.path().join("wchan")).is_ok_and(|at| at == function))
}

/// Waits for a condition that another process brings about.
#[track_caller]
pub fn until(what: &str, condition: impl FnMut() -> bool) {
    assert!(holds_in_time(condition), "waited for {TIMEOUT:?}, but never: {what}");
}

/// Whether a condition comes true within [`TIMEOUT`].
pub fn holds_in_time(condition: impl FnMut() -> bool) -> bool {
    holds_within(TIMEOUT, condition)
}

/// Whether a condition comes true within a time.
pub fn holds_within(time: Duration, mut condition: impl FnMut() -> bool) -> bool {
    let deadline = Instant::now() + time;
    loop {
        // The clock first: a thread that was not run for long looks once more.
        let is_late = Instant::now() >= deadline;
        let holds = condition();
        if holds || is_late {
            return holds;
        }
        thread::park_timeout(Duration::from_millis(2));
    }
}

/// Returns whether there is a mount exactly there; sends no request to it.
pub fn is_mounted(path: &Path) -> bool {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    mounts
        .lines()
        .any(|line| line.split(' ').nth(4).is_some_and(|mount_point| Path::new(mount_point) == path))
}

/// Reads all of a pipe on a thread.
pub fn collect(mut pipe: impl Read + Send + 'static) -> mpsc::Receiver<String> {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        let mut bytes = Vec::new();
        let _ = pipe.read_to_end(&mut bytes);
        let _ = sender.send(String::from_utf8_lossy(&bytes).into_owned());
    });
    receiver
}

/// Reads the lines of a pipe on a thread.
pub fn lines(pipe: impl Read + Send + 'static) -> mpsc::Receiver<String> {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        for line in BufReader::new(pipe).lines().map_while(Result::ok) {
            let _ = sender.send(line);
        }
    });
    receiver
}

/// Runs a program to its end, which may depend on a daemon.
#[track_caller]
pub fn run(daemon: Option<Pid>, mut command: Command) -> Ended {
    let mut child = command
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let stdout = collect(child.stdout.take().unwrap());
    let stderr = collect(child.stderr.take().unwrap());
    let status = patiently(daemon, &mut child);
    let all = |pipe: mpsc::Receiver<String>| {
        pipe.recv_timeout(TIMEOUT).expect("a process that the program left behind keeps its output open")
    };
    Ended { status, stdout: all(stdout), stderr: all(stderr) }
}

/// Waits for a child; kills the daemon and then the child's process group when that takes too long.
#[track_caller]
pub fn patiently(daemon: Option<Pid>, child: &mut Child) -> ExitStatus {
    let group = Pid::from_raw(child.id().cast_signed()).unwrap();
    let (done, is_done) = mpsc::channel::<()>();
    let watchdog = thread::spawn(move || {
        let timed_out = is_done.recv_timeout(TIMEOUT) == Err(RecvTimeoutError::Timeout);
        if timed_out {
            if let Some(daemon) = daemon {
                let _ = kill_process(daemon, Signal::KILL);
            }
            let _ = kill_process_group(group, Signal::KILL);
            let _ = kill_process(group, Signal::KILL);
        }
        timed_out
    });
    let status = child.wait().unwrap();
    drop(done);
    assert!(!watchdog.join().unwrap(), "a program ran for more than {TIMEOUT:?}");
    status
}
