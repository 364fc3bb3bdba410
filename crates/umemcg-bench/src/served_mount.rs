//! A mount served by this process itself, with control files and with groups with a volume each:
//! for experiments with mechanisms missing from the product, under real programs.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use umemcg::{Engine, EngineConfig, Group};
use umemcg_control::ControlTree;
use umemcg_fuse::{
    AddVolumeError, Classifier, ControlFs, Daemon, DaemonConfig, MountOptions, ProcessClassifier,
    SessionConfig, Unmount,
};
use umemcg_vfs::{AddError, VolumeConfig, VolumeError, VolumeSpec};

use crate::fuse::Programs;
use crate::options::{Failure, PageCache};

/// The time limit of the end.
const TIMEOUT: Duration = Duration::from_secs(120);
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// After this time a mount hangs: its programs take some minutes at ten times the full size.
const HANGS_AFTER: Duration = Duration::from_secs(20 * 60);

/// A mount of volumes and a mount of control files, served by threads of this process.
pub struct ServedMount {
    pub engine: Arc<Engine>,
    pub daemon: Daemon,
    points: tempfile::TempDir,
}

impl ServedMount {
    /// Makes both mounts in a directory of their own, with the same marks of the pool as in the
    /// product.
    pub fn start(pool_bytes: u64, page_cache: PageCache) -> Result<Self, Failure> {
        let points = tempfile::tempdir().map_err(Failure::at("cannot make a directory"))?;
        let (mnt, cg) = (points.path().join("mnt"), points.path().join("cg"));
        for point in [&mnt, &cg] {
            fs::create_dir(point).map_err(Failure::at("cannot make a mount point"))?;
        }
        let engine = Engine::new(EngineConfig::new(pool_bytes).pool_marks(true))
            .map_err(Failure::at("cannot make an engine"))?;
        let processes = ProcessClassifier::new(Arc::clone(&engine), Vec::new())
            .map_err(Failure::at("cannot keep track of processes"))?;
        let processes = Arc::new(processes);
        let tree = Arc::new(ControlTree::new(Arc::clone(&engine), Arc::clone(&processes) as _));
        let classifier: Arc<dyn Classifier> = Arc::clone(&processes) as _;
        let mut config = DaemonConfig::many(mnt);
        config.lifetimes.pages = page_cache == PageCache::Kernel;
        config.guard = Some(Programs::default().guard()?);
        let mut daemon = Daemon::start(&engine, classifier, &config).map_err(Failure::at("cannot mount"))?;
        let options = MountOptions::new("umemcg-control", "bench");
        daemon
            .mount_control(&cg, &options, ControlFs::new(tree, processes), SessionConfig::default())
            .map_err(Failure::at("cannot mount the control files"))?;
        Ok(Self { engine, daemon, points })
    }

    /// Makes a group, and a volume of the same name over a directory of the host.
    pub fn add_tenant(&self, name: &str, data: &Path) -> Result<Arc<Group>, Failure> {
        let spec = VolumeSpec::Directory(VolumeConfig::one_of_many(data));
        let is_in_use = |error: &AddVolumeError| {
            matches!(error, AddVolumeError::Add(AddError::Volume(VolumeError::InUse { .. })))
        };
        let added = once_free(|| self.daemon.add_volume(name, &spec), is_in_use);
        added.map_err(Failure::at("cannot add a volume"))?;
        self.engine
            .create_group(self.engine.root(), name.as_ref())
            .map_err(Failure::at("cannot create a group"))
    }

    /// Returns the volume of that name as programs see it.
    pub fn volume(&self, name: &str) -> PathBuf {
        self.points.path().join("mnt").join(name)
    }

    /// Starts a shell script in the group of that name and in its volume.
    pub fn run_in(&self, name: &str, script: &str) -> Result<Child, Failure> {
        // The shell moves itself to its group and volume: this process must not wait for its own
        // mounts.
        let script = format!("echo $$ > \"$CG/{name}/cgroup.procs\" && cd \"$VOLUME\" && exec {script}");
        Command::new("sh")
            .args(["-c", &script])
            .env("CG", self.points.path().join("cg"))
            .env("VOLUME", self.volume(name))
            .env_remove("MAKEFLAGS")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .map_err(Failure::at("cannot start a shell"))
    }

    /// Makes everything durable and takes the mounts away.
    pub fn end(self) -> Result<(), Failure> {
        let lost = self.daemon.shut_down(Instant::now() + TIMEOUT);
        if lost.is_empty() { Ok(()) } else { Err(Failure::Wrong(format!("data was lost: {lost:?}"))) }
    }
}

/// Serves a directory, perhaps one served by this process before. Threads dropping pages for the
/// previous daemon may keep the directory for another moment; this retries for a bounded time.
///
/// # Errors
/// The error of `serve`, also if the directory stays busy for too long.
pub fn once_free<T, E>(
    mut serve: impl FnMut() -> Result<T, E>,
    is_in_use: impl Fn(&E) -> bool,
) -> Result<T, E> {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        match serve() {
            Err(error) if is_in_use(&error) && Instant::now() < deadline => {
                std::thread::sleep(LOOK_EVERY);
            }
            result => return result,
        }
    }
}

/// Does work with a mount served by this process. If the work does not end in time, ends the mount
/// by force, so that no process waits for it any more.
///
/// # Errors
/// The error of the work; [`Failure::Wrong`] if it has not ended in time.
pub fn bounded<T>(daemon: &Daemon, work: impl FnOnce() -> Result<T, Failure>) -> Result<T, Failure> {
    let (ended, ends) = mpsc::channel::<()>();
    std::thread::scope(|scope| {
        let watch = scope.spawn(move || {
            let hangs = ends.recv_timeout(HANGS_AFTER) == Err(mpsc::RecvTimeoutError::Timeout);
            if hangs {
                let _ = daemon.unmount(Unmount::ByForce);
            }
            hangs
        });
        let result = work();
        drop(ended);
        match watch.join() {
            Ok(true) => Err(Failure::Wrong(format!(
                "programs on the mount did not end within {} s; the mount was ended by force",
                HANGS_AFTER.as_secs()
            ))),
            _ => result,
        }
    })
}
