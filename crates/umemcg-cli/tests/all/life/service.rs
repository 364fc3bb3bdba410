//! A daemon that a test starts as a service manager would.

use std::ffi::OsString;
use std::fs;
use std::io::{PipeReader, Read};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use rustix::mount::{UnmountFlags, unmount};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::harness::{PROGRAM, TIMEOUT, patiently, until_all_stand_still};

/// The daemon, its directories, and the socket of its service manager.
pub struct Service {
    directory: TempDir,
    daemon: Child,
    /// What it tells its service manager.
    messages: Receiver<String>,
    stderr: Option<PipeReader>,
}

impl Service {
    /// Starts a daemon that shows volumes, with these arguments and this configuration, and waits
    /// until it says that it is ready.
    pub fn start(config: Option<&str>, arguments: &[&str]) -> Self {
        let directory = tempfile::Builder::new().prefix("umemcg-test-").tempdir().unwrap();
        let path = directory.path().join("notify");
        let socket = UnixDatagram::bind(&path).unwrap();
        Self::start_at(directory, (socket, path.into_os_string()), config, arguments)
    }

    /// The same with a service manager at a name that no file system has.
    pub fn start_abstractly() -> Self {
        let directory = tempfile::Builder::new().prefix("umemcg-test-").tempdir().unwrap();
        let name = format!("{}-notify", directory.path().display());
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        let socket = UnixDatagram::bind_addr(&address).unwrap();
        Self::start_at(directory, (socket, format!("@{name}").into()), None, &[])
    }

    fn start_at(
        directory: TempDir,
        (socket, address): (UnixDatagram, OsString),
        config: Option<&str>,
        arguments: &[&str],
    ) -> Self {
        for name in ["mnt", "cg", "one", "two"] {
            fs::create_dir(directory.path().join(name)).unwrap();
        }
        let (sender, messages) = channel();
        // Its queue is short, and a full one would have the daemon wait.
        thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(len) = socket.recv(&mut buffer) {
                if sender.send(String::from_utf8(buffer[..len].to_vec()).unwrap()).is_err() {
                    return;
                }
            }
        });
        let (stderr, writer) = std::io::pipe().unwrap();
        // If the test is killed, its daemon is killed too. A run under nohup ignores SIGHUP.
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "TERM", "--", "env", "--default-signal=HUP", PROGRAM, "mount"]);
        match config {
            Some(text) => {
                fs::write(directory.path().join("umemcg.toml"), text).unwrap();
                command.arg("--config").arg(directory.path().join("umemcg.toml"));
            }
            None => drop(command.arg("--volumes")),
        }
        command.arg(directory.path().join("mnt")).arg("--control").arg(directory.path().join("cg"));
        command.args(["--pool", "64M"]).args(arguments).current_dir("/");
        command.env("NOTIFY_SOCKET", address).env("WATCHDOG_USEC", "100000").env_remove("WATCHDOG_PID");
        let daemon = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(writer).spawn().unwrap();
        drop(command);
        let service = Self { directory, daemon, messages, stderr: Some(stderr) };
        let ready = service.told("READY=1");
        assert!(ready.contains("STATUS=serving "), "{ready}");
        service
    }

    /// Waits for a message with this line, and returns it.
    #[track_caller]
    pub fn told(&self, line: &str) -> String {
        loop {
            let message = self.messages.recv_timeout(TIMEOUT);
            let message = message.unwrap_or_else(|error| panic!("no {line}: {error}"));
            if message.lines().any(|found| found == line) {
                return message;
            }
        }
    }

    /// Returns whether no message comes for a time.
    pub fn is_silent_for(&self, time: Duration) -> bool {
        self.messages.recv_timeout(time) == Err(RecvTimeoutError::Timeout)
    }

    /// Drops the messages that have come.
    pub fn drop_messages(&self) {
        while self.messages.try_recv().is_ok() {}
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Reads a control file.
    #[track_caller]
    pub fn control(&self, file: &str) -> String {
        let path = self.path("cg").join(file);
        fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display())).trim().into()
    }

    /// Replaces the configuration, and has the daemon read it by a signal. Returns the status that
    /// the service manager was told.
    #[track_caller]
    pub fn reload(&self, config: &str) -> String {
        fs::write(self.path("umemcg.toml"), config).unwrap();
        self.signal(Signal::HUP);
        let reloading = self.told("RELOADING=1");
        assert!(reloading.contains("MONOTONIC_USEC="), "{reloading}");
        self.told("READY=1")
    }

    /// Has the daemon read its configuration by `umemcg reload` with these arguments.
    #[track_caller]
    pub fn reload_by_command(&self, arguments: &[&str]) -> (Option<i32>, String) {
        let ended = self.umemcg(&[&["reload"], arguments].concat());
        self.told("READY=1");
        ended
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).unwrap();
        if signal == Signal::STOP {
            until_all_stand_still(self.pid());
        }
    }

    fn pid(&self) -> Pid {
        Pid::from_raw(self.daemon.id().cast_signed()).unwrap()
    }

    /// Runs `umemcg` with these arguments and the option that names this mount.
    pub fn umemcg(&self, arguments: &[&str]) -> (Option<i32>, String) {
        run(Command::new(PROGRAM).args(arguments).arg("--mount").arg(self.path("mnt")))
    }

    /// Closes the reading end of the daemon's stderr.
    pub fn close_stderr(&mut self) {
        drop(self.stderr.take());
    }

    /// Ends the daemon by SIGTERM; returns its status and what it has said on stderr.
    pub fn end(mut self) -> (ExitStatus, String) {
        self.signal(Signal::TERM);
        self.told("STOPPING=1");
        let status = patiently(None, &mut self.daemon);
        let mut said = String::new();
        if let Some(mut stderr) = self.stderr.take() {
            stderr.read_to_string(&mut said).unwrap();
        }
        (status, said)
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.daemon.kill();
        let _ = self.daemon.wait();
        for name in ["mnt", "cg"] {
            let _ = unmount(self.path(name), UnmountFlags::DETACH);
        }
    }
}

/// Runs a command to its end; returns its exit code, and what it printed to stdout and stderr.
pub fn run(command: &mut Command) -> (Option<i32>, String) {
    let output = command.stdin(Stdio::null()).output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8(text).unwrap())
}

/// Returns whether a directory has this entry.
pub fn has(directory: &Path, name: &str) -> bool {
    directory.join(name).symlink_metadata().is_ok()
}
