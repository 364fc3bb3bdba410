//! The environment of a demo: a daemon with its two mounts below one directory, groups, and
//! programs running in them.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::exit::Failure;

const MIB: u64 = 1 << 20;

/// The paths of a demo.
pub(super) struct Places {
    pub(super) source: PathBuf,
    pub(super) data: PathBuf,
    pub(super) mountpoint: PathBuf,
    pub(super) control: PathBuf,
}

impl Places {
    pub(super) fn below(directory: &Path) -> Result<Self, Failure> {
        let make = |name: &str| {
            let path = directory.join(name);
            fs::create_dir(&path).map_err(|error| Failure::at("cannot make", &path, &error)).map(|()| path)
        };
        let (data, mountpoint, control) = (make("data")?, make("mnt")?, make("cg")?);
        Ok(Self { source: directory.join("source"), data, mountpoint, control })
    }
}

/// A group below the control mount.
pub(super) struct Group {
    pub(super) name: &'static str,
    pub(super) directory: PathBuf,
    pub(super) limit_bytes: u64,
}

impl Group {
    pub(super) fn make(places: &Places, name: &'static str, limit_bytes: u64) -> Result<Self, Failure> {
        let directory = places.control.join(name);
        fs::create_dir(&directory)
            .map_err(|error| Failure::at("cannot make the group", &directory, &error))?;
        let file = directory.join("memory.limit_in_bytes");
        fs::write(&file, format!("{limit_bytes}\n"))
            .map_err(|error| Failure::at("cannot write", &file, &error))?;
        Ok(Self { name, directory, limit_bytes })
    }

    pub(super) fn read(&self, file: &str) -> Result<String, Failure> {
        let path = self.directory.join(file);
        fs::read_to_string(&path).map_err(|error| Failure::at("cannot read", &path, &error))
    }

    pub(super) fn number(&self, file: &str) -> Result<u64, Failure> {
        let text = self.read(file)?;
        text.trim()
            .parse()
            .map_err(|_| Failure::Failed(format!("{file} of {} says `{}`", self.name, text.trim())))
    }

    pub(super) fn stat(&self, key: &str) -> Result<u64, Failure> {
        let text = self.read("memory.stat")?;
        text.lines()
            .find_map(|line| line.strip_prefix(key)?.strip_prefix(' ')?.parse().ok())
            .ok_or_else(|| Failure::Failed(format!("memory.stat of {} has no {key}", self.name)))
    }
}

/// Runs a program, in the group if one is given, and returns its output.
fn run_in(group: Option<&Group>, words: &[&OsStr]) -> Result<String, Failure> {
    let mut command = Command::new("sh");
    match group {
        Some(group) => {
            let tasks = group.directory.join("tasks");
            command.args(["-c", r#"echo $$ > "$1" && shift && exec "$@""#, "sh"]).arg(tasks).args(words)
        }
        None => command.args(["-c", r#"exec "$@""#, "sh"]).args(words),
    };
    let output = command
        .stdin(Stdio::null())
        .output()
        .map_err(|error| Failure::Failed(format!("cannot run a shell: {error}")))?;
    if !output.status.success() {
        let what: Vec<_> = words.iter().map(|word| word.to_string_lossy()).collect();
        let complaint = String::from_utf8_lossy(&output.stderr);
        return Err(Failure::Failed(format!("`{}` failed: {}", what.join(" "), complaint.trim())));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

pub(super) fn copy_with_dd(group: Option<&Group>, from: &Path, to: &Path, bytes: u64) -> Result<(), Failure> {
    let mut input = OsString::from("if=");
    input.push(from);
    let mut output = OsString::from("of=");
    output.push(to);
    let count = format!("count={}", bytes / MIB);
    let words = [
        "dd".as_ref(),
        input.as_os_str(),
        &output,
        "bs=1M".as_ref(),
        "iflag=fullblock".as_ref(),
        count.as_ref(),
    ];
    run_in(group, &words).map(drop)
}

pub(super) fn sha256(group: Option<&Group>, path: &Path) -> Result<String, Failure> {
    let printed = run_in(group, &["sha256sum".as_ref(), path.as_os_str()])?;
    Ok(printed.split_whitespace().next().unwrap_or_default().to_owned())
}

/// The daemon, started as a user would start it. Ended on drop.
pub(super) struct Daemon {
    child: Child,
}

impl Daemon {
    pub(super) fn start(places: &Places, pool_bytes: u64, options: &[&str]) -> Result<Self, Failure> {
        let myself = std::env::current_exe()
            .map_err(|error| Failure::Failed(format!("cannot find this program: {error}")))?;
        let mut child = Command::new(myself)
            .arg("mount")
            .args([&places.data, &places.mountpoint])
            .arg("--control")
            .arg(&places.control)
            .args(["--pool", &pool_bytes.to_string()])
            .args(options)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| Failure::Failed(format!("cannot start the daemon: {error}")))?;
        let stdout = child.stdout.take();
        let daemon = Self { child };
        // It prints one line when the mount is ready, and nothing if it fails; the reason is on
        // stderr then.
        let mut line = String::new();
        if let Some(stdout) = stdout {
            let _ = BufReader::new(stdout).read_line(&mut line);
        }
        match line.is_empty() {
            false => Ok(daemon),
            true => Err(Failure::Failed("the daemon did not start".into())),
        }
    }

    pub(super) fn resident_bytes(&self) -> Result<u64, Failure> {
        let path = PathBuf::from(format!("/proc/{}/status", self.child.id()));
        let status = fs::read_to_string(&path).map_err(|error| Failure::at("cannot read", &path, &error))?;
        let kib = status
            .lines()
            .find_map(|line| line.strip_prefix("VmHWM:")?.split_whitespace().next()?.parse().ok());
        kib.map(|kib: u64| kib * 1024)
            .ok_or_else(|| Failure::Failed(format!("{} has no VmHWM", path.display())))
    }

    pub(super) fn umount(&mut self, places: &Places) -> Result<bool, Failure> {
        let arguments = crate::args::UmountArguments {
            mountpoint: places.mountpoint.clone(),
            flush_timeout: None,
            json: false,
        };
        crate::client::umount(&arguments)?;
        let status = self
            .child
            .wait()
            .map_err(|error| Failure::Failed(format!("cannot wait for the daemon: {error}")))?;
        Ok(status.success())
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            // Two signals: the first flushes and unmounts, the second ends the wait for users of
            // the mount.
            if let Some(pid) = rustix::process::Pid::from_raw(self.child.id().cast_signed()) {
                let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
                let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
            }
            let _ = self.child.wait();
        }
        let _ = std::io::stderr().flush();
    }
}
