//! Mounts under test: the daemon of this build, and its rivals. Each is unmounted, also when the
//! run fails.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use crate::options::Failure;

/// The time limit for a mount to appear or to vanish.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Time between two looks.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// A file system daemon and where it is mounted.
#[derive(Debug)]
pub struct Mount {
    /// Its name in the tables.
    pub name: &'static str,
    /// The mount point.
    pub path: PathBuf,
    child: Child,
    /// The command that unmounts it.
    unmount: Vec<String>,
    ended: bool,
}

impl Mount {
    /// Starts a daemon and waits until its mount is there. `{}` in an argument of `unmount` stands
    /// for the mount point.
    ///
    /// # Errors
    /// When it ends or takes too long.
    pub fn start(
        name: &'static str,
        path: PathBuf,
        command: &mut Command,
        unmount: &[&str],
    ) -> Result<Self, Failure> {
        let problem =
            |what: String| Failure::Setup(format!("{name} does not mount on {}: {what}", path.display()));
        fs::create_dir_all(&path).map_err(|error| problem(error.to_string()))?;
        command.stdin(Stdio::null()).stdout(Stdio::null());
        let child = command.spawn().map_err(|error| problem(error.to_string()))?;
        let unmount = unmount.iter().map(|word| word.replace("{}", &path.display().to_string())).collect();
        let mut mount = Self { name, path, child, unmount, ended: false };
        let deadline = Instant::now() + TIMEOUT;
        while !is_mounted(&mount.path) {
            let ended = mount.child.try_wait().map_err(Failure::at("cannot wait for a daemon"))?;
            if let Some(status) = ended {
                mount.ended = true;
                return Err(Failure::Setup(format!("{name} ended instead of mounting: {status}")));
            }
            if Instant::now() >= deadline {
                return Err(Failure::Setup(format!("{name} has not mounted in {} s", TIMEOUT.as_secs())));
            }
            std::thread::sleep(LOOK_EVERY);
        }
        Ok(mount)
    }

    /// Returns the daemon's process.
    pub fn process_id(&self) -> u32 {
        self.child.id()
    }

    /// Unmounts and waits for the daemon's end.
    ///
    /// # Errors
    /// [`Failure::Wrong`] when either says that something went wrong.
    pub fn end(mut self) -> Result<(), Failure> {
        let name = self.name;
        let said = Command::new(&self.unmount[0])
            .args(&self.unmount[1..])
            .stdout(Stdio::null())
            .status()
            .map_err(Failure::at("cannot unmount"))?;
        if !said.success() {
            return Err(Failure::Wrong(format!("{name} cannot be unmounted: {said}")));
        }
        let deadline = Instant::now() + TIMEOUT;
        while Instant::now() < deadline {
            let ended: Option<ExitStatus> =
                self.child.try_wait().map_err(Failure::at("cannot wait for a daemon"))?;
            if let Some(status) = ended {
                self.ended = true;
                return if status.success() {
                    Ok(())
                } else {
                    Err(Failure::Wrong(format!("{name} ended badly: {status}")))
                };
            }
            std::thread::sleep(LOOK_EVERY);
        }
        Err(Failure::Wrong(format!("{name} is unmounted, but its daemon goes on")))
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if !self.ended {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
        if is_mounted(&self.path) {
            let _ = Command::new("fusermount3").args(["-uz", "--"]).arg(&self.path).status();
        }
    }
}

/// Returns whether something is mounted exactly there.
fn is_mounted(path: &Path) -> bool {
    let Ok(mounts) = fs::read_to_string("/proc/self/mountinfo") else { return false };
    let path = path.display().to_string().replace(' ', "\\040");
    mounts.lines().any(|line| line.split(' ').nth(4) == Some(path.as_str()))
}
