//! The daemon of this build with its control files: a mount of one directory, and groups made,
//! limited, filled and emptied like by an operator.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::mounts::Mount;
use crate::options::Failure;

/// The time limit for a group to give everything back, and for the control files to appear.
const TIMEOUT: Duration = Duration::from_secs(30);
const LOOK_EVERY: Duration = Duration::from_millis(1);

/// See the module text.
pub struct GroupedMount {
    /// Unmounted before anything else is dropped.
    mount: Option<Mount>,
    control: PathBuf,
    daemon: PathBuf,
}

impl GroupedMount {
    /// Mounts `data` below `place`, with these options.
    pub fn start(
        name: &'static str,
        daemon: &Path,
        place: &Path,
        data: &Path,
        options: &[&str],
    ) -> Result<Self, Failure> {
        let (seen, control) = (place.join("mnt"), place.join("control"));
        fs::create_dir_all(&control).map_err(Failure::at("cannot make a directory"))?;
        let mut command = Command::new(daemon);
        command.arg("mount").args(options).arg("--control").arg(&control).arg(data).arg(&seen);
        let unmount = [&daemon.display().to_string(), "umount", "{}"];
        let mount = Mount::start(name, seen, &mut command, &unmount)?;
        let mount = Self { mount: Some(mount), control, daemon: daemon.to_owned() };
        let is_there = mount.control.join("memory.stat");
        until("the control files appear", || Ok(is_there.exists()))?;
        Ok(mount)
    }

    fn mount(&self) -> &Mount {
        self.mount.as_ref().expect("there until the end")
    }

    /// Returns where the directory is seen.
    pub fn seen(&self) -> &Path {
        &self.mount().path
    }

    /// Makes a group, with a limit if one is given.
    pub fn add_group(&self, group: &str, limit: Option<u64>) -> Result<(), Failure> {
        fs::create_dir(self.control.join(group)).map_err(Failure::at("cannot make a group"))?;
        limit.map_or(Ok(()), |bytes| self.set(group, "memory.limit_in_bytes", bytes))
    }

    /// Writes a number to a file of a group.
    pub fn set(&self, group: &str, file: &str, value: u64) -> Result<(), Failure> {
        let failed = format!("cannot write {value} to {file} of {group}");
        fs::write(self.control.join(group).join(file), value.to_string()).map_err(Failure::at(&failed))
    }

    /// Puts a process into a group.
    pub fn place(&self, group: &str, process: u32) -> Result<(), Failure> {
        self.set(group, "cgroup.procs", process.into())
    }

    /// Returns the first commands of a shell to be in a group.
    pub fn enter(&self, group: &str) -> String {
        format!("echo $$ > '{}'", self.control.join(group).join("cgroup.procs").display())
    }

    /// Returns a number of a group's statistics.
    pub fn stat(&self, group: &str, name: &str) -> Result<u64, Failure> {
        let failed = Failure::at("cannot read memory.stat");
        let text = fs::read_to_string(self.control.join(group).join("memory.stat")).map_err(failed)?;
        let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok());
        value.ok_or_else(|| Failure::Wrong(format!("no {name} in memory.stat of {group}")))
    }

    /// Reclaims all pages of a group; returns when the kernel has none of them any more.
    pub fn force_empty(&self, group: &str) -> Result<(), Failure> {
        until("a group is empty", || {
            self.set(group, "memory.force_empty", 0)?;
            Ok(self.stat(group, "file")? == 0)
        })
    }

    /// Makes everything durable.
    pub fn sync(&self) -> Result<(), Failure> {
        let synced = Command::new(&self.daemon).arg("sync").arg(self.seen()).output();
        let synced = synced.map_err(Failure::at("cannot run umemcg sync"))?;
        if synced.status.success() {
            return Ok(());
        }
        Err(Failure::Wrong(format!("umemcg sync: {}", String::from_utf8_lossy(&synced.stderr))))
    }

    /// Returns the daemon's process.
    pub fn process_id(&self) -> u32 {
        self.mount().process_id()
    }

    /// Unmounts and waits for the daemon's end.
    pub fn end(mut self) -> Result<(), Failure> {
        self.mount.take().map_or(Ok(()), Mount::end)
    }
}

impl Drop for GroupedMount {
    fn drop(&mut self) {
        // After a failed run: a killed daemon leaves the mount of its control files.
        if self.mount.take().is_some() {
            let _ = Command::new("fusermount3").args(["-uz", "--"]).arg(&self.control).status();
        }
    }
}

/// Waits until a condition holds.
///
/// # Errors
/// [`Failure::Wrong`] when it takes too long.
fn until(what: &str, mut is_so: impl FnMut() -> Result<bool, Failure>) -> Result<(), Failure> {
    let deadline = Instant::now() + TIMEOUT;
    while !is_so()? {
        if Instant::now() > deadline {
            return Err(Failure::Wrong(format!("not within {} s: {what}", TIMEOUT.as_secs())));
        }
        std::thread::sleep(LOOK_EVERY);
    }
    Ok(())
}
