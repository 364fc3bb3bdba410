//! A mount that this process serves itself, with control files and with groups that have a volume
//! each: for experiments that need mechanisms the product does not have, under real programs.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use umemcg::{Engine, EngineConfig, Group};
use umemcg_control::ControlTree;
use umemcg_fuse::{
    Classifier, ControlFs, Daemon, DaemonConfig, MountOptions, ProcessClassifier, SessionConfig,
};
use umemcg_vfs::{VolumeConfig, VolumeSpec};

use crate::options::{Failure, PageCache};

/// The time that the end may take.
const TIMEOUT: Duration = Duration::from_secs(120);

/// A mount of volumes and a mount of control files, served by threads of this process.
pub struct ServedMount {
    pub engine: Arc<Engine>,
    daemon: Daemon,
    points: tempfile::TempDir,
}

impl ServedMount {
    /// Makes both mounts in a directory of their own, with a pool that has marks as that of the
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
        self.daemon.add_volume(name, &spec).map_err(Failure::at("cannot add a volume"))?;
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
        // The shell goes where it belongs by itself: this process must not wait for its own mounts.
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

/// A directory to serve in one run.
pub struct ServedDirectory {
    pub path: PathBuf,
    _copy: Option<tempfile::TempDir>,
}

impl ServedDirectory {
    /// Returns the directory itself, or a copy if the kernel is to keep its pages: such a volume
    /// keeps its directory from other daemons of this process for longer than it is served.
    pub fn of(directory: &Path, page_cache: PageCache) -> Result<Self, Failure> {
        if page_cache == PageCache::Own {
            return Ok(Self { path: directory.to_owned(), _copy: None });
        }
        let copy = tempfile::tempdir_in(directory.parent().unwrap_or(directory));
        let copy = copy.map_err(Failure::at("cannot make a directory"))?;
        let path = copy.path().join("data");
        let copied = Command::new("cp").arg("-a").arg(directory).arg(&path).status();
        match copied {
            Ok(status) if status.success() => Ok(Self { path, _copy: Some(copy) }),
            other => Err(Failure::Setup(format!("cannot copy a directory: {other:?}"))),
        }
    }
}
